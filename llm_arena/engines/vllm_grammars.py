"""Grammars on vLLM: which of its backends keeps to them, what goes with a request, what a refusal is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_arena.engines.base import Sampling
from llm_arena.errors import UsageError
from llm_arena.types import Json


def backend(directory: Path) -> str | None:
    """Returns vLLM's backend for the tokenizer of a model folder; None without a tokenizer.

    `guidance` (llguidance) lets no control token stand for text, and has a grammar ready in milliseconds where
    `xgrammar` takes most of a second; but it reads only tokenizers that can spell every byte.
    """
    try:
        tokenizer = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    decoder = json.dumps(tokenizer.get("decoder"))
    return "guidance" if "ByteLevel" in decoder or "ByteFallback" in decoder else "xgrammar"


def arguments(directory: Path, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the engine arguments for grammars; empty where the folder has no tokenizer.

    Args:
        directory: the model's folder.
        given: the user's own `structured_outputs_config`.
    """
    chosen = backend(directory)
    if chosen is None:
        return {}
    from vllm.config import StructuredOutputsConfig

    # Between the parts of a JSON text any run of white space is allowed, and weak models get lost in it.
    config = {"backend": chosen, "disable_any_whitespace": True, **(given or {})}
    return {"skip_tokenizer_init": False, "structured_outputs_config": StructuredOutputsConfig(**config)}


def check(sampling: Sampling, end: int | None) -> None:
    """Refuses what vLLM would not keep to.

    Args:
        sampling: a request with a grammar.
        end: the tokenizer's end token; None where vLLM has no tokenizer.

    Raises:
        UsageError: no tokenizer, no grammar that is one, or a complete text would not end.
    """
    if end is None:
        raise UsageError("a grammar needs the model's tokenizer with an end token; put tokenizer.json into its folder")
    if not isinstance(sampling.grammar, str | dict):
        raise UsageError(f"a grammar is a regular expression or a JSON schema; got {sampling.grammar!r:.80}")
    if end not in sampling.stop_ids:  # sampled at the end of the text, it would be followed by anything
        raise UsageError(f"with a grammar the stop ids must hold the tokenizer's end token {end}")


def parameters(grammar: Json) -> Any:
    """Returns the `structured_outputs` of vLLM's sampling parameters; None without a grammar."""
    from vllm.sampling_params import StructuredOutputsParams

    if grammar is None:
        return None
    return StructuredOutputsParams(regex=grammar) if isinstance(grammar, str) else StructuredOutputsParams(json=grammar)


def refusal(error: BaseException | None, grammar: Json) -> UsageError | None:
    """Returns what to tell of a grammar that vLLM refused; None where `error` is about something else."""
    from vllm.exceptions import VLLMClientError

    if grammar is None or not isinstance(error, VLLMClientError | ValueError):
        return None
    return UsageError(f"vLLM refuses the grammar {grammar!r:.200}: {' '.join(str(error).split()):.200}")
