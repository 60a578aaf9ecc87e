"""Ratings from pairwise comparisons: the Bradley-Terry model with Davidson's draws, fitted to all matches at once.

With d = theta_i - theta_j + beta_s - beta_t for entrant i on seat s against j on t, in nats, and nu >= 0 for the pool,

    win : draw : loss = exp(d/2) : nu : exp(-d/2)

(R. R. Davidson, JASA 65 (1970), 317-328; nu = 0 is R. A. Bradley and M. E. Terry, Biometrika 39 (1952), 324-345; seats
as in R. R. Davidson and R. J. Beaver, Biometrics 33 (1977), 693-702). Even where everybody holds every seat equally
often, a model without beta shrinks all gaps and gives too narrow intervals when seats differ. There is no beta where no
two entrants met on other seats than before. The estimate is the maximum of likelihood times prior: theta ~ N(0,
prior_sd^2) keeps perfect records finite, beta ~ N(0, 1) has sum 0 at the maximum, log nu ~ N(-1, 1) is there only if
somebody drew. The log-posterior is concave, so there is one optimum, whatever the order of matches.

prior_sd is the one of `PRIOR_SDS` that has the largest marginal likelihood, by Laplace's approximation, times the
density of log prior_sd ~ N(log 1.5, 0.7^2): strengths that spread widely are shrunk less. The density is there because
the marginal likelihood of perfect records grows with prior_sd for ever, after three matches as after three hundred.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]  # scipy ships no types
from scipy.sparse import csgraph  # type: ignore[import-untyped]  # as above

from llm_arena.errors import ArenaError, UsageError
from llm_arena.rating.comparisons import DRAW, LOSS, WIN, Comparisons

Array = NDArray[np.float64]
Groups = NDArray[np.intp]

PRIOR_SDS = (1.5, 2.0, 2.5, 3.0, 4.0)
"""Standard deviations of strengths before any match that are tried, in nats; 1.5 is 260 points."""
PriorSd = float | Literal["fitted"]
"""A standard deviation of strengths in nats, or that of `PRIOR_SDS` which fits best."""
_PRIOR_SD_SPREAD = 0.7
_SEAT_SD = 1.0
_LOG_NU_MEAN, _LOG_NU_SD = -1.0, 1.0
_MAX_STEPS = 100


class RatingError(ArenaError, ArithmeticError):
    """No ratings can be given: the fit did not converge, or there is no finite one."""


@dataclass(frozen=True)
class Fit:
    """What `fit` found, for n entrants in the order of `entrants`."""

    entrants: tuple[str, ...]
    theta: Array
    """[n], in nats; the mean of each component is 0."""
    seats: tuple[str, ...]
    """Names of the s seats; none without a prior, or where no two entrants met on other seats than before: there only
    the model could tell seats from strengths."""
    beta: Array
    """[s]: what each seat is worth against the seats' mean, in nats."""
    beta_sd: Array
    """[s]: its standard error, from the larger of the two variances, as for strengths."""
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


def fit(games: Comparisons, *, prior_sd: PriorSd | None = "fitted") -> Fit:
    """Fits strengths, and what seats are worth, to comparisons by damped Newton steps.

    Args:
        games: comparisons of one pool.
        prior_sd: standard deviation of the strengths' prior, in nats; None for no prior, and then no beta either: plain
            Bradley-Terry with draws.

    Raises:
        UsageError: `prior_sd` is not above 0.
        RatingError: the fit did not converge, or there is no prior and the matches don't bound every difference.
    """
    if isinstance(prior_sd, str) and prior_sd != "fitted":
        raise UsageError(f'prior_sd={prior_sd!r}; expected a number above 0, in nats, or "fitted"')
    if isinstance(prior_sd, float | int) and not 0 < prior_sd < math.inf:
        raise UsageError(f"prior_sd={prior_sd}; expected a finite number above 0, in nats, e.g. {PRIOR_SDS[0]}")
    n = len(games.entrants)
    scored = _scored(games, n)
    reach = np.isfinite(csgraph.shortest_path(scored, unweighted=True)) if n else np.zeros((0, 0), np.bool_)
    if prior_sd is None and not reach.all():
        one, other = (games.entrants[int(place)] for place in np.argwhere(~reach)[0])
        raise RatingError(
            f'without a prior the strengths of "{one}" and "{other}" have no finite difference: no chain of points'
            f" taken leads from the first to the second; give prior_sd={PRIOR_SDS[0]}, or play more matches"
        )
    if prior_sd == "fitted":
        model, found, iterations, gradient = _best(games)
    else:
        model = _Model(games, prior_sd)
        found, iterations, gradient = _newton(model, np.zeros(model.size))
    inverse = np.asarray(np.linalg.inv(model.slopes(found)[1]), np.float64)
    scores = model.block_scores(found)
    robust = inverse @ (scores.T @ scores).toarray() @ inverse
    seats = slice(n, n + model.seats)
    beta = found[seats]
    return Fit(
        entrants=games.entrants,
        theta=found[:n],
        seats=games.seats[: model.seats],
        beta=beta - beta.mean() if len(beta) else beta,
        beta_sd=np.sqrt(np.maximum(*(variances_around_mean(each[seats, seats]) for each in (inverse, robust)))),
        log_nu=float(found[-1]) if model.draws else None,
        laplace=inverse[:n, :n],
        robust=robust[:n, :n],
        component=_components(scored),
        reach=reach,
        prior_sd=model.prior_sd,
        iterations=iterations,
        gradient=gradient,
    )


def bootstrap(games: Comparisons, fitted: Fit, *, count: int, seed: int = 0) -> Array:
    """Returns `theta` [count, n] of refits with each block weighted by a draw from Exp(1): a check of the intervals.

    The Bayesian bootstrap (D. B. Rubin, Annals of Statistics 9 (1981), 130-134): no entrant ever vanishes from a
    sample, as it can when blocks are drawn with replacement. `fitted` is the fit to the matches as they are; its
    prior_sd stays.

    Raises:
        RatingError: a refit did not converge.
    """
    rng = np.random.default_rng(seed)
    model = _Model(games, fitted.prior_sd)
    start = np.concatenate([fitted.theta, fitted.beta, [] if fitted.log_nu is None else [fitted.log_nu]])
    found = np.empty((count, len(fitted.theta)))
    for row in found:
        weighted = model.with_weight(games.weight * rng.exponential(size=games.blocks)[games.block])
        row[:] = _newton(weighted, start)[0][: len(row)]
    return found


def variances_around_mean(covariance: Array) -> Array:
    """Returns var(x_i - mean of all x) [k], from the covariance [k, k]."""
    if not len(covariance):
        return np.zeros(0)
    centre = np.eye(len(covariance)) - 1 / len(covariance)
    found: Array = np.maximum(0.0, np.diag(centre @ covariance @ centre))
    return found


class _Model:
    """The negative log-posterior of x = (theta [n], beta [seats], log nu if somebody drew).

    It works on cells: all comparisons of the same two entrants on the same two seats.
    """

    def __init__(self, games: Comparisons, prior_sd: float | None) -> None:
        self._games = games
        self.n = len(games.entrants)
        pairs, s = games.first * self.n + games.second, len(games.seats)
        keys = (pairs * s + games.first_seat) * s + games.second_seat
        _, examples, self._cell = np.unique(keys, return_index=True, return_inverse=True)
        changed = len(examples) > len(np.unique(pairs[examples]))
        self.seats = s if changed and prior_sd is not None else 0
        self.draws = bool(np.any(games.outcome == DRAW))
        self.size = self.n + self.seats + self.draws
        signed = [(games.first, 1.0), (games.second, -1.0)]
        if self.seats:
            signed += [(self.n + games.first_seat, 1.0), (self.n + games.second_seat, -1.0)]
        values = np.concatenate([np.full(len(examples), sign) for _, sign in signed])
        rows = np.tile(np.arange(len(examples)), len(signed))
        columns = np.concatenate([places[examples] for places, _ in signed])
        # d = lead @ (theta, beta) for each cell
        self._lead = sparse.coo_array((values, (rows, columns)), (len(examples), self.n + self.seats)).tocsr()
        self._precision = np.concatenate(
            [np.zeros(self.n), np.full(self.seats, _SEAT_SD**-2), np.full(int(self.draws), _LOG_NU_SD**-2)]
        )
        self._mean = np.append(np.zeros(self.n + self.seats), np.full(int(self.draws), _LOG_NU_MEAN))
        self._weigh(games.weight)
        self._hold(prior_sd)

    def with_weight(self, weight: Array) -> _Model:
        """Returns the same model with other weights [P] of the comparisons."""
        other = copy.copy(self)
        other._weigh(weight)
        return other

    def with_prior(self, prior_sd: float) -> _Model:
        """Returns the same model with another prior of the strengths."""
        other = copy.copy(self)
        other._hold(prior_sd)
        return other

    def _weigh(self, weight: Array) -> None:
        self._weight = weight
        cells = np.bincount(self._cell * 3 + self._games.outcome, weight, minlength=3 * self._lead.shape[0])
        self._counts = cells.reshape(-1, 3)
        self._total = self._counts.sum(axis=1)
        self.scale = max(1.0, float(self._total.sum()))

    def _hold(self, prior_sd: float | None) -> None:
        self.prior_sd = prior_sd
        self._precision = self._precision.copy()
        self._precision[: self.n] = 0.0 if prior_sd is None else prior_sd**-2

    def loss(self, x: Array) -> float:
        """Returns the negative log-posterior, up to a constant."""
        logits, log_z = self._logits(x)
        value = float(self._total @ log_z - (self._counts * logits).sum())
        value += 0.5 * float(self._precision @ (x - self._mean) ** 2)
        if self.prior_sd is None:  # shifting all strengths changes no likelihood: hold the sum at 0
            value += 0.5 * float(x[: self.n].sum()) ** 2
        return value

    def slopes(self, x: Array) -> tuple[Array, Array]:
        """Returns the gradient [m] and the Hessian [m, m] of `loss`."""
        k, lead = self.n + self.seats, self._lead
        p = self._probabilities(x)
        mean = (p[:, WIN] - p[:, LOSS]) / 2  # expected value of +1/2 for a win, -1/2 for a loss
        gradient = self._precision * (x - self._mean)
        gradient[:k] += lead.T @ (self._total * mean - (self._counts[:, WIN] - self._counts[:, LOSS]) / 2)
        spread = self._total * ((p[:, WIN] + p[:, LOSS]) / 4 - mean**2)
        hessian = np.diag(self._precision)
        hessian[:k, :k] += (lead.T @ (sparse.diags_array(spread) @ lead)).toarray()
        if self.prior_sd is None:
            gradient[: self.n] += x[: self.n].sum()
            hessian[: self.n, : self.n] += 1.0
        if self.draws:
            drawn = p[:, DRAW]
            gradient[k] += self._total @ drawn - self._counts[:, DRAW].sum()
            hessian[:k, k] = hessian[k, :k] = lead.T @ (-self._total * mean * drawn)
            hessian[k, k] += self._total @ (drawn * (1 - drawn))
        return gradient, hessian

    def evidence(self, x: Array) -> float:
        """Returns how well the prior fits: see the module; up to a constant, from the optimum `x`.

        Raises:
            TypeError: there is no prior.
        """
        if self.prior_sd is None:
            raise TypeError("a model without a prior has no marginal likelihood")
        likelihood = -self.loss(x) - self.n * math.log(self.prior_sd)
        likelihood -= 0.5 * float(np.linalg.slogdet(self.slopes(x)[1])[1])
        return likelihood - 0.5 * (math.log(self.prior_sd / PRIOR_SDS[0]) / _PRIOR_SD_SPREAD) ** 2

    def block_scores(self, x: Array) -> sparse.csr_array:
        """Returns each block's gradient of the log-likelihood [blocks, m], without the prior's."""
        games = self._games
        p = self._probabilities(x)[self._cell]
        slope = self._weight * ((DRAW - games.outcome) / 2 - (p[:, WIN] - p[:, LOSS]) / 2)  # +1/2 for a win, 0, -1/2
        shape = (games.blocks, self._lead.shape[0])
        found = sparse.coo_array((slope, (games.block, self._cell)), shape).tocsr() @ self._lead
        if not self.draws:
            return found
        more = np.bincount(games.block, self._weight * ((games.outcome == DRAW) - p[:, DRAW]), games.blocks)
        return sparse.hstack([found, sparse.csr_array(more[:, None])], format="csr")

    def _logits(self, x: Array) -> tuple[Array, Array]:
        """Returns the log-weights of win, draw, loss [cells, 3] and the logs of their sums [cells]."""
        half = self._lead @ x[: self.n + self.seats] / 2
        logits = np.stack([half, np.full_like(half, x[-1] if self.draws else -np.inf), -half], axis=1)
        top = np.abs(half) if not self.draws else np.maximum(np.abs(half), x[-1])
        log_z = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
        if not self.draws:
            logits[:, DRAW] = 0.0  # never counted; 0 * -inf is NaN
        return logits, log_z

    def _probabilities(self, x: Array) -> Array:
        """Returns the probabilities of win, draw, loss [cells, 3]."""
        logits, log_z = self._logits(x)
        p: Array = np.exp(logits - log_z[:, None])
        if not self.draws:
            p[:, DRAW] = 0.0
        return p


def _best(games: Comparisons) -> tuple[_Model, Array, int, float]:
    """Returns the model with the prior that fits best, and what `_newton` found for it."""
    model = _Model(games, PRIOR_SDS[0])
    found, best, start = None, -math.inf, np.zeros(model.size)
    for prior_sd in PRIOR_SDS:
        tried = model.with_prior(prior_sd)
        start, iterations, gradient = _newton(tried, start)
        # Of equals the first: without matches all are, and rounding must not decide.
        if (evidence := tried.evidence(start)) > best + 1e-6:
            found, best = (tried, start, iterations, gradient), evidence
    assert found is not None
    return found


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


__all__ = ["PRIOR_SDS", "Array", "Fit", "PriorSd", "RatingError", "bootstrap", "fit", "variances_around_mean"]
