"""Episodes of twenty-questions-v0, which several test files share."""

from __future__ import annotations

import numpy as np

from llm_arena.checks import play_out


def play(env, seed, guesser=None, answerer=None):
    env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    chosen = {"guesser_0": guesser, "answerer_0": answerer}
    play_out(
        env, rng, lambda env, seat: chosen[seat](env.view(seat), rng) if chosen[seat] else env.sample_reply(seat, rng)
    )
    return env
