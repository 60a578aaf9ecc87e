"""The match file of a board: kills, torn tails, foreign rows, one writer."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_arena.boards.board import Board, BoardError, Entrant, Game
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.match_file import MatchFile, read_rows
from llm_arena.errors import TraceError
from llm_arena.matchmaking import Match

PROGRAM = Path(__file__).parent / "programs" / "play_board.py"
BOARD = Board(
    name="test",
    entrants=[Entrant(name="a", agent="random-legal"), Entrant(name="b", agent="optimal")],
    games=[Game(id="kuhn-poker-v0")],
    matches=6,
)
PLANNED: dict[str, Match] = {match.id: match for matches in BOARD.schedule().values() for match in matches}


@pytest.fixture
def played(tmp_path: Path) -> Path:
    play_board(BOARD, folder=tmp_path)
    return tmp_path


def rows_of(folder: Path) -> list[bytes]:
    return (folder / "matches.jsonl").read_bytes().splitlines(keepends=True)


def test_kills_at_random_moments_lose_no_finished_match(tmp_path: Path, soak: Any) -> None:
    """A sample of what `make soak` runs more often."""
    check_random_moments(tmp_path, soak)


@pytest.mark.soak
def test_soak_kills_at_random_moments_lose_no_finished_match(tmp_path: Path, soak: Any) -> None:
    check_random_moments(tmp_path, soak)


def check_random_moments(folder: Path, soak: Any) -> None:
    """Kills boards again and again; each must end with every match once, and the table of the unbroken board."""
    for number in range(len(soak.runs), soak.count):
        began = time.monotonic()
        command = [sys.executable, str(PROGRAM), str(folder / str(number)), "moments", "1", str(soak.seed + number)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        [board] = result["boards"]
        assert all(kill["kept"] >= kill["told"] for kill in board["kills"]), board["kills"]
        assert len(board["rows"]) == len(set(board["rows"])) == result["matches"]
        assert board["traces"] == board["rows"]
        assert board["same"]
        soak.add({"kills": len(board["kills"])}, time.monotonic() - began)
    assert len(soak.runs) == soak.count
    assert sum(run["kills"] for run in soak.runs) > soak.count  # the last try of each is not killed


@pytest.mark.parametrize("keep", [0, 1, 40])
def test_a_torn_row_is_cut_off_and_comes_again_from_its_trace(played: Path, keep: int) -> None:
    before = rows_of(played)
    (played / "matches.jsonl").write_bytes(b"".join(before[:-1]) + before[-1][:keep])
    with MatchFile(played, PLANNED) as file:
        assert len(file.rows) == 6
    assert rows_of(played) == before


def test_a_torn_row_is_left_out_where_nothing_may_be_written(played: Path) -> None:
    before = rows_of(played)
    (played / "matches.jsonl").write_bytes(b"".join(before)[:-5])
    assert len(read_rows(played / "matches.jsonl", PLANNED)) == 5
    assert (played / "matches.jsonl").read_bytes() == b"".join(before)[:-5]


def test_a_torn_trace_is_a_match_that_was_not_finished(played: Path) -> None:
    rows, traces = rows_of(played), (played / "traces.jsonl").read_bytes()
    (played / "matches.jsonl").write_bytes(b"".join(rows[:-1]))
    (played / "traces.jsonl").write_bytes(traces[:-9])
    play_board(BOARD, folder=played)
    assert rows_of(played) == rows
    ids = [json.loads(line)["id"] for line in (played / "traces.jsonl").read_bytes().splitlines()]
    assert ids == [json.loads(row)["id"] for row in rows]


def changed(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda line: json.dumps({**json.loads(line), **changes}).encode() + b"\n"


def other_entrant(line: bytes) -> bytes:
    row = json.loads(line)
    for seat in row["seats"].values():
        seat["entrant"] = "a"
    return json.dumps(row).encode() + b"\n"


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (lambda line: b"not json\n", "no row"),
        (lambda line: b"\n", "no row"),
        (lambda line: line[:30] + b"\n", "no row"),
        (lambda line: b"\xff\xfe\n", "no row"),
        (changed(status="maybe"), "maybe"),
        (changed(status=None), "status"),
        (changed(id="kuhn-poker-v0|99|a|b/0"), "not on this board"),
        (changed(seed=1), "seed"),
        (changed(pool="other"), "pool"),
        (changed(spec={"id": "tic-tac-toe-v0"}), "spec"),
        (other_entrant, "seats"),
    ],
)
def test_a_row_that_is_no_row_of_this_board_is_refused_by_its_line(
    played: Path, spoil: Callable[[bytes], bytes], problem: str
) -> None:
    # bojieli/ai-agent-book issue #224: an outcome in a spelling that nobody knew became a draw.
    rows = rows_of(played)
    rows[2] = spoil(rows[2])
    (played / "matches.jsonl").write_bytes(b"".join(rows))
    with pytest.raises(BoardError, match=r"matches\.jsonl, line 3.*") as refused:
        play_board(BOARD, folder=played)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(BoardError, match="line 3"):
        read_rows(played / "matches.jsonl", PLANNED)


def test_of_rows_of_one_match_the_last_counts_unless_it_is_void(played: Path) -> None:
    rows = rows_of(played)
    again = json.loads(rows[0])
    again["reason"] = "again"
    void = {**again, "status": "void", "reason": "void"}
    with open(played / "matches.jsonl", "ab") as file:
        file.write(json.dumps(again).encode() + b"\n" + json.dumps(void).encode() + b"\n")
    found = read_rows(played / "matches.jsonl", PLANNED)
    assert len(found) == 6
    assert found[again["id"]].reason == "again"


def test_a_full_disk_is_told_once_and_what_was_finished_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full:
        """The file of rows on a disk that takes three more."""

        left = 3

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, data: Any) -> int:
            if self.left == 0:
                monkeypatch.setattr(Path, "write_text", full)
                full()
            self.left -= 1
            return int(self.file.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    begin = MatchFile.__init__

    def begin_full(file: MatchFile, *given: Any) -> None:
        begin(file, *given)
        file._file = Full(file._file)  # type: ignore[assignment]

    with monkeypatch.context() as patched:
        patched.setattr(MatchFile, "__init__", begin_full)
        with pytest.raises(BoardError, match=r"matches.jsonl can't be written: No space left.* the same command again"):
            play_board(BOARD, folder=tmp_path)
    monkeypatch.undo()
    assert len(rows_of(tmp_path)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "matches.jsonl", "traces.jsonl"]
    assert play_board(BOARD, folder=tmp_path).complete
    assert len(rows_of(tmp_path)) == 6


def test_two_programs_do_not_play_one_board(played: Path) -> None:
    with MatchFile(played, PLANNED), pytest.raises(TraceError, match="another writer"):
        play_board(BOARD, folder=played)
    play_board(BOARD, folder=played)


def test_a_manifest_that_can_not_be_read_is_told(played: Path) -> None:
    (played / "manifest.json").write_text("{")
    with pytest.raises(BoardError, match="manifest.json can't be read"):
        play_board(BOARD, folder=played)
    assert len(rows_of(played)) == 6


def test_a_manifest_of_a_newer_program_is_refused(played: Path) -> None:
    manifest = json.loads((played / "manifest.json").read_text())
    (played / "manifest.json").write_text(json.dumps({**manifest, "schema": 2}))
    with pytest.raises(BoardError, match="upgrade"):
        play_board(BOARD, folder=played)
