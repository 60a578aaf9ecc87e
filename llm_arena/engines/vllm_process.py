"""The vLLM process and our client of it: started, watched while somebody waits for it, ended with its log kept."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import threading
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from llm_arena.engines import vllm_start
from llm_arena.errors import EngineError
from llm_arena.threads import in_thread

NAP_SECONDS = 0.5
"""How often a waiting call looks whether the process is alive."""
CLOSE_SECONDS = 10.0
"""How long the process gets to end by itself, or a start to give up."""
DYING_SECONDS = 5.0
"""How long a process that vLLM calls dead may take to end."""

_T = TypeVar("_T")


class VllmProcess:
    """One engine core, which may be started anew when it has died.

    `client` is vLLM's `AsyncLLM`; calls to it go through `call`.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="llm-arena-vllm-"))
        """For files that go with the process."""
        self.client: Any = None
        self.running: set[asyncio.Future[Any]] = set()
        """Calls that somebody waits for."""
        self.closed = False
        self.revivals_left = 0
        """How often it may still be started anew; whoever does that counts here."""
        self.killed = False
        """Whether `kill` ended it, and it did not die by itself."""
        self._starts = 0
        self._process: Any = None
        self._launching: asyncio.Future[None] | None = None
        self._failed = False
        self._died = False
        self._given_up = threading.Event()

    @property
    def log(self) -> Path:
        """File with all that the process says, or the one before it while the next has not been started."""
        return self.folder / f"engine-{max(self._starts, 1)}.log"

    @property
    def pid(self) -> int | None:
        """Process id; None before the start."""
        return None if self._process is None else int(self._process.pid)

    @property
    def dead(self) -> bool:
        """Whether the process ended without being asked to."""
        return not self.closed and self._process is not None and not self._process.is_alive()

    async def start(self, arguments: Mapping[str, Any], devices: list[int] | None) -> None:
        """Starts the process, in place of one that has died; for the arguments see `vllm_start.start`.

        Raises:
            EngineError: it did not start.
        """
        while self.running:  # of the one before; they fail within a nap
            await asyncio.wait(self.running)
        await self._put_away()
        self.refuse_if_closed()
        self._starts += 1
        self.killed = False

        def launch() -> None:
            self._failed = True
            self.client, self._process = vllm_start.start(
                arguments, log=self.log, devices=devices, given_up=self._given_up
            )
            self._failed = False

        self._launching, _ = in_thread(launch)
        self._launching.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # nobody may be left to ask
        await asyncio.shield(self._launching)
        self.refuse_if_closed()
        self.refuse_if_dead()

    async def call(self, call: Awaitable[_T]) -> _T:
        """Waits for a call of the client, and fails when the process dies instead of waiting for ever.

        Raises:
            EngineError: whatever vLLM raised, or the process has died, or it was closed.
        """
        task = asyncio.ensure_future(call)
        self.running.add(task)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=NAP_SECONDS)
                if not task.done() and not self._process.is_alive():
                    self._refuse()
            return task.result()
        except asyncio.CancelledError:
            if self.closed:
                raise EngineError("the vllm engine was closed") from None
            raise
        except EngineError:
            raise
        # The boundary of the engine: whatever vLLM raises is told to those who wait.
        except Exception as error:
            if type(error).__name__ == "EngineDeadError":
                await in_thread(self._await_death)[0]
            self._refuse()
            details = " ".join(str(error).split())
            raise EngineError(f"vLLM failed: {type(error).__name__}: {details:.300}") from error
        finally:
            self.running.discard(task)
            if not task.done():
                task.cancel()

    async def call_while_alive(self, call: Awaitable[object]) -> None:
        """Waits like `call`, but a process that dies meanwhile, and takes with it what was asked for, is no error.

        Raises:
            EngineError: vLLM raised, and lives; or it was closed.
        """
        try:
            await self.call(call)
        except EngineError:
            if not self.dead:
                raise

    def death(self) -> str:
        """Returns how the process died, in its own last words."""
        words = vllm_start.last_words(self.log)
        return (
            f"the vLLM process (pid {self._process.pid}) has died with exit code {self._process.exitcode}"
            + (f": {words:.300}" if words else "")
            + f" (log: {self.log})"
        )

    def refuse_if_closed(self) -> None:
        """Raises EngineError if the process was closed."""
        if self.closed:
            raise EngineError("the vllm engine is closed; make a new one")

    def refuse_if_dead(self) -> None:
        """Raises EngineError if the process has died."""
        if self.dead:
            raise EngineError(
                f"{self.death()}. "
                + (
                    "What waited for it is lost; the next request starts it anew"
                    if self.revivals_left
                    else "What had ended is recorded; give the same command again to go on"
                )
            )

    async def kill(self) -> None:
        """Ends a process at once that can't be used any more; it then counts as dead. Does nothing after `close`."""
        if self._process is not None and not self.closed:
            self.killed = self.killed or not self.dead
            self._process.kill()
            await in_thread(self._process.join, CLOSE_SECONDS)[0]

    async def close(self) -> None:
        """Ends the process, or its start, and what waits for it. The folder goes, but for the logs of a failure."""
        self.closed = True
        for task in list(self.running):
            task.cancel()
        if self.running:
            await asyncio.wait(self.running, timeout=1.0)
        # Python itself ends children by SIGTERM when it exits
        code = None if self._process is None else self._process.exitcode
        failed = self._failed or code not in (None, 0, -signal.SIGTERM)
        if self._launching is not None and not self._launching.done():
            failed = False
            self._given_up.set()
            await asyncio.wait([self._launching], timeout=CLOSE_SECONDS)
        await self._put_away()
        logs = list(self.folder.glob("*.log")) if failed or self._died else []
        for entry in self.folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
        if not logs:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _refuse(self) -> None:
        self.refuse_if_closed()
        self.refuse_if_dead()

    async def _put_away(self) -> None:
        """Ends the process, if it lives, and the client."""
        client, self.client = self.client, None
        if client is not None:
            self._died = self._died or self.dead
            await in_thread(self._end, client, self._process)[0]

    def _await_death(self) -> None:
        self._process.join(DYING_SECONDS)
        if self._process.is_alive():  # it would serve nobody any more
            self._process.kill()
            self._process.join(DYING_SECONDS)

    @staticmethod
    def _end(client: Any, process: Any) -> None:
        client.shutdown(timeout=CLOSE_SECONDS / 2)
        client.shutdown = lambda: None  # its destructor calls it again, when half of Python may be gone
        process.join(CLOSE_SECONDS / 2)
        if process.is_alive():
            process.kill()
            process.join(CLOSE_SECONDS)
