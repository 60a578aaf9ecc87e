"""What soak tests share: how often, and the file that keeps what they measured.

`pytest -m soak --soak-count 20` runs each that often; the figures of a session go to `soak.json` in the folder where
pytest was started, one entry per test, with its outcome. A run without soak tests writes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

ENTRIES = pytest.StashKey[dict[str, dict[str, Any]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--soak-count`."""
    parser.addoption("--soak-count", type=int, default=20, help="repetitions in tests marked soak (default 20)")


def pytest_configure(config: pytest.Config) -> None:
    """Starts an empty report."""
    config.stash[ENTRIES] = {}


@pytest.fixture
def soak_count(request: pytest.FixtureRequest) -> int:
    """How often a soak test repeats its work."""
    count: int = request.config.getoption("--soak-count")
    return count


@pytest.fixture
def soak_report(request: pytest.FixtureRequest) -> Callable[[str, Any], None]:
    """`soak_report(name, figures)` keeps figures of this test for soak.json."""
    entry = request.config.stash[ENTRIES].setdefault(request.node.nodeid, {})
    return lambda name, figures: entry.update({name: figures})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Notes the outcome and the seconds of each soak test."""
    report = yield
    if report.when == "call" and item.get_closest_marker("soak"):
        entry = item.config.stash[ENTRIES].setdefault(item.nodeid, {})
        entry |= {"outcome": report.outcome, "seconds": round(report.duration, 1)}
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes soak.json if a soak test ran."""
    ran = {name: entry for name, entry in session.config.stash[ENTRIES].items() if "outcome" in entry}
    if ran:
        text = json.dumps({"finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "tests": ran}, indent=1)
        (Path(session.config.invocation_params.dir) / "soak.json").write_text(text + "\n", encoding="utf-8")
