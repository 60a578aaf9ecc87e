r"""Chat to token ids and back, for one model: its chat template, its tokenizer, its stop ids.

Two rules shape this file.

Text of a message is untrusted. A literal `<|im_end|>` in it must not become the real special id, so the marker is
broken by an inserted character before the template runs, and the text is encoded in the pieces between those
characters. The reader still sees the marker's text; the ids of control tokens come from the template alone, and that is
checked by counting them. A control token of a single character can't be broken; in message text it is written as its
escape, `\xa7` for `§`. In the seat's own messages `<think>` tags stay whole, because templates read them there.

Ids are never made again from sampled text. `ChatFormat.extend` answers the ids of the next prompt as (ids sent so far)
+ (ids sampled) + (what the template puts after the reply), or None where the template rewrites its own past.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from llm_arena.errors import ModelError
from llm_arena.types import Completion, Message

_THINK_TAGS = re.compile(r"(</?think>)")
_PRIVATE_USE = range(0xE000, 0xF8FF)

Guard = Callable[[str], str]
Chat = list[dict[str, str]]
Frozen = tuple[tuple[str, str], ...]
"""A chat as (role, content) pairs, to look it up by."""


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
        import json

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

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of the whole chat with the generation prompt [P].

        Raises:
            ModelError: the template refuses the chat in every form, or a message holds an image.
        """
        return list(self._rendered(_frozen(self._escaped(_plain(messages)))))

    def _render(self, frozen: Frozen) -> list[int]:
        chat = _thawed(frozen)
        mark = _unused_character(chat)
        ids = self._encode(self._print(_guarded(chat, self._light(mark))), mark)
        if self._is_harmless(chat):
            return ids
        # The count of control ids must be the template's own. Text in which no marker can stand tells that number.
        strict = self._print(_guarded(chat, _strict(mark)))
        if self._count(ids) == self._count(self._encode_long_pieces(strict, mark)):
            return ids
        return self._encode(strict, mark)

    def extend(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
    ) -> list[int] | None:
        """Returns the next prompt as an extension of the last call's ids [P'], or None where the template forbids it.

        The result starts with `prompt_ids` + `completion.token_ids`, exactly. It is None when the template rewrites
        what it printed before (drops thinking, merges messages): then the chat has to be rendered afresh.

        Args:
            past_messages: the messages that `prompt_ids` were rendered from.
            prompt_ids: all ids of the last call [P].
            completion: what was sampled for them.
            new_messages: the messages after the reply.
        """
        reply = self.decode(completion.token_ids)
        past = self._escaped(_plain(past_messages))
        chat = [*past, *self._escaped([{"role": "assistant", "content": reply}, *_plain(new_messages)])]
        ids = self._tails(len(past), _frozen(chat))
        if ids is None:
            return None
        sampled = completion.token_ids
        if ids and sampled and ids[0] == sampled[-1] and ids[0] in self._control_ids:
            ids = ids[1:]
        return [*prompt_ids, *sampled, *ids]

    def _tail_ids(self, past: int, frozen: Frozen) -> list[int] | None:
        """Returns the ids that the template puts after the reply, which stands after `past` messages."""
        chat = _thawed(frozen)
        mark = _unused_character(chat)
        tail = self._tail(chat[:past], chat, mark, self._light(mark))
        if tail is None:
            return None
        ids = self._encode(tail, mark)
        if not self._is_harmless(chat):
            strict = self._tail(chat[:past], chat, mark, _strict(mark))
            if strict is None:
                return None
            if self._count(ids) != self._count(self._encode_long_pieces(strict, mark)):
                ids = self._encode(strict, mark)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of sampled ids, without special tokens."""
        text = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return str(text)

    def _print(self, chat: Chat) -> str:
        """Prints the chat by the template, in the first form that the template takes."""
        return self._print_with_form(chat)[1]

    def _print_with_form(self, chat: Chat) -> tuple[int, str]:
        """Returns (index of the form, text). Forms: as it is; same roles merged; system text in the first user turn.

        A form is taken if the template neither refuses it nor leaves out a message. What it leaves out of the seat's
        own messages (thinking) is its own affair.
        """
        from jinja2 import TemplateError

        refusal = ""
        tags = [f"\uf8ff{index}\uf8ff" for index in range(len(chat))]
        tagged: Chat = [
            message if message["role"] == "assistant" else {**message, "content": message["content"] + tag}
            for message, tag in zip(chat, tags, strict=True)
        ]
        needed = [tag for message, tag in zip(chat, tags, strict=True) if message["role"] != "assistant"]
        for index, form in enumerate((_as_it_is, _merged, _folded)):
            try:
                text, probe = self._apply(form(chat)), self._apply(form(tagged))
            except TemplateError as error:
                refusal = str(error)
                continue
            if all(tag in probe for tag in needed):
                return index, text
            refusal = "it leaves out a message"
        roles = ", ".join(message["role"] for message in chat) or "none"
        raise ModelError(
            f"the chat template of {self.source} refuses a chat with the roles [{roles}]: {refusal}; "
            f"use a model whose template takes them, or change the order in which the game tells its messages"
        )

    def _apply(self, chat: Chat) -> str:
        return str(self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))

    def _tail(self, past: Chat, chat: Chat, mark: str, guard: Guard) -> str | None:
        """Returns what the template prints after the reply, or None if it reprints the past in another way."""
        past_form, before = self._print_with_form(_guarded(past, guard))
        form, whole = self._print_with_form(_guarded(chat, guard))
        if past_form != form or not whole.startswith(before):
            return None
        reply = _guarded([chat[len(past)]], guard)[0]["content"]
        rest = whole[len(before) :]
        for printed in (reply, reply.rstrip(), reply.lstrip(), reply.strip(), " " + reply.strip()):
            if rest.startswith(printed):
                return rest[len(printed) :]
        return None

    def _escaped(self, chat: Chat) -> Chat:
        """Returns the chat with control tokens of one character written as escapes."""

        def escape(match: re.Match[str]) -> str:
            return match[0].encode("unicode_escape").decode("ascii")

        return [{**message, "content": self._single.sub(escape, message["content"])} for message in chat]

    def _light(self, mark: str) -> Guard:
        """A guard that breaks each literal marker, and leaves all other text as it is."""

        def break_marker(match: re.Match[str]) -> str:
            return match[0][:1] + mark + match[0][1:]

        return lambda text: self._marker.sub(break_marker, text)

    def _is_harmless(self, chat: Chat) -> bool:
        """Whether no message can hold a marker, not even one that a normalizer or a template puts together."""
        return all(
            message["content"].isascii() and self._first_characters.isdisjoint(message["content"]) for message in chat
        )

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
        past = [{"role": "user", "content": "a"}]
        chat = [*past, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
        mark = _unused_character(chat)
        tail = self._tail(past, chat, mark, self._light(mark))
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


def _frozen(chat: Chat) -> Frozen:
    return tuple((message["role"], message["content"]) for message in chat)


def _thawed(frozen: Frozen) -> Chat:
    return [{"role": role, "content": content} for role, content in frozen]


def _plain(messages: Sequence[Message]) -> Chat:
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


def _unused_character(chat: Chat) -> str:
    """Returns a private-use character that no message holds."""
    used = set().union(*(message["content"] for message in chat)) if chat else set()
    return next(chr(code) for code in _PRIVATE_USE if chr(code) not in used)


def _guarded(chat: Chat, guard: Guard) -> Chat:
    """Applies the guard to every message; think tags of the seat's own messages stay whole."""
    guarded: Chat = []
    for message in chat:
        content = message["content"]
        if message["role"] == "assistant":
            content = "".join(
                part if _THINK_TAGS.fullmatch(part) else guard(part) for part in _THINK_TAGS.split(content)
            )
        else:
            content = guard(content)
        guarded.append({"role": message["role"], "content": content})
    return guarded


def _strict(mark: str) -> Guard:
    """A guard that breaks text after every visible character, so that no marker of two or more can stand in it."""
    return lambda text: re.sub(r"(?<=\S)(?=.)", mark, text, flags=re.DOTALL)


def _as_it_is(chat: Chat) -> Chat:
    return chat


def _merged(chat: Chat) -> Chat:
    """Joins neighbours of one role, with a blank line between."""
    merged: Chat = []
    for message in chat:
        if merged and merged[-1]["role"] == message["role"]:
            content = merged[-1]["content"] + "\n\n" + message["content"]
            merged[-1] = {"role": message["role"], "content": content}
        else:
            merged.append(message)
    return merged


def _folded(chat: Chat) -> Chat:
    """Puts system text into the user turn that follows it, for templates without a system role."""
    return _merged([{**message, "role": "user"} if message["role"] == "system" else message for message in chat])
