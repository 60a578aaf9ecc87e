r"""The match file of a board: one row per line, appended when a match has ended.

Beside it lie the traces. A trace is written before its row, and both are flushed to the disk, so that a kill loses at
most the match in writing; a trace whose row is missing gives its row at the next start. A row is looked up by the id of
its match: of several the last counts, but a void one never takes the place of a finished one.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from llm_arena.boards.board import BoardError
from llm_arena.matchmaking import Match, row_of
from llm_arena.rating import MatchRow
from llm_arena.trace_file import TraceWriter, decode
from llm_arena.types import Trace

MATCHES, TRACES = "matches.jsonl", "traces.jsonl"
_CHUNK = 1 << 16
_log = logging.getLogger(__name__)


class _Named(msgspec.Struct):
    id: str


def read_rows(path: Path, matches: Mapping[str, Match]) -> dict[str, MatchRow]:
    """Returns the row of each match that the file has, by id. A torn last line (of a killed writer) is left out.

    Args:
        path: the file; none there is an empty one.
        matches: all that may stand in it, by id.

    Raises:
        BoardError: a line is no row, or its match is not one of `matches`; names the line.
    """
    rows: dict[str, MatchRow] = {}
    if not path.exists():
        return rows
    *lines, tail = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = _read(line, matches, f"{path}, line {number}")
        if row.status != "void" or row.id not in rows:
            rows[row.id] = row
    if tail:
        _log.warning("%s: left out a torn row of %d bytes at the end", path, len(tail))
    return rows


def recorded(path: Path) -> set[str]:
    """Returns the ids of the traces in a file; none there is an empty one. A line that is no record has no id."""
    found = set()
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    found.add(msgspec.json.decode(line, type=_Named).id)
    return found


class MatchFile:
    """The rows and traces of a board's folder, for one writer at a time. `rows` holds what counts, by id.

    Args:
        folder: the board's folder.
        matches: all that may be played, by id.

    Raises:
        BoardError: a row can't be read, or is of another schedule.
        TraceError: another process plays this board, or the traces can't be written.
    """

    def __init__(self, folder: Path, matches: Mapping[str, Match]) -> None:
        self.path = folder / MATCHES
        self._matches = matches
        self._traces = TraceWriter(folder / TRACES)  # its lock is the lock of the folder
        try:
            self._cut_torn_row()
            self.rows = read_rows(self.path, matches)
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            self._recover()
        except BaseException:
            self._traces.close()
            raise

    def add(self, trace: Trace) -> MatchRow:
        """Writes the trace of a match, then its row, and returns the row.

        Raises:
            TraceError, BoardError: the disk refuses; what was written before is safe.
        """
        self._traces.write(trace)
        return self._add_row(trace)

    def close(self) -> None:
        """Closes the files and frees the folder. Closing twice is fine."""
        self._file.close()
        self._traces.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _add_row(self, trace: Trace) -> MatchRow:
        row = row_of(self._matches[trace.id], trace)
        line = memoryview(msgspec.json.encode(row) + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise BoardError(
                f"{self.path} can't be written: {error.strerror}; make room and give the same command again"
            ) from error
        if row.status != "void" or row.id not in self.rows:
            self.rows[row.id] = row
        return row

    def _cut_torn_row(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # its trace is whole, and gives the row again
            _log.warning("%s: cut off a torn row of %d bytes, left by a killed writer", self.path, len(data) - whole)
            os.truncate(self.path, whole)

    def _recover(self) -> None:
        """Adds the row of the last trace, if a kill came between the two."""
        line = _last_line(self._traces.path)
        if not line:
            return
        trace = decode(line, f"{self._traces.path}, last line")
        if trace.id in self._matches and trace.id not in self.rows:
            self._add_row(trace)


def _read(line: bytes, matches: Mapping[str, Match], where: str) -> MatchRow:
    try:
        row = msgspec.json.decode(line, type=MatchRow)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BoardError(f"{where} is no row of a match ({error}); mend or delete that line") from error
    match = matches.get(row.id)
    if match is None:
        raise BoardError(f'{where}: the match "{row.id}" is not on this board; delete that line, or use another folder')
    seated, officials = ({seat: entry.entrant for seat, entry in seats.items()} for seats in (row.seats, row.officials))
    for what, found, planned in (
        ("block", row.block, match.block),
        ("pool", row.pool, match.pool),
        ("spec", row.spec, match.spec),
        ("seed", row.seed, match.seed),
        ("seats", seated, match.entrants),
        ("officials", officials, match.officials),
    ):
        if found != planned:
            raise BoardError(
                f'{where}: the match "{row.id}" has the {what} {found!r}, the board says {planned!r}; the row is of'
                " another board: delete that line, or use another folder"
            )
    return row


def _last_line(path: Path) -> bytes:
    """Returns the last line of a file that ends with a line end; empty for an empty file."""
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END) - 1
        tail = b""
        while end > 0 and b"\n" not in tail:
            start = max(0, end - _CHUNK)
            file.seek(start)
            tail = file.read(end - start) + tail
            end = start
    return tail.rpartition(b"\n")[2]


__all__ = ["MATCHES", "TRACES", "MatchFile", "read_rows", "recorded"]
