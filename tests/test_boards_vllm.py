"""A board on the real vLLM: an engine for each model, which may die in the middle."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from llm_arena.boards.board import Board, Entrant, Game
from llm_arena.boards.evaluate import play_board
from llm_arena.engines import vllm_engine
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.errors import EngineError
from llm_arena.models import random_model
from llm_arena.rating import MatchRow
from llm_arena.runtime import Runtime

WORDS = [*"0123456789", *"abcdefghijklmnopqrstuvwxyz", "check", "bet", "call", "fold", "J", "Q", "K"]


def kept(folder: Path) -> list[dict[str, Any]]:
    path = folder / "matches.jsonl"
    rows = [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []
    return [row for row in rows if row["status"] != "void"]


def kill_later(runtime: Runtime, base: Path, folder: Path) -> None:
    """Kills the engine that serves `base` when some matches are finished."""
    end = time.monotonic() + 120
    while len(kept(folder)) < 20 and time.monotonic() < end:
        time.sleep(0.02)
    for engine in runtime._home.engines:
        assert isinstance(engine, VllmEngine)
        if engine.describe()["base"] == str(base) and engine.pid is not None:
            os.kill(engine.pid, signal.SIGKILL)


def test_two_models_have_an_engine_each_and_one_that_dies_for_good_costs_no_finished_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "REVIVALS", 0)
    left, right = (
        random_model(tmp_path / name, words=WORDS, hidden_size=64, heads=2, seed=seed)
        for seed, name in enumerate(("left", "right"))
    )
    board = Board(
        name="served",
        entrants=[
            Entrant(name="left", agent=str(left), settings={"max_new_tokens": 4}),
            Entrant(name="left greedy", agent=str(left), settings={"max_new_tokens": 4, "temperature": 0.0}),
            Entrant(name="right", agent=str(right), settings={"max_new_tokens": 4}),
        ],
        games=[Game(id="kuhn-poker-v0", args={"illegal": "random_legal"})],
        matches=200,
        engine=EngineSettings(kind="vllm", args='{"max_model_len": 512}'),
    )
    folder = tmp_path / "board"
    with Runtime(engine=board.engine, max_open_episodes=4) as runtime:
        killer = threading.Thread(target=kill_later, args=(runtime, right, folder))
        killer.start()
        with pytest.raises(EngineError, match=rf"engine of {right} failed 3 .* has died .* are kept; the same command"):
            play_board(board, folder=folder, runtime=runtime)
        killer.join()
    before: list[dict[str, Any]] = kept(folder)
    assert 20 <= len(before) < 600

    found = play_board(board, folder=folder)
    assert (found.complete, found.tables[0].played, found.tables[0].void) == (True, 600, 0)
    rows: dict[str, MatchRow] = {row.id: row for row in found.matches}
    for row in before:
        assert row["reason"] == rows[row["id"]].reason
    assert len(kept(folder)) == 600
    sessions = json.loads((folder / "manifest.json").read_text())["sessions"]
    assert len(sessions) == 2
    for session in sessions:
        served = {engine["base"]: (engine["engine"], engine["players"]) for engine in session["engines"]}
        assert served == {str(left): ("vllm", ["left", "left greedy"]), str(right): ("vllm", ["right"])}
