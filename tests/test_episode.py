"""One episode: rewards, ends, retries, simultaneous phases."""

from __future__ import annotations

import threading
import time

import pytest

import llm_arena
from llm_arena.errors import ContextOverflow
from llm_arena.recorder import sequences, verify
from llm_arena.rollout import play
from llm_arena.types import Action, Cause, Completion, Ending, EnvSpec, Move, Outcome, Reply
from rollout_parts import (
    Says,
    Watched,
    plan,
    play_all,
    registered,  # noqa: F401 -- a fixture of the whole file
)

# ---- rewards, ends, retries ----------------------------------------------------------------------------------------


def test_rewards_of_all_turns_sum_to_the_returns_of_each_seat():
    # PettingZoo issues 355, 1260
    trace = play("relay-v0", Says("go"), seed=0)
    assert [turn.seat[-1] for turn in trace.turns] == list("012012")
    assert trace.returns == {"runner_0": -0.25, "runner_1": -0.5, "runner_2": 1.0}
    for seat, total in trace.returns.items():
        assert sum(turn.rewards.get(seat, 0) for turn in trace.turns) == total
    assert trace.turns[1].rewards == {"runner_0": 0.25}


def test_a_seat_that_leaves_is_stepped_out_and_the_others_go_on():
    # PettingZoo issues 713, 652
    trace = play(llm_arena.make("relay-v0", leave=True), Says("go"), seed=0)
    assert [turn.seat[-1] for turn in trace.turns] == list("012020")
    assert not trace.void
    verify(trace)


def test_the_turn_limit_truncates():
    trace = play(llm_arena.make("quiz-v0", questions=9, max_turns=3), Says("a"), seed=0)
    assert (trace.ending, len(trace.turns), trace.returns) == (Ending.TRUNCATED, 3, {"solver_0": 3.0})


def test_retries_are_turns_of_their_own_with_fresh_seeds_and_the_hint_in_view():
    class Tries(Says):
        seeds: list = []

        async def act(self, view, past):
            self.seeds.append((view.seed, view.attempt, view.messages[-1]["content"]))
            return await super().act(view, past)

    agent = Tries("z", "", "a")
    trace = play(llm_arena.make("quiz-v0", retries=2), agent, seed=0)
    assert [(t.attempt, t.cause) for t in trace.turns] == [(0, Cause.UNPARSABLE), (1, Cause.EMPTY), (2, Cause.LEGAL)]
    assert len({seed for seed, _, _ in agent.seeds}) == 3
    assert [attempt for _, attempt, _ in agent.seeds] == [0, 1, 2]
    assert "Try again" in agent.seeds[1][2]
    assert trace.turns[1].messages[-1]["content"] == agent.seeds[1][2]
    verify(trace)


def test_an_agent_may_edit_what_it_was_given():
    class Scribbler(Says):
        async def act(self, view, past):
            assert isinstance(past, tuple)
            view.messages[0]["content"] = "(scribbled over)"
            view.messages.append({"role": "user", "content": "(think step by step)"})
            return await super().act(view, past)

    trace = play(llm_arena.make("quiz-v0", retries=2), Scribbler("z", "", "a"), seed=0)
    assert not any("(" in message["content"] for turn in trace.turns for message in turn.messages)
    verify(trace)


def test_an_empty_reply_goes_to_the_illegal_reply_rule_and_its_turn_is_kept():
    # NeMo-RL issue 158
    completion = Completion(token_ids=[], logprobs=[], finish="stop")
    trace = play("quiz-v0", Says(Action(reply=Reply(""), prompt_ids=[1], completion=completion)), seed=0)
    assert [(turn.text, turn.cause, turn.prompt_ids) for turn in trace.turns] == [("", Cause.EMPTY, [1])]
    assert trace.ending is Ending.TERMINATED
    assert sequences(trace) == []


def test_the_seats_clock_makes_a_timeout_that_is_the_games_affair():
    env = llm_arena.make("quiz-v0", turn_seconds=0.1, retries=1)
    trace = play(env, Says("a", delay=60), seed=0)
    assert [(turn.cause, turn.finish, turn.text) for turn in trace.turns] == [(Cause.TIMEOUT, "timeout", "")] * 2
    assert trace.ending is Ending.TERMINATED and "forfeit" in trace.outcome.reason
    verify(trace)


def test_a_timeout_inside_the_agent_is_not_the_seats_clock():
    [trace] = play_all([plan(0, Says(TimeoutError("server")), llm_arena.make("quiz-v0", turn_seconds=30).spec)])
    assert trace.void and (trace.failure.boundary, trace.failure.kind) == ("agent", "TimeoutError")


@pytest.mark.parametrize(("rule", "paid"), [("no_loss", 0.0), ("forfeit", -1.0)])
def test_a_context_overflow_truncates_by_the_specs_rule_and_replays(rule, paid):
    env = llm_arena.make("relay-v0", overflow=rule)
    agents = {"runner_0": Says("go", ContextOverflow("too long")), "runner_1": Says("go"), "runner_2": Says("go")}
    trace = play(env, agents, seed=0)
    assert (trace.ending, trace.overflow_seat, len(trace.turns)) == (Ending.CONTEXT_OVERFLOW, "runner_0", 3)
    assert trace.returns["runner_0"] == 0.75 + paid
    verify(trace)


# ---- simultaneous phases -------------------------------------------------------------------------------------------


def test_replies_of_a_phase_are_booked_by_seat_whatever_the_order_of_arrival():
    # coworld issue 40: models P, Q, R over three rotations; answers arrive in the order seat 2, 0, 1
    totals = dict.fromkeys("PQR", 0.0)
    for shift in range(3):
        order = ["PQR"[(seat + shift) % 3] for seat in range(3)]
        agents = {
            f"player_{seat}": Says(order[seat], delay=delay, name=order[seat])
            for seat, delay in enumerate((0.04, 0.08, 0.0))
        }
        trace = play("trio-v0", agents, seed=0)
        assert [(turn.seat, turn.text) for turn in trace.turns] == [(f"player_{k}", order[k]) for k in range(3)]
        by_model = {trace.seats[seat].agent: reward for seat, reward in trace.returns.items()}
        assert by_model == {order[0]: 1.0, order[1]: 0.0, order[2]: -1.0}
        for model, reward in by_model.items():
            totals[model] += reward
        verify(trace)
    assert len(set(totals.values())) == 1


def test_the_seats_of_a_phase_act_at_the_same_time_and_see_nothing_of_each_other():
    Watched.most = 0
    began = time.monotonic()
    trace = play(llm_arena.make("trio-v0", phases=2), Watched("hi", delay=0.3), seed=0)
    assert Watched.most == 3
    assert time.monotonic() - began < 1.7  # one after another: 1.8
    assert len(trace.turns) == 6
    assert [len(turn.messages) for turn in trace.turns] == [1, 1, 1, 1, 1, 1]  # rules, then the own reply


def test_retries_go_on_in_the_same_phase():
    agents = {"player_0": Says("much too long", "ok"), "player_1": Says("x"), "player_2": Says("y")}
    trace = play(llm_arena.make("trio-v0", retries=1), agents, seed=0)
    assert sorted((turn.seat, turn.attempt) for turn in trace.turns) == [
        ("player_0", 0),
        ("player_0", 1),
        ("player_1", 0),
        ("player_2", 0),
    ]
    assert trace.outcome.reason.split("; ").count("ok") == 1
    verify(trace)


def test_a_failure_in_a_phase_cancels_the_other_calls():
    agents = {"player_0": Watched("x", delay=60), "player_1": Watched("x", delay=60), "player_2": Watched("x")}
    agents["player_0"].replies = (ValueError("boom"),)
    agents["player_0"].delay = 0.02
    [trace] = play_all([plan(0, agents, EnvSpec(id="trio-v0"))])
    assert (trace.failure.boundary, trace.failure.seat, trace.failure.message) == ("agent", "player_0", "boom")
    assert Watched.inside == 0


def test_a_game_that_ends_in_mid_phase_cancels_the_other_calls():
    env = llm_arena.make("trio-v0", illegal="skip")
    agents = {"player_0": Says("much too long"), "player_1": Watched("x", delay=60), "player_2": Watched("x", delay=60)}
    trace = play(env, agents, seed=0)
    assert trace.outcome.reason == "skipped" and len(trace.turns) == 1
    assert Watched.inside == 0


def test_a_slow_game_steps_off_the_loop_and_others_play_on(monkeypatch):
    class Slow(llm_arena.ArenaEnv):
        id = "slow-v0"
        roles = {"player": 1}
        slow = True

        def begin(self, rng):
            return "player_0"

        def sample_reply(self, seat, rng):
            return "x"

        def resolve(self, seat, reply):
            time.sleep(0.3)
            return Move(outcome=Outcome(winners=[seat], reason=threading.current_thread().name))

    monkeypatch.setattr(llm_arena.registry, "entries", dict(llm_arena.registry.entries))  # forgotten after this test
    llm_arena.register(Slow.id, Slow)
    began = time.monotonic()
    traces = play_all([plan(k, {"player_0": Says("x")}, EnvSpec(id="slow-v0")) for k in range(8)])
    assert time.monotonic() - began < 8 * 0.3
    assert {trace.outcome.reason for trace in traces} == {"llm_arena-call"}
