"""A harness on engines: what shares a batch, who waits for whom, and which ids are sent, sampled and trained."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.harness import HarnessPlan, load_harness
from llm_arena.recorder import sequences
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import make_agents
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.planning import LEARNER, learner_seats
from llm_arena.types import Trace
from rollout_parts import timeless


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all batches that the transformers engine runs."""
    seen: list[int] = []
    sample: Any = TransformersEngine._sample

    def noting(self: Any, policy: str, rows: Any) -> Any:
        seen.append(len(rows))
        return sample(self, policy, rows)

    monkeypatch.setattr(TransformersEngine, "_sample", noting)
    return seen


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with Runtime(max_open_episodes=8) as made:
        yield made
        assert made.lockstep is not None and made.lockstep.active == 0


def play_all(runtime: Runtime, model: Path, *functions: Any, others: Any = ()) -> list[Trace]:
    """Plays one run of each function, beside other plans."""
    [agent] = make_agents({"x": str(model)}, runtime=runtime, settings={"max_new_tokens": 4}).values()
    plans: list[EpisodePlan] = []
    for number, function in enumerate(functions):
        loaded = load_harness(function)
        spec = loaded.spec({"k": number})
        plans.append(HarnessPlan(id=f"e{number}", spec=spec, seed=number, agents={"*": agent}, harness=loaded))
    traces = runtime.run(play_many([*plans, *others], runtime), timeout=60)
    assert [trace.failure for trace in traces] == [None] * len(traces)
    return traces


async def three_phases(ctx: Any, sample: Any) -> float:
    """Five at once; five conversations of two turns, nested in tasks; one alone."""

    async def twice(k: int) -> str:
        chat = [{"role": "user", "content": f"row {k}"}]
        reply = await ctx.call("rewriter", chat)
        for _ in range(3 * k):
            await asyncio.sleep(0)  # some have more to do than others before they go on
        async with asyncio.TaskGroup() as group:
            more = [*chat, {"role": "assistant", "content": reply}, {"role": "user", "content": "game"}]
            task = group.create_task(ctx.call("rewriter", more))
        return str(task.result())

    await asyncio.gather(*(ctx.call("solver", f"card {k}") for k in range(5)))
    await asyncio.gather(*(twice(k) for k in range(5)), return_exceptions=True)
    await ctx.call("selector", "play")
    return 1.0


def test_calls_that_are_made_together_share_a_batch(tiny_model: Path, runtime: Runtime, batches: list[int]) -> None:
    play_all(runtime, tiny_model, three_phases)
    assert batches == [5, 5, 5, 1]


def test_runs_side_by_side_share_batches_and_give_the_same_each_time(
    tiny_model: Path, runtime: Runtime, batches: list[int]
) -> None:
    traces = play_all(runtime, tiny_model, three_phases, three_phases, three_phases)
    assert batches == [15, 15, 15, 3]
    again = play_all(runtime, tiny_model, three_phases, three_phases, three_phases)
    assert list(map(timeless, again)) == list(map(timeless, traces))


def test_a_run_that_waits_for_something_else_holds_up_nobody(
    tiny_model: Path, runtime: Runtime, batches: list[int]
) -> None:
    rang = asyncio.Event()

    async def waits(ctx: Any, sample: Any) -> float:
        await ctx.call("a", "card")
        await rang.wait()  # as for a server, which here answers when the other has played to its end
        await asyncio.gather(*(ctx.call("a", f"card {k}") for k in range(3)))
        return 1.0

    async def rings(ctx: Any, sample: Any) -> float:
        for k in range(3):
            await asyncio.sleep(0.01)
            await asyncio.gather(ctx.call("a", f"row {k}"), ctx.call("a", f"move {k}"))
        rang.set()
        return 1.0

    play_all(runtime, tiny_model, waits, rings)
    assert sum(batches) == 10 and batches[-1] == 3


def test_a_game_and_a_harness_play_side_by_side(tiny_model: Path, runtime: Runtime, batches: list[int]) -> None:
    [agent] = make_agents({"x": str(tiny_model)}, runtime=runtime, settings={"max_new_tokens": 4}).values()
    env = llm_arena.make("kuhn-poker-v0", illegal="random_legal")
    games = [
        EpisodePlan(id=f"g{k}", spec=env.spec, seed=k, agents=dict.fromkeys(env.possible_agents, agent))
        for k in range(2)
    ]
    play_all(runtime, tiny_model, three_phases, others=games)
    assert batches[0] == 5 + 2


def test_failures_and_cancelled_calls_leave_the_lockstep_in_balance(tiny_model: Path, runtime: Runtime) -> None:
    async def untidy(ctx: Any, sample: Any) -> float:
        tasks = [asyncio.create_task(ctx.call("a", f"card {k}")) for k in range(4)]
        tasks[0].cancel()  # before it has begun
        await asyncio.sleep(0)
        tasks[1].cancel()  # before it was sent
        await tasks[2]
        asyncio.get_running_loop().call_soon(tasks[3].cancel)
        await asyncio.gather(ctx.call("a", "card " * 5000), return_exceptions=True)  # too long
        late = asyncio.create_task(ctx.call("a", "row"))
        await asyncio.sleep(0)
        assert not late.done()
        return 1.0

    [trace] = play_all(runtime, tiny_model, untidy)
    assert trace.env_stats["a"]["cancelled"] >= 2 and trace.env_stats["a"]["failed"] == 1
    play_all(runtime, tiny_model, three_phases)


# ---- ids, on the fake engine --------------------------------------------------------------------------------------


def served(chat: Any) -> tuple[Runtime, FakeEngine]:
    engine = FakeEngine(vocab_size=250, policies=["learner", "other"])
    runtime = Runtime(engine=engine)
    for policy in ("learner", "other"):
        runtime.serve(policy, ServedPolicy(engine, policy, chat, 100_000))
    return runtime, engine


def wanderer(seed: int) -> Any:
    """A random pattern of calls: extending, branching, restarting, some at once, some failing."""

    async def harness(ctx: Any, sample: Any) -> Any:
        rng = np.random.default_rng(seed)
        chats: list[list[dict[str, str]]] = []
        rewards: dict[int, float] = {}

        async def call(role: str, chat: list[dict[str, str]]) -> None:
            reply = await ctx.call(role, chat)
            rewards[reply.call] = float(rng.integers(5))
            chats.append([{"role": role, "content": ""}, *chat, {"role": "assistant", "content": reply}])

        for _ in range(rng.integers(2, 6)):
            todo = []
            for _ in range(rng.integers(1, 4)):
                role, chat = str(rng.choice(["solver", "judge"])), [{"role": "user", "content": f"q{rng.integers(3)}"}]
                if chats and rng.random() < 0.7:
                    (named, *old), cut = chats[rng.integers(len(chats))], rng.random()
                    role = named["role"]
                    chat = old if cut < 0.7 else old[: 2 * int(rng.integers(len(old) // 2 + 1))]
                    if cut > 0.9 and chat:  # the harness edits history
                        chat = [*chat[:-1], {"role": "assistant", "content": "edited"}]
                    chat = [*chat, {"role": "user", "content": f"q{rng.integers(3)}"}]
                if rng.random() < 0.1:
                    chat = [{"role": "system", "content": f"s{rng.integers(2)}"}, *chat[-1:]]
                todo.append(call(role, chat))
            await asyncio.gather(*todo)
        return rewards

    return harness


@pytest.mark.parametrize("template", ["newline", "think", "think_prompt", "default_system"])
def test_ids_sent_are_ids_recorded_and_each_sampled_token_is_trained_once(
    toy_chat: Callable[..., Any], template: str
) -> None:
    chat = toy_chat(template, think_tokens=template.startswith("think"))
    runtime, engine = served(chat)
    branches = extended = 0
    with runtime:
        for seed in range(25):
            engine.calls.clear()
            roster = {"solver": "llm:learner", "judge": "llm:learner" if seed % 2 else "llm:other"}
            trace = llm_arena.play(harness=wanderer(seed), agents=roster, seed=seed, runtime=runtime, max_new_tokens=6)
            assert Counter(map(tuple, (ids for _, ids, _ in engine.calls))) == Counter(
                tuple(trace.full_ids(turn.index)[0]) for turn in trace.turns
            )
            counted = Counter(at for sequence in sequences(trace) for at in sequence.turn_of if at >= 0)
            assert counted == Counter({turn.index: len(turn.completion_ids) for turn in trace.turns})
            by_seat: dict[str, int] = {}
            for turn in trace.turns:
                if turn.seat in by_seat and template == "newline":
                    assert turn.extends == by_seat[turn.seat], "a conversation is one stream of ids"
                    extended += 1
                elif turn.seat not in by_seat:
                    assert turn.extends is None
                    prompt = trace.full_ids(turn.index)[0]
                    others = [trace.full_ids(other) for other in range(turn.index)]
                    branches += any(ids and prompt[: len(sent) + len(ids)] == sent + ids for sent, ids in others)
                by_seat[turn.seat] = turn.index
            gained = assign([trace], by="seat", estimator="none", baselines=Baselines(), learners=learner_seats)
            trained = train_sequences([trace], gained, policy=LEARNER)
            ours = [turn for turn in trace.turns if trace.seats[turn.seat].policy == LEARNER]
            assert sum(int(one.trained.sum()) for one in trained) == sum(len(turn.completion_ids) for turn in ours)
            for one in trained:
                assert {float(value) for value in one.advantage[one.trained]} <= set(trace.returns.values())
    assert template.startswith("think") or branches > 5
    assert template != "newline" or extended > 20


def test_order_of_completion_changes_nothing(toy_chat: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chat = toy_chat("newline")

    def play(pause: float) -> Any:
        runtime, engine = served(chat)
        generate = engine.generate

        async def late(prompt_ids: list[int], sampling: Any, policy: str) -> Any:
            await asyncio.sleep(pause * (sampling.seed % 7))
            return await generate(prompt_ids, sampling, policy)

        monkeypatch.setattr(engine, "generate", late)
        with runtime:
            function: Any = three_phases
            trace = llm_arena.play(harness=function, agents="llm:learner", seed=1, runtime=runtime)
        return sorted((turn.seat, *map(tuple, trace.full_ids(turn.index))) for turn in trace.turns)

    assert play(0.0) == play(0.003)


def test_rewards_of_calls_are_the_advantages_of_their_tokens(toy_chat: Callable[..., Any]) -> None:
    """By hand: stem 8, branches 1 and 2, a frozen judge 5, a failed call nothing."""

    async def harness(ctx: Any, sample: Any) -> Any:
        user = {"role": "user", "content": "stem"}
        stem = await ctx.call("solver", [user])
        chats = [[user, {"role": "assistant", "content": stem}, {"role": "user", "content": text}] for text in "xy"]
        one, two = await asyncio.gather(*(ctx.call("solver", chat) for chat in chats))
        judged = await ctx.call("judge", f"{one} or {two}")
        return {stem.call: 8, one.call: 1, two.call: 2, judged.call: 5}

    runtime, engine = served(toy_chat("newline"))
    with runtime:
        agents = {"solver": "llm:learner", "judge": "llm:other"}
        trace = llm_arena.play(harness=harness, agents=agents, seed=0, runtime=runtime, max_new_tokens=3)
    gained = assign([trace], by="seat", estimator="none", baselines=Baselines(), learners=learner_seats)
    first, second = train_sequences([trace], gained, policy=LEARNER)
    stem, one, two, judged = (turn.completion_ids for turn in trace.turns)
    sent = trace.full_ids(0)[0]
    assert first.token_ids.tolist()[: len(sent) + len(stem)] == sent + stem
    assert first.token_ids[first.trained].tolist() == stem + one
    assert first.advantage[first.trained].tolist() == [9.0] * (len(stem) + len(one))
    assert first.behaviour[first.trained].tolist() == trace.turns[0].logprobs + trace.turns[1].logprobs
    assert second.token_ids.tolist()[: len(sent) + len(stem)] == sent + stem, "the stem is context here"
    assert second.token_ids[second.trained].tolist() == two
    assert second.advantage[second.trained].tolist() == [2.0] * len(two)
    assert trace.returns == {"solver_0": 9.0, "solver_1": 2.0, "judge_0": 5.0} and judged
    assert [policy for policy, _, _ in engine.calls] == ["learner"] * 3 + ["other"]


def restless(seed: int) -> Any:
    """Calls, sleeps, cancels, loses and times out at random, in many tasks."""

    async def harness(ctx: Any, sample: Any) -> float:
        rng = np.random.default_rng([seed, sample["k"]])
        pause = [0.0, 0.0, 0.001, 0.01]

        async def walk(depth: int) -> None:
            for _ in range(rng.integers(1, 4)):
                await asyncio.sleep(rng.choice(pause))
                what = rng.integers(6)
                if what == 0 and depth:
                    await asyncio.gather(*(walk(depth - 1) for _ in range(3)), return_exceptions=True)
                elif what == 1:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(ctx.call("a", "card"), rng.choice(pause))
                elif what == 2:
                    tasks = [asyncio.create_task(ctx.call("b", f"row {k}")) for k in range(3)]
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    tasks[int(rng.integers(3))].cancel()
                else:
                    await ctx.call("a", f"game {rng.integers(4)}")

        await asyncio.gather(*(walk(2) for _ in range(3)))
        return 1.0

    return harness


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.soak)])
def test_nothing_stalls_or_stays_behind(tiny_model: Path, runtime: Runtime, rounds: int) -> None:
    for seed in range(rounds):
        traces = play_all(runtime, tiny_model, *[restless(seed)] * 6)
        assert all(set(trace.returns.values()) <= {1.0} for trace in traces)
        assert runtime.lockstep is not None and runtime.lockstep.active == 0
