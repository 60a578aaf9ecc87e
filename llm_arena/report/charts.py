"""Charts as inline SVG: a line chart over steps, and an interval bar. No script, colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 14, 14, 34

_GRID = Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>')
_TICK = Markup('<text x="{:.1f}" y="{:.1f}" class="tick {}">{}</text>')
_DOT = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"><title>{}</title></circle>')

Point = tuple[float, float]


def line_chart(series: Mapping[str, Sequence[Point]], label: str, *, height: int = HEIGHT) -> Markup:
    """Returns an SVG line chart.

    Args:
        series: points (step, value) by name. A value that is not finite leaves a gap.
        label: what the chart shows, read out by screen readers.
        height: in SVG units; the width is 720 and scales with the page.
    """
    finite = [point for points in series.values() for point in points if all(map(math.isfinite, point))]
    if not finite:
        return Markup('<p class="note">no data</p>')
    x_ticks = _ticks(min(x for x, _ in finite), max(x for x, _ in finite), 8, whole=True)
    y_ticks = _ticks(min(y for _, y in finite), max(y for _, y in finite), 5)
    x_low, x_high = min(x for x, _ in finite), max(x for x, _ in finite)
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(point: Point) -> Point:
        across = 0.5 if x_high == x_low else (point[0] - x_low) / (x_high - x_low)
        up = (point[1] - y_low) / (y_high - y_low)
        return _LEFT + across * (WIDTH - _LEFT - _RIGHT), height - _BOTTOM - up * (height - _TOP - _BOTTOM)

    parts = [Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, height, label)]
    for tick in y_ticks:
        y = place((x_low, tick))[1]
        parts.append(_GRID.format(_LEFT, WIDTH - _RIGHT, y, y))
        parts.append(_TICK.format(_LEFT - 8, y + 4, "end", f"{tick:g}"))
    for tick in x_ticks:
        if x_low <= tick <= x_high:
            parts.append(_TICK.format(place((tick, y_low))[0], height - _BOTTOM + 18, "middle", f"{tick:g}"))
    parts.append(_TICK.format(WIDTH - _RIGHT, height - 1, "end axis", "step"))
    for index, (name, points) in enumerate(series.items()):
        parts.append(Markup('<g class="series s{}">').format(index % 6))
        for run in _runs(points):
            placed = [place(point) for point in run]
            parts.append(Markup('<polyline points="{}"/>').format(" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)))
            for (x, y), (step, value) in zip(placed, run, strict=True):
                parts.append(_DOT.format(x, y, f"{name} step {step:g}: {value:.4g}"))
        parts.append(Markup("</g>"))
    return Markup("").join([*parts, Markup("</svg>")])


def interval_bar(rate: float, low: float, high: float) -> Markup:
    """Returns a small SVG of a rate in [0, 1] with its interval; the middle line marks one half."""
    if not math.isfinite(rate):
        return Markup("")
    return Markup(
        '<svg class="bar" viewBox="0 0 160 16" role="img" aria-label="{:.2f}, interval {:.2f} to {:.2f}">'
        '<line class="grid" x1="4" x2="156" y1="8" y2="8"/><line class="half" x1="80" x2="80" y1="2" y2="14"/>'
        '<line class="span" x1="{:.1f}" x2="{:.1f}" y1="8" y2="8"/><circle cx="{:.1f}" cy="8" r="4"/></svg>'
    ).format(rate, low, high, 4 + 152 * low, 4 + 152 * high, 4 + 152 * rate)


def _runs(points: Sequence[Point]) -> list[list[Point]]:
    """Splits points where a value is missing, so that a gap stays a gap."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if all(map(math.isfinite, point)):
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Returns about `count` round numbers that enclose [low, high], at least two and evenly spaced."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # flat, but for rounding
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


__all__ = ["interval_bar", "line_chart"]
