"""Processes that compare answers by computer algebra, and may be killed at any time.

A symbolic step can run for ever or fill the memory, inside native code that no Python timeout reaches
(huggingface/Math-Verify issues #63, #65). So it runs in a process of its own: a fresh interpreter, never the user's
main module, spoken to in JSON lines over its standard input and output. It ends by itself when its input ends, and
timers of the kernel end it when a comparison takes too long, even if nobody is left to kill it. One that has died is
replaced at the next question.

There are two queues, each with a process of its own. All comparisons begin in the quick one; what takes long there is
done again in the slow one, so that a plain comparison never waits for a hard one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

from llm_arena.errors import EngineError, missing_extra
from llm_arena.problems.answers.compare import Verdict

QUICK_SECONDS = 0.1
"""Processor time that a comparison gets before it has to queue with other slow ones."""
PROCESSES = {"quick": 1, "slow": 1}
"""How many comparisons run at once in each queue; what is quick never waits for what is slow."""
START_SECONDS = 60.0
"""How long a process may take to import what it needs."""
WALL_FACTOR = 10
"""Seconds on the clock for each second of processor time: a busy machine must not change a verdict."""
MARGIN_SECONDS = 1.0
"""What the process has on top of that to answer or to be killed by its own timer."""

_ROOT = Path(__file__).parents[3]
_REQUIRED = ("sympy",)
_TIMERS = (-signal.SIGPROF, -signal.SIGVTALRM, -signal.SIGALRM)


class AnswerProcess:
    """One process, started at its first question and again after its death. One thread uses it at a time."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None

    def ask(self, given: str, gold: str, seconds: float, *, kill: bool = True) -> Verdict | Literal["slow"]:
        """Returns the verdict on two normalized answers; undecided if the process did not live to give one.

        Args:
            given: the prediction.
            gold: the right answer.
            seconds: limit, in processor time.
            kill: whether to end the process at the limit, which is sure; else it may say that the comparison is slow,
                and live on.

        Raises:
            EngineError: the process does not start.
        """
        late: Literal["undecided", "slow"] = "undecided" if kill else "slow"
        line = json.dumps({"given": given, "gold": gold, "seconds": seconds, "kill": kill}).encode() + b"\n"
        for _ in range(2):  # one that was killed by something else, maybe before this question, says nothing about it
            if self._running is None:
                self._start()
            with contextlib.suppress(BrokenPipeError):  # then there is no answer either
                self._stream("stdin").write(line)
                self._stream("stdin").flush()
            answer = self._read_line(WALL_FACTOR * seconds + MARGIN_SECONDS)
            if answer:
                verdict: Verdict | Literal["slow"] = json.loads(answer)
                return verdict
            if self.close() in _TIMERS or answer is None:
                return late
        return "undecided"

    def close(self) -> int:
        """Kills the process, if there is one, waits for it, and returns its exit code."""
        if self._running is None:
            return 0
        self._running.kill()
        code = self._running.wait()
        self._stream("stdout").close()
        with contextlib.suppress(BrokenPipeError):  # closing flushes
            self._stream("stdin").close()
        self._running = None
        return code

    def _start(self) -> None:
        # the interpreter's own folder first on its path (-P: not the working directory, which may hold any random.py)
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._running = subprocess.Popen(
            [sys.executable, "-P", "-m", "llm_arena.problems.answers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # one thread: each thread of a numerical library would reserve address space
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C in the terminal is for the parent
        )
        if not self._read_line(START_SECONDS):
            self.close()
            raise EngineError(
                "the process that compares answers did not start; to see why, run "
                "python -m llm_arena.problems.answers.worker"
            )

    def _stream(self, name: str) -> IO[bytes]:
        stream: IO[bytes] = getattr(self._running, name)
        return stream

    def _read_line(self, seconds: float) -> bytes | None:
        """Returns the one line that the process has to say; empty if it died, None if it takes over `seconds`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stream("stdout"), selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        return self._stream("stdout").readline()  # it writes whole lines, so this does not wait


class _Queue:
    """Some processes of this interpreter, handed out one by one."""

    def __init__(self, processes: int) -> None:
        self.free: queue.LifoQueue[AnswerProcess] = queue.LifoQueue()  # the newest first: it is started
        for _ in range(processes):
            self.free.put(AnswerProcess())

    @contextlib.contextmanager
    def lend(self) -> Iterator[AnswerProcess]:
        process = self.free.get()
        try:
            yield process
        except BaseException:  # interrupted between question and answer: the next one would get this answer
            process.close()
            raise
        finally:
            self.free.put(process)


_pools: dict[int, dict[str, _Queue]] = {}
_lock = threading.Lock()


@atexit.register
def close() -> None:
    """Ends the processes that this interpreter started and that nobody is using."""
    for waiting in _pools.pop(os.getpid(), {}).values():  # those of a parent that forked are the parent's
        while not waiting.free.empty():
            waiting.free.get().close()


def require_algebra() -> None:
    """Raises a `MissingExtra` if the extra `problems` is not installed."""
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise missing_extra("comparing answers that are no numbers", missing[0], "problems")


def ask(given: str, gold: str, seconds: float) -> Verdict:
    """Compares two normalized answers in a guarded process; from any thread, which waits for its turn.

    Raises:
        MissingExtra: the extra `problems` is not installed.
        EngineError: the process does not start.
    """
    require_algebra()
    with _lock:  # a forked child must not share its parent's pipes
        if os.getpid() not in _pools:
            _pools[os.getpid()] = {name: _Queue(processes) for name, processes in PROCESSES.items()}
        queues = _pools[os.getpid()]
    with queues["quick"].lend() as process:
        verdict = process.ask(given, gold, min(seconds, QUICK_SECONDS), kill=False)
    if verdict != "slow":
        return verdict
    if seconds <= QUICK_SECONDS:
        return "undecided"
    with queues["slow"].lend() as process:
        verdict = process.ask(given, gold, seconds)
    return "undecided" if verdict == "slow" else verdict
