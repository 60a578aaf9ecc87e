"""connect-four-v0: drop stones into seven columns; four in a row wins.

Roles     player_0 plays X and begins, player_1 plays O.
Opening   `opening` stones (0 to 16, default 0) lie there already, X and O in turn, in columns that the episode's
          generator draws; after an odd number player_1 moves first. Openings after which somebody could win at once are
          drawn anew.
Actions   the number of a column that is not full, 1 to 7 from the left. The stone falls to the lowest free cell of the
          column, of six.
Rewards   +1 for four in a row (across, upright or diagonal), -1 for the other; 0 each for a full board without one.
          Worked: 4 1 4 1 4 1 4: X has four in column 4 after its fourth stone, +1 and -1. Returns and legal actions are
          those of OpenSpiel's connect_four. With best play X wins (Allis 1988).
Ends      with a four, on the last free cell too, or with a full board. A reply that is no legal action forfeits the
          game (-1, +1). A turn can't be skipped: near the end, having to move is often what loses.
Sees      everything, both seats: each is shown the board and the opponent's column before it moves. Nothing is hidden.
Exploits  without an opening the game is deterministic, so a line that beats one fixed opponent can be learned by heart:
          train and evaluate with `opening`, on different seeds. X wins with best play, and a drawn opening may favour
          either side: compare players on the same seeds with seats swapped. An opponent that forfeits pays like one
          that was beaten: read the counts of illegal replies beside the rewards.
Baseline  four strengths. `search`: alpha-beta, deepened until 2000 positions were seen (about 5 moves ahead in the
          opening, more later); `search-4` and `search-2`: the same, at most 4 and 2 moves ahead; `win-or-block`: wins
          at once or else blocks at once where it can, and draws its column otherwise. A search draws between mirrored
          columns only. With opening=8 each beats the next by +0.43, +0.30 and +0.98, and the last beats random legal
          play by +0.95 (mean rewards of 80 games, seats swapped).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llm_arena.arguments import whole
from llm_arena.env import ArenaEnv, Baseline
from llm_arena.parsing import read_choice
from llm_arena.problems.solvers.connect_four import (
    CELLS,
    COLUMNS,
    HEIGHT,
    WIDTH,
    best_column,
    has_four,
    landing,
    threats,
)
from llm_arena.types import Json, Move, Outcome, Reply, View

NAMES = tuple(str(column) for column in range(1, WIDTH + 1))
MARKS = {"player_0": "X", "player_1": "O"}
MOST_OPENING = 16
OTHER = {"player_0": "player_1", "player_1": "player_0"}


def _stones(view: View) -> tuple[int, int]:
    """Returns (the seat's stones, all stones), as sets of cells."""
    mine = occupied = 0
    for number, column in enumerate(view.facts["moves"]):
        stone = landing(occupied) & COLUMNS[int(column) - 1]
        occupied |= stone
        if MARKS[f"player_{number % 2}"] == view.facts["mark"]:
            mine |= stone
    return mine, occupied


def searcher(most_moves: int | None) -> Baseline:
    """Returns a player that looks at most `most_moves` ahead (see llm_arena/problems/solvers/connect_four.py)."""
    ahead = WIDTH * HEIGHT if most_moves is None else most_moves

    def search(view: View, rng: np.random.Generator) -> str:
        return NAMES[best_column(*_stones(view), rng, most_moves=ahead)]

    search.__doc__ = f"Looks {'some' if most_moves is None else f'at most {most_moves}'} moves ahead."
    return search


def win_or_block(view: View, rng: np.random.Generator) -> str:
    """Wins at once or else blocks at once where it can, and draws its column otherwise."""
    mine, occupied = _stones(view)
    free = landing(occupied)
    best = threats(mine, occupied) & free or threats(mine ^ occupied, occupied) & free or free
    columns = [name for name, column in zip(NAMES, COLUMNS, strict=True) if best & column]
    return columns[int(rng.integers(len(columns)))]


def draw_opening(number: int, rng: np.random.Generator) -> list[int]:
    """Draws the columns (1 to 7) of `number` stones, X and O in turn, after which nobody could win at once."""
    while True:
        columns: list[int] = []
        stones = [0, 0]
        for turn in range(number):
            free = landing(stones[0] | stones[1])
            among = [column for column in range(WIDTH) if free & COLUMNS[column]]
            column = among[int(rng.integers(len(among)))]
            stones[turn % 2] |= free & COLUMNS[column]
            columns.append(column + 1)
        occupied = stones[0] | stones[1]
        decided = any(has_four(each) or threats(each, occupied) & landing(occupied) for each in stones)
        if not decided:
            return columns


class ConnectFour(ArenaEnv):
    """Connect four: 7 columns, 6 rows, X (player_0) and O (player_1); four in a row wins.

    Args:
        opening: how many stones lie there already, 0 to 16; see the module's docstring.
        options: those of `ArenaEnv`; `max_turns` leaves room for a full board.

    Raises:
        UsageError: `opening` is out of its range.
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
    baselines = {
        "search": searcher(None),
        "search-4": searcher(4),
        "search-2": searcher(2),
        "win-or-block": win_or_block,
    }

    def __init__(self, *, opening: int = 0, **options: Any) -> None:
        whole(self.id, "opening", opening, 0, MOST_OPENING)
        self.opening = opening
        super().__init__(**options)

    def begin(self, rng: np.random.Generator) -> str:
        """Clears the board, and draws the opening."""
        self.stones = dict.fromkeys(self.possible_agents, 0)
        self.moves: list[int] = []
        self.heights = [0] * WIDTH
        self.rows = ["." * WIDTH] * HEIGHT
        self.lines = [" ".join(NAMES), *map(" ".join, self.rows)]
        seats = self.possible_agents
        for number, column in enumerate(draw_opening(self.opening, rng) if self.opening else []):
            self._drop(seats[number % 2], column - 1)
        already = f" Moves made already: {self.opening}." if self.opening else ""
        for seat, mark in MARKS.items():
            self.tell(seat, f"You are {mark}.{already}")
        first = seats[self.opening % 2]
        self.tell(first, self._ask())
        return first

    def legal_actions(self, seat: str) -> list[str]:
        """Returns the numbers of the columns that are not full."""
        return [name for name, height in zip(NAMES, self.heights, strict=True) if height < HEIGHT]

    def facts(self, seat: str) -> Json:
        """Returns the board's rows from the top, all columns so far (1 to 7; the opening's too), and the mark."""
        return {"board": list(self.rows), "moves": list(self.moves), "mark": MARKS[seat]}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Drops a stone."""
        name = read_choice(reply, self.legal_actions(seat), NAMES)
        opponent = OTHER[seat]
        self._drop(seat, int(name) - 1)
        if has_four(self.stones[seat]):  # before the full board: the last stone may win
            rewards = {seat: 1.0, opponent: -1.0}
            outcome = Outcome(winners=[seat], ranks={seat: 1, opponent: 2}, reason="four in a row", scores=rewards)
            return Move(rewards=rewards, outcome=outcome, action=name)
        if self.stones[seat] | self.stones[opponent] == CELLS:
            ranks = dict.fromkeys(self.possible_agents, 1)
            return Move(outcome=Outcome(draw=True, ranks=ranks, reason="full board"), action=name)
        self.tell(opponent, f"{seat} plays {name}.\n{self._ask()}")
        return Move(next=opponent, action=name)

    def _drop(self, seat: str, column: int) -> None:
        """Lays a stone of `seat`; columns count from 0 here."""
        occupied = self.stones["player_0"] | self.stones["player_1"]
        self.stones[seat] |= landing(occupied) & COLUMNS[column]
        self.moves.append(column + 1)
        self.heights[column] += 1
        row = HEIGHT - self.heights[column]
        self.rows[row] = self.rows[row][:column] + MARKS[seat] + self.rows[row][column + 1 :]
        self.lines[1 + row] = " ".join(self.rows[row])

    def describe(self) -> str:
        """Returns the board."""
        return "\n".join(self.lines)

    def _ask(self) -> str:
        return f"Board:\n{self.describe()}\nYour move. Reply with one column number."
