"""Which episodes a step plays: starts, groups, seeds, and who sits where."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping

from llm_arena.agent import Agent
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.registry import make, make_env
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.training import credit
from llm_arena.training.config import TrainConfig
from llm_arena.training.sources import EXPECTED, Start, StartSource, derive_seed, env_arguments
from llm_arena.types import EnvSpec, Trace

LEARNER = "learner"
"""Name of the trained policy, in rosters and in traces. Further ones have a name of their own: `learner:NAME`."""

CHECKED_STARTS = 10_000
"""So many starts are tried out before a run begins; more would keep a run with a large file waiting."""

Roster = Mapping[str, str | Agent]
"""Role or seat -> `learner`, an agent string, or an agent."""


class Planner:
    """Plans the episodes of each step; the plan of a step depends on settings and step alone.

    Every seat that the learner holds is trained, all others are frozen: one code path for self-play and for fixed
    opponents, with different rosters. With `config.opponent` the learner holds one seat, which moves on with every
    start, so that all seats are trained equally often and all episodes of a group have the same seats.

    Args:
        config: the run's settings.
        roster: who holds which role or seat; None follows `config.opponent`.
        source: of starts.
        runtime: serves the learner under that name, and the opponents' models.

    Raises:
        UsageError: nobody in the roster is the learner, the game can't be credited in the way that is asked for, or it
            can't begin at a start of the source.
    """

    def __init__(self, config: TrainConfig, roster: Roster | None, source: StartSource, runtime: Runtime) -> None:
        self._config = config
        self._source = source
        self.env = make_env(config.env, **config.env_kwargs())
        self._check_starts()
        credit.check(
            config.credit,
            zero_sum=self.env.zero_sum,
            force=config.force_trace_credit,
            group_reward=self.env.group_reward,
        )
        seats = self.env.possible_agents
        if self.env.group_reward is not None and len(seats) == 1 and config.credit != "group":
            warnings.warn(
                f"{self.env.id} has one seat and a group_reward, which credit={config.credit!r} does not ask: only "
                "what an episode is paid by itself counts. Give --credit group and a --group-size of 2 or more",
                stacklevel=2,
            )
        if roster is not None and (config.opponent is not None or config.seated()):
            raise UsageError("give either a roster or an opponent, and the roster once")
        if config.seated():
            roster = self._completed(config.seated())
        tables: list[Roster]
        if roster is not None:
            tables = [roster]
        elif config.opponent is None:
            tables = [dict.fromkeys(seats, LEARNER)]
        else:
            tables = [
                {seat: LEARNER if seat == own else config.opponent for seat in seats}
                for own in seats
                if self.env.role_of(own) not in self.env.officials
            ]
        if not any(is_trained(who) for table in tables for who in table.values()):
            raise UsageError(f'nobody in the roster is trained; give a role or seat of {seats} to "{LEARNER}"')
        named = [{key: f"llm:{who}" if is_trained(who) else who for key, who in table.items()} for table in tables]
        settings = {
            "max_new_tokens": config.max_new_tokens,
            "max_context_tokens": config.max_context_tokens,
            "temperature": config.temperature,
            "system": config.system,
        }
        self._tables = [resolve_roster(self.env, table, runtime=runtime, **settings) for table in named]
        if config.credit == "group":
            self._check_group_reward(runtime)

    @property
    def policies(self) -> list[str]:
        """Names of the trained policies, `learner` first."""
        held = {agent.policy for table in self._tables for agent in table.values()}
        return sorted(policy for policy in held if policy is not None and is_trained(policy))

    def trained_seats(self, policy: str) -> int:
        """Returns how many (trace, seat) pairs a policy trains in a step without void episodes: the constant divisor.

        Officials that it holds are not counted: they are paid nothing, so they train nothing.
        """
        contest = [seat for seat in self.env.possible_agents if self.env.role_of(seat) not in self.env.officials]
        per_table = [sum(table[seat].policy == policy for seat in contest) for table in self._tables]
        return max(self._config.starts_per_step * self._config.group_size * max(per_table), 1)

    async def prepare(self) -> None:
        """Loads the models of all seats, so that one that can't be had is told before the first step.

        Raises:
            UnknownName, ModelError: a model can't be found or loaded.
        """
        agents = {id(agent): agent for table in self._tables for agent in table.values()}
        for agent in agents.values():
            ready = getattr(agent, "prepare", None)
            if ready is not None:
                await ready()

    def plans(self, step: int) -> list[EpisodePlan]:
        """Returns the episodes of step `step`, group by group.

        Raises:
            UsageError: the source's batch is not one of `starts_per_step` mappings.
        """
        config = self._config
        plans: list[EpisodePlan] = []
        for k, start in enumerate(self._batch(step)):
            table = self._tables[(step * config.starts_per_step + k) % len(self._tables)]
            for member in range(config.group_size):
                plans.append(
                    EpisodePlan(
                        id=f"{step:06d}-{k:04d}-{member:02d}",
                        spec=self._spec(start),
                        seed=derive_seed(config.seed, "episode", step, k),
                        group=f"{step:06d}-{k:04d}",
                        agents=table,
                        index=len(plans),
                        run_seed=derive_seed(config.seed, "sampling"),
                    )
                )
        return plans

    def opened(self, plan: EpisodePlan) -> ArenaEnv:
        """Returns the env of a plan at its start."""
        env = make(plan.spec)
        env.reset(seed=plan.seed)
        return env

    def _completed(self, named: Mapping[str, str]) -> Roster:
        """Returns the roster with the learner in all seats that neither it nor their role names."""
        free = [seat for seat in self.env.possible_agents if not {seat, self.env.role_of(seat)} & named.keys()]
        return {**dict.fromkeys(free, LEARNER), **named}

    def _batch(self, index: int) -> list[Start]:
        starts = list(self._source.batch(index))
        if len(starts) != self._config.starts_per_step:
            raise UsageError(
                f"batch {index} of the starts has {len(starts)} of them; expected are {self._config.starts_per_step}, "
                "as many as the setting starts_per_step"
            )
        for place, start in enumerate(starts):
            if not isinstance(start, Mapping):
                raise UsageError(f"start {place} of batch {index} is {start!r:.60}; {EXPECTED}")
        return starts

    def _check_starts(self) -> None:
        """Looks at every batch of a pass, and makes the game at each of the first `CHECKED_STARTS` starts."""
        if not len(self._source):
            raise UsageError("the start source has no batch; expected is at least one")
        seen = 0
        for index in range(len(self._source)):
            for place, start in enumerate(self._batch(index)):
                seen += 1
                if not start or seen > CHECKED_STARTS:  # an empty start is the game as it was made already
                    continue
                try:
                    make(self._spec(start))
                except UsageError as error:
                    given = f"{dict(start)!r:.80}"
                    raise UsageError(f"start {place} of batch {index}, {given}, can't be played: {error}") from error

    def _check_group_reward(self, runtime: Runtime) -> None:
        """Has the game pay two random episodes of a group: it alone knows which of its settings it can compare."""
        group_reward = self.env.group_reward
        assert group_reward is not None  # credit.check has looked
        players = resolve_roster(self.env, dict.fromkeys(self.env.possible_agents, "random-legal"), runtime=runtime)
        members = self.plans(0)[: min(self._config.group_size, 2)]
        traces = runtime.run(play_many([dataclasses.replace(plan, agents=players) for plan in members], runtime))
        for turn in (turn for trace in traces for turn in trace.turns):
            # A script has no tokens, but a game may well pay for them. Any id does; one for each character, and a last.
            turn.extends, turn.prompt_ids = None, [0]
            turn.completion_ids, turn.logprobs = [0] * (len(turn.text) + 1), [0.0] * (len(turn.text) + 1)
        try:
            credit.votes_by_group(traces, learner_seats, group_reward)
        except UsageError as error:
            raise UsageError(f"credit by group can't work with these settings of the game: {error}") from error

    def _spec(self, start: Start) -> EnvSpec:
        filled = env_arguments(
            start,
            input_key=self._config.input_key,
            label_key=self._config.label_key,
            input_arg=self.env.input_arg,
            label_arg=self.env.label_arg,
        )
        return EnvSpec(id=self.env.spec.id, kwargs={**self.env.spec.kwargs, **filled})


def is_trained(who: str | Agent | None) -> bool:
    """Whether a roster's entry, or the policy of a seat, is one that is trained."""
    return isinstance(who, str) and (who == LEARNER or who.startswith(f"{LEARNER}:"))


def learner_seats(trace: Trace) -> list[str]:
    """Returns the seats of a trace that trained policies held."""
    return [seat for seat, info in trace.seats.items() if is_trained(info.policy)]
