"""One HTTP request and its whole reply: on a connection that is silent, bounded in size, and without the key."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from llm_arena.engines.http_replies import (
    Fault,
    Told,
    Unread,
    error_in,
    hidden,
    passes,
    retry_after_seconds,
    shown,
    told,
)
from llm_arena.errors import EngineError, ServerRefusal, missing_extra

if TYPE_CHECKING:
    import aiohttp

MAX_WORDS_BYTES = 64 << 10
"""So much is read of what a server says about a request that it refuses."""
SECRET_LETTERS = 12
"""A shorter key is a stand-in such as `EMPTY`: no secret, and a word that a reply may hold."""
_MOST_ODD = 100
"""So many connections in a row that are not silent, and the server is left alone."""
_OUT_OF_MONEY = ("insufficient_quota", "billing_hard_limit_reached")


class HttpConnection:
    """The connections to some servers, which are kept between requests.

    Args:
        key: sent as a bearer token; empty for none.
        key_env: environment variable that it came from, for messages.
        connect_seconds: how long a new connection may take.
        max_reply_bytes: a longer reply is a fault.
        retry_after_cap_seconds: the longest `Retry-After` that is obeyed.

    Raises:
        MissingExtra: aiohttp is not installed.
    """

    def __init__(
        self,
        *,
        key: str,
        key_env: str | None,
        connect_seconds: float,
        max_reply_bytes: int,
        retry_after_cap_seconds: float,
    ) -> None:
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise missing_extra("A model on a server", "aiohttp", "openai") from error
        self._aiohttp = aiohttp
        self._key = key
        self._key_env = key_env
        secret = key.encode() if len(key) >= SECRET_LETTERS else b""
        self._secrets = {secret, secret.replace(b"/", b"\\/")} - {b""}  # some write a slash so in JSON
        self._connect_seconds = connect_seconds
        self._max_reply_bytes = max_reply_bytes
        self._retry_after_cap_seconds = retry_after_cap_seconds
        self._session: aiohttp.ClientSession | None = None

    async def send(self, method: str, address: str, data: bytes | None) -> bytes:
        """Makes one request and returns its whole body.

        Raises:
            ServerRefusal: a status that comes again.
            Fault: anything that may pass.
        """
        session = self._open()
        try:
            async with session.request(method, address, data=data, allow_redirects=False) as response:
                good = 200 <= response.status < 300
                raw = await self._read(response, cut=not good)
                for secret in self._secrets:
                    raw = raw.replace(secret, b"[key]")
                if good:
                    return raw
                raise self._refusal(address, response.status, response.headers, raw)
        except (self._aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"{type(error).__name__} {error}"
        # Outside, for an aiohttp error in the chain of causes may hold the request's headers, and the key with them.
        raise Fault(f"{address} did not answer: {shown(hidden(reason, self._key))}")

    def unread(self, address: str, error: Unread) -> EngineError:
        """Returns what a reply that can't be read means: some servers send an error so, with its status as code."""
        said = error_in(error.raw, self._key)
        words = shown(said.words) if said else ""
        if said is not None and re.fullmatch("[45][0-9][0-9]", said.code):
            line = f"{address} sent an error {said.code} as a reply{f': {words}' if words else ''}"
            return self._judged(line, int(said.code), said, None)
        return Fault(hidden(str(error), self._key) + (f"; it says: {words}" if words else ""))

    async def close(self) -> None:
        """Closes all connections, and aborts what runs on them."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            aiohttp = self._aiohttp
            headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=_connector(),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
                auto_decompress=False,  # a small reply could become an endless one
            )
        return self._session

    async def _read(self, response: aiohttp.ClientResponse, *, cut: bool) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := await response.content.readany():
            pieces.append(piece)
            size += len(piece)
            if cut and size >= MAX_WORDS_BYTES:
                response.close()
                return b"".join(pieces)[:MAX_WORDS_BYTES]
            if size > self._max_reply_bytes:
                raise Fault(f"{response.url} sent more than {self._max_reply_bytes >> 20} MiB for one reply")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _refusal(self, address: str, status: int, headers: Any, raw: bytes) -> EngineError:
        said = told(raw, self._key)
        line = f"{address} answered {status}{f': {shown(said.words)}' if said.words else ''}"
        if status < 200 or status == 304:  # answers to what nobody asked
            return Fault(line)
        if status < 400:
            target = shown(hidden(headers.get("Location", "elsewhere"), self._key))
            return ServerRefusal(
                f"{address} answered {status}, a redirect to {target}; give the server's own address", status=status
            )
        wait = retry_after_seconds(headers.get("Retry-After"), self._retry_after_cap_seconds)
        return self._judged(line, status, said, wait)

    def _judged(self, line: str, status: int, said: Told, wait: float | None) -> EngineError:
        no_money = status == 429 and not {said.code, said.kind}.isdisjoint(_OUT_OF_MONEY)
        if passes(status) and not no_money:
            return Fault(line, wait, limited=status == 429 and wait is not None)
        if status == 401 and self._key_env:
            line += f" (the environment variable {self._key_env} {'was sent' if self._key else 'is not set'})"
        return ServerRefusal(line, status=status, code=said.code, kind=said.kind, said=said.words)


def _connector() -> aiohttp.TCPConnector:
    import aiohttp

    class SilentConnector(aiohttp.TCPConnector):
        """Hands out connections on which nothing has come in since their last reply.

        aiohttp takes what comes on an idle connection (a reply that was sent twice, or one to a request before) for
        the answer to the next request, and from then on each request gets the answer to the one before. What comes
        after a request has been sent looks like its answer to any client.
        """

        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
            for _ in range(_MOST_ODD):
                connection = await super().connect(req, traces, timeout)
                try:
                    for _ in range(2):  # the loop reads its sockets in the first round, and hands it over in the second
                        await asyncio.sleep(0)
                except asyncio.CancelledError:
                    connection.close()
                    raise
                protocol = connection.protocol
                if protocol is not None and protocol.is_connected() and not protocol.should_close:
                    return connection
                connection.close()
            raise aiohttp.ClientConnectionError("the server sends what nobody asked for")

    # Servers drop idle connections after 5 s (uvicorn's default), maybe just as a request is on its way.
    return SilentConnector(limit=0, keepalive_timeout=4.0)
