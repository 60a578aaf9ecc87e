"""Settings, starts and checkpoints: everything of a run that needs no game."""

from __future__ import annotations

import errno
import json
import math
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_arena.errors import ArenaError, TrainingError, UnknownName, UsageError
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.run_folder import RunFolder
from llm_arena.training.run_identity import differences, fingerprint
from llm_arena.training.sources import DealtSource, ListSource, derive_seed, digest, env_arguments, read_starts
from llm_arena.training.whole_folder import write_whole


def read(*argv: str) -> TrainConfig:
    return parse(TrainConfig, argv, prog="self_play")


def test_defaults_then_toml_then_command_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("lr = 1\nnum_steps = 7\nstarts-per-step = 3\n[env_args]\nnamers = 2\n")
    config = read("--config", str(path), "--steps", "9", "--env", "kuhn-poker-v0")
    assert (config.lr, config.num_steps, config.starts_per_step, config.env) == (1, 9, 3, "kuhn-poker-v0")
    assert config.env_kwargs() == {"namers": 2}
    assert config.seed == TrainConfig().seed


@pytest.mark.parametrize(
    ("argv", "kind", "says"),
    [
        (["--stpes", "3"], UnknownName, "--steps"),
        (["--num-step", "3"], UnknownName, "--num-steps"),
        (["--steps", "three"], UsageError, "three"),
        (["--steps", "0"], UsageError, "at least 1"),
        (["--estimator", "ppo"], UsageError, "group_mean"),
        (["--env-args", "[1]"], UsageError, "JSON object"),
        (["--temperature", "0"], UsageError, "greedy"),
        (["stray"], UsageError, "stray"),
        (["--config", "absent.toml"], UsageError, "absent.toml"),
    ],
)
def test_bad_settings_are_one_line_with_the_remedy(argv: list[str], kind: type[ArenaError], says: str) -> None:
    with pytest.raises(kind) as caught:
        read(*argv)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("nmu_steps = 3", 'Did you mean "num_steps"'),
        ('num_steps = "3"', "num_steps = '3' does not fit"),
        ("lr = ", "not valid TOML"),
    ],
)
def test_bad_toml_names_the_key(tmp_path: Path, toml: str, says: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(toml)
    with pytest.raises(ArenaError, match=says) as caught:
        read("--config", str(path))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("credit", "foo", "one of seat, trace, group"),
        ("divisor", "foo", "one of auto, constant, tokens, turns, traces"),
        ("estimator", "foo", "one of rae, loo, group_mean, grpo, role_norm, none"),
        ("loss", "foo", "one of reinforce, ppo_clip, dr_grpo, dapo, gspo, cispo"),
        ("importance", "foo", "one of auto, none, truncate, mask"),
        ("importance_unit", "sequence", "one of auto, token, turn, trace"),
        ("kl_estimator", "k3", "one of exact, k1_reward, k2"),
        *[("importance_cap", value, "a finite number of at least 1") for value in (0.5, math.inf, None)],
        *[("clip_high", value, "a finite number above 0") for value in (0.0, math.nan, "1")],
        ("clip_low", 1.0, r"in \[0, 1\)"),
        *[("lr", value, "a finite number above 0") for value in (0.0, -1.0, math.inf, math.nan, "1", True)],
        *[("grad_clip", value, "a finite number above 0") for value in (0.0, -1.0, math.inf, math.nan)],
        ("parity_tolerance", math.nan, "a finite number above 0"),
        ("temperature", math.inf, "a finite number above 0"),
        *[("lr_end", value, "a finite number of at least 0") for value in (-1.0, math.nan, "1")],
        ("weight_decay", -1.0, "a finite number of at least 0"),
        ("weight_decay", None, "a finite number of at least 0"),
        ("kl_weight", -1.0, "a finite number of at least 0"),
        ("entropy_weight", math.inf, "a finite number of at least 0"),
        ("entropy_weight_end", -0.1, "a finite number of at least 0"),
        ("warmup_steps", -3, "a whole number of at least 0"),
        ("seed", -1, "a whole number of at least 0"),
        ("seed", 1.5, "a whole number of at least 0"),
        ("keep_traces", -1, "a whole number of at least 0"),
        ("group_size", 0, "a whole number of at least 1"),
        ("baseline_decay", 1.5, r"in \[0, 1\)"),
        ("baseline_decay", -0.1, r"in \[0, 1\)"),
        ("ema_decay", math.nan, r"in \[0, 1\)"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} must be .*{expected}.*, got {value!r}$") as caught:
        TrainConfig(**{name: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ['credit = "foo"', "grad_clip = nan", "lr_end = -1", 'estimator = "ppo"'])
def test_values_from_a_file_are_checked_as_well(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.toml").write_text(line)
    with pytest.raises(UsageError, match=f"^{line.partition(' ')[0]} must be"):
        read("--config", str(tmp_path / "run.toml"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clip_low": 0.1}, "clip_low has no effect on loss=reinforce.*loss=ppo_clip"),
        ({"clip_high": 0.1}, "clip_high has no effect on loss=reinforce"),
        ({"loss": "gspo", "importance_unit": "token"}, "set it to turn or trace, or take loss=ppo_clip"),
        ({"importance": "none", "importance_cap": 3.0}, "importance_cap has no effect with importance=none"),
        ({"importance": "none", "importance_unit": "turn"}, "importance_unit has no effect .* importance=truncate"),
        ({"kl_estimator": "k2"}, "kl_estimator has no effect with kl_weight=0; leave it out, or take kl_weight=1"),
        ({"kl_reference": "initial"}, "kl_reference has no effect with kl_weight=0"),
        ({"estimator": "loo", "baseline_decay": 0.9}, "baseline_decay has no effect with estimator=loo.*estimator=rae"),
        ({"estimator": "grpo", "bias_correction": False}, "bias_correction has no effect with estimator=grpo"),
        ({"token_rewards": "my_rewards"}, "token_rewards must be module:function"),
        ({"token_rewards": "my_rewards:"}, "token_rewards must be module:function"),
    ],
)
def test_settings_that_mean_nothing_together_are_refused_with_the_way_out(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        TrainConfig(**settings)
    assert "\n" not in str(caught.value)


def test_limits_that_work_are_taken() -> None:
    TrainConfig(lr_end=0, weight_decay=0, kl_weight=0, entropy_weight_end=0.0, warmup_steps=0, seed=0, keep_traces=0)
    TrainConfig(baseline_decay=0, ema_decay=0, lr=1, grad_clip=1)
    own = dict.fromkeys(("importance_cap", "importance_unit", "kl_estimator", "kl_reference", "baseline_decay"))
    TrainConfig(importance="none", estimator="loo", **{name: getattr(TrainConfig, name) for name in own})
    TrainConfig(importance="none", loss="gspo", importance_unit="trace")  # the unit of its ratio


def test_schedules_are_functions_of_the_step() -> None:
    config = TrainConfig(num_steps=11, lr=1.0, lr_end=0.0, warmup_steps=2, entropy_weight=0.2, entropy_weight_end=0.1)
    assert [config.lr_at(step) for step in (0, 1, 5, 10)] == pytest.approx([0.5, 0.9, 0.5, 0.0])
    assert [config.entropy_at(step) for step in (0, 5, 10)] == pytest.approx([0.2, 0.15, 0.1])
    assert TrainConfig(lr=0.3).lr_at(20) == 0.3
    # the warm-up goes by what a policy has learned itself, the end by the run
    assert [config.lr_at(step, 0) for step in (0, 5, 10)] == pytest.approx([0.5, 0.25, 0.0])
    assert [config.lr_at(step, learned) for step, learned in ((5, 1), (6, 5))] == pytest.approx([0.5, 0.4])


def test_the_fingerprint_sees_what_the_weights_depend_on() -> None:
    one = TrainConfig().to_json()
    other = TrainConfig(checkpoint_every=3, run_dir="x", fresh=True).to_json()
    assert fingerprint(one) == fingerprint(other)
    assert differences(one, other) == []
    assert fingerprint(one) != fingerprint(TrainConfig(lr=0.5).to_json())
    assert differences(one, TrainConfig(lr=0.5).to_json()) == ["lr: 1e-05 -> 0.5"]


def test_a_source_visits_every_start_once_per_pass_and_wraps_around() -> None:
    source = ListSource([f"t{i}" for i in range(5)], per_batch=2, seed=3)
    drawn = [start["prompt"] for index in range(10) for start in source.batch(index)]
    passes = [drawn[at : at + 5] for at in range(0, 20, 5)]
    assert [sorted(one) for one in passes] == [[f"t{i}" for i in range(5)]] * 4
    assert len({tuple(one) for one in passes}) > 1
    assert len(source) == 3


def test_a_source_is_pure() -> None:
    source = ListSource(list("abcdefg"), per_batch=3, seed=1)
    later = source.batch(4)
    assert [source.batch(index) for index in range(5)][4] == later
    assert ListSource(list("abcdefg"), per_batch=3, seed=1).batch(4) == later
    orders = {str([ListSource(list("abcdefg"), per_batch=7, seed=seed).batch(0)]) for seed in range(5)}
    assert len(orders) > 1
    assert ListSource(list("abc"), per_batch=3, shuffle=False).batch(7) == [{"prompt": letter} for letter in "abc"]


def test_a_changed_start_does_not_change_later_passes() -> None:
    given = {"prompt": "tea"}
    source = ListSource([given], per_batch=2)
    one: list[Any] = source.batch(0)
    one[0]["prompt"] = given["prompt"] = "coal"
    assert one[1] == {"prompt": "tea"}
    assert source.batch(0) == source.batch(1) == [{"prompt": "tea"}] * 2


def test_what_is_no_start_is_refused() -> None:
    starts: list[Any] = ["tea", 3]
    with pytest.raises(UsageError, match="start 1 is 3; expected a mapping"):
        ListSource(starts, per_batch=1)


def test_the_digest_sees_every_start_of_a_pass() -> None:
    starts = [{"prompt": f"t{i}", "label": i} for i in range(7)]
    one = digest(ListSource(starts, per_batch=2))
    assert len(one) == 64
    assert one == digest(ListSource([dict(reversed(start.items())) for start in starts], per_batch=2))
    for place in range(7):
        changed = [start | {"label": 99} if at == place else start for at, start in enumerate(starts)]
        assert digest(ListSource(changed, per_batch=2)) != one
    with pytest.raises(UsageError, match="batch 0 is not made of JSON"):
        digest(ListSource([{"prompt": Path()}], per_batch=1))


def test_a_batch_may_be_larger_than_the_list() -> None:
    batch = ListSource(["a", "b"], per_batch=5).batch(0)
    prompts = [start["prompt"] for start in batch]
    assert sorted(prompts[:2]) == sorted(prompts[2:4]) == ["a", "b"]


def test_starts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "starts.jsonl"
    path.write_text('{"prompt": "tea\u2028house", "label": 3}\n"coffee shop"\n\n', encoding="utf-8")
    assert read_starts(path) == [{"prompt": "tea\u2028house", "label": 3}, {"prompt": "coffee shop"}]
    path.write_text('{"prompt": 1}\n[2]\n')
    with pytest.raises(UsageError, match="line 2"):
        read_starts(path)
    path.write_text("\n")
    with pytest.raises(UsageError, match="no starts"):
        read_starts(path)
    with pytest.raises(UsageError, match="at least one start"):
        ListSource([], per_batch=1)


def test_fields_of_a_start_fill_the_arguments_of_the_game() -> None:
    def fill(start: dict[str, object], input_arg: str | None) -> dict[str, object]:
        return env_arguments(start, input_key="q", label_key="a", input_arg=input_arg, label_arg="answer")

    assert fill({"q": "tea", "a": 3, "other": 1}, "topic") == {"topic": "tea", "answer": 3}
    assert fill({}, "topic") == {}
    with pytest.raises(UsageError, match="'q' or 'a'"):
        fill({"prompt": "tea"}, "topic")
    assert DealtSource(per_batch=2).batch(9) == [{}, {}]


def test_seeds_depend_on_all_parts() -> None:
    seeds = {derive_seed(0, "x", 1), derive_seed(0, "x", 2), derive_seed(1, "x", 1), derive_seed(0, "y", 1)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**64 for seed in seeds)


TENSORS = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "optimizer": {"step/w": torch.tensor(4.0)}}


def test_checkpoints_round_trip_and_only_two_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, TENSORS, {"baselines": [step]})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    saved = checkpoint.newest(tmp_path)
    assert saved is not None
    assert (saved.step, saved.state["baselines"]) == (3, [3])
    loaded = saved.tensors()
    assert torch.equal(loaded["model"]["w"], TENSORS["model"]["w"])
    assert loaded["optimizer"]["step/w"].item() == 4.0


@pytest.mark.parametrize("harm", ["state gone", "state torn", "tensors torn", "tensors gone"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, harm: str) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, step, TENSORS, {})
    newest = tmp_path / "step-00000002"
    target = newest / ("state.json" if "state" in harm else "model.safetensors")
    if "gone" in harm:
        target.unlink()
    else:
        target.write_bytes(target.read_bytes()[:-3])
    saved = checkpoint.newest(tmp_path)
    assert saved is not None and saved.step == 1


def test_a_checkpoint_half_written_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, TENSORS, {})
    shutil.copytree(tmp_path / "step-00000001", tmp_path / ".step-00000002.part")
    saved = checkpoint.newest(tmp_path)
    assert saved is not None and saved.step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.newest(tmp_path / "absent") is None


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may grow beyond 1,000 bytes, as if the disk were full; not even pytest's own output."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_refuses_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, TENSORS, {})
    large = {"model": {"w": torch.zeros(1000)}}
    with pytest.raises(TrainingError, match=r"step 2 .*File too large") as caught, small_files():
        checkpoint.save(tmp_path, 2, large, {})
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    saved = checkpoint.newest(tmp_path)
    assert saved is not None and torch.equal(saved.tensors()["model"]["w"], TENSORS["model"]["w"])


def test_a_full_disk_is_called_that(tmp_path: Path) -> None:
    def fill(aside: Path) -> None:
        (aside / "half").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(TrainingError, match=r"the final model can't be written.*the disk is full.*make room"):
        write_whole(tmp_path / "final", fill, what="the final model", durable=True)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_with_damaged_content_says_so(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, TENSORS, {}) / "model.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    saved = checkpoint.newest(tmp_path)
    assert saved is not None
    with pytest.raises(TrainingError, match="Delete it to go on from the one before"):
        saved.tensors()


def test_a_newer_checkpoint_is_refused(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path, 1, TENSORS, {})
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"schema": 99}))
    with pytest.raises(TrainingError, match="newer llm_arena"):
        checkpoint.newest(tmp_path)


def test_a_run_with_other_settings_is_not_overwritten(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "run", {"lr": 1, "seed": 0})
    first.log({"step": 1.0})
    first.close()
    with pytest.raises(TrainingError, match=r"lr: 1 -> 2.*--fresh"):
        RunFolder(tmp_path / "run", {"lr": 2, "seed": 0})
    anew = RunFolder(tmp_path / "run", {"lr": 2, "seed": 0}, fresh=True)
    assert anew.rows() == []
    anew.close()


def test_logs_are_cut_to_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {"lr": 1})
    folder.log({"step": 1.0})
    checkpoint.save(tmp_path / "checkpoints", 1, TENSORS, {"sizes": folder.sizes()})
    folder.log({"step": 2.0})
    folder.close()
    again = RunFolder(tmp_path, {"lr": 1})
    assert again.rows() == [{"step": 1.0}]
    again.close()


def test_fresh_deletes_a_run_and_nothing_else(tmp_path: Path) -> None:
    RunFolder(tmp_path, {"lr": 1}).close()
    (tmp_path / "notes.txt").write_text("precious")
    (tmp_path / "final").mkdir()
    RunFolder(tmp_path, {"lr": 2}, fresh=True).close()
    assert (tmp_path / "notes.txt").read_text() == "precious" and not (tmp_path / "final").exists()


@pytest.mark.parametrize("content", ['{"model_type": "llama"}', "{bad", "[]", '{"a": 1}'])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_something_else_is_never_touched(tmp_path: Path, content: str, fresh: bool) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(TrainingError, match="holds no run of llm_arena"):
        RunFolder(tmp_path, {"lr": 1}, fresh=fresh)
    assert (tmp_path / "config.json").read_text() == content


def test_many_differences_are_cut_short(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {f"s{k}": 1 for k in range(9)})
    folder.log({"step": 1})
    folder.close()
    with pytest.raises(TrainingError, match=r"s4: 1 -> 2; and 4 more"):
        RunFolder(tmp_path, {f"s{k}": 2 for k in range(9)})


def test_a_run_without_a_step_takes_other_settings(tmp_path: Path) -> None:
    RunFolder(tmp_path, {"roster": "mistyped"}).close()
    RunFolder(tmp_path, {"roster": "mended"}).close()
    assert json.loads((tmp_path / "config.json").read_text())["roster"] == "mended"


def test_a_run_in_progress_is_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, {"lr": 1})
    with pytest.raises(TrainingError, match="another process"):
        RunFolder(tmp_path, {"lr": 1})
    folder.close()


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(TrainingError, match="no run"):
        RunFolder(tmp_path, {"lr": 1}, fresh=True)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize(
    "text",
    [
        "env_args = 5",
        "env_args = {day = 2020-01-01}",
        'max_context_tokens = "x"',
        "starts = 5",
        'lr_end = "x"',
        "num_steps = 2.5",
        "fresh = 1",
    ],
)
def test_a_toml_value_of_the_wrong_kind_is_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"--config .*{text.split()[0]}") as caught:
        parse(TrainConfig, ["--config", str(file)], prog="x")
    assert "\n" not in str(caught.value)


def test_toml_takes_whole_numbers_for_fractions_and_tables_for_env_args(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('lr = 1\nmax_context_tokens = 9\n[env_args]\ntopic = "tea"\n')
    config = parse(TrainConfig, ["--config", str(file)], prog="x")
    assert (config.lr, config.max_context_tokens, config.env_kwargs()) == (1, 9, {"topic": "tea"})


def test_a_toml_file_that_is_no_text_or_not_named_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not valid TOML"):
        parse(TrainConfig, ["--config", str(file)], prog="x")
    with pytest.raises(UsageError, match="needs a TOML file"):
        parse(TrainConfig, ["--config"], prog="x")
