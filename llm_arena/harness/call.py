"""One call of a harness, and how a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llm_arena.types import Action, Ending, Outcome, Reply, View


@dataclass(kw_only=True, eq=False)
class Call:
    """One call of a run."""

    index: int
    role: str
    seat: str
    view: View
    digest: str
    "Of its messages."
    before: Call | None
    "The call whose conversation it goes on with."
    continued: bool = False
    "Whether a later call goes on in its seat."
    action: Action | None = None
    "What was answered; None while it runs, and for a call that failed or was cancelled."
    reply: Reply = field(default_factory=Reply)
    seconds: float = 0.0
    error: BaseException | None = None
    cancelled: bool = False

    @property
    def answered(self) -> bool:
        """Whether it has a turn."""
        return self.action is not None


@dataclass(frozen=True, kw_only=True)
class End:
    """How a run ended, as a recorder asks it of an env."""

    ending: Ending
    overflow_seat: str | None
    returns: dict[str, float]
    stats: Mapping[str, Mapping[str, int]]
    outcome: Outcome | None = None
