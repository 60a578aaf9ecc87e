"""Where episodes start: any object with `__len__` and `batch(i)`.

A source is pure: `batch(i)` depends on i alone, so the step number is all that a checkpoint needs to go on with the
right starts, and setup code that runs again can't disturb it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from llm_arena.errors import UsageError

Start = Mapping[str, Any]
"""The fields of one start, e.g. `{"prompt": "coffee shop"}`. Empty: the game deals from its seed alone."""

EXPECTED = """expected a mapping of fields, e.g. {"prompt": "coffee shop"}"""
"""What to say about a start that is none."""


class StartSource(Protocol):
    """What a training run draws its starts from."""

    def __len__(self) -> int:
        """Returns how many batches one pass over the starts has."""
        ...

    def batch(self, index: int) -> Sequence[Start]:
        """Returns the starts of step `index`, for any index from 0 on; past the end it wraps around."""
        ...


class ListSource:
    """Starts from a list, shuffled anew for each pass, without a gap at the end of a pass.

    Args:
        starts: one mapping of fields per start; a plain string stands for `{"prompt": string}`.
        per_batch: starts per step.
        seed: of the shuffles.
        shuffle: False keeps the order of the list.

    Raises:
        UsageError: an empty list, or a start that is neither a mapping nor a string.
    """

    def __init__(self, starts: Sequence[Start | str], *, per_batch: int, seed: int = 0, shuffle: bool = True) -> None:
        if not starts:
            raise UsageError("a start source needs at least one start, got none")
        for place, start in enumerate(starts):
            if not isinstance(start, Mapping | str):
                raise UsageError(f"start {place} is {start!r:.60}; {EXPECTED}")
        self._starts: list[Start] = [{"prompt": start} if isinstance(start, str) else dict(start) for start in starts]
        self._per_batch = per_batch
        self._seed = seed
        self._shuffle = shuffle
        self._newest: tuple[int, Sequence[int]] = (-1, ())

    def __len__(self) -> int:
        return -(-len(self._starts) // self._per_batch)

    def batch(self, index: int) -> list[Start]:
        """Returns the starts of step `index`."""
        size = len(self._starts)
        first = index * self._per_batch
        orders = {
            epoch: self._order(epoch) for epoch in range(first // size, (first + self._per_batch - 1) // size + 1)
        }
        # copies: a caller that changes one must not change later passes
        return [dict(self._starts[orders[at // size][at % size]]) for at in range(first, first + self._per_batch)]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self._shuffle:
            return range(len(self._starts))
        if self._newest[0] != epoch:  # kept, or going through all batches would take quadratic time
            generator = np.random.Generator(np.random.Philox([self._seed, epoch]))
            self._newest = epoch, generator.permutation(len(self._starts)).tolist()
        return self._newest[1]


class DealtSource:
    """Starts that the game deals itself: each is empty, and differs from the others by its seed alone."""

    def __init__(self, *, per_batch: int) -> None:
        self._per_batch = per_batch

    def __len__(self) -> int:
        return 1

    def batch(self, index: int) -> list[Start]:
        """Returns `per_batch` empty starts."""
        return [{} for _ in range(self._per_batch)]


def digest(source: StartSource) -> str:
    """Returns a SHA-256, as hex digits, of all batches of one pass.

    Raises:
        UsageError: a start is not made of JSON values.
    """
    found = hashlib.sha256()
    for index in range(len(source)):
        try:
            line = json.dumps([dict(start) for start in source.batch(index)], sort_keys=True, separators=(",", ":"))
        except TypeError as error:
            raise UsageError(f"a start of batch {index} is not made of JSON values: {error}") from None
        found.update(line.encode() + b"\n")
    return found.hexdigest()


def read_starts(path: Path) -> list[Start]:
    r"""Reads a JSONL file of starts: one object (or one string) per line. Only `\n` ends a line.

    Raises:
        UsageError: the file can't be read, is empty, or a line is neither an object nor a string; names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"starts {path}: can't be read: {error}") from None
    starts: list[Start] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            start = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"starts {path}, line {number}: not JSON: {error}") from None
        if not isinstance(start, dict | str):
            raise UsageError(f"starts {path}, line {number}: expected an object or a string, got {line[:60]}")
        starts.append({"prompt": start} if isinstance(start, str) else start)
    if not starts:
        raise UsageError(f"starts {path}: the file has no starts")
    return starts


def env_arguments(
    start: Start, *, input_key: str, label_key: str, input_arg: str | None, label_arg: str | None
) -> dict[str, Any]:
    """Returns the game's keyword arguments that a start fills.

    Raises:
        UsageError: the start has fields, and none that the game can use.
    """
    if not start:
        return {}
    pairs = ((input_key, input_arg), (label_key, label_arg))
    filled = {arg: start[key] for key, arg in pairs if arg is not None and key in start}
    if not filled:
        wanted = [key for key, arg in pairs if arg is not None]
        expected = f"the field {' or '.join(map(repr, wanted))}" if wanted else "none, for this game takes no input"
        raise UsageError(
            f"a start has the fields {sorted(start)}, but expected is {expected}; set input_key and label_key"
        )
    return filled


def derive_seed(*parts: int | str) -> int:
    """Returns a 64-bit seed that is a hash of `parts`: no generator whose state a checkpoint would have to hold."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "big")
