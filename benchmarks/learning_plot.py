"""Curves of several seeds as a chart and a table; `learning.py` is the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from learning_kuhn import RESULTS, VARIANTS, Curve, read_curves
from markupsafe import Markup

from llm_arena.boards.manifest import write_whole
from llm_arena.report import curves as drawn
from llm_arena.report.charts import Axes, Frame

SEEDS = 3
"""Seeds of each variant; with fewer the table says so."""
BAR = 0.1
"""Chips that an anchored run shall stay below in its last quarter."""
UNIFORM = 11 / 24
"""What uniform play loses to a best response, in chips."""
FRAME = Frame(760, 380, top=34, bottom=40)
COLOURS = {"plain": "#c25200", "kl": "#0b62b0", "past": "#007d5a", "anchors": "#a8437f"}
DASHES = {"plain": "none", "kl": "7 3", "past": "2 3", "anchors": "9 3 2 3"}
_SHAPE = Markup('<path d="{}" fill="{}" fill-opacity=".16"/>')
_LINE = Markup('<path d="{}" fill="none" stroke="{}" stroke-width="2" stroke-dasharray="{}"/>')
_TEXT = Markup('<text x="{:.0f}" y="{:.0f}" class="tick" fill="{}">{}</text>')
_STYLE = Markup(
    "<style>.tick{font:11px sans-serif}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#e3e1da}"
    ".limit{stroke:#a93226;stroke-dasharray:4 3}</style>"
)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Draws the curves of all Kuhn runs and writes their table."""

    results: Path = RESULTS
    """Where the curves are, and where kuhn.svg and kuhn.md go."""

    def run(self) -> dict[str, Any]:
        """Draws, and returns the worst of the last quarter of each variant's seeds.

        Raises:
            UsageError: there are no curves, or such that can't be compared.
        """
        curves = by_variant(read_curves(self.results))
        write_whole(self.results / "kuhn.svg", chart(curves) + "\n")
        text = table(curves)
        write_whole(self.results / "kuhn.md", text)
        print(text)
        worst = {name: max(curve.worst for curve in runs) for name, runs in curves.items()}
        return {
            "worst_of_last_quarter": worst,
            "seeds": {name: len(runs) for name, runs in curves.items()},
            "kl_below_0.1": worst["kl"] < BAR if "kl" in worst else None,
            "chart": str(self.results / "kuhn.svg"),
        }


def by_variant(curves: Sequence[Curve]) -> dict[str, list[Curve]]:
    """Returns the curves of each variant; curves of one variant follow one another."""
    return {name: list(runs) for name, runs in groupby(curves, key=lambda curve: curve.variant)}


def band(runs: Sequence[Curve]) -> tuple[drawn.Floats, drawn.Floats]:
    """Returns the steps [N] that all runs have, and their values [runs, N] there."""
    known = [dict(run.points) for run in runs]
    steps = sorted(set.intersection(*(set(one) for one in known)))
    return np.array(steps, dtype=float), np.array([[one[step] for step in steps] for one in known])


def chart(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Returns an SVG: for each variant the mean over its seeds, in a band from the lowest to the highest."""
    bands = {name: band(runs) for name, runs in curves.items()}
    highest = max(float(values.max()) for _, values in bands.values())
    axes = Axes(
        FRAME,
        [drawn.Curve(steps, values.mean(axis=0)) for steps, values in bands.values()],
        drawn.ticks(0.0, highest, 5),
    )
    parts = [
        Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            FRAME.width, FRAME.height, f"Exploitability in chips over steps. {in_words(curves)}"
        ),
        _STYLE,
        Markup('<rect width="100%" height="100%" fill="#fff"/>'),
        axes.drawn(),
        _TEXT.format(FRAME.left, FRAME.height - 6, "#59626b", "exploitability in chips over steps; bands: all seeds"),
    ]
    right = FRAME.width - FRAME.right
    for value, what in ((BAR, f"bar {BAR}"), (UNIFORM, "uniform play")):
        if value < highest:
            y = axes.y(value)
            rule = Markup('<line class="limit" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
            parts.append(rule.format(FRAME.left, right, y, y))
            parts.append(_TEXT.format(right - 70, y - 4, "#a93226", what))
    for place, (name, (steps, values)) in enumerate(bands.items()):
        x = [axes.x(step) for step in steps]
        low, high, mean = ([axes.y(value) for value in line] for line in (values.min(0), values.max(0), values.mean(0)))
        parts += [
            _SHAPE.format(path(x + x[::-1], high + low[::-1]) + "Z", COLOURS[name]),
            _LINE.format(path(x, mean), COLOURS[name], DASHES[name]),
            _LINE.format(f"M{60 + 170 * place} 16h30", COLOURS[name], DASHES[name]),
            _TEXT.format(96 + 170 * place, 20, COLOURS[name], f"{name} (seeds: {len(curves[name])})"),
        ]
    return Markup("").join([*parts, Markup("</svg>")])


def path(x: Sequence[float], y: Sequence[float]) -> str:
    """Returns an SVG path through points."""
    return "M" + "L".join(f"{across:.1f} {down:.1f}" for across, down in zip(x, y, strict=True))


def in_words(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Says for each variant where its seeds end."""
    return "; ".join(
        f"{name}: last {min(run.last for run in runs):.3f} to {max(run.last for run in runs):.3f}"
        for name, runs in curves.items()
    )


def table(curves: Mapping[str, Sequence[Curve]]) -> str:
    """Returns the table of all runs in Markdown."""
    one = next(iter(curves.values()))[0]
    lines = [
        "# Kuhn poker: exploitability in chips",
        "",
        f"{one.steps} steps of {one.games_per_step} games. Uniform play has {UNIFORM:.3f}, an equilibrium 0. Judge by"
        " the worst of the last quarter. Seconds: steps times the median step's, on the machine as it was.",
        "",
        "| variant | seed | best | last | worst of the last quarter | illegal replies in the last step | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, runs in curves.items():
        for run in runs:
            lines.append(
                f"| {name} | {run.seed} | {run.best:.3f} | {run.last:.3f} | {run.worst:.3f} | {run.illegal_last:.1%} "
                f"| {run.seconds:.0f} |"
            )
    held = [f"{name} {sum(run.worst < BAR for run in runs)} of {len(runs)}" for name, runs in curves.items()]
    lines += ["", f"Below {BAR} chips in the whole last quarter, by seeds: {', '.join(held)}."]
    short = [f"{name} {len(curves.get(name, []))}" for name in VARIANTS if len(curves.get(name, [])) < SEEDS]
    if short:
        lines += ["", f"Not all runs were made. Seeds so far, of {SEEDS}: {', '.join(short)}."]
    return "\n".join(lines) + "\n"
