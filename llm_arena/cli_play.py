"""`llm-arena play`, `llm-arena show` and `llm-arena replay`: episodes, live and recorded."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from llm_arena.cli_parser import Parser, agent_spec, key_values
from llm_arena.engines.settings import LOCAL_KINDS, EngineSettings
from llm_arena.errors import ArenaError, TraceError, UnknownName, UsageError, did_you_mean
from llm_arena.report.text import ending_line, episode_lines, spec_words, visible
from llm_arena.types import Trace

_HUMAN_RETRIES = 2
"""A typing error should not cost a person the game; models get the game's own setting."""

_SHOWN_FAILURES = 10


def run_play(argv: list[str]) -> int:
    """Plays one episode and prints it."""
    options = _play_parser().parse_intermixed_args(argv)
    from llm_arena.engines.choose import words
    from llm_arena.registry import make_env
    from llm_arena.rollout import play
    from llm_arena.runtime import Runtime
    from llm_arena.trace_file import NotWritten

    kwargs = key_values(options.settings)
    if options.seat is not None:
        kwargs.setdefault("retries", _HUMAN_RETRIES)
    env = make_env(options.env, **kwargs)
    agents = agent_spec(options.agents)
    if options.seat is not None:
        agents = _with_person(env.possible_agents, options.seat, agents)
    settings: dict[str, Any] = {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    settings |= {"guided": True if options.guided else None, "history": options.history, "thinking": options.thinking}
    size = _size(options.traces)
    lost: NotWritten | None = None
    try:
        if options.engine != "transformers":
            print(words(EngineSettings(kind=options.engine)), file=sys.stderr, flush=True)
        with Runtime(engine=options.engine, max_open_episodes=1) as runtime:
            trace = play(
                env,
                agents,
                seed=options.seed,
                runtime=runtime,
                traces=options.traces,
                **{name: value for name, value in settings.items() if value is not None},
            )
    except NotWritten as error:  # a full disk must not cost a finished game: it is shown, then the error
        trace, lost = error.trace, error
    except (ArenaError, KeyboardInterrupt):
        if _size(options.traces) > size:
            print(f"the void episode is recorded in {visible(options.traces, newlines=False)}")
        raise
    if options.seat is not None:
        print("\n--- the game is over; all replies: ---")
    _print(episode_lines(trace, messages=options.seat is None))
    if lost is not None:
        sys.stdout.flush()
        raise lost
    if options.traces:
        print(f"recorded in {visible(options.traces, newlines=False)}")
    return 0


def run_show(argv: list[str]) -> int:
    """Prints a list of recorded episodes, or one of them turn by turn."""
    parser = Parser(
        "show",
        "Read recorded episodes: a list, or one of them turn by turn.",
        [
            "llm-arena show traces.jsonl",
            "llm-arena show traces.jsonl --index 3",
            "llm-arena show traces.jsonl --index -1",
        ],
    )
    parser.add_argument("traces", metavar="TRACES", type=Path, help="a file of traces (JSON lines)")
    parser.add_argument("--index", type=int, help="which episode: 0 is the first, -1 the last")
    options = parser.parse_args(argv)
    if options.index is None:
        index = -1
        for index, trace in enumerate(_read(options.traces)):
            print(f"{index:>5}  {_headline(trace)}")
        if index < 0:
            print(f"{visible(str(options.traces), newlines=False)} holds no episodes")
        return 0
    _print(episode_lines(_pick(options.traces, options.index)))
    return 0


def run_replay(argv: list[str]) -> int:
    """Plays recorded actions again; with `--verify`, compares all that the game decides with what was recorded."""
    parser = Parser(
        "replay",
        "Play recorded actions again in a fresh env.",
        ["llm-arena replay traces.jsonl --verify", "llm-arena replay traces.jsonl --index 0"],
    )
    parser.add_argument("traces", metavar="TRACES", type=Path, help="a file of traces (JSON lines)")
    parser.add_argument(
        "--verify", action="store_true", help="compare views, rewards and outcomes; exit with 1 at a difference"
    )
    parser.add_argument("--index", type=int, help="only this episode: 0 is the first, -1 the last")
    options = parser.parse_args(argv)
    from llm_arena.recorder import replay, verify

    traces = _read(options.traces) if options.index is None else [_pick(options.traces, options.index)]
    count = failures = 0
    for trace in traces:
        count += 1
        if not options.verify:
            print(visible(replay(trace).transcript()))
            continue
        try:
            verify(trace)
        except TraceError as error:
            failures += 1
            if failures <= _SHOWN_FAILURES:
                print(visible(str(error), newlines=False), file=sys.stderr)
    if not count:
        raise TraceError(f"{options.traces} holds no episodes")
    if not options.verify:
        return 0
    if failures:
        raise TraceError(f"{options.traces}: {failures} of {count} episodes do not replay as recorded")
    print(f"{count} episode{'s' * (count != 1)} replayed, all as recorded")
    return 0


def _play_parser() -> Parser:
    parser = Parser(
        "play",
        "Play one episode and print it turn by turn. With --seat you play, in this terminal.",
        [
            "llm-arena play kuhn-poker-v0 --seed 1",
            "llm-arena play tic-tac-toe-v0 --seat player_0 --agents optimal",
            "llm-arena play kuhn-poker-v0 --agents player_0=optimal,player_1=random-legal",
            'llm-arena play naming-v0 --agents smollm2-135m namers=3 topic="coffee shop"',
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
    parser.add_argument("--seat", help="the seat that you take, e.g. player_0; a typing error may be mended twice")
    parser.add_argument(
        "--agents",
        default="random-legal",
        metavar="SPEC",
        help="who plays (with --seat: the others): an agent, a model, or SEAT=AGENT,ROLE=AGENT (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, help="episode seed; the same seed and replies give the same game")
    parser.add_argument("--traces", metavar="FILE", help="append the episode to this file (JSON lines)")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="token cap of a model's reply")
    parser.add_argument(
        "--guided", action="store_true", help="models sample only replies that the game's grammar allows (vLLM)"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="sampling temperature of models; 0 is greedy")
    parser.add_argument(
        "--history",
        choices=("template", "append"),
        help="a model's own past in its next prompt: as its chat template prints it now, or its tokens as they were",
    )
    parser.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="switch thinking on or off, where a model's chat template can (default: as the template has it)",
    )
    parser.add_argument(
        "--engine", choices=LOCAL_KINDS, default="transformers", help="what serves models (default: %(default)s)"
    )
    return parser


def _with_person(seats: list[str], seat: str, agents: str | dict[str, str]) -> dict[str, str]:
    if seat not in seats:
        raise UnknownName(f'no seat "{seat}" in this game.{did_you_mean(seat, seats)} Its seats: {", ".join(seats)}')
    if isinstance(agents, str):
        return {other: "human" if other == seat else agents for other in seats}
    if seat in agents:
        raise UsageError(f"--agents seats {agents[seat]} on {seat}, which --seat gives to you; leave one out")
    return {**agents, seat: "human"}


def _headline(trace: Trace) -> str:
    line = f"{trace.id}  {spec_words(trace.spec)}  {len(trace.turns)} turns  {ending_line(trace)}"
    return visible(line, newlines=False)


def _size(path: str | None) -> int:
    return os.path.getsize(path) if path and os.path.exists(path) else 0


def _read(path: Path) -> Iterator[Trace]:
    from llm_arena.trace_file import read_traces

    if not os.path.exists(path):  # unlike `Path.exists`, says no to a name that is too long
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file of traces, e.g. {path / 'traces.jsonl'}")
    return read_traces(path)


def _pick(path: Path, index: int) -> Trace:
    found: list[Trace] = []
    count = 0
    for trace in _read(path):
        if count == index:
            return trace
        if index < 0:
            found.append(trace)
            if len(found) > -index:
                found.pop(0)
        count += 1
    if not count:
        raise TraceError(f"{path} holds no episodes")
    if not found or len(found) < -index:
        raise UsageError(f"{path} has {count} episodes (0 to {count - 1}), there is no episode {index}")
    return found[0]


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


__all__ = ["run_play", "run_replay", "run_show"]
