"""What goes wrong in a harness: exceptions, full contexts, cancelled calls, mistakes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from harness_parts import Echo, run, said, seats, user
from llm_arena.errors import EngineError, UsageError
from llm_arena.harness import HarnessPlan, load_harness
from llm_arena.rollout import play_many
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.types import Action, Completion, Ending, Reply, Trace


def test_another_try_after_a_failure_goes_on_in_the_same_seat() -> None:
    async def harness(ctx: Any, sample: Any) -> None:
        first = await ctx.call("a", "one")
        with pytest.raises(RuntimeError):
            await ctx.call("a", [user("one"), said(first), user("fail")])
        await ctx.call("a", [user("one"), said(first), user("two")])

    assert seats(run(harness)) == ["a_0", "a_0"]


def voided(function: Any, error: type[BaseException], path: Path) -> Trace:
    with pytest.raises(error):
        run(function, traces=path / "void.jsonl")
    [trace] = read_traces(path / "void.jsonl")
    assert trace.void and trace.returns == {}
    return trace


def test_what_leaves_the_function_voids_the_run(tmp_path: Path) -> None:
    async def own(ctx: Any, sample: Any) -> None:
        await ctx.call("a", "one")
        raise KeyError("lost")

    async def agents(ctx: Any, sample: Any) -> None:
        await ctx.call("a", "one")
        await ctx.call("a", "fail")

    async def engines(ctx: Any, sample: Any) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.call("a", "slow 0.01"))
            group.create_task(ctx.call("b", "engine"))

    async def all_of_them(ctx: Any, sample: Any) -> float:
        await asyncio.gather(*(ctx.call("a", "engine") for _ in range(3)), return_exceptions=True)
        return 1.0

    cases = [
        (own, KeyError, "env", "KeyError", None),
        (agents, RuntimeError, "agent", "RuntimeError", "a_1"),
        (engines, ExceptionGroup, "engine", "EngineError", "b_0"),
        (all_of_them, EngineError, "engine", "EngineError", "a_0"),
    ]
    for number, (function, error, boundary, kind, seat) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        trace = voided(function, error, tmp_path / str(number))
        assert trace.failure is not None
        assert (trace.failure.boundary, trace.failure.kind, trace.failure.seat) == (boundary, kind, seat)
        assert len(trace.turns) == (1 if function in (own, agents) else 0)


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_full_context_that_leaves_the_function_ends_the_run_without_rewards(swallowed: bool) -> None:
    async def harness(ctx: Any, sample: Any) -> float:
        if not swallowed:
            await ctx.call("a", "one")
        await asyncio.gather(ctx.call("b", "overflow"), return_exceptions=swallowed)
        return 1.0

    trace = run(harness)
    assert (trace.ending, trace.overflow_seat, trace.returns) == (Ending.CONTEXT_OVERFLOW, "b_0", {})
    assert trace.env_stats["b"] == {"calls": 1, "failed": 1, "cancelled": 0}


def test_calls_that_still_run_at_the_end_are_cancelled() -> None:
    ended = []

    async def watch(ctx: Any) -> None:
        try:
            await ctx.call("a", "slow 60")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def harness(ctx: Any, sample: Any) -> float:
        tasks = [asyncio.create_task(watch(ctx)) for _ in range(2)]
        quick = asyncio.create_task(ctx.call("a", "quick"))
        await asyncio.wait([*tasks, quick], return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.call("a", "slow 60"), 0.01)
        return 1.0

    began = time.monotonic()
    trace = run(harness)
    assert time.monotonic() - began < 5
    assert seats(trace) == ["a_2"] and trace.returns == {"a_2": 1.0}
    assert trace.env_stats["a"] == {"calls": 4, "failed": 0, "cancelled": 3}
    assert ended == ["cancelled"] * 2


def test_cancelling_the_run_cancels_its_calls() -> None:
    echo = Echo()
    ended = []

    async def harness(ctx: Any, sample: Any) -> None:
        try:
            await asyncio.gather(*(ctx.call("a", "slow 60") for _ in range(3)))
        finally:
            ended.append(len(echo.views))

    async def main() -> None:
        with Runtime() as runtime:
            task = asyncio.create_task(llm_arena.aplay(harness=harness, agents=echo, seed=0, runtime=runtime))
            while len(echo.views) < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert runtime.lockstep is not None and runtime.lockstep.active == 0

    asyncio.run(main())
    assert ended == [3]


def test_a_call_after_the_end_is_refused() -> None:
    kept: list[Any] = []

    async def harness(ctx: Any, sample: Any) -> float:
        kept.append(ctx)
        return 1.0

    trace = run(harness)  # which never calls
    assert (trace.turns, trace.seats, trace.returns, trace.env_stats) == ([], {}, {}, {})
    with pytest.raises(asyncio.CancelledError, match="has ended"):
        asyncio.run(kept[0].call("a", "late"))


def test_code_that_tries_again_after_a_mistake_is_ended() -> None:
    async def alone(ctx: Any, sample: Any) -> str:
        while True:
            try:
                return str(await ctx.call("solver1", "x"))
            except Exception:
                continue

    async def behind(ctx: Any, sample: Any) -> float:
        async def worker() -> None:
            while True:
                try:
                    await ctx.call("a", "x")
                except Exception:
                    continue

        ctx.worker = asyncio.create_task(worker())
        await ctx.call("a", "y")
        return 1.0

    began = time.monotonic()
    with pytest.raises(UsageError, match="no name of a role"):
        run(alone)
    assert run(behind).returns["a_0"] == 1.0
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("Solver", "x"), "'Solver' is no name of a role"),
        (("solver_1", "x"), "no name of a role"),
        ((7, "x"), "7 is no name"),
        (("a", []), "at least one message"),
        (("a", None), "messages is None"),
        (("a", 5), "messages is 5"),
        (("a", ["x"]), "message 0 is 'x'"),
        (("a", [user("x"), {"role": "bot", "content": "x"}]), "message 1 .*system, user, assistant, tool"),
        (("a", [{"role": "user", "content": None}]), "message 0"),
        (("a", [{"role": "user", "content": "x", "name": "me"}]), "message 0"),
        (("a", [{"role": "user"}]), "message 0"),
        (("a", [{"role": "user", "content": [{"type": "image", "sha256": "\ud800"}]}]), "message 0 .*surrogates"),
        (("a", [{"role": "user", "content": [{"type": "\ud800", "text": "x"}]}]), "message 0 .*surrogates"),
        (("a", "x", [{"name": "search"}]), "a tool is .*parameters"),
        (("a", "x", [{"name": "n", "description": "d", "parameters": {"x": {1}}}]), "a tool is .*set"),
        (("c", "x"), r"nobody holds the role \"c\"; the roster is \['a'\]"),
    ],
)
def test_a_mistake_in_a_call_is_told_even_if_it_is_swallowed(call: Any, says: str) -> None:
    async def harness(ctx: Any, sample: Any) -> float:
        await asyncio.gather(ctx.call("a", "fine"), ctx.call(*call), return_exceptions=True)
        return 1.0

    with pytest.raises(UsageError, match=says) as caught:
        run(harness, {"a": Echo()})
    assert "\n" not in str(caught.value)


def test_halves_of_characters_in_parts_are_replaced(tmp_path: Path) -> None:
    async def harness(ctx: Any, sample: Any) -> float:
        await ctx.call("a", [{"role": "user", "content": [{"type": "text", "text": "x \ud800"}]}])
        return 1.0

    run(harness, traces=tmp_path / "t.jsonl")
    [trace] = read_traces(tmp_path / "t.jsonl")
    assert trace.turns[0].messages[0]["content"] == [{"type": "text", "text": "x \ufffd"}]


@pytest.mark.parametrize("bad", [-1, 2**32])
def test_ids_that_cannot_be_recorded_void_their_run_alone(bad: int) -> None:
    class Ids:
        name, policy = "ids", None

        async def act(self, view: Any, past: Any) -> Action:
            ids = [bad if "bad" in view.messages[-1]["content"] else 1]
            done = Completion(token_ids=[1], logprobs=[-0.1], finish="stop")
            return Action(reply=Reply("x"), prompt_ids=ids, completion=done)

    async def harness(ctx: Any, sample: Any) -> float:
        await ctx.call("a", sample["prompt"])
        return 1.0

    loaded = load_harness(harness)
    plans = [
        HarnessPlan(id=prompt, spec=loaded.spec({"prompt": prompt}), seed=0, agents={"*": Ids()}, harness=loaded)
        for prompt in ("one", "bad", "two")
    ]
    with Runtime() as runtime:
        traces = runtime.run(play_many(plans, runtime), timeout=30)
    assert [(trace.id, trace.void, len(trace.turns)) for trace in traces] == [
        ("one", False, 1),
        ("bad", True, 0),
        ("two", False, 1),
    ]
    assert traces[1].failure is not None and traces[1].failure.boundary == "agent"


def test_many_runs_at_once_are_apart() -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        one = await ctx.call("a", f"slow 0.00{sample['k'] % 3}")
        if sample["k"] == 4:
            raise RuntimeError("four")
        return {one.call: sample["k"]}

    loaded = load_harness(harness)
    plans = [
        HarnessPlan(
            id=f"e{k}", spec=loaded.spec({"k": k}), seed=k, agents={"*": Echo()}, harness=loaded, group=f"g{k // 4}"
        )
        for k in range(8)
    ]
    with Runtime(max_open_episodes=3) as runtime:
        traces = runtime.run(play_many(plans, runtime), timeout=30)
        timed = runtime.run(play_many([hanging()], runtime, episode_seconds=0.1), timeout=30)
    assert [trace.void for trace in traces] == [k == 4 for k in range(8)]
    assert [trace.returns.get("a_0") for trace in traces if not trace.void] == [0, 1, 2, 3, 5, 6, 7]
    assert [trace.group for trace in traces][:5] == ["g0"] * 4 + ["g1"]
    failure = timed[0].failure
    assert failure is not None and failure.kind == "EpisodeTimeout" and "waiting for the harness" in failure.message


def hanging() -> HarnessPlan:
    async def harness(ctx: Any, sample: Any) -> None:
        await asyncio.gather(ctx.call("a", "quick"), ctx.call("a", "slow 60"))

    loaded = load_harness(harness)
    return HarnessPlan(id="late", spec=loaded.spec({}), seed=0, agents={"*": Echo()}, harness=loaded)
