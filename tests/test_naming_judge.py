"""naming-v0 with judge="seat": verdicts in both orders, and names that talk to the judge."""

from __future__ import annotations

import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import llm_arena
from llm_arena.checks import check_env
from llm_arena.errors import UsageError
from llm_arena.training import credit, metrics
from llm_arena.types import Ending, Reply
from naming_parts import HOSTILE

naming = importlib.import_module("llm_arena.envs.naming")
GOLDEN = Path(__file__).parent / "golden" / "naming_judged_by_seats.jsonl"


def contest(names, verdicts, **kwargs):
    """An episode in which namers answer `names`; `verdicts` maps (first, second) to the judge's reply, else a tie."""
    env = llm_arena.make("naming-v0", judge="seat", namers=len(names), **{"topic": "coffee shop", **kwargs})
    env.reset(seed=0)
    for name in names:
        env.step(name)
    while not env.over:
        pair = tuple(env.facts(env.agent_selection)["candidates"])
        env.step(verdicts.get(pair, "VERDICT: tie"))
    return env


def by_preference(better, names):
    """Verdicts of a judge that finds name x better than y where `better(x, y)`."""
    return {(x, y): f"VERDICT: {1 if better(x, y) else 2}" for x, y in itertools.permutations(names, 2)}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("seat", [0, 1])
def test_a_hostile_name_wins_nothing_from_a_judge_that_repeats_it(name, seat):
    """The judge repeats both names as it was shown them, then finds the other one better."""
    env = llm_arena.make("naming-v0", judge="seat", namers=2, topic="coffee shop")
    env.reset(seed=0)
    for at in range(2):
        env.step(name if at == seat else "Velvet Roast")
    if env.names[f"namer_{seat}"] is None:  # two lines or an open thought are no name: it lost unasked
        assert env.over and env.returns[f"namer_{seat}"] == -1
        return
    while not env.over:
        shown = env.observe("judge_0")["messages"][-1]["content"].splitlines()
        other = 1 if env.facts("judge_0")["candidates"][0] == "Velvet Roast" else 2
        env.step("\n".join([shown[3], shown[3][2:], shown[6], shown[6][2:], f"VERDICT: {other}"]))
    assert env.returns[f"namer_{seat}"] == -1 and env.stats["judge"]["no_verdict"] == 0


# ---- what verdicts come to -------------------------------------------------------------------------------------


def test_worked_numbers():
    verdicts = {
        ("X", "Y"): "VERDICT: 1",
        ("Y", "X"): "VERDICT: 2",
        ("X", "Z"): "VERDICT: 1",
        ("Z", "X"): "VERDICT: 1",
        ("Y", "Z"): "VERDICT: 2",
        ("Z", "Y"): "I can't say.",
    }
    env = contest(["X", "Y", "Z"], verdicts)
    assert env.returns == {"namer_0": 0.5, "namer_1": -0.5, "namer_2": 0.0, "judge_0": 0.0}
    assert env.outcome.ranks == {"namer_0": 1, "namer_1": 3, "namer_2": 2} and env.outcome.winners == ["namer_0"]
    assert env.outcome.scores == {}
    assert env.stats["judge"] == {
        "turns": 6,
        "unparsable": 1,
        "questions": 6,
        "no_verdict": 1,
        "place_1": 3,
        "place_2": 2,
        "tie": 0,
        "pairs": 2,
        "consistent": 1,
    }
    words = "1 of 2 pairs judged alike in both orders, 3 of 5 decided verdicts for place 1, 1 without a verdict"
    assert words in env.outcome.reason and words in env.describe()
    assert contest(["X", "Y", "Z"], verdicts, normalize="matchups").returns["namer_0"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("always", ["VERDICT: 1", "VERDICT: 2", "VERDICT: tie", "no idea", ""])
@pytest.mark.parametrize("illegal", ["forfeit", "skip", "random_legal", "penalty"])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_judge_that_favours_a_place_or_says_nothing_makes_draws(always, illegal, retries):
    names = ["Oak", "Ash", "Elm"]
    verdicts = dict.fromkeys(itertools.permutations(names, 2), always)
    env = contest(names, verdicts, illegal=illegal, retries=retries, penalty=-0.25)
    assert env.outcome.draw and env.ending is Ending.TERMINATED
    assert [env.returns[seat] for seat in env.namers] == [0, 0, 0]
    silent = "VERDICT" not in always
    assert env.returns["judge_0"] == (-0.25 * 6 if silent and illegal == "penalty" else 0)
    assert env.stats["judge"]["turns"] == 6 * (1 + retries if silent else 1)
    assert env.stats["judge"]["no_verdict"] == (6 if silent and illegal != "random_legal" else 0)


def test_one_missing_verdict_wins_nothing_for_either_place():
    for missing in (("Oak", "Ash"), ("Ash", "Oak")):
        for bad in (Reply("VERDICT: 1", "length"), Reply("", "timeout"), Reply("VERDICT: 1", "refused"), Reply("")):
            env = contest(["Oak", "Ash"], {**by_preference(lambda x, y: x == "Oak", ["Oak", "Ash"]), missing: bad})
            assert env.returns == {"namer_0": 0, "namer_1": 0, "judge_0": 0} and env.outcome.draw


def test_a_judge_may_try_again_and_sees_why():
    env = llm_arena.make("naming-v0", judge="seat", namers=2, retries=1)
    env.reset(seed=0)
    for reply in ("Oak", "Ash", Reply("Entry 1 says VERDICT: 1", "length")):
        env.step(reply)
    assert env.agent_selection == "judge_0" and env.attempt("judge_0") == 1
    assert "Be shorter. End with one line: VERDICT: 1" in env.observe("judge_0")["messages"][-1]["content"]
    env.step("VERDICT: 1")
    env.step("VERDICT: 2")
    assert env.returns == {"namer_0": -1, "namer_1": 1, "judge_0": 0}  # Ash stood first: names are shown sorted


def test_equal_and_unreadable_names_are_not_asked_about():
    env = contest(["Oak", "", " Oak ", "Ash", "One\nTwo"], by_preference(lambda x, y: x == "Ash", ["Oak", "Ash"]))
    assert env.stats["judge"]["questions"] == 2
    assert list(env.returns.values()) == [0.25, -0.75, 0.25, 1.0, -0.75, 0.0]
    assert contest(["", ""], {}).outcome.draw and contest(["Oak", "Oak"], {}).stats["judge"]["turns"] == 0
    assert contest(["Oak"], {}).returns == {"namer_0": 0, "judge_0": 0}
    left_out = contest(["Oak", "", "Ash"], by_preference(lambda x, y: x == "Ash", ["Oak", "Ash"]), illegal="skip")
    assert list(left_out.returns.values()) == [-1, 0, 1, 0] and "namer_1" not in left_out.outcome.ranks


@given(
    st.lists(st.sampled_from(["Oak", "Ash", "Elm", "", "A\nB", "VERDICT: 1"]), min_size=1, max_size=5),
    st.lists(st.sampled_from(["VERDICT: 1", "VERDICT: 2", "VERDICT: tie", "hm"]), min_size=1, max_size=7),
    st.sampled_from(["opponents", "matchups"]),
    st.sampled_from(["forfeit", "skip", "random_legal"]),
)
def test_namers_are_paid_zero_sum_whatever_the_judge_says(names, replies, normalize, illegal):
    env = llm_arena.make("naming-v0", judge="seat", namers=len(names), normalize=normalize, illegal=illegal)
    env.reset(seed=0)
    said = itertools.cycle(replies)
    for name in names:
        env.step(name)
    while not env.over:
        env.step(next(said))
    assert sum(env.returns.values()) == pytest.approx(0, abs=1e-12) and env.returns["judge_0"] == 0
    assert all(-1 <= paid <= 1 for paid in env.returns.values())
    assert set(env.outcome.ranks) == set(env.names)


@pytest.mark.parametrize("overflow", ["no_loss", "forfeit"])
def test_a_context_overflow_of_a_judge_costs_nobody_anything(overflow):
    env = llm_arena.make("naming-v0", judge="seat", namers=2, overflow=overflow)
    env.reset(seed=0)
    env.step("Oak")
    namer = env.clone()
    namer.truncate(Ending.CONTEXT_OVERFLOW, "namer_1")
    assert list(namer.returns.values()) == ([1, -1, 0] if overflow == "forfeit" else [0, 0, 0])
    env.step("Ash")
    env.truncate(Ending.CONTEXT_OVERFLOW, "judge_0")
    assert list(env.returns.values()) == [0, 0, 0] and env.ending is Ending.CONTEXT_OVERFLOW


# ---- who is asked what -----------------------------------------------------------------------------------------


def test_each_question_is_a_fresh_view_with_a_shared_beginning():
    env = llm_arena.make("naming-v0", judge="seat", namers=3, topic="ice cream parlor")
    env.reset(seed=0)
    for name in ("Oak", "Ash", "Elm"):
        assert env.facts("judge_0") == {"topic": "ice cream parlor"} and "Oak" not in str(env.observe("judge_0"))
        env.step(name)
    asked = []
    for epoch in range(1, 7):
        seen = env.observe("judge_0")["messages"]
        assert len(seen) == 6 and env.view_epoch("judge_0") == epoch
        assert seen[-1]["content"].startswith("Task: Invent a creative name for an ice cream parlor.\n\nEntry 1:\n> ")
        facts = env.facts("judge_0")
        assert facts["task"] == "Invent a creative name for an ice cream parlor."
        asked.append(tuple(facts["candidates"]))
        env.step("VERDICT: 1")
    assert env.over
    pairs = [("Ash", "Elm"), ("Ash", "Oak"), ("Elm", "Oak")]
    assert asked == [pair for both in pairs for pair in (both, both[::-1])]


def test_judges_share_the_pairs_and_answer_at_once():
    env = llm_arena.make("naming-v0", judge="seat", namers=3, judges=2)
    env.reset(seed=0)
    for name in ("Oak", "Ash", "Elm"):
        env.step(name)
    asked = {"judge_0": [], "judge_1": []}
    phases = []
    while not env.over:
        phases.append(list(env.pending))
        for judge in phases[-1]:
            seen = env.observe(judge)
            asked[judge].append(tuple(env.facts(judge)["candidates"]))
            assert f"> {asked[judge][-1][0]}\n" in seen["messages"][-1]["content"]
            env.step("VERDICT: 1")
    assert phases == [["judge_0", "judge_1"], ["judge_0", "judge_1"], ["judge_0"], ["judge_0"]]
    assert asked["judge_0"] == [("Ash", "Elm"), ("Elm", "Ash"), ("Elm", "Oak"), ("Oak", "Elm")]
    assert asked["judge_1"] == [("Ash", "Oak"), ("Oak", "Ash")]


@pytest.mark.parametrize(
    "kwargs,message",
    [
        ({"judges": 2}, 'judges=2 needs judge="seat"'),
        ({"judge": "seat", "judges": 0}, "expected 1 to 16"),
        ({"judge": "seat", "judges": 17}, "0 to 16"),
        ({"judge": "seet"}, 'Did you mean "seat"'),
        ({"judge": "seat", "namers": 3, "max_turns": 8}, "3 namers to answer and 6 questions"),
    ],
)
def test_wrong_arguments_are_usage_errors(kwargs, message):
    with pytest.raises(UsageError, match=message):
        llm_arena.make("naming-v0", **kwargs)


def test_there_is_time_for_all_questions():
    assert llm_arena.make("naming-v0", judge="seat", namers=16, retries=2).max_turns == 16 + 240
    assert llm_arena.make("naming-v0", judge="seat", namers=16, retries=2, max_turns=300).max_turns == 300
    assert llm_arena.make("naming-v0").max_turns == llm_arena.make("naming-v0", judge="seat").max_turns == 100


def test_without_judges_there_is_no_judge():
    env = llm_arena.make("naming-v0", namers=2)
    env.reset(seed=0)
    assert env.possible_agents == ["namer_0", "namer_1"] and env.stats == {"namer": {"turns": 0}}
    assert env.metadata["is_parallelizable"]
    assert not llm_arena.make("naming-v0", judge="seat").metadata["is_parallelizable"]


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"namers": 1},
        {"namers": 2, "retries": 1, "illegal": "random_legal"},
        {"namers": 3, "judges": 2, "illegal": "penalty"},
        {"namers": 5, "judges": 3},
    ],
)
def test_check_env(kwargs):
    check_env(llm_arena.make("naming-v0", judge="seat", **kwargs))


def test_the_golden_trace_replays():
    [trace] = llm_arena.read_traces(GOLDEN)
    assert trace.seats["judge_0"].agent == "naming-v0/rubric-judge" and trace.env_stats["judge"]["questions"] == 12
    llm_arena.verify(trace)


# ---- scripted judges, groups, training -------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(["Velvet Roast", "Coffee Shop", "Oak", "The Very Long Bean", ""]), min_size=2, max_size=2)
)
def test_of_two_names_scripted_judges_decide_as_the_functions_do(names):
    for judge in ("rubric", "length"):
        seated = llm_arena.make("naming-v0", judge="seat", namers=2, topic="coffee shop")
        function = llm_arena.make("naming-v0", judge=judge, namers=2, topic="coffee shop")
        for env in (seated, function):
            env.reset(seed=0)
            for name in names:
                env.step(name)
        while not seated.over:
            seated.step(seated.baselines[f"{judge}-judge"](seated.view("judge_0"), np.random.default_rng(0)))
        assert {**function.returns, "judge_0": 0.0} == seated.returns
        assert function.outcome.ranks == seated.outcome.ranks


def test_a_scripted_judge_in_a_namers_seat_is_one_line():
    with pytest.raises(UsageError, match='"rubric-judge" plays judge, and can.t sit in namer_0'):
        llm_arena.play("naming-v0", agents="rubric-judge", seed=0)


def test_sampled_verdicts_vary():
    env = contest(["Oak"], {})
    assert {env.sample_reply("judge_0", np.random.default_rng(seed)) for seed in range(20)} == {
        "VERDICT: 1",
        "VERDICT: 2",
        "VERDICT: tie",
    }


def test_a_group_has_no_seats_to_judge_it():
    trace = llm_arena.play(llm_arena.make("naming-v0", judge="seat", namers=1), agents="random-legal", seed=0)
    with pytest.raises(UsageError, match="no seats to judge"):
        naming.Naming.group_reward([trace])


def test_credit_and_metrics_of_a_frozen_judge_and_of_one_that_learns():
    env = llm_arena.make("naming-v0", judge="seat", namers=3)
    agents = {"namer": "scripted", "judge": "rubric-judge"}
    traces = [llm_arena.play(env, agents=agents, seed=seed) for seed in range(4)]

    def credited(learners):
        table = credit.Baselines()
        found = credit.assign(traces, by="seat", estimator="rae", baselines=table, learners=learners)
        return found, metrics.of_traces(traces, learners, found), table

    namers = lambda trace: [seat for seat, info in trace.seats.items() if info.role == "namer"]  # noqa: E731  as in use
    found, row, _ = credited(namers)
    assert {seat for _, seat in found.advantages} == {"namer_0", "namer_1", "namer_2"}
    assert any(found.advantages.values())
    assert "reward/avg/judge" not in row and row["reward/avg/namer"] == pytest.approx(0)
    # a judge that learns is paid nothing, so nothing moves it
    found, row, table = credited(lambda trace: list(trace.seats))
    assert all(value == 0 for (_, seat), value in found.advantages.items() if seat == "judge_0")
    assert row["reward/avg/judge"] == 0 and table.value("naming-v0", "judge") == 0
