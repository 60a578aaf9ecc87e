"""Ctrl-C while our own programs are still importing: exit code 130, without a traceback of imports.

Imported first. It does nothing in a process that is somebody else's program; `cli.guarded` gives Ctrl-C back to Python
as soon as it can say something better.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def is_our_program(argv: list[str]) -> bool:
    """Whether a command line (`sys.orig_argv`) runs `llm-arena` or `python -m llm_arena...`."""
    module = argv[argv.index("-m") + 1 : argv.index("-m") + 2] if "-m" in argv else []
    return any(name.split(".")[0] == "llm_arena" for name in module) or any(
        os.path.basename(word) == "llm-arena" for word in argv[:2]
    )


def leave_quietly(*_: object) -> None:
    """Ends the process as a shell ends one at Ctrl-C."""
    os.write(2, b"llm-arena: interrupted\n")
    os._exit(130)


def give_back() -> None:
    """Has Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is leave_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if (
    is_our_program(sys.orig_argv)
    and threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a parent has it ignored
):
    signal.signal(signal.SIGINT, leave_quietly)
