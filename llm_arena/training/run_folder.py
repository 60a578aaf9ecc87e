"""The folder of one run: its settings, logs, checkpoints and final model.

    runs/SCRIPT-HASH/
        config.json      settings that the weights depend on
        metrics.jsonl    one line per step
        traces.jsonl     the episodes
        checkpoints/     the newest two
        final/           a Hugging Face folder, there when the run is complete

A checkpoint holds the sizes of the two log files; a resumed run cuts them there, so that no step is logged twice.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import filelock

from llm_arena.errors import TrainingError
from llm_arena.trace_file import TraceWriter
from llm_arena.training import checkpoint
from llm_arena.training.config import differences
from llm_arena.training.metrics import Row
from llm_arena.training.whole_folder import flush
from llm_arena.types import Trace

IGNORED_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".index.json")
OWN = (".lock", "config.part")
"""What a kill can leave in a folder whose run has not begun."""


class RunFolder:
    """Opens or makes the folder of a run and owns its files until `close`.

    Args:
        path: the folder.
        settings: all that the run's weights depend on, as JSON.
        fresh: delete an earlier run of this folder first.

    Raises:
        TrainingError: the folder holds a run with other settings, something that is no run, or a run in progress.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, fresh: bool = False) -> None:
        self.path = path
        config = path / "config.json"
        if path.exists() and not config.is_file() and any(entry.name not in OWN for entry in path.iterdir()):
            raise TrainingError(f"{path} is not empty and holds no run of llm_arena; choose another run_dir")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrainingError(f"the run's folder {path} can't be made: {error.strerror}") from None
        self._lock = filelock.FileLock(path / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise TrainingError(
                f"another process is training in {path}; wait for it, or choose another run_dir"
            ) from None
        if fresh:
            for entry in path.iterdir():
                if entry.name != ".lock":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.checkpoint: checkpoint.Checkpoint | None = None
        try:
            if config.is_file():
                self._resume(config, settings)
            else:
                self._write_aside(config, json.dumps(settings, indent=1, sort_keys=True))
        except BaseException:
            self._lock.release()
            raise
        self._metrics = open(self.path / "metrics.jsonl", "ab")  # noqa: SIM115 - closed by close()
        self._traces: TraceWriter | None = None

    @property
    def complete(self) -> bool:
        """Whether the run has its final model."""
        return self.final.is_dir()

    @property
    def final(self) -> Path:
        """The folder of the final model."""
        return self.path / "final"

    def log(self, row: Row) -> None:
        """Appends one line to metrics.jsonl."""
        self._metrics.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._metrics.flush()

    def keep(self, traces: Iterable[Trace]) -> None:
        """Appends traces to traces.jsonl."""
        if self._traces is None:
            self._traces = TraceWriter(self.path / "traces.jsonl")
        for trace in traces:
            self._traces.write(trace)

    def rows(self) -> list[Row]:
        """Returns the metrics of all steps so far."""
        lines = (self.path / "metrics.jsonl").read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if line]

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the log files in bytes, after flushing them to the disk."""
        self._metrics.flush()
        os.fsync(self._metrics.fileno())
        traces = self.path / "traces.jsonl"
        return {"metrics.jsonl": self._metrics.tell(), "traces.jsonl": traces.stat().st_size if traces.exists() else 0}

    def close(self) -> None:
        """Closes the files and frees the folder for other processes."""
        self._metrics.close()
        if self._traces is not None:
            self._traces.close()
        self._lock.release()

    def _resume(self, config: Path, settings: Mapping[str, Any]) -> None:
        before = json.loads(config.read_text(encoding="utf-8"))
        changed = differences(before, settings)
        if changed:
            raise TrainingError(
                f"{self.path} holds a run with other settings ({'; '.join(changed)}). Give its settings to "
                "go on with it, another run_dir, or --fresh to delete it"
            )
        self.checkpoint = checkpoint.newest(self.path / "checkpoints")
        sizes = self.checkpoint.state["sizes"] if self.checkpoint else {"metrics.jsonl": 0, "traces.jsonl": 0}
        for name, size in sizes.items():
            log = self.path / name
            if log.exists() and log.stat().st_size > size:
                os.truncate(log, size)

    def _write_aside(self, path: Path, text: str) -> None:
        aside = path.with_suffix(".part")
        aside.write_text(text + "\n", encoding="utf-8")
        flush(aside)
        aside.replace(path)


def copy_model_files(base: Path, target: Path) -> None:
    """Copies what makes a model folder besides its weights: tokenizer, chat template, generation settings."""
    for file in sorted(base.iterdir()):
        if (
            file.is_file()
            and not file.name.endswith(IGNORED_SUFFIXES)
            and file.name not in ("config.json", "source.json")
        ):
            shutil.copyfile(file, target / file.name)
