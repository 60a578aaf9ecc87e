"""Sampled gradients against enumerated ones, as a run would take them: batches, running baselines, groups.

In each trial a game gets new weights, batches of episodes are drawn from them, and the mean of the library's gradients
is compared with the exact gradient along twelve directions (Student's t, Bonferroni at 5% together). A right way of
learning is rejected in at most 1 of 20 trials, a wrong one in nearly all. `make soak` draws more per trial.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats

from enumerable_parts import SHAPES, World, exact_gradient, odds, play_all_ways, tiny_llama
from llm_arena.training import credit
from llm_arena.training.batch import TrainSequence
from llm_arena.training.credit import Baselines
from llm_arena.training.learner import Learner
from unbiased_parts import as_policy, credited, descent, p_values, plain, renamed

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Case:
    game: str
    policies: tuple[str, ...] = ("learner", "learner")
    estimator: str = "none"
    by: str = "seat"
    factor: float = 1.0
    "What the exact gradient is multiplied by: (G - 1) / G for `group_mean`."
    mistake: str = ""


GROUP = 4
RIGHT = {
    "shared, rae": Case(game="duel", estimator="rae"),
    "shared, zero-sum, rae": Case(game="zero", estimator="rae"),
    "shared, stripped history, none": Case(game="stripped"),
    "shared, two roles, loo": Case(game="roles", estimator="loo"),
    "shared, two roles, group_mean": Case(game="roles", estimator="group_mean", factor=1 - 1 / GROUP),
    "separate weights, rae": Case(game="roles", policies=("a", "b"), estimator="rae"),
    "separate weights, loo": Case(game="roles", policies=("a", "b"), estimator="loo"),
    "separate weights, one role, loo": Case(game="duel", policies=("a", "b"), estimator="loo"),
    "frozen opponent, loo": Case(game="duel", policies=("learner", "frozen"), estimator="loo"),
    "frozen first mover, rae": Case(game="duel", policies=("frozen", "learner"), estimator="rae"),
    "compaction, rae": Case(game="compact", estimator="rae"),
    "sub-agent, rae": Case(game="errand", estimator="rae"),
    "three seats by trace, loo": Case(game="trio", policies=("learner",) * 3, estimator="loo", by="trace"),
    "three seats by trace, rae": Case(game="trio", policies=("learner",) * 3, estimator="rae", by="trace"),
}
FROZEN = ("learner", "frozen")
WRONG = {
    "opponent's tokens trained": Case(game="duel", policies=FROZEN, estimator="loo", mistake="opponent"),
    "baseline updated before it is read": Case(game="duel", estimator="rae", mistake="late"),
    "before the compaction dropped": Case(game="compact", estimator="rae", mistake="dropped"),
    "summed reward of a zero-sum game": Case(game="zero", estimator="rae", by="trace", mistake="summed"),
    "sampled at another temperature": Case(game="duel", estimator="rae", mistake="temperature"),
}


@cache
def world(game: str, policies: tuple[str, ...]) -> World:
    seats = list(dict.fromkeys(seat for seat, _ in SHAPES[game].turns))
    return play_all_ways(game, dict(zip(seats, policies, strict=True)))


def trial(case: Case, seed: int, batches: int, size: int) -> list[float]:
    """P-values of all directions, for each policy that is trained."""
    one = world(case.game, case.policies)
    names = sorted(set(one.policies.values()))
    models = {name: tiny_llama(1000 * seed + k) for k, name in enumerate(names)}
    trained = [name for name in names if name != "frozen"]
    now = odds(one, models, 0.5 if case.mistake == "temperature" else 1.0)
    rng = np.random.default_rng([seed, 5])
    baselines = Baselines(0.5 if case.mistake == "late" else 0.95)
    learners = {name: Learner(models[name]) for name in trained}
    samples: dict[str, list[Any]] = {name: [] for name in trained}
    per_group = GROUP if case.estimator in ("loo", "group_mean") else 1
    for batch in range(batches):
        drawn = rng.choice(len(now.traces), size=size, p=now.chance)
        traces = [
            renamed(now.traces[way], f"{batch}-{place}", f"{batch}-{place // per_group}")
            for place, way in enumerate(drawn)
        ]
        gained = credited(traces, trained, estimator=case.estimator, by=case.by, baselines=baselines)
        if case.mistake == "opponent":
            traces = [as_policy(trace, "player_1", "learner") for trace in traces]
            for trace in traces:
                gained.advantages[trace.id, "player_1"] = gained.advantages[trace.id, "player_0"]
        change = after_compaction if case.mistake == "dropped" else None
        for name in trained:
            samples[name].append(descent(learners[name], traces, gained, name, plain(size), change=change))
    found = []
    for name in trained:
        by_trace = case.by == "trace" and case.mistake != "summed"
        exact = case.factor * exact_gradient(one, models, name, by_trace=by_trace)
        found += [float(p) for p in p_values(samples[name], exact, seed)]
    return found


def after_compaction(sequences: list[TrainSequence]) -> list[TrainSequence]:
    """Only what the first seat said last (it trains one id after its view was replaced), and the second seat."""
    return [one for one in sequences if not (one.token_ids[2] == 0 and one.trained[3])]


def late(known: Sequence[tuple[credit.Vote, float]], baselines: Baselines, gained: credit.Credit) -> None:
    """What must not be done: reads the baseline after the reward has entered it."""
    for vote, reward in known:
        baselines.update(vote.env_id, vote.role, reward)
        gained.advantages[vote.trace_id, vote.seat] = reward - baselines.value(vote.env_id, vote.role)


def rejections(case: Case, seeds: Sequence[int], batches: int, size: int) -> tuple[int, int, float]:
    """How many trials were rejected, of how many, and the share of single directions with a p-value below the level."""
    rejected = trials = 0
    values: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        if case.mistake == "late":
            patch.setattr(credit, "_running", late)
        for seed in seeds:
            found = trial(case, seed, batches, size)
            values += found
            for own in np.array(found).reshape(-1, 12):
                rejected += int(own.min() < LEVEL / len(own))
                trials += 1
    return rejected, trials, float(np.mean(np.array(values) < LEVEL))


pytestmark = pytest.mark.usefixtures("one_thread")


def check(soak: Any, batches: int, size: int, seeds: int) -> None:
    rejected = trials = 0
    for number, (name, case) in list(enumerate([*RIGHT.items(), *WRONG.items()]))[len(soak.runs) :]:
        began = time.monotonic()
        # a mistake is to be seen for sure, so it gets more episodes in fewer trials
        count, more = (-(-seeds // 4), 10) if case.mistake else (seeds, 1)
        numbers = [soak.seed + 100 * number + k for k in range(count)]
        bad, of, share = rejections(case, numbers, batches, size * more)
        figures = {"case": name, "rejected": bad, "trials": of, "share_of_directions": round(share, 4)}
        print(figures, round(time.monotonic() - began, 1), "s")
        if case.mistake:
            assert bad >= 0.8 * of, figures
        else:
            assert bad <= stats.binom.ppf(0.9999, of, LEVEL), figures
        soak.add(figures, time.monotonic() - began)
    right = [run for run in soak.runs if run["case"] in RIGHT]
    rejected, trials = sum(run["rejected"] for run in right), sum(run["trials"] for run in right)
    print(f"{rejected} of {trials} trials of right ways were rejected at {LEVEL}")
    assert rejected <= stats.binom.ppf(0.999, trials, LEVEL)


def test_the_mean_of_sampled_gradients_is_the_exact_one(soak: Any) -> None:
    """A sample of what `make soak` runs with more seeds and episodes. The sums are in tests/test_unbiased.py."""
    check(soak, batches=20, size=24, seeds=3)


@pytest.mark.soak
def test_soak_the_mean_of_sampled_gradients_is_the_exact_one(soak: Any) -> None:
    check(soak, batches=60, size=64, seeds=soak.count)
