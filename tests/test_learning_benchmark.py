"""`benchmarks/learning.py`: each variant runs and goes on after a kill, and plot and table have the curves' numbers."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from llm_arena.errors import UsageError
from llm_arena.training import checkpoint

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = {"seed": 0, "steps": 8, "games": 6, "every": 1}

DIE = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch
import learning_kuhn
torch.set_num_threads(1)
write = learning_kuhn.write_whole
def dying(path, text):
    write(path, text)
    if path.name == "curve.jsonl" and text.count("\\n") == 8:  # steps 0 to 7
        os.kill(os.getpid(), signal.SIGKILL)
learning_kuhn.write_whole = dying
out = Path(sys.argv[2])
learning_kuhn.Kuhn(variant="kl", seed=0, steps=8, games=6, every=1, runs=out, results=out).run()
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a file of the program as a script beside it does."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def made_up(module: Any, variant: str, seed: int, points: list[tuple[int, float]]) -> Any:
    return module("learning_kuhn").Curve(
        variant=variant, seed=seed, steps=20, games_per_step=4, seconds=60.0, illegal_last=0.25, points=points
    )


def keep(folder: Path, curve: Any) -> None:
    (folder / f"kuhn-{curve.variant}-{curve.seed}.jsonl").write_bytes(msgspec.json.encode(curve) + b"\n")


@pytest.mark.parametrize("variant", ["plain", "kl", "past", "anchors"])
def test_each_variant_learns_and_keeps_its_curve(variant: str, module: Any, tmp_path: Path) -> None:
    kuhn = module("learning_kuhn")
    run = kuhn.Kuhn(variant=variant, seed=1, steps=4, games=6, every=2, runs=tmp_path / "runs", results=tmp_path)
    figures = run.run()
    [curve] = kuhn.read_curves(tmp_path)
    assert (curve.variant, curve.seed, curve.steps, curve.games_per_step) == (variant, 1, 4, 6)
    steps, values = zip(*curve.points, strict=True)
    assert steps == (0, 2, 4)
    assert all(0 < value < 2 for value in values) and len(set(values)) == 3
    assert (
        figures["last"] == values[-1]
        and figures["best"] == min(values)
        and figures["worst_of_last_quarter"] == values[2]
    )
    config = run.config(run.folder / "model")
    assert (config.kl_weight > 0) == (variant == "kl")
    assert config.entropy_weight == kuhn.DEFAULTS.entropy_weight > config.entropy_weight_end > 0  # the same for all
    assert run.run() == figures  # a complete run is not made again


def test_a_killed_run_goes_on_to_the_same_curve(module: Any, tmp_path: Path) -> None:
    kuhn = module("learning_kuhn")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    kuhn.Kuhn(variant="kl", runs=whole, results=whole, **SMALL).run()
    killed = subprocess.run([sys.executable, "-c", DIE, str(BENCHMARKS), str(broken)], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    run = kuhn.Kuhn(variant="kl", runs=broken, results=broken, **SMALL)
    newest = checkpoint.newest(run.folder / "run" / "checkpoints")
    assert newest is not None and newest.step == 5  # so steps 6 and 7 are made again
    assert not list(broken.glob("kuhn-*.jsonl"))
    run.run()
    [one], [other] = kuhn.read_curves(whole), kuhn.read_curves(broken)
    assert [step for step, _ in other.points] == list(range(9))
    assert [gap for _, gap in other.points] == pytest.approx([gap for _, gap in one.points], abs=2e-6)


def test_chart_and_table_have_the_numbers_of_two_curves(module: Any, tmp_path: Path) -> None:
    """The axis goes from 0 (y = 340) to 0.6 (y = 34) and from step 0 (x = 50) to 20 (x = 748)."""
    keep(tmp_path, made_up(module, "kl", 0, [(0, 0.6), (10, 0.2), (20, 0.1)]))
    keep(tmp_path, made_up(module, "kl", 1, [(0, 0.4), (10, 0.4), (16, 0.07), (20, 0.05)]))
    figures = module("learning_plot").Plot(results=tmp_path).run()
    drawn = (tmp_path / "kuhn.svg").read_text()
    assert "M50.0 34.0L399.0 136.0L748.0 289.0L748.0 314.5L399.0 238.0L50.0 136.0Z" in drawn
    assert "M50.0 85.0L399.0 187.0L748.0 301.8" in drawn  # the mean: 0.5, 0.3, 0.075
    assert "kl: last 0.050 to 0.100" in drawn
    rows = [line for line in (tmp_path / "kuhn.md").read_text().splitlines() if line.startswith("| kl")]
    assert rows == [
        "| kl | 0 | 0.100 | 0.100 | 0.100 | 25.0% | 60 |",
        "| kl | 1 | 0.050 | 0.050 | 0.070 | 25.0% | 60 |",
    ]
    assert "by seeds: kl 1 of 2." in (tmp_path / "kuhn.md").read_text()  # 0.1 is not below 0.1
    assert "so far, of 3: plain 0, kl 2, past 0, anchors 0." in (tmp_path / "kuhn.md").read_text()
    assert figures["worst_of_last_quarter"] == {"kl": 0.1} and figures["seeds"] == {"kl": 2}
    assert figures["kl_below_0.1"] is False


def test_curves_that_can_not_be_compared_are_refused(module: Any, tmp_path: Path) -> None:
    read = module("learning_kuhn").read_curves
    with pytest.raises(UsageError, match="run `learning.py kuhn` first"):
        read(tmp_path)
    keep(tmp_path, made_up(module, "plain", 0, [(0, 0.6), (20, 0.1)]))
    keep(tmp_path, msgspec.structs.replace(made_up(module, "kl", 0, [(0, 0.6), (40, 0.1)]), steps=40))
    with pytest.raises(UsageError, match="20 steps of 4 games, 40 steps of 4 games"):
        read(tmp_path)
    (tmp_path / "kuhn-kl-0.jsonl").write_text('{"variant": "kl"')
    with pytest.raises(UsageError, match="kuhn-kl-0"):
        read(tmp_path)


def test_roles_are_trained_and_meet(module: Any, tiny_model: Path, tmp_path: Path) -> None:
    roles = module("learning_roles")
    common = {"model": str(tiny_model), "engine": "transformers", "runs": tmp_path / "runs"}
    cross = roles.Cross(episodes=6, results=tmp_path, **common)
    with pytest.raises(UsageError, match="roles --schedule joint --seed 0"):
        cross.run()
    for schedule, names in (("joint", ["joint"]), ("pve", ["pve-doctor", "pve-patient"])):
        figures = roles.Roles(schedule=schedule, steps=1, starts=2, **common).run()
        for name in names:
            role = name.removeprefix("pve-")
            assert set(figures[name]["last_steps"]) == ({"doctor", "patient"} if name == "joint" else {role})
    cross.run()
    table = json.loads((tmp_path / "roles-0.json").read_text())
    assert (table["row_role"], table["column_role"], table["starts"]) == ("doctor", "patient", 6)
    met = {(cell["row"], cell["column"]) for cell in table["cells"]}
    assert met == {
        (row, column)
        for row in ("joint", "pve-doctor", "initial", "bayes")
        for column in ("joint", "pve-patient", "initial", "faithful")
    }
    assert all(cell["episodes"] == 6 for cell in table["cells"])
    scripted = next(cell for cell in table["cells"] if (cell["row"], cell["column"]) == ("bayes", "faithful"))
    assert scripted["row_forfeits"] == scripted["column_forfeits"] == 0 and scripted["row_return"]["mean"] > 0


def test_help_tells_what_each_command_does(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    program: ModuleType = module("learning")
    with pytest.raises(SystemExit) as stop:
        program.main(["--help"])
    assert stop.value.code == 0
    told = capsys.readouterr().out
    for word in ("kuhn", "plot", "roles", "cross", "NashConv", "worst of the last quarter"):
        assert word in told
