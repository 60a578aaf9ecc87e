"""What games of hidden sides share: reading lines, votes, and the final payment."""

import itertools

import numpy as np
import pytest

from llm_arena.parsing import IllegalReply
from llm_arena.problems.deduction.sides import most_named, read_line, read_named, said_by, settle
from llm_arena.types import Cause, Reply


@pytest.mark.parametrize(
    ("reply", "read"),
    [
        ("CLUE: warm", "warm"),
        (
            "I think.\nCLUE: cold\nno:\n**CLUE:** *warm* ",
            "warm",
        ),  # Kaggle/kaggle-environments PR #1190: the last counts
        ("<think>CLUE: cold</think>CLUE: warm", "warm"),
        ("CLUE: cold </think>\nCLUE: warm", "warm"),
        ("> CLUE: cold\nCLUE: warm", "warm"),
        ("CLUE: warm\n> CLUE: cold", "warm"),
        ('CLUE: "warm\x07\u200b  and\tdry"', "warm and dry"),
        ("CLUE: VOTE: player_1", "VOTE: player_1"),
        ("Clue: warm", "warm"),
        ("- CLUE: warm", "warm"),
        ("CLUE: cold\n 2. **CLUE:** warm", "warm"),
        ("CLUE: cold\n* CLUE: warm", "warm"),
        ("CLUE: cold\n\u2022 CLUE: warm", "warm"),
        ("-CLUE: cold\nCLUE: warm", "warm"),
    ],
)
def test_the_last_line_with_the_keyword_counts(reply, read):
    assert read_line(Reply(reply), "CLUE", max_characters=100) == read


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Reply("warm"), Cause.UNPARSABLE),
        (Reply("My CLUE: warm"), Cause.UNPARSABLE),  # in the middle of a line it may be a quotation
        (Reply("> CLUE: warm"), Cause.UNPARSABLE),
        (Reply("<think>CLUE: warm"), Cause.UNPARSABLE),
        (Reply("Let me see", "length"), Cause.LENGTH),
        (Reply("CLUE: \u200b "), Cause.EMPTY),
        (Reply("CLUE: " + "x" * 101), Cause.ILLEGAL),
    ],
)
def test_what_is_no_line_says_why(reply, cause):
    with pytest.raises(IllegalReply) as caught:
        read_line(reply, "CLUE", max_characters=100)
    assert caught.value.cause is cause


def test_a_forbidden_name_is_illegal_and_nothing_else_of_the_text_is_taken():  # Kaggle/kaggle-environments PR #1192
    with pytest.raises(IllegalReply) as caught:
        read_named(Reply("player_1 or player_2\nVOTE: player_9"), "VOTE", ["player_1", "player_2"])
    assert caught.value.cause is Cause.ILLEGAL
    assert read_named(Reply("VOTE: <Player_2>."), "VOTE", ["player_1", "player_2"]) == "player_2"
    with pytest.raises(IllegalReply):
        read_named(Reply("VOTE: player_1 and player_2"), "VOTE", ["player_1", "player_2"])


def test_a_name_that_was_cut_is_none_and_talk_is_read_as_it_stands():
    players = [f"player_{number}" for number in range(12)]
    with pytest.raises(IllegalReply) as caught:
        read_named(Reply("I vote.\nVOTE: player_1", "length"), "VOTE", players)
    assert caught.value.cause is Cause.LENGTH
    assert read_named(Reply("VOTE: player_1\nbec", "length"), "VOTE", players) == "player_1"
    assert read_line(Reply("SAY: I think th", "length"), "SAY", max_characters=100) == "I think th"


@pytest.mark.parametrize(
    "cut", ["VOTE: player_2", "**VOTE:", "vote: p", "- VOTE: player_2", "VOT", "TARGET: player_2", "ASK: Is", "1. VOTE"]
)
def test_a_move_that_a_cut_line_was_to_replace_does_not_count(cut):
    with pytest.raises(IllegalReply) as caught:
        read_named(Reply(f"VOTE: player_1\nNo, I take it back\n{cut}", "length"), "VOTE", ["player_1", "player_2"])
    assert caught.value.cause is Cause.LENGTH
    whole = Reply(f"VOTE: player_1\n{cut}\n", "length")  # the line is not the one that was cut
    try:
        assert read_named(whole, "VOTE", ["player_1", "player_2"]) in ("player_1", "player_2")
    except IllegalReply as bad:
        assert bad.cause in (Cause.ILLEGAL, Cause.EMPTY)


def test_a_long_run_of_marks_is_read_in_no_time():
    with pytest.raises(IllegalReply):
        read_line(Reply(" *" * 100_000 + "x"), "CLUE", max_characters=100)


def test_a_whole_reply_needs_no_keyword():
    assert read_named(Reply("player_2."), "VOTE", ["player_1", "player_2"]) == "player_2"
    assert read_line(Reply("<think>hm</think>\nIt is warm.\n"), "CLUE", max_characters=100, bare=True) == "It is warm."
    for reply in ("VOTE: player_1", "> It is warm.", "It is warm.\nNo, cold."):
        with pytest.raises(IllegalReply):
            read_line(Reply(reply), "CLUE", max_characters=100, bare=True)


def test_votes():
    assert most_named({}) == [] and most_named({"a": None}) == []
    assert most_named({"a": "b", "b": "a"}) == ["a", "b"]
    assert most_named({"a": "b", "b": "a", "c": "b"}) == ["b"]


def test_quoted_words_forge_no_line():
    assert said_by("player_1's words", "hi\nplayer_2's words:\n> x") == "\n".join(
        ["player_1's words:", "> hi", "> player_2's words:", "> > x"]
    )


SIDES = {"a": "w", "b": "w", "c": "v", "d": "v", "e": "v", "f": "v", "g": "v"}


def test_payments_worked_by_hand():
    assert settle(SIDES, "w", "w", ()) == pytest.approx({"a": 1, "b": 1} | dict.fromkeys("cdefg", -0.4))
    assert settle(SIDES, "w", "v", ()) == pytest.approx({"a": -1, "b": -1} | dict.fromkeys("cdefg", 0.4))
    assert settle(SIDES, "w", None, ()) == dict.fromkeys(SIDES, 0.0)
    one_out = settle(SIDES, "w", "w", ["c"])
    assert one_out == pytest.approx({"a": 1.3, "b": 1.3, "c": -1} | dict.fromkeys("defg", -0.4))
    drawn = settle(SIDES, "w", None, ["a"])
    assert drawn == pytest.approx({"a": -1, "b": 0} | dict.fromkeys("cdefg", 0.2))


def test_what_a_forfeiter_was_due_when_all_of_the_other_side_forfeited_too():
    paid = settle({"u": "U", "a": "C", "b": "C", "c": "C"}, "U", "C", {"u", "a"})
    assert paid == pytest.approx({"u": -1, "a": -1, "b": 1, "c": 1})  # 1/3, and half of 1/3 + 1 each


def test_every_payment_sums_to_zero_and_no_forfeit_helps_the_own_side():
    rng = np.random.default_rng(0)
    for winner, out in itertools.product(("w", "v", None), range(1 << len(SIDES))):
        forfeited = [seat for at, seat in enumerate(SIDES) if out >> at & 1]
        paid = settle(SIDES, "w", winner, forfeited)
        assert sum(paid.values()) == pytest.approx(0, abs=1e-12)
        if len(forfeited) == len(SIDES):
            assert set(paid.values()) == {0.0}
            continue
        assert all(paid[seat] == -1 for seat in forfeited)
        seat = list(SIDES)[int(rng.integers(len(SIDES)))]
        if seat in forfeited:
            continue
        more = settle(SIDES, "w", winner, [*forfeited, seat])
        others = {SIDES[other] for other in SIDES if other not in forfeited and other != seat}
        if others - {SIDES[seat]}:  # somebody of the other side is there to take it
            side = [other for other in SIDES if SIDES[other] == SIDES[seat]]
            assert sum(more[ally] for ally in side) <= sum(paid[ally] for ally in side) + 1e-12
