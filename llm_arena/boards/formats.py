"""Tables as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

import msgspec

from llm_arena.boards.table import Row, Table

_RATED = ("rank", "entrant", "rating", "+-", "win", "draw", "loss", "win rate", "95 %", "reward")
_UNRATED = ("rank", "entrant", "reward", "+-", "matches")
_COUNTS = ("forfeits", "void", "tokens/turn", "status")
_WORDS = ("entrant", "status")
"""Columns of words, to the left; figures stand to the right."""
_UNKNOWN = "-"


def to_text(table: Table) -> str:
    """Returns a table for a terminal, under its pool's name, its warnings below."""
    head, *rows = _cells(table)
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [f"{table.pool}: {table.played} of {table.planned} matches", ""]
    for row in (head, *rows):
        cells = (
            f"{cell:<{width}}" if name in _WORDS else f"{cell:>{width}}"
            for name, cell, width in zip(head, row, widths, strict=True)
        )
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join([*lines, *(f"\n  {warning}" for warning in table.warnings)])


def to_markdown(table: Table) -> str:
    """Returns a table in Markdown under a heading."""
    head, *rows = _cells(table)
    lines = [f"## {_plain(table.pool)}", "", f"{table.played} of {table.planned} matches.", ""]
    lines.append(f"| {' | '.join(head)} |")
    lines.append(f"| {' | '.join('---' if name in _WORDS else '---:' for name in head)} |")
    lines += [f"| {' | '.join(map(_plain, row))} |" for row in rows]
    return "\n".join([*lines, *(f"\n{_plain(warning)}" for warning in table.warnings)]) + "\n"


def to_csv(rows: Iterable[Row]) -> str:
    """Returns rows as CSV with all columns, under their names; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row.__struct_fields__)
    writer.writerows(msgspec.structs.astuple(row) for row in rows)
    return text.getvalue()


def _cells(table: Table) -> list[tuple[str, ...]]:
    """Returns the head and the rows of a table as text; columns of counts that are 0 everywhere are left out."""
    head = (*(_RATED if table.rated else _UNRATED), *_COUNTS)
    rows = [(*(_rated(row) if table.rated else _unrated(row)), *_counts(row)) for row in table.rows]
    empty = {"forfeits": "0", "void": "0", "tokens/turn": _UNKNOWN, "status": ""}
    kept = [place for place, name in enumerate(head) if name not in empty or any(r[place] != empty[name] for r in rows)]
    return [tuple(row[place] for place in kept) for row in (head, *rows)]


def _rated(row: Row) -> Sequence[str]:
    return (
        _ranks(row),
        row.entrant,
        _number(row.rating, ".0f"),
        _number(row.half_width, ".0f"),
        str(row.wins),
        str(row.draws),
        str(row.losses),
        _number(row.win_rate, ".3f"),
        _UNKNOWN if row.win_low is None else f"{row.win_low:.3f} - {row.win_high:.3f}",
        _number(row.reward, "+.3f") + (f" +- {row.reward_half_width:.3f}" if row.reward_half_width is not None else ""),
    )


def _unrated(row: Row) -> Sequence[str]:
    return (
        _ranks(row),
        row.entrant,
        _number(row.reward, "+.3f"),
        _number(row.reward_half_width, ".3f"),
        str(row.matches),
    )


def _counts(row: Row) -> Sequence[str]:
    return str(row.forfeits), str(row.void), _number(row.tokens_per_turn, ".1f"), row.status


def _ranks(row: Row) -> str:
    if row.rank_low is None:
        return _UNKNOWN
    return str(row.rank_low) if row.rank_low == row.rank_high else f"{row.rank_low}-{row.rank_high}"


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def _plain(text: str) -> str:
    """Returns text that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text)


__all__ = ["to_csv", "to_markdown", "to_text"]
