"""Every game of the shelf is finished by a language model, bad replies and all, and its tokens add up."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.types import Cause, Ending, Trace

SHELF = [env_id for env_id in llm_arena.registry if "/" not in env_id]
LONG_CONTEXT = 32_768
FEWEST_SEATS = {
    "proposer-solver-v0": {"solvers": 2},
    "research-v0": {"searchers": 1},
    "solver-rewriter-selector-v0": {"num_parallel": 2},
    "undercover-v0": {"players": 4},
}
"""For the real model, which takes long."""


@pytest.fixture(scope="module")
def patient_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with room for the longest game."""
    folder = tmp_path_factory.mktemp("patient") / "model"
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": LONG_CONTEXT}))
    return folder


def plan(env_id: str, seed: int, model: Path, runtime: Runtime, cap: int, **arguments: Any) -> EpisodePlan:
    """One episode with the model in every seat."""
    env = llm_arena.make(env_id, **arguments)
    agents = resolve_roster(env, str(model), runtime=runtime, max_new_tokens=cap)
    return EpisodePlan(id=f"{env.spec.to_json()}:{seed}", spec=env.spec, seed=seed, agents=agents)


def assert_whole(trace: Trace, cap: int) -> None:
    """The game came to its own end, replays as recorded, and each sampled token is trained exactly once."""
    assert trace.ending in (Ending.TERMINATED, Ending.TRUNCATED), f"{trace.id}: {trace.failure or trace.ending}"
    assert trace.outcome is not None and trace.returns.keys() == trace.seats.keys()
    assert trace.turns
    llm_arena.verify(trace)
    trained = Counter[int]()
    for sequence in llm_arena.sequences(trace):
        length = len(sequence.token_ids)
        assert len(sequence.mask) == len(sequence.logprobs) == len(sequence.turn_of) == length
        trained.update(at for at, mine in zip(sequence.turn_of, sequence.mask, strict=True) if mine)
        for at in sequence.turns:
            assert trace.turns[at].seat == sequence.seat
            own = [place for place, turn in enumerate(sequence.turn_of) if turn == at]
            assert [sequence.token_ids[place] for place in own] == trace.turns[at].completion_ids
            assert [sequence.logprobs[place] for place in own] == trace.turns[at].logprobs
            assert sequence.token_ids[: own[0]] == trace.full_ids(at)[0]
    for turn in trace.turns:
        assert turn.prompt_ids and 1 <= len(turn.completion_ids) <= cap, f"{trace.id}: turn {turn.index}"
        assert len(turn.logprobs) == len(turn.completion_ids) and max(turn.logprobs) <= 0
        assert trained[turn.index] == len(turn.completion_ids)


def causes(traces: list[Trace]) -> dict[str, int]:
    return dict(Counter(str(turn.cause) for trace in traces for turn in trace.turns))


def test_a_model_that_babbles_finishes_every_game(patient_model: Path) -> None:
    """Under each game's own rule after a second try, and under one that lets games get long."""
    cap = 8
    with Runtime() as runtime:
        plans = [
            plan(env_id, 3, patient_model, runtime, cap, **rule)
            for env_id in SHELF
            for rule in ({"retries": 1}, {"illegal": "random_legal"})
        ]
        traces = runtime.run(play_many(plans, runtime))
    for trace in traces:
        assert_whole(trace, cap)
    assert {trace.spec.id for trace in traces} == set(SHELF)
    assert {Cause.LEGAL, Cause.LENGTH, Cause.UNPARSABLE} <= causes(traces).keys()


@pytest.mark.soak
@pytest.mark.parametrize("illegal", ["random_legal", "forfeit"])
def test_the_real_model_finishes_every_game(illegal: str, smollm2: Path, soak: Any) -> None:
    """Repetitions share the games out, so that each is played at any count, and more than once at a high one."""
    cap = 24
    episodes = max(soak.count, len(SHELF))
    with Runtime() as runtime:
        for number in range(len(soak.runs), soak.count):
            began = time.monotonic()
            plans = []
            for at in range(number, episodes, soak.count):
                env_id = SHELF[at % len(SHELF)]
                arguments = {**FEWEST_SEATS.get(env_id, {}), "illegal": illegal}
                plans.append(plan(env_id, soak.seed + at, smollm2, runtime, cap, **arguments))
            traces = runtime.run(play_many(plans, runtime))
            for trace in traces:
                assert_whole(trace, cap)
            figures = {trace.spec.id: causes([trace]) for trace in traces}
            soak.add(figures, time.monotonic() - began)
