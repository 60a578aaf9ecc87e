"""The demo, with a tiny model: it trains, ranks, reports, goes on where it was stopped, and can be interrupted."""

from __future__ import annotations

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
    topics = {trace.spec.kwargs["topic"] for trace in read_traces(run_dir / "matches.jsonl")}
    assert len(topics) == figures["heldout_topics"] == 64
    trained = {trace.turns[0].messages[-1]["content"] for trace in read_traces(run_dir / "traces.jsonl")}
    assert not [topic for topic in topics if any(f" {topic}." in str(told) for told in trained)]
    assert (run_dir / "index.html").exists()

    assert main(command) == 0  # complete: nothing is done again
    assert capsys.readouterr().out == first

    # Stopped in the middle of the matches: only the missing ones are played, and the result is the same.
    lines = (run_dir / "matches.jsonl").read_bytes().splitlines(keepends=True)
    (run_dir / "matches.jsonl").write_bytes(b"".join(lines[:100]))
    (run_dir / "results.json").unlink()
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: again[name] for name in ("win_rate", "matches")} == {
        name: figures[name] for name in ("win_rate", "matches")
    }
    assert len((run_dir / "matches.jsonl").read_bytes().splitlines()) == len(lines)


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
