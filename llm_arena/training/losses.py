"""Policy losses and regularizers: pure functions, easy to test.

Every policy loss has the same arguments, so that a setting can pick one from `LOSSES`:

    logprobs    log-probability l [U] of each trained token under the weights being trained, with gradient
    old         the same before the step's first update, without gradient
    behaviour   the same as recorded when the token was sampled
    advantage   A [U], already broadcast from (trace, seat), times the importance weight where there is one
    mask        [U], 1 where the token counts, 0 where it was set aside (e.g. cut replies)
    divisor     a scalar that the sum over tokens is divided by

With `ratio = exp(logprobs - old)` of each token, the losses are, before the sum over tokens and the division,

    reinforce           -A l
    ppo_clip, dr_grpo   -min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A)
    dapo                the same with a higher upper bound
    gspo                the same with the geometric mean ratio of the token's turn or trace
    cispo               -sg(min(ratio, 1 + clip_high)) A l;   sg: taken as a constant

In the first update of a step every ratio is 1, and all have the gradient of `reinforce` when they share a divisor. They
differ by their own divisors (`LOSSES`), and in later updates.

A divisor is a constant of the run, the number of trained tokens of the whole batch, or a mean by turn or trace: each of
these leaves the gradient alone when one merged sequence is stored as two. A mean per stored sequence would not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

PolicyLoss = Callable[..., Tensor]
"""A function of the six arguments above, in their order, that returns a scalar. `gspo` takes `log_ratio` as well."""

MOST_LOG_RATIO = 60.0
"""Its `exp` is beyond every clip, and a number in 32 bits."""
OwnDivisor = Literal["constant", "tokens", "units"]


def reinforce(
    logprobs: Tensor, old: Tensor, behaviour: Tensor, advantage: Tensor, mask: Tensor, divisor: float
) -> Tensor:
    """Returns `-sum(mask * advantage * logprobs) / divisor`, the trace policy gradient on fresh samples.

    `old` and `behaviour` have no part in it: on fresh samples both ratios are 1 (Williams 1992,
    doi:10.1007/BF00992696).
    """
    return -(masked(logprobs * masked(advantage, mask), mask)).sum() / divisor


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
    log_ratio, advantage = masked(logprobs - old, mask), masked(advantage, mask)
    # Without an advantage to rise, a ratio that overflows would have the gradient 0 * inf, where it has none.
    ratio = torch.exp(torch.where(advantage < 0, log_ratio, log_ratio.clamp(max=MOST_LOG_RATIO)))
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -(masked(torch.minimum(ratio * advantage, clipped * advantage), mask)).sum() / divisor


dr_grpo: PolicyLoss = ppo_clip
"""What Dr. GRPO changes are the divisor, a constant, and the advantage, `group_mean`.

arXiv:2503.20783, equation 3 and appendix; sail-sg/understand-r1-zero. There the constant is the group's size times the
token cap, here the planned number of trained seats: another unit of the learning rate, which AdamW takes out.
"""

dapo: PolicyLoss = partial(ppo_clip, clip_high=0.28)
"""`ppo_clip` with a higher upper bound, so that improbable tokens can rise (arXiv:2503.14476, equation 8).

Its divisor is the number of trained tokens of the whole batch. Of the paper's other parts, groups with equal rewards
have no gradient and are counted, but not refilled; `ignore_truncated` masks cut replies. Repository:
BytedTsinghua-SIA/DAPO.
"""


def gspo(
    logprobs: Tensor,
    old: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    mask: Tensor,
    divisor: float,
    *,
    log_ratio: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> Tensor:
    """Returns `ppo_clip` with one ratio for all tokens of a unit, `s = exp(mean over the unit of logprobs - old)`.

    `log_ratio` [U] is that mean for the unit of each token, without gradient (`importance.unit_means`).

    arXiv:2507.18071, in the form of its equation 14 (GSPO-token): token t has the ratio `sg(s) * exp(l_t - sg(l_t))`,
    whose value is s and whose gradient is that of its own log-probability. So a unit may lie in several calls, and
    summed over its tokens the gradient is T times that of the paper's `min(s A, clip(s) A)` for a unit of T tokens; the
    divisor `turns` or `traces`, which is its own, divides by T. The unit is a turn's completion or all tokens of the
    policy in a trace, by name: how sequences are stored plays no part.
    """
    moved = masked(logprobs.detach() - log_ratio, mask)
    return ppo_clip(logprobs, moved, behaviour, advantage, mask, divisor, clip_low=clip_low, clip_high=clip_high)


def cispo(
    logprobs: Tensor,
    old: Tensor,
    behaviour: Tensor,
    advantage: Tensor,
    mask: Tensor,
    divisor: float,
    *,
    clip_low: float | None = None,
    clip_high: float = 4.0,
) -> Tensor:
    """Returns `-sum(mask * sg(min(ratio, 1 + clip_high)) * advantage * logprobs) / divisor`.

    The bounded ratio is a constant weight, so that every token keeps a gradient, also beyond the bound
    (arXiv:2506.13585, equations 4 and 5). The paper sets no lower bound, `clip_low=None`, and tells no upper one; a
    ratio of at most 5 is what arXiv:2510.13786 and huggingface/trl use.
    """
    ratio = torch.exp(masked(logprobs.detach() - old, mask))
    weight = ratio.clamp(0.0 if clip_low is None else 1 - clip_low, 1 + clip_high)
    return -(masked(weight * masked(advantage, mask) * logprobs, mask)).sum() / divisor


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Returns `values` with exact zeros where `mask` is 0, whatever stands there (a NaN times 0 would stay NaN).

    A factor of what is differentiated needs a mask of its own: the gradient that the mask of a product passes back is
    0, but times that factor.
    """
    return torch.where(mask.bool(), values, torch.zeros((), dtype=values.dtype, device=values.device))


def entropy(logprobs: Tensor) -> Tensor:
    """Returns the entropy [P] in nats of each row of full log-probabilities [P, V]."""
    return -(logprobs.exp() * logprobs).sum(-1)


def kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Returns KL(policy || reference) [P] in nats of each row of full log-probabilities [P, V].

    The sum runs over the whole vocabulary, so value and gradient at a position are exact. The estimate `k2` from the
    one sampled token has this gradient in expectation, with sampling noise that grows with the weight.
    """
    return (logprobs.exp() * (logprobs - reference)).sum(-1)


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Returns `logprobs - reference` [U]: an unbiased value of the KL at each sampled token.

    As a loss it would do nothing: its gradient is that of `logprobs`, which is 0 in expectation. As a reward,
    `-weight * k1` is unbiased (`importance.later_sums`).
    """
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Returns `(logprobs - reference) ** 2 / 2` [U], whose gradient is that of the KL in expectation.

    The gradient is `k1 * grad logprobs`, and the mean of that over tokens sampled by the policy is the gradient of `kl`
    at the position (arXiv:2512.21852; John Schulman, "Approximating KL divergence"). Its value is biased; `k3` is the
    one to look at.
    """
    return (logprobs - reference) ** 2 / 2


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Returns `exp(-k1) - 1 + k1` [U]: an unbiased and never negative value of the KL at each sampled token.

    For measuring only. Put into a loss, as GRPO does, it has the gradient `(1 - reference / policy) grad logprobs`,
    whose mean is that of KL(reference || policy), the other direction (arXiv:2512.21852). So no setting offers it.
    """
    difference = logprobs - reference
    return torch.exp(-difference) - 1 + difference


def shifted(values: Tensor) -> Tensor:
    """Returns per-token values [..., L] as targets [..., L - 1] of the predictions made one position earlier.

    The logits at position j predict token j + 1. This is the one place where that shift is made for dense tensors.

    >>> shifted(torch.tensor([10, 11, 12]))
    tensor([11, 12])
    """
    return values[..., 1:]


@dataclass(frozen=True, kw_only=True)
class LossKind:
    """A loss with what its authors set."""

    function: PolicyLoss
    clip_low: float | None = None
    "None: it has no such bound, or none by default."
    clip_high: float | None = None
    divisor: OwnDivisor = "constant"
    "`units`: the token mean of each unit, then the mean of these."
    bounds: tuple[str, ...] = ("clip_low", "clip_high")
    "The bounds that it takes."

    def with_bounds(self, clip_low: float | None = None, clip_high: float | None = None) -> PolicyLoss:
        """Returns the loss; a bound that is None is the loss's own."""
        given = {"clip_low": clip_low, "clip_high": clip_high}
        found = {name: value for name, value in given.items() if name in self.bounds and value is not None}
        return partial(self.function, **found) if found else self.function


LOSSES: dict[str, LossKind] = {
    "reinforce": LossKind(function=reinforce, bounds=()),
    "ppo_clip": LossKind(function=ppo_clip, clip_low=0.2, clip_high=0.2),
    "dr_grpo": LossKind(function=dr_grpo, clip_low=0.2, clip_high=0.2),
    "dapo": LossKind(function=dapo, clip_low=0.2, clip_high=0.28, divisor="tokens"),
    "gspo": LossKind(function=gspo, clip_low=3e-4, clip_high=4e-4, divisor="units"),
    "cispo": LossKind(function=cispo, clip_high=4.0, divisor="tokens"),
}
"""The losses by name. Their bounds here are the defaults of the functions."""
