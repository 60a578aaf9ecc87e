"""Who sits where: matches in blocks, so that neither the seat nor the luck of a start decides a comparison.

A block is one start (spec and seed) played once in every rotation of its entrants over the seats. It is the unit of
schedule, resume and intervals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

import msgspec
import numpy as np

from llm_arena.agent import Agent
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.rating import MatchRow, match_row
from llm_arena.registry import make
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.runtime import Runtime
from llm_arena.types import EnvSpec, Trace


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """One match that is to be played."""

    id: str
    block: str
    pool: str = ""
    spec: EnvSpec
    seed: int
    "Episode seed, the same in the whole block."
    entrants: dict[str, str]
    "Who sits where, by seat."


def seated_block(
    spec: EnvSpec, seats: Sequence[str], lineup: Sequence[str], *, seed: int, block: str, pool: str = ""
) -> list[Match]:
    """Returns one start in every rotation of `lineup` over `seats`, so that each entrant holds each seat once.

    Match k seats entrant `lineup[(i + k) % n]` on `seats[i]`.

    Raises:
        UsageError: the numbers of seats and entrants differ, or an entrant stands there twice.
    """
    count = len(seats)
    if len(lineup) != count:
        raise UsageError(f"{spec.id} has {count} seats here, but the lineup has {len(lineup)} entrants: {list(lineup)}")
    if len(set(lineup)) != count:
        raise UsageError(f"a lineup names an entrant twice: {list(lineup)}; give each setting a name of its own")
    return [
        Match(
            id=f"{block}/{shift}",
            block=block,
            pool=pool,
            spec=spec,
            seed=seed,
            entrants={seat: lineup[(i + shift) % count] for i, seat in enumerate(seats)},
        )
        for shift in range(count)
    ]


def round_robin(
    specs: Sequence[EnvSpec],
    entrants: Sequence[str],
    *,
    blocks: int | None = None,
    seed: int = 0,
    pool: str = "",
    alone: bool = False,
) -> list[Match]:
    """Returns `blocks` blocks for every set of entrants that fills the seats (every pair, with two seats).

    All sets of entrants meet the same starts with the same seeds. A match's id, seed and seats depend on no other
    entrant and not on `blocks`: entrants and blocks can be added later. Block k of all sets comes before block k+1 of
    any, so that a part of the schedule is a fair comparison as well.

    Args:
        specs: the starts, e.g. one per held-out topic, used in turn. Block k has a seed of its own, also where its
            start was used before.
        entrants: names of what is compared; their order plays no part.
        blocks: how many for each set of entrants; None: one for each start.
        seed: seed of the schedule; the same arguments give the same matches.
        pool: name of the pool that the matches belong to.
        alone: each entrant holds all seats itself, and a block is one match: for games of one seat, and for those in
            which the seats work together.

    Raises:
        UsageError: a start has more seats than there are entrants, or one seat without `alone`; an entrant stands there
            twice.
    """
    if len(set(entrants)) != len(entrants):
        raise UsageError(f"an entrant is named twice: {list(entrants)}; give each setting a name of its own")
    seats = [_seats(spec) for spec in specs]
    if not alone:
        for spec, found in zip(specs, seats, strict=True):
            _check_size(spec, found, entrants)
    matches = []
    for index in range(len(specs) if blocks is None else blocks):
        spec, places = specs[index % len(specs)], seats[index % len(specs)]
        start_seed = _hash64(seed, pool, index)
        for lineup in combinations(sorted(entrants), 1 if alone else len(places)):
            block = "|".join([pool, str(index), *lineup])
            if alone:
                held = dict.fromkeys(places, lineup[0])
                matches.append(Match(id=block, block=block, pool=pool, spec=spec, seed=start_seed, entrants=held))
            else:
                # Rotations keep the circle's order, so with three seats or more the order has to vary as well.
                order = np.random.default_rng(_hash64(seed, block)).permutation(len(lineup))
                seated = [lineup[place] for place in order]
                matches += seated_block(spec, places, seated, seed=start_seed, block=block, pool=pool)
    return matches


def _seats(spec: EnvSpec) -> list[str]:
    env = make(spec.id, **spec.kwargs)
    seats = list(env.possible_agents)
    env.close()
    return seats


def _check_size(spec: EnvSpec, seats: Sequence[str], entrants: Sequence[str]) -> None:
    if not 2 <= len(seats) <= len(entrants):
        raise UsageError(
            f"{spec.id} has {len(seats)} seat(s) with {spec.kwargs}, and {len(entrants)} entrants were given;"
            " a round robin needs at least two seats and one entrant for each"
        )


def play_matches(
    matches: Sequence[Match],
    agents: Mapping[str, Agent],
    runtime: Runtime,
    *,
    on_trace: Callable[[Trace], object] | None = None,
) -> list[Trace]:
    """Plays matches, many at once, and returns their traces in the order of `matches`.

    Args:
        matches: what to play.
        agents: the agent of each entrant; one object serves all its seats.
        runtime: where the episodes run.
        on_trace: called with each trace as it ends, e.g. `TraceWriter.write`.

    Raises:
        UnknownName: an entrant has no agent.
    """
    for entrant in (entrant for match in matches for entrant in match.entrants.values()):
        if entrant not in agents:
            raise UnknownName(
                f'no agent was given for the entrant "{entrant}"; there are: {", ".join(agents) or "none"}.'
                + did_you_mean(entrant, agents)
            )
    plans = [
        EpisodePlan(
            id=match.id,
            spec=match.spec,
            seed=match.seed,
            group=match.block,
            agents={seat: agents[entrant] for seat, entrant in match.entrants.items()},
            index=index,
        )
        for index, match in enumerate(matches)
    ]
    used = {id(agent): agent for plan in plans for agent in plan.agents.values()}
    return runtime.run(_play(plans, list(used.values()), runtime, on_trace))


async def _play(
    plans: Sequence[EpisodePlan], agents: Sequence[Agent], runtime: Runtime, on_trace: Callable[[Trace], object] | None
) -> list[Trace]:
    for agent in agents:
        prepare = getattr(agent, "prepare", None)
        if prepare is not None:  # a model that can't be had is the caller's error, before any match is void
            await prepare()
    return await play_many(plans, runtime, on_trace=on_trace)


def match_rows(matches: Sequence[Match], traces: Iterable[Trace]) -> list[MatchRow]:
    """Returns the rows of matches whose traces are given, in the order of `matches`.

    Traces are found by their id, so they may come in any order; one that was played again counts once, the last.
    """
    by_id = {trace.id: trace for trace in traces}
    return [
        match_row(by_id[match.id], match.entrants, block=match.block, pool=match.pool)
        for match in matches
        if match.id in by_id
    ]


def _hash64(*parts: object) -> int:
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


__all__ = ["Match", "match_rows", "play_matches", "round_robin", "seated_block"]
