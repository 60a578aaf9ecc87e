r"""Trace files: JSON lines, one whole record at a time, safe against kills.

A record is one line of UTF-8 JSON that ends with `\n`. Only `\n` ends a record: U+2028, U+0085, U+000B and the like
may stand inside strings as they are. Lone surrogates, which UTF-8 can't hold, never get here: `env.step` turns them
into U+FFFD before the game or the trace sees them.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from llm_arena.errors import TraceError, UsageError
from llm_arena.types import SCHEMA, Trace

if sys.platform != "win32":
    import fcntl

_START = b'{"schema":'
_BOM = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_CHUNK = 1 << 16
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_log = logging.getLogger(__name__)

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
UPGRADES: Mapping[int, Upgrade] = {}
"""From schema n, the pure function that makes a record of schema n + 1. Schema 1 is the first."""


class NotWritten(TraceError):
    """The disk refused a record; `trace` holds what is not in the file."""

    def __init__(self, message: str, trace: Trace) -> None:
        super().__init__(message)
        self.trace = trace


class _Head(msgspec.Struct):
    schema: int


class TraceWriter:
    """Appends traces to a file, one line each. Threads may share a writer; two writers on one file are refused.

    Opening repairs what a killed writer left: a last line without its end is cut off (or kept, if the record is whole).
    Each `write` appends the whole line, then flushes it to the disk, so that a kill loses at most the line in writing.

    Args:
        path: the file; missing folders are made.

    Raises:
        TraceError: the file is being written by somebody else, or does not look like a trace file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.repaired_bytes = 0
        """Size of the torn tail that was cut off at the start, in bytes."""
        self._thread_lock = threading.Lock()
        self._fd: int | None = None
        fd = _open(self.path)
        try:
            _lock(fd, self.path)
            self._end = self._repair(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def write(self, trace: Trace) -> None:
        """Appends one trace and flushes it to the disk.

        Raises:
            TraceError: the writer is closed, or the trace holds something that JSON can't.
            NotWritten: the disk refuses it; the file then ends with the last whole record.
        """
        line = encode(trace)
        with self._thread_lock:
            if self._fd is None:
                raise TraceError(f"the writer of {self.path} is closed; open a new TraceWriter")
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
                _flush(self._fd)
            except OSError as error:
                try:
                    os.ftruncate(self._fd, self._end)
                except OSError:
                    # A further record would fuse with the torn one; the next start repairs it.
                    os.close(self._fd)
                    self._fd = None
                remedy = "free some space or choose another disk" if error.errno in _FULL else "check the disk"
                raise NotWritten(
                    f"{self.path}: trace {trace.id} ({len(line):,} bytes) could not be written: {error.strerror}; "
                    f"{remedy}. Records before it are safe.",
                    trace,
                ) from error
            self._end += len(line)

    def close(self) -> None:
        """Closes the file and frees it for other writers. Closing twice is fine."""
        with self._thread_lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _repair(self, fd: int) -> int:
        """Cuts or completes a torn tail; returns the size of the file, in bytes."""
        size = os.fstat(fd).st_size
        if size == 0:
            return 0
        start = _last_line_start(fd, size)
        self._check_kind(whole=start > 0)
        if start == size:
            return size
        tail = _read(fd, size - start, start)
        if not _is_record(tail):
            if start and not _is_torn(tail, alone=False):
                raise TraceError(
                    f"the end of {self.path} is no trace record ({tail[:20]!r}); remove it, or choose another name"
                )
            self.repaired_bytes = len(tail)
            _log.warning("%s: cut off a torn record of %d bytes, left by a killed writer", self.path, len(tail))
            os.ftruncate(fd, start)
            _flush(fd)
            return start
        os.write(fd, b"\n")
        _flush(fd)
        return size + 1

    def _check_kind(self, *, whole: bool) -> None:
        """Refuses a file that was not written by a `TraceWriter`, before anything is cut from it or added to it."""
        with open(self.path, "rb") as file:
            first = file.readline().removeprefix(_BOM)
        if not (_is_record(first) if whole else _is_torn(first, alone=True)):
            raise TraceError(
                f"{self.path} exists and is no trace file (it begins with {first[:20]!r}); choose another name"
            )


def encode(trace: Trace) -> bytes:
    r"""Returns a trace as one line of JSON, its `\n` included.

    Raises:
        TraceError: something in the trace is no JSON, e.g. an action that is an object of the game.
    """
    try:
        return msgspec.json.encode(trace) + b"\n"
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"trace {trace.id} can't be written as JSON: {error}") from error


def decode(line: bytes, where: str = "trace") -> Trace:
    """Returns the trace of one line, upgraded to this library's schema.

    Args:
        line: one record.
        where: what to call it in an error, e.g. `traces.jsonl, line 3`.

    Raises:
        TraceError: the record is broken, its turns contradict it, or it was written by a newer library.
    """
    try:
        schema = msgspec.json.decode(line, type=_Head).schema
        if schema == SCHEMA:
            trace = msgspec.json.decode(line, type=Trace)
        else:
            record = upgrade(msgspec.json.decode(line), to=SCHEMA, table=UPGRADES, where=where)
            trace = msgspec.convert(record, type=Trace)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{where} is no trace record: {error}") from error
    _check_turns(trace, where)
    return trace


def _check_turns(trace: Trace, where: str) -> None:
    """Refuses turns that no recorder writes: whatever reads a trace finds them by place and seat."""
    for place, turn in enumerate(trace.turns):
        if turn.index != place:
            raise TraceError(f"{where} is no trace record: turns[{place}].index is {turn.index}, expected {place}")
        if turn.seat not in trace.seats:
            raise TraceError(
                f"{where} is no trace record: turns[{place}].seat is {turn.seat!r:.80}, which is none of its seats: "
                f"{', '.join(trace.seats) or 'it has none'}"
            )
        try:  # an array takes just these, and checks them several times faster than min and max
            for ids in (turn.prompt_ids, turn.completion_ids):
                if ids:
                    array("I", ids)
        except OverflowError as error:
            raise TraceError(
                f"{where} is no trace record: turns[{place}] has a token id that is no number in [0, 2**32)"
            ) from error


def upgrade(record: dict[str, Any], *, to: int, table: Mapping[int, Upgrade], where: str = "trace") -> dict[str, Any]:
    """Returns an old record in schema `to`, through one pure function of `table` per version.

    Raises:
        TraceError: the record is newer than `to`, or a version on the way is unknown.
    """
    schema = record["schema"]
    if schema > to:
        raise TraceError(
            f"{where} has schema {schema}, this llm_arena reads up to {to}: it was written by a newer version; "
            "upgrade with `pip install -U llm-arena`"
        )
    while schema < to:
        if schema not in table:
            raise TraceError(f"{where} has schema {schema}; this llm_arena reads {min(table, default=to)} to {to}")
        record = {**table[schema](record), "schema": schema + 1}
        schema += 1
    return record


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields where to write a new file or folder; it gets its own name once all is written, and vanishes otherwise.

    Raises:
        UsageError: `path` ends in no name, as `.` and `/` do.
        TraceError: something of that name is there, somebody else is writing it, or the disk refuses.
    """
    final = Path(path)
    if not final.name:
        raise UsageError(f"out={os.fspath(path)!r} has no name to write to; give that of a new file or folder")
    folder = final.with_name(f".{final.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = _lock_folder(folder, final)
    except OSError as error:
        raise _unwritable(final, error) from error
    aside = folder / final.name
    try:
        _refuse_existing(final)
        _remove(aside)  # what a killed process left
        yield aside
        for file in aside.rglob("*") if aside.is_dir() else [aside]:
            if file.is_file():
                with open(file, "rb+") as handle:
                    _flush(handle.fileno())
        _refuse_existing(final)  # it was not there at the start, but a rename would replace it
        aside.rename(final)
    except OSError as error:
        if isinstance(error.filename, str) and not error.filename.startswith(str(aside)):
            raise  # about a file that the caller reads
        raise _unwritable(final, error) from error
    finally:
        _remove(folder)  # before it is unlocked
        if lock is not None:
            os.close(lock)


def read_traces(path: str | os.PathLike[str], on_bytes: Callable[[int], object] | None = None) -> Iterator[Trace]:
    """Yields the traces of a file, oldest first. A torn last line (of a killed writer) is left out with a warning.

    Blank lines and a byte order mark at the start are skipped. Pipes and devices are read as well.

    Args:
        path: the file.
        on_bytes: told the size of each line that was read, in bytes.

    Raises:
        TraceError: there is no such file, it is no trace file, or a record is broken or newer than this library; names
            the line.
    """
    if not os.path.exists(path):
        raise TraceError(f"there is no trace file {os.fspath(path)}")
    if os.path.isdir(path):
        raise TraceError(f"{os.fspath(path)} is a folder, no trace file")
    with open(path, "rb") as file:  # binary: iterating splits at \n and nowhere else
        for number, line in enumerate(file, start=1):
            if on_bytes is not None:
                on_bytes(len(line))
            if number == 1:
                if line.startswith(_UTF16):
                    raise TraceError(f"{os.fspath(path)} is UTF-16 text, no trace file; save it as UTF-8")
                line = line.removeprefix(_BOM)
            if not line.strip():
                continue
            try:
                trace = decode(line, f"{os.fspath(path)}, line {number}")
            except TraceError as error:
                if line.endswith(b"\n") or _is_record(line):
                    raise
                if not _is_torn(line, alone=number == 1):
                    raise TraceError(
                        f"{os.fspath(path)} is no trace file (line {number} begins with {line[:20]!r})"
                    ) from error
                _log.warning("%s: left out a torn record of %d bytes at the end", os.fspath(path), len(line))
                return
            yield trace


def _refuse_existing(path: Path) -> None:
    if os.path.lexists(path):
        raise TraceError(f"{path} exists; choose another name, or remove it")


def _lock_folder(folder: Path, final: Path) -> int | None:
    """Takes a folder for one writer of `final`; it may be left from a killed one. Windows: no lock."""
    if sys.platform == "win32":
        folder.mkdir(exist_ok=True)
        return None
    lock = folder / f"{final.name}.lock"  # a file, because NFS locks no folders
    while True:
        folder.mkdir(exist_ok=True)
        try:
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # another writer has just ended, and removed the folder
            continue
        try:
            _lock(fd, final)
        except BaseException:
            os.close(fd)
            raise
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # likewise


def _unwritable(path: Path, error: OSError) -> TraceError:
    return TraceError(f"{path} can't be written: {error.strerror or error}; nothing was left there")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        path.unlink()


def _is_record(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _is_torn(tail: bytes, *, alone: bool) -> bool:
    """Returns whether the end of a file is a record that a killed writer, or a machine that went down, has left.

    After a power cut some file systems have zeros where nothing was written; a file of nothing else is none of ours.
    """
    begun = tail.rstrip(b"\0 \t\r").lstrip(b" \t")
    return (bool(begun) or not alone) and _START.startswith(begun[: len(_START)])


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644)
    except OSError as error:
        raise TraceError(f"can't write traces to {path}: {error.strerror}") from error
    return fd


def _lock(fd: int, path: Path) -> None:
    """Takes the file for this writer alone; the lock goes with the process, however that ends. Windows: no lock."""
    if sys.platform != "win32":
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TraceError(
                f"{path} is being written by another writer; close that one, or choose another file"
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise TraceError(f"can't lock {path}: {error.strerror}") from error
            _log.warning("%s: this file system has no locks; make sure that nobody else writes this file", path)


def _flush(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # pipes and devices can't be flushed
            raise


def _read(fd: int, size: int, offset: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)  # appending ignores the position, so it may be moved
    return os.read(fd, size)


def _last_line_start(fd: int, size: int) -> int:
    """Returns the offset after the last line end: `size` for a whole file, less for one with a torn tail."""
    end = size
    while end > 0:
        start = max(0, end - _CHUNK)
        at = _read(fd, end - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
