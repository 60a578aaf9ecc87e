"""Samples with transformers models in this process: small models on a CPU, or one GPU without a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from llm_arena.engines.base import Sampling
from llm_arena.engines.batching import BatchingEngine, Request
from llm_arena.engines.decoding import Batch
from llm_arena.engines.onednn import use_onednn
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.weight_folders import computation
from llm_arena.errors import EngineError, UsageError
from llm_arena.lockstep import Lockstep
from llm_arena.types import Completion

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class TransformersEngine(BatchingEngine):
    """Owns a copy of each policy's weights and samples from it in batches.

    Equal prompts of a batch are computed once. Sampling is by inverse CDF from uniforms of the request's own seed, so
    ids do not depend on what else is in the batch. Log-probabilities are those of the softmax at the sampling
    temperature, in float32.

    Args:
        lockstep: shared with whoever plays; see `Lockstep`. None batches by time of arrival.
        device: a torch device.
        dtype: `float32`, `bfloat16` or `float16`.
        max_batch_rows: most completions that are sampled at once.
    """

    name = "transformers"
    max_context_tokens: int | None = None
    takes_grammar = False

    def __init__(
        self,
        *,
        lockstep: Lockstep | None = None,
        device: str = "cpu",
        dtype: str = "float32",
        max_batch_rows: int = 64,
    ) -> None:
        if dtype not in _DTYPES:
            raise UsageError(f"dtype is {dtype!r}; give one of {', '.join(_DTYPES)}")
        if max_batch_rows < 1:
            raise UsageError(f"max_batch_rows is {max_batch_rows}; give at least 1")
        super().__init__(lockstep=lockstep, max_batch_rows=max_batch_rows)
        self._device = torch.device(device)
        self._dtype = _DTYPES[dtype]
        self._models: dict[str, Any] = {}
        self._configs: dict[str, dict[str, Any]] = {}

    def describe(self) -> dict[str, Any]:
        """Returns what serves what, as JSON, for manifests."""
        dtype = str(self._dtype).removeprefix("torch.")
        return {
            "engine": self.name,
            "version": transformers.__version__,
            "dtype": dtype,
            "device": str(self._device),
            "policies": sorted(self._models),
        }

    def _load(self, policy: str, directory: Path) -> None:
        config, weights = _read_config(directory), _read_weights(directory)
        model = self._models.get(policy)
        if model is not None and config == self._configs[policy] and _fits(model, weights):
            tied = _tied(model)
            with torch.inference_mode():
                for name, tensor in model.state_dict().items():
                    if name not in tied:
                        tensor.copy_(weights[name])
            return
        self._models[policy] = self._new_model(directory)
        self._configs[policy] = config

    def _new_model(self, directory: Path) -> Any:
        """Loads a model into memory of its own."""
        try:
            with no_progress_bar():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    directory, dtype=self._dtype, local_files_only=True, output_loading_info=True
                )
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise EngineError(f"{directory} can't be loaded as a causal language model: {error}") from error
        model, report = loaded
        if report["missing_keys"]:
            raise EngineError(f"{directory} lacks weights that its config asks for, e.g. {min(report['missing_keys'])}")
        model.to(self._device).eval().requires_grad_(False)
        # The loader may hand out memory that is mapped from the file; these weights must not change with it.
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
        use_onednn(model)
        return model

    def _drop(self, policy: str) -> None:
        del self._models[policy], self._configs[policy]

    def _check(self, policy: str, prompt_ids: list[int], sampling: Sampling) -> None:
        if sampling.grammar is not None:
            raise UsageError("the transformers engine samples freely; a grammar needs --engine vllm")
        if not prompt_ids:
            raise EngineError("the prompt is empty; send at least one id")
        config = self._models[policy].config.get_text_config()
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < config.vocab_size:
            raise EngineError(f"the prompt holds an id outside of the vocabulary (0 to {config.vocab_size - 1})")
        longest = getattr(config, "max_position_embeddings", None)
        if longest is not None and len(prompt_ids) + sampling.max_new_tokens > longest:
            raise EngineError(
                f"{len(prompt_ids)} prompt ids and {sampling.max_new_tokens} new ones exceed the {longest} positions "
                f"of policy {policy!r}; set the agent's max_context_tokens"
            )

    def _release(self) -> None:
        self._models.clear()
        self._configs.clear()

    @torch.inference_mode()
    def _sample(self, policy: str, rows: Sequence[Request]) -> list[Completion]:
        batch = Batch(self._models[policy], rows, self._device)
        while batch.rows and not self._closed:
            batch.step()
        return batch.completions()


def device_of(settings: EngineSettings) -> str:
    """Returns the torch device that the settings ask for.

    Raises:
        UsageError: several devices, for a model in this process lives on one, or one that is not there.
    """
    devices = settings.cuda_devices()
    if devices is None:
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if len(devices) > 1:
        raise UsageError(
            f"engine.devices={settings.devices}: the transformers engine takes one device; use --engine.kind vllm"
        )
    if devices and devices[0] >= torch.cuda.device_count():
        raise UsageError(f"engine.devices={settings.devices}, but torch sees {torch.cuda.device_count()} CUDA devices")
    return f"cuda:{devices[0]}" if devices else "cpu"


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keeps transformers from drawing a bar over the caller's own; its switch is global and is put back."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _read_config(directory: Path) -> dict[str, Any]:
    """Reads what decides the computation: `config.json` without the notes of whoever saved it.

    Raises:
        EngineError: the folder holds no whole model.
    """
    if (directory / "adapter_config.json").is_file():
        raise EngineError(f"{directory} is an adapter; this engine takes whole models: merge it into its base first")
    return computation(directory)


def _read_weights(directory: Path) -> dict[str, torch.Tensor]:
    """Reads all safetensors of a model folder.

    Raises:
        EngineError: a file is missing or torn.
    """
    index = directory / "model.safetensors.index.json"
    try:
        names = ["model.safetensors"]
        if index.is_file():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        weights: dict[str, torch.Tensor] = {}
        for name in names:
            weights |= load_file(directory / name)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise EngineError(f"{directory} is no complete safetensors model: {error}") from error
    return weights


def _tied(model: Any) -> set[str]:
    """Names of tensors that are another tensor under a second name, e.g. a head tied to the embedding."""
    return set(model.all_tied_weights_keys)


def _fits(model: Any, weights: dict[str, torch.Tensor]) -> bool:
    """Whether the weights are exactly the model's tensors; second names of tied ones may be left out."""
    own = model.state_dict()
    return (
        weights.keys() <= own.keys()
        and own.keys() - weights.keys() <= _tied(model)
        and all(own[name].shape == tensor.shape for name, tensor in weights.items())
    )
