"""`llm-arena leaderboard`, and the boards of the shelf."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_arena.boards.board import read_board, shelf
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.leaderboard import tabulate
from llm_arena.cli import main
from llm_arena.errors import UnknownName, UsageError
from llm_arena.rating import MatchRow

TOML = """
matches = 4
anchor = "random"
[[entrants]]
name = "random"
agent = "random-legal"
[[entrants]]
name = "optimal"
agent = "optimal"
[[games]]
id = "kuhn-poker-v0"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(TOML)
    return tmp_path


def test_a_board_file_is_played_goes_on_and_is_rated_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", "mine.toml"]) == 0
    first = capsys.readouterr()
    assert "kuhn-poker-v0: 4 of 4 matches" in first.out
    assert first.out.splitlines()[-1] == "folder  runs/leaderboard-mine"
    assert first.err == "match 4/4  0:00 left\n"
    assert main(["leaderboard", "mine.toml"]) == 0
    assert capsys.readouterr() == (first.out, "")
    assert main(["leaderboard", "mine.toml", "--matches", "5"]) == 0
    more = capsys.readouterr()
    assert "6 of 6 matches" in more.out
    assert more.err == "kuhn-poker-v0: 5 matches are rounded up to 6, whole blocks of 2\nmatch 2/2  0:00 left\n"
    for arguments in (["--rate-only"], []):
        assert main(["leaderboard", "runs/leaderboard-mine", *arguments]) == 0
        assert capsys.readouterr().out == more.out
    assert main(["leaderboard", "mine.toml"]) == 1
    assert "matches: 5 -> 4 (fewer)" in capsys.readouterr().err
    assert main(["leaderboard", "mine.toml", "--fresh"]) == 0
    assert capsys.readouterr().out == first.out
    assert main(["replay", "runs/leaderboard-mine/traces.jsonl", "--verify"]) == 0


@pytest.mark.parametrize(
    "arguments, code, says",
    [
        ([], 2, "a board is missing; the shelf has: kuhn, naming"),
        (["khun"], 2, 'Did you mean "kuhn"'),
        (["."], 2, "no board's folder"),
        (["mine.toml", "--rate-only"], 1, "no board's folder"),
        (["mine.toml", "--match", "3"], 2, 'Did you mean "--matches"'),
        (["mine.toml", "--engine", "tensorrt"], 2, "transformers"),
        (["mine.toml", "--matches", "0"], 2, "matches = 0"),
    ],
)
def test_what_is_wrong_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert main(["leaderboard", *arguments]) == code
    errors = capsys.readouterr().err
    assert says in errors
    assert errors.count("\n") == 1
    assert not (here / "runs").exists()


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["leaderboard", "--help"]) == 0
    text = capsys.readouterr().out
    for word in ("[[entrants]]", "[[games]]", "--rate-only", "examples:", "kuhn", "naming", "manifest.json"):
        assert word in text


@pytest.mark.parametrize("name", sorted(shelf()))
def test_every_board_of_the_shelf_can_be_scheduled_and_says_what_it_is(name: str) -> None:
    board = read_board(shelf()[name])
    assert board.name == name
    assert board.summary
    assert all(board.schedule().values())


@pytest.mark.parametrize(
    "text, kind, says",
    [
        ("", UsageError, "no entrant is given"),
        ("matchs = 3", UnknownName, "unknown key 'matchs'. Did you mean \"matches\""),
        ("matches = '3'", UsageError, "Expected `int`, got `str` - at `$.matches`"),
        ("matches = [", UsageError, "not valid TOML"),
        ("entrants = 3", UsageError, "entrants must be tables, each headed [[entrants]]"),
        ("[[entrants]]\nname = 'x'", UsageError, 'mine.toml, entrant 1: a key "agent"'),
        ("[[entrants]]\nname = 'x'\nagnt = 'y'", UsageError, 'Did you mean "agnt"'),
        ("[[games]]\nidd = 'x'", UnknownName, "game 1: unknown key 'idd'. Did you mean \"id\""),
        (TOML + "seating = 'selfish'", UsageError, "seating"),
        (TOML + "[engine]\nkinds = 'vllm'", UnknownName, 'unknown key engine.kinds. Did you mean "kind"'),
        (TOML + "[engine]\nkind = 'vlm'", UsageError, "vlm"),
        ("engine = 3", UsageError, "engine must be a table"),
    ],
)
def test_a_board_file_that_does_not_fit_is_refused(here: Path, text: str, kind: Any, says: str) -> None:
    path = here / "mine.toml"
    path.write_text(text)
    with pytest.raises(kind) as refused:
        read_board(path)
    assert says in str(refused.value)


def test_an_engine_is_read_with_arguments_of_its_own(here: Path) -> None:
    path = here / "mine.toml"
    path.write_text(TOML + "[engine]\nkind = 'vllm'\ndevices = 0\nmax_model_len = 512\n")
    engine = read_board(path).engine
    assert (engine.kind, engine.devices, engine.dtype) == ("vllm", "0", "auto")
    assert engine.vllm_args() == {"max_model_len": 512}


@pytest.mark.parametrize("key", ["hf_token", "api_key", "token", "password"])
def test_secrets_are_not_written_into_boards(here: Path, key: str) -> None:
    path = here / "mine.toml"
    for text in (
        TOML + f"[engine]\nkind = 'vllm'\n{key} = 'x'\n",
        TOML.replace('agent = "optimal"', f'agent = "optimal"\n{key} = "x"'),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match="looks like a secret"):
            read_board(path)


def test_published_results_are_what_the_board_gives() -> None:
    path = shelf()["kuhn"]
    assert play_board(read_board(path)).to_markdown() == path.with_suffix(".md").read_text(encoding="utf-8")


def test_published_results_of_models_follow_from_their_matches() -> None:
    path = shelf()["naming"]
    lines = gzip.decompress(path.with_name("naming.matches.jsonl.gz").read_bytes()).splitlines()
    rows = [msgspec.json.decode(line, type=MatchRow) for line in lines]
    board = read_board(path)
    made = tabulate(board, board.schedule(), rows)
    table, _, how = path.with_suffix(".md").read_text(encoding="utf-8").partition("\n## How it was played\n")
    assert made.complete
    assert made.to_markdown() == table
    assert "2026" in how and "vLLM" in how


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        read_board(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not valid TOML"):
        read_board(tmp_path / "bad.toml")


def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(here: Path) -> None:
    (here / "mine.toml").write_text(TOML.replace("matches = 4", "matches = 20000"))
    command = [sys.executable, "-m", "llm_arena", "leaderboard", "mine.toml"]
    with subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        matches = here / "runs" / "leaderboard-mine" / "matches.jsonl"
        deadline = time.monotonic() + 60
        while not (matches.exists() and matches.stat().st_size > 10_000):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "llm-arena: interrupted"
    assert out == ""
    done = len(matches.read_bytes().splitlines())
    rated = subprocess.run(
        [*command[:-1], str(matches.parent), "--rate-only"], cwd=here, capture_output=True, text=True
    )
    assert rated.returncode == 0
    assert f"{done} of 20000 matches" in rated.stdout and "incomplete" in rated.stdout
