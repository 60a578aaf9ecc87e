"""Objects in the manner of a `MessageEnv` as games: views, coroutines, copies, and how they are made again."""

import asyncio
import copy
import gc
import math
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass, field

import pytest

import llm_arena
from llm_arena.adapters import message_env
from llm_arena.adapters.groups import EnvGroupBuilder, group_plans
from llm_arena.adapters.message_env import MessageGame, MessageStepResult, finish
from llm_arena.errors import EnvContractError, TraceError, UsageError
from llm_arena.recorder import replay
from llm_arena.rollout import play_many
from llm_arena.runtime import Runtime
from llm_arena.types import EnvSpec


@dataclass
class Count:
    """Asks `n` times, pays 1 each time; plain methods, no base class."""

    n: int = 2
    messages: list = field(default_factory=list)

    def initial_observation(self):
        self.messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "go"}]
        return self.messages

    def step(self, message):
        self.messages = [*self.messages, message, {"role": "user", "content": f"{self.n} left"}]
        self.n -= 1
        return MessageStepResult(1.0, self.n == 0, self.messages, metrics={"left": self.n})


def test_an_object_becomes_a_game_of_one_seat():
    given = Count(n=2)
    env = llm_arena.make(given)
    assert isinstance(env, MessageGame) and env.possible_agents == ["agent_0"]
    trace = llm_arena.play(env, seed=0)
    llm_arena.verify(trace)
    assert trace.returns == {"agent_0": 2.0} and trace.outcome.scores == {"agent_0": 2.0}
    assert [turn.action for turn in trace.turns] == [{"metrics": {"left": 1.0}}, {"metrics": {"left": 0.0}}]
    assert trace.turns[1].messages == [
        {"role": "assistant", "content": trace.turns[0].text},
        {"role": "user", "content": "2 left"},
    ]
    assert {turn.view_epoch for turn in trace.turns} == {0}
    assert given == Count(n=2)  # what was given is only copied


def test_options_of_any_game_work_and_empty_replies_go_to_the_rule():
    env = llm_arena.make(Count(n=2), retries=1, illegal="penalty", penalty=-2.0)
    env.reset(seed=0)
    env.step("  ")
    assert not env.over and env.observe("agent_0")["messages"][-1]["content"].startswith("Your reply was empty")
    env.step("")
    assert env.returns == {"agent_0": -2.0} and env.over
    forfeited = llm_arena.make(Count())
    forfeited.reset(seed=0)
    forfeited.step("")
    assert forfeited.returns == {"agent_0": -1.0}


def test_clones_go_on_by_themselves():
    env = llm_arena.make(Count(n=3))
    env.reset(seed=0)
    env.step("one")
    other = env.clone()
    other.step("two")
    assert (env.message_env.n, other.message_env.n) == (2, 1)
    assert env.observe("agent_0") != other.observe("agent_0")


class Rewrites(Count):
    """Shows only the newest question, so that its history is another one each time."""

    def step(self, message):
        result = super().step(message)
        result.next_messages = [{"role": "user", "content": f"{self.n} left"}]
        return result


def test_a_rewritten_history_begins_a_new_view():
    env = llm_arena.make(Rewrites())
    env.reset(seed=0)
    env.step("one")
    assert env.observe("agent_0")["messages"] == [{"role": "user", "content": "1 left"}]
    assert env.view_epoch("agent_0") == 1


class FewShot(Count):
    """Begins with an example of an answer, in parts."""

    def initial_observation(self):
        self.messages = [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "?"}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c?"},
        ]
        return self.messages


def test_examples_of_answers_and_parts_of_text_are_shown():
    env = llm_arena.make(FewShot())
    env.reset(seed=0)
    assert [(m["role"], m["content"]) for m in env.observe("agent_0")["messages"]] == [
        ("user", "a?"),
        ("assistant", "b"),
        ("user", "c?"),
    ]


class Luck(Count):
    """Has luck of its own, and takes a seed for it."""

    def seed(self, number):
        self.number = number

    def initial_observation(self):
        return [{"role": "user", "content": str(self.number)}]


def test_an_object_with_luck_is_seeded_before_each_episode():
    env = llm_arena.make(Luck())
    shown = []
    for seed in (1, 2, 1):
        env.reset(seed=seed)
        shown.append(env.observe("agent_0"))
    assert shown[0] == shown[2] != shown[1]


class Awaits(Count):
    """Really waits, on whatever loop runs it."""

    async def initial_observation(self):
        await asyncio.sleep(0.001)
        self.where = threading.current_thread().name
        return super().initial_observation()

    async def step(self, message):
        await asyncio.sleep(0.001)
        return super().step(message)


def test_coroutines_leave_the_callers_loop_alone():
    async def in_a_notebook():
        loop = asyncio.get_running_loop()
        env = llm_arena.make(Awaits())
        env.reset(seed=0)
        env.step("one")
        assert asyncio.get_running_loop() is loop
        return env.message_env.where, await llm_arena.aplay(env, seed=0)

    where, trace = asyncio.run(in_a_notebook())
    assert where == "llm_arena-runtime" and trace.returns == {"agent_0": 2.0}
    env = llm_arena.make(Awaits())
    env.reset(seed=0)
    assert env.message_env.where == "llm_arena-runtime"
    assert finish(5) == 5


def test_episodes_that_wait_don_t_hold_each_other_up():
    class Waits(Count):
        async def step(self, message):
            await asyncio.sleep(0.3)
            return super().step(message)

    class Builder(EnvGroupBuilder):
        def make_envs(self):
            return [Waits(n=1) for _ in range(8)]

    with Runtime(max_open_episodes=8) as runtime:
        plans = group_plans(Builder(), "random-legal", seed=0, group="g", runtime=runtime)
        traces = runtime.run(play_many(plans, runtime), timeout=1.5)  # one after another they'd take 2.4 s
    assert [trace.returns for trace in traces] == [{"agent_0": 1.0}] * 8


# ---- made again


MODULE = """
from dataclasses import dataclass

@dataclass
class Result:
    reward: float
    episode_done: bool
    next_messages: list

@dataclass(frozen=True)
class Echo:
    word: str
    sizes: list

    async def initial_observation(self):
        return [{"role": "user", "content": self.word}]

    async def step(self, message):
        return Result(float(len(message["content"])), True, [])

class Plain:
    def initial_observation(self):
        return [{"role": "user", "content": "hi"}]
    def step(self, message):
        return Result(0.0, True, [])

class Hides(Plain):
    def __init__(self, word):
        self._word = word

class Changes(Plain):
    def __init__(self, word):
        self.word = word + "!"
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_message_envs.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    import my_message_envs

    yield my_message_envs
    del sys.modules["my_message_envs"]


def test_an_importable_object_is_made_again_in_any_process(module, tmp_path):
    env = llm_arena.make(module.Echo("coffee", sizes=[1, 2]))
    assert env.id == "message/my_message_envs:Echo"
    assert env.spec.kwargs["arguments"] == {"word": "coffee", "sizes": [1, 2]}
    llm_arena.check_env(env)
    llm_arena.play(env, seed=0, traces=tmp_path / "t.jsonl")
    program = "import sys, llm_arena; [t] = llm_arena.read_traces(sys.argv[1]); llm_arena.verify(t); print(t.returns)"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "t.jsonl")], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("{'agent_0': ")
    assert llm_arena.make("message/my_message_envs:Plain").spec == llm_arena.make(module.Plain()).spec


@pytest.mark.parametrize("kind", ["Hides", "Changes"])
def test_an_object_whose_arguments_are_not_kept_is_made_again_in_this_process_only(module, kind):
    env = llm_arena.make(getattr(module, kind)("x"))
    assert env.spec.kwargs["arguments"] is None
    llm_arena.verify(llm_arena.play(env, seed=0))


def test_another_process_says_what_is_missing():
    class Local(Count):
        pass

    trace = llm_arena.play(llm_arena.make(Local()), seed=0)
    assert trace.spec.id == "message/Local"
    program = (
        "import sys, llm_arena\n"
        "from llm_arena.types import EnvSpec\n"
        "try: llm_arena.make(EnvSpec.from_json(sys.stdin.read()))\n"
        "except llm_arena.ArenaError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], input=trace.spec.to_json(), capture_output=True, text=True, check=True
    )
    assert "another process" in done.stdout and "module that can be imported" in done.stdout
    gone = copy.deepcopy(trace)
    gone.spec = EnvSpec(id=trace.spec.id, kwargs={**trace.spec.kwargs, "live": "gone"})
    with pytest.raises(TraceError, match="can't be made again"):
        replay(gone)


def test_objects_that_no_game_and_no_newer_ones_hold_are_forgotten(monkeypatch):
    class Local(Count):
        pass

    monkeypatch.setattr(message_env, "_NEWEST", deque(maxlen=3))
    before = set(message_env._LIVE)
    played = llm_arena.make(Local())
    specs = [llm_arena.make(Local()).spec for _ in range(20)]
    gc.collect()
    assert len(set(message_env._LIVE) - before) == 4  # the newest three, and that of the game which still is
    played.reset(seed=0)
    played.step("one")
    assert played.clone().message_env.n == 1
    assert llm_arena.make(specs[-1]).spec == specs[-1]
    with pytest.raises(UsageError, match="or 4096 objects ago"):
        llm_arena.make(specs[0])


@pytest.mark.parametrize("arguments", ["coffee shop", ["coffee shop"], "", 5])
def test_arguments_that_are_no_mapping_are_told_with_a_start_as_it_should_be(module, arguments):
    with pytest.raises(UsageError, match=r'for instance \{"prompt": \{"word": '):
        llm_arena.make("message/my_message_envs:Echo", arguments=arguments)


@pytest.mark.parametrize(
    "game",
    [
        "..:E",
        "llm_arena.adapters.message_env:MessageEnv",
        "os:system",
        "nowhere_at_all:X",
        "json:JSONDecoder",
        "json",
        "json:nothing",
        "",
    ],
)
def test_a_spec_calls_nothing_but_message_envs(game):
    with pytest.raises((UsageError, LookupError)):
        llm_arena.make(f"message/{game}", arguments={"command": "false"})


@pytest.mark.parametrize("name", ["adapters.message_env:MessageEnv", "registry:MessageEnvLike"])
def test_an_abstract_class_is_no_game(name):
    with pytest.raises(UsageError, match="is abstract"):
        llm_arena.make(f"message/llm_arena.{name}")


def test_arguments_that_do_not_fit_the_class_are_told(module):
    with pytest.raises(
        UsageError, match=r"missing a required argument: 'sizes' .* it takes \(word: str, sizes: list\)"
    ):
        llm_arena.make("message/my_message_envs:Echo", arguments={"word": "x"})


# ---- what an object may do wrong


class Broken(Count):
    def __init__(self, first=None, result=None):
        super().__init__()
        self.first, self.result = first, result

    def initial_observation(self):
        return super().initial_observation() if self.first is None else self.first

    def step(self, message):
        return self.result


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"first": []}, "nothing to answer"),
        ({"first": ["hi"]}, "expected a role"),
        ({"first": [{"role": "robot", "content": "hi"}]}, "expected a role"),
        ({"first": [{"role": "user", "content": [{"type": "image"}]}]}, "expected a role"),
        ({"result": None}, "expected an object with reward"),
        ({"result": MessageStepResult(0.0, False, [])}, "nothing to answer"),
        ({"result": MessageStepResult(math.nan, True, [])}, "finite"),
        ({"result": MessageStepResult(None, True, [])}, "expected an object with reward"),
        ({"result": MessageStepResult(0.0, True, [], {"a": "b"})}, "numbers in its metrics"),
        ({"result": MessageStepResult(0.0, True, [], 3)}, "numbers in its metrics"),
        ({"result": MessageStepResult(0.0, False, None)}, "the messages are None"),
        ({"result": MessageStepResult(0.0, False, [{"role": "assistant", "content": "hello"}])}, "the seat's own"),
        ({"first": [{"role": "user", "content": "half \ud800"}]}, "half a character"),
    ],
)
def test_what_is_wrong_is_told(arguments, words):
    env = llm_arena.make(Broken(**arguments))
    with pytest.raises(EnvContractError, match=words):
        env.reset(seed=0)
        env.step("hello")


def test_metrics_may_be_left_out():
    env = llm_arena.make(Broken(result=MessageStepResult(1.0, True, [], None)))
    env.reset(seed=0)
    env.step("hello")
    assert env.returns == {"agent_0": 1.0} and env.last_step.action is None


def test_what_cannot_be_copied_is_told():
    env = Count()
    env.lock = threading.Lock()
    with pytest.raises(UsageError, match="can't be copied"):
        llm_arena.make(env)


def test_a_class_is_no_object():
    with pytest.raises(UsageError, match="takes an id like naming-v0"):
        llm_arena.make(Count)
