"""Addresses of servers: read from a setting, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from llm_arena.errors import UsageError


def server_urls(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the addresses of one or several servers, without `/v1` and slashes at the end.

    >>> server_urls("http://127.0.0.1:8000/v1, http://127.0.0.1:8001")
    ('http://127.0.0.1:8000', 'http://127.0.0.1:8001')

    Args:
        given: addresses, or one string of them with commas between.

    Raises:
        UsageError: none is given, one is no http address, holds a user name or a password, or is given twice.
    """
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    urls = tuple(_checked(part) for part in parts)
    if not urls:
        raise UsageError("no server was named; give an address such as http://127.0.0.1:8000")
    twice = [url for url in urls if urls.count(url) > 1]
    if twice:
        raise UsageError(f"the server {twice[0]} is named twice; name each server once")
    return urls


def _checked(url: str) -> str:
    if "@" in url:  # the address itself is not repeated: it may hold a password
        raise UsageError(
            "a server's address must hold no user name and no password; put the key into an environment variable and "
            "name that (api_key_env)"
        )
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # `port` raises for what is no number
        if host and ":" not in host:
            host.encode("idna")  # what a name server would be asked for
    except ValueError:
        parts, host = None, None
    odd = any(not letter.isprintable() or letter.isspace() for letter in url)
    if parts is None or not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment or odd:
        raise UsageError(
            f"{url!r:.200} is no server's address; expected is one such as http://127.0.0.1:8000 or "
            "https://host/v1, several with commas between"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")
