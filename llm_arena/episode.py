"""One episode on its way: asks agents, steps the env, records.

A fault inside an episode never leaves it: its trace is void and holds a `Failure` that names the boundary (env, agent,
engine, parser, runtime).
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from llm_arena.agent import Agent
from llm_arena.errors import ContextOverflow, EngineError, EpisodeTimeout, UsageError
from llm_arena.lockstep import Lockstep
from llm_arena.recorder import Recorder, step_dead
from llm_arena.registry import make
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Ending, EnvSpec, Failure, Reply, SeatInfo, Trace, View
from llm_arena.views import copy_messages

_YIELD_SECONDS = 0.02
"""Agents that never wait give other episodes a turn after so many seconds."""

Boundary = Literal["env", "agent", "engine", "parser", "runtime"]
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """All that decides an episode before it begins."""

    id: str
    """The trace's id; part of every sampling seed, so different ids sample differently from equal starts."""
    spec: EnvSpec
    seed: int
    """The episode seed, 0 to 2**64 - 1."""
    agents: Mapping[str, Agent]
    """The agent in each seat."""
    group: str = ""
    index: int = 0
    """Position in whatever batch the caller has; not read here."""
    run_seed: int | None = None
    """Seed of all sampling; None: the episode seed."""

    def open(self, runtime: Runtime, *, threads: bool) -> Episode:
        """Returns the episode, about to begin.

        Args:
            runtime: where.
            threads: step the env in threads of their own.
        """
        return _GameEpisode(self, runtime, threads=threads)


class Episode(Protocol):
    """One episode on its way."""

    boundary: Boundary
    "What it is at when something goes wrong."
    seat: str | None
    "Whose agent it is at."

    @property
    def doing(self) -> str:
        """What the episode waits for, in words."""

    async def play(self) -> Trace:
        """Plays to the end."""

    def void(self, failure: Failure) -> Trace:
        """Returns the trace of an episode that a fault ended."""


def sampling_seed(run_seed: int, episode_id: str, seat: str, turn: int, attempt: int) -> int:
    """Returns the 64-bit seed of one call of an agent: a hash, so that it depends on no order of calls.

    Args:
        run_seed: seed of the run.
        episode_id: id of the trace.
        seat: who acts.
        turn: how many turns the seat has had in this episode.
        attempt: 0, or n for the n-th retry.
    """
    text = f"{run_seed}\x1f{episode_id}\x1f{seat}\x1f{turn}\x1f{attempt}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


async def with_clock(act: Coroutine[Any, Any, Action], seconds: float | None) -> Action:
    """Returns what an agent answers; an empty reply when its clock ran out.

    Args:
        act: the agent's call.
        seconds: how long it may take; None: no limit.

    Raises:
        EngineError: the clock ran out while the agent's server failed and was asked again, which is no fault of the
            seat's. Whoever asks again says so by a cause of the cancellation.
    """
    if seconds is None:
        return await act
    try:
        async with asyncio.timeout(seconds) as limit:
            action = await act
        # An agent may take the cancellation for an error of its server's and answer all the same.
        return Action(reply=Reply("", "timeout")) if limit.expired() else action
    except TimeoutError as error:
        if not limit.expired():
            raise
        cancelled = error.__cause__
        if cancelled is not None and isinstance(cancelled.__cause__, EngineError):
            raise cancelled.__cause__ from None
        return Action(reply=Reply("", "timeout"))


def counted_reply(action: Action) -> Reply:
    """Returns the reply of an action; with the length of its context, where the action holds tokens."""
    reply = action.reply
    if action.prompt_ids is None or action.completion is None:
        return reply
    sent = len(action.prompt_ids) + len(action.completion.token_ids)
    return Reply(reply, reply.finish if isinstance(reply, Reply) else "stop", sent)  # agents may give plain text


async def run_episode(
    plan: EpisodePlan, runtime: Runtime, seconds: float | None, record: Callable[[Trace], object]
) -> tuple[Trace, BaseException | None]:
    """Plays one episode; returns its trace, and for a void one the error behind it. `record` gets the trace anyhow."""
    episode = plan.open(runtime, threads=seconds is not None)
    error: BaseException | None = None
    try:
        async with asyncio.timeout(seconds) as limit:
            try:
                trace = await episode.play()
            # The boundary of an episode: whatever a game or an agent raises (even an attempt to end the process) is
            # a record of this episode and no affair of the others.
            except (Exception, SystemExit) as raised:
                error = raised
                trace = episode.void(_failure(raised, episode.boundary, episode.seat))
        if limit.expired():  # and an agent kept the cancellation to itself
            raise TimeoutError
    except TimeoutError:
        what = f"waiting for {episode.doing}"
        error = EpisodeTimeout(f"episode {plan.id} timed out after {seconds} s, {what}")
        trace = episode.void(Failure(boundary="runtime", kind="EpisodeTimeout", message=str(error), seat=episode.seat))
    except asyncio.CancelledError as raised:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # not an agent's own doing
            record(episode.void(Failure(boundary="runtime", kind="CancelledError", message="cancelled")))
            raise
        error = raised
        trace = episode.void(_failure(raised, episode.boundary, episode.seat))
    if error is not None:
        _log.debug("episode %s is void", plan.id, exc_info=error)
    record(trace)
    return trace, error


class _GameEpisode:
    """One episode of a game on its way."""

    def __init__(self, plan: EpisodePlan, runtime: Runtime, *, threads: bool) -> None:
        self.boundary: Boundary = "env"
        self.seat: str | None = None
        self._plan = plan
        self._runtime = runtime
        self._threads = threads
        self._slow = False
        self._run_seed = plan.seed if plan.run_seed is None else plan.run_seed
        seats = {
            # a seat's id is its role and a number
            seat: SeatInfo(role=seat.rpartition("_")[0], agent=agent.name, policy=agent.policy)
            for seat, agent in plan.agents.items()
        }
        self._recorder = Recorder(plan.id, plan.spec, plan.seed, seats, plan.group)
        self._asked: dict[str, tuple[View, int]] = {}

    @property
    def doing(self) -> str:
        """What the episode waits for, in words."""
        return f"the agent of {self.seat}" if self.boundary == "agent" else f"the game {self._plan.spec.id}"

    async def play(self) -> Trace:
        """Plays to the end."""
        calls = _Calls(self._runtime.lockstep)
        yielded = time.perf_counter()
        try:
            views = await self._env_work(self._begin)
            while not self._env.over:
                seat = self._env.agent_selection
                alone = len(views) == 1 and not calls.open
                for view in () if alone else views:
                    calls.start(view.seat, self._act(view))
                self.boundary, self.seat = "agent", seat
                try:
                    action, seconds = await (self._act(views[0]) if alone else calls.take(seat))
                    check_action(action)
                except ContextOverflow:
                    self.boundary = "env"
                    await self._env_work(partial(self._overflow, seat))
                    break
                self.boundary = "env"
                views = await self._env_work(partial(self._step, seat, action, seconds))
                await calls.cancel_others(self._env.pending)
                if time.perf_counter() - yielded > _YIELD_SECONDS:
                    await asyncio.sleep(0)
                    yielded = time.perf_counter()
            return self._recorder.finish(self._env)
        finally:
            await calls.cancel_others(())

    def void(self, failure: Failure) -> Trace:
        """Returns the trace of an episode that a fault ended."""
        return self._recorder.void(failure)

    async def _env_work(self, work: Callable[[], _T]) -> _T:
        return await self._runtime.call(work) if self._threads or self._slow else work()

    def _begin(self) -> list[View]:
        self._env = make(self._plan.spec)
        self._slow = self._env.slow
        seats = self._env.possible_agents
        if sorted(seats) != sorted(self._plan.agents):
            raise UsageError(f"{self._plan.spec.id} has the seats {seats}; agents sit in {list(self._plan.agents)}")
        self._env.reset(seed=self._plan.seed)
        return self._ask()

    def _step(self, seat: str, action: Action, seconds: float) -> list[View]:
        env = self._env
        view, epoch = self._asked.pop(seat)
        env.step(counted_reply(action))
        assert env.last_step is not None  # it has just been stepped
        self._recorder.add(view, epoch, action, env.last_step, seconds)
        step_dead(env)
        return self._ask()

    def _overflow(self, seat: str) -> None:
        self._env.truncate(Ending.CONTEXT_OVERFLOW, seat)
        step_dead(self._env)

    def _ask(self) -> list[View]:
        """Returns the views of the seats that are to act and have not been asked."""
        env = self._env
        for seat in [seat for seat in self._asked if seat not in env.pending]:
            del self._asked[seat]  # it left the game before its reply was taken
        views = []
        for seat in env.pending:
            if seat not in self._asked:
                turn = len(self._recorder.past(seat))
                view = env.view(seat, sampling_seed(self._run_seed, self._plan.id, seat, turn, env.attempt(seat)))
                # What is recorded is not what the agent gets: an agent may well edit its own messages.
                self._asked[seat] = view, env.view_epoch(seat)
                views.append(msgspec.structs.replace(view, messages=copy_messages(view.messages)))
        return views

    async def _act(self, view: View) -> tuple[Action, float]:
        """Returns the agent's action and how long it took, in seconds; an empty reply when the seat's clock ran out."""
        agent, past = self._plan.agents[view.seat], tuple(self._recorder.past(view.seat))
        began = time.perf_counter()
        action = await with_clock(agent.act(view, past), self._env.turn_seconds)
        return action, time.perf_counter() - began


class _Calls:
    """The calls of a simultaneous phase that are under way, and their share in the lockstep.

    Every call counts in the lockstep while it runs. The episode itself does not count while it waits for a call; that
    call then hands its count on to the episode when it ends.
    """

    def __init__(self, lockstep: Lockstep | None) -> None:
        self._lockstep = lockstep
        self._tasks: dict[str, asyncio.Task[tuple[Action, float]]] = {}
        self._awaited: asyncio.Task[tuple[Action, float]] | None = None

    @property
    def open(self) -> bool:
        """Whether there are calls whose result was not taken."""
        return bool(self._tasks)

    def start(self, seat: str, call: Coroutine[Any, Any, tuple[Action, float]]) -> None:
        """Starts the call of one seat."""
        if self._lockstep is not None:
            self._lockstep.enter()
        self._tasks[seat] = task = asyncio.get_running_loop().create_task(call)
        task.add_done_callback(self._ended)

    async def take(self, seat: str) -> tuple[Action, float]:
        """Waits for the result of one seat's call, however many others have ended before it."""
        task = self._tasks[seat]
        if not task.done():
            self._awaited = task
            if self._lockstep is not None:
                self._lockstep.leave()
        try:
            return await task
        finally:
            self._awaited = None
            del self._tasks[seat]

    async def cancel_others(self, seats: Sequence[str]) -> None:
        """Cancels the calls of all seats but `seats`, and waits for their end."""
        tasks = [self._tasks.pop(seat) for seat in list(self._tasks) if seat not in seats]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[tuple[Action, float]]) -> None:
        if task is not self._awaited and self._lockstep is not None:
            self._lockstep.leave()


def check_action(action: object) -> None:
    """Refuses what an agent may not return, before the game sees it.

    Raises:
        TypeError: it is no action, or has a completion and no prompt.
        EngineError: its tokens and logprobs can't be recorded.
    """
    if not isinstance(action, Action) or not isinstance(action.reply, str):
        raise TypeError(f"an agent's act() returns an Action with a Reply; got {action!r:.200}")
    completion = action.completion
    if completion is None:
        return
    if not action.prompt_ids:  # the first sampled token needs a context
        raise TypeError("an Action with a completion needs the prompt_ids that were sent for it, at least one")
    if len(completion.token_ids) != len(completion.logprobs):
        raise EngineError(
            f"the engine returned {len(completion.token_ids)} token ids and {len(completion.logprobs)} logprobs; "
            "a turn is recorded only with one logprob for each sampled id"
        )
    try:
        fine = all(-1e9 < logprob < 1e-3 for logprob in completion.logprobs)
    except TypeError:
        fine = False
    if not fine:
        raise EngineError("the engine returned a logprob that is no finite number up to 0; are the weights finite?")


def leaves_of(error: BaseException) -> list[BaseException]:
    """Returns the errors in a group, and in the groups in it; an error that is no group alone."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]


def _failure(error: BaseException, boundary: Boundary, seat: str | None) -> Failure:
    """Returns the record of an error. Where it came from decides its boundary, not who passed it on."""
    error = next(iter(leaves_of(error)))  # the first, where a task group passes on several
    if isinstance(error, EngineError):
        boundary = "engine"
    frame = error.__traceback__
    while frame is not None:
        module = frame.tb_frame.f_globals.get("__name__", "")
        if module.startswith("llm_arena.engines."):
            boundary = "engine"
        elif module == "llm_arena.parsing":
            boundary = "parser"
        frame = frame.tb_next
    message = (str(error) or repr(error)).encode("utf-8", "replace").decode()
    return Failure(boundary=boundary, kind=type(error).__name__, message=message[:2000], seat=seat)
