"""Chats as a template takes them: their texts found and changed, the forms in which a template may want them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from llm_arena.errors import ModelError
from llm_arena.types import Json, Message

Chat = list[dict[str, Any]]
"""Messages with `role` and `content` (a string); some also with the calls of the seat, or the name of a tool."""
Frozen = tuple[tuple[str, str], ...]
"""A chat as (role, content) pairs, to look it up by."""
Guard = Callable[[str], str]
"""Changes a text so that no marker in it works."""

_THINK_TAGS = re.compile(r"(</?think>)")
_PRIVATE_USE = range(0xE000, 0xF8FF)


def freeze(chat: Chat) -> Frozen:
    """Returns a chat of plain messages as what it can be looked up by."""
    return tuple((message["role"], message["content"]) for message in chat)


def thaw(frozen: Frozen) -> Chat:
    """Returns the chat that `freeze` was given."""
    return [{"role": role, "content": content} for role, content in frozen]


def plain(messages: Sequence[Message]) -> Chat:
    """Returns messages whose contents are strings; text parts are joined."""
    chat: Chat = []
    for message in messages:
        content = message["content"]
        if not isinstance(content, str):
            texts = []
            for part in content:
                if part["type"] != "text":
                    raise ModelError(
                        f"a message of role {message['role']!r} holds an image; this chat format takes text only"
                    )
                texts.append(part["text"])
            content = "".join(texts)
        chat.append({"role": message["role"], "content": content})
    return chat


def texts(chat: Chat) -> list[str]:
    """Returns all texts of a chat that a template prints."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    for message in chat:
        changed(message, note)
    return found


def changed(message: dict[str, Any], change: Guard) -> dict[str, Any]:
    """Applies `change` to all texts of a message, those of its calls included."""

    def within(value: Json) -> Json:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, list):
            return [within(part) for part in value]
        return {change(key): within(part) for key, part in value.items()} if isinstance(value, dict) else value

    found = {**message, "content": change(message["content"])}
    if "name" in message:
        found["name"] = change(message["name"])
    if "tool_calls" in message:
        found["tool_calls"] = [
            {**call, "function": {key: within(value) for key, value in call["function"].items()}}
            for call in message["tool_calls"]
        ]
    return found


def unused_character(chat: Chat) -> str:
    """Returns a private-use character that no message holds."""
    used = set().union(*texts(chat))
    return next(chr(code) for code in _PRIVATE_USE if chr(code) not in used)


def guarded(chat: Chat, guard: Guard) -> Chat:
    """Applies the guard to every message; think tags of the seat's own messages stay whole."""

    def whole_tags(text: str) -> str:
        return "".join(part if _THINK_TAGS.fullmatch(part) else guard(part) for part in _THINK_TAGS.split(text))

    return [changed(message, whole_tags if message["role"] == "assistant" else guard) for message in chat]


def strict(mark: str) -> Guard:
    """A guard that breaks text after every visible character, so that no marker of two or more can stand in it."""
    return lambda text: re.sub(r"(?<=\S)(?=.)", mark, text, flags=re.DOTALL)


def _merged(chat: Chat) -> Chat:
    """Joins neighbours of one role, with a blank line between; calls and results stay alone."""
    merged: Chat = []
    for message in chat:
        last = merged[-1] if merged else {}
        alone = message["role"] == "tool" or "tool_calls" in message or "tool_calls" in last
        if last.get("role") == message["role"] and not alone:
            merged[-1] = {"role": message["role"], "content": f"{last['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _folded(chat: Chat) -> Chat:
    """Puts system text into the user turn that follows it, for templates without a system role."""
    return _merged([{**message, "role": "user"} if message["role"] == "system" else message for message in chat])


FORMS: tuple[Callable[[Chat], Chat], ...] = (lambda chat: chat, _merged, _folded)
"""The forms of a chat, in the order of trying: as it is; same roles merged; system text in the user turn as well."""
