"""The training program of tests/programs as a module of this process, a model for Kuhn poker, and a broken run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llm_arena.models import random_model
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import train

PROGRAM = Path(__file__).parents[1] / "programs" / "train_tiny.py"


def tiny() -> ModuleType:
    """Returns a fresh module."""
    spec = importlib.util.spec_from_file_location("train_tiny", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kuhn_model(folder: Path) -> Path:
    """Returns a random model that knows the words of Kuhn poker and few others."""
    words = ["check", "bet", "call", "fold", "J", "Q", "K"]
    return random_model(folder / "model", words=words, hidden_size=32, layers=1, heads=2)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Kuhn model for tests that leave it as it is."""
    return kuhn_model(tmp_path_factory.mktemp("model"))


def broken_off(config: TrainConfig, step: int) -> checkpoint.Checkpoint:
    """Returns the checkpoint that a run leaves when Ctrl-C ends it after a step."""

    def press(row: Any, learners: Any) -> None:
        if row["step"] == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, script="t", progress=False, on_step=press)
    assert config.run_dir is not None
    saved = checkpoint.newest(Path(config.run_dir) / "checkpoints")
    assert saved is not None and saved.step == step
    return saved
