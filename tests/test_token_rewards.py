"""Rewards and masks by token: forms, credit, reward-to-go, and what a function may not say."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llm_arena.errors import UsageError
from llm_arena.training.credit import Baselines, Credit, CreditBy, Estimator, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.token_rewards import earned_before, load, read
from llm_arena.types import Ending, EnvSpec, SeatInfo, Trace, Turn


def episode(id: str, returns: dict[str, float], *, group: str = "g") -> Trace:
    """Turns 0 and 2 are solver_0's, of two tokens each in one sequence; turn 1 is critic_0's, of three."""
    seats = {seat: SeatInfo(role=seat[:-2], agent="x", policy="learner") for seat in ("solver_0", "critic_0")}
    turns = [
        Turn(index=0, seat="solver_0", text="", prompt_ids=[1], completion_ids=[5, 6], logprobs=[-0.1, -0.2]),
        Turn(index=1, seat="critic_0", text="", prompt_ids=[2], completion_ids=[7, 7, 7], logprobs=[-0.3] * 3),
        Turn(
            index=2, seat="solver_0", text="", prompt_ids=[3], completion_ids=[8, 9], logprobs=[-0.4, -0.5], extends=0
        ),
    ]
    return Trace(id=id, spec=EnvSpec(id="toy-v0"), seed=0, group=group, seats=seats, turns=turns, returns=returns)


def pays(trace: Trace) -> Mapping[int, Any]:
    """Turn 0: 1 and 2; turn 1: -1, 0, 0; turn 2: 4 and 8, its first token not to be trained."""
    return {
        0: {"rewards": [1.0, 2.0]},
        1: {"rewards": [-1.0, 0.0, 0.0]},
        2: {"rewards": [4.0, 8.0], "trained": [False, True]},
    }


def credited(
    traces: list[Trace],
    estimator: Estimator = "none",
    *,
    by: CreditBy = "seat",
    function: Callable[[Trace], Mapping[int, Any]] | None = pays,
) -> Credit:
    return assign(
        traces,
        by=by,
        estimator=estimator,
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
        token_rewards=function,
    )


def advantages(traces: list[Trace], gained: Credit) -> list[list[float]]:
    """The advantages of the trained tokens of each sequence."""
    found = train_sequences(traces, gained, policy="learner")
    return [one.advantage[one.trained].tolist() for one in found]


def test_a_token_is_credited_with_what_its_seat_earned_from_it_on() -> None:
    """solver_0: return 10, and 1 + 2 + 4 + 8 of its own: 25 at the first token, then less 1, 3, 7."""
    traces = [episode("t", {"solver_0": 10.0, "critic_0": 5.0})]
    gained = credited(traces)
    assert gained.rewards == {("t", "solver_0"): 25.0, ("t", "critic_0"): 4.0}
    assert advantages(traces, gained) == [[4.0, 5.0, 5.0], [25.0, 24.0, 18.0]]


def test_by_trace_all_seats_share_what_was_earned() -> None:
    """10 + 5 + 15 - 1 = 29; before turn 1 were 3, before turn 2 were 2."""
    traces = [episode("t", {"solver_0": 10.0, "critic_0": 5.0})]
    assert advantages(traces, credited(traces, by="trace")) == [[26.0, 27.0, 27.0], [29.0, 28.0, 23.0]]


@pytest.mark.parametrize("estimator", ["rae", "loo", "group_mean", "grpo", "role_norm", "none"])
def test_the_reward_to_go_is_in_the_estimators_own_scale(estimator: Estimator) -> None:
    """Two solvers with 25 and 15: mean 20, std 5. The second trace's token rewards are the same."""
    traces = [episode("a", {"solver_0": 10.0}), episode("b", {"solver_0": 0.0})]
    gained = credited(traces, estimator)
    scale = 1 / 5 if estimator in ("grpo", "role_norm") else 1.0
    assert gained.scale_of("a", "solver_0") == scale
    for trace in traces:
        whole = gained.advantages[trace.id, "solver_0"]
        [_, solver] = advantages([trace], gained)
        assert solver == pytest.approx([whole, whole - 1 * scale, whole - 7 * scale])
    expected = {"none": 25.0, "rae": 25.0, "loo": 10.0, "group_mean": 5.0, "grpo": 1.0, "role_norm": 1.0}
    assert gained.advantages["a", "solver_0"] == pytest.approx(expected[estimator])


def test_a_group_of_one_has_no_signal_and_equal_sums_keep_theirs() -> None:
    alone = [episode("a", {"solver_0": 10.0})]
    assert advantages(alone, credited(alone, "group_mean")) == [[0.0] * 3, [0.0] * 3]
    equal = [episode("a", {"solver_0": 10.0}), episode("b", {"solver_0": 10.0})]
    gained = credited(equal, "loo")
    assert advantages(equal, gained)[1] == [0.0, -1.0, -7.0]  # of mean zero; leaving it out at times would not be
    assert advantages(equal, credited(equal, "grpo"))[1] == [0.0] * 3
    assert gained.uninformative == 2


def test_an_unknown_return_has_no_signal() -> None:
    traces = [episode("a", {"solver_0": math.nan})]
    gained = credited(traces)
    assert advantages(traces, gained) == [[0.0] * 3, [0.0] * 3]
    assert gained.missing == 2


def test_no_token_rewards_leave_all_as_it_is() -> None:
    traces = [episode("a", {"solver_0": 10.0, "critic_0": 5.0})]
    plain, silent = credited(traces, function=None), credited(traces, function=lambda trace: {})
    assert advantages(traces, plain) == advantages(traces, silent) == [[5.0] * 3, [10.0] * 4]


def test_masked_tokens_are_context() -> None:
    traces = [episode("t", {"solver_0": 1.0})]
    [_, solver] = train_sequences(traces, credited(traces), policy="learner")
    assert solver.token_ids.tolist() == [1, 5, 6, 3, 8, 9]
    assert solver.trained.tolist() == [False, True, True, False, False, True]
    assert solver.unit is not None and solver.unit.tolist() == [-1, 0, 0, -1, -1, 2]


def test_void_traces_are_not_asked() -> None:
    void = episode("t", {})
    void.ending = Ending.VOID
    assert credited([void], function=lambda trace: pytest.fail("asked")).advantages == {}


def test_earned_before_counts_turns_that_said_nothing() -> None:
    trace = episode("t", {})
    signals = read(lambda trace: {2: {"rewards": [4.0, 8.0]}}, trace)
    before = {at: values.tolist() for at, values in earned_before(trace, signals, "solver_0").items()}
    assert before == {0: [0.0, 0.0], 2: [0.0, 4.0]}


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (None, "returned None"),
        ({7: {"rewards": []}}, "turn 7: the trace has turns 0 to 2"),
        ({"0": {"rewards": [1.0, 2.0]}}, "turn '0': the trace has turns 0 to 2"),
        ({0: [1.0, 2.0]}, r"turn 0: got \[1.0, 2.0\]; expected is"),
        ({0: {"reward": [1.0, 2.0]}}, "turn 0: got {'reward'"),
        ({0: {"rewards": [1.0]}}, "trace t, turn 0: 1 values in 'rewards', but the turn sampled 2 tokens"),
        ({1: {"trained": [True] * 4}}, "trace t, turn 1: 4 values in 'trained', but the turn sampled 3 tokens"),
        ({0: {"rewards": 3.0}}, "turn 0: got 3.0 for 'rewards'"),
        ({0: {"rewards": [1.0, math.nan]}}, "finite numbers"),
        ({0: {"rewards": [1.0, "x"]}}, "finite numbers"),
        ({0: {"rewards": [1.0, [2.0]]}}, "finite numbers"),
        ({0: {"rewards": ["1", "2"]}}, "finite numbers"),
        ({0: {"rewards": [[1.0], [2.0]]}}, "finite numbers"),
        ({0: {"rewards": [10**400, 0]}}, "finite numbers, got .1000"),
        ({0: {"rewards": [10**5000, 0]}}, "finite numbers, got a list"),
        ({10**5000: {}}, "turn a int: the trace has turns 0 to 2"),
        ({0: {"rewards": [1j, 1j]}}, "finite numbers"),
        ({0: {"trained": [1j, 1]}}, "trained must be True or False"),
        ({True: {"rewards": [1.0, 2.0, 3.0]}}, "turn True: the trace has turns 0 to 2"),
        ({0: {"trained": ["False", "False"]}}, "trained must be True or False"),
        ({0: {"trained": [[True, False], [True, False]]}}, "trained must be True or False"),
        ({0: {"trained": [1.0, math.nan]}}, "trained must be True or False"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(said: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        read(lambda trace: said, episode("t", {}))
    assert "\n" not in str(caught.value)


def test_a_function_that_fails_or_waits_is_refused_by_name() -> None:
    def fails(trace: Trace) -> Mapping[int, Any]:
        raise KeyError("score")

    async def waits(trace: Trace) -> Mapping[int, Any]:
        return {}

    with pytest.raises(UsageError, match="token_rewards failed for trace t: KeyError: 'score'; where it has nothing"):
        read(fails, episode("t", {}))
    with pytest.raises(UsageError, match="token_rewards is an async function"):
        read(waits, episode("t", {}))  # type: ignore[arg-type]  # what is refused


def test_numpy_counts_as_numbers_and_turns() -> None:
    said = {np.int64(0): {"rewards": np.array([0, 1]), "trained": np.array([1, 0])}}
    found = read(lambda trace: said, episode("t", {}))
    assert list(found) == [0] and type(next(iter(found))) is int
    assert found[0].rewards.tolist() == [0.0, 1.0] and found[0].trained.tolist() == [True, False]


def test_what_a_function_does_to_its_trace_changes_nothing() -> None:
    def meddles(trace: Trace) -> dict[int, Any]:
        trace.returns["solver_0"] = 99.0
        trace.turns[0].completion_ids.append(1)
        return {}

    trace = episode("t", {"solver_0": 1.0})
    gained = credited([trace], function=meddles)
    assert trace == episode("t", {"solver_0": 1.0})
    assert gained.rewards["t", "solver_0"] == 1.0


def test_a_function_is_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_token_rewards.py").write_text("def pay(trace):\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("my_token_rewards:pay")(episode("t", {})) == {}
    with pytest.raises(UsageError, match="my_token_rewards has no function per_token"):
        load("my_token_rewards:per_token")
    with pytest.raises(UsageError, match="No module named 'absent_module'"):
        load("absent_module:pay")
    with pytest.raises(UsageError, match="expected module:function"):
        load("my_token_rewards")
