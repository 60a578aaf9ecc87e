"""Batches that are played ahead of the learner: from which weights, with which numbers, and what ends a run."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.errors import EngineError, TrainingError, UsageError
from llm_arena.lockstep import Lockstep
from llm_arena.models import random_model
from llm_arena.rollout import play_many
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.trace_file import read_traces
from llm_arena.training import batch as batches
from llm_arena.training import checkpoint, placement
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.planning import LEARNER, Planner, learner_seats
from llm_arena.training.rollouts import overlap, refuse_without_tokens
from llm_arena.training.sources import DealtSource
from llm_arena.training.staleness import mask_stale, staleness
from llm_arena.training.step_settings import step_settings
from llm_arena.training.sync import Publisher
from llm_arena.types import EnvSpec, SeatInfo, Trace, Turn
from train_parts import broken_off


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["check", "bet", "call", "fold", "J", "Q", "K"]
    return random_model(tmp_path_factory.mktemp("model") / "model", words=words, hidden_size=32, layers=1, heads=2)


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 6,
        "starts_per_step": 4,
        "max_new_tokens": 1,
        "max_staleness": 1,
        "lr": 1e-2,
        "illegal": "random_legal",
        "importance": "none",
    }
    return TrainConfig(**given | changes)


def one_after_the_other(config: TrainConfig, base: Path, aside: Path) -> dict[str, torch.Tensor]:
    """The same run without any background: each batch from the kept weights of `max_staleness` steps before."""
    learner, chat, baselines = Learner.load(base), ChatFormat.load(base), Baselines()
    engine = TransformersEngine(lockstep=Lockstep(), max_batch_rows=1024)
    with Runtime(engine=engine) as runtime:
        runtime.serve(LEARNER, ServedPolicy(engine, LEARNER, chat, 512))
        planner = Planner(config, None, DealtSource(per_batch=config.starts_per_step), runtime)
        for step in range(config.num_steps):
            (aside / str(step)).mkdir(parents=True)
            learner.save(aside / str(step))
            version = max(0, step - config.max_staleness)
            runtime.run(engine.publish(LEARNER, aside / str(version), version))
            traces = runtime.run(play_many(planner.plans(step), runtime))
            gained = assign(traces, by="seat", estimator="rae", baselines=baselines, learners=learner_seats)
            batch = batches.build(train_sequences(traces, gained, policy=LEARNER))
            learner.step(batch, step_settings(config, step, batch, planner.trained_seats(LEARNER)))
    return learner.weights()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_batch_is_sampled_with_the_weights_of_so_many_steps_before(ahead: int, model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run", max_staleness=ahead)
    result = train(config, script="t", progress=False)
    slow = one_after_the_other(config, model, tmp_path / "slow")
    fast = load_file(result.final_dir / "model.safetensors")
    assert all(torch.equal(fast[name], slow[name]) for name in fast)
    sampled = {
        (int(trace.id[:6]), turn.min_version, turn.max_version)
        for trace in read_traces(tmp_path / "run" / "traces.jsonl")
        for turn in trace.turns
    }
    assert sampled == {(step, max(0, step - ahead), max(0, step - ahead)) for step in range(6)}
    ages = [min(step, ahead) for step in range(6)]
    assert [(row["staleness"], row["staleness_max"]) for row in result.rows] == [(age, age) for age in ages]
    assert [row["stale_tokens_dropped"] for row in result.rows] == [0] * 6
    assert [row["overlap"] for row in result.rows][:1] == [0.0]
    # the gap between engine and learner is told where both had the same weights
    assert ["max_logprob_gap" in row for row in result.rows] == [age == 0 for age in ages]
    assert result.max_logprob_gap < 1e-4


def test_engine_and_learner_are_compared_at_the_same_weights(model: Path, tmp_path: Path) -> None:
    result = train(settings(model, tmp_path, probe_every=1), script="t", progress=False)
    assert max(row["probe_gap"] for row in result.rows[:-1]) < 1e-4


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("interrupted", [1, 3])
def test_a_run_with_batches_under_way_goes_on_to_the_same_end(
    interrupted: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(model, tmp_path / "whole", max_staleness=2, lora_rank=2)
    whole = train(config, script="t", progress=False)
    broken = dataclasses.replace(config, run_dir=str(tmp_path / "broken"))
    saved = broken_off(broken, interrupted)
    older = sorted(path.name for path in (saved.path / "older").iterdir())
    assert older == {1: ["learner-00000000"], 3: ["learner-00000001", "learner-00000002"]}[interrupted]
    assert (saved.path / "older" / older[0] / "model.safetensors").stat().st_nlink > 1  # no second copy was written
    taken: list[int] = []
    take = Publisher.take

    async def spied(self: Publisher, version: int) -> None:
        taken.append(version)
        await take(self, version)

    monkeypatch.setattr(Publisher, "take", spied)
    again = train(broken, script="t", progress=False)
    assert taken == sorted(set(taken))  # engines that keep several versions of an adapter serve the newest
    assert taken[0] == max(0, interrupted - 2)
    one, other = (load_file(result.final_dir / "model.safetensors") for result in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert [row["reward/avg"] for row in again.rows] == [row["reward/avg"] for row in whole.rows]
    assert [row["loss"] for row in again.rows] == [row["loss"] for row in whole.rows]


@pytest.mark.usefixtures("one_thread")
def test_a_fault_in_the_background_reaches_the_caller_and_loses_no_step(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, policy: str, rows: Any) -> Any:
        if self._versions[policy] == 2:  # the batch of step 3
            raise EngineError("the cable is out")
        return sample(self, policy, rows)

    config = settings(model, tmp_path / "run")
    sample = TransformersEngine._sample
    with monkeypatch.context() as patch, pytest.raises(TrainingError, match="episodes of step 3 are void.*the cable"):
        patch.setattr(TransformersEngine, "_sample", broken)
        train(config, script="t", progress=False)
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert saved is not None and saved.step in (2, 3)  # at once: the batch of step 2 may be there and unused
    result = train(config, script="t", progress=False)
    whole = train(dataclasses.replace(config, run_dir=str(tmp_path / "whole")), script="t", progress=False)
    one, other = (load_file(run.final_dir / "model.safetensors") for run in (whole, result))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_playing_goes_on_while_the_learner_works(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are made slow by naps, so that a busy machine changes little."""
    step: Any = Learner.step

    def slow_step(self: Learner, *arguments: Any) -> Any:
        time.sleep(0.3)
        return step(self, *arguments)

    def slow_play(self: Any, policy: str, rows: Any) -> Any:
        time.sleep(0.1)  # two or three calls a batch
        return sample(self, policy, rows)

    sample = TransformersEngine._sample
    monkeypatch.setattr(Learner, "step", slow_step)
    monkeypatch.setattr(TransformersEngine, "_sample", slow_play)
    rows = train(settings(model, tmp_path, num_steps=4), script="t", progress=False).rows
    assert rows[0]["overlap"] == 0.0
    assert all(row["overlap"] > 0.3 for row in rows[1:])


def test_overlap_by_hand() -> None:
    assert overlap(3.0, 2.0, 5.0) == 0.0  # in turns
    assert overlap(3.0, 2.0, 3.0) == 1.0  # learning hidden whole
    assert overlap(3.0, 2.0, 4.0) == 0.5
    assert overlap(3.0, 2.0, 5.5) == 0.0
    assert overlap(9.0, 2.0, 2.0) == 1.0  # played while an earlier step was learned
    assert overlap(1.0, 0.0, 1.0) == 0.0


def test_older_tokens_are_not_trained_and_counted(model: Path, tmp_path: Path) -> None:
    train(settings(model, tmp_path, num_steps=1), script="t", progress=False)
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    turns = [turn for trace in traces for turn in trace.turns]
    for turn in turns:
        turn.min_version = turn.max_version = 7
    turns[0].min_version = 4
    gained = assign(traces, by="seat", estimator="none", baselines=Baselines(), learners=learner_seats)
    before = sum(int(one.trained.sum()) for one in train_sequences(traces, gained, policy=LEARNER))
    assert before == len(turns)
    assert staleness(traces, 7) == (pytest.approx(3 / len(turns)), 3)
    assert mask_stale(traces, gained, 4) == 0 and not gained.signals
    assert mask_stale(traces, gained, 5) == 1
    after = train_sequences(traces, gained, policy=LEARNER)
    assert sum(int(one.trained.sum()) for one in after) == before - 1
    assert len(after) == len({(trace.id, turn.seat) for trace in traces for turn in trace.turns})  # still context


def test_a_gpu_that_is_shared_in_turns_plays_nothing_ahead(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "learner_device", lambda devices: torch.device("cuda:0"))
    config = settings(model, tmp_path, engine=EngineSettings(kind="vllm"), lora_rank=0)
    with pytest.raises(UsageError, match=r"max_staleness=1 .*take turns on cuda:0: .*--engine.devices 1, or set"):
        placement.place(config)
    assert not placement.place(dataclasses.replace(config, engine=EngineSettings(kind="vllm", devices="1"))).shares_gpu
    assert placement.place(dataclasses.replace(config, max_staleness=0)).shares_gpu


def test_settings_say_how_far_ahead(model: Path, tmp_path: Path) -> None:
    for wrong in (-1, 1.5, None):
        with pytest.raises(UsageError, match="max_staleness must be a whole number of at least 0"):
            settings(model, tmp_path, max_staleness=wrong)
    assert json.loads(json.dumps(settings(model, tmp_path).to_json()))["max_staleness"] == 1


def test_a_harness_that_calls_no_trained_policy_is_refused_in_its_first_step() -> None:
    seats = {
        "solver_0": SeatInfo(role="solver", agent="llm:learner", policy=LEARNER),
        "judge_0": SeatInfo(role="judge", agent="llm:other"),
    }

    def run(*seated: str) -> Trace:
        turns = [
            Turn(index=index, seat=seat, text="x", prompt_ids=[1], completion_ids=[2])
            for index, seat in enumerate(seated)
        ]
        return Trace(id="a", spec=EnvSpec(id="harness:x:run"), seed=0, seats=seats, turns=turns)

    harness = TrainConfig(harness="x:run")
    with pytest.raises(TrainingError, match="x:run called nobody; .*await ctx.call"):
        refuse_without_tokens(0, [run(), run()], harness)
    with pytest.raises(TrainingError, match="called judge"):
        refuse_without_tokens(0, [run(), run("judge_0")], harness)
    refuse_without_tokens(0, [run(), run("judge_0", "solver_0")], harness)
    refuse_without_tokens(1, [run()], harness)  # by chance
    refuse_without_tokens(0, [run()], TrainConfig())
