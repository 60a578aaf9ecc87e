"""Ratings from pairwise comparisons: the Bradley-Terry model with Davidson's draws, fitted to all matches at once.

With d = theta_i - theta_j, in nats, and nu >= 0 for the whole pool,

    win : draw : loss = exp(d/2) : nu : exp(-d/2)

(R. R. Davidson, JASA 65 (1970), 317-328; nu = 0 is R. A. Bradley and M. E. Terry, Biometrika 39 (1952), 324-345). The
estimate is the maximum of likelihood times prior: theta ~ N(0, prior_sd^2) keeps perfect records finite, log nu ~
N(-1, 1) is there only if somebody drew. The log-posterior is concave, so there is one optimum, whatever the order of
matches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]  # scipy ships no types
from scipy.sparse import csgraph  # type: ignore[import-untyped]  # as above

from llm_arena.errors import ArenaError, UsageError
from llm_arena.rating.comparisons import DRAW, LOSS, WIN, Comparisons

Array = NDArray[np.float64]
Groups = NDArray[np.intp]

PRIOR_SD = 1.5
"""Standard deviation of strengths before any match, in nats; 260 points."""
_MAX_STEPS = 100
_LOG_NU_MEAN = -1.0


class RatingError(ArenaError, ArithmeticError):
    """No ratings can be given: the fit did not converge, or there is no finite one."""


@dataclass(frozen=True)
class Fit:
    """What `fit` found, for n entrants in the order of `entrants`."""

    entrants: tuple[str, ...]
    theta: Array
    """[n], in nats; the mean of each component is 0."""
    log_nu: float | None
    """None: nobody drew, nu is 0."""
    laplace: Array
    """[n, n]: inverse Hessian of the negative log-posterior, in nats^2. Takes matches as independent."""
    robust: Array
    """[n, n]: the same between two of the summed scores' outer products by block (the sandwich), in nats^2. Allows for
    matches of one block that hang together, and is too small where nothing surprising happened (perfect records)."""
    component: Groups
    """[n]: entrants that no chain of matches connects have different numbers."""
    reach: NDArray[np.bool_]
    """[n, n]: whether a chain of points taken leads from i to j: i took one from k, k from l, ... from j. Then the
    matches bound how far j can be above i; each reaches itself."""
    prior_sd: float | None
    iterations: int
    gradient: float
    """Largest entry of the log-posterior's gradient at the end."""

    def variances(self) -> Array:
        """Returns var(theta_i - theta_j) [n, n], in nats^2: the larger of the two. Infinite between components."""
        larger = np.maximum(_of_differences(self.laplace), _of_differences(self.robust))
        return np.where(self.component[:, None] == self.component[None, :], larger, np.inf)


def fit(games: Comparisons, *, prior_sd: float | None = PRIOR_SD) -> Fit:
    """Fits strengths to comparisons by damped Newton steps.

    Args:
        games: comparisons of one pool.
        prior_sd: standard deviation of the strengths' prior, in nats; None for no prior.

    Raises:
        UsageError: `prior_sd` is not above 0.
        RatingError: the fit did not converge, or there is no prior and the matches don't bound every difference.
    """
    if prior_sd is not None and not 0 < prior_sd < math.inf:
        raise UsageError(f"prior_sd={prior_sd}; expected a finite number above 0, in nats, e.g. {PRIOR_SD}")
    n = len(games.entrants)
    scored = _scored(games, n)
    reach = np.isfinite(csgraph.shortest_path(scored, unweighted=True)) if n else np.zeros((0, 0), np.bool_)
    if prior_sd is None and not reach.all():
        one, other = (games.entrants[int(place)] for place in np.argwhere(~reach)[0])
        raise RatingError(
            f'without a prior the strengths of "{one}" and "{other}" have no finite difference: no chain of points'
            f" taken leads from the first to the second; give prior_sd={PRIOR_SD}, or play more matches"
        )
    model = _Model(games, prior_sd)
    found, iterations, gradient = _newton(model, np.zeros(model.size))
    inverse = np.asarray(np.linalg.inv(model.slopes(found)[1]), np.float64)
    scores = model.block_scores(found)
    theta = found[:n]
    return Fit(
        entrants=games.entrants,
        theta=theta,
        log_nu=float(found[n]) if model.draws else None,
        laplace=inverse[:n, :n],
        robust=(inverse @ (scores.T @ scores).toarray() @ inverse)[:n, :n],
        component=_components(scored),
        reach=reach,
        prior_sd=prior_sd,
        iterations=iterations,
        gradient=gradient,
    )


def bootstrap(games: Comparisons, fitted: Fit, *, count: int, seed: int = 0) -> Array:
    """Returns `theta` [count, n] of refits with each block weighted by a draw from Exp(1): a check of the intervals.

    The Bayesian bootstrap (D. B. Rubin, Annals of Statistics 9 (1981), 130-134): no entrant ever vanishes from a
    sample, as it can when blocks are drawn with replacement. `fitted` is the fit to the matches as they are.

    Raises:
        RatingError: a refit did not converge.
    """
    rng = np.random.default_rng(seed)
    start = fitted.theta if fitted.log_nu is None else np.append(fitted.theta, fitted.log_nu)
    found = np.empty((count, len(fitted.theta)))
    for row in found:
        weight = games.weight * rng.exponential(size=games.blocks)[games.block]
        row[:] = _newton(_Model(replace(games, weight=weight), fitted.prior_sd), start)[0][: len(row)]
    return found


class _Model:
    """The negative log-posterior of x = (theta [n], log nu if somebody drew), from counts per pair of entrants."""

    def __init__(self, games: Comparisons, prior_sd: float | None) -> None:
        self._games = games
        self.n = len(games.entrants)
        self.draws = bool(np.any(games.outcome == DRAW))
        self.size = self.n + self.draws
        pairs, self._pair_of = np.unique(games.first * self.n + games.second, return_inverse=True)
        self._a, self._b = np.divmod(pairs, max(self.n, 1))
        cells = np.bincount(self._pair_of * 3 + games.outcome, games.weight, minlength=3 * len(pairs))
        self._counts = cells.reshape(-1, 3)
        self._total = self._counts.sum(axis=1)
        self._precision = 0.0 if prior_sd is None else prior_sd**-2
        self.scale = max(1.0, float(self._total.sum()))

    def loss(self, x: Array) -> float:
        """Returns the negative log-posterior, up to a constant."""
        logits, log_z = self._logits(x)
        value = float(self._total @ log_z - (self._counts * logits).sum())
        theta = x[: self.n]
        value += 0.5 * self._precision * float(theta @ theta)
        if not self._precision:  # shifting all strengths changes no likelihood: hold the sum at 0
            value += 0.5 * float(theta.sum()) ** 2
        if self.draws:
            value += 0.5 * float(x[-1] - _LOG_NU_MEAN) ** 2
        return value

    def slopes(self, x: Array) -> tuple[Array, Array]:
        """Returns the gradient [m] and the Hessian [m, m] of `loss`."""
        n, a, b = self.n, self._a, self._b
        p = self._probabilities(x)
        lead = (p[:, WIN] - p[:, LOSS]) / 2  # expected value of +1/2 for a win, -1/2 for a loss
        slope = (self._counts[:, WIN] - self._counts[:, LOSS]) / 2 - self._total * lead
        gradient = np.zeros(self.size)
        gradient[:n] = np.bincount(b, slope, n) - np.bincount(a, slope, n) + self._precision * x[:n]
        spread = self._total * ((p[:, WIN] + p[:, LOSS]) / 4 - lead**2)
        hessian = np.zeros((self.size, self.size))
        hessian[a, b] = hessian[b, a] = -spread
        hessian[np.arange(n), np.arange(n)] = np.bincount(a, spread, n) + np.bincount(b, spread, n) + self._precision
        if not self._precision:
            gradient[:n] += x[:n].sum()
            hessian[:n, :n] += 1.0
        if self.draws:
            drawn = p[:, DRAW]
            gradient[n] = self._total @ drawn - self._counts[:, DRAW].sum() + x[n] - _LOG_NU_MEAN
            cross = -self._total * lead * drawn
            hessian[:n, n] = np.bincount(a, cross, n) - np.bincount(b, cross, n)
            hessian[n, :n] = hessian[:n, n]
            hessian[n, n] = self._total @ (drawn * (1 - drawn)) + 1.0
        return gradient, hessian

    def block_scores(self, x: Array) -> sparse.csr_array:
        """Returns each block's gradient of the log-likelihood [blocks, m], without the prior's."""
        games = self._games
        p = self._probabilities(x)[self._pair_of]
        lead = (p[:, WIN] - p[:, LOSS]) / 2
        slope = games.weight * ((DRAW - games.outcome) / 2 - lead)  # +1/2 for a win, 0, -1/2
        values, rows, columns = [slope, -slope], [games.block] * 2, [games.first, games.second]
        if self.draws:
            values.append(games.weight * ((games.outcome == DRAW) - p[:, DRAW]))
            rows.append(games.block)
            columns.append(np.full(len(games.block), self.n))
        where = (np.concatenate(rows), np.concatenate(columns))
        return sparse.coo_array((np.concatenate(values), where), shape=(games.blocks, self.size)).tocsr()

    def _logits(self, x: Array) -> tuple[Array, Array]:
        """Returns the log-weights of win, draw, loss [pairs, 3] and the logs of their sums [pairs]."""
        half = (x[self._a] - x[self._b]) / 2
        logits = np.stack([half, np.full_like(half, x[-1] if self.draws else -np.inf), -half], axis=1)
        top = np.abs(half) if not self.draws else np.maximum(np.abs(half), x[-1])
        log_z = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        if not self.draws:
            logits[:, DRAW] = 0.0  # never counted; 0 * -inf is NaN
        return logits, log_z

    def _probabilities(self, x: Array) -> Array:
        """Returns the probabilities of win, draw, loss [pairs, 3]."""
        logits, log_z = self._logits(x)
        p: Array = np.exp(logits - log_z[:, None])
        if not self.draws:
            p[:, DRAW] = 0.0
        return p


def _newton(model: _Model, x: Array) -> tuple[Array, int, float]:
    """Returns the minimum of `model.loss`, the number of steps, and the gradient's largest entry there."""
    loss = model.loss(x)
    for step in range(_MAX_STEPS):
        gradient, hessian = model.slopes(x)
        largest = float(np.abs(gradient).max(initial=0.0))
        if largest <= 1e-10 * model.scale:
            return x, step, largest
        move = np.linalg.solve(hessian, gradient)
        size = 1.0
        while (after := model.loss(x - size * move)) > loss + 1e-12 * model.scale and size > 1e-8:
            size /= 2
        x, loss = x - size * move, after
    raise RatingError(
        f"the ratings did not converge in {_MAX_STEPS} steps (gradient {largest:.1e}); no table is made of them."
        " Give a smaller prior_sd, and report the match file"
    )


def _of_differences(covariance: Array) -> Array:
    own = np.diag(covariance)
    return np.maximum(own[:, None] + own[None, :] - 2 * covariance, 0.0)


def _scored(games: Comparisons, n: int) -> sparse.csr_array:
    """Returns who took a point from whom [n, n]: a win gives one direction, a draw both."""
    won, lost = games.outcome != LOSS, games.outcome != WIN
    takers = np.concatenate([games.first[won], games.second[lost]])
    givers = np.concatenate([games.second[won], games.first[lost]])
    return sparse.coo_array((np.ones(len(takers)), (takers, givers)), shape=(n, n)).tocsr()


def _components(scored: sparse.csr_array) -> Groups:
    """Returns the component [n] of each entrant, numbered by its first member."""
    if not scored.shape[0]:
        return np.zeros(0, np.intp)
    labels = csgraph.connected_components(scored, directed=True, connection="weak")[1].tolist()
    order = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    return np.array([order[label] for label in labels], np.intp)


__all__ = ["PRIOR_SD", "Array", "Fit", "RatingError", "bootstrap", "fit"]
