"""Checks of a game's arguments: each raises a `UsageError` of one line that says what was given and expected."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from llm_arena.errors import UsageError


def whole(env_id: str, name: str, given: Any, low: int, high: int) -> None:
    """Refuses what is no whole number from `low` to `high`."""
    if not isinstance(given, int) or isinstance(given, bool) or not low <= given <= high:
        _refuse(env_id, name, given, f"a whole number from {low} to {high}")


def number(env_id: str, name: str, given: Any, low: float, high: float) -> None:
    """Refuses what is no number from `low` to `high`; NaN is none."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not low <= given <= high:
        _refuse(env_id, name, given, f"a number from {low} to {high}")


def one_of(env_id: str, name: str, given: Any, allowed: Collection[str]) -> None:
    """Refuses what is none of the words in `allowed`."""
    if not isinstance(given, str) or given not in allowed:
        _refuse(env_id, name, given, f"one of {', '.join(allowed)}")


def flag(env_id: str, name: str, given: Any) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(given, bool):
        _refuse(env_id, name, given, "true or false")


def _refuse(env_id: str, name: str, given: Any, expected: str) -> None:
    raise UsageError(f"{env_id}: {name}={given!r:.100}; expected {expected}")
