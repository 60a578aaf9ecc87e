"""The training program of tests/programs, as a module of this process."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

PROGRAM = Path(__file__).parents[1] / "programs" / "train_tiny.py"


def tiny() -> ModuleType:
    """Returns a fresh module."""
    spec = importlib.util.spec_from_file_location("train_tiny", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
