"""What a policy has of its own, from the command line, TOML or Python into its settings, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_arena.engines import vllm_start
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import ArenaError, TrainingError, UnknownName, UsageError
from llm_arena.models import random_model
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
from llm_arena.training import placement
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.evaluation_settings import EvaluationSettings
from llm_arena.training.league_settings import LeagueSettings
from llm_arena.training.loop import train
from llm_arena.training.placement import PolicyPlan, place, plan_engines
from llm_arena.training.planning import Planner, is_trained
from llm_arena.training.run_identity import differences, fingerprint
from llm_arena.training.setup import set_up, with_chosen_engine
from llm_arena.training.sources import DealtSource
from llm_arena.types import Action, PastTurn, View
from train_parts import model as model  # a fixture: the alias says that it is meant to be here

TABLES = {
    "a": {"lr": 1e-3, "lora-rank": 8, "engine": {"kind": "vllm", "max-model-len": 512}},
    "learner": {"model": "other"},
}
TOML = """
lr = 1e-5
[policies.a]
lr = 1e-3
lora-rank = 8
[policies.a.engine]
kind = "vllm"
max-model-len = 512
[policies.learner]
model = "other"
"""


def read(*argv: str) -> TrainConfig:
    return parse(TrainConfig, argv, prog="t")


def test_tables_come_from_python_the_command_line_and_toml(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(TOML)
    tables: Any = TABLES
    three = [TrainConfig(policies=tables), read("--policies", json.dumps(TABLES)), read("--config", str(file))]
    assert three[0] == three[1] == three[2]
    own = three[0].of_policy("learner:a")
    assert (own.lr, own.lora_rank, own.model) == (1e-3, 8, "smollm2-135m")
    assert own.engine == EngineSettings(kind="vllm", args='{"max_model_len": 512}')
    assert three[0].of_policy("learner").model == "other" and three[0].of_policy("learner").lr == 1e-5
    assert three[0].of_policy("learner:b") == dataclasses.replace(three[0], policies="{}")
    objects: Any = {"a": {"engine": EngineSettings(dtype="bfloat16")}}
    assert TrainConfig(policies=objects).of_policy("a").engine == EngineSettings(dtype="bfloat16")


def test_an_engine_goes_over_the_runs_and_another_kind_starts_anew() -> None:
    tables: Any = {"a": {"engine": {"devices": 1}}, "b": {"engine": "transformers"}}
    run = EngineSettings(kind="vllm", args='{"max_model_len": 512}')
    config = TrainConfig(engine=run, policies=tables)
    assert config.of_policy("a").engine == dataclasses.replace(run, devices="1")
    assert config.of_policy("b").engine == EngineSettings()


def test_a_table_may_list_servers(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    engine = 'kind = "openai"\nurl = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]\n'
    file.write_text(f"[engine]\n{engine}[policies.a.engine]\n{engine}")
    config = read("--config", str(file))
    for found in (config.engine, config.of_policy("a").engine):
        assert found == EngineSettings(kind="openai", url="http://127.0.0.1:8000,http://127.0.0.1:8001")


@pytest.mark.parametrize("installed", [True, False])
def test_auto_in_a_table_is_what_it_comes_to_on_this_machine(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_start, "installed", lambda: installed)
    tables: Any = {"a": {"engine": "auto"}, "b": {"engine": {"dtype": "bfloat16"}}, "c": {"lr": 0.5}}
    engines = EngineSettings(kind="vllm", args='{"max_model_len": 512}'), EngineSettings(devices="cpu")
    vllm, here = (with_chosen_engine(TrainConfig(engine=engine, policies=tables)) for engine in engines)
    kind: Any = "vllm" if installed else "transformers"
    assert json.loads(vllm.policies)["a"]["engine"] == json.loads(here.policies)["a"]["engine"] == {"kind": kind}
    # what is of the run's own kind goes over the run's, another kind starts anew
    assert vllm.of_policy("a").engine == (engines[0] if installed else EngineSettings())
    assert here.of_policy("a").engine == (EngineSettings(kind="vllm") if installed else engines[1])
    assert with_chosen_engine(vllm) == vllm
    named: Any = {"a": {"engine": kind}}
    unknown = TrainConfig(engine=EngineSettings(kind="auto", devices="0"), policies=named)
    assert unknown.of_policy("a").engine == EngineSettings(kind=kind, devices="0")


@pytest.mark.parametrize(
    ("tables", "kind", "says"),
    [
        ("[]", UsageError, "policies must be a table of settings for each policy"),
        ("{", UsageError, "policies must be a table"),
        ('{"a": 1}', UsageError, "policies must be a table"),
        ('{"a": {"lrr": 1}}', UnknownName, "policies.a: 'lrr' is no setting. Did you mean \"lr\"?"),
        ('{"a": {"env": "x"}}', UnknownName, "policies.a: 'env' is the same for all policies of a run"),
        ('{"a": {"lr": -1}}', UsageError, "policies.a: lr must be a finite number above 0, got -1"),
        ('{"a": {"lr": "1"}}', UsageError, "policies.a: lr = '1' does not fit"),
        ('{"a": {"model": 3}}', UsageError, "policies.a: model = 3 does not fit"),
        ('{"a": {"publish": "adapter"}}', UsageError, "policies.a: publish=adapter needs an adapter"),
        ('{"a": {"publish": "often"}}', UsageError, "policies.a: publish must be one of auto, adapter, merged"),
        ('{"a": {"lr": 1}, "a": {}}', UsageError, "policies has the key 'a' twice in one table; name it once"),
        ('{"a": {"lr": 1, "lr": 2}}', UsageError, "policies has the key 'lr' twice"),
        ('{"a": {"lora_rank": 1, "lora-rank": 2}}', UsageError, "policies.a: 'lora_rank' and 'lora-rank' are the same"),
        (
            '{"a": {"engine": {"max-model-len": 1, "max_model_len": 2}}}',
            UsageError,
            "policies.a.engine: 'max-model-len' and 'max_model_len' are the same setting; keep one",
        ),
        ('{"a": {"engine": 3}}', UsageError, "policies.a.engine = 3; expected a table"),
        ('{"a": {"engine": {"kind": "vlm"}}}', UsageError, "engine.kind must be one of"),
        ('{"a": {"engine": {"max_model_len": 3}}}', UsageError, "max_model_len is an argument of vLLM"),
    ],
)
def test_tables_that_can_not_work_are_one_line(tables: str, kind: type[ArenaError], says: str) -> None:
    with pytest.raises(kind) as caught:
        TrainConfig(policies=tables)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_what_differs_names_the_policy_and_an_address_makes_no_difference() -> None:
    def run(**tables: Any) -> dict[str, Any]:
        policies: Any = tables
        return json.loads(json.dumps(TrainConfig(policies=policies).to_json()))

    assert differences(run(a={"lr": 0.5}), run(a={"lr": 0.25})) == ["policies.a.lr: 0.5 -> 0.25"]
    assert differences(run(), run(a={"lr": 0.25})) == ["policies.a.lr: 1e-05 -> 0.25"]  # before, as in the run
    assert differences(run(), run(a={"engine": "vllm"})) == ["policies.a.engine.kind: 'transformers' -> 'vllm'"]
    assert len({fingerprint(run()), fingerprint(run(a={"lr": 0.5})), fingerprint(run(b={"lr": 0.5}))}) == 3
    at, elsewhere = ({"kind": "openai", "url": f"http://127.0.0.1:{port}"} for port in (8000, 8001))
    assert differences(run(a={"engine": at}), run(a={"engine": elsewhere})) == []
    assert fingerprint(run(a={"engine": at})) == fingerprint(run(a={"engine": elsewhere}))


def test_a_table_with_another_kind_of_engine_has_nothing_of_the_runs() -> None:
    def run(table: dict[str, Any], dtype: Any = "bfloat16") -> dict[str, Any]:
        policies: Any = {"a": {"engine": table}}
        engine = EngineSettings(kind="transformers", dtype=dtype)
        return json.loads(json.dumps(TrainConfig(engine=engine, policies=policies).to_json()))

    other = {"kind": "vllm", "dtype": "bfloat16"}
    assert differences(run(other), run({"kind": "vllm"})) == ["policies.a.engine.dtype: 'bfloat16' -> 'auto'"]
    assert differences(run({"kind": "vllm", "dtype": "auto"}), run({"kind": "vllm"})) == []
    same = {"kind": "transformers", "dtype": "bfloat16"}
    assert differences(run(same), run({})) == differences(run(same), run({"kind": "transformers"})) == []
    assert differences(run(same, "float32"), run({}, "float32")) == ["policies.a.engine.dtype: 'bfloat16' -> 'float32'"]


def test_a_run_of_an_earlier_version_goes_on_and_is_found() -> None:
    def earlier(config: TrainConfig) -> dict[str, Any]:
        """What was recorded before there were these settings."""
        written: dict[str, Any] = json.loads(json.dumps(config.to_json()))
        for name in ("policies", "alternate_every", "league", "evaluation"):
            del written[name]
        del written["engine"]["url"]
        return written

    new = TrainConfig(lr=0.5)
    assert differences(earlier(new), new.to_json()) == []
    assert fingerprint(earlier(new)) == fingerprint(new.to_json())
    assert fingerprint(TrainConfig().to_json()) == "ad2ea2b2"  # as it was then
    league = LeagueSettings(self_play=0.5, past=0.5, snapshot_every=1)
    changed = TrainConfig(lr=0.5, alternate_every=2, league=league)
    assert differences(earlier(new), changed.to_json()) == [
        "alternate_every: 0 -> 2",
        "league.past: 0.0 -> 0.5",
        "league.self_play: 1.0 -> 0.5",
        "league.snapshot_every: 20 -> 1",
    ]
    assert fingerprint(changed.to_json()) != fingerprint(new.to_json())
    gone = {name: value for name, value in earlier(new).items() if name != "credit"}
    assert differences(earlier(new), gone) == ["credit: 'seat' -> None"]


def config_for(model: Path, run_dir: Path, **changes: Any) -> TrainConfig:
    given: dict[str, Any] = {
        "env": "kuhn-poker-v0",
        "roster": {"player_0": "learner:a", "player_1": "learner:b"},
        "model": str(model),
        "run_dir": str(run_dir),
        "num_steps": 1,
        "starts_per_step": 2,
        "max_new_tokens": 1,
        "illegal": "random_legal",
    }
    return TrainConfig(**given | changes)


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"policies": {"c": {"lr": 1.0}}}, UnknownName, "policies.c is for the policy learner:c, which no seat"),
        ({"policies": {"learner": {"lr": 1.0}}}, UnknownName, "Trained are: learner:a, learner:b"),
        ({"policies": {"b": {"model": "/nowhere"}}}, UnknownName, "/nowhere"),
        ({"alternate_every": 1, "roster": {}}, UsageError, "the roster has one, learner: name another"),
        ({"roster": {"player_0": "learner:../../x", "player_1": "optimal"}}, UsageError, "needs a name of letters"),
        (
            {"roster": {"player_0": "learner:a"}},
            UsageError,
            'trains learner:a and names nobody for player_1; .* such as learner:a, an agent, or "learner"',
        ),
        ({"alternate_every": -1}, UsageError, "alternate_every must be a whole number of at least 0"),
        ({"policies": {"b": {"engine": {"devices": "7"}}}}, UsageError, "torch sees 0 CUDA devices"),
    ],
)
def test_a_run_that_can_not_work_leaves_nothing_behind(
    changes: dict[str, Any], kind: type[ArenaError], says: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=says):
        train(config_for(model, tmp_path / "run", **changes), script="t", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_its_own_tables_only(model: Path, tmp_path: Path) -> None:
    own: Any = {"a": {"lr": 1e-3}}
    train(config_for(model, tmp_path, policies=own), script="t", progress=False)
    assert train(config_for(model, tmp_path, policies=json.dumps(own)), script="t", progress=False).was_complete
    with pytest.raises(TrainingError, match=r"policies\.a\.lr: 0\.001 -> 1e-05"):
        train(config_for(model, tmp_path), script="t", progress=False)


def plan(name: str, base: Path, config: TrainConfig) -> PolicyPlan:
    own = config.of_policy(name)
    return PolicyPlan(name=name, config=own, placed=place(own), base=base, chat=ChatFormat.load(base))


def test_who_shares_an_engine(model: Path, tiny_model: Path, tmp_path: Path) -> None:
    def engines(bases: str, **changes: Any) -> list[str]:
        config = config_for(model, tmp_path, **changes)
        plans = [
            plan(name, {"x": model, "y": tiny_model}[base], config) for name, base in zip("abc", bases, strict=False)
        ]
        return ["".join(one.policies) for one in plan_engines(plans, config.engine)[0]]

    adapters = {"engine": "vllm", "lora_rank": 4, "publish": "adapter"}
    assert engines("xyx") == ["abc"]  # in this process
    assert engines("xyx", policies={"b": {"engine": {"dtype": "bfloat16"}}}) == ["ac", "b"]
    assert engines("xxx", policies={"a": {"engine": "vllm"}, "b": {"engine": "vllm"}}) == ["a", "b", "c"]
    assert engines("xyx", policies={name: adapters for name in "abc"}) == ["ac", "b"]  # by base
    mixed = {"a": adapters, "b": adapters, "c": {"engine": "vllm"}}
    assert engines("xxx", policies=mixed) == ["ab", "c"]
    server = {"kind": "openai", "url": "http://127.0.0.1:8000"}
    remote = {name: {"engine": server, "lora_rank": 4} for name in "abc"}
    assert engines("xxx", policies=remote) == ["abc"]
    with pytest.raises(UsageError, match="http://127.0.0.1:8000 can't hold the full weights of one policy beside .* a"):
        engines("xx", policies={name: {"engine": server} for name in "ab"})


def test_a_frozen_seat_of_an_adapters_base_takes_no_engine_of_its_own(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    other = random_model(tmp_path / "other", words=["J"], hidden_size=32, layers=1, heads=2)
    for frozen, rank, shares in ((model, 4, [None]), (other, 4, [0.46]), (model, 0, [0.46])):
        config = config_for(
            model, tmp_path, roster={"player_1": f"llm:{frozen}"}, engine=EngineSettings(kind="vllm"), lora_rank=rank
        )
        with Runtime(engine=config.engine) as runtime:
            setup = set_up(config, Planner(config, None, DealtSource(per_batch=2), runtime), runtime)
            memory = [one.settings.vllm_args().get("gpu_memory_utilization") for one in setup.engines]
            assert memory == shares
            assert setup.engines[0].max_lora_rank == rank


class Mine:
    """An agent with a policy of its own, which the runtime knows nothing of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.policy: str | None = name.removeprefix("llm:")

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Is never asked."""
        raise AssertionError("it was asked")


class Remote(Mine):
    """The same with something to make ready, as a model on a server has."""

    async def prepare(self) -> None:
        """Is ready."""


@pytest.mark.parametrize("agent", [Mine("mine"), Mine("llm:mine"), Remote("openai:m@http://127.0.0.1:9"), Remote("m")])
def test_an_agent_that_brings_its_policy_along_takes_no_engine(
    agent: Mine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    config = config_for(model, tmp_path, roster={}, engine=EngineSettings(kind="vllm"))
    with Runtime(engine=config.engine) as runtime:
        for roster, frozen, memory in (
            ({"player_0": "learner", "player_1": agent}, [], None),
            ({"player_0": "learner", "player_1": f"llm:{model}"}, [str(model)], 0.46),
        ):
            planner = Planner(config, roster, DealtSource(per_batch=2), runtime)
            assert (planner.policies, planner.frozen) == (["learner"], frozen)
            [engine] = set_up(config, planner, runtime).engines
            assert engine.settings.vllm_args().get("gpu_memory_utilization") == memory


@pytest.mark.parametrize("why", ["a frozen seat", "an evaluation"])
def test_a_frozen_model_beside_the_learner_can_not_be_played_ahead_with(
    why: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine has the run's settings, which those of the only trained policy differ from."""
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    monkeypatch.setattr(placement, "learner_device", lambda devices: torch.device("cuda:0"))

    def check(*, ahead: int, engine: EngineSettings, needed: bool = True) -> None:
        config = config_for(
            model,
            tmp_path,
            roster={"player_1": f"llm:{model}" if needed and why == "a frozen seat" else "random-legal"},
            evaluation=EvaluationSettings(every=1 if needed and why == "an evaluation" else 0),
            max_staleness=ahead,
            engine=engine,
            policies={"learner": {"engine": {"devices": "1"}}},
        )
        with Runtime(engine=config.engine) as runtime:
            set_up(config, Planner(config, None, DealtSource(per_batch=2), runtime), runtime)

    vllm = EngineSettings(kind="vllm")
    with pytest.raises(UsageError, match="max_staleness=1 plays while the learner works, but here engine and learner"):
        check(ahead=1, engine=vllm)
    check(ahead=0, engine=vllm)
    check(ahead=1, engine=vllm, needed=False)
    check(ahead=1, engine=EngineSettings(kind="vllm", devices="2"))


def test_a_version_of_a_policy_is_not_trained() -> None:
    trained = ("learner", "learner:a", "learner@20", "learner:a@20", "learners", "llm:learner", None)
    assert [is_trained(who) for who in trained] == [True, True, False, False, False, False, False]
