"""A model folder that can be read again after it was deleted: for a process that has to load its weights once more."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from llm_arena.errors import EngineError


@dataclass(frozen=True)
class _File:
    """A file that is held open, so that its content stays when its name is taken away."""

    path: Path
    handle: int
    size: int
    changed: int
    "Time of the last change, in ns."

    @classmethod
    def open(cls, path: Path) -> _File:
        handle = os.open(path, os.O_RDONLY)
        found = os.fstat(handle)
        return cls(path.resolve(), handle, found.st_size, found.st_mtime_ns)

    def is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.stat(path), os.fstat(self.handle))
        except OSError:
            return False

    def refuse_if_changed(self) -> None:
        found = os.fstat(self.handle)
        if (found.st_size, found.st_mtime_ns) != (self.size, self.changed):
            raise EngineError(f"{self.path} was changed in place since it was published; publish the weights anew")

    def write(self, target: Path) -> None:
        """Gives the file a second name, or copies it where that can't be."""
        with contextlib.suppress(OSError):  # deleted, on another disk, or of another user
            os.link(self.path, target)
        if not self.is_at(target):
            target.unlink(missing_ok=True)
            shutil.copyfile(f"/proc/self/fd/{self.handle}", target)


class KeptFiles:
    """Holds the files of a model folder open. That costs no copy at each publication, and leaves nothing on the disk.

    Args:
        directory: the folder; folders in it are left out.

    Raises:
        EngineError: a file can't be opened.
    """

    def __init__(self, directory: Path) -> None:
        self._directory: Path | None = directory
        self._files = _open(directory)

    def replace_weights(self, newer: KeptFiles) -> None:
        """Takes the weights of `newer`, and keeps the other files (a tokenizer that only the first folder had)."""
        weights = {name for name in self._files if _is_weights(name)}
        taken = {name for name in newer._files if _is_weights(name)}
        _close(self._files.pop(name) for name in weights)
        self._files |= {name: newer._files.pop(name) for name in taken}
        newer.close()
        self._directory = None

    def folder(self, target: Path) -> Path:
        """Returns a folder with the files as they were: the first one if it is as it was, else `target`, made anew.

        Raises:
            EngineError: a file was overwritten in place, or the disk refuses.
        """
        for file in self._files.values():
            file.refuse_if_changed()
        directory = self._directory
        if directory is not None and all(file.is_at(directory / name) for name, file in self._files.items()):
            return directory
        try:
            target.mkdir(parents=True)
            for name, file in self._files.items():
                file.write(target / name)
        except OSError as error:
            raise EngineError(f"the weights can't be brought to {target}: {error}") from error
        return target

    def close(self) -> None:
        """Lets go of the files. Closing twice is fine."""
        _close(self._files.values())
        self._files = {}


def _open(directory: Path) -> dict[str, _File]:
    files: dict[str, _File] = {}
    try:
        for path in sorted(directory.iterdir()):
            if path.is_file():
                files[path.name] = _File.open(path)
    except OSError as error:
        _close(files.values())
        raise EngineError(f"{directory} can't be read: {error}") from error
    return files


def _close(files: Iterable[_File]) -> None:
    for file in files:
        os.close(file.handle)


def _is_weights(name: str) -> bool:
    """Whether a file goes with the weights: safetensors, or their index."""
    return ".safetensors" in name
