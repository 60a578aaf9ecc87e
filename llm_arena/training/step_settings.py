"""From the settings of a run to those of one optimizer step."""

from __future__ import annotations

from llm_arena.training.batch import Batch
from llm_arena.training.config import TrainConfig
from llm_arena.training.importance import Correction, Importance, Unit
from llm_arena.training.losses import LOSSES
from llm_arena.training.objective import StepSettings, WholeUnit


def step_settings(
    config: TrainConfig,
    step: int,
    batch: Batch,
    trained_seats: int,
    *,
    learned: int | None = None,
    exact: bool = True,
) -> StepSettings:
    """Returns what step `step` (from 0) depends on besides its batch.

    Args:
        config: of the run.
        step: which one.
        batch: its batch, whose trained tokens, turns or traces may be the divisor.
        trained_seats: how many (trace, seat) pairs the policy trains in a step without void episodes.
        learned: in how many steps before this one the policy has learned; None: in all.
        exact: whether the engine computes in float32, as the learner does.
    """
    kind = LOSSES[config.loss]
    unit: Unit = "token"
    if config.importance_unit != "auto":
        unit = config.importance_unit
    elif config.loss == "gspo":
        unit = "turn"
    whole: WholeUnit = "trace" if unit == "trace" else "turn"
    how: Correction = "none" if exact and not config.max_staleness else "truncate"
    if config.importance != "auto":
        how = config.importance
    divided_by: str = config.divisor
    if divided_by == "auto":
        divided_by = f"{whole}s" if kind.divisor == "units" else kind.divisor
    mean_by: WholeUnit | None = None
    match divided_by:
        case "constant":
            divisor = trained_seats
        case "turns":
            mean_by, divisor = "turn", batch.tokens.turns
        case "traces":
            mean_by, divisor = "trace", batch.tokens.traces
        case _:
            divisor = batch.trained_tokens
    return StepSettings(
        lr=config.lr_at(step, learned),
        divisor=max(divisor, 1),
        mean_by=mean_by,
        temperature=config.temperature,
        entropy_weight=config.entropy_at(step),
        kl_weight=config.kl_weight,
        kl_estimator=config.kl_estimator,
        ema_decay=config.ema_decay,
        grad_clip=config.grad_clip,
        epochs=config.epochs,
        loss=kind.with_bounds(config.clip_low, config.clip_high),
        ratio_by=whole if config.loss == "gspo" else None,
        importance=Importance(how=how, cap=config.importance_cap, unit=unit),
    )
