"""What one optimizer step is asked to do, what it minimizes, and what it measured.

With A the advantage of a token, w its importance weight, r its ratio to the weights before the step, H the entropy and
D the divisor, the objective is the sum over trained tokens, divided by D, of

    loss at the advantage w (A - kl_weight * sum of later k1)  +  kl_weight * (KL or w r k2)  -  entropy_weight * H

of which the KL stands in one place, or in none. Under a divisor by turn or trace each term is also divided by the
number of trained tokens in its turn or trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from llm_arena.training import importance, losses
from llm_arena.training.batch import Tokens
from llm_arena.training.heads import Predictions
from llm_arena.training.importance import Importance, Unit
from llm_arena.training.losses import PolicyLoss

MOST_MEASURED = 1e6
"""What one token adds at most to a sum of k3, so that it stays a number; these sums are not in the objective."""
KlEstimator = Literal["exact", "k1_reward", "k2"]
WholeUnit = Literal["turn", "trace"]


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What one step depends on besides the batch."""

    lr: float
    divisor: float
    "The sum over trained tokens is divided by this, in a minibatch as well: the losses of a pass add up to the whole."
    mean_by: WholeUnit | None = None
    "Each token counts 1 / number of trained tokens of its turn or trace; `divisor` is then the number of these."
    epochs: int = 1
    "Passes over the batch, each with one update per minibatch."
    temperature: float = 1.0
    entropy_weight: float = 0.0
    kl_weight: float = 0.0
    kl_estimator: KlEstimator = "exact"
    ema_decay: float = 0.99
    "Of the slow average, which moves once per step, after the last update."
    grad_clip: float = 1.0
    "Largest norm of an update's gradient."
    loss: PolicyLoss = losses.reinforce
    ratio_by: WholeUnit | None = None
    "The loss takes the mean log ratio of whole turns or traces as `log_ratio` (`gspo`)."
    importance: Importance = field(default_factory=Importance)

    def needs_old(self, tokens: Tokens) -> bool:
        """Returns whether a step of one update needs the column `old`; a step of several always has it."""
        weighted = self.importance.how != "none" and _is_spread(self.importance.unit, tokens)
        return weighted or (self.kl_weight != 0 and self.kl_estimator == "k1_reward")

    @property
    def needs_reference(self) -> bool:
        """Whether the column `reference` is needed."""
        return self.kl_weight != 0 and self.kl_estimator != "exact"

    def needs_now(self, tokens: Tokens) -> bool:
        """Returns whether a step of several updates needs the column `now`, anew before each of them."""
        return self.ratio_by is not None and _is_spread(self.ratio_by, tokens)

    @property
    def wants_entropy(self) -> bool:
        """Whether the exact entropy is needed, with its gradient."""
        return self.entropy_weight != 0

    @property
    def wants_kl(self) -> bool:
        """Whether the exact KL to the reference is needed, with its gradient."""
        return self.kl_weight != 0 and self.kl_estimator == "exact"


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What one step measured: each minibatch before its update, summed up over a pass; the mean of all passes."""

    loss: float = 0.0
    "The policy loss alone."
    entropy: float = 0.0
    "Mean entropy over trained tokens, in nats."
    kl: float = 0.0
    "Mean KL to the reference over trained tokens, in nats, exact or as k3; 0 while it has no weight."
    grad_norm: float = 0.0
    "Norm of the whole gradient before clipping, the largest of all updates."
    max_gap: float = 0.0
    "Largest |learner - engine| log-probability over trained tokens before the first update, in nats."
    mean_gap: float = 0.0
    mismatch: float = 0.0
    "Mean k3 from the sampling probabilities to the learner's before the first update, in nats; 0 where they agree."
    capped: float = 0.0
    "Share of trained tokens whose importance weight was cut, or set to 0."
    effective: float = 1.0
    "Effective number of trained tokens by their number, under the importance weights."
    clip_fraction: float = 0.0
    "Share of trained tokens that have an advantage, but no gradient, for their ratio is beyond the clip."
    approx_kl: float = 0.0
    "Estimate of KL(weights before the step || weights now) per token, the mean of ratio - 1 - log(ratio), in nats."
    updates: int = 0
    "Optimizer updates. 0 for a batch with nothing to train: weights and optimizer are left alone."

    @classmethod
    def of(cls, sums: Mapping[str, float], *, trained_tokens: int, epochs: int, updates: int) -> StepStats:
        """Returns the numbers of a step from what `objective` summed over all its micro-batches.

        Args:
            sums: over all passes; of what begins with `max`, the largest. `max_norm` is the gradient's norm.
            trained_tokens: of the batch.
            epochs: passes over it.
            updates: optimizer updates.
        """
        seen = epochs * trained_tokens
        return cls(
            loss=sums["loss"] / epochs,
            entropy=sums["entropy"] / seen,
            kl=sums["kl"] / seen,
            grad_norm=sums["max_norm"],
            max_gap=sums["max_gap"],
            mean_gap=sums["gap"] / seen,
            mismatch=sums["mismatch"] / seen,
            capped=sums["capped"] / seen,
            effective=importance.effective_share(sums["weight"], sums["weight_squared"], seen),
            clip_fraction=sums["clipped"] / seen,
            approx_kl=sums["approx_kl"] / seen,
            updates=updates,
        )


def prepared(tokens: Tokens, settings: StepSettings) -> Tokens:
    """Returns the table with all columns that depend on whole turns or traces, before a step or an update."""
    found: dict[str, Any] = {}
    if settings.mean_by is not None:
        unit = tokens.turn if settings.mean_by == "turn" else tokens.trace
        found["share"] = 1 / importance.unit_sums(torch.ones_like(tokens.advantage), unit)
    if settings.importance.how != "none" and _is_spread(settings.importance.unit, tokens):
        assert tokens.old is not None  # needs_old
        unit = tokens.turn if settings.importance.unit == "turn" else tokens.trace
        found["ratio"] = importance.ratios(tokens.old, tokens.behaviour, unit)
    if tokens.now is not None and settings.needs_now(tokens):
        assert tokens.old is not None  # a step of several updates has it
        unit = tokens.turn if settings.ratio_by == "turn" else tokens.trace
        found["unit_log_ratio"] = importance.unit_means(tokens.now - tokens.old, unit)
    if settings.needs_reference and settings.kl_estimator == "k1_reward":
        assert tokens.old is not None and tokens.reference is not None  # needs_old, needs_reference
        costs = losses.k1(tokens.old, tokens.reference)
        found["kl_to_go"] = importance.later_sums(costs, tokens.turn, tokens.seat)
    return dataclasses.replace(tokens, **found) if found else tokens


def objective(
    predictions: Predictions, tokens: Tokens, use: Tensor, settings: StepSettings
) -> tuple[Tensor, dict[str, float]]:
    """Returns the part that one micro-batch has in the objective, to be minimized.

    Args:
        predictions: of the weights as they are, with gradient.
        tokens: the whole batch's, prepared.
        use: [U] which of them the micro-batch has.
        settings: of the step.

    Returns:
        The scalar, and sums over the uses by name; of `max_gap`, the largest.
    """
    chosen, now = predictions.chosen, predictions.chosen.detach()
    old = now if tokens.old is None else tokens.old[use]
    advantage, behaviour = tokens.advantage[use], tokens.behaviour[use]
    mask = torch.ones_like(advantage)
    share = None if tokens.share is None else tokens.share[use]
    sums = dict.fromkeys(("kl", "clipped", "approx_kl", "capped"), 0.0)
    sums["weight"] = sums["weight_squared"] = float(len(use))
    weight = None
    if settings.importance.how != "none":
        ratio = _ratio(old, behaviour, tokens, use, settings.importance.unit)
        weight = importance.weights(ratio, settings.importance)
        sums["capped"] = float(importance.beyond(ratio, settings.importance))
        sums["weight"], sums["weight_squared"] = float(weight.sum()), float((weight**2).sum())
        mask = (weight != 0).to(advantage.dtype)
    if tokens.kl_to_go is not None:
        advantage = advantage - settings.kl_weight * tokens.kl_to_go[use]
    for factor in (weight, share):
        advantage = advantage if factor is None else advantage * factor
    rest = (old, behaviour, advantage, mask, settings.divisor)
    whole = {} if settings.ratio_by is None else {"log_ratio": _log_ratio(now, old, tokens, use)}
    policy = settings.loss(chosen, *rest, **whole)
    counts = predictions.counts if share is None else _summed(share, predictions)
    total = policy
    spread = -now.sum()
    if predictions.entropy is not None:
        spread = (predictions.entropy * predictions.counts).sum()
        bonus = spread if share is None else (predictions.entropy * counts).sum()
        total = policy - settings.entropy_weight * bonus / settings.divisor
    if predictions.kl is not None:
        pull = (predictions.kl * counts).sum()
        total = total + settings.kl_weight * pull / settings.divisor
        sums["kl"] = float((predictions.kl.detach() * predictions.counts).sum())
    if tokens.reference is not None:
        reference = tokens.reference[use]
        sums["kl"] = _measured(now, reference)
        if settings.kl_estimator == "k2":
            pulls = (now - old).exp() * losses.k2(chosen, reference)
            for factor in (weight, share):
                pulls = pulls if factor is None else pulls * factor
            total = total + settings.kl_weight * losses.masked(pulls, mask).sum() / settings.divisor
    if tokens.old is not None:
        alone = now.clone().requires_grad_()  # the loss's own gradient at the tokens, whatever the loss
        [slope] = torch.autograd.grad(settings.loss(alone, *rest, **whole), alone)
        sums["clipped"] = float(((slope == 0) & (advantage != 0)).sum())
        sums["approx_kl"] = _measured(old, now)
    gap = (old - behaviour).abs()
    sums["gap"], sums["max_gap"] = float(gap.sum()), float(gap.max())
    sums["mismatch"] = _measured(behaviour, old)
    return total, sums | {"loss": float(policy.detach()), "entropy": float(spread.detach())}


def _measured(logprobs: Tensor, reference: Tensor) -> float:
    """Returns the sum of `k3`, in which what is no number counts as the most."""
    return float(losses.k3(logprobs, reference).nan_to_num(MOST_MEASURED).clamp(max=MOST_MEASURED).sum())


def _is_spread(unit: Unit, tokens: Tokens) -> bool:
    """Returns whether the tokens of one unit may lie in several micro-batches."""
    return unit == "trace" or (unit == "turn" and not tokens.whole_turns)


def _ratio(old: Tensor, behaviour: Tensor, tokens: Tokens, use: Tensor, unit: Unit) -> Tensor:
    """Returns the ratio [U] of each token, its turn, or its trace to what it was sampled with."""
    if tokens.ratio is not None:
        return tokens.ratio[use]
    assert not _is_spread(unit, tokens)  # else the table was prepared
    return importance.ratios(old, behaviour, tokens.turn[use] if unit == "turn" else None)


def _log_ratio(now: Tensor, old: Tensor, tokens: Tokens, use: Tensor) -> Tensor:
    """Returns the mean log ratio [U] over the turn of each token, or what was prepared.

    Before the only update of a step every ratio is 1, and nothing has to be prepared for whole traces.
    """
    if tokens.unit_log_ratio is not None:
        return tokens.unit_log_ratio[use]
    return importance.unit_means(now - old, tokens.turn[use])


def _summed(share: Tensor, predictions: Predictions) -> Tensor:
    """Returns for each position [P] the sum of its uses' shares."""
    return torch.zeros_like(predictions.counts).index_add_(0, predictions.head_of, share)
