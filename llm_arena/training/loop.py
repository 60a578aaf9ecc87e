"""The training run: starts -> episodes -> credit -> batch -> optimizer step -> new weights to the engine.

Everything up to the trace is what playing and ranking use as well. A step plays with the newest weights, or with those
of `max_staleness` steps before (see `rollouts`), and its plan depends on the settings and the step number alone. So the
same command goes on after a kill and ends with the weights of an unbroken run.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_arena.engines.choose import chosen, words
from llm_arena.errors import TrainingError
from llm_arena.models import resolve_model
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
from llm_arena.training import alarms, checkpoint, credit, metrics
from llm_arena.training.config import TrainConfig, fingerprint
from llm_arena.training.credit import Baselines, Credit
from llm_arena.training.learner import Learner
from llm_arena.training.metrics import Row
from llm_arena.training.placement import place, refuse_crowd
from llm_arena.training.planning import LEARNER, Planner, Roster, learner_seats
from llm_arena.training.policies import Learned, TrainedPolicy, folder_names, mask_stale, numbers, staleness
from llm_arena.training.progress import Progress
from llm_arena.training.rollouts import Played, Rollouts, overlap
from llm_arena.training.run_folder import RunFolder
from llm_arena.training.signals import held
from llm_arena.training.sources import DealtSource, ListSource, StartSource, digest, read_starts
from llm_arena.training.tracking import tracker
from llm_arena.training.whole_folder import write_whole
from llm_arena.types import Trace

OnStep = Callable[[Row, Mapping[str, Learner]], object]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run left behind."""

    run_dir: Path
    final_dir: Path
    "A Hugging Face folder: give it to `play` as a model. Of several policies: a folder that holds one for each."
    models: dict[str, Path]
    "The Hugging Face folder of each trained policy."
    steps: int
    rows: list[Row]
    "The metrics of every step, as in metrics.jsonl."
    max_logprob_gap: float
    """Largest |engine - learner| log-probability over the trained tokens of the run that were sampled with the weights
    that learned from them, in nats."""
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
        on_step: called after each step with its metrics and the learners by policy.
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
        names = folder_names(planner.policies)
        refuse_crowd(config, placed, len(names))
        settings = _record(config, script, roster, source)
        path = Path(config.run_dir) if config.run_dir else Path("runs") / f"{script}-{fingerprint(settings)}"
        base = resolve_model(config.model)
        chat = ChatFormat.load(base)
        shared = placed.as_adapter or config.engine.kind != "vllm"
        folder = RunFolder(path, settings, fresh=config.fresh)
        try:
            if folder.complete:
                print(f"the run in {path} is complete ({config.num_steps} steps); --fresh trains anew", file=sys.stderr)
                return _result(folder, names, was_complete=True)
            if progress and asked.kind != "transformers":
                print(words(asked), file=sys.stderr, flush=True)
            with tracker(config, folder) as log:
                policies = [
                    TrainedPolicy(
                        name,
                        short,
                        config,
                        placed,
                        base=base,
                        # Adapters of one base share an engine, and so do models in this process.
                        engine=engine if shared or not index else runtime.new_engine(),
                        runtime=runtime,
                        weights=path / "weights",
                    )
                    for index, (name, short) in enumerate(names.items())
                ]
                trainer = Trainer(config, folder, runtime, planner, policies, chat, log=log)
                trainer.run(on_step=on_step, progress=progress)
            return _result(folder, names, was_complete=False)
        except (RuntimeError, MemoryError) as error:
            alarm = alarms.of_error(error)
            if alarm is None:
                raise
            raise TrainingError(str(alarm)) from error
        finally:
            folder.close()


@dataclass(frozen=True)
class _Done:
    """What learning from a batch gave."""

    gained: Credit
    learned: dict[str, Learned]
    dropped: int


@dataclass
class _Times:
    """When a step did what, in seconds of the clock."""

    began: float
    came: float
    "Its batch was there."
    ended: float = 0.0
    "It had learned."
    handed: float = 0.0
    "Its weights were there."
    wrote: float = 0.0
    "How long the weights were being written."


class Trainer:
    """One run in progress. `train` is the way in.

    Args:
        config: the settings.
        folder: of the run; its checkpoint, if any, is taken up.
        runtime: where episodes are played.
        planner: of the episodes.
        policies: what is trained, as it is at the start.
        chat: the models' chat format.
        log: called with the metrics of each step, beside metrics.jsonl.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        runtime: Runtime,
        planner: Planner,
        policies: Sequence[TrainedPolicy],
        chat: ChatFormat,
        *,
        log: Callable[[Row], object],
    ) -> None:
        self.config = config
        self.folder = folder
        self.runtime = runtime
        self.planner = planner
        self.policies = policies
        self.learners = {policy.name: policy.learner for policy in policies}
        self._log = log
        self._watch = alarms.Watch(folder.rows())
        self.baselines = Baselines(config.baseline_decay, bias_correction=config.bias_correction)
        self.rollouts = Rollouts(runtime, config, self._take)
        self._started = self.step = 0  # batches that were started, and steps that were learned
        self._saved = 0
        self._consistent = True  # weights, baselines and logs are all those after `step` steps
        if folder.checkpoint is not None:
            self._restore(folder.checkpoint)
        self._begin(chat)

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
                        on_step(row, self.learners)
                    if self.step % config.checkpoint_every == 0 or self.step == config.num_steps:
                        self.save()
            except BaseException:  # whatever ends the run, and nothing is passed over: finished steps are kept
                if self._consistent and self.step > self._saved:
                    self.save()
                raise
        self._write_final()

    def _begin(self, chat: ChatFormat) -> None:
        """Brings engines and rollouts to where the next step wants them."""
        in_flight = self._in_flight()  # in a run that goes on: batches that were being played with older weights
        self._write_weights()
        self.rollouts.serve(self.rollouts.version_for(self.step) if in_flight else self.step)
        for policy in self.policies:
            policy.serve(chat)
        self.runtime.run(self.planner.prepare())
        self.probes = [chat.render(messages) for messages in self.planner.probe_messages()]
        for step in in_flight:
            self._start(step)
        self.rollouts.serve(self.step)
        self._check_parity()

    def _one_step(self) -> Row:
        began = time.perf_counter()
        self._start_until(self.step + self.config.max_staleness)
        played = self.rollouts.result(self.step)
        if self.step == 0:
            self.planner.warn_of_idle_names(played.traces)
        self.runtime.run(self.runtime.sleep())
        if self.config.keep_traces and self.step % self.config.keep_traces == 0:
            self.folder.keep(played.traces)  # before the weights move: if the disk refuses, the step is played again
        times = _Times(began=began, came=time.perf_counter())
        done: _Done | None = None
        gap: float | None = None
        row: Row = {}
        try:
            with held():
                done = self._learn(played.traces)
                times.ended = time.perf_counter()
            if self.step < self.config.num_steps:
                gap, times.wrote = self._hand_over()
        finally:
            if done is not None:  # the step is done even if its weights can't be published
                times.handed = time.perf_counter()
                with held():
                    row = self._closed(played, done, gap, times)
        return row

    def _closed(self, played: Played, done: _Done, gap: float | None, times: _Times) -> Row:
        """Logs a step, and returns its metrics."""
        config, traces = self.config, played.traces
        age, oldest = staleness(traces, self.step - 1)
        learning, step_seconds = times.ended - times.came, times.handed - times.began
        row: Row = {"step": self.step}
        row |= metrics.of_traces(traces, learner_seats, done.gained, ignore_truncated=config.ignore_truncated)
        row |= numbers(done.learned, lr=config.lr_at(self.step - 1), clips=config.loss != "reinforce", fresh=not oldest)
        row |= {
            "staleness": age,
            "staleness_max": oldest,
            "stale_tokens_dropped": done.dropped,
            "rollout_seconds": played.seconds,
            "learn_seconds": learning,
            "sync_seconds": times.handed - times.ended,
            "step_seconds": step_seconds,
            "overlap": overlap(played.seconds, learning + times.wrote, step_seconds),
            "tokens_per_second": row["sampled_tokens"] / step_seconds,
        }
        if gap is not None:
            row["probe_gap"] = gap
        row |= self._watch.look(row)
        self.folder.log(row)
        self._consistent = True
        self._log(row)
        return row

    def _learn(self, traces: Sequence[Trace]) -> _Done:
        """Makes one step of every policy. An ArenaError of the first that trains leaves everything as it was before."""
        config = self.config
        before = self.baselines.state()
        self._consistent = False
        learned: dict[str, Learned] = {}
        try:
            gained = credit.assign(
                traces,
                by=config.credit,
                estimator=config.estimator,
                baselines=self.baselines,
                learners=learner_seats,
                group_reward=self.planner.env.group_reward,
                peers=self.planner.env.peers,
                token_rewards=self.planner.token_rewards,
            )
            dropped = mask_stale(traces, gained, self.step - config.max_staleness)
            for policy in self.policies:
                seats = self.planner.trained_seats(policy.name)
                learned[policy.folder_name] = policy.learn(traces, gained, step=self.step, seats=seats)
        except BaseException:  # also a second Ctrl-C and a full memory
            self.baselines.load(before)
            moved = any(one.stats.updates for one in learned.values())
            moved |= any(learner.is_moving for learner in self.learners.values())
            self._consistent = not moved and all(learner.is_finite for learner in self.learners.values())
            raise
        self.step += 1
        return _Done(gained, learned, dropped)

    def _hand_over(self) -> tuple[float | None, float]:
        """Brings the new weights to the engines, or to where they take them.

        Returns:
            The gap between learners and engines, if this is a step at which they are compared, and the seconds for
            which the weights were being written.
        """
        began = time.perf_counter()
        self._write_weights()
        wrote = time.perf_counter() - began
        compared = self.step % self.config.probe_every == 0
        if compared or not self.config.max_staleness:
            self.rollouts.serve(self.step)
        gap = self._check_parity() if compared else None
        if self.config.max_staleness:
            self._start_until(self.step + self.config.max_staleness)
        return gap, wrote

    def _start_until(self, last: int) -> None:
        """Starts the batches up to that of step `last`, whose weights are there."""
        for step in range(self._started, min(last + 1, self.config.num_steps)):
            self._start(step)

    def _start(self, step: int) -> None:
        self.rollouts.start(step, self.planner.plans(step))
        self._started = step + 1

    def _in_flight(self) -> list[int]:
        """Returns the steps to come whose batches are sampled with older weights than those of now."""
        ahead = range(self.step, min(self.step + self.config.max_staleness, self.config.num_steps))
        return [step for step in ahead if self.rollouts.version_for(step) < self.step]

    def _write_weights(self) -> None:
        for policy in self.policies:
            policy.publisher.write(self.step)

    async def _take(self, version: int) -> None:
        for policy in self.policies:
            await policy.publisher.take(version)

    def save(self) -> None:
        """Writes a checkpoint of the steps done so far.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        checkpoint.save(
            self.folder.path / "checkpoints",
            self.step,
            {name: tensors for policy in self.policies for name, tensors in policy.state().items()},
            {"baselines": self.baselines.state(), "sizes": self.folder.sizes()},
            older={
                self._older_name(policy, version): policy.publisher.folder(version)
                for policy in self.policies
                for version in self._older_versions()
            },
        )
        self._saved = self.step

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        tensors = saved.tensors()
        for policy in self.policies:
            policy.load_state(tensors)
        self.baselines.load(saved.state["baselines"])
        self._started = self.step = self._saved = saved.step
        for policy in self.policies:
            for version in self._older_versions():
                policy.publisher.adopt(version, saved.older(self._older_name(policy, version)))

    def _older_versions(self) -> list[int]:
        return sorted({self.rollouts.version_for(step) for step in self._in_flight()})

    def _older_name(self, policy: TrainedPolicy, version: int) -> str:
        return f"{policy.folder_name or LEARNER}-{version:08d}"

    def _check_parity(self) -> float:
        return max(policy.check(self.probes, self.step) for policy in self.policies)

    def _write_final(self) -> None:
        def write(final: Path, save: Callable[[TrainedPolicy, Path], None], what: str) -> None:
            def fill(aside: Path) -> None:
                for policy in self.policies:
                    directory = aside / policy.folder_name
                    directory.mkdir(exist_ok=True)
                    save(policy, directory)

            write_whole(final, fill, what=what, durable=True)

        if self.config.lora_rank:  # first: `final` is what says that the run is complete
            write(self.folder.path / "adapter", TrainedPolicy.save_adapter, "the adapter")
        write(self.folder.final, TrainedPolicy.save, "the final model")
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


def _result(folder: RunFolder, names: Mapping[str, str], *, was_complete: bool) -> TrainResult:
    rows = folder.rows()
    return TrainResult(
        run_dir=folder.path,
        final_dir=folder.final,
        models={policy: folder.final / name for policy, name in names.items()},
        steps=len(rows),
        rows=rows,
        max_logprob_gap=max((row.get("max_logprob_gap", 0.0) for row in rows), default=0.0),
        was_complete=was_complete,
    )
