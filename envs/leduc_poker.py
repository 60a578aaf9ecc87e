"""leduc-poker-v0: Leduc poker, two rounds of betting around one open card.

Roles     player_0 acts first in both rounds, player_1 second.
Cards     six: two each of J, Q, K. Each player gets one and pays an ante of one chip. Before the second round a card of
          the other four is laid open. A pair with the open card wins, else the higher card; equal cards split the pot.
Actions   check, bet; facing a bet: call, raise, fold. A bet or raise is 2 chips in the first round and 4 in the second;
          of bets and raises there are at most two a round. Two checks or a call end a round.
Rewards   chips won or lost, from -13 to +13, as in OpenSpiel's leduc_poker (its call is check or call, its raise is bet
          or raise). Worked: player_0 holds K, player_1 Q. bet, raise, call: 5 chips each. Q is laid open. check, bet,
          call: 9 chips each, and player_1 has a pair: -9 and +9. A fold loses what its player has paid: bet, raise,
          fold -3 and +3. With best play player_0 loses 0.0856 chips a game.
Ends      with a fold, or with the second round. A reply that is no legal action forfeits 13 chips, as much as the worst
          loss.
Sees      each player its own card and all actions; both the open card when the second round begins. No view ever shows
          the other's card; after a showdown the outcome, which both infos then hold, tells both cards. After a fold
          nobody learns them, nor the open card of a game that ends before the second round.
Exploits  one game says little: its returns spread by about 4 chips, so an edge of 0.1 chips needs thousands of games
          (use both seats on the same seeds). Beating one opponent isn't playing well: whoever bets always beats one
          that folds too much, and can be beaten by much more. `llm_arena.exploitability` measures the distance from an
          equilibrium (NashConv / 2: uniform play has 2.373611). An opponent that forfeits gives 13 chips at once, the
          most that play can win and seldom does: read the counts of illegal replies beside the rewards.
Baseline  `cfr`: the average strategy of 2000 iterations of CFR+; exploitability 0.0001 chips a game. `python -m
          llm_arena.problems.solvers.leduc` makes its table again.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.parsing import read_choice
from llm_arena.problems.solvers.leduc import RANKS, actions, closes_round, stakes, stored, stronger
from llm_arena.types import Json, Move, Outcome, Reply, View

OTHER = {"player_0": "player_1", "player_1": "player_0"}
ACTIONS = ("check", "bet", "call", "raise", "fold")
UNOPENED = {"c": "check", "r": "bet"}
FACING = {"c": "call", "r": "raise", "f": "fold"}
LETTERS = {"check": "c", "call": "c", "bet": "r", "raise": "r", "fold": "f"}
VERBS = {"check": "checks", "bet": "bets", "call": "calls", "raise": "raises", "fold": "folds"}


def words(line: str) -> list[str]:
    """Returns what may be said after `line` (see llm_arena/problems/solvers/leduc.py)."""
    named = FACING if line.endswith("r") else UNOPENED
    return [named[letter] for letter in actions(line)]


def cfr(view: View, rng: np.random.Generator) -> str:
    """Draws an action by the stored strategy."""
    line = "/".join("".join(LETTERS[action] for action in said) for said in view.facts["rounds"])
    probabilities = np.cumsum(stored()[f"{view.facts['card']}{view.facts['board'] or ''}:{line}"])
    drawn = int(np.searchsorted(probabilities, rng.random() * probabilities[-1], side="right"))
    return words(line)[drawn]


class LeducPoker(ArenaEnv):
    """Leduc poker: one card each, one open card, two rounds of betting; value -0.0856 for the first player.

    Args:
        options: those of `ArenaEnv`; `max_turns` leaves room for the longest game.
    """

    id = "leduc-poker-v0"
    summary = "Leduc poker: one card each, one open card, two rounds of betting."
    roles = {"player": 2}
    max_turns = 8
    zero_sum = True
    hidden = ("cards", "board")
    system = (
        "You play Leduc poker. The deck is J, J, Q, Q, K, K; K is highest. Each player has one card and has paid 1 "
        "chip. There are two rounds of betting; before the second, one card is laid open for both. A pair with the "
        "open card wins, else the higher card. A bet or raise is 2 chips in round 1 and 4 chips in round 2."
    )
    forfeit_cost = 13.0
    baselines = {"cfr": cfr}

    def begin(self, rng: np.random.Generator) -> str:
        """Deals a card to each player, and one face down."""
        self.line = ""
        self.rounds: list[list[str]] = [[]]
        self.deal(rng)
        for seat, card in self.cards.items():
            first = f"You act first. {self._ask()}" if seat == "player_0" else "player_0 acts first."
            self.tell(seat, f"You are {seat}. Your card is {card}. {first}")
        return "player_0"

    def deal(self, rng: np.random.Generator) -> None:
        """Draws the three cards of the game."""
        first, second, board = (RANKS[int(card) // 2] for card in rng.permutation(6)[:3])
        self.cards = {"player_0": first, "player_1": second}
        self.board = board

    @staticmethod
    def deals() -> list[tuple[float, dict[str, Json]]]:
        """Returns the probability of each deal of ranks, and the cards, for `llm_arena.exploitability`."""
        dealt = Counter(tuple(RANKS[card // 2] for card in cards) for cards in itertools.permutations(range(6), 3))
        return [
            (count / dealt.total(), {"cards": {"player_0": first, "player_1": second}, "board": board})
            for (first, second, board), count in dealt.items()
        ]

    def knows(self, seat: str) -> Json:
        """Returns the seat's card, and the open card once it lies open."""
        return {"cards": self.cards[seat], "board": self._open_card()}

    def legal_actions(self, seat: str) -> list[str]:
        """Returns check and bet, or call, fold and mostly raise once somebody has bet."""
        return words(self.line)

    def facts(self, seat: str) -> Json:
        """Returns the seat's card, the open card or None, and the actions by round."""
        rounds = [list(said) for said in self.rounds]
        return {"card": self.cards[seat], "board": self._open_card(), "rounds": rounds}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Plays check, bet, call, raise or fold."""
        action = read_choice(reply, words(self.line), ACTIONS)
        other = OTHER[seat]
        self.line += LETTERS[action]
        self.rounds[-1].append(action)
        if action == "fold":
            return self._win(other, f"{seat} folds", action)
        if not closes_round(self.line):
            self.tell(other, f"{seat} {VERBS[action]}. {self._ask()}")
            return Move(next=other, action=action)
        if len(self.rounds) == 2:
            return self._showdown(action)
        self.line += "/"
        self.rounds.append([])
        said = {seat: "", other: f"{seat} {VERBS[action]}. "}
        for player in self.possible_agents:
            first = f"You act first. {self._ask()}" if player == "player_0" else "player_0 acts first."
            self.tell(player, f"{said[player]}Round 2. The open card is {self.board}. {first}")
        return Move(next="player_0", action=action)

    def describe(self) -> str:
        """Returns the cards and the chips in the pot."""
        held = ", ".join(f"{seat} has {card}" for seat, card in self.cards.items())
        board = "" if len(self.rounds) == 1 else f", the open card is {self.board}"
        return f"{held}{board}; pot {sum(stakes(self.line))}"

    def _open_card(self) -> str | None:
        return self.board if len(self.rounds) == 2 else None

    def _ask(self) -> str:
        paid = dict(zip(self.possible_agents, stakes(self.line), strict=True))
        *some, last = words(self.line)
        pot = ", ".join(f"{seat} {chips}" for seat, chips in paid.items())
        return f"Chips paid: {pot}. Reply with one word: {', '.join(some)} or {last}."

    def _showdown(self, action: str) -> Move:
        better = stronger(self.cards["player_0"], self.cards["player_1"], self.board)
        shown = ", ".join(f"{seat} shows {card}" for seat, card in self.cards.items())
        reason = f"{shown}, the open card is {self.board}"
        if better == 0:
            ranks = dict.fromkeys(self.possible_agents, 1)
            scores = dict.fromkeys(self.possible_agents, 0.0)
            return Move(outcome=Outcome(draw=True, ranks=ranks, reason=reason, scores=scores), action=action)
        return self._win("player_0" if better > 0 else "player_1", reason, action)

    def _win(self, winner: str, reason: str, action: str) -> Move:
        loser = OTHER[winner]
        chips = float(stakes(self.line)[self.possible_agents.index(loser)])
        rewards = {winner: chips, loser: -chips}
        outcome = Outcome(winners=[winner], ranks={winner: 1, loser: 2}, reason=reason, scores=rewards)
        return Move(rewards=rewards, outcome=outcome, action=action)
