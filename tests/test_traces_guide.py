"""docs/traces.md runs as it stands there, and its tables are those of the code."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pyarrow.parquet
import pytest

from llm_arena.cli import main
from llm_arena.export import EPISODES, SEQUENCES, TURNS
from llm_arena.trace_file import read_traces
from llm_arena.types import Trace

GUIDE = (Path(__file__).resolve().parents[1] / "docs" / "traces.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\S+)(?: file=(\S+))?\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_its_commands_and_code_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    assert [kind for kind, _, _ in BLOCKS] == ["sh", "python", "python", "python", "sh", "sh"]
    names: dict[str, object] = {}
    shown = ""
    for kind, file, text in BLOCKS:
        if file:
            Path(file).write_text(text, encoding="utf-8")
        elif kind == "python":
            exec(compile(text, "traces.md", "exec"), names)
        for line in text.splitlines() if kind == "sh" else ():
            program, *arguments = shlex.split(line)
            assert program == "llm-arena" and main(arguments) == 0, line
        shown += capsys.readouterr().out
    assert "2 episodes replayed, all as recorded" in shown
    assert "\n{1: [0], 2: [1], 3: [2]}\n[]\n" in shown
    assert "mean after" in shown and "written to rescored.jsonl" in shown
    assert pyarrow.parquet.read_table("turns.parquet").num_rows == 8
    assert pyarrow.parquet.read_table("episodes.parquet").num_rows == 2
    before, after = (next(read_traces(name)) for name in ("traces.jsonl", "rescored.jsonl"))
    words = sum(len(turn.text.split()) for turn in before.turns if turn.seat == "pro_0")
    assert after.returns["pro_0"] == 1 - words / 100 and after.outcome == before.outcome


def test_its_tables_name_what_there_is() -> None:
    fields = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", GUIDE, re.MULTILINE)
    named = {name for cell in fields for name in re.findall(r"`(\w+)`", cell)}
    assert named - {"sequences", "turns", "episodes"} <= set(Trace.__struct_fields__)
    for name, columns in (("sequences", SEQUENCES), ("turns", TURNS), ("episodes", EPISODES)):
        [row] = re.findall(rf"^\| `{name}` \| (`trace_id`.*) \|$", GUIDE, re.MULTILINE)
        assert re.findall(r"`(\w+)`", row) == list(columns)
