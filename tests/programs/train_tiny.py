"""A short training run of a tiny model, for tests that kill it.

`train_tiny.py MODEL RUN_DIR POINT [KIND]` trains and kills itself (SIGKILL) at POINT: rollout, step, save, publish,
version (a past version of a league was written), none.

`train_tiny.py MODEL FOLDER moments COUNT SEED KIND` trains once without a break, then COUNT times with a kill at a
random moment and a second start; it prints one line of JSON with the largest difference of each run's final weights,
and whether baselines and metrics are equal. KIND is plain, ahead (batches are played ahead), two (policies), both, or
league (played ahead).
Runs are forked, so that each costs little.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from llm_arena.tokens import ChatFormat
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.league_settings import LeagueSettings
from llm_arena.training.learner import Learner
from llm_arena.training.loop import TrainResult, train
from llm_arena.training.mfu import Meter


def config(model: str, run_dir: str, **changes: Any) -> TrainConfig:
    """Settings that use all that a checkpoint has to hold: running baselines, anchor, schedules, momentum."""
    settings: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "model": model,
        "run_dir": run_dir,
        "num_steps": 6,
        "starts_per_step": 6,
        "max_new_tokens": 2,
        "lr": 1e-2,
        "lr_end": 1e-3,
        "warmup_steps": 2,
        "weight_decay": 0.01,
        "kl_weight": 0.5,
        "ema_decay": 0.8,
        "entropy_weight": 0.1,
        "entropy_weight_end": 0.05,
        "checkpoint_every": 2,
        "illegal": "random_legal",
    }
    return TrainConfig(**settings | changes)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ahead": {"max_staleness": 1},
    "two": {"roster": '{"player_0": "learner:a", "player_1": "learner:b"}'},
}
KINDS["both"] = KINDS["ahead"] | KINDS["two"]
KINDS["league"] = KINDS["ahead"] | {
    "league": LeagueSettings(
        self_play=0.2, past=0.5, anchors_share=0.3, anchors="random-legal", snapshot_every=1, keep=2, min_games=1
    )
}


def run(model: str, run_dir: str, **changes: Any) -> TrainResult:
    """Trains, or goes on."""
    return train(config(model, run_dir, **changes), script="tiny", progress=False)


def die() -> None:
    """Ends this process as `kill -9` would."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Has the fourth step (the second save) of this process end it."""
    calls = 0

    def after(owner: Any, name: str, count: int) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            result = original(*args, **kwargs)
            calls += 1
            if calls == count:
                die()
            return result

        setattr(owner, name, wrapped)

    if point == "rollout":
        from llm_arena.engines.transformers_engine import TransformersEngine

        after(TransformersEngine, "_sample", 12)
    elif point == "step":
        after(Learner, "accumulate", 4)
    elif point == "save":
        after(checkpoint, "save_file", 5)  # the second file of the second checkpoint
    elif point == "publish":
        from llm_arena.training.sync import Publisher

        after(Publisher, "write", 4)
    elif point == "version":
        from llm_arena.training.policies import TrainedPolicy

        after(TrainedPolicy, "keep_version", 3)


def apart(left: Path, right: Path) -> float:
    """Returns the largest difference of the weights of two models, or of the models in two folders."""
    files = [[file.relative_to(side) for file in sorted(side.rglob("model.safetensors"))] for side in (left, right)]
    assert files[0] == files[1] != []
    differences = []
    for file in files[0]:
        one, other = load_file(left / file), load_file(right / file)
        assert one.keys() == other.keys()
        differences += [float((one[name] - other[name]).abs().max()) for name in one]
    return max(differences)


def timeless(run_dir: Path) -> list[dict[str, float]]:
    """Returns the metrics of a run without what hangs on a clock."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    clocked = ("second", "overlap", "mfu", "alarm")
    return [{key: value for key, value in row.items() if not any(word in key for word in clocked)} for row in rows]


def baselines(run_dir: Path) -> Any:
    """Returns the running baselines of the newest checkpoint."""
    newest = checkpoint.newest(run_dir / "checkpoints")
    assert newest is not None
    return newest.state["baselines"]


def forked(model: str, run_dir: Path, kill_after: float | None, kind: str) -> bool:
    """Trains in a child; returns whether the child was killed after `kill_after` seconds."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            run(model, str(run_dir), checkpoint_every=1, **KINDS[kind])
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    if not killed and os.waitstatus_to_exitcode(status):
        raise SystemExit(f"the run in {run_dir} failed")
    return killed


def moments(model: str, folder: Path, count: int, seed: int, kind: str) -> None:
    """Kills runs at random moments and compares what they come to with the unbroken run."""
    rng = random.Random(seed)
    # Imports happen before the forks, so that most of a run's time, and of the moments, is training.
    Meter(Learner.load(Path(model)))
    ChatFormat.load(Path(model))
    unbroken = folder / "unbroken"
    began = time.monotonic()
    forked(model, unbroken, None, kind)
    seconds = time.monotonic() - began
    runs = []
    for index in range(count):
        run_dir, moment = folder / f"run{index}", rng.uniform(0, seconds)
        killed = forked(model, run_dir, moment, kind)
        done = checkpoint.newest(run_dir / "checkpoints")
        forked(model, run_dir, None, kind)
        found = {
            "kind": kind,
            "seconds": moment,
            "killed": killed,
            "step": done.step if done else 0,
            "difference": apart(run_dir / "final", unbroken / "final"),
            "baselines_equal": baselines(run_dir) == baselines(unbroken),
            "rows_equal": timeless(run_dir) == timeless(unbroken),
        }
        runs.append(found)
        shutil.rmtree(run_dir)
    print(json.dumps({"seconds_unbroken": seconds, "runs": runs}))


if __name__ == "__main__":
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    if sys.argv[3] == "moments":
        moments(sys.argv[1], Path(sys.argv[2]), int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
    else:
        arm(sys.argv[3])
        run(sys.argv[1], sys.argv[2], **KINDS[sys.argv[4] if len(sys.argv) > 4 else "plain"])
