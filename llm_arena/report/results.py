"""What a run found out after training: matches, samples and figures, kept as `results.json` in the run's folder."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from llm_arena.errors import TraceError
from llm_arena.rating import Record
from llm_arena.types import Json

FILE_NAME = "results.json"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """Replies to one start, before and after training."""

    start: str
    before: list[str]
    after: list[str]


class RankedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One entrant of a ranking. What a ranking does not know is None."""

    entrant: str
    rating: float | None = None
    low: float | None = None
    "Lower end of the rating's interval; `high` likewise."
    high: float | None = None
    rank_low: int | None = None
    "Best rank that the matches allow; `rank_high` the worst."
    rank_high: int | None = None
    wins: int | None = None
    draws: int | None = None
    losses: int | None = None
    forfeits: int = 0
    void: int = 0


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a report that no metrics file holds."""

    comparisons: list[Record] = []
    samples: list[Sample] = []
    figures: dict[str, Json] = {}
    "Single numbers by name, e.g. `win_rate`; shown at the top of the page."
    ratings: list[RankedRow] = []
    "The ranking of the entrants, where the run made one."

    def save(self, run_dir: Path) -> None:
        """Writes the results into a run's folder, whole or not at all."""
        aside = run_dir / f".{FILE_NAME}.{os.getpid()}"
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2))
        aside.replace(run_dir / FILE_NAME)


def load_results(run_dir: Path) -> Results | None:
    """Reads the results of a run; None if it has none.

    Raises:
        TraceError: the file can't be read.
    """
    path = run_dir / FILE_NAME
    if not path.exists():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Results)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{path} can't be read ({error}); delete it and make the results again") from error


__all__ = ["FILE_NAME", "RankedRow", "Results", "Sample", "load_results"]
