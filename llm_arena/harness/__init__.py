"""A user's own harness: an async function that calls models as it likes, recorded as one episode.

    async def run(ctx, sample):
        tries = await asyncio.gather(*(ctx.call("solver", sample["prompt"]) for _ in range(3)))
        best = await ctx.call("selector", "Which is right? " + " / ".join(tries))
        return {"selector": float(best.strip() == sample["label"])}

All its calls land in one trace, with a seat for each conversation. A call whose messages are those of an earlier call
of its role, that call's reply, and more, goes on in that seat, so that its prompt extends the ids of the earlier one
where the chat template allows it. Any other call opens a new seat, `<role>_<k>`. So does a second call that goes on
from the same earlier one: its prompt extends the same ids, and each branch is paid for its own.

Turns stand in the order in which calls began. A call that failed or was cancelled leaves no turn; the seats and numbers
of the others are the same as if it had been answered.

A harness is no game. Its code decides what is called, so a run of it can't be replayed, verified or cloned.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from llm_arena.agent import Agent
from llm_arena.errors import UsageError
from llm_arena.harness.chat import check_role
from llm_arena.harness.run import EVERY_ROLE, CallReply, Context, Harness, HarnessFunction, HarnessPlan
from llm_arena.named import load_function
from llm_arena.roster import Roster, make_agents
from llm_arena.runtime import Runtime


def load_harness(given: str | HarnessFunction) -> Harness:
    """Returns the harness `module:function`, or that of a function object.

    Raises:
        UsageError: there is none, or it is not an async function.
    """
    if not isinstance(given, str):
        name = f"{getattr(given, '__module__', '?')}:{getattr(given, '__qualname__', type(given).__name__)}"
        return _harness(name, given, sys.modules.get(getattr(given, "__module__", "")))
    function = load_function("harness", given, "my_pipeline:run")
    return _harness(given, function, sys.modules[given.partition(":")[0]])


def harness_agents(agents: Roster, *, runtime: Runtime | None, settings: Mapping[str, Any]) -> dict[str, Agent]:
    """Returns the agents of a harness by role.

    Args:
        agents: an agent for all roles, or one for each role; `*` is every role that is not named.
        runtime: where models are served.
        settings: of the agents; each takes those that it has, and one of them must have it.

    Raises:
        UnknownName: no such agent or model.
        UsageError: a key is no name of a role, or no agent takes a setting.
    """
    table = agents if isinstance(agents, Mapping) else {EVERY_ROLE: agents}
    for role in table:
        if role != EVERY_ROLE:
            check_role(role)
    return make_agents(table, runtime=runtime, settings=settings)


def _harness(name: str, function: Any, module: object) -> Harness:
    wanted = "write `async def run(ctx, sample)`"
    # an object of a class may be one, too
    if not (callable(function) and any(map(inspect.iscoroutinefunction, (function, function.__call__)))):
        raise UsageError(f"the harness {name} is {function!r:.80} and no async function; {wanted}")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise UsageError(f"the harness {name} can't be called with (ctx, sample): {error}; {wanted}") from None
    return Harness(name, function, getattr(module, "group_reward", None), getattr(module, "token_rewards", None))


__all__ = [
    "EVERY_ROLE",
    "CallReply",
    "Context",
    "Harness",
    "HarnessFunction",
    "HarnessPlan",
    "harness_agents",
    "load_harness",
]
