"""Policies that learn in turns: against a loop written by hand, what stays as it is, and what is not done twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.lockstep import Lockstep
from llm_arena.rollout import play_many
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.trace_file import read_traces
from llm_arena.training import batch as batches
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.planning import Planner, learner_seats
from llm_arena.training.sources import DealtSource
from llm_arena.training.step_settings import step_settings
from llm_arena.training.sync import Publisher
from train_parts import broken_off
from train_parts import model as model  # a fixture: the alias says that it is meant to be here

NAMES = ("learner:a", "learner:b")


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "roster": {"player_0": "learner:a", "player_1": "learner:b"},
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 5,
        "starts_per_step": 4,
        "max_new_tokens": 1,
        "lr": 1e-2,
        "lr_end": 1e-3,
        "weight_decay": 0.01,
        "kl_weight": 0.1,
        "illegal": "random_legal",
        "importance": "none",
        "alternate_every": 1,
    }
    return TrainConfig(**given | changes)


def by_hand(config: TrainConfig, base: Path, aside: Path) -> dict[str, dict[str, torch.Tensor]]:
    """The same run without a trainer; the engine gets the kept weights of `max_staleness` steps before."""
    learners = {name: Learner.load(base, reference="ema", weight_decay=config.weight_decay) for name in NAMES}
    chat, baselines = ChatFormat.load(base), Baselines()
    engine = TransformersEngine(lockstep=Lockstep(), max_batch_rows=1024)
    with Runtime(engine=engine) as runtime:
        for name in NAMES:
            runtime.serve(name, ServedPolicy(engine, name, chat, 512))
        planner = Planner(config, None, DealtSource(per_batch=config.starts_per_step), runtime)
        for step in range(config.num_steps):
            for name, learner in learners.items():
                (aside / f"{name[-1]}{step}").mkdir(parents=True)
                learner.save(aside / f"{name[-1]}{step}")
                old = max(0, step - config.max_staleness)
                runtime.run(engine.publish(name, aside / f"{name[-1]}{old}", old))
            traces = runtime.run(play_many(planner.plans(step), runtime))
            gained = assign(traces, by="seat", estimator="rae", baselines=baselines, learners=learner_seats)
            name = NAMES[step // config.alternate_every % 2]
            batch = batches.build(train_sequences(traces, gained, policy=name))
            learners[name].step(batch, step_settings(config, step, batch, planner.trained_seats(name)))
    return {name: learner.weights() for name, learner in learners.items()}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("every", "ahead"), [(1, 0), (2, 0), (2, 1), (1, 2)])
def test_turns_are_those_of_a_loop_written_by_hand(every: int, ahead: int, model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run", alternate_every=every, max_staleness=ahead)
    result = train(config, script="t", progress=False)
    slow = by_hand(config, model, tmp_path / "slow")
    for name, folder in result.models.items():
        fast = load_file(folder / "model.safetensors")
        assert all(torch.equal(fast[key], slow[name][key]) for key in fast)
    turns = [float(step // every % 2 == 0) for step in range(5)]
    assert [row["learns/a"] for row in result.rows] == turns
    assert [row["learns/b"] for row in result.rows] == [1 - turn for turn in turns]
    assert [row["stale_tokens_dropped"] for row in result.rows] == [0] * 5


class Watched:
    """What each policy is after each step: weights, average and moments."""

    def __init__(self) -> None:
        self.states: list[dict[str, dict[str, torch.Tensor]]] = []

    def __call__(self, row: Mapping[str, float], learners: Mapping[str, Learner]) -> None:
        self.states.append(
            {
                name: {
                    f"{kind}/{key}": tensor.clone()
                    for kind, group in learner.state().items()
                    for key, tensor in group.items()
                }
                for name, learner in learners.items()
            }
        )

    def unchanged(self, name: str, step: int) -> bool:
        one, other = self.states[step - 1][name], self.states[step][name]
        return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_who_waits_stays_as_it_is_to_the_bit_and_is_not_published_anew(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, str, int]] = []
    write, take = Publisher.write, Publisher.take

    def writing(self: Any, version: int, **more: Any) -> None:
        done.append(("write", self._policy[-1], version))
        write(self, version, **more)

    async def taking(self: Any, version: int) -> None:
        done.append(("take", self._policy[-1], version))
        await take(self, version)

    monkeypatch.setattr(Publisher, "write", writing)
    monkeypatch.setattr(Publisher, "take", taking)
    watched = Watched()
    config = settings(model, tmp_path, alternate_every=2, num_steps=6, probe_every=1, lr_end=None)
    result = train(config, script="t", progress=False, on_step=watched)
    for name in NAMES:
        waits = [row[f"learns/{name[-1]}"] == 0 for row in result.rows]
        assert [watched.unchanged(name, step) for step in range(1, 6)] == waits[1:]
        assert all(
            (row[f"trained_tokens/{name[-1]}"] == 0) == idle for row, idle in zip(result.rows, waits, strict=True)
        )
    assert not any("optimizer" in key for key in watched.states[1]["learner:b"])  # it has not learned yet
    published = {("a", 0), ("a", 1), ("a", 2), ("a", 5), ("b", 0), ("b", 3), ("b", 4)}
    assert sorted(done) == sorted((what, *one) for what in ("take", "write") for one in published)
    versions = {
        (int(trace.id[:6]), seat.policy[-1] if seat.policy else "", turn.min_version)
        for trace in read_traces(tmp_path / "traces.jsonl")
        for turn in trace.turns
        for seat in [trace.seats[turn.seat]]
    }
    ahead = {0: (0, 0), 1: (1, 0), 2: (2, 0), 3: (2, 3), 4: (2, 4), 5: (5, 4)}
    assert versions == {(step, name, ahead[step]["ab".index(name)]) for step in range(6) for name in "ab"}
    assert [row["staleness_max"] for row in result.rows] == [0] * 6
    assert max(row["probe_gap"] for row in result.rows[:-1]) < 1e-4


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("interrupted", [2, 4, 5])
def test_a_run_that_was_broken_off_in_somebodys_turn_ends_like_a_whole_one(
    interrupted: int, model: Path, tmp_path: Path
) -> None:
    config = settings(model, tmp_path / "whole", alternate_every=3, num_steps=7, max_staleness=2)
    whole = train(config, script="t", progress=False)
    broken = dataclasses.replace(config, run_dir=str(tmp_path / "broken"))
    saved = broken_off(broken, interrupted)
    older = sorted(path.name for path in (saved.path / "older").iterdir())
    assert (
        older
        == {
            2: ["a-00000000", "a-00000001", "b-00000000"],
            4: ["a-00000002", "a-00000003", "b-00000000"],
            5: ["a-00000003", "b-00000000", "b-00000004"],
        }[interrupted]
    )
    again = train(broken, script="t", progress=False)
    for name in NAMES:
        one, other = (load_file(run.models[name] / "model.safetensors") for run in (whole, again))
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert [row["loss"] for row in again.rows] == [row["loss"] for row in whole.rows]


def test_who_learns_in_turns_warms_up_in_its_own_steps(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path, alternate_every=2, num_steps=6, lr=0.1, lr_end=None, warmup_steps=4)
    rows = train(config, script="t", progress=False).rows
    rates = [row["lr/a" if row["learns/a"] else "lr/b"] for row in rows]
    assert rates == pytest.approx([0.025, 0.05, 0.025, 0.05, 0.075, 0.1])
