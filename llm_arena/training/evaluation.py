"""During a training: the trained policy meets the model that it began as, on starts that no step plays.

The initial weights are a frozen policy of their own, `learner@0` (`learner:a@0` for `learner:a`), which the caller
serves under that name. In a game of one role the trained policy holds each seat in turn and its initial self the other
seats; in a game of several roles it holds each role in turn. What the run's roster gives to somebody else stays there;
judges that would be trained are held by the initial model, for nobody should judge its own match. All evaluations play
the same starts with the same seeds, so that two of them differ by the weights alone.

Where both can't meet (all seats work together, or the trained policies hold one seat), each plays the same starts
without the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from llm_arena.agent import Agent
from llm_arena.boards.cells import won
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.rating import SeatRow, match_row
from llm_arena.rating.intervals import clustered_share, paired_difference
from llm_arena.registry import make_env
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.sides import held_out
from llm_arena.training.config import TrainConfig
from llm_arena.training.evaluation_settings import EvaluationSettings
from llm_arena.training.sources import derive_seed
from llm_arena.training.tasks import LEARNER, is_trained
from llm_arena.types import EnvSpec, Trace

Row = dict[str, float]
TRAINED, INITIAL, OTHER = "trained", "initial", "other"


def initial_name(policy: str) -> str:
    """Returns the name under which a policy's initial weights are served: `learner@0` for `learner`."""
    return f"{policy}@0"


class _Table(NamedTuple):
    """One way to seat both."""

    who: dict[str, str]
    "Seat -> trained, initial or other."
    agents: Mapping[str, Agent]


class Evaluation:
    """Plays trained against initial, every so many steps.

    Args:
        settings: when, and how many matches.
        config: of the run.
        runtime: serves the trained policies under their names, and their initial weights under `initial_name`.
        roster: role or seat -> agent, as the run has it; None follows `config.roster` and `config.opponent`.
        starts: the game with the arguments of each held-out start, all with the same seats; none: the game deals, from
            its held-out problems where it keeps some.

    Raises:
        UsageError: there is no game, or nobody in it is trained.
        UnknownName: no such agent.
    """

    def __init__(
        self,
        settings: EvaluationSettings,
        config: TrainConfig,
        runtime: Runtime,
        *,
        roster: Mapping[str, str | Agent] | None = None,
        starts: Sequence[EnvSpec] = (),
    ) -> None:
        self._settings = settings
        self._config = config
        self._runtime = runtime
        self._kept: dict[str, Trace] = {}
        self._tables: list[_Table] = []
        self._starts: list[tuple[EnvSpec, int]] = []
        if not settings.every:
            return
        if config.harness is not None:
            raise UsageError(
                f"evaluation.every={settings.every} is for games, and harness={config.harness!r} is none: nobody knows"
                " who wins there; leave it out, and compare the returns of held-out starts"
            )
        env = make_env(config.env, **config.env_kwargs())
        specs = list(starts) or [held_out(env.spec, list(config.env_kwargs()))]
        self._tables = self._seated(env, self._held(env, roster))
        count = -(-settings.matches // len(self._tables))
        self._starts = [
            (specs[index % len(specs)], derive_seed(config.seed, "evaluation", index)) for index in range(count)
        ]

    def due(self, step: int) -> bool:
        """Whether to evaluate after so many steps."""
        every = self._settings.every
        return every > 0 and step > 0 and (step % every == 0 or step == self._config.num_steps)

    def run(self, step: int) -> Row:
        """Plays the matches with the weights that the engine serves now, and returns the metrics.

        `eval/matches`, of the starts with no void one, and `eval/void`; `eval/win_rate`, draws half, with the ends of
        its 95 % interval `eval/win_rate_low` and `eval/win_rate_high` (by `rating.intervals.clustered_share`), in
        games that rank; `eval/reward` and `eval/reward_initial`, the mean return of a seat; `eval/difference` of the
        two on the same starts, with `eval/difference_low` and `eval/difference_high` where starts differ.

        Args:
            step: how many steps have been made; plays no part in what is played.
        """
        plans = [
            EpisodePlan(id=f"evaluation|{index}|{number}", spec=spec, seed=seed, group=str(index), agents=table.agents)
            for index, (spec, seed) in enumerate(self._starts)
            for number, table in enumerate(self._tables)
        ]
        tables = self._tables * len(self._starts)
        traces = self._runtime.run(play_many([plan for plan in plans if plan.id not in self._kept], self._runtime))
        found = {**self._kept, **{trace.id: trace for trace in traces}}
        for plan, table in zip(plans, tables, strict=True):
            if TRAINED not in table.who.values() and not found[plan.id].void:
                self._kept[plan.id] = found[plan.id]  # of the initial model alone: it would come out the same again
        return _row([(found[plan.id], table.who) for plan, table in zip(plans, tables, strict=True)])

    def _held(self, env: ArenaEnv, roster: Mapping[str, str | Agent] | None) -> dict[str, str | Agent]:
        """Returns who holds each seat in the run; with an opponent, which seats were the learner's in turn."""
        named = self._config.seated() if roster is None else roster
        opponent = self._config.opponent if roster is None else None
        held: dict[str, str | Agent] = {}
        for seat in env.possible_agents:
            official = env.role_of(seat) in env.officials
            free = opponent if official and opponent is not None else LEARNER
            held[seat] = named.get(seat, named.get(env.role_of(seat), free))
        return held

    def _seated(self, env: ArenaEnv, held: Mapping[str, str | Agent]) -> list[_Table]:
        trained = [seat for seat, who in held.items() if is_trained(who) and env.role_of(seat) not in env.officials]
        if not trained:
            raise UsageError(
                f"evaluation.every={self._settings.every}: nobody in the contest of {env.spec.id} is trained, so there"
                f' is nothing to evaluate; give a role or seat to "{LEARNER}"'
            )
        roles = list(dict.fromkeys(map(env.role_of, trained)))
        parts = [[seat] for seat in trained]
        if len(roles) > 1:
            parts = [[seat for seat in trained if env.role_of(seat) == role] for role in roles]
        if env.cooperative or len(parts) == 1:
            parts = [trained, []]
        return [self._table(env, held, trained, part) for part in parts]

    def _table(
        self, env: ArenaEnv, held: Mapping[str, str | Agent], contest: Sequence[str], part: Sequence[str]
    ) -> _Table:
        """Returns the table in which the trained policies hold `part` of their seats."""
        who = {seat: OTHER if seat not in contest else TRAINED if seat in part else INITIAL for seat in held}
        agents: dict[str, str | Agent] = {}
        for seat, agent in held.items():
            if isinstance(agent, str) and is_trained(agent):
                agents[seat] = f"llm:{agent if who[seat] == TRAINED else initial_name(agent)}"
            else:
                agents[seat] = agent
        return _Table(who, resolve_roster(env, agents, runtime=self._runtime, **self._config.agent_settings()))


def _row(played: Sequence[tuple[Trace, Mapping[str, str]]]) -> Row:
    """Returns the metrics of the starts whose matches are all finished.

    A start without one of its seatings would count the advantage of a seat as the policy's.
    """
    broken = {trace.group for trace, _ in played if trace.void}
    results: dict[int, list[float]] = {}
    returns: dict[str, dict[int, list[float]]] = {TRAINED: {}, INITIAL: {}}
    counted = [(trace, who) for trace, who in played if trace.group not in broken]
    for trace, who in counted:
        start = int(trace.group)
        seats = {name: [seat for seat, holder in who.items() if holder == name] for name in (TRAINED, INITIAL)}
        row = match_row(
            trace,
            {seat: who[seat] for seat in (*seats[TRAINED], *seats[INITIAL])},
            officials={seat: OTHER for seat, holder in who.items() if holder == OTHER},
        )
        held: dict[str, list[SeatRow]] = {name: [row.seats[seat] for seat in own] for name, own in seats.items()}
        for name, rows in held.items():
            returns[name].setdefault(start, []).extend(seat.reward or 0.0 for seat in rows)
        result = won(held[TRAINED], held[INITIAL])
        if result is not None:
            results.setdefault(start, []).append(result)
    found: Row = {"eval/matches": len(counted), "eval/void": sum(trace.void for trace, _ in played)}
    share = clustered_share(results)
    if share is not None:
        found |= {"eval/win_rate": share.share, "eval/win_rate_low": share.low, "eval/win_rate_high": share.high}
    known = {name: {start: of for start, of in groups.items() if of} for name, groups in returns.items()}
    for name, key in ((TRAINED, "eval/reward"), (INITIAL, "eval/reward_initial")):
        every = [value for group in known[name].values() for value in group]
        if every:
            found[key] = math.fsum(every) / len(every)
    gap = paired_difference(known[TRAINED], known[INITIAL])
    if gap is not None:
        found["eval/difference"] = gap.mean
        if gap.half_width is not None:
            found |= {
                "eval/difference_low": gap.mean - gap.half_width,
                "eval/difference_high": gap.mean + gap.half_width,
            }
    return found


__all__ = ["Evaluation", "EvaluationSettings", "initial_name"]
