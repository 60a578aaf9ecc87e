"""Several policies in one run: who learns what, and what they leave behind."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import llm_arena
from llm_arena.engines import vllm_start
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.models import random_model
from llm_arena.tokens import ChatFormat
from llm_arena.trace_file import read_traces
from llm_arena.training import batch as batches
from llm_arena.training import checkpoint, placement
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.placement import PolicyPlan, place, plan_engines
from llm_arena.training.planning import learner_seats
from llm_arena.training.policies import folder_names
from llm_arena.training.step_settings import step_settings
from llm_arena.types import Move, Outcome, Reply

co_evolve = importlib.import_module("llm_arena.train.co_evolve").main

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
    llm_arena.register(Monologue.id, Monologue)


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
    assert row["max_logprob_gap"] < 1e-4 and row["lr"] == row["lr/a"] == row["lr/b"] == 1e-2


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


def test_policies_are_refused_names_that_can_be_no_folders() -> None:
    assert folder_names(["learner"]) == {"learner": ""} and folder_names(["learner:a"]) == {"learner:a": ""}
    assert folder_names(["learner", "learner:a"]) == {"learner": "learner", "learner:a": "a"}
    for bad in ("learner:", "learner: a", "learner:a/b", "learner:..", "learner:x:y", "learner:a b"):
        for policies in (["learner:a", bad], [bad]):
            with pytest.raises(UsageError, match="needs a name of letters"):
                folder_names(policies)
    for pair in (["learner:a", "learner:A"], ["learner", "learner:learner"]):
        with pytest.raises(UsageError, match="would have the same folder"):
            folder_names(pair)


def plans(config: TrainConfig, names: str, base: Path) -> list[PolicyPlan]:
    own = {name: config.of_policy(name) for name in names}
    chat = ChatFormat.load(base)
    return [PolicyPlan(name=name, config=one, placed=place(one), base=base, chat=chat) for name, one in own.items()]


MEMORY = "gpu_memory_utilization"


@pytest.mark.parametrize(
    ("names", "frozen", "args", "changes", "shares"),
    [
        ("a", 0, {}, {}, [None]),
        ("ab", 0, {}, {}, [0.46, 0.46]),
        ("ab", 1, {}, {}, [0.3, 0.3]),
        ("ab", 0, {MEMORY: 0.4}, {}, [0.4, 0.4]),
        ("abc", 0, {}, {"policies": {"c": {"engine": {"devices": "1"}}}}, [0.46, 0.46, None]),
        ("abc", 0, {}, {"policies": {"c": {"engine": {MEMORY: 0.2}}}}, [0.3, 0.3, 0.2]),
        ("ab", 0, {}, {"lora_rank": 4}, [None]),  # adapters share one
        ("abc", 0, {}, {"lora_rank": 4, "policies": {"c": {"lora_rank": 0}}}, [0.46, 0.46]),
    ],
)
def test_engines_on_one_gpu_share_its_memory(
    names: str,
    frozen: int,
    args: dict[str, float],
    changes: dict[str, Any],
    shares: list[float | None],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    config = settings(model, tmp_path, engine=EngineSettings(kind="vllm", args=json.dumps(args)), **changes)
    engines, others = plan_engines(plans(config, names, model), config.engine, frozen)
    assert [plan.settings.vllm_args().get(MEMORY) for plan in engines] == shares
    assert [name for plan in engines for name in plan.policies] == list(names)
    assert others.vllm_args().get(MEMORY, shares[0]) == shares[0]  # so that they may share an engine


def test_engines_take_turns_with_a_learner_on_less(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    monkeypatch.setattr(placement, "learner_device", lambda devices: torch.device("cuda:0"))
    config = settings(model, tmp_path, engine=EngineSettings(kind="vllm"))
    for names, share in (("ab", 0.35), ("abcd", 0.17)):
        engines, _ = plan_engines(plans(config, names, model), config.engine)
        assert [(plan.settings.vllm_args()[MEMORY], plan.sleeps) for plan in engines] == [(share, True)] * len(names)


def test_engines_that_do_not_fit_a_gpu_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    config = settings(model, tmp_path, engine=EngineSettings(kind="vllm", args=json.dumps({MEMORY: 0.45})))
    plan_engines(plans(config, "ab", model), config.engine)
    with pytest.raises(UsageError, match=r"3 vLLM engines take 1\.35 of the memory of GPU 0.*most 0\.32 .*--lora-rank"):
        plan_engines(plans(config, "abc", model), config.engine)


DOCUMENT = (Path(__file__).parents[1] / "docs" / "running.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```bash\n(.*?)```", DOCUMENT, re.DOTALL)
SMALL = ["--steps", "1", "--starts-per-step", "1", "--max-new-tokens", "2"]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_in_the_document_work(
    command: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command.replace("\\\n", " ").replace("smollm2-135m", str(model)))
    assert words[:3] == ["llm-arena", "train", "co-evolve"]
    monkeypatch.chdir(tmp_path)
    assert co_evolve([*words[3:], *SMALL]) == 0
    final = Path(capsys.readouterr().out.splitlines()[-1])
    assert sorted(path.name for path in final.iterdir()) in (["a", "b"], ["proposer", "solver"])


def test_the_settings_in_the_document_work(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
    other = random_model(tmp_path / "my-models" / "solver", words=WORDS[:4], hidden_size=64, layers=2)
    (tmp_path / "run.toml").write_text(text.replace("smollm2-135m", str(model)))
    monkeypatch.chdir(tmp_path)
    assert co_evolve(["--config", "run.toml", *SMALL]) == 0
    final = Path(capsys.readouterr().out.splitlines()[-1])
    shapes = {
        name: {key: tensor.shape for key, tensor in load_file(folder / "model.safetensors").items()}
        for name, folder in {"proposer": final / "proposer", "solver": final / "solver", "m": model, "o": other}.items()
    }
    assert shapes["proposer"] == shapes["m"] != shapes["o"] == shapes["solver"]
    assert [path.name for path in (final.parent / "adapter").iterdir()] == ["proposer"]
    rows = [json.loads(line) for line in (final.parent / "metrics.jsonl").read_text().splitlines()]
    assert [(row["lr/proposer"], row["lr/solver"], row["learns/proposer"]) for row in rows] == [(1e-4, 1e-5, 1.0)]


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 4], ids=["full", "adapters"])
def test_soak_two_policies_on_vllm(rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full weights take an engine each, adapters and their frozen base share one; batches are played ahead."""
    made: list[VllmEngine] = []
    make: Any = VllmEngine.__init__

    def noting(self: VllmEngine, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(VllmEngine, "__init__", noting)
    model = random_model(tmp_path / "model", words=WORDS, heads=2, tie_word_embeddings=True, initializer_range=0.12)
    engine = EngineSettings(kind="vllm", args='{"max_model_len": 512}')
    more: dict[str, Any] = {"engine": engine, "max_staleness": 1, "probe_every": 1, "kl_weight": 0.0}
    if rank:
        roster = {"namer_0": "learner:a", "namer_1": "learner:b", "namer_2": f"llm:{model}"}
        more |= {"lora_rank": rank, "publish": "adapter", "roster": roster}
    result = train(settings(model, tmp_path / "run", **more), script="t", progress=False)
    assert len(made) == (1 if rank else 2)
    assert max(row["probe_gap"] for row in result.rows[:-1]) <= 1e-4
    traces = read_traces(tmp_path / "run" / "traces.jsonl")
    versions = [{turn.min_version for turn in trace.turns if turn.seat != "namer_2"} for trace in traces]
    assert versions == [{0}] * 6 + [{1}] * 3
    assert not equal(result.models["learner:a"], result.models["learner:b"])
    assert result.rows[-1]["staleness"] == 1
