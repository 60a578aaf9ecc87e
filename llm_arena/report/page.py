"""One run as one HTML file: no network, no script, and all text of models escaped.

Reads what a run's folder holds (`config.json`, `metrics.jsonl`, `traces.jsonl`, `results.json`, each optional) and
writes `index.html` beside them.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from llm_arena.errors import ArenaError, TraceError, UsageError
from llm_arena.report.charts import Point, interval_bar, line_chart
from llm_arena.report.results import Results, load_results
from llm_arena.report.text import ending_words, message_text, told, turn_note, visible
from llm_arena.trace_file import read_traces
from llm_arena.types import Json, Trace

_EPISODES = 4
"""How many episodes are shown from the start of training, and as many from its end."""

_TEXT_LIMIT = 4000
"""Longest text of one message on the page, in characters."""

_MAIN_METRICS = ("score", "reward")
"""Metrics per role that make the chart on top, in order of preference."""

_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What reading JSON raises; the last where it is nested too deeply."""

_PACKAGES = ("llm-arena", "torch", "transformers", "pettingzoo", "numpy")


@dataclass(frozen=True)
class Chart:
    """One chart: points by series."""

    title: str
    series: Mapping[str, Sequence[Point]]
    note: str = ""


@dataclass(frozen=True)
class Tile:
    """One figure at the top of the page."""

    label: str
    value: str


@dataclass
class Run:
    """All that the page shows."""

    title: str
    subtitle: str
    main_chart: Chart
    charts: list[Chart]
    results: Results | None
    config: list[tuple[str, str]]
    versions: list[tuple[str, str]]
    footer: str
    tiles: list[Tile] = field(default_factory=list)
    episodes: list[Trace] = field(default_factory=list)
    num_episodes: int = 0
    num_void: int = 0


def write_page(run_dir: Path) -> Path:
    """Writes `index.html` into `run_dir` and returns its path.

    Raises:
        UsageError: there is no such folder, or nothing in it is of a run.
        TraceError: a file of the run can't be read.
        ArenaError: the page can't be written.
    """
    html = render(load_run(run_dir))
    path = run_dir / "index.html"
    aside = run_dir / ".index.html.new"
    try:
        aside.write_text(html, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise ArenaError(
            f"can't write {path}: {error.strerror}; make the folder writable and free some space, or report on a copy"
        ) from error
    return path


def load_run(run_dir: Path) -> Run:
    """Reads a run's folder.

    Raises:
        UsageError: there is no such folder, or nothing in it is of a run.
        TraceError: a file of the run can't be read.
    """
    names = ("config.json", "metrics.jsonl", "traces.jsonl", "results.json")
    if not any(os.path.exists(run_dir / name) for name in names):  # a name too long is no folder either
        raise UsageError(f"{run_dir} is no run's folder: it has none of {', '.join(names)}")
    config = _read_json(run_dir / "config.json")
    metrics = list(_read_lines(run_dir / "metrics.jsonl"))
    results = load_results(run_dir)
    charts = charts_of(metrics)
    run = Run(
        title=f"{config.get('env', run_dir.name)} · {config.get('model', 'self-play')}",
        subtitle=f"{run_dir.name} · {len(metrics)} steps · written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        main_chart=main_chart(charts),
        charts=charts,
        results=results,
        config=sorted(_flat(config)),
        versions=versions(),
        footer="Made by llm-arena from the files beside it. Text of models is shown as it was sampled; characters that"
        " hide or reorder text are written as escapes.",
    )
    if results is not None:
        run.tiles = [Tile(name.replace("_", " "), _short(value)) for name, value in results.figures.items()]
    _take_episodes(run, run_dir / "traces.jsonl")
    return run


def render(run: Run) -> str:
    """Returns the page as HTML. Every value is escaped, and control characters are made visible."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("llm_arena.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(visible=_visible, clip=_clip)
    env.globals.update(
        line_chart=line_chart,
        interval_bar=interval_bar,
        ending_words=ending_words,
        message_text=message_text,
        told=told,
        turn_note=turn_note,
    )
    return env.get_template("page.html.j2").render(run=run)


def charts_of(metrics: Sequence[Mapping[str, Json]]) -> list[Chart]:
    """Returns one chart per metric over steps, in the order in which the metrics first appear."""
    series: dict[str, list[Point]] = {}
    for number, row in enumerate(metrics):
        step = _number(row.get("step"))
        step = step if step is not None and math.isfinite(step) else float(number)
        for name, value in row.items():
            if name != "step" and (figure := _number(value)) is not None:
                series.setdefault(name, []).append((step, figure))
    return [Chart(name, {name: points}) for name, points in series.items()]


def main_chart(charts: Sequence[Chart]) -> Chart:
    """Returns the chart on top: what the policy earns, one series per role.

    The mean reward of a zero-sum game is 0 whatever the policy does, so the game's own points go first.
    """
    for word in _MAIN_METRICS:
        ending = f"/{word}"
        chosen = {chart.title: chart.series[chart.title] for chart in charts if chart.title.endswith(ending)}
        if chosen:
            what = "The game's own points, mean" if word == "score" else "Mean"
            series = {title.removesuffix(ending): points for title, points in chosen.items()}
            return Chart(f"{word.capitalize()} by step", series, f"{what} over a step's seats.")
    return Chart("Reward by step", {})


def versions() -> list[tuple[str, str]]:
    """Returns the versions in use, by package."""
    found = [("python", platform.python_version())]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _take_episodes(run: Run, path: Path) -> None:
    """Streams the traces and keeps the first and the last few, so that a long run needs no more memory."""
    if not path.exists():
        return
    first: list[Trace] = []
    last: deque[Trace] = deque(maxlen=_EPISODES)
    for trace in read_traces(path):
        run.num_episodes += 1
        run.num_void += trace.void
        if len(first) < _EPISODES:
            first.append(trace)
        else:
            last.append(trace)
    run.episodes = [*first, *last]


def _flat(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _number(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf


def _short(value: Json) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _visible(text: object) -> str:
    return visible(str(text))


def _clip(text: str, limit: int = _TEXT_LIMIT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def _read_json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), type=dict[str, Any])
    except _BROKEN as error:
        raise TraceError(f"{path} can't be read: {error}") from error


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    r"""Yields the records of a JSON lines file; only `\n` ends a line, and a torn last line is left out."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except _BROKEN as error:
                if line.endswith(b"\n"):
                    raise TraceError(f"{path}, line {number} can't be read: {error}") from error


__all__ = ["Chart", "Run", "Tile", "charts_of", "load_run", "main_chart", "render", "versions", "write_page"]
