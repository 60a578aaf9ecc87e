"""Chat templates with tools, small ones with the habits of real families, and a game that has tools."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.parsing import IllegalReply
from llm_arena.tokens import ChatFormat
from llm_arena.tool_calls import read_tool_call
from llm_arena.types import Cause, Json, Move, Outcome, Reply

TOOLS: list[Json] = [
    {
        "name": "search",
        "description": "Finds passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "k": {"type": "integer"}},
            "required": ["query"],
        },
    },
    {
        "name": "open",
        "description": "Shows a document.",
        "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    },
]

HERMES = (
    # As Qwen's: tools in the system message, results in user turns, thoughts before the last question left out.
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' and not m.content.startswith('<tool_response>') %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% set own = messages[0].role == 'system' %}"
    "{% if tools %}<|im_start|>system\n{% if own %}{{ messages[0].content }}\n\n{% endif %}# Tools\n<tools>"
    "{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\nAnswer with <tool_call> and </tool_call>."
    "<|im_end|>\n{% elif own %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}{% set text = m.content %}"
    "{% if loop.index0 < ns.last and '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>assistant\n{{ text }}"
    "{% for call in m.tool_calls or [] %}{% if text or not loop.first %}\n{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>"
    "{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    # As Llama 3's: tools in the first user message, one call a reply as a bare JSON object, results as a JSON string.
    "{% macro head(role) %}<|im_start|>{{ role }}\n\n{% endmacro %}"
    "{% set ns = namespace(told=false) %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ head('ipython') }}{{ m.content | tojson }}<|im_end|>"
    "{% elif m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '{{ head(\'assistant\') }}{"name": "{{ m.tool_calls[0].function.name }}", '
    '"parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|im_end|>'
    "{% elif m.role == 'user' and tools and not ns.told %}{% set ns.told = true %}{{ head('user') }}"
    "Given these functions, answer with a call.\n\n{% for tool in tools %}{{ tool | tojson }}\n\n{% endfor %}"
    "{{ m.content }}<|im_end|>"
    "{% else %}{{ head(m.role) }}{{ m.content | trim }}<|im_end|>{% endif %}{% endfor %}"
    "{% if tools and not ns.told %}{{ raise_exception('no user message to put the tools into') }}{% endif %}"
    "{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}"
)
MISTRAL = (
    # As Mistral's: a list of calls with ids after a marker, strict turns, results only after a call.
    "{% set asked = messages | rejectattr('role', 'in', ['assistant', 'tool']) | list %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('a result without a call') }}{% endif %}"
    "[TOOL_RESULTS] {{ m.content }}[/TOOL_RESULTS]"
    '{% elif m.tool_calls %}[TOOL_CALLS] [{"name": "{{ m.tool_calls[0].function.name }}", '
    '"arguments": {{ m.tool_calls[0].function.arguments | tojson }}, "id": "{{ m.tool_calls[0].id }}"}]<|im_end|>'
    "{% elif m.role == 'assistant' %}{{ m.content }}<|im_end|>"
    "{% else %}{% if tools and m == asked[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {{ m.content }}[/INST]{% endif %}{% endfor %}"
)
HERMES_TAGS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def chat_with(base: ChatFormat, template: str, tokens: list[str] = [], *, name: str = "") -> ChatFormat:  # noqa: B006 read only
    """A chat format with a template of one's own, more control tokens, and a name."""
    tokenizer: Any = copy.deepcopy(base.tokenizer)
    tokenizer.chat_template = template
    tokenizer.add_tokens(tokens)
    tokenizer.name_or_path = name
    return ChatFormat(tokenizer)


class Lookup(ArenaEnv):
    """One seat searches until it answers; `withdraw` takes the tools away after the first call."""

    id = "test-lookup-v0"
    roles = {"player": 1}
    system = "Find the founder of Brandholm."
    max_turns = 12

    def __init__(self, *, result: str = "d7: founded by Ada", withdraw: bool = False, **options: Any) -> None:
        self.result = result
        self.withdraw = withdraw
        super().__init__(**options)

    def begin(self, rng: np.random.Generator) -> str:
        """Asks."""
        self.calls = 0
        self.tell("player_0", "Who founded Brandholm? End with ANSWER: name.")
        return "player_0"

    def tools(self, seat: str) -> list[Json]:
        """Two tools, or none any more."""
        return [] if self.withdraw and self.calls else TOOLS

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """A legal answer."""
        return "ANSWER: Ada"

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Tells results until there is an answer."""
        call = read_tool_call(reply, self.tools(seat))
        if call is not None:
            self.calls += 1
            self.tell(seat, self.result, role="tool")
            return Move(next=seat, action=[call.name, call.arguments])
        if "ANSWER:" not in reply:
            raise IllegalReply(Cause.UNPARSABLE, "Call a tool, or end with ANSWER: name.")
        return Move(outcome=Outcome(reason="answered"), action=reply.rpartition(":")[2].strip())
