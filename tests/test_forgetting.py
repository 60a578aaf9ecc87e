"""The transformers engine with policies that come and go, and with one model under two names."""

import asyncio
import gc
import weakref

import pytest
import torch

import llm_arena
from engine_parts import run, sampling
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.errors import UnknownName
from llm_arena.lockstep import Lockstep
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.runtime import Runtime, ServedPolicy, context_tokens
from llm_arena.tokens import ChatFormat


def test_forgetting_frees_the_weights_after_the_last_request(tiny_model):
    async def work(engine):
        await engine.publish("past", tiny_model, 1)
        held = weakref.ref(engine._models["past"])
        running = [asyncio.create_task(engine.generate([4, 5], sampling(seed, 60, ()), "past")) for seed in range(3)]
        await asyncio.sleep(0)
        forgetting = asyncio.create_task(engine.forget("past"))
        await asyncio.sleep(0)
        for call in (engine.generate([4], sampling(), "past"), engine.forget("past")):
            with pytest.raises(UnknownName, match="no policy 'past' was published"):
                await call
        await forgetting
        assert all(task.done() for task in running)
        gc.collect()
        assert held() is None
        assert engine.describe()["policies"] == ["p"]
        with pytest.raises(UnknownName):
            await engine.forget("never")
        again = await engine.generate([4, 5], sampling(0, 60, ()), "p")
        await engine.publish("past", tiny_model, 2)
        return [await task for task in running], again, await engine.generate([4], sampling(), "past")

    before, again, after = run(tiny_model, work)
    assert before[0].token_ids == again.token_ids
    assert (before[0].min_version, after.min_version) == (1, 2)


def test_one_that_is_published_anew_while_it_is_forgotten_stays(tiny_model):
    async def work(engine):
        running = asyncio.create_task(engine.generate([4, 5], sampling(0, 60, ()), "p"))
        await asyncio.sleep(0)
        forgetting = asyncio.create_task(engine.forget("p"))
        await asyncio.sleep(0)
        await engine.publish("p", tiny_model, 8)
        await asyncio.gather(running, forgetting)
        given_up = asyncio.create_task(engine.forget("p"))
        await asyncio.sleep(0)
        given_up.cancel()  # before or after it took place, never halfway
        await asyncio.wait([given_up])
        if "p" in engine.describe()["policies"]:
            await engine.generate([4], sampling(), "p")
        else:
            with pytest.raises(UnknownName):
                await engine.generate([4], sampling(), "p")

    run(tiny_model, work)


@pytest.mark.parametrize("open_episodes", [1, 8])
def test_one_model_under_two_names_plays_as_under_one(tiny_model, open_episodes):
    """In both seats the same weights: whether the roster names them once or twice decides nothing."""

    def played(names):
        engine = TransformersEngine(lockstep=Lockstep())
        with Runtime(engine=engine, max_open_episodes=open_episodes) as runtime:
            chat, longest = ChatFormat.load(tiny_model), context_tokens(tiny_model, engine)
            for name in set(names):
                runtime.run(engine.publish(name, tiny_model, 0))
                runtime.serve(name, ServedPolicy(engine, name, chat, longest))
            agents = [llm_arena.make_agent(f"llm:{name}", runtime=runtime, max_new_tokens=6) for name in names]
            spec = llm_arena.make("kuhn-poker-v0", illegal="random_legal").spec
            seats = llm_arena.make(spec).possible_agents
            plans = [
                EpisodePlan(id=f"{k}", spec=spec, seed=k, agents=dict(zip(seats, agents, strict=True)))
                for k in range(12)
            ]
            return runtime.run(play_many(plans, runtime))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        once, twice = played(["p", "p"]), played(["p", "q"])
    finally:
        torch.set_num_threads(threads)
    assert sum(len(trace.turns) for trace in once) >= 24
    assert [{seat.policy for seat in trace.seats.values()} for trace in twice] == [{"p", "q"}] * 12
    for one, two in zip(once, twice, strict=True):
        assert (one.void, one.returns) == (False, two.returns)
        for left, right in zip(one.turns, two.turns, strict=True):
            assert (left.prompt_ids, left.completion_ids) == (right.prompt_ids, right.completion_ids)
            # alone in its batch each is computed alike; else other rows change the order of some sums
            assert left.logprobs == (right.logprobs if open_episodes == 1 else pytest.approx(right.logprobs, abs=2e-5))
