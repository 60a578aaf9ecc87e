"""How far the matches are, on standard error: a bar in a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINE_SECONDS = 10.0
"""Time between two lines where there is no terminal, in seconds."""


@contextmanager
def progress(total: int, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Yields the function that counts one match.

    Args:
        total: matches that are to be played now.
        shown: False: count in silence.
    """
    if not shown or not total:
        yield lambda: None
    elif sys.stderr.isatty():
        with _bar(total) as count:
            yield count
    else:
        yield _Lines(total).count


class _Lines:
    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._told = time.monotonic()
        self._began = 0.0

    def count(self) -> None:
        self._done += 1
        now = time.monotonic()
        if self._done == 1:  # what came before is the loading of models
            self._began = now
            return
        if now - self._told >= LINE_SECONDS or self._done == self._total:
            self._told = now
            seconds = round((now - self._began) / (self._done - 1) * (self._total - self._done))
            left = f"{seconds // 60}:{seconds % 60:02d} left"
            print(f"match {self._done}/{self._total}  {left}", file=sys.stderr, flush=True)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("matches"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("matches", total=total)
        yield lambda: bar.advance(task)


__all__ = ["progress"]
