"""Judges that are functions: found by name, called, and their numbers checked.

A judge is pure. Only its name is recorded; replaying a trace imports its module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.named import load_function

SEAT = "seat"
"""The argument `judge` of a contest that seats judge."""


def load_judge(name: Any, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Returns the judge called `name`.

    Args:
        name: one of `known`, or `module:function`.
        known: the game's own judges.

    Raises:
        UsageError: there is no such judge, or its module or function can't be found.
    """
    if isinstance(name, str) and name in known:
        return known[name]
    if ":" not in str(name):
        close = did_you_mean(str(name), [*known, SEAT])
        raise UsageError(
            f'judge="{name}"; expected {", ".join(known)}, seat or module:function, e.g. my_judges:shortest.{close}'
        )
    return load_function("judge", name, "my_judges:shortest")


def ask_judge(name: str, judge: Callable[..., Any], arguments: tuple[Any, ...], count: int, called: str) -> list[float]:
    """Returns the numbers that a judge gives.

    Args:
        name: of the judge, for messages.
        judge: the function.
        arguments: what it is called with.
        count: how many finite numbers it owes.
        called: in words, what it is called with and what for, e.g. `(topic, names) -> one number for each name`.

    Raises:
        UsageError: the judge raised, or did not return as many finite numbers.
    """
    try:
        returned = judge(*arguments)
        numbers = list(returned) if isinstance(returned, Iterable) else [returned]
    except Exception as error:  # a judge is somebody else's code
        raise UsageError(
            f'judge "{name}" failed: {type(error).__name__}: {error}; it is called with {called}'
        ) from error
    fine = [isinstance(number, int | float | np.number) and math.isfinite(number) for number in numbers]
    if len(numbers) != count or not all(fine):
        raise UsageError(f'judge "{name}" returned {numbers!r:.200}; expected a finite number each, {count} in all')
    return list(map(float, numbers))


__all__ = ["SEAT", "ask_judge", "load_judge"]
