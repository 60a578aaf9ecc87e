r"""Chat to token ids and back, for one model: its chat template, its tokenizer, its stop ids.

Three rules shape this file.

Text of a message is untrusted. A literal `<|im_end|>` in it must not become the real special id, so the marker is
broken by an inserted character before the template runs, and the text is encoded in the pieces between those
characters. The reader still sees the marker's text; the ids of control tokens come from the template alone, and that is
checked by counting them. A control token of a single character can't be broken; in message text it is written as its
escape, `\xa7` for `§`. In the seat's own messages `<think>` tags stay whole, because templates read them there.

Ids are never made again from sampled text. `ChatFormat.extend` answers the ids of the next prompt as (ids sent so far)
+ (ids sampled) + (what the template puts after the reply), or None where the template rewrites its own past.

Tools are printed by the template, if it has them and the model's calls can be read, else in plain text; see
llm_arena.tool_format. Tags of a template that are plain text, and not control tokens, can't be broken either: where a
result or a user message holds them, their `<` is written as `\x3c`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from llm_arena import chat_text
from llm_arena.chat_text import Chat, Frozen, Guard
from llm_arena.errors import ModelError
from llm_arena.tool_format import (
    IdReader,
    form_of,
    from_json,
    functions,
    in_text,
    parser_name,
    structured,
    tags_in,
)
from llm_arena.types import Completion, Json, Message

SENDERS = ("user", "tool")
"""Roles of messages that others may have written."""


class ChatFormat:
    """Renders messages to token ids as one model expects them.

    Args:
        tokenizer: a transformers tokenizer that has a chat template.
        source: what the tokenizer was loaded from, for messages.
        stop_ids: ids that end a reply; those that the tokenizer and the template show are added.

    Raises:
        ModelError: there is no chat template, or it can't be compiled.
    """

    def __init__(self, tokenizer: Any, *, source: str = "the tokenizer", stop_ids: Iterable[int] = ()) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                f"{source} has no chat template; use an instruct or chat model, or save a template with "
                f"tokenizer.chat_template = ... and tokenizer.save_pretrained(...)"
            )
        self.tokenizer = tokenizer
        self.source = source
        self._markers, self._control_ids = _control_tokens(tokenizer)
        # An empty alternation would match everywhere, a lookahead for the end of a longer text matches nowhere.
        pattern = "|".join(re.escape(marker) for marker in sorted(self._markers, key=len, reverse=True))
        self._marker = re.compile(pattern or r"(?!)")
        self._single = re.compile("|".join(re.escape(char) for char in _single_controls(tokenizer)) or r"(?!)")
        self._form = form_of(self._apply)
        parser = parser_name(str(tokenizer.name_or_path)) if self._form != "none" else None
        self._ids = None if parser is None else IdReader(tokenizer, parser)
        self.has_tools = self._form in ("block", "json") or self._ids is not None
        """Whether the model is told of tools by its own template, and calls them in its own form."""
        self._tag = tags_in(tokenizer.chat_template if self.has_tools else "", self._markers)
        self._first_characters = {
            letter for marker in self._markers for letter in (marker[0], marker[0].lower(), marker[0].upper())
        }
        # Many episodes share their openings, and one render costs as much as a short game.
        self._rendered = functools.lru_cache(1024)(self._render)
        self._tails = functools.lru_cache(1024)(self._tail_ids)
        ends = [*stop_ids, tokenizer.eos_token_id, self._end_of_turn()]
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(token for token in ends if token is not None))
        """Ids that end a reply."""

    @classmethod
    def load(cls, folder: Path) -> ChatFormat:
        """Loads the format of the model in `folder`, without network.

        Raises:
            ModelError: the folder has no tokenizer or no chat template.
        """
        from transformers import AutoTokenizer

        folder = Path(folder)
        if not folder.is_dir():
            raise ModelError(f"{folder} is no folder; give a folder with a tokenizer and a chat template")
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(
                f"{folder} has no tokenizer that can be loaded ({reason}); save one there with save_pretrained"
            ) from error
        stop_ids: list[int] = []
        generation = folder / "generation_config.json"
        if generation.is_file():
            ends = json.loads(generation.read_text(encoding="utf-8")).get("eos_token_id")
            stop_ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        return cls(tokenizer, source=str(folder), stop_ids=stop_ids)

    def render(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> list[int]:
        """Returns the ids of the whole chat with the generation prompt [P].

        Args:
            messages: the chat.
            tools: what may be called now, as `ArenaEnv.tools` returns it.

        Raises:
            ModelError: the template refuses the chat in every form, or a message holds an image.
        """
        return list(self._rendered(*self._asked(messages, tools)))

    def _asked(self, messages: Sequence[Message], tools: Sequence[Json]) -> tuple[Frozen, str]:
        """Returns the chat and the tools to look its ids up by; without tools of the model's own, all in the chat."""
        if self.has_tools:
            return chat_text.freeze(chat_text.plain(messages)), json.dumps(list(tools)) if tools else ""
        return chat_text.freeze(in_text(chat_text.plain(messages), tools)), ""

    def _render(self, frozen: Frozen, listed: str) -> list[int]:
        chat = self._prepared(chat_text.thaw(frozen))
        mark = chat_text.unused_character(chat)
        ids = self._encode(self._print(chat_text.guarded(chat, self._light(mark)), listed), mark)
        if self._is_harmless(chat):
            return ids
        # The count of control ids must be the template's own. Text in which no marker can stand tells that number.
        strict = self._print(chat_text.guarded(chat, chat_text.strict(mark)), listed)
        if self._count(ids) == self._count(self._encode_long_pieces(strict, mark)):
            return ids
        return self._encode(strict, mark)

    def extend(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
        tools: Sequence[Json] = (),
    ) -> list[int] | None:
        """Returns the next prompt as an extension of the last call's ids [P'], or None where the template forbids it.

        The result starts with `prompt_ids` + `completion.token_ids`, exactly. It is None when the template rewrites
        what it printed before (drops thinking, merges messages): then the chat has to be rendered afresh.

        Args:
            past_messages: the messages that `prompt_ids` were rendered from.
            prompt_ids: all ids of the last call [P].
            completion: what was sampled for them.
            new_messages: the messages after the reply.
            tools: what may be called now; the same as at the last call, or its ids would tell of others.
        """
        sampled = completion.token_ids
        reply = Message(role="assistant", content=self.read(prompt_ids, sampled, tools))
        past, _ = self._asked(past_messages, tools)
        chat, listed = self._asked([*past_messages, reply, *new_messages], tools)
        ids = self._tails(len(past), self.decode(sampled), chat, listed)
        if ids is None:
            return None
        if ids and sampled and ids[0] == sampled[-1] and ids[0] in self._control_ids:
            ids = ids[1:]
        return [*prompt_ids, *sampled, *ids]

    def _tail_ids(self, past: int, reply: str, frozen: Frozen, listed: str) -> list[int] | None:
        """Returns the ids that the template puts after `reply`, which stands after `past` messages."""
        chat = self._prepared(chat_text.thaw(frozen))
        # A call as it was sampled is no structure: a template would print it in its own way.
        [chat[past]] = self._escaped([{"role": "assistant", "content": reply}])
        mark = chat_text.unused_character(chat)
        tail = self._tail(past, chat, mark, self._light(mark), listed)
        if tail is None:
            return None
        ids = self._encode(tail, mark)
        if not self._is_harmless(chat):
            strict = self._tail(past, chat, mark, chat_text.strict(mark), listed)
            if strict is None:
                return None
            if self._count(ids) != self._count(self._encode_long_pieces(strict, mark)):
                ids = self._encode(strict, mark)
        return ids

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Sequence[Json] = ()) -> str:
        """Returns the reply that sampled ids are, with calls of tools in the library's form.

        Args:
            prompt_ids: all ids that were sent [P].
            ids: what was sampled for them [T].
            tools: what could be called. Without, and where no call can be read, it is the text of the ids.
        """
        if tools and self._ids is not None:
            found = self._ids.read(prompt_ids, ids, tools)
            return self.decode(ids) if found is None else self.decode(ids[: found[0]]) + found[1]
        return from_json(self.decode(ids)) if tools and self._form == "json" else self.decode(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of sampled ids, without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def _prepared(self, chat: Chat) -> Chat:
        """Returns the chat as the template takes it, without what can't be broken in its texts."""
        return self._escaped(structured(chat) if self.has_tools else chat)

    def _print(self, chat: Chat, listed: str) -> str:
        """Prints the chat by the template, in the first form that the template takes."""
        return self._print_with_form(chat, listed)[1]

    def _print_with_form(self, chat: Chat, listed: str) -> tuple[int, str]:
        """Returns (index of the form, text). Forms: as it is; same roles merged; system text in the first user turn.

        A form is taken if the template neither refuses it nor leaves out a message. What it leaves out of the seat's
        own messages (thinking) is its own affair.
        """
        from jinja2 import TemplateError

        refusal = ""
        tools = json.loads(listed) if listed else []
        tags = [f"\uf8ff{index}\uf8ff" for index in range(len(chat))]
        tagged: Chat = [
            message if message["role"] == "assistant" else {**message, "content": message["content"] + tag}
            for message, tag in zip(chat, tags, strict=True)
        ]
        needed = [tag for message, tag in zip(chat, tags, strict=True) if message["role"] != "assistant"]
        needed += [tool["name"] for tool in tools]
        for index, form in enumerate(chat_text.FORMS):
            try:
                text, probe = self._apply(form(chat), tools), self._apply(form(tagged), tools)
            except TemplateError as error:
                refusal = str(error)
                continue
            if all(tag in probe for tag in needed):
                return index, text
            refusal = "it leaves out a message or a tool"
        roles = ", ".join(message["role"] for message in chat) or "none"
        raise ModelError(
            f"the chat template of {self.source} refuses a chat with the roles [{roles}]: {refusal}; "
            f"use a model whose template takes them, or change the order in which the game tells its messages"
        )

    def _apply(self, chat: Chat, tools: Sequence[Json]) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat, tools=functions(tools) or None, tokenize=False, add_generation_prompt=True
            )
        )

    def _tail(self, past: int, chat: Chat, mark: str, guard: Guard, listed: str) -> str | None:
        """Returns what the template prints after the reply, or None if it reprints the past in another way."""
        past_form, before = self._print_with_form(chat_text.guarded(chat[:past], guard), listed)
        try:
            form, whole = self._print_with_form(chat_text.guarded(chat, guard), listed)
        except ModelError:  # a result after what is no call to it; as a call it may take it
            return None
        if past_form != form or not whole.startswith(before):
            return None
        reply = chat_text.guarded([chat[past]], guard)[0]["content"]
        rest = whole[len(before) :]
        for printed in (reply, reply.rstrip(), reply.lstrip(), reply.strip(), " " + reply.strip()):
            if rest.startswith(printed):
                return rest[len(printed) :]
        return None

    def _escaped(self, chat: Chat) -> Chat:
        """Returns the chat with control tokens of one character, and plain tags of the template, written as escapes."""

        def escape(match: re.Match[str]) -> str:
            return match[0].encode("unicode_escape").decode("ascii")

        def defuse(match: re.Match[str]) -> str:
            # The library's own form may be quoted to a seat, e.g. when its last call was none.
            return match[0] if role == "user" and match[0].endswith("tool_call") else "\\x3c" + match[0][1:]

        found: Chat = []
        for message in chat:
            role = message["role"]
            message = chat_text.changed(message, lambda text: self._single.sub(escape, text))
            found.append(
                chat_text.changed(message, lambda text: self._tag.sub(defuse, text)) if role in SENDERS else message
            )
        return found

    def _light(self, mark: str) -> Guard:
        """A guard that breaks each literal marker, and leaves all other text as it is."""

        def break_marker(match: re.Match[str]) -> str:
            return match[0][:1] + mark + match[0][1:]

        return lambda text: self._marker.sub(break_marker, text)

    def _is_harmless(self, chat: Chat) -> bool:
        """Whether no message can hold a marker, not even one that a normalizer or a template puts together."""
        return all(text.isascii() and self._first_characters.isdisjoint(text) for text in chat_text.texts(chat))

    def _encode(self, text: str, mark: str) -> list[int]:
        """Encodes the pieces between marks one by one; markers in a piece become their ids."""
        ids: list[int] = []
        for piece in text.split(mark):
            if piece:
                ids += self.tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _encode_long_pieces(self, text: str, mark: str) -> list[int]:
        """As `_encode`, without the pieces that are too short for a marker."""
        return self._encode(mark.join(piece for piece in text.split(mark) if len(piece.strip()) > 1), mark)

    def _count(self, ids: Iterable[int]) -> int:
        return sum(token in self._control_ids for token in ids)

    def _end_of_turn(self) -> int | None:
        """The control id that the template prints after a reply, if it prints one."""
        chat: Chat = [
            {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))
        ]
        mark = chat_text.unused_character(chat)
        tail = self._tail(1, chat, mark, self._light(mark), "")
        ids = self._encode(tail, mark) if tail else []
        return ids[0] if ids and ids[0] in self._control_ids else None


def _control_tokens(tokenizer: Any) -> tuple[set[str], set[int]]:
    """Returns (texts that must not work inside messages, ids of control tokens).

    These are the special tokens and every other added token of more than one visible character. The unknown token's
    id is left out: with a small vocabulary any odd word becomes it.
    """
    texts: set[str] = set()
    ids: set[int] = set()
    for token, added in tokenizer.added_tokens_decoder.items():
        long = len(added.content.strip()) > 1
        if long:
            texts.add(added.content)
        if (long or added.special) and token != tokenizer.unk_token_id:
            ids.add(token)
    return texts, ids


def _single_controls(tokenizer: Any) -> list[str]:
    """Returns the special tokens of one character that text may hold. White space and the unknown token stay usable."""
    added = tokenizer.added_tokens_decoder.items()
    special = {one.content for token, one in added if one.special and token != tokenizer.unk_token_id}
    return sorted(text for text in special if len(text) == 1 and not text.isspace())
