"""Chats as a template takes them: their texts found and changed, the forms in which a template may want them.

And the control tokens of a tokenizer, which no text of a message may become.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from llm_arena.errors import ModelError
from llm_arena.types import Json, Message

Chat = list[dict[str, Any]]
"""Messages with `role` and `content` (a string); some also with the calls of the seat, or the name of a tool."""
Frozen = tuple[tuple[str, str], ...]
"""A chat as (role, content) pairs, to look it up by."""
Guard = Callable[[str], str]
"""Changes a text so that no marker in it works."""

SENDERS = ("user", "tool")
"""Roles of messages that others may have written."""

_SWITCHES = ("enable_thinking", "thinking")  # what Qwen3 and most others read, and DeepSeek V3.1
_THINK_TAGS = re.compile(r"(</?think>)")
_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_READ_BY_GAMES = ("<think>", "</think>", "<tool_call>", "</tool_call>")


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
    """Returns a private-use character that no message holds.

    Raises:
        ModelError: the messages hold all 137468 of them.
    """
    used = set().union(*texts(chat))
    for code in chain(*_PRIVATE_USE):
        if chr(code) not in used:
            return chr(code)
    raise ModelError("the messages hold every private-use character of Unicode; let the game clean or shorten its view")


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


def thinking_switches(apply: Callable[..., str], thinking: bool | None, source: str) -> dict[str, bool]:
    """Returns the arguments of a template that switch thinking; they are told by what it prints with them.

    Args:
        apply: prints a chat with a list of tools by the template, and takes `switches`; may raise TemplateError.
        thinking: what is asked for; None leaves it as the template has it.
        source: what the template is of, for messages.

    Raises:
        ModelError: the template has no such switch, and does not do so anyway.
    """
    from jinja2 import TemplateError

    if thinking is None:
        return {}
    asked: Chat = [{"role": "user", "content": "a"}]
    try:
        printed = {on: apply(asked, [], switches=dict.fromkeys(_SWITCHES, on)) for on in (True, False)}
    except TemplateError:  # which says what it is at its first use
        return {}
    if printed[True] == printed[False] and (thinking or printed[False].rstrip().endswith("<think>")):
        raise ModelError(
            f"thinking={thinking}: the chat template of {source} can't switch it (it reads none of "
            f"{', '.join(_SWITCHES)}); leave the setting out, or use another model"
        )
    return dict.fromkeys(_SWITCHES, thinking)


class Controls:
    """The control tokens of a tokenizer: its special tokens, and all added ones of more than one visible character.

    The unknown token's id is left out: with a small vocabulary any odd word becomes it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.texts: set[str] = set()
        """What must not work inside messages."""
        self.ids: set[int] = set()
        self.silent: set[int] = set(tokenizer.all_special_ids)
        """Ids that leave no text in a reply: the special ones, except the tags that games read, special or not."""
        single: list[str] = []
        for token, added in tokenizer.added_tokens_decoder.items():
            text = added.content
            long = len(text.strip()) > 1
            if long:
                self.texts.add(text)
            if added.special:
                self.silent.add(token)
            if text in _READ_BY_GAMES:
                self.silent.discard(token)
            if (long or added.special) and token != tokenizer.unk_token_id:
                self.ids.add(token)
            # White space and the unknown token stay usable.
            if added.special and token != tokenizer.unk_token_id and len(text) == 1 and not text.isspace():
                single.append(text)
        self._marker = _any_of(self.texts)
        self._single = _any_of(single)
        self._first_characters = {
            letter for text in self.texts for letter in (text[0], text[0].lower(), text[0].upper())
        }

    def broken(self, mark: str) -> Guard:
        """Returns a guard that breaks each literal marker, and leaves all other text as it is."""

        def break_marker(match: re.Match[str]) -> str:
            return match[0][:1] + mark + match[0][1:]

        return lambda text: self._marker.sub(break_marker, text)

    def can_not_be_in(self, chat: Chat) -> bool:
        """Whether no message can hold a marker, not even one that a normalizer or a template puts together."""
        return all(text.isascii() and self._first_characters.isdisjoint(text) for text in texts(chat))

    def count(self, ids: Iterable[int]) -> int:
        """Returns how many ids are control tokens."""
        return sum(token in self.ids for token in ids)

    def escaped(self, chat: Chat, tag: re.Pattern[str]) -> Chat:
        """Returns the chat with control tokens of one character, and plain tags of a template, written as escapes.

        Args:
            chat: as the template takes it.
            tag: matches the beginning of a tag that is plain text to the tokenizer.
        """

        def escape(match: re.Match[str]) -> str:
            return match[0].encode("unicode_escape").decode("ascii")

        def defuse(match: re.Match[str]) -> str:
            # The library's own form may be quoted to a seat, e.g. when its last call was none.
            return match[0] if role == "user" and match[0].endswith("tool_call") else "\\x3c" + match[0][1:]

        found: Chat = []
        for message in chat:
            role = message["role"]
            message = changed(message, lambda text: self._single.sub(escape, text))
            found.append(changed(message, lambda text: tag.sub(defuse, text)) if role in SENDERS else message)
        return found


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Returns a pattern of any of the texts, the longest first."""
    # An empty alternation would match everywhere, a lookahead for the end of a longer text matches nowhere.
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")
