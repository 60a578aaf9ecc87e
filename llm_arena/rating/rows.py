"""What a match comes to: one row with one entry per seat, made from the trace of the match.

The entrant is written beside its seat, so that no later step has to undo a seat swap, and the order in which seats
acted or answered plays no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from llm_arena.errors import UsageError
from llm_arena.types import Cause, Ending, EnvSpec, Outcome, Trace

Status = Literal["finished", "forfeit", "truncated", "void"]
"""How a match ended. `forfeit` is an entrant's own fault and counts; `void` is nobody's and never does."""


class SeatRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One seat of a match."""

    entrant: str
    role: str
    rank: int | None = None
    "1 is best, equal numbers are ties; None: the match ranks nobody (all won or all lost together), or is void."
    reward: float | None = None
    "Return of the seat; None in a void match."
    score: float | None = None
    "The game's own points of the seat; None where it has none, or in a void match."
    forfeited: bool = False
    "Whether this seat's bad reply ended the match."
    turns: int = 0
    tokens: int = 0
    "Sampled tokens over all turns; 0 for a player without tokens."


class MatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One match: what was played, who sat where, and what came of it."""

    id: str
    block: str
    "The seat-swapped set that the match belongs to: same spec, same seed, other seats."
    spec: EnvSpec
    seed: int
    status: Status
    seats: dict[str, SeatRow]
    reason: str = ""
    pool: str = ""
    "Matches of one pool are rated together: the same game, rules and size."
    officials: dict[str, SeatRow] = {}
    "Seats that take no part in the contest, such as judges: kept for the record, and in no count or rating."
    judging: dict[str, int] = {}
    """How consistent the match's judges were, where the game counts it: `pairs` that were judged in both orders, and of
    these the `consistent` ones, judged alike."""


def match_row(
    trace: Trace,
    entrants: Mapping[str, str],
    *,
    officials: Mapping[str, str] | None = None,
    block: str = "",
    pool: str = "",
) -> MatchRow:
    """Returns the row of a played match.

    Args:
        trace: the record of the match.
        entrants: who sat where, by seat.
        officials: likewise who held the seats that take no part in the contest; they get no rank.
        block: the seat-swapped set that the match belongs to; by default the trace's group.
        pool: the pool that the match belongs to.

    Raises:
        UsageError: `entrants` and `officials` together name other seats than the trace has.
    """
    held = {**entrants, **(officials or {})}
    if set(held) != set(trace.seats):
        raise UsageError(
            f"match {trace.id}: entrants were given for the seats {sorted(held)}, but the trace has"
            f" {sorted(trace.seats)}; give one entrant for each seat, and an official for each that is not ranked"
        )
    status = _status(trace)
    ranks = {} if status == "void" else _ranks(trace, list(entrants))
    culprit = _culprit(trace) if status == "forfeit" else None
    seats = {
        seat: SeatRow(
            entrant=held[seat],
            role=info.role,
            rank=ranks.get(seat),
            reward=None if status == "void" else trace.returns.get(seat, 0.0),
            score=None if status == "void" or trace.outcome is None else trace.outcome.scores.get(seat),
            forfeited=seat == culprit,
            turns=sum(turn.seat == seat for turn in trace.turns),
            tokens=sum(len(turn.completion_ids) for turn in trace.turns if turn.seat == seat),
        )
        for seat, info in trace.seats.items()
    }
    return MatchRow(
        id=trace.id,
        block=block or trace.group,
        spec=trace.spec,
        seed=trace.seed,
        status=status,
        reason=_reason(trace),
        pool=pool,
        seats={seat: row for seat, row in seats.items() if seat in entrants},
        officials={seat: row for seat, row in seats.items() if seat not in entrants},
        judging={} if status == "void" else judging(trace),
    )


def judging(trace: Trace) -> dict[str, int]:
    """Returns how many `pairs` the judges of a trace judged in both orders, and how many `consistent` ones alike.

    Empty where the game does not count it.
    """
    counted = [counts for counts in trace.env_stats.values() if {"pairs", "consistent"} <= counts.keys()]
    return {name: sum(int(counts[name]) for counts in counted) for name in ("pairs", "consistent")} if counted else {}


def _status(trace: Trace) -> Status:
    if trace.ending is Ending.VOID:
        return "void"
    if trace.outcome is not None and trace.outcome.reason.startswith("forfeit"):
        return "forfeit"
    if trace.ending in (Ending.TRUNCATED, Ending.CONTEXT_OVERFLOW):
        return "truncated"
    return "finished"


def _culprit(trace: Trace) -> str | None:
    # Not simply the last turn: in a simultaneous phase others may have answered after the bad reply.
    bad = [turn.seat for turn in trace.turns if turn.cause is not Cause.LEGAL]
    return trace.overflow_seat or (bad[-1] if bad else None)


def _reason(trace: Trace) -> str:
    if trace.failure is not None:
        return f"{trace.failure.boundary}: {trace.failure.kind}"
    return trace.outcome.reason if trace.outcome is not None else str(trace.ending)


def _ranks(trace: Trace, contest: Sequence[str]) -> dict[str, int]:
    """Returns the rank of each seat of the contest; empty where the game ranks nobody."""
    # A match that its turn limit cut off, with no outcome, is drawn: leaving it out would reward stalling.
    outcome = trace.outcome or Outcome(draw=True)
    if outcome.ranks:
        return {seat: rank for seat, rank in outcome.ranks.items() if seat in contest}
    if outcome.winners and not set(contest) <= set(outcome.winners):
        return {seat: 1 if seat in outcome.winners else 2 for seat in contest}
    return dict.fromkeys(contest, 1) if outcome.draw else {}


__all__ = ["MatchRow", "SeatRow", "Status", "judging", "match_row"]
