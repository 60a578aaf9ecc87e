"""LoRA (arXiv:2106.09685): a small adapter is trained, the weights that it adapts stay as they are.

A layer's output gets `alpha / rank * B A x` added. A starts random and B at zero, so the first policy is exactly the
base model. No dropout: the weights that train are the weights that sampled.

The adapter goes into the model in place: the model keeps its class, its names gain `.base_layer`, `.lora_A.default`
and `.lora_B.default`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from llm_arena.errors import UsageError
from llm_arena.model_sources import missing_train

ALL = "all-linear"


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Size and place of an adapter."""

    rank: int
    alpha: float = 32.0
    "The adapter's output is multiplied by alpha / rank."
    targets: str = ALL
    "`all-linear`, or names of linear layers separated by commas, e.g. `q_proj,v_proj`. Never the output head."
    seed: int = 0
    "Of the adapter's initial values."

    def __post_init__(self) -> None:
        """Checks the numbers.

        Raises:
            UsageError: a rank below 1, or an alpha that is not above 0.
        """
        if self.rank < 1:
            raise UsageError(f"the rank of a LoRA adapter must be at least 1, got {self.rank}")
        if not self.alpha > 0:
            raise UsageError(f"lora_alpha must be above 0, got {self.alpha}")


class Adapter:
    """Puts a LoRA adapter into a model, in place, and freezes all else of it.

    Args:
        model: a transformers causal LM; the adapter gets its dtype and device.
        settings: of the adapter.

    Raises:
        UsageError: no layer has one of the names in `settings.targets`.
        MissingExtra: peft is not installed.
    """

    def __init__(self, model: Any, settings: LoraSettings) -> None:
        try:
            from peft import LoraConfig, TaskType, get_peft_model
        except ImportError as error:
            raise missing_train(error) from error

        self._model = model
        self._tensors = {id(tensor) for tensor in model.parameters()}
        config = LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=settings.rank,
            lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft takes fractions as well; it only divides
            target_modules=_targets(model, settings.targets),
            lora_dropout=0.0,
            bias="none",
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(settings.seed)  # not torch.manual_seed, which reaches CUDA's as well
            self._peft: Any = get_peft_model(model, config)

    def parameters(self) -> dict[str, nn.Parameter]:
        """Returns the adapter's tensors by their names in the model."""
        return {name: value for name, value in self._model.named_parameters() if id(value) not in self._tensors}

    def disabled(self) -> AbstractContextManager[None]:
        """Returns a context in which the model is its base. No graph of the adapter may be open meanwhile."""
        context: AbstractContextManager[None] = self._peft.disable_adapter()
        return context

    def merged(self) -> dict[str, Tensor]:
        """Returns the model's parameters with the adapter added, by the base's names. Tied ones come once."""
        with torch.no_grad():
            found = {
                name.replace(".base_layer.", "."): tensor.data
                for name, tensor in self._model.named_parameters()
                if id(tensor) in self._tensors
            }
            for name, layer in self._layers():
                found[f"{name}.weight"] = found[f"{name}.weight"] + layer.get_delta_weight("default")
        return found

    def save(self, directory: Path, base: Path) -> None:
        """Writes the adapter as a PEFT folder, which peft and vLLM load.

        Args:
            directory: where to.
            base: folder of the model that it was trained on; its path is written into `adapter_config.json`.
        """
        from peft import get_peft_model_state_dict

        config = copy.copy(self._peft.peft_config["default"])
        config.base_model_name_or_path = str(base.absolute())
        config.inference_mode = True
        config.target_modules = sorted(config.target_modules)  # peft keeps a set, whose order changes with the process
        config.save_pretrained(str(directory))
        state = get_peft_model_state_dict(self._peft, save_embedding_layers=False)
        save_file(
            {name: tensor.contiguous() for name, tensor in state.items()},
            directory / "adapter_model.safetensors",
            metadata={"format": "pt"},
        )

    def _layers(self) -> Iterator[tuple[str, Any]]:
        from peft.tuners.lora import LoraLayer

        return ((name, module) for name, module in self._model.named_modules() if isinstance(module, LoraLayer))


def _targets(model: Any, given: str) -> list[str]:
    """Returns the names that peft is to match; it takes a layer whose name is one of them or ends in `.` and one.

    Raises:
        UsageError: a name that no layer has.
    """
    head = model.get_output_embeddings()
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head]
    known = sorted({name.rsplit(".", 1)[-1] for name in layers})
    if not known:
        raise UsageError(f"{type(model).__name__} has no linear layers for LoRA; train its weights: lora_rank = 0")
    wanted = known if given == ALL else [name.strip() for name in given.split(",")]
    for target in wanted:
        if not any(f".{name}".endswith(f".{target}") for name in layers):
            raise UsageError(
                f"lora_targets: {type(model).__name__} has no linear layer {target!r} that can be adapted; "
                f"give {ALL}, or some of {', '.join(known)}"
            )
    return wanted
