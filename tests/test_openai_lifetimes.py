"""Agents on servers come and go on a runtime that stays: their connections end with them, and nothing is told of it."""

from __future__ import annotations

import asyncio
import gc
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

import llm_arena
from faulty import faulty
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.types import EnvSpec
from scripted_server import ScriptedServer, answers

CHATS: Any = importlib.import_module("llm_arena.agents.openai")
KUHN = EnvSpec(id="kuhn-poker-v0", kwargs={"illegal": "random_legal"})
CHAT = {"choices": [{"message": {"content": "bet"}, "finish_reason": "stop"}]}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What Python says of things that were destroyed before their end, but for what is logged."""
    gc.collect()  # what tests before left has its warnings now
    lines: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: lines.append(repr(args)))
    return lines


def open_sessions() -> int:
    gc.collect()
    return sum(type(thing) is ClientSession and not thing.closed for thing in gc.get_objects())


def test_agents_of_many_games_on_one_runtime_leave_nothing_open(
    told: list[str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def run(runtime: Runtime) -> None:
        async with ScriptedServer([answers(CHAT)]) as server:
            seats = {"player_0": f"openai:m@{server.url}", "player_1": "random-legal"}
            for seed in range(30):
                trace = await llm_arena.aplay(KUHN, seats, seed=seed, runtime=runtime)
                assert not trace.void
                if seed % 5 == 0:
                    gc.collect()
            await asyncio.sleep(0.1)
            assert open_sessions() == 0 and not CHATS._KEEPERS

    with Runtime() as runtime:
        runtime.run(run(runtime), timeout=60)
    gc.collect()
    assert not told and not caplog.text and not [str(warning.message) for warning in recwarn]


def test_an_agent_that_stays_keeps_its_connection_until_the_runtime_ends(
    told: list[str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    async def run(runtime: Runtime) -> Any:
        async with ScriptedServer([answers(CHAT)]) as server:
            agent: Any = make_agent(f"openai:m@{server.url}", runtime=runtime)
            await llm_arena.aplay(KUHN, {"player_0": agent, "player_1": "random-legal"}, seed=1, runtime=runtime)
            gc.collect()
            await asyncio.sleep(0.1)
            assert not agent.pool.closed and open_sessions() == 1 and len(CHATS._KEEPERS) == 1
            return agent

    with Runtime() as runtime:
        agent = runtime.run(run(runtime), timeout=30)
    assert agent.pool.closed and open_sessions() == 0 and not CHATS._KEEPERS
    del agent
    gc.collect()
    assert not told and not caplog.text and not [str(warning.message) for warning in recwarn]


def test_token_exact_agents_of_many_games_leave_nothing_on_the_runtime(
    tmp_path: Path, tiny_model: Path, told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with faulty(tmp_path, "--share", "0") as server, Runtime() as runtime:
        for seed in range(3):
            llm_arena.play(
                KUHN, f"openai:m@{server.url}", seed=seed, runtime=runtime, tokenizer=str(tiny_model), max_new_tokens=4
            )
        runtime.run(asyncio.sleep(0.1))
        assert open_sessions() == 0 and not CHATS._KEEPERS
        assert not runtime._served
    gc.collect()
    assert not told and "destroyed" not in caplog.text and "nclosed" not in caplog.text
