"""The judges of `naming-v0` that are pure functions.

A judge by a seat is in `verdicts`: its verdicts are actions of the game.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from llm_arena.problems.naming.rubric import rubric

Judge = Callable[[str, Sequence[str]], Sequence[float]]
"""(topic, names) -> one finite number per name, higher is better. Pure."""


def token_count(name: str) -> int:
    """Returns how many words and punctuation marks `name` has; an env knows no tokenizer.

    >>> token_count("The Bean's End!")
    6
    """
    return len(re.findall(r"\w+|[^\w\s]", name))


def length(topic: str, names: Sequence[str]) -> list[float]:
    """The judge `length`: the longer the better, a stand-in from the tutorial that this game comes from."""
    return [float(token_count(name)) for name in names]


JUDGES: dict[str, Judge] = {"rubric": rubric, "length": length}
"""The judges that have a name of their own."""

__all__ = ["JUDGES", "Judge", "length", "token_count"]
