"""A model made ready for training: where it lives, how it is read, what a learner has to know about it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from llm_arena.engines.onednn import use_onednn
from llm_arena.engines.transformers_engine import no_progress_bar
from llm_arena.errors import ModelError, UsageError


def learner_device(devices: str) -> torch.device:
    """Returns the device that the setting `learner.devices` names: `auto`, `cpu`, or the number of a CUDA device.

    Raises:
        UsageError: it names no device of this machine, or several: one process trains on one device.
    """
    count = torch.cuda.device_count()
    if devices == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if devices == "cpu":
        return torch.device("cpu")
    if "," in devices:
        raise UsageError(f"learner.devices is {devices!r}, but one process trains on one device; give one, e.g. 0")
    if not devices.isdecimal() or int(devices) >= count:
        there = f"0 to {count - 1}" if count else "there is none here"
        raise UsageError(f"learner.devices must be auto, cpu, or a CUDA device ({there}); got {devices!r}")
    return torch.device(f"cuda:{int(devices)}")


def load_model(directory: Path, device: str | torch.device) -> Any:
    """Loads a Hugging Face folder in float32.

    Raises:
        ModelError: the folder can't be loaded.
    """
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bar():
            model: Any = AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{directory}: can't be loaded for training: {reason}") from error
    model.to(torch.device(device))
    use_onednn(model)
    return model


def saved_buffers(model: Any) -> dict[str, Tensor]:
    """Returns the buffers that belong to a model's saved state."""
    kept = set(model.state_dict())
    named: Iterable[tuple[str, Tensor]] = model.named_buffers()
    return {name: buffer for name, buffer in named if name in kept}


def recompute_layers(model: Any) -> None:
    """Makes the layers of a model drop their activations and compute them once more in the backward pass, in place.

    transformers does so only in training mode, which would turn dropout on; here the mode does not matter.

    Raises:
        UsageError: the model's layers are not known.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UsageError(f"recompute is not known for the layers of {type(model).__name__}; leave it out")
    for layer in layers:
        layer.forward = functools.partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)
