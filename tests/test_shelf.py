"""What holds for every game of the shelf: odd replies, leaks, grammars, scripted players, and who can finish it."""

import importlib
import os
import re
import time

import numpy as np
import pytest

import llm_arena
from fuzz_parts import play_oddly
from llm_arena.errors import EnvContractError
from llm_arena.leaks import secrets_are_kept
from llm_arena.registry import env_class
from llm_arena.types import Cause

SHELF = [env_id for env_id in llm_arena.registry if "/" not in env_id]
HIDING = [env_id for env_id in SHELF if env_class(env_id).hidden]
ODD_REPLIES = 200
SOAK_REPLIES = 10_000


def odd_settings(number):
    """Illegal-reply rules and retries that take turns."""
    return [{}, {"retries": 1}, {"illegal": "random_legal"}, {"illegal": "penalty", "retries": 2}][number % 4]


@pytest.mark.parametrize("env_id", SHELF)
def test_odd_replies_never_raise(env_id):
    for number in range(4):
        play_oddly(llm_arena.make(env_id, **odd_settings(number)), number, ODD_REPLIES // 4)


@pytest.mark.soak
@pytest.mark.parametrize("env_id", SHELF)
def test_ten_thousand_odd_replies_never_raise(env_id, soak):
    for number in range(len(soak.runs), soak.count):
        began = time.perf_counter()
        env = llm_arena.make(env_id, **odd_settings(number))
        episodes = play_oddly(env, soak.seed + 1000 + number, SOAK_REPLIES // soak.count)
        soak.add({"replies": SOAK_REPLIES // soak.count, "episodes": episodes}, time.perf_counter() - began)


def leaky(env_id, how):
    """Returns a subclass of a game that shows every seat what is hidden."""
    game = env_class(env_id)

    def secrets(env):
        return repr([getattr(env, name) for name in game.hidden])

    class LeakyView(game):
        def begin(self, rng):
            first = super().begin(rng)
            for seat in self.possible_agents:
                self._views[seat].append({"role": "user", "content": secrets(self)})
            return first

    class LeakyFacts(game):
        def facts(self, seat):
            return [super().facts(seat), secrets(self)]

    class LeakyGrammar(game):
        def grammar(self, seat):
            return secrets(self)

    class LeakyTools(game):
        def tools(self, seat):
            return [{"name": "peek", "description": secrets(self), "parameters": {"type": "object", "properties": {}}}]

    return {"view": LeakyView, "facts": LeakyFacts, "grammar": LeakyGrammar, "tools": LeakyTools}[how]


@pytest.mark.parametrize("how", ["view", "facts", "grammar", "tools"])
@pytest.mark.parametrize("env_id", HIDING)
def test_a_planted_leak_is_caught_in_every_game_that_hides_something(env_id, how):
    with pytest.raises(EnvContractError, match="learns something"):
        secrets_are_kept(leaky(env_id, how)(), 0)


@pytest.mark.parametrize("env_id", SHELF)
def test_legal_replies_match_the_grammar(env_id):
    rng = np.random.default_rng(0)
    matched = 0
    for seed in range(3):
        env = llm_arena.make(env_id)
        env.reset(seed=seed)
        while not env.over:
            seat = env.agent_selection
            grammar = env.grammar(seat)
            legal = env.legal_actions(seat)
            assert grammar is None or isinstance(grammar, str | dict)
            if isinstance(grammar, str):
                pattern = re.compile(grammar)
                for reply in [*(legal or []), *(env.sample_reply(seat, rng) for _ in range(3))]:
                    assert pattern.fullmatch(reply), f"{seat}: {reply!r} does not match {grammar!r}"
                    matched += 1
            env.step(env.sample_reply(seat, rng))
            while env.agents and env.agent_selection not in env.pending:
                env.step(None)
    assert matched or env_id in WITHOUT_GRAMMAR


WITHOUT_GRAMMAR: set[str] = set()
"""Games whose every reply is free text."""


@pytest.mark.parametrize("env_id", SHELF)
def test_scripted_players_finish_every_game_and_reply_legally(env_id):
    game = env_class(env_id)
    for name in game.baselines:
        env = llm_arena.make(env_id)
        agents = {}
        plays = game.baseline_roles.get(name, list(game.roles))
        for role in env.role_counts:
            agents[role] = f"{env_id}/{name}" if role in plays else "random-legal"
        trace = llm_arena.play(env, agents=agents, seed=1)
        assert trace.ending in ("terminated", "truncated")
        assert {turn.cause for turn in trace.turns} == {Cause.LEGAL}, f"{name} replied illegally"


def typed(reply):
    """A reply as a person types it: line by line, all but the last with a backslash at the end."""
    return "\\\n".join(reply.split("\n")) + "\n"


@pytest.mark.parametrize("env_id", SHELF)
def test_a_person_finishes_every_game(env_id, capsys):
    """Types into one seat what a random legal player said there in the same game, after a typing error."""
    human = importlib.import_module("llm_arena.agents.human")
    for role in llm_arena.make(env_id).role_counts:
        seat = f"{role}_0"
        recorded = llm_arena.play(llm_arena.make(env_id, retries=1), agents="random-legal", seed=5)
        replies = [turn.text for turn in recorded.turns if turn.seat == seat]
        reading, writing = os.pipe()
        try:
            with open(writing, "w", encoding="utf-8") as keyboard:
                keyboard.write("\n" + "".join(map(typed, replies)))
            with open(os.devnull, "w", encoding="utf-8") as screen:
                person = human.Human(source=reading, output=screen)
                agents = {other: "random-legal" for other in recorded.seats} | {seat: person}
                trace = llm_arena.play(llm_arena.make(env_id, retries=1), agents=agents, seed=5)
        finally:
            os.close(reading)
        assert [turn.text for turn in trace.turns] == [turn.text for turn in recorded.turns]
        assert trace.outcome == recorded.outcome and trace.returns == recorded.returns
