"""Rewards to advantages: running baselines, groups, and what must have no signal."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_parts import by_seat, make_trace
from llm_arena.errors import UsageError
from llm_arena.training.credit import Baselines, Credit, Estimator, GroupReward, Vote, assign, check, estimate
from llm_arena.types import EnvSpec, Trace, Turn


def group_of(rewards: list[float], estimator: Estimator) -> tuple[list[float], Credit]:
    traces = [make_trace(f"t{i}", {"solver_0": reward}) for i, reward in enumerate(rewards)]
    credit = by_seat(traces, estimator)
    return [credit.advantages[trace.id, "solver_0"] for trace in traces], credit


@pytest.mark.parametrize("estimator", ["loo", "group_mean", "grpo", "role_norm"])
@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0, 1.0], [0.7]])
def test_groups_without_contrast_have_zero_advantage_and_are_counted(
    estimator: Estimator, rewards: list[float]
) -> None:
    advantages, credit = group_of(rewards, estimator)
    assert advantages == [0.0] * len(rewards)
    assert (credit.groups, credit.uninformative) == (1, 1)


def test_group_mean_of_one_winner() -> None:
    advantages, credit = group_of([0, 0, 0, 1], "group_mean")
    assert advantages == pytest.approx([-0.25, -0.25, -0.25, 0.75])
    assert credit.uninformative == 0


def test_leave_one_out_compares_with_the_others_only() -> None:
    assert group_of([0, 0, 0, 1], "loo")[0] == pytest.approx([-1 / 3, -1 / 3, -1 / 3, 1])


def test_grpo_scales_by_the_spread() -> None:
    advantages, _ = group_of([0, 0, 0, 1], "grpo")
    assert sum(advantages) == pytest.approx(0)
    assert [math.copysign(1, value) for value in advantages] == [-1, -1, -1, 1]
    assert advantages[3] == pytest.approx(0.75 / math.sqrt(3 / 16))


@pytest.mark.parametrize("estimator", ["loo", "group_mean", "grpo", "role_norm"])
def test_rounding_noise_is_no_contrast(estimator: Estimator) -> None:
    advantages, credit = group_of([0.1 + 0.2, 0.3, 0.3], estimator)
    assert max(map(abs, advantages)) < 1e-3
    assert credit.uninformative == 1


def test_roles_are_compared_apart() -> None:
    same = [make_trace(f"t{i}", {"proposer_0": 1.0, "solver_0": -1.0}) for i in range(4)]
    assert set(by_seat(same, "group_mean").advantages.values()) == {0.0}
    rewards = [1.0, 0.0, 1.0, 0.0]
    mixed = [make_trace(f"t{i}", {"proposer_0": reward, "solver_0": -reward}) for i, reward in enumerate(rewards)]
    credit = by_seat(mixed, "group_mean")
    assert [credit.advantages[f"t{i}", "proposer_0"] for i in range(4)] == [0.5, -0.5, 0.5, -0.5]
    assert [credit.advantages[f"t{i}", "solver_0"] for i in range(4)] == [-0.5, 0.5, -0.5, 0.5]


def test_a_seat_is_not_compared_with_siblings_of_its_own_episode() -> None:
    """Two episodes of two players; the other episode's mean is 0 for the first and 2 for the second."""
    traces = [
        make_trace("a", {"player_0": 3.0, "player_1": 1.0}),
        make_trace("b", {"player_0": -1.0, "player_1": 1.0}),
    ]
    left_out = by_seat(traces, "loo").advantages
    assert left_out == {
        ("a", "player_0"): 3.0,
        ("a", "player_1"): 1.0,
        ("b", "player_0"): -3.0,
        ("b", "player_1"): -1.0,
    }
    assert by_seat(traces, "group_mean").advantages == {key: value / 2 for key, value in left_out.items()}
    std = math.sqrt(2.0)  # of 3, 1, -1, 1
    scaled = by_seat(traces, "grpo").advantages
    assert scaled == {key: pytest.approx(value / 2 / std) for key, value in left_out.items()}


def test_the_seats_of_one_episode_alone_are_compared_with_each_other() -> None:
    traces = [make_trace("a", {"namer_0": 3.0, "namer_1": 1.0})]
    assert list(by_seat(traces, "group_mean").advantages.values()) == [1.0, -1.0]


def test_role_norm_compares_a_role_over_the_whole_batch() -> None:
    """Proposers 1, 0, 1, 0: mean 0.5 and std 0.5. Solvers 10, 10, 10, 30: mean 15 and std 8.66. No groups needed."""
    rewards = [(1.0, 10.0), (0.0, 10.0), (1.0, 10.0), (0.0, 30.0)]
    traces = [
        make_trace(f"t{i}", {"proposer_0": first, "solver_0": second}, group=f"g{i}")
        for i, (first, second) in enumerate(rewards)
    ]
    credit = by_seat(traces, "role_norm")
    assert [credit.advantages[f"t{i}", "proposer_0"] for i in range(4)] == [1.0, -1.0, 1.0, -1.0]
    expected = [-5 / math.sqrt(75)] * 3 + [15 / math.sqrt(75)]
    assert [credit.advantages[f"t{i}", "solver_0"] for i in range(4)] == pytest.approx(expected)
    assert credit.scales["t0", "proposer_0"] == 2.0
    assert (credit.groups, credit.uninformative) == (2, 0)


def test_role_norm_of_a_role_without_contrast_is_zero() -> None:
    traces = [make_trace(f"t{i}", {"proposer_0": 1.0, "solver_0": float(i)}, group=f"g{i}") for i in range(2)]
    credit = by_seat(traces, "role_norm")
    assert [credit.advantages[f"t{i}", "proposer_0"] for i in range(2)] == [0.0, 0.0]
    assert [credit.advantages[f"t{i}", "solver_0"] for i in range(2)] == [-1.0, 1.0]
    assert (credit.groups, credit.uninformative) == (2, 1)
    assert list(by_seat(traces[:1], "role_norm").advantages.values()) == [0.0, 0.0]


def test_peers_are_compared_within_their_episode() -> None:
    """Two proposals of one group: solvers compare on each problem, the proposers with each other."""
    traces = [
        make_trace("easy", {"proposer_0": 0.0, "solver_0": 1.0, "solver_1": 1.0}),
        make_trace("fair", {"proposer_0": 1.0, "solver_0": 1.0, "solver_1": 0.0}),
    ]
    credit = by_seat(traces, "group_mean", peers=("solver",))
    assert credit.advantages == {
        ("easy", "proposer_0"): -0.5,
        ("fair", "proposer_0"): 0.5,
        ("easy", "solver_0"): 0.0,
        ("easy", "solver_1"): 0.0,
        ("fair", "solver_0"): 0.5,
        ("fair", "solver_1"): -0.5,
    }
    assert (credit.groups, credit.uninformative) == (3, 1)
    pooled = by_seat(traces, "group_mean").advantages
    assert (pooled["easy", "solver_0"], pooled["fair", "solver_0"]) == (0.25, 0.0)  # each with the other episode's


def test_running_baseline_is_read_before_its_update() -> None:
    traces = [make_trace(f"t{i}", {"solver_0": reward}) for i, reward in enumerate([1.0, 1.0, -1.0])]
    plain = by_seat(traces, "rae", Baselines(0.9, bias_correction=False))
    assert list(plain.advantages.values()) == pytest.approx([1, 0.9, -1.19])
    corrected = by_seat(traces, "rae", Baselines(0.9))
    assert list(corrected.advantages.values()) == pytest.approx([1, 0, -2])


def test_a_role_that_always_loses_is_soon_not_punished_for_it() -> None:
    baselines = Baselines()
    traces = [make_trace(f"t{i}", {"victim_0": -1.0}) for i in range(3)]
    assert list(by_seat(traces, "rae", baselines).advantages.values()) == pytest.approx([-1, 0, 0])


def test_a_running_baseline_holds_no_reward_of_the_same_trace() -> None:
    baselines = Baselines(0.5, bias_correction=False)
    first = by_seat([make_trace("a", {"namer_0": 1.0, "namer_1": -1.0})], "rae", baselines)
    assert first.advantages == {("a", "namer_0"): 1.0, ("a", "namer_1"): -1.0}
    assert baselines.value("toy-v0", "namer", "learner") == pytest.approx(0.5 * 0.5 - 0.5)


def test_every_seat_votes_once_however_many_turns_it_has() -> None:
    baselines = Baselines(0.9)
    by_seat([make_trace("a", {"solver_0": 1.0})], "rae", baselines)
    assert baselines.state() == [
        {"env_id": "toy-v0", "role": "solver", "policy": "learner", "mean": pytest.approx(0.1), "votes": 1}
    ]


def test_baselines_go_on_after_a_restart() -> None:
    one, other = Baselines(), Baselines()
    for reward in (1.0, -0.5, 0.25):
        one.advantage("g", "r", reward)
    other.load(one.state())
    assert [other.advantage("g", "r", 1.0), other.value("g", "r")] == [
        one.advantage("g", "r", 1.0),
        one.value("g", "r"),
    ]


def test_a_void_member_shifts_nobody() -> None:
    rewards = {0: 1.0, 1: 0.0, 3: 1.0, 4: 0.0}
    first = [make_trace(f"a{i}", {"solver_0": rewards.get(i, 0.0)}, group="a", void=i == 2) for i in range(5)]
    second = [
        make_trace(f"b{i}", {"solver_0": reward}, group="b") for i, reward in enumerate([1.0, 0.0, 0.0, 0.0, 1.0])
    ]
    both, alone = by_seat(first + second, "group_mean"), by_seat(second, "group_mean")
    assert ("a2", "solver_0") not in both.advantages
    assert both.void == 1
    assert {key: both.advantages[key, "solver_0"] for key in ("a0", "a1", "a3", "a4")} == {
        "a0": 0.5,
        "a1": -0.5,
        "a3": 0.5,
        "a4": -0.5,
    }
    assert {key: value for key, value in both.advantages.items() if key[0].startswith("b")} == alone.advantages


@pytest.mark.parametrize("estimator", get_args(Estimator))
@pytest.mark.parametrize("unknown", [None, math.nan, math.inf])
def test_an_unknown_reward_has_zero_advantage_and_no_effect(estimator: Estimator, unknown: float | None) -> None:
    def vote(name: str, reward: float | None) -> Vote:
        return Vote(trace_id=name, seat="s_0", role="s", env_id="e", group="g", unit=name, reward=reward)

    known = [vote("a", 1.0), vote("b", 0.0)]
    credit = estimate([known[0], vote("x", unknown), known[1]], estimator, Baselines())
    assert credit.advantages.pop(("x", "s_0")) == 0.0
    assert credit.missing == 1
    assert credit.advantages == estimate(known, estimator, Baselines()).advantages


def test_group_identity_survives_an_interruption() -> None:
    before = [make_trace("t0", {"solver_0": 1.0})]
    after = [make_trace(f"t{i}", {"solver_0": 0.0}) for i in (1, 2, 3)]
    credit = by_seat(before + after, "group_mean")
    assert list(credit.advantages.values()) == pytest.approx([0.75, -0.25, -0.25, -0.25])
    assert credit.groups == 1


def test_a_contest_is_scored_over_exactly_its_members() -> None:
    seen: list[int] = []

    def contest(traces: list[Trace]) -> list[tuple[float, dict[str, float]]]:
        seen.append(len(traces))
        return [(float(i), {"place": i}) for i in range(len(traces))]

    whole = [make_trace(f"a{i}", {"namer_0": 0.0}, group="a") for i in range(4)]
    broken = [make_trace(f"b{i}", {"namer_0": 0.0}, group="b", void=i == 1) for i in range(4)]
    credit = assign(
        whole + broken,
        by="group",
        estimator="group_mean",
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
        group_reward=contest,
    )
    assert seen == [4]
    assert list(credit.advantages.values()) == [-1.5, -0.5, 0.5, 1.5]
    assert credit.metrics == {"place": [0, 1, 2, 3]}
    assert (credit.incomplete, credit.void) == (1, 1)


def test_a_group_reward_must_answer_for_every_trace() -> None:
    with pytest.raises(UsageError, match="1 rewards for the 2 traces of group g"):
        by_group(lambda traces: [(0.0, {})])


def by_group(group_reward: GroupReward) -> Credit:
    traces = [make_trace(name, {"namer_0": 0.0, "namer_1": 0.0}, group="g") for name in "ab"]
    before = copy.deepcopy(traces)
    credit = assign(
        traces,
        by="group",
        estimator="none",
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
        group_reward=group_reward,
    )
    assert traces == before
    return credit


@pytest.mark.parametrize(
    ("paid", "advantages", "missing"),
    [
        ([1.0, 2], [1, 1, 2, 2], 0),
        ([(np.float32(0.5), {"m": 1}), True], [0.5, 0.5, 1, 1], 0),
        ([None, (math.nan, {})], [0, 0, 0, 0], 4),
        ([{"namer_0": 1.0}, {"namer": 2.0, "namer_1": 3.0}], [1, 0, 2, 3], 1),
    ],
)
def test_a_group_reward_may_return_what_rescore_takes(paid: list[Any], advantages: list[float], missing: int) -> None:
    credit = by_group(lambda traces: paid)
    keys = [(trace, seat) for trace in "ab" for seat in ("namer_0", "namer_1")]
    assert [credit.advantages[key] for key in keys] == advantages and credit.missing == missing


def fails(traces: list[Trace]) -> list[float]:
    raise ValueError("no score")


def fails_later(traces: list[Trace]) -> Iterator[float]:
    yield 1.0
    raise ValueError("no score")


async def waits(traces: list[Trace]) -> list[float]:
    return [1.0, 1.0]


@pytest.mark.parametrize(
    ("group_reward", "message"),
    [
        (lambda traces: None, "group_reward returned None for group g; expected one reward for each"),
        (
            lambda traces: [("1.0", {}), 1.0],
            "group_reward returned '1.0' for trace a of group g; expected a finite num",
        ),
        (lambda traces: [1.0, [1.0, {}]], r"returned \[1.0, {}\] for trace b of group g"),
        (lambda traces: [1.0, math.inf], "returned inf for trace b of group g"),
        (lambda traces: [1.0, 1e200], "returned 1e[+]200 for trace b of group g; a reward's size is at most 1e[+]30"),
        (lambda traces: [(1.0, {"m": "high"}), 1.0], "returned 'high' as the metric 'm' of trace a of group g"),
        (lambda traces: [(1.0, {"m": None}), 1.0], "returned None as the metric 'm'"),
        (lambda traces: [(1.0, {"m": 10**400}), 1.0], "returned 1000.* as the metric 'm'"),
        (lambda traces: [{"namer_7": 1.0}, 1.0], "rewards 'namer_7' in trace a of group g"),
        (fails, "group_reward failed for group g: ValueError: no score"),
        (fails_later, "group_reward failed for group g: ValueError: no score"),
        (waits, "group_reward is an async function"),
    ],
)
def test_a_group_reward_of_a_wrong_shape_is_told_with_group_and_value(group_reward: GroupReward, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        by_group(group_reward)


def test_what_a_group_reward_does_to_its_traces_changes_nothing() -> None:
    def spoils(traces: list[Trace]) -> list[float]:
        for trace in traces:
            trace.turns.clear()
            trace.seats.clear()
            trace.returns.clear()
        return [1.0, 2.0]

    assert list(by_group(spoils).advantages.values()) == [1, 1, 2, 2]  # and `by_group` compares the traces


@pytest.mark.parametrize("by", ["seat", "trace", "group", "tokens"])
@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_a_reward_that_is_too_large_to_learn_is_refused_by_the_trace_s_name(by: str, estimator: Estimator) -> None:
    pays = {"solver_0": 1.0 if by in ("group", "tokens") else 1e308, "solver_1": 1e308 if by == "trace" else 1.0}
    turns = [Turn(index=0, seat=seat, text="x", completion_ids=[1, 2]) for seat in pays]
    traces = [make_trace(name, paid) for name, paid in (("fine", dict.fromkeys(pays, 0.0)), ("huge", pays))]
    for trace in traces:
        trace.turns = [msgspec.structs.replace(turn, index=index) for index, turn in enumerate(turns)]

    def tokens(trace: Trace) -> dict[int, Any]:
        return {0: {"rewards": [1e200, -1e200]}} if trace.id == "huge" else {}

    with pytest.raises(UsageError, match=r"trace huge .*a reward's size is at most 1e\+30"):
        assign(
            traces,
            by="seat" if by == "tokens" else by,  # type: ignore[arg-type]
            estimator=estimator,
            baselines=Baselines(),
            learners=lambda trace: list(trace.seats),
            group_reward=lambda traces: [1.0, -1e200],
            token_rewards=tokens if by == "tokens" else None,
        )


def test_credit_that_can_not_work_is_refused() -> None:
    with pytest.raises(UsageError, match="credit by seat"):
        check("trace", zero_sum=True)
    check("trace", zero_sum=True, force=True)
    check("trace")
    with pytest.raises(UsageError, match="group_reward"):
        check("group")


def test_credit_by_trace_of_a_zero_sum_game_is_nothing() -> None:
    credit = assign(
        [make_trace("t", {"player_0": 1.0, "player_1": -1.0})],
        by="trace",
        estimator="rae",
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
    )
    assert credit.of("t", "player_0") == 0.0


def test_credit_by_trace_gives_all_seats_the_summed_return() -> None:
    credit = assign(
        [make_trace("t", {"solver_0": 0.25, "solver_1": 1.0})],
        by="trace",
        estimator="none",
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
    )
    assert [credit.of("t", seat) for seat in ("solver_0", "solver_1")] == [1.25, 1.25]


@given(
    rewards=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    estimator=st.sampled_from(["loo", "group_mean", "grpo", "role_norm"]),
)
def test_group_advantages_are_finite_and_sum_to_zero(rewards: list[float], estimator: Estimator) -> None:
    advantages, _ = group_of(rewards, estimator)
    scale = max(1.0, *map(abs, rewards)) * len(rewards)
    assert all(map(math.isfinite, advantages))
    assert abs(math.fsum(advantages)) <= 1e-8 * scale


@pytest.mark.parametrize(("estimator", "alone"), [("loo", 1.0), ("group_mean", 0.5)])
def test_a_run_with_more_seats_is_compared_with_other_runs_not_with_itself(estimator: Estimator, alone: float) -> None:
    traces = [
        make_trace("one", {"solver_0": 0.0}),
        make_trace("three", {"solver_0": 0.0, "solver_1": 0.0, "solver_2": 0.0}),
    ]
    credit = assign(
        traces,
        by="group",
        estimator=estimator,
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
        group_reward=lambda members: [(float(trace.id == "one"), {}) for trace in members],
    )
    assert credit.advantages["one", "solver_0"] == pytest.approx(alone)
    assert [credit.advantages["three", seat] for seat in traces[1].seats] == [pytest.approx(-alone)] * 3


@pytest.mark.parametrize("estimator", ["loo", "group_mean", "grpo", "role_norm"])
def test_a_run_of_a_harness_that_is_alone_is_not_compared_with_itself(estimator: Estimator) -> None:
    left = make_trace("left", {"solver_0": 1.0, "solver_1": 0.0})
    void = make_trace("void", {"solver_0": 1.0}, void=True)
    for trace in (left, void):
        trace.spec = EnvSpec(id="harness:m:run")
    credit = by_seat([left, void], estimator)
    assert set(credit.advantages.values()) == set(credit.scales.values()) == {0.0}
    assert (credit.groups, credit.uninformative) == (1, 1)


def test_a_group_reward_that_sorts_its_traces_is_told() -> None:
    def sorts(members: list[Trace]) -> list[tuple[float, dict[str, float]]]:
        members.reverse()
        return [(1.0, {}) for _ in members]

    with pytest.raises(UsageError, match="changed its list of traces"):
        by_group(sorts)
