"""`llm-arena leaderboard`: plays a board and prints its tables."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import msgspec

from llm_arena.boards.board import Board, read_board, shelf
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.leaderboard import Leaderboard, rate
from llm_arena.boards.manifest import MANIFEST, load_manifest
from llm_arena.cli_parser import Parser
from llm_arena.engines.choose import words
from llm_arena.engines.settings import LOCAL_KINDS
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.report.text import visible

_ABOUT = """\
Let entrants meet in games, seats swapped, and rank them.

BOARD is a board of the shelf (see below), a TOML file, or the folder of a board that was begun. A board file:

  matches = 200                 # for every two entrants and each game
  anchor = "random"             # this entrant has 1000 points

  [[entrants]]
  name = "random"
  agent = "random-legal"

  [[entrants]]
  name = "small model"
  agent = "smollm2-135m"        # an agent string as in `play`; further keys are its settings
  max_new_tokens = 24

  [[games]]
  id = "kuhn-poker-v0"
  args = {illegal = "random_legal"}

In a cooperative game, such as thinker-verifier-v0, each entrant holds all seats and is ordered by its mean reward.
Seats that take no part in the contest, such as those of naming-v0's judges, are held by an agent that is named below
their game: [games.officials] judge = "AGENT".

The same command goes on where it was stopped, and plays again what a fault voided. More matches, entrants and games
may be added later. The folder holds manifest.json, matches.jsonl, traces.jsonl (`llm-arena replay` takes it),
ratings.json, leaderboard.csv and leaderboard.md.

Ratings: a lead of 400 points is odds of 10 to 1 on seats of equal worth (ratings.json says what each seat is worth);
+- is half of a 95 % interval; a rank such as 2-4 says which ranks the matches leave open. "provisional": +- is over
150. "no upper bound": nobody took a point from it who could tell how much better it is, so the rating is a lower bound;
"no lower bound" is the reverse."""


def run_leaderboard(argv: list[str]) -> int:
    """Plays what is missing of a board, or only rates it, and prints its tables."""
    options = _parser().parse_args(argv)
    if options.board is None:
        raise UsageError(f"leaderboard: a board is missing; the shelf has: {', '.join(shelf()) or 'none'}")
    board, folder = _find(options.board, options.out)
    if options.rate_only:
        _print(rate(folder), folder)
        return 0
    if options.matches is not None:
        board = msgspec.structs.replace(board, matches=options.matches)
    if options.engine is not None:
        board = msgspec.structs.replace(board, engine=dataclasses.replace(board.engine, kind=options.engine))
    for line in board.rounded():
        print(visible(line, newlines=False), file=sys.stderr)
    if board.engine.kind != "transformers":
        print(words(board.engine), file=sys.stderr, flush=True)
    _print(play_board(board, folder=folder, fresh=options.fresh, show_progress=True), folder)
    return 0


def _parser() -> Parser:
    boards = "".join(f"\n  {name:<12}  {read_board(path).summary}" for name, path in shelf().items())
    parser = Parser(
        "leaderboard",
        f"{_ABOUT}\n\nboards of the shelf:{boards or ' none'}",
        [
            "llm-arena leaderboard kuhn",
            "llm-arena leaderboard my_board.toml --out runs/mine --matches 50",
            "llm-arena leaderboard runs/mine --rate-only",
        ],
    )
    parser.add_argument("board", metavar="BOARD", nargs="?", help="a name, a TOML file, or a board's folder")
    parser.add_argument("--out", metavar="DIR", type=Path, help="the board's folder (default runs/leaderboard-NAME)")
    parser.add_argument("--matches", metavar="N", type=int, help="matches for every two entrants and each game")
    parser.add_argument("--engine", choices=LOCAL_KINDS, help="what serves the models")
    parser.add_argument("--fresh", action="store_true", help="delete the folder's matches and start anew")
    parser.add_argument("--rate-only", action="store_true", help="play nothing; make the tables of what there is")
    return parser


def _find(name: str, out: Path | None) -> tuple[Board, Path]:
    """Returns the board that `name` means, and its folder."""
    if os.path.isdir(name):
        manifest = load_manifest(Path(name))
        if manifest is None:
            raise UsageError(f"{name} is no board's folder: it has no {MANIFEST}; give a board's name or TOML file")
        return manifest.board, Path(name) if out is None else out
    known = shelf()
    path = known.get(name, Path(name))
    if name not in known and not os.path.exists(path):
        raise UnknownName(
            f'no board "{name}".{did_you_mean(name, known)} The shelf has: {", ".join(known) or "none"};'
            " or give a TOML file"
        )
    board = read_board(path)
    return board, Path("runs", f"leaderboard-{path.stem}") if out is None else out


def _print(found: Leaderboard, folder: Path) -> None:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(visible(found.to_text(columns)))
    print(f"\nfolder  {visible(str(folder), newlines=False)}")


__all__ = ["run_leaderboard"]
