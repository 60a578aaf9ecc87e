"""From the settings of a run to those of a step, and steps of several updates in which whole traces have one ratio."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.config import TrainConfig
from llm_arena.training.importance import Importance
from llm_arena.training.learner import Learner
from llm_arena.training.losses import LOSSES, dr_grpo, gspo, ppo_clip, reinforce
from llm_arena.training.objective import StepSettings, prepared
from llm_arena.training.step_settings import step_settings
from model_parts import small_llama

SEATS = 12


def batch(count: int = 6) -> Batch:
    """Sequences of two turns each, the even ones of two and three trained tokens; pairs of them are one trace."""
    rng = np.random.default_rng(0)
    found = []
    for index in range(count):
        unit = np.array([-1, 2 * index, 2 * index, -1, *[2 * index + 1] * (2 + index % 2)])
        found.append(
            TrainSequence(
                token_ids=rng.integers(0, 13, len(unit)),
                trained=unit >= 0,
                advantage=np.full(len(unit), rng.normal()),
                behaviour=-rng.random(len(unit)),
                unit=unit,
                trace_unit=index // 2,
            )
        )
    return build(found, minibatches=3, dtype=torch.float64)


def settings(*, exact: bool = True, **given: Any) -> StepSettings:
    return step_settings(TrainConfig(**given), 0, batch(), SEATS, exact=exact)


def test_the_defaults_are_plain_reinforce() -> None:
    assert settings() == StepSettings(lr=1e-5, divisor=SEATS)
    assert settings().loss is reinforce
    tokens = batch().tokens
    assert not (settings().needs_old(tokens) or settings().needs_reference or settings().needs_now(tokens))


@pytest.mark.parametrize(
    ("given", "divisor", "mean_by", "ratio_by"),
    [
        ({"loss": "ppo_clip"}, SEATS, None, None),
        ({"loss": "dr_grpo"}, SEATS, None, None),
        ({"loss": "dapo"}, 27, None, None),
        ({"loss": "cispo"}, 27, None, None),
        ({"loss": "gspo"}, 12, "turn", "turn"),
        ({"loss": "gspo", "importance_unit": "trace"}, 3, "trace", "trace"),
        ({"loss": "gspo", "divisor": "constant"}, SEATS, None, "turn"),
        ({"divisor": "tokens"}, 27, None, None),
        ({"divisor": "turns"}, 12, "turn", None),
        ({"loss": "ppo_clip", "divisor": "traces"}, 3, "trace", None),
    ],
)
def test_each_loss_has_its_own_divisor(
    given: dict[str, Any], divisor: int, mean_by: str | None, ratio_by: str | None
) -> None:
    found = settings(**given)
    assert (found.divisor, found.mean_by, found.ratio_by) == (divisor, mean_by, ratio_by)


@pytest.mark.parametrize(
    ("given", "exact", "expected"),
    [
        ({}, True, Importance()),
        ({}, False, Importance(how="truncate")),
        ({"max_staleness": 1}, True, Importance(how="truncate")),
        ({"max_staleness": 1, "importance": "none"}, False, Importance()),
        ({"importance": "mask", "importance_cap": 3.0}, True, Importance(how="mask", cap=3.0)),
        ({"importance": "mask", "importance_unit": "trace"}, True, Importance(how="mask", unit="trace")),
        ({"loss": "gspo", "importance": "mask"}, True, Importance(how="mask", unit="turn")),
    ],
)
def test_weights_are_there_where_the_engine_differs(given: dict[str, Any], exact: bool, expected: Importance) -> None:
    assert settings(exact=exact, **given).importance == expected


def test_bounds_that_are_not_given_are_the_losses_own() -> None:
    assert settings(loss="dr_grpo").loss is dr_grpo
    loss: Any = settings(loss="ppo_clip", clip_high=0.5).loss
    assert (loss.func, loss.keywords) == (ppo_clip, {"clip_high": 0.5})
    assert LOSSES["reinforce"].with_bounds(0.1, 0.1) is reinforce


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        ({"kl_weight": 1.0}, (False, False, False)),
        ({"kl_weight": 1.0, "kl_estimator": "k1_reward"}, (True, True, False)),
        ({"kl_weight": 1.0, "kl_estimator": "k2"}, (False, True, False)),
        ({"importance": "truncate"}, (False, False, False)),
        ({"importance": "mask", "importance_unit": "turn"}, (False, False, False)),
        ({"importance": "mask", "importance_unit": "trace"}, (True, False, False)),
        ({"loss": "gspo"}, (False, False, False)),
        ({"loss": "gspo", "importance_unit": "trace"}, (False, False, True)),
    ],
)
def test_passes_before_the_update_are_made_only_where_needed(
    given: dict[str, Any], needs: tuple[bool, bool, bool]
) -> None:
    found, tokens = settings(**given), batch().tokens
    assert (found.needs_old(tokens), found.needs_reference, found.needs_now(tokens)) == needs


def tiny_model(seed: int = 0) -> Any:
    return small_llama(seed=seed, num_hidden_layers=1, num_attention_heads=2)


def same_weights(left: Learner, right: Learner, within: float = 1e-12) -> bool:
    pairs = zip(left.parameters.values(), right.parameters.values(), strict=True)
    return all(torch.allclose(one, other, rtol=0, atol=within) for one, other in pairs)


@pytest.mark.parametrize("unit", ["turn", "trace"])
def test_gspo_sees_whole_units_as_they_are_before_each_update(unit: str) -> None:
    """Traces lie in several minibatches; the ratio of each is looked up over all of them, update by update."""
    given = settings(loss="gspo", importance_unit=unit, lr=0.003, clip_low=0.5, clip_high=0.5, epochs=2)
    given = dataclasses.replace(given, grad_clip=1e9)
    fast, slow, data = Learner(tiny_model()), Learner(tiny_model()), batch()
    assert len(data.parts) == 3
    assert len(data.tokens.trace[data.parts[0][0].use].unique()) > 1
    fast.step(data, given)
    first = slow.score(data, 1.0, ["old"])
    optimizer = torch.optim.AdamW(slow.model.parameters(), lr=0.003, weight_decay=0.0)
    column = data.tokens.turn if unit == "turn" else data.tokens.trace
    counts = torch.bincount(column).double()
    for part in [*data.parts, *data.parts]:
        optimizer.zero_grad()
        now = slow.score(data, 1.0, ["now"]).now
        assert now is not None and first.old is not None
        means = torch.zeros_like(counts).index_add_(0, column, now - first.old) / counts
        for micro in part:
            chosen = slow.model(
                input_ids=micro.input_ids,
                attention_mask=micro.attention_mask,
                position_ids=micro.position_ids,
                use_cache=False,
            ).logits.log_softmax(-1)
            logprobs = chosen.flatten(0, 1)[micro.heads][micro.head_of, micro.target]
            own = column[micro.use]
            advantage = data.tokens.advantage[micro.use] / counts[own]
            rest = (first.old[micro.use], logprobs.detach(), advantage, torch.ones_like(advantage), len(counts))
            gspo(logprobs, *rest, log_ratio=means[own], clip_low=0.5, clip_high=0.5).backward()
        optimizer.step()
    assert same_weights(fast, slow) and not same_weights(fast, Learner(tiny_model()))


def test_preparing_twice_changes_nothing() -> None:
    given = settings(kl_weight=1.0, kl_estimator="k1_reward", importance="mask", importance_unit="trace", loss="gspo")
    learner, data = Learner(tiny_model(), reference="initial"), batch()
    tokens = prepared(learner.score(data, 1.0, ["old", "reference"]), given)
    again = prepared(tokens, given)
    for name in ("advantage", "share", "ratio", "kl_to_go"):
        assert torch.equal(getattr(tokens, name), getattr(again, name))


@pytest.mark.parametrize(
    "given",
    [
        {"loss": "gspo", "clip_low": 0.5, "clip_high": 0.5, "epochs": 2},
        {"importance": "mask", "importance_cap": 4.0, "importance_unit": "turn"},
        {"importance": "truncate", "importance_unit": "turn", "divisor": "turns", "loss": "ppo_clip"},
    ],
)
def test_a_turn_cut_in_two_sequences_changes_nothing(given: dict[str, Any]) -> None:
    """No recorded trace has such; then a turn's tokens may lie in several micro-batches."""
    rng = np.random.default_rng(3)
    whole, halves = [], []
    for index in range(4):
        one = TrainSequence(
            token_ids=rng.integers(0, 13, 7),
            trained=np.arange(7) > 1,
            advantage=rng.normal(size=7),
            behaviour=-2 - rng.random(7),
            unit=np.where(np.arange(7) > 1, index, -1),
            trace_unit=index,
        )
        whole.append(one)
        for kept in (np.arange(7) < 4, np.arange(7) >= 4):
            trained = one.trained & kept
            halves.append(dataclasses.replace(one, trained=trained, unit=np.where(trained, index, -1)))
    learners = []
    for sequences in (whole, halves):
        data = build(sequences, dtype=torch.float64, max_row_tokens=7, token_budget=1)
        assert data.tokens.whole_turns == (sequences is whole)
        learners.append(Learner(tiny_model()))
        found = step_settings(TrainConfig(lr=0.003, **given), 0, data, SEATS)
        learners[-1].step(data, dataclasses.replace(found, grad_clip=1e9))
    assert same_weights(*learners, within=1e-7) and not same_weights(learners[0], Learner(tiny_model()))
