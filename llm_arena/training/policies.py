"""One policy in training: its learner, how its weights reach its engine, its part of a checkpoint.

A run trains one policy or several. Each has weights, optimizer, reference, chat format and engine name of its own, may
start from another model, and learns from the tokens that it sampled itself; what others sampled is context. Rewards are
turned into advantages once, for all of them.

A version of a policy is the number of steps after which its weights were last changed. While others learn in turns it
keeps its version, and nothing is written or published anew.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from llm_arena.engines.base import Engine
from llm_arena.errors import UsageError
from llm_arena.runtime import Runtime, ServedPolicy, context_tokens
from llm_arena.training import batch as batches
from llm_arena.training.batch import Batch
from llm_arena.training.credit import Credit
from llm_arena.training.evaluation import initial_name
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.metrics import Row, of_step
from llm_arena.training.mfu import Meter
from llm_arena.training.objective import StepStats
from llm_arena.training.placement import PolicyPlan, lora_settings
from llm_arena.training.run_folder import copy_model_files
from llm_arena.training.sources import derive_seed
from llm_arena.training.step_settings import step_settings
from llm_arena.training.sync import Publisher
from llm_arena.training.tasks import LEARNER
from llm_arena.training.whole_folder import link_folder, write_whole
from llm_arena.types import Message, Trace

EXACT_TOLERANCE = 1e-4
COARSE_TOLERANCE = 0.2
"""Default `parity_tolerance` in nats for an engine in float32, and in 16 bits (0.02 to 0.05 is usual there)."""

_NAME = re.compile(r"[A-Za-z0-9_-]+")


def folder_names(policies: Sequence[str]) -> dict[str, str]:
    """Returns policy -> name of its folders and suffix of its metrics: `a` for `learner:a`; `` for an only policy.

    The name of an only policy is checked as well: it is in traces and tables, and a second one may join it.

    Raises:
        UsageError: a name can't be a folder's on every system, or two are the same there.
    """
    names = {policy: policy.partition(":")[2] or policy for policy in policies}
    for policy, name in names.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"the trained policy {policy!r} needs a name of letters, digits, `_` and `-` after the colon, for "
                "folders are called so; e.g. learner:solver"
            )
        others = [other for other in policies if other != policy and names[other].lower() == name.lower()]
        if others:
            raise UsageError(
                f"the trained policies {policy!r} and {others[0]!r} would have the same folder; rename one"
            )
    return names if len(policies) > 1 else dict.fromkeys(policies, "")


@dataclass(frozen=True, kw_only=True)
class Learned:
    """What a policy made of one batch of traces."""

    batch: Batch
    stats: StepStats
    lr: float
    mfu: float
    "See `mfu.Meter`."


class TrainedPolicy:
    """One policy in training.

    Args:
        plan: its name in rosters, in traces and for the engine, its settings, its model, and where it lives.
        folder_name: of its part of a checkpoint; empty for the only policy of a run.
        engine: what serves it.
        runtime: the engine's.
        weights: folder for the versions on their way to the engine.
        learns: whether it learns in a step, numbered from 0.

    Raises:
        ModelError: the model can't be loaded.
        UsageError: its adapter does not fit the model.
    """

    def __init__(
        self,
        plan: PolicyPlan,
        folder_name: str,
        *,
        engine: Engine,
        runtime: Runtime,
        weights: Path,
        learns: Callable[[int], bool],
    ) -> None:
        self.name = plan.name
        self.folder_name = folder_name
        self.learns = learns
        self._config = config = plan.config
        self._base = plan.base
        self._engine = engine
        self._runtime = runtime
        self._chat = plan.chat
        self.learner = Learner.load(
            plan.base,
            reference=config.kl_reference if config.kl_weight > 0 else None,
            weight_decay=config.weight_decay,
            lora=lora_settings(config),
            recompute=config.recompute,
            device=plan.placed.device,
        )
        self._meter = Meter(self.learner)
        self._publisher = Publisher(
            self.learner,
            engine,
            runtime,
            policy=plan.name,
            folder=weights / folder_name,
            adapter_of=plan.base if plan.placed.as_adapter else None,
        )
        self._written: int | None = None
        self._taken: int | None = None

    def serve(self) -> None:
        """Tells the runtime who answers to this policy's name."""
        self._serve(self.name)

    async def serve_initial(self) -> None:
        """Has the runtime serve the weights that it began as, under `evaluation.initial_name`, as a frozen model's.

        Raises:
            UnknownName, ModelError, EngineError: the model can't be loaded once more.
        """
        self._runtime.serve(initial_name(self.name), await self._runtime.policy(self._config.model))

    def keep_version(self, step: int, final: Path) -> None:
        """Makes a folder that stays of the weights after `step` steps, which `write` wrote.

        Raises:
            TrainingError: the disk is full or refuses.
        """

        def fill(aside: Path) -> None:
            aside.rmdir()  # `link_folder` makes it
            link_folder(self._publisher.folder(self.version(step)), aside)
            if not (aside / "adapter_config.json").is_file():
                copy_model_files(self._base, aside)

        write_whole(final, fill, what=f"the past version {final.name}", durable=True)

    async def serve_version(self, name: str, folder: Path, version: int) -> None:
        """Has the engine serve a folder of `keep_version` beside the weights of now; to be run on the runtime's loop.

        Raises:
            EngineError: the engine does not take it, or has died.
        """
        await self._runtime.wake()
        await self._engine.publish(name, folder, version)
        self._serve(name)

    async def forget_version(self, name: str) -> None:
        """Has the engine drop what `serve_version` gave it; to be run on the runtime's loop.

        Raises:
            EngineError: the engine has died.
        """
        await self._runtime.wake()
        await self._engine.forget(name)

    def _serve(self, name: str) -> None:
        context = context_tokens(self._base, self._engine)
        self._runtime.serve(name, ServedPolicy(self._engine, name, self._chat, context))

    def version(self, step: int) -> int:
        """Returns the version of the weights after `step` steps."""
        while step > 0 and not self.learns(step - 1):
            step -= 1
        return max(step, 0)

    def age(self, version: int, step: int) -> int:
        """Returns how many updates the weights after `step` steps are ahead of a version."""
        return sum(map(self.learns, range(version, step)))

    def write(self, step: int) -> None:
        """Writes the weights after `step` steps, which are those of now, to where the engine takes them.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        version = self.version(step)
        if version != self._written:
            self._publisher.write(version, oldest=self.version(step - self._config.max_staleness))
            self._written = version

    async def take(self, step: int) -> None:
        """Has the engine take the weights after `step` steps; to be run on the runtime's loop.

        Raises:
            EngineError: the engine does not take them, or has died.
        """
        version = self.version(step)
        if version != self._taken:
            await self._publisher.take(version)
            self._taken = version

    def older(self, steps: Sequence[int]) -> dict[str, Path]:
        """Returns the folders of the weights after so many steps, by names that no other policy's have."""
        versions = {self.version(step) for step in steps}
        return {
            f"{self.folder_name or LEARNER}-{version:08d}": self._publisher.folder(version)
            for version in sorted(versions)
        }

    def adopt(self, steps: Sequence[int], find: Callable[[str], Path]) -> None:
        """Takes the weights that `older` named for the same steps from an earlier process.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        for version, name in zip(sorted({self.version(step) for step in steps}), self.older(steps), strict=True):
            self._publisher.adopt(version, find(name))
            self._written = version

    def learn(self, traces: Sequence[Trace], gained: Credit, *, step: int, seats: int) -> Learned:
        """Makes one step. No update comes of a batch in which it has nothing to train.

        Args:
            traces: of the step.
            gained: their advantages, and what is masked, as all is where it is others' turn to learn.
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
        settings = step_settings(config, step, batch, seats, learned=self.age(0, step), exact=self._exact)
        began = time.perf_counter()
        stats = self.learner.step(batch, settings)
        used = self._meter.share(batch, time.perf_counter() - began, epochs=config.epochs)
        return Learned(batch=batch, stats=stats, lr=settings.lr, mfu=used)

    @property
    def _exact(self) -> bool:
        """Whether the engine computes in float32, as the learner does; of a server that does not tell, as it is set."""
        return (self._engine.describe().get("dtype") or self._config.engine.dtype) in ("auto", "float32")

    def check(self, chats: Sequence[list[Message]], step: int) -> float:
        """Returns the largest |engine - learner| log-probability of a reply to these chats, in nats.

        Raises:
            TrainingError: it is larger than rounding explains; see `Publisher.check`.
        """
        config = self._config
        return self._publisher.check(
            [self._chat.render(messages) for messages in chats],
            temperature=config.temperature,
            seed=derive_seed(config.seed, "probe"),
            tolerance=config.parity_tolerance or (EXACT_TOLERANCE if self._exact else COARSE_TOLERANCE),
            version=self.version(step),
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
_LARGEST = ("grad_norm", "max_logprob_gap", "lr")
_GAPS = ("max_logprob_gap", "mean_logprob_gap")


def numbers(learned: Mapping[str, Learned], *, clips: bool, fresh: bool) -> Row:
    """Returns the learners' numbers of a step.

    Of several policies each has its own under `NAME/POLICY`, and `NAME` is the sum of losses, tokens and updates, the
    largest `grad_norm`, gap and `lr`, and for all else the mean over trained tokens (for `unique_ratio`, over all
    tokens).

    Args:
        learned: by the policies' folder names.
        clips: whether the loss bounds ratios.
        fresh: whether the batch was sampled with the weights that learned from it. If not, there is no gap between
            engine and learner to be told: it would be that between old and new weights.
    """
    rows = {
        name: of_step(one.batch, one.stats, lr=one.lr, clips=clips) | {"mfu": one.mfu} for name, one in learned.items()
    }
    for row in rows.values() if not fresh else ():
        for gap in _GAPS:
            del row[gap]
    if len(rows) == 1:
        return next(iter(rows.values()))
    whole: Row = {}
    for number in next(iter(rows.values())):
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
