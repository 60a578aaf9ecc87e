"""Which episodes a step plays: starts, groups, seeds, and who sits where."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence

from llm_arena.agent import Agent
from llm_arena.errors import UsageError
from llm_arena.harness import EVERY_ROLE
from llm_arena.rollout import EpisodePlan
from llm_arena.runtime import Runtime
from llm_arena.training import credit
from llm_arena.training.config import TrainConfig
from llm_arena.training.league import League, refuse_trained
from llm_arena.training.league_settings import entrant_name
from llm_arena.training.sources import EXPECTED, Start, StartSource, derive_seed
from llm_arena.training.tasks import (
    LEARNER,
    GameTask,
    HarnessTask,
    Roster,
    Seated,
    Task,
    is_trained,
    learner_seats,
)
from llm_arena.training.token_rewards import load
from llm_arena.types import Message, Trace

CHECKED_STARTS = 10_000
"""So many starts are tried out before a run begins; more would keep a run with a large file waiting."""

PROBES = 4
"""Chats on which engine and learner are compared."""


class Planner:
    """Plans the episodes of each step; the plan of a step depends on settings and step alone, and on the league.

    Every seat that a trained policy holds is trained, all others are frozen: one code path for self-play and for fixed
    opponents, with different rosters. With `config.opponent` the learner holds one seat, which moves on with every
    start, so that all seats are trained equally often and all episodes of a group have the same seats. In a league this
    is so for the starts in which the learner meets somebody else; all episodes of a group meet the same opponent.

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
        self.env: Task = GameTask(config) if config.harness is None else HarnessTask(config)
        """What is played."""
        self.token_rewards = self.env.token_rewards if config.token_rewards is None else load(config.token_rewards)
        """Pays single tokens: the function that the settings name, else the game's or the harness's own."""
        self._check_starts()
        credit.check(
            config.credit,
            zero_sum=self.env.zero_sum,
            force=config.force_trace_credit,
            group_reward=self.env.group_reward,
        )
        named = config.seated()
        if roster is not None and (config.opponent is not None or named):
            raise UsageError("give either a roster or an opponent, and the roster once")
        tables = self.env.tables(roster, named, config.opponent)
        held = {key: who for table in tables for key, who in table.items()}
        if not any(is_trained(who) for table in tables for who in table.values()):
            raise UsageError(f'nobody in the roster is trained; give a role or seat of {list(held)} to "{LEARNER}"')
        self._runtime = runtime
        self._tables = [self._seated(table) for table in tables]
        self._opponents: dict[str, list[Seated]] = {}
        self.league = self._new_league(roster)
        """Whom the learner meets; None: always itself, or whoever the roster names."""
        if config.credit == "group":
            self.env.check_group_reward(self._plans(0, self._own_table)[: min(config.group_size, 2)], runtime)

    def warn_of_idle_names(self, traces: Sequence[Trace]) -> None:
        """Warns of the roster's and the payroll's roles that nobody answered to in the runs of a harness.

        Whether a role is spelt as the harness spells it shows only when it has run.
        """
        if self._config.harness is None:
            return
        called = {info.role for trace in traces for info in trace.seats.values()}
        idle = sorted({key for table in self._tables for key in table} - called - {EVERY_ROLE})
        counted = [item for trace in traces for item in trace.env_stats.items()]
        paid = sorted({role for role, counts in counted if "paid_to_nobody" in counts})
        for what, names in (("the roster names", idle), ("the harness pays", paid)):
            if names and called:
                warnings.warn(
                    f"{what} {', '.join(names)}, but nobody answered to that in the first step; called were "
                    f"{', '.join(sorted(called))}",
                    stacklevel=2,
                )

    @property
    def policies(self) -> list[str]:
        """Names of the trained policies, `learner` first."""
        held = {agent.policy for agent in self._agents() if agent.policy is not None}
        return sorted(policy for policy in held if is_trained(policy))

    @property
    def frozen(self) -> list[str]:
        """Names of the models that the runtime loads for seats that are not trained.

        Whoever brings an engine along, or asks a server, may have a policy as well; the runtime does not know it.
        """
        loaded = [
            agent for agent in self._agents() if agent.name == f"llm:{agent.policy}" and hasattr(agent, "prepare")
        ]
        return sorted({agent.policy for agent in loaded if agent.policy and not is_trained(agent.policy)})

    def trained_seats(self, policy: str) -> int:
        """Returns how many (trace, seat) pairs a policy trains in a step without void episodes: the constant divisor.

        For a harness it is the number of runs. In a league it is as if all starts were self-play, whatever is drawn.
        """
        tables = self._tables
        if self.league is not None and self.league.settings.anchors_share == 1:  # it never meets itself
            tables = [table for opponents in self._opponents.values() for table in opponents]
        each = self.env.divisor(tables, policy)
        return max(self._config.starts_per_step * self._config.group_size * each, 1)

    async def prepare(self) -> None:
        """Loads the models of all seats, so that one that can't be had is told before the first step.

        Raises:
            UnknownName, ModelError: a model can't be found or loaded.
        """
        for agent in self._agents():
            ready = getattr(agent, "prepare", None)
            if ready is not None:
                await ready()

    def table(self, step: int, k: int) -> Seated:
        """Returns who sits where in all episodes of start `k` of step `step`: the tables take turns.

        Raises:
            UsageError: the league is not where this step draws from.
        """
        member = None if self.league is None else self.league.opponent(step, k)
        if member is None:
            return self._own_table(step, k)
        if member.agent not in self._opponents:  # a past version; its weights are in the learner's engine
            self._opponents[member.agent] = self._against(f"llm:{member.agent}")
        return self._turn(self._opponents[member.agent], step, k)

    def plans(self, step: int) -> list[EpisodePlan]:
        """Returns the episodes of step `step`, group by group.

        Raises:
            UsageError: the source's batch is not one of `starts_per_step` mappings.
        """
        return self._plans(step, self.table)

    def _plans(self, step: int, table_of: Callable[[int, int], Seated]) -> list[EpisodePlan]:
        config = self._config
        plans: list[EpisodePlan] = []
        for k, start in enumerate(self._batch(step)):
            table = table_of(step, k)
            for member in range(config.group_size):
                plans.append(
                    self.env.plan(
                        self.env.spec(start),
                        table,
                        id=f"{step:06d}-{k:04d}-{member:02d}",
                        seed=derive_seed(config.seed, "episode", step, k),
                        group=f"{step:06d}-{k:04d}",
                        index=len(plans),
                        run_seed=derive_seed(config.seed, "sampling"),
                    )
                )
        return plans

    def probe_messages(self) -> list[list[Message]]:
        """Returns chats on which engine and learner are compared: the openings of the first step's episodes."""
        return [self.env.opening(plan) for plan in self._plans(0, self._own_table)[:PROBES]]

    def _own_table(self, step: int, k: int) -> Seated:
        """Returns who sits where when nobody of the league does."""
        return self._turn(self._tables, step, k)

    def _turn(self, tables: Sequence[Seated], step: int, k: int) -> Seated:
        return tables[(step * self._config.starts_per_step + k) % len(tables)]

    def _seated(self, table: Roster) -> Seated:
        strings = {key: f"llm:{who}" if is_trained(who) else who for key, who in table.items()}
        return self.env.agents(strings, self._runtime, self._config.agent_settings())

    def _against(self, opponent: str) -> list[Seated]:
        """Returns the tables of the learner and an opponent."""
        return [self._seated(table) for table in self.env.tables(None, {}, opponent)]

    def _agents(self) -> list[Agent]:
        """Returns all who are seated from the start, each once."""
        tables = [*self._tables, *(table for opponents in self._opponents.values() for table in opponents)]
        return list({id(agent): agent for table in tables for agent in table.values()}.values())

    def _new_league(self, roster: Roster | None) -> League | None:
        config = self._config
        if not config.league.on:
            return None
        if roster is not None:
            raise UsageError(
                f"a league says who sits where, and so does the roster {dict(roster)!r:.60}; leave one out"
            )
        if len(self.env.tables(None, {}, "random-legal")) < 2:
            raise UsageError(
                f"a league wants opponents, but {config.env} has one seat that is paid, which the learner holds; leave "
                "the league out"
            )
        refuse_trained(config.league.anchor_names())
        against = [(name, self._against(name)) for name in config.league.anchor_names()]
        names = [_name_in_traces(name, tables) for name, tables in against]
        settings = dataclasses.replace(config.league, anchors=",".join(names))
        league = League(settings, seed=config.seed, ahead=config.max_staleness, officials=self.env.officials)
        self._opponents = {name: tables for name, (_, tables) in zip(names, against, strict=True)}
        return league

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
        """Looks at every batch of a pass, and tries each of the first `CHECKED_STARTS` starts."""
        if not len(self._source):
            raise UsageError("the start source has no batch; expected is at least one")
        seen = 0
        for index in range(len(self._source)):
            for place, start in enumerate(self._batch(index)):
                seen += 1
                if seen > CHECKED_STARTS:
                    continue
                try:
                    self.env.check(start)
                except UsageError as error:
                    given = f"{dict(start)!r:.80}"
                    raise UsageError(f"start {place} of batch {index}, {given}, can't be played: {error}") from error


def _name_in_traces(anchor: str, tables: Sequence[Seated]) -> str:
    """Returns the name by which an anchor's games are found: its agent may spell an address or a player in full."""
    [name] = {agent.name for table in tables for agent in table.values() if not is_trained(agent.policy)}
    return anchor if entrant_name(anchor) == entrant_name(name) else name


__all__ = ["LEARNER", "Planner", "Roster", "is_trained", "learner_seats"]
