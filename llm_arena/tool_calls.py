"""Tools of a game: how a seat calls one, in text that is the same for every model.

A reply calls a tool by one block, after any words:

    <tool_call>{"name": "search", "arguments": {"query": "founder of Brandholm"}}</tool_call>

That is also what models of the Hermes and Qwen families write by themselves; agents of other models turn their own form
into this one. What a seat may call is declared by `ArenaEnv.tools(seat)`; results are told as messages of role `tool`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.types import Cause, Json, Reply

_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
BLOCK = re.compile(r"<tool_call>((?:(?!<tool_call>)[\s\S])*?)</tool_call>")
"""A block that calls a tool; its group is the call as JSON."""
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool."""

    name: str
    arguments: dict[str, Json]


def write_tool_call(call: ToolCall) -> str:
    """Returns the block that calls a tool.

    >>> write_tool_call(ToolCall("open", {"id": "d7"}))
    '<tool_call>{"name": "open", "arguments": {"id": "d7"}}</tool_call>'
    """
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"{_OPENING}{body}{_CLOSING}"


def read_tool_call(reply: Reply, tools: Sequence[Json]) -> ToolCall | None:
    """Returns the call that `reply` makes, or None if it makes none.

    Args:
        reply: the seat's reply; its thoughts don't count.
        tools: what the seat may call, as `ArenaEnv.tools` returns it.

    Raises:
        IllegalReply: the block is no JSON object with a name and arguments, or was not closed (unparsable, or `length`
            if the reply was cut); two different calls are made (ambiguous); the tool does not exist, or its arguments
            do not fit its schema (illegal).
    """
    text = strip_thinking(reply)
    if _OPENING not in text:
        return None
    names = ", ".join(tool["name"] for tool in tools)
    form = f'Call one tool as {_OPENING}{{"name": ..., "arguments": {{...}}}}{_CLOSING}; tools: {names}.'
    blocks = BLOCK.findall(text)
    if len(blocks) < text.count(_OPENING):
        raise IllegalReply(Cause.LENGTH if reply.finish == "length" else Cause.UNPARSABLE, form)
    calls = [_read(block, form) for block in blocks]
    if any(call != calls[0] for call in calls):
        raise IllegalReply(Cause.AMBIGUOUS, f"Make one call at a time. {form}")
    [tool] = [tool for tool in tools if tool["name"] == calls[0].name] or [None]
    if tool is None:
        raise IllegalReply(Cause.ILLEGAL, f"There is no such tool. {form}")
    wrong = _misfit(calls[0].arguments, tool["parameters"])
    if wrong:
        raise IllegalReply(Cause.ILLEGAL, f"{wrong} {form}")
    return calls[0]


def decode_call(text: str, keys: Sequence[str] = ("arguments",)) -> ToolCall | None:
    """Returns the call that a JSON object with a name and arguments is; None for any other text.

    Args:
        text: the object.
        keys: the names that its arguments may stand under; an object of a name alone has none.
    """
    try:
        # not json.loads: it takes NaN, and nesting without an end
        value = msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or len(value) > 2:
        return None
    arguments: Json = next((value[key] for key in keys if key in value), {} if len(value) == 1 else None)
    return ToolCall(value["name"], arguments) if isinstance(arguments, dict) else None


def _read(block: str, form: str) -> ToolCall:
    call = decode_call(block)
    if call is None:
        raise IllegalReply(Cause.UNPARSABLE, form)
    return call


def _misfit(arguments: dict[str, Json], schema: dict[str, Any]) -> str:
    """Returns in words what does not fit the schema (of an object with plain properties), or an empty string."""
    properties: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in arguments:
            return f"The argument {name} is missing."
    for name, value in arguments.items():
        if name not in properties:
            return f"There is no such argument; there are: {', '.join(properties) or 'none'}."
        declared = properties[name]
        kinds = _TYPES[declared["type"]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            return f"The argument {name} has to be of type {declared['type']}."
        if "enum" in declared and value not in declared["enum"]:
            return f"The argument {name} has to be one of {declared['enum']}."
    return ""
