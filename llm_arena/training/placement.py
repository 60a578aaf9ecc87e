"""Where the parts of a run live: the learner's device, the engine beside it, how weights get from one to the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from llm_arena.engines import vllm_start
from llm_arena.engines.choose import chosen
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.urls import server_urls
from llm_arena.engines.vllm_start import SHARED_GPU
from llm_arena.errors import UsageError
from llm_arena.tokens import ChatFormat
from llm_arena.training.config import TrainConfig
from llm_arena.training.loading import learner_device
from llm_arena.training.lora import LoraSettings

VLLM_SHARE = 0.92
"""Share of a GPU's memory that vLLM takes if nobody says otherwise; several engines share it."""
SHARED_GPUS = 0.7
"""The same for several engines where the learner lives, too."""
_MEMORY = "gpu_memory_utilization"


@dataclass(frozen=True)
class Placement:
    """What `place` decided."""

    device: torch.device
    "Of the learner."
    as_adapter: bool
    "Whether an adapter is published as one, beside its base; else whole models are."
    shares_gpu: bool
    "Whether engine and learner take turns on one GPU."


def place(config: TrainConfig) -> Placement:
    """Decides where things live.

    Raises:
        UsageError: the engine takes no adapters, a device is not there, or playing ahead is asked of a GPU that playing
            and learning share.
    """
    device = learner_device(config.learner.devices)
    kind = chosen(config.engine)
    if config.publish == "adapter" and kind == "transformers":
        raise UsageError(
            "publish=adapter needs an engine that takes adapters: --engine.kind vllm. With transformers use "
            "--publish merged"
        )
    # On a CPU a rollout took three times as long with an adapter as with merged weights (SmolLM2-135M, rank 16).
    # A server's own model may serve others as well, so there it stays as it is where that is possible.
    as_adapter = config.publish == "adapter" or (
        config.publish == "auto"
        and config.lora_rank > 0
        and (kind == "openai" or (kind == "vllm" and not vllm_start.is_cpu()))
    )
    refuse_turns_ahead(config)
    return Placement(device, as_adapter, shares_gpu(config))


def refuse_turns_ahead(config: TrainConfig) -> None:
    """Refuses to play ahead on an engine that has to sleep while the learner works.

    Raises:
        UsageError: it is asked for; or the learner's device is not there.
    """
    if config.max_staleness and shares_gpu(config):
        raise UsageError(
            f"max_staleness={config.max_staleness} plays while the learner works, but here engine and learner take "
            f"turns on {learner_device(config.learner.devices)}: give the engine a GPU of its own, e.g. "
            "--engine.devices 1, or set max_staleness to 0"
        )


def shares_gpu(config: TrainConfig) -> bool:
    """Whether engines of these settings and the learner take turns on one GPU.

    Raises:
        UsageError: the learner's device is not there.
    """
    device, named = learner_device(config.learner.devices), config.engine.cuda_devices()
    return chosen(config.engine) == "vllm" and device.type == "cuda" and (named is None or device.index in named)


@dataclass(frozen=True, kw_only=True)
class PolicyPlan:
    """A trained policy, before anything of it is loaded."""

    name: str
    config: TrainConfig
    "Its own settings; see `TrainConfig.of_policy`."
    placed: Placement
    base: Path
    "Folder of the model that it starts from."
    chat: ChatFormat
    "That model's."


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """An engine to be made for trained policies."""

    settings: EngineSettings
    policies: tuple[str, ...]
    "Names of those that it serves."
    max_lora_rank: int
    "Highest rank of the adapters to come; 0 for none."
    sleeps: bool
    "It takes turns with the learner on a GPU."


def plan_engines(
    policies: Sequence[PolicyPlan], others: EngineSettings, frozen: int = 0
) -> tuple[list[EnginePlan], EngineSettings]:
    """Decides which policies share an engine, and how much of a GPU's memory each engine takes.

    Policies of equal engine settings share an engine in this process, and so do adapters of one base in vLLM or on a
    server. Full weights take an engine each. vLLM engines on one GPU get equal parts of its memory where no
    `gpu_memory_utilization` is given.

    Args:
        policies: what is trained.
        others: settings of the engines for frozen models.
        frozen: how many vLLM engines these will take.

    Returns:
        The engines of the trained policies, and the settings of the others with their part of the memory.

    Raises:
        UsageError: together they take more memory than a GPU has, or a server is to hold full weights and others.
    """
    groups: dict[tuple[object, ...], list[PolicyPlan]] = {}
    for policy in policies:
        groups.setdefault(_shared_by(policy), []).append(policy)
    plans = [
        EnginePlan(
            settings=members[0].config.engine,
            policies=tuple(member.name for member in members),
            max_lora_rank=max(member.config.lora_rank if member.placed.as_adapter else 0 for member in members),
            sleeps=members[0].placed.shares_gpu,
        )
        for members in groups.values()
    ]
    _refuse_shared_servers(plans)
    sleeping = {plan.settings for plan in plans if plan.sleeps}
    fitted = _fitted([plan.settings for plan in plans] + [others] * frozen, sleeping)
    plans = [replace(plan, settings=fitted.get(plan.settings, plan.settings)) for plan in plans]
    return plans, fitted.get(others, others)


def _shared_by(policy: PolicyPlan) -> tuple[object, ...]:
    """Returns what policies that share an engine have in common."""
    engine = policy.config.engine
    if chosen(engine) == "transformers":
        return (engine,)
    return (engine, policy.base.resolve()) if policy.placed.as_adapter else (engine, policy.name, "full weights")


def _refuse_shared_servers(plans: Sequence[EnginePlan]) -> None:
    """Raises a UsageError for a server that is to hold the full weights of a policy, and something else."""
    remote = [(plan, set(server_urls(plan.settings.url))) for plan in plans if chosen(plan.settings) == "openai"]
    for index, (plan, urls) in enumerate(remote):
        for other, others in remote[:index]:
            if urls & others and not (plan.max_lora_rank and other.max_lora_rank):
                raise UsageError(
                    f"the server {min(urls & others)} can't hold the full weights of one policy beside another: "
                    f"{', '.join([*other.policies, *plan.policies])}. Give each a server of its own, or train "
                    "adapters, which share one: --lora-rank 16"
                )


def _fitted(
    engines: Sequence[EngineSettings], sleeping: Collection[EngineSettings]
) -> dict[EngineSettings, EngineSettings]:
    """Returns vLLM's settings with each engine's part of the memory, by the settings without it.

    Args:
        engines: the settings of each engine to come; of other kinds than vLLM as well.
        sleeping: those of engines that take turns with the learner.

    Raises:
        UsageError: the engines of one GPU take more than there is.
    """
    engines = [engine for engine in engines if chosen(engine) == "vllm"]
    if len(engines) < 2 or vllm_start.is_cpu():
        return {}
    fitted: dict[EngineSettings, EngineSettings] = {}
    taken: Counter[int] = Counter()
    for engine in engines:
        # vLLM takes the first GPU where none is named.
        devices = set(engine.cuda_devices() or [0])
        beside = sum(bool(devices & set(other.cuda_devices() or [0])) for other in engines)
        fitted[engine] = engine
        if beside > 1:
            share = min(SHARED_GPU, SHARED_GPUS / beside) if engine in sleeping else VLLM_SHARE / beside
            fitted[engine] = engine.with_args({_MEMORY: math.floor(share * 100) / 100, **engine.vllm_args()})
            taken.update(dict.fromkeys(devices, float(fitted[engine].vllm_args()[_MEMORY])))
    for device, share in taken.items():
        if share > 1:
            count = sum(device in (engine.cuda_devices() or [0]) for engine in engines)
            raise UsageError(
                f"{count} vLLM engines take {share:.2f} of the memory of GPU {device}, and there is 1: give each at "
                f"most {0.95 / count:.2f} (--engine.gpu-memory-utilization {0.9 / count:.2f}), devices of their own, "
                "or train adapters, which share one engine: --lora-rank 16"
            )
    return fitted


def lora_settings(config: TrainConfig) -> LoraSettings | None:
    """Returns the adapter that the settings ask for; None trains all weights."""
    if not config.lora_rank:
        return None
    return LoraSettings(
        rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets, seed=config.seed % (1 << 63)
    )
