"""Credit where several policies hold seats of one role: each is measured from itself, and one alone as ever."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import get_args

import pytest

from credit_parts import by_seat, make_trace
from llm_arena.training.credit import Baselines, Estimator, Vote, assign, estimate

TWO = ("learner:a", "learner:b")


@pytest.mark.parametrize("estimator", ["rae", "loo", "group_mean", "grpo", "role_norm"])
def test_a_better_policy_has_no_permanent_credit(estimator: Estimator) -> None:
    """One role, zero-sum, seats in turn: `learner:a` wins 9 of 10 games and gets nothing for being better."""
    luck, baselines = random.Random(0), Baselines()
    found: dict[str, list[float]] = {name: [] for name in TWO}
    for step in range(60):
        traces = []
        for game in range(16):
            won = 1.0 if luck.random() < 0.9 else -1.0
            held = TWO if game % 2 else TWO[::-1]
            returns = {f"player_{k}": won if name == TWO[0] else -won for k, name in enumerate(held)}
            traces.append(make_trace(f"{step}-{game}", returns, group=f"{step}-{game // 8}", policies=held))
        credit = by_seat(traces, estimator, baselines)
        for trace in traces:
            for seat, info in trace.seats.items():
                found[info.policy or ""].append(credit.advantages[trace.id, seat])
    assert [sum(values) / len(values) for values in found.values()] == pytest.approx([0, 0], abs=0.02)
    assert all(max(values) > 0.1 and min(values) < -0.1 for values in found.values())


def test_each_policy_is_measured_from_its_own_rewards() -> None:
    """`a` got 3, 1, 2 and `b` 0, 0, 3; the running means before each are 0, 3, 2 and 0, 0, 0 (decay near 1)."""
    rewards = [(3.0, 0.0), (1.0, 0.0), (2.0, 3.0)]
    traces = [
        make_trace(f"t{i}", dict(zip(("player_0", "player_1"), pair, strict=True)), policies=TWO)
        for i, pair in enumerate(rewards)
    ]

    def of(estimator: Estimator, seat: str) -> list[float]:
        credit = by_seat(traces, estimator, Baselines(1 - 1e-9))
        return [credit.advantages[trace.id, seat] for trace in traces]

    assert of("rae", "player_0") == pytest.approx([3, -2, 0], abs=1e-6)
    assert of("rae", "player_1") == pytest.approx([0, 0, 3], abs=1e-6)
    assert (of("loo", "player_0"), of("loo", "player_1")) == ([1.5, -1.5, 0.0], [-1.5, -1.5, 3.0])
    assert (of("group_mean", "player_0"), of("group_mean", "player_1")) == ([1.0, -1.0, 0.0], [-1.0, -1.0, 2.0])
    assert of("role_norm", "player_1") == pytest.approx([-1 / 2**0.5, -1 / 2**0.5, 2**0.5])
    assert [by_seat(traces, estimator).groups for estimator in ("loo", "role_norm")] == [2, 2]


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_one_policy_is_credited_alike_to_the_bit_whatever_its_name(estimator: Estimator) -> None:
    luck = random.Random(1)
    votes = [
        Vote(
            trace_id=f"t{i}",
            seat=f"player_{k}",
            role=("first", "player", "player")[k],
            env_id="e",
            group=f"g{i // 3}",
            unit=f"t{i}",
            reward=luck.choice([None, luck.random(), luck.random(), 1.0]),
        )
        for i in range(30)
        for k in range(3)
    ]
    nameless, named = (
        estimate([dataclasses.replace(vote, policy=name) for vote in votes], estimator, Baselines())
        for name in ("", "learner:a")
    )
    assert named == nameless


@pytest.mark.parametrize("corrected", [True, False])
def test_a_checkpoint_that_names_no_policies_goes_on(corrected: bool) -> None:
    """Of one policy to the bit; several begin with what their role has, and part from there."""
    rewards = [1.0, -0.5, 0.25, 0.7, -0.1]
    unbroken, later = (Baselines(0.9, bias_correction=corrected) for _ in range(2))
    for reward in rewards[:2]:
        unbroken.advantage("g", "r", reward, "learner")
    later.load([{key: value for key, value in row.items() if key != "policy"} for row in unbroken.state()])
    again = Baselines(0.9, bias_correction=corrected)
    again.load(later.state())
    for reward in rewards[2:]:
        expected = unbroken.advantage("g", "r", reward, "learner")
        assert later.advantage("g", "r", reward, "learner") == expected == again.advantage("g", "r", reward, "learner")
    before = later.value("g", "r")
    assert later.value("g", "r", "learner:b") == before != later.value("g", "r", "learner")
    later.update("g", "r", 5.0, "learner:b")
    assert later.value("g", "r") == before < later.value("g", "r", "learner:b")
    kept = Baselines(0.9, bias_correction=corrected)
    kept.load(later.state())
    assert kept.state() == later.state() and {row["policy"] for row in kept.state()} == {"", "learner", "learner:b"}


def test_siblings_of_one_episode_are_compared_whoever_holds_them() -> None:
    """Solvers of one problem, 4 of them, two of each policy; and a group of a single episode of two players."""
    rewards = [(1.0, 1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)]
    traces = [
        make_trace(f"t{i}", {f"solver_{k}": reward for k, reward in enumerate(paid)}, policies=TWO)
        for i, paid in enumerate(rewards)
    ]
    credit = by_seat(traces, "group_mean", peers=("solver",))
    assert [credit.of("t0", f"solver_{k}") for k in range(4)] == [0.5, 0.5, -0.5, -0.5]
    assert [credit.of("t1", f"solver_{k}") for k in range(4)] == [0.75, -0.25, -0.25, -0.25]
    assert credit.groups == 2
    duel = by_seat([make_trace("t", {"player_0": 1.0, "player_1": -1.0}, policies=TWO)], "loo")
    assert (duel.advantages, duel.uninformative) == ({("t", "player_0"): 2.0, ("t", "player_1"): -2.0}, 0)


def test_a_contest_of_policies_measures_each_from_its_own_episodes() -> None:
    """Where each episode has both policies nothing changes; where each has one, the better is not paid for it."""

    def contest(policies: Sequence[Sequence[str]]) -> list[float | None]:
        traces = [
            make_trace(f"t{i}", {"namer_0": 0.0, "namer_1": 0.0}, policies=held) for i, held in enumerate(policies)
        ]
        credit = assign(
            traces,
            by="group",
            estimator="loo",
            baselines=Baselines(),
            learners=lambda trace: list(trace.seats),
            group_reward=lambda members: [(paid, {}) for paid in (3.0, 2.0, 1.0, 0.0)],
        )
        return [credit.of(trace.id, "namer_0") for trace in traces]

    assert contest([TWO] * 4) == pytest.approx([2, 2 / 3, -2 / 3, -2])
    assert contest([["learner"]] * 4) == pytest.approx([2, 2 / 3, -2 / 3, -2])
    assert contest([TWO[:1], TWO[:1], TWO[1:], TWO[1:]]) == pytest.approx([1, -1, 1, -1])


def test_credit_by_trace_belongs_to_all_policies_of_the_trace() -> None:
    baselines = Baselines()
    for name in ("first", "second"):
        trace = make_trace(name, {"solver_0": 0.25, "solver_1": 1.0}, policies=TWO)
        credit = assign(
            [trace], by="trace", estimator="rae", baselines=baselines, learners=lambda trace: list(trace.seats)
        )
    assert [credit.of("second", seat) for seat in ("solver_0", "solver_1")] == [0.0, 0.0]
    assert [(row["role"], row["policy"]) for row in baselines.state()] == [("", "")]
