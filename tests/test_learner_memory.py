"""The ways to spend less memory: heads in chunks, activations computed once more, micro-batches of any size."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from llm_arena.errors import ModelError, UsageError
from llm_arena.training import heads
from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.heads import is_separate
from llm_arena.training.learner import Learner
from llm_arena.training.loading import recompute_layers
from llm_arena.training.lora import LoraSettings
from llm_arena.training.objective import StepSettings

VOCABULARY = 13
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
PLAIN = StepSettings(lr=0.0, divisor=3.0, temperature=0.7)
WHOLE_ROWS = dataclasses.replace(PLAIN, entropy_weight=0.2, kl_weight=0.3)


def tiny_model(*, bias: bool = False) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).double()  # type: ignore[no-untyped-call]
        if bias:
            head = torch.nn.Linear(16, VOCABULARY, dtype=torch.float64)
            model.set_output_embeddings(head)
        return model


def family(count: int = 12, seed: int = 0) -> list[TrainSequence]:
    """Sequences of which some begin alike and two are equal, so that positions have several uses."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        ids = np.array([index % 3, 5, *rng.integers(0, VOCABULARY, rng.integers(2, 9))])
        trained = np.array([False, True, *(rng.random(len(ids) - 2) < 0.6)])
        values = {"advantage": np.full(len(ids), rng.normal()), "behaviour": -rng.random(len(ids))}
        found.append(TrainSequence(token_ids=ids, trained=trained, **values))
    return [*found, found[0]]


def build64(sequences: Sequence[TrainSequence], **how: Any) -> Batch:
    return build(sequences, dtype=torch.float64, **how)


def anchored(**how: Any) -> Learner:
    learner = Learner(tiny_model(**how), reference="ema")
    assert learner.reference is not None
    generator = torch.Generator().manual_seed(1)
    for tensor in learner.reference.tensors.values():
        tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))
    return learner


def gradient(learner: Learner, batch: Batch, settings: StepSettings) -> tuple[dict[str, float], torch.Tensor]:
    learner.optimizer.zero_grad()
    sums = learner.accumulate(learner.prepare(batch, settings), settings)
    found = [torch.zeros_like(own) if own.grad is None else own.grad for own in learner.parameters.values()]
    return sums, torch.cat([one.flatten() for one in found])


def apart(left: torch.Tensor, right: torch.Tensor) -> float:
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("settings", [PLAIN, WHOLE_ROWS], ids=["plain", "whole rows"])
def test_a_head_in_chunks_has_the_same_gradient(
    rows: int, bias: bool, settings: StepSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, batch = anchored(bias=bias), build64(family())
    expected, slope = gradient(learner, batch, settings)
    most: list[int] = []
    monkeypatch.setattr(heads, "PLAIN_BYTES", 0)
    monkeypatch.setattr(heads, "CHUNK_BYTES", rows * VOCABULARY * 8)
    plain = torch.log_softmax
    monkeypatch.setattr(torch, "log_softmax", lambda x, dim: most.append(len(x)) or plain(x, dim))  # type: ignore[func-returns-value]
    sums, chunked = gradient(learner, batch, settings)
    assert apart(chunked, slope) < 1e-12
    assert sums["loss"] == pytest.approx(expected["loss"], rel=1e-12)
    if settings is WHOLE_ROWS:
        assert max(most) <= rows
        assert (sums["entropy"], sums["kl"]) == pytest.approx((expected["entropy"], expected["kl"]), rel=1e-12)
    else:
        assert most == []  # torch's own chunks


def test_entropy_without_logits_is_estimated_from_the_sampled_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, batch = Learner(tiny_model()), build64(family())
    monkeypatch.setattr(heads, "PLAIN_BYTES", 0)
    sums, _ = gradient(learner, batch, PLAIN)
    old = learner.score(batch, PLAIN.temperature, ["old"]).old
    assert old is not None and sums["entropy"] == pytest.approx(-float(old.sum()), rel=1e-12)


def test_a_pass_without_gradient_gives_the_log_probabilities_of_a_plain_forward() -> None:
    learner, sequences = anchored(), family()
    scored = learner.score(build64(sequences, max_row_tokens=8), 0.7, ["old", "reference"])
    expected = []
    for one in sequences:
        ids = one.token_ids.tolist()
        expected.append(learner.logprobs(ids[:1], ids[1:], 0.7)[one.trained[1:]])
    assert scored.old is not None and scored.reference is not None and scored.now is None
    assert torch.allclose(scored.old.float(), torch.cat(expected).float(), atol=1e-5)
    assert learner.reference is not None
    with learner.reference.in_place():
        again = learner.score(build64(sequences), 0.7, ["old"]).old
    assert again is not None and torch.allclose(scored.reference, again, atol=1e-6)


def small(config: Any, model: Any, **more: Any) -> Any:
    return model(config(**SIZES, **more))


@pytest.mark.parametrize(
    ("model", "separate"),
    [
        (lambda: tiny_model(), True),
        (lambda: tiny_model(bias=True), True),
        (lambda: small(Qwen3Config, Qwen3ForCausalLM), True),
        (lambda: small(Gemma2Config, Gemma2ForCausalLM, final_logit_softcapping=30.0), False),
        (lambda: small(Gemma2Config, Gemma2ForCausalLM, final_logit_softcapping=None), True),
        (lambda: small(CohereConfig, CohereForCausalLM, logit_scale=0.0625), False),
        (lambda: small(GraniteConfig, GraniteForCausalLM, logits_scaling=8.0), False),
        (lambda: small(Llama4TextConfig, Llama4ForCausalLM, intermediate_size_mlp=16, num_local_experts=2), False),
    ],
)
def test_models_that_change_their_logits_are_told(model: Any, separate: bool) -> None:
    made = model()
    assert is_separate(made.eval()) is separate
    assert not made.get_output_embeddings()._forward_hooks


def test_capped_logits_have_the_gradient_of_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = small(Gemma2Config, Gemma2ForCausalLM, final_logit_softcapping=0.5).double()
    learner, one = Learner(model), family(1)[0]
    monkeypatch.setattr(heads, "PLAIN_BYTES", 0)
    _, found = gradient(learner, build64([one]), PLAIN)
    learner.optimizer.zero_grad()
    rows = torch.log_softmax(
        model(input_ids=torch.from_numpy(one.token_ids)[None], use_cache=False).logits[0] / 0.7, -1
    )
    where = np.flatnonzero(one.trained)
    chosen = rows[where - 1, one.token_ids[where]]
    (-(chosen * torch.from_numpy(one.advantage[where])).sum() / 3.0).backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([own.grad.flatten() for own in learner.parameters.values() if own.grad is not None])
    assert apart(found, expected) < 1e-6


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ModelError, match="LlamaModel has no output head"):
        Learner(tiny_model().model)


def saved_bytes(learner: Learner, batch: Batch) -> int:
    """Bytes that the forward pass of a step keeps for the backward pass."""
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        learner.accumulate(batch, PLAIN)
    return sum(kept.values())


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["weights", "lora"])
def test_recomputed_layers_have_the_same_gradient_and_keep_less(lora: LoraSettings | None) -> None:
    plain, frugal = (Learner(tiny_model(), lora=lora, recompute=flag) for flag in (False, True))
    for learner in (plain, frugal):
        generator = torch.Generator().manual_seed(1)
        for own in learner.parameters.values():
            own.data.copy_(0.3 * torch.randn(own.shape, generator=generator, dtype=own.dtype))
    batch = build64(family())
    settings = dataclasses.replace(PLAIN, entropy_weight=0.1)
    expected, slope = gradient(plain, batch, settings)
    found, again = gradient(frugal, batch, settings)
    assert not any(module.training for module in frugal.model.modules())
    assert slope.norm() > 0 and apart(again, slope) < 1e-10
    assert found == pytest.approx(expected, rel=1e-12)
    assert saved_bytes(frugal, batch) < 0.5 * saved_bytes(plain, batch)


def gpt2() -> Any:
    """Another family; its norms are made in float64, so that equal means equal to the last digits."""
    sizes = {"vocab_size": VOCABULARY, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = GPT2Config(**sizes, resid_pdrop=0.5, attn_pdrop=0.5, embd_pdrop=0.5, initializer_range=0.3)
        return GPT2LMHeadModel(config).double()


def test_dropout_stays_off_where_layers_are_recomputed() -> None:
    learner = Learner(gpt2(), recompute=True)
    first, slope = gradient(learner, build64(family()), PLAIN)
    again, same = gradient(learner, build64(family()), PLAIN)
    assert first == again and torch.equal(slope, same)


def test_layers_that_are_not_known_are_refused() -> None:
    with pytest.raises(UsageError, match="recompute is not known for the layers of Linear"):
        recompute_layers(torch.nn.Linear(2, 2))


@given(
    max_row_tokens=st.integers(1, 40), token_budget=st.integers(1, 80), seed=st.integers(0, 9), parts=st.integers(1, 5)
)
@examples(max_examples=25, deadline=None)
def test_any_split_into_micro_batches_has_the_same_gradient(
    max_row_tokens: int, token_budget: int, seed: int, parts: int
) -> None:
    learner, sequences = Learner(gpt2()), family(8, seed=seed)
    _, whole = gradient(learner, build64(sequences), PLAIN)
    how = {"max_row_tokens": max_row_tokens, "token_budget": token_budget, "minibatches": parts, "seed": seed}
    batch = build64(sequences, **how)
    assert sorted(int(use) for micro in batch for use in micro.use) == list(range(batch.trained_tokens))
    _, split = gradient(learner, batch, PLAIN)
    assert apart(split, whole) < 1e-12
