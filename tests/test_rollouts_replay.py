"""Episodes that an engine broke are played once more: those and no others, into their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from llm_arena.agent import Agent
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.errors import EngineError, TrainingError
from llm_arena.rollout import EpisodePlan
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import train
from llm_arena.training.rollouts import Rollouts
from llm_arena.types import Action, PastTurn, Trace, View
from train_parts import kuhn_model


class Faulty:
    """Plays one episode at random, after it has raised some errors; counts how often it was asked."""

    name = "faulty"
    policy: str | None = None

    def __init__(self, inner: Agent, errors: Sequence[Exception] = ()) -> None:
        self._inner, self._errors = inner, list(errors)
        self.asked = 0

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Raises what is left to raise, else plays."""
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return await self._inner.act(view, past)


def play(errors: dict[int, list[Exception]]) -> tuple[list[Trace], list[int]]:
    """Plays a batch of 6 in which some episodes fail; returns its traces, and how often each was asked for a move."""
    spec = llm_arena.make("kuhn-poker-v0").spec
    with Runtime(max_open_episodes=3) as runtime:
        inner = make_agent("random-legal", runtime=runtime)
        agents = [Faulty(inner, errors.get(place, ())) for place in range(6)]
        plans = [
            EpisodePlan(
                id=f"e{place}", spec=spec, seed=place, agents={"player_0": agent, "player_1": agent}, index=place
            )
            for place, agent in enumerate(agents)
        ]

        async def take(version: int) -> None:
            """There are no weights."""

        rollouts = Rollouts(runtime, TrainConfig(env="kuhn-poker-v0"), take)
        rollouts.start(0, plans)
        return rollouts.result(0).traces, [agent.asked for agent in agents]


def told(trace: Trace) -> tuple[Any, ...]:
    return trace.id, trace.seed, [(turn.seat, turn.text) for turn in trace.turns], trace.returns


def test_only_what_an_engine_broke_is_played_again_and_as_it_would_have_been() -> None:
    whole, asked = play({})
    dead = EngineError("the process has died")
    traces, again = play({1: [dead], 3: [ValueError("a bug")], 4: [dead]})
    assert [trace.void for trace in traces] == [False, False, False, True, False, False]
    assert [told(trace) for trace in traces if not trace.void] == [told(trace) for trace in whole if trace.id != "e3"]
    more = [now - before for now, before in zip(again, asked, strict=True)]
    assert (more[0], more[1], more[2], more[4], more[5]) == (0, 1, 0, 1, 0) and again[3] == 1


def test_it_is_done_once() -> None:
    dead = EngineError("the process has died")
    traces, _ = play({2: [dead, dead]})
    assert [trace.void for trace in traces] == [False, False, True, False, False, False]
    with pytest.raises(TrainingError, match="all 6 episodes of step 0 are void.*the process has died"):
        play({place: [dead, dead] for place in range(6)})


@pytest.mark.usefixtures("one_thread")
def test_a_death_that_spares_some_costs_a_run_no_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = kuhn_model(tmp_path)

    def run(name: str) -> list[Trace]:
        config = TrainConfig(
            env="kuhn-poker-v0",
            model=str(model),
            run_dir=str(tmp_path / name),
            num_steps=2,
            starts_per_step=8,
            max_new_tokens=1,
            illegal="random_legal",
        )
        train(config, script="t", progress=False)
        return list(read_traces(tmp_path / name / "traces.jsonl"))

    whole = run("whole")
    generate, calls = TransformersEngine.generate, Counter[str]()

    async def dies(self: TransformersEngine, prompt_ids: Sequence[int], *arguments: Any) -> Any:
        calls["all"] += 1
        if 10 <= calls["all"] < 14:  # some seats at their second turn
            raise EngineError("the process has died")
        return await generate(self, prompt_ids, *arguments)

    monkeypatch.setattr(TransformersEngine, "generate", dies)
    traces = run("broken")
    assert calls["all"] > 14
    assert [told(trace) for trace in traces] == [told(trace) for trace in whole]
    assert not any(trace.void for trace in traces)
