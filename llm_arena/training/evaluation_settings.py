"""Settings of the evaluations of a run; see `evaluation`."""

from __future__ import annotations

from dataclasses import dataclass

from llm_arena.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """When the trained policy meets the model that it began as, and how often."""

    every: int = 0
    """Every so many steps, and after the last one. 0: never."""
    matches: int = 64
    """Matches of an evaluation, rounded up to whole starts with all seats swapped."""

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            UsageError: one is out of its range.
        """
        for name, least in (("every", 0), ("matches", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(f"evaluation.{name} must be a whole number of at least {least}, got {value!r}")


__all__ = ["EvaluationSettings"]
