"""Policy losses and regularizers: pure functions, easy to test.

Every policy loss has the same arguments, so that a setting can pick one:

    logprobs    log-probability [U] of each trained token under the weights being trained, with gradient
    old         the same before the update, without gradient
    behaviour   the same as recorded when the token was sampled
    advantage   [U], already broadcast from (trace, seat)
    mask        [U], 1 where the token counts, 0 where it was set aside (e.g. cut replies)
    divisor     a scalar that the sum over tokens is divided by

A divisor is a constant of the run or the number of trained tokens of the whole batch. Both leave the gradient alone
when one merged sequence is stored as two; a mean per sequence would not, and it favours short winners and long
losers.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class PolicyLoss(Protocol):
    """The signature that all policy losses share."""

    def __call__(
        self, logprobs: Tensor, old: Tensor, behaviour: Tensor, advantage: Tensor, mask: Tensor, divisor: float
    ) -> Tensor:
        """Returns the loss, a scalar."""
        ...


def reinforce(
    logprobs: Tensor, old: Tensor, behaviour: Tensor, advantage: Tensor, mask: Tensor, divisor: float
) -> Tensor:
    """Returns `-sum(mask * advantage * logprobs) / divisor`, the trace policy gradient on fresh samples.

    `old` and `behaviour` have no part in it: on fresh samples both ratios are 1.
    """
    return -(masked(logprobs * advantage, mask)).sum() / divisor


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Returns `values` with exact zeros where `mask` is 0, whatever stands there (a NaN times 0 would stay NaN)."""
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def entropy(logprobs: Tensor) -> Tensor:
    """Returns the entropy [P] in nats of each row of full log-probabilities [P, V]."""
    return -(logprobs.exp() * logprobs).sum(-1)


def kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Returns KL(policy || reference) [P] in nats of each row of full log-probabilities [P, V].

    The sum runs over the whole vocabulary, so value and gradient at a position are exact. The usual estimates from the
    one sampled token (k2 in the loss has this gradient in expectation, arXiv:2512.21852) carry sampling noise that
    grows with the weight; the head's output for these positions is at hand anyway.
    """
    return (logprobs.exp() * (logprobs - reference)).sum(-1)


def token_divisor(mask: Tensor) -> float:
    """Returns the number of tokens that count, at least 1, so that a batch with nothing to train has loss 0."""
    return max(float(mask.sum()), 1.0)


def shifted(values: Tensor) -> Tensor:
    """Returns per-token values [..., L] as targets [..., L - 1] of the predictions made one position earlier.

    The logits at position j predict token j + 1. This is the one place where that shift is made for dense tensors.

    >>> shifted(torch.tensor([10, 11, 12]))
    tensor([11, 12])
    """
    return values[..., 1:]


LOSSES: dict[str, PolicyLoss] = {"reinforce": reinforce}
