"""Gradients of models whose layers look at more, or at less, than a mask shows: windows, convolutions, states."""

from __future__ import annotations

import math

import pytest
import torch
import transformers as tf

from gradient_parts import accumulated, naive_reinforce, random_credit, synthetic
from llm_arena.errors import TrainingError
from llm_arena.training.batch import build
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepSettings
from unbiased_parts import apart

V = 11
BASE = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.5,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MAMBA = {"mamba_d_ssm": 32, "mamba_n_heads": 2, "mamba_d_head": 16, "mamba_d_state": 4, "mamba_n_groups": 1}
MODELS = {
    "mistral": (lambda: tf.MistralForCausalLM(tf.MistralConfig(**BASE, head_dim=8, sliding_window=4)), 4),
    "gemma3": (lambda: tf.Gemma3ForCausalLM(tf.Gemma3TextConfig(**BASE, head_dim=8, sliding_window=9)), 9),
    "phi3": (lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**BASE, sliding_window=4)), 4),
    "qwen2, window off": (lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**BASE, sliding_window=4)), math.inf),
    "qwen3": (lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**BASE, head_dim=8)), math.inf),
    "lfm2": (lambda: tf.Lfm2ForCausalLM(tf.Lfm2Config(**BASE, layer_types=["conv", "full_attention"])), 0),
    "falcon_h1": (lambda: tf.FalconH1ForCausalLM(tf.FalconH1Config(**BASE, **MAMBA)), 0),
}


@pytest.mark.parametrize("name", MODELS)
def test_trees_are_as_deep_as_a_model_takes_them(name: str) -> None:
    make, depth = MODELS[name]
    traces, calls = [], []
    for number in range(3):
        trace, own = synthetic(30 + number, V, name=f"s{number}", turns=18)
        traces.append(trace)
        calls += own
    gained = random_credit(traces)
    torch.manual_seed(0)
    model = make().to(torch.float64).eval()
    naive = naive_reinforce(model, calls, gained, 3.0)
    learner = Learner(model)
    assert learner.max_tree_depth == depth
    sequences = train_sequences(traces, gained, policy="learner")
    batch = build(sequences, max_tree_depth=learner.max_tree_depth, dtype=torch.float64)
    shared = [micro.depth for micro in batch if micro.attention_mask is not None]
    assert bool(shared) == (depth > 4) and all(found <= depth for found in shared)
    learner.model.zero_grad(set_to_none=True)
    learner.accumulate(batch, StepSettings(lr=0.0, divisor=3.0))
    assert apart(accumulated(model), naive) < 1e-6
    if depth < math.inf:
        with pytest.raises(TrainingError, match=f"build the batch with max_tree_depth={depth}"):
            learner.accumulate(build(sequences, dtype=torch.float64), StepSettings(lr=0.0, divisor=3.0))
