"""Problems of thinker-verifier-v0: drawn, given, from files and generators; and which settings it takes."""

import importlib.metadata
import importlib.util
import json

import msgspec
import pytest

import llm_arena
from llm_arena.checks import check_env, snapshot
from llm_arena.errors import MissingExtra, TraceError, UsageError
from thinker_verifier_parts import game, played, tag


def test_drawn_problems_are_solved_by_the_scripted_players():
    for level in range(1, 6):
        for seed in range(5):
            env = llm_arena.make("thinker-verifier-v0", level=level)
            trace = llm_arena.play(env, agents="thinker-verifier-v0/scripted", seed=seed)
            assert trace.outcome.reason == "right" and len(trace.turns) == 2
    trace = llm_arena.play(
        "thinker-verifier-v0", agents={"thinker": "random-legal", "verifier": "thinker-verifier-v0/scripted"}, seed=3
    )
    assert trace.outcome.reason == "right"  # it corrects


def test_scripted_players_without_arithmetic_still_end():
    env = llm_arena.make("thinker-verifier-v0", problem="Name a capital.", answer="Oslo")
    trace = llm_arena.play(env, agents="thinker-verifier-v0/scripted", seed=0)
    assert trace.outcome.reason == "no answer (turn limit)"


@pytest.mark.parametrize(
    ("answer", "final", "reason"),
    [
        (r"\frac{1}{2}", "0.5", "right"),
        ("1250", "$1,250", "right"),
        ("-4", "4", "wrong"),
        (7, "7.0", "right"),
        ("C", r"\text{C}", "right"),
        ("Oslo", "Rome", "wrong"),
        (r"x + 2y = 3", r"y = -\frac{x}{2} + \frac{3}{2}", "right"),
        (r"x + 2y = 3", "5x - y = 1", "wrong"),
        (r"2\sqrt{2}", r"\sqrt{8}", "right"),
        (r"\sqrt{2}", "7^{7^{7^{7}}}", "undecided"),
    ],
)
def test_given_answers_are_checked(answer, final, reason):
    env = game(answer=answer)
    env.step(tag(final))
    env.step(tag(final))
    assert env.outcome.reason == reason and (env.returns["thinker_0"] == 1.2) == (reason == "right")


def test_numbers_need_no_algebra_and_other_answers_say_so_at_once(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert played(tag(7), tag(r"\sqrt{49}")).outcome.reason == "right"
    assert played(tag(7), tag(r"x^2 - y")).outcome.reason == "undecided"
    with pytest.raises(MissingExtra, match="llm-arena\\[problems\\]"):
        game(answer=r"2\sqrt{2}")
    assert not game(answer=r"2\sqrt{2}", checker="exact").slow


def write(folder, *rows):
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_of_problems_is_played_recorded_and_replayed(tmp_path):
    path = write(tmp_path, {"prompt": "Name the capital of Norway.", "label": "Oslo"})
    env = llm_arena.make("thinker-verifier-v0", source=path)
    assert env.spec.kwargs["source"] == path and len(env.spec.kwargs["source_sha256"]) == 64
    trace = llm_arena.play(env, agents="random-legal", seed=1)
    llm_arena.verify(trace)
    env.reset(seed=0)
    env.step(tag("Oslo"))
    env.step(tag("Oslo."))
    assert env.outcome.reason == "right" and "right answer: Oslo" in env.transcript()
    write(tmp_path, {"prompt": "Name the capital of Norway.", "label": "Bergen"})
    with pytest.raises(TraceError, match="source=.* has SHA-256 .*: it has changed"):
        llm_arena.verify(trace)


def test_a_generator_is_played_and_its_version_recorded():
    env = llm_arena.make("thinker-verifier-v0", source="reasoning-gym:chain_sum", split="heldout")
    version = importlib.metadata.version("reasoning-gym")
    assert env.spec.kwargs["source"] == f"reasoning-gym:chain_sum@{version}" and env.slow
    trace = llm_arena.play(env, agents="thinker-verifier-v0/scripted", seed=3)
    assert trace.outcome.reason == "right"
    llm_arena.verify(trace)
    older = msgspec.structs.replace(trace.spec, kwargs=trace.spec.kwargs | {"source": "reasoning-gym:chain_sum@0.1.0"})
    with pytest.raises(UsageError, match="reasoning-gym==0.1.0"):
        llm_arena.make(older)


def test_a_problem_with_many_right_answers_says_so_at_the_end():
    env = llm_arena.make("thinker-verifier-v0", source="reasoning-gym:rush_hour")
    env.reset(seed=0)
    env.step(tag("A+1"))
    env.step(tag("A+1"))
    assert env.outcome.reason in ("wrong", "undecided") and "knows one when it sees it" in env.transcript()


def test_nobody_sees_the_answer_before_the_end():
    left, right = game(answer="1234"), game(answer="9876")
    for env in (left, right):
        assert env.outcome is None and "1234" not in env.transcript() and "9876" not in env.transcript()
    for reply in ("Hm.", "Go on.", tag(5), "Why?"):
        assert snapshot(left) == snapshot(right)
        left.step(reply)
        right.step(reply)
    left.step(tag(5))
    left.step(tag(5))
    assert "right answer: 1234" in left.transcript()


@pytest.mark.parametrize(
    "bad",
    [
        {"problem": "What?", "answer": None},
        {"problem": None, "answer": "4"},
        {"problem": " ", "answer": "4"},
        {"answer": " "},
        {"answer": True},
        {"answer": float("nan")},
        {"answer": float("-inf")},
        {"answer": ["4"]},
        {"level": 9},
        {"operators": "x"},
        {"split": "test"},
        {"reward": "fair"},
        {"level": 3},
        {"split": "heldout"},
        {"answer": 10**400},
        {"answer": "\ud800"},
        {"problem": "What is \ud800?"},
        {"correct_reward_weight": -1.0},
        {"correct_reward_weight": 10**400},
        {"w_team": True},
        {"w_own": float("nan")},
        {"answer_format": "xml"},
        {"checker": "guess"},
        {"verifier": "hostile"},
        {"source": "problems.jsonl"},
        {"source_sha256": "0" * 64},
        {"problem": None, "answer": None, "source": "nothing-there"},
        {"max_turns": 1},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(UsageError):
        game(**bad)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"level": 5, "reward": "additive", "split": "heldout", "verifier": "adversarial"},
        {"source": "reasoning-gym:basic_arithmetic", "verifier": "permissive"},
        {"problem": "What is 3 + 4?", "answer": "7", "answer_format": "lenient", "retries": 1},
    ],
)
def test_the_game_is_well_behaved(kwargs):
    check_env(llm_arena.make("thinker-verifier-v0", **kwargs))
