"""Folders that are there whole or not at all: written aside, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from llm_arena.errors import TrainingError

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}

PART = ".part"
"""Suffix of a folder (or file) in writing; its name begins with a dot."""


def write_whole(final: Path, fill: Callable[[Path], object], *, what: str, durable: bool) -> None:
    """Has `fill` write a folder aside and renames it to `final`, replacing what is there.

    Args:
        final: the folder.
        fill: writes the content into the folder that it is given.
        what: name of the content, for the error.
        durable: force all files to the disk before the renaming, so that the folder is whole even after a power cut.

    Raises:
        TrainingError: the disk is full or refuses; nothing but the parent folder is left behind.
    """
    aside = final.with_name(f".{final.name}{PART}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        fill(aside)
        if durable:
            for entry in [*aside.rglob("*"), aside]:
                flush(entry)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        if durable:
            flush(final.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise TrainingError(
            f"{what} can't be written to {final.parent}: {_reason(error)}. Earlier checkpoints are intact: "
            "make room and give the same command again"
        ) from error


def link_folder(source: Path, target: Path) -> None:
    """Gives the files of a folder a second name in the folder `target`; copies them where the disk has no such names.

    Neither may be changed afterwards, other than by deleting it.
    """
    target.mkdir(parents=True)
    for file in source.iterdir():
        try:
            os.link(file, target / file.name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copyfile(file, target / file.name)


def flush(path: Path) -> None:
    """Forces a file, or the entries of a folder, to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        if path.is_dir():  # Windows opens no folders, and has no such flush
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    if (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or "No space left" in str(error):
        return "the disk is full"
    return str(error)
