"""Alarms: each on rows that must ring, and on rows near them that must not; and its section in the document."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llm_arena
from llm_arena.env import ArenaEnv
from llm_arena.errors import EngineError, TrainingError
from llm_arena.models import random_model
from llm_arena.report.run_files import read_run
from llm_arena.report.summary import notices
from llm_arena.training.alarms import CHECKS, WINDOW, Alarm, Watch, looked_at, of_error, ringing, turn_of
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.metrics import Row, of_traces
from llm_arena.types import Move, Outcome, Reply

DOCUMENT = (Path(__file__).parents[1] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

HEALTHY: Row = {
    "episodes": 8,
    "groups": 8,
    "groups_uninformative": 3,
    "void_out_of_memory": 0,
    "ended/turn_limit": 0.2,
    "ended/context_overflow": 0.05,
    "ended/forfeit": 0.15,
    "ended/no_answer": 0.2,
    "multi_agent/avg_turns": 3.0,
    "multi_agent/early_termination_rate": 0.4,
    "reward/avg": 0.0,
    "reward/std": 0.9,
    "reply/repeated/thinker": 0.08,
    "reply/repeated/verifier": 0.2,
    "reply/tokens/thinker": 20.0,
    "reply/truncated/thinker": 0.8,
    "loss_mask/role_split": 0.6,
    "loss_mask/role_split/thinker": 0.6,
    "loss_mask/role_split/verifier": 0.4,
    "guided_tokens": 0,
    "sampled_tokens": 600,
    "entropy": 2.0,
    "mismatch": 0.001,
    "rollout_seconds": 5.0,
    "step_seconds": 9.0,
    "episode_seconds/avg": 2.0,
    "episode_seconds/max": 5.0,
    "overlap": 0.0,
}


def met(rate: float, half: float) -> Row:
    """Of a step after which the policy met its first self."""
    ends = {"eval/win_rate_low": rate - half, "eval/win_rate_high": rate + half}
    return {"eval/matches": 64.0, "eval/win_rate": rate, **ends}


NEAR: dict[str, list[list[Row]]] = {
    "out-of-memory": [],
    "context-overflow": [[{"ended/context_overflow": 0.6}] + [{}] * 9],
    "repetition": [[{"reply/repeated/verifier": 0.49}] * 10],
    "reward-stuck": [
        [{"reward/std": 0.0, "reward/avg": -0.8}] * 4 + [{"reward/std": 0.1, "reward/avg": -0.7}] + [{}] * 3,
        [{"groups_uninformative": 8}] * 4 + [{}] + [{"groups_uninformative": 8}] * 4,
        [{"reward/std": 0.0, "reward/avg": 1.0, "episodes": 2}] * 9,  # so few are equal by chance
        [{"multi_agent/early_termination_rate": 0.0}] * 4 + [{}],
        [{"failed_calls": 9, "paid_to_nobody": 9}] * 9,
        [{"multi_agent/early_termination_rate": 0.0, "episodes": 0}] * 5,
    ],
    "slow-rollouts": [
        [{"rollout_seconds": 8.9}] * 4,  # the first steps load and compile
        [{"rollout_seconds": 8.9, "overlap": 0.9}] * 9,  # the learner works meanwhile
        [{}] * 6 + [{"sampled_tokens": 250}] * 6,  # replies got shorter: as many turns a second
        [{}] * 6 + [{"sampled_tokens": 1800, "rollout_seconds": 15, "step_seconds": 19}] * 6,  # or longer
    ],
    "entropy-collapse": [[{"entropy": 0.3}] * 5 + [{"entropy": 0.09}] * 5, [{}] * 5 + [{"entropy": 0.3}] * 5],
    "mismatch": [[{"mismatch": 0.03}] + [{}] * 4],
    "replies-cut": [[{"reply/truncated/thinker": 0.89}] * 5, [{"reply/truncated/thinker": 1.0}] * 4],
    "all-guided": [[{"guided_tokens": 9, "loss_mask/role_split/thinker": 0.01}]],
    "role-split": [[{"loss_mask/role_split/verifier": 0.95}] * 10],  # so it was from the start
    "collapse": [
        [met(0.9, 0.05), met(0.85, 0.05), met(0.75, 0.05)] + [{}] * 3,  # two falls
        [met(0.8, 0.1), met(0.78, 0.1), met(0.76, 0.1), met(0.74, 0.1)],  # within its noise
        [met(0.9, 0.05), met(0.8, 0.05), met(0.82, 0.05), met(0.7, 0.05)],  # not each below the one before
        [met(0.45, 0.1)],
        [met(0.3, 0.1), met(0.6, 0.1)],  # it has got over it
        [{"eval/matches": 0.0, "eval/void": 64.0}],
        [{"eval/matches": 64.0, "eval/difference": -0.1, "eval/difference_low": -0.3, "eval/difference_high": 0.1}],
    ],
    "judge-inconsistent": [
        [{"judge/pairs": 24.0, "judge/consistency": 0.65}] * 5,
        [{"judge/pairs": 19.0, "judge/consistency": 0.2}] * 5,  # 95 pairs
        [{"judge/pairs": 0.0}] * 9,
    ],
}
RINGS: dict[str, list[tuple[list[Row], str]]] = {
    "out-of-memory": [([{"void_out_of_memory": 3}], "3 episodes")],
    "context-overflow": [([{"ended/context_overflow": 0.25}] * 5, "25%")],
    "repetition": [([{"reply/repeated/verifier": 0.75}] * 5, "of the word 4-grams, 75% of verifier stood")],
    "reward-stuck": [
        ([{"reward/std": 0.0, "reward/avg": -0.8}] * 5, "reward/avg -0.8"),
        ([{"groups_uninformative": 8}] * 5, "all 8 groups"),
        ([{"multi_agent/early_termination_rate": 0.0, "ended/no_answer": 0.6}] * 5, "60% no answer"),
        (
            [{"groups_uninformative": 8, "failed_calls": 2, "paid_to_nobody": 4}] * 5,
            "and in these steps 10 calls of the harness failed and 20 of its rewards were for a role or call without",
        ),
        ([{"groups_uninformative": 8, "failed_calls": 0, "paid_to_nobody": 4}] * 5, "these steps 20 of its rewards"),
    ],
    "slow-rollouts": [
        ([{"rollout_seconds": 8.1}] * 6, "90% of a step (8.1 s of 9.0 s"),
        ([{"episode_seconds/avg": 1.0}] * 6, "the longest episode takes 5.0 s, the mean 1.0 s"),
        (
            [{}] * 6 + [{"rollout_seconds": 15.0, "step_seconds": 20.0}] * 5,
            "40 tokens per second of rollout, 120 in the first steps; 1.6 turns per second, then 4.8",
        ),
    ],
    "entropy-collapse": [([{}] * 5 + [{"entropy": 0.05}] * 5, "0.05 nats per token")],
    "mismatch": [([{"mismatch": 0.02}] * 5, "0.02 nats")],
    "replies-cut": [([{"reply/truncated/thinker": 1.0}] * 5, "100% of thinker")],
    "all-guided": [([{"guided_tokens": 9, "loss_mask/role_split/thinker": 0.0}], "every turn of thinker was guided")],
    "role-split": [([{}] * 5 + [{"loss_mask/role_split/verifier": 0.95}] * 5, "95% of the trained tokens")],
    "collapse": [
        (
            [met(0.9, 0.05), {}, met(0.85, 0.05), {}, met(0.8, 0.05), {}, met(0.75, 0.05), {}],
            "fell in 3 evaluations in a row, 0.90, 0.85, 0.80, 0.75",
        ),
        ([{}] * 8 + [met(0.3, 0.1)] + [{}] * 8, "win rate 0.30, at most 0.40"),
        (
            [
                {
                    "eval/matches": 64.0,
                    "eval/difference": -0.4,
                    "eval/difference_low": -0.7,
                    "eval/difference_high": -0.1,
                }
            ],
            "earns less than the model that it began as: -0.4 on the same starts, at most -0.1",
        ),
    ],
    "judge-inconsistent": [
        ([{"judge/pairs": 20.0, "judge/consistency": 0.5}] * 5, "of 100 pairs the judge judged 50%"),
        ([{"judge/pairs": 50.0, "judge/consistency": 0.5}] * 2, "in both orders (last 2 steps)"),
        ([{"judge/pairs": 100.0, "judge/consistency": 0.3}], "in both orders (last step)"),
    ],
}


def rows_of(changes: list[Row]) -> list[Row]:
    return [{"step": step, **HEALTHY, **change} for step, change in enumerate(changes, start=1)]


def named(rows: list[Row]) -> list[str]:
    return [alarm.name for alarm in ringing(rows)]


def test_a_healthy_run_rings_nothing_at_any_length() -> None:
    assert all(named(rows_of([{}] * count)) == [] for count in range(30))


@pytest.mark.parametrize("name", CHECKS)
def test_an_alarm_rings_for_its_symptom_alone(name: str) -> None:
    for changes, seen in RINGS[name]:
        [alarm] = ringing(rows_of(changes))
        assert alarm.name == name and seen in alarm.seen, alarm
        assert f"alarm {name}: " in str(alarm) and "\n" not in str(alarm)
    for changes in NEAR[name]:
        assert named(rows_of(changes)) == []


@pytest.mark.parametrize("name", CHECKS)
def test_a_remedy_names_settings_that_there_are(name: str) -> None:
    known = {*TrainConfig().to_json(), *ArenaEnv.arguments(), "answer_format", "level"}
    known |= {"importance", "recompute", "guided", "engine"}
    for changes, _ in RINGS[name]:
        [alarm] = ringing(rows_of(changes))
        assert known & set(re.findall(r"[a-z_]+", alarm.remedy)), alarm.remedy


def test_checks_look_at_few_rows_and_bear_rows_without_their_metric() -> None:
    rows = rows_of([{}] * 6 + [{"entropy": 9.0}] * 50 + [{"entropy": 0.05}] * 5)
    few = [rows[place] for place in looked_at(len(rows))]
    assert len(few) == 1 + 2 * WINDOW and ringing(few) == ringing(rows) != []
    assert [looked_at(count) == list(range(count)) for count in (0, 3, 11)] == [True] * 3
    assert ringing([]) == ringing([{"step": 1}] * 20) == []


SHARE = "loss_mask/role_split/"
GUIDED: Row = {"guided_tokens": 9}


def turns_of(every: int, a: list[Row], b: list[Row]) -> list[Row]:
    """Rows of two policies that learn by turns of `every` steps, each with its own changes and trained role."""
    rows: list[Row] = []
    first, second = iter(a), iter(b)
    for step in range(len(a) + len(b)):
        mine = step // every % 2 == 0
        who: Row = {"learns/a": float(mine), "learns/b": float(not mine)}
        trained: Row = {f"{SHARE}thinker": float(mine), f"{SHARE}verifier": float(not mine)}
        rows += [{"step": step + 1, **HEALTHY, **who, **trained, **next(first if mine else second)}]
    return rows


def watched(rows: list[Row]) -> list[set[str]]:
    """The alarms of each step, as a run's watch gives them."""
    watch = Watch((), lambda alarm: None)
    return [{name.removeprefix("alarm/") for name in watch.look(row)} for row in rows]


@pytest.mark.parametrize("every", [1, 5, 10, 20])
def test_policies_that_learn_by_turns_are_no_alarm(every: int) -> None:
    """Each turn trains its own role, at an entropy of its own, some turns under a grammar."""
    said: Row = {**GUIDED, "reply/tokens/verifier": 9.0}
    sure: Row = {"entropy": 0.05, **said}
    assert watched(turns_of(every, [said] * 40, [sure] * 40)) == [set()] * 80


@pytest.mark.parametrize("every", [1, 10])
def test_by_turns_an_alarm_rings_for_the_turn_that_it_is_about(every: int) -> None:
    """Policy `b` changes in its last 10 steps; rows are compared with the first ones of its own turn."""

    def rings(before: Row, after: Row) -> tuple[list[int], list[Row], str]:
        rows = turns_of(every, [{}] * 40, [before] * 30 + [after] * 10)
        marks = watched(rows)
        at = [step for step, names in enumerate(marks) if names]
        places = looked_at(at[0] + 1, (), [turn_of(row) for row in rows])
        [alarm] = ringing([rows[place] for place in places])  # as the run's page does
        assert {name for names in marks for name in names} == {alarm.name}
        assert len(places) <= 2 * (1 + 2 * WINDOW) and str(alarm) == str(ringing(rows[: at[0] + 1])[0])
        return at, rows, alarm.seen

    at, rows, seen = rings({}, {"entropy": 0.05})
    fifth = [step for step, row in enumerate(rows) if row["entropy"] == 0.05][4]
    assert at[0] == fifth and all(rows[step]["learns/b"] for step in at)
    assert seen.startswith("entropy is 0.05 nats per token (last 5 steps in which b learned), and was 2 in the first")
    at, rows, seen = rings({f"{SHARE}thinker": 0.5, f"{SHARE}verifier": 0.5}, {})
    assert all(rows[step]["learns/b"] for step in at)
    assert seen == "100% of the trained tokens are of verifier (last 5 steps in which b learned), and were 50% at first"


def test_a_role_that_waits_for_its_turn_is_not_guided() -> None:
    """It is known once each policy has had a turn: of `b` nothing is trained even then."""
    said: Row = {**GUIDED, "reply/tokens/verifier": 9.0}
    rows = turns_of(5, [said] * 10, [{**said, f"{SHARE}verifier": 0.0}] * 10)
    marks = watched(rows)
    assert marks[:5] == [set()] * 5 and marks[5:] == [{"all-guided"}] * 15
    assert "every turn of verifier was guided" in ringing(rows)[0].seen


def test_how_alike_judges_judge_is_measured_on_real_matches() -> None:
    """A script judges alike in both orders, chance one pair in three; and what is not judged has no metric."""

    def row_of(who: str, **game: Any) -> Row:
        env = llm_arena.make("naming-v0", namers=4, **game)
        players = {"namer": "random-legal"} | ({"judge": who} if who else {})
        traces = [llm_arena.play(env, players, seed=seed) for seed in range(8)]
        credit = assign(traces, by="seat", estimator="none", baselines=Baselines(), learners=lambda trace: ["namer_0"])
        return of_traces(traces, lambda trace: ["namer_0"], credit)

    alike = row_of("length-judge", judge="seat")
    assert alike["judge/consistency"] == 1.0 and 40 < alike["judge/pairs"] <= 48  # equal names are not asked about
    chance = row_of("random-legal", judge="seat")
    assert chance["judge/consistency"] == pytest.approx(1 / 3, abs=0.2)
    assert named([{"step": step, **chance} for step in range(4)]) == ["judge-inconsistent"]
    assert not any(name.startswith("judge/") for name in row_of(""))


def test_evaluations_far_apart_are_kept_by_a_watch() -> None:
    rows = rows_of([met(rate, 0.04) if not step % 20 else {} for step in range(61) for rate in [0.9 - step / 200]])
    found: list[Alarm] = []
    watch = Watch((), found.append)
    marks = [watch.look(row) for row in rows]
    assert [alarm.name for alarm in found] == ["collapse"] and "0.90, 0.80, 0.70, 0.60" in found[0].seen
    assert [step for step, mark in enumerate(marks) if mark] == [60]
    # The run's page looks at the same rows.
    evaluated = [place for place, row in enumerate(rows) if "eval/matches" in row]
    assert named([rows[place] for place in looked_at(61, evaluated)]) == ["collapse"]
    assert looked_at(61, evaluated) == [0, 1, 2, 3, 4, 5, 20, 40, 56, 57, 58, 59, 60]


def test_each_kind_is_shown_once_and_stands_in_the_row_of_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of([{"mismatch": 0.02}] * 8)
    watch = Watch(rows[:3])  # of a run that goes on
    marks = [watch.look(row) for row in rows[3:]]
    assert marks == [{}] + [{"alarm/mismatch": 1.0}] * 4
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 1 and shown[0].startswith("alarm mismatch: mean k3")
    found: list[Alarm] = []
    Watch(rows[:7], found.append).look(rows[7])
    assert [alarm.name for alarm in found] == ["mismatch"]


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        EngineError("vLLM's engine ended: torch.OutOfMemoryError: CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        EngineError("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
        EngineError("ValueError: Free memory on device (3.1/139.8 GiB) on startup is less than desired GPU memory"),
        TrainingError("all 8 episodes of step 0 are void; the first: engine: RuntimeError: std::bad_alloc"),
    ],
)
def test_an_error_for_want_of_memory_is_an_alarm(error: Exception) -> None:
    outer = ValueError("a step failed")
    outer.__cause__ = error
    for given in (error, outer):
        alarm = of_error(given)
        assert alarm is not None and alarm.name == "out-of-memory"
        assert all(word in alarm.remedy for word in ("token_budget", "recompute", "max_turns", "max_context_tokens"))


def test_other_errors_are_none() -> None:
    assert of_error(RuntimeError("shapes differ: 3 and 4")) is None
    assert of_error(TrainingError("the loss is nan")) is None
    later = RuntimeError("the config is wrong")
    later.__context__ = MemoryError()  # which was being handled
    assert of_error(later) is None


class Flat(ArenaEnv):
    """Pays nothing for a word, whatever it is."""

    id = "test-flat-v0"
    roles = {"player": 1}

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Asks for a word."""
        self.tell(self.possible_agents, "left or right?")
        return self.possible_agents

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """One of them."""
        return "left"

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Ends the game."""
        return Move(outcome=Outcome(reason="said"))

    def forfeit(self, seat: str, cause: object) -> Move:
        """Silence is as good."""
        return Move(outcome=Outcome(reason="said nothing"))


def test_a_run_shows_its_alarms_on_standard_error_in_its_rows_and_on_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(llm_arena.registry, "entries", dict(llm_arena.registry.entries))  # forgotten after this test
    llm_arena.register(Flat.id, Flat)
    model = random_model(tmp_path / "model", words=["left", "right", "or", "?"], hidden_size=32, layers=1)
    config = TrainConfig(
        env=Flat.id,
        model=str(model),
        run_dir=str(tmp_path / "run"),
        num_steps=6,
        starts_per_step=4,
        max_new_tokens=3,
        checkpoint_every=100,
    )
    rows = train(config, progress=False).rows
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alarm reward-stuck")]
    assert len(shown) == 1 and "all rewards of the last 5 steps were the same" in shown[0]
    assert ["alarm/reward-stuck" in row for row in rows] == [False] * 4 + [True] * 2
    said = [notice for notice in notices(read_run(tmp_path / "run")) if notice.text.startswith(shown[0])]
    assert [notice.serious for notice in said] == [True] and "2 of 6 steps, last at step 6" in said[0].text

    def fail(self: Learner, *arguments: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(Learner, "step", fail)
    with pytest.raises(TrainingError, match=r"alarm out-of-memory: .*Tried to allocate.* lower token_budget"):
        train(dataclasses.replace(config, run_dir=str(tmp_path / "other")), progress=False)


def test_each_alarm_has_its_section_and_each_section_its_alarm() -> None:
    sections = dict(re.findall(r"^## (.+)\n\nAlarm `([a-z-]+)`", DOCUMENT, re.MULTILINE))
    assert sorted(sections.values()) == sorted(CHECKS)
    assert len(re.findall(r"^## ", DOCUMENT, re.MULTILINE)) == len(sections)
    symptoms = ["OOM mid-rollout", "Both agents repeat each other", "Reward never moves"]
    symptoms.append("Rollout much slower than baseline")
    assert [sections[title] for title in symptoms] == ["out-of-memory", "repetition", "reward-stuck", "slow-rollouts"]
    for part in re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]:
        assert all(word in part for word in ("**You see**", "**Why**", "**Do**")), part[:60]
