"""What a board comes to: tables, made from a manifest and rows alone, and the files that hold them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_arena.boards.board import Board, BoardError
from llm_arena.boards.formats import plain, to_csv, to_markdown, to_text
from llm_arena.boards.manifest import MANIFEST, load_manifest, write_whole
from llm_arena.boards.match_file import MATCHES, TRACES, read_rows, recorded
from llm_arena.boards.table import Row, Table, make_table
from llm_arena.matchmaking import Match
from llm_arena.rating import MatchRow
from llm_arena.types import Json

RATINGS, CSV, MARKDOWN = "ratings.json", "leaderboard.csv", "leaderboard.md"


@dataclass(frozen=True)
class Leaderboard:
    """The tables of a board, one for each game."""

    name: str
    summary: str
    tables: list[Table]
    matches: list[MatchRow]
    """One row for each match, void ones that were not played again included."""
    folder: Path | None = None
    """Where it is kept; None: nowhere."""

    @property
    def rows(self) -> list[Row]:
        """All rows of all tables, in their order."""
        return [row for table in self.tables for row in table.rows]

    @property
    def complete(self) -> bool:
        """Whether every planned match was played."""
        return all(table.played == table.planned for table in self.tables)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, columns: int | None = None) -> str:
        """Returns the tables as text, for a terminal so many columns wide; None: as wide as they are."""
        return "\n\n".join(to_text(table, columns) for table in self.tables)

    def to_markdown(self) -> str:
        """Returns the tables in Markdown."""
        head = f"# {plain(self.name)}\n\n" + (f"{plain(self.summary)}\n\n" if self.summary else "")
        return head + "\n".join(map(to_markdown, self.tables))

    def to_csv(self) -> str:
        """Returns all rows as CSV, with the pool in the first column."""
        return to_csv(self.rows)

    def to_json(self) -> dict[str, Json]:
        """Returns tables, parameters and covariances as JSON; no number in it is NaN or infinite."""
        return {
            "name": self.name,
            "pools": {
                table.pool: {
                    "rated": table.rated,
                    "planned": table.planned,
                    "played": table.played,
                    "void": table.void,
                    "officials": dict(table.officials),
                    "judged_pairs": table.judged[0],
                    "judged_alike": table.judged[1],
                    "warnings": table.warnings,
                    "rows": msgspec.to_builtins(table.rows),
                    "model": table.model,
                }
                for table in self.tables
            },
        }

    def save(self, folder: Path) -> None:
        """Writes `ratings.json`, `leaderboard.csv` and `leaderboard.md`, each whole or not at all.

        `ratings.json` names the contents of the two files that all ratings follow from by their SHA-256.

        Raises:
            BoardError: the disk refuses.
        """
        sources = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in (MANIFEST, MATCHES)}
        ratings = json.dumps({**self.to_json(), "sha256": sources}, indent=1, allow_nan=False)
        for name, text in ((RATINGS, ratings + "\n"), (CSV, self.to_csv()), (MARKDOWN, self.to_markdown())):
            write_whole(folder / name, text)


def tabulate(
    board: Board, schedule: Mapping[str, list[Match]], rows: Iterable[MatchRow], folder: Path | None = None
) -> Leaderboard:
    """Returns the tables that follow from rows. With a folder they say which matches it has no trace of.

    Raises:
        RatingError: a fit did not converge.
    """
    kept = list(rows)
    traces = {row.id for row in kept} if folder is None else recorded(folder / TRACES)
    games = {game.pool: game for game in board.games}
    by_pool: dict[str, list[MatchRow]] = {pool: [] for pool in schedule}
    for row in kept:
        by_pool[row.pool].append(row)
    tables = [
        make_table(
            pool,
            by_pool[pool],
            [entrant.name for entrant in board.entrants],
            planned=len(matches),
            anchor=board.anchor,
            prior_sd=board.prior_sd,
            alone=games[pool].seated() == "self",
            officials={name: holder.words for name, holder in games[pool].holders().items()},
            untraced=sum(row.id not in traces for row in by_pool[pool]),
        )
        for pool, matches in schedule.items()
    ]
    return Leaderboard(name=board.name, summary=board.summary, tables=tables, matches=kept, folder=folder)


def rate(folder: Path) -> Leaderboard:
    """Makes the tables of a folder anew from its manifest and its matches, without playing, and writes them.

    Raises:
        BoardError: the folder holds no board, or a file of it can't be read.
        RatingError: a fit did not converge.
    """
    manifest = load_manifest(folder)
    if manifest is None:
        raise BoardError(f"{folder} is no board's folder: it has no {MANIFEST}")
    schedule = manifest.board.schedule()
    path = folder / MATCHES
    if not path.is_file():
        raise BoardError(
            f"{folder} has no {MATCHES}: no match was played yet; give the same command without --rate-only"
        )
    rows = read_rows(path, {match.id: match for matches in schedule.values() for match in matches})
    board = tabulate(manifest.board, schedule, rows.values(), folder)
    board.save(folder)
    return board


__all__ = ["Leaderboard", "rate", "tabulate"]
