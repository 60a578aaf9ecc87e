"""The folder of one run: its settings, logs, checkpoints and final model.

    runs/SCRIPT-HASH/
        config.json      settings that the weights depend on
        metrics.jsonl    one line per step
        traces.jsonl     the episodes
        checkpoints/     the newest two
        league/          past versions that may still be met, and ratings.json, in a league
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
from llm_arena.training.metrics import Row
from llm_arena.training.run_identity import differences
from llm_arena.training.whole_folder import PART, flush
from llm_arena.types import Trace

IGNORED_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt", ".index.json")
OWN = (".lock", "config.part")
"""What a kill can leave in a folder whose run has not begun."""
WRITTEN = (
    *("config.json", "metrics.jsonl", "traces.jsonl", "checkpoints", "weights", "final", "adapter"),
    *("league", "ratings.json"),
    *("tensorboard", "tracking"),
)
"""What a run writes."""
DERIVED = ("matches.jsonl", "results.json", "index.html", "ranking")
"""What is made of a run afterwards, and is void without it."""
SHOWN_DIFFERENCES = 5
MARK = "llm_arena_run"
"""Key in config.json that tells a run's folder from a model's. Its value is the version of the folder's layout."""


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
        self._lock = filelock.FileLock(path / ".lock")
        self.checkpoint: checkpoint.Checkpoint | None = None
        self._traces: TraceWriter | None = None
        try:
            if path.exists() and _settings_of(config) is None and any(file.name not in OWN for file in path.iterdir()):
                raise TrainingError(f"{path} is not empty and holds no run of llm_arena; choose another run_dir")
            path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            if fresh:
                self._clear()
            before = _settings_of(config)
            if before is None or self._nothing_done():
                self._write_aside(config, json.dumps({**settings, MARK: 1}, indent=1, sort_keys=True))
            else:
                self._resume(before, settings)
            # Without a buffer, so that closing writes nothing that the disk has refused.
            self._metrics = open(self.path / "metrics.jsonl", "ab", buffering=0)  # noqa: SIM115 - closed by close()
            self._whole = self._sizes_now()
        except filelock.Timeout:
            raise TrainingError(
                f"another process is training in {path}; wait for it, or choose another run_dir"
            ) from None
        except OSError as error:
            self._lock.release()
            raise TrainingError(
                f"the run's folder {path} can't be written: {error.strerror or error}; make room, or choose another "
                "run_dir"
            ) from error
        except BaseException:
            self._lock.release()
            raise

    @property
    def complete(self) -> bool:
        """Whether the run has its final model."""
        return self.final.is_dir()

    @property
    def final(self) -> Path:
        """The folder of the final model."""
        return self.path / "final"

    def log(self, row: Row) -> None:
        """Appends one line to metrics.jsonl, which ends a step.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        rest = memoryview(json.dumps(row, allow_nan=False).encode() + b"\n")
        try:
            while rest:
                rest = rest[self._metrics.write(rest) :]
            self._whole = self._sizes_now()
        except OSError as error:
            raise TrainingError(
                f"{self._metrics.name} can't be written: {error.strerror}; make room and give the same command again"
            ) from error

    def keep(self, traces: Iterable[Trace]) -> None:
        """Appends traces of the step that the next `log` ends to traces.jsonl.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        try:
            if self._traces is None:
                self._traces = TraceWriter(self.path / "traces.jsonl")
            for trace in traces:
                self._traces.write(trace)
        except OSError as error:
            raise TrainingError(
                f"{self.path / 'traces.jsonl'} can't be written: {error.strerror}; make room and give the same command "
                "again"
            ) from error

    def rows(self) -> list[Row]:
        """Returns the metrics of all steps so far."""
        lines = (self.path / "metrics.jsonl").read_bytes().split(b"\n")
        return [json.loads(line) for line in lines if line]

    def sizes(self) -> dict[str, int]:
        """Returns the sizes of the log files in bytes at the end of the last whole step, after flushing to the disk."""
        os.fsync(self._metrics.fileno())
        return dict(self._whole)

    def close(self) -> None:
        """Closes the files and frees the folder for other processes."""
        self._metrics.close()
        if self._traces is not None:
            self._traces.close()
        self._lock.release()

    def _sizes_now(self) -> dict[str, int]:
        logs = [self.path / "metrics.jsonl", self.path / "traces.jsonl"]
        return {log.name: log.stat().st_size if log.exists() else 0 for log in logs}

    def _nothing_done(self) -> bool:
        """Whether the run made no step, as after a mistake in its settings: then others may be given."""
        metrics = self.path / "metrics.jsonl"
        logged = metrics.exists() and metrics.stat().st_size > 0
        return not logged and checkpoint.newest(self.path / "checkpoints") is None and not self.complete

    def _clear(self) -> None:
        """Deletes what a run wrote, and nothing else that may lie in its folder."""
        for entry in list(self.path.iterdir()):
            if entry.name in (*WRITTEN, *DERIVED) or entry.name.endswith(PART):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _resume(self, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        changed = differences(before, settings)
        if len(changed) > SHOWN_DIFFERENCES:
            changed = [*changed[:SHOWN_DIFFERENCES], f"and {len(changed) - SHOWN_DIFFERENCES} more"]
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


def _settings_of(config: Path) -> dict[str, Any] | None:
    """Returns the settings of the run that `config` belongs to; None if it is no run's (a model has one as well)."""
    try:
        settings = json.loads(config.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(settings, dict) or settings.pop(MARK, None) is None:
        return None
    return settings


def copy_model_files(base: Path, target: Path) -> None:
    """Copies what makes a model folder besides its weights: tokenizer, chat template, generation settings."""
    for file in sorted(base.iterdir()):
        if (
            file.is_file()
            and not file.name.endswith(IGNORED_SUFFIXES)
            and file.name not in ("config.json", "source.json")
        ):
            shutil.copyfile(file, target / file.name)
