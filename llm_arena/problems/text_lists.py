r"""Lists of short texts that a user gives to a game, in Python or as a file with one a line: topics, motions.

An episode that draws from a file can be replayed only while the file is the same, so its SHA-256 goes into the spec and
another file under its name is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from llm_arena.errors import UsageError
from llm_arena.problems.files import check_digest, read_utf8


class Texts(msgspec.Struct, frozen=True):
    """The texts of a list, and the SHA-256 of the file that they stand in; None: they were given in Python."""

    texts: tuple[str, ...]
    sha256: str | None


def read_texts(name: str, given: Any, sha256: str | None, *, longest: int, example: str) -> Texts:
    """Returns the texts that the argument `name` gives.

    Args:
        name: of the argument, for messages.
        given: a list of texts, or the path of a UTF-8 file with one a line. Blank lines of a file count for nothing.
        sha256: what the file must be; None: whatever it is.
        longest: characters of a text, at most.
        example: a text as it should be.

    Raises:
        UsageError: the file can't be read or is another one; a text is blank, too long, holds control characters or
            stands there twice (the message has its number); or there is none.
    """
    if isinstance(given, str):
        content, digest = read_utf8(name, given)
        check_digest(name, given, digest, sha256)
        return Texts(_lines(given, content, longest, example), digest)
    if not isinstance(given, list | tuple):
        raise UsageError(f"{name}={given!r:.100}; expected a list like [{example!r}], or a file with one a line")
    if sha256 is not None:
        raise UsageError(f"{name}_sha256={sha256!r} is for a file; leave it out where {name} is a list")
    return Texts(_all(name, enumerate(given, start=1), longest, example), None)


@lru_cache(maxsize=8)
def _lines(path: str, content: str, longest: int, example: str) -> tuple[str, ...]:
    lines = enumerate(content.split("\n"), start=1)
    return _all(path, ((number, line.strip()) for number, line in lines if line.strip()), longest, example)


def _all(place: str, numbered: Iterable[tuple[int, Any]], longest: int, example: str) -> tuple[str, ...]:
    texts = tuple(_each(place, numbered, longest, example))
    if not texts:
        raise UsageError(f"{place} is empty; expected texts like {example!r}")
    return texts


def _each(place: str, numbered: Iterable[tuple[int, Any]], longest: int, example: str) -> Iterator[str]:
    seen: dict[str, int] = {}
    for number, text in numbered:
        if not is_text(text, longest):
            expected = f"expected one line of at most {longest} characters, like {example!r}"
            raise UsageError(f"{place}:{number}: got {text!r:.100}; {expected}")
        if text in seen:
            raise UsageError(f"{place}:{number}: {text!r:.100} is number {seen[text]} already; leave one of them out")
        seen[text] = number
        yield text


def is_text(text: Any, longest: int) -> bool:
    """Returns whether `text` is one line that is not blank, not too long, and without control characters."""
    return isinstance(text, str) and bool(text.strip()) and text.isprintable() and len(text) <= longest


__all__ = ["Texts", "is_text", "read_texts"]
