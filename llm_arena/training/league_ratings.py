"""Live ratings of a run's policies, for its curves: who is ahead right now, by Plackett-Luce updates after each game.

They depend on the order of the games: the same games in another order end in other numbers, and a policy that changes
drags its past along. So they are for watching a run. Boards fit all games at once, with intervals; see `rating`.

The update is Algorithm 4 of Weng and Lin (JMLR 12, 2011, 267-300) as the package openskill has it: skill is a normal
distribution with mean mu and standard deviation sigma, 25 and 25/3 at first, and each game adds a little to sigma
(25/300, in squares), so that a rating never freezes.

A rating belongs to (env id, role, entrant), and each seat plays for itself: members of a team have ranks of their own.
What a role is worth is in the mu of all who play it, so only ratings of one role compare.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from llm_arena.errors import TrainingError, missing_extra
from llm_arena.rating import match_row
from llm_arena.training.league import entrant_of
from llm_arena.types import Json, Trace

if TYPE_CHECKING:
    from openskill.models import PlackettLuce

SIGMA_GROWTH = 2.0
"""A new version's sigma is its parent's, times this."""


class LiveRating(msgspec.Struct, frozen=True, kw_only=True):
    """The rating of an entrant in a role of a game; it depends on the order in which games were counted."""

    env_id: str
    role: str
    entrant: str
    "A policy id, or the agent's name where there is none."
    mu: float
    sigma: float
    games: int = 0

    @property
    def ordinal(self) -> float:
        """The skill that it has with near certainty: mu - 3 sigma."""
        return self.mu - 3 * self.sigma


class LiveRatings:
    """The ratings of everybody in a run's games.

    Args:
        officials: roles that take no part in the contest; see `ArenaEnv.officials`.

    Raises:
        MissingExtra: openskill is not installed.
    """

    def __init__(self, *, officials: Collection[str] = ()) -> None:
        self._officials = frozenset(officials)
        self._model = _model()
        self._ratings: dict[tuple[str, str, str], LiveRating] = {}

    def rate(self, trace: Trace) -> bool:
        """Counts a game that ranks at least two entrants, by the rules of `rating.match_row`.

        Void games, games of one entrant and those that rank nobody (all won or all lost together) count nothing. Where
        an entrant has several seats of a role, its rating moves to the mean of where each seat would have brought it.
        Which seat an entrant had plays no part, nor does the order of seats.

        Returns:
            Whether it counted.
        """
        held = {seat: entrant_of(info) for seat, info in trace.seats.items()}
        officials = {seat: who for seat, who in held.items() if trace.seats[seat].role in self._officials}
        row = match_row(trace, {seat: who for seat, who in held.items() if seat not in officials}, officials=officials)
        # Sorted, so that sums of floats come out the same whatever the seats are called.
        places = sorted((seat.rank, seat.role, seat.entrant) for seat in row.seats.values() if seat.rank is not None)
        if len({entrant for _, _, entrant in places}) < 2:
            return False
        keys = [(trace.spec.id, role, entrant) for _, role, entrant in places]
        teams = [[self._model.rating(self._of(key).mu, self._of(key).sigma)] for key in keys]
        moved = self._model.rate(teams, ranks=[float(rank) for rank, _, _ in places])
        for key in dict.fromkeys(keys):
            seats = [rating for at, (rating,) in zip(keys, moved, strict=True) if at == key]
            self._ratings[key] = msgspec.structs.replace(
                self._of(key),
                mu=sum(rating.mu for rating in seats) / len(seats),
                sigma=sum(rating.sigma for rating in seats) / len(seats),
                games=self._of(key).games + 1,
            )
        return True

    def inherit(self, version: str, parent: str) -> None:
        """Starts a new version from the ratings of its parent: its mu, and twice its sigma, at most the initial one.

        UnstableBaselines (`ModelRegistry.add_checkpoint`) doubles sigma as well, without a bound, so that a version
        after many is less certain than one that nobody knows.
        """
        for (env_id, role, entrant), rating in list(self._ratings.items()):
            if entrant == parent:
                sigma = min(SIGMA_GROWTH * rating.sigma, self._model.sigma)
                self._ratings[env_id, role, version] = msgspec.structs.replace(
                    rating, entrant=version, sigma=sigma, games=0
                )

    def table(self) -> list[LiveRating]:
        """Returns all ratings by env id and role, the highest ordinal first."""
        return sorted(self._ratings.values(), key=lambda one: (one.env_id, one.role, -one.ordinal, one.entrant))

    def state(self) -> Json:
        """Returns the state as JSON."""
        return msgspec.to_builtins(list(self._ratings.values()))

    def load(self, state: Json) -> None:
        """Takes the state that `state` returned.

        Raises:
            TrainingError: it is none.
        """
        try:
            rows = msgspec.convert(state, list[LiveRating])
        except msgspec.ValidationError as error:
            raise TrainingError(f"the live ratings can't be read: {error}; start anew with --fresh") from error
        self._ratings = {(row.env_id, row.role, row.entrant): row for row in rows}

    def _of(self, key: tuple[str, str, str]) -> LiveRating:
        env_id, role, entrant = key
        fresh = LiveRating(env_id=env_id, role=role, entrant=entrant, mu=self._model.mu, sigma=self._model.sigma)
        return self._ratings.get(key, fresh)


def _model() -> PlackettLuce:
    try:
        from openskill.models import PlackettLuce
    except ImportError as error:
        raise missing_extra("rating policies while they learn", "openskill", "train") from error
    return PlackettLuce()


__all__ = ["LiveRating", "LiveRatings"]
