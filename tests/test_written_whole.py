"""New files and folders that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_arena.errors import TraceError, UsageError
from llm_arena.trace_file import written_whole


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_one_writes_a_new_file_at_a_time(tmp_path, kind):
    def fill(aside):
        if kind == "folder":
            aside.mkdir()
        (aside / "x" if kind == "folder" else aside).write_text("first")

    new = tmp_path / "new"
    with written_whole(new) as aside:
        fill(aside)
        with pytest.raises(TraceError, match=r"new is being written by another writer"), written_whole(new):
            pass
        assert not new.exists()
    assert list(tmp_path.iterdir()) == [new]
    assert (new / "x" if kind == "folder" else new).read_text() == "first"


@pytest.mark.parametrize("there", [Path.touch, Path.mkdir])
def test_a_name_that_was_taken_meanwhile_is_not_replaced(tmp_path, there):
    new = tmp_path / "new"
    with pytest.raises(TraceError, match="new exists; choose another name"), written_whole(new) as aside:
        aside.mkdir() if there is Path.mkdir else aside.touch()
        there(new)
        before = new.stat().st_ino
    assert list(tmp_path.iterdir()) == [new] and new.stat().st_ino == before


@pytest.mark.parametrize("out", [".", "/", ""])
def test_a_new_file_needs_a_name(out):
    with pytest.raises(UsageError, match=f"out='{out}' has no name to write to"), written_whole(out):
        pass
