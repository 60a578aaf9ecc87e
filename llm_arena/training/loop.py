"""The training run: starts -> episodes -> credit -> batch -> optimizer step -> new weights to the engine.

Everything up to the trace is what playing and ranking use as well. The run is synchronous: a step plays with the
newest weights, and its plan depends on the settings and the step number alone. So the same command goes on after a
kill and ends with the weights of an unbroken run.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_arena.engines.base import Engine
from llm_arena.engines.choose import chosen, words
from llm_arena.errors import ArenaError, TrainingError
from llm_arena.models import resolve_model
from llm_arena.rollout import play_many
from llm_arena.runtime import Runtime, ServedPolicy, context_tokens
from llm_arena.tokens import ChatFormat
from llm_arena.training import batch as batches
from llm_arena.training import checkpoint, credit, metrics
from llm_arena.training.batch import Batch
from llm_arena.training.config import TrainConfig, fingerprint
from llm_arena.training.credit import Baselines, Credit
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.metrics import Row
from llm_arena.training.objective import StepStats
from llm_arena.training.placement import Placement, lora_settings, place
from llm_arena.training.planning import LEARNER, Planner, Roster, learner_seats
from llm_arena.training.progress import Progress
from llm_arena.training.run_folder import RunFolder, copy_model_files
from llm_arena.training.sources import DealtSource, ListSource, StartSource, derive_seed, digest, read_starts
from llm_arena.training.step_settings import step_settings
from llm_arena.training.sync import Publisher
from llm_arena.training.tracking import tracker
from llm_arena.training.whole_folder import write_whole
from llm_arena.types import Ending, Trace

OnStep = Callable[[Row, Learner], object]
EXACT_TOLERANCE = 1e-4
COARSE_TOLERANCE = 0.2
"""Default `parity_tolerance` in nats for an engine in float32, and in 16 bits (0.02 to 0.05 is usual there)."""
PROBES = 4
"""Prompts on which engine and learner are compared."""


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run left behind."""

    run_dir: Path
    final_dir: Path
    "A Hugging Face folder: give it to `play` as a model."
    steps: int
    rows: list[Row]
    "The metrics of every step, as in metrics.jsonl."
    max_logprob_gap: float
    "Largest |engine - learner| log-probability over all trained tokens of the run, in nats."
    was_complete: bool
    "The run had been completed before, and nothing was done."


def train(
    config: TrainConfig,
    *,
    script: str | None = None,
    roster: Roster | None = None,
    source: StartSource | None = None,
    on_step: OnStep | None = None,
    progress: bool = True,
) -> TrainResult:
    """Trains a model, or goes on with the run of the same settings.

    Args:
        config: the settings.
        script: name of the experiment, for the run's folder; None takes the name of the running program.
        roster: role or seat -> `learner`, an agent string, or an agent. None: the learner holds every seat, or all but
            one are held by `config.opponent`.
        source: of starts; None takes `config.starts`, or lets the game deal.
        on_step: called after each step with its metrics and the learner.
        progress: whether to show a progress bar (in a terminal) or a line per step on standard error.

    Raises:
        UsageError, UnknownName: a setting can't work.
        ModelError: the model can't be loaded.
        TrainingError: the run can't go on; there is a checkpoint of the steps done so far.
        KeyboardInterrupt: likewise.
    """
    script = script or Path(sys.argv[0]).stem or "train"
    asked = config.engine
    config = replace(config, engine=replace(config.engine, kind=chosen(config.engine)))
    source = _source(config) if source is None else source
    placed = place(config)
    with Runtime(engine=config.engine, max_open_episodes=config.max_open_episodes, sleeps=placed.shares_gpu) as runtime:
        # Before there is a folder: mistakes in the settings leave nothing behind.
        engine = runtime.new_engine(
            max_batch_rows=config.max_open_episodes * 16,
            max_lora_rank=config.lora_rank if placed.as_adapter else 0,
        )
        planner = Planner(config, roster, source, runtime)
        settings = _record(config, script, roster, source)
        path = Path(config.run_dir) if config.run_dir else Path("runs") / f"{script}-{fingerprint(settings)}"
        base = resolve_model(config.model)
        chat = ChatFormat.load(base)
        folder = RunFolder(path, settings, fresh=config.fresh)
        try:
            if folder.complete:
                print(f"the run in {path} is complete ({config.num_steps} steps); --fresh trains anew", file=sys.stderr)
                return _result(folder, was_complete=True)
            if progress and asked.kind != "transformers":
                print(words(asked), file=sys.stderr, flush=True)
            with tracker(config, folder) as log:
                trainer = Trainer(config, folder, runtime, engine, planner, base, chat, placed=placed, log=log)
                trainer.run(on_step=on_step, progress=progress)
            return _result(folder, was_complete=False)
        finally:
            folder.close()


class Trainer:
    """One run in progress. `train` is the way in.

    Args:
        config: the settings.
        folder: of the run; its checkpoint, if any, is taken up.
        runtime: where episodes are played.
        engine: the runtime's engine.
        planner: of the episodes.
        base: folder of the model to start from.
        chat: its chat format.
        placed: where the learner lives, and how its weights reach the engine.
        log: called with the metrics of each step, beside metrics.jsonl.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        runtime: Runtime,
        engine: Engine,
        planner: Planner,
        base: Path,
        chat: ChatFormat,
        *,
        placed: Placement,
        log: Callable[[Row], object],
    ) -> None:
        self.config = config
        self.folder = folder
        self.runtime = runtime
        self.base = base
        self._log = log
        self.learner = Learner.load(
            self.base,
            reference=config.kl_reference if config.kl_weight > 0 else None,
            weight_decay=config.weight_decay,
            lora=lora_settings(config),
            device=placed.device,
        )
        self.baselines = Baselines(config.baseline_decay, bias_correction=config.bias_correction)
        self.step = 0
        self._saved = 0
        self._consistent = True  # weights, baselines and logs are all those after `step` steps
        if folder.checkpoint is not None:
            self._restore(folder.checkpoint)
        self.publisher = Publisher(
            self.learner,
            engine,
            runtime,
            policy=LEARNER,
            folder=folder.path / "weights",
            adapter_of=base if placed.as_adapter else None,
        )
        self.publisher.publish(self.step)
        exact = engine.describe().get("dtype", "float32") == "float32"
        self._tolerance = config.parity_tolerance or (EXACT_TOLERANCE if exact else COARSE_TOLERANCE)
        runtime.serve(LEARNER, ServedPolicy(engine, LEARNER, chat, context_tokens(base, engine)))
        self.planner = planner
        runtime.run(planner.prepare())
        self.probes = self._probe_prompts(chat)
        self._check_parity()

    def run(self, *, on_step: OnStep | None = None, progress: bool = True) -> None:
        """Makes the remaining steps and writes the final model.

        Raises:
            TrainingError: the run can't go on.
        """
        config = self.config
        with Progress(config.num_steps, self.step, shown=progress) as bar:
            try:
                while self.step < config.num_steps:
                    row = self._one_step()
                    bar.show(self.step, row)
                    if on_step is not None:
                        on_step(row, self.learner)
                    if self.step % config.checkpoint_every == 0 or self.step == config.num_steps:
                        self.save()
            except (KeyboardInterrupt, ArenaError):
                if self._consistent and self.step > self._saved:
                    self.save()
                raise
        self._write_final()

    def _one_step(self) -> Row:
        config, began = self.config, time.perf_counter()
        plans = self.planner.plans(self.step)
        traces = self.runtime.run(play_many(plans, self.runtime))
        played = time.perf_counter()
        self._refuse_if_all_void(traces)
        self._refuse_if_nothing_was_sampled(traces)
        self.runtime.run(self.runtime.sleep())
        gained, batch, stats = self._learn(traces)
        learned = time.perf_counter()
        gap = None
        try:
            if self.step < config.num_steps:
                self.publisher.publish(self.step)
                if self.step % config.probe_every == 0:
                    gap = self._check_parity()
        finally:  # the step is done even if its weights can't be published
            ended = time.perf_counter()
            row = {"step": self.step} | metrics.of_traces(traces, learner_seats, gained)
            row |= metrics.of_step(batch, stats, lr=config.lr_at(self.step - 1), clips=config.loss == "ppo_clip")
            metrics.warn_if_all_guided(row)
            row |= {
                "rollout_seconds": played - began,
                "learn_seconds": learned - played,
                "sync_seconds": ended - learned,
                "step_seconds": ended - began,
                "tokens_per_second": row["sampled_tokens"] / (ended - began),
            }
            if gap is not None:
                row["probe_gap"] = gap
            self.folder.log(row)
            self._log(row)
            if config.keep_traces and (self.step - 1) % config.keep_traces == 0:
                self.folder.keep(traces)
            self._consistent = True
        return row

    def _learn(self, traces: Sequence[Trace]) -> tuple[Credit, Batch, StepStats]:
        """Makes one optimizer step. An ArenaError leaves everything as it was before."""
        before = self.baselines.state()
        self._consistent = False
        try:
            gained, batch = self._credited(traces)
            settings = step_settings(self.config, self.step, batch, self.planner.trained_seats(LEARNER))
            stats = self.learner.step(batch, settings)
        except ArenaError:
            self.baselines.load(before)
            self._consistent = self.learner.is_finite
            raise
        self.step += 1
        return gained, batch, stats

    def _credited(self, traces: Sequence[Trace]) -> tuple[Credit, Batch]:
        config = self.config
        gained = credit.assign(
            traces,
            by=config.credit,
            estimator=config.estimator,
            baselines=self.baselines,
            learners=learner_seats,
            group_reward=self.planner.env.group_reward,
            peers=self.planner.env.peers,
        )
        batch = batches.build(
            train_sequences(traces, gained, policy=LEARNER, ignore_truncated=config.ignore_truncated),
            max_row_tokens=config.max_row_tokens,
            token_budget=config.token_budget,
            minibatches=config.minibatches,
            seed=derive_seed(config.seed, "minibatches", self.step),
            dtype=self.learner.dtype,
            device=self.learner.device,
        )
        return gained, batch

    def save(self) -> None:
        """Writes a checkpoint of the steps done so far.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        state = {"baselines": self.baselines.state(), "sizes": self.folder.sizes()}
        checkpoint.save(self.folder.path / "checkpoints", self.step, self.learner.state(), state)
        self._saved = self.step

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        self.learner.load_state(saved.tensors())
        self.baselines.load(saved.state["baselines"])
        self.step = self._saved = saved.step

    def _probe_prompts(self, chat: ChatFormat) -> list[list[int]]:
        """Returns prompts of the game itself: the opening views of the first step's episodes."""
        prompts: list[list[int]] = []
        for plan in self.planner.plans(0)[:PROBES]:
            env = self.planner.opened(plan)
            prompts.append(chat.render(env.observe(env.pending[0])["messages"]))
        return prompts

    def _check_parity(self) -> float:
        return self.publisher.check(
            self.probes,
            temperature=self.config.temperature,
            seed=derive_seed(self.config.seed, "probe"),
            tolerance=self._tolerance,
            version=self.step,
            tokens=min(8, self.config.max_new_tokens),
        )

    def _refuse_if_all_void(self, traces: Sequence[Trace]) -> None:
        if traces and all(trace.void for trace in traces):
            failure = traces[0].failure
            reason = f"{failure.boundary}: {failure.kind}: {failure.message}" if failure else "unknown"
            raise TrainingError(f"all {len(traces)} episodes of step {self.step} are void; the first: {reason}")

    def _refuse_if_nothing_was_sampled(self, traces: Sequence[Trace]) -> None:
        overflowed = sum(trace.ending is Ending.CONTEXT_OVERFLOW for trace in traces)
        tokens = any(
            turn.completion_ids for trace in traces for turn in trace.turns if turn.seat in learner_seats(trace)
        )
        if overflowed and not tokens:
            raise TrainingError(
                f"the learner sampled no token in step {self.step}, for {overflowed} of {len(traces)} episodes "
                f"overflowed the context: raise max_context_tokens (given: {self.config.max_context_tokens}), or lower "
                f"max_new_tokens (given: {self.config.max_new_tokens})"
            )

    def _write_final(self) -> None:
        def fill(aside: Path) -> None:
            copy_model_files(self.base, aside)
            self.learner.save(aside)

        if self.learner.is_lora:  # first: `final` is what says that the run is complete
            write_whole(
                self.folder.path / "adapter",
                lambda aside: self.learner.save_adapter(aside, self.base),
                what="the adapter",
                durable=True,
            )
        write_whole(self.folder.final, fill, what="the final model", durable=True)
        shutil.rmtree(self.folder.path / "weights", ignore_errors=True)


def _source(config: TrainConfig) -> StartSource:
    if config.starts is None:
        return DealtSource(per_batch=config.starts_per_step)
    return ListSource(read_starts(Path(config.starts)), per_batch=config.starts_per_step, seed=config.seed)


def _record(config: TrainConfig, script: str, roster: Roster | None, source: StartSource) -> dict[str, Any]:
    """Returns all that the weights depend on, as JSON, in the form that is kept in the run's folder."""
    given = roster if roster is not None else config.seated()
    names = {key: who if isinstance(who, str) else who.name for key, who in given.items()}
    return config.to_json() | {"script": script, "roster": names, "sha256_of_starts": digest(source)}


def _result(folder: RunFolder, *, was_complete: bool) -> TrainResult:
    rows = folder.rows()
    return TrainResult(
        run_dir=folder.path,
        final_dir=folder.final,
        steps=len(rows),
        rows=rows,
        max_logprob_gap=max((row["max_logprob_gap"] for row in rows), default=0.0),
        was_complete=was_complete,
    )
