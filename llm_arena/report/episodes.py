"""Which episodes a page shows, and how: turns in lanes, one per seat.

A run has thousands; a reader wants the first, the last, and those in which something went wrong.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from llm_arena.links import links
from llm_arena.report.text import ending_words, told
from llm_arena.types import Cause, Message, Trace, Turn

ENDS = 4
"""How many episodes are shown from the start of training, and as many from its end."""

ODD = 3
"""How many are shown of each kind that went wrong, the last ones."""

LANES = 4
"""With more seats than this, turns follow one another in one lane."""


@dataclass(frozen=True)
class Shown:
    """An episode on the page and why it is there."""

    number: int
    "Place in traces.jsonl, from 1."
    why: str
    trace: Trace


@dataclass
class Picks:
    """Episodes chosen while the file streams by, so that a long run needs no more memory than a short one."""

    count: int = 0
    void: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    "Void episodes by what failed."
    first: list[Shown] = field(default_factory=list)
    last: deque[Shown] = field(default_factory=lambda: deque(maxlen=ENDS))
    refused: deque[Shown] = field(default_factory=lambda: deque(maxlen=ODD))
    voided: deque[Shown] = field(default_factory=lambda: deque(maxlen=ODD))

    def shown(self, each: int = ENDS) -> list[Shown]:
        """Returns the chosen episodes, at most `each` of every kind, in the order of the file.

        One that is of two kinds is there once, as the rarer.
        """
        groups = [list(self.last)[-each:], self.first[:each], list(self.refused)[-each:], list(self.voided)[-each:]]
        by_number = {one.number: one for group in groups for one in group}
        return [by_number[number] for number in sorted(by_number)]


def pick(picks: Picks, traces: Iterable[Trace]) -> None:
    """Takes episodes into `picks`, which holds those before an error as well."""
    for number, trace in enumerate(traces, start=1):
        picks.count = number
        if len(picks.first) < ENDS:
            picks.first.append(Shown(number, "start of training", trace))
        else:
            picks.last.append(Shown(number, "end of training", trace))
        if trace.void:
            picks.void += 1
            failure = trace.failure
            picks.failures[f"{failure.boundary}: {failure.kind}" if failure else "unknown"] += 1
            picks.voided.append(Shown(number, "void", trace))
        elif any(turn.cause is not Cause.LEGAL for turn in trace.turns):
            picks.refused.append(Shown(number, "reply not taken", trace))


@dataclass(frozen=True)
class TurnView:
    """One turn as it is laid out."""

    turn: Turn
    role: str
    seat_number: int
    "Place of the seat among the episode's seats, for its colour and lane; 0 for a seat that the episode lacks."
    messages: list[Message]
    "What the seat was told since its last turn."
    rewards: list[tuple[str, float]]
    mean_logprob: float | None
    "In nats."
    heard: list[int]
    "Earlier turns that stand in what the seat was told, by their place, from 1."


@dataclass(frozen=True)
class EpisodeView:
    """One episode as it is laid out."""

    number: int
    why: str
    trace: Trace
    ending: str
    tokens: int
    seconds: float
    lanes: int
    "0: one lane, turns in order."
    version: int | None
    "Newest version of the weights that sampled in it; None if no policy did."
    turns: list[TurnView]
    left_out: int
    "Turns in the middle that are not shown, after the first `before_gap`."
    before_gap: int


def view(shown: Shown, most_turns: int) -> EpisodeView:
    """Returns an episode for the page.

    At most `most_turns` of its turns are shown: two thirds from its start, the rest from its end.
    """
    trace = shown.trace
    turns, left_out = trace.turns, max(0, len(trace.turns) - most_turns)
    before_gap = most_turns * 2 // 3 if left_out else len(turns)
    kept = [*turns[:before_gap], *turns[before_gap + left_out :]]
    versions = [turn.max_version for turn in turns if turn.completion_ids]
    return EpisodeView(
        number=shown.number,
        why=shown.why,
        trace=trace,
        ending=ending_words(trace),
        tokens=sum(len(turn.completion_ids) for turn in turns),
        seconds=trace.seconds or max((turn.seconds for turn in turns), default=0.0),
        lanes=len(trace.seats) if 2 <= len(trace.seats) <= LANES else 0,
        version=max(versions, default=None),
        turns=list(_turns(trace, kept)),
        left_out=left_out,
        before_gap=before_gap,
    )


def _turns(trace: Trace, kept: Iterable[Turn]) -> Iterator[TurnView]:
    place = {seat: number for number, seat in enumerate(trace.seats)}
    heard = links(trace)
    for turn in kept:
        known = [value for value in turn.logprobs if math.isfinite(value)]
        yield TurnView(
            turn=turn,
            role=trace.seats[turn.seat].role if turn.seat in trace.seats else "unknown",
            seat_number=place.get(turn.seat, 0),
            messages=told(turn),
            rewards=[(seat, value) for seat, value in turn.rewards.items() if value],
            mean_logprob=sum(known) / len(known) if known else None,
            heard=[index + 1 for index in heard.get(turn.index, ())],
        )


__all__ = ["EpisodeView", "Picks", "Shown", "TurnView", "pick", "view"]
