"""Where the parts of a run live: the learner's device, the engine beside it, how weights get from one to the other."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llm_arena.engines import vllm_start
from llm_arena.engines.choose import chosen
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.loading import learner_device
from llm_arena.training.lora import LoraSettings


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
        UsageError: the engine takes no adapters, or a device is not there.
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
    return Placement(device, as_adapter, shares)


def lora_settings(config: TrainConfig) -> LoraSettings | None:
    """Returns the adapter that the settings ask for; None trains all weights."""
    if not config.lora_rank:
        return None
    return LoraSettings(
        rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed % (1 << 63)
    )
