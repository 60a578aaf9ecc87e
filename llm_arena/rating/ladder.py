"""From a fit to what a leaderboard shows: points, intervals, and the ranks that the matches leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from llm_arena.errors import UnknownName, did_you_mean
from llm_arena.rating.bradley_terry import Array, Fit, variances_around_mean

Flags = NDArray[np.bool_]

POINTS_PER_NAT = 400 / math.log(10)
"""A lead of 400 points is odds of 10 to 1."""
BASE = 1000.0
"""Points of the anchor; without one, of the mean."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Rating:
    """One entrant's place."""

    entrant: str
    points: float
    half_width: float
    """Half of the 95 % interval, in points; 0 for the anchor. Against the anchor, or else against the mean."""
    rank_low: int
    """Best rank that the matches leave open, 1 is first; in its component."""
    rank_high: int
    component: int
    """Ratings of different components don't compare."""
    bounded_above: bool
    """False where the matches say only "at least": with an anchor, no chain of points taken leads from it to this one;
    without, nobody outside a group of equals took a point from the group."""
    bounded_below: bool
    """False where they say only "at most": the same in the other direction."""


def ladder(fitted: Fit, anchor: str | None = None) -> list[Rating]:
    """Returns the ratings, best first; by component, the anchor's first.

    Args:
        fitted: the fit.
        anchor: the entrant that has `BASE` points; None: the mean of each component has.

    Raises:
        UnknownName: the anchor is no entrant.
    """
    names = fitted.entrants
    if anchor is not None and anchor not in names:
        raise UnknownName(
            f'the anchor "{anchor}" is no entrant; there are: {", ".join(names) or "none"}.'
            + did_you_mean(anchor, names)
        )
    variances = fitted.variances()
    lead = fitted.theta[None, :] - fitted.theta[:, None]
    better, worse = rank_bounds(lead, NormalDist().inv_cdf(1 - shared_level(len(names))) * np.sqrt(variances))
    home = _home(fitted, anchor)
    found = []
    for label in sorted(set(fitted.component.tolist()), key=lambda number: (number != home, number)):
        members = np.flatnonzero(fitted.component == label)
        origin = float(_origin(fitted.theta, fitted, members, anchor))
        if anchor is not None and label == home:
            spread = variances[names.index(anchor), members].tolist()
        else:
            spread = _around_mean(fitted, members)
        above, below = _bounded(fitted, members, names.index(anchor) if anchor is not None and label == home else None)
        rows = [
            Rating(
                entrant=names[i],
                points=BASE + POINTS_PER_NAT * (float(fitted.theta[i]) - origin),
                half_width=NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) * POINTS_PER_NAT * math.sqrt(variance),
                rank_low=1 + int(better[i]),
                rank_high=len(members) - int(worse[i]),
                component=int(label),
                bounded_above=bool(above[place]),
                bounded_below=bool(below[place]),
            )
            for place, (i, variance) in enumerate(zip(members.tolist(), spread, strict=True))
        ]
        found += sorted(rows, key=lambda row: (-round(row.points, 6), row.entrant))
    return found


def bootstrap_ends(fitted: Fit, draws: Array, anchor: str | None = None) -> dict[str, tuple[float, float]]:
    """Returns the ends of each entrant's 95 % interval from refits, in points: a check of `Rating.half_width`.

    The ends are percentiles, moved out to the rating itself where they would leave it outside.

    Args:
        fitted: the fit to the matches as they are.
        draws: `theta` of refits [count, n], as `bootstrap` returns them.
        anchor: the entrant that has `BASE` points; None: the mean of each component has.
    """
    ends = {}
    for label in sorted(set(fitted.component.tolist())):
        members = np.flatnonzero(fitted.component == label)
        around = draws[:, members] - _origin(draws, fitted, members, anchor)[:, None]
        own = fitted.theta[members] - _origin(fitted.theta, fitted, members, anchor)
        low, high = np.quantile(around, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        low, high = np.minimum(low, own), np.maximum(high, own)
        for place, i in enumerate(members.tolist()):
            ends[fitted.entrants[i]] = (
                BASE + POINTS_PER_NAT * float(low[place]),
                BASE + POINTS_PER_NAT * float(high[place]),
            )
    return ends


def rank_bounds(lead: Array, margin: Array) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns how many are surely better, and how many surely worse, than each of n [n], [n].

    Sure is a difference above its margin. With margins for `shared_level(n)`, each row's rank interval holds its true
    rank with 95 % or more (M. Mogstad, J. P. Romano, A. M. Shaikh, D. Wilhelm, "Inference for ranks", Review of
    Economic Studies 91 (2024)).

    Args:
        lead: by how much column j is better than row i [n, n].
        margin: how far that may be luck [n, n]; infinite where two don't compare.
    """
    return (lead > margin).sum(axis=1), (-lead > margin).sum(axis=1)


def shared_level(n: int) -> float:
    """Returns the one-sided level of each of the n-1 comparisons of a row that share 5 % (Bonferroni)."""
    return (1 - CONFIDENCE) / 2 / max(n - 1, 1)


def _bounded(fitted: Fit, members: NDArray[np.intp], anchor: int | None) -> tuple[Flags, Flags]:
    """Returns whether the matches bound each member of a component from above, and from below."""
    if anchor is not None:
        return fitted.reach[anchor, members], fitted.reach[members, anchor]
    reach = fitted.reach[np.ix_(members, members)]
    taken_from: Flags = np.logical_or.reduce(reach & ~reach.T, axis=0)
    takes_from: Flags = np.logical_or.reduce(reach & ~reach.T, axis=1)
    # Who stands between others has somebody on each side; the two ends have not.
    return taken_from | ~takes_from, takes_from | ~taken_from


def _home(fitted: Fit, anchor: str | None) -> int:
    """Returns the component of the anchor; -1 without one."""
    return -1 if anchor is None else int(fitted.component[fitted.entrants.index(anchor)])


def _origin(theta: Array, fitted: Fit, members: NDArray[np.intp], anchor: str | None) -> Array:
    """Returns the strength of `BASE` points for a component [...], from strengths [..., n]."""
    if anchor is not None and fitted.component[members[0]] == _home(fitted, anchor):
        return theta[..., fitted.entrants.index(anchor)]
    mean: Array = theta[..., members].mean(axis=-1)
    return mean


def _around_mean(fitted: Fit, members: NDArray[np.intp]) -> list[float]:
    """Returns var(theta_i - mean of the members); for one alone, who has no matches, the prior's."""
    if len(members) == 1:
        return [fitted.prior_sd**2 if fitted.prior_sd is not None else 0.0]
    block = np.ix_(members, members)
    both = [variances_around_mean(covariance[block]) for covariance in (fitted.laplace, fitted.robust)]
    larger: list[float] = np.maximum(*both).tolist()
    return larger


__all__ = ["BASE", "CONFIDENCE", "POINTS_PER_NAT", "Rating", "bootstrap_ends", "ladder", "rank_bounds", "shared_level"]
