"""docs/diagnostics.md runs as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llm_arena.cli import main
from llm_arena.training.alarms import CHECKS

DOCS = Path(__file__).resolve().parents[1] / "docs"
GUIDE = (DOCS / "diagnostics.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\S+)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_its_commands_and_code_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds = ["python", "sh", "sh", "python", "python", "python", "sh", "sh"]
    assert [kind for kind, _ in BLOCKS] == kinds
    names: dict[str, object] = {}
    shown = []
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "diagnostics.md", "exec"), names)
        for line in text.splitlines() if kind == "sh" else ():
            program, *arguments = shlex.split(line)
            assert program == "llm-arena" and main(arguments) == 0, line
        shown.append(capsys.readouterr().out)
    assert "trained - initial" in shown[2] and "kuhn-poker-v0: 90 of 90 matches on 10 starts" in shown[2]
    assert re.search(r"^\+0\.\d{3} \+- 0\.\d{3} on 20 starts; sure: ", shown[3])
    assert shown[4] == "0.458333\n2.373611\nTrue\n"
    figures = re.search(r"exploitability (\S+), value (\S+)\n", shown[5])
    assert figures is not None and 0 < float(figures[1]) < 2
    assert "Pairs that judges judged alike in both orders" in shown[6]
    assert "90 episodes replayed, all as recorded" in shown[7]


def test_the_alarms_and_pages_that_it_names_are_there() -> None:
    assert {"collapse", "judge-inconsistent"} <= set(CHECKS)
    for page in re.findall(r"\]\(([\w.]+)\)", GUIDE):
        assert (DOCS / page).is_file(), page
