"""The experiments of the shelf `train/` that have no file of their own, each for two or three steps of a tiny model."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from llm_arena.errors import UsageError
from llm_arena.trace_file import read_traces


def test_league_prints_its_ratings_and_the_model_it_began_as_is_an_anchor(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("llm_arena.train.league")
    main = module.main
    small = ["--model", str(tiny_model), "--steps", "3", "--starts-per-step", "8", "--max-new-tokens", "2"]
    [other] = [line.split() for line in (module.__doc__ or "").splitlines() if "--league.self-play" in line]
    run_dir = tmp_path / "run"
    assert main([*small, "--league.snapshot-every", "1", "--run-dir", str(run_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert Path(lines[-1]) == run_dir / "final" and "order of the games" in lines[0]
    rated = {line.rsplit("  ", 1)[1] for line in lines[2:-1]}
    assert {"learner", "learner@1", "learner@2", "random-legal"} <= rated
    assert json.loads((run_dir / "config.json").read_text())["league"]["anchors"] == f"random-legal,{tiny_model}"
    met = {
        info.policy or info.agent for trace in read_traces(run_dir / "traces.jsonl") for info in trace.seats.values()
    }
    assert met <= rated | {str(tiny_model)} and "random-legal" in met
    assert main([*small, "--league.snapshot-every", "1", "--run-dir", str(run_dir)]) == 0  # complete: told once more
    assert capsys.readouterr().out.splitlines()[-1] == lines[-1]
    assert main([*small, *other, "--run-dir", str(tmp_path / "other")]) == 0  # the mix that the help shows
    with pytest.raises(UsageError, match="league needs opponents"):
        alone = ["--league.self-play", "1", "--league.past", "0", "--league.anchors-share", "0", "--league.anchors", ""]
        main([*small, *alone])


def test_group_compare_pays_by_comparing_separate_episodes(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module("llm_arena.train.group_compare")
    small = ["--model", str(tiny_model), "--steps", "2", "--starts-per-step", "2", "--max-new-tokens", "4"]
    assert module.main([*small, "--env-args", '{"namers": 1, "judge": "length"}', "--run-dir", str(tmp_path)]) == 0
    assert Path(capsys.readouterr().out.splitlines()[-1]) == tmp_path / "final"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["groups"], row["groups_incomplete"]) for row in rows] == [(2, 0), (2, 0)]
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    assert len(traces) == 2 * 2 * module.DEFAULTS.group_size and all(len(trace.seats) == 1 for trace in traces)
    with pytest.raises(UsageError, match="use self-play"):
        module.main([*small, "--credit", "seat"])
