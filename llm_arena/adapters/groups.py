"""Groups of episodes that are paid by comparing them, as tinker-cookbook's `EnvGroupBuilder` does it.

    plans = group_plans(builder, "smollm2-135m", seed=0, group="coffee", runtime=runtime, max_new_tokens=64)
    traces = runtime.run(play_many(plans, runtime))
    paid = group_reward(builder)(traces)  # a total reward and metrics for each trace

A builder has `make_envs()`, which returns `MessageEnv` objects (or `EnvFromMessageEnv` around them), and
`compute_group_rewards(trajectories, envs)`, which returns a reward and metrics for each. Both may be coroutines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_arena.adapters.message_env import MessageGame, finish
from llm_arena.adapters.token_env import EnvFromMessageEnv
from llm_arena.env import ArenaEnv, GroupReward
from llm_arena.episode import EpisodePlan
from llm_arena.errors import UsageError
from llm_arena.recorder import replay
from llm_arena.registry import MessageEnvLike, make
from llm_arena.roster import Roster, resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.types import Cause, Ending, Trace

Metrics = dict[str, float]


@dataclass(frozen=True)
class TokensWithLogprobs:
    """What was sampled in one turn."""

    tokens: list[int] | None
    "Sampled ids [T]; None where the agent has no tokens."
    maybe_logprobs: list[float] | None
    "Their log-probabilities [T] in nats."


@dataclass(frozen=True)
class Transition:
    """One turn: what was seen, what was answered, and what that was paid."""

    ob: list[int] | None
    "All ids of the prompt [P]; None where the agent has no tokens."
    ac: TokensWithLogprobs
    text: str
    reward: float
    episode_done: bool
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """The turns of the one seat of an episode."""

    transitions: list[Transition]
    final_ob: list[int] = field(default_factory=list)
    "Always empty: nothing is rendered after the end."


class EnvGroupBuilder:
    """Makes the envs of a group and pays them. Deriving from it is not needed."""

    async def make_envs(self) -> Sequence[Any]:
        """Returns the group's envs."""
        raise NotImplementedError(f"{type(self).__name__} needs make_envs()")  # an author's duty, not a stub

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Any]
    ) -> list[tuple[float, Metrics]]:
        """Returns what each trajectory is paid beside the rewards of its steps; by default nothing."""
        return [(0.0, {}) for _ in trajectory_group]

    def logging_tags(self) -> list[str]:
        """Returns names for the group; `group_plans` puts them before its own."""
        return []


def group_plans(
    builder: Any, agents: Roster, *, seed: int, group: str, runtime: Runtime, **settings: Any
) -> list[EpisodePlan]:
    """Returns the episodes of a builder's group, to be played with `play_many`.

    All begin with the same seed, and sample differently.

    Args:
        builder: see the module's docstring.
        agents: who plays.
        seed: of the episodes.
        group: a name that no other group has; the builder's logging tags are put before it.
        runtime: where models are served.
        settings: of the agents. The token limits of an `EnvFromMessageEnv` are not read; they are `max_new_tokens` and
            `max_context_tokens` here. Nor is its `failed_parse_reward`: agents give replies, and an empty one is paid
            by the game's own rule for bad replies, where a forfeit costs 1.

    Raises:
        UsageError: an env is none of one seat that takes and gives messages, or no agent takes a setting.
    """
    tags = builder.logging_tags() if hasattr(builder, "logging_tags") else []
    name = "/".join([*tags, group])
    plans = []
    for index, env in enumerate(finish(builder.make_envs())):
        game = _game(builder, env)
        roster = resolve_roster(game, agents, runtime=runtime, **settings)
        plans.append(
            EpisodePlan(id=f"{name}-{index:02d}", spec=game.spec, seed=seed, agents=roster, group=name, index=index)
        )
    return plans


def _game(builder: Any, env: Any) -> MessageGame:
    """Returns the game of one of a builder's envs; in another one there'd be seats that nothing here seats."""
    game = env.token_env.seat_env.game if isinstance(env, EnvFromMessageEnv) else env
    if isinstance(game, MessageEnvLike) and not isinstance(game, type):
        game = make(game)
    if not isinstance(game, MessageGame):
        name = game.id if isinstance(game, ArenaEnv) else f"{game!r:.80}"
        raise UsageError(
            f"make_envs() of {type(builder).__name__} returned {name}; expected objects with initial_observation() and "
            "step(message). Episodes of other games are planned with their spec: llm_arena.episode.EpisodePlan"
        )
    return game


def group_reward(builder: Any) -> GroupReward:
    """Returns the function that pays the traces of a group as the builder does.

    It returns, for each trace in order, its return plus what `compute_group_rewards` adds, and the metrics. The envs
    that the builder is given are games in their final state, made by playing the traces again; each has a
    `message_env`. A void trace is paid NaN, and the others are compared without it.

    Raises (that function):
        UsageError: the builder did not return one result for each trace, or a trace has several seats.
    """

    def pay(traces: list[Trace]) -> list[tuple[float, dict[str, float]]]:
        several = next((trace for trace in traces if len(trace.seats) != 1), None)
        if several is not None:
            raise UsageError(
                f"a builder pays episodes of one seat; {several.id} has {', '.join(several.seats)}: credit it by seat, "
                f"or give {several.spec.id} a group_reward(traces) of its own"
            )
        played = [trace for trace in traces if not trace.void]
        envs: list[ArenaEnv] = [replay(trace) for trace in played]
        added = list(finish(builder.compute_group_rewards([trajectory(trace) for trace in played], envs)))
        if len(added) != len(played):
            raise UsageError(
                f"compute_group_rewards returned {len(added)} results for {len(played)} trajectories; expected one each"
            )
        results = iter(added)
        paid: list[tuple[float, dict[str, float]]] = []
        for trace in traces:
            reward, metrics = (math.nan, {}) if trace.void else next(results)
            paid.append((math.fsum(trace.returns.values()) + reward, metrics))
        return paid

    return pay


def trajectory(trace: Trace) -> Trajectory:
    """Returns the turns of an episode of one seat."""
    transitions = []
    for turn in trace.turns:
        ids, sampled = (None, None) if turn.prompt_ids is None else trace.full_ids(turn.index)
        transitions.append(
            Transition(
                ob=ids,
                ac=TokensWithLogprobs(sampled, None if sampled is None else turn.logprobs),
                text=turn.text,
                reward=turn.rewards.get(turn.seat, 0.0),
                episode_done=trace.ending is Ending.TERMINATED and turn is trace.turns[-1],
                metrics=_metrics(turn.action) | ({} if turn.cause is Cause.LEGAL else {str(turn.cause): 1.0}),
            )
        )
    return Trajectory(transitions)


def _metrics(action: Any) -> Metrics:
    return dict(action["metrics"]) if isinstance(action, dict) and "metrics" in action else {}
