"""PettingZoo's classic games as text games: `make("pettingzoo/connect_four_v3")`.

PettingZoo's observations are arrays for networks, and its actions are numbers. Here a seat reads the position as text
and answers a move by its name; text and names are made of no more than what PettingZoo lets that agent observe. Any
other turn-based env that is registered with PettingZoo and has Discrete actions is played by its registered name, as
`pettingzoo/mine/game-v0`: its observation is then written out as numbers, and its actions are `action 0`, `action 1`...

Some of these games draw from process-wide generators, and Go keeps its board size in a module's globals. So each call
runs under a lock, with generators and board size of its own (see `OwnLuck`).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from llm_arena.adapters import Door, label_actions, menu
from llm_arena.adapters.openspiel import RULES, check_hanabi, draw_chance
from llm_arena.errors import NameNotFound, UsageError, did_you_mean
from llm_arena.global_luck import OwnLuck
from llm_arena.parsing import read_choice
from llm_arena.types import Json, Move, Reply

_GTP = "ABCDEFGHJKLMNOPQRSTUVWXYZ"
_NAME = re.compile(r"(?P<name>[a-z_]+)_v(?P<version>\d+)")


@dataclass(frozen=True)
class Kind:
    """How one game is read and spoken. `raw` is PettingZoo's unwrapped env, `agent` one of its agents."""

    rules: str
    see: Callable[[Any, str], str]
    "Text of what the agent may know of the position."
    name: Callable[[Any, str, int], str]
    "Name of an action of the agent."
    turns: Callable[[Any], int]
    "How many turns the longest episode takes."
    worst: Callable[[Any], float]
    "What the worst legal play loses, as a number of at least 0."
    zero_sum: bool = True
    cooperative: bool = False
    redeal: Callable[[Any, np.random.Generator], None] | None = None
    "Changes a little of what was dealt, for the leak check; None where nothing is hidden by a deal."
    secret: Callable[[Any], Json] = lambda raw: None
    "The whole deal."
    stands_on: str | None = None
    "The package that has the game's rules and luck, where it's not PettingZoo itself."


def _grid(rows: list[list[str]]) -> str:
    return "\n".join(" ".join(row) for row in rows)


def _see_tictactoe(raw: Any, agent: str) -> str:
    cells = [{0: "X", 1: "O"}.get(mark - 1, str(at)) for at, mark in enumerate(raw.board.squares)]
    return f"You are {'XO'[raw.possible_agents.index(agent)]}.\n{_grid([cells[row::3] for row in range(3)])}"


def _see_connect_four(raw: Any, agent: str) -> str:
    cells = [".XO"[mark] for mark in raw.board]
    rows = [cells[7 * row : 7 * row + 7] for row in range(6)]
    return f"You are {'XO'[raw.possible_agents.index(agent)]}.\n{_grid([list('0123456'), *rows])}"


def _see_chess(raw: Any, agent: str) -> str:
    return f"You are {'white' if agent == 'player_0' else 'black'}.\n{raw.board}\nFEN: {raw.board.fen()}"


def _name_chess(raw: Any, agent: str, action: int) -> str:
    tables: Any = importlib.import_module("pettingzoo.classic.chess.chess_utils")
    return str(tables.action_to_move(raw.board, action, raw.possible_agents.index(agent)).uci())


def _see_go(raw: Any, agent: str) -> str:
    size = raw._N
    # 1 is black, -1 white
    rows = [
        [f"{size - row:>2}", *(".XO"[int(raw._go.board[row][column])] for column in range(size))] for row in range(size)
    ]
    played = f"Last move: {_gtp(size, raw._go.recent[-1].move)}.\n" if raw._go.recent else ""
    stones = "X (black)" if agent == "black_0" else "O (white)"
    return f"You are {stones}.\n{played}{_grid([['  ', *_GTP[:size]], *rows])}"


def _gtp(size: int, coordinate: tuple[int, int] | None) -> str:
    return "pass" if coordinate is None else f"{_GTP[coordinate[1]]}{size - coordinate[0]}"


def _name_go(raw: Any, agent: str, action: int) -> str:
    return _gtp(raw._N, None if action == raw._N**2 else divmod(action, raw._N))


def _see_rps(raw: Any, agent: str) -> str:
    mine = raw.possible_agents.index(agent)
    played = raw.history[: 2 * raw.num_moves]
    if not played:
        return f"Round 1 of {raw.max_cycles}."
    last = f"Last round: you {raw._moves[played[mine]].lower()}, they {raw._moves[played[1 - mine]].lower()}."
    return f"{last} Round {raw.num_moves + 1} of {raw.max_cycles}."


def _see_cards(raw: Any, agent: str) -> str:
    mine = raw.possible_agents.index(agent)
    held = raw.env.get_state(mine)["raw_obs"]
    hand = [held["hand"]] if isinstance(held["hand"], str) else held["hand"]
    public = held["public_cards"] if "public_cards" in held else [card for card in [held["public_card"]] if card]
    chips = ", ".join(
        f"{'you' if other == mine else raw.possible_agents[other]} {int(count)}"
        for other, count in enumerate(held["all_chips"])
    )
    return f"Your hand: {' '.join(hand)}. On the table: {' '.join(public) or 'nothing'}. Chips bet: {chips}."


def _name_cards(raw: Any, agent: str, action: int) -> str:
    actions = raw.env.actions  # a list of names, or an enum
    return str(actions[action] if isinstance(actions, list) else actions(action).name.lower().replace("_", " "))


def _hands(raw: Any) -> list[list[str]]:
    held = [player.hand if isinstance(player.hand, list) else [player.hand] for player in raw.env.game.players]
    return [[card.get_index() for card in hand] for hand in [*held, raw.env.game.dealer.deck]]


def _swap_card(raw: Any, rng: np.random.Generator) -> None:
    """Swaps one card of one hand for one of the deck."""
    game = raw.env.game
    player = game.players[int(rng.integers(len(game.players)))]
    deck = game.dealer.deck
    at = int(rng.integers(len(deck)))
    if isinstance(player.hand, list):
        mine = int(rng.integers(len(player.hand)))
        player.hand[mine], deck[at] = deck[at], player.hand[mine]
    else:
        player.hand, deck[at] = deck[at], player.hand


def _see_hanabi(raw: Any, agent: str) -> str:
    return str(raw.hanabi_env.game_state.observation_string(raw.possible_agents.index(agent))).rstrip()


def _name_hanabi(raw: Any, agent: str, action: int) -> str:
    return str(raw.hanabi_env.game_state.action_to_string(raw.possible_agents.index(agent), action))


def _redeal_hanabi(raw: Any, rng: np.random.Generator) -> None:
    inner = raw.hanabi_env
    before = [int(outcome) for outcome in inner.game_state.history()]
    inner.game_state = inner._env.new_initial_state()
    draw_chance(inner.game_state, rng, before)
    inner._update_action_masks()
    inner._update_observations()


def _poker(rules: str, turns: int, worst: float) -> Kind:
    return Kind(
        rules=f"{rules} Cards are a suit (S, H, D, C) and a rank.",
        see=_see_cards,
        name=_name_cards,
        turns=lambda raw: turns * len(raw.possible_agents),
        worst=lambda raw: worst,
        redeal=_swap_card,
        secret=_hands,
        stands_on="rlcard",
    )


KINDS: Mapping[str, Kind] = {
    "tictactoe_v3": Kind(
        rules="Tic-tac-toe: mark cells in turn, by their number; three in a row win.",
        see=_see_tictactoe,
        name=lambda raw, agent, action: str(action),
        turns=lambda raw: 9,
        worst=lambda raw: 1.0,
    ),
    "connect_four_v3": Kind(
        rules="Connect Four: drop a disc into a column, 0 to 6, in turn; four in a row win.",
        see=_see_connect_four,
        name=lambda raw, agent, action: str(action),
        turns=lambda raw: 42,
        worst=lambda raw: 1.0,
    ),
    "chess_v6": Kind(
        rules="Chess. Moves are written in UCI notation, like e2e4. Draws that can be claimed end the game.",
        see=_see_chess,
        name=_name_chess,
        turns=lambda raw: 12_000,  # above what the fifty-move rule lets a game take
        worst=lambda raw: 1.0,
        stands_on="chess",
    ),
    "go_v5": Kind(
        rules="Go, by area scoring; two passes end the game. Moves are written like D4, or pass.",
        see=_see_go,
        name=_name_go,
        turns=lambda raw: 4 * raw._N**2,
        worst=lambda raw: 1.0,
    ),
    "rps_v2": Kind(
        rules="Rock, paper, scissors, over several rounds; each round won pays 1 and costs the other 1.",
        see=_see_rps,
        name=lambda raw, agent, action: str(raw._moves[action].lower()),
        turns=lambda raw: 2 * raw.max_cycles,
        worst=lambda raw: float(raw.max_cycles),
    ),
    "leduc_holdem_v4": _poker(
        "Leduc hold'em: J, Q, K in two suits, one card each, one public card after the first round of bets. A pair "
        "with the public card wins, else the higher card.",
        10,
        7.0,
    ),
    "texas_holdem_v4": _poker("Texas hold'em with fixed bets and at most four raises a round.", 24, 25.0),
    "texas_holdem_no_limit_v6": _poker("Texas hold'em without limit; everybody has 100 chips.", 40, 100.0),
    "hanabi_v5": Kind(
        rules=f"Hanabi. {RULES['hanabi']}",
        see=_see_hanabi,
        name=_name_hanabi,
        turns=lambda raw: int(raw.hanabi_env._env.max_game_length()),
        worst=lambda raw: 0.0,
        zero_sum=False,
        cooperative=True,
        redeal=_redeal_hanabi,
        secret=lambda raw: str(raw.hanabi_env.game_state),
        stands_on="open_spiel",
    ),
}
"""The turn-based games of pettingzoo.classic."""


def _see_numbers(raw: Any, agent: str) -> str:
    seen = raw.observe(agent)
    return f"Observation: {np.asarray(seen['observation'] if isinstance(seen, dict) else seen).tolist()}"


OTHER = Kind(
    rules="",
    see=_see_numbers,
    name=lambda raw, agent, action: f"action {action}",
    turns=lambda raw: 1000,
    worst=lambda raw: 1.0,
    zero_sum=False,
)
"""Any other registered env."""


class ZooGame(Door):
    """A turn-based game of PettingZoo."""

    namespace = "pettingzoo"
    package = "pettingzoo"
    extra = "classic"

    def installed(self) -> str:
        """Returns PettingZoo's version, and that of the package that the game stands on."""
        self.kind = KINDS.get(self.game, OTHER)
        below = self.kind.stands_on
        return super().installed() + (f" ({below} {importlib.metadata.version(below)})" if below else "")

    def open(self) -> int:
        """Makes PettingZoo's env; raises UsageError for envs that are no turn-based games of numbered actions."""
        self.luck = OwnLuck(0)
        "What to be inside of while PettingZoo's env is called."
        self.raw = self.make_raw()
        spaces = [self.raw.action_space(agent) for agent in self.raw.possible_agents]
        if not all(isinstance(space, gymnasium.spaces.Discrete) for space in spaces):
            raise UsageError(f"{self.id}: its actions are {spaces[0]}; a seat can name Discrete actions only")
        self.choices: dict[str, dict[str, int]] = {}
        self.named: dict[str, set[str]] = {}
        self.card(
            roles={"player": len(self.raw.possible_agents)},
            zero_sum=self.kind.zero_sum and len(self.raw.possible_agents) > 1,
            cooperative=self.kind.cooperative,
            forfeit_cost=self.kind.worst(self.raw),
            hidden=("dealt",) if self.kind.redeal else (),
            system=f"{self.kind.rules}\nReply with one legal action, written as it is listed.".strip(),
        )
        with self.luck:
            self.raw.reset(seed=0)
            self.labels(self.raw.agent_selection)  # some boards have more points than names for them
            return self.kind.turns(self.raw)

    def make_raw(self) -> Any:
        """Returns PettingZoo's unwrapped env."""
        zoo: Any = importlib.import_module("pettingzoo")
        match = _NAME.fullmatch(self.game)
        name = self.game if "/" in self.game or not match else f"classic/{match['name']}-v{match['version']}"
        if name not in zoo.aec_registry:
            raise NameNotFound(f'PettingZoo has no game "{self.game}".{did_you_mean(self.game, KINDS)}')
        if self.game == "hanabi_v5":
            check_hanabi(self.id, self.parameters)
        try:
            with self.luck, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the envs' own words on the precision of their spaces
                raw = zoo.make("aec", name, **self.parameters).unwrapped
        except (ImportError, zoo.env_registry.exceptions.FailedToImport) as error:
            lacking = getattr(error, "name", None) or getattr(error.__cause__, "name", None) or self.package
            raise self.missing(lacking.partition(".")[0]) from error
        if self.game in KINDS:
            self.check_kinds(raw)
        return raw

    def check_kinds(self, raw: Any) -> None:
        """Raises a `UsageError` for a parameter of another kind than its default, which may raise only as one plays."""
        declared = inspect.signature(type(raw).__init__).parameters
        for name, value in self.parameters.items():
            default = declared[name].default if name in declared else None
            wanted = int | float if isinstance(default, float) else type(default)
            if default is not None and (not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool)):
                raise UsageError(f"{self.id}: {name}={value!r:.60}; expected something like {default!r}")

    def begin(self, rng: np.random.Generator) -> str:
        """Starts PettingZoo's env, and tells the first seat what it sees."""
        self.dealt: Json = None
        self.seed_drawn = int(rng.integers(2**31))
        self.deal(rng)
        self.named = {seat: set() for seat in self.possible_agents}
        for seat in self.possible_agents:
            self.tell(seat, f"You are {seat}.")
        with self.luck:
            return self.ask()

    def deal(self, rng: np.random.Generator) -> None:
        """Resets PettingZoo's env. A second deal of an episode, as the leak check asks for, changes a little of it."""
        if self.dealt is None:
            self.luck = OwnLuck(self.seed_drawn)
        with self.luck:
            self.shape()
            if self.dealt is None:
                self.raw.reset(seed=self.seed_drawn)
            elif self.kind.redeal:
                self.kind.redeal(self.raw, rng)
            self.dealt = [self.kind.secret(self.raw)]

    def shape(self) -> None:
        """Sets the module's globals that Go keeps its board size in, which another game may have changed."""
        if self.game == "go_v5":
            self.raw._overwrite_go_global_variables(self.raw._N)

    def knows(self, seat: str) -> Json:
        """Returns PettingZoo's own observation of the seat."""
        with self.luck:
            seen = self.raw.observe(self.agent(seat))
            return np.asarray(seen["observation"] if isinstance(seen, dict) else seen).tolist()

    def agent(self, seat: str) -> str:
        """Returns PettingZoo's name of a seat."""
        return str(self.raw.possible_agents[self.possible_agents.index(seat)])

    def labels(self, agent: str) -> dict[str, int]:
        """Returns the legal actions of PettingZoo's `agent`, by name. Call it inside `luck`."""
        seen = self.raw.observe(agent)
        mask = seen.get("action_mask") if isinstance(seen, dict) else None
        mask = self.raw.infos[agent].get("action_mask") if mask is None else mask
        count = int(self.raw.action_space(agent).n)
        legal = range(count) if mask is None else np.flatnonzero(mask)
        return label_actions({int(action): self.kind.name(self.raw, agent, int(action)) for action in legal})

    def ask(self) -> str:
        """Tells who has to act what it sees, and returns it. Call it inside `luck`."""
        agent = self.raw.agent_selection
        seat: str = self.possible_agents[self.raw.possible_agents.index(agent)]
        labels = self.labels(agent)
        self.choices = {seat: labels}
        # in an open game a move that anybody could make is known to all: it reads as illegal, not as unclear
        for other in [seat] if self.hidden else self.possible_agents:
            self.named[other].update(labels)
        self.tell(seat, f"{self.kind.see(self.raw, agent)}\n{menu(list(labels))}")
        return seat

    def legal_actions(self, seat: str) -> list[str]:
        """Returns the names of the actions that PettingZoo's mask allows."""
        return list(self.choices.get(seat, {}))

    def facts(self, seat: str) -> Json:
        """Returns the seat's actions by name, with their numbers."""
        return {"actions": dict(self.choices.get(seat, {}))}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Plays one action by its name."""
        label = read_choice(reply, self.legal_actions(seat), self.named[seat])
        raw = self.raw
        with self.luck:
            self.shape()
            raw.step(self.choices[seat][label])
            seats = dict(zip(raw.possible_agents, self.possible_agents, strict=True))
            rewards = {seats[agent]: float(reward) for agent, reward in raw.rewards.items() if reward}
            while raw.agents and (raw.terminations[raw.agent_selection] or raw.truncations[raw.agent_selection]):
                raw.step(None)
            if raw.agents:
                return Move(next=self.ask(), rewards=rewards, action=label)
        self.choices = {}
        scores = {other: self.returns[other] + rewards.get(other, 0.0) for other in self.possible_agents}
        return Move(rewards=rewards, outcome=self.standing(scores), action=label)

    def describe(self) -> str:
        """Returns what each player may know of the position."""
        with self.luck:
            seen = [(seat, self.kind.see(self.raw, self.agent(seat))) for seat in self.possible_agents]
        return "\n".join(dict.fromkeys(text if len(seen) == 1 else f"{seat} sees: {text}" for seat, text in seen))
