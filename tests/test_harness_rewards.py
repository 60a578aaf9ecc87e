"""What a harness may return, and what it pays."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness_parts import run, said, seats, user
from llm_arena.errors import UsageError
from llm_arena.harness import CallReply
from llm_arena.trace_file import read_traces


def test_the_second_branch_of_a_conversation_is_paid_for_its_own() -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        stem = await ctx.call("a", "stem")
        chats = [[user("stem"), said(stem), user(f"b{k}")] for k in range(3)]
        branches = await asyncio.gather(*(ctx.call("a", chat) for chat in chats))
        follow = await ctx.call("a", [*chats[1], said(branches[1]), user("on")])
        return {stem.call: 8, branches[0].call: 1, branches[1].call: 2, branches[2].call: 4, follow.call: 16}

    trace = run(harness)
    assert seats(trace) == ["a_0", "a_0", "a_1", "a_2", "a_1"]
    assert trace.returns == {"a_0": 9.0, "a_1": 18.0, "a_2": 4.0}
    assert [turn.rewards for turn in trace.turns] == [{"a_0": 8}, {"a_0": 1}, {"a_1": 2}, {"a_2": 4}, {"a_1": 16}]


FORMS = [
    (None, {}),
    (2, {"a_0": 2, "a_1": 2, "b_0": 2}),
    (True, {"a_0": 1, "a_1": 1, "b_0": 1}),
    (np.float32(0.5), {"a_0": 0.5, "a_1": 0.5, "b_0": 0.5}),
    ({"a": 1.5}, {"a_0": 1.5, "a_1": 1.5, "b_0": 0}),
    ({}, {"a_0": 0, "a_1": 0, "b_0": 0}),
    ({3: 1, "b": -1}, {"a_0": 1, "a_1": 0, "b_0": -1}),
    ({0: 1, 3: 2, "a": 4, np.int64(2): 8}, {"a_0": 7, "a_1": 4, "b_0": 8}),
    ({"a": None, "b": 1}, {"b_0": 1}),
    ({0: None, 1: 1}, {"a_1": 1, "b_0": 0}),
    ({0: None, "a": 1}, {"a_1": 1, "b_0": 0}),
]


async def four_calls(ctx: Any) -> None:
    first = await ctx.call("a", "one")
    await ctx.call("a", "two")
    await ctx.call("b", "three")
    await ctx.call("a", [user("one"), said(first), user("four")])


@pytest.mark.parametrize(("given", "returns"), FORMS)
def test_rewards(given: Any, returns: dict[str, float]) -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        await four_calls(ctx)
        return given

    trace = run(harness)
    assert seats(trace) == ["a_0", "a_1", "b_0", "a_0"]
    assert trace.returns == returns
    for seat, paid in returns.items():  # a return is the sum of its turns' rewards
        assert sum(turn.rewards.get(seat, 0) for turn in trace.turns) == paid
    assert not any(seat not in returns for turn in trace.turns for seat in turn.rewards)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("1", "'1'"),
        ([1, 2], r"\[1, 2\]"),
        (math.nan, "nan"),
        ({"a": math.inf}, "inf"),
        (10**400, "10000"),
        ([10**5000], "a list"),
        ({"a": "1"}, "'a': '1'"),
        ({"A": 1}, "'A': 1"),
        ({True: 1}, "True: 1"),
        ({-1: 1}, "call -1; it made 4"),
        ({4: 1}, "call 4; it made 4"),
        ({0.5: 1}, "0.5: 1"),
        ({CallReply("a", call=0): 1}, "reply.call"),
        ({0: 1e308, 3: 1e308}, "no finite number"),
    ],
)
def test_anything_else_is_refused_with_the_forms(given: Any, shown: str) -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        await four_calls(ctx)
        return given

    with pytest.raises(UsageError, match=shown) as caught:
        run(harness)
    text = str(caught.value)
    assert "\n" not in text and ("None where no reward is known" in text or "no finite number" in text)


def test_of_five_solvers_one_fails_and_nothing_shifts(tmp_path: Path) -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        texts = ["fail" if k == 2 else f"try {k}" for k in range(5)]
        tries = await asyncio.gather(*(ctx.call("solver", text) for text in texts), return_exceptions=True)
        assert isinstance(tries[2], RuntimeError)
        good = [reply for reply in tries if isinstance(reply, str)]
        await ctx.call("selector", " / ".join(good))
        return {2: 100.0, "selector": 1} | {reply.call: reply.call / 10 for reply in good}

    trace = run(harness, traces=tmp_path / "t.jsonl")
    assert seats(trace) == ["solver_0", "solver_1", "solver_3", "solver_4", "selector_0"]
    assert trace.returns == {"solver_0": 0, "solver_1": 0.1, "solver_3": 0.3, "solver_4": 0.4, "selector_0": 1}
    assert trace.env_stats["solver"] == {"calls": 5, "failed": 1, "cancelled": 0, "paid_to_nobody": 1}
    [read] = read_traces(tmp_path / "t.jsonl")
    assert read == trace


def test_a_role_that_was_not_called_is_paid_nothing() -> None:
    async def harness(ctx: Any, sample: Any) -> Any:
        await ctx.call("solver", "x")
        return {"solver": 1, "selector": 1}

    trace = run(harness)
    assert trace.returns == {"solver_0": 1} and trace.env_stats["selector"] == {"paid_to_nobody": 1}
