"""TextArena's games: `make("textarena/Nim-v0")` (Guertler et al. 2025, "TextArena").

A seat is told what TextArena tells its player, as it comes: the prompt, the board, what others did. Its reply goes to
TextArena without its thinking. The luck is TextArena's own, seeded from the episode and kept apart from the process
(see `OwnLuck`). A reply that TextArena calls invalid is taken back, by playing the episode up to there again, and goes
to our own rule for bad replies; TextArena's second tries are switched off.

Games of `KINDS` can be played by scripted players too: their legal moves are known here. To other games, which only
models and people can play, say how many seats they have: `make("textarena/Taboo-v0", parameters={"players": 4})`. All
other parameters are those of the game's class in TextArena.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from llm_arena.adapters import Door
from llm_arena.errors import EnvContractError, NameNotFound, UsageError, did_you_mean
from llm_arena.global_luck import OwnLuck
from llm_arena.parsing import IllegalReply, normalize, printable, quote, strip_thinking
from llm_arena.types import Cause, Json, Move, Reply

HOSTED = ("CharacterConclave", "Debate", "GuessWho", "ScenarioPlanning", "TwentyQuestions")
"""Games in which a model behind a network service is judge or player."""

_BRACKETED = re.compile(r"\[([^\[\]]*)\]")
_BASE = re.compile(r"(?P<base>.+?)-v\d+")


@dataclass(frozen=True)
class Kind:
    """What we know of one of TextArena's games. `game` is TextArena's env, `player` the number of who acts."""

    players: int
    turns: Callable[[Any], int]
    "How many turns the longest episode takes."
    moves: Callable[[Any, int], list[str] | None]
    "All legal moves, or None where they can't be listed."
    sample: Callable[[Any, np.random.Generator], str] | None = None
    "Draws some legal reply where moves can't be listed."
    talks: Callable[[Any], bool] = lambda game: False
    "Whether the reply is free talk now, so that brackets in it mean nothing."
    zero_sum: bool = True


def _empty_cells(game: Any, player: int) -> list[str]:
    cells = [cell for row in game.state.game_state["board"] for cell in row]
    return [f"[{at}]" for at, cell in enumerate(cells) if cell == ""]


def _open_columns(game: Any, player: int) -> list[str]:
    return [f"[col {column}]" for column, cell in enumerate(game.state.game_state["board"][0]) if cell == "."]


def _piles(game: Any, player: int) -> list[str]:
    piles = enumerate(game.state.game_state["piles"])
    return [f"[{number} {count}]" for number, size in piles for count in range(1, size + 1)]


def _bids(game: Any, player: int) -> list[str]:
    """TextArena lets neither number of a bid fall; bids above all dice are legal too, but left out here."""
    held = game.state.game_state
    quantity, face = held["current_bid"]["quantity"], held["current_bid"]["face_value"]
    dice = sum(held["remaining_dice"].values())
    higher = product(range(max(quantity, 1), dice + 1), range(max(face, 1), 7))
    bids = [f"[Bid: {count}, {value}]" for count, value in higher if (count, value) != (quantity, face)]
    return bids + (["[Call]"] if quantity else [])


def _guesses(game: Any, player: int) -> list[str]:
    numbers = range(game.min_number, game.max_number + 1)
    return [f"[{number}]" for number in numbers if number not in game.guessed_numbers]


def _code(game: Any, rng: np.random.Generator) -> str:
    tried = [entry["guess"] for entry in game.state.game_state["history"]]
    while True:
        code = rng.choice(game.num_numbers, game.code_length, replace=bool(game.duplicate_numbers)) + 1
        if code.tolist() not in tried:
            return f"[{' '.join(map(str, code))}]"


def _talk_or_choose(game: Any, rng: np.random.Generator) -> str:
    if game.state.game_state["phase"] == "conversation":
        return str(rng.choice(["Let us both cooperate.", "I will do what you did.", "No comment."]))
    return str(rng.choice(["[Cooperate]", "[Defect]"]))


def _fixed(*moves: str) -> Callable[[Any, int], list[str]]:
    return lambda game, player: list(moves)


KINDS: Mapping[str, Kind] = {
    "TicTacToe": Kind(2, lambda game: 9, _empty_cells),
    "ThreePlayerTicTacToe": Kind(3, lambda game: 25, _empty_cells),
    "ConnectFour": Kind(2, lambda game: game.num_rows * game.num_cols, _open_columns),
    "Nim": Kind(2, lambda game: sum(game.initial_piles), _piles),
    "KuhnPoker": Kind(
        2,
        lambda game: 3 * game.max_rounds,
        lambda game, player: [f"[{move}]" for move in game.state.game_state["current_legal_action_tree"]],
    ),
    "LiarsDice": Kind(2, lambda game: (6 + 4 * game.num_dice) * 4 * game.num_dice, _bids),
    "PigDice": Kind(2, lambda game: game.max_turns + 60, _fixed("[roll]", "[hold]")),
    "Blackjack": Kind(1, lambda game: 12 * game.num_hands, _fixed("[hit]", "[stand]"), zero_sum=False),
    "GuessTheNumber": Kind(1, lambda game: game.max_turns + 1, _guesses, zero_sum=False),
    "Mastermind": Kind(1, lambda game: game.max_turns + 1, lambda game, player: None, _code, zero_sum=False),
    "IteratedRockPaperScissors": Kind(2, lambda game: 2 * game.num_rounds, _fixed("[rock]", "[paper]", "[scissors]")),
    "IteratedMatchingPennies": Kind(2, lambda game: 2 * game.num_rounds, _fixed("[heads]", "[tails]")),
    "IteratedPrisonersDilemma": Kind(
        2,
        lambda game: 2 * game.num_rounds * (game.conversation_rounds + 1),
        lambda game, player: None,
        _talk_or_choose,
        talks=lambda game: bool(game.state.game_state["phase"] == "conversation"),
    ),
}
"""The games that scripted players can play, by their names without version."""


class TextArenaGame(Door):
    """A game of TextArena."""

    namespace = "textarena"
    package = "textarena"
    extra = "textarena"

    def open(self) -> int:
        """Makes TextArena's env; raises UsageError for games that can't be played on this machine."""
        try:
            self.suite: Any = importlib.import_module("textarena")
        except ImportError as error:
            raise self.missing(error.name or self.package) from error
        known = importlib.import_module("textarena.envs.registration").ENV_REGISTRY
        if self.game not in known:
            raise NameNotFound(f'TextArena has no game "{self.game}".{did_you_mean(self.game, known)}')
        match = _BASE.match(self.game)
        self.base = match["base"] if match else self.game
        if self.base in HOSTED:
            raise UsageError(f"{self.id} calls a model behind a network service, so it can't be replayed; play another")
        self.kind = KINDS.get(self.base)
        players = self.parameters.get("players", self.kind.players if self.kind else None)
        if not isinstance(players, int) or isinstance(players, bool) or players < 1:
            raise UsageError(f"{self.id}: say how many seats it has: parameters={{'players': 2}}; got {players!r}")
        self.players = players
        self.accepted: list[str] = []
        self.card(
            roles={"player": players},
            zero_sum=self.kind is not None and self.kind.zero_sum and players > 1,
            forfeit_cost=1.0,
        )
        self.start(0)
        return self.kind.turns(self.inner) if self.kind else 1000

    def start(self, seed: int) -> None:
        """Makes and resets TextArena's env, with all luck from `seed`."""
        self.seed_drawn = seed
        self.luck = OwnLuck(seed)
        given = {name: value for name, value in self.parameters.items() if name != "players"}
        try:
            with self.luck, contextlib.redirect_stdout(io.StringIO()):
                self.inner: Any = self.suite.make(self.game, **given)
                while isinstance(self.inner, self.suite.Wrapper):  # they rewrite observations and replies
                    self.inner = self.inner.env
                self.inner.reset(num_players=self.players, seed=seed)
        except ImportError as error:
            raise self.missing(error.name or self.package) from error
        except (AssertionError, LookupError, OSError, SyntaxError, TypeError, ValueError) as error:
            raise self.refused(error) from error
        self.inner.state.error_allowance = 0

    def begin(self, rng: np.random.Generator) -> str:
        """Starts TextArena's game with a seed of this episode, and tells every seat its prompt."""
        self.accepted = []
        self.start(int(rng.integers(2**31)))
        self.pass_on("")
        return self.actor()

    def actor(self) -> str:
        """Returns the seat whom TextArena asks."""
        return self.possible_agents[int(self.inner.state.current_player_id)]

    def pass_on(self, action: str) -> None:
        """Tells each seat what TextArena has for its player since the last time.

        Args:
            action: the reply that led to it, which games repeat in their own messages.
        """
        state = self.inner.state
        folded = " ".join(action.split())
        for player, seat in enumerate(self.possible_agents):
            news: list[str] = []
            for sender, message, _ in state.observations[player]:
                if sender == player:
                    continue  # its own reply, which is in its view already
                if sender >= 0:
                    news.append(f"Player {sender}:\n{quote(message)}")
                else:
                    # a reply of several lines could forge lines of the game
                    news.append(printable(message.replace(action, folded) if "\n" in action else message).strip())
            state.observations[player] = []
            if news:
                self.tell(seat, "\n\n".join(news))

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the legal moves of the games that are known here; others and free talk can't be listed."""
        if self.kind is None or self.over or seat != self.actor():
            return None
        return self.kind.moves(self.inner, self.possible_agents.index(seat))

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws some legal reply.

        Raises:
            UsageError: the legal moves of this game are not known here.
        """
        if self.kind is None:
            raise UsageError(
                f"{self.id}: its legal moves are not known, so only models and people can play it, not random-legal; "
                f"known are {', '.join(KINDS)}"
            )
        if self.kind.sample:
            return self.kind.sample(self.inner, rng)
        moves = self.legal_actions(seat) or []
        return moves[int(rng.integers(len(moves)))]

    def facts(self, seat: str) -> Json:
        """Returns TextArena's number of the seat."""
        return {"player": self.possible_agents.index(seat)}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Gives the reply to TextArena, and takes it back if TextArena calls it invalid."""
        action = self.read(reply)
        try:
            with self.luck, contextlib.redirect_stdout(io.StringIO()):
                over, _ = self.inner.step(action)
        except (ValueError, OverflowError) as error:
            # TextArena reads numbers without bounds: a seat must not be able to void the game by a long one
            self.take_back()
            raise IllegalReply(Cause.UNPARSABLE, "The game can't read that move.") from error
        said = self.inner.state.game_info.get(self.possible_agents.index(seat), {})
        if said.get("invalid_move"):
            self.take_back()
            reason = " ".join(printable(str(said.get("reason") or "The game does not accept that move.")).split())
            raise IllegalReply(Cause.ILLEGAL, reason.removeprefix("Invalid Move: "))
        self.accepted.append(action)
        self.pass_on(action)
        if not over:
            return Move(next=self.actor(), action=action)
        return self.end()

    def read(self, reply: Reply) -> str:
        """Returns the reply without its thinking; of a known game's move only its one answer, in brackets.

        TextArena searches a reply by patterns of its own, some of which take brackets that go over several lines.
        """
        text = strip_thinking(reply).strip()
        if not text:
            raise IllegalReply(Cause.EMPTY, "Your reply was empty.")
        if self.kind is None or self.kind.talks(self.inner):
            return text
        text = " ".join(text.split())
        answers = _BRACKETED.findall(text)
        if not answers:
            raise IllegalReply(Cause.UNPARSABLE, "Write your move in square brackets.")
        if len({normalize(answer) for answer in answers}) > 1:
            raise IllegalReply(Cause.AMBIGUOUS, "Give one answer only.")
        if reply.finish == "length" and text != f"[{answers[0]}]":
            raise IllegalReply(Cause.LENGTH, "Be shorter.")
        return f"[{answers[0]}]"

    def take_back(self) -> None:
        """Plays the episode up to here again, without the last reply."""
        self.start(self.seed_drawn)
        with self.luck, contextlib.redirect_stdout(io.StringIO()):
            for action in self.accepted:
                self.inner.step(action)
        for player in range(self.players):
            self.inner.state.observations[player] = []

    def end(self) -> Move:
        """Returns the move that ends the game, with TextArena's rewards."""
        given, about = self.inner.close()
        if given is None:
            raise EnvContractError(f"{self.id}: TextArena ended the game without rewards")
        rewards = {seat: float(given.get(player, 0.0)) for player, seat in enumerate(self.possible_agents)}
        reason = next((str(info["reason"]) for info in about.values() if info.get("reason")), "")
        return Move(rewards=rewards, outcome=self.standing(rewards, " ".join(printable(reason).split())))
