"""The leak check: does a seat learn what it may not know? Done counterfactually, for any game.

Two episodes are played that differ only in what a seat may not know: the same seed, but the game's `deal` has drawn
from another generator, in such a way that `knows(seat)` is the same in both. With the same replies, everything that the
seat can see has to be the same to the bit, until the rules reveal something: until `knows(seat)` differs, or other
seats are to act. The seat itself is let reply badly too, and what it is then told is compared as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import EnvContractError
from llm_arena.types import Json

EPISODES = 3
"""Episodes that are looked at, from each seat."""

TWINS = 3
"""Other deals that each of them is compared with, at most."""

_SEARCH = 200
_TURNS = 200
_BAD = ("?", "0", "no idea, 7 or 12", "<answer>x</answer>")


def secrets_are_kept(env: ArenaEnv, seed: int) -> None:
    """Two deals that differ only in what a seat may not know look the same to it until the rules reveal it.

    Raises:
        EnvContractError: a seat can tell them apart; or a role that is none of `insiders` could not be checked, because
            `deal` is missing, or `knows` says that it knows everything.
    """
    if not env.hidden:
        return
    if type(env).deal is ArenaEnv.deal:
        raise EnvContractError(f"{env.id}: secrets are kept: {env.hidden} are hidden, but no deal(rng) draws them")
    unchecked = {env.role_of(seat) for seat in env.possible_agents} - set(env.insiders)
    for offset in range(EPISODES):
        for seat in env.possible_agents:
            for other_seed, own_entries in _twins(env, seat, seed + offset):
                _compare(env, seat, seed + offset, other_seed, own_entries)
                unchecked.discard(env.role_of(seat))
    if unchecked:
        raise EnvContractError(
            f"{env.id}: secrets are kept: for {', '.join(sorted(unchecked))} no two deals differ only in {env.hidden}; "
            "does knows(seat) say too much? A role that may know everything goes into `insiders`"
        )


def _twins(env: ArenaEnv, seat: str, seed: int) -> Iterator[tuple[int, bool]]:
    """Yields (seed of another deal, whether the seat's own entries are put back) that the seat can't tell apart."""
    first = _dealt(env, seed)
    known, secrets = _json(first.knows(seat)), _secrets(first)
    # where what seats hold is drawn independently, no other deal gives a seat the same: its own entries are put back
    for own_entries in (False, True):
        found = 0
        for number in range(_SEARCH):
            other_seed = seed * _SEARCH + number
            twin = _dealt(env, seed, other_seed, seat if own_entries else None)
            if _json(twin.knows(seat)) == known and _secrets(twin) != secrets:
                yield other_seed, own_entries
                found += 1
                if found == TWINS:
                    return
        if found:
            return


def _dealt(env: ArenaEnv, seed: int, other_seed: int | None = None, keeps: str | None = None) -> ArenaEnv:
    """Returns a new env after reset; with `other_seed` its deal was drawn from that, all else is the same."""
    copy = type(env)(**{**env.given_arguments, "retries": max(1, env.retries)})
    if other_seed is not None:
        first_deal = copy.deal

        def deal(rng: np.random.Generator) -> None:
            first_deal(rng)  # so that later draws of the episode are the same
            own = {name: getattr(copy, name) for name in copy.hidden}
            first_deal(np.random.default_rng([seed, other_seed]))
            for name, value in own.items():
                if keeps is not None and isinstance(value, dict) and keeps in value:
                    getattr(copy, name)[keeps] = value[keeps]

        copy.deal = deal  # type: ignore[method-assign]  # on this copy alone
    copy.reset(seed=seed)
    return copy


def _compare(env: ArenaEnv, seat: str, seed: int, other_seed: int, own_entries: bool) -> None:
    left, right = _dealt(env, seed), _dealt(env, seed, other_seed, seat if own_entries else None)
    rng = np.random.default_rng(seed)
    for _ in range(_TURNS):
        if left.over or right.over:
            return
        if left.pending != right.pending or _json(left.knows(seat)) != _json(right.knows(seat)):
            return
        mine, other = _seen(left, seat), _seen(right, seat)
        for name, value in mine.items():
            if value != other[name]:
                raise EnvContractError(
                    f"{env.id}: {seat} learns something of {env.hidden} from its {name}: {value!r} and {other[name]!r}"
                )
        mover = left.agent_selection
        bad = mover == seat and left.attempt(seat) == 0 and rng.random() < 0.5
        reply = _BAD[int(rng.integers(len(_BAD)))] if bad else left.sample_reply(mover, rng)
        for twin in (left, right):
            twin.step(reply)
            while twin.agents and twin.agent_selection not in twin.pending:
                twin.step(None)
        if _cause(left) != _cause(right):
            if mover == seat and _json(left.knows(seat)) == _json(right.knows(seat)):
                raise EnvContractError(
                    f"{env.id}: {seat} learns something of {env.hidden}: its reply {reply!r} was {_cause(left)} in one "
                    f"deal and {_cause(right)} in the other"
                )
            return  # another seat's secret decides what it may do


def _cause(env: ArenaEnv) -> str:
    return str(env.last_step.cause) if env.last_step else ""


def _secrets(env: ArenaEnv) -> str:
    return repr([getattr(env, name) for name in env.hidden])


def _json(value: Json) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _seen(env: ArenaEnv, seat: str) -> dict[str, Any]:
    return {
        "messages": env.observe(seat),
        "info": env.infos.get(seat),
        "legal": env.legal_actions(seat),
        "grammar": env.grammar(seat),
        "tools": env.tools(seat),
        "facts": env.facts(seat),
        "render": env.transcript(seat),
    }
