"""Objects in the manner of tinker-cookbook's `MessageEnv`, as games of one seat.

    env = llm_arena.make(NamingGameEnv(topic="coffee shop"))
    trace = llm_arena.play(env, agents="smollm2-135m", seed=0)

The object has `initial_observation()`, which returns chat messages, and `step(message)`, which returns an object with
`reward`, `episode_done`, `next_messages` (the whole conversation so far), and perhaps `metrics`. Both may be
coroutines: these run on a loop in a thread of ours, always the same one, whatever loop the caller has.

A copy of the object as it was given plays each episode, so that episodes don't touch each other. If it has a method
`seed(number)`, that is called before each episode; luck that comes from elsewhere can't be replayed.

An episode is made again from the object's class and constructor arguments, where the class can be imported and the
arguments are JSON, are kept as attributes of the same name, and lead to an equal object. Other objects (a class in a
notebook, an argument that is a client) are made again in this process only.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
import os
import secrets
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import EnvContractError, UsageError
from llm_arena.registry import MessageEnvLike
from llm_arena.runtime import Runtime
from llm_arena.types import EnvSpec, Json, Message, Move, Outcome, Reply

SEAT = "agent_0"

_T = TypeVar("_T")
KEPT = 4096
"""So many objects that can't be made again from their class are kept for traces and plans that name them."""


class _Held:
    """A copy of an object that can't be made again from its class."""

    def __init__(self, env: Any) -> None:
        self.env = env


# by a name that no other process has: those in use by a game, and the newest ones; all would fill the memory
_LIVE: weakref.WeakValueDictionary[str, _Held] = weakref.WeakValueDictionary()
_NEWEST: deque[_Held] = deque(maxlen=KEPT)


@dataclass
class MessageStepResult:
    """What `MessageEnv.step` returns."""

    reward: float
    episode_done: bool
    next_messages: Sequence[Mapping[str, Any]]
    "The whole conversation so far, the seat's newest message included; anything where the episode is done."
    metrics: dict[str, float] = field(default_factory=dict)


class MessageEnv(ABC):
    """An env of one seat, written in messages. Deriving from it is not needed: the two methods are enough."""

    @abstractmethod
    async def initial_observation(self) -> Sequence[Mapping[str, Any]]:
        """Returns the messages that the episode begins with."""

    @abstractmethod
    async def step(self, message: Any) -> MessageStepResult:
        """Takes the seat's message `{"role": "assistant", "content": ...}`."""


class MessageGame(ArenaEnv):
    """A game of one seat that a `MessageEnv` makes.

    Any reply that isn't empty is legal; what it is worth is the object's affair. An empty one goes to the rule for bad
    replies, where a forfeit costs 1.

    Args:
        game: the object's class, `module:Class`.
        arguments: its constructor arguments.
        live: instead of these, the name of an object of this process.

    Raises:
        UsageError: there is no such class or object, or it lacks one of the two methods.
    """

    roles = {"agent": 1}  # noqa: RUF012  # as in envs/
    input_arg = "arguments"
    slow = True  # a step may wait for anything

    def __init__(
        self, *, game: str, arguments: Mapping[str, Json] | None = None, live: str | None = None, **options: Any
    ) -> None:
        vars(self).update(id=f"message/{game}", summary=f"{game}, a MessageEnv")
        self._held = _Held(_make(game, {} if arguments is None else arguments)) if live is None else _LIVE.get(live)
        if self._held is None:
            raise UsageError(
                f"{self.id} was made from an object of another process, or {KEPT} objects ago, and can't be made again "
                f"here; {_REMEDY}"
            )
        self._original = self._held.env
        if pay := getattr(self._original, "group_reward", None):
            vars(self).update(group_reward=pay)
        super().__init__(**options)
        self.metadata = {**self.metadata, "name": self.id}
        self.message_env: Any = None
        "The copy that plays the running episode; None before the first reset."

    def begin(self, rng: np.random.Generator) -> str:
        """Copies the object, and shows its opening messages."""
        self.message_env = _copy(self._original)
        seed = getattr(self.message_env, "seed", None)
        if callable(seed):
            seed(int(rng.integers(2**32)))
        self._show(finish(self.message_env.initial_observation()))
        return SEAT

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a reply that says nothing, as any text is legal."""
        return f"reply {rng.integers(1000)}"

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Has the object take the reply."""
        result = finish(self.message_env.step({"role": "assistant", "content": str(reply)}))
        try:
            reward, done, messages = float(result.reward), bool(result.episode_done), result.next_messages
            counted = getattr(result, "metrics", None) or {}
            metrics = {str(name): float(number) for name, number in counted.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise EnvContractError(
                f"{self.id}: step() returned {result!r:.80} ({error}); expected an object with reward, episode_done "
                f"and next_messages, and numbers in its metrics by name, such as MessageStepResult"
            ) from error
        action = {"metrics": metrics} if metrics else None
        if done:
            scores = {seat: self.returns[seat] + reward}
            return Move(rewards={seat: reward}, outcome=Outcome(reason="the env is done", scores=scores), action=action)
        self._show(messages)
        return Move(next=seat, rewards={seat: reward}, action=action)

    def _show(self, messages: Any) -> None:
        """Has the seat see `messages`: by telling it what is new, or else, if they have another past, by a new view."""
        if not isinstance(messages, Iterable):
            raise EnvContractError(f"{self.id}: the messages are {messages!r:.80}; expected a list of them")
        shown = [self._message(message) for message in messages]
        if not shown or shown[-1]["role"] == "assistant":
            last = f": its last message is the seat's own, {shown[-1]['content']!r:.60}" if shown else ""
            raise EnvContractError(
                f"{self.id}: there is nothing to answer{last}; next_messages is the whole conversation, up to what is "
                "asked next"
            )
        seen = self.observe(SEAT)["messages"]
        if shown[: len(seen)] != seen or any(message["role"] == "assistant" for message in shown[len(seen) :]):
            self.replace_view(SEAT, shown)
            return
        for message in shown[len(seen) :]:
            self.tell(SEAT, message["content"], role=message["role"])  # type: ignore[arg-type]  # as `_message` made it

    def _message(self, given: Mapping[str, Any]) -> Message:
        """Returns one of the object's messages as one of ours: a role and a text."""
        content = given.get("content") if isinstance(given, Mapping) else None
        if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
            content = "".join(str(part["text"]) for part in content)
        role = given.get("role") if isinstance(given, Mapping) else None
        if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
            raise EnvContractError(
                f"{self.id}: a message is {given!r:.100}; expected a role (system, user, assistant, tool) and text"
            )
        if any("\ud800" <= char <= "\udfff" for char in content):
            raise EnvContractError(
                f"{self.id}: a message holds half a character, {given!r:.100}, which no file can; decode its text with "
                'errors="replace"'
            )
        return {"role": role, "content": content}


_REMEDY = (
    "for that its class has to stand in a module that can be imported, and its constructor's arguments have to be JSON "
    "and kept as attributes of the same name"
)


def spec_of(env: MessageEnvLike) -> EnvSpec:
    """Returns the spec from which an object's game is made, here or, where that can be, in any process."""
    kind = type(env)
    name = f"{kind.__module__}:{kind.__qualname__}"
    arguments = _arguments(env, name)
    if arguments is not None:
        return EnvSpec(id=f"message/{name}", kwargs={"arguments": arguments} if arguments else {})
    live = secrets.token_hex(8)
    held = _LIVE[live] = _Held(_copy(env))
    _NEWEST.append(held)
    return EnvSpec(id=f"message/{kind.__name__}", kwargs={"live": live})


def finish(value: Awaitable[_T] | _T) -> _T:
    """Returns the result of a coroutine, which runs on a loop in a thread of ours; anything else as it is.

    Raises:
        UsageError: it was called by a coroutine on that loop, which should await instead.
    """
    if not inspect.isawaitable(value):
        return value

    async def awaited() -> _T:
        return await value

    return _home(os.getpid()).run(awaited())


@functools.cache
def _home(process: int) -> Runtime:
    """The loop on which all objects of this process run; a fork has no threads, so it makes its own."""
    return Runtime(max_open_episodes=1, lockstep=False)


def _copy(env: Any) -> Any:
    try:
        return copy.deepcopy(env)
    except TypeError as error:
        raise UsageError(
            f"a {type(env).__name__} can't be copied ({error}), and each episode is played by a copy; make what can't "
            "be copied in initial_observation(), or give the class a __deepcopy__"
        ) from error


def _class(name: str) -> type[Any]:
    """Returns the class `module:Class`.

    Raises:
        UsageError: there is none, or it is no `MessageEnv`: a spec may come from anywhere, so nothing else is called.
    """
    module, _, path = name.partition(":")
    try:
        found: Any = functools.reduce(getattr, path.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, TypeError, ValueError) as error:  # the latter two: `..` and no name at all
        raise UsageError(f"message/{name}: there is no such class ({error}); expected message/MODULE:CLASS") from error
    if not isinstance(found, type) or not issubclass(found, MessageEnvLike):
        raise UsageError(f"message/{name} is no class with initial_observation() and step(message)")
    if inspect.isabstract(found) or getattr(found, "_is_protocol", False):
        raise UsageError(f"message/{name} is abstract; expected a class that has both its methods")
    return found


def _make(name: str, arguments: Any) -> Any:
    """Makes an object from its class; the arguments may come from a file, so they may be anything."""
    kind = _class(name)
    if not isinstance(arguments, Mapping):
        first = next(iter(inspect.signature(kind).parameters), "topic")
        start = json.dumps({"prompt": {first: arguments}}, default=str)
        raise UsageError(
            f"message/{name}: arguments={arguments!r:.60}; expected those of its constructor by name, in a file of "
            f"starts for instance {start:.100}"
        )
    try:
        inspect.signature(kind).bind(**arguments)
    except TypeError as error:
        raise UsageError(
            f"message/{name}: {error} among its arguments {dict(arguments)!r:.80}; it takes {inspect.signature(kind)}"
        ) from error
    return kind(**copy.deepcopy(dict(arguments)))


def _arguments(env: Any, name: str) -> dict[str, Json] | None:
    """Returns the constructor arguments that make an equal object again, or None."""
    kind = type(env)
    if "<locals>" in name or kind.__module__ == "__main__" or not hasattr(env, "__dict__"):
        return None
    parameters: list[inspect.Parameter] = []
    if kind.__init__ is not object.__init__:
        parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if not all(p.kind in named and hasattr(env, p.name) for p in parameters):
        return None
    arguments = {p.name: getattr(env, p.name) for p in parameters}
    try:
        if msgspec.json.decode(msgspec.json.encode(arguments)) != arguments or _class(name) is not kind:
            return None
        return arguments if vars(_make(name, arguments)) == vars(env) else None
    except (TypeError, UsageError, ValueError):  # no JSON; not to be imported; arrays don't say whether they are equal
        return None
