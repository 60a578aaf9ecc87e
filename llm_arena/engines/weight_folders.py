"""Folders of models and adapters, looked at before an engine takes them: vLLM loads what it can, and skips the rest."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from llm_arena.errors import EngineError

NOTES = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")
"""Keys of a config that whoever saved the model put in, and that decide nothing."""


def computation(directory: Path) -> dict[str, Any]:
    """Returns what decides a model's computation: its `config.json` without the notes of whoever saved it.

    Raises:
        EngineError: the folder holds no model.
    """
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(
            f"{directory} has no config.json that can be read ({error}); publish a folder made by save_pretrained"
        ) from error
    return {key: value for key, value in config.items() if key not in NOTES}


def refuse_unfit(directory: Path, served: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raises EngineError unless a model folder has the architecture that is served, and all of its weights.

    Args:
        directory: the model folder.
        served: what `computation` returned for the model that is served.
        shapes: what `tensor_shapes` returned for it.
    """
    given = computation(directory)
    different = sorted(key for key in given | served if given.get(key) != served.get(key))
    if different:
        raise EngineError(
            f"{directory} is another model than the one that is served: {different[0]} is "
            f"{given.get(different[0])!r}, not {served.get(different[0])!r}"
        )
    found = tensor_shapes(directory)
    wrong = {name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name)}
    if served.get("tie_word_embeddings"):  # the head is the embedding under a second name, which may be left out
        wrong -= {name for name in wrong if name.endswith("lm_head.weight") and not (name in found and name in shapes)}
    if wrong:
        name = min(wrong)
        raise EngineError(
            f"{directory} does not fit the model that is served: its tensor {name} has the shape {found.get(name)}, "
            f"expected is {shapes.get(name)}"
        )


def refuse_foreign_adapter(directory: Path, base: dict[str, tuple[int, ...]]) -> None:
    """Raises EngineError unless each tensor of an adapter (PEFT folder) fits one of the base, whose shapes we get."""
    found = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])\.weight")
    for name, shape in tensor_shapes(directory, "adapter_model.safetensors").items():
        match = found.fullmatch(name)
        weight = base.get(f"{match[1]}.weight") if match else None
        side = None if match is None or weight is None else 1 if match[2] == "A" else 0
        # A is [rank, in], B is [out, rank], beside a weight [out, in]
        if weight is None or side is None or weight[side] != shape[side]:
            raise EngineError(
                f"{directory} is no adapter of the model that is served: its tensor {name} of shape {list(shape)} "
                "fits none of the model's"
            )


def tensor_shapes(directory: Path, *names: str) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor in the safetensors files of a folder, by name; reads no weights."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        files = [directory / name for name in names] or sorted(directory.glob("*.safetensors"))
        for file in files:
            with safe_open(file, framework="pt") as opened:
                shapes |= {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118 - a file, no dict
    except (OSError, SafetensorError) as error:
        raise EngineError(f"{directory} has no whole safetensors files: {error}") from error
    return shapes


def write_null_adapter(source: Path, target: Path) -> None:
    """Writes an adapter like `source` that changes nothing: all its weights are 0.

    vLLM's CPU kernels take the last slot of adapters for a row that has none, so that the base model answers with
    somebody's adapter as soon as all slots are taken. With this one on, no row is without.
    """
    from safetensors.torch import load_file, save_file  # loads torch

    target.mkdir(parents=True)
    shutil.copyfile(source / "adapter_config.json", target / "adapter_config.json")
    weights = load_file(source / "adapter_model.safetensors")
    save_file({name: tensor.zero_() for name, tensor in weights.items()}, target / "adapter_model.safetensors")
