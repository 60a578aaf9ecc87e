"""Rewards and masks by token, from a game, a harness or a function of the user.

The function gets a copy of a finished trace and returns what it has to say, by the index of the turn:

    def token_rewards(trace):
        return {3: {"rewards": [0.0, 0.0, -0.5], "trained": [True, True, False]}}

Turn 3 sampled three tokens. Its `rewards` are added to what its seat is paid; tokens whose `trained` is False get no
loss and leave a divisor that counts tokens, turns or traces. Either key, and every turn, may be left out. A turn's
tokens are `completion_ids` of `trace.turns[3]`.

A reward belongs to the last token that it depends on. The advantage of a token holds the rewards at it and after it,
not those before (reward-to-go), which is right because a token can't change what was earned before it. A function that
pays an early token for what came later takes that reward out of the tokens that earned it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from llm_arena.errors import UsageError
from llm_arena.named import load_function
from llm_arena.rescore import shown
from llm_arena.types import Trace


class TurnTokens(TypedDict, total=False):
    """What a function says of one turn, T tokens long."""

    rewards: Sequence[float]
    "[T] finite numbers."
    trained: Sequence[bool]
    "[T] whether the token may be trained."


TokenRewards = Callable[[Trace], Mapping[int, TurnTokens]]

_FORM = 'expected is {turn index: {"rewards": [...], "trained": [...]}}'


@dataclass(frozen=True, kw_only=True)
class TurnSignal:
    """The same, checked and filled in."""

    rewards: NDArray[np.float64]
    trained: NDArray[np.bool_]


def load(name: str) -> TokenRewards:
    """Returns the function that `module:function` names.

    Raises:
        UsageError: there is none.
    """
    return load_function("token_rewards", name, "my_rewards:per_token")


def read(function: TokenRewards, trace: Trace) -> dict[int, TurnSignal]:
    """Returns what `function` says of the turns of a trace, by the turn's index.

    Raises:
        UsageError: it raised, returned another form, named a turn that is not there, or one value too few or too many.
    """
    given = copy.deepcopy(trace)  # so that what it does to it changes nothing
    try:
        said: Any = function(given)
    except Exception as error:  # it is somebody else's code
        raise UsageError(
            f"token_rewards failed for trace {trace.id}: {type(error).__name__}: {error}; where it has nothing to say, "
            "let it return {}"
        ) from error
    if inspect.iscoroutine(said):
        said.close()
        raise UsageError("token_rewards is an async function; it has to be a plain one")
    if not isinstance(said, Mapping):
        raise UsageError(f"token_rewards returned {shown(said)} for trace {trace.id}; {_FORM}")
    return dict(_signal(trace, index, value) for index, value in said.items())


def _signal(trace: Trace, index: Any, value: Any) -> tuple[int, TurnSignal]:
    where = f"token_rewards, trace {trace.id}, turn {shown(index)}"
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or not 0 <= index < len(trace.turns):
        raise UsageError(f"{where}: the trace has turns 0 to {len(trace.turns) - 1}; {_FORM}")
    if not isinstance(value, Mapping) or not set(value) <= {"rewards", "trained"}:
        raise UsageError(f"{where}: got {shown(value)}; {_FORM}")
    sampled = len(trace.turns[index].completion_ids)
    for name, given in value.items():
        if not hasattr(given, "__len__"):
            raise UsageError(f"{where}: got {shown(given)} for {name!r}; expected is a list of {sampled}")
        if len(given) != sampled:
            raise UsageError(f"{where}: {len(given)} values in {name!r}, but the turn sampled {sampled} tokens")
    rewards = _numbers(value.get("rewards", [0.0] * sampled), sampled)
    if not np.isfinite(rewards).all():
        raise UsageError(f"{where}: rewards must be finite numbers, got {shown(value['rewards'])}")
    trained = _numbers(value.get("trained", [True] * sampled), sampled)
    if not np.isin(trained, (0, 1)).all():
        raise UsageError(f"{where}: trained must be True or False for each token, got {shown(value['trained'])}")
    return int(index), TurnSignal(rewards=rewards, trained=trained == 1)


def _numbers(given: Any, count: int) -> NDArray[np.float64]:
    """Returns [count] numbers, all NaN if what was given is of another shape, or no real numbers.

    Text numpy would read, and of complex numbers it would drop a part.
    """
    unknown = np.full(count, np.nan)
    try:
        found = np.array(given)
        numbers = unknown if found.dtype.kind in "USc" else found.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        return unknown
    return numbers if numbers.shape == (count,) else unknown


def earned(trace: Trace, signals: Mapping[int, TurnSignal], seat: str | None = None) -> float:
    """Returns the sum of the token rewards of a seat in a trace, or of all seats."""
    return float(sum(signals[at].rewards.sum() for at in signals if seat in (None, trace.turns[at].seat)))


def earned_before(
    trace: Trace, signals: Mapping[int, TurnSignal], seat: str | None = None
) -> dict[int, NDArray[np.float64]]:
    """Returns for each token [T] of each turn what was earned before it, by a seat or by all, by the turn's index.

    Worked example: turns 0 and 2 are one seat's, with rewards `[1, 2]` and `[4, 8]`: `{0: [0, 1], 2: [3, 7]}`.
    """
    found: dict[int, NDArray[np.float64]] = {}
    total = 0.0
    for turn in trace.turns:
        if seat is not None and turn.seat != seat:
            continue
        signal = signals.get(turn.index)
        rewards = np.zeros(len(turn.completion_ids)) if signal is None else signal.rewards
        through = total + np.cumsum(rewards)
        found[turn.index] = through - rewards
        total = float(through[-1]) if len(through) else total
    return found
