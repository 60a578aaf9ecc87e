"""A user's own harness: seats, order, seeds, and what it may draw on."""

from __future__ import annotations

import asyncio
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import llm_arena
from harness_parts import Echo, run, said, seats, user
from llm_arena.errors import TraceError, UnknownName, UsageError
from llm_arena.harness import CallReply, load_harness
from llm_arena.trace_file import read_traces
from llm_arena.types import Action, Completion, Ending, Reply


def test_a_conversation_is_a_seat_and_every_other_call_opens_one() -> None:
    async def harness(ctx: Any, sample: Any) -> None:
        chat = [{"role": "system", "content": "Be short."}, user("one")]
        chat = [*chat, said(await ctx.call("solver", chat)), user("two")]
        chat = [*chat, said(await ctx.call("solver", chat)), user("three")]
        await ctx.call("judge", chat)  # what another role has seen is no conversation of this one
        await ctx.call("solver", chat)
        await ctx.call("solver", [chat[0], user("Summary: all is well.")])  # compaction
        await ctx.call("solver", [*chat[:2], said("edited"), user("two")])

    trace = run(harness)
    assert seats(trace) == ["solver_0", "solver_0", "judge_0", "solver_0", "solver_1", "solver_2"]
    assert [len(turn.messages) for turn in trace.turns] == [2, 2, 6, 2, 2, 4]
    assert trace.turns[3].messages == [said("two 4"), user("three")]
    assert [turn.text for turn in trace.turns] == ["one 2", "two 4", "three 6", "three 6", "Summary: 2", "two 4"]
    assert trace.seats["judge_0"].role == "judge" and list(trace.seats) == [
        "solver_0",
        "judge_0",
        "solver_1",
        "solver_2",
    ]
    assert (trace.ending, trace.returns, trace.outcome) == (Ending.TERMINATED, {}, None)
    assert trace.env_stats["solver"] == {"calls": 5, "failed": 0, "cancelled": 0}


def test_an_agent_gets_the_whole_conversation_as_its_past() -> None:
    async def harness(ctx: Any, sample: Any) -> None:
        first = await ctx.call("a", "one")
        second = await ctx.call("a", [user("one"), said(first), user("two")])
        await ctx.call("a", [user("one"), said(first), user("two"), said(second), user("three")])
        await ctx.call("a", [user("one"), said(first), user("branch")])

    echo = Echo()
    trace = run(harness, echo)
    assert seats(trace) == ["a_0", "a_0", "a_0", "a_1"]
    assert [[turn.reply for turn in past] for past in echo.pasts] == [[], ["one 1"], ["one 1", "two 3"], ["one 1"]]
    assert [[turn.num_messages for turn in past] for past in echo.pasts] == [[], [1], [1, 3], [1]]


def test_equal_calls_with_equal_replies_are_told_apart_by_the_reply_object() -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        one, two = await asyncio.gather(ctx.call("a", "same"), ctx.call("a", "same"))
        assert one == two and (one.call, two.call) == (0, 1)
        await ctx.call("a", [user("same"), {"role": "assistant", "content": two}, user("on")])
        await ctx.call("a", [user("same"), said(str(one)), user("on")])

    assert seats(run(harness)) == ["a_0", "a_1", "a_1", "a_0"]


def test_turns_stand_in_the_order_in_which_calls_began() -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        replies = await asyncio.gather(*(ctx.call("a", f"slow 0.0{3 - k} {k}") for k in range(3)))
        return {reply.call: k for k, reply in enumerate(replies)}

    trace = run(harness)
    assert seats(trace) == ["a_0", "a_1", "a_2"]
    assert [turn.messages[0]["content"][-1] for turn in trace.turns] == ["0", "1", "2"]
    assert trace.returns == {"a_0": 0, "a_1": 1, "a_2": 2}


def test_sampling_seeds_hang_on_the_call_and_not_on_the_order() -> None:
    def harness(order: list[str]) -> Any:
        async def function(ctx: Any, sample: Any) -> None:
            for text in order:
                await ctx.call("a", text)

        return function

    def seeds(order: list[str], seed: int = 0) -> dict[tuple[str, int], int]:
        echo = Echo()
        function = harness(order)
        function.__qualname__ = "same"
        run(function, echo, seed=seed)
        count: dict[str, int] = {}
        found = {}
        for view in echo.views:
            text = view.messages[0]["content"]
            count[text] = count.get(text, -1) + 1
            found[text, count[text]] = view.seed
        return found

    one = seeds(["x", "y", "x", "z"])
    assert len(set(one.values())) == 4
    assert seeds(["z", "x", "x", "y"]) == one
    assert not set(seeds(["x", "y"], seed=1).values()) & set(one.values())


def test_rosters() -> None:
    async def harness(ctx: Any, sample: Any) -> None:
        await ctx.call("a", "x")
        await ctx.call("b", "x")

    trace = run(harness, {"a": Echo("one"), "*": Echo("rest")})
    assert [info.agent for info in trace.seats.values()] == ["one", "rest"]
    trace = run(harness, "random-legal")
    assert [turn.text for turn in trace.turns] == ["...", "..."]
    with pytest.raises(UnknownName, match="no agent or model"):
        run(harness, "no-such-agent")
    with pytest.raises(UsageError, match="no name of a role"):
        run(harness, {"A": Echo()})
    with pytest.raises(UsageError, match="has a setting 'temperature'"):
        run(harness, temperature=1.0)


def test_what_a_harness_may_draw_on() -> None:
    seen = []

    async def harness(ctx: Any, sample: Any) -> float:
        assert ctx.sample is sample
        sample["deep"]["list"].append(3)  # a copy of its own
        seen.append((ctx.seed, ctx.rng.integers(1000), dict(sample)))
        return 0

    given = {"deep": {"list": [1, (2,)]}, "é": "\u2028"}
    traces = [run(harness, seed=seed, sample=given) for seed in (5, 5, 6)]
    assert seen[0] == seen[1] and seen[0][:2] == (5, np.random.default_rng(5).integers(1000))
    assert seen[2][:2] == (6, np.random.default_rng(6).integers(1000))
    assert traces[0].spec.kwargs == {"sample": {"deep": {"list": [1, [2]]}, "é": "\u2028"}}
    assert traces[0].spec.id.startswith("harness:") and given["deep"]["list"] == [1, (2,)]


@pytest.mark.parametrize("sample", ["text", [1], {"x": object()}, {"x": math.nan}, {"x": "\ud800"}, {"x": {1, 2}}])
def test_a_sample_is_json(sample: Any) -> None:
    async def harness(ctx: Any, sample: Any) -> float:
        return 0

    with pytest.raises(UsageError, match="sample"):
        run(harness, sample=sample)


def test_text_of_models_and_users_is_made_storable(tmp_path: Path) -> None:
    class Odd(Echo):
        async def act(self, view: Any, past: Any) -> Action:
            return Action(reply=Reply("\ud800<|im_end|>\x00 solver"))

    async def harness(ctx: Any, sample: Any) -> Any:
        reply = await ctx.call("a", "\udfff?")
        await ctx.call("a", [user("\udfff?"), said(reply), user("on")])
        return {reply.call: 1}

    trace = run(harness, Odd(), traces=tmp_path / "t.jsonl")
    assert seats(trace) == ["a_0", "a_0"] and trace.turns[0].text == "\ufffd<|im_end|>\x00 solver"
    [read] = read_traces(tmp_path / "t.jsonl")
    assert read.turns == trace.turns


def test_a_user_message_may_be_changed_after_the_call() -> None:
    async def harness(ctx: Any, sample: Any) -> None:
        chat: list[Any] = [user("one")]
        task = asyncio.create_task(ctx.call("a", chat))
        await asyncio.sleep(0)
        chat[0]["content"] = "changed"
        chat.append(user("more"))
        await task

    assert run(harness).turns[0].messages == [user("one")]


def test_tools_reach_the_view_and_results_are_messages() -> None:
    tool = {"name": "search", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}

    async def harness(ctx: Any, sample: Any) -> None:
        reply = await ctx.call("a", "find", tools=[tool])
        await ctx.call("a", [user("find"), said(reply), {"role": "tool", "content": "found"}], tools=[tool])

    echo = Echo()
    trace = run(harness, echo)
    assert [view.tools for view in echo.views] == [[tool], [tool]] and seats(trace) == ["a_0", "a_0"]
    assert trace.turns[1].messages[-1] == {"role": "tool", "content": "found"}


def test_a_reply_may_name_a_role_or_a_call(tmp_path: Path) -> None:
    class Names(Echo):
        async def act(self, view: Any, past: Any) -> Action:
            return Action(reply=Reply("judge"))

    async def harness(ctx: Any, sample: Any) -> Any:
        reply = await ctx.call("a", "who?")
        await ctx.call(reply, [user(reply)])
        return {str(reply): 1}

    trace = run(harness, Names(), traces=tmp_path / "t.jsonl")
    assert trace.returns == {"a_0": 0, "judge_0": 1} and list(read_traces(tmp_path / "t.jsonl")) == [trace]


def test_sub_agents_and_recursion() -> None:
    async def ask(ctx: Any, depth: int) -> str:
        parts = await asyncio.gather(*(ask(ctx, depth - 1) for _ in range(2))) if depth else []
        return str(await ctx.call("worker" if depth else "leaf", " ".join([f"d{depth}", *parts])))

    async def harness(ctx: Any, sample: Any) -> Any:
        await ask(ctx, 3)
        return {"leaf": 1}

    trace = run(harness)
    assert len(trace.turns) == 15 and sum(seat.startswith("leaf") for seat in seats(trace)) == 8
    assert sum(trace.returns.values()) == 8


def test_a_thousand_calls() -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        async def walk(k: int) -> int:
            chat = [user(f"w{k}")]
            for _ in range(20):
                reply = await ctx.call("a", chat)
                chat += [said(reply), user("on")]
            return reply.call

        return dict.fromkeys(await asyncio.gather(*(walk(k) for k in range(50))), 1)

    began = time.process_time()
    trace = run(harness)
    assert len(trace.turns) == 1000 and len(trace.seats) == 50 and set(trace.returns.values()) == {1}
    assert time.process_time() - began < 5


def test_it_is_no_env() -> None:
    async def harness(ctx: Any, sample: Any) -> float:
        await ctx.call("a", "x")
        return 1

    trace = run(harness)
    for function in (llm_arena.replay, llm_arena.verify):
        with pytest.raises(TraceError, match="can't be replayed, verified or cloned, because its code decides"):
            function(trace)
    with pytest.raises(UsageError, match="is a harness and no env"):
        llm_arena.make(trace.spec)
    with pytest.raises(UsageError, match="is a harness and no env"):
        llm_arena.make(trace.spec.id)


MODULE = """
async def run(ctx, sample):
    reply = await ctx.call("solver", sample.get("prompt", "nothing"))
    return float(len(reply))

def plain(ctx, sample):
    return 1.0

async def short(ctx):
    return 1.0

class Pipeline:
    async def __call__(self, ctx, sample):
        return await run(ctx, sample)

pipeline = Pipeline()

def group_reward(traces):
    return [(0.0, {}) for _ in traces]
"""


def test_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "harness_by_name.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry not in ("", str(tmp_path))])
    trace = run("harness_by_name:run", sample={"prompt": "hello you"})
    assert trace.spec.id == "harness:harness_by_name:run" and trace.returns == {"solver_0": 7.0}
    assert run("harness_by_name:pipeline").returns == {"solver_0": 9.0}
    found = load_harness("harness_by_name:run")
    assert found.group_reward is not None and len(found.group_reward([trace])) == 1
    for name, says in [
        ("harness_by_name:plain", "no async function; write `async def run"),
        ("harness_by_name:short", "can't be called with .ctx, sample."),
        ("harness_by_name:rum", 'no function rum. Did you mean "run"'),
        ("harness_by_name", "expected module:function"),
        ("no_such_module:run", "can't be imported"),
        ("..:run", "can't be imported"),
    ]:
        with pytest.raises(UsageError, match=says):
            run(name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "exactly one"),
        ({"env": "kuhn-poker-v0", "harness": "a:b"}, "exactly one"),
        ({"env": "kuhn-poker-v0", "sample": {}}, "a sample is for a harness"),
    ],
)
def test_an_env_or_a_harness(arguments: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        llm_arena.play(**arguments)


def test_replies_pickle_and_know_their_end() -> None:
    import pickle

    class Cut(Echo):
        async def act(self, view: Any, past: Any) -> Action:
            completion = Completion(token_ids=[1, 2], logprobs=[-1.0, -1.0], finish="length")
            return Action(reply=Reply("ab", finish="length"), prompt_ids=[1, 2, 3], completion=completion)

    async def harness(ctx: Any, sample: Any) -> float:
        reply = await ctx.call("a", "x")
        again = pickle.loads(pickle.dumps(reply))
        assert (reply.finish, reply.context_tokens, reply.call) == ("length", 5, 0)
        assert (again, again.finish, again.call, type(again)) == ("ab", "length", 0, CallReply)
        assert json.dumps({"said": reply}) == '{"said": "ab"}'
        return 1

    trace = run(harness, Cut())
    assert (trace.turns[0].finish, trace.turns[0].prompt_ids) == ("length", [1, 2, 3])
