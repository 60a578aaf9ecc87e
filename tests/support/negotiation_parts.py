"""Negotiations with fixed values, and those that scripted players play."""

from __future__ import annotations

import numpy as np

import llm_arena
from llm_arena.registry import env_class

Negotiation = env_class("negotiation-v0")


class Fixed(Negotiation):
    """One book, two hats, three balls; player_0 values them 1, 0, 3 and player_1 2, 4, 0."""

    def begin(self, rng):
        super().begin(rng)  # for its attributes; the views begin anew below
        for seat in self.possible_agents:
            self._views[seat].clear()
        self.counts = (1, 2, 3)
        self.values = {"player_0": (1, 0, 3), "player_1": (2, 4, 0)}
        for seat in self.possible_agents:
            self.tell(seat, self._rules(seat))
        return "player_0"


def fixed(**arguments):
    env = Fixed(**arguments)
    env.reset(seed=0)
    return env


def play(names, seed, **arguments):
    env, rng = llm_arena.make("negotiation-v0", **arguments), np.random.default_rng([seed, 7])
    env.reset(seed=seed)
    while not env.over:
        seat = env.agent_selection
        name = names[seat]
        env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
    return env
