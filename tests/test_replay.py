from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import llm_arena
from llm_arena.errors import TraceError
from llm_arena.recorder import replay, verify
from llm_arena.types import Action, Cause, Ending, EnvSpec, Failure, Outcome, Reply, Trace

PROGRAMS = Path(__file__).parent / "programs"
GAMES = ["kuhn-poker-v0", "tic-tac-toe-v0", "naming-v0"]


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """A game of tic-tac-toe of at least seven turns."""
    return next(t for t in (llm_arena.play("tic-tac-toe-v0", seed=s) for s in range(50)) if len(t.turns) >= 7)


@pytest.fixture
def trace(recorded) -> Trace:
    return copy.deepcopy(recorded)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("rule", ["forfeit", "random_legal", "penalty"])
def test_every_game_replays_whatever_the_rule_for_bad_replies(game, rule):
    class Clumsy:
        name, policy = "clumsy", None

        async def act(self, view, past):
            good = view.sample_reply(np.random.default_rng(view.seed))
            return Action(reply=Reply("" if view.seed % 3 == 0 else good))

    env = llm_arena.make(game, retries=1, illegal=rule)
    causes = set()
    for seed in range(6):
        trace = llm_arena.play(env, Clumsy(), seed=seed)
        causes |= {turn.cause for turn in trace.turns}
        again = msgspec.json.decode(msgspec.json.encode(trace), type=Trace)
        verify(again)
        env_after = replay(again)
        assert (env_after.outcome, env_after.returns) == (trace.outcome, trace.returns)
        assert env_after.agents == []
    assert causes == {Cause.LEGAL, Cause.EMPTY}


def test_replay_gives_an_env_that_can_be_looked_at(trace):
    env = replay(trace)
    assert env.over and env.episode_seed == trace.seed
    assert [m["content"] for m in env.observe("player_0")["messages"]][-1]


def test_a_void_trace_replays_up_to_where_it_was(trace):
    cut = msgspec.structs.replace(
        trace,
        turns=trace.turns[:3],
        returns={},
        outcome=None,
        env_stats={},
        ending=Ending.VOID,
        failure=Failure(boundary="agent", kind="ValueError", message="boom"),
    )
    env = replay(cut)
    assert not env.over and env.turns == 3
    verify(cut)


def cut_before(trace, index):
    return msgspec.structs.replace(trace, turns=trace.turns[:index], ending=Ending.VOID)


@pytest.mark.parametrize("index", [0, 2, 4])
def test_an_altered_action_is_caught_at_its_turn(trace, index):
    seat = trace.turns[index].seat
    legal = replay(cut_before(trace, index)).legal_actions(seat)
    trace.turns[index].text = next(action for action in legal if action != trace.turns[index].text)
    with pytest.raises(TraceError, match=rf"turn {index} \({seat}\): action: recorded"):
        verify(trace)


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("rewards", {"player_0": 9.0}, "rewards"),
        ("cause", Cause.ILLEGAL, "cause"),
        ("action", "x", "action"),
        ("attempt", 1, "attempt"),
        ("view_epoch", 1, "times its view was replaced"),
        ("messages", [{"role": "user", "content": "other"}], "what it saw"),
    ],
)
def test_an_altered_turn_is_named(trace, field, value, what):
    setattr(trace.turns[3], field, value)
    with pytest.raises(TraceError, match=rf"turn 3 \(player_\d\): {what}: recorded"):
        verify(trace)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"outcome": Outcome(draw=True, reason="board full")}, "the outcome"),
        ({"returns": {"player_0": 5.0, "player_1": -5.0}}, "the returns"),
        ({"ending": Ending.TRUNCATED}, "the ending"),
        ({"env_stats": {}}, "the env's counts"),
        ({"seats": {}}, "its seats"),
    ],
)
def test_an_altered_end_is_caught(trace, change, what):
    with pytest.raises(TraceError, match=what):
        verify(msgspec.structs.replace(trace, **change))


def test_an_altered_seed_is_caught_at_the_first_turn_that_shows_it():
    trace = llm_arena.play("kuhn-poker-v0", seed=1)
    caught = 0
    for seed in range(2, 12):
        altered = msgspec.structs.replace(trace, seed=seed)
        try:
            verify(altered)
        except TraceError as error:
            caught += "what it saw" in str(error) and "turn" in str(error)
    assert caught >= 7  # of the six deals one in six is the same


def test_an_altered_spec_is_caught(trace):
    unknown = msgspec.structs.replace(trace, spec=EnvSpec(id="tic-tac-toe-v7"))
    with pytest.raises(TraceError, match="its env can't be made again"):
        replay(unknown)
    short = msgspec.structs.replace(trace, spec=EnvSpec(id=trace.spec.id, kwargs={**trace.spec.kwargs, "max_turns": 4}))
    with pytest.raises(TraceError, match=r"turn 4 \(player_0\): who acts"):
        verify(short)
    other = msgspec.structs.replace(trace, spec=EnvSpec(id="kuhn-poker-v0"))
    with pytest.raises(TraceError, match="turn 0"):
        verify(other)


def test_turns_that_were_dropped_doubled_or_swapped_are_caught(trace):
    turns = trace.turns
    with pytest.raises(TraceError, match="but the game goes on"):
        replay(msgspec.structs.replace(trace, turns=turns[:-1]))
    with pytest.raises(TraceError, match="who acts"):
        replay(msgspec.structs.replace(trace, turns=[*turns, turns[-1]]))
    with pytest.raises(TraceError, match=r"turn 2 \(player_0\): who acts"):
        replay(msgspec.structs.replace(trace, turns=[turns[0], turns[2], *turns[3:]]))


def test_traces_are_equal_in_processes_with_different_hash_seeds(tmp_path):
    def run(hash_seed, *arguments):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, PROGRAMS / "play_again.py", *arguments], env=environment, capture_output=True, check=True
        ).stdout

    first = run("1")
    assert first == run("4242")
    (tmp_path / "t.jsonl").write_bytes(first)
    assert len(list(llm_arena.read_traces(tmp_path / "t.jsonl"))) == 9
    run("7", tmp_path / "t.jsonl")
