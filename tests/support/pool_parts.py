"""A pool against scripted servers, and the patience for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from llm_arena.engines.http_pool import HttpPool, Patience
from scripted_server import ScriptedServer, Step, answers

QUICK = Patience(
    tries=4, try_seconds=0.3, call_seconds=5.0, backoff_seconds=0.001, backoff_cap_seconds=0.01, cool_down_seconds=0.01
)
OK = answers({"ok": True})


def with_pool(
    test: Callable[[HttpPool, list[ScriptedServer]], Awaitable[Any]], *scripts: list[Step], patience: Patience = QUICK
) -> Any:
    async def run() -> Any:
        servers = [ScriptedServer(list(script)) for script in scripts]
        for server in servers:
            await server.__aenter__()
        pool = HttpPool([server.url for server in servers], patience=patience, seed=1)
        try:
            return await test(pool, servers)
        finally:
            await pool.close()
            await pool.close()
            for server in servers:
                await server.__aexit__()

    return asyncio.run(run())
