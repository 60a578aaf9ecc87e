"""Prefix trees and the learner: every fast path against one slow, obvious path in float64."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from llm_arena.errors import TrainingError
from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepSettings, StepStats
from model_parts import VOCABULARY, small_llama


def tiny_model(*, dtype: torch.dtype = torch.float64, seed: int = 0, tied: bool = False) -> Any:
    return small_llama(seed=seed, dtype=dtype, tie_word_embeddings=tied)


def sequence(ids: Sequence[int], trained: Sequence[bool], seed: int = 0) -> TrainSequence:
    rng = np.random.default_rng([seed, *ids])
    return TrainSequence(
        token_ids=np.array(ids, dtype=np.int64),
        trained=np.array([False, *trained[1:]], dtype=np.bool_),
        advantage=rng.normal(size=len(ids)),
        behaviour=-rng.random(len(ids)),
    )


def family(count: int = 24, seed: int = 0) -> list[TrainSequence]:
    """Sequences with shared prefixes of many lengths, some equal, some a prefix of others, some alone."""
    rng = np.random.default_rng(seed)
    trunk = rng.integers(0, VOCABULARY, 12)
    found = []
    for index in range(count):
        shared = trunk[: rng.integers(2, 12)] if index % 6 else rng.integers(0, VOCABULARY, 3)
        ids = [*shared, *rng.integers(0, 3, rng.integers(1, 9))]
        found.append(sequence([int(i) for i in ids], [bool(b) for b in rng.random(len(ids)) < 0.5], seed=index))
    return [*found, found[0], found[1]]


SETTINGS = StepSettings(lr=0.01, divisor=7.0, temperature=0.7, entropy_weight=0.3, kl_weight=0.5, grad_clip=1e9)


def naive_gradient(learner: Learner, sequences: Sequence[TrainSequence], setting: StepSettings) -> tuple[float, Any]:
    """One sequence after the other, one token after the other."""
    model = learner.model
    model.zero_grad()
    slow_model = copy.deepcopy(model)
    if learner.reference is not None:
        slow_model.load_state_dict(learner.reference.tensors)
    total = torch.zeros((), dtype=learner.dtype)
    for one in sequences:
        ids = torch.from_numpy(one.token_ids)[None]
        rows = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0] / setting.temperature, -1)
        for at in np.flatnonzero(one.trained):
            row = rows[at - 1]
            total = total - one.advantage[at] * row[one.token_ids[at]]
            total = total + setting.entropy_weight * (row.exp() * row).sum()
            if learner.reference is not None:
                with torch.no_grad():
                    logits = slow_model(input_ids=ids, use_cache=False).logits[0]
                    slow = torch.log_softmax(logits / setting.temperature, -1)
                total = total + setting.kl_weight * (row.exp() * (row - slow[at - 1])).sum()
    total = total / setting.divisor
    total.backward()  # type: ignore[no-untyped-call]
    return float(total.detach()), gradient(model)


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


def build64(sequences: Sequence[TrainSequence], *, max_row_tokens: int = 512, token_budget: int = 2048) -> Batch:
    return build(sequences, dtype=torch.float64, max_row_tokens=max_row_tokens, token_budget=token_budget)


def anchored() -> Learner:
    learner = Learner(tiny_model(), reference="ema")
    assert learner.reference is not None
    for name, tensor in tiny_model(seed=1).state_dict().items():
        learner.reference.tensors[name].copy_(tensor)
    return learner


@pytest.mark.parametrize(("max_row_tokens", "token_budget"), [(512, 2048), (512, 64), (24, 64), (6, 1), (1, 1)])
def test_trees_equal_the_naive_loop(max_row_tokens: int, token_budget: int) -> None:
    learner, sequences = anchored(), family()
    _, expected = naive_gradient(learner, sequences, SETTINGS)
    learner.model.zero_grad()
    learner.accumulate(build64(sequences, max_row_tokens=max_row_tokens, token_budget=token_budget), SETTINGS)
    assert apart(gradient(learner.model), expected) < 1e-6


def test_the_loss_equals_the_naive_loss() -> None:
    setting = StepSettings(lr=0.01, divisor=3.0, temperature=1.3)
    learner = Learner(tiny_model(tied=True))
    expected, _ = naive_gradient(learner, family(), setting)
    assert learner.accumulate(build64(family()), setting)["loss"] == pytest.approx(expected, rel=1e-9)


@given(
    bodies=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=2, max_size=8), st.lists(st.booleans(), min_size=8, max_size=8)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=30, deadline=None)
def test_any_set_of_sequences_has_the_naive_gradient(bodies: list[tuple[list[int], list[bool]]]) -> None:
    sequences = [sequence(ids, trained[: len(ids)], seed=k) for k, (ids, trained) in enumerate(bodies)]
    if not any(one.trained.any() for one in sequences):
        return
    learner = Learner(tiny_model())
    setting = StepSettings(lr=0.01, divisor=2.0, entropy_weight=0.1)
    _, expected = naive_gradient(learner, sequences, setting)
    learner.model.zero_grad()
    learner.accumulate(build64(sequences, max_row_tokens=10, token_budget=20), setting)
    # transformers computes RMSNorm in float32 even for float64 models, hence not closer
    assert float((gradient(learner.model) - expected).norm()) < 1e-6 * max(1.0, float(expected.norm()))


def test_each_unique_token_is_computed_once() -> None:
    batch = build([sequence([1, 2, 7], [False, False, True]), sequence([1, 2, 8, 9], [False, False, True, True])])
    [micro] = batch
    assert micro.input_ids.tolist() == [[1, 2, 8]]
    assert micro.position_ids.tolist() == [[0, 1, 2]]
    assert (batch.total_tokens, batch.unique_tokens, batch.computed_tokens, batch.trained_tokens) == (7, 5, 3, 3)
    assert micro.heads.tolist() == [1, 2]
    assert micro.counts.tolist() == [2, 1]
    assert sorted(micro.target.tolist()) == [7, 8, 9]


def test_branches_do_not_see_each_other() -> None:
    sequences = [sequence([1, 2, branch, 4, 5], [False] * 4 + [True]) for branch in (6, 7)]
    [micro] = build(sequences)
    assert micro.input_ids.tolist() == [[1, 2, 6, 4, 7, 4]]
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 2, 3]]
    assert micro.attention_mask is not None
    assert micro.attention_mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]


def test_chains_need_no_mask() -> None:
    [micro] = build([sequence([1, 2, 3, 4], [False, True, True, True]), sequence([5, 6, 7], [False, True, True])])
    assert micro.attention_mask is None


def test_padding_stays_small() -> None:
    rng = np.random.default_rng(0)
    sequences = []
    for size in (40, 45, 50, 200, 210, 400):
        ids = [int(i) for i in rng.integers(0, VOCABULARY, size)]
        sequences.append(sequence(ids, [True] * size))
    batch = build(sequences, max_row_tokens=512, token_budget=4096)
    assert batch.computed_tokens <= 1.05 * batch.unique_tokens


def test_one_merged_sequence_stored_as_two_has_the_same_gradient() -> None:
    """Turn 1 sampled 3 4; turn 2 sampled 6 7: one sequence, or the same turns as two sequences."""
    ids, trained = [1, 2, 3, 4, 5, 6, 7], [False, False, True, True, False, True, True]
    whole = sequence(ids, trained)

    def part(length: int, first: int) -> TrainSequence:
        kept = whole.trained.copy()[:length]
        kept[:first] = False
        return TrainSequence(
            token_ids=whole.token_ids[:length],
            trained=kept,
            advantage=whole.advantage[:length],
            behaviour=whole.behaviour[:length],
        )

    learner = Learner(tiny_model())
    setting = StepSettings(lr=0.1, divisor=4.0, entropy_weight=0.2)
    gradients = []
    for sequences in ([whole], [part(4, 0), part(7, 5)]):
        learner.model.zero_grad()
        batch = build64(sequences)
        assert batch.trained_tokens == 4
        learner.accumulate(batch, setting)
        gradients.append(gradient(learner.model))
    assert apart(gradients[0], gradients[1]) < 1e-12


def test_a_sequence_twice_counts_twice() -> None:
    learner, one = Learner(tiny_model()), family()[0]
    setting = StepSettings(lr=0.1, divisor=1.0)
    learner.accumulate(build64([one]), setting)
    single = gradient(learner.model)
    learner.model.zero_grad()
    learner.accumulate(build64([one, one]), setting)
    assert apart(gradient(learner.model), 2 * single) < 1e-12


def test_dropout_is_off() -> None:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        attention_dropout=0.5,
        max_position_embeddings=64,
    )
    learner = Learner(LlamaForCausalLM(config).double())  # type: ignore[no-untyped-call]
    first = learner.accumulate(build64(family()), SETTINGS_PLAIN)
    assert learner.accumulate(build64(family()), SETTINGS_PLAIN) == first


SETTINGS_PLAIN = StepSettings(lr=0.05, divisor=5.0)


def snapshot(learner: Learner) -> dict[str, torch.Tensor]:
    return {f"{kind}/{name}": t.clone() for kind, group in learner.state().items() for name, t in group.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_the_weights_alone(broken: float) -> None:
    learner = Learner(tiny_model(), reference="ema")
    learner.step(build64(family()), SETTINGS_PLAIN)
    before = snapshot(learner)
    bad = sequence([1, 2, 3], [False, True, True])
    bad.advantage[:] = broken
    with pytest.raises(TrainingError, match="the weights were left alone"):
        learner.step(build64([*family(), bad]), SETTINGS_PLAIN)
    assert same(snapshot(learner), before)
    assert learner.step(build64(family()), SETTINGS_PLAIN).updates == 1


def test_weights_that_a_step_breaks_stop_the_run() -> None:
    learner = Learner(tiny_model())
    with pytest.raises(TrainingError, match=r"no longer finite after a step with lr .*lower lr"):
        learner.step(build64(family()), dataclasses.replace(SETTINGS_PLAIN, lr=float("inf")))


def test_a_batch_with_nothing_to_train_changes_nothing() -> None:
    learner = Learner(tiny_model(), reference="ema")
    learner.step(build64(family()), SETTINGS_PLAIN)
    before = snapshot(learner)
    empty = [sequence([1, 2, 3], [False] * 3), sequence([4], [False])]
    assert learner.step(build64(empty), SETTINGS_PLAIN) == StepStats(updates=0)
    assert same(snapshot(learner), before)


def test_an_empty_completion_beside_another_does_not_count() -> None:
    """Under a token mean the loss is that of the other sequence alone."""
    learner, full = Learner(tiny_model()), sequence([1, 2, 3, 4, 5], [False, False, True, True, True])
    empty = sequence([1, 2], [False, False])
    losses = []
    for sequences in ([full], [full, empty]):
        batch = build64(sequences)
        losses.append(learner.accumulate(batch, StepSettings(lr=0.1, divisor=batch.trained_tokens))["loss"])
    assert losses[0] == losses[1]


def test_the_anchor_follows_slowly() -> None:
    learner = Learner(tiny_model(), reference="ema")
    assert learner.reference is not None
    start = {name: parameter.data.clone() for name, parameter in learner.parameters.items()}
    learner.step(build64(family()), StepSettings(lr=0.05, divisor=5.0, ema_decay=0.9))
    for name, slow in learner.reference.tensors.items():
        expected = 0.9 * start[name] + 0.1 * learner.parameters[name].data
        assert torch.allclose(slow, expected, atol=1e-12)


def test_the_initial_reference_stays_and_is_no_part_of_a_checkpoint() -> None:
    learner = Learner(tiny_model(), reference="initial")
    assert learner.reference is not None
    start = {name: parameter.data.clone() for name, parameter in learner.parameters.items()}
    for seed in range(2):
        expected, _ = naive_gradient(learner, family(seed=seed), SETTINGS)
        learner.model.zero_grad()
        stats = learner.step(build64(family(seed=seed)), SETTINGS)
        tokens = build64(family(seed=seed)).trained_tokens
        total = stats.loss + tokens * (SETTINGS.kl_weight * stats.kl - SETTINGS.entropy_weight * stats.entropy) / 7.0
        assert total == pytest.approx(expected, rel=1e-6)
    assert stats.kl > 0
    assert all(torch.equal(tensor, start[name]) for name, tensor in learner.reference.tensors.items())
    assert set(learner.state()) == {"model", "optimizer"}


def test_the_reference_leaves_the_weights_in_their_places() -> None:
    learner = anchored()
    before = {name: parameter.data for name, parameter in learner.parameters.items()}
    learner.accumulate(build64(family()), SETTINGS)
    assert all(parameter.data.data_ptr() == before[name].data_ptr() for name, parameter in learner.parameters.items())
    assert learner.reference is not None
    with pytest.raises(RuntimeError, match="halfway"), learner.reference.in_place():
        assert learner.parameters["lm_head.weight"].data is not before["lm_head.weight"]
        raise RuntimeError("halfway")
    assert all(parameter.data.data_ptr() == before[name].data_ptr() for name, parameter in learner.parameters.items())


def test_a_weight_of_kl_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="reference"):
        Learner(tiny_model()).step(build64(family()), SETTINGS)


def test_state_survives_saving_and_loading() -> None:
    def steps(learner: Learner, count: int) -> None:
        for index in range(count):
            learner.step(build64(family(seed=index)), SETTINGS)

    unbroken, first, second = (Learner(tiny_model(), reference="ema", weight_decay=0.1) for _ in range(3))
    steps(unbroken, 3)
    steps(unbroken, 2)
    steps(first, 3)
    second.load_state({kind: {n: t.clone() for n, t in group.items()} for kind, group in first.state().items()})
    steps(second, 2)
    assert same(snapshot(second), snapshot(unbroken))
    assert snapshot(unbroken)["optimizer/step/lm_head.weight"].item() == 5


def test_weights_of_another_model_are_refused() -> None:
    state = Learner(tiny_model(tied=True)).state()
    with pytest.raises(TrainingError, match=r"lm_head\.weight"):
        Learner(tiny_model()).load_state(state)


def test_logprobs_are_those_of_the_sampling_temperature() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> Any:
            class Output:
                logits = torch.tensor([2.0, 1.0, 0.0]).expand(*input_ids.shape, 3)

            return Output()

    learner = Learner(tiny_model())
    learner.model = Fixed()
    assert learner.logprobs([1, 1], [0, 2], temperature=0.5).tolist() == pytest.approx([-0.142932, -4.142932], abs=1e-6)


@pytest.mark.parametrize("make", [lambda: [1.0, 2.0], lambda: [True, True, True]])
def test_arrays_must_fit(make: Callable[[], list[float]]) -> None:
    values = make()
    with pytest.raises(ValueError, match="lengths|no context"):
        TrainSequence(
            token_ids=np.array([1, 2, 3]),
            trained=np.array(values, dtype=np.bool_),
            advantage=np.zeros(3),
            behaviour=np.zeros(3),
        )


def test_a_saved_model_loads_with_the_same_weights(tmp_path: Path) -> None:
    learner = Learner(tiny_model(dtype=torch.float32, tied=True))
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path)
    assert all(torch.equal(loaded.parameters[name], tensor) for name, tensor in learner.parameters.items())
