"""Episodes of undercover-v0, which several test files share."""

from __future__ import annotations

import llm_arena

CLUES = [
    f"It is {word}" for word in ("nice", "odd", "fine", "good", "dear", "neat", "tidy", "grand", "pure", "shy", "calm")
]


def game(seed=0, **kwargs):
    """Returns a reset game about wine and beer."""
    env = llm_arena.make("undercover-v0", **{"pair": ["wine", "beer"]} | kwargs)
    env.reset(seed=seed)
    return env


def give_clues(env, clues=None):
    """Plays the clues of one round; each is new."""
    while env.phase == "clue" and not env.over:
        env.step(f"CLUE: {(clues or CLUES)[len(env.clues)]}")


def vote(env, target, otherwise=None):
    """Plays one vote: all name `target`, which itself names `otherwise` or the first other."""
    for seat in list(env.pending):
        named = target if seat != target else otherwise or next(other for other in env.alive if other != seat)
        env.step(f"VOTE: {named}")
