"""Addresses of servers, and where their keys are: read from settings, checked before anything is sent."""

from __future__ import annotations

import re
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


def refuse_odd_variable(api_key_env: object) -> None:
    """Refuses what can't be the name of an environment variable; None is fine: no key is sent.

    Raises:
        UsageError: it can't. The value is not repeated: it may be the key, given in place of its variable's name.
    """
    if api_key_env is None or (isinstance(api_key_env, str) and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", api_key_env)):
        return
    size = f" of {len(api_key_env)} characters" if isinstance(api_key_env, str) else ""
    raise UsageError(
        f"api_key_env is a value of the type {type(api_key_env).__name__}{size} that can't be the name of an "
        "environment variable, and is not repeated here; put the key into a variable, and give that one's name, such "
        "as OPENAI_API_KEY"
    )


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
