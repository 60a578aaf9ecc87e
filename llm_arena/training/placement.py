"""Where the parts of a run live: the learner's device, the engine beside it, how weights get from one to the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_arena.engines import vllm_start
from llm_arena.engines.choose import chosen
from llm_arena.engines.vllm_start import SHARED_GPU
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.loading import learner_device
from llm_arena.training.lora import LoraSettings

VLLM_SHARE = 0.92
"""Share of a GPU's memory that vLLM takes if nobody says otherwise."""


@dataclass(frozen=True)
class Placement:
    """What `place` decided."""

    device: torch.device
    "Of the learner."
    as_adapter: bool
    "Whether an adapter is published as one, beside its base; else whole models are."
    shares_gpu: bool
    "Whether engine and learner take turns on one GPU."


def place(config: TrainConfig) -> Placement:
    """Decides where things live.

    Raises:
        UsageError: the engine takes no adapters, a device is not there, or playing ahead is asked of a GPU that playing
            and learning share.
    """
    device = learner_device(config.learner.devices)
    vllm = chosen(config.engine) == "vllm"
    if config.publish == "adapter" and not vllm:
        raise UsageError(
            "publish=adapter needs an engine that takes adapters: --engine.kind vllm. With transformers use "
            "--publish merged"
        )
    # On a CPU a rollout took three times as long with an adapter as with merged weights (SmolLM2-135M, rank 16).
    as_adapter = config.publish == "adapter" or (
        config.publish == "auto" and config.lora_rank > 0 and vllm and not vllm_start.is_cpu()
    )
    named = config.engine.cuda_devices()
    shares = vllm and device.type == "cuda" and (named is None or device.index in named)
    if shares and config.max_staleness:
        raise UsageError(
            f"max_staleness={config.max_staleness} plays while the learner works, but here engine and learner take "
            f"turns on {device}: give the engine a GPU of its own, e.g. --engine.devices 1, or set max_staleness to 0"
        )
    return Placement(device, as_adapter, shares)


def refuse_crowd(config: TrainConfig, placed: Placement, policies: int) -> None:
    """Refuses more vLLM engines than the memory of their GPUs has room for.

    Full weights take an engine for each policy; adapters of one base share one.

    Raises:
        UsageError: together they would take more than there is.
    """
    if policies < 2 or placed.as_adapter or chosen(config.engine) != "vllm" or vllm_start.is_cpu():
        return
    share = config.engine.vllm_args().get("gpu_memory_utilization", SHARED_GPU if placed.shares_gpu else VLLM_SHARE)
    if policies * float(share) > 1:
        raise UsageError(
            f"{policies} policies with full weights take {policies} vLLM engines, each with {share:g} of the same "
            f"GPU's memory: give each at most {0.95 / policies:.2f}, e.g. --engine.gpu-memory-utilization "
            f"{0.9 / policies:.2f}, or train adapters, which share one engine: --lora-rank 16"
        )


def lora_settings(config: TrainConfig) -> LoraSettings | None:
    """Returns the adapter that the settings ask for; None trains all weights."""
    if not config.lora_rank:
        return None
    return LoraSettings(
        rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed % (1 << 63)
    )
