"""Training with the real vLLM: both ways of publishing weights, and what happens when the engine's process dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import llm_arena
from llm_arena.engines import vllm_engine
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.errors import EngineError, TrainingError, UsageError
from llm_arena.models import random_model
from llm_arena.trace_file import read_traces
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import TrainResult, train

VLLM = EngineSettings(kind="vllm", args='{"max_model_len": 512}')


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tied embeddings that knows few words, so that random play is often legal."""
    words = ["check", "bet", "call", "fold", "J", "Q", "K"]
    folder = tmp_path_factory.mktemp("model") / "model"
    return random_model(folder, words=words, heads=2, tie_word_embeddings=True, initializer_range=0.12)


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "model": str(model),
        "run_dir": str(run_dir),
        "engine": VLLM,
        "num_steps": 3,
        "starts_per_step": 8,
        "max_new_tokens": 2,
        "lr": 1e-2,
        "probe_every": 1,
        "checkpoint_every": 1,
        "illegal": "random_legal",
    }
    return TrainConfig(**given | changes)


def check_run(result: TrainResult, model: Path, run_dir: Path) -> None:
    """Every step was trained on what was served, with the weights of its version; the model changed, and loads."""
    assert result.steps == 3
    assert result.max_logprob_gap <= 1e-4
    assert max(row["probe_gap"] for row in result.rows[:-1]) <= 1e-4  # the last weights go nowhere
    traces = list(read_traces(run_dir / "traces.jsonl"))
    assert [trace.void for trace in traces] == [False] * 24
    assert {turn.max_version for trace in traces for turn in trace.turns} == {0, 1, 2}
    for trace in traces:
        assert llm_arena.replay(trace).returns == trace.returns
    trained, before = (load_file(folder / "model.safetensors") for folder in (result.final_dir, model))
    assert trained.keys() == before.keys()
    assert max(float((trained[name] - before[name]).abs().max()) for name in trained) > 1e-3


def test_a_run_of_an_adapter_is_token_exact_and_its_model_loads(model: Path, tmp_path: Path) -> None:
    changes = {"lora_rank": 4, "publish": "adapter", "loss": "ppo_clip", "epochs": 2, "minibatches": 2}
    result = train(settings(model, tmp_path / "run", **changes), script="t", progress=False)
    check_run(result, model, tmp_path / "run")
    base = AutoModelForCausalLM.from_pretrained(model)
    merged: Any = PeftModel.from_pretrained(base, tmp_path / "run" / "adapter").merge_and_unload()
    state, trained = merged.state_dict(), load_file(result.final_dir / "model.safetensors")
    assert max(float((trained[name] - state[name]).abs().max()) for name in trained) <= 1e-5


@pytest.mark.parametrize("kind", ["full", pytest.param("adapter", marks=pytest.mark.soak)])
def test_the_engine_dies_in_mid_run_and_the_run_goes_on(
    kind: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = VllmEngine.generate
    calls, lost, pids = 0, 0, set()

    async def dies(self: VllmEngine, *arguments: Any) -> Any:
        nonlocal calls, lost
        calls += 1
        answer = asyncio.ensure_future(original(self, *arguments))
        if calls == 40:  # in the second or third step
            await asyncio.sleep(0)  # it is sent
            assert self.pid is not None
            os.kill(self.pid, signal.SIGKILL)
        pids.add(self.pid)
        try:
            return await answer
        except EngineError:
            lost += 1
            raise

    changes = {"lora_rank": 4, "publish": "adapter"} if kind == "adapter" else {}
    monkeypatch.setattr(VllmEngine, "generate", dies)
    result = train(settings(model, tmp_path / "run", max_open_episodes=2, **changes), script="t", progress=False)
    assert len(pids) == 2
    assert 1 <= lost <= 2  # so many episodes were open; they are played once more
    assert [row["void"] for row in result.rows] == [0, 0, 0]
    check_run(result, model, tmp_path / "run")


def test_the_engine_dies_too_often_in_mid_run_and_the_same_command_goes_on(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "REVIVALS", 0)
    original = VllmEngine.generate
    calls = 0

    async def dies(self: VllmEngine, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 40:  # in the second or third step
            assert self.pid is not None
            os.kill(self.pid, signal.SIGKILL)
        return await original(self, *arguments)

    config = settings(model, tmp_path / "run")
    monkeypatch.setattr(VllmEngine, "generate", dies)
    with pytest.raises((EngineError, TrainingError), match=r"vLLM process \(pid \d+\) has died"):
        train(config, script="t", progress=False)
    monkeypatch.undo()
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert saved is not None and saved.step >= 1
    before = [trace.id for trace in read_traces(tmp_path / "run" / "traces.jsonl")]
    assert len(before) >= 8 * saved.step
    result = train(config, script="t", progress=False)
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3]
    after = [trace.id for trace in read_traces(tmp_path / "run" / "traces.jsonl")]
    assert len(after) == len(set(after)) == 24
    assert after[: 8 * saved.step] == before[: 8 * saved.step]
    assert result.max_logprob_gap <= 1e-4


def test_adapters_want_an_engine_that_takes_them(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run", engine=EngineSettings(), lora_rank=4, publish="adapter")
    with pytest.raises(UsageError, match="publish=adapter needs an engine that takes adapters: --engine.kind vllm"):
        train(config, script="t", progress=False)
    assert not (tmp_path / "run").exists()
