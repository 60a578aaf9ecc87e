"""Calling what may take long from an event loop, without its default executor."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_T = TypeVar("_T")
_P = ParamSpec("_P")


def in_thread(
    function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> tuple[asyncio.Future[_T], threading.Thread]:
    """Calls a function in a thread of its own; returns the future of its result on the running loop, and the thread.

    Whoever waits may be cancelled at any time; the function then runs on, and its result is dropped. The thread does
    not keep the process alive. The default executor is of no use here: it refuses work once Python is about to exit,
    when engines that nobody closed are closed.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)  # type: ignore[arg-type]  # no error: the result is there

    def work() -> None:
        result, error = None, None
        try:
            result = function(*args, **kwargs)
        except BaseException as raised:  # carried to the caller, whatever it is
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    thread = threading.Thread(target=work, name="llm_arena-call", daemon=True)
    thread.start()
    return answer, thread
