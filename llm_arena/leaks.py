"""The leak check: does a seat learn what it may not know? Done counterfactually, for any game."""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import EnvContractError


def secrets_are_kept(env: ArenaEnv, seed: int) -> None:
    """Two deals that differ only in what a seat may not know look the same to it until the end.

    A hidden attribute is a dict by seat, named in `hidden`. Deals are searched for pairs that agree in everything
    but the others' entries; both are then played with the same replies, and compared through the seat's eyes.
    """
    if not env.hidden:
        return
    deals: dict[str, list[ArenaEnv]] = {}
    compared = 0
    for offset in range(200):
        copy = type(env)(**env.given_arguments)
        copy.reset(seed=seed + offset)
        for seat in copy.possible_agents:
            twins = deals.setdefault(_public_key(copy, seat), [])
            if all(_secrets(twin) != _secrets(copy) for twin in twins) and len(twins) < 3:
                for twin in twins:
                    _compare_twins(env, twin, copy, seat, seed + offset)
                    compared += 1
                twins.append(copy.clone())
    if not compared:
        raise EnvContractError(
            f"{env.id}: secrets are kept: no two deals differ only in {env.hidden}; is it a dict by seat?"
        )


def _secrets(env: ArenaEnv) -> str:
    return repr([getattr(env, name) for name in env.hidden])


def _public_key(env: ArenaEnv, seat: str) -> str:
    """Returns what `seat` may know of a deal: its own entries of the hidden fields, and all other fields."""
    own = {name: getattr(env, name).get(seat) for name in env.hidden}
    public = {
        name: repr(value) for name, value in vars(env).items() if name not in env.book_fields and name not in env.hidden
    }
    return repr((seat, own, sorted(public.items())))


def _compare_twins(env: ArenaEnv, left: ArenaEnv, right: ArenaEnv, seat: str, seed: int) -> None:
    left, right, rng = left.clone(), right.clone(), np.random.default_rng(seed)
    while True:
        mine, other = _seen(left, seat), _seen(right, seat)
        for name, value in mine.items():
            if value != other[name]:
                raise EnvContractError(
                    f"{env.id}: {seat} learns something of {env.hidden} from its {name}: {value!r} and {other[name]!r}"
                )
        reply = left.sample_reply(left.agent_selection, rng)
        left.step(reply)
        right.step(reply)
        if left.over or right.over:
            return


def _seen(env: ArenaEnv, seat: str) -> dict[str, Any]:
    return {
        "messages": env.observe(seat),
        "info": env.infos[seat],
        "legal": env.legal_actions(seat),
        "grammar": env.grammar(seat),
        "facts": env.facts(seat),
        "render": env.transcript(seat),
    }
