"""The runtime: one event loop in one thread, where envs step, agents act and engines answer.

`play`, evaluation and the trainer are ordinary synchronous callers that hand coroutines to `Runtime.run`. Because the
loop has a thread of its own, this also works inside a loop that is running already, as in a notebook.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib
import json
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from llm_arena.engines.base import Engine
from llm_arena.engines.settings import EngineKind, EngineSettings
from llm_arena.errors import ModelError, UsageError
from llm_arena.lockstep import Lockstep
from llm_arena.threads import in_thread

if TYPE_CHECKING:
    from llm_arena.engines.vllm_engine import VllmEngine
    from llm_arena.tokens import ChatFormat

FLUSH_SECONDS = 10.0
"""How long a cancelled caller waits for its coroutine to abort its episodes and write their records, in seconds."""
_NAP_SECONDS = 0.1

_T = TypeVar("_T")
_P = ParamSpec("_P")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ServedPolicy:
    """A model that an engine serves, and what it takes to talk to it."""

    engine: Engine
    policy_id: str
    chat: ChatFormat
    max_context_tokens: int


class Runtime:
    """Owns the loop, the engines and the bound on open episodes. Use it as a context manager; closing twice is fine.

    Args:
        max_open_episodes: how many episodes may be open at once.
        lockstep: whether the engine batches only when every open episode waits for it or has ended, so that a batch
            does not depend on timing. An engine that has a `Lockstep` of its own brings that one.
        engine: what serves the models: settings, or just their kind (`vllm`), from which the runtime makes engines when
            models are asked for; or one engine for all. None is a transformers engine. The runtime closes them.
        sleeps: vLLM engines free their GPU between `sleep` and `wake`, for a learner on the same one.
    """

    def __init__(
        self,
        *,
        max_open_episodes: int = 64,
        lockstep: bool | Lockstep = True,
        engine: Engine | EngineSettings | EngineKind | None = None,
        sleeps: bool = False,
    ) -> None:
        if max_open_episodes < 1:
            raise UsageError(f"max_open_episodes={max_open_episodes}; expected 1 or more")
        self.max_open_episodes = max_open_episodes
        own = getattr(engine, "lockstep", None)
        self._loading = asyncio.Lock()
        self.lockstep: Lockstep | None = (
            own if own is not None else lockstep if isinstance(lockstep, Lockstep) else Lockstep() if lockstep else None
        )
        self._policies: dict[str, asyncio.Task[ServedPolicy]] = {}
        self._served: dict[str, ServedPolicy] = {}
        self._slots = asyncio.Semaphore(max_open_episodes)
        self._settings: EngineSettings | None = None
        self._sleeps = sleeps
        self._common: list[Engine] = []  # those of the runtime's own settings, which may serve any model
        given: list[Engine] = []
        if engine is None or isinstance(engine, str | EngineSettings):
            self._settings = EngineSettings(kind=engine) if isinstance(engine, str) else engine or EngineSettings()
        else:
            given = [engine]
        self._home = _Home(given)
        # Runs at close, when the runtime is garbage, or at the end of the process, whichever comes first; then once.
        self._finalizer = weakref.finalize(self, self._home.close)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def engines(self) -> list[dict[str, Any]]:
        """Returns which engine serves which policies, as JSON, for manifests."""
        return [engine.describe() for engine in self._home.engines]

    def new_engine(
        self,
        *,
        max_batch_rows: int = 64,
        max_lora_rank: int = 0,
        settings: EngineSettings | None = None,
        sleeps: bool | None = None,
    ) -> Engine:
        """Makes an engine for policies that the caller publishes; the runtime closes it.

        For the arguments see `llm_arena.engines.choose.make_engine`; None is as in this runtime.

        Raises:
            MissingExtra, UsageError: it is not installed, or can't have these settings.
        """
        from llm_arena.engines.choose import make_engine

        own = self._settings or EngineSettings()
        engine = make_engine(
            settings or own,
            lockstep=self.lockstep,
            max_batch_rows=max_batch_rows,
            max_lora_rank=max_lora_rank,
            sleeps=self._sleeps if sleeps is None else sleeps,
        )
        self._home.engines.append(engine)
        if settings in (None, own):
            self._common.append(engine)
        return engine

    def set_engine(self, settings: EngineSettings) -> None:
        """Has models that are asked for from now on served by engines of these settings."""
        self._settings = settings

    async def sleep(self) -> None:
        """Has the engines free the GPU that they share with the learner. Nothing may be sampled before `wake`."""
        for engine in self._sleepers():
            await engine.sleep()

    async def wake(self) -> None:
        """Has the engines take the GPU back."""
        for engine in self._sleepers():
            await engine.wake()

    def _sleepers(self) -> list[VllmEngine]:
        from llm_arena.engines.vllm_engine import VllmEngine

        return [engine for engine in self._home.engines if isinstance(engine, VllmEngine)]

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Runs a coroutine on the runtime's loop and returns its result; for synchronous callers, from any thread.

        Ctrl-C cancels the coroutine, waits (at most 10 s) until it has put its affairs in order, and is raised again.
        A second Ctrl-C does not wait.

        Args:
            coroutine: what to run.
            timeout: cancel it after so many seconds.

        Raises:
            TimeoutError: the timeout passed.
            UsageError: the runtime is closed, or this is its own loop's thread.
        """
        self._check(coroutine)
        job = _Job(coroutine, self._home.loop)
        try:
            ended = _wait(job.result, timeout)
        except BaseException:  # Ctrl-C ends the wait, not the coroutine
            self._abort(job)
            raise
        if not ended:
            self._abort(job)
            raise TimeoutError(f"timed out: the coroutine was cancelled after {timeout} s")
        if job.result.cancelled():
            raise asyncio.CancelledError("the runtime was closed, or the coroutine was cancelled")
        return job.result.result()

    async def arun(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine on the runtime's loop, for callers on another event loop.

        Cancelling the caller cancels the coroutine and waits for its end.

        Raises:
            UsageError: the runtime is closed.
        """
        if threading.current_thread() is self._home.thread:
            return await coroutine
        self._check(coroutine)
        job = _Job(coroutine, self._home.loop)
        waiter = asyncio.wrap_future(job.result)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            if not waiter.done():
                job.cancel()
                await asyncio.wait([waiter], timeout=FLUSH_SECONDS)
            raise

    async def call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Calls a function that may take long in a thread of its own, so that the loop stays live.

        The caller may be cancelled at any time; the function then runs on, and its result is dropped. The thread
        does not keep the process alive.
        """
        answer, thread = in_thread(function, *args, **kwargs)
        self._home.calls = [*(other for other in self._home.calls if other.is_alive()), thread]
        return await answer

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Waits for one of the `max_open_episodes` places, first come first served, and takes part in the lockstep."""
        async with self._slots:
            if self.lockstep is not None:
                self.lockstep.enter()
            try:
                yield
            finally:
                if self.lockstep is not None:
                    self.lockstep.leave()

    def serve(self, name: str, served: ServedPolicy) -> None:
        """Has `policy(name)` answer `served`: a policy that the caller published to an engine itself."""
        self._served[name] = served

    def unserve(self, name: str) -> None:
        """Forgets what `serve` was told of a name."""
        self._served.pop(name, None)

    async def policy(self, model: str) -> ServedPolicy:
        """Returns a model that is served, loading it at the first call: a known name, a folder, or a hub id.

        Raises:
            UnknownName, ModelError: the model can't be found, loaded or used for chat; the next call tries again.
        """
        if model in self._served:
            return self._served[model]
        task = self._policies.get(model)
        if task is None:
            # A task of its own: the load goes on for other waiters when the first one is cancelled.
            task = self._policies[model] = asyncio.get_running_loop().create_task(self._serve(model))
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._policies.get(model) is task:
                del self._policies[model]
            raise

    def close(self) -> None:
        """Cancels what still runs, closes the engine, ends the thread. Closing twice is fine."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _serve(self, model: str) -> ServedPolicy:
        # Before anything else asks for it, and whole: `from transformers import ...` fails in a thread that comes upon
        # another's half-done import. Python's lock on this module makes all threads wait for the first.
        from llm_arena.model_sources import missing_train

        try:
            await self.call(importlib.import_module, "llm_arena.engines.transformers_engine")
        except ModuleNotFoundError as error:
            raise missing_train(error) from error
        from llm_arena.models import resolve_model
        from llm_arena.tokens import ChatFormat

        async with self._loading:  # one model at a time, which bounds the memory that loading takes
            directory = await self.call(resolve_model, model)
            chat = await self.call(ChatFormat.load, directory)
            engine = self._engine_for(directory)
            try:
                await engine.publish(model, directory, 0)
            except BaseException:
                if self._settings is not None and not engine.describe()["policies"]:
                    self._home.engines.remove(engine)
                    self._common.remove(engine)
                    await engine.close()
                raise
        return ServedPolicy(engine, model, chat, context_tokens(directory, engine))

    def _engine_for(self, directory: Path) -> Engine:
        """Returns the engine for a model folder: vLLM takes one model each, the others all of them."""
        from llm_arena.engines.choose import chosen
        from llm_arena.engines.vllm_engine import VllmEngine

        if self._settings is None:
            return self._home.engines[0]
        kind = chosen(self._settings)
        for engine in self._common:
            if engine.name == kind and (not isinstance(engine, VllmEngine) or engine.takes(directory)):
                return engine
        return self.new_engine()

    def _abort(self, job: _Job[Any]) -> None:
        job.cancel()
        if not _wait(job.result, FLUSH_SECONDS):
            _log.warning("a cancelled coroutine did not end within %s s and was left behind", FLUSH_SECONDS)

    def _check(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        problem = None
        if self.closed:
            problem = "this Runtime is closed; make a new one"
        elif threading.current_thread() is self._home.thread:
            problem = "run() was called on the runtime's own loop, where it would wait for itself; use `await` there"
        if problem:
            coroutine.close()
            raise UsageError(problem)


class _Job(Generic[_T]):
    """A coroutine that a loop in another thread runs; `result` is settled when it has really ended."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> None:
        self.result: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._loop = loop
        loop.call_soon_threadsafe(self._start, coroutine)

    def cancel(self) -> None:
        """Asks the coroutine to stop."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing runs there any more
            self._loop.call_soon_threadsafe(lambda: self._task.cancel())

    def _start(self, coroutine: Coroutine[Any, Any, _T]) -> None:
        self._task = self._loop.create_task(coroutine)
        self._task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[_T]) -> None:
        if task.cancelled():
            self.result.cancel()
            self.result.set_running_or_notify_cancel()
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


class _Home:
    """The loop, its thread and the engines. Knows nothing of its runtime, which may become garbage before it."""

    def __init__(self, engines: list[Engine]) -> None:
        self.engines = engines
        self.calls: list[threading.Thread] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._live, name="llm_arena-runtime", daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Cancels all tasks, closes the engine, stops the loop and waits for the thread."""
        if threading.current_thread() is self.thread:  # collected as garbage on its own loop: it can't wait for itself
            self.loop.create_task(self._wind_up()).add_done_callback(lambda _: self.loop.stop())
            return
        job = _Job(self._wind_up(), self.loop)
        _wait(job.result, FLUSH_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        _join([self.thread], FLUSH_SECONDS)
        _join(self.calls, 1.0)  # what was given up may run on; nothing waits for it
        if self.thread.is_alive():
            _log.warning("an agent or a game blocks the runtime's loop; its thread was left behind")
        elif job.result.done() and (error := job.result.exception()) is not None:
            raise error

    async def _wind_up(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=FLUSH_SECONDS / 2)
        await asyncio.gather(*(engine.close() for engine in self.engines))
        await self.loop.shutdown_asyncgens()
        await self.loop.shutdown_default_executor()

    def _live(self) -> None:
        while True:
            try:
                self.loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt) as error:
                # asyncio lets these two through; they are the business of the task's waiter, not of other episodes
                _log.warning("a task on the runtime's loop raised %r; the loop goes on", error)
        self.loop.close()


def _join(threads: Sequence[threading.Thread], seconds: float) -> None:
    """Waits for the end of threads, at most `seconds`, in naps as `_wait` does."""
    end = time.monotonic() + seconds
    for thread in threads:
        while thread.is_alive() and time.monotonic() < end:
            thread.join(_NAP_SECONDS)


def _wait(future: concurrent.futures.Future[Any], seconds: float | None) -> bool:
    """Waits until `future` is settled, at most `seconds`; returns whether it is.

    Waits in naps, because Ctrl-C wakes the main thread out of a wait only if the system hands the signal to that
    thread; Python then sees it at the next nap's end.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while not future.done():
        left = _NAP_SECONDS if end is None else min(_NAP_SECONDS, end - time.monotonic())
        if left <= 0:
            return False
        concurrent.futures.wait([future], left)
    return True


def context_tokens(directory: Path, engine: Engine) -> int:
    """Returns the longest context of a model folder on an engine that serves it, in tokens.

    Raises:
        ModelError: the folder's config does not tell.
    """
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        longest = int(config.get("text_config", config)["max_position_embeddings"])
        return longest if engine.max_context_tokens is None else min(longest, engine.max_context_tokens)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"{directory}: config.json does not tell the model's longest context (max_position_embeddings)"
        ) from error
