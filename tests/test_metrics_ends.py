"""How games that are played to their own limit count: an end of the rounds is no decision, an end by the rules is."""

from __future__ import annotations

from typing import Any

import pytest

import llm_arena
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.metrics import how_it_ended, of_traces
from llm_arena.types import Ending, Trace


def played(env_id: str, arguments: dict[str, Any], agents: Any = "random-legal", seeds: int = 6) -> list[Trace]:
    env = llm_arena.make(env_id, **arguments)
    return [llm_arena.play(env, agents, seed=seed) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("twenty-questions-v0", {"questions": 2}),
        ("guess-number-v0", {"guesses": 2}),
        ("guess-number-v0", {"guesses": 1, "guessers": 2}),
        ("negotiation-v0", {"rounds": 2}),
        ("werewolf-v0", {"days": 1}),
    ],
)
def test_rounds_that_ran_out_are_no_decision(env_id: str, arguments: dict[str, Any]) -> None:
    traces = played(env_id, arguments, seeds=12)
    out = [trace for trace in traces if trace.outcome is not None and trace.outcome.reason.startswith("no answer: ")]
    assert out and all(trace.ending is Ending.TERMINATED and not trace.outcome.winners for trace in out)
    assert {how_it_ended(trace) for trace in out} == {"no_answer"}
    assert all(how_it_ended(trace) == "decided" for trace in traces if trace not in out)

    def learners(trace: Trace) -> list[str]:
        return list(trace.seats)

    credit = assign(traces, by="seat", estimator="rae", baselines=Baselines(), learners=learners)
    row = of_traces(traces, learners, credit)
    share = len(out) / len(traces)
    assert row["multi_agent/early_termination_rate"] == pytest.approx(1 - share)
    assert row["ended/no_answer"] == pytest.approx(share)


def test_a_doctor_without_questions_and_diagnosis_came_to_no_answer() -> None:
    env = llm_arena.make(
        "doctor-patient-v0", patient="card", max_questions=0, max_tests=0, retries=0, illegal="skip", condition="flu"
    )
    env.reset(seed=0)
    env.step("I don't know.")
    assert env.over and env.outcome.reason == "no answer: no diagnosis"


@pytest.mark.parametrize(
    ("env_id", "arguments"),
    [
        ("tic-tac-toe-v0", {}),
        ("connect-four-v0", {}),
        ("kuhn-poker-v0", {}),
        ("leduc-poker-v0", {}),
        ("prisoners-dilemma-v0", {"rounds": 2}),
        ("undercover-v0", {"rounds": 1}),
    ],
)
def test_an_end_by_the_rules_is_a_decision(env_id: str, arguments: dict[str, Any]) -> None:
    assert {how_it_ended(trace) for trace in played(env_id, arguments, seeds=16)} == {"decided"}
