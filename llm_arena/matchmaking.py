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
from llm_arena.rollout import EpisodePlan, play_through
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
    officials: dict[str, str] = {}
    "Who holds the seats that take no part in the contest."


def seats_of(spec: EnvSpec) -> tuple[list[str], dict[str, str]]:
    """Returns the seats that entrants hold, and the role of each official's seat; see `ArenaEnv.officials`."""
    env = make(spec)
    roles = {seat: env.role_of(seat) for seat in env.possible_agents}
    officials = {seat: role for seat, role in roles.items() if role in env.officials}
    env.close()
    return [seat for seat in roles if seat not in officials], officials


def seated_block(
    spec: EnvSpec,
    seats: Sequence[str],
    lineup: Sequence[str],
    *,
    seed: int,
    block: str,
    pool: str = "",
    officials: Mapping[str, str] | None = None,
) -> list[Match]:
    """Returns one start in every rotation of `lineup` over `seats`, so that each entrant holds each seat once.

    Match k seats entrant `lineup[(i + k) % n]` on `seats[i]`. `officials`, by seat, stay where they are.

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
            officials=dict(officials or {}),
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
    officials: Mapping[str, str] | None = None,
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
        officials: who holds the seats that take no part in the contest, by role or seat; a seat's own goes before its
            role's. Each start takes those that it has.

    Raises:
        UsageError: a start has more seats than there are entrants, or one seat without `alone`; an entrant stands there
            twice; nobody holds an official's seat.
    """
    if len(set(entrants)) != len(entrants):
        raise UsageError(f"an entrant is named twice: {list(entrants)}; give each setting a name of its own")
    seats, held = [], []
    for spec in specs:
        contest, roles = seats_of(spec)
        if not alone:
            _check_size(spec, contest, entrants)
        seats.append(contest)
        held.append(holders(spec, roles, officials or {}))
    matches = []
    for index in range(len(specs) if blocks is None else blocks):
        spec, places, judges = specs[index % len(specs)], seats[index % len(specs)], held[index % len(specs)]
        start_seed = _hash64(seed, pool, index)
        for lineup in combinations(sorted(entrants), 1 if alone else len(places)):
            block = "|".join([pool, str(index), *lineup])
            if alone:
                whole = dict.fromkeys(places, lineup[0])
                matches += [
                    Match(
                        id=block,
                        block=block,
                        pool=pool,
                        spec=spec,
                        seed=start_seed,
                        entrants=whole,
                        officials=dict(judges),
                    )
                ]
            else:
                # Rotations keep the circle's order, so with three seats or more the order has to vary as well.
                order = np.random.default_rng(_hash64(seed, block)).permutation(len(lineup))
                seated = [lineup[place] for place in order]
                matches += seated_block(spec, places, seated, seed=start_seed, block=block, pool=pool, officials=judges)
    return matches


def holders(spec: EnvSpec, roles: Mapping[str, str], officials: Mapping[str, str]) -> dict[str, str]:
    """Returns who holds each official's seat of a start.

    Args:
        spec: the start.
        roles: the role of each official's seat, see `seats_of`.
        officials: who holds them, by role or seat; a seat's own goes before its role's.

    Raises:
        UsageError: nobody holds one of them.
    """
    for seat, role in roles.items():
        if not {seat, role} & officials.keys():
            raise UsageError(
                f'{spec.id}: the role "{role}" takes no part in the contest, so no entrant holds it; name an agent for'
                f' it: officials={{"{role}": "AGENT"}}, in a board [games.officials] {role} = "AGENT"'
            )
    return {seat: officials.get(seat, officials.get(role, "")) for seat, role in roles.items()}


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
    on_trace: Callable[[Trace], object],
    *,
    officials: Mapping[str, Agent] | None = None,
) -> None:
    """Plays matches, many at once. No trace is kept but by `on_trace`, so that a long list takes no more memory.

    Args:
        matches: what to play.
        agents: the agent of each entrant; one object serves all its seats.
        runtime: where the episodes run.
        on_trace: called with each trace as it ends, as in `play_many`.
        officials: likewise the agent of each official.

    Raises:
        UnknownName: an entrant or official has no agent.
        ServerRefusal: a model's server refused a request for good; the other matches are cancelled.
    """
    plans = [
        EpisodePlan(
            id=match.id,
            spec=match.spec,
            seed=match.seed,
            group=match.block,
            agents={**_seated(match.entrants, agents), **_seated(match.officials, officials or {})},
            index=index,
        )
        for index, match in enumerate(matches)
    ]
    used = {id(agent): agent for plan in plans for agent in plan.agents.values()}
    runtime.run(_play(plans, list(used.values()), runtime, on_trace))


def _seated(names: Mapping[str, str], agents: Mapping[str, Agent]) -> dict[str, Agent]:
    for name in names.values():
        if name not in agents:
            raise UnknownName(
                f'no agent was given for "{name}"; there are: {", ".join(agents) or "none"}.'
                + did_you_mean(name, agents)
            )
    return {seat: agents[name] for seat, name in names.items()}


async def _play(
    plans: Sequence[EpisodePlan], agents: Sequence[Agent], runtime: Runtime, on_trace: Callable[[Trace], object]
) -> None:
    for agent in agents:
        prepare = getattr(agent, "prepare", None)
        if prepare is not None:  # a model that can't be had is the caller's error, before any match is void
            await prepare()
    await play_through(plans, runtime, on_trace)


def match_rows(matches: Sequence[Match], traces: Iterable[Trace]) -> list[MatchRow]:
    """Returns the rows of matches whose traces are given, in the order of `matches`.

    Traces are found by their id, so they may come in any order; one that was played again counts once, the last.
    """
    by_id = {trace.id: trace for trace in traces}
    return [row_of(match, by_id[match.id]) for match in matches if match.id in by_id]


def row_of(match: Match, trace: Trace) -> MatchRow:
    """Returns the row of a match from its trace."""
    return match_row(trace, match.entrants, officials=match.officials, block=match.block, pool=match.pool)


def _hash64(*parts: object) -> int:
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


__all__ = ["Match", "holders", "match_rows", "play_matches", "round_robin", "row_of", "seated_block", "seats_of"]
