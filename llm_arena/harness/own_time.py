"""What a harness does between its calls, in the lockstep."""

from __future__ import annotations

import asyncio

from llm_arena.lockstep import Lockstep

_QUIET_ROUNDS = 32
"""After so many rounds of the event loop without a new call, a harness counts as waiting for something else. From one
call's reply to the next call its code needs a round or two for each `gather` or task in between."""


class OwnTime:
    """The share in the lockstep of what a harness does between its calls.

    Its calls count each for itself. The function counts from each event that may make it go on (its start, a call's
    begin or end) until the event loop has gone round some times without another: then all that it could do at once is
    done, and it waits for its calls, or for something that engines must not wait for. So calls that are made together
    share a batch, whatever stands between them, and a sleep or a request to a server holds up nobody.
    """

    def __init__(self, lockstep: Lockstep | None) -> None:
        self._lockstep = lockstep
        self._counts = True  # an episode begins counted
        self._ticking = False
        self._quiet = 0
        self._closed = False

    def stir(self) -> None:
        """Says that the function may go on now."""
        self._quiet = 0
        if self._lockstep is None or self._closed:
            return
        if not self._counts:
            self._counts = True
            self._lockstep.enter()
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick, self._lockstep)

    def close(self) -> None:
        """Gives the share back as it was found."""
        if self._lockstep is not None and not self._counts:
            self._lockstep.enter()
        self._counts = self._closed = True

    def _tick(self, lockstep: Lockstep) -> None:
        self._quiet += 1
        if self._closed:
            return
        if self._quiet < _QUIET_ROUNDS:
            asyncio.get_running_loop().call_soon(self._tick, lockstep)
            return
        self._ticking = self._counts = False
        lockstep.leave()
