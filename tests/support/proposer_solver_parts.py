"""Games of proposer-solver-v0, begun or played through."""

from __future__ import annotations

import llm_arena

GAME = "proposer-solver-v0"


def game(seed=0, **kwargs):
    env = llm_arena.make(GAME, **kwargs)
    env.reset(seed=seed)
    return env


def played(problem, *answers, **kwargs):
    """Returns a one-round game in which the solvers gave `answers`."""
    env = game(solvers=len(answers), **kwargs)
    env.step(problem)
    for answer in answers:
        env.step(answer if isinstance(answer, str) else f"ANSWER: {answer}")
    return env
