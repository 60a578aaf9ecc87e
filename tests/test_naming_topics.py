"""naming-v0: topics from a list or a file."""

from __future__ import annotations

import hashlib
import json

import pytest

import llm_arena
from llm_arena.checks import check_env
from llm_arena.errors import UsageError
from llm_arena.types import EnvSpec, SeatInfo, Trace, Turn

TOPICS = ["moon base", "café for cats", "tea barge"]


def drawn(env):
    found = []
    for seed in range(60):
        env.reset(seed=seed)
        found.append(env.topic)
    return found


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "topics.txt"
    path.write_text("\ufeffmoon base\r\n\n  café for cats \ntea barge", encoding="utf-8")
    return path


def test_topics_from_a_list():
    env = llm_arena.make("naming-v0", topics=TOPICS)
    found = drawn(env)
    assert set(found) == set(TOPICS) and min(map(found.count, TOPICS)) > 8
    assert env.spec.kwargs["topics"] == TOPICS and env.spec.kwargs["topics_sha256"] is None
    again = llm_arena.make(EnvSpec.from_json(env.spec.to_json()))
    assert drawn(again) == found
    assert llm_arena.make("naming-v0").spec.kwargs["topics"] is None


def test_topics_from_a_file(file):
    env = llm_arena.make("naming-v0", topics=str(file))
    assert drawn(env) == drawn(llm_arena.make("naming-v0", topics=TOPICS))
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert env.spec.kwargs["topics_sha256"] == digest and env.spec.kwargs["topics"] == str(file)
    assert drawn(llm_arena.make("naming-v0", topics=str(file), topics_sha256=digest)) == drawn(env)
    check_env(env)
    trace = llm_arena.play(env, agents="random-legal", seed=3)
    llm_arena.verify(trace)
    file.write_text("moon base\ntea barge\n", encoding="utf-8")
    with pytest.raises(UsageError, match=f"has SHA-256 .* expected {digest}: it has changed; restore it"):
        llm_arena.make(trace.spec)
    assert set(drawn(llm_arena.make("naming-v0", topics=str(file)))) == {"moon base", "tea barge"}


@pytest.mark.parametrize(
    "content,message",
    [
        ("moon base\n\n" + "x" * 81 + "\n", r"topics\.txt:3: got 'xxx.*at most 80 characters, like 'coffee shop'"),
        ("moon base\ntea\x07barge\n", r"topics\.txt:2: got"),
        ("moon base\noak\n  moon base \n", r"topics\.txt:3: 'moon base' is number 1 already"),
        ("\n \n", "topics.txt is empty"),
    ],
)
def test_bad_lines_are_named_by_their_number(tmp_path, content, message):
    path = tmp_path / "topics.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        llm_arena.make("naming-v0", topics=str(path))


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(UsageError, match="can't be read"):
        llm_arena.make("naming-v0", topics=str(tmp_path / "none.txt"))
    with pytest.raises(UsageError, match="can't be read"):
        llm_arena.make("naming-v0", topics=str(tmp_path))
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(UsageError, match=r"latin\.txt' can't be read: 'utf-8' codec .*expected .* UTF-8 text"):
        llm_arena.make("naming-v0", topics=str(tmp_path / "latin.txt"))


@pytest.mark.parametrize(
    "kwargs,message",
    [
        ({"topics": []}, "topics is empty"),
        ({"topics": 3}, "topics=3; expected a list"),
        ({"topics": ["oak", 3]}, "topics:2: got 3"),
        ({"topics": ["oak", "  "]}, "topics:2"),
        ({"topics": ["oak", "oak"]}, "topics:2: 'oak' is number 1 already"),
        ({"topics": ["oak"], "topic": "ash"}, "topics=.* and topic='ash'; give one of them"),
        ({"topics": ["oak"], "split": "heldout"}, "split='heldout', which is for the library's own"),
        ({"topics": ["oak"], "topics_sha256": "00"}, "topics_sha256='00' is for a file"),
        ({"topics_sha256": "00"}, "topics_sha256='00' needs topics"),
    ],
)
def test_wrong_arguments_are_usage_errors(kwargs, message):
    with pytest.raises(UsageError, match=message):
        llm_arena.make("naming-v0", **kwargs)


@pytest.mark.parametrize("from_file", [False, True])
def test_a_group_shares_the_topic_that_it_drew(file, from_file):
    given = str(file) if from_file else TOPICS
    traces = []
    for name in ("Velvet Roast", "Rusty Lantern"):
        env = llm_arena.make("naming-v0", namers=1, topics=given)
        env.reset(seed=4)
        env.step(name)
        turn = Turn(index=0, seat="namer_0", text=name, action=name)
        seats = {"namer_0": SeatInfo(role="namer", agent="test")}
        traces.append(Trace(id="t", spec=env.spec, seed=4, seats=seats, turns=[turn], returns={"namer_0": 0.0}))
    whole = llm_arena.make("naming-v0", namers=2, topics=given)
    whole.reset(seed=4)
    whole.step("Velvet Roast")
    whole.step("Rusty Lantern")
    paid = type(whole).group_reward(traces)
    assert [reward for reward, _ in paid] == list(whole.returns.values())
    assert json.dumps(traces[0].spec.kwargs["topics"])
    other = llm_arena.make("naming-v0", namers=1, topics=given)
    seed = next(seed for seed in range(20) if drawn_at(other, seed) != whole.topic)
    traces[1].seed = seed
    with pytest.raises(UsageError, match="one topic"):
        type(whole).group_reward(traces)


def drawn_at(env, seed):
    env.reset(seed=seed)
    return env.topic
