"""Signals that wait until a step is whole."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[None]:
    """Answers a first Ctrl-C or SIGTERM after the block, and a second one at once.

    Outside the main thread, where Python takes no signals, nothing is held.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            restore()
            signal.raise_signal(number)
        print("ending after this step; once more ends at once", file=sys.stderr, flush=True)

    for number, handler in before.items():
        if callable(handler):  # what is ignored, or kills at once, stays so
            signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
    if came:
        signal.raise_signal(came[0])


__all__ = ["held"]
