"""Charts as inline SVG: lines over steps, stacked areas, interval bars. No script; colours come from the page's style.

Text in a chart is escaped here, and made visible, since names of metrics and entrants can be anybody's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from llm_arena.report.curves import Curve, Floats, Thinned, log_ticks, smooth, thin, ticks
from llm_arena.report.text import visible

MOST_SERIES = 6
"""As many as the page has colours and dashes that can be told apart."""

_RULE = Markup('<line class="{}" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>')
_TICK = Markup('<text x="{:.1f}" y="{:.1f}" class="tick {}">{}</text>')
_PATH = Markup('<path class="{}" d="{}"/>')
NO_DATA = Markup('<p class="note">no data</p>')


@dataclass(frozen=True)
class Frame:
    """Size and margins of a chart, in SVG units; it scales with the page."""

    width: int
    height: int
    left: int = 50
    right: int = 12
    top: int = 10
    bottom: int = 24
    x_ticks: int = 8
    y_ticks: int = 5
    places: int = 240
    "Into how many places a long run is thinned."


WIDE = Frame(760, 250)
NARROW = Frame(380, 250, x_ticks=4, places=120)
SMALL = Frame(300, 150, left=46, x_ticks=3, y_ticks=3, places=120)


def line_chart(
    series: Mapping[str, Curve],
    label: str,
    *,
    frame: Frame = WIDE,
    log: bool = False,
    limit: float | None = None,
    zero: bool = False,
) -> Markup:
    """Returns an SVG line chart.

    Single steps are faint: points, or from a few hundred steps on a band from the lowest to the highest. The line is
    their moving mean.

    Args:
        series: curves by name; the first six are drawn.
        label: what the chart shows, for screen readers.
        frame: its size.
        log: a logarithmic axis; values of 0 and less are drawn at its foot.
        limit: where to draw a line across, e.g. a tolerance.
        zero: whether the axis reaches down to 0.
    """
    thinned = {name: thin(curve, frame.places) for name, curve in list(series.items())[:MOST_SERIES]}
    spans = [part for one in thinned.values() for part in (one.low, one.high)]
    finite = np.concatenate([part[np.isfinite(part)] for part in spans]) if spans else np.empty(0)
    finite = finite[finite > 0] if log and len(finite) else finite
    if not len(finite):
        return NO_DATA
    reached = [value for value in (limit, 0.0 if zero else None) if value is not None]
    low, high = min(float(finite.min()), *reached, math.inf), max(float(finite.max()), *reached, -math.inf)
    marks = log_ticks(low, high, frame.y_ticks) if log else ticks(low, high, frame.y_ticks)
    axes = Axes(frame, list(series.values()), marks, log=log)
    parts = [_open(frame, f"{label}. {_in_words(series)}", "chart"), axes.drawn()]
    if limit is not None:
        y = axes.y(limit)
        parts.append(_RULE.format("limit", frame.left, frame.width - frame.right, y, y))
    for index, one in enumerate(thinned.values()):
        parts.append(Markup('<g class="s{}">{}</g>').format(index, _curve(one, axes)))
    return Markup("").join([*parts, Markup("</svg>")])


def stacked_chart(series: Mapping[str, Curve], label: str, *, frame: Frame = SMALL) -> Markup:
    """Returns an SVG chart of parts that make a sum, stacked in the order given; a missing part counts as 0."""
    shown = [thin(curve, frame.places) for curve in list(series.values())[:MOST_SERIES]]
    if not shown or not any(np.isfinite(one.mean).any() for one in shown):
        return NO_DATA
    parts = np.stack([np.where(np.isfinite(one.mean), one.mean, 0.0).clip(0) for one in shown])
    tops = parts.cumsum(axis=0)
    axes = Axes(frame, list(series.values()), ticks(0.0, float(tops.max()) or 1.0, frame.y_ticks))
    drawn = [_open(frame, f"{label}. {_in_words(series)}", "chart"), axes.drawn()]
    below = np.zeros(parts.shape[1])
    for index, top in enumerate(tops):
        drawn.append(Markup('<g class="s{}">{}</g>').format(index, _band("area", shown[0].x, below, top, axes)))
        below = top
    return Markup("").join([*drawn, Markup("</svg>")])


class Axes:
    """The scales of a chart, and their grid and figures."""

    def __init__(self, frame: Frame, curves: Sequence[Curve], marks: Sequence[float], *, log: bool = False) -> None:
        self._frame, self._marks, self._log = frame, marks, log
        known = [curve.steps for curve in curves if len(curve.steps)]
        self._low = min(float(steps.min()) for steps in known)
        self._high = max(float(steps.max()) for steps in known)
        self._foot, self._head = self._scaled(marks[0]), self._scaled(marks[-1])

    def x(self, step: float) -> float:
        """Returns where a step is, in SVG units from the left."""
        across = 0.5 if self._high == self._low else (step - self._low) / (self._high - self._low)
        return self._frame.left + across * (self._frame.width - self._frame.left - self._frame.right)

    def y(self, value: float) -> float:
        """Returns where a value is, in SVG units from the top."""
        frame = self._frame
        up = (self._scaled(max(value, self._marks[0])) - self._foot) / (self._head - self._foot)
        return frame.height - frame.bottom - up * (frame.height - frame.top - frame.bottom)

    def drawn(self) -> Markup:
        """Returns the grid and the figures."""
        frame = self._frame
        parts = []
        for mark in self._marks:
            y = self.y(mark)
            parts += [
                _RULE.format("grid", frame.left, frame.width - frame.right, y, y),
                _TICK.format(frame.left - 6, y + 4, "end", short(mark)),
            ]
        for mark in ticks(self._low, self._high, frame.x_ticks, whole=True):
            if self._low <= mark <= self._high:
                x = self.x(mark)
                anchor = "end" if x > frame.width - frame.right - 16 else "middle"
                parts.append(_TICK.format(x, frame.height - frame.bottom + 16, anchor, short(mark)))
        return Markup("").join(parts)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else value


def interval_bar(value: float, low: float, high: float, *, scale: tuple[float, float] = (0.0, 1.0)) -> Markup:
    """Returns a small SVG of a value with its interval as dot and bar; the dashed line marks the middle of the scale.

    Args:
        value: the estimate.
        low: lower end of the interval.
        high: its upper end.
        scale: what the left and the right edge stand for.
    """
    if not all(map(math.isfinite, (value, low, high, *scale))) or scale[1] <= scale[0]:
        return Markup("")

    def x(number: float) -> float:
        return 5 + 150 * min(1.0, max(0.0, (number - scale[0]) / (scale[1] - scale[0])))

    return Markup(
        '<svg class="bar" viewBox="0 0 160 16" role="img" aria-label="{}, interval {} to {}">'
        '<line class="grid" x1="5" x2="155" y1="8" y2="8"/><line class="half" x1="80" x2="80" y1="1" y2="15"/>'
        '<line class="span" x1="{:.1f}" x2="{:.1f}" y1="8" y2="8"/><circle cx="{:.1f}" cy="8" r="4.5"/></svg>'
    ).format(short(value), short(low), short(high), x(low), x(high), x(value))


def token_strip(logprobs: Sequence[float]) -> Markup:
    """Returns a small SVG with a bar per token, the taller the more surprising: -log p, full height from 8 nats on."""
    known = [min(max(-value, 0.0), 8.0) if math.isfinite(value) else 0.0 for value in logprobs]
    if not known:
        return Markup("")
    path = "".join(f"M{3 * at + 1.5:g} 16V{16 - 1 - 15 * height / 8:.1f}" for at, height in enumerate(known))
    label = f"surprise of {len(known)} tokens, mean {sum(known) / len(known):.2f} nats"
    return Markup(
        '<svg class="strip" viewBox="0 0 {} 16" width="{}" height="16" preserveAspectRatio="none" role="img" '
        'aria-label="{}"><title>{}</title><path d="{}"/></svg>'
    ).format(3 * len(known), 3 * len(known), label, label, path)


def short(value: float) -> str:
    """Returns a number in few characters: `0.25`, `1e-04`, `12,000`, `3.5M`."""
    size = abs(value)
    if not math.isfinite(value):
        return "-"
    if size >= 1e6:
        return f"{value / 1e6:.3g}M" if size < 1e9 else f"{value:.0e}"
    if size >= 1e3:
        return f"{value:,.0f}"
    return f"{value:.1e}".replace(".0e", "e") if 0 < size < 1e-3 else f"{value:.3g}"


def _curve(one: Thinned, axes: Axes) -> Markup:
    window = len(one.x) // 24 * 2 + 1
    parts = []
    if one.per > 1:
        parts.append(_band("band", one.x, one.low, one.high, axes))
    else:
        parts.append(_PATH.format("dots", _dots(one.x, one.mean, axes)))
    mean = smooth(one.mean, window)
    parts.append(_PATH.format("line", _line(one.x, mean, axes)))
    lone = [run[0] for run in _runs(mean) if len(run) == 1]  # a line of one place can't be seen
    if lone:
        parts.append(_PATH.format("lone", _dots(one.x[lone], mean[lone], axes)))
    return Markup("").join(parts)


def _line(x: Floats, values: Floats, axes: Axes) -> str:
    return "".join(
        "M" + "L".join(f"{axes.x(x[at]):.1f} {axes.y(values[at]):.1f}" for at in run) for run in _runs(values)
    )


def _band(kind: str, x: Floats, low: Floats, high: Floats, axes: Axes) -> Markup:
    shapes = []
    for run in _runs(high):
        if len(run) == 1:  # one step is drawn as a column, for an area without width can't be seen
            left, right = axes.x(x[run[0]]) - 4, axes.x(x[run[0]]) + 4
            corners = [(left, high[run[0]]), (right, high[run[0]]), (right, low[run[0]]), (left, low[run[0]])]
        else:
            corners = [(axes.x(x[at]), high[at]) for at in run] + [(axes.x(x[at]), low[at]) for at in reversed(run)]
        shapes.append("M" + "L".join(f"{across:.1f} {axes.y(value):.1f}" for across, value in corners) + "Z")
    return _PATH.format(kind, "".join(shapes))


def _runs(values: Floats) -> list[list[int]]:
    """Returns the indices of finite values, cut where one is missing, so that a gap stays a gap."""
    at = np.flatnonzero(np.isfinite(values))
    cuts = np.flatnonzero(np.diff(at) > 1) + 1
    return [part.tolist() for part in np.split(at, cuts) if len(part)]


def _dots(x: Floats, values: Floats, axes: Axes) -> str:
    return "".join(f"M{axes.x(x[at]):.1f} {axes.y(values[at]):.1f}h0" for at in np.flatnonzero(np.isfinite(values)))


def _in_words(series: Mapping[str, Curve]) -> str:
    """Says where each curve begins and ends, for those who can't see it."""
    said = []
    for name, curve in list(series.items())[:MOST_SERIES]:
        values = curve.finite()
        if len(values):
            span = f"lowest {short(values.min())}, highest {short(values.max())}"
            said.append(f"{name}: from {short(values[0])} to {short(values[-1])}, {span}")
    return "; ".join(said)


def _open(frame: Frame, label: str, kind: str) -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        kind, frame.width, frame.height, visible(label, newlines=False)
    )


__all__ = [
    "MOST_SERIES",
    "NARROW",
    "SMALL",
    "WIDE",
    "Frame",
    "interval_bar",
    "line_chart",
    "short",
    "stacked_chart",
    "token_strip",
]
