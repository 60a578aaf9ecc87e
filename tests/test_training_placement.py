"""Settings of engine, learner and roster: from the command line into a run, and into its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import ArenaError, TrainingError, UnknownName, UsageError
from llm_arena.trace_file import read_traces
from llm_arena.training import batch, checkpoint
from llm_arena.training.config import LearnerSettings, TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.loop import train
from llm_arena.training.run_identity import differences
from train_parts import model as model  # a fixture: the alias says that it is meant to be here


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 2,
        "starts_per_step": 4,
        "max_new_tokens": 1,
        "illegal": "random_legal",
    }
    return TrainConfig(**given | changes)


def test_engine_settings_come_from_the_command_line_and_toml(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[engine]\nkind = "vllm"\nmax-model-len = 512\n[learner]\ndevices = "cpu"\n[roster]\nplayer_1 = "x"\n'
    )
    argv = ["--config", str(file), "--engine.dtype=float32", "--engine.block_size", "16", "--engine.enforce-eager=true"]
    config = parse(TrainConfig, argv, prog="t")
    assert (config.engine.kind, config.engine.dtype) == ("vllm", "float32")
    assert config.engine.vllm_args() == {"max_model_len": 512, "block_size": 16, "enforce_eager": True}
    assert config.learner == LearnerSettings(devices="cpu")
    assert config.seated() == {"player_1": "x"}
    assert parse(TrainConfig, ["--engine", "vllm", "--steps", "3"], prog="t").engine.kind == "vllm"
    file.write_text('engine = "vllm"\n')
    assert parse(TrainConfig, ["--config", str(file)], prog="t").engine.kind == "vllm"


@pytest.mark.parametrize(
    ("argv", "kind", "says"),
    [
        (
            ["--engine.max-model-len", "512"],
            UsageError,
            "max_model_len is an argument of vLLM, and engine.kind is transf",
        ),
        (
            ["--engine", "vllm", "--engine.enforce-eager", "--steps", "3"],
            UsageError,
            "--engine.enforce-eager needs a val",
        ),
        (["--engine", "vllm", "--engine.enforce-eager"], UsageError, "needs a value, e.g. --engine.enforce-eager true"),
        (["--engine", "vlm"], UsageError, "invalid choice"),
        (["--engin.kind", "vllm"], UnknownName, "--engine.kind"),
        (["--learner.device", "0"], UnknownName, "--learner.devices"),
        (["--engine", "vllm", "--engine.devices", "1,1"], UsageError, "different CUDA devices"),
        (["--roster", "[]"], UsageError, "roster must be a JSON object of agent strings"),
        (["--roster", '{"player_0": 1}'], UsageError, "roster must be a JSON object of agent strings"),
        (
            ["--roster", '{"player_0": "optimal"}', "--opponent", "optimal"],
            UsageError,
            "either a roster or an opponent",
        ),
        (["--roster", '{"player_0": "optimal", "player_0": "x"}'], UsageError, "roster has the key 'player_0' twice"),
        (["--env-args", '{"namers": 2, "namers": 3}'], UsageError, "env_args has the key 'namers' twice"),
        (["--publish", "adapter"], UsageError, "publish=adapter needs an adapter: set lora_rank"),
        (["--epochs", "0"], UsageError, "epochs must be a whole number of at least 1"),
        (["--lora-rank", "-1"], UsageError, "lora_rank must be a whole number of at least 0"),
    ],
)
def test_settings_that_can_not_work_are_one_line(argv: list[str], kind: type[ArenaError], says: str) -> None:
    with pytest.raises(kind, match=says.replace("(", r"\(").replace("[", r"\[")) as caught:
        parse(TrainConfig, argv, prog="t")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lora-rank = 2\nlora_rank = 4\n", "'lora-rank' and 'lora_rank' are the same setting; keep one of them"),
        ("steps = 2\nnum_steps = 4\n", "'steps' and 'num_steps' are the same setting"),
        ("[league]\nself-play = 1\nself_play = 1\n", "run.toml: league: 'self-play' and 'self_play' are the same"),
        ("[engine]\nblock-size = 1\nblock_size = 2\n", "run.toml: engine: 'block-size' and 'block_size' are the"),
    ],
)
def test_a_file_with_two_spellings_of_a_setting_is_refused(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=says):
        parse(TrainConfig, ["--config", str(file)], prog="t")


def test_a_difference_names_the_setting_inside_its_table() -> None:
    old, new = TrainConfig(), TrainConfig(engine=EngineSettings(kind="vllm"), learner=LearnerSettings(devices="cpu"))
    assert differences(json.loads(json.dumps(old.to_json())), new.to_json()) == [
        "engine.kind: 'transformers' -> 'vllm'",
        "learner.devices: 'auto' -> 'cpu'",
    ]


def test_a_roster_seats_roles_and_the_rest_is_trained_and_it_is_part_of_the_record(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run", roster='{"player_1": "optimal"}')
    train(config, script="t", progress=False)
    [trace, *_] = read_traces(tmp_path / "run" / "traces.jsonl")
    assert (trace.seats["player_0"].policy, trace.seats["player_1"].policy) == ("learner", None)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["roster"] == {"player_1": "optimal"}
    other = settings(model, tmp_path / "run", roster='{"player_1": "random-legal"}')
    with pytest.raises(TrainingError, match="roster: .*optimal.* -> .*random-legal"):
        train(other, script="t", progress=False)


def test_a_16_bit_engine_has_a_tolerance_of_its_own(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run", engine=EngineSettings(dtype="bfloat16"), probe_every=1)
    result = train(config, script="t", progress=False)
    assert 1e-4 < result.max_logprob_gap < 0.2
    with pytest.raises(TrainingError, match="more than 1e-06"):
        train(settings(model, tmp_path / "strict", parity_tolerance=1e-6, engine=config.engine), progress=False)


def test_minibatches_are_dealt_anew_in_every_step(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    original = batch.build

    def build(*args: Any, **kwargs: Any) -> Any:
        seeds.append(kwargs["seed"])
        assert kwargs["minibatches"] == 2
        return original(*args, **kwargs)

    monkeypatch.setattr(batch, "build", build)
    result = train(settings(model, tmp_path / "run", loss="ppo_clip", minibatches=2, epochs=2), progress=False)
    assert len(set(seeds)) == 2
    assert [row["updates"] for row in result.rows] == [4, 4]


def test_weights_that_are_no_numbers_are_never_saved(model: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no longer finite"):
        train(settings(model, tmp_path / "run", lr=1e38, weight_decay=1e38, num_steps=3), script="t", progress=False)
    assert checkpoint.newest(tmp_path / "run" / "checkpoints") is None
    assert not (tmp_path / "run" / "final").exists()


def test_several_devices_of_one_process_are_refused(model: Path, tmp_path: Path) -> None:
    for changes, says in (
        ({"learner": LearnerSettings(devices="0,1")}, "one process trains on one device"),
        ({"engine": EngineSettings(devices="0,1")}, "the transformers engine takes one device"),
        ({"engine": EngineSettings(devices="7")}, "torch sees 0 CUDA devices"),
    ):
        with pytest.raises(UsageError, match=says):
            train(settings(model, tmp_path / "run", **changes), script="t", progress=False)
        assert not (tmp_path / "run").exists()


def test_an_opponent_that_is_nowhere_is_told_before_the_first_step(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run", roster='{"player_1": "llm:/nowhere"}')
    with pytest.raises(UnknownName, match="/nowhere"):
        train(config, script="t", progress=False)
    train(settings(model, tmp_path / "run", roster='{"player_1": "optimal"}'), script="t", progress=False)  # mended


TERMINATED = """
import os, signal, sys
from llm_arena.cli import guarded
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import train

def on_step(row, learner):
    if row["step"] == 3:
        os.kill(os.getpid(), signal.SIGTERM)

config = TrainConfig(
    env="kuhn-poker-v0", model=sys.argv[1], run_dir=sys.argv[2], num_steps=50, max_new_tokens=1, checkpoint_every=50,
    illegal="random_legal",
)
sys.exit(guarded(lambda: train(config, script="t", on_step=on_step, progress=False) and 0))
"""


def test_sigterm_saves_what_ctrl_c_saves(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TERMINATED, str(model), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, "llm-arena: terminated\n")
    saved = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert saved is not None and saved.step == 3


WITHOUT_TORCH = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
from llm_arena.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "arguments", [["play", "naming-v0", "--agents", "smollm2-135m"], ["train", "self-play", "--steps", "1"]]
)
def test_models_without_torch_are_one_line_that_names_the_extra(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert 'pip install "llm-arena[train]"' in line
