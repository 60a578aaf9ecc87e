"""Plays a board of two scripted players, for tests that kill it.

`play_board.py FOLDER MATCHES` plays what the folder lacks.

`play_board.py FOLDER moments COUNT SEED` plays COUNT boards, each killed (SIGKILL) at a random moment, again and again
until it is complete, and prints one line of JSON: for each kill how many matches the program had told of, and how many
were on the disk. Runs are forked, so that most of their time is play.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from llm_arena.boards.board import Board, Entrant, Game
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.match_file import MatchFile

MATCHES = 60
BOARD = Board(
    name="killed",
    entrants=[Entrant(name="a", agent="random-legal"), Entrant(name="b", agent="optimal")],
    games=[Game(id="kuhn-poker-v0")],
)


def play(folder: Path, matches: int, told: int | None = None) -> None:
    """Plays; writes a byte to the file descriptor `told` for each match that is safely kept."""
    if told is not None:
        add = MatchFile.add

        def add_and_tell(file: MatchFile, trace: object) -> object:
            row = add(file, trace)  # type: ignore[arg-type]
            os.write(told, b".")
            return row

        MatchFile.add = add_and_tell  # type: ignore[method-assign, assignment]
    board = Board(**{name: getattr(BOARD, name) for name in BOARD.__struct_fields__} | {"matches": matches})
    play_board(board, folder=folder)


def forked(folder: Path, rng: random.Random) -> tuple[bool, int]:
    """Plays in a child and kills it; returns whether that came before its end, and how many matches it told of."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            play(folder, MATCHES, writer)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    told, wanted = 0, rng.randrange(MATCHES // 2)
    while told < wanted and (some := len(os.read(reader, wanted - told))):
        told += some
    time.sleep(rng.uniform(0, 0.02))  # somewhere between two matches, or before the first
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while some := len(os.read(reader, MATCHES)):
        told += some
    os.close(reader)
    killed = os.WIFSIGNALED(status)
    if not killed and os.waitstatus_to_exitcode(status):
        raise SystemExit(f"the board in {folder} failed")
    return killed, told


def moments(folder: Path, count: int, seed: int) -> None:
    """Kills boards at random moments until they are complete."""
    rng = random.Random(seed)
    play(folder / "unbroken", MATCHES)
    boards = []
    for index in range(count):
        place, kills, told, killed = folder / f"board{index}", [], 0, True
        while killed:
            killed, more = forked(place, rng)
            told += more
            path = place / "matches.jsonl"
            kept = path.read_bytes().count(b"\n") if path.exists() else 0
            kills.append({"told": told, "kept": kept})
        same = (place / "leaderboard.csv").read_bytes() == (folder / "unbroken" / "leaderboard.csv").read_bytes()
        ids = [json.loads(line)["id"] for line in (place / "matches.jsonl").read_bytes().splitlines()]
        traces = [json.loads(line)["id"] for line in (place / "traces.jsonl").read_bytes().splitlines()]
        boards.append({"kills": kills, "same": same, "rows": sorted(ids), "traces": sorted(traces)})
        shutil.rmtree(place)
    print(json.dumps({"matches": MATCHES, "boards": boards}))


if __name__ == "__main__":
    if sys.argv[2] == "moments":
        moments(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        play(Path(sys.argv[1]), int(sys.argv[2]))
