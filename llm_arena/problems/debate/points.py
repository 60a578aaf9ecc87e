"""The judge `points` of `debate-v0`: who made more of the talking points? Deterministic, pure, no model.

A motion of `motions` has three points for each side. A side makes a point when one sentence of its statements
holds at least half of the point's key words, and at least two: its words of four letters or more that are neither in
the motion nor common, by their first five letters, so that `teachers` counts for `teaching`. A sentence of more than 40
words makes none, nor does one that would make points of both sides: who lists everything argues nothing.

It is a stand-in for tests and first experiments. It knows no other arguments, no truth, no rebuttal and no style; a
model that learns against it learns the table by heart, and a list of key words in short sentences gets full marks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from llm_arena.problems.debate.motions import motions

SIDES = ("pro", "con")

_LONGEST_SENTENCE = 40
_STEM = 5


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON = _words(
    """about after again already also always another anybody because been before being best better both cannot could
    does done down each either enough even ever every everybody from give gives have having here into itself just
    keep keeps less like made make makes many more most much must need needs never nobody none nothing often once
    only other others over people rather same should shouldn some still such take takes than that their them then
    there these they thing things this those through together under until very well were what when where which while
    whom whose will with within without would your"""
)
_SENTENCE = re.compile(r"[.!?;\n]+")
_WORD = re.compile(r"[^\W\d_]{4,}")


def _stems(text: str) -> frozenset[str]:
    return frozenset(word[:_STEM] for word in _WORD.findall(text.lower()) if word not in _COMMON)


@cache
def _keys(motion: str) -> dict[tuple[str, int], frozenset[str]]:
    """Returns the key words of each point, by side and number."""
    known, told = motions().get(motion), _stems(motion)
    found = known.points.items() if known else ()
    return {(side, number): _stems(point) - told for side, points in found for number, point in enumerate(points)}


def points_made(motion: str, side: str, statements: Sequence[str]) -> set[int]:
    """Returns the numbers, from 0, of the talking points of `side` that stand in its statements.

    Args:
        motion: its text; one that is not of `motions` has no points.
        side: `pro` or `con`.
        statements: what the side said.
    """
    made: set[int] = set()
    for sentence in (part for statement in statements for part in _SENTENCE.split(statement)):
        if len(sentence.split()) > _LONGEST_SENTENCE:
            continue
        said = _stems(sentence)
        hits = [at for at, keys in _keys(motion).items() if len(said & keys) >= max(2, len(keys) / 2)]
        if len({other for other, _ in hits}) == 1:
            made |= {number for other, number in hits if other == side}
    return made


def points(motion: str, pro: Sequence[str], con: Sequence[str]) -> tuple[int, int]:
    """The judge: how many points of the table each side made.

    >>> points("Cash should be abolished.", ["Robbers find nothing in tills."], ["I disagree."])
    (1, 0)
    """
    return len(points_made(motion, "pro", pro)), len(points_made(motion, "con", con))


__all__ = ["SIDES", "points", "points_made"]
