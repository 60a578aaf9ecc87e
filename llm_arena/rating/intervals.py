"""Means and shares with 95 % intervals, where results of one start hang together.

What is measured on one start (the same deal, the same topic) is a cluster: its results share luck, so that counting
them as independent makes intervals too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from scipy import special  # type: ignore[import-untyped]  # scipy ships no types

from llm_arena.rating.counts import wilson

CONFIDENCE = 0.95
_DIGITS = 9
"""Decimals of a spread: 1.2 added up and divided again is not 1.2, and that is no spread."""

ByStart = Mapping[int, Sequence[float]]
"""Results by the number of their start; each has at least one."""


class Mean(msgspec.Struct, frozen=True, kw_only=True):
    """A mean and how sure it is."""

    mean: float
    half_width: float | None
    "Half of the 95 % interval; None where the starts' results are all the same, which says nothing of their spread."
    n: int
    starts: int

    @property
    def low(self) -> float | None:
        """Lower end of the interval."""
        return None if self.half_width is None else self.mean - self.half_width

    @property
    def high(self) -> float | None:
        """Upper end of the interval."""
        return None if self.half_width is None else self.mean + self.half_width


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A share of results, such as a win rate, with its 95 % interval."""

    share: float
    low: float
    high: float
    n: int
    starts: int


def clustered_mean(values: ByStart) -> Mean | None:
    """Returns the mean over results, with starts as clusters; None without a result.

    With G starts, n results x and their mean m, the standard error is
    sqrt(G/(G-1) * sum over starts of (sum of its x - m)^2) / n, and half the interval is that times Student's t with
    G-1 degrees of freedom (A. C. Cameron, D. L. Miller, Journal of Human Resources 50 (2015), 317-372, section II).
    """
    n, starts = sum(map(len, values.values())), len(values)
    if not n:
        return None
    mean = math.fsum(value for group in values.values() for value in group) / n
    variance = _variance(values, mean, n)
    half = _t(starts) * math.sqrt(variance) if variance else None
    return Mean(mean=mean, half_width=half, n=n, starts=starts)


def paired_difference(first: ByStart, second: ByStart) -> Mean | None:
    """Returns by how much the first's results are above the second's, on the starts that both have; None without one.

    Each start has one difference d, of its two means; the result is the mean of d, plus and minus Student's t with G-1
    degrees of freedom times sd(d) / sqrt(G). What a start gives to both cancels, so that this is sharper than two
    intervals side by side.
    """
    shared = [start for start in first if start in second]
    if not shared:
        return None
    gaps = {start: [_mean(first[start]) - _mean(second[start])] for start in shared}
    return clustered_mean(gaps)  # with one result for each start its formula is this one


def clustered_share(values: ByStart) -> Share | None:
    """Returns the mean of results between 0 and 1 with Wilson's interval; None without a result.

    n results of starts that hang together are worth fewer: Wilson's interval is taken for n / max(1, d) results, where
    d is the variance of the share by `clustered_mean` over p(1-p)/n, that of independent results (the design effect:
    E. L. Korn, B. I. Graubard, Survey Methodology 24 (1998), 193-201). A draw is half a win.
    """
    n = sum(map(len, values.values()))
    if not n:
        return None
    share = math.fsum(value for group in values.values() for value in group) / n
    independent = share * (1 - share) / n
    effect = max(1.0, _variance(values, share, n) / independent) if independent > 0 else 1.0
    low, high = wilson(share * n / effect, n / effect, CONFIDENCE)
    return Share(share=share, low=low, high=high, n=n, starts=len(values))


def _variance(values: ByStart, mean: float, n: int) -> float:
    """Returns the squared standard error; 0 with fewer than two starts, or if all starts gave the same."""
    starts = len(values)
    if starts < 2:
        return 0.0
    squares = math.fsum(round(math.fsum(group) - mean * len(group), _DIGITS) ** 2 for group in values.values())
    return starts / (starts - 1) * squares / n**2


def _t(starts: int) -> float:
    return float(special.stdtrit(starts - 1, 0.5 + CONFIDENCE / 2))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


__all__ = ["ByStart", "Mean", "Share", "clustered_mean", "clustered_share", "paired_difference"]
