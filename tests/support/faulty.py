"""A model server with faults, in a process of its own, and the patience that gets through to it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from llm_arena.engines.http_pool import Patience

PROGRAM = Path(__file__).parents[1] / "programs" / "faulty_server.py"


class Faulty(NamedTuple):
    url: str
    log: Path
    child: subprocess.Popen[str]


@contextlib.contextmanager
def faulty(folder: Path, *options: str) -> Iterator[Faulty]:
    """A server with faults; it logs to `folder`. For the options see the program."""
    log = folder / "served.jsonl"
    child = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(log), *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        yield Faulty(f"http://127.0.0.1:{int(child.stdout.readline())}", log, child)
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()


# Half of all tries fail: a call that fails 17 times in a row comes once in a hundred runs of 1,100 calls.
PERSISTENT = Patience(
    tries=40,
    try_seconds=1.0,
    backoff_seconds=0.002,
    backoff_cap_seconds=0.02,
    cool_down_seconds=0.02,
    cool_down_cap_seconds=0.02,
)


def check_abandoned(served: list[dict[str, Any]], recorded: int, log: str) -> None:
    """Every whole reply is a recorded turn, but for those that this process, when the machine was busy, read too late.

    Args:
        served: the server's log.
        recorded: how many turns there are, each of them one whole reply.
        log: what the pool logged.
    """
    done = Counter(entry["done"] for entry in served)
    assert set(done) == {"whole", "busy", "broken", "reset", "late", "half"}
    assert 0 <= done["whole"] - recorded <= log.count("did not answer within") - done["late"]
