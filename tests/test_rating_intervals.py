"""Intervals and rank intervals: worked by hand, against simulations, and their check by refits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from llm_arena.rating.bradley_terry import Fit, bootstrap, fit
from llm_arena.rating.comparisons import comparisons
from llm_arena.rating.ladder import POINTS_PER_NAT, bootstrap_ends, ladder, shared_level
from rating_parts import Result, by_name, fitted, match, matches, simulate


def test_the_laplace_interval_of_two_by_hand() -> None:
    # n games at p: the gap has curvature n p (1-p); without prior its variance is the inverse.
    found = fitted([("A", "B", 30, 0, 10)], prior_sd=None)
    own = found.laplace
    assert own[0, 0] + own[1, 1] - 2 * own[0, 1] == pytest.approx(1 / (40 * 0.75 * 0.25))


def test_matches_that_copy_each_other_widen_the_interval() -> None:
    # Ten blocks of ten equal matches say no more than ten matches: the sandwich by block is ten times as wide.
    rows = [
        match({"A": 1 if b < 7 else 2, "B": 2 if b < 7 else 1}, block=str(b), number=b * 10 + k)
        for b in range(10)
        for k in range(10)
    ]
    together, apart = (
        fit(comparisons(rows), prior_sd=None),
        fit(comparisons(matches([("A", "B", 70, 0, 30)])), prior_sd=None),
    )
    ratio = together.variances()[0, 1] / apart.variances()[0, 1]
    assert ratio == pytest.approx(10, rel=0.01)


def test_draws_alone_leave_the_models_own_variance() -> None:
    # Six draws and d = 0: every block's score is 0, and so is the sandwich. P(draw) = nu/(nu + 2) solves
    # 6 (1 - P) = log nu + 1, and the gap's curvature is 6 (1-P)/4.
    found = fitted([("A", "B", 0, 6, 0)], prior_sd=None)
    log_nu = scipy.optimize.brentq(lambda x: 6 * 2 / (math.exp(x) + 2) - x - 1, -1, 5, xtol=1e-14)
    curvature = 6 * 2 / (math.exp(log_nu) + 2) / 4
    assert found.log_nu == pytest.approx(log_nu)
    assert np.abs(found.robust[:2, :2]).max() < 1e-15
    assert found.variances()[0, 1] == pytest.approx(1 / curvature, rel=1e-9)


def test_copies_widen_the_interval_around_the_mean_by_hand() -> None:
    # Ten blocks of ten copies, seven for A: H = 100 * 0.21 = 21, squared block scores 7 * 3^2 + 3 * 7^2 = 210, so the
    # gap has variance 210 / 21^2, each entrant a quarter of it around the mean of two.
    rows = [
        match({"A": 1 if b < 7 else 2, "B": 2 if b < 7 else 1}, block=str(b), number=b * 10 + k)
        for b in range(10)
        for k in range(10)
    ]
    for row in ladder(fit(comparisons(rows), prior_sd=None)):
        assert row.half_width == pytest.approx(1.959964 * POINTS_PER_NAT * math.sqrt(210 / 21**2 / 4), rel=1e-5)


def made_up(theta: Sequence[float], variance: float) -> Fit:
    """A fit in which all gaps have the variance 2 * `variance`."""
    n = len(theta)
    return Fit(
        entrants=tuple("ABCDEFGH"[:n]),
        theta=np.array(theta),
        seats=(),
        beta=np.zeros(0),
        beta_sd=np.zeros(0),
        log_nu=None,
        laplace=variance * np.eye(n),
        robust=np.zeros((n, n)),
        component=np.zeros(n, np.intp),
        reach=np.ones((n, n), np.bool_),
        prior_sd=1.5,
        iterations=1,
        gradient=0.0,
    )


def test_a_rows_comparisons_share_five_percent() -> None:
    assert [shared_level(n) for n in (1, 2, 3, 6)] == pytest.approx([0.025, 0.025, 0.0125, 0.005])
    # Gaps of standard error 1. Alone a gap is sure from 1.960 up; with two per row from 2.241, with three from 2.394.
    for lead, n, ranks in (
        (1.95, 2, [(1, 2), (1, 2)]),
        (1.97, 2, [(1, 1), (2, 2)]),
        (2.23, 3, [(1, 2), (1, 3), (2, 3)]),
        (2.25, 3, [(1, 1), (2, 2), (3, 3)]),
        (2.38, 4, [(1, 2), (1, 3), (2, 4), (3, 4)]),
        (2.40, 4, [(1, 1), (2, 2), (3, 3), (4, 4)]),
    ):
        rows = ladder(made_up([-lead * place for place in range(n)], 0.5))
        assert [(row.rank_low, row.rank_high) for row in rows] == ranks


def test_an_interval_of_refits_is_moved_out_to_the_rating() -> None:
    found = made_up([0.5, -0.5], 0.5)
    ends = bootstrap_ends(found, np.array([[1.0, -1.0], [2.0, -2.0]]))
    # The middle 95 % of {1, 2} are 1.025 to 1.975, all above A's 0.5 and, turned round, below B's.
    assert ends["A"] == pytest.approx((1000 + 0.5 * POINTS_PER_NAT, 1000 + 1.975 * POINTS_PER_NAT))
    assert ends["B"] == pytest.approx((1000 - 1.975 * POINTS_PER_NAT, 1000 - 0.5 * POINTS_PER_NAT))


def test_strengths_are_recovered_and_intervals_hold_them() -> None:
    theta = {"A": 0.9, "B": 0.3, "C": 0.0, "D": -0.2, "E": -1.0}
    rng = np.random.default_rng(11)
    inside = total = ranks = 0
    errors = []
    for _ in range(80):
        rows = by_name(ladder(fit(comparisons(simulate(rng, theta, 20)))))
        mean = sum(theta.values()) / len(theta)
        for place, (name, value) in enumerate(theta.items(), start=1):
            error = rows[name].points - (1000 + POINTS_PER_NAT * (value - mean))
            errors.append(error)
            inside += abs(error) <= rows[name].half_width
            ranks += rows[name].rank_low <= place <= rows[name].rank_high
            total += 1
    assert 0.92 <= inside / total <= 0.99
    assert ranks / total >= 0.95
    assert abs(np.mean(errors)) < 1e-6
    assert np.std(errors) < 45


@pytest.mark.parametrize("sd, first", [(1.0, 1.5), (2.0, 0.0)])
def test_intervals_hold_with_a_first_move_advantage_and_with_far_strengths(sd: float, first: float) -> None:
    # Without beta 0.7 of the first hold, with a prior of 1.5 for all 0.92 of the second.
    rng = np.random.default_rng(2)
    inside = total = 0
    shifts = []
    for _ in range(40):
        theta = {name: float(value) for name, value in zip("ABCDEFGH", rng.normal(scale=sd, size=8), strict=True)}
        found = fit(comparisons(simulate(rng, theta, 10, first=first, nu=0.0, luck=0.0)))
        mean = sum(theta.values()) / len(theta)
        for row in ladder(found):
            error = row.points - 1000 - POINTS_PER_NAT * (theta[row.entrant] - mean)
            inside += abs(error) <= row.half_width
            total += 1
        shifts.append(abs(found.beta[0] - first / 2) / found.beta_sd[0])
    assert 0.93 <= inside / total <= 0.99
    assert np.mean(np.array(shifts) < 1.96) >= 0.85


RARE: list[Result] = [("A", "B", 30, 0, 20), ("A", "C", 25, 0, 25), ("B", "C", 24, 0, 26), ("N", "A", 2, 0, 0)]


def test_a_bootstrap_of_a_rare_entrant_is_finite_and_leaves_the_ratings_alone() -> None:
    # betagouv/ComparIA PR #470
    games = comparisons(matches(RARE))
    found = fit(games)
    before = found.theta.copy()
    draws = {seed: bootstrap(games, found, count=200, seed=seed) for seed in (0, 1)}
    assert np.isfinite(draws[0]).all()
    assert (found.theta == before).all()
    assert (draws[0] == bootstrap(games, found, count=200, seed=0)).all()
    assert (draws[0] != draws[1]).any()
    rows = by_name(ladder(found))
    assert rows["N"].half_width > rows["A"].half_width
    for anchor in (None, "B"):
        shown, ends = by_name(ladder(found, anchor)), bootstrap_ends(found, draws[0], anchor)
        assert all(ends[name][0] <= row.points <= ends[name][1] for name, row in shown.items())
    assert ends["B"] == (1000, 1000)
    assert ends["N"][1] - ends["N"][0] > ends["A"][1] - ends["A"][0]
    # Where data is plenty, both ways agree.
    assert draws[0][:, 0].std() == pytest.approx(math.sqrt(found.robust[0, 0]), rel=0.35)
