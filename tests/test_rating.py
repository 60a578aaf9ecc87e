"""Counts by entrant: seat swaps, order of arrival, void apart from forfeit, and Wilson's interval."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from llm_arena.errors import UnknownName, UsageError
from llm_arena.rating import MatchRow, Record, match_row, standings, total_rewards, wilson, win_rate
from llm_arena.types import Cause, Ending, EnvSpec, Failure, Outcome, SeatInfo, Trace, Turn


def make_trace(returns: dict[str, float], **changes: Any) -> Trace:
    seats = {seat: SeatInfo(role="player", agent="random-legal") for seat in returns}
    best = max(returns.values())
    winners = [seat for seat, value in returns.items() if value == best]
    outcome = Outcome(winners=winners) if len(winners) < len(returns) else Outcome(draw=True)
    given: dict[str, Any] = {"returns": returns, "outcome": outcome, **changes}
    return Trace(id="match", spec=EnvSpec(id="game-v0"), seed=1, seats=seats, **given)


def row(returns: dict[str, float], entrants: dict[str, str], **changes: Any) -> MatchRow:
    return match_row(make_trace(returns, **changes), entrants)


def test_rewards_belong_to_entrants_whatever_the_order_of_arrival() -> None:
    # coworld issue 40: seats 0, 1, 2 hold Q, R, P, and the answers arrive in the order 2, 0, 1.
    entrants = {"player_0": "Q", "player_1": "R", "player_2": "P"}
    arrived = [Turn(index=i, seat=seat, text="x") for i, seat in enumerate(["player_2", "player_0", "player_1"])]
    played = row({"player_2": -1.0, "player_0": 1.0, "player_1": 0.0}, entrants, turns=arrived)
    assert total_rewards([played]) == {"Q": 1.0, "R": 0.0, "P": -1.0}
    assert {name: win_rate([played], name).wins for name in "PQR"} == {"Q": 2, "R": 0, "P": 0}


def test_three_rotations_of_a_seat_that_always_wins_leave_all_equal() -> None:
    names, seats = ["P", "Q", "R"], ["player_0", "player_1", "player_2"]
    rows = []
    for shift in range(3):
        entrants = {seat: names[(i + shift) % 3] for i, seat in enumerate(seats)}
        ranks = {"player_0": 1, "player_1": 2, "player_2": 3}
        rows.append(row({"player_0": 1.0, "player_1": 0.0, "player_2": -1.0}, entrants, outcome=Outcome(ranks=ranks)))
    assert total_rewards(rows) == {"P": 0.0, "Q": 0.0, "R": 0.0}
    assert [(record.wins, record.draws, record.losses) for record in standings(rows)] == [(3, 0, 3)] * 3


def test_a_seat_swap_turns_the_result_round() -> None:
    first = row({"player_0": 1.0, "player_1": -1.0}, {"player_0": "A", "player_1": "B"})
    second = row({"player_0": 1.0, "player_1": -1.0}, {"player_0": "B", "player_1": "A"})
    assert win_rate([first], "A", "B").rate == 1.0
    assert win_rate([second], "A", "B").rate == 0.0
    assert win_rate([first, second], "A").rate == 0.5


def test_void_counts_for_nobody_and_a_forfeit_is_a_loss() -> None:
    entrants = {"player_0": "A", "player_1": "B"}
    bad = [
        Turn(index=0, seat="player_0", text="??", cause=Cause.UNPARSABLE),
        Turn(index=1, seat="player_1", text="fine"),  # answered in the same phase, after the bad reply
    ]
    forfeit = row(
        {"player_0": -1.0, "player_1": 1.0},
        entrants,
        turns=bad,
        outcome=Outcome(winners=["player_1"], reason="forfeit: unparsable"),
    )
    failure = Failure(boundary="engine", kind="EngineError", message="gone")
    void = row({"player_0": 0.0, "player_1": 0.0}, entrants, ending=Ending.VOID, failure=failure, outcome=None)
    record = win_rate([forfeit, void], "A", "B")
    assert (record.wins, record.draws, record.losses) == (0, 0, 1)
    assert (record.forfeits, record.void, record.n) == (1, 1, 1)
    assert win_rate([forfeit, void], "B").forfeits == 0
    assert (forfeit.status, void.status, void.seats["player_0"].reward) == ("forfeit", "void", None)


def test_a_match_that_was_cut_off_is_a_draw_and_is_counted_as_such() -> None:
    cut = row(
        {"player_0": 0.0, "player_1": 0.0}, {"player_0": "A", "player_1": "B"}, ending=Ending.TRUNCATED, outcome=None
    )
    record = win_rate([cut], "A")
    assert (record.draws, record.truncated, record.rate) == (1, 1, 0.5)


def test_seats_of_one_entrant_are_not_compared_with_each_other() -> None:
    both = {"player_0": "A", "player_1": "A", "player_2": "B"}
    record = win_rate([row({"player_0": 1.0, "player_1": 0.0, "player_2": 0.0}, both)], "A", "B")
    assert (record.wins, record.draws, record.losses) == (1, 1, 0)


def test_a_game_without_order_compares_nobody() -> None:
    played = row({"player_0": 3.0, "player_1": 3.0}, {"player_0": "A", "player_1": "B"}, outcome=Outcome(reason="done"))
    record = win_rate([played], "A")
    assert record.n == 0
    assert math.isnan(record.rate)
    assert record.interval() == (0.0, 1.0)


@pytest.mark.parametrize("winners", [["player_0", "player_1"], []])
def test_who_wins_or_loses_together_is_not_ranked(winners: list[str]) -> None:
    entrants = {"player_0": "A", "player_1": "B"}
    played = row({"player_0": 1.2, "player_1": 1.2}, entrants, outcome=Outcome(winners=winners, reason="right"))
    assert {seat.rank for seat in played.seats.values()} == {None}
    assert win_rate([played], "A").n == 0
    # Ranks are an author's own word, and a draw says that there was a contest.
    ranked = Outcome(winners=winners, ranks={"player_0": 1, "player_1": 1})
    for outcome in (ranked, Outcome(draw=True)):
        assert win_rate([row({"player_0": 0.0, "player_1": 0.0}, entrants, outcome=outcome)], "A").draws == 1


def test_an_officials_win_is_no_win_of_all() -> None:
    played = make_trace({"player_0": 1.0, "player_1": 0.0, "judge_0": 1.0})
    found = match_row(played, {"player_0": "A", "player_1": "B"}, officials={"judge_0": "J"})
    assert {name: seat.rank for name, seat in found.seats.items()} == {"player_0": 1, "player_1": 2}
    both = make_trace({"player_0": 1.0, "player_1": 1.0, "judge_0": 0.0})
    found = match_row(both, {"player_0": "A", "player_1": "B"}, officials={"judge_0": "J"})
    assert {seat.rank for seat in found.seats.values()} == {None}
    returns = {"player_0": 1.0, "player_1": 1.0, "judge_0": 1.0}
    everybody = make_trace(returns, outcome=Outcome(winners=list(returns)))
    found = match_row(everybody, {"player_0": "A", "player_1": "B"}, officials={"judge_0": "J"})
    assert {seat.rank for seat in found.seats.values()} == {None}


def test_unknown_entrants_and_wrong_seats_are_errors() -> None:
    played = row({"player_0": 1.0, "player_1": -1.0}, {"player_0": "trained", "player_1": "initial"})
    with pytest.raises(UnknownName, match='Did you mean "trained"'):
        win_rate([played], "traned")
    with pytest.raises(UsageError, match="player_7"):
        match_row(make_trace({"player_0": 1.0, "player_1": -1.0}), {"player_0": "A", "player_7": "B"})


def test_standings_put_the_best_first_and_entrants_without_results_last() -> None:
    void = row({"player_0": 0.0, "player_1": 0.0}, {"player_0": "C", "player_1": "D"}, ending=Ending.VOID, outcome=None)
    played = row({"player_0": 1.0, "player_1": -1.0}, {"player_0": "B", "player_1": "A"})
    assert [record.entrant for record in standings([void, played])] == ["B", "A", "C", "D"]


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_equals_scipys(counts: tuple[int, int], confidence: float) -> None:
    successes, n = counts
    low, high = wilson(successes, n, confidence)
    peer = scipy.stats.binomtest(successes, n).proportion_ci(confidence_level=confidence, method="wilson")
    assert low == pytest.approx(peer.low, abs=1e-9)
    assert high == pytest.approx(peer.high, abs=1e-9)


def test_draws_count_as_half_a_win() -> None:
    record = Record(entrant="A", wins=1, draws=2, losses=1)
    assert record.rate == 0.5
    assert record.interval() == wilson(2, 4)


@pytest.mark.parametrize("successes, n, confidence", [(3, 2, 0.95), (-1, 2, 0.95), (1, 2, 1.0), (1, 2, 0.0)])
def test_wilson_refuses_what_it_can_not_mean(successes: int, n: int, confidence: float) -> None:
    with pytest.raises(UsageError):
        wilson(successes, n, confidence)
