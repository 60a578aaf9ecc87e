from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_arena.env import ArenaEnv, StepRecord
from llm_arena.errors import TraceError
from llm_arena.recorder import Recorder, context_tokens, sequences
from llm_arena.types import (
    Action,
    Cause,
    Completion,
    Ending,
    EnvSpec,
    Failure,
    Reply,
    SeatInfo,
    TokenSequence,
    Trace,
    View,
)

SEATS = {
    "player_0": SeatInfo(role="player", agent="llm:p", policy="p"),
    "player_1": SeatInfo(role="player", agent="llm:q", policy="q"),
}


class Pages:
    """A recorder with a view per seat, so that a test says only what it is about."""

    def __init__(self):
        self.recorder = Recorder("t", EnvSpec(id="kuhn-poker-v0"), 7, SEATS, "g")
        self.messages: dict[str, list] = {seat: [] for seat in SEATS}
        self.epochs = dict.fromkeys(SEATS, 0)

    def tell(self, seat, *texts):
        self.messages[seat] += [{"role": "user", "content": text} for text in texts]

    def turn(self, prompt=None, sampled=(), seat="player_0", *, text="x", finish="stop", attempt=0, versions=(0, 0)):
        view = View(
            seat=seat,
            role="player",
            messages=list(self.messages[seat]),
            legal_actions=None,
            grammar=None,
            facts=None,
            attempt=attempt,
            seed=0,
            sample_reply=lambda rng: "",
        )
        completion = None
        if prompt is not None:
            low, high = versions
            completion = Completion(
                token_ids=list(sampled),
                logprobs=[-float(token) / 64 for token in sampled],
                finish="length" if finish == "length" else "stop",
                min_version=low,
                max_version=high,
            )
        reply = Reply(text, finish)
        step = StepRecord(seat=seat, reply=reply, cause=Cause.LEGAL, attempt=attempt, action=text, rewards={})
        action = Action(reply=reply, prompt_ids=prompt, completion=completion)
        self.recorder.add(view, self.epochs[seat], action, step, 0.0)
        self.messages[seat].append({"role": "assistant", "content": text})

    def trace(self) -> Trace:
        trace = self.recorder._trace
        trace.ending = Ending.TERMINATED
        return trace


def trained(sequence: TokenSequence) -> list[int]:
    return [token for token, on in zip(sequence.token_ids, sequence.mask, strict=True) if on]


def check_sequences(trace: Trace) -> list[TokenSequence]:
    """Holds for every trace: each sampled token is trained once, with its own logprob, after its own context."""
    found = sequences(trace)
    seen = []
    for sequence in found:
        length = len(sequence.token_ids)
        assert [len(sequence.mask), len(sequence.logprobs), len(sequence.turn_of)] == [length] * 3
        for turn in sequence.turns:
            prompt, sampled = trace.full_ids(turn)
            where = [i for i in range(length) if sequence.turn_of[i] == turn]
            assert where == list(range(len(prompt), len(prompt) + len(sampled)))
            assert sequence.token_ids[: len(prompt) + len(sampled)] == prompt + sampled
            assert [sequence.logprobs[i] for i in where] == trace.turns[turn].logprobs
            assert all(sequence.mask[i] for i in where)
            seen.append(turn)
        for i in range(length):
            assert sequence.mask[i] == (sequence.turn_of[i] >= 0)
            assert sequence.mask[i] or sequence.logprobs[i] == 0.0
    assert sorted(seen) == [t.index for t in trace.turns if t.prompt_ids is not None and t.completion_ids]
    return found


def test_a_prompt_that_extends_the_last_turn_continues_its_sequence():
    pages = Pages()
    pages.turn(seat="player_1")
    pages.turn([1, 2], [7], versions=(3, 4))
    pages.turn([1, 2, 7, 3], [8, 9], versions=(5, 5))
    trace = pages.trace()
    assert [(turn.extends, turn.prompt_ids) for turn in trace.turns] == [(None, None), (None, [1, 2]), (1, [3])]
    [sequence] = check_sequences(trace)
    assert sequence.token_ids == [1, 2, 7, 3, 8, 9]
    assert sequence.mask == [False, False, True, False, True, True]
    assert sequence.turn_of == [-1, -1, 1, -1, 2, 2]
    assert sequence.turns == [1, 2]
    assert (sequence.seat, sequence.role, sequence.policy) == ("player_0", "player", "p")
    assert (sequence.min_version, sequence.max_version) == (3, 5)


def test_stop_tokens_and_template_newlines_at_turn_boundaries_are_trained_only_if_sampled():
    # Agent-R1 issue 30, transformers issue 34462
    # S=1 role=2 newline=3 E=4; turns sample [t1, E], [t2, t3] cut by length, [t4, E]
    head, user = [1, 2, 3], [1, 2, 3, 50, 4, 3]
    first = [*user, *head]
    second = [*first, 11, 4, 3, *user, *head]
    third = [*second, 12, 13, 4, 3, *user, *head]
    pages = Pages()
    pages.turn(first, [11, 4])
    pages.turn(second, [12, 13], finish="length")
    pages.turn(third, [14, 4])
    trace = pages.trace()
    [sequence] = check_sequences(trace)
    assert sequence.token_ids == [*third, 14, 4]
    assert trained(sequence) == [11, 4, 12, 13, 14, 4]
    assert sequence.logprobs.count(0.0) == len(third) - 4
    assert trace.turns[1].finish == "length"


def test_a_template_that_rewrites_history_starts_a_new_sequence_and_repeats_nothing():
    # prime-rl issue 1334, NeMo-RL issue 2821: thinking (90) is dropped from all but the newest answer
    pages = Pages()
    prompts = [[1], [1, 65, 2], [1, 65, 2, 66, 3]]
    for prompt, answer in zip(prompts, (65, 66, 67), strict=True):
        pages.turn(prompt, [90, answer])
    found = check_sequences(pages.trace())
    assert [s.token_ids for s in found] == [[*p, 90, a] for p, a in zip(prompts, (65, 66, 67), strict=True)]
    assert [trained(s) for s in found] == [[90, 65], [90, 66], [90, 67]]
    for answer in (65, 66, 67):
        assert found[-1].token_ids.count(answer) == 1


def test_a_turn_extends_the_longest_earlier_turn_whose_ids_it_begins_with():
    pages = Pages()
    pages.turn([1], [2])
    pages.turn([1, 2, 3], [4])
    pages.turn([9], [9])  # a fresh rendering in between
    pages.turn([1, 2, 3, 4, 5], [6])
    assert [turn.extends for turn in pages.trace().turns] == [None, 0, None, 1]
    assert pages.trace().full_ids(3) == ([1, 2, 3, 4, 5], [6])


def test_a_retry_without_the_failed_reply_branches_and_one_with_it_goes_on():
    branch, goes_on = Pages(), Pages()
    for pages, retry in ((branch, [1, 2, 8]), (goes_on, [1, 2, 7, 8])):
        pages.turn([1, 2], [7])
        pages.turn(retry, [9], attempt=1)
    assert [s.token_ids for s in check_sequences(branch.trace())] == [[1, 2, 7], [1, 2, 8, 9]]
    assert [s.token_ids for s in check_sequences(goes_on.trace())] == [[1, 2, 7, 8, 9]]


def test_branches_share_their_prefix_and_train_it_once():
    pages = Pages()
    pages.turn([1], [2])
    pages.turn([1, 2, 3], [4])
    pages.turn([1, 2, 5], [6])
    found = check_sequences(pages.trace())
    assert [s.token_ids for s in found] == [[1, 2, 3, 4], [1, 2, 5, 6]]
    assert [trained(s) for s in found] == [[2, 4], [6]]
    assert [s.turns for s in found] == [[0, 1], [2]]


def test_seats_never_extend_each_other():
    pages = Pages()
    pages.turn([1], [2])
    pages.turn([1, 2, 3], [4], "player_1")
    assert [turn.extends for turn in pages.trace().turns] == [None, None]
    assert [s.policy for s in check_sequences(pages.trace())] == ["p", "q"]


def test_an_empty_completion_trains_nothing_and_is_still_a_turn():
    pages = Pages()
    pages.turn([1, 2], [], text="")
    assert sequences(pages.trace()) == []
    assert len(pages.trace().turns) == 1
    pages.turn([1, 2, 3], [4])
    [sequence] = check_sequences(pages.trace())
    assert (sequence.token_ids, sequence.turns) == ([1, 2, 3, 4], [1])


def test_ids_of_several_bytes_are_compared_whole():
    pages = Pages()
    pages.turn([1], [256])
    pages.turn([1, 256 + (1 << 16), 5], [6])  # differs from the first only in a higher byte
    assert [turn.extends for turn in pages.trace().turns] == [None, None]


def test_a_void_trace_holds_its_turns_and_nothing_to_train():
    pages = Pages()
    pages.turn([1], [2])
    failure = Failure(boundary="agent", kind="ValueError", message="boom", seat="player_0")
    trace = pages.recorder.void(failure)
    pages.turn([3], [4])  # a step that was given up and comes late
    assert trace.void and trace.failure == failure
    assert len(trace.turns) == 1 and trace.returns == {} and trace.outcome is None
    assert sequences(trace) == []


def test_views_store_only_new_messages_until_they_are_replaced():
    pages = Pages()
    pages.tell("player_0", "rules", "card")
    pages.turn(text="a")
    pages.tell("player_0", "your turn")
    pages.turn(text="b")
    pages.messages["player_0"] = [{"role": "user", "content": "summary"}]
    pages.epochs["player_0"] = 1
    pages.turn(text="c")
    said = [[m["content"] for m in turn.messages] for turn in pages.trace().turns]
    assert said == [["rules", "card"], ["a", "your turn"], ["summary"]]
    assert [turn.view_epoch for turn in pages.trace().turns] == [0, 0, 1]


def test_past_turns_have_all_that_an_agent_needs_to_go_on():
    pages = Pages()
    pages.tell("player_0", "rules")
    pages.turn([1], [2])
    [past] = pages.recorder.past("player_0")
    assert (past.index, past.num_messages, past.prompt_ids, past.reply) == (0, 1, [1], "x")
    assert past.completion.token_ids == [2]
    assert pages.recorder.past("player_1") == []


def test_logprobs_that_do_not_belong_to_the_ids_are_refused():
    pages = Pages()
    pages.turn([1], [2, 3])
    pages.trace().turns[0].logprobs.pop()
    with pytest.raises(TraceError, match="2 sampled ids and 1 logprobs"):
        sequences(pages.trace())


def test_a_chain_that_goes_nowhere_is_refused():
    pages = Pages()
    pages.turn([1], [2])
    pages.turn([1, 2], [3])
    pages.turn([5], [6], "player_1")
    pages.trace().turns[2].extends = 0  # another seat's turn
    with pytest.raises(TraceError, match="no earlier turn of player_1"):
        sequences(pages.trace())


@pytest.mark.parametrize("extends", [[0, None, None], [None, 1, None], [1, 0, None], [None, None, -1], [None, 2, 1]])
def test_a_chain_that_goes_round_or_back_ends_in_an_error(extends):
    pages = Pages()
    for at in range(3):
        pages.turn([at], [10 + at])
    trace = pages.trace()
    for turn, before in zip(trace.turns, extends, strict=True):
        turn.extends = before
    bad = next(at for at, before in enumerate(extends) if before is not None)
    for reads in (sequences, lambda trace: trace.full_ids(bad), lambda trace: context_tokens(trace, trace.turns[bad])):
        with pytest.raises(TraceError, match=rf"turn {bad} extends -?\d, which is no earlier turn of player_0"):
            reads(trace)


def test_a_turn_extends_none_without_tokens():
    pages = Pages()
    pages.turn(text="x")
    pages.turn([1], [2])
    pages.trace().turns[1].extends = 0
    with pytest.raises(TraceError, match="no earlier turn of player_0 with tokens"):
        pages.trace().full_ids(1)


def test_an_action_is_recorded_as_a_file_gives_it_back():
    pages = Pages()
    board = [1, (2, 3)]
    pages.turn(text="x")
    pages.recorder._trace.turns.clear()
    view = View(
        seat="player_0", role="player", messages=[], legal_actions=None, grammar=None, facts=None, attempt=0, seed=0,
        sample_reply=lambda rng: "",
    )  # fmt: skip
    step = StepRecord(seat="player_0", reply=Reply("x"), cause=Cause.LEGAL, attempt=0, action=board, rewards={})
    pages.recorder.add(view, 0, Action(reply=Reply("x")), step, 0.0)
    board.append(4)  # the game goes on with its own object
    assert pages.trace().turns[0].action == [1, [2, 3]]


def test_an_unfinished_episode_has_no_trace():
    class Running(ArenaEnv):
        id = "running-v0"
        roles = {"player": 2}

        def begin(self, rng):
            return "player_0"

    env = Running()
    env.reset(seed=0)
    with pytest.raises(TraceError, match="not over"):
        Pages().recorder.finish(env)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(SEATS)),
            st.one_of(st.none(), st.integers(0, 9)),  # None: fresh ids; n: go on from the n-th turn
            st.lists(st.integers(0, 2), max_size=3),
            st.lists(st.integers(0, 2), max_size=3),
        ),
        max_size=12,
    )
)
def test_any_conversation_is_stored_losslessly_and_trained_once(script):
    pages, sent = Pages(), []
    for seat, base, new, sampled in script:
        prompt = list(new)
        if base is not None and sent:
            earlier = sent[base % len(sent)]
            prompt = [*earlier[0], *earlier[1], *new]
        sent.append((prompt, sampled))
        pages.turn(prompt, sampled, seat)
    trace = msgspec.json.decode(msgspec.json.encode(pages.trace()), type=Trace)
    assert [trace.full_ids(i) for i in range(len(sent))] == [(p, list(s)) for p, s in sent]
    check_sequences(trace)
