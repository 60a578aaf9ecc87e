"""Live ratings: against the published update written out, and what must not play a part."""

from __future__ import annotations

import json
import math
import sys
from itertools import permutations

import pytest

from llm_arena.errors import MissingExtra, TrainingError
from llm_arena.training.league_ratings import LiveRating, LiveRatings
from llm_arena.types import Ending, EnvSpec, Outcome, SeatInfo, Trace

MU, SIGMA = 25.0, 25 / 3
BETA = 25 / 6
TAU = 25 / 300


def game(held: dict[str, str], outcome: Outcome | None, *, env_id: str = "toy-v0", **fields: object) -> Trace:
    """`held` is who has each seat `<role>_<k>`."""
    seats = {seat: SeatInfo(role=seat.rpartition("_")[0], agent=f"llm:{who}", policy=who) for seat, who in held.items()}
    return Trace(id="t", spec=EnvSpec(id=env_id), seed=0, seats=seats, outcome=outcome, **fields)


def ranked(*places: tuple[str, int]) -> Trace:
    """Players and their ranks, in the order of their seats."""
    held = {f"player_{i}": who for i, (who, _) in enumerate(places)}
    return game(held, Outcome(ranks={f"player_{i}": rank for i, (_, rank) in enumerate(places)}))


def of(ratings: LiveRatings, entrant: str, role: str = "player", env_id: str = "toy-v0") -> LiveRating:
    return next(one for one in ratings.table() if (one.entrant, one.role, one.env_id) == (entrant, role, env_id))


def updated(places: list[tuple[float, float, int]]) -> list[tuple[float, float]]:
    """Weng and Lin's Algorithm 4 in the slow way: (mu, sigma, rank) of each, to (mu, sigma)."""
    variances = [sigma**2 + TAU**2 for _, sigma, _ in places]
    c = math.sqrt(sum(variance + BETA**2 for variance in variances))
    after = []
    for (mu, _, rank), variance in zip(places, variances, strict=True):
        omega = delta = 0.0
        for _, _, other in places:
            if other > rank:
                continue
            ties = sum(third == other for _, _, third in places)
            chance = math.exp(mu / c) / sum(math.exp(third / c) for third, _, place in places if place >= other)
            omega -= chance / ties
            delta += chance * (1 - chance) / ties
        omega += 1 / sum(third == rank for _, _, third in places)
        gamma = math.sqrt(variance) / c
        shrink = max(1 - variance / c**2 * gamma * delta, 1e-4)
        after.append((mu + variance / c * omega, math.sqrt(variance * shrink)))
    return after


@pytest.mark.parametrize("ranks", [(1, 2), (1, 1), (1, 2, 3), (1, 2, 2), (1, 1, 2), (2, 1, 3, 3)])
def test_the_update_is_the_published_one(ranks: tuple[int, ...]) -> None:
    """Two games, so that the second starts from ratings that differ."""
    names = "abcd"[: len(ranks)]
    ratings = LiveRatings()
    slow = [(MU, SIGMA)] * len(ranks)
    for places in (ranks, ranks[::-1]):
        assert ratings.rate(ranked(*zip(names, places, strict=True)))
        slow = updated([(mu, sigma, rank) for (mu, sigma), rank in zip(slow, places, strict=True)])
    for name, (mu, sigma) in zip(names, slow, strict=True):
        one = of(ratings, name)
        assert (one.mu, one.sigma, one.games) == (pytest.approx(mu), pytest.approx(sigma), 2)


def test_a_first_win_by_hand() -> None:
    """c^2 = 2 (s^2 + beta^2) with s^2 = 69.451 and beta^2 = 17.361, so c = 13.177; mu moves by s^2 / c / 2 = 2.635."""
    ratings = LiveRatings()
    ratings.rate(ranked(("a", 1), ("b", 2)))
    assert of(ratings, "a").mu == pytest.approx(27.635, abs=1e-3)
    assert of(ratings, "b").mu == pytest.approx(22.365, abs=1e-3)
    assert [one.entrant for one in ratings.table()] == ["a", "b"]
    assert of(ratings, "a").ordinal == pytest.approx(27.635 - 3 * of(ratings, "a").sigma, abs=1e-3)


def test_the_order_of_seats_plays_no_part() -> None:
    """To the bit, from ratings that differ: sums over tied seats are those of floats, which order may change."""
    tables = []
    for seats in permutations([("a", 2), ("b", 1), ("c", 2), ("d", 2), ("e", 2)]):
        ratings = LiveRatings()
        ratings.rate(ranked(("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)))
        ratings.rate(ranked(*seats))
        tables.append(ratings.table())
    assert all(table == tables[0] for table in tables)


def test_a_tie_pulls_together() -> None:
    ratings = LiveRatings()
    ratings.rate(ranked(("a", 1), ("b", 2)))
    before = of(ratings, "a").mu - of(ratings, "b").mu
    ratings.rate(game({"player_0": "a", "player_1": "b"}, Outcome(draw=True)))
    assert 0 < of(ratings, "a").mu - of(ratings, "b").mu < before


def test_roles_and_games_are_rated_apart() -> None:
    held = {"proposer_0": "a", "solver_0": "b"}
    ratings = LiveRatings()
    ratings.rate(game(held, Outcome(winners=["proposer_0"])))
    ratings.rate(game({"proposer_0": "b", "solver_0": "a"}, Outcome(winners=["solver_0"])))
    ratings.rate(game(held, Outcome(winners=["solver_0"]), env_id="other-v0"))
    assert of(ratings, "a", "proposer").games == of(ratings, "a", "solver").games == 1
    assert of(ratings, "a", "proposer", "other-v0").mu < MU < of(ratings, "a", "proposer").mu
    assert [(one.env_id, one.role, one.entrant) for one in ratings.table()] == [
        ("other-v0", "proposer", "a"),
        ("other-v0", "solver", "b"),
        ("toy-v0", "proposer", "a"),
        ("toy-v0", "proposer", "b"),
        ("toy-v0", "solver", "a"),
        ("toy-v0", "solver", "b"),
    ]


def test_several_seats_of_one_entrant_are_one_game() -> None:
    """`b` is first and last: its rating moves to the mean of both."""
    ratings = LiveRatings()
    ratings.rate(ranked(("b", 1), ("a", 2), ("b", 3)))
    first, middle, last = updated([(MU, SIGMA, 1), (MU, SIGMA, 2), (MU, SIGMA, 3)])
    assert of(ratings, "b").mu == pytest.approx((first[0] + last[0]) / 2)
    assert of(ratings, "b").sigma == pytest.approx((first[1] + last[1]) / 2)
    assert of(ratings, "a").mu == pytest.approx(middle[0])
    assert (of(ratings, "a").games, of(ratings, "b").games) == (1, 1)


@pytest.mark.parametrize(
    "trace",
    [
        game({"player_0": "a", "player_1": "b"}, None, ending=Ending.VOID),
        game({"player_0": "a", "player_1": "b"}, Outcome(winners=["player_0", "player_1"])),
        game({"player_0": "a", "player_1": "b"}, Outcome()),
        game({"player_0": "a", "player_1": "a"}, Outcome(winners=["player_0"])),
        game({"player_0": "a", "judge_0": "b"}, Outcome(winners=["player_0"])),
    ],
    ids=["void", "all won", "all lost", "self-play", "a judge"],
)
def test_games_that_compare_nobody_count_nothing(trace: Trace) -> None:
    ratings = LiveRatings(officials=["judge"])
    assert not ratings.rate(trace)
    assert ratings.table() == []


def test_a_new_version_starts_from_its_parent_and_is_less_certain() -> None:
    ratings = LiveRatings()
    for _ in range(200):
        ratings.rate(ranked(("learner", 1), ("a", 2)))
        ratings.rate(ranked(("learner", 2), ("a", 1)))
    parent = of(ratings, "learner")
    assert parent.sigma < SIGMA / 2
    ratings.inherit("learner@40", "learner")
    assert of(ratings, "learner") == parent
    assert of(ratings, "learner@40").mu == parent.mu
    assert of(ratings, "learner@40").sigma == 2 * parent.sigma
    assert of(ratings, "learner@40").games == 0


def test_no_version_is_less_certain_than_one_that_nobody_knows() -> None:
    ratings = LiveRatings()
    ratings.rate(ranked(("learner", 1), ("a", 2)))
    ratings.inherit("learner@1", "learner")
    assert of(ratings, "learner@1").sigma == SIGMA
    ratings.inherit("x@1", "x")  # was never rated: neither is its version, which starts as anybody
    assert {one.entrant for one in ratings.table()} == {"learner", "learner@1", "a"}


def test_ratings_go_on_from_their_state() -> None:
    whole, resumed = LiveRatings(), LiveRatings()
    whole.rate(ranked(("a", 1), ("b", 2), ("c", 2)))
    resumed.load(json.loads(json.dumps(whole.state())))
    for ratings in (whole, resumed):
        ratings.rate(ranked(("a", 3), ("b", 2), ("d", 1)))
    assert resumed.table() == whole.table()
    assert all(type(row["mu"]) is float and type(row["sigma"]) is float for row in whole.state())


def test_a_damaged_state_is_told() -> None:
    with pytest.raises(TrainingError, match="live ratings can't be read: .* --fresh"):
        LiveRatings().load([{"env_id": "x"}])


def test_without_openskill_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openskill.models", None)
    with pytest.raises(MissingExtra, match=r"pip install \"llm-arena\[train\]\""):
        LiveRatings()
