"""Traces with returns and nothing else, and their credit by seat."""

from __future__ import annotations

from collections.abc import Sequence

from llm_arena.training.credit import Baselines, Credit, Estimator, assign
from llm_arena.types import Ending, EnvSpec, SeatInfo, Trace


def make_trace(
    id: str, returns: dict[str, float], *, group: str = "g", void: bool = False, policies: Sequence[str] = ("learner",)
) -> Trace:
    """A trace whose seats `<role>_<k>` got `returns`; the seats are held by `policies` in turn."""
    seats = {
        seat: SeatInfo(role=seat.rsplit("_", 1)[0], agent="x", policy=policies[place % len(policies)])
        for place, seat in enumerate(returns)
    }
    return Trace(
        id=id,
        spec=EnvSpec(id="toy-v0"),
        seed=0,
        group=group,
        seats=seats,
        returns={} if void else returns,
        ending=Ending.VOID if void else Ending.TERMINATED,
    )


def by_seat(
    traces: list[Trace], estimator: Estimator, baselines: Baselines | None = None, *, peers: Sequence[str] = ()
) -> Credit:
    return assign(
        traces,
        by="seat",
        estimator=estimator,
        baselines=baselines or Baselines(),
        learners=lambda trace: list(trace.seats),
        peers=peers,
    )
