"""Tables under a title, as text and as Markdown: what a cross-play shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llm_arena.boards.formats import plain


class Section(NamedTuple):
    """One table."""

    title: str
    cells: list[tuple[str, ...]]
    "The first row is the head; the first column has names."


def to_text(title: str, sections: Sequence[Section], notes: Sequence[str]) -> str:
    """Returns tables for a terminal, notes below."""
    lines = [title]
    for section in sections:
        widths = [max(map(len, column)) for column in zip(*section.cells, strict=True)]
        lines += ["", section.title, ""]
        for row in section.cells:
            figures = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
            lines.append("  " + "  ".join([f"{row[0]:<{widths[0]}}", *figures]).rstrip())
    return "\n".join([*lines, *(f"\n{note}" for note in notes)])


def to_markdown(title: str, sections: Sequence[Section], notes: Sequence[str]) -> str:
    """Returns the same in Markdown; names show as they are, whatever stands in them."""
    lines = [f"# {plain(title)}"]
    for section in sections:
        head, *rows = section.cells
        lines += ["", f"## {plain(section.title)}", "", f"| {' | '.join(map(plain, head))} |"]
        lines.append(f"| --- | {' | '.join('---:' for _ in head[1:])} |")
        lines += [f"| {' | '.join(map(plain, row))} |" for row in rows]
    return "\n".join([*lines, *(f"\n{plain(note)}" for note in notes)]) + "\n"


__all__ = ["Section", "to_markdown", "to_text"]
