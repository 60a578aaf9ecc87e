"""Numbers over steps, made small enough to draw: thinned to a few hundred places, smoothed, with round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LARGEST = 1e100
"""Values beyond this, of either sign, are taken as not finite: no chart could be drawn to their scale."""


@dataclass(frozen=True)
class Curve:
    """One metric: value by step. A value that is not finite is a gap."""

    steps: Floats
    "Step [N] of each value, rising."
    values: Floats
    "Value [N]."

    def finite(self) -> Floats:
        """Returns the finite values, in the order of their steps."""
        finite: Floats = self.values[np.isfinite(self.values)]
        return finite

    def mean_of_share(self, low: float, high: float) -> float:
        """Returns the mean of the finite values in a part of the run, e.g. (0.9, 1) for its last tenth.

        The part has at least one step. NaN if none of its values is finite.
        """
        count = len(self.values)
        first = min(int(low * count), max(count - 1, 0))
        part = self.values[first : max(first + 1, math.ceil(high * count))]
        part = part[np.isfinite(part)]
        return float(part.mean()) if len(part) else math.nan


@dataclass(frozen=True)
class Thinned:
    """A curve in B places. Each place stands for up to `per` steps that follow one another."""

    x: Floats
    "Middle step [B]."
    mean: Floats
    low: Floats
    "Lowest value [B] of the place's steps; `high` likewise."
    high: Floats
    per: int


def thin(curve: Curve, places: int) -> Thinned:
    """Returns a curve in at most `places` places; a place without a finite value holds NaN.

    Raises:
        ValueError: `places` is less than 1.
    """
    if places < 1:
        raise ValueError(f"thin got places={places}; expected at least 1")
    count = len(curve.values)
    per = max(1, math.ceil(count / places))
    padded = np.full((math.ceil(count / per), per), np.nan)
    padded.reshape(-1)[:count] = curve.values
    known = np.isfinite(padded)
    number = known.sum(axis=1)
    empty = number == 0
    mean = np.where(known, padded, 0.0).sum(axis=1) / np.maximum(number, 1)
    low = np.where(known, padded, np.inf).min(axis=1, initial=np.inf)
    high = np.where(known, padded, -np.inf).max(axis=1, initial=-np.inf)
    starts = np.arange(0, count, per)
    middle = (curve.steps[starts] + curve.steps[np.minimum(starts + per, count) - 1]) / 2
    for part in (mean, low, high):
        part[empty] = np.nan
    return Thinned(middle, mean, low, high, per)


def smooth(values: Floats, window: int) -> Floats:
    """Returns the centred mean over `window` values (an odd number), fewer at the ends.

    Gaps stay gaps and count in no mean.

    >>> smooth(np.array([0.0, 3.0, 6.0, np.nan]), 3)
    array([1.5, 3. , 4.5, nan])
    """
    reach = window // 2
    result = np.full(len(values), np.nan)
    for at in np.flatnonzero(np.isfinite(values)):
        near = values[max(0, at - reach) : at + reach + 1]
        result[at] = near[np.isfinite(near)].mean()
    return result


def ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """Returns about `count` round numbers that enclose [low, high], at least two and evenly spaced."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # flat, but for rounding
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Returns powers of ten that enclose [low, high], at least two and about `count`; both must be above 0."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    last = max(last, first + 1)
    stride = max(1, math.ceil((last - first) / count))
    return [10.0**power for power in range(first, last + stride, stride)]


__all__ = ["LARGEST", "Curve", "Floats", "Thinned", "log_ticks", "smooth", "thin", "ticks"]
