"""Playing: one episode for a person, or many at once under one bound.

A fault inside an episode makes its trace void, and the other episodes go on; but not where a server refuses what it
would refuse again, in any other episode as well.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.episode import EpisodePlan, leaves_of, run_episode, sampling_seed
from llm_arena.errors import ServerRefusal, UsageError
from llm_arena.harness import HarnessFunction, HarnessPlan, harness_agents, load_harness
from llm_arena.registry import make
from llm_arena.roster import Roster, resolve_roster
from llm_arena.runtime import FLUSH_SECONDS, Runtime
from llm_arena.trace_file import TraceWriter
from llm_arena.types import EnvSpec, Json, Trace

OnTrace = Callable[[Trace], object]
_log = logging.getLogger(__name__)


def play(
    env: str | EnvSpec | ArenaEnv | None = None,
    agents: Roster = "random-legal",
    seed: int | None = None,
    *,
    harness: str | HarnessFunction | None = None,
    sample: Mapping[str, Json] | None = None,
    runtime: Runtime | None = None,
    traces: str | os.PathLike[str] | TraceWriter | None = None,
    **settings: Any,
) -> Trace:
    """Plays one episode and returns its trace. Works in notebooks too; use `aplay` in async code.

    Example:
        >>> import llm_arena
        >>> llm_arena.play("kuhn-poker-v0", agents="random-legal", seed=0).ending
        <Ending.TERMINATED: 'terminated'>

    Args:
        env: an id, a spec, or an env, whose spec is used (the env itself is left alone).
        agents: who plays: an agent string for all seats (`random-legal`, `kuhn-poker-v0/optimal`, a model's name or
            folder), an agent object, or a dictionary of these by role or seat.
        seed: decides the game and all sampling; None draws one, which the trace records.
        harness: in place of an env: an async function `(ctx, sample)`, or its name `module:function`; see
            docs/harness.md. `agents` are then by role, `*` for those that are not named.
        sample: what the harness is called with.
        runtime: where to play; None makes one for this episode. Pass one to keep a model loaded between episodes.
        traces: append the trace to this file.
        settings: of the agents, e.g. `max_new_tokens=24, temperature=0.7`.

    Raises:
        UnknownName: no such env, seat, role, agent or model.
        UsageError: a seat without an agent, or a setting that no agent takes.
        Exception: whatever went wrong in the episode; its void record is in `traces`.
    """
    what = _What(env, harness, sample)
    if runtime is None:
        with Runtime(max_open_episodes=1) as own:
            return own.run(_play(what, agents, seed, own, traces, settings))
    return runtime.run(_play(what, agents, seed, runtime, traces, settings))


async def aplay(
    env: str | EnvSpec | ArenaEnv | None = None,
    agents: Roster = "random-legal",
    seed: int | None = None,
    *,
    harness: str | HarnessFunction | None = None,
    sample: Mapping[str, Json] | None = None,
    runtime: Runtime | None = None,
    traces: str | os.PathLike[str] | TraceWriter | None = None,
    **settings: Any,
) -> Trace:
    """Plays one episode from async code on any event loop; see `play`. Cancelling it cancels the episode."""
    what = _What(env, harness, sample)
    if runtime is not None:
        return await runtime.arun(_play(what, agents, seed, runtime, traces, settings))
    own = Runtime(max_open_episodes=1)
    try:
        return await own.arun(_play(what, agents, seed, own, traces, settings))
    finally:
        await asyncio.to_thread(own.close)


async def play_many(
    plans: Sequence[EpisodePlan],
    runtime: Runtime,
    *,
    on_trace: OnTrace | None = None,
    stop_at_first_error: bool = False,
    episode_seconds: float | None = None,
) -> list[Trace]:
    """Plays episodes, at most `runtime.max_open_episodes` at once, admitted in order; to be run on the runtime's loop.

    Args:
        plans: what to play.
        runtime: where.
        on_trace: called with each trace as it ends, void ones included, one at a time and outside the loop's thread,
            so it may write to a disk: when it falls behind, no episode begins until it has caught up. It must not play
            on this runtime itself. If it raises, the batch stops and raises that.
        stop_at_first_error: raise the first error of an episode and cancel the others, instead of recording it and
            going on.
        episode_seconds: time limit of each episode, in seconds; the trace of one that takes longer is void. Envs are
            then stepped in threads of their own, so that the limit holds even for a step that never returns.

    Returns:
        The traces in the order of `plans`, void ones in their places.

    Raises:
        ServerRefusal: a model's server refused a request for good (a wrong key, an unknown model). The episode is
            recorded as void, the others are cancelled.
    """
    traces: dict[int, Trace] = {}
    await _play_all(plans, runtime, traces.__setitem__, on_trace, stop_at_first_error, episode_seconds)
    return [traces[position] for position in range(len(plans))]


async def play_through(plans: Sequence[EpisodePlan], runtime: Runtime, on_trace: OnTrace) -> None:
    """Plays episodes as `play_many` does, and keeps none of their traces, so that any number of them can be played."""
    await _play_all(plans, runtime, lambda position, trace: None, on_trace, False, None)


async def _play_all(
    plans: Sequence[EpisodePlan],
    runtime: Runtime,
    keep: Callable[[int, Trace], None],
    on_trace: OnTrace | None,
    stop_at_first_error: bool,
    episode_seconds: float | None,
) -> None:
    todo = iter(enumerate(plans))
    waiting: set[asyncio.Task[None]] = set()

    async def lane() -> None:
        # A lane keeps its slot from one episode to the next, so that a lockstep never takes the change for idleness.
        me = asyncio.current_task()
        assert me is not None
        waiting.add(me)
        async with runtime.slot():
            waiting.discard(me)
            for position, plan in todo:
                trace, error = await run_episode(plan, runtime, episode_seconds, delivery.put)
                keep(position, trace)
                if error is not None:
                    refusals = [leaf for leaf in leaves_of(error) if isinstance(leaf, ServerRefusal)]
                    if refusals or stop_at_first_error:
                        raise refusals[0] if refusals else error
                await delivery.room()
                await asyncio.sleep(0)
        for idle in waiting:  # nothing is left to play, so nobody needs to wait for a slot
            idle.cancel()

    async with _Delivery(on_trace, runtime) as delivery:
        loop = asyncio.get_running_loop()
        lanes = {loop.create_task(lane()) for _ in range(min(len(plans), runtime.max_open_episodes))}
        try:
            running = set(lanes)
            while running:
                done, _ = await asyncio.wait(running | delivery.tasks, return_when=asyncio.FIRST_COMPLETED)
                running -= done
                for task in done - waiting:
                    task.result()
        finally:
            for task in lanes:
                task.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)


async def play_episode(plan: EpisodePlan, runtime: Runtime) -> Trace:
    """Plays one episode on the runtime's loop; a fault makes the trace void. Takes one of the runtime's slots."""
    [trace] = await play_many([plan], runtime)
    return trace


@dataclass(frozen=True)
class _What:
    """What is to be played: an env, or a harness with its sample."""

    env: str | EnvSpec | ArenaEnv | None
    harness: str | HarnessFunction | None
    sample: Mapping[str, Json] | None

    def plan(self, agents: Roster, seed: int, runtime: Runtime, settings: dict[str, Any]) -> EpisodePlan:
        """Returns the plan of the episode.

        Raises:
            UsageError: both were given, or neither.
        """
        if (self.env is None) == (self.harness is None):
            raise UsageError("play() takes an env or a harness, and exactly one of the two")
        if self.harness is not None:
            harness = load_harness(self.harness)
            spec = harness.spec({} if self.sample is None else self.sample)
            by_role = harness_agents(agents, runtime=runtime, settings=settings)
            return HarnessPlan(id=f"{spec.id}:{seed}", spec=spec, seed=seed, agents=by_role, harness=harness)
        if self.sample is not None:
            raise UsageError("a sample is for a harness; give a game its keyword arguments: play(make(id, name=value))")
        assert self.env is not None  # one of the two was given
        env = self.env if isinstance(self.env, ArenaEnv) else make(self.env)
        roster = resolve_roster(env, agents, runtime=runtime, **settings)
        return EpisodePlan(id=f"{env.spec.id}:{seed}", spec=env.spec, seed=seed, agents=roster)


async def _play(
    what: _What,
    agents: Roster,
    seed: int | np.integer[Any] | None,
    runtime: Runtime,
    traces: str | os.PathLike[str] | TraceWriter | None,
    settings: dict[str, Any],
) -> Trace:
    if seed is None:
        seed = secrets.randbits(64)
    elif isinstance(seed, np.integer):
        seed = int(seed)
    plan = what.plan(agents, seed, runtime, settings)
    for agent in {id(agent): agent for agent in plan.agents.values()}.values():
        prepare = getattr(agent, "prepare", None)
        if prepare is not None:  # loads its model, so that no seat's clock runs meanwhile
            await prepare()
    if traces is None or isinstance(traces, TraceWriter):
        on_trace = None if traces is None else traces.write
        [trace] = await play_many([plan], runtime, on_trace=on_trace, stop_at_first_error=True)
    else:
        with TraceWriter(traces) as writer:
            [trace] = await play_many([plan], runtime, on_trace=writer.write, stop_at_first_error=True)
    return trace


class _Delivery:
    """Hands traces to `on_trace`, one at a time, off the loop's thread; leaving it waits until all are handed over.

    As many traces may wait as episodes may be open, so that those which end together don't hold each other up. What
    waits is lost by a kill, and written before Ctrl-C is answered.
    """

    def __init__(self, on_trace: OnTrace | None, runtime: Runtime) -> None:
        self._on_trace = on_trace
        self._runtime = runtime
        self._queue: asyncio.Queue[Trace | None] = asyncio.Queue()
        self._taken = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()

    def put(self, trace: Trace) -> None:
        if self._on_trace is not None:
            self._queue.put_nowait(trace)

    async def room(self) -> None:
        """Waits while too many traces do. `put` never waits, so that a cancelled episode leaves its record."""
        while self._queue.qsize() > self._runtime.max_open_episodes:
            self._taken.clear()
            await self._taken.wait()

    async def __aenter__(self) -> Self:
        if self._on_trace is not None:
            self.tasks = {asyncio.get_running_loop().create_task(self._deliver(self._on_trace))}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._queue.put_nowait(None)
        if error is not None:
            await self._flush(error)
            return
        try:
            for task in self.tasks:
                await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._flush(None)
            raise

    async def _flush(self, raised: BaseException | None) -> None:
        """Waits for the records in writing; what goes wrong with them is logged, unless it is being raised already."""
        if self.tasks:
            done, late = await asyncio.wait(self.tasks, timeout=FLUSH_SECONDS)
            for task in done:
                if not task.cancelled() and (error := task.exception()) not in (None, raised):
                    _log.warning("records were not written: %s", error)
            for task in late:
                _log.warning("records were not written within %s s after the batch was stopped", FLUSH_SECONDS)
                task.cancel()

    async def _deliver(self, on_trace: OnTrace) -> None:
        while (trace := await self._queue.get()) is not None:
            self._taken.set()
            await self._runtime.call(on_trace, trace)


__all__ = ["EpisodePlan", "OnTrace", "aplay", "play", "play_episode", "play_many", "play_through", "sampling_seed"]
