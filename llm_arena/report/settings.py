"""A run's settings on its page: the changed ones first, and the command that makes the run again."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from llm_arena.report.run_files import MARK
from llm_arena.report.text import visible
from llm_arena.training.config import TrainConfig
from llm_arena.training.run_identity import WITHOUT_EFFECT
from llm_arena.types import Json

_NO_OPTION = ("script", "sha256_of_starts", MARK)
"""Keys of config.json that no option sets."""

_PACKAGES = ("llm-arena", "torch", "transformers", "vllm", "peft", "pettingzoo", "numpy")


@dataclass(frozen=True)
class Setting:
    """One setting as text, and the default where it has another value."""

    name: str
    value: str
    default: str | None
    changed: bool


def settings_of(config: Mapping[str, Json]) -> list[Setting]:
    """Returns all settings, those that differ from the library's defaults first."""
    defaults = dict(_flat(TrainConfig().to_json()))
    rows = []
    for name, value in _flat(_as_options(config)):
        default = defaults.get(name)
        changed = name in defaults and value != default and name not in WITHOUT_EFFECT
        rows.append(Setting(name, value, default if changed else None, changed))
    return sorted(rows, key=lambda row: (not row.changed, row.name))


def command(config: Mapping[str, Json], *, every: bool = False) -> str:
    """Returns the shell command of a run; empty if its script is not known.

    Args:
        config: the run's settings.
        every: whether to spell out settings that have the library's default, too. A script may have defaults of its
            own, so only this command is sure to give the same run.
    """
    script = config.get("script")
    if not isinstance(script, str) or not script:
        return ""
    defaults = dict(_flat(TrainConfig().to_json()))
    words = ["llm-arena", "train", script] if _on_shelf(script) else ["python", f"{script}.py"]
    for name, value in _flat(_as_options(config)):
        if name in _NO_OPTION or name in WITHOUT_EFFECT or name not in defaults:
            continue
        if every or value != defaults[name]:
            words += _option(name, value)
    return " ".join(shlex.quote(visible(word, newlines=False)) for word in words)


def versions() -> list[tuple[str, str]]:
    """Returns the versions in use, by package."""
    found = [("python", platform.python_version())]
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _option(name: str, value: str) -> list[str]:
    option = f"--{name.replace('_', '-')}"
    if value in ("true", "false"):
        return [option if value == "true" else f"--no-{option[2:]}"]
    return [option, "None" if value == "null" else value]


def _as_options(config: Mapping[str, Json]) -> dict[str, Json]:
    """Writes the roster as its option has it: JSON in one string, not a table."""
    roster = config.get("roster")
    return {**config, "roster": msgspec.json.encode(roster).decode()} if isinstance(roster, dict) else dict(config)


def _on_shelf(script: str) -> bool:
    name = script.replace("-", "_")
    return name.isidentifier() and importlib.util.find_spec(f"llm_arena.train.{name}") is not None


def _flat(config: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else msgspec.json.encode(value).decode()


__all__ = ["Setting", "command", "settings_of", "versions"]
