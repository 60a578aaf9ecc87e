"""tic-tac-toe-v0: three in a row on a board of nine cells.

Roles     player_0 plays X and begins, player_1 plays O.
Actions   the number of a free cell, 0 to 8 by rows.
Rewards   +1 for three in a row, -1 for the other; 0 each for a full board without one. Worked: moves 0 1 2 4 3 5 7 8 6
          make X's column 0 3 6 with the last free cell: +1, -1. Moves 0 1 2 4 3 5 7 6 8 fill the board: 0, 0.
Ends      with a row or a full board. A reply that is no legal action forfeits the game (-1, +1).
Sees      both players the whole board after every move.
Exploits  whoever begins wins most games between weak players: play both seats. Perfect play always draws, so win rates
          against `optimal` say only how often one loses. Where an opponent forfeits on bad replies, replying legally is
          all it takes to win: look at the rate of illegal replies beside the score.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.parsing import read_choice
from llm_arena.types import Json, Move, Outcome, Reply, View

CELLS = tuple(str(cell) for cell in range(9))
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def winner(board: str) -> str | None:
    """Returns X or O if it has three in a row on `board` (9 characters of X, O and .), else None."""
    for a, b, c in LINES:
        if board[a] != "." and board[a] == board[b] == board[c]:
            return board[a]
    return None


@cache
def value(board: str, mark: str) -> int:
    """Returns 1, 0 or -1: what `mark`, who is to move, gets with best play on both sides."""
    if winner(board):
        return -1
    free = [cell for cell in range(9) if board[cell] == "."]
    return max((-value(put(board, cell, mark), other(mark)) for cell in free), default=0)


def put(board: str, cell: int, mark: str) -> str:
    """Returns `board` with `mark` in `cell`."""
    return board[:cell] + mark + board[cell + 1 :]


def other(mark: str) -> str:
    """Returns the opponent's mark."""
    return "O" if mark == "X" else "X"


def optimal(view: View, rng: np.random.Generator) -> str:
    """Plays a best move by full search; among equally good ones it draws."""
    board, mark = view.facts["board"], view.facts["mark"]
    free = [cell for cell in range(9) if board[cell] == "."]
    values = [-value(put(board, cell, mark), other(mark)) for cell in free]
    best = [cell for cell, worth in zip(free, values, strict=True) if worth == max(values)]
    return CELLS[best[int(rng.integers(len(best)))]]


class TicTacToe(ArenaEnv):
    """Tic-tac-toe: X (player_0) and O (player_1), three in a row wins."""

    id = "tic-tac-toe-v0"
    roles = {"player": 2}
    max_turns = 40
    zero_sum = True
    system = "You play tic-tac-toe. Three in a row wins. Reply with the number of a free cell."
    baselines = {"optimal": optimal}

    def begin(self, rng: np.random.Generator) -> str:
        """Clears the board; nothing is random."""
        self.board = "." * 9
        for seat in self.possible_agents:
            self.tell(seat, f"You are {self._mark(seat)}.")
        self.tell("player_0", self._ask())
        return "player_0"

    def legal_actions(self, seat: str) -> list[str]:
        """Returns the numbers of the free cells."""
        return [cell for cell, mark in zip(CELLS, self.board, strict=True) if mark == "."]

    def facts(self, seat: str) -> Json:
        """Returns the board as nine characters and the seat's mark."""
        return {"board": self.board, "mark": self._mark(seat)}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Puts the seat's mark into a free cell."""
        cell = read_choice(reply, self.legal_actions(seat), CELLS)
        self.board = put(self.board, int(cell), self._mark(seat))
        opponent = "player_1" if seat == "player_0" else "player_0"
        if winner(self.board):  # before the full board: the ninth move may win
            rewards = {seat: 1.0, opponent: -1.0}
            outcome = Outcome(winners=[seat], ranks={seat: 1, opponent: 2}, reason="three in a row", scores=rewards)
            return Move(rewards=rewards, outcome=outcome, action=cell)
        if "." not in self.board:
            ranks = dict.fromkeys(self.possible_agents, 1)
            return Move(outcome=Outcome(draw=True, ranks=ranks, reason="full board"), action=cell)
        self.tell(opponent, f"{seat} plays {cell}. {self._ask()}")
        return Move(next=opponent, action=cell)

    def skip(self, seat: str) -> Move:
        """Passing: the opponent moves again."""
        opponent = "player_1" if seat == "player_0" else "player_0"
        self.tell(opponent, f"{seat} passes. {self._ask()}")
        return Move(next=opponent)

    def describe(self) -> str:
        """Returns the board, three lines."""
        return "\n".join(self.board[row : row + 3] for row in (0, 3, 6))

    def _mark(self, seat: str) -> str:
        return "X" if seat == "player_0" else "O"

    def _ask(self) -> str:
        cells = [cell if mark == "." else mark for cell, mark in zip(CELLS, self.board, strict=True)]
        rows = "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))
        return f"Board:\n{rows}\nYour move."
