"""docs/league.md runs as it stands there."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from llm_arena.cli import main
from llm_arena.training.league_settings import LeagueSettings

DOCS = Path(__file__).resolve().parents[1] / "docs"
GUIDE = (DOCS / "league.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\S+)\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)


def test_its_commands_and_code_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert [kind for kind, _ in BLOCKS] == ["python", "sh", "toml", "sh", "sh"]
    shown = []
    for kind, text in BLOCKS:
        if kind == "python":
            exec(compile(text, "league.md", "exec"), {})
        elif kind == "toml":
            (tmp_path / "mix.toml").write_text(text)
        else:
            [line] = text.splitlines()
            program, *arguments = shlex.split(line)
            assert program == "llm-arena" and main(arguments) == 0, line
        shown.append(capsys.readouterr().out)
    assert "learner@4" in shown[1] and shown[1].splitlines()[-1] == "runs/league/final"
    assert "kuhn-poker-v0/optimal" in shown[3] and "trained - past" in shown[4]
    rows = [json.loads(line) for line in (tmp_path / "runs/league/metrics.jsonl").read_text().splitlines()]
    told = set().union(*rows)
    for name in re.findall(r"`((?:league|eval|rating)/[\w/]+)`", GUIDE):
        assert name.replace("NAME", "tiny").replace("ROLE/ENTRANT", "player/learner") in told, name


def test_its_table_has_all_settings_and_their_defaults() -> None:
    table = dict(re.findall(r"^\| `league\.(\w+)` \| (.+?) \|", GUIDE, re.MULTILINE))
    assert list(table) == [field.name for field in dataclasses.fields(LeagueSettings)]
    plain = LeagueSettings()
    for name in ("snapshot_every", "keep", "min_games"):
        assert table[name] == str(getattr(plain, name))


def test_the_pages_that_it_names_are_there() -> None:
    for page in re.findall(r"\]\(([\w.]+)\)", GUIDE):
        assert (DOCS / page).is_file(), page
