"""A harness is trained on: the example of docs/harness.md, as it stands there, and numbers worked by hand."""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

import llm_arena
from llm_arena.cli_train import run_train
from llm_arena.errors import UsageError
from llm_arena.models import random_model
from llm_arena.report import write_report
from llm_arena.report.run_files import read_run
from llm_arena.report.summary import facts
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import train
from llm_arena.training.planning import LEARNER, Planner
from llm_arena.training.sources import DealtSource, ListSource
from llm_arena.types import Action, Completion, Reply, Trace

DOC = (Path(__file__).resolve().parents[1] / "docs" / "harness.md").read_text()
EXAMPLE, ONCE = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
COMMANDS = re.findall(r"```bash\nllm-arena (.*?)\n```", DOC, re.DOTALL)
PROBLEMS = [{"prompt": f"{k} + 3 = ?", "label": str(k + 3)} for k in range(6)]

LENGTHS = """
async def run(ctx, sample):
    first = await ctx.call("solver", sample["prompt"])
    chat = [{"role": "user", "content": sample["prompt"]}, {"role": "assistant", "content": first}]
    await ctx.call("solver", [*chat, {"role": "user", "content": "row"}])
    other = await ctx.call("judge", "card")
    return {"solver": sample["k"] + 0.25 * (ctx.rng.random() < 2) + len(first), other.call: 3.0}

def group_reward(traces):
    return [(float(place), {"place": place}) for place, _ in enumerate(traces)]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example and its problems, from which programs are run."""
    (tmp_path / "my_pipeline.py").write_text(EXAMPLE)
    (tmp_path / "my_lengths.py").write_text(LENGTHS)
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in PROBLEMS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ["1", "2", "3", "4", "5", "+", "=", "?", "row", "card", "Solution", "number"]
    return random_model(tmp_path_factory.mktemp("harness") / "model", words=words, hidden_size=32, layers=1)


def settings(small: Path, run_dir: Path, **more: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "harness": "my_lengths:run",
        "model": str(small),
        "run_dir": str(run_dir),
        "num_steps": 2,
        "starts_per_step": 2,
        "group_size": 2,
        "estimator": "group_mean",
        "max_new_tokens": 4,
        "lr": 1e-2,
    }
    return TrainConfig(**base | more)


SAMPLES = [{"prompt": f"{k} + 3", "k": k} for k in range(4)]


def source() -> ListSource:
    return ListSource(SAMPLES, per_batch=2, shuffle=False)


def test_the_example_runs_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(ONCE, "docs/harness.md", "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out == "11 0.0\n"
    assert len(EXAMPLE.strip().splitlines()) <= 45


def test_the_example_pays_by_hand(here: Path) -> None:
    """Solvers 0 and 3 are right, 2 fails; all rewriters but 4 are right; solution 2 is selected, then solution 5."""

    class Player:
        name, policy = "player", None

        def __init__(self, select: str) -> None:
            self.select = select
            self.count: dict[str, int] = {}

        async def act(self, view: Any, past: Any) -> Action:
            place = self.count[view.role] = self.count.get(view.role, -1) + 1
            if view.role == "selector":
                assert "Solution 5:" in view.messages[0]["content"]
                return Action(reply=Reply(f"I take {self.select}."))
            if view.role == "solver" and place == 2:
                raise RuntimeError("no answer")
            right = place in (0, 3) if view.role == "solver" else place != 4
            return Action(reply=Reply(f"So <final_answer> {'5' if right else '6'} </final_answer>"))

    def play(select: str) -> Trace:
        sample = {"prompt": "2 + 3 = ?", "label": "5"}
        return llm_arena.play(harness="my_pipeline:run", sample=sample, agents=Player(select), seed=0)

    def expected(weight: float, team: float) -> dict[str, float]:
        solvers = {f"solver_{k}": weight * (k in (0, 3)) for k in (0, 1, 3, 4)}
        return solvers | {f"rewriter_{k}": weight * (k != 4) for k in range(5)} | {"selector_0": team}

    assert play("2").returns == expected(1.2, 1.0)
    assert play("5").returns == expected(0.8, 0.0)
    assert play("9").returns == expected(0.8, 0.0)
    assert play("none").env_stats["solver"]["failed"] == 1


def test_the_example_is_trained_for_two_steps(here: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [first, second] = COMMANDS
    assert first.startswith("train self-play --harness my_pipeline:run --starts problems.jsonl")
    small_ones = ["--steps", "2", "--model", str(small), "--starts-per-step", "2", "--group-size", "2"]
    small_ones += ["--engine", "transformers", "--max-new-tokens", "4", "--max-context-tokens", "512"]
    assert run_train([*first.split()[1:], *small_ones, "--run-dir", "one"]) == 0
    assert capsys.readouterr().out.strip() == str(Path("one") / "final")
    traces = list(read_traces(here / "one" / "traces.jsonl"))
    assert len(traces) == 2 * 2 * 2
    for trace in traces:
        assert [turn.seat for turn in trace.turns] == [
            *(f"solver_{k}" for k in range(5)),
            *(f"rewriter_{k}" for k in range(5)),
            "selector_0",
        ]
        assert trace.spec.kwargs["sample"] in PROBLEMS and set(trace.returns) == set(trace.seats)
        assert {info.policy for info in trace.seats.values()} == {LEARNER}
    assert [trace.group for trace in traces[:4]] == ["000000-0000"] * 2 + ["000000-0001"] * 2
    rows = [json.loads(line) for line in (here / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [row["trained_tokens"] for row in rows] == [
        sum(len(turn.completion_ids) for trace in traces[at : at + 4] for turn in trace.turns) for at in (0, 4)
    ]
    page = write_report(here / "one").read_text()
    assert "harness:my_pipeline:run" in page and "rewriter_4" in page
    assert "<title>my_pipeline:run · " in page
    said = dict(facts(read_run(here / "one")))
    assert said["harness"] == "my_pipeline:run" and "game" not in said
    assert "Each line" in DOC and json.loads(re.findall(r"`(\{\"prompt\".*?\})`", DOC)[0])["label"] == "5"
    assert "--roster" in second


def test_masks_and_credits_of_a_step_by_hand(here: Path, small: Path) -> None:
    seen: list[Any] = []
    result = train(
        settings(small, here / "run"),
        source=source(),
        progress=False,
        on_step=lambda row, _: seen.append(row),
    )
    traces = list(read_traces(here / "run" / "traces.jsonl"))
    assert len(traces) == 8 and not any(trace.void for trace in traces)
    for trace in traces:
        assert [turn.seat for turn in trace.turns] == ["solver_0", "solver_0", "judge_0"]
        first = trace.turns[0].text
        assert trace.returns == {
            "solver_0": trace.spec.kwargs["sample"]["k"] + 0.25 + len(first),
            "judge_0": 3.0,
        }
        assert trace.turns[1].rewards["solver_0"] == trace.returns["solver_0"], "paid at its last turn"
    for step, row in enumerate(result.rows):
        batch = traces[4 * step : 4 * step + 4]
        tokens = sum(len(turn.completion_ids) for trace in batch for turn in trace.turns)
        assert row["trained_tokens"] == row["sampled_tokens"] == tokens
        # Judges are always paid 3, so their groups say nothing; solvers of a start are one group of two.
        spread = sum(batch[k].returns["solver_0"] == batch[k + 1].returns["solver_0"] for k in (0, 2))
        assert (row["groups"], row["groups_uninformative"]) == (4, 2 + spread)
        assert row["max_logprob_gap"] < 1e-4
    before, after = load_file(small / "model.safetensors"), load_file(result.final_dir / "model.safetensors")
    assert any(not np.array_equal(before[name], after[name]) for name in before)


def test_a_frozen_role_is_context_and_the_same_command_gives_the_same(here: Path, small: Path) -> None:
    roster = json.dumps({"judge": str(small)})
    runs = [train(settings(small, here / name, roster=roster), source=source(), progress=False) for name in "ab"]
    one, other = ([*read_traces(here / name / "traces.jsonl")] for name in "ab")
    assert [[turn.completion_ids for turn in trace.turns] for trace in one] == [
        [turn.completion_ids for turn in trace.turns] for trace in other
    ]
    weights = [load_file(run.final_dir / "model.safetensors") for run in runs]
    assert all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])
    for step, row in enumerate(runs[0].rows):
        batch = one[4 * step : 4 * step + 4]
        assert row["trained_tokens"] == sum(len(turn.completion_ids) for trace in batch for turn in trace.turns[:2])
        assert {trace.seats["judge_0"].policy for trace in batch} == {str(small)}


def test_separate_runs_are_compared_by_the_modules_group_reward(here: Path, small: Path) -> None:
    result = train(settings(small, here / "run", credit="group", num_steps=1), source=source(), progress=False)
    assert result.rows[0]["group/place"] == 0.5


def planner(config: TrainConfig, roster: Any = None, starts: Any = None) -> Planner:
    with Runtime() as runtime:
        return Planner(config, roster, starts or source(), runtime)


def test_a_plan_holds_the_whole_start_and_the_divisor_counts_runs(here: Path, small: Path) -> None:
    planned = planner(settings(small, here, num_steps=1, roster='{"judge": "learner:j", "critic": "random-legal"}'))
    assert planned.policies == [LEARNER, "learner:j"]
    assert planned.trained_seats(LEARNER) == planned.trained_seats("learner:j") == 2 * 2
    plans = planned.plans(0)
    assert [plan.spec.kwargs for plan in plans] == [{"sample": SAMPLES[k]} for k in (0, 0, 1, 1)]
    assert {role: agent.name for role, agent in plans[0].agents.items()} == {
        "*": "llm:learner",
        "judge": "llm:learner:j",
        "critic": "random-legal",
    }
    assert planned.probe_messages()[2] == [{"role": "user", "content": "1 + 3"}]
    assert planned.token_rewards is None and planned.env.group_reward is not None
    dealt = planner(settings(small, here), starts=DealtSource(per_batch=2))
    assert dealt.plans(0)[0].spec.kwargs == {"sample": {}} and dealt.probe_messages()[0][0]["content"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"harness": "my_lengths:rum"}, 'Did you mean "run"'),
        ({"opponent": "random-legal"}, r'seats to move on over.*--roster .*"\*"'),
        ({"retries": 1}, "retries=1 is for games, and harness=.* is none; leave one of them out"),
        ({"env_args": '{"namers": 2}'}, "env_args=.* is for games"),
        ({"env": "kuhn-poker-v0"}, "env='kuhn-poker-v0' is for games"),
        ({"credit": "trace"}, "one number for the whole run"),
        ({"group_size": 1}, "group_mean compares runs of one sample.*--group-size 4, or --estimator rae"),
        ({"group_size": 1, "starts_per_step": 1, "estimator": "role_norm"}, "there is one; give --starts-per-step 4"),
        ({"roster": '{"*": "random-legal"}'}, "nobody in the roster is trained"),
        ({"roster": '{"Judge": "random-legal"}'}, "no name of a role"),
        ({"harness": "my_pipeline:run", "credit": "group"}, "group_reward"),
    ],
)
def test_settings_that_cannot_work_with_a_harness(here: Path, small: Path, changes: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        planner(settings(small, here, **changes))
    assert "\n" not in str(caught.value)


def test_names_that_nobody_answers_to_are_warned_of_after_the_first_step(here: Path, small: Path) -> None:
    def warned(roster: str, step: int = 0) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_dir = here / f"{roster}{step}"
            train(settings(small, run_dir, roster=roster, num_steps=1), source=source(), progress=False)
        return [str(warning.message) for warning in caught if "nobody answered" in str(warning.message)]

    misspelt = '{"jugde": "random-legal"}'
    [told] = warned(misspelt)
    assert told.startswith("the roster names jugde, but nobody") and told.endswith("called were judge, solver")
    assert warned('{"judge": "random-legal"}') == []
    (here / "my_lengths.py").write_text(LENGTHS.replace('return {"solver"', 'return {"slover"'))
    del sys.modules["my_lengths"]
    importlib.invalidate_caches()
    [told] = warned('{"judge": "random-legal"}', step=1)
    assert told.startswith("the harness pays slover, but nobody")


def test_a_start_that_is_no_json_is_told_before_the_run(here: Path, small: Path) -> None:
    with pytest.raises(UsageError, match=r"start 1 of batch 0.*must be JSON"):
        planner(settings(small, here), starts=ListSource([{"k": 1}, {"k": {1}}], per_batch=2, shuffle=False))


@pytest.mark.parametrize("script", ["frozen-opponent", "naming-demo"])
def test_programs_that_play_games_say_so(here: Path, script: str) -> None:
    with pytest.raises(UsageError, match="self-play") as caught:
        run_train([script, "--harness", "my_pipeline:run", "--steps", "1", "--engine", "transformers"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("script", "more"),
    [
        ("co-evolve", ["--roster", '{"solver": "learner:a", "*": "learner:b"}']),
        ("group-compare", ["--group-size", "2"]),
    ],
)
def test_programs_leave_their_own_game_for_a_harness(here: Path, small: Path, script: str, more: list[str]) -> None:
    sys.modules.pop("my_lengths", None)  # another test may have changed it
    shared = ["--harness", "my_lengths:run", "--model", str(small), "--run-dir", str(here / "run"), "--steps", "1"]
    (here / "starts.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in SAMPLES))
    shared += ["--starts", "starts.jsonl", "--starts-per-step", "2", "--max-new-tokens", "4"]
    assert run_train([script, *shared, "--engine", "transformers", *more]) == 0
    kept = json.loads((here / "run" / "config.json").read_text())
    assert (kept["env"], kept["env_args"], kept["illegal"]) == (TrainConfig.env, "{}", None)
    assert kept["roster"] == (json.loads(more[1]) if script == "co-evolve" else {})
    with pytest.raises(UsageError, match="env='tic-tac-toe-v0' is for games"):
        run_train([script, *shared, *more, "--env", "tic-tac-toe-v0", "--fresh"])


def test_co_evolve_has_no_roster_of_its_own_for_a_harness(here: Path) -> None:
    with pytest.raises(UsageError, match="co-evolve needs a roster"):
        run_train(["co-evolve", "--harness", "my_lengths:run"])


def test_a_completion_is_needed_for_tokens(here: Path) -> None:
    class Broken:
        name, policy = "broken", None

        async def act(self, view: Any, past: Any) -> Action:
            return Action(reply=Reply("x"), completion=Completion(token_ids=[1], logprobs=[-1.0], finish="stop"))

    with pytest.raises(TypeError, match="needs the prompt_ids"):
        llm_arena.play(harness="my_lengths:run", sample=SAMPLES[0], agents=Broken(), seed=0)
