"""A model made ready for training: where it lives, how it is read, what a learner has to know about it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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


def head_is_separate(model: Any) -> bool:
    """Whether logits are just the output head over the last hidden state, so that the head may run on few positions.

    Some families scale or cap the logits after the head; they take the slower way.

    Raises:
        ModelError: the model has no output head.
    """
    head = model.get_output_embeddings()
    if head is None or not hasattr(model, "base_model"):
        raise ModelError(f"{type(model).__name__} has no output head: not a causal language model")
    ids = torch.arange(2, device=next(model.parameters()).device)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        split = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    return bool(torch.allclose(whole, split, rtol=1e-4, atol=1e-4))
