"""Checkpoints: all that a resumed run needs to equal an unbroken one.

A checkpoint is a folder of safetensors files (weights, anchor, optimizer moments) and `state.json` (step, running
baselines, sizes of the log files, and the size of each file). No pickle. It is written aside, flushed to the disk and
renamed, so that a kill at any moment leaves the older ones as they were. Nothing random has a state to save: starts,
episode seeds and sampling seeds are functions of the run's seed and the step.

Where batches are played ahead, those under way are sampled from older weights. A checkpoint has these weights too, and
a resumed run plays the batches again. They are second names of files that were written for the engine, so they take no
time but that of reaching the disk. The batches themselves would be smaller, but they can't be had when the engine dies
or when a person does not want to wait.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_arena.errors import TrainingError
from llm_arena.training.whole_folder import PART, link_folder, write_whole

STATE = "state.json"
SCHEMA = 1
SUFFIX = ".safetensors"
POLICIES = "policies"
"""Where the tensors of several policies are, a folder each."""
OLDER = "older"
"""Where weights of earlier steps are."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is in one checkpoint."""

    path: Path
    step: int
    "Optimizer steps that were done."
    state: dict[str, Any]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Loads the tensor files, by name without suffix, e.g. `model`; of several policies `a/model`.

        Raises:
            TrainingError: a file is damaged.
        """
        names = [name for name in self.state["files"] if not name.startswith(f"{OLDER}/")]
        try:
            return {
                name.removesuffix(SUFFIX).removeprefix(f"{POLICIES}/"): load_file(self.path / name) for name in names
            }
        except (OSError, SafetensorError) as error:
            raise TrainingError(
                f"the checkpoint {self.path} can't be read: {error}. Delete it to go on from the one before"
            ) from error

    def older(self, name: str) -> Path:
        """Returns the folder of older weights that was given to `save` under a name."""
        return self.path / OLDER / name


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    older: Mapping[str, Path] = MappingProxyType({}),
    keep: int = 2,
) -> Path:
    """Writes a checkpoint and removes all but the newest `keep`.

    Args:
        folder: of all checkpoints of the run.
        step: optimizer steps that were done.
        tensors: name -> tensors by name, as `Checkpoint.tensors` returns them.
        state: JSON.
        older: name -> folder of older weights that batches under way are sampled from; see `Checkpoint.older`.
        keep: how many checkpoints stay.

    Raises:
        TrainingError: the disk is full or refuses; earlier checkpoints are intact.
    """
    final = folder / f"step-{step:08d}"

    def fill(aside: Path) -> None:
        for name, group in tensors.items():
            file = aside / (f"{POLICIES}/{name}{SUFFIX}" if "/" in name else f"{name}{SUFFIX}")
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({key: tensor.contiguous() for key, tensor in group.items()}, file)
        for name, source in older.items():
            link_folder(source, aside / OLDER / name)
        written = sorted(path for path in aside.rglob("*") if path.is_file())
        files = {file.relative_to(aside).as_posix(): file.stat().st_size for file in written}
        record = {"schema": SCHEMA, "step": step, "files": files, **state}
        (aside / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")

    megabytes = sum(tensor.nbytes for group in tensors.values() for tensor in group.values()) / 1e6
    write_whole(final, fill, what=f"the checkpoint of step {step} ({megabytes:,.0f} MB)", durable=True)
    for old in _folders(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def newest(folder: Path) -> Checkpoint | None:
    """Returns the newest whole checkpoint, or None. What a kill left half written is removed.

    Raises:
        TrainingError: it was written by a newer version of the library.
    """
    if not folder.is_dir():
        return None
    for part in folder.glob(f".*{PART}"):
        shutil.rmtree(part, ignore_errors=True)
    for path in reversed(_folders(folder)):
        try:
            state = json.loads((path / STATE).read_text(encoding="utf-8"))
            whole = all((path / name).stat().st_size == size for name, size in state["files"].items())
        except (OSError, ValueError, KeyError):
            continue
        if state.get("schema", 0) > SCHEMA:
            raise TrainingError(
                f"{path} was written by a newer llm_arena (schema {state['schema']}, this one reads up to {SCHEMA}); "
                "update the library, or start anew with --fresh"
            )
        if whole:
            return Checkpoint(path=path, step=state["step"], state=state)
    return None


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())
