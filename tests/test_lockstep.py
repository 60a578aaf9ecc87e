"""The lockstep: batches that do not depend on timing."""

import asyncio

import pytest

from engine_parts import sampling, toy
from llm_arena.errors import EngineError
from llm_arena.lockstep import Lockstep


async def episode(engine, lockstep, index, turns, pause):
    lockstep.enter()
    try:
        for turn in range(turns):
            await asyncio.sleep(pause * ((index * 7 + turn * 3) % 5))
            await engine.generate([index, turn], sampling(index * 100 + turn), "pq"[index % 2])
    finally:
        lockstep.leave()


def lockstep_batches(pause, order, **kwargs):
    async def main():
        lockstep = Lockstep()
        engine = await toy(lockstep=lockstep, **kwargs)
        await asyncio.gather(*(episode(engine, lockstep, index, 2 + index % 3, pause) for index in order))
        assert lockstep.active == 0
        await engine.close()
        return engine.batches

    return asyncio.run(main())


@pytest.mark.parametrize("rows", [2, 64])
def test_lockstep_batches_do_not_depend_on_timing(rows):
    reference = lockstep_batches(0.0, range(6), max_batch_rows=rows)
    assert lockstep_batches(0.004, range(6), max_batch_rows=rows) == reference
    assert lockstep_batches(0.002, [3, 1, 5, 0, 2, 4], max_batch_rows=rows) == reference
    if rows == 64:
        assert [len(batch) for batch in reference] == [3, 3, 3, 3, 2, 2, 1, 1], "every episode that is open, each time"


def test_without_lockstep_the_engine_does_not_wait():
    async def main():
        engine = await toy()
        await asyncio.wait_for(engine.generate([1], sampling(), "p"), 5)
        await engine.close()

    asyncio.run(main())


def test_lockstep_waits_for_the_slow_and_goes_on_without_the_cancelled():
    async def main():
        lockstep = Lockstep()
        engine = await toy(lockstep=lockstep)
        lockstep.enter(3)
        calls = [asyncio.create_task(engine.generate([n], sampling(n), "p")) for n in range(2)]
        await asyncio.sleep(0.05)
        assert not engine.batches, "the third activity may still send"
        calls[0].cancel()
        await asyncio.gather(calls[0], return_exceptions=True)
        assert lockstep.active == 2, "a cancelled caller is active again"
        lockstep.leave(2)
        await calls[1]
        assert lockstep.active == 1
        lockstep.leave()
        await engine.close()
        return engine.batches

    assert [len(batch) for batch in asyncio.run(main())] == [1]


def test_lockstep_is_balanced_after_failures_and_close():
    async def main():
        lockstep = Lockstep()
        engine = await toy(lockstep=lockstep)
        lockstep.enter(2)
        await asyncio.gather(*(engine.generate([13], sampling(), "p") for _ in range(2)), return_exceptions=True)
        assert lockstep.active == 2
        waiting = asyncio.create_task(engine.generate([1], sampling(), "p"))
        await asyncio.sleep(0)
        assert lockstep.active == 1
        await engine.close()
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], EngineError)
        assert lockstep.active == 2

    asyncio.run(main())


def test_caller_outside_of_the_lockstep_is_served():
    async def main():
        lockstep = Lockstep()
        engine = await toy(lockstep=lockstep)
        calls = (engine.generate([n], sampling(n), "p") for n in range(3))
        await asyncio.wait_for(asyncio.gather(*calls), 5)
        await engine.close()
        return engine.batches, lockstep.active

    batches, active = asyncio.run(main())
    assert ([len(batch) for batch in batches], active) == ([3], 0)


def test_lockstep_counts():
    async def main():
        lockstep, calls = Lockstep(), []
        lockstep.subscribe(lambda: calls.append("idle"))
        lockstep.enter(2)
        lockstep.leave()
        await asyncio.sleep(0)
        assert (calls, lockstep.idle, lockstep.active) == ([], False, 1)
        lockstep.leave()
        assert calls == [], "called through the loop, not from within"
        await asyncio.sleep(0)
        assert (calls, lockstep.idle) == (["idle"], True)
        with pytest.raises(RuntimeError, match="1 activities leave"):
            lockstep.leave()

    asyncio.run(main())
