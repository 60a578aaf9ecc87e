"""What a run plays: a game of the registry, or a harness; and which of its seats are trained."""

from __future__ import annotations

import dataclasses
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from llm_arena.agent import Agent
from llm_arena.env import GroupReward
from llm_arena.errors import UsageError
from llm_arena.harness import EVERY_ROLE, HarnessPlan, harness_agents, load_harness
from llm_arena.registry import make, make_env
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.training import credit
from llm_arena.training.config import TrainConfig
from llm_arena.training.sources import Start, env_arguments
from llm_arena.training.token_rewards import TokenRewards
from llm_arena.types import EnvSpec, Message, Trace

LEARNER = "learner"
"""Name of the trained policy, in rosters and in traces. Further ones have a name of their own: `learner:NAME`."""

Roster = Mapping[str, str | Agent]
"""Role or seat -> `learner`, an agent string, or an agent."""

Seated = Mapping[str, Agent]
"""The agents of an episode: by seat, or for a harness by role."""

_PROBE = "Name three things that you can count, and say how you would count each."
_PROBE_CHARACTERS = 2000
_FOR_GAMES = ("retries", "illegal", "penalty", "env", "env_args")


class Task(ABC):
    """What a run plays: a game, or a harness."""

    zero_sum: bool
    group_reward: GroupReward | None
    token_rewards: TokenRewards | None
    peers: Collection[str]
    "Roles whose seats are compared within their episode."
    officials: Collection[str]
    "Roles that take no part in the contest."

    @abstractmethod
    def spec(self, start: Start) -> EnvSpec:
        """Returns the spec of an episode from a start.

        Raises:
            UsageError: there can be none.
        """

    @abstractmethod
    def check(self, start: Start) -> None:
        """Raises a UsageError for a start that can't be played, as far as can be told before it is."""

    @abstractmethod
    def tables(self, roster: Roster | None, named: Roster, opponent: str | None) -> list[Roster]:
        """Returns who holds what, for one start after the other in turn.

        Args:
            roster: all that hold something.
            named: some of them; the policy `learner` holds the rest.
            opponent: holds all seats but one.

        Raises:
            UsageError: in a game, `named` trains policies with names of their own alone, and leaves a seat over.
        """

    @abstractmethod
    def agents(self, table: Roster, runtime: Runtime, settings: Mapping[str, Any]) -> Seated:
        """Returns the agents of a table."""

    @abstractmethod
    def divisor(self, tables: Sequence[Seated], policy: str) -> int:
        """Returns how much of an episode a policy trains, at most: its seats, or the one run of a harness."""

    @abstractmethod
    def plan(self, spec: EnvSpec, agents: Seated, **fields: Any) -> EpisodePlan:
        """Returns the plan of an episode."""

    @abstractmethod
    def opening(self, plan: EpisodePlan) -> list[Message]:
        """Returns a chat such as the plan's episode begins with."""

    @abstractmethod
    def check_group_reward(self, plans: Sequence[EpisodePlan], runtime: Runtime) -> None:
        """Raises a UsageError where credit by group is known not to work."""


class GameTask(Task):
    """Episodes of a game.

    Raises:
        UsageError, UnknownName: there is no such game, or it does not take these arguments.
    """

    def __init__(self, config: TrainConfig) -> None:
        self._config = config
        self.env = make_env(config.env, **config.env_kwargs())
        self.zero_sum = self.env.zero_sum
        self.group_reward = self.env.group_reward
        self.token_rewards = self.env.token_rewards
        self.peers = self.env.peers
        self.officials = self.env.officials
        if self.group_reward is not None and len(self.env.possible_agents) == 1 and config.credit != "group":
            warnings.warn(
                f"{self.env.id} has one seat and a group_reward, which credit={config.credit!r} does not ask: only "
                "what an episode is paid by itself counts. Give --credit group and a --group-size of 2 or more",
                stacklevel=3,
            )

    def spec(self, start: Start) -> EnvSpec:
        """Returns the game with the arguments that the start fills."""
        filled = env_arguments(
            start,
            input_key=self._config.input_key,
            label_key=self._config.label_key,
            input_arg=self.env.input_arg,
            label_arg=self.env.label_arg,
        )
        return EnvSpec(id=self.env.spec.id, kwargs={**self.env.spec.kwargs, **filled})

    def check(self, start: Start) -> None:
        """Makes the game."""
        if start:  # an empty start is the game as it was made already
            make(self.spec(start))

    def tables(self, roster: Roster | None, named: Roster, opponent: str | None) -> list[Roster]:
        """With an opponent the learner holds one seat, which moves on; officials are never it.

        Who names only policies `learner:NAME` did not ask for one more, and a forgotten seat would train one.
        """
        seats = self.env.possible_agents
        if roster is not None:
            return [roster]
        if opponent is not None:
            return [
                {seat: LEARNER if seat == own else opponent for seat in seats}
                for own in seats
                if self.env.role_of(own) not in self.env.officials
            ]
        free = [seat for seat in seats if not {seat, self.env.role_of(seat)} & named.keys()]
        trained = [who for who in dict.fromkeys(named.values()) if is_trained(who)]
        if free and trained and LEARNER not in trained:
            raise UsageError(
                f"the roster trains {', '.join(map(str, trained))} and names nobody for {', '.join(free)}; give each "
                f'seat or role of {self.env.spec.id} a policy such as {trained[0]}, an agent, or "{LEARNER}", a '
                "policy of its own"
            )
        return [{**dict.fromkeys(free, LEARNER), **named}]

    def agents(self, table: Roster, runtime: Runtime, settings: Mapping[str, Any]) -> Seated:
        """Returns the agents by seat."""
        return resolve_roster(self.env, table, runtime=runtime, **settings)

    def divisor(self, tables: Sequence[Seated], policy: str) -> int:
        """Officials are not counted: they are paid nothing, so they train nothing."""
        contest = [seat for seat in self.env.possible_agents if self.env.role_of(seat) not in self.env.officials]
        return max(sum(table[seat].policy == policy for seat in contest) for table in tables)

    def plan(self, spec: EnvSpec, agents: Seated, **fields: Any) -> EpisodePlan:
        """Returns the plan of a game."""
        return EpisodePlan(spec=spec, agents=agents, **fields)

    def opening(self, plan: EpisodePlan) -> list[Message]:
        """Returns what the first seat to act sees."""
        env = make(plan.spec)
        env.reset(seed=plan.seed)
        messages: list[Message] = env.observe(env.pending[0])["messages"]
        return messages

    def check_group_reward(self, plans: Sequence[EpisodePlan], runtime: Runtime) -> None:
        """Has the game pay random episodes of a group: it alone knows which of its settings it can compare."""
        assert self.group_reward is not None  # credit.check has looked
        players = resolve_roster(self.env, dict.fromkeys(self.env.possible_agents, "random-legal"), runtime=runtime)
        traces = runtime.run(play_many([dataclasses.replace(plan, agents=players) for plan in plans], runtime))
        for turn in (turn for trace in traces for turn in trace.turns):
            # A script has no tokens, but a game may well pay for them. Any id does; one for each character, and a last.
            turn.extends, turn.prompt_ids = None, [0]
            turn.completion_ids, turn.logprobs = [0] * (len(turn.text) + 1), [0.0] * (len(turn.text) + 1)
        try:
            credit.votes_by_group(traces, learner_seats, self.group_reward)
        except UsageError as error:
            raise UsageError(f"credit by group can't work with these settings of the game: {error}") from error


class HarnessTask(Task):
    """Runs of a harness. Roles are made up by its code, so nothing is known of them before.

    Raises:
        UsageError: there is no such harness, or a setting has no meaning for one.
    """

    zero_sum = False
    peers = ()
    officials = ()

    def __init__(self, config: TrainConfig) -> None:
        assert config.harness is not None  # else it is a game
        given = {name: getattr(config, name) for name in ("opponent", *_FOR_GAMES)}
        wrong = [name for name, value in given.items() if value != getattr(TrainConfig, name)]
        if wrong:
            hint = (
                """; a harness has no seats to move on over: say who is frozen by role, e.g. --roster """
                """'{"solver": "learner", "*": "smollm2-135m"}' with self-play"""
            )
            raise UsageError(
                f"{wrong[0]}={given[wrong[0]]!r:.60} is for games, and harness={config.harness!r} is none"
                f"{hint if wrong[0] == 'opponent' else '; leave one of them out'}"
            )
        if config.credit == "trace":
            raise UsageError(
                "credit by trace sums the returns of all seats, and how many there are is up to the harness: return "
                "one number for the whole run, and use credit by seat"
            )
        if config.group_size == 1 and config.estimator in ("loo", "group_mean", "grpo"):
            raise UsageError(
                f"estimator={config.estimator} compares runs of one sample, and group_size is 1; give "
                "--group-size 4, or --estimator rae"
            )
        if config.estimator == "role_norm" and config.starts_per_step * config.group_size == 1:
            raise UsageError(
                "estimator=role_norm compares the runs of a step, and there is one; give --starts-per-step 4, or "
                "--estimator rae"
            )
        self._harness = load_harness(config.harness)
        self.group_reward = self._harness.group_reward
        self.token_rewards = self._harness.token_rewards

    def spec(self, start: Start) -> EnvSpec:
        """Returns the harness with the whole start as its sample."""
        return self._harness.spec(start)

    def check(self, start: Start) -> None:
        """Sees to it that the start is JSON."""
        self.spec(start)

    def tables(self, roster: Roster | None, named: Roster, opponent: str | None) -> list[Roster]:
        """Who is not named is trained."""
        return [roster if roster is not None else {EVERY_ROLE: LEARNER, **named}]

    def agents(self, table: Roster, runtime: Runtime, settings: Mapping[str, Any]) -> Seated:
        """Returns the agents by role."""
        return harness_agents(table, runtime=runtime, settings=settings)

    def divisor(self, tables: Sequence[Seated], policy: str) -> int:
        """One for each run: how many seats it has is known when it has ended, and may hang on the policy."""
        return 1

    def plan(self, spec: EnvSpec, agents: Seated, **fields: Any) -> EpisodePlan:
        """Returns the plan of a run."""
        return HarnessPlan(spec=spec, agents=agents, harness=self._harness, **fields)

    def opening(self, plan: EpisodePlan) -> list[Message]:
        """Returns the sample as a user's message: what the harness makes of it is not known before it runs."""
        sample = plan.spec.kwargs["sample"]
        text = sample.get("prompt") or (json.dumps(sample, ensure_ascii=False) if sample else _PROBE)
        return [{"role": "user", "content": str(text)[:_PROBE_CHARACTERS]}]

    def check_group_reward(self, plans: Sequence[EpisodePlan], runtime: Runtime) -> None:
        """Checks nothing: a harness may do anything, and is not called for a try."""


def is_trained(who: str | Agent | None) -> bool:
    """Whether a roster's entry, or the policy of a seat, is one that is trained; `learner@20` is a frozen version."""
    return isinstance(who, str) and "@" not in who and (who == LEARNER or who.startswith(f"{LEARNER}:"))


def learner_seats(trace: Trace) -> list[str]:
    """Returns the seats of a trace that trained policies held."""
    return [seat for seat, info in trace.seats.items() if is_trained(info.policy)]
