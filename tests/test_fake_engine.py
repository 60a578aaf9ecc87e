"""The fake engine."""

import asyncio
import json

import pytest

from engine_parts import STOP, sampling
from llm_arena.engines.fake import FakeEngine
from llm_arena.errors import EngineError, UnknownName


def test_fake_ids_depend_on_prompt_seed_and_version_only(fake_engine):
    async def main():
        one, two = fake_engine(), fake_engine()
        calls = [([5, n], sampling(seed, stop=())) for n in range(3) for seed in range(3)]
        first = [await one.generate(p, s, "p") for p, s in calls]
        second = await asyncio.gather(*(two.generate(p, s, "q") for p, s in reversed(calls)))
        await two.publish("p", ".", 5)
        third = await two.generate(*calls[0], "p")
        return first, second[::-1], third

    first, second, third = asyncio.run(main())
    assert first == second
    assert len({tuple(c.token_ids) for c in first}) == 9
    assert third.token_ids != first[0].token_ids
    assert third.max_version == 5
    assert all(-5 < logprob < 0 for c in first for logprob in c.logprobs)


def test_fake_stops_by_stop_ids_and_by_length(fake_engine):
    async def main():
        engine = fake_engine()
        return [await engine.generate([1], sampling(seed, 10), "p") for seed in range(40)]

    found = asyncio.run(main())
    for completion in found:
        assert completion.finish == ("stop" if completion.token_ids[-1] == STOP else "length")
        assert STOP not in completion.token_ids[:-1]
    assert {completion.finish for completion in found} == {"stop", "length"}


def test_fake_scripts(fake_engine):
    async def main():
        engine = fake_engine([[3, 4, STOP], [6] * 40])
        one, two = [await engine.generate([1], sampling(new=5), "p") for _ in range(2)]
        with pytest.raises(EngineError, match="no more lines"):
            await engine.generate([1], sampling(), "p")
        echo = await fake_engine(lambda prompt, sampling: prompt[::-1]).generate([1, 7], sampling(), "p")
        return one, two, echo, engine.calls

    one, two, echo, calls = asyncio.run(main())
    assert (one.token_ids, one.finish, len(one.logprobs)) == ([3, 4, STOP], "stop", 3)
    assert (two.token_ids, two.finish) == ([6] * 5, "length")
    assert echo.token_ids == [7, 1]
    assert [call[1] for call in calls] == [[1], [1], [1]]


def test_fake_takes_the_vocabulary_of_a_published_folder(tiny_model):
    async def main():
        engine = FakeEngine()
        with pytest.raises(UnknownName):
            await engine.generate([1], sampling(), "p")
        await engine.publish("p", tiny_model, 0)
        found = await engine.generate([1], sampling(new=2000, stop=()), "p")
        await engine.close()
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.generate([1], sampling(), "p")
        return found

    size = json.loads((tiny_model / "config.json").read_text())["vocab_size"]
    ids = asyncio.run(main()).token_ids
    assert 0.9 * size < max(ids) < size


def test_fake_forgets_a_policy(fake_engine):
    async def main():
        engine = FakeEngine(policies=["p", "past"])
        await engine.forget("p")
        with pytest.raises(UnknownName, match="no policy 'p' was published"):
            await engine.generate([1], sampling(), "p")
        with pytest.raises(UnknownName, match="no policy 'p' was published"):
            await engine.forget("p")
        await engine.generate([1], sampling(), "past")
        assert engine.describe()["policies"] == ["past"]
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await engine.forget("past")

    asyncio.run(main())
