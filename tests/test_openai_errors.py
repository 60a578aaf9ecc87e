"""Errors that servers send as replies, and keys in the place of their variables' names: what is told, what is not."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

from llm_arena.engines.base import Sampling
from llm_arena.engines.http_pool import Patience
from llm_arena.engines.openai_engine import OpenAIEngine
from llm_arena.errors import ContextOverflow, EngineError, ServerRefusal, UsageError
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.types import View
from scripted_server import ScriptedServer, answers

CHATS: Any = importlib.import_module("llm_arena.agents.openai")
QUICK = Patience(tries=2, backoff_seconds=0.001)
SHORT_KEY = "short-key"
"""Too short to be cut out of all replies."""
VIEW = View(
    seat="player_0",
    role="player",
    messages=[{"role": "user", "content": "hello"}],
    legal_actions=None,
    grammar=None,
    facts=None,
    attempt=0,
    seed=7,
    sample_reply=lambda rng: "pass",
)


@pytest.mark.parametrize(
    ("body", "kind", "line", "times"),
    [
        ({"error": {"code": 402}}, ServerRefusal, "/v1/chat/completions sent an error 402 as a reply", 1),
        ({"object": "error", "code": 401}, ServerRefusal, r"error 401 as a reply: .* \(the .* MY_KEY was sent\)", 1),
        ({"choices": [], "error": {"code": 404}}, ServerRefusal, "error 404 as a reply", 1),
        ({"error": {"code": 400}}, ServerRefusal, "error 400 as a reply", 1),
        ({"error": {"code": 503}}, EngineError, "gave up after 2 tries: .*error 503 as a reply", 2),
        ({"error": {"code": 429}}, EngineError, "gave up after 2 tries: .*error 429 as a reply", 2),
        ({"error": {"code": 200}}, EngineError, "no chat completion: .*field `choices`; it says", 2),
        ({"error": {"code": "odd"}}, EngineError, "no chat completion: .*field `choices`; it says", 2),
        ({"choices": [], "error": {}}, EngineError, "0 choices, expected is 1; it says", 2),
        ({"detail": "?"}, EngineError, "no chat completion: .*field `choices`; it says", 2),
    ],
)
def test_an_error_that_was_sent_as_a_reply_is_told_in_the_servers_words(
    body: Any, kind: type[EngineError], line: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", SHORT_KEY)
    words = f"no credits on {SHORT_KEY}\x1b"
    if "detail" in body:
        body = {"detail": words}
    elif "error" in body:
        body = body | {"error": body["error"] | {"message": words}}
    else:
        body = body | {"message": words}

    async def run() -> None:
        async with ScriptedServer([answers(body)]) as server:
            agent = CHATS.ChatAgent("m", server.url, CHATS.Settings(api_key_env="MY_KEY"), patience=QUICK)
            with pytest.raises(EngineError, match=line) as caught:
                await agent.act(VIEW, [])
            assert type(caught.value) is kind and len(server.seen) == times
            assert r"no credits on [key]\x1b" in str(caught.value)
            await agent.pool.close()

    asyncio.run(run())


def test_an_error_in_place_of_ids_is_taken_for_what_its_code_says() -> None:
    async def run() -> None:
        models = answers({"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 64}]})
        money = answers({"error": {"message": "no credits", "code": 402}})
        long = answers({"object": "error", "message": "maximum context length", "code": 400})
        async with ScriptedServer(
            [answers({"error": {"message": "wrong key", "code": 401}}), models, money, long]
        ) as server:
            engine = OpenAIEngine(server.url, patience=QUICK)
            engine.serves("m")
            with pytest.raises(ServerRefusal, match="/v1/models sent an error 401 as a reply: wrong key"):
                await engine.prepare()
            for kind, line in [
                (ServerRefusal, "/generate sent an error 402 as a reply: no credits"),
                (ContextOverflow, "maximum"),
            ]:
                with pytest.raises(kind, match=line):
                    await engine.generate([1, 2], Sampling(max_new_tokens=4, stop_ids=(9,)), "m")
            assert len(server.seen) == 4
            await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("key", ["sk-very-secret-17", "sk proj", "", "A=B", "A\n", "1A"])
def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_repeated(key: str) -> None:
    with Runtime() as runtime:
        for make in (
            lambda: make_agent("openai:m@http://a", runtime=runtime, api_key_env=key),
            lambda: CHATS.Settings(api_key_env=key),
            lambda: OpenAIEngine("http://a", api_key_env=key),
        ):
            with pytest.raises(UsageError, match=f"str of {len(key)} characters .* OPENAI_API_KEY") as caught:
                make()
            assert not key or key not in str(caught.value)
