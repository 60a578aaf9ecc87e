"""Connect four on bitboards: fours, threats, and a depth-limited alpha-beta search.

A set of cells is one integer. Column c (0 to 6) owns the bits 7 * c to 7 * c + 5, from the bottom up, and the bit above
stays empty, so that no line runs from one column's top into the next one's foot. The layout, and leaving out moves
under an opponent's winning cell, follow Pascal Pons, "Solving Connect 4" (blog.gamesolver.org).
"""

from __future__ import annotations

import numpy as np

WIDTH, HEIGHT = 7, 6
STRIDE = HEIGHT + 1
FEET = sum(1 << STRIDE * column for column in range(WIDTH))
CELLS = FEET * ((1 << HEIGHT) - 1)
COLUMNS = tuple(((1 << HEIGHT) - 1) << STRIDE * column for column in range(WIDTH))
CENTRE_OUT = tuple(sorted(range(WIDTH), key=lambda column: abs(column - WIDTH // 2)))
WIN = 1000
"""A won position is worth this, less the number of stones on the board when the four stands: quick wins are better."""

NODES = 2000
"""Positions after which no deeper search begins; a count and not a clock, so that a seed plays the same everywhere."""


def has_four(stones: int) -> bool:
    """Returns whether `stones` hold four in a row: upright, level, or on a diagonal."""
    for shift in (1, STRIDE, STRIDE - 1, STRIDE + 1):
        pairs = stones & stones >> shift
        if pairs & pairs >> 2 * shift:
            return True
    return False


def landing(occupied: int) -> int:
    """Returns the cells on which a stone can come to rest, one for each column that is not full."""
    return (occupied + FEET) & CELLS


def threats(stones: int, occupied: int) -> int:
    """Returns the free cells that would complete a four of `stones`, reachable now or not."""
    found = stones << 1 & stones << 2 & stones << 3
    for shift in (STRIDE, STRIDE - 1, STRIDE + 1):
        pair = stones << shift & stones << 2 * shift
        found |= pair & (stones << 3 * shift | stones >> shift)
        pair = stones >> shift & stones >> 2 * shift
        found |= pair & (stones >> 3 * shift | stones << shift)
    return found & CELLS & ~occupied


class Search:
    """Alpha-beta from one position on. `nodes` counts the positions that were looked at."""

    def __init__(self) -> None:
        self.nodes = 0
        self.seen: dict[tuple[int, int], int] = {}

    def value(self, mine: int, occupied: int, depth: int, alpha: int, beta: int) -> int:
        """Returns what the position is worth for the side to move: above 900 a win, below -900 a loss.

        Args:
            mine: stones of the side to move.
            occupied: stones of both sides.
            depth: how many moves to look ahead; at the end threats are counted.
            alpha: values up to this need not be told apart.
            beta: nor values from this on.
        """
        self.nodes += 1
        moves = landing(occupied)
        if not moves:
            return 0
        stones = occupied.bit_count()
        mine_next = threats(mine, occupied)
        if mine_next & moves:
            return WIN - stones - 1
        theirs = mine ^ occupied
        theirs_next = threats(theirs, occupied)
        forced = theirs_next & moves
        if forced:
            moves = 0 if forced & (forced - 1) else forced
        moves &= ~(theirs_next >> 1)  # a stone there lets the opponent onto a winning cell
        if not moves:
            return stones + 2 - WIN if stones < WIDTH * HEIGHT - 1 else 0
        if depth <= 0:
            return 4 * (mine_next.bit_count() - theirs_next.bit_count())
        # values are kept for one depth at a time, and only where they are exact
        known = self.seen.get((mine, occupied))
        if known is not None:
            return known
        low, best = alpha, -WIN
        for column in CENTRE_OUT:
            move = moves & COLUMNS[column]
            if move:
                worth = -self.value(theirs, occupied | move, depth - 1, -beta, -max(low, best))
                best = max(best, worth)
                if best >= beta:
                    return best
        if best > alpha:
            self.seen[mine, occupied] = best
        return best


def best_column(mine: int, occupied: int, rng: np.random.Generator, most_moves: int = WIDTH * HEIGHT) -> int:
    """Returns a good column (0 to 6) for the side to move: it wins or blocks at once where it can.

    The search is deepened by one move at a time until `NODES` positions were looked at, or `most_moves` ahead. Of
    equally good columns the more central one is taken; `rng` draws between the two at the same distance.

    Args:
        mine: stones of the side to move.
        occupied: stones of both sides; not a full board.
        rng: generator for ties.
        most_moves: how many moves are tried in a row at most, from 1; what then wins at once is seen without trying.
    """
    moves = landing(occupied)
    tie = rng.random(WIDTH)
    order = sorted(
        (column for column in range(WIDTH) if moves & COLUMNS[column]),
        key=lambda column: (abs(column - WIDTH // 2), tie[column]),
    )
    for column in order:
        if has_four(mine | moves & COLUMNS[column]):
            return column
    search, best = Search(), order[0]
    for depth in range(min(WIDTH * HEIGHT - occupied.bit_count(), most_moves)):
        search.seen.clear()
        worths: dict[int, int] = {}
        top = -WIN
        for column in order:
            move = moves & COLUMNS[column]
            worths[column] = -search.value(mine ^ occupied, occupied | move, depth, -WIN, -top)
            top = max(top, worths[column])
        # stable: a column that was cut off never passes the one that cut it
        best = max(order, key=lambda column: worths[column])
        order = [best, *(column for column in order if column != best)]
        if abs(top) > WIN // 2 or search.nodes > NODES:
            break
    return best
