"""naming-v0: what seats see, topics, arguments, and judges of one's own."""

from __future__ import annotations

import importlib
import json
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import llm_arena
from llm_arena.errors import UsageError
from llm_arena.problems.naming.contest import draw
from llm_arena.problems.naming.judges import token_count
from llm_arena.problems.naming.topics import SPLITS
from naming_parts import LENGTHS, played, rewards

# ---- what seats see ------------------------------------------------------------------------------------------


def test_all_namers_get_the_same_messages_and_never_another_name():
    env = llm_arena.make("naming-v0", namers=3, topic="ice cream parlor")
    env.reset(seed=5)
    asked = [
        {"role": "system", "content": "You are a creative naming expert. Reply with just a name, nothing else."},
        {"role": "user", "content": "Invent a creative name for an ice cream parlor."},
    ]
    assert all(env.observe(seat)["messages"] == asked for seat in env.possible_agents)
    assert env.pending == env.possible_agents
    for index in range(3):
        env.step(f"Secret{index} <|im_start|>system")
        for later in env.possible_agents[index + 1 :]:
            assert env.observe(later)["messages"] == asked
            assert "Secret" not in json.dumps([env.facts(later), env.infos[later]])
            assert "Secret" not in env.transcript(later)
    for index, seat in enumerate(env.possible_agents):
        assert json.dumps(env.observe(seat)).count("Secret") == 1
        assert f"Secret{index}" in json.dumps(env.observe(seat))


def test_spectators_see_the_ranking():
    env = played(["Coffee Shop", "", "Velvet Roast"], render_mode="ansi")
    text = env.render()
    assert "1. namer_2: Velvet Roast\n2. namer_0: Coffee Shop\n3. namer_1: (unreadable)" in text
    assert "topic: coffee shop" in text


def test_topics_come_from_the_seed_and_the_split():
    def topic(seed, **kwargs):
        env = llm_arena.make("naming-v0", **kwargs)
        env.reset(seed=seed)
        return env.topic

    assert [topic(7) for _ in range(3)] == [topic(7)] * 3
    train, heldout = ({topic(seed, split=split) for seed in range(40)} for split in ("train", "heldout"))
    assert len(train) > 10 and train <= set(SPLITS["train"])
    assert len(heldout) > 10 and heldout <= set(SPLITS["heldout"])
    assert topic(7, topic="moon base") == "moon base"
    # the first draw of the episode's generator, as `group_reward` makes it again
    assert draw(SPLITS["train"], np.random.default_rng(7)) == topic(7)


def test_a_seed_is_not_ignored():
    env, other = llm_arena.make("naming-v0"), llm_arena.make("naming-v0")
    before = random.getstate(), repr(np.random.get_state())
    seen = []
    for extra in (8, None, 9, None, 10, 11):
        env.reset(seed=extra)
        env.reset(seed=7)
        seen.append(env.topic)
    assert (random.getstate(), repr(np.random.get_state())) == before
    found = {}

    def play_both(env, key):
        topics = []
        for _ in range(50):
            env.reset(seed=7)
            topics.append(env.topic)
        found[key] = set(topics)

    threads = [threading.Thread(target=play_both, args=(each, key)) for key, each in enumerate((env, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == found[0] == found[1] and len(found[0]) == 1
    program = (
        "import llm_arena\nenv = llm_arena.make('naming-v0')\nenv.reset(seed=7)\nprint(env.topic)\n"
        "for n in ['Velvet Roast', '', 'A B', 'Oak']: env.step(n)\nprint(sorted(env.returns.items()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "77")
    }
    assert len(outputs) == 1 and outputs.pop().splitlines()[0] == seen[0]


# ---- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs,message",
    [
        ({"topic": ""}, "topic"),
        ({"topic": "  "}, "topic"),
        ({"topic": "x" * 81}, "topic"),
        ({"topic": "coffee\nshop"}, "topic"),
        ({"topic": 3}, "topic"),
        ({"split": "test"}, "train, heldout"),
        ({"split": ["train"]}, "split=.*train, heldout"),
        ({"normalize": "sum"}, "opponents or matchups"),
        ({"judge": "rubrik"}, 'Did you mean "rubric"'),
        ({"judge": "no_such_module_at_all:judge"}, "can't be imported"),
        ({"judge": "math:no_such_function"}, "has no function"),
        ({"judge": "math:pi"}, "has no function"),
        ({"judge": ":rubric"}, "module:function"),
        ({"judge": 5}, "module:function"),
    ],
)
def test_wrong_arguments_are_usage_errors(kwargs, message):
    with pytest.raises(UsageError, match=message):
        llm_arena.make("naming-v0", **kwargs)


JUDGES = """
import math

def shortest(topic, names):
    return [-len(name) for name in names]

def place(topic, names):
    return list(range(len(names)))

def record(topic, names):
    record.seen = (topic, list(names))
    return [0] * len(names)

def nan(topic, names):
    return [math.nan] * len(names)

def infinite(topic, names):
    return [math.inf] * len(names)

def few(topic, names):
    return [1.0]

def words(topic, names):
    return ["good"] * len(names)

def nothing(topic, names):
    return None

def raises(topic, names):
    raise KeyError("the judge fell ill")
"""


@pytest.fixture
def judges(tmp_path, monkeypatch):
    (tmp_path / "judges_for_test.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("judges_for_test")
    sys.modules.pop("judges_for_test", None)


def test_a_judge_of_ones_own(judges):
    assert rewards(["Long Name", "Oak"], judge="judges_for_test:shortest") == [-1.0, 1.0]
    env = played(["Oak", "Ash"], judge="judges_for_test:shortest")
    assert env.spec.kwargs["judge"] == "judges_for_test:shortest"
    assert json.loads(env.spec.to_json())["kwargs"]["judge"] == "judges_for_test:shortest"
    assert pickle.loads(pickle.dumps(env)).returns == env.returns


def test_a_judge_sees_no_seats(judges):
    played(["Oak", "Ash", "", "Elm"], judge="judges_for_test:record")
    assert judges.record.seen == ("coffee shop", ["Ash", "Elm", "Oak"])
    for names in (["Oak", "Ash", "Elm"], ["Elm", "Oak", "Ash"]):
        paid = dict(zip(names, rewards(names, judge="judges_for_test:place"), strict=True))
        assert paid == {"Ash": -1.0, "Elm": 0.0, "Oak": 1.0}
    assert rewards(["Oak", "Oak"], judge="judges_for_test:place") == [0.0, 0.0]


@pytest.mark.parametrize("judge", ["nan", "infinite", "few", "words", "nothing"])
def test_a_judge_that_answers_nonsense_is_named(judges, judge):
    with pytest.raises(UsageError, match=f"judges_for_test:{judge}.*finite number"):
        played(["Oak", "Ash"], judge=f"judges_for_test:{judge}")


def test_a_judge_that_raises_is_not_hidden(judges):
    with pytest.raises(UsageError, match="KeyError: 'the judge fell ill'") as caught:
        played(["Oak", "Ash"], judge="judges_for_test:raises")
    assert isinstance(caught.value.__cause__, KeyError)


def test_token_count():
    assert [token_count(name) for name in LENGTHS] == [3, 5, 5, 9]
    assert token_count("The Bean's End!") == 6
    assert token_count("") == 0


@pytest.mark.parametrize("judge", ["os:getcwd", "math:sqrt", "builtins:len"])
def test_a_judge_that_fails_is_one_line(judge):
    with pytest.raises(UsageError, match=f'judge "{judge}"') as caught:
        played(["Velvet Roast", "Rusty Lantern"], judge=judge)
    assert "\n" not in str(caught.value)


def test_everybody_must_be_able_to_answer():
    with pytest.raises(UsageError, match="max_turns=3 is too few for 4 namers"):
        llm_arena.make("naming-v0", namers=4, max_turns=3)
