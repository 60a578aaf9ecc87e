"""A web server on the test's own loop that answers each request as the next step of a script says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """One request as it came in."""

    method: str
    path: str
    body: Any
    headers: dict[str, str]
    at: float
    "On the loop's clock, in seconds."


@dataclass
class ScriptedServer:
    """Steps are used up in order; the last one goes on for ever. Use as an async context manager."""

    steps: list[Step]
    seen: list[Seen] = field(default_factory=list)
    open: int = 0
    "Requests that are being answered."
    most: int = 0
    url: str = ""
    port: int = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        now = asyncio.get_running_loop().time()
        body = json.loads(raw) if raw else None
        self.seen.append(Seen(request.method, request.path, body, dict(request.headers), now))
        step = self.steps[0] if len(self.steps) == 1 else self.steps.pop(0)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            return await step(request)
        finally:
            self.open -= 1

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()


def answers(body: Any = None, status: int = 200, **headers: str) -> Step:
    """A reply: JSON, or text or bytes as they are."""

    async def step(_: web.Request) -> web.StreamResponse:
        raw = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=raw, status=status, headers=named)

    return step


def late(seconds: float, then: Step) -> Step:
    """The same, after so many seconds."""

    async def step(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request)

    return step


async def reset(request: web.Request) -> web.StreamResponse:
    """Cuts the connection without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def half(body: bytes) -> Step:
    """Half of a reply, then the connection is cut."""

    async def step(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(body))})
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    return step
