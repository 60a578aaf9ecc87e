"""Shared fixtures: small models, toy chat formats, a fake engine. Nothing here is skipped when something is missing."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SAYINGS = """
check bet call fold raise pass yes no left right up down play stop
you your are is the of and to in on or for with at it one two three first second
card deck highest chip player seat turn move row column board game reply action name topic
coffee shop star moon river stone cloud night bakery little golden brew corner house
player_0 player_1 namer_0 namer_1 namer_2 namer_3 poker Kuhn You Your
"""
WORDS = [
    *"0123456789",
    *"abcdefghijklmnopqrstuvwxyz",
    *"JQKXO",
    *".,:;!?'\"()[]{}|/\\-_+*=<>#@&%$`~^",
    *SAYINGS.split(),
]
"""The vocabulary of the tiny model: what the games of the shelf say and want to hear."""

TEMPLATES = {
    # Like ChatML: a newline after the end token, which no model samples.
    "newline": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # No end token at all after a reply: the next message starts at once, with an ordinary text marker.
    "bare": (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    ),
    "trimming": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # Drops the thinking of replies before the last user message, as Qwen3's template does.
    "think": (
        "{% set ns = namespace(last=-1) %}"
        "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
        "{% for m in messages %}{% set text = m.content %}"
        "{% if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}"
        "{% set text = text.split('<think>')[0] + text.split('</think>')[-1] %}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # Opens the thinking in the generation prompt, and does not print it again in the history.
    "think_prompt": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    ),
    # Puts in a system text of its own, and refuses a chat without a user.
    "default_system": (
        "{% if not messages | selectattr('role', 'equalto', 'user') | list %}"
        "{{ raise_exception('No user query found in messages.') }}{% endif %}"
        "{% if messages[0].role != 'system' %}<|im_start|>system\nDEFAULT<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # No system role, strict user/assistant turns, as Gemma's.
    "strict": (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # Takes a system text, but wants strict turns after it, as Mistral's.
    "alternating": (
        "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}<|im_start|>system\n"
        "{{ messages[0].content }}<|im_end|>\n{% else %}{% set rest = messages %}{% endif %}"
        "{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    # Leaves a system message out without a word.
    "forgetful": (
        "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
}
"""Toy templates, each with one habit of a real one."""


def pytest_configure() -> None:
    """Lets Ctrl-C reach what the tests start, also where a shell started pytest in the background, with it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Loads `soak_plugin.py` from beside this file: importlib mode puts no test folder on `sys.path`."""
    spec = importlib.util.spec_from_file_location("soak_plugin", Path(__file__).with_name("soak_plugin.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    pluginmanager.register(module, "soak_plugin")


@pytest.fixture
def arena(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `llm-arena` in an empty folder."""

    def run(*arguments: str, stdin: str = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "llm_arena", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            timeout=120,
        )

    return run


@pytest.fixture(scope="module", autouse=True)
def registries() -> Iterator[None]:
    """Takes out after each file what it registered: other files go through all games, in any order."""
    import pettingzoo

    import llm_arena

    games = (llm_arena.registry.entries, pettingzoo.aec_registry)
    before = [dict(entries) for entries in games]
    yield
    for entries, kept in zip(games, before, strict=True):
        entries.clear()
        entries.update(kept)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama with under a million parameters, which knows the words of the shelf's games."""
    from llm_arena.models import random_model

    return random_model(tmp_path_factory.mktemp("tiny") / "model", words=WORDS)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of the real embedded model; fetched at first use."""
    from llm_arena.models import fetch

    return fetch("smollm2-135m", progress=False)


@pytest.fixture(scope="session")
def toy_chat() -> Callable[..., Any]:
    """Makes a toy `ChatFormat`: `toy_chat("newline")`, any name in `TEMPLATES`, or a template's text.

    The tokenizer encodes any text, byte by byte, except that `win`, `ner` and `winner` are one token each, and that
    `<|im_start|>`, `<|im_end|>` and the added `<tool>` are control tokens. With `think_tokens=True` the tags `<think>`
    and `</think>` are one added token each, as in Qwen3.
    """
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    from llm_arena.tokens import ChatFormat

    def make(template: str = "newline", *, think_tokens: bool = False, normalizer: Any = None) -> ChatFormat:
        vocabulary = {
            letter: index for index, letter in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
        }
        merges = [("w", "i"), ("wi", "n"), ("n", "e"), ("ne", "r"), ("win", "ner")]
        for left, right in merges:
            vocabulary[left + right] = len(vocabulary)
        core = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
        if normalizer is not None:
            core.normalizer = normalizer
        core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = tokenizers.decoders.ByteLevel()
        core.add_special_tokens(["<|im_start|>", "<|im_end|>"])
        plain = ["<tool>", *(["<think>", "</think>"] if think_tokens else [])]
        core.add_tokens([tokenizers.AddedToken(text, normalized=normalizer is not None) for text in plain])
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>"
        )
        tokenizer.chat_template = TEMPLATES.get(template, template)
        return ChatFormat(tokenizer, source=f"toy template {template[:20]!r}")

    return make


@pytest.fixture
def fake_engine() -> Callable[..., Any]:
    """Makes a `FakeEngine`, with any of its arguments, that serves the policies `p` and `q`."""
    from llm_arena.engines.fake import FakeEngine

    return lambda *args, **kwargs: FakeEngine(*args, policies=("p", "q"), **kwargs)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Has torch compute in one thread, so that sums come out to the bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
