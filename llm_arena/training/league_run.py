"""A league in a run: counts its games, keeps the weights of past versions, and has the engine serve them.

A past version is a folder `league/learner@40` of the run, a whole model, or an adapter where the policy is published as
one. It is a frozen policy of that name in the learner's own engine. The bookkeeping comes first and is in the
checkpoint; folders and engines are then brought to what it says, after a step and after a kill alike.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llm_arena.errors import TrainingError
from llm_arena.runtime import Runtime
from llm_arena.training.checkpoint import STATE
from llm_arena.training.league import League
from llm_arena.training.league_ratings import LiveRatings
from llm_arena.training.league_settings import entrant_name
from llm_arena.training.metrics import Row
from llm_arena.training.policies import TrainedPolicy
from llm_arena.types import Json, Trace

RATING_COLUMNS = 8
"""More ratings than these are left out of a step's metrics; `ratings.json` has all."""
ABOUT = "live ratings: they depend on the order of the games; for a ranking make a leaderboard or a cross-play table"


class LeagueRun:
    """The league of a run in progress.

    Args:
        league: its bookkeeping.
        policy: whom it is for.
        runtime: of the policy's engine.
        folder: of the run.
        steps: of the whole run.
        officials: roles that take no part in the contest.

    Raises:
        MissingExtra: openskill is not installed.
    """

    def __init__(
        self,
        league: League,
        policy: TrainedPolicy,
        runtime: Runtime,
        folder: Path,
        *,
        steps: int,
        officials: Collection[str],
    ) -> None:
        self._league = league
        self._policy = policy
        self._runtime = runtime
        self._folder = folder
        self._steps = steps
        self._ratings = LiveRatings(officials=officials)
        self._served: set[str] = set()

    def count(self, step: int, traces: Sequence[Trace]) -> Row:
        """Counts the games of a step that was learned, and takes a version on the list if it is time for one.

        After the last step none is taken: nobody would meet it, and one that was met would go for it.

        Returns:
            The step's metrics; see docs/league.md.
        """
        row = self._league.record(step, traces)
        for trace in traces:
            self._ratings.rate(trace)
        if self._league.due and self._league.step < self._steps:
            self._league.snapshot(self._league.step)
            self._ratings.inherit(self._league.version_name(self._league.step), self._league.policy)
        row["league/versions"] = float(sum(one.step is not None for one in self._league.members))
        there = {self._league.policy, *(entrant_name(one.agent) for one in self._league.members)}
        ratings = [one for one in self._ratings.table() if one.entrant in there]
        if len(ratings) <= RATING_COLUMNS:
            row |= {f"rating/{one.role}/{one.entrant}": one.mu for one in ratings}
        return row

    def bring(self, step: int) -> None:
        """Has the engine serve the versions that may be met from now on, and forget the others.

        Args:
            step: how many steps were made; the weights of now have been written.

        Raises:
            TrainingError: a version's folder is gone, or the disk is full or refuses.
            EngineError: the engine does not take one, or has died.
        """
        needed = self._league.needed()
        for name in sorted(self._served - needed):
            self._runtime.run(self._policy.forget_version(name))
            self._served.remove(name)
        for name in sorted(needed - self._served):
            folder, version = self._folder / "league" / name, int(name.rpartition("@")[2])
            if version == step:  # what a killed process may have left there is the same, but perhaps not from this run
                self._policy.keep_version(version, folder)
            elif not folder.is_dir():
                raise TrainingError(
                    f"the past version {name} is gone from {folder.parent}, and the league still meets it; put it "
                    "back, or start anew with --fresh"
                )
            self._runtime.run(self._policy.serve_version(name, folder, version))
            self._served.add(name)

    def tidy(self) -> None:
        """Deletes folders that no checkpoint of the run names, and writes `ratings.json`; to be called after a save.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        named = self._league.needed()
        for state in (self._folder / "checkpoints").glob(f"step-*/{STATE}"):
            named |= _named(state)
        for folder in (self._folder / "league").glob("*@*"):
            if folder.name.removeprefix(".").removesuffix(".part") not in named:
                shutil.rmtree(folder, ignore_errors=True)
        ratings = [{**msgspec.to_builtins(one), "ordinal": one.ordinal} for one in self._ratings.table()]
        file = self._folder / "ratings.json"
        aside = file.with_suffix(".json.part")
        try:
            aside.write_text(json.dumps({"about": ABOUT, "ratings": ratings}, indent=1), encoding="utf-8")
            aside.replace(file)
        except OSError as error:
            raise TrainingError(
                f"{file} can't be written: {error.strerror}; make room and give the same command again"
            ) from error

    def state(self) -> dict[str, Json]:
        """Returns its part of a checkpoint's state."""
        return {"league": self._league.state(), "ratings": self._ratings.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Takes its part of a checkpoint's state.

        Raises:
            TrainingError: it is that of another league.
        """
        self._league.load(state["league"])
        self._ratings.load(state["ratings"])


def _named(state: Path) -> set[str]:
    """Returns the past versions that a checkpoint's league may meet; none where it can't be read, nor gone on from."""
    try:
        league = json.loads(state.read_text(encoding="utf-8"))["league"]
        return {one["agent"] for standings in (*league["before"], league["now"]) for one in standings["past"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


__all__ = ["LeagueRun"]
