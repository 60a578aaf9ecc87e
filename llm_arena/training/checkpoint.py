"""Checkpoints: all that a resumed run needs to equal an unbroken one.

A checkpoint is a folder of safetensors files (weights, anchor, optimizer moments) and `state.json` (step, running
baselines, sizes of the log files, and the size of each tensor file). No pickle. It is written aside, flushed to the
disk and renamed, so that a kill at any moment leaves the older ones as they were. Nothing random has a state to save:
starts, episode seeds and sampling seeds are functions of the run's seed and the step.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from llm_arena.errors import TrainingError

STATE = "state.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What is in one checkpoint."""

    path: Path
    step: int
    "Optimizer steps that were done."
    state: dict[str, Any]

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Loads the tensor files, by name without suffix."""
        return {Path(name).stem: load_file(self.path / name) for name in self.state["files"]}


def save(
    folder: Path, step: int, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], *, keep: int = 2
) -> Path:
    """Writes a checkpoint and removes all but the newest `keep`.

    Args:
        folder: of all checkpoints of the run.
        step: optimizer steps that were done.
        tensors: file name without suffix -> tensors by name.
        state: JSON.
        keep: how many checkpoints stay.

    Raises:
        TrainingError: the disk is full or refuses; earlier checkpoints are intact.
    """
    final = folder / f"step-{step:08d}"
    aside = folder / f".{final.name}.part"
    needed = sum(tensor.nbytes for group in tensors.values() for tensor in group.values())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for name, group in tensors.items():
            save_file({key: tensor.contiguous() for key, tensor in group.items()}, aside / f"{name}.safetensors")
            flush(aside / f"{name}.safetensors")
        files = {f"{name}.safetensors": (aside / f"{name}.safetensors").stat().st_size for name in tensors}
        record = {"schema": SCHEMA, "step": step, "files": files, **state}
        (aside / STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")
        flush(aside / STATE)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        flush(folder)
    except (OSError, RuntimeError) as error:  # safetensors wraps the system's errors in a RuntimeError of its own
        shutil.rmtree(aside, ignore_errors=True)
        raise TrainingError(_disk_message(folder, step, needed, error)) from error
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
    for part in folder.glob(".*.part"):
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


def flush(path: Path) -> None:
    """Forces a file, or the entries of a folder, to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        if path.is_dir():  # Windows opens no folders, and has no such flush
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def _disk_message(folder: Path, step: int, needed: int, error: Exception) -> str:
    full = "No space left" in str(error) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
    reason = f"the disk is full, {needed / 1e6:,.0f} MB are needed" if full else str(error)
    return (
        f"the checkpoint of step {step} can't be written to {folder}: {reason}. Earlier checkpoints are intact: make "
        "room and give the same command again"
    )
