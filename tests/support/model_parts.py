"""Random models of a few thousand parameters, and something to train them on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from llm_arena.training.batch import TrainSequence

VOCABULARY = 13


def small_llama(*, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """Returns a Llama with 13 ids whose replies depend on the prompt; `changes` are of its configuration."""
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=24,
        max_position_embeddings=64,
        initializer_range=0.3,
        **{
            "vocab_size": VOCABULARY,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            **changes,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).to(dtype)  # type: ignore[arg-type,no-untyped-call]


def two_sequences() -> list[TrainSequence]:
    """Returns `1 2 | 7` and `1 2 | 8 9`, trained after the bar."""
    return [
        TrainSequence(
            token_ids=np.array(ids),
            trained=np.arange(len(ids)) >= 2,
            advantage=np.ones(len(ids)),
            behaviour=np.zeros(len(ids)),
        )
        for ids in ([1, 2, 7], [1, 2, 8, 9])
    ]
