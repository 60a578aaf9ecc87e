"""The judges of `naming-v0` that are pure functions, and the contest that they decide.

A judge by a seat is in `verdicts`: its verdicts are actions of the game.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.problems.naming_rubric import rubric

Judge = Callable[[str, Sequence[str]], Sequence[float]]
"""(topic, names) -> one finite number per name, higher is better. Pure."""

SEAT = "seat"
"""The argument `judge` of a contest that seats judge."""


def token_count(name: str) -> int:
    """Returns how many words and punctuation marks `name` has; an env knows no tokenizer.

    >>> token_count("The Bean's End!")
    6
    """
    return len(re.findall(r"\w+|[^\w\s]", name))


def length(topic: str, names: Sequence[str]) -> list[float]:
    """The judge `length`: the longer the better, a stand-in from the tutorial that this game comes from."""
    return [float(token_count(name)) for name in names]


def load_judge(name: str) -> Judge:
    """Returns the judge called `name`.

    Raises:
        UsageError: there is no such judge, or its module or function can't be found.
    """
    judges: dict[str, Judge] = {"rubric": rubric, "length": length}
    if name in judges:
        return judges[name]
    module, colon, function = str(name).partition(":")
    if not (colon and module and function):
        close = did_you_mean(str(name), [*judges, SEAT])
        raise UsageError(
            f'judge="{name}"; expected rubric, length, seat or module:function, e.g. my_judges:shortest.{close}'
        )
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise UsageError(f'judge="{name}": module {module} can\'t be imported: {error}') from error
    if not callable(found):
        raise UsageError(f'judge="{name}": {module} has no function {function}')
    judge: Judge = found
    return judge


def hold_contest(
    topic: str, judge: str, normalize: str, names: Sequence[str | None]
) -> tuple[list[float], list[int], list[float]]:
    """Compares every two of `names` (None: unreadable).

    Returns:
        rewards, wins minus losses, and the judge's numbers (-inf: unreadable), in the order of `names`.

    Raises:
        UsageError: the judge raised, or did not return one finite number per name.
    """
    readable = sorted(name for name in names if name is not None)
    judged = load_judge(judge)
    try:
        returned = judged(topic, readable) if readable else []
    except Exception as error:  # a judge is somebody else's code
        raise UsageError(
            f'judge "{judge}" failed: {type(error).__name__}: {error}; it is called with (topic, names) and returns '
            "one finite number for each name"
        ) from error
    numbers = list(returned) if isinstance(returned, Iterable) else [returned]
    fine = [isinstance(number, int | float | np.number) and math.isfinite(number) for number in numbers]
    if len(numbers) != len(readable) or not all(fine):
        given = f"{numbers!r:.200} for {len(readable)} names"
        raise UsageError(f'judge "{judge}" returned {given}; expected a finite number each')
    # one number per name, so that equal names tie whatever the judge makes of places
    marks = dict(zip(readable, map(float, numbers), strict=True))
    values = [-math.inf if name is None else marks[name] for name in names]
    sums = [sum((mine > other) - (mine < other) for other in values) for mine in values]
    return pay(sums, normalize), sums, values


def pay(sums: Sequence[int], normalize: str) -> list[float]:
    """Returns the rewards for wins minus losses: divided by the opponents, or by all pairs (`matchups`)."""
    count = len(sums)
    divisor = (count - 1 if normalize == "opponents" else count * (count - 1) / 2) or 1
    return [total / divisor for total in sums]
