"""Dividing three pools of items between two players: how tasks are drawn, and how good a deal is.

As in Lewis et al., "Deal or No Deal? End-to-End Learning for Negotiation Dialogues", 2017: five to seven items of three
kinds, at least one of each; each player has a whole value for each kind, 0 or more, and all items together are worth 10
to each; every kind is worth something to somebody, and some kind to both.

A deal is told by what the first player keeps, one count per kind; the other gets the rest.

Four of five tasks belong to the split `train`, every fifth, by a hash, to `heldout`. For the hash a task is the same
with the players or the kinds exchanged, so that neither split holds a mirror image of a task of the other.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Sequence

import msgspec
import numpy as np

from llm_arena.problems.splits import Split

KINDS = ("books", "hats", "balls")
TOTAL = 10
"""What all items together are worth to each player, in points."""
LEAST, MOST = 5, 7
"""How many items there are."""

Triple = tuple[int, int, int]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How good a deal is. Values are in points, before any discount; (0, 0) without a deal."""

    values: tuple[int, int]
    efficient: bool
    "Whether no other deal is better for one player and no worse for the other (Pareto)."
    distance: float
    "Euclidean distance from `values` to the nearest efficient deal's values, in points; 0 if efficient."
    nash_deal: Triple
    "What the first player keeps at the Nash bargaining point, see `nash_deal`."
    nash_values: tuple[int, int]
    most: int
    "The greatest sum of both players' values of any deal."


@functools.cache
def all_counts() -> tuple[Triple, ...]:
    """Returns every allowed number of items by kind, in order."""
    triples = itertools.product(range(1, MOST + 1), repeat=3)
    return tuple((a, b, c) for a, b, c in triples if LEAST <= a + b + c <= MOST)


@functools.cache
def value_vectors(counts: Triple) -> tuple[Triple, ...]:
    """Returns every way to value the kinds so that all items are worth `TOTAL`, in order."""
    triples = itertools.product(range(TOTAL + 1), repeat=3)
    return tuple((a, b, c) for a, b, c in triples if worth((a, b, c), counts) == TOTAL)


@functools.cache
def deals(counts: Triple) -> tuple[Triple, ...]:
    """Returns everything that the first player may keep, the most first."""
    books, hats, balls = (range(count, -1, -1) for count in counts)
    return tuple(itertools.product(books, hats, balls))


def worth(values: Sequence[float], kept: Sequence[int]) -> float:
    """Returns what `kept` is worth."""
    return values[0] * kept[0] + values[1] * kept[1] + values[2] * kept[2]


def rest(counts: Triple, kept: Triple) -> Triple:
    """Returns what the other player gets."""
    return counts[0] - kept[0], counts[1] - kept[1], counts[2] - kept[2]


def fit(mine: Triple, theirs: Triple) -> bool:
    """Returns whether each kind is worth something to somebody and some kind to both."""
    return all(a or b for a, b in zip(mine, theirs, strict=True)) and any(
        a and b for a, b in zip(mine, theirs, strict=True)
    )


def draw_counts(rng: np.random.Generator) -> Triple:
    """Draws how many items there are of each kind, evenly."""
    return all_counts()[int(rng.integers(len(all_counts())))]


def split_of(counts: Triple, first: Triple, second: Triple) -> Split:
    """Returns which split a task belongs to.

    >>> split_of((1, 2, 3), (1, 0, 3), (2, 4, 0)) == split_of((3, 2, 1), (0, 4, 2), (3, 0, 1))
    True
    """
    alike = min(sorted(zip(counts, a, b, strict=True)) for a, b in ((first, second), (second, first)))
    digest = hashlib.blake2b(repr(alike).encode(), digest_size=8).digest()
    return "heldout" if int.from_bytes(digest) % 5 == 0 else "train"


def draw_values(counts: Triple, rng: np.random.Generator, split: Split = "train") -> tuple[Triple, Triple]:
    """Draws both players' values, evenly from all pairs of the split that fit."""
    vectors = value_vectors(counts)
    while True:
        mine, theirs = (vectors[int(place)] for place in rng.integers(len(vectors), size=2))
        if fit(mine, theirs) and split_of(counts, mine, theirs) == split:
            return mine, theirs


def points(counts: Triple, kept: Triple, first: Triple, second: Triple) -> tuple[int, int]:
    """Returns what a deal is worth to the first and to the second player."""
    return int(worth(first, kept)), int(worth(second, rest(counts, kept)))


def frontier(counts: Triple, first: Triple, second: Triple) -> set[tuple[int, int]]:
    """Returns the values of all efficient deals."""
    best: set[tuple[int, int]] = set()
    most = -1  # of the second player, among deals that leave the first more
    for a, b in sorted({points(counts, kept, first, second) for kept in deals(counts)}, reverse=True):
        if b > most:
            best.add((a, b))
            most = b
    return best


def nash_deal(counts: Triple, first: Triple, second: Triple) -> Triple:
    """Returns the deal that maximises the product of both values (Nash 1950, with nothing as the disagreement).

    Of equal products the one with the greater sum counts, then the one with the smaller difference, then the one that
    comes first in `deals`, which leaves the first player the most books, then hats, then balls.
    """

    def merit(kept: Triple) -> tuple[int, int, int]:
        a, b = points(counts, kept, first, second)
        return a * b, a + b, -abs(a - b)

    return max(deals(counts), key=merit)


def report(counts: Triple, kept: Triple | None, first: Triple, second: Triple) -> Report:
    """Judges a deal; None: there was none.

    >>> report((1, 2, 3), (1, 0, 3), (1, 0, 3), (2, 4, 0))  # the first kept the book and the balls
    Report(values=(10, 8), efficient=True, distance=0.0, nash_deal=(0, 0, 3), nash_values=(9, 10), most=19)
    """
    got = (0, 0) if kept is None else points(counts, kept, first, second)
    best = frontier(counts, first, second)
    nash = nash_deal(counts, first, second)
    return Report(
        values=got,
        efficient=got in best,
        distance=round(min(math.dist(got, point) for point in best), 6),
        nash_deal=nash,
        nash_values=points(counts, nash, first, second),
        most=max(a + b for a, b in best),
    )


def believed_values(counts: Triple, mine: Triple, kept: Sequence[Triple]) -> tuple[float, float, float]:
    """Returns what a player may believe the other's values to be, on average, after the other's proposals.

    All values that fit the own ones are equally likely at first. A player with values v is taken to propose what it
    keeps with a probability that grows as exp(worth / 2): more likely what is worth more to itself, without going for
    all of it.

    Args:
        counts: items by kind.
        mine: the own values.
        kept: what the other wanted to keep, by proposal.
    """
    vectors = [vector for vector in value_vectors(counts) if fit(mine, vector)]
    logs = np.zeros(len(vectors))
    if kept:
        table = np.array(vectors, dtype=np.float64)
        scale = table @ np.array(deals(counts), dtype=np.float64).T / 2
        normal = np.log(np.exp(scale).sum(axis=1))
        logs = sum((table @ np.array(each, dtype=np.float64) / 2 - normal for each in kept), logs)
    weights = np.exp(logs - logs.max())
    mean = weights @ np.array(vectors, dtype=np.float64) / weights.sum()
    return float(mean[0]), float(mean[1]), float(mean[2])


def concede(counts: Triple, mine: Triple, kept: Sequence[Triple], progress: float) -> Triple:
    """Returns a deal to propose: the believed Nash point at the end, and more than that before.

    It maximises (own value) ** (2 - progress) times the other's believed value.

    Args:
        counts: items by kind.
        mine: the own values.
        kept: what the other wanted to keep, by proposal.
        progress: 0 at the first message, 1 at the last.
    """
    theirs = believed_values(counts, mine, kept)

    def merit(keep: Triple) -> tuple[float, float]:
        own, other = worth(mine, keep), worth(theirs, rest(counts, keep))
        return round(own ** (2 - progress) * other, 9), own

    return max(deals(counts), key=merit)
