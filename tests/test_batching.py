"""Batches, failures, cancelling and closing, on an engine that answers at once."""

import asyncio
import threading

import pytest

from engine_parts import sampling, toy
from llm_arena.errors import EngineError


def test_failure_goes_to_those_who_wait_and_the_engine_serves_on():
    async def main():
        engine = await toy()
        bad = await asyncio.gather(*(engine.generate([n], sampling(), "p") for n in (12, 13)), return_exceptions=True)
        good = await engine.generate([1], sampling(), "p")
        await engine.close()
        return bad, good

    bad, good = asyncio.run(main())
    assert [type(error) for error in bad] == [EngineError] * 2
    assert "ValueError: boom" in str(bad[0])
    assert good.token_ids == [1]


def test_batches_hold_one_policy_and_at_most_so_many_rows():
    async def main():
        engine = await toy(max_batch_rows=3)
        await asyncio.gather(*(engine.generate([n], sampling(n), "pq"[n % 2]) for n in range(9)))
        await engine.close()
        return engine.batches

    assert [[len(batch), batch[0][0]] for batch in asyncio.run(main())] == [[3, "p"], [2, "p"], [3, "q"], [1, "q"]]


def test_close_answers_those_who_wait_and_may_be_called_twice():
    async def main():
        gate = threading.Event()
        engine = await toy(gate=gate)
        running = asyncio.create_task(engine.generate([1], sampling(), "p"))
        await asyncio.sleep(0.05)
        queued = asyncio.create_task(engine.generate([2], sampling(), "p"))
        await asyncio.sleep(0)
        closing = [asyncio.create_task(engine.close()) for _ in range(2)]
        await asyncio.sleep(0.05)
        gate.set()
        results = await asyncio.gather(running, queued, *closing, return_exceptions=True)
        await engine.close()
        for call in (engine.generate([1], sampling(), "p"), engine.publish("p", ".", 3)):
            with pytest.raises(EngineError, match="closed"):
                await call
        return results, engine.released, [thread.name for thread in threading.enumerate()]

    results, released, threads = asyncio.run(main())
    assert [type(result) for result in results] == [EngineError, EngineError, type(None), type(None)]
    assert released
    assert not [name for name in threads if name.startswith("llm-arena-toy")]


def test_cancelled_requests_are_dropped():
    async def main():
        gate = threading.Event()
        engine = await toy(gate=gate)
        tasks = [asyncio.create_task(engine.generate([n], sampling(n), "p")) for n in range(3)]
        await asyncio.sleep(0.05)  # these run
        late = [asyncio.create_task(engine.generate([n], sampling(n), "p")) for n in range(3, 6)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        late[1].cancel()
        await asyncio.sleep(0)
        gate.set()
        results = await asyncio.gather(*tasks, *late, return_exceptions=True)
        await engine.close()
        return results, engine.batches

    results, batches = asyncio.run(main())
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    assert [row[1] for row in batches[1]] == [[3], [5]]
