"""One run in progress, step by step: play, credit, learn, hand the new weights over, log, save."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_arena.runtime import Runtime
from llm_arena.training import alarms, checkpoint, credit, metrics
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, Credit
from llm_arena.training.evaluation import Evaluation
from llm_arena.training.league_run import LeagueRun
from llm_arena.training.learner import Learner
from llm_arena.training.metrics import Row
from llm_arena.training.planning import Planner, learner_seats
from llm_arena.training.policies import Learned, TrainedPolicy, numbers
from llm_arena.training.progress import Progress
from llm_arena.training.rollouts import Played, Rollouts, overlap
from llm_arena.training.run_folder import RunFolder
from llm_arena.training.signals import held
from llm_arena.training.staleness import mask_idle, mask_stale, staleness
from llm_arena.training.whole_folder import write_whole
from llm_arena.types import Trace

OnStep = Callable[[Row, Mapping[str, Learner]], object]
Save = Callable[[TrainedPolicy, Path], None]


@dataclass(frozen=True)
class _Done:
    """What learning from a batch gave."""

    gained: Credit
    learned: dict[str, Learned]
    dropped: int
    met: Row
    "What came of a league's games."


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
    """One run in progress; `loop.train` is the way in.

    Args:
        config: the settings.
        folder: of the run; its checkpoint, if any, is taken up.
        runtime: where episodes are played.
        planner: of the episodes.
        policies: what is trained, as it is at the start.
        evaluation: meets the initial model.
        log: called with the metrics of each step, beside metrics.jsonl.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        runtime: Runtime,
        planner: Planner,
        policies: Sequence[TrainedPolicy],
        *,
        evaluation: Evaluation,
        log: Callable[[Row], object],
    ) -> None:
        self.config = config
        self.folder = folder
        self.runtime = runtime
        self.planner = planner
        self.policies = policies
        self.learners = {policy.name: policy.learner for policy in policies}
        self.evaluation = evaluation
        self.league: LeagueRun | None = None
        if planner.league is not None:
            self.league = LeagueRun(
                planner.league,
                policies[0],
                runtime,
                folder.path,
                steps=config.num_steps,
                officials=planner.env.officials,
            )
        self._log = log
        self._watch = alarms.Watch(folder.rows())
        self.baselines = Baselines(config.baseline_decay, bias_correction=config.bias_correction)
        self.rollouts = Rollouts(runtime, config, self._take)
        self._started = self.step = 0  # batches that were started, and steps that were learned
        self._saved = 0
        self._consistent = True  # weights, baselines and logs are all those after `step` steps
        if folder.checkpoint is not None:
            self._restore(folder.checkpoint)
        self._begin()

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

    def _begin(self) -> None:
        """Brings engines and rollouts to where the next step wants them."""
        in_flight = self._in_flight()  # in a run that goes on: batches that were being played with older weights
        self._write_weights()
        self.rollouts.serve(self.rollouts.version_for(self.step) if in_flight else self.step)
        for policy in self.policies:
            policy.serve()
            if self.config.evaluation.every:
                self.runtime.run(policy.serve_initial())
        if self.league is not None:
            self.league.bring(self.step)
        self.runtime.run(self.planner.prepare())
        self.probes = self.planner.probe_messages()
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
        handed: Row = {}
        row: Row = {}
        try:
            with held():
                done = self._learn(played.traces)
                times.ended = time.perf_counter()
            if self.step < self.config.num_steps or self.evaluation.due(self.step):
                self._hand_over(handed, times)
        finally:
            if done is not None:  # the step is done even if its weights can't be published
                times.handed = time.perf_counter()
                with held():
                    row = self._closed(played, done, handed, times)
        return row

    def _closed(self, played: Played, done: _Done, handed: Row, times: _Times) -> Row:
        """Logs a step, and returns its metrics."""
        config, traces = self.config, played.traces
        ages = {policy.name: policy.age for policy in self.policies}
        age, oldest = staleness(traces, self.step - 1, lambda name, version: ages[name](version, self.step - 1))
        learning, step_seconds = times.ended - times.came, times.handed - times.began
        row: Row = {"step": self.step}
        row |= metrics.of_traces(traces, learner_seats, done.gained, ignore_truncated=config.ignore_truncated)
        row |= numbers(done.learned, clips=config.loss != "reinforce", fresh=not oldest)
        if config.alternate_every:
            row |= {f"learns/{policy.folder_name}": float(policy.learns(self.step - 1)) for policy in self.policies}
        row |= {
            "staleness": age,
            "staleness_max": oldest,
            "stale_tokens_dropped": done.dropped,
            "rollout_seconds": played.seconds,
            "learn_seconds": learning,
            "sync_seconds": times.handed - times.ended - handed.get("eval/seconds", 0.0),
            "step_seconds": step_seconds,
            "overlap": overlap(played.seconds, learning + times.wrote, step_seconds),
            "tokens_per_second": row["sampled_tokens"] / step_seconds,
        }
        row |= done.met | handed
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
            dropped = 0
            for policy in self.policies:
                dropped += mask_stale(traces, gained, policy.version(self.step - config.max_staleness), policy.name)
                if not policy.learns(self.step):
                    mask_idle(traces, gained, policy.name)
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
        met = self.league.count(self.step - 1, traces) if self.league is not None else {}
        return _Done(gained, learned, dropped, met)

    def _hand_over(self, row: Row, times: _Times) -> None:
        """Brings the new weights to the engines, or to where they take them, and looks at them there.

        Args:
            row: gets the gap between learners and engines and what an evaluation found, in steps that have them.
            times: gets the seconds for which the weights were being written.
        """
        began = time.perf_counter()
        self._write_weights()
        times.wrote = time.perf_counter() - began
        goes_on = self.step < self.config.num_steps
        compared = goes_on and self.step % self.config.probe_every == 0
        evaluated = self.evaluation.due(self.step)
        if compared or evaluated or not self.config.max_staleness:
            self.rollouts.serve(self.step)
        if compared:
            row["probe_gap"] = self._check_parity()
        if goes_on and self.league is not None:
            self.league.bring(self.step)
        if evaluated:
            began = time.perf_counter()
            row |= self.evaluation.run(self.step)
            row["eval/seconds"] = time.perf_counter() - began
        if self.config.max_staleness:
            self._start_until(self.step + self.config.max_staleness)

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
            policy.write(self.step)

    async def _take(self, version: int) -> None:
        for policy in self.policies:
            await policy.take(version)

    def save(self) -> None:
        """Writes a checkpoint of the steps done so far.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        checkpoint.save(
            self.folder.path / "checkpoints",
            self.step,
            {name: tensors for policy in self.policies for name, tensors in policy.state().items()},
            {"baselines": self.baselines.state(), "sizes": self.folder.sizes()}
            | (self.league.state() if self.league is not None else {}),
            older={
                name: folder
                for policy in self.policies
                for name, folder in policy.older(self._older_versions()).items()
            },
        )
        self._saved = self.step
        if self.league is not None:
            self.league.tidy()

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        tensors = saved.tensors()
        for policy in self.policies:
            policy.load_state(tensors)
        self.baselines.load(saved.state["baselines"])
        if self.league is not None:
            self.league.load(saved.state)
        self._started = self.step = self._saved = saved.step
        for policy in self.policies:
            policy.adopt(self._older_versions(), saved.older)

    def _older_versions(self) -> list[int]:
        return sorted({self.rollouts.version_for(step) for step in self._in_flight()})

    def _check_parity(self) -> float:
        return max(policy.check(self.probes, self.step) for policy in self.policies)

    def _write_final(self) -> None:
        def write(final: Path, policies: Sequence[TrainedPolicy], save: Save, what: str) -> None:
            def fill(aside: Path) -> None:
                for policy in policies:
                    directory = aside / policy.folder_name
                    directory.mkdir(exist_ok=True)
                    save(policy, directory)

            write_whole(final, fill, what=what, durable=True)

        adapted = [policy for policy in self.policies if policy.learner.is_lora]
        if adapted:  # first: `final` is what says that the run is complete
            write(self.folder.path / "adapter", adapted, TrainedPolicy.save_adapter, "the adapter")
        write(self.folder.final, self.policies, TrainedPolicy.save, "the final model")
        shutil.rmtree(self.folder.path / "weights", ignore_errors=True)
