"""From the settings of a run to those of one optimizer step."""

from __future__ import annotations

from llm_arena.training import losses
from llm_arena.training.batch import Batch
from llm_arena.training.config import TrainConfig
from llm_arena.training.objective import StepSettings


def step_settings(config: TrainConfig, step: int, batch: Batch, trained_seats: int) -> StepSettings:
    """Returns what step `step` (from 0) depends on besides its batch.

    Args:
        config: of the run.
        step: which one.
        batch: its batch, whose trained tokens may be the divisor.
        trained_seats: how many (trace, seat) pairs the policy trains in a step without void episodes.
    """
    return StepSettings(
        lr=config.lr_at(step),
        divisor=trained_seats if config.divisor == "constant" else max(batch.trained_tokens, 1),
        temperature=config.temperature,
        entropy_weight=config.entropy_at(step),
        kl_weight=config.kl_weight,
        ema_decay=config.ema_decay,
        grad_clip=config.grad_clip,
        epochs=config.epochs,
        loss=losses.LOSSES[config.loss](config.clip_low, config.clip_high),
    )
