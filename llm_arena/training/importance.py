"""Sums over whole turns and traces, and the weights that correct for tokens sampled by other probabilities.

A token was sampled with log-probability mu, as the engine recorded it, and the learner's weights give it `old`. They
differ because the engine computes in another precision, or because it sampled with older weights: one ratio
`v = exp(old - mu)` covers both, for `old` is of the weights at the start of the step. Losses compare the weights in
training with `old`, so weight times loss is the decoupled objective of arXiv:2110.00641.

    truncate    min(v, cap)                     bounded, biased by what is cut  (fengyao.notion.site/off-policy-rl)
    mask        v where v <= cap, else 0        drops what the engine hardly ever samples  (MIS in huggingface/trl)
    unit        token: v of each token; turn, trace: the product over the turn's completion, or over all tokens of the
                policy in the trace, for each of its tokens

The weight of a token leaves the states before it as they were sampled; that of a whole trace is exact without a cap,
and varies a lot. Weights are constants: no gradient goes through them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Correction = Literal["none", "truncate", "mask"]
Unit = Literal["token", "turn", "trace"]


@dataclass(frozen=True, kw_only=True)
class Importance:
    """How tokens are weighted."""

    how: Correction = "none"
    cap: float = 2.0
    unit: Unit = "token"


def unit_sums(values: Tensor, unit: Tensor) -> Tensor:
    """Returns for each of `values` [N] the sum over its unit [N]; units are numbered from 0.

    >>> unit_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
    tensor([5., 2., 5.])
    """
    if not len(values):
        return values
    sums = torch.zeros(int(unit.max()) + 1, dtype=values.dtype, device=values.device)
    return sums.index_add_(0, unit, values)[unit]


def unit_means(values: Tensor, unit: Tensor) -> Tensor:
    """Returns for each of `values` [N] the mean over its unit [N]; units are numbered from 0.

    >>> unit_means(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 1, 0]))
    tensor([2.5000, 2.0000, 2.5000])
    """
    return unit_sums(values, unit) / unit_sums(torch.ones_like(values), unit)


def later_sums(values: Tensor, turn: Tensor, seat: Tensor) -> Tensor:
    """Returns for each of `values` [N] the sum over its seat [N] in one trace, from this token on.

    For a cost of each token, as `k1` is one, this is its reward-to-go: what a token costs does not depend on tokens
    sampled after it, so costs paid earlier leave the mean gradient alone and only add noise. What remains is unbiased
    for the seat's summed cost.

    Args:
        values: in the order of the table of tokens, which is that of sampling within a turn.
        turn: number of each token's turn; later turns of a seat have higher numbers.
        seat: number of each token's (trace, seat).

    >>> later_sums(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 0, 1]), torch.tensor([0, 0, 0]))
    tensor([5., 7., 4.])
    """
    by_time = torch.argsort(turn, stable=True)
    order = by_time[torch.argsort(seat[by_time], stable=True)]  # seat by seat, each in the order of sampling
    wide = values.to(torch.float64)[order]  # differences of sums over the whole batch
    earlier = wide.cumsum(0) - wide
    begins = torch.ones_like(order, dtype=torch.bool)
    begins[1:] = seat[order][1:] != seat[order][:-1]
    start = torch.where(begins, torch.arange(len(order), device=order.device), 0).cummax(0).values
    found = torch.empty_like(values)
    found[order] = (unit_sums(wide, seat[order]) - (earlier - earlier[start])).to(values.dtype)
    return found


def ratios(old: Tensor, behaviour: Tensor, unit: Tensor | None = None) -> Tensor:
    """Returns v [N] of each token, or of its unit: the product, `exp` of the summed differences. Without gradient."""
    difference = (old - behaviour).detach()
    return torch.exp(difference if unit is None else unit_sums(difference, unit))


def weights(ratio: Tensor, settings: Importance) -> Tensor:
    """Returns the weight [N] of each token from its unit's ratio.

    `truncate` keeps a ratio that is not a number, so that the step is refused and not distorted; `mask` sets such a
    token aside.
    """
    match settings.how:
        case "truncate":
            return ratio.clamp(max=settings.cap)
        case "mask":
            return torch.where(ratio <= settings.cap, ratio, torch.zeros_like(ratio))
        case _:
            return torch.ones_like(ratio)


def beyond(ratio: Tensor, settings: Importance) -> int:
    """Returns how many tokens have a ratio above the cap, or one that is not a number."""
    return 0 if settings.how == "none" else int((~(ratio <= settings.cap)).sum())


def effective_share(total: float, squares: float, count: int) -> float:
    """Returns the effective sample size of weights by their number, in [0, 1]: `total ** 2 / (count * squares)`.

    Kish's formula (Survey Sampling, 1965). 1 for equal weights, 0 if all are 0.

    >>> effective_share(total=3.0, squares=5.0, count=2)
    0.9
    """
    return total**2 / (count * squares) if squares else 0.0
