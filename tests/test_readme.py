"""The README's Python runs as it stands there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import llm_arena

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
WITHOUT_MODEL = [block for block in BLOCKS if "smollm2" not in block]


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_blocks_are_found() -> None:
    assert len(WITHOUT_MODEL) == 5 and len(BLOCKS) == 6


def test_the_first_block_plays(capsys: pytest.CaptureFixture[str]) -> None:
    trace = run(WITHOUT_MODEL[0])["trace"]
    assert sum(trace.returns.values()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 1 + len(trace.turns)


def test_the_second_block_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    run("import llm_arena\n" + WITHOUT_MODEL[1])
    printed = capsys.readouterr().out
    assert "optimal" in printed and "random-legal" in printed and "rating" in printed


def test_games_of_other_suites_and_single_seats_run() -> None:
    assert sum(run("import llm_arena\n" + WITHOUT_MODEL[2])["trace"].returns.values()) == 0
    assert run("import llm_arena\n" + WITHOUT_MODEL[3])["reward"] in (-2.0, 1.0, 2.0)


def test_the_example_game_is_a_whole_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "readme_nim.py").write_text(WITHOUT_MODEL[4])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # check_env plays in a second process too
    monkeypatch.setattr(llm_arena.registry, "entries", dict(llm_arena.registry.entries))  # forgotten after this test
    llm_arena.register("nim-v0", importlib.import_module("readme_nim").Nim)
    llm_arena.check_env(llm_arena.make("nim-v0"))
    trace = llm_arena.play("nim-v0", agents="random-legal", seed=0)
    assert sorted(trace.returns.values()) == [-1, 1]
    assert trace.outcome is not None and trace.outcome.reason == "took the last stone"
