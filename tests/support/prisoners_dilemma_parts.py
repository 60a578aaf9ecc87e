"""Games of prisoners-dilemma-v0, begun or played by two strategies."""

from __future__ import annotations

import numpy as np

import llm_arena

NAMES = [
    "always-cooperate",
    "always-defect",
    "tit-for-tat",
    "generous-tit-for-tat",
    "grim-trigger",
    "win-stay-lose-shift",
]
C, D = "cooperate", "defect"


def reset(seed=0, **arguments):
    env = llm_arena.make("prisoners-dilemma-v0", **arguments)
    env.reset(seed=seed)
    return env


def meet(first, second, seed=0, **arguments):
    """Plays two strategies, or lists of choices, against each other; returns the env."""
    env, rng = reset(seed, **arguments), np.random.default_rng(seed)
    players = dict(zip(env.possible_agents, (first, second), strict=True))
    while not env.over:
        seat = env.agent_selection
        player = players[seat]
        if isinstance(player, str):
            env.step(env.baselines[player](env.view(seat), rng))
        else:
            env.step(player[len(env.history)])
    return env
