"""connect-four-v0: drop stones into seven columns; four in a row wins.

Roles     player_0 plays X and begins, player_1 plays O.
Actions   the number of a column that is not full, 1 to 7 from the left. The stone falls to the lowest free cell of the
          column, of six.
Rewards   +1 for four in a row (across, upright or diagonal), -1 for the other; 0 each for a full board without one.
          Worked: 4 1 4 1 4 1 4: X has four in column 4 after its fourth stone, +1 and -1. Returns and legal actions are
          those of OpenSpiel's connect_four. With best play X wins (Allis 1988).
Ends      with a four, on the last free cell too, or with a full board. A reply that is no legal action forfeits the
          game (-1, +1). A turn can't be skipped: near the end, having to move is often what loses.
Sees      everything, both seats: each is shown the board and the opponent's column before it moves. Nothing is hidden
          and nothing is drawn.
Exploits  the game is deterministic, so a line that beats one fixed opponent can be learned by heart: evaluate against
          opponents that draw (`search` draws between mirrored columns) or from both seats. X wins with best play:
          compare players with seats swapped. An opponent that forfeits pays like one that was beaten: read the counts
          of illegal replies beside the rewards.
Baseline  `search`: alpha-beta, deepened until 2000 positions were seen (about 5 moves ahead in the opening, more
          later).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.parsing import read_choice
from llm_arena.problems.connect_four_search import CELLS, COLUMNS, HEIGHT, WIDTH, best_column, has_four, landing
from llm_arena.types import Json, Move, Outcome, Reply, View

NAMES = tuple(str(column) for column in range(1, WIDTH + 1))
MARKS = {"player_0": "X", "player_1": "O"}
OTHER = {"player_0": "player_1", "player_1": "player_0"}


def search(view: View, rng: np.random.Generator) -> str:
    """Looks some moves ahead (see llm_arena/problems/connect_four_search.py)."""
    mine = occupied = 0
    for number, column in enumerate(view.facts["moves"]):
        stone = landing(occupied) & COLUMNS[int(column) - 1]
        occupied |= stone
        if MARKS[f"player_{number % 2}"] == view.facts["mark"]:
            mine |= stone
    return NAMES[best_column(mine, occupied, rng)]


class ConnectFour(ArenaEnv):
    """Connect four: 7 columns, 6 rows, X (player_0) and O (player_1); four in a row wins.

    Args:
        options: those of `ArenaEnv`; `max_turns` leaves room for a full board and all retries.
    """

    id = "connect-four-v0"
    summary = "Drop stones into seven columns; four in a row wins."
    roles = {"player": 2}
    max_turns = WIDTH * HEIGHT
    zero_sum = True
    system = (
        "You play Connect Four. The board has 7 columns and 6 rows; a stone falls to the lowest free cell of its "
        "column. Four of your stones in a row win: across, upright or diagonal."
    )
    baselines = {"search": search}

    def __init__(self, **options: Any) -> None:
        retries = options.get("retries")
        if options.get("max_turns") is None and isinstance(retries, int):
            options["max_turns"] = max(1, type(self).max_turns * (1 + retries))
        super().__init__(**options)

    def begin(self, rng: np.random.Generator) -> str:
        """Clears the board; nothing is random."""
        self.stones = dict.fromkeys(self.possible_agents, 0)
        self.moves: list[int] = []
        self.heights = [0] * WIDTH
        self.rows = ["." * WIDTH] * HEIGHT
        self.lines = [" ".join(NAMES), *map(" ".join, self.rows)]
        for seat, mark in MARKS.items():
            self.tell(seat, f"You are {mark}.")
        self.tell("player_0", self._ask())
        return "player_0"

    def legal_actions(self, seat: str) -> list[str]:
        """Returns the numbers of the columns that are not full."""
        return [name for name, height in zip(NAMES, self.heights, strict=True) if height < HEIGHT]

    def facts(self, seat: str) -> Json:
        """Returns the board's rows from the top, the columns played so far (1 to 7), and the seat's mark."""
        return {"board": list(self.rows), "moves": list(self.moves), "mark": MARKS[seat]}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Drops a stone."""
        name = read_choice(reply, self.legal_actions(seat), NAMES)
        column, opponent = int(name) - 1, OTHER[seat]
        occupied = self.stones["player_0"] | self.stones["player_1"]
        stone = landing(occupied) & COLUMNS[column]
        self.stones[seat] |= stone
        self.moves.append(column + 1)
        self.heights[column] += 1
        row = HEIGHT - self.heights[column]
        self.rows[row] = self.rows[row][:column] + MARKS[seat] + self.rows[row][column + 1 :]
        self.lines[1 + row] = " ".join(self.rows[row])
        if has_four(self.stones[seat]):  # before the full board: the last stone may win
            rewards = {seat: 1.0, opponent: -1.0}
            outcome = Outcome(winners=[seat], ranks={seat: 1, opponent: 2}, reason="four in a row", scores=rewards)
            return Move(rewards=rewards, outcome=outcome, action=name)
        if occupied | stone == CELLS:
            ranks = dict.fromkeys(self.possible_agents, 1)
            return Move(outcome=Outcome(draw=True, ranks=ranks, reason="full board"), action=name)
        self.tell(opponent, f"{seat} plays {name}.\n{self._ask()}")
        return Move(next=opponent, action=name)

    def describe(self) -> str:
        """Returns the board."""
        return "\n".join(self.lines)

    def _ask(self) -> str:
        return f"Board:\n{self.describe()}\nYour move. Reply with one column number."
