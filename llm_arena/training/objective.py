"""What one optimizer step is asked to do, and what it measured."""

from __future__ import annotations

from dataclasses import dataclass

from llm_arena.training import losses
from llm_arena.training.losses import PolicyLoss


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What one step depends on besides the batch."""

    lr: float
    divisor: float
    "The sum over trained tokens is divided by this, in a minibatch as well: the losses of a pass add up to the whole."
    epochs: int = 1
    "Passes over the batch, each with one update per minibatch."
    temperature: float = 1.0
    entropy_weight: float = 0.0
    kl_weight: float = 0.0
    ema_decay: float = 0.99
    "Of the slow average, which moves once per step, after the last update."
    grad_clip: float = 1.0
    "Largest norm of an update's gradient."
    loss: PolicyLoss = losses.reinforce


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What one step measured: each minibatch before its update, summed up over a pass; the mean of all passes."""

    loss: float = 0.0
    "The policy loss alone."
    entropy: float = 0.0
    "Mean entropy over trained tokens, in nats."
    kl: float = 0.0
    "Mean KL to the reference over trained tokens, in nats; 0 while it has no weight."
    grad_norm: float = 0.0
    "Norm of the whole gradient before clipping, the largest of all updates."
    max_gap: float = 0.0
    "Largest |learner - engine| log-probability over trained tokens before the first update, in nats."
    mean_gap: float = 0.0
    clip_fraction: float = 0.0
    "Share of trained tokens that have an advantage, but no gradient, for their ratio is beyond the clip."
    approx_kl: float = 0.0
    "Estimate of KL(weights before the step || weights now) per token, the mean of ratio - 1 - log(ratio), in nats."
    updates: int = 0
    "Optimizer updates. 0 for a batch with nothing to train: weights and optimizer are left alone."
