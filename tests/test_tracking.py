"""Trackers: what TensorBoard reads back, and what the others are told, which are large: stand-ins take their place."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llm_arena.errors import MissingExtra, UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.run_folder import RunFolder
from llm_arena.training.tracking import PROJECT, TensorBoard, tracker


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def log_to(folder: Path, rows: list[dict[str, float]], *, done: int = 0) -> None:
    board = TensorBoard(folder, done=done)
    for row in rows:
        board.log(row)
    board.close()


def test_rows_are_read_back_under_their_names(tmp_path: Path) -> None:
    log_to(
        tmp_path / "board",
        [
            {"step": 1, "reward/avg/namer": 0.5, "reply/illegal_cut by length/namer": 0.25, "loss": -2},
            {"step": 2, "reward/avg/namer": 0.75, "probe_gap": 1.0},
        ],
    )
    assert read(tmp_path / "board") == {
        "reward/avg/namer": [(1, 0.5), (2, 0.75)],
        "reply/illegal_cut by length/namer": [(1, 0.25)],
        "loss": [(1, -2.0)],
        "probe_gap": [(2, 1.0)],
    }


def test_a_row_is_there_at_once(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path)
    board.log({"step": 1, "loss": 1.0})
    assert read(tmp_path) == {"loss": [(1, 1.0)]}
    board.close()


def test_a_resumed_run_writes_no_step_twice(tmp_path: Path) -> None:
    """Killed after step 4, with a checkpoint of step 2."""
    killed = TensorBoard(tmp_path)
    for step in range(1, 5):
        killed.log({"step": step, "loss": float(step)})
    log_to(tmp_path, [{"step": 3, "loss": 30.0}], done=2)
    assert read(tmp_path) == {"loss": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_a_run_begun_anew_hides_the_old_one(tmp_path: Path) -> None:
    log_to(tmp_path, [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}])
    log_to(tmp_path, [{"step": 1, "loss": 5.0}])
    assert read(tmp_path) == {"loss": [(1, 5.0)]}


class FakeWandb(ModuleType):
    """Keeps what it is told, as offline runs do: a folder for each start."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.given: list[dict[str, Any]] = []
        self.stored: dict[Path, dict[int, dict[str, float]]] = {}
        self.finished = 0

    def Settings(self, **settings: Any) -> dict[str, Any]:
        return settings

    def init(self, **given: Any) -> SimpleNamespace:
        self.given.append(given)
        path = Path(given["dir"]) / "wandb" / f"offline-run-{len(self.given)}-{given['id']}"
        path.mkdir(parents=True)
        self.stored[path] = {}

        def log(row: dict[str, float], step: int) -> None:
            assert step > max(self.stored[path], default=0), "wandb drops a step that it has"
            self.stored[path][step] = row

        return SimpleNamespace(log=log, finish=self._finish)

    def _finish(self) -> None:
        self.finished += 1


class FakeTrackio(ModuleType):
    """Keeps rows by the run's name; a second run of a name adds to the first."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.given: list[dict[str, Any]] = []
        self.stored: dict[str, list[tuple[int, dict[str, float]]]] = {}

    def Api(self) -> SimpleNamespace:
        def runs(project: str) -> Iterator[SimpleNamespace]:
            if not self.stored:
                raise ValueError(f"Project '{project}' does not exist")
            assert project == PROJECT
            for name in list(self.stored):
                yield SimpleNamespace(name=name, delete=lambda name=name: self.stored.pop(name))

        return SimpleNamespace(runs=runs)

    def init(self, **given: Any) -> None:
        print("a line for the user")
        self.given.append(given)
        self.stored.setdefault(given["name"], [])

    def log(self, row: dict[str, float], step: int) -> None:
        self.stored[self.given[-1]["name"]].append((step, row))

    def finish(self) -> None:
        print("another")


def interrupted(path: Path, name: Any) -> None:
    """A run that was killed after step 3, with a checkpoint of step 2, and goes on to step 4."""
    config = TrainConfig(tracker=name)
    for kept, steps in (([], (1, 2, 3)), ([1, 2], (3, 4))):
        folder = RunFolder(path, config.to_json())
        (path / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "loss": {step}}}\n' for step in kept))
        with tracker(config, folder) as log:
            for step in steps:
                log({"step": step, "loss": float(step)})
        folder.close()


LOGGED = {step: {"loss": float(step)} for step in (1, 2, 3, 4)}


def test_wandb_is_offline_and_a_resumed_run_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    interrupted(tmp_path / "run", "wandb")
    first, second = wandb.given
    assert first == second and first["id"] and first["mode"] == "offline" and first["resume"] == "allow"
    assert first["name"] == "run" and first["config"]["tracker"] == "wandb"
    assert not any("key" in name.lower() for name in (*first, *first["config"]) if "api" in name.lower())
    [there] = (tmp_path / "run" / "tracking" / "wandb").glob("offline-run-*")
    assert wandb.stored[there] == LOGGED and wandb.finished == 2
    monkeypatch.setenv("WANDB_MODE", "online")
    folder = RunFolder(tmp_path / "run", TrainConfig().to_json())
    with tracker(TrainConfig(tracker="wandb"), folder):
        assert wandb.given[-1]["mode"] == "online" and there.exists(), "what was written offline stays for its upload"
    folder.close()


def test_trackio_has_each_step_once_and_other_runs_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trackio = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    trackio.stored["another-run"] = [(1, {"loss": 9.0})]
    interrupted(tmp_path / "run", "trackio")
    assert {given["name"] for given in trackio.given} == {name := trackio.given[0]["name"]}
    assert name.startswith("run-") and trackio.stored["another-run"] == [(1, {"loss": 9.0})]
    assert trackio.stored[name] == list(LOGGED.items())
    assert capsys.readouterr().out == "", "a script's output is for its results"


def test_a_run_begun_anew_is_another_run_of_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    interrupted(tmp_path / "run", "trackio")
    folder = RunFolder(tmp_path / "run", TrainConfig().to_json(), fresh=True)
    with tracker(TrainConfig(tracker="trackio"), folder) as log:
        log({"step": 1, "loss": 5.0})
    folder.close()
    assert len(trackio.stored) == 2 and trackio.stored[trackio.given[-1]["name"]] == [(1, {"loss": 5.0})]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_without_its_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    for module in [module for module in sys.modules if module.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    folder = RunFolder(tmp_path / "run", TrainConfig().to_json())
    with (
        pytest.raises(MissingExtra, match=rf'pip install "llm-arena\[{name}\]"') as caught,
        tracker(TrainConfig(tracker=name), folder),
    ):
        pass
    assert f'"{name}"' in str(caught.value)
    assert not (tmp_path / "run" / "tensorboard").exists() and not (tmp_path / "run" / "tracking").exists()
    folder.close()


def test_an_unknown_tracker_is_refused_and_none_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tracker must be one of none, tensorboard, wandb, trackio"):
        TrainConfig(tracker="mlflow")  # type: ignore[arg-type]
    folder = RunFolder(tmp_path / "run", TrainConfig().to_json())
    before = sorted(os.listdir(tmp_path / "run"))
    with tracker(TrainConfig(), folder) as log:
        log({"step": 1, "loss": 1.0})
    assert sorted(os.listdir(tmp_path / "run")) == before
    folder.close()
