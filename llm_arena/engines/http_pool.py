"""Requests to one or several equal servers over HTTP: which one is asked, when it is asked again, when that ends.

A call is one question, a try is one request for it. Tries of a call follow each other: the next begins when the one
before has ended or was aborted, its connection closed, so that a call has one answer at most. Faults that pass (429,
5xx, resets, timeouts, replies that are cut or no JSON) are tried again, after an exponentially growing time with full
jitter and never before the server's own `Retry-After`. What the server would refuse again is a `ServerRefusal` at once.

A server that failed several times in a row is left alone for a while; then it is asked what it serves, and when it
answers that, calls follow. One that asked to be left alone (`Retry-After`) is tried by one call first; the others
follow a little later, each at a time of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from llm_arena.engines.http_connection import HttpConnection
from llm_arena.engines.http_replies import Fault, Unread, decoded, hidden, shown
from llm_arena.engines.http_state import Server
from llm_arena.engines.urls import refuse_odd_variable, server_urls
from llm_arena.errors import EngineError, ServerRefusal, UsageError
from llm_arena.types import Json

FRESH_SECONDS = 3.0
"""No model server starts faster. Who answered less than that ago, and did not fail since, is the same process."""
LOOK_SECONDS = 15.0
"""How long one try of a small question may take, such as what a server serves."""
MODELS = "/v1/models"
"""What every such server answers, at once. One that was left alone is asked for it first."""
_T = TypeVar("_T")
_ENCODER = msgspec.json.Encoder()
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long servers are waited for, and how often they are asked again; all times in seconds."""

    tries: int = 10
    "Most requests for one call; those that a server in order put off (429 with `Retry-After`) do not count."
    connect_seconds: float = 10.0
    try_seconds: float = 600.0
    "One request, from its start to the last byte of its reply."
    call_seconds: float = 1800.0
    "A call with all its tries and waits."
    backoff_seconds: float = 0.5
    "The wait before try k + 1 is drawn from 0 to this times 2**(k - 1)."
    backoff_cap_seconds: float = 20.0
    retry_after_cap_seconds: float = 120.0
    "A server that asks for more is asked again after this."
    failures: int = 3
    "A server that failed so many times in a row is left alone."
    cool_down_seconds: float = 5.0
    "For how long at first; it doubles each time until a call is answered."
    cool_down_cap_seconds: float = 15.0
    down_seconds: float = 180.0
    "When all servers have been left alone for so long, calls no longer wait for them to come back."
    max_reply_bytes: int = 64 << 20


class HttpPool:
    """One or several servers that serve the same. All calls come from one event loop.

    Closing twice is fine. Cancelling a call aborts its request.

    Args:
        urls: addresses, or one string of them with commas between; a `/v1` at the end is left off.
        api_key_env: environment variable with the key, sent as a bearer token if it is set.
        patience: how long to wait.
        seed: of the jitter; None draws one.

    Raises:
        UsageError: an address is wrong, no environment variable has such a name, or the key can't be sent in a header.
        MissingExtra: aiohttp is not installed.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        api_key_env: str | None = None,
        patience: Patience | None = None,
        seed: int | None = None,
    ) -> None:
        self.urls = server_urls(urls)
        refuse_odd_variable(api_key_env)
        self.api_key_env = api_key_env
        self._key = (os.environ.get(api_key_env, "") if api_key_env else "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise UsageError(f"the environment variable {api_key_env} holds what no key can: it must be plain ASCII")
        self._patience = patience = patience or Patience()
        self._connection = HttpConnection(
            key=self._key,
            key_env=api_key_env,
            connect_seconds=patience.connect_seconds,
            max_reply_bytes=patience.max_reply_bytes,
            retry_after_cap_seconds=patience.retry_after_cap_seconds,
        )
        self._servers = {url: Server(url) for url in self.urls}
        self._rng = random.Random(seed)
        self._trials: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._closing = asyncio.Event()

    def __repr__(self) -> str:
        return f"HttpPool({', '.join(self.urls)})"

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closing.is_set()

    def fresh(self, url: str) -> bool:
        """Whether the server may have been started anew: it failed last, or its last reply is over 3 s old."""
        heard = self._servers[url].heard_at
        return heard is None or time.monotonic() - heard > FRESH_SECONDS

    def shown(self, text: str) -> str:
        """Returns a server's words on one line, cut, with control characters escaped and without the key."""
        return shown(hidden(text, self._key))

    async def post(
        self, path: str, body: Json, *, url: str | None = None, text: bool = False, tries: int | None = None
    ) -> Json:
        """Sends `body` as JSON and returns the reply's JSON.

        Args:
            path: begins with a slash; comes after the server's address.
            body: what to send; None for nothing.
            url: one of the pool's servers; it is then asked even if it is being left alone. None: the one with the
                fewest requests in flight.
            text: return the reply as text, whatever it is.
            tries: most requests of any kind; None as the pool's patience has it.

        Raises:
            ServerRefusal: the server would refuse this again.
            EngineError: all tries failed, the time is over, or the pool was closed.
        """
        return await self._request("POST", path, body, url, text, tries, None)

    async def get(
        self,
        path: str,
        *,
        url: str | None = None,
        text: bool = False,
        tries: int | None = None,
        seconds: float = LOOK_SECONDS,
    ) -> Json:
        """Fetches JSON; `seconds` bound each try; for the other arguments and errors see `post`."""
        return await self._request("GET", path, None, url, text, tries, seconds)

    async def _request(
        self,
        method: str,
        path: str,
        body: Json,
        url: str | None,
        text: bool,
        tries: int | None,
        seconds: float | None,
    ) -> Json:
        data = None if body is None else _ENCODER.encode(body)

        async def ask(at: str) -> Json:
            raw = await self.send(method, at + path, data)
            return raw.decode(errors="replace") if text else decoded(raw)

        return await self.call(ask, url=url, tries=tries, seconds=seconds)

    async def call(
        self,
        ask: Callable[[str], Awaitable[_T]],
        *,
        url: str | None = None,
        tries: int | None = None,
        seconds: float | None = None,
    ) -> _T:
        """Has `ask` try one server after another until it returns.

        Args:
            ask: makes one try at the server whose address it gets, by `send` or `fetch`. It raises `Fault` for a reply
                that can't be one; any other `EngineError` of it but a refusal counts as a fault as well.
            url: as in `post`.
            tries: as in `post`.
            seconds: longest try; None, or more than the pool's patience has: that.

        Raises:
            ServerRefusal: the server would refuse this again.
            EngineError: all tries failed, the time is over, or the pool was closed.
        """
        problems: list[EngineError] = []
        try:
            return await self._tries(ask, url, tries, seconds, problems)
        except asyncio.CancelledError as cancelled:
            if problems:  # tells a clock that ran out whose fault it was; see `episode.with_clock`
                raise cancelled from problems[-1]
            raise

    async def _tries(
        self,
        ask: Callable[[str], Awaitable[_T]],
        url: str | None,
        tries: int | None,
        seconds: float | None,
        problems: list[EngineError],
    ) -> _T:
        patience = self._patience
        longest = patience.try_seconds if seconds is None else min(seconds, patience.try_seconds)
        most = patience.tries if tries is None else tries
        deadline = time.monotonic() + patience.call_seconds
        failed: Server | None = None
        number = used = 0
        while used < most:
            if number:
                backoff = min(patience.backoff_cap_seconds, patience.backoff_seconds * 2 ** min(number - 1, 20))
                wait, last = self._rng.uniform(0.0, backoff), problems[-1]
                if url is not None and isinstance(last, Fault) and last.retry_after_seconds is not None:
                    wait += last.retry_after_seconds
                await self._nap(min(wait, deadline - time.monotonic()))
            server = self._servers[url] if url is not None else await self._choose(failed, deadline, problems)
            self._refuse_if_closed()
            left = deadline - time.monotonic()
            if server is None or left <= 0:
                last_words = f"; last, {problems[-1]}" if problems else ""
                raise EngineError(f"no reply from {self} within {patience.call_seconds:g} s{last_words}")
            number += 1
            try:
                return await self._one(server, ask, min(longest, left))
            except ServerRefusal:
                raise
            except EngineError as error:
                self._refuse_if_closed()
                failed = server
                problems.append(error)
                used += tries is not None or not (isinstance(error, Fault) and error.limited)
        raise EngineError(f"gave up after {number} {'try' if number == 1 else 'tries'}: {problems[-1]}")

    async def send(self, method: str, address: str, data: bytes | None) -> bytes:
        """Makes one request and returns its whole body; for `ask` of a `call`.

        Raises:
            ServerRefusal: a status that comes again.
            Fault: anything that may pass.
        """
        self._refuse_if_closed()
        return await self._connection.send(method, address, data)

    async def fetch(self, method: str, address: str, data: bytes | None, read: Callable[[bytes], _T]) -> _T:
        """Makes one request and returns what `read` makes of its body; for `ask` of a `call`.

        Raises:
            ServerRefusal: a status that comes again, in the reply's head or, where `read` raises `Unread`, in its body.
            Fault: anything that may pass.
        """
        raw = await self.send(method, address, data)
        try:
            return read(raw)
        except Unread as error:
            problem = self._connection.unread(address, error)
        raise problem  # outside, for the cause would hold the whole reply

    async def close(self) -> None:
        """Aborts what runs and closes all connections; who waits gets `EngineError`. Closing twice is fine."""
        self._closing.set()
        self._changed.set()
        for trial in self._trials:
            trial.cancel()
        await self._connection.close()

    # ---- one try --------------------------------------------------------------------------------------------------

    async def _one(self, server: Server, ask: Callable[[str], Awaitable[_T]], seconds: float) -> _T:
        server.in_flight += 1
        try:
            async with asyncio.timeout(seconds) as limit:
                result = await ask(server.url)
        except TimeoutError as error:
            if not limit.expired():
                raise
            fault = Fault(f"{server.url} did not answer within {seconds:g} s")
            self._failed(server, fault)
            raise fault from error
        except ServerRefusal:  # it answers, and refuses this request alone
            server.in_order(None)
            raise
        except EngineError as error:
            self._failed(server, error)
            raise
        else:
            server.in_order(time.monotonic())
            return result
        finally:
            server.in_flight -= 1
            self._changed.set()

    async def _try_for_all(self, server: Server) -> None:
        """Asks a server that was left alone something small."""
        seconds = min(LOOK_SECONDS, self._patience.try_seconds)
        try:
            async with asyncio.timeout(seconds):
                await self.send("GET", server.url + MODELS, None)
        except TimeoutError:
            self._failed(server, Fault(f"{server.url}{MODELS} did not answer within {seconds:g} s"))
        except ServerRefusal:  # it answers
            server.passed, server.failures = True, 0
        except EngineError as error:
            self._failed(server, error)
        else:
            server.passed, server.failures = True, 0
        finally:
            server.on_trial = False
            self._changed.set()

    def _failed(self, server: Server, error: EngineError) -> None:
        patience = self._patience
        now = time.monotonic()
        server.heard_at, server.problem = None, str(error)
        _log.debug("a try failed: %s", error)
        limited = isinstance(error, Fault) and error.limited
        if limited:  # it lives, whatever it was before
            server.in_order(None)
        else:
            server.failures += 1
        if not limited and server.failures >= patience.failures and server.rests_until <= now:
            longer = max(patience.cool_down_seconds, 2 * server.cool_down)
            server.cool_down = min(longer, patience.cool_down_cap_seconds)
            server.passed, server.spread = False, 0.0
            server.rests_until = now + server.cool_down
            server.down_since = now if server.down_since is None else server.down_since
        if isinstance(error, Fault) and error.retry_after_seconds is not None:
            server.rests_until = max(server.rests_until, now + error.retry_after_seconds)
            server.spread, server.led = min(error.retry_after_seconds, patience.backoff_cap_seconds), False

    async def _choose(self, failed: Server | None, deadline: float, problems: list[EngineError]) -> Server | None:
        """Returns the server with the fewest requests in flight, if possible another than `failed`; None: too late."""
        share = self._rng.random()
        servers = self._servers.values()
        while not self.closed:
            now = time.monotonic()
            for server in servers:
                if server.rests_until <= now and not (server.open or server.on_trial):
                    server.on_trial = True
                    # a task of its own: calls that are cancelled or answered elsewhere do not end it
                    trial = asyncio.get_running_loop().create_task(self._try_for_all(server))
                    self._trials.add(trial)
                    trial.add_done_callback(self._trials.discard)
            ready = [server for server in servers if server.open and server.due(share) <= now]
            if ready:
                chosen = min(ready, key=lambda server: (server is failed, server.in_flight))
                chosen.led = True
                return chosen
            if now >= deadline:
                return None
            words = "; ".join(server.problem for server in servers if server.problem)
            problems.append(EngineError(f"all servers are left alone for now: {words}"))
            down = [server.down_since for server in servers if server.down_since is not None]
            busy = any(server.in_flight or server.on_trial for server in servers)
            gone = len(down) == len(servers) and not busy
            given_up = max(down) + self._patience.down_seconds if gone else deadline
            if now >= given_up:
                raise EngineError(f"no server has answered for {now - max(down):.0f} s: {words}")
            waits = [server.due(share) for server in servers if server.due(share) > now]
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min([*waits, deadline, given_up]) - now):
                    await self._changed.wait()
        return None

    async def _nap(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._closing.wait()

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise EngineError(f"the connection to {self} was closed")
