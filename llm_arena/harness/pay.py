"""What a harness returned, as rewards of turns and returns of seats."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from llm_arena.errors import UsageError
from llm_arena.harness.chat import ROLE
from llm_arena.types import Reply

_EVERY_ROLE = "*"

_FORMS = (
    "expected a finite number for the whole run, {role: number} for every seat of a role, {reply.call: number} for the "
    "seat of a call, the latter two in one mapping if you like, or None where no reward is known"
)


class Payable(Protocol):
    """What pay needs to know of a call."""

    index: int
    role: str
    seat: str

    @property
    def answered(self) -> bool:
        """Whether it has a turn."""


class Pay:
    """What a harness returned, as rewards of turns and returns of seats.

    A number for a run or a role is paid at the last turn of each of its seats, so that returns are sums of turns'
    rewards. What a mapping does not name is paid 0; a seat for which it says None has no return.
    """

    def __init__(self, given: object, calls: Sequence[Payable]) -> None:
        answered = [call for call in calls if call.answered]
        last = {call.seat: call.index for call in answered}
        self.by_turn: dict[int, float] = dict.fromkeys((call.index for call in answered), 0.0)
        "By number of the call."
        self.nobody: Counter[str] = Counter()
        "By role: rewards for calls that were not answered, and for roles that were not called."
        self.returns: dict[str, float] = {}
        if given is None:
            return
        unknown: set[str] = set()
        for call_or_role, amount in _amounts(given, calls):
            if isinstance(call_or_role, int):
                call = calls[call_or_role]
                places = [call.index] if call.answered else []
                role = call.role
            else:
                role = call_or_role
                places = [index for seat, index in last.items() if role in (_EVERY_ROLE, calls[index].role)]
            self.nobody[role] += not places and role != _EVERY_ROLE and amount is not None
            for index in places:
                if amount is None:
                    unknown.add(calls[index].seat)
                else:
                    self.by_turn[index] += amount
        paid: dict[str, list[float]] = {}
        for call in answered:
            if call.seat in unknown:
                self.by_turn[call.index] = 0.0
            else:
                paid.setdefault(call.seat, []).append(self.by_turn[call.index])
        self.returns = {seat: sum(amounts) for seat, amounts in paid.items()}
        if not all(map(math.isfinite, self.returns.values())):
            raise UsageError(f"the rewards that the harness returned, {_shown(given)}, add up to no finite number")
        self.nobody = +self.nobody


def _amounts(given: object, calls: Sequence[Payable]) -> list[tuple[int | str, float | None]]:
    """Returns what was given as (number of a call, or role, or `_EVERY_ROLE`; reward).

    Raises:
        UsageError: it has none of the forms that a harness may return.
    """
    if not isinstance(given, Mapping):
        return [(_EVERY_ROLE, _amount(given, given))]
    found: list[tuple[int | str, float | None]] = []
    for key, value in given.items():
        amount = None if value is None else _amount(value, given)
        if isinstance(key, Reply):
            raise UsageError(f"the harness returned rewards by reply; name a call by its number, reply.call; {_FORMS}")
        if isinstance(key, int | np.integer) and not isinstance(key, bool):
            if not 0 <= key < len(calls):
                raise UsageError(
                    f"the harness returned a reward for call {key}; it made {len(calls)}, from 0; {_FORMS}"
                )
            found.append((int(key), amount))
        elif isinstance(key, str) and ROLE.fullmatch(key):
            found.append((str(key), amount))
        else:
            raise _no_rewards(given)
    return found


def _amount(value: object, given: object) -> float:
    if not isinstance(value, numbers.Real | np.bool_):
        raise _no_rewards(given)
    try:
        amount = float(value)
    except OverflowError:
        amount = math.inf
    if not math.isfinite(amount):
        raise _no_rewards(given)
    return amount


def _no_rewards(given: object) -> UsageError:
    return UsageError(f"the harness returned {_shown(given)}; {_FORMS}")


def _shown(given: object) -> str:
    try:
        return f"{given!r:.200}"
    except ValueError:  # Python prints no integer of thousands of digits
        return f"a {type(given).__name__}"
