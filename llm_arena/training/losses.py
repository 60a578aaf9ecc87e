"""Policy losses and regularizers: pure functions, easy to test.

Every policy loss has the same arguments, so that a setting can pick one:

    logprobs    log-probability [U] of each trained token under the weights being trained, with gradient
    old         the same before the step's first update, without gradient
    behaviour   the same as recorded when the token was sampled
    advantage   [U], already broadcast from (trace, seat)
    mask        [U], 1 where the token counts, 0 where it was set aside (e.g. cut replies)
    divisor     a scalar that the sum over tokens is divided by

A divisor is a constant of the run or the number of trained tokens of the whole batch. Both leave the gradient alone
when one merged sequence is stored as two; a mean per sequence would not, and it favours short winners and long
losers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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


def ppo_clip(
    logprobs: Tensor,
    old: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    mask: Tensor,
    divisor: float,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """Returns `-sum(mask * min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)) / divisor`, A the advantage.

    `ratio` is `exp(logprobs - old)` of each token. A token has no gradient where its ratio has already gone beyond the
    bound in the direction that the advantage pulls (arXiv:1707.06347, equation 7; two bounds as in arXiv:2503.14476).
    In the first update of a step every ratio is 1, and the gradient is that of `reinforce`. `behaviour` has no part.
    """
    ratio = torch.exp(masked(logprobs - old, mask))
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -(masked(torch.minimum(ratio * advantage, clipped * advantage), mask)).sum() / divisor


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


def _reinforce(clip_low: float, clip_high: float) -> PolicyLoss:
    return reinforce


def _ppo_clip(clip_low: float, clip_high: float) -> PolicyLoss:
    return partial(ppo_clip, clip_low=clip_low, clip_high=clip_high)


LOSSES: dict[str, Callable[[float, float], PolicyLoss]] = {"reinforce": _reinforce, "ppo_clip": _ppo_clip}
"""Makes the loss of a name from `clip_low` and `clip_high`, which losses without a clip leave aside."""
