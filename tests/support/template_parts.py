"""Real chat templates, the real vocabulary of the Qwen models, and what each template prints between two turns.

The templates are read from TRL's package and the vocabulary from DashScope's; `make test` puts both into the folder
`test-data` of the environment. What the templates print is written down here once more, by hand.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from transformers import PreTrainedTokenizerFast

from llm_arena.models import fetch
from llm_arena.tokens import ChatFormat
from llm_arena.tool_format import functions
from llm_arena.types import Json, Message
from tool_parts import TOOLS

DATA = Path(sys.prefix) / "test-data"
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPECIAL = re.findall(
    r"\S+",
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>",
)
QWEN_PLAIN = re.findall(
    r"\S+",
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>",
)
"""Added tokens of Qwen3 in the order of their ids, from 151643 on; those of the second list are not special."""
LLAMA_SPECIAL = [
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eom_id|>", "<|eot_id|>", "<|python_tag|>"),
]
BEGIN, END, USER, ASSISTANT = (
    f"<\uff5c{name}\uff5c>"
    for name in ("begin\u2581of\u2581sentence", "end\u2581of\u2581sentence", "User", "Assistant")
)
"""DeepSeek's markers, with its own bars and blanks."""
THINK = ["<think>", "</think>"]

Between = Callable[[Sequence[Message]], str]


@dataclass(frozen=True)
class Kind:
    """One model family: a template, a tokenizer with its control tokens, and how it speaks."""

    template: str
    """Name of TRL's file; or the text of a template."""
    between: Between
    """What stands between a reply and the next prompt, for the messages that are told there."""
    special: Sequence[str] = ()
    plain: Sequence[str] = ()
    bos: str = ""
    eos: str = ""
    stops: Sequence[str] = ()
    thought: str = "<think>\n{}\n</think>\n\n"
    """How its model writes a thought before an answer; empty where it has none."""
    call: str = ""
    """How its model writes a call of a tool."""
    refuses: bool = False
    """Whether it refuses a chat with later system text; then that is told as a user's, all through the chat."""
    strips: bool = False
    """Whether thoughts are dropped from the past."""
    thinking: bool | None = None


def blocks(pattern: str, news: Sequence[Message], *, tool: str = "", roles: dict[str, str] | None = None) -> str:
    """The messages one by one; neighbours of role `tool` share a user turn."""
    names = {"system": "system", "user": "user"} | (roles or {})
    printed = ""
    for index, message in enumerate(news):
        if message["role"] != "tool":
            printed += pattern.format(names[message["role"]], message["content"])
            continue
        first = index == 0 or news[index - 1]["role"] != "tool"
        last = index == len(news) - 1 or news[index + 1]["role"] != "tool"
        head, _, foot = pattern.format("user", "\0").partition("\n\0")
        printed += head * first + tool.format(message["content"]) + foot * last
    return printed


def folded(news: Sequence[Message]) -> str:
    """One user text of all messages."""
    return "\n\n".join(str(message["content"]) for message in news)


def chatml(opening: str = "") -> Between:
    """What ChatML and its kin print; `opening` ends the generation prompt."""

    def between(news: Sequence[Message]) -> str:
        told = blocks("<|im_start|>{}\n{}<|im_end|>\n", news, tool="\n<tool_response>\n{}\n</tool_response>")
        return f"<|im_end|>\n{told}<|im_start|>assistant\n{opening}"

    return between


def llama(news: Sequence[Message]) -> str:
    """What Llama 3 prints; results are JSON there."""
    told = "".join(
        f"<|start_header_id|>{'ipython' if message['role'] == 'tool' else message['role']}<|end_header_id|>\n\n"
        f"{json.dumps(message['content']) if message['role'] == 'tool' else str(message['content']).strip()}<|eot_id|>"
        for message in news
    )
    return f"<|eot_id|>{told}<|start_header_id|>assistant<|end_header_id|>\n\n"


def gemma(news: Sequence[Message]) -> str:
    """What Gemma prints: strict turns, no system role."""
    return f"<end_of_turn>\n<start_of_turn>user\n{folded(news).strip()}<end_of_turn>\n<start_of_turn>model\n"


def deepseek(news: Sequence[Message]) -> str:
    """What DeepSeek prints; system text stands at the very front there, or in a user turn."""
    if any(message["role"] == "system" for message in news):
        news = [Message(role="user", content=folded(news))]
    return END + "".join(f"{USER}{message['content']}" for message in news) + f"{ASSISTANT}<think>\n"


def phi(news: Sequence[Message]) -> str:
    """What Phi 3 prints."""
    return "<|end|>\n" + "".join(f"<|{m['role']}|>\n{m['content']}<|end|>\n" for m in news) + "<|assistant|>\n"


def mistral(news: Sequence[Message]) -> str:
    """What Mistral's first models print."""
    return f"</s>[INST] {folded(news)} [/INST]"


BLOCK = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'
OBJECT = '{{"name": "{}", "parameters": {}}}'
MISTRAL = (
    # Rebuilt, as no package carries it: strict turns, no system role, no generation prompt.
    "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}{{ m.content + eos_token }}{% endif %}"
    "{% endfor %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN3 = Kind("qwen3", chatml(), call=BLOCK, strips=True)
LLAMA3 = Kind(
    "llama3",
    llama,
    LLAMA_SPECIAL,
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    stops=["<|eom_id|>"],
    thought="",
)
GEMMA = Kind(
    "gemma", gemma, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], bos="<bos>", eos="<eos>", thought=""
)
DEEPSEEK = Kind(
    "deepseekv3",
    deepseek,
    [BEGIN, END, USER, ASSISTANT],
    THINK,
    bos=BEGIN,
    eos=END,
    thought="{}\n</think>\n\n",
    strips=True,
)
PHI = Kind("phi3", phi, ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], eos="<|end|>", thought="")
KINDS = {
    "qwen3": QWEN3,
    "qwen3 thinking": replace(QWEN3, thinking=True),
    "qwen3 no thinking": replace(
        QWEN3, between=chatml("<think>\n\n</think>\n\n"), thought="", strips=True, thinking=False
    ),
    "qwen3 instruct": replace(QWEN3, template="qwen3_instruct_2507", thought="", strips=False),
    "qwen2.5": replace(QWEN3, template="qwen2_5", strips=False, thought=""),
    "qwen3.5": replace(
        QWEN3, template="qwen3_5_think", between=chatml("<think>\n"), thought="{}\n</think>\n\n", call="", refuses=True
    ),
    "llama3": LLAMA3,
    "llama3.1": replace(LLAMA3, template="llama3_1", call=OBJECT),
    "llama3.2": replace(LLAMA3, template="llama3_2", call=OBJECT),
    "smollm2": Kind("", chatml(), thought=""),  # the embedded model's own files
    "gemma": GEMMA,
    "gemma3": replace(GEMMA, template="gemma3"),
    "deepseek v3": DEEPSEEK,
    "deepseek r1": replace(DEEPSEEK, template="deepseek_r1_distill"),
    "phi3": PHI,
    "phi3.5": replace(PHI, template="phi3_5"),
    "chatml": Kind(CHATML, chatml(), eos="<|im_end|>", thought=""),
    "mistral": Kind(MISTRAL, mistral, ["<s>", "</s>", "[INST]", "[/INST]"], bos="<s>", eos="</s>", thought=""),
}


def template(name: str) -> str:
    """A template of TRL's package."""
    path = DATA / "trl" / "chat_templates" / f"{name}.jinja"
    assert path.is_file(), f"{path} is missing; run `make test`, which installs requirements/test_data.txt"
    return path.read_text(encoding="utf-8")


@functools.cache
def qwen_tokenizer() -> Any:
    """The tokenizer of Qwen3, built from its published ranks; takes two seconds."""
    path = DATA / "dashscope" / "resources" / "qwen.tiktoken"
    assert path.is_file(), f"{path} is missing; run `make test`, which installs requirements/test_data.txt"
    pairs = (line.split() for line in path.read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
    names = {token: "".join(map(letters.__getitem__, token)) for token in ranks}

    def halves(token: bytes, rank: int) -> tuple[str, str]:
        """The last merge that makes a token: what is left when all better ones are done."""
        parts = [token[at : at + 1] for at in range(len(token))]
        orders = [ranks.get(token[at : at + 2], rank) for at in range(len(token) - 1)]
        while len(parts) > 2:
            at = orders.index(min(orders))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del orders[at]
            for pair in (at - 1, at):
                if 0 <= pair < len(orders):
                    orders[pair] = ranks.get(parts[pair] + parts[pair + 1], rank)
        left, right = parts
        return names[left], names[right]

    merges = [halves(token, rank) for token, rank in sorted(ranks.items(), key=lambda pair: pair[1]) if len(token) > 1]
    core = tokenizers.Tokenizer(tokenizers.models.BPE({names[token]: rank for token, rank in ranks.items()}, merges))
    core.normalizer = tokenizers.normalizers.NFC()
    core.pre_tokenizer = _cuts()
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens([*QWEN_SPECIAL])
    core.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in QWEN_PLAIN])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def small_tokenizer(kind: Kind) -> Any:
    """A small vocabulary, cut as Llama 3's and Qwen's are, with the control tokens of a kind."""
    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = _cuts()
    core.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, show_progress=False, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    core.train_from_iterator(["assistant user system model the answer is\n\n so it is begin hold\n"] * 2, trainer)
    core.add_special_tokens([*(kind.special or ["<|im_start|>", "<|im_end|>"])])
    core.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in kind.plain])
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token=kind.bos or None, eos_token=kind.eos)


def _cuts() -> Any:
    return tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(QWEN_PATTERN), "isolated"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@functools.cache
def real_chat(name: str) -> ChatFormat:
    """The chat format of a kind: on the Qwen vocabulary, or on a small one with the kind's control tokens."""
    kind = KINDS[name]
    if not kind.template:
        return ChatFormat.load(fetch("smollm2-135m", progress=False))
    tokenizer = small_tokenizer(kind) if kind.eos else copy.copy(qwen_tokenizer())
    tokenizer.chat_template = kind.template if "{" in kind.template else template(kind.template)
    stops = tokenizer.convert_tokens_to_ids(list(kind.stops))
    return ChatFormat(tokenizer, source=kind.template[:30], stop_ids=stops, thinking=kind.thinking)


# ---- the slow way ------------------------------------------------------------------------------------------------

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def _structure(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Calls in replies as the templates want them."""
    found: list[dict[str, Any]] = []
    for message in messages:
        text = str(message["content"])
        calls = [json.loads(call) for call in _CALL.findall(text)] if message["role"] == "assistant" else []
        made: dict[str, Any] = {"role": message["role"], "content": _CALL.sub("", text) if calls else text}
        if calls:
            made["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        found.append(made)
    return found


def _merge(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    merged: list[dict[str, Any]] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"] != "tool":
            merged[-1] = {**message, "content": merged[-1]["content"] + "\n\n" + message["content"]}
        else:
            merged.append(message)
    return merged


def from_scratch(chat: ChatFormat, kind: Kind, messages: Sequence[Message], tools: bool) -> list[int]:
    """The ids of the whole chat as transformers makes them, in the first of three forms that the template takes."""
    asked = _structure(messages)
    no_system = [{**m, "role": "user"} if m["role"] == "system" else m for m in asked]
    listed: list[Json] | None = functions(TOOLS) if tools else None
    more = {} if kind.thinking is None else {"enable_thinking": kind.thinking}
    for form in (asked, _merge(asked), _merge(no_system)):
        try:
            text = chat.tokenizer.apply_chat_template(
                form, tools=listed, tokenize=False, add_generation_prompt=True, **more
            )
        except Exception as error:  # whatever a template raises
            refusal = error
            continue
        if all(
            str(m["content"]) in text or json.dumps(m["content"]) in text for m in asked if m["role"] != "assistant"
        ):
            ids: list[int] = chat.tokenizer.encode(text, add_special_tokens=False)
            return ids
        refusal = ValueError("a message is left out")
    raise refusal
