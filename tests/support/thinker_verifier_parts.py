"""Games of thinker-verifier-v0 about a problem whose answer is 7."""

from __future__ import annotations

import llm_arena


def game(**kwargs):
    """Returns a reset game about a problem whose answer is 7."""
    env = llm_arena.make("thinker-verifier-v0", **{"problem": "What is 3 + 4?", "answer": "7"} | kwargs)
    env.reset(seed=0)
    return env


def played(*replies, **kwargs):
    env = game(**kwargs)
    for reply in replies:
        assert not env.over
        env.step(reply)
    return env


def tag(answer):
    return f"<final_answer>{answer}</final_answer>"
