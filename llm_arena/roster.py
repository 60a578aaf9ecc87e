"""Who sits where: from agent strings to agents.

An agent string is `kind[:argument]`. The kinds are the files of the `agents/` shelf. A bare word is, in this order: a
kind, a scripted player of the game that is played, a known model, a folder with a model. `kuhn-poker-v0/optimal` is the
scripted player `optimal` of that game, wherever it is used.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llm_arena.agent import Agent
from llm_arena.env import ArenaEnv, Baseline
from llm_arena.errors import UnknownName, UsageError, did_you_mean
from llm_arena.models import KNOWN_MODELS
from llm_arena.registry import env_class, registry
from llm_arena.runtime import Runtime
from llm_arena.types import Action, PastTurn, Reply, View

Roster = str | Agent | Mapping[str, str | Agent]
"""An agent (string or object) for all seats, or one for each role or seat."""


class BaselineAgent:
    """A scripted player from a game's own file."""

    policy: str | None = None

    def __init__(self, name: str, baseline: Baseline) -> None:
        self.name = name
        self._baseline = baseline

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Returns what the game's function answers, with luck from the view's seed.

        Raises:
            UsageError: the function did not return text.
        """
        said: object = self._baseline(view, np.random.default_rng(view.seed))
        if isinstance(said, str):
            return Action(reply=said if isinstance(said, Reply) else Reply(said))
        if inspect.iscoroutine(said):
            said.close()
        raise UsageError(
            f"the scripted player {self.name} answered {type(said).__name__}; expected is a plain function of "
            "(view, rng) that returns text"
        )


def agent_kinds() -> list[str]:
    """Returns the kinds of agents on the shelf, e.g. `random-legal`; imports none of them."""
    shelf = importlib.import_module("llm_arena.agents")
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(shelf.__path__))


def make_agent(
    name: str | Agent, *, env_id: str | None = None, runtime: Runtime | None = None, **settings: Any
) -> Agent:
    """Makes an agent from its string.

    Args:
        name: an agent string; an agent object is returned as it is.
        env_id: the game that will be played, whose scripted players may then be named by a bare word.
        runtime: where a model is served; scripted agents need none.
        settings: of the agent, e.g. `max_new_tokens=24`.

    Raises:
        UnknownName: no such agent or model; the message lists both.
        UsageError: the agent does not take a setting, or needs a runtime.
    """
    if not isinstance(name, str):
        return _object(name)
    creator = _creator(name, env_id, env_class(env_id).baselines if env_id else {})
    unknown = [setting for setting in settings if not creator.takes(setting)]
    if unknown:
        raise UsageError(f'the agent "{name}" has no setting {unknown[0]!r}.{creator.suggest(unknown[0])}')
    return creator.create(runtime, settings)


def resolve_roster(
    env: ArenaEnv, agents: Roster, *, runtime: Runtime | None = None, **settings: Any
) -> dict[str, Agent]:
    """Returns the agent of every seat, in the env's order of seats.

    Args:
        env: whose seats to fill.
        agents: an agent for all seats, or one for each role or seat; a seat's own entry goes before its role's.
        runtime: where models are served.
        settings: of the agents; each agent takes those that it has, and one of them must have it.

    Raises:
        UnknownName: no such seat, role, agent or model.
        UsageError: a seat is left without an agent, a scripted player sits in a role that it doesn't play, or no agent
            takes a setting.
    """
    names = _by_seat(env, agents)
    _check_roles(env, names)
    return make_agents(names, env_id=env.spec.id, baselines=env.baselines, runtime=runtime, settings=settings)


def make_agents(
    names: Mapping[str, str | Agent],
    *,
    env_id: str | None = None,
    baselines: Mapping[str, Baseline] | None = None,
    runtime: Runtime | None,
    settings: Mapping[str, Any],
) -> dict[str, Agent]:
    """Returns an agent for each key; equal strings make one agent.

    Args:
        names: agent strings or agents.
        env_id: the game, if there is one.
        baselines: its scripted players.
        runtime: where models are served.
        settings: of the agents; each agent takes those that it has, and one of them must have it.

    Raises:
        UnknownName: no such agent or model.
        UsageError: no agent takes a setting.
    """
    creators = {name: _creator(name, env_id, baselines or {}) for name in names.values() if isinstance(name, str)}
    for setting in settings:
        if not any(creator.takes(setting) for creator in creators.values()):
            hints = [creator.suggest(setting) for creator in creators.values()]
            if _creator("llm", None, {}).takes(setting):
                hints = [" It is a model's: seat a model with --agents MODEL."]
            players = ", ".join(dict.fromkeys(creators)) or "agent objects"
            raise UsageError(f"no agent here ({players}) has a setting {setting!r}.{next(filter(None, hints), '')}")
    made = {
        name: creator.create(runtime, {key: value for key, value in settings.items() if creator.takes(key)})
        for name, creator in creators.items()
    }
    return {key: made[name] if isinstance(name, str) else _object(name) for key, name in names.items()}


class _Creator:
    """Makes one agent, and knows the settings that it takes."""

    def __init__(self, name: str, function: Callable[..., Agent], *arguments: Any) -> None:
        self._name = name
        self._function = function
        self._arguments = arguments
        parameters = inspect.signature(function).parameters
        self._runtime = parameters.get("runtime")
        self._settings = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY and p.name != "runtime"]
        self._open = any(p.kind is p.VAR_KEYWORD for p in parameters.values())  # then it checks the names itself

    def takes(self, setting: str) -> bool:
        return self._open or setting in self._settings

    def suggest(self, setting: str) -> str:
        return did_you_mean(setting, self._settings) or (
            f' "{self._name}" takes: {", ".join(self._settings)}.' if self._settings else ""
        )

    def create(self, runtime: Runtime | None, settings: dict[str, Any]) -> Agent:
        if self._runtime is None:
            return self._function(*self._arguments, **settings)
        if runtime is None and self._runtime.default is inspect.Parameter.empty:
            raise UsageError(f'the agent "{self._name}" needs a Runtime to serve its model; pass runtime=Runtime()')
        return self._function(*self._arguments, runtime=runtime, **settings)


def _creator(name: str, env_id: str | None, baselines: Mapping[str, Baseline]) -> _Creator:
    kind, colon, argument = name.partition(":")
    kinds = agent_kinds()
    if kind in kinds:
        module = importlib.import_module(f"llm_arena.agents.{kind.replace('-', '_')}")
        return _Creator(name, module.make, argument)
    if not colon and name in baselines:
        return _Creator(name, BaselineAgent, f"{env_id}/{name}", baselines[name])
    game, slash, player = name.rpartition("/")
    if slash and game in registry:
        known = env_class(game).baselines
        if player not in known:
            has = f"it has: {', '.join(known)}" if known else "it has none"
            raise UnknownName(f'{game} has no scripted player "{player}"; {has}.{did_you_mean(player, known)}')
        if env_id is not None and known[player] not in baselines.values():
            has = ", ".join(baselines) or "none"
            raise UsageError(f'"{name}" plays {game} and can\'t read {env_id}, whose scripted players are: {has}')
        return _Creator(name, BaselineAgent, name, known[player])
    if name and not colon and (name in KNOWN_MODELS or os.path.isdir(name)):
        return _creator(f"llm:{name}", env_id, baselines)
    players = [f"{env_id}/{player}" for player in baselines] if env_id else []
    raise UnknownName(
        f'no agent or model "{name}".{did_you_mean(name, [*kinds, *baselines, *KNOWN_MODELS])}'
        f" Agents: {', '.join([*kinds, *players])}. Models: {', '.join(KNOWN_MODELS)}, or a folder;"
        " a model of a hub is llm:OWNER/NAME."
    )


def _by_seat(env: ArenaEnv, agents: Roster) -> dict[str, str | Agent]:
    seats = env.possible_agents
    if not isinstance(agents, Mapping):
        return dict.fromkeys(seats, agents)
    roles = {seat: env.role_of(seat) for seat in seats}
    names = [*dict.fromkeys(roles.values()), *seats]
    for key in agents:
        if key not in names:
            raise UnknownName(
                f"{env.spec.id} has no seat or role {key!r}.{did_you_mean(str(key), names)} It has: {', '.join(names)}."
            )
    empty = [seat for seat in seats if seat not in agents and roles[seat] not in agents]
    if empty:
        raise UsageError(f"no agent for {', '.join(empty)}; give one for each seat or role of {env.spec.id}")
    return {seat: agents[seat] if seat in agents else agents[roles[seat]] for seat in seats}


def _check_roles(env: ArenaEnv, names: Mapping[str, str | Agent]) -> None:
    """Refuses scripted players in roles that they don't play."""
    for seat, name in names.items():
        player = name.removeprefix(f"{env.spec.id}/") if isinstance(name, str) else ""
        plays = env.baseline_roles.get(player)
        if plays is not None and env.role_of(seat) not in plays:
            others = {
                role: next((who for who, roles in env.baseline_roles.items() if role in roles), "random-legal")
                for role in env.role_counts
            }
            fitting = ",".join(f"{role}={who}" for role, who in (others | dict.fromkeys(plays, player)).items())
            raise UsageError(
                f'{env.spec.id}: "{player}" plays {" and ".join(plays)}, and can\'t sit in {seat}; '
                f"give, for example, --agents {fitting}"
            )


def _object(agent: object) -> Agent:
    if not isinstance(agent, Agent):
        raise UsageError(
            f"{agent!r:.100} is no agent; give an agent string such as random-legal, or an object with"
            " name, policy and an async act(view, past)"
        )
    return agent
