"""The command line: `llm-arena COMMAND ...`, or `python -m llm_arena`.

Commands live in `cli_*.py`, and are imported when they are asked for. An error that a person can mend is one line on
standard error. Exit codes: 0 done, 1 failed, 2 a usage error or an unknown name, 130 Ctrl-C, 141 a closed pipe, 143
SIGTERM.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

from llm_arena import startup
from llm_arena.errors import ArenaError, UnknownName, did_you_mean


@dataclass(frozen=True)
class Command:
    """One subcommand: where it lives and what it does."""

    module: str
    arguments: str
    summary: str


TRAIN_PACKAGES = ("accelerate", "filelock", "peft", "safetensors", "tokenizers", "torch", "transformers")
"""Packages of the extra `train` that modules import at their head."""

COMMANDS = {
    "list": Command("cli_info", "", "list games, agents, models and training scripts"),
    "describe": Command("cli_info", "ENV", "a game's page: roles, rewards, arguments, who sees what, exploits"),
    "play": Command("cli_play", "ENV", "play one episode: agents, models, or you in the terminal (--seat)"),
    "show": Command("cli_play", "TRACES", "read recorded episodes"),
    "replay": Command("cli_play", "TRACES", "play recorded actions again; --verify compares all that was recorded"),
    "rescore": Command("cli_traces", "TRACES", "score recorded episodes again, with your own function"),
    "export": Command("cli_traces", "TRACES OUT", "write recorded episodes as Parquet, or as a folder for datasets"),
    "leaderboard": Command("cli_leaderboard", "BOARD", "let entrants meet in games, and rank them"),
    "cross-play": Command("cli_cross_play", "ENV --entrant NAME=AGENT ...", "who earns what with whom, role by role"),
    "train": Command("cli_train", "SCRIPT ...", "run a training script, e.g. self-play"),
    "serve": Command("cli_serve", "MODEL", "serve a model with vLLM over HTTP, to play against or to train"),
    "report": Command("cli_train", "RUN_DIR", "write the HTML page of a run again"),
    "fetch": Command("cli_info", "MODEL", "download a model into the cache"),
    "check": Command("cli_info", "", "check this machine: versions, engines, memory, disk, cache"),
}

EXAMPLES = """\
examples:
  llm-arena play tic-tac-toe-v0 --seat player_0           you against random legal moves
  llm-arena play kuhn-poker-v0 --seat player_1 --agents optimal
  llm-arena play naming-v0 --agents smollm2-135m topic="coffee shop" --traces names.jsonl
  llm-arena show names.jsonl --index 0
  llm-arena replay names.jsonl --verify
  llm-arena export names.jsonl names.parquet
  llm-arena leaderboard kuhn
  llm-arena train self-play --env naming-v0 --model smollm2-135m --steps 25
  llm-arena COMMAND --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    Args:
        argv: the arguments after the program's name; None: those of this process.
    """
    return guarded(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def guarded(run: Callable[[], int | None]) -> int:
    """Runs a program and returns its exit code; what goes wrong is one line on standard error.

    For scripts: `if __name__ == "__main__": sys.exit(guarded(main))`.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the caller closed it (`>&-`)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # an emoji must not end a game on an ASCII terminal
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            startup.give_back()
            _end_on_sigterm()
            code = run() or 0
            sys.stdout.flush()
            return code
        except ArenaError as error:
            return _fail(str(error), error.exit_code)
        except ModuleNotFoundError as error:
            if error.name not in TRAIN_PACKAGES:
                raise
            return _fail(f'this needs the package {error.name}; install it with: pip install "llm-arena[train]"', 1)
        except KeyboardInterrupt as stop:
            warnings.simplefilter("ignore", RuntimeWarning)  # about a coroutine that was about to start
            return _fail("terminated", 143) if isinstance(stop, _Terminated) else _fail("interrupted", 130)
        except BrokenPipeError:
            # The reader (`head`, say) has gone. Python would complain again when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except OSError as error:
            # A name that is too long for a file names none: an unknown name.
            return _fail(str(error), 2 if error.errno == errno.ENAMETOOLONG else 1)
        except SystemExit as stop:  # argparse and tyro leave this way after --help
            return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else _fail(str(stop.code), 1)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which a scheduler sends before it kills: all that Ctrl-C saves is saved."""


def _end_on_sigterm() -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one does not wait
        raise _Terminated

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, stop)


def _run(argv: list[str]) -> int:
    name = argv[0] if argv else "--help"
    if name in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if name in ("-V", "--version"):
        from llm_arena import __version__

        print(f"llm-arena {__version__}")
        return 0
    if name not in COMMANDS:
        kind = "option" if name.startswith("-") else "command"
        raise UnknownName(
            f'no {kind} "{name}".{did_you_mean(name, [*COMMANDS, "--help", "--version"])}'
            f" Commands: {', '.join(COMMANDS)}; see llm-arena --help"
        )
    module = importlib.import_module(f"llm_arena.{COMMANDS[name].module}")
    code: int = getattr(module, f"run_{name.replace('-', '_')}")(argv[1:])
    return code


def help_text() -> str:
    """Returns what `llm-arena --help` prints."""
    heads = {name: f"{name} {command.arguments}".strip() for name, command in COMMANDS.items()}
    width = max(map(len, heads.values()))
    lines = [f"  {heads[name]:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    lines.append(f"  {'--version':<{width}}  print the version")
    head = "usage: llm-arena COMMAND ...\n\nGames for language models: play, record, train, rank.\n\ncommands:\n"
    return head + "\n".join(lines) + "\n\n" + EXAMPLES.rstrip()


def _fail(message: str, code: int) -> int:
    from llm_arena.report.text import visible

    words = " ".join(_clipped(word, 140, 40) for word in message.split())
    print(f"llm-arena: {visible(_clipped(words, 600, 300))}", file=sys.stderr)
    return code


def _clipped(text: str, head: int, tail: int) -> str:
    """Leaves out the middle of a long text: what was given stands at the start, the remedy at the end."""
    return text if len(text) <= head + tail else f"{text[:head]}…{text[-tail:]}"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"llm-arena: warning: {' '.join(str(message).split())}", file=file or sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
