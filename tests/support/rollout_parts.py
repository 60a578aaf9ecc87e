"""Games, agents and plans that several tests of playing share."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

import llm_arena
from llm_arena.engines.base import Sampling
from llm_arena.env import ArenaEnv
from llm_arena.parsing import read_choice
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Cause, EnvSpec, Move, Outcome, Reply, Trace


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
def registered():
    """The games above, for the time of a file."""
    for game in (Quiz, Trio, Relay):
        llm_arena.register(game.id, game)


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


class Asks:
    """Asks the engine, under its own name; then answers from its list."""

    def __init__(self, engine, name, *replies):
        self.engine, self.name, self.policy = engine, name, name
        self.replies = replies

    async def act(self, view, past):
        completion = await self.engine.generate([1], Sampling(max_new_tokens=1), f"{self.name} {view.seat}")
        reply = Reply(self.replies[min(len(past), len(self.replies) - 1)])
        return Action(reply=reply, prompt_ids=[1], completion=completion)


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
