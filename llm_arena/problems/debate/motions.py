"""Motions for `debate-v0`, each with three talking points for either side.

They stand in `motions.txt`: 64 to learn from, 36 to be judged on. Written by hand for this library; both sides
of each motion can be argued. Three lines a motion: the motion, the points for it, the points against it, divided by
`|`. How points are found in statements is told in `points`.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

import msgspec


class Motion(msgspec.Struct, frozen=True):
    """A motion and what speaks for it and against it."""

    text: str
    split: str
    points: dict[str, tuple[str, ...]]
    "By side, `pro` and `con`: three sentences without full stop."


@cache
def motions() -> dict[str, Motion]:
    """Returns all motions by their text."""
    text = resources.files("llm_arena.problems.debate").joinpath("motions.txt").read_text(encoding="utf-8")
    found: dict[str, Motion] = {}
    for part in text.split("[")[1:]:
        split, _, body = part.partition("]\n")
        lines = body.splitlines()
        for title, *sides in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
            pro, con = (tuple(side[2:].split(" | ")) for side in sides)
            found[title] = Motion(title, split, {"pro": pro, "con": con})
    return found


@cache
def texts(split: str) -> tuple[str, ...]:
    """Returns the motions of `train` or `heldout`, in the order of the file."""
    return tuple(text for text, motion in motions().items() if motion.split == split)


__all__ = ["Motion", "motions", "texts"]
