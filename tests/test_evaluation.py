"""The trained policy against the model that it began as: who sits where, and the figures, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

import llm_arena
from llm_arena.engines.base import Sampling
from llm_arena.engines.fake import FakeEngine
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.env import ArenaEnv
from llm_arena.errors import EngineError, UsageError
from llm_arena.rating.counts import wilson
from llm_arena.runtime import Runtime, ServedPolicy, context_tokens
from llm_arena.tokens import ChatFormat
from llm_arena.training.alarms import ringing
from llm_arena.training.config import TrainConfig
from llm_arena.training.evaluation import Evaluation
from llm_arena.training.evaluation_settings import EvaluationSettings
from llm_arena.types import Completion, Move, Outcome, Reply

Say = Callable[[str], str]
"""From the text of the prompt to a reply."""


class Voices(FakeEngine):
    """Each policy answers by a function of its own."""

    def __init__(self, chat: ChatFormat, voices: Mapping[str, Say]) -> None:
        super().__init__(policies=voices)
        self.chat, self.voices = chat, voices

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        self.calls.append((policy, list(prompt_ids), sampling))
        text = self.voices[policy](self.chat.decode(prompt_ids))
        if text == "fail":
            raise EngineError("gone")
        ids = [*self.chat.tokenizer.encode(text, add_special_tokens=False), self.chat.stop_ids[0]]
        return Completion(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop")


@pytest.fixture
def serve(toy_chat: Callable[..., ChatFormat]) -> Callable[..., Any]:
    """Returns an evaluation of policies that say what they are told to, with its engine."""
    runtimes: list[Runtime] = []

    def make(voices: Mapping[str, Say], settings: EvaluationSettings, **config: Any) -> tuple[Evaluation, Voices]:
        chat = toy_chat("newline")
        engine = Voices(chat, voices)
        runtime = Runtime(engine=engine)
        runtimes.append(runtime)
        for name in voices:
            runtime.serve(name, ServedPolicy(engine, name, chat, 100_000))
        return Evaluation(settings, TrainConfig(**config), runtime), engine

    yield make
    for runtime in runtimes:
        runtime.close()


def bold(prompt: str) -> str:
    return "call" if "call or fold" in prompt[-80:] else "bet"


def shy(prompt: str) -> str:
    return "fold" if "call or fold" in prompt[-80:] else "check"


TEN = EvaluationSettings(every=2, matches=10)


def test_when_it_is_due() -> None:
    config = TrainConfig(env="kuhn-poker-v0", num_steps=7)
    with Runtime() as runtime:
        found = Evaluation(EvaluationSettings(every=3), config, runtime)
        assert [step for step in range(8) if found.due(step)] == [3, 6, 7]
        never = Evaluation(EvaluationSettings(), config, runtime)
        assert not any(never.due(step) for step in range(8))
        with pytest.raises(UsageError, match="is for games"):
            Evaluation(EvaluationSettings(every=3), TrainConfig(harness="a:b"), runtime)
        nobody = TrainConfig(env="kuhn-poker-v0", roster={"player": "optimal"})
        with pytest.raises(UsageError, match="nobody in the contest of kuhn-poker-v0 is trained"):
            Evaluation(EvaluationSettings(every=3), nobody, runtime)
    for wrong in ({"every": -1}, {"matches": 0}, {"matches": 1.5}):
        with pytest.raises(UsageError, match="must be a whole number"):
            EvaluationSettings(**wrong)


def test_a_bettor_beats_a_folder_on_both_seats(serve: Callable[..., Any]) -> None:
    """It bets first and is folded to, or is checked to, bets and is folded to: 1 chip in every match."""
    found, engine = serve({"learner": bold, "learner@0": shy}, TEN, env="kuhn-poker-v0")
    row = found.run(2)
    low, high = wilson(10, 10)
    assert row == {
        "eval/matches": 10,
        "eval/void": 0,
        "eval/win_rate": 1.0,
        "eval/win_rate_low": pytest.approx(low),
        "eval/win_rate_high": high,
        "eval/reward": 1.0,
        "eval/reward_initial": -1.0,
        "eval/difference": 2.0,
    }
    before = sorted((call[0], call[1], call[2].seed) for call in engine.calls)
    engine.calls.clear()
    assert found.run(4) == row
    assert sorted((call[0], call[1], call[2].seed) for call in engine.calls) == before  # the same starts and seeds
    other, _ = serve({"learner": shy, "learner@0": bold}, TEN, env="kuhn-poker-v0", opponent="optimal")
    lost = other.run(2)
    assert (lost["eval/win_rate"], lost["eval/win_rate_high"]) == (0.0, pytest.approx(1 - low))
    assert [alarm.name for alarm in ringing([{"step": 2.0, **lost}])] == ["collapse"]


def test_matches_that_are_void_are_counted_and_their_starts_left_out(serve: Callable[..., Any]) -> None:
    voices = {"learner": lambda prompt: "fail" if "card is K" in prompt else bold(prompt), "learner@0": shy}
    found, _ = serve(voices, EvaluationSettings(every=1, matches=40), env="kuhn-poker-v0")
    row = found.run(1)
    # of each start both matches count, or none
    assert 0 < row["eval/void"] <= 40 - row["eval/matches"] and row["eval/matches"] % 2 == 0 < row["eval/matches"]
    assert row["eval/win_rate"] == 1.0
    gone, _ = serve({"learner": lambda prompt: "fail", "learner@0": shy}, TEN, env="kuhn-poker-v0")
    assert gone.run(1) == {"eval/matches": 0, "eval/void": 10}
    assert ringing([{"step": 1.0, **gone.run(1)}]) == []


class Sum(ArenaEnv):
    """A left and a right seat say a number each; both earn the sum, and luck."""

    id = "test-sum-v0"
    roles = {"left": 1, "right": 1}
    cooperative = True

    def begin(self, rng: np.random.Generator) -> str:
        self.luck, self.total = int(rng.integers(10)), 0
        self.tell(self.possible_agents, f"luck {self.luck}")
        return "left_0"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        return "1"

    def resolve(self, seat: str, reply: Reply) -> Move:
        self.total += int(reply)
        if seat == "left_0":
            return Move(next="right_0")
        paid = float(self.total + self.luck)
        return Move(rewards={"left_0": paid, "right_0": paid}, outcome=Outcome(reason="summed"))


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(llm_arena.registry, "entries", dict(llm_arena.registry.entries))  # forgotten after this test
    llm_arena.register(Sum.id, Sum)
    return Sum.id


def luck(prompt: str) -> int:
    return int(prompt.rpartition("luck ")[2][0])


def test_where_all_work_together_each_plays_the_same_starts_alone(serve: Callable[..., Any], team: str) -> None:
    """The trained says 3 at even luck and 1 at odd, the initial always 1: +4 at even starts, 0 at odd ones."""
    voices = {"learner": lambda prompt: str(3 - 2 * (luck(prompt) % 2)), "learner@0": lambda prompt: "1"}
    found, engine = serve(voices, EvaluationSettings(every=1, matches=20), env=team)
    row = found.run(1)
    assert "eval/win_rate" not in row and row["eval/matches"] == 20
    starts = [luck(engine.chat.decode(ids)) for policy, ids, _ in engine.calls if policy == "learner@0"]
    assert len(starts) == 20  # two turns in each of ten matches
    gaps = [4.0 * (1 - number % 2) for number in starts]
    mean, half = np.mean(gaps), special.stdtrit(9, 0.975) * np.std(gaps) / math.sqrt(9)
    assert row["eval/difference"] == pytest.approx(mean)
    assert row["eval/difference"] == pytest.approx(row["eval/reward"] - row["eval/reward_initial"])
    assert row["eval/difference_high"] - row["eval/difference"] == pytest.approx(half)
    engine.calls.clear()
    assert found.run(2) == row
    assert {policy for policy, _, _ in engine.calls} == {"learner"}  # the initial model's matches stay as they were


def test_a_policy_that_holds_one_role_beside_a_frozen_one_meets_its_first_self_apart(
    serve: Callable[..., Any], team: str
) -> None:
    voices = {"learner": lambda prompt: "2", "learner@0": lambda prompt: "5"}
    found, _ = serve(voices, EvaluationSettings(every=1, matches=8), env=team, roster={"right": "random-legal"})
    row = found.run(1)
    assert (row["eval/difference"], row["eval/matches"]) == (-3.0, 8)


def test_of_several_policies_each_role_is_trained_in_turn(serve: Callable[..., Any], monkeypatch: Any) -> None:
    class Rivals(Sum):
        id = "test-rivals-v0"
        cooperative = False

        def resolve(self, seat: str, reply: Reply) -> Move:
            if seat == "left_0":
                self.total = int(reply)
                return Move(next="right_0")
            gap = float(self.total - int(reply))
            ranks = {"left_0": 1 if gap >= 0 else 2, "right_0": 1 if gap <= 0 else 2}
            return Move(rewards={"left_0": gap, "right_0": -gap}, outcome=Outcome(ranks=ranks))

    monkeypatch.setattr(llm_arena.registry, "entries", dict(llm_arena.registry.entries))  # forgotten after this test
    llm_arena.register(Rivals.id, Rivals)
    said = {"learner:a": "3", "learner:b": "1", "learner:a@0": "2", "learner:b@0": "1"}
    voices = {name: (lambda prompt, text=text: text) for name, text in said.items()}
    roster = {"left": "learner:a", "right": "learner:b"}
    found, engine = serve(voices, EvaluationSettings(every=1, matches=5), env=Rivals.id, roster=roster)
    row = found.run(1)
    assert row["eval/matches"] == 6  # rounded up to whole starts
    # trained a against initial b: 3 - 1, won; initial a against trained b: 2 - 1, lost by b
    assert (row["eval/win_rate"], row["eval/reward"], row["eval/reward_initial"]) == (0.5, (2 - 1) / 2, (-2 + 1) / 2)
    assert {policy for policy, _, _ in engine.calls} == set(said)


def test_nobody_judges_its_own_match(serve: Callable[..., Any]) -> None:
    def name_or_verdict(name: str) -> Say:
        return lambda prompt: "VERDICT: 1" if "Which entry" in prompt else name

    found, engine = serve(
        {"learner": name_or_verdict("Golden Brew"), "learner@0": name_or_verdict("Stone River")},
        EvaluationSettings(every=1, matches=4),
        env="naming-v0",
        env_args={"namers": 2, "judge": "seat"},
    )
    row = found.run(1)
    judges = {policy for policy, ids, _ in engine.calls if "Which entry" in engine.chat.decode(ids)}
    assert judges == {"learner@0"}
    assert row["eval/win_rate"] == 0.5  # who always takes the first place decides nothing


def test_a_real_engine_with_equal_weights_tells_no_difference(tiny_model: Path) -> None:
    config = TrainConfig(env="kuhn-poker-v0", model=str(tiny_model), max_new_tokens=2, illegal="random_legal")
    engine = TransformersEngine()
    with Runtime(engine=engine) as runtime:
        chat = ChatFormat.load(tiny_model)
        for name in ("learner", "learner@0"):
            runtime.run(engine.publish(name, tiny_model, 0))
            runtime.serve(name, ServedPolicy(engine, name, chat, context_tokens(tiny_model, engine)))
        found = Evaluation(EvaluationSettings(every=1, matches=40), config, runtime)
        row = found.run(1)
        assert row["eval/matches"] == 40 and row["eval/win_rate_low"] < 0.5 < row["eval/win_rate_high"]
        assert abs(row["eval/difference"]) < 0.5
        assert found.run(2) == row
