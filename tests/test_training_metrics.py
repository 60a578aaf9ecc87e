"""The numbers of a step, on traces written by hand; each expected number stands there with its sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from llm_arena.training import batch as batches
from llm_arena.training.credit import Baselines, Credit, assign
from llm_arena.training.metrics import Row, headline, how_it_ended, of_step, of_traces
from llm_arena.training.objective import StepStats
from llm_arena.training.token_rewards import TurnSignal
from llm_arena.types import Cause, Ending, EnvSpec, Failure, Outcome, SeatInfo, Trace, Turn
from model_parts import two_sequences

SEATS = {
    "solver_0": SeatInfo(role="solver", agent="llm:learner", policy="learner"),
    "judge_0": SeatInfo(role="judge", agent="llm:learner", policy="learner"),
    "rival_0": SeatInfo(role="rival", agent="random-legal"),
}
TAGGED = "It is <final_answer>7</final_answer>"


def turn(index: int, seat: str, tokens: int, text: str = "x", **facts: object) -> Turn:
    given: dict[str, object] = {"prompt_ids": [1], "completion_ids": [2] * tokens}
    return Turn(index=index, seat=seat, text=text, **given | facts)  # type: ignore[arg-type]


def trace(name: str, turns: list[Turn], **facts: object) -> Trace:
    given: dict[str, object] = {
        "spec": EnvSpec(id="toy-v0"),
        "returns": {"solver_0": 1.0, "judge_0": 0.0, "rival_0": -1.0},
        "outcome": Outcome(),
        "seats": SEATS,
    }
    return Trace(id=name, seed=0, turns=turns, **given | facts)  # type: ignore[arg-type]


def learners(trace: Trace) -> list[str]:
    return ["solver_0", "judge_0"]


def row_of(
    traces: list[Trace], learners: Callable[[Trace], Iterable[str]] = learners, *, ignore_truncated: bool = False
) -> Row:
    credit = assign(traces, by="seat", estimator="rae", baselines=Baselines(), learners=learners)
    return of_traces(traces, learners, credit, ignore_truncated=ignore_truncated)


def test_what_is_learned_counts_trained_seats_only() -> None:
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
    cut = trace("c", [turn(0, "solver_0", 0), turn(1, "judge_0", 0)], ending=Ending.TRUNCATED, outcome=None)
    void = trace("d", [turn(0, "solver_0", 99)], ending=Ending.VOID, returns={}, outcome=None)
    row = row_of([decided, forfeited, cut, void])
    expected = {
        "episodes": 3,
        "void": 1,
        "sampled_tokens": 30,
        "reward/avg/solver": (1 - 1 + 1) / 3,
        "reward/avg/judge": 0.0,
        "reward/avg": (1 - 1 + 1 + 0 + 0 + 0) / 6,
        "reward/std/solver": math.sqrt((2 * (1 - 1 / 3) ** 2 + (1 + 1 / 3) ** 2) / 3),
        "reward/std/judge": 0.0,
        # of the five seats with a turn, each within its role; in `b` the judge had none
        "reward/std": math.sqrt((2 * (1 - 1 / 3) ** 2 + (1 + 1 / 3) ** 2) / 5),
        "score/avg/solver": 3.0,
        "score/avg": 3.0,
        "reply/tokens/solver": (6 + 4 + 8 + 6 + 0) / 5,
        "reply/tokens/judge": (6 + 0) / 2,
        "reply/tokens": 30 / 7,
        "reply/truncated/solver": 1 / 5,
        "reply/truncated": 1 / 7,
        "reply/illegal/solver": 2 / 5,
        "reply/illegal": 2 / 7,
        "reply/illegal_length/solver": 1 / 5,
        "reply/illegal_unparsable/solver": 1 / 5,
        "reply/illegal/judge": 0.0,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    learned = ("reward/", "score/", "reply/", "loss_mask/")
    assert not any(name.startswith(learned) and name.endswith("/rival") for name in row)
    assert "score/avg/judge" not in row
    assert headline(row) == ("score", 3.0)


def test_turns_are_counted_without_retries_and_for_whoever_holds_the_seat() -> None:
    long = [
        turn(0, "solver_0", 1, cause=Cause.ILLEGAL),
        turn(1, "solver_0", 1, attempt=1),
        turn(2, "rival_0", 0),
        turn(3, "solver_0", 1),
        turn(4, "judge_0", 1),
    ]
    row = row_of([trace("a", long), trace("b", [turn(0, "solver_0", 1)])])
    name = "multi_agent/avg_turns"
    found = {key: value for key, value in row.items() if key.startswith(name)}
    assert found == {name: (4 + 1) / 2, f"{name}/solver": (2 + 1) / 2, f"{name}/rival": 0.5, f"{name}/judge": 0.5}


def test_early_termination_is_a_decision_before_any_limit_and_belongs_to_who_made_it() -> None:
    by_judge = [turn(0, "solver_0", 1, TAGGED), turn(1, "judge_0", 1, TAGGED)]
    ends = {
        "decided": trace("a", by_judge, outcome=Outcome(reason="right")),
        "decided too": trace("b", [turn(0, "judge_0", 1), turn(1, "solver_0", 1)], outcome=Outcome(draw=True)),
        "no_answer": trace("c", by_judge, outcome=Outcome(reason="no answer (turn limit)")),
        "turn_limit": trace("d", by_judge, ending=Ending.TRUNCATED, outcome=None),
        "context_overflow": trace("e", by_judge, ending=Ending.CONTEXT_OVERFLOW, outcome=None),
        "forfeit": trace("f", by_judge, outcome=Outcome(reason="forfeit: solver_0 gave empty reply")),
        "forfeit too": trace("g", by_judge, outcome=Outcome(reason="penalty: solver_0 gave empty reply")),
    }
    assert [how_it_ended(one) for one in ends.values()] == [name.removesuffix(" too") for name in ends]
    row = row_of([*ends.values(), trace("h", by_judge, ending=Ending.VOID, outcome=None)])
    name = "multi_agent/early_termination_rate"
    expected = {
        name: 2 / 7,
        f"{name}/judge": 1 / 7,
        f"{name}/solver": 1 / 7,
        "ended/no_answer": 1 / 7,
        "ended/turn_limit": 1 / 7,
        "ended/context_overflow": 1 / 7,
        "ended/forfeit": 2 / 7,
    }
    found = {key: value for key, value in row.items() if key.startswith((name, "ended/"))}
    assert found == pytest.approx(expected)


def test_a_harness_that_asks_for_the_tag_has_ended_when_a_reply_has_it() -> None:
    def run(id: str, asked: str, *texts: str) -> Trace:
        seats = ["solver_0", "judge_0"]
        turns = [turn(index, seats[index], 1, text) for index, text in enumerate(texts)]
        turns[0].messages = [{"role": "user", "content": asked}]
        return trace(id, turns, spec=EnvSpec(id="harness:my.module:run"), outcome=None)

    asked = "Answer as <final_answer>...</final_answer>."
    answered, both, silent = (
        run("a", asked, TAGGED, "yes"),
        run("b", asked, TAGGED, TAGGED),
        run("c", asked, "It is 7.", "> <final_answer>7</final_answer>\nNo."),  # quoting is no answer
    )
    free = run("d", "Answer.", "It is 7.", "yes")
    thought = run("e", asked, f"<think>{TAGGED}?</think> I give up", f"<think>{TAGGED} or")
    aloud = run("f", asked, "no", f"<think>or 8?</think>{TAGGED}")
    assert (how_it_ended(thought), how_it_ended(aloud)) == ("no_answer", "decided")
    assert [how_it_ended(one) for one in (answered, both, silent, free)] == [*["decided"] * 2, "no_answer", "decided"]
    row = row_of([answered, both, silent, free])
    name = "multi_agent/early_termination_rate"
    assert (row[name], row[f"{name}/solver"], row[f"{name}/judge"]) == (3 / 4, 2 / 4, 2 / 4)


def test_failed_calls_and_rewards_for_nobody_are_counted_in_harnesses_alone() -> None:
    stats = {"solver": {"calls": 4, "failed": 1, "paid_to_nobody": 2}, "slover": {"paid_to_nobody": 1}}
    spec = EnvSpec(id="harness:my.module:run")
    odd = trace("a", [turn(0, "solver_0", 1)], spec=spec, env_stats=stats)
    fine = trace("b", [turn(0, "solver_0", 1)], spec=spec, env_stats={"solver": {"calls": 1, "failed": 0}})
    counted = [
        [row[name] for name in ("failed_calls", "paid_to_nobody")] for row in (row_of([odd, odd]), row_of([fine]))
    ]
    assert counted == [[2, 6], [0, 0]]
    game = trace("c", [turn(0, "solver_0", 1)], env_stats={"selector": {"right": 0, "failed": 1}})  # its own counts
    assert not {"failed_calls", "paid_to_nobody"} & row_of([game]).keys()


def test_conversation_tokens_count_a_shared_prefix_once() -> None:
    """Two calls of the solver that share 5 ids, one that shares 2 of these, one of the judge; rival has no tokens.

    The judge's call begins with the 3 ids of the solver's third prompt, which the batch counts once, for both seats are
    the learner's.
    """
    turns = [
        turn(0, "solver_0", 3, prompt_ids=[1, 2]),
        turn(1, "judge_0", 4, prompt_ids=[1, 2, 3, 4, 5, 6]),
        turn(2, "solver_0", 1, extends=0, prompt_ids=[9]),
        turn(3, "solver_0", 2, prompt_ids=[1, 2, 3]),
        turn(4, "rival_0", 0, prompt_ids=None),
    ]
    row = row_of([trace("a", turns), trace("b", [turn(0, "judge_0", 1, prompt_ids=[1])])])
    name = "multi_agent/conversation_token_count"
    solver, judge = (2 + 3) + (1 + 1) + (1 + 2), (6 + 4) + (1 + 1)
    found = {key: value for key, value in row.items() if key.startswith(name)}
    assert found == {name: (solver + judge - 3) / 2, f"{name}/solver": solver / 2, f"{name}/judge": judge / 2}


def test_branches_of_a_harness_in_seats_of_their_own_share_their_stem() -> None:
    """A question of 10 ids with a reply of one, gone on with four times by 10 ids and a reply: 11 + 4 * 11 = 55.

    Of another policy, whose ids may be another tokenizer's, a branch counts from its beginning: 11 + 3 * 11 + 22 = 66.
    """
    stem = [*range(100, 110), 7]

    def run(last: str) -> Trace:
        seats = {f"solver_{k}": SeatInfo(role="solver", agent="x", policy="learner") for k in range(4)}
        seats |= {"solver_4": SeatInfo(role="solver", agent="x", policy=last)}
        turns = [turn(0, "solver_0", 1, prompt_ids=stem[:10], completion_ids=[7])]
        turns += [
            turn(k, f"solver_{k}", 1, prompt_ids=[*stem, *[k] * 10], completion_ids=[7]) for k in range(1, len(seats))
        ]
        return trace("a", turns, spec=EnvSpec(id="harness:m:run"), seats=seats, returns=dict.fromkeys(seats, 1.0))

    name = "multi_agent/conversation_token_count"
    one, two = (row_of([run(last)], lambda trace: list(trace.seats)) for last in ("learner", "other"))
    assert (one[name], one[f"{name}/solver"]) == (55, 11 + 4 * 22)
    assert (two[name], two[f"{name}/solver"]) == (66, 11 + 4 * 22)


def test_the_role_split_is_of_trained_tokens_and_the_batch_has_the_largest_share() -> None:
    turns = [
        turn(0, "solver_0", 5),
        turn(1, "solver_0", 7, finish="length"),
        turn(2, "judge_0", 15, guided=True),
        turn(3, "judge_0", 5),
        turn(4, "rival_0", 50),
    ]

    def split(row: Row) -> list[float]:
        name = "loss_mask/role_split"
        assert f"{name}/rival" not in row
        return [row[name], row[f"{name}/solver"], row[f"{name}/judge"]]

    assert split(row_of([trace("a", turns)])) == pytest.approx([12 / 17, 12 / 17, 5 / 17])
    assert split(row_of([trace("a", turns)], ignore_truncated=True)) == [0.5, 0.5, 0.5]
    alone = row_of([trace("a", turns)], lambda trace: ["solver_0"])
    assert (alone["loss_mask/role_split"], alone["loss_mask/role_split/solver"]) == (1.0, 1.0)
    masked = TurnSignal(rewards=np.zeros(7), trained=np.array([True] * 2 + [False] * 5))
    credit = Credit(advantages=dict.fromkeys([("a", "solver_0"), ("a", "judge_0")], 1.0), signals={"a": {1: masked}})
    assert split(of_traces([trace("a", turns)], learners, credit)) == pytest.approx([7 / 12, 7 / 12, 5 / 12])
    silent = Credit(advantages={("a", "judge_0"): 1.0})  # the solver's seat has no signal
    assert split(of_traces([trace("a", turns)], learners, silent)) == [1.0, 0.0, 1.0]


def test_repeats_are_4_grams_of_the_other_seats_last_reply() -> None:
    turns = [
        turn(0, "solver_0", 1, "we add two and three"),
        turn(1, "judge_0", 1, "We add, two and FOUR is six."),  # 1 of 4: we add two and
        turn(2, "solver_0", 1, "we add two and three"),  # 1 of 2: not from itself, but from the judge
        turn(3, "rival_0", 0, "bet"),  # a move has no 4-grams
        turn(4, "judge_0", 1, "> we add two and three\n<final_answer>we add two and three</final_answer>"),
        turn(5, "solver_0", 1, "<think>we add two"),
    ]
    row = row_of([trace("a", turns)])
    found = {name: value for name, value in row.items() if name.startswith("reply/repeated")}
    assert found == {"reply/repeated": 2 / 6, "reply/repeated/judge": 1 / 4, "reply/repeated/solver": 1 / 2}
    moves = row_of([trace("a", [turn(0, "solver_0", 1, "bet"), turn(1, "judge_0", 1, "bet")])])
    assert not any(name.startswith("reply/repeated") for name in moves)
    long, short = "we add two and three", "ok"
    copies = [
        turn(index, ("solver_0", "judge_0")[index % 2], 1, text)
        for index, text in enumerate([long] * 2 + [short, long])
    ]
    assert row_of([trace("a", copies)])["reply/repeated/judge"] == 1.0


@pytest.mark.parametrize("huge", [1e200, 1e308])
def test_huge_rewards_have_a_mean_and_a_spread(huge: float) -> None:
    """Twice -huge and twice +huge: the mean is 0 and the spread is huge, though sums and squares overflow."""
    turns = [turn(0, "solver_0", 1)]
    pays = [huge, huge, -huge, -huge]
    traces = [trace(str(k), turns, returns={"solver_0": pay, "judge_0": huge}) for k, pay in enumerate(pays)]
    row = of_traces(traces, learners, Credit())
    assert row["reward/avg/solver"] == 0 and row["reward/avg/judge"] == pytest.approx(huge)
    assert row["reward/avg"] == pytest.approx(huge / 2)
    assert row["reward/std/solver"] == pytest.approx(huge) and row["reward/std"] == pytest.approx(huge)


def test_a_batch_without_an_episode_has_numbers_too() -> None:
    failure = Failure(boundary="engine", kind="OutOfMemoryError", message="CUDA out of memory. Tried to allocate")
    traces = [trace("d", [], ending=Ending.VOID, returns={}, outcome=None, failure=failure)]
    row = row_of(traces)
    assert (row["episodes"], row["void"], row["void_out_of_memory"], row["sampled_tokens"]) == (0, 1, 1, 0)
    assert row["multi_agent/avg_turns"] == 0 and "reward/avg" not in row
    assert headline(row) == ("reward", 0.0)
    assert all(math.isfinite(value) for value in row.values())


def test_a_step_says_what_sharing_saved_and_how_far_the_engine_is() -> None:
    """Two sequences `1 2 | 7` and `1 2 | 8 9`: 5 of 7 ids are unique; 7 and 8 share a row of logits, 9 has its own."""
    row = of_step(batches.build(two_sequences()), StepStats(mismatch=0.25, capped=0.5), lr=0.1, clips=False)
    assert row["unique_ratio"] == pytest.approx(5 / 7)
    assert row["head_rows_per_trained_token"] == pytest.approx(2 / 3)
    assert (row["mismatch"], row["importance_capped"], row["importance_effective"]) == (0.25, 0.5, 1.0)
    assert "clip_fraction" not in row
