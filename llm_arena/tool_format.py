"""Tools as one model knows them: how it is told of them, how its calls and their results are printed, how it calls.

Games and traces hold calls in one form (see llm_arena.tool_calls). A chat template that has tools gets them as
structure: the list of tools, `tool_calls` of the seat's own messages, messages of role `tool`. For any other template
all is text: the system message lists the tools with an example, and a result is a quoted user message.

Calls come back in the model's own form. The package `renderers` reads it from the sampled ids where it knows the model
by its name on the hub. Else the form is the one that the template prints: Hermes' and Qwen's blocks are the library's
own form already, and the bare JSON object of Llama 3 is turned into it. A model whose form nobody here reads is told of
tools in plain text. What can't be read stays as it is, for the game to judge.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from llm_arena.chat_text import Chat
from llm_arena.parsing import IllegalReply, printable, quote, strip_thinking
from llm_arena.tool_calls import BLOCK, ToolCall, decode_call, write_tool_call
from llm_arena.types import Json

Form = Literal["none", "block", "json", "other"]
"""How a chat template prints a call: not at all, as `<tool_call>` block, as bare JSON object, in some other way."""

_TAG = re.compile(r"</?\w*tool\w*")
_BARE = re.compile(r'(?<!\[)\{"name": ?"probe_second", ?"(parameters|arguments)": ?\{"query": ?"probe value"\}\}')
_EXAMPLES = {"string": "...", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}
_PROBES: list[Json] = [
    {
        "name": name,
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    }
    for name in ("probe_first", "probe_second")
]


def form_of(apply: Callable[[Chat, Sequence[Json]], str]) -> Form:
    """Returns the form of a chat template, by what it prints.

    Args:
        apply: prints a chat with a list of tools by the template; may raise whatever a template does.
    """
    from jinja2 import TemplateError

    call = ToolCall("probe_second", {"query": "probe value"})
    asked: Chat = [{"role": "user", "content": "probe"}]
    called: Chat = [*asked, _calling("", [call], 0)]
    answered: Chat = [*called, {"role": "tool", "content": "probe result", **_answering(called[-1])}]
    try:
        plain, told, whole = apply(asked, []), apply(asked, _PROBES), apply(answered, _PROBES)
    # templates are programs: one that joins text to what it takes for text raises TypeError
    except (TemplateError, TypeError):
        return "none"
    shared = next((at for at, pair in enumerate(zip(told, whole, strict=False)) if len(set(pair)) > 1), len(told))
    rest = whole[shared:]
    if any(tool["name"] not in told or tool["name"] in plain for tool in _PROBES) or "probe result" not in rest:
        return "none"
    if read_calls(rest)[1] == [call]:
        return "block"
    if _BARE.search(rest):
        return "json"
    return "other" if "probe value" in rest else "none"


def tags_in(template: str | Mapping[str, str], controls: set[str]) -> re.Pattern[str]:
    """Returns a pattern of the beginnings of those tags of a template that are about tools, and are plain text.

    Args:
        template: its source; the sources, where there are several by name.
        controls: texts of the tokenizer's control tokens.
    """
    source = template if isinstance(template, str) else "\n".join(template.values())
    tags = sorted({tag for tag in _TAG.findall(source) if f"{tag}>" not in controls}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, tags)) or r"(?!)")


def functions(tools: Sequence[Json]) -> list[Json]:
    """Returns tools as chat templates and parsers want them."""
    return [{"type": "function", "function": dict(tool)} for tool in tools]


# ---- what the model reads ----------------------------------------------------------------------------------------


def structured(chat: Chat) -> Chat:
    """Returns a chat of texts with the calls of the seat's own messages, and their results, as structure."""
    found: Chat = []
    answered: Mapping[str, Any] = {}
    for index, message in enumerate(chat):
        if message["role"] == "assistant":
            words, calls = read_calls(message["content"])
            message = _calling(words, calls, index) if calls else message
            answered = _answering(message)
        elif message["role"] == "tool":
            message = {**message, **answered}
        found.append(message)
    return found


def in_text(chat: Chat, tools: Sequence[Json]) -> Chat:
    """Returns a chat for a template without tools: they are described in the system text, and results are quoted."""
    told: Chat = []
    name = "a tool"
    for message in chat:
        text = message["content"]
        if message["role"] == "assistant":
            calls = read_calls(text)[1]
            name = " ".join(calls[-1].name.split()) if calls else name
        if message["role"] == "tool":
            result = quote(text, max_characters=max(len(text), 1))  # how long it may be is the game's affair
            message = {"role": "user", "content": f"Result of {printable(name):.60}:\n{result}"}
        told.append(message)
    if not tools:
        return told
    if told and told[0]["role"] == "system":
        return [{"role": "system", "content": f"{told[0]['content']}\n\n{described(tools)}"}, *told[1:]]
    return [{"role": "system", "content": described(tools)}, *told]


def described(tools: Sequence[Json]) -> str:
    """Returns what a model without tools of its own is told of them.

    >>> print(described([{"name": "open", "description": "Shows a page.", "parameters": {"type": "object",
    ...     "properties": {"id": {"type": "string"}}, "required": ["id"]}}]))
    You can use tools. To use one, reply with exactly one call and nothing else:
    <tool_call>{"name": "open", "arguments": {"id": "..."}}</tool_call>
    Tools:
    open(id: string) Shows a page.
    """
    example = write_tool_call(ToolCall(tools[0]["name"], _example(tools[0]["parameters"])))
    lines = [f"{tool['name']}({_signature(tool['parameters'])}) {tool['description']}" for tool in tools]
    return "\n".join(
        ["You can use tools. To use one, reply with exactly one call and nothing else:", example, "Tools:", *lines]
    )


def _signature(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    parts = []
    for name, declared in schema.get("properties", {}).items():
        kind = declared.get("type", "any")
        if "enum" in declared:
            kind = " or ".join(json.dumps(value, ensure_ascii=False) for value in declared["enum"])
        said = f" ({declared['description']})" if "description" in declared else ""
        parts.append(f"{name}{'' if name in required else '?'}: {kind}{said}")
    return ", ".join(parts)


def _example(schema: Mapping[str, Any]) -> dict[str, Json]:
    properties = schema.get("properties", {})
    wanted = schema.get("required", ()) or list(properties)[:1]
    return {name: (properties[name].get("enum") or [_EXAMPLES.get(properties[name].get("type"))])[0] for name in wanted}


def _calling(words: str, calls: Sequence[ToolCall], index: int) -> dict[str, Any]:
    # Nine characters, letters or digits: Mistral's templates take no other id.
    written = [
        {
            "type": "function",
            "id": f"{index:05d}{place:04d}",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": words, "tool_calls": written}


def _answering(message: Mapping[str, Any]) -> dict[str, str]:
    """Returns what a result says of the call in `message` that it belongs to; nothing if there is none."""
    calls = message.get("tool_calls")
    return {"name": calls[-1]["function"]["name"], "tool_call_id": calls[-1]["id"]} if calls else {}


# ---- what the model writes ---------------------------------------------------------------------------------------


def read_calls(text: str) -> tuple[str, list[ToolCall]]:
    """Returns (what stands around the calls, the different calls of a text in the library's form).

    Calls among thoughts are none. If one of the blocks can't be read there is no call, and all of it is words.
    """
    words = text
    calls: list[ToolCall] = []
    for block in BLOCK.finditer(_answer(text)):
        call = decode_call(block[1])
        if call is None:
            return text, []
        if call not in calls:
            calls.append(call)
        before, _, after = words.rpartition(block[0])  # the last one: a thought before it may try the same words
        words = before + after
    return words, calls


def from_json(text: str) -> str:
    """Returns a reply whose answer is a bare JSON object with a name and parameters in the library's form.

    >>> from_json('{"name": "open", "parameters": {"id": "d7"}}')
    '<tool_call>{"name": "open", "arguments": {"id": "d7"}}</tool_call>'
    """
    answer = _answer(text).strip()
    call = decode_call(answer, ("parameters", "arguments"))
    if call is None or answer not in text:  # a thought in the midst of it
        return text
    before, _, after = text.rpartition(answer)
    return before + write_tool_call(call) + after


def _answer(text: str) -> str:
    """Returns a text without thoughts, as games read it; nothing where a thought was never closed."""
    try:
        return strip_thinking(text)
    except IllegalReply:
        return ""


class IdReader:
    """Reads calls from sampled ids by the parser that `renderers` has for one model.

    Args:
        tokenizer: of the model.
        name: of the parser.
    """

    def __init__(self, tokenizer: Any, name: str) -> None:
        from renderers import config_from_name, create_renderer  # type: ignore[import-untyped]  # it has no py.typed

        self._renderer = create_renderer(tokenizer, config_from_name(name))

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Sequence[Json]) -> tuple[int, str] | None:
        """Returns (number of ids before the calls, the calls in the library's form); None where none can be read."""
        try:
            parsed = self._renderer.parse_response(list(ids), tools=functions(tools), prompt_ids=list(prompt_ids))
        # The boundary of the parser: it meets whatever a model samples, e.g. brackets nested without an end.
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return None
        calls = parsed.tool_calls
        begins = [call.token_span[0] for call in calls if call.token_span is not None]
        good = all(call.status == "ok" and call.name and isinstance(call.arguments, dict) for call in calls)
        if not calls or not good or len(begins) < len(calls):
            return None
        return min(begins), "".join(write_tool_call(ToolCall(call.name, call.arguments)) for call in calls)


@functools.cache
def parser_name(model: str) -> str | None:
    """Returns the name of the parser of `renderers` for a model; None where it has none or is not installed.

    Args:
        model: a hub id, or the folder of a snapshot in the hub's cache, which has the id in its path.
    """
    try:
        from renderers.base import MODEL_RENDERER_MAP  # type: ignore[import-untyped]  # it has no py.typed
    except ModuleNotFoundError:
        return None
    cached = [part.removeprefix("models--") for part in Path(model).parts if part.startswith("models--")]
    known: dict[str, str] = MODEL_RENDERER_MAP
    return known.get(cached[-1].replace("--", "/", 1) if cached else model)
