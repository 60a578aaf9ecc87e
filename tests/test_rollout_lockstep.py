"""Batches of a rollout on an engine that waits for all open episodes."""

from __future__ import annotations

import asyncio

from llm_arena.runtime import Runtime
from llm_arena.types import Completion, EnvSpec
from rollout_parts import (
    Asks,
    Says,
    plan,
    play_all,
    registered,  # noqa: F401 -- a fixture of the whole file
)


class LockstepEngine:
    """Answers all queued requests at once when the lockstep is idle, and notes the batches."""

    name = "lockstep"

    def __init__(self, lockstep):
        self.lockstep = lockstep
        self.queue = []
        self.batches = []
        lockstep.subscribe(self.flush)

    async def generate(self, prompt_ids, sampling, policy):
        answer = asyncio.get_running_loop().create_future()
        self.queue.append((policy, answer))
        self.lockstep.leave()
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.done() or answer.cancelled():
                self.queue = [item for item in self.queue if item[1] is not answer]
                self.lockstep.enter()
            raise

    def flush(self):
        if self.lockstep.idle and self.queue:
            batch, self.queue = self.queue, []
            self.batches.append(sorted(name for name, _ in batch))
            for _, answer in batch:
                self.lockstep.enter()
                answer.set_result(Completion(token_ids=[1], logprobs=[-1.0], finish="stop"))

    async def close(self):
        pass


def batches(plans_of, *, max_open=8):
    from llm_arena.lockstep import Lockstep

    engine = LockstepEngine(Lockstep())
    with Runtime(engine=engine, max_open_episodes=max_open) as runtime:
        traces = play_all(plans_of(engine), runtime=runtime)
        assert engine.lockstep.active == 0
    assert not any(trace.void for trace in traces)
    return engine.batches


def test_a_batch_holds_the_request_of_every_open_episode():
    spec = EnvSpec(id="quiz-v0", kwargs={"questions": 2})
    seen = batches(lambda engine: [plan(k, Asks(engine, str(k), "a"), spec) for k in range(3)])
    assert seen == [[f"{k} solver_0" for k in range(3)]] * 2


def test_a_free_slot_is_filled_before_the_next_batch():
    lengths = [1, 3, 1, 1]

    def plans(engine):
        return [
            plan(k, Asks(engine, str(k), "a"), EnvSpec(id="quiz-v0", kwargs={"questions": n}))
            for k, n in enumerate(lengths)
        ]

    seen = batches(plans, max_open=2)
    assert [[name[0] for name in batch] for batch in seen] == [["0", "1"], ["1", "2"], ["1", "3"]]


def test_a_phase_is_one_batch_and_its_retries_are_the_next():
    spec = EnvSpec(id="trio-v0", kwargs={"retries": 1})

    def plans(engine):
        quick = Asks(engine, "q", "x")
        slips = {f"player_{k}": Asks(engine, "s", "much too long", "ok") if k == 1 else quick for k in range(3)}
        return [plan(0, quick, spec), plan(1, slips, spec)]

    seen = batches(plans)
    assert len(seen[0]) == 6
    assert seen[1:] == [["s player_1"]]


def test_cancelled_calls_leave_the_lockstep_in_balance():
    from llm_arena.lockstep import Lockstep

    engine = LockstepEngine(Lockstep())
    with Runtime(engine=engine) as runtime:
        asks = Asks(engine, "q", "x")
        agents = {"player_0": Says(ValueError("boom"), delay=0.05), "player_1": asks, "player_2": asks}
        hangs = {"player_0": asks, "player_1": Says("x", delay=60), "player_2": asks}
        trio = EnvSpec(id="trio-v0")
        failed, late = play_all([plan(0, agents, trio), plan(1, hangs, trio)], runtime=runtime, episode_seconds=0.3)
        assert failed.void and late.void
        assert engine.lockstep.active == 0
        [good] = play_all([plan(2, asks, trio)], runtime=runtime)
        assert not good.void and len(engine.batches[-1]) == 3
