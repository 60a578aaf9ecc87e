"""The table of a cross-play: its cells, and differences between rows and between columns on the same starts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from llm_arena.boards.cells import Cell, Difference, Place, Seen, Side, cell_of, look
from llm_arena.boards.cross_formats import Section, to_markdown, to_text
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.rating import MatchRow
from llm_arena.rating.intervals import Mean, Share, paired_difference
from llm_arena.sides import Sides
from llm_arena.types import Json

_UNKNOWN = "-"
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class CrossPlay:
    """The table of a cross-play."""

    game: str
    sides: Sides
    rows: list[str]
    columns: list[str]
    seed: int
    starts: int
    planned: int
    """Matches of the whole schedule."""
    played: int
    """Of these, how many are finished and not void."""
    cells: dict[tuple[str, str], Cell]
    """By (row, column)."""
    seen: Mapping[tuple[str, str], Sequence[Seen]] = field(repr=False)
    """The results of each match of the starts that are finished, as its cell sees them."""

    def cell(self, row: str, column: str) -> Cell:
        """Returns one cell.

        Raises:
            UnknownName: there is no such row or column.
        """
        for name, known in ((row, self.rows), (column, self.columns)):
            if name not in known:
                raise UnknownName(f'no entrant "{name}" here.{did_you_mean(name, known)} There are: {", ".join(known)}')
        return self.cells[row, column]

    def difference(self, first: str, second: str, *, side: Side = "row", against: str | None = None) -> Difference:
        """Returns by how much `first` earns more than `second` in one role, on paired starts.

        With several partners a start's result is the mean over partners, and starts that lack one are left out.

        Args:
            first: who is compared.
            second: with whom.
            side: whether as rows or as columns.
            against: one partner; None: all.

        Raises:
            UnknownName: there is no such row, column or partner.
            UsageError: no start was finished by both.
        """
        partners = [against] if against is not None else self.columns if side == "row" else self.rows
        found = paired_difference(self._by_start(first, side, partners), self._by_start(second, side, partners))
        if found is None:
            raise UsageError(f'"{first}" and "{second}" have no finished start in common; play what is missing')
        return Difference(
            side=side,
            first=first,
            second=second,
            against=against,
            mean=round(found.mean, 9),
            half_width=found.half_width,
            starts=found.starts,
        )

    def differences(self) -> list[Difference]:
        """Returns those of the first row and column against each other one, for all partners and for each."""
        found = []
        sides: tuple[Side, ...] = ("row",) if self.sides.turns else ("row", "column")
        for side in sides:
            (first, *others), partners = (self.rows, self.columns) if side == "row" else (self.columns, self.rows)
            for second in others:
                for against in [None, *partners] if len(partners) > 1 else partners:
                    shared = [against] if against is not None else partners
                    if self._by_start(first, side, shared).keys() & self._by_start(second, side, shared).keys():
                        found.append(self.difference(first, second, side=side, against=against))
        return found

    @property
    def complete(self) -> bool:
        """Whether every planned match was played."""
        return self.played == self.planned

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self) -> str:
        """Returns the tables as text."""
        return to_text(self._title(), self._sections(), self._notes())

    def to_markdown(self) -> str:
        """Returns the tables in Markdown."""
        return to_markdown(self._title(), self._sections(), self._notes())

    def to_json(self) -> dict[str, Json]:
        """Returns cells and differences as JSON; no number in it is NaN or infinite."""
        return {
            "game": self.game,
            "row_role": self.sides.row,
            "column_role": self.sides.column,
            "seed": self.seed,
            "starts": self.starts,
            "planned": self.planned,
            "played": self.played,
            "cells": msgspec.to_builtins(list(self.cells.values())),
            "differences": [{**msgspec.to_builtins(gap), "sure": gap.sure} for gap in self.differences()],
        }

    def _by_start(self, name: str, side: Side, partners: Sequence[str]) -> dict[int, list[float]]:
        """Returns an entrant's mean return against partners, for each start that has them all."""
        means: dict[int, list[float]] = defaultdict(list)
        for partner in partners:
            row, column = (name, partner) if side == "row" else (partner, name)
            self.cell(row, column)
            groups: dict[int, list[float]] = defaultdict(list)
            for seen in self.seen[row, column]:
                groups[seen.start].append(seen.row_return if side == "row" else seen.column_return)
            for start, values in groups.items():
                means[start].append(math.fsum(values) / len(values))
        return {start: [math.fsum(of) / len(of)] for start, of in means.items() if len(of) == len(partners)}

    def _title(self) -> str:
        return f"{self.game}: {self.played} of {self.planned} matches on {self.starts} starts, seed {self.seed}"

    def _sections(self) -> list[Section]:
        """Returns what is shown, one table for each measure that the game has."""
        row, column = self.sides.row, self.sides.column
        # With two seats held in turn a column's table would be the row's, turned.
        apart = not (self.sides.turns and len(self.sides.seatings) == 2)
        shown: list[tuple[str, Callable[[Cell], str], bool]] = [
            (f"Mean return of the row's entrant ({row})", lambda cell: _mean_words(cell.row_return), True),
            # In a zero-sum game of two seats it is the same with the other sign.
            (
                f"Mean return of the column's entrant ({column})",
                lambda cell: _mean_words(cell.column_return),
                apart and any(not _opposite(cell) for cell in self.cells.values()),
            ),
            (
                "Win rate of the row's entrant, draws half",
                lambda cell: _share_words(cell.win_rate),
                any(cell.win_rate is not None for cell in self.cells.values()),
            ),
            (
                f"Mean score of the row's entrant ({row})",
                lambda cell: _mean_words(cell.row_score),
                any(_differ(cell.row_score, cell.row_return) for cell in self.cells.values()),
            ),
            (
                f"Mean score of the column's entrant ({column})",
                lambda cell: _mean_words(cell.column_score),
                apart and any(_differ(cell.column_score, cell.column_return) for cell in self.cells.values()),
            ),
            (
                "Matches that a bad reply of the row's + of the column's entrant ended (forfeits; they count above)",
                lambda cell: f"{cell.row_forfeits} + {cell.column_forfeits}",
                any(cell.row_forfeits or cell.column_forfeits for cell in self.cells.values()),
            ),
            (
                "Void matches (they count nowhere, and their starts in no mean)",
                lambda cell: str(cell.void),
                any(cell.void for cell in self.cells.values()),
            ),
            (
                "Pairs that judges judged alike in both orders",
                lambda cell: f"{cell.judged_alike} of {cell.judged_pairs}",
                any(cell.judged_pairs for cell in self.cells.values()),
            ),
        ]
        tables = [
            Section(
                title,
                [
                    ("row \\ column", *self.columns),
                    *((name, *(words(self.cells[name, column]) for column in self.columns)) for name in self.rows),
                ],
            )
            for title, words, there in shown
            if there
        ]
        gaps = self.differences()
        if gaps:
            head = ("difference", "as", "against", "mean", "95 %", "starts", "")
            tables.append(Section("Differences in mean return on the same starts", [head, *map(self._gap, gaps)]))
        return tables

    def _gap(self, gap: Difference) -> tuple[str, ...]:
        role = self.sides.row if gap.side == "row" else self.sides.column
        ends = (
            "all alike"
            if gap.half_width is None
            else f"{gap.mean - gap.half_width:+.3f} to {gap.mean + gap.half_width:+.3f}"
        )
        against = "all" if gap.against is None else gap.against
        words = "differs" if gap.sure else "may be luck"
        return (f"{gap.first} - {gap.second}", role, against, f"{gap.mean:+.3f}", ends, str(gap.starts), words)

    def _notes(self) -> list[str]:
        notes = []
        if not self.complete:
            notes.append(f"incomplete: {self.planned - self.played} matches are missing; give the same command again")
        notes.append("+-: half of a 95 % interval, with starts as clusters. Each interval misses once in 20.")
        return notes


def _mean_words(mean: Mean | None) -> str:
    if mean is None:
        return _UNKNOWN
    return f"{round(mean.mean, 3) + 0.0:+.3f}" + ("" if mean.half_width is None else f" +- {mean.half_width:.3f}")


def _share_words(share: Share | None) -> str:
    return _UNKNOWN if share is None else f"{share.share:.3f} ({share.low:.3f} - {share.high:.3f})"


def _opposite(cell: Cell) -> bool:
    """Whether the column's returns say nothing that the row's don't."""
    if cell.row_return is None or cell.column_return is None:
        return True
    return abs(cell.row_return.mean + cell.column_return.mean) < _ROUNDING


def _differ(score: Mean | None, paid: Mean | None) -> bool:
    return score is not None and (paid is None or abs(score.mean - paid.mean) >= _ROUNDING)


def tabulate(
    game: str,
    sides: Sides,
    rows: Sequence[str],
    columns: Sequence[str],
    places: Sequence[Place],
    matches: Iterable[MatchRow],
    *,
    seed: int,
) -> CrossPlay:
    """Returns the table that follows from the rows of matches.

    Args:
        game: name of the pool.
        sides: who is who.
        rows: entrants of the rows.
        columns: entrants of the columns.
        places: where each match counts.
        matches: their rows; what is missing is not played yet.
        seed: of the schedule.
    """
    by_id = {row.id: row for row in matches}
    planned: dict[tuple[str, str], list[Place]] = {(row, column): [] for row in rows for column in columns}
    for place in places:
        planned[place.row, place.column].append(place)
    seen: dict[tuple[str, str], list[Seen]] = {}
    cells = {}
    for (row, column), own in planned.items():
        there = [(place, by_id[place.match]) for place in own if place.match in by_id]
        alive = [(place, match) for place, match in there if match.status != "void"]
        # A start whose other seating is missing would count the advantage of a seat as an entrant's.
        missing = Counter(place.start for place in own) - Counter(place.start for place, _ in alive)
        seen[row, column] = [look(place, match) for place, match in alive if place.start not in missing]
        cells[row, column] = cell_of(row, column, there, seen[row, column], itself=sides.turns and row == column)
    return CrossPlay(
        game=game,
        sides=sides,
        rows=[*rows],
        columns=[*columns],
        seed=seed,
        starts=len({place.start for place in places}),
        planned=len({place.match for place in places}),
        played=sum(match.status != "void" for match in by_id.values()),
        cells=cells,
        seen=seen,
    )


__all__ = ["CrossPlay", "tabulate"]
