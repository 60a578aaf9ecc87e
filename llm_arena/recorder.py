"""The record of one episode: how a trace is built, what it holds for training, and how it is played again.

Token ids come from the engine and are never made again from text. Whether a prompt extends an earlier turn is decided
by ids alone: a turn extends the longest earlier turn of its seat whose ids (prompt and completion) are an exact prefix
of its prompt. So a chat template that rewrites history starts a new sequence by itself, and one that does not adds to
the old one.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from llm_arena.env import ArenaEnv, StepRecord
from llm_arena.errors import ArenaError, TraceError
from llm_arena.registry import make
from llm_arena.types import (
    Action,
    Completion,
    Ending,
    EnvSpec,
    Failure,
    Json,
    Message,
    Outcome,
    PastTurn,
    Reply,
    SeatInfo,
    TokenSequence,
    Trace,
    Turn,
    View,
)


class Ended(Protocol):
    """What a recorder reads of an episode that is over; a game is one."""

    @property
    def ending(self) -> Ending | None:
        """How it ended; None: it goes on."""

    @property
    def outcome(self) -> Outcome | None:
        """The facts of the finished game."""

    @property
    def returns(self) -> Mapping[str, float]:
        """Sum of rewards by seat."""

    @property
    def overflow_seat(self) -> str | None:
        """The seat whose context overflowed, for that ending."""

    @property
    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Counts by role."""


class Recorder:
    """Builds the trace of one episode, turn by turn.

    Args:
        id: the trace's id, unique in its file.
        spec: how to make the env again.
        seed: the episode seed.
        seats: who sits where.
        group: traces of one group may be compared.
    """

    def __init__(self, id: str, spec: EnvSpec, seed: int, seats: Mapping[str, SeatInfo], group: str = "") -> None:
        self._trace = Trace(id=id, spec=spec, seed=seed, group=group, seats=dict(seats), library=_version())
        self._past: dict[str, list[PastTurn]] = {seat: [] for seat in seats}
        self._ids = {seat: _Streams() for seat in seats}
        self._news = _News()
        self._began = time.perf_counter()

    def past(self, seat: str) -> Sequence[PastTurn]:
        """Returns the seat's earlier turns, oldest first."""
        return self._past[seat]

    def add(self, view: View, view_epoch: int, action: Action, step: StepRecord, seconds: float) -> None:
        """Adds one turn.

        Args:
            view: what the seat saw when it acted.
            view_epoch: how often its view had been replaced by then.
            action: what its agent answered.
            step: what the env made of it.
            seconds: wall time of the agent's `act`.

        Raises:
            TypeError: the game read the reply as something that is no JSON.
        """
        turn = Turn(
            index=len(self._trace.turns),
            seat=step.seat,
            text=str(step.reply),
            finish=step.reply.finish,
            cause=step.cause,
            attempt=step.attempt,
            action=_plain(step.action),
            messages=self._news.take(step.seat, view_epoch, view.messages),
            view_epoch=view_epoch,
            rewards=step.rewards,
            seconds=seconds,
        )
        completion = action.completion
        if completion is not None and action.prompt_ids is not None:
            self._add_tokens(turn, action.prompt_ids, completion)
        self._past[step.seat].append(
            PastTurn(
                index=turn.index,
                num_messages=len(view.messages),
                view_epoch=view_epoch,
                reply=step.reply,
                prompt_ids=action.prompt_ids,
                completion=completion,
            )
        )
        self._trace.turns.append(turn)

    def finish(self, env: Ended) -> Trace:
        """Returns the trace of an episode that is over.

        Raises:
            TraceError: the game's outcome holds what JSON can't (a score that is no finite number).
        """
        trace = self._trace
        if env.ending is None:
            raise TraceError(f"trace {trace.id}: the episode is not over, so it can't be finished")
        scores = env.outcome.scores if env.outcome else {}
        if not all(map(math.isfinite, scores.values())):
            raise TraceError(f"{trace.spec.id}: the scores of the outcome are {scores}; scores are finite numbers")
        # A copy: an episode that ended after its time limit is void all the same.
        return msgspec.structs.replace(
            trace,
            returns=dict(env.returns),
            outcome=env.outcome,
            ending=env.ending,
            overflow_seat=env.overflow_seat,
            env_stats={role: dict(counts) for role, counts in env.stats.items()},
            seconds=time.perf_counter() - self._began,
        )

    def void(self, failure: Failure) -> Trace:
        """Returns the trace of an episode that a fault ended: its turns so far, no returns, no outcome."""
        # A copy: a step that was given up after its time limit may still add a turn.
        return msgspec.structs.replace(
            self._trace,
            turns=list(self._trace.turns),
            ending=Ending.VOID,
            failure=failure,
            seconds=time.perf_counter() - self._began,
        )

    def _add_tokens(self, turn: Turn, prompt_ids: list[int], completion: Completion) -> None:
        # As bytes, comparing prefixes of long conversations costs next to nothing (4 bytes an id, so never misaligned).
        prompt = array("I", prompt_ids)
        sampled = array("I", completion.token_ids)
        prompt_bytes = prompt.tobytes()
        streams = self._ids[turn.seat]
        longest, start = streams.longest_prefix(prompt_bytes)
        turn.extends = longest
        turn.prompt_ids = prompt[start // prompt.itemsize :].tolist()
        turn.completion_ids = sampled.tolist()
        turn.logprobs = array("d", completion.logprobs).tolist()
        turn.min_version = completion.min_version
        turn.max_version = completion.max_version
        turn.guided = completion.guided
        streams.add(turn.index, longest, prompt_bytes[start:] + sampled.tobytes())


def sequences(trace: Trace) -> list[TokenSequence]:
    """Returns the token streams of a trace, merged where ids are an exact prefix.

    Each sampled token is trained in exactly one sequence, but those of guided turns in none: a grammar limited them to
    ids that the trace does not hold, so the policy's own logprobs of them can't be compared. Where two turns extend the
    same earlier one, both sequences hold the shared ids, and only the first trains them; `turns` lists the turns whose
    tokens a sequence trains. A stream that trains nothing is left out, and a void trace has none.

    All seats with tokens are there, frozen ones as well: who trains picks by `policy`.
    """
    if trace.void:
        return []
    extended = {turn.extends for turn in trace.turns if turn.prompt_ids is not None}
    for turn in trace.turns:
        if turn.extends is not None and turn.extends >= turn.index:
            trace.stream(turn.index)  # raises; no stream of a later turn would come here
    claimed: set[int] = set()
    found: list[TokenSequence] = []
    for leaf in trace.turns:
        if leaf.prompt_ids is None or leaf.index in extended:
            continue
        sequence = _sequence(trace, trace.stream(leaf.index), claimed)
        if sequence.turns:
            found.append(sequence)
    return found


def replay(trace: Trace) -> ArenaEnv:
    """Plays the trace's actions again and returns the env in the state that they led to.

    Raises:
        TraceError: the actions don't fit the game; names the first turn that differs.
    """
    return _replay(trace, check=False)


def verify(trace: Trace) -> None:
    """Plays the trace again and compares all that the game decides: views, causes, actions, rewards, the end.

    Raises:
        TraceError: something differs; names the first turn at which it does.
    """
    _replay(trace, check=True)


def step_dead(env: ArenaEnv) -> None:
    """Gives `None` to every seat that has ended and waits for its last step, as PettingZoo's API asks."""
    while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
        env.step(None)


def context_tokens(trace: Trace, turn: Turn) -> int | None:
    """Returns how many tokens the seat's context held after `turn`; None where no tokens are known."""
    if turn.prompt_ids is None:
        return None
    return sum(len(step.prompt_ids or ()) + len(step.completion_ids) for step in trace.stream(turn.index))


class _Streams:
    """The ids of one seat's turns as a tree: each turn under the one that it extends, with only the ids that are new.

    Kept whole, the ids of a conversation of 200 turns would take a hundred times their own size.
    """

    def __init__(self) -> None:
        self._new: dict[int, bytes] = {}
        self._after: dict[int | None, list[int]] = {None: []}

    def longest_prefix(self, prompt: bytes) -> tuple[int | None, int]:
        """Returns the turn with the most ids that `prompt` begins with, and their size in bytes; (None, 0) if none.

        Of several with the same ids it is the latest.
        """
        best, most = -1, 0
        open_ends: list[tuple[int | None, int]] = [(None, 0)]
        while open_ends:
            before, size = open_ends.pop()
            for index in self._after[before]:
                new = self._new[index]
                if prompt.startswith(new, size):
                    end = size + len(new)
                    open_ends.append((index, end))
                    if end and (end, index) > (most, best):
                        best, most = index, end
        return (best, most) if most else (None, 0)

    def add(self, index: int, extends: int | None, new: bytes) -> None:
        """Adds a turn."""
        self._new[index] = new
        self._after[extends].append(index)
        self._after[index] = []


class _News:
    """Tells which messages of a seat's view are new since its last turn."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def take(self, seat: str, epoch: int, messages: list[Message]) -> list[Message]:
        seen_epoch, count = self._seen.get(seat, (0, 0))
        self._seen[seat] = (epoch, len(messages))
        return messages[count:] if epoch == seen_epoch else messages


def _plain(action: Json) -> Json:
    """Returns the action as a file would give it back, and safe from later changes by the game."""
    if action is None or isinstance(action, str | int | float):
        return action
    return msgspec.json.decode(msgspec.json.encode(action))


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("llm-arena")
    except importlib.metadata.PackageNotFoundError:
        return ""  # run from a checkout that was not installed


def _sequence(trace: Trace, path: list[Turn], claimed: set[int]) -> TokenSequence:
    info = trace.seats[path[0].seat]
    sequence = TokenSequence(
        trace_id=trace.id,
        seat=path[0].seat,
        role=info.role,
        policy=info.policy,
        token_ids=[],
        mask=[],
        logprobs=[],
        turn_of=[],
        turns=[],
        finish=path[-1].finish,
        ending=trace.ending,
    )
    versions: list[int] = []
    for turn in path:
        prompt, sampled = turn.prompt_ids or [], turn.completion_ids
        if len(turn.logprobs) != len(sampled):
            raise TraceError(
                f"trace {trace.id}: turn {turn.index} has {len(sampled)} sampled ids and {len(turn.logprobs)} logprobs"
            )
        trained = bool(sampled) and not turn.guided and turn.index not in claimed
        sequence.token_ids += prompt + sampled
        sequence.mask += [False] * len(prompt) + [trained] * len(sampled)
        sequence.logprobs += [0.0] * len(prompt) + (turn.logprobs if trained else [0.0] * len(sampled))
        sequence.turn_of += [-1] * len(prompt) + [turn.index if trained else -1] * len(sampled)
        if trained:
            claimed.add(turn.index)
            sequence.turns.append(turn.index)
            versions += [turn.min_version, turn.max_version]
    if versions:
        sequence.min_version, sequence.max_version = min(versions), max(versions)
    return sequence


def _replay(trace: Trace, *, check: bool) -> ArenaEnv:
    try:
        env = make(trace.spec)
        env.reset(seed=trace.seed)
    except ArenaError as error:
        raise TraceError(f"trace {trace.id}: its env can't be made again: {error}") from error
    if check:
        _compare(trace, "its seats", sorted(trace.seats), sorted(env.possible_agents))
    news = _News()
    for turn in trace.turns:
        where = f"turn {turn.index} ({turn.seat})"
        try:
            step_dead(env)
            _compare(trace, f"{where}: who acts", turn.seat, None if env.over else env.agent_selection)
            if check:
                epoch = env.view_epoch(turn.seat)
                messages = news.take(turn.seat, epoch, env.observe(turn.seat)["messages"])
                _compare(trace, f"{where}: times its view was replaced", turn.view_epoch, epoch)
                _compare(trace, f"{where}: what it saw", turn.messages, messages)
            sent = context_tokens(trace, turn) if env.budget_unit == "tokens" else None
            env.step(Reply(turn.text, turn.finish, sent))
        except ArenaError as error:
            if isinstance(error, TraceError):
                raise
            raise TraceError(f"trace {trace.id}, {where}: the game refuses this turn: {error}") from error
        if check:
            _compare_step(trace, turn, env)
    if trace.void:
        return env
    if trace.ending is Ending.CONTEXT_OVERFLOW:
        env.truncate(trace.ending, trace.overflow_seat)
    step_dead(env)
    if not env.over:
        raise TraceError(f"trace {trace.id} stops after {len(trace.turns)} turns, but the game goes on")
    if check:
        _compare(trace, "the ending", trace.ending, env.ending)
        _compare(trace, "the outcome", trace.outcome, env.outcome)
        _compare(trace, "the returns", trace.returns, env.returns)
        _compare(trace, "the env's counts", trace.env_stats, env.stats)
    return env


def _compare_step(trace: Trace, turn: Turn, env: ArenaEnv) -> None:
    step = env.last_step
    assert step is not None  # a turn has just been stepped
    where = f"turn {turn.index} ({turn.seat})"
    _compare(trace, f"{where}: attempt", turn.attempt, step.attempt)
    _compare(trace, f"{where}: cause", turn.cause, step.cause)
    _compare(trace, f"{where}: action", turn.action, step.action)
    _compare(trace, f"{where}: rewards", turn.rewards, step.rewards)


def _compare(trace: Trace, what: str, recorded: Json, again: Json) -> None:
    if recorded == again:
        return
    # a trace from a file holds lists where the game may use tuples
    recorded, again = (msgspec.json.decode(msgspec.json.encode(value)) for value in (recorded, again))
    if recorded != again:
        raise TraceError(
            f"trace {trace.id}, {what}: recorded {_short(recorded)}, playing it again gives {_short(again)}"
        )


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:97]} ... {text[-97:]}"
