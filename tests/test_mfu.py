"""The FLOPs of a step, worked by hand, and the rate they are compared with."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from llm_arena.training import batch as batches
from llm_arena.training import mfu
from llm_arena.training.batch import Batch
from llm_arena.training.learner import Learner
from llm_arena.training.lora import LoraSettings
from llm_arena.training.mfu import Meter, matrix_rate
from model_parts import two_sequences

PER_LAYER = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 16  # queries, keys and values, output, the MLP's three
ADAPTERS = 2 * (16 + 12 + 12 + 16 + 3 * 24)  # of rank 2: (inputs + outputs) * 2
HEAD = 32 * 8
ATTENTION = 12 * 2 * 2 * 4  # layers, heads, width


def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def batch() -> Batch:
    """Sequences `1 2 | 7` and `1 2 | 8 9`: the nodes 1, 2 and 8 go through the model, two of them through the head."""
    return batches.build(two_sequences())


def test_what_a_step_needs_is_counted_by_hand() -> None:
    seen = (1 + 2 + 3) / 3
    whole = 3 * (6 * 2 * PER_LAYER + ATTENTION * seen) + 2 * 6 * HEAD
    assert whole == 24960
    assert Meter(Learner(model())).flops(batch()) == whole
    adapter = Meter(Learner(model(), lora=LoraSettings(rank=2, alpha=4.0, targets="all-linear"))).flops(batch())
    assert adapter == 3 * (4 * 2 * PER_LAYER + 6 * 2 * ADAPTERS + ATTENTION * seen) + 2 * 4 * HEAD


def test_the_share_is_of_the_measured_rate() -> None:
    meter = Meter(Learner(model()))
    meter.rate = 1e6
    assert meter.share(batch(), 0.1) == pytest.approx(24960 / 1e5)
    assert meter.share(batch(), 0.1, epochs=3) == pytest.approx(3 * 24960 / 1e5)
    empty = batches.build([])
    assert meter.share(empty, 0.1) == 0


def test_the_rate_is_measured_once_and_leaves_the_random_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mfu, "SECONDS", 0.02)
    before = torch.random.get_rng_state()
    given = ((((64, 32, True), 2), ((32, 64, False), 1)), torch.float64, torch.device("cpu"), 1)
    rate = matrix_rate(*given)
    assert 1e6 < rate < 1e15
    assert torch.equal(before, torch.random.get_rng_state())
    monkeypatch.setattr(mfu, "_seconds", None)
    assert matrix_rate(*given) == rate
