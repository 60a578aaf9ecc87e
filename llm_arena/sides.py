"""Who meets whom when two entrants share the seats of a game: the sides, and starts that no training has seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llm_arena.env import ArenaEnv
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.registry import make, make_env
from llm_arena.types import EnvSpec


@dataclass(frozen=True)
class Sides:
    """Two sides of a game."""

    row: str
    """What the row's entrant is, in words: a role, a seat, or `any seat`."""
    column: str
    seatings: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    """The seats of the row's entrant and those of the column's, once for each way to seat them."""
    turns: bool
    """Whether the row's entrant holds each seat in turn, so that row and column are not different roles."""


def sides(env: ArenaEnv, roles: Sequence[str] | None = None) -> Sides:
    """Returns who sits where when two entrants meet.

    Of two roles the row's entrant has the first. In a game of one role it has each seat in turn, and the column's all
    others. Officials, such as judges, are on no side.

    Args:
        env: the game.
        roles: the role or seat of the row's entrant, and that of the column's; without the latter all others. None: as
            above.

    Raises:
        UsageError: there are no two sides, or a seat is on none or on both.
        UnknownName: no such role or seat.
    """
    contest = {seat: env.role_of(seat) for seat in env.possible_agents if env.role_of(seat) not in env.officials}
    seats, names = list(contest), list(dict.fromkeys(contest.values()))
    if len(seats) < 2:
        raise UsageError(
            f"{env.spec.id} has one seat in the contest here, so that nobody meets; use llm_arena.evaluate"
        )
    if roles is None:
        if len(names) == 1:
            ways = tuple(((seat,), tuple(other for other in seats if other != seat)) for seat in seats)
            return Sides(f"{names[0]}, each seat in turn", f"{names[0]}, all other seats", ways, turns=True)
        if len(names) > 2:
            raise UsageError(
                f"{env.spec.id} has the roles {', '.join(names)}; say which one the rows hold, e.g."
                f" roles=[{names[0]!r}]: the columns then hold all others"
            )
        roles = names
    if not 1 <= len(roles) <= 2:
        raise UsageError(f"roles={list(roles)}; give the role of the rows, and if you like that of the columns")
    found = [_seats(env.spec.id, contest, name) for name in roles]
    row = found[0]
    column = found[1] if len(found) == 2 else tuple(seat for seat in seats if seat not in row)
    both, none = sorted({*row} & {*column}), [seat for seat in seats if seat not in row + column]
    if both or none or not column:
        what = f"{', '.join(both)} on both sides" if both else f"{', '.join(none)} on no side" if none else "one side"
        raise UsageError(f"{env.spec.id}: roles={list(roles)} leaves {what}; its seats are {', '.join(seats)}")
    others = " and ".join(dict.fromkeys(contest[seat] for seat in column))
    return Sides(roles[0], roles[1] if len(roles) == 2 else others, ((row, column),), turns=False)


def held_out(spec: EnvSpec, given: Sequence[str] = ()) -> EnvSpec:
    """Returns a game with its held-out problems, where it keeps some apart from those for training (`split`).

    Args:
        spec: the game.
        given: arguments that somebody chose; with `split` among them it stays as it is.
    """
    if spec.kwargs.get("split") != "train" or "split" in given:
        return spec
    try:
        return make_env(spec, split="heldout").spec
    except UsageError:  # these arguments say where problems come from, and then there are none kept apart
        return spec


def sides_of(spec: EnvSpec, roles: Sequence[str] | None) -> Sides:
    """Returns the sides of a game that is given by its spec; see `sides`."""
    env: ArenaEnv = make(spec)
    return sides(env, roles)


def _seats(env_id: str, contest: dict[str, str], name: str) -> tuple[str, ...]:
    found = tuple(seat for seat, role in contest.items() if name in (seat, role))
    if not found:
        known = [*dict.fromkeys(contest.values()), *contest]
        raise UnknownName(
            f"{env_id} has no role or seat {name!r} in the contest.{did_you_mean(name, known)} It has:"
            f" {', '.join(known)}"
        )
    return found


__all__ = ["Sides", "held_out", "sides", "sides_of"]
