"""Match rows for tests of ratings: from results, on seats of choice, and simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations

import msgspec
import numpy as np

from llm_arena.rating import MatchRow, SeatRow
from llm_arena.rating.bradley_terry import Fit, PriorSd, fit
from llm_arena.rating.comparisons import comparisons
from llm_arena.rating.ladder import Rating, ladder
from llm_arena.types import EnvSpec

SPEC = EnvSpec(id="game-v0")
Result = tuple[str, str, int, int, int]
"""Two names; wins, draws and losses of the first."""


def match(
    ranks: dict[str, int], block: str = "", pool: str = "", number: int = 0, seats: Sequence[str] = ()
) -> MatchRow:
    """Entrants sit on player_0, player_1, ... in their order, unless `seats` names others."""
    names = seats or [f"player_{i}" for i in range(len(ranks))]
    held = {
        seat: SeatRow(entrant=name, role="player", rank=rank)
        for seat, (name, rank) in zip(names, ranks.items(), strict=True)
    }
    return MatchRow(id=f"m{number}", block=block, pool=pool, spec=SPEC, seed=0, status="finished", seats=held)


def matches(results: Iterable[Result], seats: Sequence[str] = ()) -> list[MatchRow]:
    rows = []
    for one, other, wins, draws, losses in results:
        outcomes = [(1, 2)] * wins + [(1, 1)] * draws + [(2, 1)] * losses
        for own, their in outcomes:
            rows.append(match({one: own, other: their}, f"b{len(rows)}", number=len(rows), seats=seats))
    return rows


def swapped(results: Iterable[Result]) -> list[MatchRow]:
    """Each result twice, the second time on changed seats."""
    results = list(results)
    return matches(results) + [
        msgspec.structs.replace(row, block=f"{row.block} back")
        for row in matches(results, seats=("player_1", "player_0"))
    ]


def points(rows: Sequence[MatchRow], prior_sd: PriorSd | None = 1.5, anchor: str | None = None) -> dict[str, float]:
    return {row.entrant: row.points for row in ladder(fit(comparisons(rows), prior_sd=prior_sd), anchor)}


def fitted(results: Iterable[Result], prior_sd: PriorSd | None = 1.5) -> Fit:
    return fit(comparisons(matches(results)), prior_sd=prior_sd)


def by_name(rows: Sequence[Rating]) -> dict[str, Rating]:
    return {row.entrant: row for row in rows}


def simulate(
    rng: np.random.Generator,
    theta: dict[str, float],
    blocks: int,
    *,
    first: float = 0.0,
    nu: float = 0.6,
    luck: float = 0.5,
) -> list[MatchRow]:
    """Returns blocks of two matches on changed seats.

    Args:
        rng: of the outcomes.
        theta: strengths, in nats.
        blocks: for each pair.
        first: lead of the first seat, in nats.
        nu: weight of draws.
        luck: spread of each start's own lead for one seat, in nats; shared by both matches of a block.
    """
    rows = []
    for one, other in combinations(theta, 2):
        for block in range(blocks):
            shared = first + rng.normal(scale=luck)
            for swap in (1, -1):
                d = theta[one] - theta[other] + swap * shared
                weights = np.array([math.exp(d / 2), nu, math.exp(-d / 2)])
                outcome = rng.choice(3, p=weights / weights.sum())
                ranks = [(1, 2), (1, 1), (2, 1)][outcome]
                seats = ("player_0", "player_1")[::swap]
                rows.append(match({one: ranks[0], other: ranks[1]}, f"{one}{other}{block}", "", len(rows), seats))
    return rows


PERFECT: list[Result] = [("A", "B", 10, 0, 0), ("B", "C", 9, 0, 3), ("C", "D", 5, 0, 0)]


def random_rows(seed: int, draws: bool = True) -> list[MatchRow]:
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(40):
        names = [str(name) for name in rng.choice(list("ABCDE"), int(rng.integers(2, 5)), replace=False)]
        places = rng.integers(1, 4, len(names)) if draws else rng.permutation(len(names)) + 1
        rows.append(match(dict(zip(names, places.tolist(), strict=True)), block=str(number // 2), number=number))
    return rows
