"""What a vLLM engine process runs before anything else; imported there in place of the user's main module.

`multiprocessing` starts a spawned child by importing the parent's main module. For a script without a main guard that
would run the script again, and a program on standard input can't be imported at all. `vllm_start` names this module
instead. It only does what has to hold from the child's first moment:

- a session of its own, so that Ctrl-C in a terminal reaches the parent alone, which then closes the engine in order;
- an end when the parent is gone, however it went (`kill -9` included);
- output into a file, which the parent reads when the child fails.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

LOG_VARIABLE = "LLM_ARENA_ENGINE_LOG"
"""Environment variable with the file for the child's output; unset leaves the output where it is."""
PARENT_VARIABLE = "LLM_ARENA_ENGINE_PARENT"
"""Environment variable with the id of the process that started the child."""
WATCH_SECONDS = 1.0
"""How often the child looks whether its parent is there."""


def settle() -> None:
    """Leaves the parent's session, sends output to the log, and starts the watch over the parent."""
    log = os.environ.get(LOG_VARIABLE)
    if log:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
    if hasattr(os, "setsid") and os.getpid() != os.getsid(0):
        os.setsid()
    # What came before we left was for the parent; ignoring it takes it back.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, before)
    # A parent that is gone by now has left us to another. The variable is not for our own children: we are theirs.
    parent = int(os.environ.pop(PARENT_VARIABLE, os.getppid()))
    # vLLM takes its heap out of garbage collection when it has started, and would put it back to end: it would then go
    # through all of it four times, for 3 s.
    gc.unfreeze = lambda: None
    threading.Thread(target=_watch, args=(parent,), name="llm-arena-parent-watch", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)  # nobody is there who could be told


if __name__ == "__mp_main__":  # what multiprocessing calls the main module of a spawned child
    settle()
