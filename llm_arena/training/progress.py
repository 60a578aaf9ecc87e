"""What a person sees of a running training: a bar in a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from llm_arena.training.metrics import Row, headline


class Progress:
    """Shows step, reward (or the game's score), tokens per second and time left, on standard error.

    Args:
        total: steps of the run.
        done: steps that a resumed run already has.
        shown: False shows nothing.
    """

    def __init__(self, total: int, done: int = 0, *, shown: bool = True) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        self._bar = Bar(
            TextColumn("training"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not (shown and console.is_terminal),
        )
        self._lines = shown and not console.is_terminal
        self._total = total
        self._first = done
        self._began = time.monotonic()
        self._task = self._bar.add_task("training", total=total, completed=done, said="starting")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def show(self, done: int, row: Row) -> None:
        """Shows that `done` steps are done, the last of them with the metrics `row`."""
        name, value = headline(row)
        left = (time.monotonic() - self._began) / max(done - self._first, 1) * (self._total - done)
        said = f"{name} {value:+.3f}  {row['tokens_per_second']:,.0f} tokens/s  {_clock(left)} left"
        self._bar.update(self._task, completed=done, said=said)
        if self._lines:
            print(f"step {done}/{self._total}  {said}", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
