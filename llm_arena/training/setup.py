"""What a run needs before its first step: who is trained, where everything lives, which engine serves whom."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_arena.engines.base import Engine
from llm_arena.engines.choose import chosen
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.models import resolve_model
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
from llm_arena.training import policy_tables
from llm_arena.training.config import TrainConfig
from llm_arena.training.placement import EnginePlan, PolicyPlan, place, plan_engines, refuse_turns_ahead
from llm_arena.training.planning import Planner, Roster
from llm_arena.training.policies import TrainedPolicy, folder_names
from llm_arena.training.sources import DealtSource, ListSource, StartSource, digest, read_starts

ROWS_PER_EPISODE = 16
"""So many completions of one episode may be sampled at once by an engine in this process."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The policies of a run and their engines, before anything is loaded."""

    names: dict[str, str]
    "Policy -> name of its folders; see `folder_names`."
    plans: dict[str, PolicyPlan]
    "By policy, in the order of `names`."
    engines: list[EnginePlan]

    def load(self, runtime: Runtime, made: Mapping[str, Engine], weights: Path) -> list[TrainedPolicy]:
        """Loads what is trained.

        Args:
            runtime: of the engines.
            made: policy -> engine; see `make_engines`.
            weights: folder for the versions on their way to the engines.

        Raises:
            ModelError: a model can't be loaded.
            UsageError: an adapter does not fit its model.
        """
        return [
            TrainedPolicy(
                self.plans[policy],
                folder,
                engine=made[policy],
                runtime=runtime,
                weights=weights,
                learns=functools.partial(self.plans[policy].config.learns, place, len(self.names)),
            )
            for place, (policy, folder) in enumerate(self.names.items())
        ]

    def make_engines(self, runtime: Runtime, max_open_episodes: int) -> dict[str, Engine]:
        """Makes the engines of the trained policies, and returns them by policy.

        Raises:
            MissingExtra, UsageError: one is not installed, or can't have its settings.
        """
        made: dict[str, Engine] = {}
        for plan in self.engines:
            engine = runtime.new_engine(
                settings=plan.settings,
                max_batch_rows=max_open_episodes * ROWS_PER_EPISODE,
                max_lora_rank=plan.max_lora_rank,
                sleeps=plan.sleeps,
            )
            made |= dict.fromkeys(plan.policies, engine)
        return made


def with_chosen_engine(config: TrainConfig) -> TrainConfig:
    """Returns the settings with the engines that `auto` comes to on this machine, those of policies included."""
    tables = policy_tables.with_chosen_engines(policy_tables.read(config.policies))
    engine = replace(config.engine, kind=chosen(config.engine))
    return replace(config, engine=engine, policies=policy_tables.written(tables))


def set_up(config: TrainConfig, planner: Planner, runtime: Runtime) -> Setup:
    """Decides who is trained and where everything lives; mistakes in the settings leave nothing behind.

    Args:
        config: of the run.
        planner: knows who sits where.
        runtime: gets the settings of engines for frozen models.

    Raises:
        UnknownName: a table in `policies` is for no trained policy, or a model is not known.
        ModelError: a model can't be fetched, or has no chat format.
        UsageError: settings don't go together.
    """
    names = folder_names(planner.policies)
    _refuse_tables_of_nobody(config, planner.policies)
    if config.alternate_every and len(names) < 2:
        raise UsageError(
            f"alternate_every={config.alternate_every} has policies learn in turns, and the roster has one, "
            f"{planner.policies[0]}: name another, e.g. learner:NAME, or leave it out"
        )
    plans: dict[str, PolicyPlan] = {}
    for policy in names:
        own = with_chosen_engine(config.of_policy(policy))
        base = resolve_model(own.model)
        plans[policy] = PolicyPlan(name=policy, config=own, placed=place(own), base=base, chat=ChatFormat.load(base))
        _refuse_versions(config, plans[policy])
    frozen = _frozen_engines(config, planner, plans)
    if frozen:  # their engines have the run's own settings, which may be those of no trained policy
        refuse_turns_ahead(config)
    engines, others = plan_engines(list(plans.values()), config.engine, frozen)
    runtime.set_engine(others)
    return Setup(names=names, plans=plans, engines=engines)


def _refuse_tables_of_nobody(config: TrainConfig, policies: list[str]) -> None:
    keys = {policy_tables.key_of(policy): policy for policy in policies}
    for name in policy_tables.read(config.policies):
        if name not in keys:
            raise UnknownName(
                f"policies.{name} is for the policy learner:{name}, which no seat of the roster is given to."
                f"{did_you_mean(name, keys)} Trained are: {', '.join(policies)}"
            )


def _refuse_versions(config: TrainConfig, plan: PolicyPlan) -> None:
    """Raises a UsageError where older weights of a policy would have to be served beside those of now, and can't."""
    kind = chosen(plan.config.engine)
    if kind == "transformers" or plan.placed.as_adapter:
        return
    if config.league.past:
        raise UsageError(
            f"league.past={config.league.past:g} meets past versions of {plan.name}, and {kind} serves one set of full "
            "weights: train an adapter, --lora-rank 16 --publish adapter, or take --engine.kind transformers"
        )
    if config.evaluation.every and kind == "openai":
        raise UsageError(
            f"evaluation.every={config.evaluation.every} meets the initial weights of {plan.name}, whose place on the "
            "server the trained ones take: train an adapter, --lora-rank 16 --publish adapter"
        )


def _frozen_engines(config: TrainConfig, planner: Planner, plans: Mapping[str, PolicyPlan]) -> int:
    """Returns how many vLLM engines the frozen models take: one each, or none beside adapters of the same base.

    Evaluations want the models that the policies began as.
    """
    if chosen(config.engine) != "vllm":
        return 0
    bases = {plan.base.resolve() for plan in plans.values() if _serves_base(plan, config.engine)}
    initial = {plan.config.model for plan in plans.values()} if config.evaluation.every else set()
    return len({resolve_model(model).resolve() for model in {*planner.frozen, *initial}} - bases)


def _serves_base(plan: PolicyPlan, engine: EngineSettings) -> bool:
    return plan.placed.as_adapter and plan.config.engine == engine


def start_source(config: TrainConfig) -> StartSource:
    """Returns the starts that the settings name, or those that the game deals.

    Raises:
        UsageError: there is no such file, or it holds none.
    """
    if config.starts is None:
        return DealtSource(per_batch=config.starts_per_step)
    return ListSource(read_starts(Path(config.starts)), per_batch=config.starts_per_step, seed=config.seed)


def record(config: TrainConfig, script: str, roster: Roster | None, source: StartSource) -> dict[str, Any]:
    """Returns all that the weights depend on, as JSON, in the form that is kept in the run's folder."""
    given = roster if roster is not None else config.seated()
    names = {key: who if isinstance(who, str) else who.name for key, who in given.items()}
    return config.to_json() | {"script": script, "roster": names, "sha256_of_starts": digest(source)}
