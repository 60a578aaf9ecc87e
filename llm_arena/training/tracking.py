"""Metrics for TensorBoard, beside metrics.jsonl."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llm_arena.errors import MissingExtra
from llm_arena.training.config import TrainConfig
from llm_arena.training.metrics import Row
from llm_arena.training.run_folder import RunFolder


class TensorBoard:
    """Writes rows of metrics as TensorBoard scalars, each under its own name, e.g. `namer/reward`.

    Args:
        folder: of the event files; made if absent. A resumed run adds a file.
        done: steps that the run already has. What the folder holds of later ones is void, and will be written again.

    Raises:
        MissingExtra: tensorboard is not installed.
    """

    def __init__(self, folder: Path, *, done: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra(
                f'TensorBoard needs the package "{error.name}". Install it with: pip install "llm-arena[tensorboard]".'
            ) from error
        self._writer: Any = SummaryWriter(str(folder), purge_step=done + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def log(self, row: Mapping[str, float]) -> None:
        """Adds one step's metrics; `row["step"]`, counted from 1, is where they are drawn."""
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def close(self) -> None:
        """Writes what is waiting and closes the file."""
        self._writer.close()


@contextmanager
def tracker(config: TrainConfig, folder: RunFolder) -> Iterator[Callable[[Row], object]]:
    """Yields what else is to be told the metrics of each step: TensorBoard, or nobody.

    Raises:
        MissingExtra: tensorboard is not installed.
    """
    if not config.tensorboard:
        yield lambda row: None
        return
    done = folder.checkpoint.step if folder.checkpoint is not None else 0
    with TensorBoard(folder.path / "tensorboard", done=done) as board:
        yield board.log
