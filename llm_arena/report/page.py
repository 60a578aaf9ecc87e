"""One run as one HTML file: no network, and all text of models escaped.

Reads what a run's folder holds (`config.json`, `metrics.jsonl`, `traces.jsonl`, `results.json`, each optional) and
writes `index.html` beside them. The page is whole without its script, which sorts tables and switches light and dark;
a policy in the page lets nothing run or load but that script and that style, which it names by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
from datetime import UTC, datetime
from pathlib import Path

import jinja2
from markupsafe import Markup

from llm_arena.errors import ArenaError
from llm_arena.report import episodes, panels, settings, summary
from llm_arena.report.charts import interval_bar, short, token_strip
from llm_arena.report.results import RankedRow
from llm_arena.report.run_files import RunFiles, read_run
from llm_arena.report.text import message_text, turn_note, visible
from llm_arena.types import Json

MOST_BYTES = 1_900_000
"""A page is made again with less of each episode until it is smaller than this: it should go by mail."""

_LEVELS = ((4, 60, 4000), (4, 30, 800), (2, 12, 200))
"""Most episodes of each kind, turns of an episode, and characters of a text, from the richest page to the barest."""

_ROWS = 200
"""Longest table."""


def write_page(run_dir: Path) -> Path:
    """Writes `index.html` into `run_dir` and returns its path.

    Raises:
        UsageError: there is no such folder, or nothing in it is of a run.
        TraceError: no file of the run can be read.
        ArenaError: the page can't be written.
    """
    html = render(read_run(run_dir))
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


def render(run: RunFiles) -> str:
    """Returns the page as HTML. Every value is escaped, and characters that hide or reorder text are made visible."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("llm_arena.report", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(visible=_visible, line=_line, clip=clip, short=short, figure=_figure)
    env.globals.update(
        interval_bar=interval_bar, message_text=message_text, token_strip=token_strip, turn_note=turn_note
    )
    template = env.get_template("page.html.j2")
    values = _values(run)
    for each, most_turns, most_text in _LEVELS:
        chosen = run.picks.shown(each)
        html = template.render(
            **values, episodes=[episodes.view(one, most_turns) for one in chosen], most_text=most_text
        )
        if len(html.encode()) <= MOST_BYTES:
            break
    return html


def _values(run: RunFiles) -> dict[str, object]:
    earned = panels.earnings(run.curves)
    groups = panels.groups(run.curves, run.config)
    results = run.results
    ratings = results.ratings[:_ROWS] if results else []
    style, script = _part("page.css"), _part("page.js.j2")
    return {
        "style": Markup(style),
        "script": Markup(script),
        "policy": f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        "title": summary.title(run),
        "facts": summary.facts(run),
        "verdict": summary.verdict(run),
        "notices": summary.notices(run),
        "figures": list(results.figures.items())[:_ROWS] if results else [],
        "comparisons": summary.comparisons(run)[:_ROWS],
        "ratings": ratings,
        "rating_scale": _scale(ratings),
        "samples": results.samples[:_ROWS] if results else [],
        "earned": earned,
        "groups": groups,
        "others": panels.others(run.curves, [*earned, *(panel for group in groups.values() for panel in group)]),
        "curves": list(run.curves.items())[:_ROWS],
        "num_metrics": len(run.curves),
        "picks": run.picks,
        "settings": settings.settings_of(run.config)[: 2 * _ROWS],
        "command": settings.command(run.config),
        "whole_command": settings.command(run.config, every=True),
        "versions": settings.versions(),
        "written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "libraries": sorted({one.trace.library for one in run.picks.shown() if one.trace.library}),
    }


def clip(text: str, limit: int) -> str:
    """Returns a text of at most about `limit` characters: its start, how much is left out, and its end."""
    if len(text) <= limit:
        return text
    head, tail = limit * 3 // 4, limit // 4
    return f"{text[:head]} [… {len(text) - head - tail:,} more characters …] {text[-tail:]}"


def _part(name: str) -> str:
    return importlib.resources.files("llm_arena.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _scale(ratings: list[RankedRow]) -> tuple[float, float]:
    """Returns what the edges of the bars of a ranking stand for, the same in each row."""
    ends = [end for row in ratings for end in (row.low, row.high, row.rating) if end is not None and math.isfinite(end)]
    return (min(ends), max(ends)) if ends else (0.0, 1.0)


def _figure(value: Json) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1e15 else str(value)


def _visible(text: object) -> str:
    return visible(str(text))


def _line(text: object, limit: int = 200) -> str:
    return visible(clip(str(text), limit), newlines=False)


__all__ = ["MOST_BYTES", "clip", "render", "write_page"]
