"""What TensorBoard itself reads back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llm_arena.errors import MissingExtra
from llm_arena.training.tracking import TensorBoard


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_rows_are_read_back_under_their_names(tmp_path: Path) -> None:
    with TensorBoard(tmp_path / "board") as board:
        board.log({"step": 1, "namer/reward": 0.5, "namer/illegal/cut by length": 0.25, "loss": -2})
        board.log({"step": 2, "namer/reward": 0.75, "probe_gap": 1.0})
    assert read(tmp_path / "board") == {
        "namer/reward": [(1, 0.5), (2, 0.75)],
        "namer/illegal/cut by length": [(1, 0.25)],
        "loss": [(1, -2.0)],
        "probe_gap": [(2, 1.0)],
    }


def test_a_row_is_there_at_once(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.log({"step": 1, "loss": 1.0})
    assert read(tmp_path) == {"loss": [(1, 1.0)]}
    board.close()


def test_a_resumed_run_writes_no_step_twice(tmp_path: Path) -> None:
    """Killed after step 4, with a checkpoint of step 2."""
    killed = TensorBoard(tmp_path)
    for step in range(1, 5):
        killed.log({"step": step, "loss": float(step)})
    with TensorBoard(tmp_path, done=2) as resumed:
        resumed.log({"step": 3, "loss": 30.0})
    assert read(tmp_path) == {"loss": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_a_run_begun_anew_hides_the_old_one(tmp_path: Path) -> None:
    with TensorBoard(tmp_path) as board:
        board.log({"step": 1, "loss": 1.0})
        board.log({"step": 2, "loss": 2.0})
    with TensorBoard(tmp_path) as board:
        board.log({"step": 1, "loss": 5.0})
    assert read(tmp_path) == {"loss": [(1, 5.0)]}


def test_without_tensorboard_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r'pip install "llm-arena\[tensorboard\]"') as caught:
        TensorBoard(tmp_path / "board")
    assert '"tensorboard"' in str(caught.value)
    assert not (tmp_path / "board").exists()
