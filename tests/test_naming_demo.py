"""The demo, with a tiny model: it trains, ranks, reports, goes on where it was stopped, and can be interrupted."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llm_arena.cli import main
from llm_arena.trace_file import read_traces

COMMAND = [sys.executable, "-m", "llm_arena"]


def test_the_demo_trains_ranks_and_goes_on(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    command = ["train", "naming-demo", "--model", str(tiny_model), "--steps", "1", "--starts-per-step", "2"]
    command += ["--max-new-tokens", "4", "--run-dir", str(run_dir)]
    assert main(command) == 0
    first = capsys.readouterr().out
    figures = json.loads(first.splitlines()[-1])
    assert set(figures) == {
        "win_rate",
        "matches",
        "heldout_topics",
        "seconds_after_fetch",
        "peak_rss_gb",
        "max_logprob_gap",
    }
    assert figures["matches"] == 128
    assert 0 <= figures["win_rate"] <= 1
    assert figures["max_logprob_gap"] < 1e-4
    topics = {trace.spec.kwargs["topic"] for trace in read_traces(run_dir / "ranking" / "traces.jsonl")}
    assert len(topics) == figures["heldout_topics"] == 64
    trained = {trace.turns[0].messages[-1]["content"] for trace in read_traces(run_dir / "traces.jsonl")}
    assert not [topic for topic in topics if any(f" {topic}." in str(told) for told in trained)]
    assert (run_dir / "index.html").exists()

    assert main(command) == 0  # complete: nothing is done again
    assert capsys.readouterr().out == first

    # Stopped in the middle of the matches: only the missing ones are played, and the result is the same.
    kept = {}
    for name in ("matches.jsonl", "traces.jsonl"):
        path = run_dir / "ranking" / name
        kept[path] = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(kept[path][:100]))
    (run_dir / "results.json").unlink()
    assert main(command) == 0
    second = capsys.readouterr().out
    again = json.loads(second.splitlines()[-1])
    assert {name: again[name] for name in ("win_rate", "matches")} == {
        name: figures[name] for name in ("win_rate", "matches")
    }
    assert tables(second) == tables(first)
    for path, lines in kept.items():
        after = path.read_bytes().splitlines(keepends=True)
        assert len(after) == len(lines) == 384
        assert after[:100] == lines[:100]


def tables(out: str) -> str:
    """What is printed of names, matches and ratings."""
    shown = out.partition("\nrun     ")[0]
    assert "  rank  entrant" in shown and "+-" in shown and "anchor" in shown
    return shown


def test_ctrl_c_while_training_leaves_no_process(tiny_model: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "train", "naming-demo", "--model", str(tiny_model), "--steps", "500", "--run-dir", "run"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step 2/"):
            break
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - began < 10
    assert errors.splitlines()[-1] == "llm-arena: interrupted"
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_memory_counts_children_while_they_live() -> None:
    demo = importlib.import_module("llm_arena.train.naming_demo")
    alone = demo.held_memory()
    big = "x = bytearray(200_000_000); print(flush=True); input()"
    grandchild = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {big!r}])"
    with demo.Memory() as memory:
        with subprocess.Popen(
            [sys.executable, "-c", grandchild], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stdin is not None
            process.stdout.readline()
            assert demo.held_memory() - alone > 200_000_000
            time.sleep(4 * demo._SECONDS)
            process.communicate(b"\n")
        assert demo.held_memory() - alone < 100_000_000
    assert memory.peak - alone > 200_000_000
