"""Games of adversary-v0 about a problem whose answer is 7, and what its seats say there."""

from __future__ import annotations

import llm_arena

GAME = "adversary-v0"


def game(**kwargs):
    """Returns a reset game about a problem whose answer is 7."""
    env = llm_arena.make(GAME, **{"problem": "What is 3 + 4?", "answer": "7"} | kwargs)
    env.reset(seed=0)
    return env


def tag(answer):
    return f"<final_answer>{answer}</final_answer>"


def played(*replies, **kwargs):
    env = game(**kwargs)
    for reply in replies:
        assert not env.over
        env.step(reply)
    return env


KEEP = "It stands."
ATTACK = "I count again.\nFLAW: it is another number."
PASS = "NO FLAW"
