"""A model server with faults; prints its port, and ends with its standard input.

    python faulty_server.py LOG [--seed N] [--share P] [--slow SECONDS] [--first N]

Speaks vLLM's `/v1/completions` and OpenAI's `/v1/chat/completions`. A share P of the requests each gets: a 429 with
`Retry-After`, a 500, a reset, a reply that comes too late, half a reply. Each reply says another number, counted from
`--first`, as ids and as text, so that it can be told from all others. LOG gets a line of JSON for each: its number, ids
or text, what was done with it, and what was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from typing import Any, TextIO

from aiohttp import web

FAULTS = ("busy", "broken", "reset", "late", "half")
MODEL = "m"
BASE = 80
FIRST_ID = 10
"""Ids of replies are the digits of their number to this base, from this one on: no ids that end a reply."""


class Server:
    """Draws what happens to each request, and keeps the log."""

    def __init__(self, log: TextIO, seed: int, share: float, slow_seconds: float, first: int) -> None:
        self._log = log
        self._rng = random.Random(seed)
        self._share = share
        self._slow_seconds = slow_seconds
        self._number = first - 1

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": 8192}]})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": "0.0"})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self._number += 1
        number = self._number
        ids = [number // BASE**place % BASE + FIRST_ID for place in range(4)]
        logprobs = {
            "tokens": [f"token_id:{token}" for token in ids],
            "token_logprobs": [-(number % 1000 + 1) / 256 - place for place in range(4)],
        }
        choice = {
            "text": "",
            "finish_reason": "length",
            "token_ids": ids,
            "prompt_token_ids": asked["prompt"],
            "logprobs": logprobs,
        }
        entry = {"number": number, "ids": ids, "logprobs": logprobs["token_logprobs"], "prompt": asked["prompt"]}
        return await self._answer(request, {"choices": [choice]}, entry | {"seed": asked["seed"]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self._number += 1
        text = f"bet {self._number}"
        choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        entry = {"number": self._number, "text": text, "seed": asked["seed"], "messages": asked["messages"]}
        return await self._answer(request, {"choices": [choice]}, entry)

    async def _answer(self, request: web.Request, body: Any, entry: dict[str, Any]) -> web.StreamResponse:
        drawn = self._rng.random() / self._share if self._share else len(FAULTS)
        fault = FAULTS[int(drawn)] if drawn < len(FAULTS) else "whole"
        print(json.dumps(entry | {"done": fault}), file=self._log, flush=True)
        raw = json.dumps(body).encode()
        if fault == "busy":
            return web.Response(status=429, text="slow down", headers={"Retry-After": "0.02"})
        if fault == "broken":
            return web.Response(status=500, text="out of memory")
        assert request.transport is not None
        if fault == "reset":
            request.transport.abort()
        if fault == "late":
            await asyncio.sleep(self._slow_seconds)
        if fault == "half":
            response = web.StreamResponse(headers={"Content-Length": str(len(raw))})
            await response.prepare(request)
            await response.write(raw[: len(raw) // 2])
            request.transport.close()
            return response
        return web.Response(body=raw, content_type="application/json")


async def serve(options: argparse.Namespace) -> None:
    with open(options.log, "w", encoding="utf-8") as log:
        server = Server(log, options.seed, options.share, options.slow, options.first)
        app = web.Application()
        app.router.add_get("/v1/models", server.models)
        app.router.add_get("/version", server.version)
        app.router.add_post("/v1/completions", server.completions)
        app.router.add_post("/v1/chat/completions", server.chat)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        # ends with whoever started it, however that ended
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("log")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--slow", type=float, default=1.0)
    parser.add_argument("--first", type=int, default=1)
    asyncio.run(serve(parser.parse_args()))
