"""Both roles of doctor-patient-v0, learned jointly or one at a time, then in cross-play; see `learning.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from learning_kuhn import RESULTS

from llm_arena.boards.cross_play import cross_play
from llm_arena.boards.manifest import write_whole
from llm_arena.engines.choose import chosen
from llm_arena.engines.settings import EngineKind, EngineSettings
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import train
from llm_arena.training.metrics import Row
from llm_arena.types import EnvSpec

Schedule = Literal["joint", "pve"]
ENV = "doctor-patient-v0"
ARGS: dict[str, Any] = {
    **{"max_questions": 1, "max_tests": 0, "names": "open"},
    **{"retries": 0, "illegal": "penalty", "penalty": -0.3},
}
"""Short visits: one question, no tests. The conditions are not listed, which spares a prompt of 400 tokens. A bad
reply costs 0.3 and a question, but does not end the visit: nine in ten of the initial model's are bad as a doctor, and
if each forfeited the game, all visits would earn the same, and nothing could be learned from them."""
CONDITIONS = ["asthma", "common cold", "depression", "gout", "migraine", "pneumonia"]
"""Few and common, for a model of 135M parameters and some 20 steps."""
PARTNERS = {"doctor": {"patient": "faithful"}, "patient": {"doctor": "bayes"}}
"""Who holds the other role while one is trained alone. Scripted, for the initial model as a doctor hardly asks a
patient anything."""
MAX_NEW_TOKENS, TEMPERATURE = 24, 0.7


@dataclass(frozen=True, kw_only=True)
class _Common:
    """What training and cross-play share."""

    seed: int = 0
    """Seed of cases and sampling."""
    model: str = "smollm2-135m"
    """The initial model."""
    engine: EngineKind = "auto"
    """What samples: vLLM where it is installed."""
    runs: Path = Path("runs/learning")
    """Where runs are kept, to go on with."""

    def folder(self, name: str) -> Path:
        """Returns the folder of a run: `joint`, `pve-doctor` or `pve-patient`."""
        return self.runs / f"roles-{name}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Roles(_Common):
    """Trains both roles of doctor-patient-v0.

    joint: one model holds both seats and learns from both, as in self-play. (Two models would be two engines, and twice
    the memory.) pve: two runs, in each of which one role learns and a scripted partner has the other.
    """

    schedule: Schedule = "joint"
    """Both roles at once, or one role at a time."""
    steps: int = 20
    """Steps of a run."""
    starts: int = 12
    """Visits per step."""

    def config(self, name: str) -> TrainConfig:
        """Returns the settings of a run, by the name of its folder."""
        return TrainConfig(
            env=ENV,
            env_args=json.dumps(ARGS),
            model=self.model,
            roster=json.dumps(PARTNERS.get(name.removeprefix("pve-"), {})),
            starts=str(self._starts()),
            num_steps=self.steps,
            starts_per_step=self.starts,
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=TEMPERATURE,
            lr=2e-5,
            engine=EngineSettings(kind=self.engine),
            seed=self.seed,
            checkpoint_every=5,
            run_dir=str(self.folder(name)),
        )

    def run(self) -> dict[str, Any]:
        """Trains, or goes on, and returns what each role earned.

        Raises:
            TrainingError: a folder holds a run with other settings, or a run can't go on.
        """
        names = ["joint"] if self.schedule == "joint" else ["pve-doctor", "pve-patient"]
        found: dict[str, Any] = {"schedule": self.schedule, "seed": self.seed}
        for name in names:
            rows = train(self.config(name), script="learning").rows
            found[name] = {
                "seconds": round(sum(row["step_seconds"] for row in rows), 1),
                "first_steps": earned(rows[:3]),
                "last_steps": earned(rows[-3:]),
                "final": str(self.folder(name) / "final"),
            }
        return found

    def _starts(self) -> Path:
        path = self.runs / "conditions.jsonl"
        self.runs.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{json.dumps({'prompt': name})}\n" for name in CONDITIONS))
        return path


@dataclass(frozen=True, kw_only=True)
class Cross(_Common):
    """Lets all that `roles` trained meet in each role, with the initial model and scripted players."""

    episodes: int = 60
    """Visits of each cell, on cases that were held out of the training."""
    results: Path = RESULTS
    """Where the table is written, as roles-SEED.json and roles-SEED.md."""

    def run(self) -> dict[str, Any]:
        """Plays, or goes on, and returns the differences.

        Raises:
            UsageError: a run of `roles` is missing or not complete.
        """
        trained = {name: self.folder(name) / "final" for name in ("joint", "pve-doctor", "pve-patient")}
        for name, final in trained.items():
            if not final.is_dir():
                schedule = name.partition("-")[0]
                raise UsageError(f"{final} is missing; run: learning.py roles --schedule {schedule} --seed {self.seed}")
        models = {"initial": self.model, **{name: str(final) for name, final in trained.items()}}
        found = cross_play(
            {**models, "bayes": "bayes", "faithful": "faithful"},
            EnvSpec(id=ENV, kwargs={**ARGS, "split": "heldout"}),
            roles={
                "doctor": ["joint", "pve-doctor", "initial", "bayes"],
                "patient": ["joint", "pve-patient", "initial", "faithful"],
            },
            starts=[{"condition": name} for name in CONDITIONS],
            episodes=self.episodes,
            seed=self.seed,
            folder=self.folder("cross"),
            engine=chosen(EngineSettings(kind=self.engine)),
            show_progress=True,
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=TEMPERATURE,
        )
        self.results.mkdir(parents=True, exist_ok=True)
        write_whole(self.results / f"roles-{self.seed}.json", json.dumps(found.to_json(), indent=1) + "\n")
        write_whole(self.results / f"roles-{self.seed}.md", found.to_markdown())
        print(found.to_text())
        gaps = [gap for gap in found.differences() if gap.against is None]
        return {
            "matches": found.played,
            "differences": {f"{gap.side} {gap.first} - {gap.second}": round(gap.mean, 3) for gap in gaps},
            "sure": [f"{gap.side} {gap.first} - {gap.second}" for gap in gaps if gap.sure],
            "table": str(self.results / f"roles-{self.seed}.md"),
        }


def earned(rows: list[Row]) -> dict[str, float]:
    """Returns the mean reward of each role that has one in these steps."""
    names = sorted({name for row in rows for name in row if name.startswith("reward/avg/")})
    return {name.removeprefix("reward/avg/"): round(sum(row[name] for row in rows) / len(rows), 3) for name in names}
