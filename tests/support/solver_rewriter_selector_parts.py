"""Games of solver-rewriter-selector-v0 about a problem whose answer is 7, and what their seats are told."""

from __future__ import annotations

import llm_arena

GAME = "solver-rewriter-selector-v0"
A, B = 7, 8
"""The right answer of `game`, and a wrong one."""


def game(**kwargs):
    """Returns a reset game of five about a problem whose answer is 7."""
    env = llm_arena.make(GAME, **{"problem": "What is 3 + 4?", "answer": "7"} | kwargs)
    env.reset(seed=0)
    return env


def tag(answer):
    return f"I get it. <final_answer>{answer}</final_answer>"


def played(solvers, rewriters=(), selection=None, **kwargs):
    """Plays answers by seat (None: an empty reply) as far as they go."""
    env = game(num_parallel=len(solvers), **kwargs)
    for answer in [*solvers, *rewriters]:
        env.step("" if answer is None else tag(answer))
    if selection is not None:
        env.step(selection)
    return env


def last(env, seat):
    """Returns what the game last told a seat."""
    return [message["content"] for message in env.observe(seat)["messages"] if message["role"] == "user"][-1]
