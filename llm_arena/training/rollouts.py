"""Batches of episodes, played in their order and, where asked for, ahead of the learner.

With `max_staleness = k` the batch of step s is sampled with the weights after max(0, s - k) steps, whatever is faster:
so a run is the same on every machine, and no token is more than k updates old. Batches are played one after the other
on the runtime's loop, and the engines take new weights between two of them; so no episode sees an exchange, and at most
k batches wait for the learner. With k = 0 a batch begins when the learner waits for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from llm_arena.errors import TrainingError
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.runtime import Runtime
from llm_arena.training.config import TrainConfig
from llm_arena.training.planning import learner_seats
from llm_arena.types import Ending, Trace


@dataclass(frozen=True, kw_only=True)
class Played:
    """One batch."""

    traces: list[Trace]
    seconds: float
    "Wall time of playing it."


class Rollouts:
    """Plays batches in the background. All methods are called by the learner's thread.

    Args:
        runtime: where to play.
        config: of the run; `max_staleness` says how many steps ahead.
        take: has the engines take the weights of a version (the number of steps they have learned); awaited on the
            runtime's loop.
    """

    def __init__(self, runtime: Runtime, config: TrainConfig, take: Callable[[int], Awaitable[None]]) -> None:
        self._runtime = runtime
        self._config = config
        self._take = take
        self._jobs: dict[int, asyncio.Task[Played]] = {}
        self._served: int | None = None

    def version_for(self, step: int) -> int:
        """Returns the version of the weights that the batch of a step is sampled with."""
        return max(0, step - self._config.max_staleness)

    def start(self, step: int, plans: Sequence[EpisodePlan]) -> None:
        """Has a batch played when those that were started before it are done. Its weights must have been written.

        Raises:
            ArenaError: an earlier batch has failed.
        """
        self._runtime.run(self._start(step, plans))

    def result(self, step: int) -> Played:
        """Waits for the batch of a step and returns it, once.

        Raises:
            ArenaError: this batch failed, or a later one has by now.
        """
        return self._runtime.run(self._result(step))

    def serve(self, version: int) -> None:
        """Has the engines take a version as soon as all batches that were started are done, and waits for that.

        Raises:
            ArenaError: a batch failed, or an engine does not take the weights.
        """
        self._runtime.run(self._settle(version))

    async def _start(self, step: int, plans: Sequence[EpisodePlan]) -> None:
        self._raise_failures()
        before = list(self._jobs.values())[-1:]
        self._jobs[step] = asyncio.get_running_loop().create_task(self._play(step, plans, before))
        self._jobs[step].add_done_callback(lambda job: job.cancelled() or job.exception())  # seen, if nobody asks

    async def _play(self, step: int, plans: Sequence[EpisodePlan], before: Sequence[asyncio.Task[Played]]) -> Played:
        for job in before:
            await job
        await self._serve(self.version_for(step))
        began = time.perf_counter()
        traces = await play_many(plans, self._runtime)
        lost = [place for place, trace in enumerate(traces) if lost_to_an_engine(trace)]
        if lost:  # it comes back with the weights it had, or refuses at once
            again = await play_many([plans[place] for place in lost], self._runtime)
            for place, trace in zip(lost, again, strict=True):
                traces[place] = trace
        refuse_all_void(step, traces)
        refuse_without_tokens(step, traces, self._config)
        return Played(traces=traces, seconds=time.perf_counter() - began)

    async def _result(self, step: int) -> Played:
        await asyncio.wait([self._jobs[step]])
        self._raise_failures()
        return self._jobs.pop(step).result()

    async def _settle(self, version: int) -> None:
        if self._jobs:
            await asyncio.wait(self._jobs.values())
        self._raise_failures()
        await self._serve(version)

    async def _serve(self, version: int) -> None:
        if version != self._served:
            await self._take(version)
            self._served = version

    def _raise_failures(self) -> None:
        for job in self._jobs.values():
            if job.done():
                job.result()


def lost_to_an_engine(trace: Trace) -> bool:
    """Whether an episode was broken by a failure of an engine.

    Such episodes are played once more. Those that a death spares had ended before it, so they are the short ones, and
    a step on them alone would lean to short games.
    """
    return trace.failure is not None and trace.failure.boundary == "engine"


def refuse_all_void(step: int, traces: Sequence[Trace]) -> None:
    """Refuses a batch in which every episode was broken by a fault.

    Raises:
        TrainingError: it is one.
    """
    if traces and all(trace.void for trace in traces):
        failure = traces[0].failure
        reason = f"{failure.boundary}: {failure.kind}: {failure.message}" if failure else "unknown"
        raise TrainingError(f"all {len(traces)} episodes of step {step} are void; the first: {reason}")


def refuse_without_tokens(step: int, traces: Sequence[Trace], config: TrainConfig) -> None:
    """Refuses a batch in which no trained policy sampled a token: contexts overflowed, or a harness called none.

    Of a harness the first step shows it. In a game, and later, it may be chance: an opponent won before the first turn.

    Raises:
        TrainingError: it is one.
    """
    overflowed = sum(trace.ending is Ending.CONTEXT_OVERFLOW for trace in traces)
    tokens = any(turn.completion_ids for trace in traces for turn in trace.turns if turn.seat in learner_seats(trace))
    if tokens:
        return
    if overflowed:
        raise TrainingError(
            f"the learner sampled no token in step {step}, for {overflowed} of {len(traces)} episodes overflowed the "
            f"context: raise max_context_tokens (given: {config.max_context_tokens}), or lower max_new_tokens "
            f"(given: {config.max_new_tokens})"
        )
    if config.harness is not None and not step:
        asked = sorted({trace.seats[turn.seat].role for trace in traces for turn in trace.turns})
        raise TrainingError(
            f"no trained policy sampled a token in step {step}, for {config.harness} called "
            f"{', '.join(asked) if asked else 'nobody'}; let it await ctx.call(ROLE, ...) for a role that the roster "
            "leaves to the learner, or raise starts_per_step if it does so for few starts"
        )


def overlap(rollout: float, learn: float, step: float) -> float:
    """Returns how much of the shorter of playing and learning was hidden behind the other: 0 if they took turns, to 1.

    Args:
        rollout: time in which the batch of a step was played.
        learn: time in which the learner worked on it and wrote its weights.
        step: wall time of the whole step.
    """
    return min(max((rollout + learn - step) / max(min(rollout, learn), 1e-9), 0.0), 1.0)
