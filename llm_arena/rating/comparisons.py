"""From match rows to pairwise comparisons as arrays: what a rating is fitted to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llm_arena.errors import UsageError
from llm_arena.rating.rows import MatchRow

WIN, DRAW, LOSS = 0, 1, 2
"""Outcomes as the first entrant of a pair sees them."""


@dataclass(frozen=True)
class Comparisons:
    """P comparisons of two entrants each, in no order that matters."""

    entrants: tuple[str, ...]
    """Sorted, so that neither the order of rows nor who is named first plays a part. All others are indices here."""
    first: NDArray[np.intp]
    """[P], below `second`."""
    second: NDArray[np.intp]
    """[P]"""
    seats: tuple[str, ...]
    """Sorted names of the seats that they sat on."""
    first_seat: NDArray[np.intp]
    """[P]: the seat of `first`, an index into `seats`; `second_seat` likewise."""
    second_seat: NDArray[np.intp]
    """[P]"""
    outcome: NDArray[np.intp]
    """[P], `WIN`, `DRAW` or `LOSS` of `first`."""
    weight: NDArray[np.float64]
    """[P]: 1 in a game of two; see `comparisons`."""
    block: NDArray[np.intp]
    """[P], 0 to `blocks` - 1: the block of matches that it comes from."""
    blocks: int


def comparisons(rows: Iterable[MatchRow], entrants: Sequence[str] = ()) -> Comparisons:
    """Returns every pair of ranked seats of every match that is not void.

    A match of k ranked seats gives k(k-1)/2 pairs of weight 2/k each: k-1 in all, the number of choices in a ranking of
    k (Plackett-Luce), so that one match doesn't pass for many; for two seats that is one pair of weight 1. At equal
    strengths these pairs hold less information than the ranking, never more. Equal ranks are a draw, counted once. Two
    seats of one entrant are not compared.

    Args:
        rows: matches of one pool.
        entrants: who is listed besides those who played.

    Raises:
        UsageError: the rows are of several pools.
    """
    first: list[str] = []
    second: list[str] = []
    first_seat: list[str] = []
    second_seat: list[str] = []
    outcome: list[int] = []
    weight: list[float] = []
    block: list[str] = []
    names, pools = set(entrants), set()
    for row in rows:
        pools.add(row.pool)
        names.update(seat.entrant for seat in row.seats.values())
        if row.status == "void":
            continue
        ranked = [(name, seat.entrant, seat.rank) for name, seat in row.seats.items() if seat.rank is not None]
        for i, (here, one, own) in enumerate(ranked):
            for there, other, their in ranked[i + 1 :]:
                if one != other:
                    first.append(one)
                    second.append(other)
                    first_seat.append(here)
                    second_seat.append(there)
                    outcome.append(WIN if own < their else DRAW if own == their else LOSS)
                    weight.append(2 / len(ranked))
                    block.append(row.block or row.id)
    if len(pools) > 1:
        raise UsageError(f"matches of several pools were given ({', '.join(sorted(pools))}); rate each pool by itself")
    order, seats = tuple(sorted(names)), tuple(sorted({*first_seat, *second_seat}))
    index = {name: number for number, name in enumerate(order)}
    places = {name: number for number, name in enumerate(seats)}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(block))}
    left = np.fromiter((index[name] for name in first), np.intp, len(first))
    right = np.fromiter((index[name] for name in second), np.intp, len(second))
    left_seat = np.fromiter((places[name] for name in first_seat), np.intp, len(first))
    right_seat = np.fromiter((places[name] for name in second_seat), np.intp, len(second))
    seen = np.array(outcome, np.intp)
    swapped = left > right
    return Comparisons(
        entrants=order,
        first=np.where(swapped, right, left),
        second=np.where(swapped, left, right),
        seats=seats,
        first_seat=np.where(swapped, right_seat, left_seat),
        second_seat=np.where(swapped, left_seat, right_seat),
        outcome=np.where(swapped, LOSS - seen, seen),
        weight=np.array(weight, np.float64),
        block=np.fromiter((numbers[name] for name in block), np.intp, len(block)),
        blocks=len(numbers),
    )


__all__ = ["DRAW", "LOSS", "WIN", "Comparisons", "comparisons"]
