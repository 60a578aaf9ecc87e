"""Evaluations in a run: when, with which weights, and that they change nothing; probes of an engine that died."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file

import llm_arena
from llm_arena.engines import vllm_start
from llm_arena.engines.base import Sampling
from llm_arena.engines.fake import FakeEngine
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import EngineError, UsageError
from llm_arena.runtime import Runtime
from llm_arena.training import evaluation
from llm_arena.training.config import TrainConfig
from llm_arena.training.evaluation import Evaluation
from llm_arena.training.evaluation_settings import EvaluationSettings
from llm_arena.training.league_settings import LeagueSettings
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.planning import Planner
from llm_arena.training.run_identity import differences, fingerprint
from llm_arena.training.setup import set_up
from llm_arena.training.sources import DealtSource
from llm_arena.training.sync import Publisher
from llm_arena.types import Completion, Ending
from train_parts import model as model  # a fixture: the alias says that it is meant to be here
from train_parts import tiny

EVERY_TWO = EvaluationSettings(every=2, matches=8)


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 5,
        "starts_per_step": 4,
        "max_new_tokens": 1,
        "lr": 1e-2,
        "illegal": "random_legal",
        "evaluation": EVERY_TWO,
    }
    return TrainConfig(**given | changes)


def equal(one: Path, other: Path) -> bool:
    left, right = (load_file(folder / "model.safetensors") for folder in (one, other))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("ahead", [0, 2])
def test_they_are_told_with_their_step_and_change_no_weight(ahead: int, model: Path, tmp_path: Path) -> None:
    result = train(settings(model, tmp_path / "a", max_staleness=ahead), script="t", progress=False)
    evaluated = [row["step"] for row in result.rows if "eval/win_rate" in row]
    assert evaluated == [2, 4, 5]  # and after the last step
    assert all(row["eval/matches"] == 8 and row["eval/seconds"] > 0 for row in result.rows if row["step"] in evaluated)
    without = settings(model, tmp_path / "b", max_staleness=ahead, evaluation=EvaluationSettings())
    other = train(without, script="t", progress=False)
    assert equal(result.final_dir, other.final_dir)
    keys = {"eval", "alarm"}
    plain = [
        {key: value for key, value in row.items() if key.partition("/")[0] not in keys}
        for row in tiny().timeless(tmp_path / "a")
    ]
    assert plain == [
        {key: value for key, value in row.items() if key.partition("/")[0] not in keys}
        for row in tiny().timeless(tmp_path / "b")
    ]


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_weights_of_the_step_meet_those_of_the_start(
    ahead: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, dict[str, torch.Tensor]] = {}
    run = Evaluation.run

    def watched(self: Any, step: int) -> Any:
        [engine] = {id(served.engine): served.engine for served in self._runtime._served.values()}.values()
        served = self._runtime._served
        for name in ("learner:a@0", "learner:b@0"):
            initial = engine._models[served[name].policy_id].state_dict()
            assert all(torch.equal(initial[key], start[key]) for key in start)
        seen[step] = {
            f"{name}/{key}": tensor.clone()
            for name in ("learner:a", "learner:b")
            for key, tensor in engine._models[name].state_dict().items()
        }
        return run(self, step)

    monkeypatch.setattr(Evaluation, "run", watched)
    start = load_file(model / "model.safetensors")
    kept: dict[int, dict[str, torch.Tensor]] = {}

    def keep(row: Mapping[str, float], learners: Mapping[str, Learner]) -> None:
        kept[int(row["step"])] = {
            f"{name}/{key}": tensor.clone()
            for name, learner in learners.items()
            for key, tensor in learner.weights().items()
        }

    roster = {"player_0": "learner:a", "player_1": "learner:b"}
    config = settings(model, tmp_path, roster=roster, max_staleness=ahead)
    train(config, script="t", progress=False, on_step=keep)
    assert sorted(seen) == [2, 4, 5]
    for step, weights in seen.items():
        assert all(torch.equal(weights[name], tensor) for name, tensor in kept[step].items())


def test_a_void_match_takes_the_other_of_its_start_along() -> None:
    trace = llm_arena.play("kuhn-poker-v0", "random-legal", seed=3)
    assert trace.outcome is not None
    # who sits first wins each match: whoever holds the seat
    trace = msgspec.structs.replace(
        trace,
        returns={"player_0": 1.0, "player_1": -1.0},
        outcome=msgspec.structs.replace(trace.outcome, winners=["player_0"], ranks={"player_0": 1, "player_1": 2}),
    )
    void = {"ending": Ending.VOID, "returns": {}, "outcome": None}
    seatings = [
        {"player_0": "trained", "player_1": "initial"},
        {"player_0": "initial", "player_1": "trained"},
    ]
    played = [
        (msgspec.structs.replace(trace, group=str(start), **void if number == 1 and start < 3 else {}), who)
        for start in range(6)
        for number, who in enumerate(seatings)
    ]
    row = evaluation._row(played)
    assert (row["eval/matches"], row["eval/void"]) == (6, 3)
    assert (row["eval/win_rate"], row["eval/difference"]) == (0.5, 0.0)
    assert evaluation._row(played[:6]) == {"eval/matches": 0, "eval/void": 3}  # nothing is to be said


@pytest.mark.usefixtures("one_thread")
def test_a_run_that_was_broken_off_goes_on_with_the_same_evaluations(model: Path, tmp_path: Path) -> None:
    league = LeagueSettings(self_play=0.5, past=0.5, snapshot_every=1, keep=1, min_games=1)
    whole = settings(model, tmp_path / "whole", max_staleness=1, league=league)
    train(whole, script="t", progress=False)

    def press(row: Mapping[str, float], learners: Any) -> None:
        if row["step"] == 3:
            raise KeyboardInterrupt

    broken = settings(model, tmp_path / "broken", max_staleness=1, league=league)
    with pytest.raises(KeyboardInterrupt):
        train(broken, script="t", progress=False, on_step=press)
    train(broken, script="t", progress=False)
    assert tiny().timeless(tmp_path / "broken") == tiny().timeless(tmp_path / "whole")
    assert equal(tmp_path / "broken" / "final", tmp_path / "whole" / "final")


def test_they_are_no_part_of_what_makes_a_run(model: Path) -> None:
    one, other = (
        settings(model, Path("run"), evaluation=EvaluationSettings(every=every)).to_json() for every in (0, 3)
    )
    assert fingerprint(one) == fingerprint(other) and differences(one, other) == []
    league = settings(model, Path("run"), league=LeagueSettings(self_play=0.5, past=0.5)).to_json()
    assert fingerprint(one) != fingerprint(league)
    assert differences(one, league) == ["league.past: 0.0 -> 0.5", "league.self_play: 1.0 -> 0.5"]


def test_what_can_not_be_evaluated_is_refused_and_leaves_no_run(model: Path, tmp_path: Path) -> None:
    nobody = settings(model, tmp_path / "run", env="naming-v0", illegal=None, env_args={"judge": "seat"})
    with pytest.raises(UsageError, match="nobody in the contest"):
        train(nobody, roster={"namer": "random-legal", "judge": "learner"}, progress=False)
    assert not (tmp_path / "run").exists()
    remote = settings(model, tmp_path / "run", engine=EngineSettings(kind="openai", url="http://127.0.0.1:9"))
    with Runtime() as runtime:
        planner = Planner(remote, None, DealtSource(per_batch=4), runtime)
        with pytest.raises(UsageError, match="whose place on the server the trained ones take"):
            set_up(remote, planner, runtime)


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"evaluation": EVERY_TWO}, 0.46),
        ({"evaluation": EVERY_TWO, "lora_rank": 4}, None),  # beside its own adapter
        ({"evaluation": EvaluationSettings()}, None),
        ({"league": LeagueSettings(self_play=0.5, anchors_share=0.5, anchors="MODEL,random-legal")}, 0.46),
    ],
)
def test_the_initial_model_takes_an_engine_of_its_own_beside_full_weights_on_vllm(
    changes: dict[str, Any], share: float | None, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    if "league" in changes:
        changes = {"league": dataclasses.replace(changes["league"], anchors=f"{model},random-legal")}
    given = {"evaluation": EvaluationSettings(), "engine": EngineSettings(kind="vllm")} | changes
    config = settings(model, tmp_path, **given)
    with Runtime(engine=config.engine) as runtime:
        setup = set_up(config, Planner(config, None, DealtSource(per_batch=4), runtime), runtime)
        [engine] = setup.engines
    assert engine.settings.vllm_args().get("gpu_memory_utilization") == share


class Dying(FakeEngine):
    """Fails the first calls, as an engine does whose process was killed and comes back."""

    left = 0

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        if self.left:
            self.left -= 1
            raise EngineError("the process has died")
        return await super().generate(prompt_ids, sampling, policy)


def test_a_probe_samples_once_more_where_the_engine_died(model: Path, tmp_path: Path) -> None:
    learner = Learner.load(model)
    engine = Dying(vocab_size=8)
    with Runtime(engine=engine) as runtime:
        publisher = Publisher(learner, engine, runtime, policy="learner", folder=tmp_path / "weights")
        publisher.publish(0)
        calm = publisher.probe([[3, 4]], temperature=1.0, seed=0, tokens=3)
        engine.left = 1
        assert publisher.probe([[3, 4]], temperature=1.0, seed=0, tokens=3) == calm
        assert engine.left == 0
        engine.left = 2
        with pytest.raises(EngineError, match="has died"):
            publisher.probe([[3, 4]], temperature=1.0, seed=0, tokens=3)
