"""Stored runs, scored again by a user's own function.

Outcomes, scores and the rewards of single turns stay what the game said: a rule applied later changes returns alone.
"""

from __future__ import annotations

import inspect
import math
import numbers
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO, Any

import msgspec
import numpy as np

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.named import load_function
from llm_arena.trace_file import decode, encode, read_traces, written_whole
from llm_arena.types import Trace

Reward = Callable[..., Any]
"""From a trace, or from the list `traces` of one group, to rewards; see `rescore_traces`."""

MOST_REWARD = 1e30
"""Largest size of a reward. It is learned from in 32 bits, whose numbers end at 3.4e38; a larger one is a mistake."""

_FORMS = "a number for every seat, {seat: number}, {role: number}, or None where no reward is known"


@dataclass
class RoleReturns:
    """The returns of one role, before and after. A seat without a return has an unknown one, which is never 0."""

    seats: int = 0
    "Seats of this role in all traces that are not void."
    known_before: int = 0
    known_after: int = 0
    sum_before: float = 0.0
    sum_after: float = 0.0

    @property
    def mean_before(self) -> float:
        """Mean of the known returns as recorded; NaN if there are none."""
        return self.sum_before / self.known_before if self.known_before else math.nan

    @property
    def mean_after(self) -> float:
        """Mean of the known returns by the new reward; NaN if there are none."""
        return self.sum_after / self.known_after if self.known_after else math.nan

    def count(self, before: float | None, after: float | None) -> None:
        """Counts one seat of one trace."""
        self.seats += 1
        if before is not None:
            self.known_before += 1
            self.sum_before += before
        if after is not None:
            self.known_after += 1
            self.sum_after += after


@dataclass
class Rescored:
    """What `rescore_traces` did."""

    traces: int = 0
    void: int = 0
    "Void traces, which are kept as they are."
    incomplete: int = 0
    "Traces that are not void, but in a group with one that is: their returns are unknown."
    roles: dict[str, RoleReturns] = field(default_factory=dict)


def rescore_traces(
    traces: str | os.PathLike[str],
    reward: str | Reward,
    out: str | os.PathLike[str] | None = None,
    *,
    on_bytes: Callable[[int], object] | None = None,
) -> Rescored:
    """Scores the traces of a file again, one at a time, and writes them with their new returns.

    Args:
        traces: the file.
        reward: a function, or `module:function`. It gets a trace and returns a number (for every seat), {seat: number},
            {role: number} (a seat's own entry goes before its role's), or None; a seat that is not named, or with None,
            has no return: it is unknown, and trains nothing. A function whose parameter is named `traces` gets all
            traces of a group and returns a list of these, or of pairs (reward, metrics) as a game's `group_reward`
            does; groups with a void trace are not scored, because fewer contestants are another contest. A trace
            without a group is one of its own. It gets copies: what it changes in them is not written.
        out: a new file for the traces, in their order; it is there whole or not at all. None: only count.
        on_bytes: told the size of each line that was read. A file is read twice for a reward over groups.

    Raises:
        UsageError: the function can't be found, raised, or returned something else; names the trace. Or it scores
            groups, and one holds two traces of one id, which are of two runs: nobody could tell who met whom.
        TraceError: the file can't be read, or `out` exists or can't be written.
    """
    name = reward if isinstance(reward, str) else getattr(reward, "__name__", repr(reward))
    function = load_function("reward", reward, "my_rewards:short_answers") if isinstance(reward, str) else reward
    grouped = takes_groups(function)
    summary = Rescored()
    with ExitStack() as stack:
        # before anything is scored: a name that is taken should not cost the work
        file: IO[bytes] | None = None
        if out is not None:
            file = stack.enter_context(open(stack.enter_context(written_whole(out)), "wb"))
        scored = _by_group(traces, function, name, on_bytes) if grouped else _by_trace(traces, function, name, on_bytes)
        for trace, returns, incomplete in scored:
            _count(summary, trace, returns)
            summary.incomplete += incomplete
            if file is not None:
                file.write(encode(trace if returns is None else msgspec.structs.replace(trace, returns=returns)))
    return summary


def takes_groups(reward: str | Reward) -> bool:
    """Returns whether a reward scores whole groups: its first parameter is named `traces`.

    Raises:
        UsageError: there is no such function.
    """
    function = load_function("reward", reward, "my_rewards:short_answers") if isinstance(reward, str) else reward
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return names[:1] == ["traces"]


_Scored = Iterator[tuple[Trace, dict[str, float] | None, bool]]
"""Traces in the order of the file, with their new returns (None: void), and whether their group was not scored."""


def _by_trace(path: str | os.PathLike[str], function: Reward, name: str, on_bytes: Any) -> _Scored:
    for trace in read_traces(path, on_bytes):
        if trace.void:
            yield trace, None, False
            continue
        where = f"trace {trace.id}"
        yield trace, read_returns(trace, _ask(function, _copy(trace), name, where), name, where), False


def _by_group(path: str | os.PathLike[str], function: Reward, name: str, on_bytes: Any) -> _Scored:
    """Holds the traces of a group until the last of them was read, and those behind it until it is their turn."""
    if not os.path.isfile(path):
        raise UsageError(f"{os.fspath(path)} is no ordinary file, which a reward over groups has to read twice")
    missing: Counter[str] = Counter()
    seen: set[tuple[str, str]] = set()
    for trace in read_traces(path, on_bytes):
        if not trace.group:
            continue
        if (trace.group, trace.id) in seen:
            raise UsageError(
                f"{os.fspath(path)} has trace {trace.id} of group {trace.group} twice, as a file of two runs has: "
                "score each run's traces by themselves, or by a reward whose parameter is one trace"
            )
        seen.add((trace.group, trace.id))
        missing[trace.group] += 1
    seen.clear()
    waiting: deque[tuple[str | int, Trace]] = deque()
    members: dict[str, list[Trace]] = {}
    done: dict[str | int, Iterator[tuple[dict[str, float] | None, bool]]] = {}
    for place, trace in enumerate(read_traces(path, on_bytes)):
        group = trace.group
        waiting.append((group or place, trace))  # without a group it is its own; its id may be that of another, too
        if not group:
            done[place] = iter(_score_group([trace], function, name))
        else:
            members.setdefault(group, []).append(trace)
            missing[group] -= 1
            if not missing[group]:
                done[group] = iter(_score_group(members.pop(group), function, name))
        while waiting and waiting[0][0] in done:
            key, first = waiting.popleft()
            yield first, *next(done[key])
            if isinstance(key, int):
                del done[key]


def _score_group(traces: list[Trace], function: Reward, name: str) -> list[tuple[dict[str, float] | None, bool]]:
    if any(trace.void for trace in traces):
        return [(None if trace.void else {}, not trace.void) for trace in traces]
    return [(returns, False) for returns, _ in ask_group(traces, function, name, [_copy(trace) for trace in traces])]


def ask_group(
    traces: Sequence[Trace], function: Reward, name: str, given: list[Trace], *, nan_is_unknown: bool = False
) -> list[tuple[dict[str, float], Mapping[str, Any]]]:
    """Returns what a reward over groups says of each trace: the known returns by seat, and its metrics, unread.

    Args:
        traces: of one group.
        function: the reward.
        name: its name, for errors.
        given: copies of the traces, which it may change.
        nan_is_unknown: whether a NaN stands for a reward that is not known, as None does, or is an error.

    Raises:
        UsageError: it raised, or returned something else than a reward for each trace.
    """
    where = f"group {traces[0].group or traces[0].id}"
    order = list(map(id, given))
    results = _ask(function, given, name, where)
    if not isinstance(results, Iterable) or isinstance(results, str | Mapping):
        raise UsageError(f"{name} returned {shown(results)} for {where}; expected one reward for each of its traces")
    try:
        results = list(results)
    except Exception as error:  # a generator runs only now
        raise _failed(name, where, error) from error
    if list(map(id, given)) != order:  # then nobody knows which reward is whose
        raise UsageError(f"{name} sorted or changed its list of traces; let it work on a copy, sorted(traces, ...)")
    if len(results) != len(traces):
        raise UsageError(f"{name} returned {len(results)} rewards for the {len(traces)} traces of {where}")
    found = []
    for trace, result in zip(traces, results, strict=True):
        reward, metrics = result if _is_pair(result) else (result, {})
        said = f"trace {trace.id} of {where}" if trace.group else f"trace {trace.id}"
        found.append((read_returns(trace, reward, name, said, nan_is_unknown=nan_is_unknown), metrics))
    return found


def _copy(trace: Trace) -> Trace:
    """Returns a copy that somebody else's code may change; made by JSON, which is faster than `copy.deepcopy`."""
    return decode(encode(trace))


def _ask(function: Reward, argument: Trace | list[Trace], name: str, where: str) -> Any:
    try:
        result = function(argument)
    except Exception as error:  # a reward is somebody else's code
        raise _failed(name, where, error) from error
    if inspect.iscoroutine(result):
        result.close()
        raise UsageError(f"{name} is an async function; a reward is a plain one")
    return result


def _failed(name: str, where: str, error: Exception) -> UsageError:
    return UsageError(
        f"{name} failed for {where}: {type(error).__name__}: {error}; where it knows no reward, let it return None"
    )


def read_returns(trace: Trace, result: Any, name: str, where: str, *, nan_is_unknown: bool = False) -> dict[str, float]:
    """Returns the known returns by seat that a reward's result for a trace means.

    Raises:
        UsageError: it is no reward; the error shows it.
    """
    if isinstance(result, Mapping):
        known = {*trace.seats, *(info.role for info in trace.seats.values())}
        for key in result:
            if key not in known:
                raise UsageError(
                    f"{name} rewards {key!r:.80} in {where}.{did_you_mean(str(key), known)} Its seats and roles: "
                    f"{', '.join(sorted(known))}"
                )
        rewards = {seat: result.get(seat, result.get(info.role)) for seat, info in trace.seats.items()}
    else:
        rewards = dict.fromkeys(trace.seats, result)
    known_rewards: dict[str, float] = {}
    for seat, value in rewards.items():
        if value is None:
            continue
        try:
            number = float(value) if isinstance(value, numbers.Real | np.bool_) else math.nan
        except OverflowError:
            number = math.inf
        if nan_is_unknown and isinstance(value, numbers.Real) and math.isnan(number):
            continue
        if not math.isfinite(number):
            raise UsageError(f"{name} returned {shown(result)} for {where}; expected a finite number each: {_FORMS}")
        if abs(number) > MOST_REWARD:
            raise UsageError(
                f"{name} returned {shown(result)} for {where}; a reward's size is at most {MOST_REWARD:g}: scale it"
            )
        known_rewards[seat] = number
    return known_rewards


def shown(result: Any) -> str:
    """Returns the beginning of what somebody else's code returned, for an error."""
    try:
        return f"{result!r:.80}"
    except ValueError:  # Python prints no integer of thousands of digits
        return f"a {type(result).__name__}"


def _count(summary: Rescored, trace: Trace, returns: dict[str, float] | None) -> None:
    summary.traces += 1
    if returns is None:
        summary.void += 1
        return
    for seat, info in trace.seats.items():
        summary.roles.setdefault(info.role, RoleReturns()).count(trace.returns.get(seat), returns.get(seat))


def _is_pair(result: Any) -> bool:
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)


__all__ = [
    "MOST_REWARD",
    "Rescored",
    "RoleReturns",
    "ask_group",
    "read_returns",
    "rescore_traces",
    "shown",
    "takes_groups",
]
