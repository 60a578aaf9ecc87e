"""Leduc poker solved: CFR+ on the public tree, exact best responses, and the stored average strategy.

`python -m llm_arena.problems.solvers.leduc` solves the game anew (under a minute) and prints what `leduc.json` holds. A
betting line is text: c for check or call, r for bet or raise, f for fold; `/` begins the second round. A decision is
named by the cards that the player sees and the line: `Q:cr` (holds Q, first round), `KJ:cc/r` (holds K, J lies open).
CFR+ with alternating updates and averages weighted by iteration: Tammelin, "Solving Large Imperfect Information Games
Using CFR+", 2014. The game: Southey et al., "Bayes' Bluff", 2005.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

RANKS = "JQK"
ANTE, BETS, MOST_RAISES = 1, (2, 4), 2
"""Chips: the ante, and the bet of each round; at most two bets or raises a round."""

Vector = npt.NDArray[np.float64]
Strategy = Mapping[str, list[float]]
"""Decision -> probabilities of the actions that `actions(line)` lists, in its order."""


def actions(line: str) -> str:
    """Returns which of f, c, r may follow `line`.

    >>> actions(""), actions("cr"), actions("rr"), actions("rc/r")
    ('cr', 'fcr', 'fc', 'fcr')
    """
    round_line = line.rpartition("/")[2]
    facing = round_line.endswith("r")
    return ("f" if facing else "") + "c" + ("r" if round_line.count("r") < MOST_RAISES else "")


def closes_round(line: str) -> bool:
    """Returns whether the betting round that `line` ends with is over: a call, or a check after a check."""
    round_line = line.rpartition("/")[2]
    return len(round_line) > 1 and round_line.endswith("c")


def to_act(line: str) -> int:
    """Returns whose turn it is, 0 or 1; player 0 begins each round."""
    return len(line.rpartition("/")[2]) % 2


def stakes(line: str) -> tuple[int, int]:
    """Returns what each player has paid, in chips.

    >>> stakes("crc/r")
    (7, 3)
    """
    paid = [ANTE, ANTE]
    for bet, round_line in zip(BETS, line.split("/"), strict=False):
        for number, action in enumerate(round_line):
            if action != "f":
                paid[number % 2] = max(paid) + (bet if action == "r" else 0)
    return paid[0], paid[1]


def stronger(mine: str, theirs: str, board: str) -> int:
    """Returns 1, 0 or -1: whether `mine` beats `theirs`. A pair with the open card beats all, else the higher card."""
    strengths = [3 if card == board else RANKS.index(card) for card in (mine, theirs)]
    return int(strengths[0] > strengths[1]) - int(strengths[0] < strengths[1])


def _sum(terms: Iterable[Vector]) -> Vector:
    return functools.reduce(np.add, terms)


def _deal(board: int | None) -> Vector:
    """Returns the probability [3, 3] of the two private cards together with the open card; None: whatever it is."""
    if board is None:
        return _sum(_deal(rank) for rank in range(3))
    pairs = np.full((3, 3), 2 * 2, dtype=np.float64) - 2 * np.eye(3)  # of two cards of each rank
    left = 2.0 - np.eye(3)[board][:, None] - np.eye(3)[board][None, :]
    deal: Vector = pairs * left / (6 * 5 * 4)
    return deal


class Node:
    """A public state: a betting line and, in the second round, the open card."""

    def __init__(self, line: str = "", board: int | None = None) -> None:
        self.line, self.board = line, board
        self.player = to_act(line)
        self.children: list[Node] = []
        self.payoff: Vector | None = None
        "Chips [3, 3] for player 0, times the deal's probability, where the game is over."
        self.chance = closes_round(line) and board is None
        paid = stakes(line)
        if line.endswith("f"):
            loser = 1 - self.player
            self.payoff = _deal(board) * (-paid[0] if loser == 0 else paid[1])
        elif self.chance:
            self.children = [Node(line + "/", rank) for rank in range(3)]
        elif closes_round(line) and board is not None:
            wins = [[stronger(mine, theirs, RANKS[board]) for theirs in RANKS] for mine in RANKS]
            self.payoff = _deal(board) * paid[0] * np.array(wins, dtype=np.float64)
        else:
            self.children = [Node(line + action, board) for action in actions(line)]
            self.keys = [f"{card}{'' if board is None else RANKS[board]}:{line}" for card in RANKS]
            self.regrets = np.zeros((3, len(self.children)))
            self.total = np.zeros((3, len(self.children)))

    def walk(self) -> list[Node]:
        """Returns this node and all below it at which somebody decides."""
        below = [node for child in self.children for node in child.walk()]
        return below if self.payoff is not None or self.chance else [self, *below]


def _matched(regrets: Vector) -> Vector:
    sums = regrets.sum(axis=1, keepdims=True)
    matched: Vector = np.where(sums > 0, regrets / np.where(sums > 0, sums, 1.0), 1.0 / regrets.shape[1])
    return matched


def _update(node: Node, player: int, mine: Vector, theirs: Vector, weight: float) -> Vector:
    """Returns what each card [3] of `player` is worth below `node`, weighted by the reach [3] of the other player."""
    if node.payoff is not None:
        return node.payoff @ theirs if player == 0 else -(theirs @ node.payoff)
    if node.chance:
        return _sum(_update(child, player, mine, theirs, weight) for child in node.children)
    strategy = _matched(node.regrets)
    if node.player != player:
        played = [
            _update(child, player, mine, theirs * strategy[:, at], weight) for at, child in enumerate(node.children)
        ]
        return _sum(played)
    worth = np.stack(
        [_update(child, player, mine * strategy[:, at], theirs, weight) for at, child in enumerate(node.children)], 1
    )
    mean: Vector = (worth * strategy).sum(axis=1)
    node.regrets = np.maximum(node.regrets + worth - mean[:, None], 0.0)
    node.total += weight * mine[:, None] * strategy
    return mean


def solve(iterations: int) -> dict[str, list[float]]:
    """Returns the average strategy of CFR+ after `iterations`; it is the same on every run."""
    root = Node()
    for iteration in range(1, iterations + 1):
        for player in (0, 1):
            _update(root, player, np.ones(3), np.ones(3), float(iteration))
    return {
        key: [round(float(p), 4) for p in row]
        for node in root.walk()
        for key, row in zip(node.keys, _matched(node.total), strict=True)
    }


def _best(node: Node, player: int, strategy: Strategy, theirs: Vector) -> Vector:
    if node.payoff is not None:
        return node.payoff @ theirs if player == 0 else -(theirs @ node.payoff)
    if node.chance:
        return _sum(_best(child, player, strategy, theirs) for child in node.children)
    if node.player == player:
        best: Vector = np.max([_best(child, player, strategy, theirs) for child in node.children], axis=0)
        return best
    played = np.array([strategy[key] for key in node.keys])
    return _sum((_best(child, player, strategy, theirs * played[:, at]) for at, child in enumerate(node.children)))


def best_response(strategy: Strategy, player: int) -> float:
    """Returns how many chips a game `player` wins on average by its best answer to `strategy`, exactly."""
    return float(_best(Node(), player, strategy, np.ones(3)).sum())


def exploitability(strategy: Strategy) -> float:
    """Returns the mean of both players' best answers to `strategy`, in chips a game; an equilibrium has 0."""
    return (best_response(strategy, 0) + best_response(strategy, 1)) / 2


@functools.cache
def stored() -> dict[str, list[float]]:
    """Returns the strategy of `leduc.json`."""
    text = importlib.resources.files("llm_arena.problems.solvers").joinpath("leduc.json").read_text(encoding="utf-8")
    table: dict[str, list[float]] = json.loads(text)
    return table


def main(iterations: int = 2000) -> None:
    """Solves the game and prints the table, a decision a line."""
    rows = [f"{json.dumps(key)}: {json.dumps(row)}" for key, row in sorted(solve(iterations).items())]
    print("{\n" + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
