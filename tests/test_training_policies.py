"""Several policies in one run: who learns what, and what they leave behind."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import llm_arena
from llm_arena.engines import vllm_start
from llm_arena.engines.settings import EngineSettings
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.models import random_model
from llm_arena.trace_file import read_traces
from llm_arena.training import batch as batches
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.placement import place, refuse_crowd
from llm_arena.training.planning import learner_seats
from llm_arena.training.policies import folder_names
from llm_arena.training.step_settings import step_settings
from llm_arena.types import Move, Outcome, Reply

WORDS = ["stone", "moon", "river", "house", "golden", "tea", "brew", "corner"]


class Monologue(ArenaEnv):
    """One seat speaks, the other never has a turn."""

    id = "test-monologue-v0"
    roles = {"speaker": 1, "listener": 1}

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Asks the speaker."""
        self.tell(self.possible_agents, "speak")
        return ["speaker_0"]

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Pays for the letter e."""
        return Move(action=str(reply), rewards={seat: float("e" in reply)}, outcome=Outcome(reason="spoken"))

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Any word."""
        return "tea"


@pytest.fixture(scope="module", autouse=True)
def monologue() -> None:
    if Monologue.id not in llm_arena.registry:
        llm_arena.register(Monologue.id, Monologue)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums of several threads may differ in the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "model", words=WORDS, hidden_size=32, layers=1)


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "naming-v0",
        "env_args": {"namers": 3, "judge": "length"},
        "roster": {"namer_0": "learner:a", "namer_1": "learner:b", "namer_2": "learner:b"},
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 3,
        "starts_per_step": 3,
        "max_new_tokens": 4,
        "lr": 1e-2,
        "kl_weight": 0.1,
        "checkpoint_every": 2,
    }
    return TrainConfig(**given | changes)


def equal(left: Path, right: Path) -> bool:
    one, other = (load_file(folder / "model.safetensors") for folder in (left, right))
    assert one.keys() == other.keys()
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.usefixtures("one_thread")
def test_each_policy_learns_what_it_would_alone(model: Path, tmp_path: Path) -> None:
    """The traces of a run with two trained policies and a frozen third, given to one learner after the other."""
    frozen = random_model(tmp_path / "frozen", words=WORDS, hidden_size=32, layers=1, seed=5)
    before = (frozen / "model.safetensors").read_bytes()
    roster = {"namer_0": "learner:a", "namer_1": "learner:b", "namer_2": f"llm:{frozen}"}
    config = settings(model, tmp_path / "run", roster=roster)
    result = train(config, script="t", progress=False)
    steps = [
        list(group) for _, group in itertools.groupby(read_traces(tmp_path / "run/traces.jsonl"), lambda t: t.id[:6])
    ]
    assert [len(traces) for traces in steps] == [3, 3, 3]
    for policy, folder in result.models.items():
        alone = Learner.load(model, reference="ema")
        baselines = Baselines()
        for step, traces in enumerate(steps):
            gained = assign(traces, by="seat", estimator="rae", baselines=baselines, learners=learner_seats)
            batch = batches.build(train_sequences(traces, gained, policy=policy))
            alone.step(batch, step_settings(config, step, batch, 3))
        alone.save(tmp_path)
        assert equal(folder, tmp_path)
    assert not equal(result.models["learner:a"], result.models["learner:b"])
    assert (frozen / "model.safetensors").read_bytes() == before
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert saved is not None
    kinds = ("anchor", "model", "optimizer")
    assert sorted(saved.tensors()) == [f"{policy}/{kind}" for policy in "ab" for kind in kinds]


def test_numbers_are_told_for_each_and_for_all(model: Path, tmp_path: Path) -> None:
    [row, *_] = train(settings(model, tmp_path, num_steps=1), script="t", progress=False).rows
    assert row["trained_tokens"] == row["trained_tokens/a"] + row["trained_tokens/b"]
    assert row["loss"] == pytest.approx(row["loss/a"] + row["loss/b"])
    assert row["grad_norm"] == max(row["grad_norm/a"], row["grad_norm/b"])
    shares = row["trained_tokens/a"] / row["trained_tokens"], row["trained_tokens/b"] / row["trained_tokens"]
    assert row["entropy"] == pytest.approx(shares[0] * row["entropy/a"] + shares[1] * row["entropy/b"])
    assert row["max_logprob_gap"] < 1e-4 and "lr/a" not in row


def test_the_final_models_play_against_each_other(model: Path, tmp_path: Path) -> None:
    result = train(settings(model, tmp_path, num_steps=1, lora_rank=2), script="t", progress=False)
    assert sorted(path.name for path in result.final_dir.iterdir()) == ["a", "b"]
    assert sorted(path.name for path in (tmp_path / "adapter" / "b").iterdir() if path.suffix == ".safetensors")
    agents = {f"namer_{k}": str(result.final_dir / name) for k, name in enumerate("ab")}
    trace = llm_arena.play(llm_arena.make("naming-v0", namers=2, judge="length"), agents, 0, max_new_tokens=2)
    assert not trace.void
    again = train(settings(model, tmp_path, num_steps=1, lora_rank=2), script="t", progress=False)
    assert again.was_complete and again.models == result.models


def test_a_policy_without_a_turn_makes_no_update(model: Path, tmp_path: Path) -> None:
    roster = {"speaker": "learner:a", "listener": "learner:b"}
    config = settings(model, tmp_path, env=Monologue.id, env_args={}, roster=roster, num_steps=2, kl_weight=0.0)
    result = train(config, script="t", progress=False)
    assert [row["trained_tokens/b"] for row in result.rows] == [0, 0]
    assert all(row["grad_norm/a"] > 0 for row in result.rows)
    assert equal(result.models["learner:b"], model) and not equal(result.models["learner:a"], model)
    saved = checkpoint.newest(tmp_path / "checkpoints")
    assert saved is not None and saved.tensors()["b/optimizer"] == {}


def test_two_policies_are_refused_names_that_can_be_no_folders() -> None:
    assert folder_names(["learner:a/b"]) == {"learner:a/b": ""}  # one alone needs none
    assert folder_names(["learner", "learner:a"]) == {"learner": "learner", "learner:a": "a"}
    for bad in ("learner:", "learner:a/b", "learner:..", "learner:x:y", "learner:a b"):
        with pytest.raises(UsageError, match="needs a name of letters"):
            folder_names(["learner:a", bad])
    for pair in (["learner:a", "learner:A"], ["learner", "learner:learner"]):
        with pytest.raises(UsageError, match="would have the same folder"):
            folder_names(pair)


@pytest.mark.parametrize(
    ("changes", "policies", "says"),
    [
        ({}, 1, ""),
        ({}, 2, r"2 vLLM engines, each with 0\.92 of the same GPU's memory: give each at most 0\.47"),
        ({"args": '{"gpu_memory_utilization": 0.45}'}, 2, ""),
        ({"args": '{"gpu_memory_utilization": 0.45}'}, 3, "3 vLLM engines"),
    ],
)
def test_engines_that_do_not_fit_a_gpu_are_refused(
    changes: dict[str, str], policies: int, says: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    config = settings(model, tmp_path, engine=EngineSettings(kind="vllm", **changes))
    if not says:
        refuse_crowd(config, place(config), policies)
        return
    with pytest.raises(UsageError, match=says):
        refuse_crowd(config, place(config), policies)


def test_the_command_in_the_document_works(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[1] / "docs" / "running.md").read_text(encoding="utf-8")
    [command] = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    words = shlex.split(command.replace("\\\n", " ").replace("smollm2-135m", str(model)))
    assert words[:3] == ["llm-arena", "train", "self-play"]
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module("llm_arena.train.self_play").main
    small = ["--steps", "1", "--starts-per-step", "1", "--max-new-tokens", "2", "--engine.kind", "transformers"]
    assert main([*words[3:], *small]) == 0
    final = Path(capsys.readouterr().out.splitlines()[-1])
    assert sorted(path.name for path in final.iterdir()) == ["a", "b"]


@pytest.mark.soak
@pytest.mark.parametrize("changes", [{}, {"lora_rank": 4, "publish": "adapter"}], ids=["full", "adapters"])
def test_soak_two_policies_on_vllm(changes: dict[str, Any], tmp_path: Path) -> None:
    """Full weights take an engine each, adapters share one; both while batches are played ahead."""
    model = random_model(tmp_path / "model", words=WORDS, heads=2, tie_word_embeddings=True, initializer_range=0.12)
    engine = EngineSettings(kind="vllm", args='{"max_model_len": 512}')
    more = {"engine": engine, "max_staleness": 1, "probe_every": 1, "kl_weight": 0.0}
    result = train(settings(model, tmp_path / "run", **more, **changes), script="t", progress=False)
    assert max(row["probe_gap"] for row in result.rows[:-1]) <= 1e-4
    traces = read_traces(tmp_path / "run" / "traces.jsonl")
    assert [{turn.min_version for turn in trace.turns} for trace in traces] == [{0}] * 6 + [{1}] * 3
    assert not equal(result.models["learner:a"], result.models["learner:b"])
    assert result.rows[-1]["staleness"] == 1
