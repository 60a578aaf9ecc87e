r"""Chat to token ids and back, for one model: its chat template, its tokenizer, its stop ids.

Three rules shape this file.

Text of a message is untrusted. A literal `<|im_end|>` in it must not become the real special id, so the marker is
broken by an inserted character before the template runs, and the text is encoded in the pieces between those
characters. The reader still sees the marker's text; the ids of control tokens come from the template alone, and that is
checked by counting them. A control token of a single character can't be broken; in message text it is written as its
escape, `\xa7` for `§`. In the seat's own messages `<think>` tags stay whole, because templates read them there.

Ids are never made again from sampled text. `ChatFormat.extend` answers the ids of the next prompt as (ids sent so far)
+ (ids sampled) + (what the template puts after the reply), or None where the template rewrites its own past.
`ChatFormat.append` asks the template for no more than what it puts between any reply and the next prompt, so the past
stays as it was sent, thinking too, also where the template would drop it.

Tools are printed by the template, if it has them and the model's calls can be read, else in plain text; see
llm_arena.tool_format. Tags of a template that are plain text, and not control tokens, can't be broken either: where a
result or a user message holds them, their `<` is written as `\x3c`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from llm_arena import chat_text
from llm_arena.chat_text import Chat, Controls, Frozen, Guard
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

History = Literal["template", "append"]
"""What the past looks like in a seat's next prompt: as the template prints it now, or as it was sent and sampled."""

_THOUGHT = "<think>\n"


class ChatFormat:
    """Renders messages to token ids as one model expects them.

    Args:
        tokenizer: a transformers tokenizer that has a chat template.
        source: what the tokenizer was loaded from, for messages.
        stop_ids: ids that end a reply; those that the tokenizer and the template show are added.
        thinking: sets the template's switch for thinking; None leaves it as the template has it.

    Raises:
        ModelError: there is no chat template, it can't be compiled, or it has no such switch.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        source: str = "the tokenizer",
        stop_ids: Iterable[int] = (),
        thinking: bool | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                f"{source} has no chat template; use an instruct or chat model, or save a template with "
                f"tokenizer.chat_template = ... and tokenizer.save_pretrained(...)"
            )
        self.tokenizer = tokenizer
        self.source = source
        self._given_stop_ids = tuple(stop_ids)
        self._others: dict[bool | None, ChatFormat] = {thinking: self}
        self._switches: dict[str, bool] = {}
        self._switches = chat_text.thinking_switches(self._apply, thinking, source)
        self._thinks = _THOUGHT.strip() in str(tokenizer.chat_template)
        self._controls = Controls(tokenizer)
        self._form = form_of(self._apply)
        parser = parser_name(str(tokenizer.name_or_path)) if self._form != "none" else None
        self._ids = None if parser is None else IdReader(tokenizer, parser)
        self.has_tools = self._form in ("block", "json") or self._ids is not None
        """Whether the model is told of tools by its own template, and calls them in its own form."""
        self._tag = tags_in(tokenizer.chat_template if self.has_tools else "", self._controls.texts)
        # Many episodes share their openings, and one render costs as much as a short game.
        self._rendered = functools.lru_cache(1024)(self._render)
        self._tails = functools.lru_cache(1024)(self._tail_ids)
        self._print([{"role": "user", "content": "a"}], "")  # what does not compile, or takes nobody, is told at once
        self.why_not_append = ""
        """Why `append` is out of the question for the template; empty where it is not."""
        self._end_of_turn = self._end_of_a_reply()
        ends = [*self._given_stop_ids, tokenizer.eos_token_id, self._first_after_a_reply()]
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

    def with_thinking(self, thinking: bool | None) -> ChatFormat:
        """Returns this format with the template's thinking switched on or off, or as the template has it (None).

        Raises:
            ModelError: the template has no such switch, and does not do so anyway.
        """
        if thinking not in self._others:
            other = ChatFormat(self.tokenizer, source=self.source, stop_ids=self._given_stop_ids, thinking=thinking)
            other._others = self._others
            self._others[thinking] = other
        return self._others[thinking]

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
        ids = self._encode(self._print(chat_text.guarded(chat, self._controls.broken(mark)), listed), mark)
        if self._controls.can_not_be_in(chat):
            return ids
        # The count of control ids must be the template's own. Text in which no marker can stand tells that number.
        strict = self._print(chat_text.guarded(chat, chat_text.strict(mark)), listed)
        if self._controls.count(ids) == self._controls.count(self._encode_long_pieces(strict, mark)):
            return ids
        return self._encode(strict, mark)

    def extend(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
        tools: Sequence[Json] = (),
        stop_ids: Sequence[int] = (),
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
            stop_ids: more ids that could end the reply, beside those of this format.
        """
        return self._go_on(past_messages, prompt_ids, completion, new_messages, tools, stop_ids, "template")

    def append(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
        tools: Sequence[Json] = (),
        stop_ids: Sequence[int] = (),
    ) -> list[int]:
        """Returns the next prompt as an extension of the last call's ids [P'], whatever the template makes of the past.

        The result starts with `prompt_ids` + `completion.token_ids`, exactly. What follows is what the template prints
        behind a plain word in the reply's place, so nothing of it depends on what the reply was.

        Args:
            past_messages: the messages that were told before the reply.
            prompt_ids: all ids of the last call [P].
            completion: what was sampled for them.
            new_messages: the messages after the reply.
            tools: what may be called now.
            stop_ids: more ids that could end the reply, beside those of this format.

        Raises:
            ModelError: the template does not print such a word once, with all new messages behind it.
        """
        ids = self._go_on(past_messages, prompt_ids, completion, new_messages, tools, stop_ids, "append")
        assert ids is not None  # `_between` raises instead
        return ids

    def _go_on(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
        tools: Sequence[Json],
        stop_ids: Sequence[int],
        history: History,
    ) -> list[int] | None:
        sampled = completion.token_ids
        reply = Message(role="assistant", content=self.read(prompt_ids, sampled, tools))
        past, _ = self._asked(past_messages, tools)
        chat, listed = self._asked([*past_messages, reply, *new_messages], tools)
        ids = self._tails(len(past), self.decode(sampled) if history == "template" else None, chat, listed)
        if ids is None:
            return None
        place = self._first_control(ids)
        if place is not None and sampled and sampled[-1] in self._controls.ids:
            # A sampled stop id ends the turn: the template's own, the same or another, would be a second one. A tag of
            # the reply's text that somebody stops at (</tool_call>) ends the text alone, and the turn is still open.
            last, first = sampled[-1], ids[place]
            stopped = last in self.stop_ids or (last in stop_ids and last in self._controls.silent)
            if first == last or (stopped and first == self._end_of_turn):
                ids = ids[place + 1 :]
        return [*prompt_ids, *sampled, *ids]

    def _tail_ids(self, past: int, reply: str | None, frozen: Frozen, listed: str) -> list[int] | None:
        """Returns the ids that the template puts after `reply`, or after any one (None), behind `past` messages."""
        chat = self._prepared(chat_text.thaw(frozen))
        # A call as it was sampled is no structure: a template would print it in its own way.
        [chat[past]] = self._controls.escaped([{"role": "assistant", "content": reply or ""}], self._tag)
        find = self._between if reply is None else self._tail
        mark = chat_text.unused_character(chat)
        tail = find(past, chat, mark, self._controls.broken(mark), listed)
        if tail is None:
            return None
        ids = self._encode(tail, mark)
        if not self._controls.can_not_be_in(chat):
            strict = find(past, chat, mark, chat_text.strict(mark), listed)
            if strict is None:
                return None
            if self._controls.count(ids) != self._controls.count(self._encode_long_pieces(strict, mark)):
                ids = self._encode(strict, mark)
        return ids

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Sequence[Json] = ()) -> str:
        """Returns the reply that sampled ids are, with calls of tools in the library's form.

        Args:
            prompt_ids: all ids that were sent [P].
            ids: what was sampled for them [T].
            tools: what could be called. Without, and where no call can be read, it is the text of the ids. A thought
                that the prompt opened, and that the ids don't close, begins with its tag.
        """
        text = self._read(prompt_ids, ids, tools)
        # Else a game would take thoughts that were cut off for the answer.
        told = not text.strip() or "<think>" in text or "</think>" in text
        return text if told or not self._opens_thought(prompt_ids) else _THOUGHT + text

    def _read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Sequence[Json]) -> str:
        if tools and self._ids is not None:
            found = self._ids.read(prompt_ids, ids, tools)
            return self.decode(ids) if found is None else self.decode(ids[: found[0]]) + found[1]
        return from_json(self.decode(ids)) if tools and self._form == "json" else self.decode(ids)

    def _opens_thought(self, prompt_ids: Sequence[int]) -> bool:
        """Whether the template ended a prompt within a thought."""
        return self._thinks and self._text(prompt_ids[-4:]).rstrip().endswith(_THOUGHT.strip())

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of sampled ids, without special tokens; tags that games read stay, whatever their flag."""
        return self._text([token for token in ids if token not in self._controls.silent])

    def _text(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, special tokens too."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _prepared(self, chat: Chat) -> Chat:
        """Returns the chat as the template takes it, without what can't be broken in its texts."""
        return self._controls.escaped(structured(chat) if self.has_tools else chat, self._tag)

    def _print(self, chat: Chat, listed: str) -> str:
        """Prints the chat by the template, in the first form that the template takes."""
        return self._print_with_form(chat, listed)[1]

    def _print_with_form(self, chat: Chat, listed: str, behind: int | None = None) -> tuple[int, str]:
        """Returns (index of the form, text). Forms: as it is; same roles merged; system text in the first user turn.

        A form is taken if the template neither refuses it nor leaves out a message. What it leaves out of the seat's
        own messages (thinking) is its own affair. With `behind`, the index of a message, all that counts is that its
        text stands there once and all messages after it are printed behind it.
        """
        from jinja2 import TemplateError

        refusal = ""
        tools = json.loads(listed) if listed else []
        # With a character that no message holds: nobody's text stands for what is left out.
        probe_mark = chat_text.unused_character(chat)
        tags = [f"{probe_mark}{index}{probe_mark}" for index in range(len(chat) + len(tools))]
        tagged: Chat = [
            message if message["role"] == "assistant" else {**message, "content": message["content"] + tag}
            for message, tag in zip(chat, tags, strict=False)
        ]
        tagged_tools = [
            {**tool, "name": tool["name"] + tag} for tool, tag in zip(tools, tags[len(chat) :], strict=True)
        ]
        first = 0 if behind is None else behind
        needed = [
            tag for message, tag in zip(chat[first:], tags[first:], strict=False) if message["role"] != "assistant"
        ]
        needed += tags[len(chat) :] if behind is None else []
        for index, form in enumerate(chat_text.FORMS):
            try:
                text, probe = self._apply(form(chat), tools), self._apply(form(tagged), tagged_tools)
            except TemplateError as error:
                refusal = str(error)
                continue
            told = [probe] if behind is None else probe.split(chat[behind]["content"])[1:]
            if len(told) == 1 and all(tag in told[0] for tag in needed):
                return index, text
            refusal = "it leaves out a message or a tool" if behind is None else "it does not print them in this order"
        roles = ", ".join(message["role"] for message in chat) or "none"
        raise ModelError(
            f"the chat template of {self.source} refuses a chat with the roles [{roles}]: {refusal}; "
            f"use a model whose template takes them, or change the order in which the game tells its messages"
        )

    def _apply(
        self, chat: Chat, tools: Sequence[Json], *, switches: dict[str, bool] | None = None, ends: bool = False
    ) -> str:
        """Prints a chat as it is, with the opening of a reply unless it `ends`."""
        return str(
            self.tokenizer.apply_chat_template(
                chat,
                tools=functions(tools) or None,
                tokenize=False,
                add_generation_prompt=not ends,
                **(self._switches if switches is None else switches),
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

    def _between(self, past: int, chat: Chat, mark: str, guard: Guard, listed: str) -> str:
        """Returns what the template prints between a reply, which stands after `past` messages, and the next prompt."""
        word = f"{mark}reply{mark}"  # nothing to drop, to trim or to read; guards leave no two marks so
        probed = [*chat_text.guarded(chat, guard)]
        probed[past] = {"role": "assistant", "content": word}
        try:
            return self._print_with_form(probed, listed, behind=past)[1].rpartition(word)[2]
        except ModelError as error:
            raise ModelError(f"history=append: {error}; or use history=template") from error

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

    def _first_control(self, ids: Sequence[int] | None) -> int | None:
        """The place of the first control id, if there is one with nothing but white space before it."""
        place = next((at for at, token in enumerate(ids or []) if token in self._controls.ids), None)
        return place if ids is not None and place is not None and not self._text(ids[:place]).strip() else None

    def _first_after_a_reply(self) -> int | None:
        """The control id that the template prints first after a reply that a user message follows, if it prints one."""
        chat: Chat = [
            {"role": role, "content": text} for role, text in (("user", "a"), ("assistant", ""), ("user", "c"))
        ]
        mark = chat_text.unused_character(chat)
        try:
            tail = self._between(1, chat, mark, self._controls.broken(mark), "")
        except ModelError as error:
            self.why_not_append = str(error)
            return None
        ids = self._encode(tail, mark)
        place = self._first_control(ids)
        return None if place is None else ids[place]

    def _end_of_a_reply(self) -> int | None:
        """The control id with which the template ends a reply.

        None where it has no such id, or the next message's own marker ends the reply (GLM): that is never to be left
        out, so it counts what the template prints when nothing follows, not even the opening of a reply.
        """
        from jinja2 import TemplateError

        mark = chat_text.unused_character([])
        word = f"{mark}reply{mark}"
        try:
            printed = self._apply(
                [{"role": "user", "content": "a"}, {"role": "assistant", "content": word}], [], ends=True
            )
        except TemplateError:
            return None
        ids = self._encode(printed.rpartition(word)[2], mark) if printed.count(word) == 1 else []
        place = self._first_control(ids)
        return None if place is None else ids[place]
