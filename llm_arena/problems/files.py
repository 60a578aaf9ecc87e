"""Reading a user's text file, and refusing another one than an episode was recorded with."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from llm_arena.errors import UsageError


def read_utf8(name: str, path: str) -> tuple[str, str]:
    """Returns the text of a file, and the SHA-256 of its bytes; it is read again only when it was written.

    Args:
        name: of the argument that gives the file, for messages.
        path: of the file; a byte order mark at its beginning is no part of the text.

    Raises:
        UsageError: there is no such file, or it can't be read, or is not UTF-8.
    """
    try:
        found = Path(path).stat()
        return _read(path, found.st_mtime_ns, found.st_size)
    except (OSError, TypeError, ValueError) as error:  # no file; no path at all; a null byte, or no UTF-8
        why = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{name}={path!r:.200} can't be read: {why}; expected the path of a file of UTF-8 text"
        ) from error


@lru_cache(maxsize=8)
def _read(path: str, changed: int, size: int) -> tuple[str, str]:
    content = Path(path).read_bytes()
    return content.decode("utf-8-sig"), hashlib.sha256(content).hexdigest()


def check_digest(name: str, path: str, found: str, expected: str | None) -> None:
    """Raises a `UsageError` if what the argument `name` gives has another SHA-256 than `expected` (None: any will do).

    Args:
        name: of the argument; the one that gives its digest is called so with `_sha256` behind it.
        path: what it is.
        found: the SHA-256 that it has.
        expected: the one that it must have.
    """
    if expected not in (None, found):
        raise UsageError(
            f"{name}={path!r:.200} has SHA-256 {found}, expected {expected}: it has changed; restore it, or leave "
            f"{name}_sha256 out to take what is there (results then do not compare)"
        )


__all__ = ["check_digest", "read_utf8"]
