"""Ratings: worked numbers, an obvious slow version, numeric derivatives, invariance, perfect records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from llm_arena.errors import UnknownName, UsageError
from llm_arena.rating import MatchRow, SeatRow
from llm_arena.rating.bradley_terry import PriorSd, RatingError, _Model, fit
from llm_arena.rating.comparisons import Comparisons, comparisons
from llm_arena.rating.ladder import POINTS_PER_NAT, ladder
from rating_parts import PERFECT, SPEC, Result, by_name, fitted, match, matches, points, random_rows, swapped


def test_without_prior_the_gap_is_the_log_of_the_odds() -> None:
    # 3 of 4: 400 log10(3) = 190.85
    found = points(matches([("A", "B", 3, 0, 1)]), prior_sd=None)
    assert found["A"] - found["B"] == pytest.approx(190.85, abs=0.005)
    assert found["A"] + found["B"] == pytest.approx(2000)


def test_three_pairs_of_three_to_one_share_one_gap() -> None:
    # Bradley-Terry by hand: 2 g solves 3 = s(g) + s(2g) per pair of games; g is 131.38 points (autogluon/tabarena
    # PR #502: an iteration that stopped early gave other numbers).
    rows = matches([("A", "B", 3, 0, 1), ("B", "C", 3, 0, 1), ("A", "C", 3, 0, 1)])
    found = points(rows, prior_sd=None)
    assert found["A"] - found["B"] == pytest.approx(131.38, abs=0.005)
    assert found["B"] - found["C"] == pytest.approx(131.38, abs=0.005)
    shrunk = points(rows)
    assert 131.38 > shrunk["A"] - shrunk["B"] > 0
    assert shrunk["A"] > shrunk["B"] > shrunk["C"]


@pytest.mark.parametrize("prior_sd", [None, 1.5])
def test_a_circle_leaves_all_equal(prior_sd: float | None) -> None:
    found = points(matches([("A", "B", 2, 0, 0), ("B", "C", 2, 0, 0), ("C", "A", 2, 0, 0)]), prior_sd)
    assert list(found.values()) == pytest.approx([1000] * 3, abs=1e-6)


@pytest.mark.parametrize("prior_sd", [None, 1.5])
def test_order_sides_and_names_play_no_part(prior_sd: float | None) -> None:
    # kolenaIO/autoarena PR #56, wdm0006/elote PR #65
    results = [("A", "B", 3, 2, 1), ("B", "C", 3, 0, 1), ("A", "C", 3, 1, 1), ("C", "D", 2, 2, 1), ("A", "D", 4, 0, 1)]
    given = by_name(ladder(fit(comparisons(matches(results)), prior_sd=prior_sd)))
    renamed = {"A": "z9", "B": "m", "C": "a10", "D": "0"}
    turned = [(other, one, losses, draws, wins) for one, other, wins, draws, losses in results]
    others = [(renamed[one], renamed[other], *counts) for one, other, *counts in results]
    for rows, names in (
        (matches(results)[::-1], None),
        (matches(turned), None),
        (matches(others), renamed),
        (np.random.default_rng(0).permutation(np.array(matches(results), dtype=object)).tolist(), None),
    ):
        found = by_name(ladder(fit(comparisons(rows), prior_sd=prior_sd)))
        for name, row in given.items():
            other = found[names[name] if names else name]
            assert other.points == pytest.approx(row.points, abs=1e-6)
            assert other.half_width == pytest.approx(row.half_width, abs=1e-6)
            assert (other.rank_low, other.rank_high) == (row.rank_low, row.rank_high)


def test_draws_alone_are_a_gap_of_nothing_with_an_interval() -> None:
    rows = ladder(fitted([("A", "B", 0, 5, 0)]))
    assert [row.points for row in rows] == pytest.approx([1000, 1000], abs=1e-6)
    assert all(row.half_width > 20 for row in rows)  # the sandwich alone says 0
    assert [(row.rank_low, row.rank_high) for row in rows] == [(1, 2), (1, 2)]


def test_draws_bring_two_closer() -> None:
    # bojieli/ai-agent-book issue #195
    won = points(matches([("A", "B", 1, 0, 0)]))
    drawn = points(matches([("A", "B", 1, 2, 0)]))
    assert 0 < drawn["A"] - drawn["B"] < won["A"] - won["B"]


def test_draws_against_the_same_field_count() -> None:
    # lm-sys/FastChat issue #1886: 45 wins, 40 draws, 15 losses are better than 50 wins, 50 losses
    found = points(matches([("A", "field", 50, 0, 50), ("B", "field", 45, 40, 15)]))
    assert found["B"] > found["A"]


def test_tied_places_are_equal_in_every_order() -> None:
    # vivekjoshy/openskill.py issues #166 and #173
    places = {"P": 1, "Q": 2, "R": 2, "S": 2, "T": 5}
    for order in list(permutations(places))[::17]:
        found = points([match({name: places[name] for name in order})])
        assert found["Q"] == pytest.approx(found["R"], abs=1e-6) == pytest.approx(found["S"], abs=1e-6)
        assert found["P"] > found["Q"] > found["T"]


def test_one_match_of_many_seats_does_not_count_as_many_matches() -> None:
    games = comparisons([match({name: place for place, name in enumerate("ABCD", start=1)})])
    assert len(games.first) == 6
    assert games.weight.sum() == pytest.approx(3)  # a ranking of 4 is 3 choices
    assert games.blocks == 1
    assert comparisons([match({"A": 1, "B": 2})]).weight.tolist() == [1.0]


@pytest.mark.parametrize("prior_sd", ["fitted", 1.5])
@pytest.mark.parametrize("played", [matches(PERFECT), swapped(PERFECT)])
def test_perfect_records_are_finite_ordered_and_flagged(played: list[MatchRow], prior_sd: PriorSd) -> None:
    # autogluon/tabarena PRs #193 and #501, hturner/BradleyTerry2 issue #6
    rows = ladder(fit(comparisons(played), prior_sd=prior_sd))
    assert [row.entrant for row in rows] == list("ABCD")
    assert all(math.isfinite(row.points) and math.isfinite(row.half_width) for row in rows)
    assert [row.bounded_above for row in rows] == [False, True, True, True]
    assert [row.bounded_below for row in rows] == [True, True, True, False]
    assert rows[0].half_width > 150 < rows[3].half_width


def test_a_longer_perfect_record_is_a_larger_lead() -> None:
    for make in (matches, swapped):
        before = points(make(PERFECT), "fitted")
        after = points(make([("A", "B", 11, 0, 0), *PERFECT[1:]]), "fitted")
        assert after["A"] - after["B"] > before["A"] - before["B"]


def test_two_who_beat_all_others_have_no_upper_bound_together() -> None:
    results: list[Result] = [("A", "B", 2, 0, 1), ("A", "C", 3, 0, 0), ("B", "C", 3, 0, 0)]
    rows = by_name(ladder(fitted(results)))
    assert (rows["A"].bounded_above, rows["B"].bounded_above, rows["C"].bounded_below) == (False, False, False)
    # Against B, the matches bound A on both sides.
    rows = by_name(ladder(fitted(results), "B"))
    assert (rows["A"].bounded_above, rows["A"].bounded_below) == (True, True)
    assert (rows["C"].bounded_above, rows["C"].bounded_below) == (True, False)


def test_who_meets_equals_only_is_bounded() -> None:
    rows = ladder(fitted([("A", "B", 1, 0, 1), ("C", "D", 0, 1, 0)]))
    assert all(row.bounded_above and row.bounded_below for row in rows)


def test_without_a_prior_a_perfect_record_is_refused() -> None:
    with pytest.raises(RatingError, match="no finite difference"):
        fitted(PERFECT, prior_sd=None)


@pytest.mark.parametrize("prior_sd", [0, 0.0, -1.0, math.inf, math.nan, "fit"])
def test_a_prior_that_can_not_be_is_refused(prior_sd: Any) -> None:
    with pytest.raises(UsageError, match="prior_sd"):
        fitted([("A", "B", 1, 0, 1)], prior_sd=prior_sd)


def test_no_rows_give_no_ratings_and_one_entrant_without_matches_gets_the_first() -> None:
    assert ladder(fit(comparisons([]))) == []
    [row] = ladder(fit(comparisons([], ["A"])))
    assert row.points == 1000
    assert row.half_width == pytest.approx(1.959964 * 1.5 * POINTS_PER_NAT, rel=1e-5)


def test_the_anchor_has_1000_points_and_no_interval() -> None:
    free, held = by_name(ladder(fitted(PERFECT))), by_name(ladder(fitted(PERFECT), "C"))
    assert (held["C"].points, held["C"].half_width) == (1000, 0)
    assert held["B"].points - held["D"].points == pytest.approx(free["B"].points - free["D"].points)
    assert held["B"].half_width > 0
    with pytest.raises(UnknownName, match='"c" is no entrant; there are: A, B, C, D'):
        ladder(fitted(PERFECT), "c")


def test_groups_that_never_met_are_kept_apart() -> None:
    rows = by_name(ladder(fitted([("A", "B", 3, 0, 1), ("C", "D", 9, 0, 1)]), "A"))
    assert rows["A"].component == rows["B"].component != rows["C"].component == rows["D"].component
    assert rows["C"].points + rows["D"].points == pytest.approx(2000)
    assert all(row.rank_high <= 2 for row in rows.values())


def test_void_matches_and_rivals_of_one_entrant_are_no_comparison() -> None:
    void = match({"A": 1, "B": 2})
    rows = [MatchRow(id="v", block="", spec=SPEC, seed=0, status="void", seats=void.seats), match({"A": 1, "A ": 2})]
    assert comparisons(rows).entrants == ("A", "A ", "B")
    assert len(comparisons(rows).first) == 1
    alone = MatchRow(
        id="s", block="", spec=SPEC, seed=0, status="finished",
        seats={seat: SeatRow(entrant="A", role="player", rank=rank) for seat, rank in (("p_0", 1), ("p_1", 2))},
    )  # fmt: skip
    assert len(comparisons([alone]).first) == 0


def test_pools_are_never_mixed() -> None:
    with pytest.raises(UsageError, match="several pools"):
        comparisons([match({"A": 1, "B": 2}, pool="x"), match({"A": 1, "B": 2}, pool="y")])


def slow(rows: Sequence[MatchRow], prior_sd: float) -> dict[str, float]:
    """The formulas as they stand, one match at a time, by a general optimiser: strengths, then seats."""
    names = sorted({seat.entrant for row in rows for seat in row.seats.values()})
    places = sorted({name for row in rows for name in row.seats})
    drawn = any(len({seat.rank for seat in row.seats.values()}) < len(row.seats) for row in rows)

    def loss(x: np.ndarray) -> float:
        theta, nu = dict(zip(names, x, strict=False)), math.exp(x[-1]) if drawn else 0.0
        beta = dict(zip(places, x[len(names) :], strict=False))
        total = sum(value**2 for value in theta.values()) / (2 * prior_sd**2)
        total += sum(value**2 for value in beta.values()) / 2
        total += (x[-1] + 1) ** 2 / 2 if drawn else 0.0
        for row in rows:
            for (here, one), (there, other) in combinations(row.seats.items(), 2):
                d = theta[one.entrant] + beta[here] - theta[other.entrant] - beta[there]
                win, lose = math.exp(d / 2), math.exp(-d / 2)
                assert one.rank is not None and other.rank is not None
                chance = (win if one.rank < other.rank else lose if one.rank > other.rank else nu) / (win + nu + lose)
                total -= 2 / len(row.seats) * math.log(chance)
        return total

    start = np.zeros(len(names) + len(places) + drawn)
    found = scipy.optimize.minimize(loss, start, method="BFGS", options={"gtol": 1e-9})
    return dict(zip([*names, *places], found.x, strict=False))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("draws", [True, False])
def test_the_fit_is_that_of_an_obvious_version(seed: int, draws: bool) -> None:
    rows = random_rows(seed, draws)
    found = fit(comparisons(rows), prior_sd=0.8)
    expected = slow(rows, 0.8)
    both = zip([*found.entrants, *found.seats], [*found.theta.tolist(), *found.beta.tolist()], strict=True)
    assert dict(both) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("prior_sd", [None, 1.5])
def test_slopes_are_those_of_the_loss(draws: bool, prior_sd: float | None) -> None:
    model = _Model(comparisons(random_rows(7, draws)), prior_sd)
    x = np.random.default_rng(1).normal(size=model.size)
    gradient, hessian = model.slopes(x)
    step = 1e-5
    for i, unit in enumerate(np.eye(model.size)):
        up, down = x + step * unit, x - step * unit
        assert gradient[i] == pytest.approx((model.loss(up) - model.loss(down)) / (2 * step), abs=1e-5)
        slope = (model.slopes(up)[0] - model.slopes(down)[0]) / (2 * step)
        assert hessian[i] == pytest.approx(slope, abs=1e-5)


def test_block_scores_sum_up_to_the_gradient_of_the_likelihood() -> None:
    games = comparisons(random_rows(3))
    model = _Model(games, 1.5)
    x = np.random.default_rng(2).normal(size=model.size)
    prior = np.concatenate([x[:5] / 1.5**2, x[5:-1], [x[-1] + 1]])
    scores = model.block_scores(x).toarray()
    assert scores.shape == (20, 5 + 4 + 1)
    assert -scores.sum(axis=0) + prior == pytest.approx(model.slopes(x)[0], abs=1e-9)


def test_a_fit_without_convergence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_arena.rating.bradley_terry._MAX_STEPS", 1)
    with pytest.raises(RatingError, match="did not converge"):
        fitted(PERFECT)


def test_comparisons_are_sorted_by_name() -> None:
    games = comparisons([match({"b": 1, "a": 2})])
    assert isinstance(games, Comparisons)
    assert (games.entrants, games.first.tolist(), games.second.tolist(), games.outcome.tolist()) == (
        ("a", "b"),
        [0],
        [1],
        [2],
    )
