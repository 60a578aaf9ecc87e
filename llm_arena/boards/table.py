"""The table of one pool: a row for each entrant, from the rows of its matches and nothing else."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from scipy import special  # type: ignore[import-untyped]  # scipy ships no types

from llm_arena.rating import MatchRow, Record, records
from llm_arena.rating.bradley_terry import Array, Fit, PriorSd, bootstrap, fit
from llm_arena.rating.comparisons import Comparisons, comparisons
from llm_arena.rating.ladder import CONFIDENCE, Rating, bootstrap_ends, ladder, rank_bounds, shared_level
from llm_arena.training.findings import CONSISTENT, FEWEST_PAIRS
from llm_arena.types import Json

PROVISIONAL_POINTS = 150.0
"""A rating whose interval reaches further to each side than this is provisional."""
PROVISIONAL_STARTS = 30
"""So is a mean reward of fewer starts."""

_DIGITS = 9
"""Decimals of a spread: 1.2 added up and divided again is not 1.2, and that is no spread."""

BOOTSTRAPS = 200
"""Refits whose spread is kept beside the intervals, as a check; nothing that is shown depends on them."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One entrant of one pool. What the matches don't tell is None."""

    pool: str
    entrant: str
    rank_low: int | None = None
    "Best rank that the matches leave open; `rank_high` the worst."
    rank_high: int | None = None
    rating: float | None = None
    "Points; 1000 is the anchor, or else the mean."
    half_width: float | None = None
    "Half of the rating's 95 % interval; 0 for the anchor."
    wins: int = 0
    draws: int = 0
    losses: int = 0
    win_rate: float | None = None
    "(wins + draws/2) / results; in games of more than two seats each pair of seats is a result."
    win_low: float | None = None
    "Lower end of the win rate's 95 % interval (Wilson); `win_high` likewise."
    win_high: float | None = None
    reward: float | None = None
    "Mean reward of a seat."
    reward_half_width: float | None = None
    "Half of its 95 % interval, from the starts' means: matches of one start hang together."
    matches: int = 0
    "Not void."
    forfeits: int = 0
    void: int = 0
    "Matches that a fault of the infrastructure voided and that were not played again."
    tokens_per_turn: float | None = None
    "None for players without tokens."
    status: str = ""

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The ends of the rating's 95 % interval."""
        if self.rating is None or self.half_width is None:
            return None, None
        return self.rating - self.half_width, self.rating + self.half_width


@dataclass(frozen=True)
class Table:
    """The standings of one pool."""

    pool: str
    rated: bool
    """False where no match ranks anybody: then the mean reward orders the rows."""
    rows: list[Row]
    planned: int
    played: int
    void: int
    officials: Mapping[str, str] = field(default_factory=dict)
    """Who held the seats that take no part in the contest, by role or seat."""
    judged: tuple[int, int] = (0, 0)
    """Pairs that judges judged in both orders, and of these those judged alike; 0 where the game counts none."""
    warnings: list[str] = field(default_factory=list)
    model: dict[str, Json] | None = None
    """What the ratings come from, as JSON: parameters, covariances, convergence."""


@dataclass
class _Sums:
    matches: int = 0
    forfeits: int = 0
    void: int = 0
    seats: int = 0
    reward: float = 0.0
    turns: int = 0
    tokens: int = 0
    by_start: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def make_table(
    pool: str,
    rows: Sequence[MatchRow],
    entrants: Iterable[str],
    *,
    planned: int,
    anchor: str | None,
    prior_sd: PriorSd,
    alone: bool = False,
    officials: Mapping[str, str] | None = None,
    untraced: int = 0,
) -> Table:
    """Returns the table of one pool.

    Args:
        pool: the pool's name.
        rows: its matches, void ones included.
        entrants: who is on the board, whether or not they have played.
        planned: matches of the whole schedule.
        anchor: who has 1000 points; None: the mean has, and so it does where the anchor met nobody.
        prior_sd: spread of strengths before any match, in nats, or "fitted".
        alone: each entrant held all seats of its matches, so that no rating is due.
        officials: who held the seats that take no part in the contest, by role or seat.
        untraced: how many of the matches have no trace.

    Raises:
        RatingError: the fit did not converge.
    """
    names = sorted(entrants)
    sums = _sums(rows, names)
    games = comparisons(rows, names)
    alive = [row for row in rows if row.status != "void"]
    rated = not alone and (len(games.first) > 0 or not alive)
    counts = records(rows)
    warnings = _warnings(rows, planned - len(alive), untraced)
    judged = (_judged(alive, "pairs"), _judged(alive, "consistent"))
    if judged[0] >= FEWEST_PAIRS and judged[1] < CONSISTENT * judged[0]:
        warnings.append(
            f"the judges judged {judged[1] / judged[0]:.0%} of the pairs alike in both orders, and a coin has 50%: what"
            " they decided is mostly chance; seat a stronger judge"
        )
    model = None
    found: list[Row] = []
    if rated:
        if anchor is not None and anchor not in _compared(games):
            warnings.append(f'the anchor "{anchor}" met nobody in a match that ranks: 1000 is the mean instead')
            anchor = None
        unranked = sum(all(seat.rank is None for seat in row.seats.values()) for row in alive)
        if unranked:
            warnings.append(f"matches in which all won or all lost, and which no rating counts: {unranked}")
        fitted = fit(games, prior_sd=prior_sd)
        ratings = ladder(fitted, anchor)
        met = dict.fromkeys(rating.component for rating in ratings if sums[rating.entrant].matches)
        labels = {component: number for number, component in enumerate(met, start=1)} if len(met) > 1 else {}
        if labels:
            warnings.append(
                f"the entrants fall into {len(met)} groups that never met: ratings and ranks compare within a group"
                " only"
            )
        for rating in ratings:
            played = sums[rating.entrant].matches > 0
            status = _status(rating, anchor, labels.get(rating.component)) if played else "no matches"
            found.append(
                _row(
                    pool,
                    rating.entrant,
                    sums,
                    counts,
                    rank_low=rating.rank_low if played else None,
                    rank_high=rating.rank_high if played else None,
                    rating=round(rating.points, 3),
                    half_width=round(rating.half_width, 3),
                    status=status,
                )
            )
        model = _model(games, fitted, anchor)
    else:
        found = _by_reward(pool, names, sums, counts)
    void = sum(row.status == "void" for row in rows)
    return Table(
        pool=pool,
        rated=rated,
        rows=found,
        planned=planned,
        played=len(alive),
        void=void,
        officials=officials or {},
        judged=judged,
        warnings=warnings,
        model=model,
    )


def _judged(rows: Iterable[MatchRow], name: str) -> int:
    return sum(row.judging.get(name, 0) for row in rows)


def _sums(rows: Iterable[MatchRow], names: Iterable[str]) -> dict[str, _Sums]:
    sums = {name: _Sums() for name in names}
    for row in rows:
        for name in {seat.entrant for seat in row.seats.values()}:
            sums[name].void += row.status == "void"
            sums[name].matches += row.status != "void"
        if row.status == "void":
            continue
        for seat in row.seats.values():
            mine = sums[seat.entrant]
            mine.seats += 1
            mine.forfeits += seat.forfeited
            mine.reward += seat.reward or 0.0
            mine.turns += seat.turns
            mine.tokens += seat.tokens
            mine.by_start[row.seed].append(seat.reward or 0.0)
    return sums


def _row(
    pool: str,
    name: str,
    sums: dict[str, _Sums],
    counts: dict[str, Record],
    *,
    status: str,
    rank_low: int | None = None,
    rank_high: int | None = None,
    rating: float | None = None,
    half_width: float | None = None,
) -> Row:
    mine, record = sums[name], counts.get(name, Record(entrant=name))
    low, high = record.interval(CONFIDENCE)
    reward, spread = _mean_reward(mine)
    return Row(
        pool=pool,
        entrant=name,
        rank_low=rank_low,
        rank_high=rank_high,
        rating=rating,
        half_width=half_width,
        wins=record.wins,
        draws=record.draws,
        losses=record.losses,
        win_rate=round(record.rate, 6) if record.n else None,
        win_low=round(low, 6) if record.n else None,
        win_high=round(high, 6) if record.n else None,
        reward=reward,
        reward_half_width=spread,
        matches=mine.matches,
        forfeits=mine.forfeits,
        void=mine.void,
        tokens_per_turn=round(mine.tokens / mine.turns, 3) if mine.tokens else None,
        status=status,
    )


def _mean_reward(mine: _Sums) -> tuple[float | None, float | None]:
    """Returns the mean over seats and half its 95 % interval, by starts as clusters.

    The standard error is sqrt(G/(G-1) * sum over the G starts of (sum of deviations)^2) / n, the usual one for a mean
    of clusters of any size; Student's t with G-1 degrees of freedom. Starts that all gave the same say nothing of the
    spread: then there is no interval, instead of one without width.
    """
    if not mine.seats:
        return None, None
    mean, starts = mine.reward / mine.seats, len(mine.by_start)
    if starts < 2:
        return round(mean, 6), None
    squares = sum(round(sum(values) - mean * len(values), _DIGITS) ** 2 for values in mine.by_start.values())
    if not squares:
        return round(mean, 6), None
    error = math.sqrt(starts / (starts - 1) * squares) / mine.seats
    return round(mean, 6), round(float(special.stdtrit(starts - 1, 0.5 + CONFIDENCE / 2)) * error, 6)


def _status(rating: Rating, anchor: str | None, group: int | None) -> str:
    words = ["anchor"] if rating.entrant == anchor else []
    if rating.half_width > PROVISIONAL_POINTS:
        words.append("provisional")
    if not rating.bounded_above:
        words.append("no upper bound")
    if not rating.bounded_below:
        words.append("no lower bound")
    if group is not None:
        words.append(f"group {group}")
    return ", ".join(words)


def _by_reward(pool: str, names: Sequence[str], sums: dict[str, _Sums], counts: dict[str, Record]) -> list[Row]:
    """Returns rows by mean reward; ranks follow from differences on the same starts."""
    lead, margin = _paired(names, sums)
    better, worse = rank_bounds(lead, margin)
    met = {name: place for place, name in enumerate(name for name in names if sums[name].matches)}
    rows = []
    for place, name in enumerate(names):
        mine = sums[name]
        few = 0 < len(mine.by_start) < PROVISIONAL_STARTS
        rows.append(
            _row(
                pool,
                name,
                sums,
                counts,
                rank_low=1 + int(better[place]) if name in met else None,
                rank_high=len(met) - int(worse[place]) if name in met else None,
                status="no matches" if not mine.matches else "provisional" if few else "",
            )
        )
    return sorted(rows, key=lambda row: (math.inf if row.reward is None else -row.reward, row.entrant))


def _paired(names: Sequence[str], sums: dict[str, _Sums]) -> tuple[Array, Array]:
    """Returns by how much column j's mean reward is above row i's on shared starts, and how much may be luck [n, n].

    The second is a paired t interval's; where all differences are equal it is a sign test that decides.
    """
    level = shared_level(len(names))
    starts = {start: place for place, start in enumerate(dict.fromkeys(s for n in names for s in sums[n].by_start))}
    means = np.full((len(names), len(starts)), np.nan)
    for place, name in enumerate(names):
        for start, values in sums[name].by_start.items():
            means[place, starts[start]] = sum(values) / len(values)
    lead = np.zeros((len(names), len(names)))
    margin = np.full_like(lead, np.inf)
    for i in range(len(names)):
        for j in range(len(names)):
            gaps = means[j] - means[i]
            gaps = gaps[~np.isnan(gaps)]
            if i != j and len(gaps) > 1:
                lead[i, j] = gaps.mean()
                error = round(float(gaps.std(ddof=1)), _DIGITS) / math.sqrt(len(gaps))
                if error or 0.5 ** len(gaps) <= level:
                    margin[i, j] = float(special.stdtrit(len(gaps) - 1, 1 - level)) * error
    return lead, margin


def _compared(games: Comparisons) -> set[str]:
    """Returns who met somebody in a match that ranks."""
    return {games.entrants[place] for place in {*games.first.tolist(), *games.second.tolist()}}


def _warnings(rows: Sequence[MatchRow], missing: int, untraced: int) -> list[str]:
    found = []
    void = sum(row.status == "void" for row in rows)
    if missing:
        reasons = Counter(row.reason for row in rows if row.status == "void").most_common(1)
        why = f", {void} of them void (mostly {reasons[0][0]})" if void else ""
        found.append(f"incomplete: {missing} of the planned matches are missing{why}; give the same command again")
    cut = sum(row.status == "truncated" for row in rows)
    if cut:
        found.append(f"matches that were cut off, and count as drawn where they had no outcome: {cut}")
    if untraced:
        found.append(f"matches without a trace, which count but can't be read or replayed: {untraced}")
    return found


def _model(games: Comparisons, fitted: Fit, anchor: str | None) -> dict[str, Json]:
    draws = bootstrap(games, fitted, count=BOOTSTRAPS)
    return {
        "anchor": anchor,
        "entrants": list(fitted.entrants),
        "theta": fitted.theta.tolist(),
        "seats": {
            seat: {"nats": worth, "standard_error": error}
            for seat, worth, error in zip(fitted.seats, fitted.beta.tolist(), fitted.beta_sd.tolist(), strict=True)
        },
        "log_nu": fitted.log_nu,
        "covariance_laplace": fitted.laplace.tolist(),
        "covariance_by_block": fitted.robust.tolist(),
        "component": fitted.component.tolist(),
        "prior_sd": fitted.prior_sd,
        "converged": True,
        "iterations": fitted.iterations,
        "gradient": fitted.gradient,
        "bootstrap": {"count": BOOTSTRAPS, "seed": 0, "ends": bootstrap_ends(fitted, draws, anchor)},
    }


__all__ = ["Row", "Table", "make_table"]
