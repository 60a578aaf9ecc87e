"""Turns per second of the bare AEC loop, beside TextArena, PettingZoo classic and OpenSpiel on the same games.

    python benchmarks/env_speed.py [--rounds 7] [--seconds 0.5]

Every suite plays the same lines of moves, drawn at random from the legal ones, in a process of its own on one core:
whatever its loop needs for a turn, `last()` and `step(move)` or its like, and a reset for each game. Rounds alternate
between ours and the others; a ratio is the median over rounds of (ours / theirs in the same round). The peers are
installed into an environment of their own, build/benchmarks/env_speed.

OpenSpiel's games are C++ states of integers, shown with the observation as text that a language model would need
(`strings`) and without (`bare`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "benchmarks" / "env_speed"
PEERS = ("textarena==0.7.4", "pettingzoo[classic]==1.27.0", "open-spiel==2.0.2")
GAMES = ("kuhn-poker-v0", "tic-tac-toe-v0", "connect-four-v0", "leduc-poker-v0")
LINES = 200

PAIRS = {
    ("textarena", "kuhn-poker-v0"): "KuhnPoker-v0-raw",
    ("textarena", "tic-tac-toe-v0"): "TicTacToe-v0-raw",
    ("textarena", "connect-four-v0"): "ConnectFour-v0-raw",
    ("pettingzoo", "tic-tac-toe-v0"): "tictactoe_v3",
    ("pettingzoo", "connect-four-v0"): "connect_four_v3",
    ("pettingzoo", "leduc-poker-v0"): "leduc_holdem_v4",
    ("openspiel-bare", "kuhn-poker-v0"): "kuhn_poker",
    ("openspiel-bare", "tic-tac-toe-v0"): "tic_tac_toe",
    ("openspiel-bare", "connect-four-v0"): "connect_four",
    ("openspiel-bare", "leduc-poker-v0"): "leduc_poker",
    ("openspiel-strings", "kuhn-poker-v0"): "kuhn_poker",
    ("openspiel-strings", "tic-tac-toe-v0"): "tic_tac_toe",
    ("openspiel-strings", "connect-four-v0"): "connect_four",
    ("openspiel-strings", "leduc-poker-v0"): "leduc_poker",
}
"""(suite, our game) -> its name there."""

Line = list[str]
Player = Callable[[Line, int], int]
"""Plays one game along a line of moves with a seed, and returns the turns that were taken."""


def our_lines(game: str) -> list[Line]:
    """Returns random legal games as lists of moves."""
    import numpy as np

    import llm_arena

    env, rng = llm_arena.make(game), np.random.default_rng(0)
    lines = []
    for seed in range(LINES):
        env.reset(seed=seed)
        line = []
        while not env.over:
            line.append(env.sample_reply(env.agent_selection, rng))
            env.step(line[-1])
        lines.append(line)
    return lines


def ours(game: str) -> Player:
    """Our AEC loop."""
    import llm_arena

    env = llm_arena.make(game)

    def play(line: Line, seed: int) -> int:
        env.reset(seed=seed)
        for move in line:
            env.last()
            env.step(move)
        while env.agents:
            env.last()
            env.step(None)
        return len(line)

    return play


def textarena(game: str) -> Player:
    """TextArena's loop: `get_observation()`, `step(action)`. Of its Kuhn poker, a match of hands, one is played."""
    import textarena as ta  # type: ignore[import-untyped]  # it has no types

    env = ta.make(PAIRS["textarena", game])
    env.reset(num_players=2, seed=0)  # a first reset may read word lists

    def play(line: Line, seed: int) -> int:
        env.reset(num_players=2, seed=seed)
        turns = 0
        for move in line:
            env.get_observation()
            done, _ = env.step(f"[{int(move) - 1 if game == 'connect-four-v0' else move}]")
            turns += 1
            if done:
                break
        return turns

    return play


def pettingzoo(game: str) -> Player:
    """PettingZoo's AEC loop: `last()`, `step(action)`. Leduc's moves are drawn from its own mask."""
    import importlib

    import numpy as np

    env = importlib.import_module(f"pettingzoo.classic.{PAIRS['pettingzoo', game]}").env()
    rng = np.random.default_rng(0)

    def play(line: Line, seed: int) -> int:
        env.reset(seed=seed)
        turns = 0
        moves = iter(line)
        for _ in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            if game == "leduc-poker-v0":
                legal = np.flatnonzero(observation["action_mask"])
                action = int(legal[rng.integers(len(legal))])
            else:
                action = int(next(moves)) - (game == "connect-four-v0")
                if game == "tic-tac-toe-v0":  # its cells go by columns
                    action = action % 3 * 3 + action // 3
            env.step(action)
            turns += 1
        return turns

    return play


def openspiel(game: str, *, strings: bool) -> Player:
    """OpenSpiel's state machine; chance nodes are drawn."""
    import random

    import pyspiel  # type: ignore[import-not-found]  # its types are compiled in

    spiel = pyspiel.load_game(PAIRS["openspiel-bare", game])
    rng = random.Random(0)

    def play(line: Line, seed: int) -> int:
        state, turns = spiel.new_initial_state(), 0
        while not state.is_terminal():
            if state.is_chance_node():
                actions, weights = zip(*state.chance_outcomes(), strict=True)
                state.apply_action(rng.choices(actions, weights)[0])
                continue
            if strings:
                state.observation_string(state.current_player())
            legal = state.legal_actions()
            state.apply_action(legal[rng.randrange(len(legal))])
            turns += 1
        return turns

    return play


def work(suite: str, game: str) -> None:
    """A worker: for each line on standard input, which says for how many seconds, prints turns per second."""
    make: dict[str, Callable[[], Player]] = {
        "ours": lambda: ours(game),
        "textarena": lambda: textarena(game),
        "pettingzoo": lambda: pettingzoo(game),
        "openspiel-bare": lambda: openspiel(game, strings=False),
        "openspiel-strings": lambda: openspiel(game, strings=True),
    }
    lines: list[Line] = json.loads(sys.stdin.readline())
    play = make[suite]()
    for wanted in sys.stdin:
        seconds, turns, at = float(wanted), 0, 0
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            turns += play(lines[at % len(lines)], at % len(lines))
            at += 1
        print(turns / took, flush=True)


class Worker:
    """A process that measures one suite on one game."""

    def __init__(self, python: Path, suite: str, game: str, lines: list[Line]) -> None:
        self._process = subprocess.Popen(
            [str(python), __file__, "--worker", suite, game],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "PYGAME_HIDE_SUPPORT_PROMPT": "1"},
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(lines) + "\n")

    def measure(self, seconds: float) -> float:
        """Returns turns per second over `seconds`."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("a worker ended; its error stands above")
        return float(answer)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)


def peers_python() -> Path:
    """Returns the interpreter of the peers' environment, which is made if it is not there."""
    python = HOME / "bin" / "python"
    stamp = HOME / "installed.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(PEERS):
        print(f"installing {', '.join(PEERS)} into {HOME.relative_to(ROOT)}", flush=True)
        venv.create(HOME, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PEERS], check=True)
        stamp.write_text("\n".join(PEERS))
    return python


def main() -> None:
    """Measures, prints a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return
    peers = peers_python()
    print(f"python {sys.version.split()[0]}; {', '.join(PEERS)}; {options.rounds} rounds of {options.seconds} s\n")
    print(f"{'game':<18}{'suite':<20}{'turns/s':>10}{'ours':>10}{'ratio':>8}")
    ratios: dict[str, dict[str, float]] = {}
    for game in GAMES:
        lines = our_lines(game)
        mine = Worker(Path(sys.executable), "ours", game, lines)
        mine.measure(options.seconds)  # warm up
        for suite in [suite for suite, known in PAIRS if known == game]:
            other = Worker(peers, suite, game, lines)
            other.measure(options.seconds)
            rounds = [(mine.measure(options.seconds), other.measure(options.seconds)) for _ in range(options.rounds)]
            other.close()
            ratio = statistics.median(left / right for left, right in rounds)
            ratios.setdefault(suite, {})[game] = round(ratio, 3)
            us, them = (statistics.median(values) for values in zip(*rounds, strict=True))
            print(f"{game:<18}{suite:<20}{them:>10,.0f}{us:>10,.0f}{ratio:>8.2f}", flush=True)
        mine.close()
    figures = {
        "min_ratio_to_textarena": min(ratios["textarena"].values()),
        "min_ratio_to_pettingzoo": min(ratios["pettingzoo"].values()),
        "ratios": ratios,
    }
    print("\n" + json.dumps(figures))


if __name__ == "__main__":
    main()
