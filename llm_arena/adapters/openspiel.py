"""Games of OpenSpiel (google-deepmind/open_spiel) as text games: `make("openspiel/leduc_poker")`.

Any game of the suite whose luck is explicit can be played: sequential ones, and simultaneous ones as phases in which
nobody sees the others' choices. Chance is drawn from the episode's generator, by OpenSpiel's own probabilities. A seat
sees what OpenSpiel lets its player observe: the position where nothing is hidden, else the player's information state
(Lanctot et al. 2019, "OpenSpiel: a framework for reinforcement learning in games"). Parameters go by OpenSpiel's
names: `make("openspiel/kuhn_poker", parameters={"players": 3})`.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llm_arena.adapters import Door, label_actions, menu
from llm_arena.errors import NameNotFound, UsageError, did_you_mean
from llm_arena.parsing import read_choice
from llm_arena.types import Json, Move, Reply, View

MOST_ACTIONS = 20_000
"""Games with more different actions are refused: a position of theirs can't be listed for a reader."""

RULES: dict[str, str] = {
    "tic_tac_toe": "Players mark cells of a 3x3 board in turn; three in a row win. x(0,1) marks row 0, column 1.",
    "connect_four": "Drop a disc into one of 7 columns in turn; four in a row win. x3 drops an x into column 3.",
    "breakthrough": (
        "Pieces step one row forward, straight or diagonally, and capture diagonally only. Who reaches the far row "
        "wins. a7a6 moves from a7 to a6; a * marks a capture."
    ),
    "nim": "In turn, take any number of stones from one pile. Who takes the last stone loses.",
    "pig": "Roll to add a die's points to your turn's total; a 1 loses that total and ends the turn. Stop to bank it.",
    "kuhn_poker": (
        "The cards are 0 to n for n players, one for each and one left over; the highest wins. Everybody has paid 1 "
        "chip. Bet puts in 1 more chip, or calls a bet; Pass checks, or folds to a bet. You see your card and the "
        "actions so far: 1pb is card 1, pass, bet."
    ),
    "leduc_poker": (
        "Three ranks in two suits (cards 0 and 1 rank lowest). One card each, a round of bets of 2 chips, one public "
        "card, a round of bets of 4, at most 2 raises each. A pair with the public card wins, else the higher card. "
        "You see your card (Private), the public one, the chips left (Money), and the actions of each round: "
        "0 fold, 1 call, 2 raise."
    ),
    "liars_dice": (
        "Each player has one hidden die. Bid how many dice show a face (2-5 bids two fives; sixes are wild), higher "
        "than the last bid, or call Liar: the bidder wins if the bid holds over all dice. You see your die, then the "
        "bids so far."
    ),
    "hanabi": (
        "Build a firework of each colour, ranks from 1 up, together. You see all hands but yours. Play or discard a "
        "card of yours by its place, or spend an information token to reveal all cards of one colour or rank in a "
        "hand. All share the score; it is 0 once the life tokens are used up."
    ),
    "matrix_pd": "A prisoner's dilemma, played once. Both choose at the same time.",
    "goofspiel": (
        "Each turn a point card is up; all bid one of their cards at the same time, and the highest bid takes it. "
        "Each card bids once; the bids are shown as they were numbered. Most points win."
    ),
}
"""What a reader must know of a game; of other games the system text has only the name."""


def mcts(view: View, rng: np.random.Generator) -> str:
    """Searches 300 random play-outs by UCT, in games that hide nothing (Kocsis and Szepesvari 2006).

    Raises:
        UsageError: the game has hidden information or simultaneous moves.
    """
    facts = view.facts
    if facts["history"] is None:
        raise UsageError(f"mcts needs a sequential game that hides nothing; {facts['game']} does not")
    pyspiel: Any = importlib.import_module("pyspiel")
    game = pyspiel.load_game(facts["game"])
    state = game.new_initial_state()
    for action in facts["history"]:
        state.apply_action(action)
    seed = int(rng.integers(2**31))
    bot = pyspiel.MCTSBot(
        game, pyspiel.RandomRolloutEvaluator(1, seed), 2.0, 300, 64, True, seed, False, pyspiel.ChildSelectionPolicy.UCT
    )
    played = bot.step(state)
    return next(str(label) for label, action in facts["actions"].items() if action == played)


def draw_chance(position: Any, rng: np.random.Generator, before: Sequence[int] = ()) -> list[int]:
    """Draws all chance nodes up to the next choice, and returns what was drawn.

    Args:
        position: the state that is moved on.
        rng: where the luck comes from.
        before: outcomes of the same chance nodes in another deal; all but about two are kept where they are possible.
    """
    drawn: list[int] = []
    while position.is_chance_node():
        outcomes, weights = zip(*position.chance_outcomes(), strict=True)
        reached = np.cumsum(weights)
        at = min(int(np.searchsorted(reached, rng.random() * reached[-1], "right")), len(reached) - 1)
        outcome = int(outcomes[at])
        if len(drawn) < len(before) and rng.random() > min(0.5, 2 / len(before)) and before[len(drawn)] in outcomes:
            outcome = before[len(drawn)]
        drawn.append(outcome)
        position.apply_action(outcome)
    return drawn


def observed(position: Any, player: int) -> str:
    """Returns the text of what OpenSpiel lets `player` observe of a position."""
    kind = position.get_game().get_type()
    if kind.information.name == "ONE_SHOT":  # nothing is hidden before the only move, and only the state shows payoffs
        return str(position)
    nothing_hidden = kind.information.name == "PERFECT_INFORMATION"
    if kind.provides_observation_string and (nothing_hidden or not kind.provides_information_state_string):
        return str(position.observation_string(player))
    return str(position) if nothing_hidden else str(position.information_state_string(player))


def check_hanabi(env_id: str, parameters: Mapping[str, Json]) -> None:
    """Raises a `UsageError` for numbers at which the Hanabi environment ends the whole process.

    The bounds are those of hanabi_game.cc (google-deepmind/hanabi-learning-environment), which raises nothing.
    """
    sizes = {"players": 2, "colors": 5, "ranks": 5, "max_life_tokens": 3} | dict(parameters)
    sizes.setdefault("hand_size", 5 if sizes["players"] in (2, 3) else 4)
    most = {"players": 5, "colors": 5, "ranks": 5, "hand_size": 25, "max_life_tokens": 50}
    for name, high in most.items():
        low = 2 if name == "players" else 1
        if type(sizes[name]) is not int or not low <= sizes[name] <= high:
            raise UsageError(f"{env_id}: {name}={sizes[name]!r:.60}; expected a whole number from {low} to {high}")
    cards = sizes["colors"] * max(2 * sizes["ranks"], 3)
    if sizes["players"] * sizes["hand_size"] > cards:
        raise UsageError(
            f"{env_id}: {sizes['players']} players with hand_size={sizes['hand_size']} need more cards than the "
            f"{cards} that these colors and ranks have; use more of these, or smaller hands"
        )


@functools.lru_cache(maxsize=64)
def load(game: str, parameters: str) -> Any:
    """Returns a game of OpenSpiel, which never changes and so is shared: some take long to load.

    Args:
        game: its name.
        parameters: as JSON.
    """
    pyspiel: Any = importlib.import_module("pyspiel")
    return pyspiel.load_game(game, json.loads(parameters))


@functools.cache
def deals_in_secret(game: str) -> bool:
    """Returns whether there are deals before the first choice that look the same to a player.

    Where there are none, all of the deal is public, and what is hidden is only what seats choose in secret.
    """
    pyspiel: Any = importlib.import_module("pyspiel")
    rules = pyspiel.load_game(game)
    rng = np.random.default_rng(0)
    first = rules.new_initial_state()
    drawn = draw_chance(first, rng)
    for _ in range(100):
        other = rules.new_initial_state()
        if draw_chance(other, rng, drawn) != drawn and any(
            observed(other, player) == observed(first, player) for player in range(rules.num_players())
        ):
            return True
    return False


class OpenSpielGame(Door):
    """A game of OpenSpiel."""

    namespace = "openspiel"
    package = "open_spiel"
    extra = "openspiel"
    baselines = {"mcts": mcts}  # noqa: RUF012  # a class's card, never changed on an instance

    def open(self) -> int:
        """Loads the game; raises UsageError for kinds that can't be played here."""
        try:
            pyspiel: Any = importlib.import_module("pyspiel")
        except ImportError:
            raise self.missing(self.package) from None
        names = pyspiel.registered_names()
        if self.game not in names:
            raise NameNotFound(f'OpenSpiel has no game "{self.game}".{did_you_mean(self.game, names)}')
        if self.game == "hanabi":
            check_hanabi(self.id, self.parameters)
        try:
            self.rules = load(self.game, json.dumps(self.parameters, sort_keys=True))
        except (pyspiel.SpielError, IndexError, TypeError) as error:
            raise self.refused(error) from error
        kind = self.rules.get_type()
        if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            raise UsageError(f"{self.id} is a mean field game, which has no seats; choose a game of players")
        if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
            raise UsageError(
                f"{self.id} draws its luck inside OpenSpiel, so an episode could not be replayed; choose a game whose "
                "chance is explicit"
            )
        actions = self.rules.num_distinct_actions()
        if not 0 < actions <= MOST_ACTIONS:
            raise UsageError(f"{self.id} has {actions} different actions; expected 1 to {MOST_ACTIONS}")
        information = pyspiel.GameType.Information
        self.open_hand = kind.information == information.PERFECT_INFORMATION
        self.one_shot = kind.information == information.ONE_SHOT
        self.rewards_each_move = kind.reward_model == pyspiel.GameType.RewardModel.REWARDS
        self.alternating = kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
        told = kind.provides_information_state_string or kind.provides_observation_string
        if not (self.open_hand or self.one_shot or told):
            raise UsageError(f"{self.id} has no text of what a player observes, so nothing could be kept from a seat")
        players = self.rules.num_players()
        self.position: Any = None
        self.choices: dict[str, dict[str, int]] = {}
        self.named: dict[str, set[str]] = {}
        self.chosen: dict[int, int] = {}
        self.moves: list[str] = []
        self.read: dict[str, int] = {}
        self.card(
            roles={"player": players},
            zero_sum=players > 1 and kind.utility == pyspiel.GameType.Utility.ZERO_SUM,
            cooperative=players > 1 and kind.utility == pyspiel.GameType.Utility.IDENTICAL,
            forfeit_cost=-min(float(self.rules.min_utility()), 0.0),
            hidden=() if self.open_hand or self.one_shot or not deals_in_secret(str(self.rules)) else ("drawn",),
            system=(
                f"You play {kind.long_name}. {RULES.get(self.game, '')}".rstrip()
                + "\nReply with one legal action, written as it is listed."
            ),
        )
        return int(self.rules.max_game_length()) * (1 if self.alternating else players)

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Deals, and tells who acts first what it sees."""
        self.drawn: list[int] = []
        self.deal(rng)
        self.named = {seat: set() for seat in self.possible_agents}
        self.moves, self.read = [], {}
        for seat in self.possible_agents:
            self.tell(seat, f"You are {seat}, player {self.player(seat)} of the game.")
        return self.ask()

    def deal(self, rng: np.random.Generator) -> None:
        """Sets the first position, and draws the chance that comes before the first choice.

        A second deal of the same episode, which only the leak check asks for, keeps most of the first: of large deals
        it would else never find two that look the same to a seat.
        """
        self.position = self.rules.new_initial_state()
        self.drawn = draw_chance(self.position, rng, self.drawn)

    def knows(self, seat: str) -> Json:
        """Returns what OpenSpiel lets the player observe."""
        return None if self.position.is_terminal() else self.sees(seat)

    def player(self, seat: str) -> int:
        """Returns OpenSpiel's number of a seat."""
        return self.possible_agents.index(seat)

    def sees(self, seat: str) -> str:
        """Returns the position as the seat may see it."""
        return observed(self.position, self.player(seat))

    def ask(self) -> list[str]:
        """Tells everybody who has to choose now what it sees, and returns them."""
        numbers = range(self.rules.num_players())
        acting = [p for p in numbers if self.position.legal_actions(p)]
        if not self.position.is_simultaneous_node():
            acting = [self.position.current_player()]
        seats = [self.possible_agents[player] for player in acting]
        self.choices, self.chosen = {}, {}
        for seat, player in zip(seats, acting, strict=True):
            legal = self.position.legal_actions(player)
            labels = label_actions({a: self.position.action_to_string(player, a) for a in legal})
            self.choices[seat] = labels
            # in an open game a move that anybody could make is known to all: it reads as illegal, not as unclear
            for other in self.possible_agents if self.open_hand else [seat]:
                self.named[other].update(labels)
            news = self.moves[self.read.get(seat, 0) :]
            self.read[seat] = len(self.moves)
            since = f"Played since: {'; '.join(news)}.\n" if news else ""
            self.tell(seat, f"{since}You see:\n{self.sees(seat).rstrip()}\n{menu(list(labels))}")
        return seats

    def legal_actions(self, seat: str) -> list[str]:
        """Returns OpenSpiel's names of the legal actions."""
        return list(self.choices.get(seat, {}))

    def facts(self, seat: str) -> Json:
        """Returns the game, the seat's player and actions by name, and the history where nothing is hidden."""
        return {
            "game": str(self.rules),
            "player": self.player(seat),
            "actions": dict(self.choices.get(seat, {})),
            "history": list(self.position.history()) if self.open_hand and self.alternating else None,
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Plays one action; the last one of a phase plays them all."""
        label = read_choice(reply, self.legal_actions(seat), self.named[seat])
        action = self.choices[seat][label]
        if self.position.is_simultaneous_node():
            self.chosen[self.player(seat)] = action
            if self.pending != [seat]:
                return Move(action=label)
            # who has no choice at this node is passed over by any number
            self.position.apply_actions([self.chosen.get(p, 0) for p in range(self.rules.num_players())])
        else:
            self.position.apply_action(action)
            if self.open_hand:
                self.moves.append(f"{seat} {label}")
        draw_chance(self.position, self.rng)
        over = self.position.is_terminal()
        rewards: dict[str, float] = {}
        if over or self.rewards_each_move:
            gained = zip(self.possible_agents, self.position.returns(), strict=True)
            rewards = {other: float(total) - self.returns[other] for other, total in gained}
        if over:
            self.choices = {}
            scores = dict(zip(self.possible_agents, map(float, self.position.returns()), strict=True))
            return Move(rewards=rewards, outcome=self.standing(scores), action=label)
        return Move(next=self.ask(), rewards=rewards, action=label)

    def describe(self) -> str:
        """Returns OpenSpiel's text of the whole position."""
        return str(self.position)
