"""What soak tests share: how often, from where a stopped one goes on, and the file that keeps what came out.

`make soak` (`pytest -m soak --soak-count 20`) runs every check at its full count, two at a time, and keeps `soak.json`
in the folder where pytest was started: one entry per check with its count, seed, commit, seconds and result. Each
repetition is written when it is done, so a soak that was stopped goes on with the next one, as long as commit, count
and seed are the same. The same checks run on a sample in `make test`, which writes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

SAMPLE = 2
"""Repetitions in `make test`."""


@dataclass
class Check:
    """One check: repetitions `len(runs)` to `count - 1` are still to do, each from a seed of its own."""

    check: str
    count: int
    seed: int
    commit: str
    seconds: float = 0.0
    result: str = "unfinished"
    runs: list[Any] = field(default_factory=list)
    """What each repetition measured."""
    path: Path | None = None

    def add(self, figures: Any, seconds: float) -> None:
        """Keeps what one repetition measured, as JSON."""
        self.runs.append(figures)
        self.seconds = round(self.seconds + seconds, 1)
        self.write()

    def write(self) -> None:
        """Writes this check's entry into the report, whole or not at all."""
        if self.path is None:
            return
        mine = {name: value for name, value in asdict(self).items() if name != "path"}
        with FileLock(self.path.with_suffix(".lock")):  # checks run in two processes
            others = [entry for entry in _entries(self.path) if entry["check"] != self.check]
            aside = self.path.with_suffix(".part")
            aside.write_text(json.dumps([*others, mine], indent=1) + "\n", encoding="utf-8")
            os.replace(aside, self.path)


def _entries(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def _commit(folder: Path) -> str:
    """Returns the commit of the checkout, with `-dirty` if files that git tracks were changed."""

    def git(*arguments: str) -> str:
        ran = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
        return ran.stdout.strip()

    return (git("rev-parse", "--short=12", "HEAD") or "none") + ("-dirty" if git("status", "-s", "-uno") else "")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--soak-count` and `--soak-seed`."""
    parser.addoption("--soak-count", type=int, default=20, help="repetitions of each soak check (default 20)")
    parser.addoption("--soak-seed", type=int, default=0, help="first seed of each soak check (default 0)")


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Generator[Check, None, None]:
    """The check that a test is: all of it in a test marked `soak`, else a sample that is not kept."""
    name = request.node.name
    if request.node.get_closest_marker("soak") is None:
        yield Check(check=name, count=SAMPLE, seed=0, commit="")
        return
    path = Path(request.config.invocation_params.dir) / "soak.json"
    check = Check(
        check=name,
        count=request.config.getoption("--soak-count"),
        seed=request.config.getoption("--soak-seed"),
        commit=_commit(request.config.rootpath),
        path=path,
    )
    same = ("count", "seed", "commit")
    for entry in _entries(path):
        if entry["check"] == name and all(entry[key] == getattr(check, key) for key in same):
            # a repetition that failed ended the check, so what is kept had passed
            check.seconds, check.runs = entry["seconds"], entry["runs"]
    yield check
    report = getattr(request.node, "soak_report", None)
    check.result = "unfinished" if report is None else "passed" if report.passed else "failed"
    check.write()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Lets the fixture see the outcome."""
    report = yield
    if report.when == "call":
        item.soak_report = report  # type: ignore[attr-defined]
    return report
