"""How old the tokens of a batch are, and which of them are left out of the loss for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from llm_arena.training.credit import Credit
from llm_arena.training.tasks import is_trained
from llm_arena.training.token_rewards import TurnSignal
from llm_arena.types import Trace, Turn


def mask_stale(traces: Sequence[Trace], gained: Credit, oldest: int, policy: str | None = None) -> int:
    """Keeps tokens that were sampled with weights of before version `oldest` from being trained; returns how many.

    Batches are played in such a way that there are none; an agent with an engine of its own may still bring some.

    Args:
        traces: of the step.
        gained: what they were credited with; gets the masks.
        oldest: a version of the policy.
        policy: whose tokens. None: those of all trained policies.
    """
    return _mask(traces, gained, policy, lambda turn: turn.min_version < oldest)


def mask_idle(traces: Sequence[Trace], gained: Credit, policy: str) -> None:
    """Keeps all tokens of a policy from being trained in this step, because it is the turn of others to learn."""
    _mask(traces, gained, policy, lambda turn: True)


def _mask(traces: Sequence[Trace], gained: Credit, policy: str | None, left_out: Callable[[Turn], bool]) -> int:
    found = [
        (trace, turn)
        for trace in traces
        if not trace.void
        for turn in trace.turns
        if turn.completion_ids and left_out(turn) and _is_held_by(trace.seats[turn.seat].policy, policy)
    ]
    for trace in traces if found else ():
        gained.signals.setdefault(trace.id, {})
    for trace, turn in found:
        signals, size = gained.signals[trace.id], len(turn.completion_ids)
        rewards = signals[turn.index].rewards if turn.index in signals else np.zeros(size)
        signals[turn.index] = TurnSignal(rewards=rewards, trained=np.zeros(size, dtype=np.bool_))
    return sum(len(turn.completion_ids) for _, turn in found)


def _is_held_by(held: str | None, policy: str | None) -> bool:
    return is_trained(held) if policy is None else held == policy


def staleness(traces: Sequence[Trace], step: int, age: Callable[[str, int], int] | None = None) -> tuple[float, int]:
    """Returns by how many updates the tokens of a batch are older than the learner's weights: mean, largest.

    Of all tokens that trained policies sampled without a grammar, also those that are masked, cut or too old to be
    trained. A turn whose tokens span several versions counts as old as the oldest.

    Args:
        traces: of the batch.
        step: how many steps were made before.
        age: from a policy and a version to the updates that the policy made since. None: it learned in every step.
    """
    ages: list[tuple[int, int]] = []
    for trace in traces:
        for turn in trace.turns if not trace.void else ():
            policy = trace.seats[turn.seat].policy
            if turn.completion_ids and not turn.guided and policy is not None and is_trained(policy):
                behind = step - turn.min_version if age is None else age(policy, turn.min_version)
                ages.append((behind, len(turn.completion_ids)))
    tokens = sum(count for _, count in ages)
    mean = sum(behind * count for behind, count in ages) / max(tokens, 1)
    return mean, max((behind for behind, _ in ages), default=0)
