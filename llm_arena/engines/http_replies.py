"""What servers answer: JSON, their words about what went wrong, and for how long they want to be left alone."""

from __future__ import annotations

import email.utils
import re
import time
from datetime import UTC
from typing import Any, NamedTuple

import msgspec

from llm_arena.errors import EngineError, ServerRefusal
from llm_arena.types import Json

WORDS = 300
"""So many characters of a server's own words are passed on."""
_PASSING = (408, 409, 425, 429)
_FOR_GOOD = (501, 505)
_OF_ONE_PROMPT = (400, 403, 413, 422)
"""Statuses that servers give a prompt that they don't take, as they do a request that is wrong."""
_LENGTH_CODES = ("context_length_exceeded", "string_above_max_length", "exceed_context_size_error", "request_too_large")
_FILTER_CODES = (
    "content_filter",
    "content_policy_violation",
    "data_inspection_failed",
    "invalid_prompt",
    "moderation_blocked",
)
_LENGTH_WORDS = re.compile(
    r"context.?(length|window|size|limit)|maximum (context|input|prompt)|(prompt|input) is too long|max_model_len"
    r"|too many tokens"
    r"|input tokens? (count )?(\(\d+\) )?exceed|must be <= \d+\. Given: \d+ `inputs` tokens",
    re.IGNORECASE,
)
_FILTER_WORDS = re.compile(
    r"content.?(filter|management|policy)|content exists risk|inappropriate content|(input|prompt) was flagged",
    re.IGNORECASE,
)
# New tokens asked for, and the limit of prompt and new tokens together: in the words of vLLM of today and before,
# OpenAI, SGLang, TGI and Anthropic.
_NEW = re.compile(
    r"is too large: (\d+)|(\d+) (?:tokens )?(?:in|for) the completion|and (\d+) `max_new_tokens`|\d \+ (\d+) > \d",
    re.IGNORECASE,
).search
_LIMIT = re.compile(
    r"context length (?:is|of) (\d+)|max_model_len\W{0,4}(\d+)|must be <= (\d+)|\d \+ \d+ > (\d+)", re.IGNORECASE
).search
_NEW_OVER_LIMIT = re.compile(
    r"\bmax_(?:new_|completion_)?tokens\b[^.]{0,40} greater than\W{1,3}max_model_len", re.IGNORECASE
)
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Fault(EngineError):
    """One try failed in a way that may pass. A reader of replies raises it for a reply that can't be one.

    Args:
        message: what went wrong.
        retry_after_seconds: how long the server wants to be left alone; None if it did not say.
        limited: the server is in order, counts requests, and had enough of them for now.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None, *, limited: bool = False) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.limited = limited


class Unread(Fault):
    """A reply of a good status that can't be read; some servers send their errors so.

    Args:
        message: why it can't be read.
        raw: the reply.
    """

    def __init__(self, message: str, raw: bytes) -> None:
        super().__init__(message)
        self.raw = raw


class Told(NamedTuple):
    """What a server says in the body of an error, without the key."""

    words: str
    code: str
    kind: str


def passes(status: int) -> bool:
    """Whether an HTTP status tells of trouble that may be over at the next try."""
    return status in _PASSING or (status >= 500 and status not in _FOR_GOOD)


def decoded(raw: bytes) -> Json:
    """Returns the JSON value of a reply.

    Raises:
        Fault: it is none.
    """
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        what = shown(raw[:80].decode(errors="replace")) if raw else "nothing"
        raise Fault(f"the server's reply is no JSON ({len(raw)} bytes): {what}") from error


def told(raw: bytes, key: str) -> Told:
    """Returns what a server says in the body of an error: OpenAI's form, one of its likenesses, or text."""
    try:
        found = decoded(raw)
    except Fault:
        found = None
    code = kind = ""
    while isinstance(found, dict):
        code = str(found.get("code") or code)
        kind = str(found.get("type") or found.get("error_type") or kind)
        found = next((found[name] for name in ("error", "message", "detail") if found.get(name)), None)
    words = found if isinstance(found, str) else raw.decode(errors="replace")
    return Told(hidden(words, key), hidden(code, key), hidden(kind, key))


def error_in(raw: bytes, key: str) -> Told | None:
    """Returns what a reply says that can't be read: an error, or text that is no JSON; None where it is neither."""
    try:
        found = decoded(raw)
    except Fault:
        return told(raw, key)
    error = isinstance(found, dict) and (
        found.get("object") == "error" or any(found.get(name) for name in ("error", "message", "detail"))
    )
    return told(raw, key) if error else None


def too_long(refusal: ServerRefusal) -> bool:
    """Whether a server refused a prompt for its length, which is no fault of the others."""
    if refusal.status not in _OF_ONE_PROMPT or _fits_no_prompt(refusal.said):
        return False
    if refusal.status == 413 or refusal.code in _LENGTH_CODES or refusal.kind in _LENGTH_CODES:
        return True
    return _LENGTH_WORDS.search(refusal.said) is not None


def _fits_no_prompt(said: str) -> bool:
    """Whether a server says that more new tokens were asked for than fit after no prompt at all: a wrong setting."""
    if _NEW_OVER_LIMIT.search(said):
        return True
    new, limit = (next(filter(None, found.groups())) if found else None for found in (_NEW(said), _LIMIT(said)))
    return new is not None and limit is not None and int(new[:12]) >= int(limit[:12])


def filtered(refusal: ServerRefusal) -> bool:
    """Whether a server refused a prompt for what it says, which is no fault of the others."""
    if refusal.status not in _OF_ONE_PROMPT:
        return False
    return refusal.code in _FILTER_CODES or _FILTER_WORDS.search(refusal.said) is not None


def hidden(text: str, key: str) -> str:
    """Returns a text without the key."""
    return text.replace(key, "[key]") if key else text


def shown(text: str) -> str:
    """Returns a server's words on one line, cut, with control characters escaped."""
    line = " ".join(text[: 4 * WORDS].split())
    cut = line if len(line) <= WORDS else line[:WORDS] + "..."
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in cut)


def retry_after_seconds(value: str | None, cap: float) -> float | None:
    """Returns how long to wait by a `Retry-After` header (RFC 9110, 10.2.3): a number of seconds, or a date.

    Args:
        value: the header; None: there is none.
        cap: longest wait, in seconds.
    """
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_to_datetime(value)
            # without a zone, as in the oldest of the three forms, it is universal time as well
            seconds = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return min(seconds, cap) if seconds > 0 else None  # not for NaN either
