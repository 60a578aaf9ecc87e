"""One run of a harness on its way: calls to agents, their seats, the trace."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from array import array
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np

from llm_arena.agent import Agent
from llm_arena.bookkeeping import StepRecord
from llm_arena.env import GroupReward
from llm_arena.episode import Boundary, EpisodePlan, check_action, counted_reply, leaves_of
from llm_arena.errors import ContextOverflow, ServerRefusal, UsageError
from llm_arena.harness.call import Call, End
from llm_arena.harness.chat import check_role, digest, digests, read_messages, read_tools
from llm_arena.harness.own_time import OwnTime
from llm_arena.harness.pay import Pay
from llm_arena.recorder import Recorder
from llm_arena.registry import HARNESS
from llm_arena.replies import clean
from llm_arena.runtime import Runtime
from llm_arena.types import (
    Cause,
    Ending,
    EnvSpec,
    Failure,
    FinishReason,
    Json,
    Message,
    PastTurn,
    Reply,
    SeatInfo,
    Trace,
    View,
)
from llm_arena.views import copy_messages

EVERY_ROLE = "*"
"""Key of the agent that holds all roles which the roster does not name."""

_log = logging.getLogger(__name__)


class CallReply(Reply):
    """What a call answered: text that knows how it ended (`finish`) and its number in the run (`call`)."""

    __slots__ = ("call",)
    call: int
    "Names the call in rewards: `{reply.call: 1.0}`."

    def __new__(
        cls, text: str, finish: FinishReason = "stop", context_tokens: int | None = None, call: int = -1
    ) -> CallReply:
        """Makes the reply of call number `call`."""
        reply = cast(CallReply, Reply.__new__(cls, text, finish, context_tokens))
        reply.call = call
        return reply

    def __reduce__(self) -> tuple[type[Reply], tuple[Any, ...]]:
        return CallReply, (str(self), self.finish, self.context_tokens, self.call)


class Context:
    """What a harness gets: its way to the models, and all that it may draw on."""

    def __init__(self, run: HarnessRun, sample: dict[str, Json], seed: int) -> None:
        self._run = run
        self.sample = sample
        "The sample of this run, a copy of its own."
        self.seed = seed
        "The episode seed; episodes of one group share it."
        self.rng = np.random.default_rng(seed)
        "Luck for the harness's own use, from the seed."

    async def call(
        self, role: str, messages: str | Sequence[Mapping[str, Any]], tools: Sequence[Json] | None = None
    ) -> CallReply:
        """Asks the agent of a role, as often and as concurrently as you like.

        Args:
            role: a name of your own, of `a` to `z` and `_`.
            messages: chat messages `{"role": ..., "content": ...}`; a string is one user message. To go on with a
                conversation, repeat its messages, the reply as an `assistant` message, and add what is new.
            tools: what may be called: `name`, `description` and `parameters` (a JSON schema). The reply then holds
                calls as `llm_arena.tool_calls` reads them; give results back as messages of the role `tool`.

        Raises:
            UsageError: an argument is none of these, or nobody holds the role.
            ContextOverflow: the messages and the longest reply don't fit into the context.
            EngineError: the engine failed.
        """
        return await self._run.call(role, messages, tools)


HarnessFunction = Callable[[Context, dict[str, Json]], Awaitable[Any]]


@dataclass(frozen=True)
class Harness:
    """A harness and its name."""

    name: str
    "`module:function`."
    function: HarnessFunction
    group_reward: GroupReward | None = None
    "Its module's function of this name, which pays separate runs of one group by comparing them."
    token_rewards: Callable[[Trace], Any] | None = None
    "Likewise; pays single tokens, see llm_arena.training.token_rewards."

    @property
    def id(self) -> str:
        """What traces name as their env."""
        return HARNESS + self.name

    def spec(self, sample: Mapping[str, Json]) -> EnvSpec:
        """Returns what traces of this sample have as their spec.

        Raises:
            UsageError: the sample is no mapping, or holds what JSON can't.
        """
        if not isinstance(sample, Mapping):
            raise UsageError(f'the sample is {sample!r:.60}; expected a mapping of fields, e.g. {{"prompt": "2 + 3"}}')
        try:
            text = json.dumps(dict(sample), allow_nan=False, ensure_ascii=False)
            plain = msgspec.json.decode(text.encode())
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the sample {dict(sample)!r:.100} must be JSON, because traces hold it: {error}"
            ) from None
        return EnvSpec(id=self.id, kwargs={"sample": plain})


@dataclass(frozen=True, kw_only=True)
class HarnessPlan(EpisodePlan):
    """A run of a harness. `agents` are by role, see `harness_agents`; the seats are known when it has ended."""

    harness: Harness

    def open(self, runtime: Runtime, *, threads: bool) -> HarnessRun:
        """Returns the run, about to begin. It stays on the runtime's loop, whatever `threads` says."""
        return HarnessRun(self, runtime)


class HarnessRun:
    """One run on its way; `boundary`, `seat` and `doing` as for an episode of a game."""

    def __init__(self, plan: HarnessPlan, runtime: Runtime) -> None:
        self.boundary: Boundary = "env"
        self.seat: str | None = None
        self.doing = f"the harness {plan.harness.name}"
        self._plan = plan
        self._run_seed = plan.seed if plan.run_seed is None else plan.run_seed
        self._began = time.perf_counter()
        self._calls: list[Call] = []
        self._tasks: dict[asyncio.Task[CallReply], Call] = {}
        self._opened: Counter[str] = Counter()
        self._equal: Counter[tuple[str, str]] = Counter()
        self._answered: dict[tuple[str, str], list[Call]] = {}
        "By role and the digest of the messages with the reply: what a later call may go on with."
        self._mistake: UsageError | ServerRefusal | None = None
        "What ends the run, whatever the harness makes of it."
        self._code: asyncio.Task[object]
        self._over = False
        self._lockstep = runtime.lockstep
        self._own_time = OwnTime(runtime.lockstep)

    async def play(self) -> Trace:
        """Runs the function, and pays what it returns."""
        sample: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(self._plan.spec.kwargs["sample"]))
        try:
            try:
                self._own_time.stir()
                self._code = asyncio.get_running_loop().create_task(self._run(sample))
                given = await self._code
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._mistake is None or (task is not None and task.cancelling()):
                    raise
                given = None
            finally:
                await self._close()
            self._refuse_if_nothing_came_through()
        except Exception as error:
            leaves = [call for leaf in leaves_of(error) for call in self._calls if call.error is leaf]
            full = [call for call in leaves if isinstance(call.error, ContextOverflow)]
            if full:
                return self._trace({}, Ending.CONTEXT_OVERFLOW, full[0].seat)
            if leaves:
                self.boundary, self.seat = "agent", leaves[0].seat
            raise
        return self._trace(given)

    def void(self, failure: Failure) -> Trace:
        """Returns the trace of a run that a fault ended, with the turns that there are."""
        return self._timed(self._record({}).void(failure))

    async def _run(self, sample: dict[str, Json]) -> object:
        return await self._plan.harness.function(Context(self, sample, self._plan.seed), sample)

    async def call(self, role: str, messages: object, tools: Sequence[Json] | None) -> CallReply:
        """Makes one call."""
        if self._over:  # a task that was left behind, maybe one that tries again after any Exception
            raise asyncio.CancelledError(f"the harness {self._plan.harness.name} has ended")
        try:
            call = self._begin(role, messages, tools)
        except UsageError as error:
            self._mistake = self._mistake or error  # gather(return_exceptions=True) would pass over it
            self._code.cancel()
            await asyncio.sleep(0)  # so that code which tries again is ended here
            raise
        if self._lockstep is not None:
            self._lockstep.enter()
        self._own_time.stir()
        task = asyncio.get_running_loop().create_task(self._act(call))
        self._tasks[task] = call
        task.add_done_callback(self._ended)
        return await task

    def _begin(self, role: str, messages: object, tools: Sequence[Json] | None) -> Call:
        check_role(role)
        role = str(role)  # a model's reply may name it
        self._agent(role)
        told = read_messages(messages)
        allowed = read_tools(tools)
        marks = digests(told)
        before = self._before(role, messages, told, marks)
        if before is None or before.continued:
            seat = f"{role}_{self._opened[role]}"
            self._opened[role] += 1
        else:
            seat, before.continued = before.seat, True
        asked = hashlib.blake2b((marks[-1] + json.dumps(allowed)).encode(), digest_size=16).hexdigest()
        twin = self._equal[role, asked]
        self._equal[role, asked] += 1
        parts = (self._run_seed, self._plan.id, role, asked, twin)
        view = View(
            seat=seat,
            role=role,
            messages=told,
            legal_actions=None,
            grammar=None,
            facts=None,
            attempt=0,
            seed=int.from_bytes(hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest(), "big"),
            sample_reply=lambda rng: "...",
            tools=allowed,
        )
        call = Call(index=len(self._calls), role=role, seat=seat, view=view, digest=marks[-1], before=before)
        self._calls.append(call)
        return call

    def _agent(self, role: str) -> Agent:
        agents = self._plan.agents
        agent = agents.get(role, agents.get(EVERY_ROLE))
        if agent is None:
            raise UsageError(
                f'nobody holds the role "{role}"; the roster is {sorted(agents)}. Name the role there, or give '
                f'"{EVERY_ROLE}" an agent, which holds all others'
            )
        return agent

    def _before(self, role: str, given: object, told: list[Message], marks: list[str]) -> Call | None:
        """Returns the call with the longest conversation that these messages go on with."""
        for at in range(len(told) - 2, 0, -1):
            found = self._answered.get((role, marks[at])) if told[at]["role"] == "assistant" else None
            if found:
                # Equal calls may have had equal replies; the reply object itself tells which of them is meant.
                said = given[at]["content"] if isinstance(given, Sequence) else None
                named = [call for call in found if isinstance(said, CallReply) and call.index == said.call]
                free = [call for call in found if not call.continued]
                return min(named or free or found, key=lambda call: call.index)
        return None

    async def _act(self, call: Call) -> CallReply:
        past: list[PastTurn] = []
        before = call.before
        while before is not None:
            assert before.action is not None  # only answered calls are gone on with
            past.append(
                PastTurn(
                    index=before.index,
                    num_messages=len(before.view.messages),
                    view_epoch=0,
                    reply=before.reply,
                    prompt_ids=before.action.prompt_ids,
                    completion=before.action.completion,
                )
            )
            before = before.before
        view = msgspec.structs.replace(call.view, messages=copy_messages(call.view.messages))
        began = time.perf_counter()
        action = await self._agent(call.role).act(view, past[::-1])
        check_action(action)
        for ids in (action.prompt_ids, action.completion.token_ids if action.completion else None):
            array("I", ids or ())  # what can't be recorded is refused here, where it is this call's failure
        call.seconds = time.perf_counter() - began
        call.reply = clean(counted_reply(action))
        call.action = action
        message = Message(role="assistant", content=str(call.reply))
        self._answered.setdefault((call.role, digest(call.digest, message)), []).append(call)
        return CallReply(call.reply, call.reply.finish, call.reply.context_tokens, call.index)

    def _ended(self, task: asyncio.Task[CallReply]) -> None:
        call = self._tasks.pop(task)
        call.cancelled = task.cancelled()
        call.error = None if call.cancelled else task.exception()
        if call.error is not None:
            _log.debug("call %d of %s (%s) failed", call.index, self._plan.id, call.seat, exc_info=call.error)
            refusals = [leaf for leaf in leaves_of(call.error) if isinstance(leaf, ServerRefusal)]
            if refusals and not self._over:  # the server would refuse all other runs as well
                self._mistake = self._mistake or refusals[0]
                self._code.cancel()
        if call.action is None and call.before is not None and call.before.seat == call.seat:
            call.before.continued = False  # another try goes on in this seat
        self._own_time.stir()
        if self._lockstep is not None:
            self._lockstep.leave()

    async def _close(self) -> None:
        """Ends the calls that still run."""
        self._over = True
        self._own_time.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    def _refuse_if_nothing_came_through(self) -> None:
        """Raises a mistake in the harness that it passed over, and the first failure where no call was answered."""
        if self._mistake is not None:
            raise self._mistake
        errors = [call.error for call in self._calls if call.error is not None]
        if errors and not any(call.action for call in self._calls):
            raise errors[0]

    def _trace(self, given: object, ending: Ending = Ending.TERMINATED, overflow_seat: str | None = None) -> Trace:
        pay = Pay(given, self._calls) if ending is Ending.TERMINATED else Pay(None, self._calls)
        stats: dict[str, Counter[str]] = {}
        for call in self._calls:
            counts = stats.setdefault(call.role, Counter())
            counts["calls"] += 1
            counts["failed"] += call.error is not None
            counts["cancelled"] += call.cancelled
        for role, count in pay.nobody.items():
            stats.setdefault(role, Counter())["paid_to_nobody"] += count
        end = End(ending=ending, overflow_seat=overflow_seat, returns=pay.returns, stats=stats)
        return self._timed(self._record(pay.by_turn).finish(end))

    def _record(self, rewards: Mapping[int, float]) -> Recorder:
        answered = [call for call in self._calls if call.action is not None]
        seats: dict[str, SeatInfo] = {}
        for call in answered:
            agent = self._agent(call.role)
            seats[call.seat] = SeatInfo(role=call.role, agent=agent.name, policy=agent.policy)
        plan = self._plan
        recorder = Recorder(plan.id, plan.spec, plan.seed, seats, plan.group)
        for call in answered:
            paid = rewards.get(call.index, 0.0)
            step = StepRecord(
                seat=call.seat,
                reply=call.reply,
                cause=Cause.LEGAL,
                attempt=0,
                action=None,
                rewards={call.seat: paid} if paid else {},
            )
            assert call.action is not None  # it was answered
            recorder.add(call.view, 0, call.action, step, call.seconds)
        return recorder

    def _timed(self, trace: Trace) -> Trace:
        return msgspec.structs.replace(trace, seconds=time.perf_counter() - self._began)
