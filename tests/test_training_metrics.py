"""The numbers of a step, on traces written by hand."""

from __future__ import annotations

import pytest

from llm_arena.training.credit import Baselines, assign
from llm_arena.training.metrics import headline, of_traces
from llm_arena.types import Cause, Ending, EnvSpec, Outcome, SeatInfo, Trace, Turn

SEATS = {
    "solver_0": SeatInfo(role="solver", agent="llm:learner", policy="learner"),
    "judge_0": SeatInfo(role="judge", agent="llm:learner", policy="learner"),
    "rival_0": SeatInfo(role="rival", agent="random-legal"),
}


def turn(index: int, seat: str, tokens: int, **facts: object) -> Turn:
    return Turn(index=index, seat=seat, text="x", prompt_ids=[1], completion_ids=[2] * tokens, **facts)  # type: ignore[arg-type]


def trace(name: str, turns: list[Turn], **facts: object) -> Trace:
    given: dict[str, object] = {"returns": {"solver_0": 1.0, "judge_0": 0.0, "rival_0": -1.0}, "outcome": Outcome()}
    return Trace(id=name, spec=EnvSpec(id="toy-v0"), seed=0, seats=SEATS, turns=turns, **given | facts)  # type: ignore[arg-type]


def learners(trace: Trace) -> list[str]:
    return ["solver_0", "judge_0"]


def test_numbers_are_per_role_and_count_trained_seats_only() -> None:
    decided = trace(
        "a",
        [
            turn(0, "solver_0", 6),
            turn(1, "rival_0", 0, cause=Cause.ILLEGAL),
            turn(2, "solver_0", 4, cause=Cause.UNPARSABLE),
            turn(3, "solver_0", 8, cause=Cause.LENGTH, finish="length"),
            turn(4, "judge_0", 6),
        ],
        outcome=Outcome(scores={"solver_0": 3.0, "rival_0": 9.0}),
    )
    forfeited = trace(
        "b",
        [turn(0, "solver_0", 6)],
        returns={"solver_0": -1.0, "judge_0": 0.0, "rival_0": 1.0},
        outcome=Outcome(reason="forfeit: solver_0 gave illegal reply"),
    )
    cut = trace("c", [turn(0, "solver_0", 0)], ending=Ending.TRUNCATED, outcome=None)
    void = trace("d", [turn(0, "solver_0", 99)], ending=Ending.VOID, returns={}, outcome=None)
    traces = [decided, forfeited, cut, void]
    credit = assign(traces, by="seat", estimator="rae", baselines=Baselines(), learners=learners)
    row = of_traces(traces, learners, credit)
    expected = {
        "episodes": 3,
        "void": 1,
        "early": 2 / 3,
        "sampled_tokens": 30,
        "solver/reward": 1 / 3,
        "solver/score": 3.0,
        "solver/turns": 5 / 3,
        "solver/tokens": 8.0,
        "solver/tokens_per_turn": 24 / 5,
        "solver/truncated": 1 / 5,
        "solver/illegal": 2 / 5,
        "solver/illegal/length": 1 / 5,
        "solver/illegal/unparsable": 1 / 5,
        "solver/trained": 24 / 30,
        "judge/tokens": 2.0,
        "judge/illegal": 0.0,
        "judge/trained": 6 / 30,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert not any(name.startswith("rival") or name == "judge/score" for name in row)
    assert headline(row) == ("score", 3.0)


def test_a_batch_without_an_episode_has_numbers_too() -> None:
    traces = [trace("d", [], ending=Ending.VOID, returns={}, outcome=None)]
    row = of_traces(
        traces, learners, assign(traces, by="seat", estimator="loo", baselines=Baselines(), learners=learners)
    )
    assert (row["episodes"], row["void"], row["sampled_tokens"]) == (0, 1, 0)
    assert headline(row) == ("reward", 0.0)
