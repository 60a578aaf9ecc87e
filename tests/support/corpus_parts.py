"""Questions about the invented world, which several test files share."""

from __future__ import annotations

import numpy as np

from llm_arena.problems.research.questions import draw_question


def drawn(hops, split="train", number=400, seed=0):
    rng = np.random.default_rng(seed)
    return [draw_question(rng, hops=hops, split=split) for _ in range(number)]
