"""kuhn-poker-v0: Kuhn poker, the smallest game of bluffing.

Roles     player_0 acts first, player_1 second.
Cards     J, Q, K; each player gets one. Both ante one chip. One bet of one chip is allowed.
Actions   check, bet; facing a bet: call, fold.
Rewards   chips won or lost: +-1 after two checks (the higher card wins) or a fold, +-2 after a call. Worked: player_0
          holds K, bets, player_1 calls with Q: +2 and -2. The game's value for player_0 is -1/18 (Kuhn 1950).
Ends      after two or three actions. A reply that is no legal action forfeits 2 chips, as much as the worst loss.
Sees      each player its own card and both players' actions. Cards are shown to spectators, and in the outcome's reason
          after a call or two checks; no seat is told the other's card before the game is over.
Exploits  none that pays against the equilibrium `optimal`, which on average loses 1/18 a game as player_0 and wins as
          much as player_1: play both seats. A player that never bluffs looks fine in win rate and is exploitable;
          judge by chips, or by `llm_arena.exploitability` (NashConv / 2: uniform play has 0.458333, an equilibrium 0).
          Breaking the rules costs 2, the worst loss.
"""

from __future__ import annotations

import itertools

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.parsing import read_choice
from llm_arena.types import Json, Move, Outcome, Reply, View

CARDS = ("J", "Q", "K")
ACTIONS = ("check", "bet", "call", "fold")
RULES = (
    "You play Kuhn poker. The deck is J, Q, K; K is highest. Each player has one card and has paid one chip. "
    "You may check or bet one chip; facing a bet you call or fold. Reply with one action."
)


def nash(view: View, rng: np.random.Generator) -> str:
    """Plays the equilibrium in which player_0 bluffs most: it opens J with probability 1/3 and K always (Kuhn 1950)."""
    card, history = view.facts["card"], view.facts["history"]
    if not history:  # player_0 opens: bets J with probability 1/3, Q never, K always
        return "bet" if rng.random() < {"J": 1 / 3, "Q": 0.0, "K": 1.0}[card] else "check"
    if history == ["check"]:
        return "bet" if rng.random() < {"J": 1 / 3, "Q": 0.0, "K": 1.0}[card] else "check"
    calls = {"J": 0.0, "Q": 1 / 3 if history == ["bet"] else 2 / 3, "K": 1.0}[card]
    return "call" if rng.random() < calls else "fold"


class KuhnPoker(ArenaEnv):
    """Kuhn poker: one card each, one bet, two players; value -1/18 for the first."""

    id = "kuhn-poker-v0"
    roles = {"player": 2}
    max_turns = 10
    zero_sum = True
    hidden = ("cards",)
    system = RULES
    forfeit_cost = 2.0
    baselines = {"optimal": nash}

    def begin(self, rng: np.random.Generator) -> str:
        """Deals a card to each player."""
        self.deal(rng)
        self.history: list[str] = []
        for seat, card in self.cards.items():
            first = "You act first: check or bet." if seat == "player_0" else "You act second."
            self.tell(seat, f"You are {seat}. Your card is {card}. {first}")
        return "player_0"

    def deal(self, rng: np.random.Generator) -> None:
        """Draws the cards."""
        dealt = rng.permutation(3)
        self.cards = {seat: CARDS[int(card)] for seat, card in zip(self.possible_agents, dealt, strict=False)}

    @staticmethod
    def deals() -> list[tuple[float, dict[str, Json]]]:
        """Returns the probability of each deal, and the cards: the six pairs, for `llm_arena.exploitability`."""
        pairs = itertools.permutations(CARDS, 2)
        return [(1 / 6, {"cards": {"player_0": first, "player_1": second}}) for first, second in pairs]

    def legal_actions(self, seat: str) -> list[str]:
        """Returns check and bet, or call and fold once somebody has bet."""
        return ["call", "fold"] if "bet" in self.history else ["check", "bet"]

    def facts(self, seat: str) -> Json:
        """Returns the seat's card and the actions so far."""
        return {"card": self.cards[seat], "history": list(self.history)}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Plays check, bet, call or fold."""
        action = read_choice(reply, self.legal_actions(seat), ACTIONS)
        self.history.append(action)
        other = "player_1" if seat == "player_0" else "player_0"
        if action == "fold":
            return self._win(other, 1.0, f"{seat} folds", action)
        if action == "call" or self.history == ["check", "check"]:
            best = max(self.cards, key=lambda holder: CARDS.index(self.cards[holder]))
            shown = ", ".join(f"{holder} shows {card}" for holder, card in self.cards.items())
            return self._win(best, 2.0 if action == "call" else 1.0, shown, action)
        verb = {"check": "checks: check or bet", "bet": "bets: call or fold"}[action]
        self.tell(other, f"{seat} {verb}.")
        return Move(next=other, action=action)

    def describe(self) -> str:
        """Returns both cards."""
        return ", ".join(f"{seat} has {card}" for seat, card in self.cards.items())

    def _win(self, winner: str, chips: float, reason: str, action: str) -> Move:
        loser = "player_1" if winner == "player_0" else "player_0"
        rewards = {winner: chips, loser: -chips}
        outcome = Outcome(winners=[winner], ranks={winner: 1, loser: 2}, reason=reason, scores=rewards)
        return Move(rewards=rewards, outcome=outcome, action=action)
