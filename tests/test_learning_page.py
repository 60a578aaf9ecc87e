"""docs/learning.md says what the code does: settings, choices, defaults, tests, and its example."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from llm_arena.training.config import TrainConfig
from llm_arena.training.losses import LOSSES
from llm_arena.training.token_rewards import read
from llm_arena.types import EnvSpec, SeatInfo, Trace, Turn

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
HINTS = get_type_hints(TrainConfig)


def table(heading: str) -> dict[str, list[str]]:
    """The rows of the first table under a heading, by what stands in backticks in their first cell."""
    part = PAGE.partition(heading)[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line[:1] == "|"]
    return {name: row[1:] for row in rows[2:] for name in re.findall(r"`(\w+)`", row[0])}


def test_every_setting_is_there() -> None:
    code = " ".join(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)))
    flags = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", code)}
    assert flags <= {field.name for field in dataclasses.fields(TrainConfig)} | {"help"}
    told = "credit estimator token_rewards loss clip_low clip_high importance importance_cap importance_unit divisor"
    assert set(f"{told} kl_weight kl_estimator kl_reference epochs minibatches".split()) <= flags


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("credit", "`--credit`\n"),
        ("estimator", "`--estimator`\n"),
        ("loss", "`--loss`\n"),
        ("importance", "`--importance`\n"),
        ("kl_estimator", "`--kl-estimator`\n"),
        ("divisor", "`--divisor`\n"),
    ],
)
def test_every_choice_has_its_row(name: str, heading: str) -> None:
    assert sorted(table(heading)) == sorted(get_args(HINTS[name]))


def test_bounds_and_divisors_are_those_of_the_losses() -> None:
    rows = table("`--loss`\n")
    for name, kind in LOSSES.items():
        numbers = [f"{bound:.4f}".rstrip("0").rstrip(".") for bound in (kind.clip_low, kind.clip_high) if bound]
        assert re.findall(r"[0-9.]+", rows[name][1]) == numbers
        assert rows[name][2] == f"`{'turns' if kind.divisor == 'units' else kind.divisor}`"


def test_the_default_that_is_told_is_the_default() -> None:
    line = PAGE.partition("## The default, and why")[2].split("`")[1]
    told = dict(zip(line.split()[::2], line.split()[1::2], strict=True))
    assert told == {
        f"--{name.replace('_', '-')}": f"{getattr(TrainConfig(), name):g}"
        if name == "kl_weight"
        else getattr(TrainConfig(), name)
        for name in ("credit", "estimator", "loss", "importance", "divisor", "kl_weight")
    }


def test_every_test_that_is_named_is_there() -> None:
    files = set(re.findall(r"`(tests/\w+\.py)`", PAGE))
    assert len(files) > 5
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    assert [name for name in re.findall(r"`(test_\w+)`", PAGE) if f"def {name}(" not in text] == []


def test_the_example_is_what_it_says() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    space: dict[str, Any] = {}
    exec(code, space)  # the page's own example
    sizes = [0, 32, 40, 48, 60]
    turns = [
        Turn(index=k, seat="a_0", text="", prompt_ids=[1], completion_ids=[5] * n, logprobs=[-1.0] * n)
        for k, n in enumerate(sizes)
    ]
    seats = {"a_0": SeatInfo(role="a", agent="x", policy="learner")}
    trace = Trace(id="t", spec=EnvSpec(id="toy-v0"), seed=0, seats=seats, turns=turns)
    signals = read(space["overlong"], trace)
    assert {at: signal.rewards[-1] for at, signal in signals.items()} == {2: -0.5, 3: -1.0, 4: -1.0}
    assert all(signal.rewards[:-1].sum() == 0 for signal in signals.values())
