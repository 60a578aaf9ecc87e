"""`llm-arena cross-play`: every entrant in one role meets every entrant in the other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_arena.boards.cross_play import EPISODES, cross_play
from llm_arena.cli_parser import Parser, key_values
from llm_arena.engines.choose import words
from llm_arena.engines.settings import LOCAL_KINDS, EngineSettings
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.registry import make_env
from llm_arena.report.text import visible
from llm_arena.training.sources import env_arguments, read_starts
from llm_arena.types import Json

_ABOUT = """\
Let every entrant in one role meet every entrant in the other, on the same starts, and print who earns what with whom.

A reward that rises in a training proves little: where both sides learn, one may have learned, or the other become
weaker. The table tells them apart. Down a column the partner stays the same, so a difference is due to the row's
entrant; along a row it is due to the column's.

  --entrant trained=runs/self-play-1a2b3c4d/final       the model after the training,
  --entrant initial=smollm2-135m                        before it,
  --entrant other=random-legal                          and somebody who took no part

In a game of two roles the rows hold the first, the columns the second. In a game of one role the row's entrant holds
each seat in turn and the column's all others. With more roles say which one the rows hold: --role solver. Who can't
play both roles is named for one: --role thinker=trained,initial --role verifier=trained,initial,scripted.

Starts are held out: a game that keeps problems apart from those for training (split) takes the held-out ones, unless
split=train is given, and the episodes' seeds are none of a training's. All cells have the same starts and seeds.

The figures: +- is half of a 95 % interval with starts as clusters; win rates have Wilson's interval. Void matches count
nowhere. A forfeit (a bad reply that ended the match) counts as the game pays it, and is shown apart. Differences are
paired: first entrant against each other one, on the same starts with the same partners.

With --out the folder keeps manifest.json, matches.jsonl, traces.jsonl (for llm-arena show and replay), cross_play.json
and cross_play.md, and the same command goes on where it was stopped."""


def run_cross_play(argv: list[str]) -> int:
    """Plays the table and prints it."""
    options = _parser().parse_intermixed_args(argv)
    if not options.entrant:
        raise UsageError(
            "cross-play: no entrant was given; e.g. --entrant trained=FOLDER --entrant initial=smollm2-135m"
        )
    env = make_env(options.env, **key_values(options.settings))
    engine = EngineSettings(kind=options.engine)
    if engine.kind != "transformers":
        print(words(engine), file=sys.stderr, flush=True)
    settings: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    found = cross_play(
        _pairs(options.entrant, "--entrant", "trained=runs/x/final"),
        env,
        roles=_roles(options.role),
        starts=_starts(options.starts, env),
        episodes=options.episodes,
        seed=options.seed,
        officials=_pairs(options.official, "--official", "judge=AGENT"),
        folder=options.out,
        fresh=options.fresh,
        engine=engine,
        show_progress=True,
        **{name: value for name, value in settings.items() if value is not None},
    )
    print(visible(found.to_markdown() if options.markdown else found.to_text()))
    if options.out is not None:
        print(f"\nfolder  {visible(str(options.out), newlines=False)}")
    return 0


def _parser() -> Parser:
    parser = Parser(
        "cross-play",
        _ABOUT,
        [
            "llm-arena cross-play kuhn-poker-v0 --entrant best=optimal --entrant chance=random-legal",
            "llm-arena cross-play thinker-verifier-v0 --entrant trained=runs/x/final --entrant initial=smollm2-135m"
            " --out runs/x/cross-play",
            "llm-arena cross-play naming-v0 namers=2 --entrant trained=runs/x/final --entrant initial=smollm2-135m"
            " --max-new-tokens 24",
        ],
    )
    parser.add_argument("env", metavar="ENV", help="a game; see llm-arena list games")
    parser.add_argument(
        "settings",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],  # with one, argparse does not call them required
        help="the game's own arguments, and env options such as retries=2",
    )
    parser.add_argument(
        "--entrant", metavar="NAME=AGENT", action="append", help="an agent string as in play, under a name; repeat it"
    )
    parser.add_argument(
        "--role",
        metavar="ROLE[=NAME,...]",
        action="append",
        help="the role or seat of the rows, then that of the columns (default: see above); =NAME,... says who holds it",
    )
    parser.add_argument(
        "--episodes", metavar="N", type=int, help=f"matches of a cell, rounded up to whole starts ({EPISODES})"
    )
    parser.add_argument("--starts", metavar="FILE", type=Path, help="JSON lines of starts, as for a training")
    parser.add_argument("--seed", type=int, default=0, help="decides all starts and sampling (default: %(default)s)")
    parser.add_argument(
        "--official",
        metavar="ROLE=AGENT",
        action="append",
        help="who holds a seat that is not compared, e.g. a judge's",
    )
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="token cap of a model's reply")
    parser.add_argument("--temperature", type=float, metavar="T", help="sampling temperature of models; 0 is greedy")
    parser.add_argument(
        "--engine", choices=LOCAL_KINDS, default="transformers", help="what serves models (default: %(default)s)"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="keep everything here, and go on from it")
    parser.add_argument("--fresh", action="store_true", help="delete the folder's matches and start anew")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    return parser


def _pairs(given: Sequence[str] | None, option: str, example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, agent = (piece.strip() for piece in pair.partition("="))
        if not (name and equals and agent):
            raise UsageError(f'{option} "{pair}" can\'t be read; expected NAME=AGENT, e.g. {example}')
        if name in found:
            raise UsageError(f'{option} names "{name}" twice; give each a name of its own')
        found[name] = agent
    return found


def _roles(given: Sequence[str] | None) -> list[str] | dict[str, list[str]] | None:
    if not given:
        return None
    found: dict[str, list[str]] = {}
    for part in given:
        role, equals, names = part.partition("=")
        found[role.strip()] = [name.strip() for name in names.split(",") if name.strip()]
        if equals and not found[role.strip()]:
            raise UsageError(f'--role "{part}" names no entrant; expected e.g. {role}=trained,initial, or {role} alone')
    if len(found) < len(given):
        raise UsageError(f"--role names a role twice: {', '.join(given)}")
    if not any(found.values()):
        return list(found)
    unnamed = [role for role, names in found.items() if not names]
    if unnamed:
        raise UsageError(f"--role {unnamed[0]} says nobody, and another role says who; name entrants for both")
    return found


def _starts(path: Path | None, env: ArenaEnv) -> list[dict[str, Json]]:
    """Returns the game's arguments for each start of a file, with its fields `prompt` and `label` as in a training."""
    if path is None:
        return []
    return [
        env_arguments(start, input_key="prompt", label_key="label", input_arg=env.input_arg, label_arg=env.label_arg)
        for start in read_starts(path)
    ]


__all__ = ["run_cross_play"]
