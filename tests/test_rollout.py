from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import numpy as np
import pytest

import llm_arena
from llm_arena.engines.base import Sampling
from llm_arena.env import ArenaEnv
from llm_arena.errors import ContextOverflow, EngineError, EpisodeTimeout, UsageError
from llm_arena.parsing import read_choice
from llm_arena.recorder import sequences, verify
from llm_arena.rollout import EpisodePlan, aplay, play, play_episode, play_many, sampling_seed
from llm_arena.runtime import Runtime
from llm_arena.trace_file import TraceWriter, read_traces
from llm_arena.types import Action, Cause, Completion, Ending, EnvSpec, Move, Outcome, Reply, Trace


class Quiz(ArenaEnv):
    """One seat answers some questions; `a` and `d` are right."""

    id = "quiz-v0"
    roles = {"solver": 1}

    def __init__(self, *, questions=1, **options):
        self.questions = questions
        super().__init__(**options)

    def begin(self, rng):
        self.left = self.questions
        self.tell("solver_0", "Which letter?")
        return "solver_0"

    def resolve(self, seat, reply):
        if reply == "crash":
            raise RuntimeError("the game broke")
        if reply == "hang":
            threading.Event().wait(60)
        if reply == "spin":
            read_choice(reply, 3)  # the parser's own fault
        choice = read_choice(reply, ["a", "b", "d", "e"])
        self.left -= 1
        outcome = Outcome(reason="answered") if self.left == 0 else None
        return Move(next=seat, rewards={seat: float(choice in "ad")}, outcome=outcome, action=choice)


class Trio(ArenaEnv):
    """Three seats at once, in some phases. Seat 0 wins, seat 2 loses."""

    id = "trio-v0"
    roles = {"player": 3}
    simultaneous = True
    zero_sum = True

    def __init__(self, *, phases=1, **options):
        self.phases = phases
        super().__init__(**options)

    def begin(self, rng):
        self.said = {}
        self.left = self.phases
        self.tell(self.possible_agents, "Say something short.")
        return self.possible_agents

    def resolve(self, seat, reply):
        if len(reply) > 9:
            raise llm_arena.IllegalReply(Cause.ILLEGAL, "Shorter.")
        self.said[seat] = str(reply)
        if len(self.said) < 3:
            return Move()
        self.left -= 1
        if self.left:
            self.said = {}
            return Move(next=self.possible_agents)
        rewards = {"player_0": 1.0, "player_2": -1.0}
        return Move(rewards=rewards, outcome=Outcome(winners=["player_0"], reason="; ".join(self.said.values())))

    def skip(self, seat):
        return Move(outcome=Outcome(reason="skipped"))


class Relay(ArenaEnv):
    """A, B, C in turn, with the payments of PettingZoo issue 355; b leaves early with `leave`."""

    id = "relay-v0"
    roles = {"runner": 3}
    max_turns = 12

    def __init__(self, *, leave=False, **options):
        self.leave = leave
        super().__init__(**options)

    def begin(self, rng):
        self.count = 0
        return "runner_0"

    def resolve(self, seat, reply):
        self.count += 1
        third = {} if self.leave else {"runner_0": 0.5, "runner_1": -0.5}
        pay = {2: {"runner_0": 0.25}, 3: third}.get(self.count, {})
        outcome = None
        if self.count == 6:
            pay, outcome = {"runner_0": -1.0, "runner_2": 1.0}, Outcome(winners=["runner_2"], reason="done")
        if self.leave and self.count == 2:
            return Move(next="runner_2", rewards=pay, leaves=["runner_1"])
        following = {"runner_0": "runner_1", "runner_1": "runner_2", "runner_2": "runner_0"}[seat]
        if self.leave and following == "runner_1" and self.count > 2:
            following = "runner_2"
        return Move(next=following, rewards=pay, outcome=outcome)


@pytest.fixture(scope="module", autouse=True)
def _registered():
    """The games of this file, for the time of this file: other tests go through the whole registry."""
    for game in (Quiz, Trio, Relay):
        llm_arena.register(game.id, game)
    yield
    for game in (Quiz, Trio, Relay):
        del llm_arena.registry.entries[game.id]


class Says:
    """Answers from a list, turn by turn, each after `delay` seconds; an exception in the list is raised."""

    policy = None

    def __init__(self, *replies, delay=0.0, name="says"):
        self.name = name
        self.replies = replies
        self.delay = delay

    async def act(self, view, past):
        await asyncio.sleep(self.delay)
        reply = self.replies[min(len(past), len(self.replies) - 1)]
        if isinstance(reply, BaseException):
            raise reply
        return reply if isinstance(reply, Action) else Action(reply=reply)


class Instant(Says):
    """Never waits."""

    async def act(self, view, past):
        return Action(reply=Reply(self.replies[0]))


class Watched(Says):
    """Notes who is in `act` at the same time."""

    inside = 0
    most = 0

    async def act(self, view, past):
        Watched.inside += 1
        Watched.most = max(Watched.most, Watched.inside)
        try:
            return await super().act(view, past)
        finally:
            Watched.inside -= 1


def plan(number, agents, spec=None, **more) -> EpisodePlan:
    spec = spec or EnvSpec(id="quiz-v0")
    if not isinstance(agents, dict):
        agents = dict.fromkeys(llm_arena.make(spec).possible_agents, agents)
    return EpisodePlan(id=f"e{number}", spec=spec, seed=number, agents=agents, **more)


def play_all(plans, *, runtime=None, **options) -> list[Trace]:
    if runtime is not None:
        return runtime.run(play_many(plans, runtime, **options), timeout=60)
    with Runtime() as own:
        return own.run(play_many(plans, own, **options), timeout=60)


def timeless(trace: Trace) -> bytes:
    """The trace without its times."""
    turns = [msgspec.structs.replace(turn, seconds=0.0) for turn in trace.turns]
    return msgspec.json.encode(msgspec.structs.replace(trace, turns=turns, seconds=0.0))


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


# ---- the lockstep --------------------------------------------------------------------------------------------------


class LockstepEngine:
    """Answers all queued requests at once when the lockstep is idle, and notes the batches."""

    name = "lockstep"

    def __init__(self, lockstep):
        self.lockstep = lockstep
        self.queue = []
        self.batches = []
        lockstep.subscribe(self.flush)

    async def generate(self, prompt_ids, sampling, policy):
        answer = asyncio.get_running_loop().create_future()
        self.queue.append((policy, answer))
        self.lockstep.leave()
        try:
            return await answer
        except asyncio.CancelledError:
            if not answer.done() or answer.cancelled():
                self.queue = [item for item in self.queue if item[1] is not answer]
                self.lockstep.enter()
            raise

    def flush(self):
        if self.lockstep.idle and self.queue:
            batch, self.queue = self.queue, []
            self.batches.append(sorted(name for name, _ in batch))
            for _, answer in batch:
                self.lockstep.enter()
                answer.set_result(Completion(token_ids=[1], logprobs=[-1.0], finish="stop"))

    async def close(self):
        pass


class Asks:
    """Asks the engine, under its own name; then answers from its list."""

    def __init__(self, engine, name, *replies):
        self.engine, self.name, self.policy = engine, name, name
        self.replies = replies

    async def act(self, view, past):
        completion = await self.engine.generate([1], Sampling(max_new_tokens=1), f"{self.name} {view.seat}")
        reply = Reply(self.replies[min(len(past), len(self.replies) - 1)])
        return Action(reply=reply, prompt_ids=[1], completion=completion)


def batches(plans_of, *, max_open=8):
    from llm_arena.lockstep import Lockstep

    engine = LockstepEngine(Lockstep())
    with Runtime(engine=engine, max_open_episodes=max_open) as runtime:
        traces = play_all(plans_of(engine), runtime=runtime)
        assert engine.lockstep.active == 0
    assert not any(trace.void for trace in traces)
    return engine.batches


def test_a_batch_holds_the_request_of_every_open_episode():
    spec = EnvSpec(id="quiz-v0", kwargs={"questions": 2})
    seen = batches(lambda engine: [plan(k, Asks(engine, str(k), "a"), spec) for k in range(3)])
    assert seen == [[f"{k} solver_0" for k in range(3)]] * 2


def test_a_free_slot_is_filled_before_the_next_batch():
    lengths = [1, 3, 1, 1]

    def plans(engine):
        return [
            plan(k, Asks(engine, str(k), "a"), EnvSpec(id="quiz-v0", kwargs={"questions": n}))
            for k, n in enumerate(lengths)
        ]

    seen = batches(plans, max_open=2)
    assert [[name[0] for name in batch] for batch in seen] == [["0", "1"], ["1", "2"], ["1", "3"]]


def test_a_phase_is_one_batch_and_its_retries_are_the_next():
    spec = EnvSpec(id="trio-v0", kwargs={"retries": 1})

    def plans(engine):
        quick = Asks(engine, "q", "x")
        slips = {f"player_{k}": Asks(engine, "s", "much too long", "ok") if k == 1 else quick for k in range(3)}
        return [plan(0, quick, spec), plan(1, slips, spec)]

    seen = batches(plans)
    assert len(seen[0]) == 6
    assert seen[1:] == [["s player_1"]]


def test_cancelled_calls_leave_the_lockstep_in_balance():
    from llm_arena.lockstep import Lockstep

    engine = LockstepEngine(Lockstep())
    with Runtime(engine=engine) as runtime:
        asks = Asks(engine, "q", "x")
        agents = {"player_0": Says(ValueError("boom"), delay=0.05), "player_1": asks, "player_2": asks}
        hangs = {"player_0": asks, "player_1": Says("x", delay=60), "player_2": asks}
        trio = EnvSpec(id="trio-v0")
        failed, late = play_all([plan(0, agents, trio), plan(1, hangs, trio)], runtime=runtime, episode_seconds=0.3)
        assert failed.void and late.void
        assert engine.lockstep.active == 0
        [good] = play_all([plan(2, asks, trio)], runtime=runtime)
        assert not good.void and len(engine.batches[-1]) == 3


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


def test_traces_are_handed_over_as_they_end_off_the_loops_thread():
    seen = []

    def on_trace(trace):
        time.sleep(0.01)
        seen.append((trace.id, threading.current_thread().name))

    plans = [plan(k, Says("a", delay=0.1 * (3 - k))) for k in range(3)]
    play_all(plans, on_trace=on_trace)
    assert [name for name, _ in seen] == ["e2", "e1", "e0"]
    assert "llm_arena-runtime" not in {thread for _, thread in seen}


def test_a_record_that_cannot_be_written_stops_the_batch():
    def full(trace):
        raise OSError(28, "No space left on device")

    async def main(runtime):
        with pytest.raises(OSError, match="No space left"):
            await play_many([plan(k, Watched("a", delay=0.01 + k)) for k in range(4)], runtime, on_trace=full)
        assert len(asyncio.all_tasks()) == 1

    with Runtime() as runtime:
        runtime.run(main(runtime), timeout=5)
    assert Watched.inside == 0


def test_no_plans_no_traces():
    assert play_all([]) == []


def test_one_episode_by_itself_is_recorded_like_any_other():
    with Runtime() as runtime:
        trace = runtime.run(play_episode(plan(0, Says(ValueError("boom"))), runtime))
    assert trace.failure.message == "boom"


def test_agents_that_never_wait_do_not_starve_others():
    async def main(runtime):
        spec = EnvSpec(id="quiz-v0", kwargs={"questions": 1500, "max_turns": 2000})
        began = last = time.monotonic()
        episode = asyncio.create_task(play_many([plan(0, Instant("a"), spec)], runtime))
        longest = 0.0
        while not episode.done():
            await asyncio.sleep(0)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        assert len(episode.result()[0].turns) == 1500
        return longest, time.monotonic() - began

    with Runtime() as runtime:
        longest, whole = runtime.run(main(runtime))
    assert longest < whole / 2


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
