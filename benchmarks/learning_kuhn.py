"""Kuhn poker with four ways of self-play; `learning.py` is the program."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import torch
from kuhn_exploitability import DEFAULTS, vocabulary

from llm_arena.boards.manifest import write_whole
from llm_arena.errors import UsageError
from llm_arena.game_tree import Tree
from llm_arena.models import random_model
from llm_arena.tokens import ChatFormat
from llm_arena.training.action_chances import action_chances, prompts_of
from llm_arena.training.config import TrainConfig
from llm_arena.training.league_settings import LeagueSettings
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.metrics import Row

Variant = Literal["plain", "kl", "past", "anchors"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
RESULTS = Path(__file__).parent / "results" / "learning"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its settings, and exploitability by step. A result file holds the one as a line of JSON."""

    variant: Variant
    seed: int
    steps: int
    games_per_step: int
    seconds: float
    "Steps times the median step's seconds, on the machine as it was; the rest of a run is not counted."
    illegal_last: float
    "Share of illegal replies in the last step."
    points: list[tuple[int, float]]
    "(steps done, exploitability in chips), from 0 on."

    @property
    def best(self) -> float:
        """The lowest exploitability of the run."""
        return min(gap for _, gap in self.points)

    @property
    def last(self) -> float:
        """The exploitability after the last step."""
        return self.points[-1][1]

    @property
    def worst(self) -> float:
        """The highest exploitability of the last quarter."""
        return max(gap for step, gap in self.points if step > 0.75 * self.steps)


@dataclass(frozen=True, kw_only=True)
class Kuhn:
    """Trains one variant on Kuhn poker and keeps its curve."""

    variant: Variant = "kl"
    """What keeps self-play from going in circles."""
    seed: int = 0
    """Seed of the initial weights, the deals and the sampling."""
    steps: int = 1500
    """Steps of the run."""
    games: int = 256
    """Games per step."""
    every: int = 20
    """Steps between evaluations."""
    runs: Path = Path("runs/learning")
    """Where runs are kept, to go on with."""
    results: Path = RESULTS
    """Where the curve is written at the end."""

    @property
    def folder(self) -> Path:
        """Of this run: model/, run/ and curve.json."""
        return self.runs / f"kuhn-{self.variant}-{self.seed}"

    def config(self, base: Path) -> TrainConfig:
        """Returns the settings of the training.

        Args:
            base: the initial model.
        """
        own: dict[Variant, dict[str, Any]] = {
            "plain": {"kl_weight": 0.0},
            "kl": {},
            "past": {
                "kl_weight": 0.0,
                "league": LeagueSettings(self_play=0.5, past=0.5, snapshot_every=20, keep=20),
            },
            # Such as a user has also in a game that nobody has solved. The game's own `optimal` is an equilibrium, and
            # would give the answer away. (The initial model is a weak one: it hardly ever says a legal action.)
            "anchors": {
                "kl_weight": 0.0,
                "league": LeagueSettings(
                    self_play=0.6,
                    past=0.2,
                    anchors_share=0.2,
                    anchors=f"random-legal,{base}",
                    snapshot_every=20,
                    keep=20,
                ),
            },
        }
        return replace(
            DEFAULTS,
            model=str(base),
            seed=self.seed,
            num_steps=self.steps,
            starts_per_step=self.games,
            max_open_episodes=self.games,
            checkpoint_every=5 * self.every,
            run_dir=str(self.folder / "run"),
            **own[self.variant],
        )

    def run(self) -> dict[str, Any]:
        """Trains, or goes on, and returns the figures.

        Raises:
            UsageError: a number is below 1.
            TrainingError: the folder holds a run with other settings, or the run can't go on.
        """
        for name in ("steps", "games", "every"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        torch.set_num_threads(1)  # the model is too small for two
        base = self.folder / "model"
        if not (base / "model.safetensors").exists():
            random_model(base, words=vocabulary(), seed=self.seed, initializer_range=64**-0.5)
        chat, tree = ChatFormat.load(base), Tree("kuhn-poker-v0")
        prompts = prompts_of(tree, chat, ends=False)  # a reply is one token, and the cap cuts it there
        kept = self.folder / "curve.jsonl"
        points = read_points(kept)

        def take(step: int, learner: Learner) -> None:
            # After a kill some steps are made again, with the same result.
            points[step] = round(tree.exploitability(action_chances(learner.model, tree, chat, prompts, ends=False)), 6)
            write_whole(kept, "".join(f"{json.dumps([step, gap])}\n" for step, gap in sorted(points.items())))

        def on_step(row: Row, learners: Mapping[str, Learner]) -> None:
            [learner] = learners.values()
            step = int(row["step"])
            if step % self.every == 0 or step == self.steps:
                take(step, learner)

        if 0 not in points:
            take(0, Learner.load(base))
        rows = train(self.config(base), script="learning", on_step=on_step).rows
        curve = Curve(
            variant=self.variant,
            seed=self.seed,
            steps=self.steps,
            games_per_step=self.games,
            seconds=round(self.steps * statistics.median(row["step_seconds"] for row in rows), 1),
            illegal_last=round(rows[-1]["reply/illegal/player"], 4),
            points=sorted(points.items()),
        )
        self.results.mkdir(parents=True, exist_ok=True)
        path = self.results / f"kuhn-{self.variant}-{self.seed}.jsonl"
        write_whole(path, msgspec.json.encode(curve).decode() + "\n")
        return {
            "variant": self.variant,
            "seed": self.seed,
            "best": curve.best,
            "last": curve.last,
            "worst_of_last_quarter": curve.worst,
            "illegal_last": curve.illegal_last,
            "steps": self.steps,
            "games_per_step": self.games,
            "seconds": curve.seconds,
            "curve": str(path),
        }


def read_points(path: Path) -> dict[int, float]:
    """Returns the curve of a run that was stopped; nothing of one that has not begun."""
    if not path.exists():
        return {}
    return dict(msgspec.json.decode(line, type=tuple[int, float]) for line in path.read_text().splitlines())


def read_curves(folder: Path) -> list[Curve]:
    """Returns the curves of all runs in a folder of results, by variant in the order of `Variant`, then by seed.

    Raises:
        UsageError: there is none, one can't be read, or they are of different length or games per step.
    """
    curves = []
    for path in sorted(folder.glob("kuhn-*.jsonl")):
        try:
            curves.append(msgspec.json.decode(path.read_bytes(), type=Curve))
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} holds no curve ({error}); delete it and run its command again") from error
    lengths = {(curve.steps, curve.games_per_step) for curve in curves}
    if len(lengths) != 1:
        found = ", ".join(f"{steps} steps of {games} games" for steps, games in sorted(lengths))
        raise UsageError(
            f"{folder} has runs of {found}, which can't be compared; make all alike"
            if curves
            else f"{folder} has no kuhn-*.jsonl; run `learning.py kuhn` first"
        )
    return sorted(curves, key=lambda curve: (VARIANTS.index(curve.variant), curve.seed))
