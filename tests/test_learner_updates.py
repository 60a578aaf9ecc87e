"""Several updates per step: minibatches, passes, ratios to the weights before the step, and failures halfway."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from llm_arena.errors import TrainingError
from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.learner import Learner
from llm_arena.training.losses import ppo_clip
from llm_arena.training.objective import StepSettings, StepStats
from model_parts import VOCABULARY, small_llama

SETTINGS = StepSettings(lr=0.002, divisor=5.0, temperature=0.7, loss=ppo_clip, grad_clip=1e9)


def tiny_model() -> Any:
    return small_llama(num_hidden_layers=1, num_attention_heads=2)


def family(count: int = 12, seed: int = 0) -> list[TrainSequence]:
    """Sequences of which some begin alike."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        ids = np.array([index % 4, *rng.integers(0, VOCABULARY, rng.integers(2, 9))])
        trained = np.array([False, True, *(rng.random(len(ids) - 2) < 0.5)])
        found.append(
            TrainSequence(
                token_ids=ids,
                trained=trained,
                advantage=np.full(len(ids), rng.normal()),
                behaviour=-rng.random(len(ids)),
            )
        )
    return found


def build64(sequences: Sequence[TrainSequence], *, minibatches: int = 1, seed: int = 0) -> Batch:
    return build(sequences, minibatches=minibatches, seed=seed, dtype=torch.float64)


def snapshot(learner: Learner) -> dict[str, torch.Tensor]:
    return {f"{kind}/{name}": t.clone() for kind, group in learner.state().items() for name, t in group.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def gradient(learner: Learner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in learner.parameters.values() if p.grad is not None])


def uses(batch: Batch, micro_batches: Any) -> list[tuple[int, float]]:
    """What a part trains, as (target, behaviour), sorted."""
    behaviour = batch.tokens.behaviour
    pairs = [zip(micro.target.tolist(), behaviour[micro.use].tolist(), strict=True) for micro in micro_batches]
    return sorted(pair for each in pairs for pair in each)


@pytest.mark.parametrize("minibatches", [2, 3, 5, 12, 100])
def test_minibatches_share_the_batch_out(minibatches: int) -> None:
    whole, cut = build64(family()), build64(family(), minibatches=minibatches)
    assert len(cut.parts) == min(minibatches, 12)  # cut further than into the four trees
    assert uses(cut, cut) == uses(whole, whole)
    assert all(uses(cut, part) for part in cut.parts)
    learner, total = Learner(tiny_model()), torch.zeros(())
    learner.accumulate(whole, SETTINGS)
    expected = gradient(learner)
    learner.optimizer.zero_grad()
    for part in cut.parts:
        learner.accumulate(cut, SETTINGS, part)
    total = gradient(learner)
    assert float((total - expected).norm()) < 1e-6 * float(expected.norm())


def test_the_dealing_depends_on_the_seed_alone() -> None:
    first, again = build64(family(), minibatches=3, seed=7), build64(family()[::-1], minibatches=3, seed=7)
    assert [uses(first, part) for part in first.parts] == [uses(again, part) for part in again.parts]
    others = [build64(family(), minibatches=3, seed=seed) for seed in range(4)]
    assert any(uses(other, other.parts[0]) != uses(first, first.parts[0]) for other in others)


def test_an_empty_batch_has_no_part() -> None:
    batch = build64([], minibatches=3)
    assert batch.parts == [] and Learner(tiny_model()).step(batch, SETTINGS) == StepStats()


def slow_step(model: Any, parts: Sequence[Sequence[TrainSequence]], epochs: int, clip: float) -> float:
    """PPO by the book: one token after the other, AdamW without weight decay. Returns the share of clipped tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS.lr, weight_decay=0.0)

    def rows(one: TrainSequence) -> torch.Tensor:
        logits = model(input_ids=torch.from_numpy(one.token_ids)[None], use_cache=False).logits[0]
        return torch.log_softmax(logits / SETTINGS.temperature, -1)

    clipped: list[bool] = []
    with torch.no_grad():
        old = {id(one): rows(one) for part in parts for one in part}
    for part in [part for _ in range(epochs) for part in parts]:
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64)
        for one in part:
            now = rows(one)
            for at in np.flatnonzero(one.trained):
                place = at - 1, one.token_ids[at]
                ratio = (now[place] - old[id(one)][place]).exp()
                kept = min(max(float(ratio.detach()), 1 - clip), 1 + clip)
                use_kept = kept * one.advantage[at] < float(ratio.detach()) * one.advantage[at]
                clipped.append(use_kept)
                factor = kept + 0 * ratio if use_kept else ratio  # a gradient of zero lets Adam's momentum act
                total = total - factor * one.advantage[at] / SETTINGS.divisor
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return sum(clipped) / len(clipped)


@pytest.mark.parametrize(("epochs", "clip"), [(1, 0.2), (4, 0.05), (4, 10.0)])
def test_a_step_of_several_updates_is_ppo_by_the_book(epochs: int, clip: float) -> None:
    sequences = family(9)
    batch = build64(sequences, minibatches=3, seed=1)
    assert len(batch.parts) == 3
    by_use = {one.behaviour[np.flatnonzero(one.trained)[0]]: one for one in sequences}
    parts = [[by_use[value] for _, value in uses(batch, part) if value in by_use] for part in batch.parts]
    learner, model = Learner(tiny_model()), tiny_model()
    settings = StepSettings(
        lr=SETTINGS.lr,
        divisor=SETTINGS.divisor,
        temperature=SETTINGS.temperature,
        epochs=epochs,
        grad_clip=1e9,
        loss=functools.partial(ppo_clip, clip_low=clip, clip_high=clip),
    )
    stats = learner.step(batch, settings)
    clipped = slow_step(model, parts, epochs, clip)
    for name, parameter in model.named_parameters():
        assert torch.allclose(learner.parameters[name], parameter, atol=1e-6), name
    assert stats.updates == 3 * epochs
    assert stats.approx_kl > 0
    assert stats.clip_fraction == pytest.approx(clipped)
    assert clipped > 0


def test_stats_of_several_updates_by_hand() -> None:
    """Two passes over two tokens: the numbers of the first pass and of the weights after it, from a plain model."""
    one = TrainSequence(
        token_ids=np.array([1, 2, 3]),
        trained=np.array([False, True, True]),
        advantage=np.array([0.0, 1.0, -1.0]),
        behaviour=np.array([0.0, -1.0, -2.0]),
    )
    settings = StepSettings(lr=0.01, divisor=2.0, epochs=2, grad_clip=1e9, loss=ppo_clip)
    learner, between = Learner(tiny_model()), Learner(tiny_model())
    old = learner.logprobs([1], [2, 3], 1.0)
    between.step(build64([one]), StepSettings(lr=0.01, divisor=2.0, grad_clip=1e9, loss=ppo_clip))
    ratio = (between.logprobs([1], [2, 3], 1.0) - old).exp()
    assert float(ratio[0]) > 1.2 and float(ratio[1]) < 0.8  # both beyond the clip
    stats = learner.step(build64([one]), settings)
    assert stats.updates == 2
    assert stats.clip_fraction == pytest.approx(0.5)
    assert stats.loss == pytest.approx((0.0 + (-1.2 + 0.8) / 2) / 2, abs=1e-6)
    assert stats.approx_kl == pytest.approx(float((ratio - 1 - ratio.log()).sum()) / 4, rel=1e-5)
    gaps = (old - torch.tensor([-1.0, -2.0])).abs()
    assert stats.max_gap == pytest.approx(float(gaps.max()), rel=1e-5)
    assert stats.mean_gap == pytest.approx(float(gaps.mean()), rel=1e-5)


def test_one_update_measures_no_clipping() -> None:
    stats = Learner(tiny_model()).step(build64(family()), SETTINGS)
    assert (stats.updates, stats.clip_fraction, stats.approx_kl) == (1, 0.0, 0.0)


def test_a_failure_halfway_takes_back_the_updates_made(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(tiny_model(), reference="ema", weight_decay=0.1)
    learner.step(build64(family()), SETTINGS)
    before, made = snapshot(learner), []
    settings = StepSettings(lr=0.02, divisor=5.0, epochs=2, loss=ppo_clip)
    update = learner.optimizer.step

    def counted() -> None:
        update()
        made.append(len(made))
        if len(made) == 3:
            next(iter(learner.parameters.values())).data.fill_(float("nan"))

    monkeypatch.setattr(learner.optimizer, "step", counted)
    with pytest.raises(TrainingError, match="no longer finite"):
        learner.step(build64(family(seed=1), minibatches=2), settings)
    assert len(made) == 3
    assert same(snapshot(learner), before)
    monkeypatch.undo()
    assert learner.step(build64(family(seed=1), minibatches=2), settings).updates == 4


def test_a_loss_that_is_not_finite_halfway_takes_back_the_updates_made() -> None:
    learner = Learner(tiny_model(), reference="ema")
    before = snapshot(learner)
    calls = []

    def sour(logprobs: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(1)
        return ppo_clip(logprobs, *rest) * (float("nan") if len(calls) > 6 else 1.0)

    with pytest.raises(TrainingError, match="the loss is nan; the weights were left alone"):
        learner.step(build64(family(), minibatches=4), StepSettings(lr=0.02, divisor=5.0, epochs=2, loss=sour))
    assert len(calls) == 8  # value and slope of each micro-batch
    assert same(snapshot(learner), before)


def test_the_slow_average_moves_once_per_step() -> None:
    learner = Learner(tiny_model(), reference="ema")
    start = {name: parameter.data.clone() for name, parameter in learner.parameters.items()}
    settings = StepSettings(lr=0.02, divisor=5.0, epochs=3, ema_decay=0.9, kl_weight=0.1, loss=ppo_clip)
    learner.step(build64(family(), minibatches=2), settings)
    assert learner.reference is not None
    for name, slow in learner.reference.tensors.items():
        assert torch.allclose(slow, 0.9 * start[name] + 0.1 * learner.parameters[name].data, atol=1e-12)
    moments = [value.item() for name, value in learner.state()["optimizer"].items() if name.startswith("step/")]
    assert set(moments) == {6.0}


def test_one_merged_sequence_stored_as_two_has_the_same_step() -> None:
    """Turn 1 sampled the third token, turn 2 the fifth: one sequence, or the same turns as two; three updates."""
    ids, trained = np.array([1, 2, 3, 4, 5]), np.array([False, False, True, False, True])
    values = {"advantage": np.full(5, 0.7), "behaviour": np.full(5, -1.0)}
    whole = TrainSequence(token_ids=ids, trained=trained, **values)
    first = TrainSequence(token_ids=ids[:3], trained=trained[:3], **{k: v[:3] for k, v in values.items()})
    second = TrainSequence(token_ids=ids, trained=trained & (np.arange(5) > 2), **values)
    settings = StepSettings(lr=0.02, divisor=3.0, epochs=3, loss=ppo_clip)
    learners = [Learner(tiny_model()) for _ in range(2)]
    stats = [
        learner.step(build64(given), settings)
        for learner, given in zip(learners, ([whole], [first, second]), strict=True)
    ]
    assert stats[0].approx_kl == pytest.approx(stats[1].approx_kl, rel=1e-9)
    for name, parameter in learners[0].parameters.items():
        assert torch.allclose(parameter, learners[1].parameters[name], atol=1e-9), name
