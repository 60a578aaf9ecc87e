"""Single requests against a server that writes any bytes: whose reply it is, how much is read, what it is taken for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from llm_arena.engines.base import Sampling
from llm_arena.engines.http_connection import MAX_WORDS_BYTES
from llm_arena.engines.http_pool import HttpPool, Patience
from llm_arena.engines.http_replies import filtered, too_long
from llm_arena.engines.openai_engine import OpenAIEngine
from llm_arena.errors import EngineError, ServerRefusal, UnknownName
from scripted_server import ScriptedServer, answers

QUICK = Patience(tries=2, try_seconds=2.0, backoff_seconds=0.001)
KEY = "sk-very-secret/17"
Answer = Callable[[int, str, Any], bytes | tuple[bytes, float, bytes]]
"""Number, path and body of a request -> bytes; or bytes, a pause in seconds, and bytes that nobody asked for."""


def reply(body: Any, status: str = "200 OK") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(raw), raw)


@contextlib.asynccontextmanager
async def raw_server(answer: Answer) -> AsyncIterator[str]:
    asked = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lengths = [
                    line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length")
                ]
                body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else None
                asked += 1
                told = answer(asked, head.split()[1], body)
                whole, pause, more = told if isinstance(told, tuple) else (told, 0.0, b"")
                writer.write(whole)
                await writer.drain()
                await asyncio.sleep(pause)
                writer.write(more)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


def with_raw(answer: Answer, test: Callable[[str], Awaitable[None]]) -> None:
    async def run() -> None:
        async with raw_server(answer) as url:
            await test(url)

    asyncio.run(run())


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_reply_that_nobody_asked_for_is_nobodys(pause: float) -> None:
    async def test(url: str) -> None:
        pool = HttpPool(url, patience=QUICK)
        for number in range(4):
            assert await pool.post("/x", {"number": number}) == {"number": number}
            await asyncio.sleep(2 * pause)
        await pool.close()

    def answer(_: int, __: str, body: Any) -> tuple[bytes, float, bytes]:
        return reply(body), pause, reply({"number": "surplus"})

    with_raw(answer, test)


def test_a_surplus_that_this_process_has_not_read_yet_is_nobodys() -> None:
    def talk(listening: socket.socket) -> None:
        for _ in range(2):
            talking, _ = listening.accept()
            with talking:
                while talking.recv(65536):
                    asked.append(1)
                    talking.sendall(reply({"number": len(asked)}))
                    if len(asked) == 1:
                        time.sleep(0.05)
                        talking.sendall(reply({"number": "surplus"}))

    async def test(url: str) -> None:
        pool = HttpPool(url, patience=QUICK)
        assert await pool.get("/x") == {"number": 1}
        time.sleep(0.2)  # the loop stands still while the surplus comes
        assert await pool.get("/x") == {"number": 2}
        await pool.close()

    asked: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=talk, args=(listening,), daemon=True)
        server.start()
        asyncio.run(test(f"http://127.0.0.1:{listening.getsockname()[1]}"))
        server.join(5)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_no_completion_is_recorded_for_another_request(kind: str) -> None:
    def answer(number: int, path: str, body: Any) -> bytes | tuple[bytes, float, bytes]:
        if path == "/v1/models":
            return reply({"data": [{"id": "m", "owned_by": kind, "max_model_len": 64}]})
        if body is None:
            return reply({})
        token = 10 + (body["seed"] if kind == "vllm" else body["sampling_params"]["sampling_seed"])
        named = {"tokens": [f"token_id:{token}", "token_id:9"], "token_logprobs": [-token / 4, -0.5]}
        choice = {"token_ids": [token, 9], "logprobs": named, "finish_reason": "stop"}
        meta = {
            "finish_reason": {"type": "stop"},
            "output_token_logprobs": [[-token / 4, token, None], [-0.5, 9, None]],
        }
        told = reply({"choices": [choice]} if kind == "vllm" else {"meta_info": meta, "output_ids": [token, 9]})
        return told, 0.02, told

    async def test(url: str) -> None:
        engine = OpenAIEngine(url, patience=QUICK)
        engine.serves("m")
        for seed in range(4):
            done = await engine.generate([1], Sampling(max_new_tokens=4, stop_ids=(9,), seed=seed), "m")
            assert (done.token_ids, done.logprobs[0]) == ([10 + seed, 9], -(10 + seed) / 4)
            await asyncio.sleep(0.05)
        await engine.close()

    with_raw(answer, test)


@pytest.mark.parametrize("status", ["101 Switching", "304 Not Modified"])
def test_answers_to_what_nobody_asked_are_faults(status: str) -> None:
    async def test(url: str) -> None:
        pool = HttpPool(url, patience=QUICK)
        assert await pool.get("/x") == {"ok": True}
        await pool.close()

    odd = b"HTTP/1.1 %s\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" % status.encode()
    with_raw(lambda number, *_: odd if number == 1 else reply({"ok": True}), test)


def test_of_a_refusal_only_the_beginning_is_read() -> None:
    async def test(url: str) -> None:
        pool = HttpPool(url, patience=QUICK)
        with pytest.raises(ServerRefusal, match=r"answered 400: \[\{\},\{\}") as caught:
            await asyncio.wait_for(pool.get("/x"), 2.0)
        assert len(caught.value.said) == MAX_WORDS_BYTES and len(str(caught.value)) < 500
        await pool.close()

    endless = b"HTTP/1.1 400 Bad\r\nContent-Length: 99999999\r\n\r\n[" + b"{}," * (1 << 18)
    with_raw(lambda *_: endless, test)


def test_an_empty_account_is_a_refusal_and_not_waited_for() -> None:
    async def run() -> None:
        error = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
        async with ScriptedServer([answers(error, 429, Retry_After="9")]) as server:
            pool = HttpPool(server.url, patience=QUICK)
            with pytest.raises(ServerRefusal, match="answered 429: You exceeded your current quota"):
                await pool.get("/x")
            assert len(server.seen) == 1
            await pool.close()

    asyncio.run(run())


def test_a_key_that_a_server_repeats_in_good_replies_is_told_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    async def run() -> None:
        models = answers({"data": [{"id": f"\x1b]0;m {KEY}", "owned_by": "vllm"}]})
        version = answers({"version": f"\x1b[31m{KEY}" + "x" * 5000})
        escaped = json.dumps({"a": KEY}).replace("/", "\\/")
        async with ScriptedServer([models, answers("", 404), version, answers({"a": KEY}), answers(escaped)]) as server:
            engine = OpenAIEngine(server.url, api_key_env="MY_KEY", patience=QUICK)
            await engine.prepare()
            told = repr(engine.describe())
            assert "[key]" in told and "x1b" in told and len(told) < 1000
            engine.serves("n")
            with pytest.raises(UnknownName, match=r"It serves: .*\[key\]") as caught:
                await engine.prepare()
            for _ in range(2):
                assert await engine.pool.get("/x") == {"a": "[key]"}
            assert KEY not in told + repr(caught.value) and "\x1b" not in str(caught.value)
            await engine.close()
        monkeypatch.setenv("MY_KEY", "EMPTY")  # no secret, and a word that a reply may hold
        async with ScriptedServer([answers({"a": "EMPTY"}), answers("EMPTY", 400)]) as server:
            pool = HttpPool(server.url, api_key_env="MY_KEY", patience=QUICK)
            assert await pool.get("/x") == {"a": "EMPTY"}
            with pytest.raises(EngineError, match=r"400: \[key\]"):
                await pool.get("/x")
            await pool.close()

    asyncio.run(run())


TOO_LARGE = (
    "'max_tokens' or 'max_completion_tokens' is too large: {}. This model's maximum context length is 8192 tokens"
)

OF_CHAT = (
    "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the messages, "
    "{} in the completion). Please reduce the length of the messages or completion."
)
OF_PROMPT = (
    "This model's maximum context length is {} tokens, however you requested {} tokens ({} in your prompt; "
    "{} for the completion). Please reduce your prompt; or completion length."
)
IN_TOTAL = (
    "Requested token count exceeds the model's maximum context length of {} tokens. You requested a total of {} "
    "tokens: {} tokens from the input messages and {} tokens for the completion."
)
IN_SUM = "input length and `max_tokens` exceed context limit: {}, decrease input length or `max_tokens` and try again"


@pytest.mark.parametrize(
    ("status", "error", "verdict"),
    [
        (400, {"message": "Input exceeds the limit of 272000.", "code": "context_length_exceeded"}, "long"),
        (400, {"message": "too big", "type": "exceed_context_size_error", "code": 400}, "long"),
        (400, {"message": f"{TOO_LARGE.format(64)} and your request has 8150 input tokens"}, "long"),
        (400, {"message": f"{TOO_LARGE.format(99999)} and your request has 20 input tokens"}, ""),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 64", "long"),
        (400, {"message": "x" * 5000 + " maximum context length"}, "long"),
        (400, {"message": OF_CHAT.format(2048, 2058, 1994, 64), "code": "context_length_exceeded"}, "long"),
        (400, {"message": OF_CHAT.format(2048, 4106, 10, 4096), "code": "context_length_exceeded"}, ""),
        (400, {"message": OF_PROMPT.format(2048, 2058, 1994, 64)}, "long"),
        (400, {"message": OF_PROMPT.format(2048, 4106, 10, 4096)}, ""),
        (400, {"message": IN_TOTAL.format(2048, 2058, 1994, 64)}, "long"),
        (400, {"message": IN_TOTAL.format(2048, 4106, 10, 4096)}, ""),
        (400, {"message": IN_SUM.format("199759 + 20000 > 200000")}, "long"),
        (400, {"message": IN_SUM.format("10 + 300000 > 200000")}, ""),
        (400, {"message": "max_tokens (4096) is greater than max_model_len (2048)"}, ""),
        (400, {"message": "max_tokens (4096) is greater than max_model_len."}, ""),
        (400, {"message": "prompt of 4096 tokens is greater than max_model_len (2048)"}, "long"),
        (
            422,
            "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 9 `inputs` tokens and 5000 `max_new_tokens`",
            "",
        ),
        (400, {"message": "Input is too long for requested model."}, "long"),
        (413, "", "long"),
        (413, {"message": "Request Entity Too Large"}, "long"),
        (413, {"message": f"{TOO_LARGE.format(99999)}"}, ""),
        (400, {"message": "Invalid prompt: it was flagged", "code": "invalid_prompt"}, "filtered"),
        (400, {"message": "The response was filtered", "code": "content_filter"}, "filtered"),
        (400, {"message": "Content Exists Risk", "code": "invalid_request_error"}, "filtered"),
        (400, {"message": "Input data may be wrong.", "code": "data_inspection_failed"}, "filtered"),
        (403, {"message": "This requires moderation. Your input was flagged for violence", "code": 403}, "filtered"),
        (403, {"message": "no access"}, ""),
        (401, {"message": "see our content policy"}, ""),
        (400, {"message": "no such parameter"}, ""),
    ],
)
def test_what_one_prompt_is_refused_for_is_told_from_what_all_would_be(status: int, error: Any, verdict: str) -> None:
    async def run() -> ServerRefusal:
        async with ScriptedServer([answers({"error": error}, status)]) as server:
            # the address plays no part in it
            pool = HttpPool(f"{server.url}/content-policy/context-length", patience=QUICK)
            with pytest.raises(ServerRefusal) as caught:
                await pool.get("/x")
            await pool.close()
            return caught.value

    refusal = asyncio.run(run())
    assert (too_long(refusal), filtered(refusal)) == (verdict == "long", verdict == "filtered")
