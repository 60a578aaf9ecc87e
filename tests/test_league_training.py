"""A league in a run: who meets whom, what is trained, what is kept and served, and going on after a kill."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llm_arena.engines.base import Sampling
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import ArenaError, TrainingError, UnknownName, UsageError
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.training import checkpoint
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.league_ratings import LiveRatings
from llm_arena.training.league_run import LeagueRun
from llm_arena.training.league_settings import LeagueSettings
from llm_arena.training.learner import Learner
from llm_arena.training.loop import train
from llm_arena.training.planning import Planner
from llm_arena.training.policies import TrainedPolicy
from llm_arena.training.setup import set_up
from llm_arena.training.sources import DealtSource
from llm_arena.training.trainer import Trainer
from llm_arena.types import Trace
from train_parts import PROGRAM, tiny
from train_parts import model as model  # a fixture: the alias says that it is meant to be here


def settings(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    league = LeagueSettings(
        self_play=0.4,
        past=0.3,
        anchors_share=0.3,
        anchors=["optimal", f"llm:{model}"],  # type: ignore[arg-type]  # a list is taken as well
        snapshot_every=2,
        keep=2,
        min_games=2,
    )
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 9,
        "starts_per_step": 8,
        "group_size": 2,
        "max_new_tokens": 1,
        "lr": 1e-2,
        "illegal": "random_legal",
        "checkpoint_every": 3,
        "league": league,
    }
    return TrainConfig(**given | changes)


def traces_of(run_dir: Path) -> list[Trace]:
    return list(read_traces(run_dir / "traces.jsonl"))


def opponent_of(trace: Trace) -> str:
    """Who meets the learner; empty where it meets itself."""
    others = {info.policy or info.agent for info in trace.seats.values()} - {"learner"}
    assert len(others) <= 1 and any(info.policy == "learner" for info in trace.seats.values())
    return next(iter(others), "")


def everything(run_dir: Path) -> dict[str, Any]:
    """All of a run that has to be equal: state, metrics, traces, ratings, past versions and weights."""
    saved = checkpoint.newest(run_dir / "checkpoints")
    assert saved is not None
    weights = {file.relative_to(run_dir): load_file(file) for file in run_dir.rglob("final/model.safetensors")}
    weights |= {file.relative_to(run_dir): load_file(file) for file in run_dir.glob("league/*/model.safetensors")}
    return {
        "state": {key: saved.state[key] for key in ("step", "league", "ratings", "baselines")},
        "metrics": tiny().timeless(run_dir),
        "ratings": json.loads((run_dir / "ratings.json").read_text()),
        "folders": sorted(path.name for path in (run_dir / "league").iterdir()),
        "traces": [
            [
                *(trace.id, trace.seed, trace.returns, [info.policy for info in trace.seats.values()]),
                *(turn.completion_ids for turn in trace.turns),
            ]
            for trace in traces_of(run_dir)
        ],
        "weights": {(file, name): tensor.tolist() for file, group in weights.items() for name, tensor in group.items()},
    }


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Runs without a break, by how far ahead they play."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {ahead: tmp_path_factory.mktemp("whole") / str(ahead) for ahead in (0, 1)}
    for ahead, folder in found.items():
        train(settings(model, folder, max_staleness=ahead), script="t", progress=False)
    torch.set_num_threads(before)
    return found


class Killed(BaseException):
    """Nothing is saved after it."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("point", ["step 5", "step 8", "version", "tidy"])
def test_a_run_that_was_killed_meets_the_same_opponents_and_ends_alike(
    point: str, ahead: int, model: Path, whole: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in this process: whatever would be saved on the way out is not."""
    config = settings(model, tmp_path / "run", max_staleness=ahead)
    with monkeypatch.context() as patch:
        calls: Counter[str] = Counter()

        def die(*_: Any) -> None:
            patch.setattr(Trainer, "save", lambda self: None)
            raise Killed

        def dies_after(owner: Any, name: str, count: int) -> None:
            original = getattr(owner, name)

            def wrapped(*given: Any) -> None:
                original(*given)
                calls[name] += 1
                if calls[name] == count:
                    die()

            patch.setattr(owner, name, wrapped)

        if point == "version":  # of step 4; the last checkpoint is that of step 3
            dies_after(TrainedPolicy, "keep_version", 2)
        elif point == "tidy":  # after the second checkpoint
            dies_after(LeagueRun, "tidy", 2)
        on_step = None
        if point.startswith("step"):
            on_step = lambda row, learners: die() if row["step"] == int(point[5:]) else None  # noqa: E731 - one place
        with pytest.raises(Killed):
            train(config, script="t", progress=False, on_step=on_step)
    assert not (tmp_path / "run" / "final").exists()
    train(config, script="t", progress=False)
    assert everything(tmp_path / "run") == everything(whole[ahead])


@pytest.mark.usefixtures("one_thread")
def test_a_process_that_is_killed_while_it_keeps_a_version_goes_on_alike(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(model), str(tmp_path / "run"), "version", "league"]
    done = subprocess.run(command, timeout=120, env={"OMP_NUM_THREADS": "1", "PATH": ""})
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "run" / "league" / "learner@3").is_dir()
    program = tiny()
    for name in ("run", "other"):
        program.run(str(model), str(tmp_path / name), **program.KINDS["league"])
    assert everything(tmp_path / "run") == everything(tmp_path / "other")


def test_all_episodes_of_a_start_meet_the_same_opponent_and_shares_roughly_hold(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path, num_steps=12, starts_per_step=12)
    result = train(config, script="t", progress=False)
    groups: dict[str, list[Trace]] = defaultdict(list)
    for trace in traces_of(tmp_path):
        groups[trace.group].append(trace)
    met = Counter[str]()
    seats: Counter[tuple[str, ...]] = Counter()
    for members in groups.values():
        own = {tuple(seat for seat, info in one.seats.items() if info.policy == "learner") for one in members}
        assert len(members) == 2 and len(own) == 1 and len({opponent_of(one) for one in members}) == 1
        met[opponent_of(members[0])] += 1
        seats[own.pop()] += 1
    assert sum(met.values()) == 144
    past = {name: count for name, count in met.items() if name.startswith("learner@")}
    anchors = {name: count for name, count in met.items() if name and name not in past}
    # 144 draws: three standard deviations are 17 of them; the first two steps have no past version
    assert abs(met[""] - 0.4 * 144 - 0.3 * 24) < 17
    assert abs(sum(past.values()) - 0.3 * 120) < 17
    assert anchors.keys() == {"kuhn-poker-v0/optimal", str(model)} and abs(sum(anchors.values()) - 0.3 * 144) < 17
    assert past.keys() <= {f"learner@{step}" for step in (2, 4, 6, 8, 10)} and len(past) > 2
    # the seat moves on: each is held alone about equally often
    assert abs(seats["player_0",] - seats["player_1",]) < 30
    # what is told is what was played, and only the learner's tokens were trained
    for name in ("past", *anchors):
        played = 2 * sum(past.values()) if name == "past" else 2 * anchors[name]
        assert sum(row[f"league/games/{name}"] for row in result.rows) == played
    for row, step in zip(result.rows, range(12), strict=True):
        own = sum(
            len(turn.completion_ids)
            for trace in traces_of(tmp_path)
            if int(trace.id[:6]) == step
            for turn in trace.turns
            if trace.seats[turn.seat].policy == "learner"
        )
        assert row["trained_tokens"] == own
    assert [row["league/versions"] for row in result.rows] == [0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2]


def test_ratings_are_those_of_the_games_in_their_order(model: Path, whole: dict[int, Path]) -> None:
    slow = LiveRatings()
    for trace in traces_of(whole[0]):
        step, first = int(trace.id[:6]), trace.id.endswith("-0000-00")
        if first and step in (2, 4, 6, 8):
            slow.inherit(f"learner@{step}", "learner")
        slow.rate(trace)
    told = json.loads((whole[0] / "ratings.json").read_text())
    assert "order" in told["about"]
    assert [(one["entrant"], one["mu"], one["games"]) for one in told["ratings"]] == [
        (one.entrant, one.mu, one.games) for one in slow.table()
    ]
    last = json.loads((whole[0] / "metrics.jsonl").read_text().splitlines()[-1])
    shown = {name.removeprefix("rating/player/"): value for name, value in last.items() if name.startswith("rating/")}
    assert shown["learner"] == next(one.mu for one in slow.table() if one.entrant == "learner")
    assert shown.keys() == {"learner", "kuhn-poker-v0/optimal", str(model), "learner@4", "learner@8"}


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_engine_serves_what_is_needed_and_folders_stay_as_long_as_a_checkpoint_names_them(
    ahead: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    weights: dict[int, dict[str, torch.Tensor]] = {0: load_file(model / "model.safetensors")}
    tidied: list[set[str]] = []
    tidy = LeagueRun.tidy

    def watched(self: Any) -> None:
        tidy(self)
        folders = {path.name for path in (tmp_path / "league").glob("*")}
        named = set(self._league.needed())
        for file in (tmp_path / "checkpoints").glob("step-*/state.json"):
            league = json.loads(file.read_text())["league"]
            named |= {one["agent"] for each in [*league["before"], league["now"]] for one in each["past"]}
        assert folders == named
        tidied.append(folders)
        runs.append(self)

    monkeypatch.setattr(LeagueRun, "tidy", watched)

    def look(row: Mapping[str, float], learners: Mapping[str, Learner]) -> None:
        step = int(row["step"])
        weights[step] = {name: tensor.clone() for name, tensor in learners["learner"].weights().items()}
        if not runs or step == 9:
            return
        league, policy = runs[-1]._league, runs[-1]._policy
        needed = league.needed()
        served = set(policy._engine.describe()["policies"])
        assert served == needed | {"learner", str(model)}
        for name in needed:
            own = policy._engine._models[name].state_dict()
            kept = weights[int(name.partition("@")[2])]
            assert all(torch.equal(own[key], tensor) for key, tensor in kept.items())

    config = settings(model, tmp_path, max_staleness=ahead, checkpoint_every=1, seed=ahead)
    with_probe: list[float] = []

    def look_and_sample(row: Mapping[str, float], learners: Mapping[str, Learner]) -> None:
        look(row, learners)
        if row["step"] == 8:  # a past version says what its folder says
            policy = runs[-1]._policy
            name = max(runs[-1]._league.needed())
            answer = policy._runtime.run(policy._engine.generate([5, 6, 7], Sampling(max_new_tokens=4, seed=1), name))
            own = Learner.load(tmp_path / "league" / name).logprobs([5, 6, 7], answer.token_ids, 1.0).tolist()
            with_probe.extend(abs(a - b) for a, b in zip(own, answer.logprobs, strict=True))

    result = train(config, script="t", progress=False, on_step=look_and_sample)
    assert max(with_probe) < 1e-5
    assert any(one - other for one, other in pairwise(tidied))  # something went
    # the anchor's folder, and the engine's copy of it, are what they were
    assert all(torch.equal(load_file(model / "model.safetensors")[key], weights[0][key]) for key in weights[0])
    # a past version is a model that plays
    left = sorted(path.name for path in (tmp_path / "league").iterdir())
    assert {"learner@4", "learner@8"} <= set(left)
    assert result.rows[-1]["league/versions"] == 2
    assert (tmp_path / "league" / "learner@8" / "tokenizer.json").is_file()


@pytest.mark.usefixtures("one_thread")
def test_a_league_of_one_anchor_is_a_run_against_an_opponent(model: Path, tmp_path: Path) -> None:
    anchors = LeagueSettings(self_play=0, anchors_share=1, anchors="optimal")
    one = train(settings(model, tmp_path / "a", league=anchors), script="t", progress=False)
    plain = settings(model, tmp_path / "b", league=LeagueSettings(), opponent="optimal")
    other = train(plain, script="t", progress=False)
    left, right = (load_file(run.final_dir / "model.safetensors") for run in (one, other))
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not any("league" in name for row in other.rows for name in row)
    assert not (tmp_path / "b" / "league").exists() and not (tmp_path / "b" / "ratings.json").exists()


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
def test_an_anchor_is_counted_by_its_name_in_traces(model: Path, ending: str, tmp_path: Path) -> None:
    server = "openai:m@http://127.0.0.1:9,http://127.0.0.1:8"
    given: Any = [f"openai:m@http://127.0.0.1:9{ending}, http://127.0.0.1:8{ending}", "optimal", str(model)]
    mix = LeagueSettings(self_play=0, anchors_share=1, anchors=given)
    with Runtime() as runtime:
        planner = Planner(settings(model, tmp_path, league=mix), None, DealtSource(per_batch=8), runtime)
        assert planner.league is not None
        assert [one.agent for one in planner.league.members] == [server, "kuhn-poker-v0/optimal", str(model)]
        seated = {agent.name for plan in planner.plans(0) for agent in plan.agents.values()}
        assert seated == {"llm:learner", server, "kuhn-poker-v0/optimal", f"llm:{model}"}
        twice = dataclasses.replace(mix, anchors=f"openai:m@http://h,openai:m@http://h{ending or '/'}")
        with pytest.raises(UsageError, match='names "openai:m@http://h" twice'):
            Planner(settings(model, tmp_path, league=twice), None, DealtSource(per_batch=8), runtime)


def test_a_version_that_is_gone_is_told(model: Path, whole: dict[int, Path], tmp_path: Path) -> None:
    shutil.copytree(whole[0], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "final")
    shutil.rmtree(tmp_path / "run" / "league" / "learner@4")
    with pytest.raises(TrainingError, match="past version learner@4 is gone .* --fresh"):
        train(settings(model, tmp_path / "run"), script="t", progress=False)
    train(settings(model, tmp_path / "run", num_steps=2, fresh=True), script="t", progress=False)
    assert not (tmp_path / "run" / "league").exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"opponent": "random-legal"}, "opponent='random-legal'; leave opponent out"),
        ({"roster": {"player_1": "random-legal"}}, "leave roster out"),
        ({"harness": "some:thing"}, "leave harness out"),
    ],
)
def test_who_else_says_who_sits_where_is_refused(changes: dict[str, Any], says: str, model: Path) -> None:
    with pytest.raises(UsageError, match=says):
        settings(model, Path("run"), **changes)


def test_what_a_league_cannot_have_is_refused_and_leaves_no_run(model: Path, tmp_path: Path) -> None:
    config = settings(model, tmp_path / "run")
    with pytest.raises(UsageError, match="so does the roster"):
        train(config, roster={"player_0": "learner", "player_1": "optimal"}, progress=False)
    anchors = {name: LeagueSettings(self_play=0.5, anchors_share=0.5, anchors=name) for name in ("learner", "optimol")}
    for name, says in (("learner", "named like a policy that is trained"), ("optimol", "optimal")):
        with pytest.raises(ArenaError, match=says):
            train(dataclasses.replace(config, league=anchors[name]), progress=False)
    past = LeagueSettings(self_play=0.5, past=0.5)
    alone = dataclasses.replace(config, env="guess-number-v0", illegal=None, league=past)
    with pytest.raises(UsageError, match="has one seat that is paid"):
        train(alone, progress=False)
    full = dataclasses.replace(config, engine=EngineSettings(kind="vllm"), league=past)
    with Runtime() as runtime:
        planner = Planner(full, None, DealtSource(per_batch=8), runtime)
        with pytest.raises(UsageError, match="--lora-rank 16 --publish adapter, or take --engine.kind transformers"):
            set_up(full, planner, runtime)
        adapters = dataclasses.replace(full, lora_rank=4, publish="adapter")
        assert set_up(adapters, planner, runtime).engines[0].max_lora_rank == 4
    assert not (tmp_path / "run").exists()


def test_settings_come_from_the_command_line_and_from_a_file(tmp_path: Path) -> None:
    mix = ["--league.self-play", "0.7", "--league.past", "0.1", "--league.anchors-share", "0.2"]
    got = parse(TrainConfig, [*mix, "--league.anchors", "random-legal", "--evaluation.every", "5"], prog="t")
    assert got.league == LeagueSettings(self_play=0.7, past=0.1, anchors_share=0.2, anchors="random-legal")
    assert got.evaluation.every == 5
    file = tmp_path / "t.toml"
    file.write_text(
        '[league]\nself_play = 0.7\npast = 0.1\nanchors_share = 0.2\nanchors = ["random-legal"]\n'
        "[evaluation]\nevery = 5\n"
    )
    assert parse(TrainConfig, ["--config", str(file)], prog="t") == got
    file.write_text("[league]\nkep = 3\n")
    with pytest.raises(UnknownName, match="keep"):
        parse(TrainConfig, ["--config", str(file)], prog="t")
    with pytest.raises(UsageError, match="set self_play to 0.9"):
        parse(TrainConfig, ["--league.past", "0.1"], prog="t")
