"""Requests to servers: what is tried again, what is not, where it goes, how long that takes, and what is never told."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
import traceback
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest

from llm_arena.engines.http_pool import LOOK_SECONDS, HttpPool, Patience
from llm_arena.engines.http_replies import Fault, retry_after_seconds, shown
from llm_arena.engines.urls import server_urls
from llm_arena.errors import EngineError, MissingExtra, ServerRefusal, UsageError
from pool_parts import OK, QUICK, with_pool
from scripted_server import ScriptedServer, Step, answers, half, late, reset

KEY = "sk-very-secret-17"


@pytest.mark.parametrize(
    "fault",
    [
        *(answers("busy", status) for status in (408, 409, 425, 429, 500, 502, 503)),
        *(answers(text) for text in ("", '{"ok": tr', "<html>", b"\xff\xfe", "[" * 100_000)),
        reset,
        half(b'{"ok": true, "more": "xxxxxxxxxxxxxxxxxxxxxxxxx"}'),
        late(1.0, OK),
    ],
)
def test_faults_that_pass_are_tried_again(fault: Step) -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.post("/x", {"a": 1}) == {"ok": True}
        assert [(seen.path, seen.body) for seen in servers[0].seen] == [("/x", {"a": 1})] * 3

    with_pool(test, [fault, fault, OK])


@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 405, 413, 422, 501])
def test_a_refusal_is_told_at_once_in_the_servers_words(status: int) -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        with pytest.raises(ServerRefusal, match=f"/x answered {status}.*") as caught:
            await pool.post("/x", {})
        assert caught.value.status == status
        assert status < 400 or "no such\\x1b[31m model" in str(caught.value)
        assert len(servers[0].seen) == 1

    words = {"error": {"message": "no such\x1b[31m model"}}
    with_pool(test, [answers(words, status, Location="http://127.0.0.1:1/elsewhere"), OK])


def test_long_words_are_cut_and_stay_on_one_line() -> None:
    assert shown("a\n\n\tb\u202ec") == "a b\\u202ec"
    assert len(shown("x" * 5000)) == 303


def test_it_gives_up_after_so_many_tries_and_says_why() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        with pytest.raises(EngineError, match="gave up after 4 tries.*answered 503: loading"):
            await pool.get("/x")
        assert len(servers[0].seen) == 4
        with pytest.raises(EngineError, match="gave up after 1 try"):
            await pool.get("/x", tries=1)

    with_pool(test, [answers({"detail": "loading"}, 503)], patience=replace(QUICK, failures=99))


def test_the_whole_call_has_a_deadline() -> None:
    async def test(pool: HttpPool, _: list[ScriptedServer]) -> None:
        began = time.monotonic()
        with pytest.raises(EngineError, match=r"no reply from .* within 0.5 s; last, .*not answer within"):
            await pool.get("/x")
        assert 0.4 < time.monotonic() - began < 2.0

    patience = Patience(tries=100, try_seconds=0.2, call_seconds=0.5, backoff_seconds=0.001, failures=99)
    with_pool(test, [late(3.0, OK)], patience=patience)


@pytest.mark.parametrize("value", ["0.3", lambda: formatdate(time.time() + 2, usegmt=True)])
def test_retry_after_is_obeyed(value: Any) -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.get("/x") == {"ok": True}
        first, second = (seen.at for seen in servers[0].seen)
        assert second - first >= (0.3 if isinstance(value, str) else 0.9)  # dates have whole seconds

    header = value if isinstance(value, str) else value()
    with_pool(test, [answers("later", 429, Retry_After=header), OK])


def test_retry_after_is_read_and_capped() -> None:
    assert retry_after_seconds("7", 120) == 7
    assert retry_after_seconds("86400", 120) == 120
    date = retry_after_seconds(formatdate(time.time() + 60, usegmt=True), 120)
    assert date is not None and 55 < date <= 60
    for odd in (None, "-3", "nan", "soon", "Wed, 99 Foo 2020", formatdate(0, usegmt=True)):
        assert retry_after_seconds(odd, 120) is None
    assert retry_after_seconds("inf", 120) == 120


def test_dates_without_a_zone_are_universal_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        soon = time.gmtime(time.time() + 60)
        for form in ("%a %b %d %H:%M:%S %Y", "%a, %d %b %Y %H:%M:%S -0000"):
            wait = retry_after_seconds(time.strftime(form, soon), 1e9)
            assert wait is not None and 55 < wait <= 60
    finally:
        monkeypatch.undo()
        time.tzset()


def test_backoff_grows_with_full_jitter() -> None:
    waits: list[float] = []

    async def nap(seconds: float) -> None:
        waits.append(seconds)

    async def run(seed: int) -> list[float]:
        waits.clear()
        patience = Patience(tries=9, backoff_seconds=1.0, backoff_cap_seconds=8.0, failures=99)
        pool = HttpPool("http://127.0.0.1:1", patience=patience, seed=seed)
        pool._nap = nap  # type: ignore[method-assign]  # time is not what is tested

        async def ask(_: str) -> None:
            raise Fault("no")

        with pytest.raises(EngineError):
            await pool.call(ask)
        return list(waits)

    tried = [asyncio.run(run(seed)) for seed in range(300)]
    for place, most in enumerate([1, 2, 4, 8, 8, 8, 8, 8]):
        drawn = [waits[place] for waits in tried]
        assert 0 <= min(drawn) < 0.1 * most and 0.9 * most < max(drawn) <= most
        assert abs(sum(drawn) / 300 - most / 2) < 0.1 * most  # 6 standard deviations


def test_the_server_with_the_fewest_requests_in_flight_is_asked() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        await asyncio.gather(*(pool.get("/x") for _ in range(9)))
        assert [len(server.seen) for server in servers] == [3, 3, 3]
        await pool.get("/x")  # ties go by order
        assert [len(server.seen) for server in servers] == [4, 3, 3]
        await pool.get("/x", url=servers[2].url)
        assert [len(server.seen) for server in servers] == [4, 3, 4]

    with_pool(test, *[[late(0.4, OK)]] * 3, patience=Patience())


def test_small_questions_are_not_waited_for_as_long_as_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pool: HttpPool, _: list[ScriptedServer]) -> None:
        with pytest.raises(EngineError, match="did not answer within 0.1 s"):
            await pool.get("/x", tries=1, seconds=0.1)
        assert await pool.post("/x", {}, tries=1) == {"ok": True}

    assert HttpPool.get.__kwdefaults__["seconds"] == LOOK_SECONDS < Patience().try_seconds / 10
    with_pool(test, [late(0.5, OK)], patience=Patience())


def test_a_try_that_took_too_long_can_not_answer_any_more() -> None:
    ended: list[str] = []

    async def slow(request: Any) -> Any:
        try:
            await asyncio.sleep(0.4)
        except asyncio.CancelledError:
            ended.append("aborted")
            raise
        ended.append("answered")
        return await answers({"number": 1})(request)

    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        assert await pool.get("/x") == {"number": 2}
        await asyncio.sleep(0.3)
        assert ended == ["aborted"] and len(servers[0].seen) == 2

    with_pool(test, [slow, answers({"number": 2})])


def test_cancelling_aborts_the_request_and_closing_answers_those_who_wait() -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        call = asyncio.create_task(pool.get("/x"))
        await asyncio.sleep(0.1)
        assert servers[0].open == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.05)
        assert servers[0].open == 0
        waiting = [asyncio.create_task(pool.get("/x")) for _ in range(3)]
        await asyncio.sleep(0.05)
        await pool.close()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1.0)
        assert all(isinstance(result, EngineError) and "closed" in str(result) for result in results)
        with pytest.raises(EngineError, match="was closed"):
            await pool.get("/x")

    with_pool(test, [late(5.0, OK)], patience=Patience())


def test_a_reply_without_end_is_cut_off() -> None:
    async def test(pool: HttpPool, _: list[ScriptedServer]) -> None:
        with pytest.raises(EngineError, match="more than 1 MiB"):
            await pool.get("/x", tries=1)

    with_pool(test, [answers(b"[" + b"1," * (1 << 20))], patience=Patience(max_reply_bytes=1 << 20))


def test_a_server_is_fresh_until_it_answered_and_when_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(pool: HttpPool, servers: list[ScriptedServer]) -> None:
        url = servers[0].url
        assert pool.fresh(url)
        await pool.get("/x")
        assert not pool.fresh(url)
        with pytest.raises(EngineError):
            await pool.get("/x", tries=1)
        assert pool.fresh(url)
        await pool.get("/x")
        assert not pool.fresh(url)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 3.1)
        assert pool.fresh(url)
        monkeypatch.undo()

    with_pool(test, [OK, answers("", 502), OK])


def test_the_key_is_sent_and_told_nowhere(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(0)

    async def run() -> None:
        garbage = f"HTTP/1.1 999999 {KEY}\r\n\r\n".encode()

        async def raw(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(garbage)
            writer.close()

        odd = await asyncio.start_server(raw, "127.0.0.1", 0)
        words = answers({"error": {"message": f"wrong key {KEY}"}}, 401)
        moved = answers("", 302, Location=f"http://x/?key={KEY}")
        async with ScriptedServer([words, moved, answers(f"no {KEY}", 500)]) as server:
            pool = HttpPool(server.url, api_key_env="MY_KEY", patience=QUICK)
            other = HttpPool(
                f"http://127.0.0.1:{odd.sockets[0].getsockname()[1]}", api_key_env="MY_KEY", patience=QUICK
            )
            told = [repr(pool), str(pool), repr(pool._patience)]
            for asked, kind in (
                (pool, ServerRefusal),
                (pool, ServerRefusal),
                (pool, EngineError),
                (other, EngineError),
            ):
                with pytest.raises(kind) as caught:
                    await asked.get("/x", tries=1)
                told += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
                error: BaseException | None = caught.value
                while error is not None:
                    told.append(repr(error) + repr(vars(error)))
                    error = error.__cause__ or error.__context__
            assert server.seen[0].headers["Authorization"] == f"Bearer {KEY}"
            assert "[key]" in told[3] and "MY_KEY was sent" in told[3]
            assert KEY not in "".join(told) + caplog.text
            await pool.close()
            await other.close()
        odd.close()

    asyncio.run(run())


def test_without_the_variable_no_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)

    async def run() -> None:
        async with ScriptedServer([answers("who are you", 401)]) as server:
            pool = HttpPool(server.url, api_key_env="MY_KEY", patience=QUICK)
            with pytest.raises(ServerRefusal, match="who are you.*MY_KEY is not set"):
                await pool.get("/x")
            assert "Authorization" not in server.seen[0].headers
            await pool.close()

    asyncio.run(run())
    monkeypatch.setenv("MY_KEY", "sk-ä\n")
    with pytest.raises(UsageError, match="MY_KEY") as caught:
        HttpPool("http://127.0.0.1:1", api_key_env="MY_KEY")
    assert "ä" not in str(caught.value)


def test_addresses_are_read_and_checked() -> None:
    assert server_urls(" http://a:1/v1/, https://b/api/v1 ,http://[::1]:80") == (
        "http://a:1",
        "https://b/api",
        "http://[::1]:80",
    )
    odd = ["", "a:1", "ftp://a", "http://", "http://a:x", "http://a?b=1", "http://a#b", "http://a b", "http://a,,"]
    odd += [f"http://{'a' * 64}.example", "http://a..b"]
    for wrong in odd:
        with pytest.raises(UsageError, match="no server's address"):
            server_urls(wrong)
    with pytest.raises(UsageError, match="twice"):
        server_urls("http://a,http://a/v1")
    for secret in ("http://me:hunter2@a", "http://hunter2@a:8000/v1", "http://me:hunter2@a:x"):
        with pytest.raises(UsageError, match="no user name") as caught:
            server_urls(secret)
        assert "hunter2" not in str(caught.value)


def test_without_aiohttp_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtra, match=r'pip install "llm-arena\[openai\]"'):
        HttpPool("http://a")


def test_nothing_is_left_open(recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture) -> None:
    async def test(pool: HttpPool, _: list[ScriptedServer]) -> None:
        await asyncio.gather(*(pool.get("/x") for _ in range(4)))

    with_pool(test, [OK])
    gc.collect()
    assert not [str(warning.message) for warning in recwarn if "nclosed" in str(warning.message)]
    assert "nclosed" not in caplog.text
