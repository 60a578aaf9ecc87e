"""The multi-agent tutorial of tinker-cookbook, and groups of episodes that are paid by comparing them."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import llm_arena
from llm_arena.adapters import token_env as renderers
from llm_arena.adapters.groups import EnvGroupBuilder, Metrics, Trajectory, group_plans, group_reward, trajectory
from llm_arena.adapters.message_env import MessageEnv, MessageStepResult
from llm_arena.adapters.token_env import Env, EnvFromMessageEnv
from llm_arena.errors import UsageError
from llm_arena.rollout import play_many
from llm_arena.runtime import Runtime
from llm_arena.training import credit
from llm_arena.training.config import TrainConfig
from llm_arena.training.loop import train
from llm_arena.training.sources import ListSource
from llm_arena.types import Action, Completion, Reply

# ---- the tutorial's game, as in tutorials/405_multi_agent.py of thinking-machines-lab/tinker-cookbook (Apache-2.0):
# its classes and its rule; only the imports above are ours


class NamingGameEnv(MessageEnv):
    def __init__(self, topic: str):
        self.topic = topic
        self.response = None

    async def initial_observation(self):
        return [
            {
                "role": "system",
                "content": "You are a creative naming expert. Reply with just a name, nothing else.",
            },
            {"role": "user", "content": f"Invent a creative name for a {self.topic}."},
        ]

    async def step(self, message):
        self.response = message
        return MessageStepResult(
            reward=0.0,
            episode_done=True,
            next_messages=[],
        )


@dataclass(frozen=True)
class NamingGameGroupBuilder(EnvGroupBuilder):
    topic: str
    renderer: renderers.Renderer
    num_envs: int = 4

    async def make_envs(self) -> Sequence[Env]:
        return [
            EnvFromMessageEnv(
                renderer=self.renderer,
                message_env=NamingGameEnv(topic=self.topic),
                max_trajectory_tokens=256,
                max_generation_tokens=64,
            )
            for _ in range(self.num_envs)
        ]

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]:
        lengths = []
        for traj in trajectory_group:
            total_tokens = sum(len(t.ac.tokens) for t in traj.transitions)
            lengths.append(total_tokens)
        n = len(lengths)
        scores = [0.0] * n
        matchups = 0
        for i in range(n):
            for j in range(i + 1, n):
                if lengths[i] > lengths[j]:
                    scores[i] += 1.0
                    scores[j] -= 1.0
                elif lengths[j] > lengths[i]:
                    scores[j] += 1.0
                    scores[i] -= 1.0
                matchups += 1
        if matchups > 0:
            scores = [s / matchups for s in scores]
        return [
            (score, {"win_score": score, "response_length": length})
            for score, length in zip(scores, lengths, strict=True)
        ]

    def logging_tags(self) -> list[str]:
        return ["naming_game"]


# ---- the tutorial, played


class Says:
    """Answers with the next of some names, in the tokens of a toy chat format."""

    name, policy = "says", "p"

    def __init__(self, chat, names):
        self.chat = chat
        self.names = iter(names)

    async def act(self, view, past):
        name = next(self.names)
        ids = [*self.chat.tokenizer.encode(name, add_special_tokens=False), self.chat.stop_ids[0]]
        completion = Completion(token_ids=ids, logprobs=[-1.0] * len(ids), finish="stop")
        return Action(reply=Reply(name), prompt_ids=self.chat.render(view.messages), completion=completion)


@pytest.fixture
def chat(toy_chat):
    return toy_chat("newline")


def play_group(builder, agent, **settings):
    with Runtime(max_open_episodes=1) as runtime:
        plans = group_plans(builder, agent, seed=0, group="0", runtime=runtime, **settings)
        return runtime.run(play_many(plans, runtime))


def test_the_tutorials_game_is_played_in_a_group_and_paid_by_its_own_rule(chat):
    # Every letter is a token, and the stop token another one, so the lengths are 3, 5, 5 and 2. Of the 6 pairs:
    # 3-5 and 3-5 are lost, 3-2 is won: -1; both fives beat 3 and 2 and tie with each other: +2; 2 loses all: -3.
    builder = NamingGameGroupBuilder(topic="coffee shop", renderer=chat)
    traces = play_group(builder, Says(chat, ["ab", "abcd", "dcba", "a"]))
    assert {trace.group for trace in traces} == {"naming_game/0"} and len({trace.id for trace in traces}) == 4
    paid = group_reward(builder)(traces)
    assert [reward for reward, _ in paid] == pytest.approx([-1 / 6, 2 / 6, 2 / 6, -3 / 6])
    assert sum(reward for reward, _ in paid) == pytest.approx(0)
    assert [metrics["response_length"] for _, metrics in paid] == [3, 5, 5, 2]
    assert traces[0].turns[0].messages[1]["content"] == "Invent a creative name for a coffee shop."


def test_a_trainer_credits_the_group_by_the_builders_rule(chat):
    builder = NamingGameGroupBuilder(topic="coffee shop", renderer=chat)
    traces = play_group(builder, Says(chat, ["ab", "abcd", "dcba", "a"]))
    votes, metrics, dropped = credit.votes_by_group(traces, lambda trace: trace.seats, group_reward(builder))
    assert [vote.reward for vote in votes] == pytest.approx([-1 / 6, 2 / 6, 2 / 6, -3 / 6])
    assert metrics["response_length"] == [3, 5, 5, 2] and dropped == 0


def test_a_model_plays_the_tutorials_game(tiny_model):
    builder = NamingGameGroupBuilder(topic="coffee shop", renderer=str(tiny_model), num_envs=3)
    traces = play_group(builder, str(tiny_model), max_new_tokens=8)
    paid = group_reward(builder)(traces)
    assert all(trace.turns[0].completion_ids for trace in traces) and sum(reward for reward, _ in paid) == 0
    assert len({tuple(trace.turns[0].completion_ids) for trace in traces}) > 1  # same start, own luck


def test_the_builder_sees_played_envs_and_whole_trajectories(chat):
    seen = {}

    class Looks(NamingGameGroupBuilder):
        async def compute_group_rewards(self, trajectory_group, env_group):
            seen["said"] = [env.message_env.response["content"] for env in env_group]
            seen["first"] = trajectory_group[0]
            return [(1.0, {}) for _ in trajectory_group]

    builder = Looks(topic="bar", renderer=chat, num_envs=2)
    traces = play_group(builder, Says(chat, ["ab", "cd"]))
    group_reward(builder)(traces)
    assert seen["said"] == ["ab", "cd"]
    [turn] = seen["first"].transitions
    assert turn.ob == traces[0].full_ids(0)[0] and turn.ac.tokens == traces[0].turns[0].completion_ids
    assert (turn.text, turn.reward, turn.episode_done) == ("ab", 0.0, True)
    assert turn.ac.maybe_logprobs == [-1.0] * 3


class Pays(MessageEnv):
    """One reply, paid 1."""

    async def initial_observation(self):
        return [{"role": "user", "content": "go"}]

    async def step(self, message):
        return MessageStepResult(1.0, True, [])


def test_a_group_reward_is_the_return_and_what_is_added_and_void_traces_get_none():
    class PaysTen(EnvGroupBuilder):
        def make_envs(self):
            return [Pays(), Pays()]

        async def compute_group_rewards(self, trajectory_group, env_group):
            return [(10.0, {"n": 1.0})] * len(trajectory_group)

    traces = play_group(PaysTen(), "random-legal")
    assert group_reward(PaysTen())(traces) == [(11.0, {"n": 1.0})] * 2
    traces[0].ending = llm_arena.Ending.VOID
    (first, metrics), second = group_reward(PaysTen())(traces)
    assert math.isnan(first) and metrics == {} and second == (11.0, {"n": 1.0})
    assert trajectory(traces[1]).transitions[0].ac.tokens is None  # a script has no tokens

    class Forgets(PaysTen):
        async def compute_group_rewards(self, trajectory_group, env_group):
            return []

    with pytest.raises(UsageError, match="0 results for 1 trajectories"):
        group_reward(Forgets())(traces)


def test_the_documents_code_runs(tiny_model, tmp_path, monkeypatch, capsys):
    imports, module, played = blocks("python")
    exec(compile(imports, "from_the_tutorial.md", "exec"), {})
    (tmp_path / "my_module.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(played, "from_the_tutorial.md", "exec"), {"MODEL": str(tiny_model)})
    del sys.modules["my_module"]
    assert capsys.readouterr().out.count("length") == 4


def blocks(language):
    text = (Path(__file__).resolve().parents[1] / "docs" / "from_the_tutorial.md").read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def test_the_documents_training_command_learns_from_the_group(tiny_model, tmp_path):
    _, module, _ = blocks("python")
    (tmp_path / "my_module.py").write_text(module)
    [commands] = blocks("bash")
    *before, last = commands.splitlines()
    last += f" --model {shlex.quote(str(tiny_model))} --steps 2 --max-new-tokens 8 --estimator loo --run-dir run"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "\n".join([*before, last])],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "group_reward" not in done.stderr  # no warning
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and all("group/length" in row for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)
    traces = list(llm_arena.read_traces(tmp_path / "run" / "traces.jsonl"))
    assert {trace.spec.kwargs["arguments"]["topic"] for trace in traces} == {"coffee shop"} and len(traces) == 8


GROUPED = """
from llm_arena.adapters.groups import group_reward
from llm_arena.adapters.message_env import MessageEnv, MessageStepResult

class ByTokens:
    async def compute_group_rewards(self, trajectory_group, env_group):
        return [(float(sum(len(t.ac.tokens) for t in one.transitions)), {}) for one in trajectory_group]

class Paid(MessageEnv):
    group_reward = staticmethod(group_reward(ByTokens()))

    def __init__(self, topic):
        self.topic = topic

    async def initial_observation(self):
        return [{"role": "user", "content": self.topic}]

    async def step(self, message):
        return MessageStepResult(0.0, True, [])
"""


def grouped_config(tiny_model, tmp_path, **changes):
    settings = {
        "env": "message/my_grouped_env:Paid",
        "env_args": json.dumps({"arguments": {"topic": "bar"}}),
        "model": str(tiny_model),
        "run_dir": str(tmp_path / "run"),
        "num_steps": 1,
        "starts_per_step": 1,
        "group_size": 4,
        "credit": "group",
        "estimator": "loo",
        "max_new_tokens": 8,
    }
    return TrainConfig(**settings | changes)


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    (tmp_path / "my_grouped_env.py").write_text(GROUPED)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("my_grouped_env", None)


def test_a_reward_that_counts_tokens_can_be_trained_on(grouped, tiny_model, tmp_path):
    starts = ListSource([{"prompt": {"topic": "coffee shop"}}], per_batch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        result = train(grouped_config(tiny_model, tmp_path), source=starts, progress=False)
    traces = list(llm_arena.read_traces(tmp_path / "run" / "traces.jsonl"))
    # an empty reply costs 1 beside
    paid = [len(trace.turns[0].completion_ids) + trace.returns["agent_0"] for trace in traces]
    assert len(paid) == 4 and result.rows[0]["reward/avg/agent"] == pytest.approx(sum(paid) / 4)


def test_a_group_reward_that_is_not_asked_is_told(grouped, tiny_model, tmp_path):
    with pytest.warns(UserWarning, match="does not ask.*--credit group"):
        train(grouped_config(tiny_model, tmp_path, credit="seat"), progress=False)


def test_a_start_that_is_only_a_string_is_told_as_it_should_be(grouped, tiny_model, tmp_path):
    starts = ListSource(["coffee shop"], per_batch=1)
    with pytest.raises(UsageError, match=r'for instance \{"prompt": \{"topic": "coffee shop"\}\}'):
        train(grouped_config(tiny_model, tmp_path), source=starts, progress=False)


def test_builders_give_message_envs_only(tiny_model):
    for given in ("kuhn-poker-v0", llm_arena.make("kuhn-poker-v0"), 5):

        class Wrong(EnvGroupBuilder):
            def make_envs(self, given=given):
                return [EnvFromMessageEnv(str(tiny_model), given, max_trajectory_tokens=None)] if given != 5 else [5]

        with pytest.raises(UsageError, match=r"make_envs\(\) of Wrong returned .*; expected objects with initial"):
            play_group(Wrong(), "random-legal")


def test_an_envs_own_options_are_kept():
    class Costly(EnvGroupBuilder):
        def make_envs(self):
            return [llm_arena.make(Pays(), illegal="penalty", penalty=-3.0)]

    [trace] = play_group(Costly(), "random-legal")
    assert trace.spec.kwargs["penalty"] == -3.0


def test_a_builder_pays_no_game_of_several_seats():
    trace = llm_arena.play("kuhn-poker-v0", seed=0)
    with pytest.raises(UsageError, match="pays episodes of one seat; .* has player_0, player_1"):
        group_reward(EnvGroupBuilder())([trace])
