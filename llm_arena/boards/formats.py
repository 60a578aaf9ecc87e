"""Tables as text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Sequence

import msgspec

from llm_arena.boards.table import Row, Table

_RATED = ("rank", "entrant", "rating", "+-", "win", "draw", "loss", "win rate", "95 %", "reward")
_UNRATED = ("rank", "entrant", "reward", "+-", "matches")
_COUNTS = ("forfeits", "void", "tokens/turn", "status")
_WORDS = ("entrant", "status")
"""Columns of words, to the left; figures stand to the right."""
_SPARED = (("95 %",), ("tokens/turn",), ("reward",), ("win rate",), ("win", "draw", "loss"))
"""What a rated table goes without in a narrow terminal, in this order; `_SPARED_UNRATED` likewise."""
_SPARED_UNRATED = (("tokens/turn",), ("matches",))
_UNKNOWN = "-"


def to_text(table: Table, columns: int | None = None) -> str:
    """Returns a table for a terminal, under its pool's name, its warnings below.

    Args:
        table: the table.
        columns: the terminal's width. Where the table is wider, figures that follow from others are left out and named.
    """
    cells = _cells(table)
    left_out: list[str] = []
    for names in _SPARED if table.rated else _SPARED_UNRATED:
        if columns is not None and _width(cells) > columns:
            left_out += [name for name in names if name in cells[0]]
            kept = [place for place, name in enumerate(cells[0]) if name not in names]
            cells = [tuple(row[place] for place in kept) for row in cells]
    widths = _widths(cells)
    lines = [f"{table.pool}: {_played(table)}", ""]
    for row in cells:
        shown = (
            f"{cell:<{width}}" if name in _WORDS else f"{cell:>{width}}"
            for name, cell, width in zip(cells[0], row, widths, strict=True)
        )
        lines.append("  " + "  ".join(shown).rstrip())
    notes = [*table.warnings, *([f"left out, for want of room: {', '.join(left_out)}"] if left_out else [])]
    for note in notes:
        lines += ["", *(_wrapped(note, columns) if columns is not None else [f"  {note}"])]
    return "\n".join(lines)


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _width(cells: Sequence[Sequence[str]]) -> int:
    return sum(2 + width for width in _widths(cells))


def _wrapped(note: str, columns: int) -> list[str]:
    return textwrap.wrap(note, max(columns, 20), initial_indent="  ", subsequent_indent="  ", break_long_words=False)


def to_markdown(table: Table) -> str:
    """Returns a table in Markdown under a heading."""
    head, *rows = _cells(table)
    lines = [f"## {plain(table.pool)}", "", f"{plain(_played(table))}.", ""]
    lines.append(f"| {' | '.join(head)} |")
    lines.append(f"| {' | '.join('---' if name in _WORDS else '---:' for name in head)} |")
    lines += [f"| {' | '.join(map(plain, row))} |" for row in rows]
    return "\n".join([*lines, *(f"\n{plain(warning)}" for warning in table.warnings)]) + "\n"


def to_csv(rows: Iterable[Row]) -> str:
    """Returns rows as CSV with all columns, under their names; what is not known is empty.

    Text that a spreadsheet would run as a formula (it begins with = + - @ or a control character) gets an apostrophe in
    front, and so does text that begins with an apostrophe: to read a name back, take one leading apostrophe away.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row.__struct_fields__)
    for row in rows:
        writer.writerow([_inert(cell) if isinstance(cell, str) else cell for cell in msgspec.structs.astuple(row)])
    return text.getvalue()


def _played(table: Table) -> str:
    officials = "".join(f", {name}: {holder}" for name, holder in table.officials.items())
    pairs, alike = table.judged
    judged = f", {alike} of {pairs} pairs judged alike in both orders" if pairs else ""
    return f"{table.played} of {table.planned} matches{officials}{judged}"


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


def _inert(text: str) -> str:
    return f"'{text}" if re.match(r"[=+\-@'\x00-\x1f]", text) else text


def plain(text: str) -> str:
    """Returns text that Markdown, GitHub's too, shows as it is: no markup, entity, formula, link to a bare address."""
    text = re.sub(r"([\\`*_\[\]<>#|&~$@])", r"\\\1", text)
    return re.sub(r"(?i)(:)(?=//)|(?<=\bwww)(\.)", r"\\\1\2", text)


__all__ = ["plain", "to_csv", "to_markdown", "to_text"]
