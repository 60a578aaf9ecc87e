"""Models that differ play and learn together: own tokenizers, own adapters; rewards stay with their policy."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import llm_arena
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.env import ArenaEnv
from llm_arena.models import random_model
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
from llm_arena.trace_file import read_traces
from llm_arena.training import batch as batches
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.lora import LoraSettings
from llm_arena.training.planning import learner_seats
from llm_arena.training.step_settings import step_settings
from llm_arena.types import Action, Completion, Move, Outcome, PastTurn, Reply, View

BARE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} <|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
"""Another chat format than ChatML."""
KUHN = ["check", "bet", "call", "fold", "J", "Q", "K"]


class Wages(ArenaEnv):
    """Two roles that speak once: the one is always paid 3, the other -1."""

    id = "test-wages-v0"
    roles = {"rich": 1, "poor": 1}
    simultaneous = True

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Asks both at once."""
        self.spoken = 0
        self.tell(self.possible_agents, "speak")
        return self.possible_agents

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Pays the seat's wage."""
        return self._wage(seat)

    def forfeit(self, seat: str, cause: object) -> Move:
        """Pays for silence as well."""
        return self._wage(seat)

    def _wage(self, seat: str) -> Move:
        self.spoken += 1
        wage = {seat: 3.0 if seat == "rich_0" else -1.0}
        return Move(action="", rewards=wage, outcome=Outcome(reason="spoken") if self.spoken == 2 else None)

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Any word."""
        return "tea"


@pytest.fixture(scope="module", autouse=True)
def wages() -> None:
    llm_arena.register(Wages.id, Wages)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_model(tmp_path_factory.mktemp("narrow") / "model", words=KUHN, hidden_size=32, layers=1, heads=2)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More words, in another order, another chat format, another size."""
    words = ["You", "your", "turn", *reversed(KUHN), "card", "Kuhn"]
    return random_model(tmp_path_factory.mktemp("wide") / "model", words=words, hidden_size=64, seed=3, template=BARE)


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "roster": {"player_0": "learner:narrow", "player_1": "learner:wide"},
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 3,
        "starts_per_step": 4,
        "max_new_tokens": 1,
        "lr": 1e-2,
        "illegal": "random_legal",
        "probe_every": 1,
    }
    return TrainConfig(**given | changes)


@pytest.mark.usefixtures("one_thread")
def test_models_with_other_tokenizers_learn_what_they_would_alone(narrow: Path, wide: Path, tmp_path: Path) -> None:
    own: Any = {"wide": {"model": str(wide), "lora_rank": 2, "lora_alpha": 8.0, "lr": 0.1, "grad_clip": 5.0}}
    config = settings(narrow, tmp_path / "run", policies=own)
    result = train(config, script="t", progress=False)
    assert max(row["max_logprob_gap"] for row in result.rows) < 1e-4
    assert max(row["probe_gap"] for row in result.rows[:-1]) < 1e-4
    assert [(row["lr/narrow"], row["lr/wide"], row["lr"]) for row in result.rows] == [(1e-2, 0.1, 0.1)] * 3
    traces = list(read_traces(tmp_path / "run" / "traces.jsonl"))
    chats = {"player_0": ChatFormat.load(narrow), "player_1": ChatFormat.load(wide)}
    for turn in (turn for trace in traces for turn in trace.turns):
        text = chats[turn.seat].tokenizer.decode(turn.completion_ids, skip_special_tokens=True)
        assert text.strip() == turn.text.strip()
        if turn.index < 2:  # the first of its seat: the whole view is new
            assert turn.prompt_ids == chats[turn.seat].render(turn.messages)
    for name, base in (("narrow", narrow), ("wide", wide)):
        mine = config.of_policy(name)
        lora = LoraSettings(rank=2, alpha=8.0) if name == "wide" else None
        alone, baselines = Learner.load(base, lora=lora), Baselines()
        for step, group in itertools.groupby(traces, lambda trace: int(trace.id[:6])):
            members = list(group)
            gained = assign(members, by="seat", estimator="rae", baselines=baselines, learners=learner_seats)
            batch = batches.build(train_sequences(members, gained, policy=f"learner:{name}"))
            alone.step(batch, step_settings(mine, step, batch, 4))
        expected = {key: tensor.clone() for key, tensor in alone.weights().items()}
        found = load_file(result.models[f"learner:{name}"] / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in found)
        assert ChatFormat.load(result.models[f"learner:{name}"]).render([{"role": "user", "content": "J"}]) == (
            ChatFormat.load(base).render([{"role": "user", "content": "J"}])
        )
    assert [path.name for path in (tmp_path / "run" / "adapter").iterdir()] == ["wide"]


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_frozen_model_is_the_same_to_the_bit_and_has_no_optimizer(
    lora_rank: int, narrow: Path, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One learns, and beside it play the model that it starts from and another."""
    engines: list[TransformersEngine] = []
    make = TransformersEngine.__init__

    def made(self: TransformersEngine, **arguments: Any) -> None:
        make(self, **arguments)
        engines.append(self)

    monkeypatch.setattr(TransformersEngine, "__init__", made)
    frozen = {str(narrow): load_file(narrow / "model.safetensors"), str(wide): load_file(wide / "model.safetensors")}
    seen: list[set[str]] = []

    def look(row: Mapping[str, float], learners: Mapping[str, Learner]) -> None:
        [engine] = engines
        seen.append(set(learners))
        assert engine._models.keys() == {"learner", *frozen}
        for name, before in frozen.items():
            now = engine._models[name].state_dict()
            assert all(torch.equal(now[key], tensor) for key, tensor in before.items())
            assert not any(one.requires_grad for one in engine._models[name].parameters())
        served = engine._models["learner"].state_dict()
        moved = any(not torch.equal(served[key], tensor) for key, tensor in frozen[str(narrow)].items())
        assert moved
        own = {id(one) for learner in learners.values() for one in learner.model.parameters()}
        assert {id(one) for one in learners["learner"].optimizer.state} <= own

    config = settings(
        narrow,
        tmp_path,
        env="naming-v0",
        env_args={"namers": 3, "judge": "length"},
        illegal=None,
        max_new_tokens=3,
        roster={"namer_0": "learner", "namer_1": f"llm:{narrow}", "namer_2": f"llm:{wide}"},
        lora_rank=lora_rank,
    )
    result = train(config, script="t", progress=False, on_step=look)
    assert seen == [{"learner"}] * 3
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    files = sorted(path.name for path in newest.rglob("*.safetensors"))
    assert files == ["model.safetensors", "optimizer.safetensors"]  # nothing of the frozen ones
    tokens = sum(
        len(turn.completion_ids)
        for trace in read_traces(tmp_path / "traces.jsonl")
        for turn in trace.turns
        if turn.seat == "namer_0"
    )
    assert sum(row["trained_tokens"] for row in result.rows) == tokens


class Slow:
    """A policy for tests that always says the same, after a while that changes from call to call."""

    def __init__(self, policy: str, chat: ChatFormat, text: str, naps: Sequence[float], order: list[str]) -> None:
        self.name = f"slow:{policy}"
        self.policy: str | None = policy
        self._chat, self._text, self._naps, self._order = chat, text, itertools.cycle(naps), order

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Says its text."""
        await asyncio.sleep(next(self._naps))
        self._order.append(view.seat)
        ids = [*self._chat.tokenizer.encode(self._text, add_special_tokens=False), self._chat.stop_ids[0]]
        completion = Completion(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop")
        return Action(reply=Reply(self._text), prompt_ids=self._chat.render(view.messages), completion=completion)


def test_rewards_stay_with_their_policy_over_rotated_seats_and_late_replies(tiny_model: Path) -> None:
    """P always loses, Q is in the middle, R always wins, whichever seat they hold and whoever answers first."""
    chat, order = ChatFormat.load(tiny_model), list[str]()
    texts = {"P": "stone house", "Q": "golden moon river brew", "R": "one two three four five six seven"}
    pay = {"P": -1.0, "Q": 0.0, "R": 1.0}
    naps = {"P": (0.03, 0.0, 0.02), "Q": (0.02, 0.03, 0.0), "R": (0.0, 0.02, 0.03)}
    agents = {name: Slow(f"learner:{name}", chat, text, naps[name], order) for name, text in texts.items()}
    spec = llm_arena.make("naming-v0", namers=3, judge="length", topic="coffee shop", illegal="forfeit").spec
    plans = [
        EpisodePlan(
            id=f"e{turn}",
            spec=spec,
            seed=turn,
            agents={f"namer_{(place + turn) % 3}": agents[name] for place, name in enumerate("PQR")},
            group="g",
        )
        for turn in range(6)
    ]
    with Runtime(lockstep=False, max_open_episodes=1) as runtime:
        traces = runtime.run(play_many(plans, runtime))
    seats = ["namer_0", "namer_1", "namer_2"]
    assert [order[at : at + 3] == seats for at in range(0, 18, 3)] != [True] * 6  # replies did come in other orders
    gained = assign(traces, by="seat", estimator="none", baselines=Baselines(), learners=learner_seats)
    for name in "PQR":
        mine = [trace for trace in traces for info in trace.seats.values() if info.policy == f"learner:{name}"]
        held = [seat for trace in traces for seat, info in trace.seats.items() if info.policy == f"learner:{name}"]
        assert len(mine) == 6 and set(held) == set(seats)
        assert [gained.of(trace.id, seat) for trace, seat in zip(traces, held, strict=True)] == [pay[name]] * 6
        sequences = train_sequences(traces, gained, policy=f"learner:{name}")
        said = [*chat.tokenizer.encode(texts[name], add_special_tokens=False), chat.stop_ids[0]]
        assert [one.token_ids[one.trained].tolist() for one in sequences] == [said] * 6
        assert all((one.advantage[one.trained] == pay[name]).all() for one in sequences)


@pytest.mark.parametrize("roster", [{}, {"rich": "learner:a", "poor": "learner:b"}], ids=["one", "two"])
def test_a_roles_baseline_is_its_own(roster: dict[str, str], narrow: Path, tmp_path: Path) -> None:
    """Wages that never change teach nothing: with one baseline for both roles they would, for ever."""
    result = train(settings(narrow, tmp_path, env=Wages.id, roster=roster, illegal=None), script="t", progress=False)
    newest = sorted((tmp_path / "checkpoints").iterdir())[-1]
    state = json.loads((newest / "state.json").read_text())["baselines"]
    mean = {row["role"]: row["mean"] / (1 - 0.95 ** row["votes"]) for row in state}
    assert mean == {"rich": pytest.approx(3.0), "poor": pytest.approx(-1.0)}
    assert result.rows[0]["grad_norm"] > 0  # the first vote meets a baseline of 0
    assert [row["grad_norm"] for row in result.rows[1:]] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_a_policy_may_have_an_engine_of_its_own(narrow: Path, wide: Path, tmp_path: Path) -> None:
    own: Any = {"wide": {"model": str(wide), "engine": {"dtype": "bfloat16"}}}
    result = train(settings(narrow, tmp_path, policies=own), script="t", progress=False)
    for row in result.rows:
        assert row["max_logprob_gap/narrow"] < 1e-4 < row["max_logprob_gap/wide"] < 0.2


@pytest.mark.soak
def test_soak_one_policy_on_vllm_and_one_in_this_process(narrow: Path, tmp_path: Path) -> None:
    base = random_model(
        tmp_path / "base", words=KUHN, hidden_size=64, heads=2, initializer_range=0.12, tie_word_embeddings=True
    )
    engine = EngineSettings(kind="vllm", args='{"max_model_len": 512}')
    own: Any = {"wide": {"model": str(base), "lora_rank": 4, "publish": "adapter", "engine": engine}}
    config = settings(narrow, tmp_path / "run", policies=own, alternate_every=1, max_staleness=1)
    result = train(config, script="t", progress=False)
    assert max(row["probe_gap"] for row in result.rows[:-1]) < 1e-4
    assert [row["learns/wide"] for row in result.rows] == [0, 1, 0]
