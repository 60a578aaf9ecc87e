"""What `benchmarks/rollout_overhead.py` and `benchmarks/export_speed.py` measure with is what they say it is."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from llm_arena.recorder import sequences


def program(name: str) -> ModuleType:
    """A benchmark as a module."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_arena_alone_is_measured_in_whole_games(tiny_model: Path) -> None:
    overhead = program("rollout_overhead")
    settings = overhead.Settings(model=str(tiny_model), games=2, null_games=3, max_new_tokens=4)
    found = overhead.null(settings)
    assert [row["game"] for row in found] == list(overhead.NULL_GAMES)
    for row in found:
        alone, whole = row["game_and_recorder_microseconds_per_turn"], row["cpu_microseconds_per_turn"]
        assert alone > 0 and whole > 0 and row["turns_per_second"] > 0


def test_the_traces_that_are_exported_are_whole_conversations() -> None:
    speed = program("export_speed")
    trace = speed.made(3)
    assert [len(one.turns) for one in sequences(trace)] == [5, 5]
    assert all(sum(one.mask) == 5 * speed.SAMPLED for one in sequences(trace))
