"""What seats are worth, and the prior that the matches choose."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from llm_arena.rating import MatchRow
from llm_arena.rating.bradley_terry import _Model, _newton, fit
from llm_arena.rating.comparisons import comparisons
from rating_parts import PERFECT, fitted, matches, points, random_rows, simulate, swapped


def test_order_and_names_of_seats_play_no_part() -> None:
    rows = random_rows(5)
    new = {"player_0": "z", "player_1": "m", "player_2": "a", "player_3": "player_0"}
    other = [
        msgspec.structs.replace(row, seats={new[name]: seat for name, seat in list(row.seats.items())[::-1]})
        for row in rows[::-1]
    ]
    one, two = fit(comparisons(rows)), fit(comparisons(other))
    assert two.theta.tolist() == pytest.approx(one.theta.tolist(), abs=1e-8)
    worth = dict(zip(two.seats, two.beta.tolist(), strict=True))
    assert [worth[new[seat]] for seat in one.seats] == pytest.approx(one.beta.tolist(), abs=1e-8)
    assert two.prior_sd == one.prior_sd


@pytest.mark.parametrize("rows", [matches([("A", "B", 3, 0, 1)] * 2), swapped([("A", "B", 3, 0, 1)])])
def test_without_prior_seats_take_nothing_from_the_gap(rows: list[MatchRow]) -> None:
    found = points(rows, prior_sd=None)
    assert found["A"] - found["B"] == pytest.approx(190.85, abs=0.005)
    assert fit(comparisons(rows), prior_sd=None).seats == ()
    # A beats B from both seats and B wins once from the first: still bounded, and still the log of the odds.
    mixed = [*swapped([("A", "B", 2, 0, 0)]), *matches([("B", "A", 1, 0, 0)])]
    found = points(mixed, prior_sd=None)
    assert found["A"] - found["B"] == pytest.approx(400 * math.log10(4), abs=0.005)


def test_where_nobody_changes_seats_no_win_is_the_seats() -> None:
    one_sided, both = fit(comparisons(matches(PERFECT))), fit(comparisons(swapped(PERFECT)))
    assert (one_sided.seats, one_sided.beta.tolist()) == ((), [])
    assert both.seats == ("player_0", "player_1")
    assert both.beta.tolist() == pytest.approx([0, 0], abs=1e-9)


def test_what_a_seat_is_worth_by_hand() -> None:
    # Two equals change seats; the first seat wins 60 of 80. With beta = (b, -b), P(first wins) = 1/(1 + exp(-2b)), and
    # the log-posterior's slope 2 (60 - 80 P) - 2b is 0 at the optimum; its curvature is 320 P (1-P) + 2.
    first = matches([("A", "B", 30, 0, 10), ("B", "A", 30, 0, 10)])
    found = fit(comparisons(first), prior_sd=1.5)
    b = scipy.optimize.brentq(lambda b: 60 - 80 / (1 + math.exp(-2 * b)) - b, 0, 2, xtol=1e-14)
    p = 1 / (1 + math.exp(-2 * b))
    assert found.beta.tolist() == pytest.approx([b, -b], abs=1e-9)
    assert found.theta.tolist() == pytest.approx([0, 0], abs=1e-9)
    curvature = 320 * p * (1 - p) + 2
    assert found.beta_sd.tolist() == pytest.approx([curvature**-0.5] * 2, rel=1e-6)
    # Copies of one match in a block: the sandwich sums scores before it squares them.
    copied = [msgspec.structs.replace(row, block=str(number // 10)) for number, row in enumerate(first)]
    squares = 6 * (10 * 2 * (1 - p)) ** 2 + 2 * (10 * 2 * p) ** 2
    assert fit(comparisons(copied), prior_sd=1.5).beta_sd[0] == pytest.approx(squares**0.5 / curvature, rel=1e-6)


def test_seats_that_decide_everything_leave_strengths_finite_and_equal() -> None:
    found = fit(comparisons(swapped([("A", "B", 5, 0, 0)])[:5] + matches([("B", "A", 5, 0, 0)])))
    assert found.theta.tolist() == pytest.approx([0, 0], abs=1e-9)
    assert 0.5 < found.beta[0] < 5


@pytest.mark.parametrize("sd, low, high", [(0.3, 1.5, 1.5), (2.5, 2.0, 3.0), (8.0, 3.0, 4.0)])
def test_the_prior_follows_the_spread_of_strengths(sd: float, low: float, high: float) -> None:
    rng = np.random.default_rng(3)
    theta = {f"e{i:02}": float(value) for i, value in enumerate(sd * scipy.stats.norm.ppf((np.arange(20) + 0.5) / 20))}
    games = comparisons(simulate(rng, theta, 5))
    chosen = fit(games)
    assert chosen.prior_sd is not None and low <= chosen.prior_sd <= high
    assert fit(games, prior_sd=1.25).prior_sd == 1.25  # what is given stays
    assert fit(games, prior_sd=chosen.prior_sd).theta.tolist() == pytest.approx(chosen.theta.tolist(), abs=1e-8)


def test_the_evidence_is_an_integral() -> None:
    # Two entrants: only the gap matters, which has prior N(0, 2 sd^2); the factor for prior_sd is log-normal.
    model = _Model(comparisons(matches([("A", "B", 30, 0, 10)])), 1.5)
    gaps = np.linspace(-12, 12, 200_001)
    chance = 30 * np.log(1 / (1 + np.exp(-gaps))) + 10 * np.log(1 / (1 + np.exp(gaps)))

    def exact(sd: float) -> float:
        density = np.exp(-(gaps**2) / (4 * sd**2)) / sd
        return math.log(np.trapezoid(np.exp(chance + 30) * density, gaps)) - (math.log(sd / 1.5) / 0.7) ** 2 / 2

    def ours(sd: float) -> float:
        held = model.with_prior(sd)
        return held.evidence(_newton(held, np.zeros(held.size))[0])

    for sd in (2.0, 4.0):
        assert ours(sd) - ours(1.5) == pytest.approx(exact(sd) - exact(1.5), abs=0.01)


@pytest.mark.parametrize("wins", [3, 30, 300])
def test_a_few_perfect_records_do_not_stretch_the_prior_far(wins: int) -> None:
    found = fitted([("A", "B", wins, 0, 0)])
    assert found.prior_sd is not None and found.prior_sd <= 1.5 + wins / 30
    assert fitted([("A", "B", wins + 1, 0, 0)]).theta[0] > found.theta[0]
