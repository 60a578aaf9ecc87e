"""Doors to the games of other suites: OpenSpiel, PettingZoo's classic games, TextArena.

`make("openspiel/kuhn_poker")`, `make("pettingzoo/connect_four_v3")` and `make("textarena/Nim-v0")` are envs like our
own: messages in, text out, one seed, one spec, replays, and our rule for bad replies. What each door can and can't
open is in docs/doors.md.

A door is one class for all games of its suite. So what other games say of their class (id, roles, whether the game is
zero-sum) a door says of the instance, in `card`.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from llm_arena.env import ArenaEnv
from llm_arena.errors import ArenaError, MissingExtra, UsageError
from llm_arena.parsing import normalize, printable
from llm_arena.types import Cause, Json, Move, Outcome

_PLAYER_MARK = re.compile(r"\[P\d+\]\s*")

_LISTED = 80
"""How many legal actions are written into a message; more are counted."""


class Door(ArenaEnv):
    """A game of another suite.

    Args:
        game: its name there.
        version: the version of the package that the episode was recorded with; None: the one that is installed.
        parameters: the game's own parameters, as its suite names them.
        max_turns: None: enough for the longest game that the suite allows.

    Raises:
        MissingExtra: the suite is not installed.
        UsageError: the spec was recorded with another version of the suite, or a parameter is wrong.
        NameNotFound: the suite has no such game.
    """

    namespace: ClassVar[str]
    "What stands before the slash of an id."
    package: ClassVar[str]
    "The suite's name on the package index."
    extra: ClassVar[str]
    "The extra of ours that installs it."

    def __init__(
        self,
        *,
        game: str,
        version: str | None = None,
        parameters: Mapping[str, Json] | None = None,
        max_turns: int | None = None,
        **options: Any,
    ) -> None:
        named = parameters is None or (
            isinstance(parameters, Mapping) and all(isinstance(key, str) for key in parameters)
        )
        if not named:
            raise UsageError(
                f"{self.namespace}/{game}: parameters={parameters!r:.200}; expected names with values, like "
                "{'players': 3}"
            )
        self.game = game
        self.parameters = dict(parameters or {})
        self.card(id=f"{self.namespace}/{game}", summary=f"{game} of {self.package}")
        try:
            self.version = self.installed()
        except importlib.metadata.PackageNotFoundError as error:
            raise self.missing(str(error.name)) from None
        if version not in (None, self.version):
            raise UsageError(
                f"{self.id} was recorded with {self.package} {version}, and {self.version} is installed; its rules may "
                f"differ. Install what it was recorded with, or pass version=None to play by what is installed."
            )
        try:
            turns = self.open()
        # the boundary of the suites: no document says what they raise at odd parameters
        except (AssertionError, AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            if isinstance(error, ArenaError) or not self.parameters:
                raise
            raise self.refused(error) from error
        if type(turns) is not int or turns < 1:
            raise UsageError(
                f"{self.id}: parameters={self.parameters!r:.200} leave nothing to play: the longest game has "
                f"{turns!r:.20} turns; expected 1 or more"
            )
        self._contest = self.zero_sum  # `illegal="penalty"` makes an instance say that it is not zero-sum
        super().__init__(max_turns=turns if max_turns is None else max_turns, **options)
        self.metadata = {**self.metadata, "name": self.id.replace("/", "_").replace("-", "_")}

    def installed(self) -> str:
        """Returns the version of what the rules and the luck of this game come from."""
        return importlib.metadata.version(self.package)

    def open(self) -> int:
        """Loads the game, says its card, and returns how many turns its longest episode takes."""
        raise NotImplementedError(f"{type(self).__name__} needs open()")  # an author's duty, not a stub

    def card(self, **says: Any) -> None:
        """Sets on this instance what other games set on their class: `id`, `roles`, `zero_sum`, `forfeit_cost`..."""
        vars(self).update(says)

    def missing(self, package: str) -> MissingExtra:
        """Returns the error for a package that is not installed."""
        return MissingExtra(
            f'{self.id} needs the package "{package}". Install it with: pip install "llm-arena[{self.extra}]".'
        )

    def refused(self, error: Exception) -> UsageError:
        """Returns the error for parameters that the suite does not take, with its own words in one line."""
        return UsageError(
            f"{self.id} can't be set up with parameters={self.parameters!r:.200}: {type(error).__name__}: "
            f"{' '.join(str(error).split()):.300}"
        )

    def resolved(self) -> dict[str, Json]:
        """Returns the version of the suite's package, which enters the spec."""
        return {"version": self.version}

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """Ends the game: the seat's return becomes that of the worst legal play.

        Other seats gain as much where the game is zero-sum, fall with it where all share one return, and are else left
        with what they have.
        """
        others = [other for other in self.possible_agents if other != seat and self._alive(other)]
        lost = min(-self.forfeit_cost - self.returns[seat], 0.0)
        rewards = {seat: lost}
        if self.cooperative:
            rewards |= {other: min(-self.forfeit_cost - self.returns[other], 0.0) for other in others}
        elif self._contest:
            rewards |= dict.fromkeys(others, -lost / len(others))
        reason = f"forfeit: {seat} gave {cause} reply"
        if self.cooperative or not others:
            return Move(rewards=rewards, outcome=Outcome(reason=reason))
        ranks = {seat: 2} | dict.fromkeys(others, 1)
        return Move(rewards=rewards, outcome=Outcome(winners=others, ranks=ranks, reason=reason))

    def standing(self, scores: Mapping[str, float], reason: str = "") -> Outcome:
        """Returns the outcome of a game that ended by its rules: who has the highest score wins.

        Args:
            scores: by seat.
            reason: the suite's own words; by default who won.
        """
        best = max(scores.values())
        seats = list(scores)
        if self.cooperative or len(seats) == 1:
            return Outcome(reason=reason or f"the game is over with {best:g}", scores=dict(scores))
        draw = len(set(scores.values())) == 1
        winners = [] if draw else [seat for seat in seats if scores[seat] == best]
        ranks = {seat: 1 + sum(other > scores[seat] for other in scores.values()) for seat in seats}
        words = "a draw" if draw else f"{' and '.join(winners)} won"
        return Outcome(winners=winners, ranks=ranks, draw=draw, reason=reason or words, scores=dict(scores))


def label_actions(names: Mapping[int, str]) -> dict[str, int]:
    """Returns the reply that stands for each action, with the action.

    A name that several actions share when case and punctuation are folded (`bxc3`, `Bxc3`) gets the action's number;
    one that no reply could spell (long, or nothing but punctuation) is replaced by it. Brackets, which our parser reads
    as the mark of an answer, become parentheses, and a player's mark before the name is left out.

    >>> label_actions({0: "bxc3", 1: "Bxc3", 2: "?", 3: "[P0]Bid: 3", 4: "(Play 0)"})
    {'bxc3 #0': 0, 'Bxc3 #1': 1, 'action 2': 2, 'Bid: 3': 3, 'Play 0': 4}
    """
    lines = {action: _tidy(name) for action, name in names.items()}
    shared = Counter(map(normalize, lines.values()))
    labels: dict[str, int] = {}
    for action, name in lines.items():
        folded = normalize(name)
        if not folded or len(name) > 100:
            labels[f"action {action}"] = action
        else:
            labels[f"{name} #{action}" if shared[folded] > 1 else name] = action
    return labels


def _tidy(name: str) -> str:
    name = _PLAYER_MARK.sub("", " ".join(printable(name).split()))
    name = name.replace("[", "(").replace("]", ")").rstrip(" ;,.")
    return name[1:-1] if name[:1] == "(" and name.find(")") == len(name) - 1 else name


def menu(labels: Sequence[str]) -> str:
    """Returns the end of a message, which lists what may be answered; names with commas stand on lines of their own."""
    lines = any(", " in label or ";" in label for label in labels)
    rest = [f"and {len(labels) - _LISTED} more"] if len(labels) > _LISTED else []
    return f"Legal actions:{chr(10) if lines else ' '}{(chr(10) if lines else ', ').join([*labels[:_LISTED], *rest])}"


__all__ = ["Door", "label_actions", "menu"]
