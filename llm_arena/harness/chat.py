"""What a harness sends: messages and tools, checked and copied, and the digests by which conversations are known."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

import msgspec

from llm_arena.errors import UsageError
from llm_arena.replies import clean
from llm_arena.types import Json, Message

ROLE = re.compile(r"[a-z_]+")
_SENDERS = ("system", "user", "assistant", "tool")
_TOOL = {"name": str, "description": str, "parameters": Mapping}


def check_role(role: object) -> None:
    """Raises a UsageError for what is no name of a role."""
    if not isinstance(role, str) or not ROLE.fullmatch(role):
        raise UsageError(f"{role!r:.60} is no name of a role; give one of the letters a to z and _, e.g. solver")


def read_messages(given: object) -> list[Message]:
    """Returns the messages of a call, in copies.

    Raises:
        UsageError: they are no chat.
    """
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, Sequence) or not given:
        raise UsageError(f"messages is {given!r:.100}; expected a string, or a list of at least one message")
    return [_message(number, message) for number, message in enumerate(given)]


def _message(number: int, message: object) -> Message:
    expected = f'expected {{"role": ..., "content": text}}, with a role of {", ".join(_SENDERS)}'
    if not isinstance(message, Mapping) or set(message) != {"role", "content"} or message["role"] not in _SENDERS:
        raise UsageError(f"message {number} is {message!r:.100}; {expected}")
    content = message["content"]
    if isinstance(content, str):
        return Message(role=message["role"], content=str(clean(content)))
    try:
        told = msgspec.convert({"role": message["role"], "content": content}, Message)
        for part in told["content"]:
            assert not isinstance(part, str)  # a list was given
            if "text" in part:
                part["text"] = str(clean(part["text"]))
        msgspec.json.encode(told)  # what a trace can't hold is told here
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise UsageError(f"message {number} is {message!r:.100} ({error}); {expected}") from None
    return told


def read_tools(given: Sequence[Json] | None) -> list[Json]:
    """Returns the tools of a call, in copies.

    Raises:
        UsageError: one of them lacks what a tool has, or is no JSON.
    """
    found: list[Json] = []
    for tool in given or ():
        expected = "expected a mapping with name, description and parameters (a JSON schema)"
        if not isinstance(tool, Mapping) or not all(isinstance(tool.get(key), kind) for key, kind in _TOOL.items()):
            raise UsageError(f"a tool is {tool!r:.100}; {expected}")
        try:
            found.append(json.loads(json.dumps({key: tool[key] for key in _TOOL})))
        except (TypeError, ValueError) as error:
            raise UsageError(f"a tool is {tool!r:.100} ({error}); {expected}") from None
    return found


def digests(messages: Sequence[Message]) -> list[str]:
    """Returns a digest of the first message, of the first two, and so on."""
    found: list[str] = []
    for message in messages:
        found.append(digest(found[-1] if found else "", message))
    return found


def digest(before: str, message: Message) -> str:
    """Returns the digest of a conversation with one more message."""
    text = before + json.dumps([message["role"], message["content"]])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
