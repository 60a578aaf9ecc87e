"""Sequences against an obvious slow version, on turns with random prefixes."""

from __future__ import annotations

from collections import Counter

import msgspec
import numpy as np
import pytest

from llm_arena.env import StepRecord
from llm_arena.recorder import Recorder, sequences
from llm_arena.types import Action, Cause, Completion, Ending, EnvSpec, Reply, SeatInfo, Trace, View

SEATS = {
    "player_0": SeatInfo(role="player", agent="llm:learner", policy="learner"),
    "player_1": SeatInfo(role="player", agent="llm:frozen", policy="frozen"),
    "judge_0": SeatInfo(role="judge", agent="scripted"),
}
Call = tuple[str, list[int], list[int], list[float], bool]
"""What was sent to a model and came back: seat, prompt ids, sampled ids, their logprobs, guided."""


def record(calls: list[Call | None]) -> Trace:
    """The trace of these calls; None is a turn of a seat without a model."""
    recorder = Recorder("t", EnvSpec(id="kuhn-poker-v0"), 7, SEATS)
    for call in calls:
        seat, prompt, sampled, logprobs, guided = call or ("judge_0", None, [], [], False)
        view = View(
            seat=seat, role="", messages=[], legal_actions=None, grammar=None, facts=None, attempt=0, seed=0,
            sample_reply=lambda rng: "",
        )  # fmt: skip
        completion = Completion(token_ids=sampled, logprobs=logprobs, finish="stop", guided=guided)
        action = Action(reply=Reply("x"), prompt_ids=prompt, completion=completion if call else None)
        step = StepRecord(seat=seat, reply=action.reply, cause=Cause.LEGAL, attempt=0, action=None, rewards={})
        recorder.add(view, 0, action, step, 0.0)
    trace = msgspec.json.decode(msgspec.json.encode(recorder._trace), type=Trace)
    trace.ending = Ending.TERMINATED
    return trace


def random_calls(seed: int) -> list[Call | None]:
    """Few ids, so that prefixes, equal prompts and equal calls are common; every logprob is another number."""
    rng = np.random.default_rng(seed)
    calls: list[Call | None] = []
    for number in range(int(rng.integers(1, 14))):
        made = [call for call in calls if call is not None]
        prompt: list[int] = []
        if made and rng.random() < 0.8:
            _, sent, sampled, _, _ = made[-1 - int(rng.integers(min(3, len(made))))]
            match rng.integers(4):
                case 0 | 1:
                    prompt = [*sent, *sampled]  # goes on from it
                case 2:
                    prompt = list(sent)  # was asked the same, or is a branch of it
                case 3:
                    whole = [*sent, *sampled]
                    prompt = whole[: int(rng.integers(len(whole) + 1))]  # history that was cut or rewritten
        prompt += rng.integers(3, size=rng.integers(3)).tolist()
        sampled = rng.integers(3, size=rng.integers(4)).tolist()
        logprobs = [-(number + 1) - k / 8 for k in range(len(sampled))]
        seat = ("player_0", "player_0", "player_1")[rng.integers(3)]
        calls.append(None if rng.random() < 0.1 else (seat, prompt, sampled, logprobs, bool(rng.random() < 0.1)))
    return calls


def extends_slowly(calls: list[Call | None], at: int) -> int | None:
    """The latest of the longest earlier calls of the seat whose ids the prompt begins with."""
    seat, prompt, _, _, _ = calls[at]
    best, most = None, 0
    for index, earlier in enumerate(calls[:at]):
        if earlier is not None and earlier[0] == seat:
            ids = [*earlier[1], *earlier[2]]
            if ids and prompt[: len(ids)] == ids and len(ids) >= most:
                best, most = index, len(ids)
    return best


def trained_by_call(calls: list[Call | None]) -> Counter:
    """(seat, turn, all ids before the token, token, logprob) of each token that a model sampled freely."""
    return Counter(
        (seat, turn, tuple(prompt + sampled[:k]), sampled[k], logprobs[k])
        for turn, call in enumerate(calls)
        if call is not None
        for seat, prompt, sampled, logprobs, guided in [call]
        for k in range(len(sampled))
        if not guided
    )


def trained_in_sequences(trace: Trace) -> Counter:
    return Counter(
        (one.seat, one.turn_of[k], tuple(one.token_ids[:k]), one.token_ids[k], one.logprobs[k])
        for one in sequences(trace)
        for k in range(len(one.token_ids))
        if one.mask[k]
    )


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_every_sampled_token_is_trained_once_behind_the_ids_that_it_was_sampled_after(first):
    merged = 0
    for seed in range(first, first + 100):
        calls = random_calls(seed)
        trace = record(calls)
        assert trained_in_sequences(trace) == trained_by_call(calls), seed
        for turn in trace.turns:
            if calls[turn.index] is not None:
                assert trace.full_ids(turn.index) == (calls[turn.index][1], calls[turn.index][2])
                assert turn.extends == extends_slowly(calls, turn.index), (seed, turn.index)
                merged += turn.extends is not None
        for one in sequences(trace):
            assert [one.turn_of[k] >= 0 for k in range(len(one.token_ids))] == one.mask
            assert one.turns == sorted({turn for turn in one.turn_of if turn >= 0})
            assert all(one.mask[k] or one.logprobs[k] == 0.0 for k in range(len(one.token_ids)))
            assert one.policy == SEATS[one.seat].policy
    assert merged > 100  # the script does what it is for


def test_calls_in_another_order_train_the_same_tokens():
    for seed in range(60):
        calls = [call for call in random_calls(seed) if call is not None]
        order = np.random.default_rng(seed).permutation(len(calls))
        backwards = [calls[k] for k in order]
        # apart from the number of the turn
        there = Counter(key[:1] + key[2:] for key in trained_in_sequences(record(calls)).elements())
        again = Counter(key[:1] + key[2:] for key in trained_in_sequences(record(backwards)).elements())
        assert there == again


def test_a_turn_may_extend_one_that_lies_further_back():
    trace = record(
        [
            ("player_0", [1], [2], [-1.0], False),
            ("player_0", [1, 2, 0], [3], [-2.0], False),
            ("player_0", [1, 2, 4], [5], [-3.0], False),  # not after turn 1
            ("player_0", [1, 2, 0, 3, 6], [7], [-4.0], False),  # after turn 1 again
        ]
    )
    assert [turn.extends for turn in trace.turns] == [None, 0, 0, 1]
    assert [(one.token_ids, one.turns) for one in sequences(trace)] == [
        ([1, 2, 4, 5], [0, 2]),
        ([1, 2, 0, 3, 6, 7], [1, 3]),
    ]


def test_equal_calls_are_each_trained():
    trace = record([("player_0", [1], [2], [-1.0], False)] * 3 + [("player_0", [1, 2, 9], [], [], False)])
    assert [turn.extends for turn in trace.turns] == [None, None, None, 2]  # of equal ids the latest
    assert [one.token_ids for one in sequences(trace)] == [[1, 2], [1, 2], [1, 2, 9]]
    assert [one.turns for one in sequences(trace)] == [[0], [1], [2]]


def test_frozen_seats_have_their_sequences_and_logprobs_too():
    trace = record([("player_0", [1], [2], [-1.0], False), ("player_1", [3], [4, 5], [-0.5, -0.25], False), None])
    assert [(one.policy, one.logprobs) for one in sequences(trace)] == [
        ("learner", [0.0, -1.0]),
        ("frozen", [0.0, -0.5, -0.25]),
    ]


def test_a_sequence_says_how_it_and_its_episode_ended():
    trace = record([("player_0", [1], [2], [-1.0], False), ("player_0", [1, 2], [3], [-2.0], False)])
    trace.turns[1].finish = "length"
    trace.turns[1].min_version, trace.turns[1].max_version = 3, 5
    trace.ending = Ending.CONTEXT_OVERFLOW
    [one] = sequences(trace)
    assert (one.finish, one.ending, one.min_version, one.max_version) == ("length", Ending.CONTEXT_OVERFLOW, 0, 5)
    trace.ending = Ending.VOID
    assert sequences(trace) == []


def test_a_long_conversation_is_kept_once():
    """200 turns that extend each other: the recorder holds their ids once, not once for each turn."""
    recorder = Recorder("t", EnvSpec(id="kuhn-poker-v0"), 7, SEATS)
    streams = recorder._ids["player_0"]
    prompt = b""
    for turn in range(200):
        longest, start = streams.longest_prefix(prompt)
        assert (longest, start) == ((turn - 1, len(prompt)) if turn else (None, 0))
        streams.add(turn, longest, prompt[start:] + bytes([turn]) * 400)
        prompt += bytes([turn]) * 400
    assert sum(map(len, streams._new.values())) == 200 * 400
