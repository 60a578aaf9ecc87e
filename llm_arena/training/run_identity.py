"""Which settings make a run the one that it is: those that its weights depend on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from llm_arena.engines.settings import EngineSettings
from llm_arena.training import policy_tables
from llm_arena.training.config import TrainConfig

NESTED = ("engine", "learner", "league", "evaluation")
"""Settings that are tables themselves."""
WITHOUT_EFFECT = (
    *("run_dir", "fresh", "checkpoint_every", "keep_traces", "tracker", "probe_every", "parity_tolerance"),
    *("token_budget", "max_row_tokens", "recompute", "max_open_episodes", "evaluation.every", "evaluation.matches"),
)
"""Settings that change samples and weights by rounding at most: a resumed run may have others."""
LATER = ("alternate_every", "league.")
"""Settings, or beginnings of their names, that earlier versions did not have. At their defaults they do nothing, and
do not count in the name of a run's folder, so that a command finds the run that it began with an earlier version."""


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns `name: old -> new` for each setting that differs and has an effect on the weights.

    A setting that did not exist when `old` was written counts as its default.
    """
    after = _flat(new)
    before = {name: value for name, value in _defaults().items() if name in after} | _flat(old)
    names = sorted(name for name in {*before, *after} if _has_effect(name))
    pairs = [(name, _value(before, name), _value(after, name)) for name in names]
    return [f"{name}: {one!r} -> {other!r}" for name, one, other in pairs if one != other]


def _value(flat: Mapping[str, Any], name: str) -> Any:
    """Returns a setting. What a policy's table does not say is as in the run, unless its engine is of another kind."""
    table, _, rest = name.partition(".")
    if name in flat or table != "policies":
        return flat.get(name)
    policy, _, own = rest.partition(".")
    kind = flat.get(f"policies.{policy}.engine.kind")
    if own.startswith("engine.") and kind not in (None, flat.get("engine.kind")):
        return dataclasses.asdict(EngineSettings()).get(own.removeprefix("engine."))
    return flat.get(own)


def _defaults() -> dict[str, Any]:
    return _flat(TrainConfig().to_json())


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with those of the nested tables as `engine.kind` and `policies.a.lr`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "policies":
            tables = policy_tables.read(value)
            flat |= {f"{name}.{key}.{inner}": part for key in tables for inner, part in _flat(tables[key]).items()}
        elif name in NESTED and isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": part for inner, part in value.items()}
        else:
            flat[name] = value
    return flat


def _has_effect(name: str) -> bool:
    """Whether a setting, by its name as in `_flat`, has an effect; a server may get another address."""
    return name not in WITHOUT_EFFECT and not name.endswith("engine.url")


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Returns 8 hex digits that change with every setting that has an effect on the weights."""
    defaults = _defaults()
    kept: dict[str, Any] = {}
    for name, value in _flat(settings).items():
        if not _has_effect(name) or (name.startswith(LATER) and value == defaults[name]):
            continue
        table, dot, rest = name.partition(".")
        if dot and table in NESTED:  # the form in which earlier versions took it
            kept.setdefault(table, {})[rest] = value
        else:
            kept[name] = value
    text = json.dumps(kept, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
