"""Handing traces over while others play: order, threads, a writer that is slow or fails, cancelling."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from llm_arena.rollout import play_many, play_through
from llm_arena.runtime import Runtime
from llm_arena.types import Trace
from rollout_parts import (
    Instant,
    Says,
    Watched,
    plan,
    play_all,
    registered,  # noqa: F401 -- a fixture of the whole file
)


def test_traces_are_handed_over_as_they_end_off_the_loops_thread():
    seen = []

    def on_trace(trace):
        time.sleep(0.01)
        seen.append((trace.id, threading.current_thread().name))

    plans = [plan(k, Says("a", delay=0.1 * (3 - k))) for k in range(3)]
    play_all(plans, on_trace=on_trace)
    assert [name for name, _ in seen] == ["e2", "e1", "e0"]
    assert "llm_arena-runtime" not in {thread for _, thread in seen}


def test_a_record_that_cannot_be_written_stops_the_batch():
    def full(trace):
        raise OSError(28, "No space left on device")

    async def main(runtime):
        with pytest.raises(OSError, match="No space left"):
            await play_many([plan(k, Watched("a", delay=0.01 + k)) for k in range(4)], runtime, on_trace=full)
        assert len(asyncio.all_tasks()) == 1

    with Runtime() as runtime:
        runtime.run(main(runtime), timeout=5)
    assert Watched.inside == 0


class Slow:
    """Takes traces more slowly than they are played, and notes how many were played and taken."""

    def __init__(self, fault=None, seconds=0.01):
        self.taken = 0
        self.most = 0
        self.counts = Counts("a")
        self.fault, self.seconds = fault, seconds

    def __call__(self, trace):
        if self.fault is not None and self.taken == 5:
            raise self.fault
        time.sleep(self.seconds)
        self.taken += 1
        self.most = max(self.most, self.counts.calls - self.taken)


class Counts(Instant):
    """Counts its calls: one for each episode of the quiz."""

    calls = 0

    async def act(self, view, past):
        self.calls += 1
        return await super().act(view, past)


def test_a_slow_writer_holds_up_the_play_and_loses_nothing():
    for width in (1, 4):
        slow = Slow(seconds=0.002)
        with Runtime(max_open_episodes=width) as runtime:
            traces = play_all([plan(k, slow.counts) for k in range(60)], runtime=runtime, on_trace=slow)
        assert slow.taken == len(traces) == 60
        # as many as may wait, and as many as may be open
        assert width <= slow.most <= 2 * width


def test_many_episodes_are_played_without_keeping_any():
    kept = []

    def on_trace(trace):
        # what is still reachable of the traces before this one
        kept.append(sum(type(thing) is Trace for thing in gc.get_objects()))

    with Runtime(max_open_episodes=2) as runtime:
        runtime.run(play_through([plan(k, Instant("a")) for k in range(20)], runtime, on_trace))
    assert len(kept) == 20
    assert max(kept) - kept[0] < 8


@pytest.mark.parametrize("width", [1, 4])
def test_a_slow_writer_that_fails_stops_the_batch_that_waits_for_it(width):
    slow = Slow(OSError(28, "No space left on device"))

    async def main(runtime):
        with pytest.raises(OSError, match="No space left"):
            await play_many([plan(k, slow.counts) for k in range(1000)], runtime, on_trace=slow)
        assert len(asyncio.all_tasks()) == 1

    with Runtime(max_open_episodes=width) as runtime:
        runtime.run(main(runtime), timeout=5)
    assert slow.taken == 5 and slow.counts.calls < 20


def test_a_batch_that_waits_for_its_writer_can_be_cancelled_and_what_waits_is_written():
    slow = Slow(seconds=0.05)

    async def main(runtime):
        batch = asyncio.create_task(play_many([plan(k, slow.counts) for k in range(1000)], runtime, on_trace=slow))
        while slow.taken < 2:
            await asyncio.sleep(0.01)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch
        assert len(asyncio.all_tasks()) == 1
        # the next batch has all the slots
        assert len(await play_many([plan(k, Says("a")) for k in range(8)], runtime)) == 8

    with Runtime(max_open_episodes=4) as runtime:
        runtime.run(main(runtime), timeout=5)
    assert slow.taken == slow.counts.calls < 20
