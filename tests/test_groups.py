"""The multi-agent tutorial of tinker-cookbook, and groups of episodes that are paid by comparing them."""

import math
import re
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


def test_the_documents_code_runs(tiny_model, capsys):
    text = (Path(__file__).resolve().parents[1] / "docs" / "from_the_tutorial.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "from_the_tutorial.md", "exec"), {"MODEL": str(tiny_model), "__name__": "__main__"})
    assert capsys.readouterr().out.count("length") == 4
