"""A run that is killed, stopped or repeated: the same command goes on to the weights of the unbroken run."""

from __future__ import annotations

import importlib
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import llm_arena
from llm_arena.errors import ArenaError, EngineError, ModelError, TrainingError, UsageError
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.planning import Planner
from llm_arena.training.progress import Progress
from llm_arena.training.sources import ListSource
from llm_arena.training.sync import Publisher
from train_parts import PROGRAM, tiny

SELF_PLAY = Path(__file__).parents[1] / "train" / "self_play.py"


def apart(left: Path, right: Path) -> float:
    one, other = (load_file(folder / "model.safetensors") for folder in (left, right))
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.fixture(scope="module")
def unbroken(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a run without a break."""
    folder = tmp_path_factory.mktemp("unbroken")
    tiny().run(str(tiny_model), str(folder))
    return folder


def comparable(run_dir: Path) -> list[dict[str, float]]:
    """The metrics of a run without what a clock says."""
    return tiny().timeless(run_dir)


def sampled(run_dir: Path) -> list[list[int]]:
    """All completions of a run, in order."""
    return [turn.completion_ids for trace in read_traces(run_dir / "traces.jsonl") for turn in trace.turns]


@pytest.mark.parametrize("point", ["rollout", "step", "save", "publish"])
def test_a_killed_run_ends_with_the_weights_of_the_unbroken_one(
    point: str, tiny_model: Path, unbroken: Path, tmp_path: Path
) -> None:
    killed = subprocess.run([sys.executable, str(PROGRAM), str(tiny_model), str(tmp_path), point], timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "final").exists()
    assert (tmp_path / "checkpoints" / "step-00000002").is_dir()
    result = tiny().run(str(tiny_model), str(tmp_path))
    assert apart(result.final_dir, unbroken / "final") <= 1e-6
    # products of matrices may be summed in another order in another process
    assert comparable(tmp_path) == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in comparable(unbroken)]
    assert sampled(tmp_path) == sampled(unbroken)


def test_the_position_after_loading_is_that_of_the_steps_done(unbroken: Path) -> None:
    newest = sorted((unbroken / "checkpoints").iterdir())[-1]
    steps = [tensor.item() for name, tensor in load_file(newest / "optimizer.safetensors").items() if "step/" in name]
    assert set(steps) == {6.0}
    state = json.loads((newest / "state.json").read_text())
    assert state["step"] == 6
    assert state["baselines"][0]["votes"] == 6 * 6 * 2


def test_a_complete_run_does_nothing(tiny_model: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*.*") if path.is_file()}
    result = tiny().run(str(tiny_model), str(unbroken))
    assert result.was_complete and result.steps == 6
    assert "complete" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*.*") if path.is_file()} == before


def test_other_settings_are_refused_by_name(tiny_model: Path, unbroken: Path) -> None:
    with pytest.raises(TrainingError, match=r"lr: 0\.01 -> 0\.5"):
        tiny().run(str(tiny_model), str(unbroken), lr=0.5)


def test_the_final_folder_plays(unbroken: Path) -> None:
    trace = llm_arena.play("kuhn-poker-v0", agents=str(unbroken / "final"), seed=0, max_new_tokens=1)
    assert not trace.void
    assert {info.policy for info in trace.seats.values()} == {str(unbroken / "final")}


def test_ctrl_c_between_steps_saves_what_was_done(tiny_model: Path, unbroken: Path, tmp_path: Path) -> None:
    program = tiny()

    def press(row: dict[str, float], learners: Mapping[str, Learner]) -> None:
        if row["step"] == 3:
            raise KeyboardInterrupt

    config = program.config(str(tiny_model), str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        train(config, script="tiny", progress=False, on_step=press)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step-00000003"
    assert apart(program.run(str(tiny_model), str(tmp_path)).final_dir, unbroken / "final") <= 1e-6


@pytest.mark.parametrize("kl_reference", ["ema", "initial"])
def test_a_resumed_adapter_ends_like_the_unbroken_one(kl_reference: str, tiny_model: Path, tmp_path: Path) -> None:
    """With four updates per step, so that ratios, minibatches and both references are part of it."""
    ppo = {"loss": "ppo_clip", "epochs": 2, "minibatches": 2}
    settings: dict[str, Any] = {"lora_rank": 2, "kl_reference": kl_reference, **ppo}
    whole = tiny().run(str(tiny_model), str(tmp_path / "whole"), **settings)

    def fail(row: dict[str, float], learners: Mapping[str, Learner]) -> None:
        if row["step"] == 3:
            raise EngineError("the cable is out")

    broken = tmp_path / "broken"
    with pytest.raises(EngineError):
        config = tiny().config(str(tiny_model), str(broken), **settings)
        train(config, script="tiny", progress=False, on_step=fail)
    newest = sorted((broken / "checkpoints").iterdir())[-1]
    assert all(".lora_" in name for name in load_file(newest / "model.safetensors"))
    assert (newest / "anchor.safetensors").exists() == (kl_reference == "ema")
    result = tiny().run(str(tiny_model), str(broken), **settings)
    assert apart(result.final_dir, whole.final_dir) <= 1e-6
    assert {row["updates"] for row in result.rows} == {4}
    assert apart(result.final_dir, tiny_model) > 1e-4


@pytest.mark.parametrize("moment", ["between", "rollout", "step", "publish", "write"])
def test_an_error_loses_no_finished_step(
    moment: str, tiny_model: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error during the fourth step, or right after the third; there is a checkpoint of the second."""
    owner, name, count = {
        "between": (Progress, "show", 3),
        "rollout": (Planner, "plans", 4),
        "step": (Learner, "step", 4),
        "publish": (Publisher, "take", 4),  # after the third step; the first of them at the start
        "write": (Publisher, "write", 4),
    }[moment]
    original, calls = getattr(owner, name), 0

    def fail(*arguments: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            raise EngineError("the cable is out")
        return original(*arguments, **settings)

    program = tiny()
    with monkeypatch.context() as patch, pytest.raises(EngineError, match="the cable is out"):
        patch.setattr(owner, name, fail)
        program.run(str(tiny_model), str(tmp_path))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step-00000003"
    assert apart(program.run(str(tiny_model), str(tmp_path)).final_dir, unbroken / "final") <= 1e-6
    assert comparable(tmp_path) == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in comparable(unbroken)]


def test_an_error_right_after_a_checkpoint_writes_no_second_one(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves: list[int] = []
    save = checkpoint.save

    def counted(folder: Path, step: int, *rest: Any, **settings: Any) -> Path:
        saves.append(step)
        return save(folder, step, *rest, **settings)

    def fail(row: dict[str, float], learners: Mapping[str, Learner]) -> None:
        if row["step"] == 3:
            raise EngineError("the cable is out")

    monkeypatch.setattr(checkpoint, "save", counted)
    config = tiny().config(str(tiny_model), str(tmp_path), checkpoint_every=3)
    with pytest.raises(EngineError):
        train(config, script="tiny", progress=False, on_step=fail)
    monkeypatch.setattr(Planner, "plans", refuse)
    with pytest.raises(EngineError):
        train(config, script="tiny", progress=False)
    assert saves == [3]


def refuse(planner: Planner, step: int) -> Any:
    raise EngineError("the cable is out")


def test_changed_starts_are_noticed(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "starts.jsonl"
    settings = {"env": "naming-v0", "env_args": {"namers": 2}, "model": str(tiny_model), "starts": str(file)}
    sizes = {"num_steps": 1, "starts_per_step": 1, "max_new_tokens": 2, "run_dir": str(tmp_path / "run")}
    config = TrainConfig(**settings | sizes)
    topics = [f"shop {word}" for word in ("one", "two", "three", "four")]
    file.write_text("".join(json.dumps(topic) + "\n" for topic in topics))
    train(config, script="x", progress=False)
    assert train(config, script="x", progress=False).was_complete
    first = ListSource(topics, per_batch=1).batch(0)[0]["prompt"]
    place = next(at for at, topic in enumerate(topics) if topic != first)
    topics[place] = "shop five"
    file.write_text("".join(json.dumps(topic) + "\n" for topic in topics))
    assert ListSource(topics, per_batch=1).batch(0)[0]["prompt"] == first
    with pytest.raises(TrainingError, match="sha256_of_starts: '[0-9a-f]{64}' -> '[0-9a-f]{64}'"):
        train(config, script="x", progress=False)


class Batches:
    """A source of given batches, whatever they are."""

    def __init__(self, *batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, index: int) -> Any:
        """Returns one as it was given."""
        return self._batches[index % len(self._batches)]


TEA = {"prompt": "tea house"}


@pytest.mark.parametrize(
    ("batches", "says"),
    [
        ([[TEA, TEA], [TEA, {"prompt": "x" * 200}]], r"start 1 of batch 1, .*can't be played: naming-v0: topic="),
        ([[TEA, TEA], [{"quest": "tea"}, TEA]], r"start 0 of batch 1, .*'quest'.*expected is the field 'prompt'"),
        ([[TEA, TEA], [TEA]], "batch 1 of the starts has 1 of them; expected are 2, .*starts_per_step"),
        ([[TEA, TEA, TEA]], "batch 0 of the starts has 3 of them"),
        ([[TEA, TEA], []], "batch 1 of the starts has 0 of them"),
        ([], "no batch"),
        ([[TEA, TEA], [TEA, 3]], "start 1 of batch 1 is 3; expected a mapping"),
        (["ab"], "start 0 of batch 0 is 'a'; expected a mapping"),
    ],
)
def test_starts_that_cannot_be_played_leave_no_run(
    batches: list[Any], says: str, tiny_model: Path, tmp_path: Path
) -> None:
    config = TrainConfig(env="naming-v0", model=str(tiny_model), starts_per_step=2, run_dir=str(tmp_path / "run"))
    with pytest.raises(UsageError, match=says) as caught:
        train(config, source=Batches(*batches), progress=False)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_batch_that_shrinks_later_is_refused_when_it_is_planned(tiny_model: Path) -> None:
    source = Batches([TEA, TEA])
    with Runtime() as runtime:
        planner = Planner(TrainConfig(opponent=None, starts_per_step=2), None, source, runtime)
        assert len(planner.plans(5)) == 2
        source._batches = ([TEA],)
        with pytest.raises(UsageError, match="batch 6 of the starts has 1 of them"):
            planner.plans(6)


def test_kills_at_random_moments(tiny_model: Path, tmp_path: Path, soak: Any) -> None:
    """A sample of what `make soak` runs more often."""
    check_random_moments(tiny_model, tmp_path, soak, ["both", "plain"])


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["plain", "ahead", "two", "both", "league"])
def test_soak_kills_at_random_moments(kind: str, tiny_model: Path, tmp_path: Path, soak: Any) -> None:
    check_random_moments(tiny_model, tmp_path, soak, [kind])


def check_random_moments(model: Path, folder: Path, soak: Any, kinds: list[str]) -> None:
    """Kills runs at random moments, each of which must end like the unbroken run."""
    for number in range(len(soak.runs), soak.count):
        began = time.monotonic()
        kind = kinds[number % len(kinds)]
        command = [sys.executable, str(PROGRAM), str(model), str(folder / str(number)), "moments", "1"]
        done = subprocess.run([*command, str(soak.seed + number), kind], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        [run] = json.loads(done.stdout.splitlines()[-1])["runs"]
        assert run["difference"] <= 1e-6
        assert run["baselines_equal"] and run["rows_equal"]
        soak.add(run, time.monotonic() - began)
    assert len(soak.runs) == soak.count
    assert any(run["killed"] for run in soak.runs)


def test_ctrl_c_during_a_run_exits_130_and_loses_no_step(tiny_model: Path, tmp_path: Path) -> None:
    settings = ["--env", "kuhn-poker-v0", "--max-new-tokens", "2", "--starts-per-step", "4", "--run-dir", "run"]
    command = [sys.executable, str(SELF_PLAY), "--model", str(tiny_model), "--steps", "5000", *settings]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 5/"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read().splitlines()
        assert process.wait(timeout=20) == 130
    assert rest[-1] == "llm-arena: interrupted"
    [newest] = (tmp_path / "run" / "checkpoints").iterdir()
    logged = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert int(newest.name.removeprefix("step-")) == len(logged) >= 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--env", "kuhn-pokr-v0"], "kuhn-poker-v0"),
        (["--model", "smollm3"], "smollm2-135m"),
        (["--opponent", "random-lega", "--env", "kuhn-poker-v0"], "random-legal"),
        (["--env-args", '{"namerz": 4}'], "namers"),
        (["--starts", "absent.jsonl"], "absent.jsonl"),
        (["--credit", "group"], "credit by group can't work .*namers=1"),
    ],
)
def test_mistakes_are_usage_errors_and_leave_no_run(
    arguments: list[str], says: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main = importlib.import_module("llm_arena.train.self_play").main
    model = [] if "--model" in arguments else ["--model", str(tiny_model)]
    with pytest.raises(ArenaError, match=says) as caught:
        main([*arguments, *model])
    assert caught.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_a_model_without_a_chat_template_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        (bare / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="chat template"):
        train(TrainConfig(model=str(bare), run_dir=str(tmp_path / "run")), progress=False)
    assert not (tmp_path / "run").exists()


def test_frozen_opponent_needs_an_opponent() -> None:
    main = importlib.import_module("llm_arena.train.frozen_opponent").main
    with pytest.raises(UsageError, match="--opponent"):
        main(["--opponent", "None"])
