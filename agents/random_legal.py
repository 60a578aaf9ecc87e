"""Plays some legal reply, drawn from the call's own seed: `random-legal`. Fits every game."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_arena.errors import UsageError
from llm_arena.types import Action, PastTurn, Reply, View


class RandomLegal:
    """Answers with the game's own `sample_reply`."""

    name = "random-legal"
    policy: str | None = None

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Draws a legal reply from `view.seed`."""
        return Action(reply=Reply(view.sample_reply(np.random.default_rng(view.seed))))


def make(argument: str = "") -> RandomLegal:
    """Makes the agent of `random-legal`.

    Raises:
        UsageError: an argument was given; it takes none.
    """
    if argument:
        raise UsageError(f'the agent "random-legal" takes no argument, but "{argument}" was given')
    return RandomLegal()
