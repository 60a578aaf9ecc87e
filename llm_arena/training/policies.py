"""One policy in training: its learner, how its weights reach its engine, its part of a checkpoint.

A run trains one policy or several. Each has weights, optimizer, reference and engine name of its own, starts from the
same model, and learns from the tokens that it sampled itself; what others sampled is context. Rewards are turned into
advantages once, for all of them.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from llm_arena.engines.base import Engine
from llm_arena.errors import UsageError
from llm_arena.runtime import Runtime, ServedPolicy, context_tokens
from llm_arena.tokens import ChatFormat
from llm_arena.training import batch as batches
from llm_arena.training.batch import Batch
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Credit
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.metrics import Row, of_step
from llm_arena.training.mfu import Meter
from llm_arena.training.objective import StepStats
from llm_arena.training.placement import Placement, lora_settings
from llm_arena.training.planning import is_trained
from llm_arena.training.run_folder import copy_model_files
from llm_arena.training.sources import derive_seed
from llm_arena.training.step_settings import step_settings
from llm_arena.training.sync import Publisher
from llm_arena.training.token_rewards import TurnSignal
from llm_arena.types import Trace

EXACT_TOLERANCE = 1e-4
COARSE_TOLERANCE = 0.2
"""Default `parity_tolerance` in nats for an engine in float32, and in 16 bits (0.02 to 0.05 is usual there)."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def folder_names(policies: Sequence[str]) -> dict[str, str]:
    """Returns policy -> name of its folders and suffix of its metrics: `a` for `learner:a`; `` for an only policy.

    Raises:
        UsageError: a name can't be a folder's on every system, or two are the same there.
    """
    if len(policies) == 1:
        return {policies[0]: ""}
    names = {policy: policy.partition(":")[2] or policy for policy in policies}
    for policy, name in names.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"the trained policy {policy!r} needs a name of letters, digits, `_` and `-` after the colon, for its "
                "folder is called so; e.g. learner:solver"
            )
        others = [other for other in policies if other != policy and names[other].lower() == name.lower()]
        if others:
            raise UsageError(
                f"the trained policies {policy!r} and {others[0]!r} would have the same folder; rename one"
            )
    return names


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a policy made of one batch of traces."""

    batch: Batch
    stats: StepStats
    mfu: float
    "See `mfu.Meter`."


class TrainedPolicy:
    """One policy in training.

    Args:
        name: in rosters, in traces and for the engine, e.g. `learner` or `learner:solver`.
        folder_name: of its part of a checkpoint; empty for the only policy of a run.
        config: of the run.
        placed: where the learner lives, and how its weights reach the engine.
        base: folder of the model to start from.
        engine: what serves it.
        runtime: the engine's.
        weights: folder for the versions on their way to the engine.
    """

    def __init__(
        self,
        name: str,
        folder_name: str,
        config: TrainConfig,
        placed: Placement,
        *,
        base: Path,
        engine: Engine,
        runtime: Runtime,
        weights: Path,
    ) -> None:
        self.name = name
        self.folder_name = folder_name
        self._config = config
        self._base = base
        self._engine = engine
        self._runtime = runtime
        self.learner = Learner.load(
            base,
            reference=config.kl_reference if config.kl_weight > 0 else None,
            weight_decay=config.weight_decay,
            lora=lora_settings(config),
            recompute=config.recompute,
            device=placed.device,
        )
        self._meter = Meter(self.learner)
        self.publisher = Publisher(
            self.learner,
            engine,
            runtime,
            policy=name,
            folder=weights / folder_name,
            adapter_of=base if placed.as_adapter else None,
            keep=config.max_staleness,
        )

    def serve(self, chat: ChatFormat) -> None:
        """Tells the runtime who answers to this policy's name."""
        context = context_tokens(self._base, self._engine)
        self._runtime.serve(self.name, ServedPolicy(self._engine, self.name, chat, context))

    def learn(self, traces: Sequence[Trace], gained: Credit, *, step: int, seats: int) -> Learned:
        """Makes one step. A batch in which the policy has nothing to train makes no update.

        Args:
            traces: of the step.
            gained: their advantages.
            step: which one, from 0.
            seats: how many (trace, seat) pairs it trains in a step without void episodes.

        Raises:
            TrainingError: the step can't be made; see `Learner.step`.
        """
        config = self._config
        batch = batches.build(
            train_sequences(traces, gained, policy=self.name, ignore_truncated=config.ignore_truncated),
            max_row_tokens=config.max_row_tokens,
            max_tree_depth=self.learner.max_tree_depth,
            token_budget=config.token_budget,
            minibatches=config.minibatches,
            seed=derive_seed(config.seed, "minibatches", step),
            dtype=self.learner.dtype,
            device=self.learner.device,
        )
        settings = step_settings(config, step, batch, seats, exact=self._exact)
        began = time.perf_counter()
        stats = self.learner.step(batch, settings)
        used = self._meter.share(batch, time.perf_counter() - began, epochs=config.epochs)
        return Learned(batch=batch, stats=stats, mfu=used)

    @property
    def _exact(self) -> bool:
        """Whether the engine computes in float32, as the learner does."""
        dtype: str = self._engine.describe().get("dtype", "float32")
        return dtype == "float32"

    def check(self, prompts: Sequence[Sequence[int]], version: int) -> float:
        """Returns the largest |engine - learner| log-probability after these prompts, in nats.

        Raises:
            TrainingError: it is larger than rounding explains; see `Publisher.check`.
        """
        config = self._config
        return self.publisher.check(
            prompts,
            temperature=config.temperature,
            seed=derive_seed(config.seed, "probe"),
            tolerance=config.parity_tolerance or (EXACT_TOLERANCE if self._exact else COARSE_TOLERANCE),
            version=version,
            tokens=min(8, config.max_new_tokens),
        )

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Returns the tensors of its part of a checkpoint, by names that no other policy has."""
        return {f"{self._prefix}{name}": tensors for name, tensors in self.learner.state().items()}

    def load_state(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes its part of a checkpoint.

        Raises:
            TrainingError: the tensors are those of another model or adapter.
        """
        own = {
            name.removeprefix(self._prefix): group for name, group in tensors.items() if name.startswith(self._prefix)
        }
        self.learner.load_state(own)

    def save(self, directory: Path) -> None:
        """Writes a whole Hugging Face folder: weights, settings, tokenizer."""
        copy_model_files(self._base, directory)
        self.learner.save(directory)

    def save_adapter(self, directory: Path) -> None:
        """Writes the adapter alone as a PEFT folder; see `Learner.save_adapter`."""
        self.learner.save_adapter(directory, self._base)

    @property
    def _prefix(self) -> str:
        return f"{self.folder_name}/" if self.folder_name else ""


_SUMS = ("loss", "trained_tokens", "total_tokens", "computed_tokens", "updates")
_LARGEST = ("grad_norm", "max_logprob_gap")
_GAPS = ("max_logprob_gap", "mean_logprob_gap")


def numbers(learned: Mapping[str, Learned], *, lr: float, clips: bool, fresh: bool) -> Row:
    """Returns the learners' numbers of a step.

    Of several policies each has its own under `NAME/POLICY`, and `NAME` is the sum of losses, tokens and updates, the
    largest `grad_norm` and gap, and for all else the mean over trained tokens (for `unique_ratio`, over all tokens).

    Args:
        learned: by the policies' folder names.
        lr: the learning rate.
        clips: whether the loss bounds ratios.
        fresh: whether the batch was sampled with the weights that learned from it. If not, there is no gap between
            engine and learner to be told: it would be that between old and new weights.
    """
    rows = {name: of_step(one.batch, one.stats, lr=lr, clips=clips) | {"mfu": one.mfu} for name, one in learned.items()}
    for row in rows.values() if not fresh else ():
        for gap in _GAPS:
            del row[gap]
    if len(rows) == 1:
        return next(iter(rows.values()))
    whole: Row = {"lr": lr}
    for number in next(iter(rows.values())):
        if number == "lr":
            continue
        values = [row[number] for row in rows.values()]
        weights = [row["total_tokens" if number == "unique_ratio" else "trained_tokens"] for row in rows.values()]
        if number in _SUMS:
            whole[number] = sum(values)
        elif number in _LARGEST:
            whole[number] = max(values)
        else:
            whole[number] = sum(map(operator.mul, values, weights)) / max(sum(weights), 1)
        whole |= {f"{number}/{name}": value for name, value in zip(rows, values, strict=True)}
    return whole


def mask_stale(traces: Sequence[Trace], gained: Credit, oldest: int) -> int:
    """Keeps tokens that were sampled with weights of before version `oldest` from being trained; returns how many.

    Batches are played in such a way that there are none; an agent with an engine of its own may still bring some.
    """
    stale = [
        (trace, turn)
        for trace in traces
        if not trace.void
        for turn in trace.turns
        if turn.completion_ids and turn.min_version < oldest and is_trained(trace.seats[turn.seat].policy)
    ]
    for trace in traces if stale else ():
        gained.signals.setdefault(trace.id, {})
    for trace, turn in stale:
        signals, size = gained.signals[trace.id], len(turn.completion_ids)
        rewards = signals[turn.index].rewards if turn.index in signals else np.zeros(size)
        signals[turn.index] = TurnSignal(rewards=rewards, trained=np.zeros(size, dtype=np.bool_))
    return sum(len(turn.completion_ids) for _, turn in stale)


def staleness(traces: Sequence[Trace], step: int) -> tuple[float, int]:
    """Returns by how many updates the tokens of a batch are older than the learner's weights: mean, largest.

    Of all tokens that trained policies sampled without a grammar, also those that are masked, cut or too old to be
    trained. A turn whose tokens span several versions counts as old as the oldest.

    Args:
        traces: of the batch.
        step: how many updates the learner's weights have.
    """
    ages = [
        (step - turn.min_version, len(turn.completion_ids))
        for trace in traces
        if not trace.void
        for turn in trace.turns
        if turn.completion_ids and not turn.guided and is_trained(trace.seats[turn.seat].policy)
    ]
    tokens = sum(count for _, count in ages)
    return sum(age * count for age, count in ages) / max(tokens, 1), max((age for age, _ in ages), default=0)
