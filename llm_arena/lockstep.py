"""Lockstep: an engine batches only when nobody can add to the batch any more.

Which requests share a batch would otherwise depend on timing. In lockstep an engine waits until every open episode
either waits for a completion or has ended, so that a batch holds the same requests on every machine and every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Lockstep:
    """Counts the activities that may still send a request. All calls come from one event loop's thread.

    An activity is a task that plays an episode, or one call of a simultaneous phase. It counts from `enter` to `leave`.
    An engine calls `leave` for a request that it queues, and `enter` again before it answers it, so that the counter is
    zero exactly when all activities wait for engines. Agents that wait for people or servers simply go on counting.
    """

    def __init__(self) -> None:
        self._active = 0
        self._callbacks: list[Callable[[], None]] = []

    @property
    def active(self) -> int:
        """How many activities may still send a request."""
        return self._active

    @property
    def idle(self) -> bool:
        """Whether all activities wait for engines, or have ended."""
        return self._active == 0

    def enter(self, n: int = 1) -> None:
        """Counts `n` more activities."""
        if n < 0:
            raise ValueError(f"n is {n}, expected at least 0")
        self._active += n

    def leave(self, n: int = 1) -> None:
        """Counts `n` activities less; at zero the subscribers are called soon.

        Raises:
            RuntimeError: more activities left than had entered.
        """
        if n < 0:
            raise ValueError(f"n is {n}, expected at least 0")
        if n > self._active:
            raise RuntimeError(f"{n} activities leave the lockstep, but only {self._active} are in it")
        self._active -= n
        if n and self.idle:
            loop = asyncio.get_running_loop()
            for callback in self._callbacks:
                loop.call_soon(callback)

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Has `callback` called, through the event loop, each time that the counter reaches zero.

        By the time of the call somebody may have entered again: a subscriber looks at `idle` itself.
        """
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        """Ends a subscription; unknown callbacks are ignored."""
        if callback in self._callbacks:
            self._callbacks.remove(callback)
