"""What a run that goes on must not mix up: the members of a group, the order of tasks, schedules, who is frozen."""

from __future__ import annotations

import _thread
import asyncio
import dataclasses
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import llm_arena
from llm_arena.env import ArenaEnv
from llm_arena.models import random_model
from llm_arena.tokens import ChatFormat
from llm_arena.trace_file import read_traces
from llm_arena.training import checkpoint
from llm_arena.training import credit as credits
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Credit, assign
from llm_arena.training.loop import train
from llm_arena.training.sources import ListSource
from llm_arena.types import Action, Completion, Move, Outcome, PastTurn, Reply, Trace, View

WORDS = [
    "2",
    "3",
    "5",
    "6",
    "stone",
    "moon",
    "river",
    "house",
    "golden",
    "tea",
    "brew",
    "corner",
    "ANSWER",
    "PROBLEM",
    ":",
]


class Riddle(ArenaEnv):
    """One seat, one answer; 5 is right."""

    id = "test-riddle-v0"
    roles = {"solver": 1}

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Asks."""
        self.tell(self.possible_agents, "2 + 3 ?")
        return self.possible_agents

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Pays 1 for the right answer."""
        return Move(action=str(reply), rewards={seat: float(reply == "5")}, outcome=Outcome(reason="answered"))

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """A digit."""
        return str(rng.integers(10))


@pytest.fixture(scope="module", autouse=True)
def riddle() -> None:
    llm_arena.register(Riddle.id, Riddle)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("model") / "model", words=WORDS, hidden_size=32, layers=1)


class Script:
    """What all models say: one text after the other. With `interrupts`, Ctrl-C is pressed instead of the last."""

    def __init__(self, chat: ChatFormat, texts: Sequence[str], *, interrupts: bool) -> None:
        self._chat = chat
        self._texts = list(texts)
        self._interrupts = interrupts

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Says the next text in made-up tokens."""
        text = self._texts.pop(0)
        if self._interrupts and not self._texts:
            _thread.interrupt_main()
            await asyncio.sleep(60)
        ids = [*self._chat.tokenizer.encode(text, add_special_tokens=False), self._chat.stop_ids[0]]
        completion = Completion(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop")
        return Action(reply=Reply(text), prompt_ids=self._chat.render(view.messages), completion=completion)


def agent_class() -> Any:
    """The class of all agents that are models."""
    return importlib.import_module("llm_arena.agents.llm").ServedLLMAgent


def spy(monkeypatch: pytest.MonkeyPatch) -> tuple[list[list[Trace]], list[Credit]]:
    """Returns the traces of each step that was credited, and what they were credited with."""
    seen: list[list[Trace]] = []
    found: list[Credit] = []

    def spied(traces: Sequence[Trace], **given: Any) -> Credit:
        seen.append(list(traces))
        found.append(assign(traces, **given))
        return found[-1]

    monkeypatch.setattr(credits, "assign", spied)
    return seen, found


def test_a_group_interrupted_after_one_member_is_one_group_of_four(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Member 0 solves the problem and gets 1, then Ctrl-C; after that the others get 0."""
    seen, found = spy(monkeypatch)
    config = TrainConfig(
        env=Riddle.id,
        model=str(model),
        run_dir=str(tmp_path),
        num_steps=1,
        starts_per_step=1,
        group_size=4,
        estimator="group_mean",
        max_open_episodes=1,
    )
    chat = ChatFormat.load(model)
    monkeypatch.setattr(agent_class(), "act", Script(chat, ["5", "6"], interrupts=True).act)
    with pytest.raises(KeyboardInterrupt):
        train(config, script="t", progress=False)
    assert not seen and not (tmp_path / "traces.jsonl").exists()
    monkeypatch.setattr(agent_class(), "act", Script(chat, ["5", "6", "6", "6"], interrupts=False).act)
    train(config, script="t", progress=False)
    [traces], [gained] = seen, found
    assert {trace.group for trace in traces} == {"000000-0000"} and len({trace.id for trace in traces}) == 4
    assert [gained.rewards[trace.id, "solver_0"] for trace in traces] == [1, 0, 0, 0]
    assert [gained.advantages[trace.id, "solver_0"] for trace in traces] == [0.75, -0.25, -0.25, -0.25]
    assert gained.groups == 1
    assert train(config, script="t", progress=False).was_complete
    assert len(seen) == 1 and len(list(read_traces(tmp_path / "traces.jsonl"))) == 4


def test_a_contest_interrupted_after_two_names_is_scored_over_four(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, _ = spy(monkeypatch)
    config = TrainConfig(
        env="naming-v0",
        env_args='{"namers": 1, "judge": "length"}',
        model=str(model),
        run_dir=str(tmp_path),
        num_steps=1,
        starts_per_step=1,
        group_size=4,
        credit="group",
        estimator="loo",
        max_open_episodes=1,
    )
    chat = ChatFormat.load(model)
    names = ["stone", "moon river", "golden tea", "house"]
    monkeypatch.setattr(agent_class(), "act", Script(chat, names[:3], interrupts=True).act)
    with pytest.raises(KeyboardInterrupt):
        train(config, script="t", progress=False)
    monkeypatch.setattr(agent_class(), "act", Script(chat, names, interrupts=False).act)
    train(config, script="t", progress=False)
    [traces] = seen
    assert [trace.turns[0].text for trace in traces] == names
    assert len({trace.group for trace in traces}) == 1


@pytest.mark.parametrize("ahead", [0, 1])
def test_tasks_rates_and_optimizer_go_on_where_they_were(ahead: int, model: Path, tmp_path: Path) -> None:
    """Five tasks shuffled for each pass, two updates a step, warm-up and decay, a model with dropout, a frozen seat."""
    dropout = tmp_path / "model"
    dropout.mkdir()
    for file in model.iterdir():
        (dropout / file.name).write_bytes(file.read_bytes())
    settings = json.loads((dropout / "config.json").read_text())
    (dropout / "config.json").write_text(json.dumps(settings | {"attention_dropout": 0.5}))
    frozen = random_model(tmp_path / "frozen", words=WORDS, hidden_size=32, layers=1, seed=5)
    before = (frozen / "model.safetensors").read_bytes()
    config = TrainConfig(
        env="naming-v0",
        env_args='{"namers": 2, "judge": "length"}',
        roster=json.dumps({"namer_1": f"llm:{frozen}"}),
        model=str(dropout),
        run_dir=str(tmp_path / "whole"),
        num_steps=6,
        starts_per_step=2,
        group_size=2,
        max_new_tokens=4,
        loss="ppo_clip",
        minibatches=2,
        lr=1e-2,
        lr_end=1e-3,
        warmup_steps=4,
        max_staleness=ahead,
        checkpoint_every=3,
    )
    topics = [f"{word} shop" for word in ("stone", "moon", "river", "house", "tea")]

    def press(row: dict[str, float], learners: Any) -> None:
        if row["step"] == 3:
            raise KeyboardInterrupt

    runs = [config, dataclasses.replace(config, run_dir=str(tmp_path / "broken"))]
    with pytest.raises(KeyboardInterrupt):
        train(runs[1], script="t", source=ListSource(topics, per_batch=2), progress=False, on_step=press)
    saved = checkpoint.newest(tmp_path / "broken" / "checkpoints")
    assert saved is not None and saved.step == 3
    moments = saved.tensors()["optimizer"]
    assert {float(value) for name, value in moments.items() if name.startswith("step/")} == {6.0}  # neither 3 nor 12
    assert not any(str(frozen) in name for name in saved.state["files"])
    results = [train(one, script="t", source=ListSource(topics, per_batch=2), progress=False) for one in runs]
    whole, broken = results
    orders = [
        [trace.spec.kwargs["topic"] for trace in read_traces(result.run_dir / "traces.jsonl")][::2]
        for result in results
    ]
    assert orders[0] == orders[1] and sorted(orders[0][:5]) == sorted(orders[0][5:10]) == sorted(topics)
    rates = [0.0025, 0.0041, 0.0048, 0.0046, 0.0028, 0.001]  # min(1, (s + 1) / 4) of 0.01 - 0.009 s / 5
    assert [row["lr"] for row in broken.rows] == pytest.approx([config.lr_at(step) for step in range(6)], abs=0)
    assert [row["lr"] for row in whole.rows] == pytest.approx(rates)
    assert [row["loss"] for row in broken.rows] == pytest.approx([row["loss"] for row in whole.rows], rel=1e-4)
    one, other = (load_file(result.final_dir / "model.safetensors") for result in results)
    assert max(float((one[name] - other[name]).abs().max()) for name in one) <= 1e-6
    assert (frozen / "model.safetensors").read_bytes() == before
