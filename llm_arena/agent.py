"""The acting side: what an agent is. Kinds of agents are files of the `agents/` shelf.

An agent keeps no state: all it needs is in the `View` and in the seat's earlier turns, so that one object may
serve many episodes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from llm_arena.types import Action, PastTurn, View


@runtime_checkable
class Agent(Protocol):
    """The object that acts in a seat."""

    name: str
    """The agent string that makes an equal agent again, e.g. `random-legal`."""

    policy: str | None
    """Id of the policy that the agent samples from; None for scripted agents and people."""

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Returns the seat's reply to `view`.

        Args:
            view: what the seat may know now.
            past: the seat's earlier turns in this episode, oldest first.

        Raises:
            ContextOverflow: the conversation no longer fits; the episode ends as truncated.
        """
        ...
