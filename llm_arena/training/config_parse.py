"""Reading the settings of a run: defaults, then a TOML file (`--config`), then the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

import msgspec
import tyro

from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.training.config import TrainConfig
from llm_arena.training.policy_tables import engine_over, with_python_keys

C = TypeVar("C", bound=TrainConfig)
CONFIG_HELP = "--config FILE.toml reads settings from a file; those on the command line go before them."


def parse(kind: type[C], argv: Sequence[str], *, prog: str, description: str = "", default: C | None = None) -> C:
    """Reads settings from the command line, over those of `--config FILE.toml`, over the defaults.

    Args:
        kind: the dataclass of settings.
        argv: command line without the program's name.
        prog: the program's name, for the help text.
        description: the help text's first lines.
        default: defaults that differ from the dataclass's own.

    Raises:
        UnknownName: a key that no setting has; the message suggests the nearest.
        UsageError: a value that can't be read, or an unreadable TOML file.
        SystemExit: after `--help`.
    """
    default = default if default is not None else kind()
    known = _names(kind)
    rest: list[str] = []
    own_args: dict[str, Any] = {}
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name == "--engine":  # the one setting of an engine that everybody needs
            name, argument = "--engine.kind", f"--engine.kind{argument.removeprefix('--engine')}"
        if name == "--config":
            file = value or next(arguments, "")
            if not file:
                raise UsageError("--config needs a TOML file: --config FILE.toml")
            default = _from_toml(default, Path(file))
            continue
        key = re.sub(r"^--(no-)?", "", name).replace("-", "_")
        if name.startswith("--engine.") and key not in known:
            text = value if equals else next(arguments, None)
            if text is None or (not equals and text.startswith("--")):
                raise UsageError(f"{name} needs a value, e.g. {name} true")
            own_args[key.removeprefix("engine.")] = _value(text)
            continue
        if name.startswith("--") and key not in known | {"steps", "help"}:
            near = did_you_mean(key, [*known, "steps", "config"]).replace("_", "-").replace('"', "`")
            raise UnknownName(f"unknown option {name}.{near.replace('`', '`--', 1)} (--help lists all)")
        rest.append(argument)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            found = tyro.cli(kind, prog=prog, description=f"{description}\n\n{CONFIG_HELP}", default=default, args=rest)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{_first_paragraph(complaint.getvalue())} (--help lists all)") from None
    return dataclasses.replace(found, engine=found.engine.with_args(own_args)) if own_args else found


def _nested(default: Any, table: Any, where: str) -> Any:
    """Returns the settings of a nested table over its defaults."""
    if isinstance(default, EngineSettings):
        return engine_over(default, table, where)
    if not isinstance(table, dict):
        raise UsageError(f"{where} = {table!r}; expected a table")
    names = {field.name for field in dataclasses.fields(default)}
    given = with_python_keys(table, where)
    for name in given:
        if name not in names:
            raise UnknownName(f"{where}: unknown key {name!r}.{did_you_mean(name, names)}")
    return dataclasses.replace(default, **given)


def _names(kind: type) -> set[str]:
    """Returns the names of all settings, those of nested tables with a dot."""
    names: set[str] = set()
    for name, hint in get_type_hints(kind).items():
        nested = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        names |= {f"{name}.{inner}" for inner in _names(hint)} if nested else {name}
    return names


def _value(text: str) -> Any:
    """Reads a value for vLLM: JSON where it is some (2048, true, 0.5), else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _first_paragraph(boxed: str) -> str:
    """Returns the first paragraph of a boxed, wrapped message as one line."""
    lines = [line.strip(" │╭╰╮╯") for line in boxed.splitlines()][1:]
    paragraph = " ".join(itertools.takewhile(lambda line: line and not line.startswith("─"), lines))
    return re.sub(r"^Error parsing \w+Config: ", "", paragraph) or "the command line could not be read"


def _from_toml(default: C, path: Path) -> C:
    hints = get_type_hints(type(default))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: can't be read ({error.strerror}); give a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path}: not valid TOML: {error}") from None
    aliased = with_python_keys(table, f"--config {path}", aliases={"steps": "num_steps"})
    for key, value in aliased.items():
        if key not in hints:
            raise UnknownName(f"--config {path}: unknown key {key!r}.{did_you_mean(key, hints)}")
        try:
            if dataclasses.is_dataclass(hints[key]):
                aliased[key] = _nested(getattr(default, key), value, f"--config {path}: {key}")
            elif key in ("env_args", "roster", "policies") and isinstance(value, dict):
                json.dumps(value)  # TOML's dates and times are no JSON
            elif get_origin(hints[key]) is not Literal:  # choices are checked, and listed, by the dataclass
                msgspec.convert(value, hints[key])
        except (msgspec.ValidationError, TypeError) as error:
            raise UsageError(f"--config {path}: {key} = {value!r} does not fit: {error}") from None
    return dataclasses.replace(default, **aliased)
