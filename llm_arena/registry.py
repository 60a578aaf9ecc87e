"""Ids to envs, in Gymnasium's manner: `make`, `register`, `spec`, `registry`, `pprint_registry`.

Games of the `envs/` shelf are found by reading its files for `id = "name-vN"`, and imported when they are made.
Installed packages add theirs by an entry point in the group `llm_arena.envs` (name: the id; value:
`module:Class`), which is loaded when the id is asked for.

Other suites' games have ids of their own, `openspiel/kuhn_poker`. They are not listed, because to know them their suite
would have to be imported; the suite's door is opened when such an id is asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, overload, runtime_checkable

import gymnasium
import pettingzoo

from llm_arena.env import ArenaEnv
from llm_arena.errors import (
    DeprecatedEnv,
    EnvContractError,
    NameNotFound,
    NamespaceNotFound,
    UnknownName,
    UsageError,
    VersionNotFound,
    did_you_mean,
)
from llm_arena.types import EnvSpec, Json

EntryPoint = str | Callable[..., ArenaEnv]


@runtime_checkable
class MessageEnvLike(Protocol):
    """An env of one seat that takes and gives chat messages; both methods may be coroutines."""

    def initial_observation(self) -> Any:
        """Returns the messages that the episode begins with."""

    def step(self, message: Any) -> Any:
        """Takes the seat's message; returns an object with `reward`, `episode_done` and `next_messages`."""


_ID = re.compile(r"(?:(?P<namespace>[\w.-]+)/)?(?P<name>[\w:.-]+?)(?:-v(?P<version>\d+))?")
DOORS = {
    "openspiel": "llm_arena.adapters.openspiel:OpenSpielGame",
    "pettingzoo": "llm_arena.adapters.zoo:ZooGame",
    "textarena": "llm_arena.adapters.textarena:TextArenaGame",
}
"""Other suites: their doors by namespace. Strings, loaded when asked for: a suite's import is slow and its package
optional, and a door stands on all that a game stands on, so that it comes after this module in the map."""

_MESSAGE_GAME = "llm_arena.adapters.message_env:MessageGame"
"""What an object in the manner of a `MessageEnv` is played as, under the id `message/MODULE:CLASS`."""
_MESSAGE_SPEC = "llm_arena.adapters.message_env:spec_of"
_NAMESPACES = {**DOORS, "message": _MESSAGE_GAME}

HARNESS = "harness:"
"""What the id of a harness begins with, `harness:module:function`: traces name it, and no env can be made of it."""

_SEAT = "llm_arena.adapters.single:make_seat"
"""Makes one seat of a game for single-agent code; as for the doors, it stands on more than this module may know."""

_SHELF_ID = re.compile(r'^    id(?:: ClassVar\[str\])? = "([a-z0-9-]+-v\d+)"', re.MULTILINE)


class _Entry:
    def __init__(self, entry_point: EntryPoint, kwargs: Mapping[str, Json]) -> None:
        self.entry_point = entry_point
        self.kwargs = dict(kwargs)


class _Registry(Mapping[str, EnvSpec]):
    """All known ids and their specs. Iterating it imports no game, and leaves out those of other suites."""

    def __init__(self) -> None:
        self.entries: dict[str, _Entry] = {}

    def __getitem__(self, env_id: str) -> EnvSpec:
        return EnvSpec(id=env_id, kwargs=_entry(env_id).kwargs)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.entries))

    def __len__(self) -> int:
        return len(self.entries)


registry = _Registry()
"""Every registered id with its spec (the id and the keyword arguments it was registered with)."""


def register(id: str, entry_point: EntryPoint, *, kwargs: Mapping[str, Json] | None = None) -> None:
    """Registers an env under `id`, here, in PettingZoo's own registry, and one seat of it in Gymnasium's.

    Registering an id again replaces it with a warning, so that a notebook cell can be run twice.

    Args:
        id: `[namespace/]name-vN`.
        entry_point: `module:Class`, or a class or function that makes the env.
        kwargs: keyword arguments that `make` passes by default.

    Raises:
        UsageError: the id has no version or is malformed.
    """
    match = _ID.fullmatch(id)
    if not match or match["version"] is None:
        raise UsageError(f'id "{id}" is malformed; expected [namespace/]name-vN, e.g. naming-v0')
    if id in registry.entries:
        warnings.warn(f"{id} was registered before and is replaced", stacklevel=2)
    registry.entries[id] = _Entry(entry_point, kwargs or {})
    zoo_id = id if match["namespace"] else f"llm_arena/{id}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PettingZoo's own word on replacing an id says nothing new
        pettingzoo.register("aec", zoo_id, functools.partial(make_env, id))
        gymnasium.register(zoo_id, _SEAT, kwargs={"env_id": id})


@overload
def make(id: str | EnvSpec | MessageEnvLike, *, role: None = None, **kwargs: Any) -> ArenaEnv: ...


@overload
def make(
    id: str | EnvSpec | MessageEnvLike, *, role: str, opponents: Any = ..., **kwargs: Any
) -> gymnasium.Env[dict[str, Any], str]: ...


def make(id: str | EnvSpec | MessageEnvLike, *, role: str | None = None, **kwargs: Any) -> Any:
    """Makes an env, or one seat of it.

    Args:
        id: a registered id. Without a version the newest is taken, with a warning; `module:id` imports the module
            first. An `EnvSpec` makes its env again. `openspiel/NAME`, `pettingzoo/NAME` and `textarena/NAME` are games
            of these suites, under their own names. An object with `initial_observation()` and `step(message)` becomes a
            game of one seat (see docs/from_the_tutorial.md).
        role: a role or a seat, which is then made as a `gymnasium.Env`; `opponents` are agents for the others (see
            docs/single_agent.md). None: the whole game.
        kwargs: the game's own arguments and the options of `ArenaEnv`.

    Raises:
        NameNotFound, NamespaceNotFound, VersionNotFound, DeprecatedEnv: no such env; the message has the nearest.
        UsageError: an argument is unknown or has a wrong value.
        MissingExtra: the game's suite is not installed.
    """
    if not isinstance(id, str | EnvSpec):
        if isinstance(id, type) or not isinstance(id, MessageEnvLike):
            raise UsageError(f"make() takes an id like naming-v0 or an EnvSpec; got {type(id).__name__}")
        made: Any = _load(type(id).__name__, _MESSAGE_SPEC)(id)
        return make(made, role=role, **kwargs)
    return make_env(id, **kwargs) if role is None else _load(str(id), _SEAT)(id, role=role, **kwargs)


def make_env(id: str | EnvSpec, **kwargs: Any) -> ArenaEnv:
    """Makes a whole env as `make` does, for arguments that come from outside: `role` is none of them."""
    given = id.kwargs if isinstance(id, EnvSpec) else {}
    env_id = _resolve(id.id if isinstance(id, EnvSpec) else id)
    entry = _entry(env_id)
    creator = _load(env_id, entry.entry_point)
    arguments = {**entry.kwargs, **given, **kwargs}
    if _is_door(env_id):
        game = entry.kwargs["game"]
        if kwargs.get("game", game) != game:
            raise UsageError(f"{env_id}: game={kwargs['game']!r:.60}; the id says which game it is, so leave it out")
        arguments |= entry.kwargs  # whatever a spec says
    _check_arguments(env_id, creator, arguments)
    env = creator(**arguments)
    if not isinstance(env, ArenaEnv):
        raise EnvContractError(f"{env_id}: its entry point made a {type(env).__name__}; expected an ArenaEnv")
    return env


def spec(id: str) -> EnvSpec:
    """Returns the spec that `id` was registered with; raises what `make` raises for unknown ids."""
    return registry[_resolve(id)]


def env_class(id: str) -> type[ArenaEnv]:
    """Returns the class behind `id`, without making an env; all games of another suite have one class.

    Raises:
        EnvContractError: the id was registered with a function.
    """
    env_id = _resolve(id)
    creator = _load(env_id, _entry(env_id).entry_point)
    if not (isinstance(creator, type) and issubclass(creator, ArenaEnv)):
        raise EnvContractError(f"{env_id} was registered with a function; register its class to ask for it")
    return creator


def pprint_registry() -> None:
    """Prints all ids, one a line."""
    print("\n".join(registry))


def _resolve(id: str) -> str:
    """Returns the registered id that `id` means."""
    if _is_door(id):  # first: in message/MODULE:CLASS the colon comes after the module of a class, not of an id
        return id
    module, colon, rest = id.partition(":")
    if id.startswith(HARNESS) and ":" in rest:
        raise UsageError(
            f'"{id}" is a harness and no env: a harness run can\'t be replayed, verified or cloned, because its code '
            f'decides what is called. Run it anew: llm_arena.play(harness="{rest}", sample=...)'
        )
    if colon:
        try:
            importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:  # the latter two: no name of a module at all
            raise NameNotFound(f'"{id}" asks for the module "{module}", which can\'t be imported: {error}') from error
        id = rest
    if id in registry.entries or _is_door(id):
        return id
    match = _ID.fullmatch(id)
    if not match:
        raise NameNotFound(f'"{id}" is no env id; expected name-vN, e.g. naming-v0. List them with `llm-arena list`.')
    namespace, name, version = match["namespace"], match["name"], match["version"]
    known = [_ID.fullmatch(other) for other in registry]
    parts = [(m["namespace"], m["name"], int(m["version"]), m.string) for m in known if m]
    if namespace is not None and namespace not in {p[0] for p in parts}:
        namespaces = {*DOORS, *(p[0] for p in parts if p[0])}
        raise NamespaceNotFound(
            f'No namespace "{namespace}" in "{id}".{did_you_mean(namespace, namespaces)}'
            " List envs with `llm-arena list`."
        )
    same = sorted((p[2], p[3]) for p in parts if p[:2] == (namespace, name))
    if not same:
        names = {other: other for other in registry} | {other.rpartition("-v")[0]: other for other in registry}
        close = did_you_mean(id, names)
        raise NameNotFound(f'No env "{id}".{close} List them with `llm-arena list`.')
    newest = same[-1]
    if version is None:
        warnings.warn(f'"{id}" has no version; the newest, {newest[1]}, is taken', stacklevel=3)
        return newest[1]
    if int(version) > newest[0]:
        raise VersionNotFound(f'No version {version} of "{name}". The newest is "{newest[1]}".')
    raise DeprecatedEnv(f'"{id}" was retired; its results do not compare. Use "{newest[1]}".')


def _is_door(env_id: str) -> bool:
    namespace, _, name = env_id.partition("/")
    return namespace in _NAMESPACES and name != "" and env_id not in registry.entries


def _entry(env_id: str) -> _Entry:
    if not _is_door(env_id):
        return registry.entries[env_id]
    namespace, _, name = env_id.partition("/")
    return _Entry(_NAMESPACES[namespace], {"game": name})


def _load(env_id: str, entry_point: EntryPoint) -> Callable[..., ArenaEnv]:
    if not isinstance(entry_point, str):
        return entry_point
    module_name, _, name = entry_point.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise EnvContractError(f"{env_id}: its module {module_name} can't be imported: {error}") from error
    if name:
        creator: Callable[..., ArenaEnv] = getattr(module, name)
        return creator
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, ArenaEnv) and value.__dict__.get("id") == env_id:
            return value
    raise EnvContractError(f'{env_id}: {module_name} has no class with id = "{env_id}"')


def _check_arguments(env_id: str, creator: Callable[..., Any], arguments: Mapping[str, Json]) -> None:
    if not isinstance(creator, type) or not issubclass(creator, ArenaEnv):
        return
    known = creator.arguments()
    for name in arguments:
        if name not in known:
            raise UnknownName(
                f"{env_id} has no argument {name!r}.{did_you_mean(name, known)} It takes: {', '.join(sorted(known))}."
            )


def _register_shelf() -> None:
    shelf = importlib.util.find_spec("llm_arena.envs")
    for folder in (shelf.submodule_search_locations or []) if shelf else []:
        for file in sorted(Path(folder).glob("*.py")):
            for env_id in _SHELF_ID.findall(file.read_text(encoding="utf-8")):
                register(env_id, f"llm_arena.envs.{file.stem}")


def _register_plugins() -> None:
    for point in importlib.metadata.entry_points(group="llm_arena.envs"):
        try:
            register(point.name, point.value)
        except UsageError as error:
            warnings.warn(f"entry point {point.name} of {point.dist and point.dist.name}: {error}", stacklevel=2)


_register_shelf()
_register_plugins()

__all__ = ["UnknownName", "env_class", "make", "pprint_registry", "register", "registry", "spec"]
