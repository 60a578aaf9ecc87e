"""What a vLLM server that runs elsewhere says it serves, and whether weights can be published to it."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_arena.engines.http_pool import HttpPool
from llm_arena.engines.vllm_routes import INFO
from llm_arena.engines.weight_folders import computation, refuse_foreign_adapter, tensor_shapes
from llm_arena.errors import EngineError, ServerRefusal, UsageError


@dataclass(frozen=True)
class Seen:
    """What a server says it serves."""

    bases: dict[str, str]
    "Names of the full weights -> the folder that the server was started with."
    adapters: frozenset[str]
    info: dict[str, Any] | None
    "What `vllm_routes` tells; None where the server has no such route."


async def look(pool: HttpPool, url: str, *, tries: int) -> Seen:
    """Asks a server what it serves.

    Raises:
        ServerRefusal: it does not tell, for want of a key, say, or its log-probabilities can't be used.
        EngineError: it can't be asked.
    """
    bases: dict[str, str] = {}
    adapters: set[str] = set()
    reply = await pool.get("/v1/models", url=url, tries=tries)
    cards = reply.get("data") if isinstance(reply, dict) else None
    for card in cards if isinstance(cards, list) else []:
        if not (isinstance(card, dict) and isinstance(card.get("id"), str)):
            continue
        if card.get("parent"):
            adapters.add(card["id"])
        else:
            bases[card["id"]] = card["root"] if isinstance(card.get("root"), str) else ""
    return Seen(bases, frozenset(adapters), await info_of(pool, url, tries=tries))


async def info_of(pool: HttpPool, url: str, *, tries: int) -> dict[str, Any] | None:
    """Returns what `vllm_routes` tells of a server; None where it has no such route.

    Raises:
        ServerRefusal: its log-probabilities are not those of the distribution that is sampled from.
        EngineError: it can't be asked.
    """
    try:
        info = await pool.get(INFO, url=url, tries=tries)
    except ServerRefusal:
        return None
    if not isinstance(info, dict) or "logprobs_mode" not in info:
        return None
    mode = info["logprobs_mode"]
    if mode != "processed_logprobs":
        raise ServerRefusal(
            f"{url} returns {mode!r:.60} for log-probabilities, and what is sampled from are processed_logprobs; start "
            "it by `llm-arena serve MODEL`, or with --logprobs-mode processed_logprobs"
        )
    return info


def names(served: Iterable[str]) -> str:
    """Returns names as a server gave them, for a message."""
    return ", ".join(f"{name!r:.100}" for name in sorted(served)[:5]) or "no model"


def refuse_full(url: str, seen: Seen) -> None:
    """Raises UsageError unless a server takes full weights."""
    if seen.info is None:
        raise UsageError(
            f"{url} takes no full weights, for it was not started by `llm-arena serve MODEL`. Start it so, or publish "
            "adapters to a vLLM server that takes them, or leave the policy frozen"
        )
    if seen.info.get("takes_weights") is not True:
        raise UsageError(
            f"{url} takes no weights, since others than its own machine can reach it; if all who can may replace its "
            "weights, start it with `llm-arena serve MODEL --host HOST --publishable`"
        )
    if seen.adapters:
        raise UsageError(
            f"{url} serves adapters of its model ({names(seen.adapters)}), which no other full weights would fit; "
            "start it again, or a server of its own for full weights"
        )


def refuse_adapter(url: str, seen: Seen, directory: Path) -> None:
    """Raises UsageError unless a server takes adapters, and EngineError unless it takes this one.

    Args:
        url: of the server.
        seen: what it serves.
        directory: the adapter's folder (PEFT).
    """
    rank = adapter_rank(directory)
    if seen.info is not None:
        if seen.info.get("takes_weights") is not True:
            refuse_full(url, seen)
        if seen.info.get("weights") != "":
            raise UsageError(
                f"{url} serves full weights that a run published ({seen.info.get('weights')!r:.100}), which no adapter "
                "of its model fits; start it again"
            )
        most = seen.info.get("max_lora_rank")
        if not isinstance(most, int) or most < 1:
            raise no_adapters(url, rank)
        if rank > most:
            raise UsageError(
                f"{url} takes adapters of rank {most} at most, and {directory} has rank {rank}; start it with "
                f"`llm-arena serve MODEL --max-lora-rank {rank}`"
            )
    for root in seen.bases.values():
        if root and Path(root).is_dir():
            refuse_foreign_adapter(directory, tensor_shapes(Path(root)))


def no_adapters(url: str, rank: int) -> UsageError:
    """Returns the error for a server that takes none."""
    return UsageError(
        f"{url} takes no adapters. Start it with `llm-arena serve MODEL --max-lora-rank {rank}`; a vLLM server of your "
        "own needs --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
    )


def same_model(one: Path, other: Path) -> bool:
    """Whether two folders hold the same model: the same computation, and safetensors files of the same bytes."""
    try:
        if one.resolve() == other.resolve():
            return True
        ours, theirs = computation(one), computation(other)
        for config in (ours, theirs):
            config.pop("initializer_range", None)  # of weights that are long made
        if ours != theirs:
            return False
        files = sorted(path.name for path in one.glob("*.safetensors"))
        if files != sorted(path.name for path in other.glob("*.safetensors")):
            return False
        return all(filecmp.cmp(one / name, other / name, shallow=False) for name in files)
    except (EngineError, OSError, ValueError):  # the other one is on the server's machine alone, or is no path
        return False


def adapter_rank(directory: Path) -> int:
    """Returns the rank of an adapter (PEFT folder).

    Raises:
        EngineError: its config does not tell.
    """
    try:
        return int(json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))["r"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"{directory}: adapter_config.json tells no rank: {error!r}") from error
