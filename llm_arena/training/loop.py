"""The training run: starts -> episodes -> credit -> batch -> optimizer step -> new weights to the engine.

Everything up to the trace is what playing and ranking use as well. A step plays with the newest weights, or with those
of `max_staleness` steps before (see `rollouts`), and its plan depends on the settings and the step number alone. So the
same command goes on after a kill and ends with the weights of an unbroken run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from llm_arena.engines.choose import words
from llm_arena.errors import TrainingError
from llm_arena.runtime import Runtime
from llm_arena.training import alarms
from llm_arena.training.config import TrainConfig
from llm_arena.training.evaluation import Evaluation
from llm_arena.training.metrics import Row
from llm_arena.training.placement import shares_gpu
from llm_arena.training.planning import Planner, Roster
from llm_arena.training.run_folder import RunFolder
from llm_arena.training.run_identity import fingerprint
from llm_arena.training.setup import record, set_up, start_source, with_chosen_engine
from llm_arena.training.sources import StartSource
from llm_arena.training.tracking import tracker
from llm_arena.training.trainer import OnStep, Trainer


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
    config = with_chosen_engine(config)
    source = start_source(config) if source is None else source
    sleeps = shares_gpu(config)
    with Runtime(engine=config.engine, max_open_episodes=config.max_open_episodes, sleeps=sleeps) as runtime:
        # Before there is a folder: mistakes in the settings leave nothing behind.
        planner = Planner(config, roster, source, runtime)
        evaluation = Evaluation(config.evaluation, config, runtime, roster=roster)
        setup = set_up(config, planner, runtime)
        engines = setup.make_engines(runtime, config.max_open_episodes)
        settings = record(config, script, roster, source)
        path = Path(config.run_dir) if config.run_dir else Path("runs") / f"{script}-{fingerprint(settings)}"
        folder = RunFolder(path, settings, fresh=config.fresh)
        try:
            if folder.complete:
                print(f"the run in {path} is complete ({config.num_steps} steps); --fresh trains anew", file=sys.stderr)
                return _result(folder, setup.names, was_complete=True)
            if progress and asked.kind != "transformers":
                print(words(asked), file=sys.stderr, flush=True)
            with tracker(config, folder) as log:
                policies = setup.load(runtime, engines, path / "weights")
                trainer = Trainer(config, folder, runtime, planner, policies, evaluation=evaluation, log=log)
                trainer.run(on_step=on_step, progress=progress)
            return _result(folder, setup.names, was_complete=False)
        except (RuntimeError, MemoryError) as error:
            alarm = alarms.of_error(error)
            if alarm is None:
                raise
            raise TrainingError(str(alarm)) from error
        finally:
            folder.close()


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
