"""The part of a local engine that has nothing to do with models: queue, batches, worker thread, failures, closing."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from llm_arena.engines.base import Sampling
from llm_arena.errors import EngineError, UnknownName, did_you_mean
from llm_arena.lockstep import Lockstep
from llm_arena.threads import in_thread
from llm_arena.types import Completion


@dataclass(eq=False)
class Request:
    """One completion that somebody waits for."""

    prompt_ids: list[int]
    sampling: Sampling
    policy: str
    future: asyncio.Future[Completion] = field(repr=False)
    counted: bool
    "Whether its sender left the lockstep for it and has to enter again."
    dropped: bool = False
    "Nobody waits any more; read by the worker thread, which then stops sampling for it."

    @property
    def place(self) -> tuple[str, int, list[int], int]:
        """Sorting key. It depends on the request alone, so that a batch has one order however its requests arrived."""
        return self.policy, len(self.prompt_ids), self.prompt_ids, self.sampling.seed


class BatchingEngine(ABC):
    """Collects concurrent requests into batches and runs them, one batch at a time, in a thread of its own.

    With a lockstep, a batch starts when every activity waits for the engine or has ended. Without, it takes whatever is
    queued when the thread is free. A subclass brings `_load`, `_sample`, `_check` and `_release`; and `_drop`, if it
    holds weights.

    Args:
        lockstep: the counter of activities, shared with whoever plays; None to batch by time of arrival.
        max_batch_rows: most requests in one batch.
    """

    name: str

    def __init__(self, *, lockstep: Lockstep | None, max_batch_rows: int) -> None:
        self.lockstep = lockstep
        """Shared with whoever plays."""
        self._max_batch_rows = max_batch_rows
        self._versions: dict[str, int] = {}
        self._queue: list[Request] = []
        self._unanswered: set[Request] = set()
        self._leaving: set[str] = set()
        self._round: asyncio.Task[None] | None = None
        self._closed = False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"llm-arena-{self.name}")
        if lockstep is not None:
            lockstep.subscribe(self._pump)

    @abstractmethod
    def _load(self, policy: str, directory: Path) -> None:
        """Takes weights; called in the worker thread. Raises EngineError and leaves the old weights if it can't."""

    def _drop(self, policy: str) -> None:  # noqa: B027 - an engine without weights of its own has nothing to do
        """Frees the weights of a policy; called in the worker thread."""

    @abstractmethod
    def _sample(self, policy: str, rows: Sequence[Request]) -> list[Completion]:
        """Answers `rows`, in their order; called in the worker thread. Rows that are `dropped` may end early."""

    @abstractmethod
    def _check(self, policy: str, prompt_ids: list[int], sampling: Sampling) -> None:
        """Raises EngineError for a request that can't be run, before it shares a batch with others."""

    @abstractmethod
    def _release(self) -> None:
        """Frees the weights; nothing runs any more."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        """Samples one completion, together with whatever else is asked for now; see `Engine.generate`."""
        self._refuse_if_closed()
        self._refuse_unknown(policy)
        if sampling.max_new_tokens < 1 or not 0 <= sampling.temperature < float("inf"):
            raise EngineError(
                f"cannot sample {sampling.max_new_tokens} tokens at temperature {sampling.temperature}; "
                f"give max_new_tokens >= 1 and a finite temperature >= 0"
            )
        self._check(policy, prompt_ids, sampling)
        loop = asyncio.get_running_loop()
        # A caller outside of any episode (a probe) is in no lockstep and can't leave it.
        counted = self.lockstep is not None and not self.lockstep.idle
        request = Request(list(prompt_ids), sampling, policy, loop.create_future(), counted)
        self._queue.append(request)
        self._unanswered.add(request)
        if self.lockstep is not None and counted:
            self.lockstep.leave()
        else:
            loop.call_soon(self._pump)
        try:
            return await request.future
        finally:
            request.dropped = True
            self._unanswered.discard(request)
            if request in self._queue:
                self._queue.remove(request)
            self._count_again(request)

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Takes the weights of `policy` between two batches; see `Engine.publish`.

        Raises:
            EngineError: the folder is no complete model; the old weights go on serving.
        """
        self._refuse_if_closed()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._worker, partial(self._load_version, policy, Path(directory), version))

    async def forget(self, policy: str) -> None:
        """Refuses new requests for `policy` at once, and frees its weights after the others; see `Engine.forget`."""
        self._refuse_if_closed()
        self._refuse_unknown(policy)
        self._leaving.add(policy)
        try:
            while policy in self._leaving and (
                waiting := [request.future for request in self._unanswered if request.policy == policy]
            ):
                await asyncio.wait(waiting)
                await asyncio.sleep(0)  # their senders take them off the list
            if not self._closed:
                await asyncio.get_running_loop().run_in_executor(self._worker, partial(self._drop_version, policy))
        finally:
            self._leaving.discard(policy)

    async def close(self) -> None:
        """Stops sampling, answers everybody who waits with `EngineError`, and frees the weights."""
        if not self._closed:
            self._closed = True
            if self.lockstep is not None:
                self.lockstep.unsubscribe(self._pump)
            waiting, self._queue = self._queue, []
            for request in waiting:
                self._fail(request, f"the {self.name} engine was closed", None)
        if self._round is not None:
            await asyncio.wait([self._round])
        await in_thread(self._worker.shutdown)[0]
        self._versions.clear()
        self._release()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineError(f"the {self.name} engine is closed; make a new one")

    def _refuse_unknown(self, policy: str) -> None:
        known = self._versions.keys() - self._leaving
        if policy not in known:
            raise UnknownName(
                f"no policy {policy!r} was published to the {self.name} engine.{did_you_mean(policy, sorted(known))}"
            )

    def _load_version(self, policy: str, directory: Path, version: int) -> None:
        """Runs in the worker thread, hence never in the middle of a batch."""
        self._load(policy, directory)
        self._leaving.discard(policy)  # published anew while it waited to be forgotten: it stays
        self._versions[policy] = version

    def _drop_version(self, policy: str) -> None:
        """Runs in the worker thread."""
        if policy in self._leaving:
            del self._versions[policy]
            self._drop(policy)

    def _pump(self) -> None:
        """Starts a round if it is time for one."""
        waits = self.lockstep is not None and not self.lockstep.idle
        if self._queue and not waits and self._round is None and not self._closed:
            batch, self._queue = self._queue, []
            self._round = asyncio.get_running_loop().create_task(self._run_round(batch))

    async def _run_round(self, batch: list[Request]) -> None:
        """Answers all requests of a batch, then looks for the next."""
        try:
            for rows in self._split(batch):
                await self._run_rows(rows)
        finally:
            self._round = None
            asyncio.get_running_loop().call_soon(self._pump)

    def _split(self, batch: list[Request]) -> Iterator[list[Request]]:
        """Yields runs of one policy, at most `max_batch_rows` long."""
        rows: list[Request] = []
        for request in sorted(batch, key=lambda request: request.place):
            if rows and (rows[0].policy != request.policy or len(rows) == self._max_batch_rows):
                yield rows
                rows = []
            rows.append(request)
        yield rows

    async def _run_rows(self, rows: list[Request]) -> None:
        loop = asyncio.get_running_loop()
        try:
            completions = await loop.run_in_executor(self._worker, partial(self._sample_version, rows))
        except asyncio.CancelledError:
            for request in rows:
                self._fail(request, f"the {self.name} engine was interrupted", None)
            raise
        # The boundary of the engine: whatever a model raises is told to those who wait, and the engine goes on.
        except Exception as error:
            for request in rows:
                self._fail(request, f"sampling failed: {type(error).__name__}: {error}", error)
            return
        for request, completion in zip(rows, completions, strict=True):
            if not request.future.done():
                self._count_again(request)
                request.future.set_result(completion)

    def _sample_version(self, rows: list[Request]) -> list[Completion]:
        """Runs in the worker thread, so that no publication can come between the version and the weights."""
        if self._closed:
            raise EngineError(f"the {self.name} engine was closed")
        version = self._versions[rows[0].policy]
        completions = self._sample(rows[0].policy, rows)
        if self._closed:
            raise EngineError(f"the {self.name} engine was closed")
        for completion in completions:
            completion.min_version = completion.max_version = version
        return completions

    def _fail(self, request: Request, message: str, cause: BaseException | None) -> None:
        if not request.future.done():
            self._count_again(request)
            error = EngineError(message)
            error.__cause__ = cause
            request.future.set_exception(error)

    def _count_again(self, request: Request) -> None:
        """Lets the sender count as active again, once, before it runs on."""
        if self.lockstep is not None and request.counted:
            request.counted = False
            self.lockstep.enter()
