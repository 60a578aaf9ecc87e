"""Tools through a renderer of the package `renderers`: what it is told of them, and the calls that it reads."""

import json

import pytest

from llm_arena.adapters.token_env import token_env
from llm_arena.tool_format import functions
from tool_parts import HERMES, HERMES_TAGS, TOOLS, Lookup, chat_with

LIMITS = {"max_trajectory_tokens": 4000, "max_generation_tokens": 400}


@pytest.fixture(scope="module")
def qwen(toy_chat):
    """A renderer of the package `renderers` that takes any text, and its tokenizer."""
    import renderers

    tokenizer = chat_with(toy_chat("newline", think_tokens=True), HERMES, ["<|endoftext|>", *HERMES_TAGS]).tokenizer
    return renderers.create_renderer(tokenizer, renderers.Qwen3RendererConfig(enable_thinking=False)), tokenizer


def test_a_packaged_renderer_gets_tools_as_templates_do(qwen):
    renderer, tokenizer = qwen
    env = token_env(Lookup(), renderer=renderer, **LIMITS)
    ids, _ = env.reset(seed=0)
    listed = "\n".join(json.dumps(tool) for tool in functions(TOOLS))
    assert f"<tools>\n{listed}\n</tools>" in tokenizer.decode(ids)
    without = token_env("kuhn-poker-v0", renderer=renderer, **LIMITS).reset(seed=0)[0]
    assert "<tools>" not in tokenizer.decode(without)


def test_calls_that_a_packaged_renderer_reads_are_in_the_library_s_form(qwen):
    renderer, tokenizer = qwen
    env = token_env(Lookup(), renderer=renderer, **LIMITS)
    ids, stop_ids = env.reset(seed=0)
    call = '<tool_call>\n{"name": "open", "arguments": {"id": "d\u00e9"}}\n</tool_call>'
    broken = '<tool_call>\n{"name": "open"\n</tool_call>'
    said = [*tokenizer.encode(f"So:\n{broken}\n{call}", add_special_tokens=False), stop_ids[0]]
    result = env.step(said)
    assert env.seat_env.game.last_step.action == ["open", {"id": "d\u00e9"}]
    [own] = [message for message in env.seat_env.view().messages if message["role"] == "assistant"]
    assert own["content"] == f"So:\n{call}".replace("\n{", "{").replace("}\n", "}")
    assert result.next_observation[: len(ids) + len(said)] == ids + said


@pytest.mark.parametrize("status", ["unknown_tool", "invalid_json", "malformed_structure"])
def test_a_call_that_a_packaged_renderer_finds_fault_with_is_left_out(qwen, monkeypatch, status):
    from renderers.base import ParsedResponse, ParsedToolCall, ToolCallParseStatus

    calls = [
        ParsedToolCall("", name="close", arguments={}, status=ToolCallParseStatus(status)),
        ParsedToolCall("", name="open", arguments={"id": "d7"}),
    ]
    monkeypatch.setattr(qwen[0], "parse_response", lambda ids, **rest: ParsedResponse("", tool_calls=calls))
    env = token_env(Lookup(), renderer=qwen[0], **LIMITS)
    env.reset(seed=0)
    env.step([env.renderer.stop_ids[0]])
    assert env.seat_env.game.last_step.action == ["open", {"id": "d7"}]
