"""Whole runs of a tiny model: what is learned, from which credit, and what stops a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import llm_arena
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.env import ArenaEnv
from llm_arena.errors import EngineError, TrainingError, UsageError
from llm_arena.lockstep import Lockstep
from llm_arena.models import random_model
from llm_arena.parsing import read_choice
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import BaselineAgent
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.trace_file import read_traces
from llm_arena.training import batch as batches
from llm_arena.training import credit as credits
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, Credit, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.metrics import of_traces
from llm_arena.training.objective import StepSettings
from llm_arena.training.planning import LEARNER, Planner, learner_seats
from llm_arena.training.sources import DealtSource, ListSource
from llm_arena.training.sync import Publisher
from llm_arena.types import Action, Completion, Move, Outcome, PastTurn, Reply, Trace, View


class Bandit(ArenaEnv):
    """A one-step zero-sum game: whoever says `left` gets 1 from whoever does not."""

    id = "test-bandit-v0"
    roles = {"player": 2}
    zero_sum = True
    simultaneous = True

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Asks both at once."""
        self.said: dict[str, str] = {}
        self.tell(self.possible_agents, "left or right?")
        return self.possible_agents

    def legal_actions(self, seat: str) -> list[str]:
        """Both arms, always."""
        return ["left", "right"]

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Pays when both have chosen."""
        self.said[seat] = read_choice(reply, ["left", "right"])
        return self._settle(seat)

    def forfeit(self, seat: str, cause: object) -> Move:
        """Anything unreadable counts as the worse arm."""
        self.said[seat] = "right"
        return self._settle(seat)

    def _settle(self, seat: str) -> Move:
        if len(self.said) < 2:
            return Move(action=self.said[seat])
        worth = {who: float(said == "left") for who, said in self.said.items()}
        gain = worth["player_0"] - worth["player_1"]
        rewards = {"player_0": gain, "player_1": -gain}
        return Move(action=self.said[seat], rewards=rewards, outcome=Outcome(draw=not gain, reason="both chose"))


@pytest.fixture(scope="module", autouse=True)
def bandit() -> None:
    llm_arena.register(Bandit.id, Bandit)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows few words, so that random play is often legal."""
    words = ["left", "right", "or", "?", "check", "bet", "call", "fold", "J", "Q", "K"]
    return random_model(tmp_path_factory.mktemp("small") / "model", words=words, hidden_size=32, layers=1)


def bandit_config(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "env": Bandit.id,
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 25,
        "starts_per_step": 32,
        "max_new_tokens": 1,
        "lr": 1e-2,
        "checkpoint_every": 100,
    }
    return TrainConfig(**settings | changes)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def apart(left: Path, right: Path) -> float:
    one, other = weights(left), weights(right)
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def chance_of_left(folder: Path) -> float:
    chat, learner = ChatFormat.load(folder), Learner.load(folder)
    env = llm_arena.make(Bandit.id)
    env.reset(seed=0)
    prompt = chat.render(env.observe("player_0")["messages"])
    [left] = chat.tokenizer.encode("left", add_special_tokens=False)
    return float(learner.logprobs(prompt, [left], 1.0).exp())


@pytest.mark.parametrize("estimator", ["rae", "loo"])
def test_shared_weights_learn_a_zero_sum_bandit_by_seat(small_model: Path, tmp_path: Path, estimator: Any) -> None:
    result = train(bandit_config(small_model, tmp_path, estimator=estimator, group_size=2), progress=False)
    assert chance_of_left(small_model) < 0.2
    assert chance_of_left(result.final_dir) > 0.8
    assert result.max_logprob_gap < 1e-4
    assert all(row["reward/avg/player"] == pytest.approx(0) for row in result.rows)
    assert {trace.ending for trace in read_traces(tmp_path / "traces.jsonl")} == {"terminated"}


def test_summed_trace_reward_of_a_zero_sum_game_is_no_signal(small_model: Path, tmp_path: Path) -> None:
    config = bandit_config(small_model, tmp_path / "forced", num_steps=3, credit="trace", force_trace_credit=True)
    result = train(config, progress=False)
    assert [row["grad_norm"] for row in result.rows] == [0.0, 0.0, 0.0]
    assert apart(result.final_dir, small_model) == 0.0
    refused = dataclasses.replace(config, force_trace_credit=False, run_dir=str(tmp_path / "refused"))
    with pytest.raises(UsageError, match="credit by seat"):
        train(refused, progress=False)


@pytest.mark.parametrize("name", ["tiny_model", "smollm2"])
def test_engine_and_learner_agree_before_the_first_update(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whole episodes of naming: what the engine recorded, against the learner's prefix trees and its plain forward."""
    base: Path = request.getfixturevalue(name)
    engine = TransformersEngine(lockstep=Lockstep())
    learner, chat = Learner.load(base), ChatFormat.load(base)
    config = TrainConfig(env_args='{"namers": 3}', starts_per_step=2, max_new_tokens=12)
    with Runtime(engine=engine) as runtime:
        publisher = Publisher(learner, engine, runtime, policy=LEARNER, folder=tmp_path)
        publisher.publish(0)
        runtime.serve(LEARNER, ServedPolicy(engine, LEARNER, chat, 512))
        planner = Planner(config, None, DealtSource(per_batch=2), runtime)
        traces = runtime.run(play_many(planner.plans(0), runtime))
        turn = traces[0].full_ids(0)
        probed = publisher.probe([turn[0]], temperature=0.7, seed=1)
    gained = assign(traces, by="seat", estimator="none", baselines=Baselines(), learners=learner_seats)
    batch = batches.build(train_sequences(traces, gained, policy=LEARNER))
    sums = learner.accumulate(batch, StepSettings(lr=0.0, divisor=1.0))
    assert batch.trained_tokens > 40
    assert sums["max_gap"] < 1e-4
    assert len(probed) == 8
    assert max(abs(own - other) for own, other in probed) < 1e-4


class Speaker:
    """A policy for tests: says a fixed text in fixed tokens, with made-up logprobs."""

    policy: str | None = LEARNER

    def __init__(self, chat: ChatFormat, text: str) -> None:
        self.name = f"speaker:{text}"
        self._chat = chat
        self._text = text

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Says its text."""
        ids = [*self._chat.tokenizer.encode(self._text, add_special_tokens=False), self._chat.stop_ids[0]]
        completion = Completion(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop")
        return Action(reply=Reply(self._text), prompt_ids=self._chat.render(view.messages), completion=completion)


def test_naming_pays_and_trains_the_same_in_one_episode_or_four(tiny_model: Path) -> None:
    """Four seats of one episode, or four one-seat episodes compared by the group reward."""
    chat = ChatFormat.load(tiny_model)
    names = ["stone house", "golden moon river brew", "golden moon river brew", "one two three four five six seven"]
    speakers = [Speaker(chat, name) for name in names]
    arguments = {"judge": "length", "topic": "coffee shop", "illegal": "forfeit"}
    whole = EpisodePlan(
        id="whole",
        spec=llm_arena.make("naming-v0", namers=4, **arguments).spec,
        seed=1,
        agents={f"namer_{k}": speaker for k, speaker in enumerate(speakers)},
        group="g",
    )
    parts = [
        EpisodePlan(
            id=f"part{k}",
            spec=llm_arena.make("naming-v0", namers=1, **arguments).spec,
            seed=1,
            agents={"namer_0": speaker},
            group="g",
        )
        for k, speaker in enumerate(speakers)
    ]
    with Runtime() as runtime:
        together = runtime.run(play_many([whole], runtime))
        apart = runtime.run(play_many(parts, runtime))
    assert not any(trace.void for trace in together + apart)
    group_reward = type(llm_arena.make("naming-v0")).group_reward

    def credit(traces: list[Trace], by: Any, baselines: Baselines) -> Credit:
        return assign(
            traces, by=by, estimator="rae", baselines=baselines, learners=learner_seats, group_reward=group_reward
        )

    baselines = Baselines(), Baselines()
    for table in baselines:
        table.update("naming-v0", "namer", 0.3)
    by_seat, by_group = credit(together, "seat", baselines[0]), credit(apart, "group", baselines[1])
    assert list(by_seat.rewards.values()) == list(by_group.rewards.values()) == [-1, 0, 0, 1]
    assert list(by_seat.advantages.values()) == list(by_group.advantages.values())
    assert baselines[0].state() == baselines[1].state()

    learner = Learner.load(tiny_model)
    learner.model.double()
    gradients = []
    for traces, gained in ((together, by_seat), (apart, by_group)):
        learner.optimizer.zero_grad()
        batch = batches.build(train_sequences(traces, gained, policy=LEARNER), dtype=torch.float64)
        assert batch.trained_tokens == sum(len(name.split()) + 1 for name in names)
        learner.accumulate(batch, StepSettings(lr=1.0, divisor=4.0))
        gradients.append(torch.cat([p.grad.flatten() for p in learner.parameters.values() if p.grad is not None]))
    assert float(gradients[0].norm()) > 0
    assert float((gradients[0] - gradients[1]).norm() / gradients[0].norm()) < 1e-9


def test_truncated_replies_can_be_left_out(tiny_model: Path) -> None:
    chat = ChatFormat.load(tiny_model)
    plan = EpisodePlan(
        id="x",
        spec=llm_arena.make("naming-v0", namers=2, judge="length").spec,
        seed=1,
        agents={"namer_0": Speaker(chat, "one two three"), "namer_1": Speaker(chat, "one")},
    )
    with Runtime() as runtime:
        [trace] = runtime.run(play_many([plan], runtime))
    trace.turns[1].finish = "length"
    gained = assign([trace], by="seat", estimator="none", baselines=Baselines(), learners=learner_seats)
    kept, ignored = (train_sequences([trace], gained, policy=LEARNER, ignore_truncated=flag) for flag in (False, True))
    assert [int(one.trained.sum()) for one in kept] == [4, 2]
    assert [int(one.trained.sum()) for one in ignored] == [4, 0]
    assert batches.build(ignored).trained_tokens == 4  # so a token mean divides by 4, not 6
    row = of_traces([trace], learner_seats, gained)
    assert (row["reply/tokens/namer"], row["reply/truncated/namer"]) == (3.0, 0.5)  # lengths are reported as they were


def test_group_reward_trains_separate_episodes(tiny_model: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        env="naming-v0",
        env_args=json.dumps({"namers": 1, "judge": "length"}),
        model=str(tiny_model),
        run_dir=str(tmp_path),
        num_steps=2,
        starts_per_step=2,
        group_size=4,
        credit="group",
        estimator="loo",
        max_new_tokens=6,
    )
    result = train(config, source=ListSource(["tea house", "night train"], per_batch=2), progress=False)
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    assert len(traces) == 16
    assert sorted({trace.spec.kwargs["topic"] for trace in traces}) == ["night train", "tea house"]
    assert len({trace.group for trace in traces}) == 4
    assert result.rows[0]["grad_norm"] > 0
    assert "group/win_score" in result.rows[0]


def test_solvers_are_compared_on_their_own_problem(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two problems of one group: one of two solvers is right at the first, nobody at the second."""

    def spied(traces: Sequence[Trace], **given: Any) -> Credit:
        seen.append(assign(traces, **given))
        return seen[-1]

    seen: list[Credit] = []
    monkeypatch.setattr(credits, "assign", spied)
    posed = iter(["PROBLEM: 2 + 3", "PROBLEM: 2 + 4"])
    roster = {
        "proposer": BaselineAgent("poser", lambda view, rng: next(posed)),
        "solver_0": Speaker(ChatFormat.load(tiny_model), "ANSWER: 5"),
        "solver_1": LEARNER,
    }
    config = TrainConfig(
        env="proposer-solver-v0",
        env_args='{"solvers": 2}',
        model=str(tiny_model),
        run_dir=str(tmp_path),
        num_steps=1,
        starts_per_step=1,
        group_size=2,
        estimator="group_mean",
        max_new_tokens=2,
    )
    [row] = train(config, roster=roster, progress=False).rows
    [gained] = seen
    episodes = sorted({trace_id for trace_id, _ in gained.advantages})
    by_problem = [[gained.of(trace_id, f"solver_{k}") for k in range(2)] for trace_id in episodes]
    assert sorted(by_problem, key=str) == [[0.0, 0.0], [0.5, -0.5]]
    assert (row["groups"], row["groups_uninformative"]) == (2, 1)


def test_a_frozen_opponent_is_not_trained_and_seats_rotate(tiny_model: Path, tmp_path: Path) -> None:
    config = TrainConfig(
        env="tic-tac-toe-v0",
        opponent="random-legal",
        model=str(tiny_model),
        run_dir=str(tmp_path),
        num_steps=1,
        starts_per_step=4,
        max_new_tokens=1,
        illegal="random_legal",
    )
    result = train(config, progress=False)
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    assert [learner_seats(trace) for trace in traces] == [["player_0"], ["player_1"]] * 2
    turns = [turn for trace in traces for turn in trace.turns if turn.seat in learner_seats(trace)]
    assert result.rows[0]["trained_tokens"] == len(turns)
    assert all(not turn.completion_ids for trace in traces for turn in trace.turns if turn not in turns)


def test_a_frozen_model_keeps_its_weights(small_model: Path, tmp_path: Path) -> None:
    other = random_model(tmp_path / "other", words=["left", "right", "or", "?"], hidden_size=32, layers=1, seed=5)
    before = weights(other)
    roster = {"player_0": LEARNER, "player_1": f"llm:{other}"}
    result = train(bandit_config(small_model, tmp_path / "run", num_steps=2), roster=roster, progress=False)
    assert apart(result.final_dir, small_model) > 0
    assert all(torch.equal(weights(other)[name], tensor) for name, tensor in before.items())
    state = json.loads((sorted((tmp_path / "run/checkpoints").iterdir())[-1] / "state.json").read_text())
    assert sorted(state["files"]) == ["model.safetensors", "optimizer.safetensors"]
    trained = {turn.seat for trace in read_traces(tmp_path / "run/traces.jsonl") for turn in trace.turns}
    assert trained == {"player_0", "player_1"}
    assert result.rows[0]["trained_tokens"] == 32


def test_a_roster_without_a_learner_is_refused(small_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='to "learner"'):
        train(bandit_config(small_model, tmp_path), roster={"player": "random-legal"}, progress=False)


def test_an_engine_that_serves_other_weights_stops_the_run(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = TransformersEngine._load

    def stale(self: Any, policy: str, directory: Path) -> None:
        if policy not in self._models:  # the first version is served for ever
            load(self, policy, directory)

    monkeypatch.setattr(TransformersEngine, "_load", stale)
    with pytest.raises(TrainingError, match="does not serve the new weights"):
        train(bandit_config(small_model, tmp_path, probe_every=1), progress=False)


def test_a_broken_engine_ends_the_run_with_its_reason(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, policy: str, rows: Any) -> Any:
        if len(rows) > 4:
            raise EngineError("the cable is out")
        return sample(self, policy, rows)

    sample = TransformersEngine._sample
    monkeypatch.setattr(TransformersEngine, "_sample", broken)
    with pytest.raises(TrainingError, match="all 32 episodes of step 0 are void.*the cable is out"):
        train(bandit_config(small_model, tmp_path), progress=False)


def test_a_run_in_which_nothing_is_sampled_is_no_success(small_model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        TrainingError, match=r"no token in step 0, for 32 of 32 .*raise max_context_tokens \(given: 3\)"
    ):
        train(bandit_config(small_model, tmp_path, max_context_tokens=3), progress=False)


def test_a_step_that_fails_leaves_the_baselines_as_they_were(
    small_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Learner, *arguments: Any) -> None:
        if len(seen) == 2:
            raise TrainingError("the gradient is nan")
        return step(self, *arguments)

    seen: list[float] = []
    step: Any = Learner.step
    monkeypatch.setattr(Learner, "step", fail)
    with pytest.raises(TrainingError, match="nan"):
        train(bandit_config(small_model, tmp_path), progress=False, on_step=lambda row, _: seen.append(row["step"]))
    [saved] = (tmp_path / "checkpoints").iterdir()
    state = json.loads((saved / "state.json").read_text())
    assert state["step"] == 2
    assert state["baselines"][0]["votes"] == 2 * 32 * 2
