"""naming-v0: groups of one-seat episodes are paid as one contest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llm_arena
from llm_arena.errors import UsageError
from llm_arena.types import Ending, Reply, SeatInfo, Trace, Turn
from naming_parts import LENGTHS, rewards

PAY = type(llm_arena.make("naming-v0")).group_reward


def single(reply, *, id="t", seed=0, tries=(), **kwargs):
    """The trace of a one-seat episode."""
    env = llm_arena.make("naming-v0", namers=1, **{"topic": "coffee shop", **kwargs})
    env.reset(seed=seed)
    turns = []
    for index, text in enumerate([*tries, reply]):
        env.step(text)
        step = env.last_step
        turns.append(
            Turn(
                index=index,
                seat=step.seat,
                text=str(step.reply),
                finish=step.reply.finish,
                cause=step.cause,
                action=step.action,
            )
        )
    assert env.over
    seats = {"namer_0": SeatInfo(role="namer", agent="test")}
    return Trace(id=id, spec=env.spec, seed=seed, seats=seats, turns=turns, returns=dict(env.returns))


def void(**kwargs):
    trace = single("Velvet Roast", **kwargs)
    trace.ending, trace.turns, trace.returns = Ending.VOID, [], {}
    return trace


replies = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "Velvet Roast", "Brewtopia", "One\nTwo", "<think>", "Coffee Shop", "x" * 500]),
    st.sampled_from(["stop", "length", "timeout", "refused"]).map(lambda finish: Reply("Moonlit Mug", finish)),
)


# ---- groups of one-seat episodes -----------------------------------------------------------------------------


def group(replies, **kwargs):
    traces = [single(reply, id=f"t{at}", seed=at, **kwargs) for at, reply in enumerate(replies)]
    return PAY(traces)


@given(
    st.lists(replies, min_size=1, max_size=5),
    st.sampled_from(["rubric", "length"]),
    st.sampled_from(["opponents", "matchups"]),
    st.sampled_from(["forfeit", "skip", "penalty"]),
)
def test_a_group_is_paid_exactly_as_one_episode(said, judge, normalize, illegal):
    settings = {"judge": judge, "normalize": normalize, "illegal": illegal}
    assert [reward for reward, _ in group(said, **settings)] == rewards(said, **settings)


def test_group_metrics():
    paid = group([*LENGTHS, ""], judge="length")
    assert [reward for reward, _ in paid] == [-0.5, 0.25, 0.25, 1.0, -1.0]
    assert paid[3][1] == {"win_score": 1.0, "wins_minus_losses": 4.0, "name_tokens": 9.0}
    assert paid[4][1] == {"win_score": -1.0, "wins_minus_losses": -4.0, "name_tokens": 0.0}


def test_a_group_reads_the_last_try_and_what_was_drawn():
    traces = [
        single("Velvet Roast", tries=[""], retries=1, judge="length"),
        single("", tries=["One\nTwo"], retries=1, judge="length"),
    ]
    assert [reward for reward, _ in PAY(traces)] == [1.0, -1.0]
    drawn = [single("", illegal="random_legal"), single("Coffee Shop", illegal="random_legal")]
    assert [reward for reward, _ in PAY(drawn)] == [1.0, -1.0]


def test_a_void_member_shifts_nobody():
    traces = [single(name, judge="length") for name in LENGTHS]
    failed = void(judge="length")
    paid = PAY([*traces[:2], failed, *traces[2:]])
    assert [reward for reward, _ in paid[:2] + paid[3:]] == [-1.0, 0.0, 0.0, 1.0]
    assert math.isnan(paid[2][0]) and paid[2][1] == {}
    alone = PAY([failed, traces[0]])
    assert math.isnan(alone[0][0]) and alone[1][0] == 0.0
    assert all(math.isnan(reward) for reward, _ in PAY([failed, failed]))
    assert PAY([]) == []


@pytest.mark.parametrize(("overflow", "expected"), [("no_loss", [0.0, 0.0, 0.0]), ("forfeit", [0.5, -1.0, 0.5])])
def test_an_overflow_ends_a_group_as_it_ends_an_episode(overflow, expected):
    traces = [single(name, judge="length", overflow=overflow) for name in ("A B C", "A", "A B")]
    traces[1].ending, traces[1].turns = Ending.CONTEXT_OVERFLOW, []
    env = llm_arena.make("naming-v0", namers=3, judge="length", overflow=overflow)
    env.reset(seed=0)
    env.step("A B C")
    env.truncate(Ending.CONTEXT_OVERFLOW, "namer_1")
    assert [reward for reward, _ in PAY(traces)] == expected == list(env.returns.values())


@pytest.mark.parametrize(
    ("full", "failed", "expected"),
    [
        ([0, 1], [], [-2 / 3, -2 / 3, 2 / 3, 2 / 3]),  # each loses to two of its three opponents
        ([0, 1, 2], [], [-1 / 3, -1 / 3, -1 / 3, 1]),
        ([0, 1, 2, 3], [], [0, 0, 0, 0]),
        ([1], [0, 2], [math.nan, -1, math.nan, 1]),
        ([1], [0, 2, 3], [math.nan, 0, math.nan, math.nan]),
    ],
)
def test_every_overflowed_member_of_a_group_pays_and_the_rest_shares(full, failed, expected):
    traces = [single(name, overflow="forfeit") for name in ("A B C", "A", "A B", "A B C D")]
    for at in full:
        traces[at].ending, traces[at].turns = Ending.CONTEXT_OVERFLOW, []
    for at in failed:
        traces[at] = void(overflow="forfeit")
    assert [reward for reward, _ in PAY(traces)] == pytest.approx(expected, nan_ok=True)


def test_a_group_shares_its_drawn_topic():
    traces = [single(name, seed=3, topic=None) for name in ("Velvet Roast", "Rusty Lantern")]
    env = llm_arena.make("naming-v0", namers=2)
    env.reset(seed=3)
    for name in ("Velvet Roast", "Rusty Lantern"):
        env.step(name)
    assert [reward for reward, _ in PAY(traces)] == list(env.returns.values())


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UsageError, match="one topic"):
        PAY([single("Oak"), single("Oak", topic="law firm")])
    with pytest.raises(UsageError, match="one topic and one judge"):
        PAY([single("Oak"), single("Oak", judge="length")])
    two = single("Oak")
    two.spec = llm_arena.make("naming-v0", namers=2).spec
    with pytest.raises(UsageError, match="namers=1"):
        PAY([two])
