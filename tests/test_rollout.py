"""Playing one episode or many: records, faults, bounds, seeds."""

from __future__ import annotations

import asyncio
import contextlib
import time

import msgspec
import numpy as np
import pytest

import llm_arena
from llm_arena.errors import EngineError, EpisodeTimeout, UsageError
from llm_arena.recorder import verify
from llm_arena.rollout import EpisodePlan, aplay, play, play_episode, play_many, sampling_seed
from llm_arena.runtime import Runtime
from llm_arena.trace_file import TraceWriter, read_traces
from llm_arena.types import Action, Completion, Ending, EnvSpec, Reply
from rollout_parts import (
    Asks,
    Instant,
    Says,
    Watched,
    plan,
    play_all,
    registered,  # noqa: F401 -- a fixture of the whole file
    timeless,
)

# ---- one episode ---------------------------------------------------------------------------------------------------


def test_a_bare_play_returns_a_complete_trace():
    trace = llm_arena.play("kuhn-poker-v0", agents="random-legal", seed=0)
    assert trace.ending is Ending.TERMINATED and trace.outcome is not None
    assert sum(trace.returns.values()) == 0 and set(trace.returns) == {"player_0", "player_1"}
    assert [seat.agent for seat in trace.seats.values()] == ["random-legal"] * 2
    assert trace.env_stats["player"]["turns"] == len(trace.turns)
    verify(trace)


def test_the_same_seed_plays_the_same_episode_and_another_one_another():
    first, again = (play("tic-tac-toe-v0", seed=3) for _ in range(2))
    assert timeless(first) == timeless(again)
    assert [t.text for t in play("tic-tac-toe-v0", seed=4).turns] != [t.text for t in first.turns]


def test_without_a_seed_one_is_drawn_and_recorded():
    first, other = play("kuhn-poker-v0"), play("kuhn-poker-v0")
    assert first.seed != other.seed
    assert timeless(play("kuhn-poker-v0", seed=first.seed)) == timeless(first)


def test_seeds_of_numpy_are_seeds_and_others_are_refused():
    assert timeless(play("kuhn-poker-v0", seed=np.uint64(3))) == timeless(play("kuhn-poker-v0", seed=3))
    for bad in (-1, 1.5, 2**64, "3"):
        with pytest.raises(UsageError, match="expected an integer from 0"):
            play("kuhn-poker-v0", seed=bad)


def test_an_env_lends_its_spec_and_is_left_alone():
    env = llm_arena.make("quiz-v0", questions=2)
    env.reset(seed=5)
    trace = play(env, Says("a", "b"), seed=1)
    assert trace.spec == env.spec and len(trace.turns) == 2
    assert env.turns == 0 and env.episode_seed == 5
    assert len(play(env.spec, Says("a", "b"), seed=1).turns) == 2


def test_play_works_inside_a_running_loop_and_aplay_on_any_loop():
    async def notebook():
        inside = play("kuhn-poker-v0", seed=1)
        alone = await aplay("kuhn-poker-v0", seed=1)
        with Runtime() as runtime:
            lent = await aplay("kuhn-poker-v0", seed=1, runtime=runtime)
            home = runtime.run(aplay("kuhn-poker-v0", seed=1, runtime=runtime))
        return {timeless(trace) for trace in (inside, alone, lent, home)}

    assert len(asyncio.run(notebook())) == 1


def test_cancelling_aplay_cancels_the_episode():
    async def main():
        task = asyncio.create_task(aplay("quiz-v0", Watched("a", delay=60), seed=0))
        while Watched.inside == 0:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert Watched.inside == 0

    asyncio.run(main())


def test_play_raises_what_went_wrong_and_writes_the_void_record(tmp_path):
    path = tmp_path / "t.jsonl"
    play("quiz-v0", Says("a"), seed=0, traces=path)
    with pytest.raises(ValueError, match="boom"):
        play("quiz-v0", Says(ValueError("boom")), seed=1, traces=path)
    with TraceWriter(path) as writer:
        play("quiz-v0", Says("b"), seed=2, traces=writer)
    assert [trace.void for trace in read_traces(path)] == [False, True, False]


def test_lone_surrogates_of_a_broken_model_text_become_replacement_characters(tmp_path):
    trace = play("quiz-v0", Says("a \ud800"), seed=0, traces=tmp_path / "t.jsonl")
    assert trace.turns[0].text == "a \ufffd"
    assert list(read_traces(tmp_path / "t.jsonl")) == [trace]
    verify(trace)


# ---- many episodes, faults -----------------------------------------------------------------------------------------


def test_results_keep_their_places_when_one_fails():
    # prime-rl PR 2590: five solvers, number 2 raises; the second group is complete
    answers = ["a", "b", ValueError("outage"), "d", "e"]
    plans = [plan(k, Says(answer, delay=0.01 * (5 - k)), group="g1") for k, answer in enumerate(answers)]
    plans += [plan(5 + k, Says(answer), group="g2") for k, answer in enumerate("abde")]
    traces = play_all(plans)
    assert [trace.id for trace in traces] == [p.id for p in plans]
    assert [trace.void for trace in traces] == [False, False, True, *[False] * 6]
    rewards = [trace.returns.get("solver_0") for trace in traces]
    assert rewards == [1.0, 0.0, None, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]
    assert traces[2].failure.message == "outage" and traces[2].outcome is None


def test_dead_agents_and_stuck_games_fail_alone_and_free_their_slots():
    # tinker-cookbook issue 945
    spec = EnvSpec(id="quiz-v0", kwargs={"questions": 2})
    agents = [Says("a", delay=0.05)] * 8
    agents[3] = Says("a", ValueError("boom"))
    agents[5] = Says("hang")
    began = time.monotonic()
    with Runtime(max_open_episodes=4) as runtime:
        traces = play_all([plan(k, agents[k], spec) for k in range(8)], runtime=runtime, episode_seconds=1)
        assert time.monotonic() - began < 5
        assert [k for k, trace in enumerate(traces) if trace.void] == [3, 5]
        assert (traces[3].failure.boundary, traces[3].failure.kind) == ("agent", "ValueError")
        assert "boom" in traces[3].failure.message
        assert (traces[5].failure.boundary, traces[5].failure.kind) == ("runtime", "EpisodeTimeout")
        assert "timed out after 1 s, waiting for the game quiz-v0" in traces[5].failure.message
        again = play_all([plan(k, agents[0], spec) for k in range(8)], runtime=runtime, episode_seconds=1)
        assert not any(trace.void for trace in again)


def test_an_agent_that_never_answers_times_out_with_its_seat_named():
    [trace] = play_all([plan(0, Says("a", delay=60))], episode_seconds=0.1)
    assert "waiting for the agent of solver_0" in trace.failure.message
    assert trace.failure.seat == "solver_0"
    with Runtime() as runtime, pytest.raises(EpisodeTimeout, match="timed out"):
        plans = [plan(0, Says("a", delay=60))]
        runtime.run(play_many(plans, runtime, episode_seconds=0.1, stop_at_first_error=True))


class Stubborn:
    """Takes its cancellation for an error and answers all the same."""

    name, policy = "stubborn", None

    async def act(self, view, past):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return Action(reply=Reply("a"))


def test_a_reply_after_the_time_counts_nowhere_whoever_kept_the_cancellation():
    [trace] = play_all([plan(0, Stubborn())], episode_seconds=0.1)
    assert trace.void and trace.failure.kind == "EpisodeTimeout" and not trace.returns
    clock = llm_arena.make("quiz-v0", turn_seconds=0.1).spec
    [trace] = play_all([plan(0, Stubborn(), clock)], episode_seconds=30)
    assert not trace.void and (trace.turns[0].text, trace.turns[0].finish) == ("", "timeout")


@pytest.mark.parametrize(
    ("prompt", "logprobs", "says"),
    [([], [-1.0], "prompt_ids"), ([1], [None], "logprob"), ([1], [3.0], "logprob"), ([1], [float("nan")], "logprob")],
)
def test_tokens_that_nobody_could_train_on_void_the_episode(prompt, logprobs, says):
    class Odd(Stubborn):
        async def act(self, view, past):
            completion = Completion(token_ids=[5], logprobs=logprobs, finish="stop")
            return Action(reply=Reply("a"), prompt_ids=prompt, completion=completion)

    [trace] = play_all([plan(0, Odd())])
    assert trace.void and says in trace.failure.message


def test_stop_at_first_error_raises_it_and_leaves_nothing_running(tmp_path):
    async def main(runtime, writer):
        plans = [plan(k, Watched("a", delay=60) if k != 3 else Says(ValueError("boom"))) for k in range(8)]
        with pytest.raises(ValueError, match="boom"):
            await play_many(plans, runtime, on_trace=writer.write, stop_at_first_error=True)
        assert len(asyncio.all_tasks()) == 1

    with Runtime(max_open_episodes=4) as runtime, TraceWriter(tmp_path / "t.jsonl") as writer:
        runtime.run(main(runtime, writer), timeout=5)
    assert Watched.inside == 0
    messages = {trace.id: trace.failure.message for trace in read_traces(tmp_path / "t.jsonl")}
    assert messages == {"e0": "cancelled", "e1": "cancelled", "e2": "cancelled", "e3": "boom"}


@pytest.mark.parametrize(
    ("reply", "boundary", "kind"),
    [
        ("crash", "env", "RuntimeError"),
        ("spin", "parser", "TypeError"),
        (ValueError("x"), "agent", "ValueError"),
        (SystemExit(3), "agent", "SystemExit"),
        (asyncio.CancelledError(), "agent", "CancelledError"),
        (EngineError("no server"), "engine", "EngineError"),
        (Action(reply=3), "agent", "TypeError"),
        (
            Action(reply=Reply("a"), prompt_ids=[1], completion=Completion(token_ids=[1], logprobs=[], finish="stop")),
            "engine",
            "EngineError",
        ),
        (
            Action(
                reply=Reply("a"),
                prompt_ids=[1],
                completion=Completion(token_ids=[1], logprobs=[float("nan")], finish="stop"),
            ),
            "engine",
            "EngineError",
        ),
        (
            Action(reply=Reply("a"), completion=Completion(token_ids=[1], logprobs=[-1.0], finish="stop")),
            "agent",
            "TypeError",
        ),
    ],
)
def test_a_fault_names_the_boundary_it_crossed(reply, boundary, kind):
    [bad, good] = play_all([plan(0, Says(reply)), plan(1, Says("a"))])
    assert bad.ending is Ending.VOID and bad.returns == {}
    assert (bad.failure.boundary, bad.failure.kind) == (boundary, kind)
    assert not good.void
    msgspec.json.encode(bad)


def test_a_fault_inside_an_engine_is_the_engines_even_without_its_error_class(fake_engine):
    engine = fake_engine(lambda prompt_ids, sampling: 1 // 0)
    [trace] = play_all([plan(0, Asks(engine, "p", "a"))])
    assert trace.failure.boundary == "engine"


def test_an_env_that_cannot_be_made_is_a_void_trace():
    spec = EnvSpec(id="quiz-v0", kwargs={"max_turns": -1})
    [trace] = play_all([EpisodePlan(id="x", spec=spec, seed=0, agents={"solver_0": Says("a")})])
    assert (trace.failure.boundary, trace.failure.kind) == ("env", "UsageError")
    [trace] = play_all([EpisodePlan(id="x", spec=EnvSpec(id="quiz-v0"), seed=0, agents={})])
    assert "has the seats ['solver_0']" in trace.failure.message


def test_text_that_no_file_can_hold_does_not_spoil_the_record_of_a_failure():
    [trace] = play_all([plan(0, Says(ValueError("\ud800" + "x" * 5000)))])
    assert len(msgspec.json.encode(trace)) < 5000


def test_no_more_episodes_are_open_than_allowed_and_all_are_played():
    Watched.most = 0
    with Runtime(max_open_episodes=3) as runtime:
        traces = play_all([plan(k, Watched("a", delay=0.01)) for k in range(20)], runtime=runtime)
    assert [trace.seed for trace in traces] == list(range(20))
    assert Watched.most == 3


def test_two_batches_share_the_bound_and_neither_waits_for_the_others_end():
    class Waits(Says):
        async def act(self, view, past):
            await quick_is_over.wait()
            return Action(reply=Reply("a"))

    async def main(runtime):
        slow = asyncio.create_task(play_many([plan(0, Waits())], runtime))
        await play_many([plan(k, Says("a")) for k in range(5)], runtime)
        quick_is_over.set()
        await slow

    quick_is_over = asyncio.Event()
    with Runtime(max_open_episodes=2) as runtime:
        runtime.run(main(runtime), timeout=20)


def test_no_plans_no_traces():
    assert play_all([]) == []


def test_one_episode_by_itself_is_recorded_like_any_other():
    with Runtime() as runtime:
        trace = runtime.run(play_episode(plan(0, Says(ValueError("boom"))), runtime))
    assert trace.failure.message == "boom"


def test_agents_that_never_wait_do_not_starve_others():
    async def main(runtime):
        spec = EnvSpec(id="quiz-v0", kwargs={"questions": 1500, "max_turns": 2000})
        episode = asyncio.create_task(play_many([plan(0, Instant("a"), spec)], runtime))
        turns_of_others = 0
        while not episode.done():
            await asyncio.sleep(0)
            turns_of_others += 1
        assert len(episode.result()[0].turns) == 1500
        return turns_of_others

    with Runtime() as runtime:
        # a few come at its beginning and its end; between them it plays for hundreds of milliseconds
        assert runtime.run(main(runtime)) > 12


# ---- seeds ---------------------------------------------------------------------------------------------------------


def test_sampling_seeds_are_fixed_64_bit_numbers_that_depend_on_every_part():
    base = (1, "e", "player_0", 2, 0)
    assert sampling_seed(*base) == 11482314995162266216
    seeds = {sampling_seed(*base[:k], other, *base[k + 1 :]) for k, other in enumerate((2, "f", "player_1", 3, 1))}
    assert len(seeds | {sampling_seed(*base)}) == 6
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_the_run_seed_changes_the_sampling_and_not_the_game():
    spec = EnvSpec(id="tic-tac-toe-v0")
    agent = llm_arena.make_agent("random-legal")
    first, same, other = play_all([plan(7, agent, spec, run_seed=seed) for seed in (1, 1, 2)])
    assert timeless(first) == timeless(same)
    assert [t.text for t in first.turns] != [t.text for t in other.turns]
    assert first.turns[0].messages == other.turns[0].messages


def test_playing_moves_no_global_generator():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    play("tic-tac-toe-v0", seed=1)
    assert (np.random.get_state()[1] == before).all()


def test_what_happens_does_not_depend_on_how_many_play_at_once(tiny_model):
    from llm_arena.engines.fake import FakeEngine

    def all_traces(width):
        with Runtime(engine=FakeEngine(), max_open_episodes=width) as runtime:
            agent = llm_arena.make_agent(str(tiny_model), runtime=runtime, max_new_tokens=4)
            spec = llm_arena.make("kuhn-poker-v0", retries=2).spec
            traces = play_all([plan(k, agent, spec) for k in range(12)], runtime=runtime)
        return [timeless(trace) for trace in traces]

    one = all_traces(1)
    assert one == all_traces(5)
    assert any(b"completion_ids" in trace for trace in one)


def test_the_rollout_costs_little_beside_the_game():
    spec = EnvSpec(id="quiz-v0", kwargs={"questions": 50, "max_turns": 60})
    plans = [plan(k, Instant("a"), spec) for k in range(20)]
    with Runtime() as runtime:
        play_all(plans, runtime=runtime)
        best = min(_seconds(plans, runtime) for _ in range(5))
    assert best / (20 * 50) < 600e-6  # about 60e-6 on an idle core, the game included


def _seconds(plans, runtime):
    began = time.perf_counter()
    play_all(plans, runtime=runtime)
    return time.perf_counter() - began


def test_a_setting_that_nobody_takes_is_an_error():
    with pytest.raises(UsageError, match="max_new_token"):
        play("quiz-v0", "random-legal", seed=0, max_new_token=3)
