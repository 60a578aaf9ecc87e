"""What games of hidden sides share as games: who drops out, who speaks when, and how the sides are paid."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from llm_arena.env import ArenaEnv
from llm_arena.problems.deduction.sides import settle
from llm_arena.types import Cause, Json, Move, Outcome


class HiddenSides(ArenaEnv):
    """A game whose players belong to two sides. Who is out stays a seat of the env, to be paid at the end.

    A game sets `alive`, `forfeited` and `first` when it begins.
    """

    few: ClassVar[str]
    "The side that is outnumbered."
    alive: list[str]
    "Who is in, in seat order."
    forfeited: list[str]
    "Who has given a bad reply under `forfeit`, and is out when the phase is over."
    first: int
    "Index of the seat that speaks first in the next round."

    @abstractmethod
    def booked(self, seat: str, said: str | None) -> Move:
        """Books what one seat did (None: nothing); goes on when the last of the phase has answered."""

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The player is out; the others play on. A context overflow ends the game at once, and it alone loses."""
        if self.overflow_seat == seat:
            others = [other for other in self.possible_agents if other != seat]
            return Move(rewards={seat: -self.forfeit_cost} | dict.fromkeys(others, self.forfeit_cost / len(others)))
        self.forfeited.append(seat)
        return self.booked(seat, None)

    def skip(self, seat: str) -> Move:
        """The player says, chooses or votes nothing."""
        return self.booked(seat, None)

    def speaking_order(self) -> list[str]:
        """Returns who is in, from the one whose turn it is to speak first; that moves on by one each time."""
        seats = self.possible_agents
        start = self.first % len(seats)
        while seats[start] not in self.alive:
            start = (start + 1) % len(seats)
        self.first = start + 1
        return [seat for seat in seats[start:] + seats[:start] if seat in self.alive]

    def finished(
        self, sides: Mapping[str, str], winner: str | None, reason: str, *, action: Json, facts: dict[str, Json]
    ) -> Move:
        """Ends the game.

        Args:
            sides: by seat.
            winner: a side; None: a draw.
            reason: in words.
            action: what the last reply was read as.
            facts: see `Outcome.facts`.
        """
        rewards = settle(sides, self.few, winner, self.forfeited)
        winners = [seat for seat, side in sides.items() if side == winner and seat not in self.forfeited]
        best = winners if winner is not None else list(sides)
        ranks = {seat: 3 if seat in self.forfeited else 1 if seat in best else 2 for seat in sides}
        outcome = Outcome(winners=winners, ranks=ranks, draw=winner is None, reason=reason, scores=rewards, facts=facts)
        return Move(rewards=rewards, outcome=outcome, action=action)
