"""What a policy of a run has of its own: `policies` in the settings, a table for each that overrides the run's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, get_origin

import msgspec

from llm_arena.engines.choose import chosen
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import UnknownName, UsageError, did_you_mean

OWN = (
    *("model", "lora_rank", "lora_alpha", "lora_targets", "publish"),
    *("lr", "lr_end", "warmup_steps", "weight_decay", "grad_clip", "engine"),
)
"""Settings that a policy may have of its own."""
_EXAMPLE = """'{"solver": {"lr": 1e-6}}'"""


def key_of(policy: str) -> str:
    """Returns the name of a policy's table: `a` for `learner:a`, `learner` for `learner`."""
    return policy.partition(":")[2] or policy


def read(given: object) -> dict[str, dict[str, Any]]:
    """Returns the tables by name, their keys as Python writes them.

    Args:
        given: a JSON object of objects, or the same as a mapping; an engine in it may be one of `EngineSettings`.

    Raises:
        UsageError: it is something else, or names a policy or a setting twice.
    """
    try:
        text = given if isinstance(given, str) else json.dumps(given, default=dataclasses.asdict)
        tables = load_json(text, "policies")
    except UsageError:
        raise
    except (ValueError, TypeError):
        tables = None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise UsageError(f"policies must be a table of settings for each policy, e.g. {_EXAMPLE}; got {given!r:.200}")
    found = {name: with_python_keys(table, f"policies.{name}") for name, table in tables.items()}
    for name, table in found.items():
        engine = table.get("engine")
        if isinstance(engine, str):
            table["engine"] = {"kind": engine}
        elif isinstance(engine, dict):
            table["engine"] = with_python_keys(engine, f"policies.{name}.engine")
    return found


def load_json(text: str, where: str) -> Any:
    """Returns what a JSON text holds.

    Args:
        text: the JSON.
        where: the setting that it is, for errors.

    Raises:
        UsageError: an object has a key twice, of which Python's reader would drop the first without a word.
        json.JSONDecodeError, TypeError: it is no JSON, or no text.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise UsageError(f"{where} has the key {twice!r} twice in one table; name it once")
        return found

    return json.loads(text, object_pairs_hook=once)


def with_python_keys(table: Mapping[str, Any], where: str, aliases: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns a table with its keys as Python writes them: `lora_rank` for `lora-rank`.

    Args:
        table: as a file has it.
        where: the table's name, for errors.
        aliases: short name -> key, of settings with a short name.

    Raises:
        UsageError: two keys are spellings of one setting.
    """
    found: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for key, value in table.items():
        name = str(key).replace("-", "_")
        name = (aliases or {}).get(name, name)
        if name in spelt:
            raise UsageError(f"{where}: {spelt[name]!r} and {key!r} are the same setting; keep one of them")
        found[name], spelt[name] = value, key
    return found


def with_chosen_engines(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns tables, as `read` returns them, with the engines that `auto` comes to on this machine."""
    found = {name: dict(table) for name, table in tables.items()}
    for table in found.values():
        if isinstance(table.get("engine"), Mapping) and "kind" in table["engine"]:
            table["engine"] = {**table["engine"], "kind": _chosen(table["engine"]["kind"])}
    return found


def written(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the tables as JSON, always in the same form."""
    return json.dumps(tables, sort_keys=True)


def settings(name: str, table: Mapping[str, Any], hints: Mapping[str, Any], engine: EngineSettings) -> dict[str, Any]:
    """Returns what a table says, ready to replace the run's settings.

    Args:
        name: of the table, for errors.
        table: as `read` returns it.
        hints: types of the run's settings.
        engine: the run's, which the policy's table `engine` goes over.

    Raises:
        UnknownName: a key that is no setting of a policy.
        UsageError: a value of another type.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in OWN:
            why = " is the same for all policies of a run" if key in hints else " is no setting"
            raise UnknownName(
                f"policies.{name}: {key!r}{why}.{did_you_mean(key, OWN)} A policy has of its own: {', '.join(OWN)}"
            )
        if key == "engine":
            found[key] = engine_over(engine, value, f"policies.{name}.engine")
            continue
        if get_origin(hints[key]) is not Literal:  # choices are checked, and listed, by the dataclass
            try:
                msgspec.convert(value, hints[key])
            except msgspec.ValidationError as error:
                raise UsageError(f"policies.{name}: {key} = {value!r} does not fit: {error}") from None
        found[key] = value
    return found


def engine_over(default: EngineSettings, table: object, where: str) -> EngineSettings:
    """Returns the engine of a table over another; one of another kind starts from that kind's own settings.

    Args:
        default: the engine that the table goes over.
        table: settings by name, or just the kind. What is no setting of an engine is an argument of vLLM's own. `url`
            may be a list.
        where: the table's name, for errors.

    Raises:
        UsageError: it is no table, or a value can't work.
    """
    if isinstance(table, str):
        table = {"kind": table}
    if not isinstance(table, Mapping):
        raise UsageError(f'{where} = {table!r}; expected a table, e.g. [{where.split()[-1]}] with kind = "vllm"')
    given = with_python_keys(table, where)
    urls = given.get("url")
    if isinstance(urls, list) and all(isinstance(url, str) for url in urls):
        given["url"] = ",".join(urls)  # as the rest of the library has several servers
    if "kind" in given and _chosen(given["kind"]) != chosen(default):
        default = EngineSettings()
    names = {field.name for field in dataclasses.fields(EngineSettings)}
    others = {key: value for key, value in given.items() if key not in names}
    found = dataclasses.replace(default, **{key: value for key, value in given.items() if key in names})
    return found.with_args(others) if others else found


def _chosen(kind: object) -> object:
    """Returns the kind of engine that a table asks for; `auto` is what it comes to, and all else as it is."""
    return chosen(EngineSettings(kind="auto")) if kind == "auto" else kind
