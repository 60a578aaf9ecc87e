"""The cells of a cross-play: what came of one entrant meeting another, from the rows of their matches."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from llm_arena.rating import MatchRow, SeatRow
from llm_arena.rating.intervals import Mean, Share, clustered_mean, clustered_share

Side = Literal["row", "column"]
_SIGN_TEST = 6
"""So many starts that all differ by the same amount are no luck: 2 * 0.5^6 < 0.05."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One match as a cell sees it; a match may be in two cells, seen from either side."""

    row: str
    column: str
    start: int
    match: str
    seats: tuple[str, ...]
    "Of the row's entrant."
    others: tuple[str, ...]
    "Of the column's entrant."


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one row entrant meeting one column entrant.

    Means and the win rate are over the starts whose matches are all finished, none void.
    """

    row: str
    column: str
    episodes: int = 0
    "Not void."
    void: int = 0
    "Voided by a fault of the infrastructure, and not played again yet."
    row_forfeits: int = 0
    "Matches that a bad reply of the row's entrant ended; they count in the means, as the game pays them."
    column_forfeits: int = 0
    row_return: Mean | None = None
    "Mean return of a seat of the row's entrant."
    column_return: Mean | None = None
    row_score: Mean | None = None
    "The game's own points, where it has some."
    column_score: Mean | None = None
    win_rate: Share | None = None
    """Share of the pairs of a row's and a column's seat that the row's won, draws half. None where nobody is ranked,
    and where an entrant meets itself in a game of one role."""
    judged_pairs: int = 0
    "Pairs that judges judged in both orders, where the game counts them."
    judged_alike: int = 0
    "Of these, how many they judged alike."


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """By how much one entrant earns more than another in the same role, with the same partners on the same starts."""

    side: Side
    first: str
    second: str
    against: str | None
    "The partner; None: the mean over all partners."
    mean: float
    half_width: float | None
    "Half of the 95 % interval of the paired difference; None where all starts differ by the same."
    starts: int

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out 0; where there is none, whether a sign test does."""
        if self.half_width is None:
            return self.mean != 0 and self.starts >= _SIGN_TEST
        return abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Seen:
    """The results of one match from a cell's side."""

    start: int
    row_return: float
    column_return: float
    row_score: float | None
    column_score: float | None
    won: float | None


def cell_of(
    row: str, column: str, there: Sequence[tuple[Place, MatchRow]], seen: Sequence[Seen], *, itself: bool
) -> Cell:
    """Returns a cell.

    Args:
        row: the row's entrant.
        column: the column's.
        there: its places with their matches, void ones included.
        seen: what `look` says of those that count.
        itself: whether an entrant meets itself on seats that the row holds in turn.
    """
    matches = {match.id: match for _, match in there}
    alive = [match for match in matches.values() if match.status != "void"]
    forfeits = [
        {match.id for place, match in there if any(match.seats[seat].forfeited for seat in getattr(place, side))}
        for side in ("seats", "others")
    ]
    return Cell(
        row=row,
        column=column,
        episodes=len(alive),
        void=len(matches) - len(alive),
        row_forfeits=len(forfeits[0]),
        column_forfeits=len(forfeits[1]),
        row_return=clustered_mean(_grouped((one.start, one.row_return) for one in seen)),
        column_return=clustered_mean(_grouped((one.start, one.column_return) for one in seen)),
        row_score=clustered_mean(_grouped((one.start, one.row_score) for one in seen)),
        column_score=clustered_mean(_grouped((one.start, one.column_score) for one in seen)),
        win_rate=None if itself else clustered_share(_grouped((one.start, one.won) for one in seen)),
        judged_pairs=sum(match.judging.get("pairs", 0) for match in alive),
        judged_alike=sum(match.judging.get("consistent", 0) for match in alive),
    )


def look(place: Place, match: MatchRow) -> Seen:
    """Returns the results of a match that is not void from a cell's side."""
    own, others = ([match.seats[seat] for seat in seats] for seats in (place.seats, place.others))
    return Seen(
        start=place.start,
        row_return=_mean([seat.reward or 0.0 for seat in own]),
        column_return=_mean([seat.reward or 0.0 for seat in others]),
        row_score=_score(own),
        column_score=_score(others),
        won=won(own, others),
    )


def won(own: Iterable[SeatRow], others: Sequence[SeatRow]) -> float | None:
    """Returns the share of pairs of seats in which the first is better, draws half; None where none is ranked."""
    results = [
        1.0 if mine.rank < other.rank else 0.5 if mine.rank == other.rank else 0.0
        for mine in own
        for other in others
        if mine.rank is not None and other.rank is not None
    ]
    return _mean(results) if results else None


def _score(seats: Sequence[SeatRow]) -> float | None:
    known = [seat.score for seat in seats if seat.score is not None]
    return _mean(known) if known else None


def _grouped(values: Iterable[tuple[int, float | None]]) -> dict[int, list[float]]:
    groups: dict[int, list[float]] = {}
    for start, value in values:
        if value is not None:
            groups.setdefault(start, []).append(value)
    return groups


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


__all__ = ["Cell", "Difference", "Place", "Seen", "Side", "cell_of", "look", "won"]
