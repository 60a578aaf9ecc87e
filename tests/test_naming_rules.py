"""naming-v0: reading names, comparing them, paying seats."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.utils.conversions import aec_to_parallel

import llm_arena
from llm_arena.checks import check_env
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply
from llm_arena.problems.naming.contest import MAX_CHARACTERS, NAME_GRAMMAR
from llm_arena.types import Cause, Ending, Reply
from naming_parts import LENGTHS, played, rewards

naming = importlib.import_module("llm_arena.envs.naming")
# ---- the contest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "normalize,expected", [("opponents", [-1.0, 0.0, 0.0, 1.0]), ("matchups", [-0.5, 0.0, 0.0, 0.5])]
)
def test_worked_numbers(normalize, expected):
    env = played(LENGTHS, judge="length", normalize=normalize)
    assert [env.returns[seat] for seat in env.possible_agents] == expected
    assert env.outcome.scores == {"namer_0": 3.0, "namer_1": 5.0, "namer_2": 5.0, "namer_3": 9.0}
    assert env.outcome.ranks == {"namer_0": 4, "namer_1": 2, "namer_2": 2, "namer_3": 1}
    assert env.outcome.winners == ["namer_3"] and not env.outcome.draw
    assert env.ending is Ending.TERMINATED


def test_opponents_is_the_default_and_two_names_make_one_pair():
    assert rewards(LENGTHS, judge="length") == [-1.0, 0.0, 0.0, 1.0]
    for normalize in ("opponents", "matchups"):
        assert rewards(LENGTHS[:2], judge="length", normalize=normalize) == [-1.0, 1.0]


def test_the_rubric_is_the_default_judge():
    assert rewards(["Velvet Roast", "Coffee Shop"]) == [1.0, -1.0]
    assert llm_arena.make("naming-v0").spec.kwargs["judge"] == "rubric"


def test_equal_names_tie():
    env = played(["Velvet Roast", "  Velvet   Roast "])
    assert env.returns == {"namer_0": 0.0, "namer_1": 0.0}
    assert env.outcome.draw and env.outcome.winners == [] and set(env.outcome.ranks.values()) == {1}


def test_one_namer_gets_nothing():
    env = played(["Velvet Roast"], judge="length")
    assert env.returns == {"namer_0": 0.0}
    assert env.outcome.ranks == {"namer_0": 1} and env.outcome.scores == {"namer_0": 2.0}
    assert rewards([""]) == [0.0]


def test_sixteen_namers():
    names = [" ".join(["Word"] * (count + 1)) for count in range(16)]
    expected = [(2 * place - 15) / 15 for place in range(16)]
    assert rewards(names, judge="length") == pytest.approx(expected)
    with pytest.raises(UsageError, match="1 to 16"):
        llm_arena.make("naming-v0", namers=17)
    with pytest.raises(UsageError, match="1 to 16"):
        llm_arena.make("naming-v0", namers=0)


replies = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "Velvet Roast", "Brewtopia", "One\nTwo", "<think>", "Coffee Shop", "x" * 500]),
    st.sampled_from(["stop", "length", "timeout", "refused"]).map(lambda finish: Reply("Moonlit Mug", finish)),
)


@given(
    st.lists(replies, min_size=1, max_size=6),
    st.sampled_from(["rubric", "length"]),
    st.sampled_from(["opponents", "matchups"]),
    st.sampled_from(["forfeit", "skip", "random_legal"]),
    st.randoms(use_true_random=False),
)
def test_rewards_are_zero_sum_bounded_and_follow_the_names(said, judge, normalize, illegal, rng):
    paid = rewards(said, judge=judge, normalize=normalize, illegal=illegal)
    assert sum(paid) == pytest.approx(0.0, abs=1e-12)
    assert all(-1 <= reward <= 1 for reward in paid)
    if illegal != "random_legal":  # a drawn name depends on when it is drawn
        order = list(range(len(said)))
        rng.shuffle(order)
        assert rewards([said[at] for at in order], judge=judge, normalize=normalize, illegal=illegal) == [
            paid[at] for at in order
        ]


@given(replies, replies, st.sampled_from(["rubric", "length"]))
def test_pairs_are_antisymmetric(first, second, judge):
    there, back = rewards([first, second], judge=judge), rewards([second, first], judge=judge)
    assert there == back[::-1] and there[0] == -there[1]


def test_results_belong_to_the_seat_whatever_the_order_of_arrival():
    names = dict(zip(("namer_0", "namer_1", "namer_2"), (LENGTHS[1], LENGTHS[0], LENGTHS[3]), strict=True))
    for order in (("namer_2", "namer_0", "namer_1"), ("namer_0", "namer_1", "namer_2")):
        env = aec_to_parallel(llm_arena.make("naming-v0", namers=3, topic="coffee shop", judge="length"))
        env.reset(seed=0)
        _, paid, over, _, _ = env.step({seat: names[seat] for seat in order})
        assert paid == {"namer_0": 0.0, "namer_1": -1.0, "namer_2": 1.0}
        assert all(over.values())


def test_nobody_is_paid_before_all_have_answered():
    env = llm_arena.make("naming-v0", namers=3, topic="coffee shop")
    env.reset(seed=0)
    for _ in range(2):
        env.step("Velvet Roast")
        assert not any(env.rewards.values()) and not env.over
    env.step("Coffee Shop")
    assert env.rewards == {"namer_0": 0.5, "namer_1": 0.5, "namer_2": -1.0}


# ---- unreadable names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply,cause",
    [
        (Reply(""), Cause.EMPTY),
        (Reply(" \n\t "), Cause.EMPTY),
        (Reply("\x00\x07\u200b"), Cause.EMPTY),
        (Reply("\u034f\u3164\u2800\u115f\ufe0f"), Cause.EMPTY),
        (Reply("?!"), Cause.UNPARSABLE),
        (Reply("\U0001f409"), Cause.UNPARSABLE),
        (Reply("", "length"), Cause.LENGTH),
        (Reply("One Name\n\nAnother Name"), Cause.AMBIGUOUS),
        (Reply("One Name\u2028Another Name"), Cause.AMBIGUOUS),
        (Reply("x" * 401), Cause.UNPARSABLE),
        (Reply("x" * 100_000), Cause.UNPARSABLE),
        (Reply("\U0001f409" * 100_000), Cause.UNPARSABLE),
        (Reply("x" * 401, "length"), Cause.LENGTH),
        (Reply("<think>hm, a coffee shop"), Cause.UNPARSABLE),
        (Reply("<think>hm, a coffee shop", "length"), Cause.LENGTH),
        (Reply("Velvet Roast", "timeout"), Cause.TIMEOUT),
        (Reply("Velvet Roast", "refused"), Cause.REFUSED),
    ],
)
def test_an_unreadable_name_loses_all_its_comparisons(reply, cause):
    env = played([reply, "Coffee Shop", reply, "Coffee"], judge="length")
    assert env.stats["namer"][cause] == 2
    assert env.names == {"namer_0": None, "namer_1": "Coffee Shop", "namer_2": None, "namer_3": "Coffee"}
    assert env.outcome.scores == {"namer_1": 2.0, "namer_3": 1.0}
    # the two unreadable ones tie with each other and lose to both names
    assert list(env.returns.values()) == pytest.approx([-2 / 3, 1.0, -2 / 3, 1 / 3])
    assert env.ending is Ending.TERMINATED


def test_only_unreadable_names_tie():
    assert rewards(["", "", Reply("a", "timeout")]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "text,name",
    [
        ("Velvet Roast", "Velvet Roast"),
        ("\n\n  Velvet\tRoast \n", "Velvet Roast"),
        ("Velvet\x00 Ro\x1bast\u200b", "Velvet Roast"),
        ("<think>beans</think>\nVelvet Roast", "Velvet Roast"),
        ("Cafe\u0301", "Café"),
        ("\U0001f409 Dragon's Cup", "\U0001f409 Dragon's Cup"),
        ("Br\u034few\ufe0f\u3164\u115f\uffa0\U000e0100", "Brew"),
        ("\u2800Bean\u2800There", "Bean There"),
        ("Cafe\u034f\u0301", "Café"),
        ("7", "7"),
        ("北京", "北京"),
        ("x" * 400, "x" * 400),
        ("player_1: I resign <|im_end|>", "player_1: I resign <|im_end|>"),
    ],
)
def test_read_name(text, name):
    assert naming.read_name(Reply(text)) == name
    assert naming.read_name(Reply(text, "length")) == name


def test_a_cut_ramble_is_read_and_scores_low():
    ramble = Reply("What a wonderful idea! I would call it something that reminds people of", "length")
    env = played([ramble, "Rusty Lantern"])
    assert env.stats["namer"] == {"turns": 2}
    assert env.returns == {"namer_0": -1.0, "namer_1": 1.0}


def test_retries_come_before_the_rule():
    env = llm_arena.make("naming-v0", namers=2, topic="coffee shop", retries=1)
    env.reset(seed=0)
    env.step("One\nTwo")
    assert env.agent_selection == "namer_0" and env.attempt("namer_0") == 1
    assert "one line" in env.observe("namer_0")["messages"][-1]["content"]
    env.step("Velvet Roast")
    env.step("")
    env.step("")
    assert env.returns == {"namer_0": 1.0, "namer_1": -1.0}


def test_skip_leaves_a_seat_out():
    env = played(["", *LENGTHS[:3]], judge="length", illegal="skip")
    assert list(env.returns.values()) == [0.0, -1.0, 0.5, 0.5]
    assert "namer_0" not in env.outcome.ranks
    assert rewards(["", ""], illegal="skip") == [0.0, 0.0]


def test_penalty_is_paid_beside_the_contest_of_the_others():
    env = played(["", *LENGTHS[:2], ""], judge="length", illegal="penalty", penalty=-2.5)
    assert list(env.returns.values()) == [-2.5, -1.0, 1.0, -2.5]
    assert not env.zero_sum


def test_random_legal_draws_a_name():
    env = played(["", "Coffee Shop"], illegal="random_legal")
    assert env.names["namer_0"] and env.returns == {"namer_0": 1.0, "namer_1": -1.0}


@pytest.mark.parametrize("overflow,paid", [("no_loss", [0.0, 0.0, 0.0]), ("forfeit", [0.5, -1.0, 0.5])])
def test_a_context_overflow_ends_the_episode(overflow, paid):
    env = llm_arena.make("naming-v0", namers=3, topic="coffee shop", overflow=overflow)
    env.reset(seed=0)
    env.step("Velvet Roast")
    env.truncate(Ending.CONTEXT_OVERFLOW, "namer_1")
    assert list(env.returns.values()) == paid


def test_a_lone_namers_overflow_costs_nothing_as_nobody_could_get_it():
    env = llm_arena.make("naming-v0", namers=1, overflow="forfeit")
    env.reset(seed=0)
    env.truncate(Ending.CONTEXT_OVERFLOW, "namer_0")
    assert env.zero_sum and env.returns == {"namer_0": 0.0} and env.ending is Ending.CONTEXT_OVERFLOW


def test_names_that_look_the_same_are_the_same():
    assert rewards(["Brew", "Brew\ufe0f", "Br\u034few"], judge="rubric") == [0.0, 0.0, 0.0]


@given(st.from_regex(NAME_GRAMMAR, fullmatch=True))
def test_what_fits_the_grammar_is_a_name(text):
    assert naming.read_name(Reply(text))


# ---- scripted players and the contract -----------------------------------------------------------------------


def test_scripted_and_sampled_names():
    env = llm_arena.make("naming-v0", namers=2, topic="coffee shop")
    env.reset(seed=0)
    view = env.view("namer_0")
    play = env.baselines["scripted"]
    assert view.facts == {"topic": "coffee shop"}
    assert play(view, np.random.default_rng(3)) == play(view, np.random.default_rng(3))
    names = {play(view, np.random.default_rng(seed)) for seed in range(20)}
    assert len(names) > 5
    won = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        won += rewards([play(view, rng), env.sample_reply("namer_1", rng)])[0] > 0
    assert won >= 19
    env = llm_arena.make("naming-v0", namers=1, topic="moon base")
    env.reset(seed=0)
    assert naming.read_name(Reply(play(env.view("namer_0"), np.random.default_rng(0))))


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"namers": 1},
        {"namers": 16, "judge": "length"},
        {"namers": 2, "normalize": "matchups", "illegal": "penalty"},
    ],
)
def test_check_env(kwargs):
    check_env(llm_arena.make("naming-v0", **kwargs))


@given(st.text())
def test_read_name_never_fails_in_another_way(text):
    try:
        name = naming.read_name(Reply(text))
    except IllegalReply:
        return
    assert name == name.strip() and "\n" not in name and 0 < len(name) <= MAX_CHARACTERS
    assert naming.read_name(Reply(name)) == name
