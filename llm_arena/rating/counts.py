"""Wins, draws and losses of an entrant, its win rate and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from statistics import NormalDist

import msgspec

from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.rating.rows import MatchRow, SeatRow

_COUNTS = ("wins", "draws", "losses", "forfeits", "truncated", "void")
"""What a record counts."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """How one entrant did. In a game of two seats a result is a match; with more, every pair of seats is one."""

    entrant: str
    opponent: str | None = None
    "None: against all others."
    wins: int = 0
    draws: int = 0
    losses: int = 0
    forfeits: int = 0
    "How many of the losses came from breaking the rules."
    truncated: int = 0
    "How many of the results are from matches that were cut off."
    void: int = 0
    "Pairs of seats in matches that a fault of the infrastructure voided; in none of the counts above."

    @property
    def n(self) -> int:
        """Number of results."""
        return self.wins + self.draws + self.losses

    @property
    def rate(self) -> float:
        """(wins + draws/2) / n; NaN without a result."""
        return (self.wins + self.draws / 2) / self.n if self.n else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Returns the Wilson interval of `rate`; (0, 1) without a result.

        A draw counts as half a win, which makes the interval a little too wide. Results are taken as independent:
        where they hang together more than that (one seed used many times), it is too narrow.
        """
        return wilson(self.wins + self.draws / 2, self.n, confidence)


def wilson(successes: float, n: float, confidence: float = 0.95) -> tuple[float, float]:
    """Returns Wilson's score interval (low, high) for a share of `successes` in `n` trials.

    With p = successes/n and z the normal quantile, the bounds are
    (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n). Source: E. B. Wilson, JASA 22 (1927), 209-212.

    Args:
        successes: how many; a draw may count as half.
        n: of how many. Results that hang together may count as fewer than there are.
        confidence: of the interval.

    Raises:
        UsageError: `successes` isn't in [0, n], or `confidence` isn't between 0 and 1.
    """
    if not 0 <= successes <= n:
        raise UsageError(f"wilson got {successes} successes in {n} trials; expected 0 <= successes <= n")
    if not 0 < confidence < 1:
        raise UsageError(f"a confidence of {confidence} was given; expected a number between 0 and 1, e.g. 0.95")
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share, scale = successes / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    # At 0 and n successes the bound is exactly 0 or 1; rounding must not move it.
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def win_rate(rows: Iterable[MatchRow], entrant: str, opponent: str | None = None) -> Record:
    """Counts the results of `entrant`, against `opponent` or against all others.

    Two seats of one entrant are not compared with each other, and neither are seats that the game did not rank.

    Raises:
        UnknownName: no row has such an entrant.
    """
    rows = list(rows)
    known = {seat.entrant for row in rows for seat in row.seats.values()}
    for name in (entrant, opponent):
        if name is not None and name not in known:
            raise UnknownName(
                f'no match has an entrant named "{name}"; there are: {", ".join(sorted(known)) or "none"}.'
                + did_you_mean(name, known)
            )
    counts = dict.fromkeys(_COUNTS, 0)
    for row in rows:
        for own, other in _pairs(row, entrant, opponent):
            _count(counts, row, own, other)
    return _record(entrant, opponent, counts)


def records(rows: Iterable[MatchRow]) -> dict[str, Record]:
    """Returns the record of every entrant against all others, in one pass over the rows."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        for own in row.seats.values():
            counts = found.setdefault(own.entrant, dict.fromkeys(_COUNTS, 0))
            for other in row.seats.values():
                if other.entrant != own.entrant:
                    _count(counts, row, own, other)
    return {entrant: _record(entrant, None, counts) for entrant, counts in found.items()}


def standings(rows: Iterable[MatchRow]) -> list[Record]:
    """Returns the record of every entrant against all others, best win rate first; without results last."""
    found = sorted(records(rows).values(), key=lambda record: record.entrant)
    return sorted(found, key=lambda record: -record.rate if record.n else math.inf)


def total_rewards(rows: Iterable[MatchRow]) -> dict[str, float]:
    """Sums the rewards of each entrant over the seats it held; void matches don't count."""
    totals: dict[str, float] = {}
    for row in rows:
        for seat in row.seats.values():
            totals[seat.entrant] = totals.get(seat.entrant, 0.0) + (seat.reward or 0.0)
    return totals


def _count(counts: dict[str, int], row: MatchRow, own: SeatRow, other: SeatRow) -> None:
    """Adds what came of one pair of seats to the counts of the first."""
    if row.status == "void":
        counts["void"] += 1
    elif own.rank is not None and other.rank is not None:
        counts["wins" if own.rank < other.rank else "draws" if own.rank == other.rank else "losses"] += 1
        counts["forfeits"] += own.forfeited
        counts["truncated"] += row.status == "truncated"


def _record(entrant: str, opponent: str | None, counts: Mapping[str, int]) -> Record:
    return msgspec.convert({"entrant": entrant, "opponent": opponent, **counts}, Record)


def _pairs(row: MatchRow, entrant: str, opponent: str | None) -> Iterator[tuple[SeatRow, SeatRow]]:
    for own in row.seats.values():
        for other in row.seats.values():
            if own.entrant == entrant and other.entrant != entrant and opponent in (None, other.entrant):
                yield own, other


__all__ = ["Record", "records", "standings", "total_rewards", "wilson", "win_rate"]
