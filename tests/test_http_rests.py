"""Servers that are left alone: for how long, who tries them, who follows, and when they are given up."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from llm_arena.engines.http_pool import HttpPool, Patience
from llm_arena.errors import EngineError, ServerRefusal
from pool_parts import OK, QUICK, with_pool
from scripted_server import ScriptedServer, Step, answers, late


def test_a_server_that_fails_does_not_draw_the_calls_of_the_others() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        for _ in range(10):
            assert await pool.get("/x") == {"ok": True}
        # Three failures in a row, then it was left alone.
        assert [len(server.seen) for server in servers] == [3, 10]

    patience = Patience(tries=4, backoff_seconds=0.001, cool_down_seconds=30.0, cool_down_cap_seconds=60.0)
    with_pool(test, [answers("broken", 500)], [OK], patience=patience)


@pytest.mark.parametrize("trial", [OK, answers("who are you", 401), answers("no such page", 404)])
def test_after_a_cool_down_a_small_request_tries_the_server_for_all(trial: Step) -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        [server] = servers
        with pytest.raises(EngineError):
            await pool.get("/x", tries=3)
        failed = server.seen[-1].at
        server.most = 0
        calls = [asyncio.create_task(pool.get("/x")) for _ in range(8)]
        await asyncio.sleep(0.45)
        assert server.most == 1 and len(server.seen) == 4  # the trial, which is slow here
        assert server.seen[3].path == "/v1/models" and server.seen[3].at - failed >= 0.19
        assert await asyncio.gather(*calls) == [{"ok": True}] * 8
        assert server.most > 1 and [seen.path for seen in server.seen[4:]] == ["/x"] * 8

    broken = answers("broken", 500)
    patience = Patience(tries=4, backoff_seconds=0.001, cool_down_seconds=0.2)
    with_pool(test, [broken, broken, broken, late(0.4, trial), late(0.1, OK)], patience=patience)


def test_a_refusal_between_faults_shows_that_the_server_lives() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        with pytest.raises(ServerRefusal, match="too long"):
            await pool.get("/x")
        assert await pool.get("/x") == {"ok": True}
        assert [seen.path for seen in servers[0].seen] == ["/x"] * 6  # never three faults in a row: no trial

    broken = answers("broken", 500)
    patience = Patience(tries=4, backoff_seconds=0.001, cool_down_seconds=0.02)
    with_pool(test, [broken, broken, answers("too long", 400), broken, broken, OK], patience=patience)


def test_a_trial_that_fails_doubles_the_cool_down_up_to_its_cap() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.get("/x") == {"ok": True}
        assert [seen.path for seen in servers[0].seen] == ["/x"] * 3 + ["/v1/models"] * 4 + ["/x"]
        times = [seen.at for seen in servers[0].seen]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        for gap, least in zip(gaps[2:6], [0.1, 0.2, 0.3, 0.3], strict=True):
            assert least - 0.01 <= gap < least + 0.35

    patience = Patience(tries=9, backoff_seconds=0.001, cool_down_seconds=0.1, cool_down_cap_seconds=0.3)
    with_pool(test, [*[answers("broken", 500)] * 6, OK], patience=patience)


def test_calls_do_not_wait_for_ever_for_servers_that_are_gone() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        began = time.monotonic()
        results = await asyncio.gather(*(pool.get("/x") for _ in range(20)), return_exceptions=True)
        assert time.monotonic() - began < 2.0
        assert all("no server has answered for" in str(result) and "gone" in str(result) for result in results)
        assert len(servers[0].seen) + len(servers[1].seen) < 40
        back.append(True)
        await asyncio.sleep(0.2)  # the time of the next trial
        assert await pool.get("/x") == {"ok": True}
        assert await asyncio.gather(*(pool.get("/x") for _ in range(5))) == [{"ok": True}] * 5

    async def gone(request: Any) -> Any:
        return await (OK if back else answers("gone", 503))(request)

    back: list[bool] = []
    cool_down = {"cool_down_seconds": 0.1, "cool_down_cap_seconds": 0.1}
    patience = Patience(tries=99, backoff_seconds=0.001, down_seconds=0.5, **cool_down)
    with_pool(test, [gone], [gone], patience=patience)


def test_a_trial_goes_on_when_the_call_that_began_it_is_cancelled() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        with pytest.raises(EngineError):
            await pool.get("/x", tries=3)
        first = asyncio.create_task(pool.get("/x"))
        await asyncio.sleep(0.15)
        first.cancel()
        assert await asyncio.wait_for(pool.get("/x"), 1.0) == {"ok": True}
        assert [seen.path for seen in servers[0].seen] == ["/x"] * 3 + ["/v1/models", "/x"]

    broken = answers("broken", 500)
    patience = Patience(tries=4, backoff_seconds=0.001, cool_down_seconds=0.05)
    with_pool(test, [broken, broken, broken, late(0.3, OK), OK], patience=patience)


def test_a_slow_server_that_failed_before_is_not_given_up_while_it_answers_one() -> None:
    async def busy(request: Any) -> Any:
        if request.path == "/bad":
            return await answers("broken", 500)(request)
        return await (OK if request.path == "/v1/models" else late(1.0, OK))(request)

    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        healthy = [asyncio.create_task(pool.get("/x")) for _ in range(6)]
        await asyncio.sleep(0.1)
        for _ in range(3):  # in a row, for none of the healthy ones ends meanwhile
            with pytest.raises(EngineError):
                await pool.get("/bad", tries=1)
        began = time.monotonic()
        new = [asyncio.create_task(pool.get("/x")) for _ in range(6)]
        await asyncio.sleep(0.4)
        assert len([seen for seen in servers[0].seen if seen.path == "/x"]) == 12  # they wait for no generation
        with pytest.raises(EngineError):  # after the trial it takes three in a row again
            await pool.get("/bad", tries=1)
        assert await asyncio.gather(*healthy, *new) == [{"ok": True}] * 12
        assert time.monotonic() - began < 2.0

    cool_down = {"cool_down_seconds": 0.1, "cool_down_cap_seconds": 0.2}
    with_pool(test, [busy], patience=Patience(tries=4, backoff_seconds=0.001, down_seconds=0.3, **cool_down))


def test_calls_wait_longer_than_the_down_time_where_a_request_is_still_in_flight() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        slow = asyncio.create_task(pool.get("/slow"))
        await asyncio.sleep(0.05)
        for _ in range(3):
            with pytest.raises(EngineError):
                await pool.get("/bad", tries=1)
        assert await pool.get("/x") == {"ok": True}  # 1 s later, where calls are given up after 0.2 s
        assert await slow == {"ok": True}

    async def step(request: Any) -> Any:
        if request.path == "/slow":
            return await late(1.0, OK)(request)
        if request.path == "/bad" or time.monotonic() < began + 0.8:
            return await answers("broken", 500)(request)
        return await OK(request)

    began = time.monotonic()
    cool_down = {"cool_down_seconds": 0.05, "cool_down_cap_seconds": 0.05}
    with_pool(test, [step], patience=Patience(tries=4, backoff_seconds=0.001, down_seconds=0.2, **cool_down))


def test_after_a_rest_one_call_goes_first_and_the_others_come_spread_out() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await asyncio.gather(*(pool.get("/x") for _ in range(20))) == [{"ok": True}] * 20
        times = [seen.at for seen in servers[0].seen]
        again = [at - times[0] - 0.5 for at in times if at - times[0] > 0.4]
        assert len(again) == 20 and min(again) > -0.05
        assert sum(at < 0.05 for at in again) <= 8  # of 20, spread over half a second
        assert max(again) > 0.2

    with_pool(test, [*[answers("later", 429, Retry_After="0.5")] * 20, OK], patience=Patience(backoff_seconds=0.001))


def test_being_put_off_by_a_busy_server_uses_up_no_try_and_is_no_failure() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.get("/x") == {"ok": True}
        assert [seen.path for seen in servers[0].seen] == ["/x"] * 9
        with pytest.raises(EngineError, match="gave up after 1 try"):
            await pool.get("/x", tries=1)

    limited = answers("later", 429, Retry_After="0.01")
    with_pool(test, [*[limited] * 8, OK, limited], patience=replace(QUICK, tries=2, failures=1))


def test_a_server_that_was_gone_and_then_puts_calls_off_is_not_given_up() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.post("/x", {}) == {"ok": True}
        assert [seen.path for seen in servers[0].seen] == ["/x"] * 3 + ["/v1/models"] + ["/x"] * 4

    broken, limited = answers("broken", 500), answers("later", 429, Retry_After="0.3")
    cool_down = {"cool_down_seconds": 0.02, "cool_down_cap_seconds": 0.02}
    patience = Patience(tries=9, backoff_seconds=0.001, down_seconds=0.2, **cool_down)
    with_pool(test, [*[broken] * 3, OK, *[limited] * 3, OK], patience=patience)


def test_a_trial_that_is_put_off_shows_that_the_server_lives() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.get("/x") == {"ok": True}
        assert [seen.path for seen in servers[0].seen] == ["/x"] * 3 + ["/v1/models", "/x"]

    broken, limited = answers("broken", 500), answers("later", 429, Retry_After="0.3")
    patience = Patience(tries=9, backoff_seconds=0.001, cool_down_seconds=0.02, down_seconds=0.2)
    with_pool(test, [*[broken] * 3, limited, OK], patience=patience)
