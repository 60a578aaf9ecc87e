"""Metrics to a tracker, beside metrics.jsonl: TensorBoard, Weights & Biases, or trackio.

All three get each step's row under its own names. A resumed run goes on in the tracker's run, and steps that are void,
for no checkpoint held them, are written again. Packages are imported when a run begins that wants them; keys come from
the environment alone. By default nothing leaves the machine: Weights & Biases writes offline unless WANDB_MODE says
otherwise, trackio into its local database unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL does.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from llm_arena.errors import MissingExtra
from llm_arena.training.config import TrainConfig
from llm_arena.training.metrics import Row
from llm_arena.training.run_folder import RunFolder

PROJECT = "llm-arena"
"""Name of the project in trackers that have projects."""


class Tracker(Protocol):
    """Where rows of metrics go."""

    def log(self, row: Mapping[str, float]) -> None:
        """Adds one step's metrics; `row["step"]`, counted from 1, is where they are drawn."""

    def close(self) -> None:
        """Writes what is waiting."""


class TensorBoard:
    """Writes rows of metrics as TensorBoard scalars, each under its own name, e.g. `reward/avg/namer`.

    Args:
        folder: of the event files; made if absent. A resumed run adds a file.
        done: steps that the run already has. What the folder holds of later ones is void, and will be written again.

    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(self, folder: Path, *, done: int = 0) -> None:
        self._writer: Any = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(folder), purge_step=done + 1
        )

    def log(self, row: Mapping[str, float]) -> None:
        """Adds one step's metrics; see `Tracker`."""
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Writes what is waiting and closes the file."""
        self._writer.close()


class Wandb:
    """Writes rows of metrics to Weights & Biases, offline unless WANDB_MODE says otherwise.

    Offline runs can't be taken back to an earlier step, so a resumed one replaces its files and begins with the rows
    that still count; `wandb sync FOLDER/wandb/offline-run-*` uploads it. Online the server keeps what it has of a
    step: the same numbers, but for times.

    Args:
        folder: of its files and of the run's id, which a resumed run takes up; made if absent.
        name: of the run.
        config: settings to keep with it.
        rows: of the steps that the run already has.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, folder: Path, *, name: str, config: Mapping[str, Any], rows: Sequence[Row] = ()) -> None:
        wandb = _module("wandb", "wandb")
        id = _run_id(folder)
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            for old in folder.glob(f"wandb/offline-run-*-{id}"):
                shutil.rmtree(old)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=name,
            id=id,
            dir=str(folder),
            mode=mode,
            resume="allow",
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        for row in rows:
            self.log(row)

    def log(self, row: Mapping[str, float]) -> None:
        """Adds one step's metrics; see `Tracker`."""
        self._run.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def close(self) -> None:
        """Writes what is waiting."""
        self._run.finish()


class Trackio:
    """Writes rows of metrics to trackio's database on this machine; `trackio show --project llm-arena` draws them.

    A resumed run replaces what the database has of it and begins with the rows that still count.

    Args:
        folder: of the run's id, which a resumed run takes up; made if absent.
        name: of the run; the id is added, for trackio tells runs by their names.
        config: settings to keep with it.
        rows: of the steps that the run already has.

    Raises:
        MissingExtra: trackio is not installed.
    """

    def __init__(self, folder: Path, *, name: str, config: Mapping[str, Any], rows: Sequence[Row] = ()) -> None:
        self._trackio: Any = _module("trackio", "trackio")
        name = f"{name}-{_run_id(folder)}"
        with contextlib.redirect_stdout(sys.stderr):  # it prints, and a script's output is for its results
            runs: list[Any] = []
            with contextlib.suppress(ValueError):  # the project does not exist yet
                runs = list(self._trackio.Api().runs(PROJECT))
            for run in runs:
                if run.name == name:
                    run.delete()
            self._trackio.init(
                project=PROJECT,
                name=name,
                config=dict(config),
                resume="never",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        for row in rows:
            self.log(row)

    def log(self, row: Mapping[str, float]) -> None:
        """Adds one step's metrics; see `Tracker`."""
        self._trackio.log({name: value for name, value in row.items() if name != "step"}, step=int(row["step"]))

    def close(self) -> None:
        """Writes what is waiting."""
        with contextlib.redirect_stdout(sys.stderr):
            self._trackio.finish()


@contextmanager
def tracker(config: TrainConfig, folder: RunFolder) -> Iterator[Callable[[Row], object]]:
    """Yields what else is to be told the metrics of each step: a tracker's `log`, or nobody's.

    Raises:
        MissingExtra: the tracker's package is not installed.
    """
    opened = _opened(config, folder)
    if opened is None:
        yield lambda row: None
        return
    try:
        yield opened.log
    finally:
        opened.close()


def _opened(config: TrainConfig, folder: RunFolder) -> Tracker | None:
    if config.tracker == "none":
        return None
    if config.tracker == "tensorboard":
        done = folder.checkpoint.step if folder.checkpoint is not None else 0
        return TensorBoard(folder.path / "tensorboard", done=done)
    kind = Wandb if config.tracker == "wandb" else Trackio
    return kind(folder.path / "tracking", name=folder.path.name, config=config.to_json(), rows=folder.rows())


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f'tracker={extra} needs the package "{error.name}". Install it with: pip install "llm-arena[{extra}]".'
        ) from error


def _run_id(folder: Path) -> str:
    """Returns the id that the run has in a tracker, and makes one for a new run."""
    path = folder / "id.txt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(secrets.token_hex(4) + "\n", encoding="utf-8")
    return path.read_text(encoding="utf-8").strip()
