"""The library's whole path from traces to a gradient, as a run takes it, and wrong turns on the way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from enumerable_parts import flat
from llm_arena.training import batch as batches
from llm_arena.training import credit
from llm_arena.training.batch import TrainSequence
from llm_arena.training.credit import Baselines, Credit
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepSettings
from llm_arena.types import SeatInfo, Trace

Change = Callable[[list[TrainSequence]], list[TrainSequence]]


def credited(
    traces: Sequence[Trace],
    policies: Collection[str],
    *,
    estimator: str = "none",
    by: str = "seat",
    baselines: Baselines | None = None,
    token_rewards: Any = None,
    group_reward: Any = None,
) -> Credit:
    """Advantages of all seats that are trained."""
    return credit.assign(
        traces,
        by=by,  # type: ignore[arg-type]
        estimator=estimator,  # type: ignore[arg-type]
        baselines=baselines or Baselines(),
        learners=lambda trace: [seat for seat, info in trace.seats.items() if info.policy in policies],
        token_rewards=token_rewards,
        group_reward=group_reward,
    )


def descent(
    learner: Learner,
    traces: Sequence[Trace],
    gained: Credit,
    policy: str,
    settings: StepSettings,
    *,
    change: Change | None = None,
) -> Tensor:
    """The direction in which one step moves the weights of a policy: minus the gradient of the loss."""
    sequences = train_sequences(traces, gained, policy=policy)
    if change is not None:
        sequences = change(sequences)
    learner.model.zero_grad(set_to_none=True)
    batch = batches.build(sequences, dtype=torch.float64)
    learner.accumulate(learner.prepare(batch, settings), settings)
    own = list(learner.model.parameters())
    return -flat([torch.zeros_like(one) if one.grad is None else one.grad for one in own])


def plain(divisor: float = 1.0, **more: Any) -> StepSettings:
    return StepSettings(lr=0.0, divisor=divisor, **more)


def scaled(traces: Sequence[Trace], by: Sequence[float] | NDArray[Any]) -> list[Trace]:
    """The traces with all returns multiplied: the sum over all episodes is then the expectation over episodes."""
    return [
        msgspec.structs.replace(trace, returns={seat: paid * float(factor) for seat, paid in trace.returns.items()})
        for trace, factor in zip(traces, by, strict=True)
    ]


def renamed(trace: Trace, name: str, group: str = "") -> Trace:
    return msgspec.structs.replace(trace, id=name, group=group or name)


def as_policy(trace: Trace, seat: str, policy: str) -> Trace:
    """The trace with another policy in a seat, as if it had been the one that sampled there."""
    info = trace.seats[seat]
    seats = {**trace.seats, seat: SeatInfo(role=info.role, agent=info.agent, policy=policy)}
    return msgspec.structs.replace(trace, seats=seats)


def apart(left: Tensor, right: Tensor) -> float:
    """Euclidean distance by the length of `right`."""
    return float((left - right).norm() / right.norm())


DIRECTIONS = 12


def directions(exact: Tensor, seed: int) -> NDArray[np.float64]:
    """Unit vectors [12, parameters]: the gradient itself, the five largest coordinates, and six at random."""
    size = len(exact)
    rng = np.random.default_rng([seed, 99])
    own = exact.numpy()
    largest = np.eye(size)[np.argsort(-np.abs(own))[:5]]
    random = rng.normal(size=(DIRECTIONS - 6, size))
    found = np.concatenate([own[None] / np.linalg.norm(own), largest, random])
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def p_values(samples: Sequence[Tensor], exact: Tensor, seed: int) -> NDArray[np.float64]:
    """Two-sided p-value per direction that the mean of independent samples is the exact gradient (Student's t)."""
    axes = directions(exact, seed)
    values = axes @ np.stack([sample.numpy() for sample in samples]).T
    count = values.shape[1]
    error = values.std(axis=1, ddof=1) / np.sqrt(count)
    z = (values.mean(axis=1) - axes @ exact.numpy()) / np.maximum(error, 1e-300)
    return np.asarray(2 * stats.t.sf(np.abs(z), count - 1))
