"""Reads a run's folder for its page: what is there is shown, and what can't be read becomes a sentence on the page.

A page is wanted most when something went wrong. So a broken record costs that record (or the rest of its file), not
the page; only a folder in which nothing can be read is an error.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_arena.errors import TraceError, UsageError
from llm_arena.report.curves import LARGEST, Curve
from llm_arena.report.episodes import Picks, pick
from llm_arena.report.results import Results, load_results
from llm_arena.trace_file import read_traces
from llm_arena.types import Json

FILES = ("config.json", "metrics.jsonl", "traces.jsonl", "results.json")

MARK = "llm_arena_run"
"""Key that tells a run's config.json from a model's: `training.run_folder.MARK`, which would load torch with it."""

_LARGEST_STEP = 1e15
"""Above this a float no longer counts single steps."""

_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError)
"""What reading JSON raises; the last where it is nested too deeply."""

_BOM = b"\xef\xbb\xbf"


@dataclass
class Metrics:
    """The numbers of all steps, by name."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    columns: dict[str, array[float]] = field(default_factory=dict)
    "Values by metric, one per step; NaN where a step lacks it."
    not_finite: Counter[str] = field(default_factory=Counter)
    "How many values were there and are not finite, by metric."

    def add(self, row: Mapping[str, Json]) -> None:
        """Adds a step. What is no number is left out; a step that is none is the place of its row."""
        place = len(self.steps)
        step = _number(row.get("step"))
        self.steps.append(step if step is not None and abs(step) <= _LARGEST_STEP else float(place))
        for name, given in row.items():
            value = math.nan if given is None else _number(given)
            if name == "step" or value is None:
                continue
            if name not in self.columns:
                self.columns[name] = array("d", [math.nan]) * place
            finite = abs(value) <= LARGEST
            self.not_finite[name] += not finite
            self.columns[name].append(value if finite else math.nan)
        for column in self.columns.values():
            if len(column) <= place:
                column.append(math.nan)

    def curves(self) -> dict[str, Curve]:
        """Returns the curves by name, in the order in which the metrics first appear; all have the same steps."""
        steps = np.array(self.steps, dtype=np.float64)
        order = np.argsort(steps, kind="stable")
        return {name: Curve(steps[order], np.array(column)[order]) for name, column in self.columns.items()}


@dataclass
class RunFiles:
    """What a run's folder holds."""

    path: Path
    config: dict[str, Json] = field(default_factory=dict)
    num_steps: int = 0
    "Steps that metrics.jsonl holds."
    curves: dict[str, Curve] = field(default_factory=dict)
    not_finite: Counter[str] = field(default_factory=Counter)
    results: Results | None = None
    picks: Picks = field(default_factory=Picks)
    complete: bool = False
    "Whether the final model is there."
    problems: list[str] = field(default_factory=list)
    "What could not be read, a sentence each."


def read_run(path: Path) -> RunFiles:
    """Reads a run's folder.

    Raises:
        UsageError: there is no such folder, or nothing in it is of a run.
        TraceError: none of its files can be read.
    """
    there = [name for name in FILES if os.path.exists(path / name)]  # a name too long is no folder either
    if not there:
        raise UsageError(f"{path} is no run's folder: it has none of {', '.join(FILES)}")
    if os.path.exists(path / "manifest.json") and "metrics.jsonl" not in there:
        raise UsageError(f"{path} is the folder of a board; its page is {path / 'leaderboard.md'}")
    run = RunFiles(path, complete=os.path.isdir(path / "final"))
    _read_config(run)
    if there == ["config.json"] and not run.problems and MARK not in run.config:
        raise UsageError(f"{path} is no run's folder: its config.json has no {MARK}, as that of a model; give a run's")
    _read_metrics(run)
    try:
        run.results = load_results(path)
    except (TraceError, OSError) as error:
        run.problems.append(str(error))
    if os.path.exists(path / "traces.jsonl"):
        try:
            pick(run.picks, read_traces(path / "traces.jsonl"))
        except (TraceError, OSError) as error:
            run.problems.append(f"{error}. What follows in that file is not on this page.")
    if run.problems and not (run.config or run.num_steps or run.results or run.picks.count):
        raise TraceError(f"nothing in {path} can be read: {'; '.join(run.problems)}")
    return run


def _read_config(run: RunFiles) -> None:
    path = run.path / "config.json"
    if not path.exists():
        return
    try:
        run.config = msgspec.json.decode(path.read_bytes().removeprefix(_BOM), type=dict[str, Any])
    except (*_BROKEN, OSError) as error:
        run.problems.append(f"{path} can't be read: {error}")


def _read_metrics(run: RunFiles) -> None:
    metrics = Metrics()
    path = run.path / "metrics.jsonl"
    broken: list[str] = []
    if path.exists():
        try:
            for number, line in _lines(path):
                try:
                    metrics.add(_row(line))
                except _BROKEN as error:
                    if line.endswith(b"\n"):  # without: torn by a kill, or just being written
                        broken.append(f"{path}, line {number} can't be read: {error}")
        except OSError as error:
            broken.append(f"{path} can't be read: {error.strerror or error}")
    if broken:
        more = f" (and {len(broken) - 1} more lines)" if len(broken) > 1 else ""
        run.problems.append(broken[0] + more)
    run.num_steps, run.curves, run.not_finite = len(metrics.steps), metrics.curves(), +metrics.not_finite


def _row(line: bytes) -> dict[str, Json]:
    """Reads a line of metrics. `NaN` and `Infinity` are no JSON, but Python's own writer puts them into files."""
    try:
        return msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        if b"NaN" not in line and b"Infinity" not in line:
            raise
        return msgspec.convert(json.loads(line), type=dict[str, Any])


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""Yields lines with their numbers, blank ones left out; only `\n` ends a line."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            line = line.removeprefix(_BOM) if number == 1 else line
            if line.strip():
                yield number, line


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


__all__ = ["FILES", "MARK", "Metrics", "RunFiles", "read_run"]
