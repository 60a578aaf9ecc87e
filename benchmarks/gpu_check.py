"""What only a CUDA device can show: flex_attention's gradient, and the learner's speed and memory there.

    python benchmarks/gpu_check.py

Needs no network and takes under 8 minutes. It has not been run on a GPU yet: the project was written on CPUs. Without a
CUDA device it says so and prints {"cuda": false}.

1. Gradients along trees, flex_attention against the dense mask: of queries, keys and values in float32, and of a small
   model in the learner's own bfloat16 autocast, where they can only be about a hundredth apart.
2. A random model of 0.5B parameters, bfloat16 autocast, on 8 groups of 8 long sequences: tokens per second (all tokens
   of the batch, as if nothing were shared), MFU (of the products that each way makes) and peak memory, for `naive`
   (each sequence alone), `packed` (rows of similar length together) and `tree`. The peak rate is measured, by a square
   product in bfloat16.
3. vLLM, if it imports, is only named with its version.

The last line is JSON.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from llm_arena.training import attention
from llm_arena.training.batch import TrainSequence, build
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepSettings

SETTINGS = StepSettings(lr=0.0, divisor=1.0)
WAYS = {"naive": (1, 1), "packed": (1, 16384), "tree": (16384, 16384)}
"""Largest row and token budget of each way."""


def main() -> None:
    """Makes all checks and prints what they found."""
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing was checked")
        print(json.dumps({"cuda": False}))
        return
    report: dict[str, Any] = {"cuda": True, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    report["vllm"] = version("vllm") if importlib.util.find_spec("vllm") else None
    report["flex_gradient_error"] = _attention_error()
    report["flex_learner_error"] = _learner_error()
    print(f"flex_attention against the dense mask: {report}", flush=True)
    report["peak_tflops"] = round(_peak_rate() / 1e12, 1)
    learner = Learner(_model(layers=24, hidden=896, inner=4864, heads=14, key_heads=2, vocabulary=151936))
    for name, (row, budget) in WAYS.items():
        report[name] = _speed(learner, row, budget, report["peak_tflops"] * 1e12)
        print(f"{name}: {report[name]}", flush=True)
    print(json.dumps(report))


def _model(*, layers: int, hidden: int, inner: int, heads: int, key_heads: int, vocabulary: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return model.cuda()


def _groups(groups: int, prompt: int, sampled: int, vocabulary: int) -> list[TrainSequence]:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(groups):
        start = rng.integers(0, vocabulary, prompt)
        for _ in range(8):
            ids = np.concatenate([start, rng.integers(0, vocabulary, sampled)])
            found.append(
                TrainSequence(
                    token_ids=ids,
                    trained=np.arange(len(ids)) >= prompt,
                    advantage=np.full(len(ids), rng.normal()),
                    behaviour=np.full(len(ids), -10.0),
                )
            )
    return found


def _attention_error() -> float:
    """Returns the distance of the two gradients of one layer's attention, by the length of the dense mask's."""
    torch.manual_seed(0)
    end = np.full((1, 1024), 1024)
    for first in range(200, 1024, 100):  # a stem of 200 nodes, branches of 100
        end[0, first : first + 100] = min(first + 100, 1024)
    given = [torch.randn(1, heads, 1024, 64, device="cuda", requires_grad=True) for heads in (8, 2, 2)]
    weights = torch.randn(1, 8, 1024, 64, device="cuda")
    mask = attention.tree_mask(end, "cuda")
    query, key, value = given
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key.repeat_interleave(4, 1), value.repeat_interleave(4, 1), attn_mask=mask, scale=0.125
    )
    flex = attention.along_flex(query, key, value, attention.flex_mask(torch.from_numpy(end).cuda()), 0.125)
    expected, found = (
        torch.cat([slope.flatten() for slope in torch.autograd.grad((output * weights).sum(), given)])
        for output in (dense, flex)
    )
    return float((found - expected).norm() / expected.norm())


def _learner_error() -> float:
    """Returns the same of the whole gradient of a small model."""
    learner = Learner(_model(layers=2, hidden=256, inner=512, heads=4, key_heads=2, vocabulary=1000))
    sequences = _groups(2, 300, 100, 1000)
    found = []
    limit = attention.DENSE_TOKENS
    for tokens in (1 << 30, limit):
        attention.DENSE_TOKENS = tokens
        learner.optimizer.zero_grad()
        learner.accumulate(build(sequences, device="cuda"), SETTINGS)
        found.append(torch.cat([own.grad.flatten() for own in learner.parameters.values() if own.grad is not None]))
    attention.DENSE_TOKENS = limit
    return float((found[1] - found[0]).norm() / found[0].norm())


def _peak_rate() -> float:
    """Returns floating point operations per second of a square product in bfloat16."""
    size, repeats = 8192, 20
    one = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    one @ one
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        one @ one
    torch.cuda.synchronize()
    return 2 * size**3 * repeats / (time.perf_counter() - began)


def _speed(learner: Learner, row: int, budget: int, peak_rate: float) -> dict[str, float]:
    sequences = _groups(8, 1024, 256, 151936)
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        learner.optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        began = time.perf_counter()
        batch = build(sequences, device="cuda", max_row_tokens=row, token_budget=budget)
        learner.accumulate(batch, SETTINGS)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    taken = statistics.median(seconds[1:])  # the first one compiles
    head = learner.model.get_output_embeddings().weight.numel()
    body = sum(own.numel() for own in learner.parameters.values()) - head
    rows = sum(len(micro.heads) for micro in batch)
    return {
        "seconds": round(taken, 3),
        "tokens_per_second": round(batch.total_tokens / taken),
        "mfu": round(6 * (body * batch.computed_tokens + head * rows) / taken / peak_rate, 3),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
    }


if __name__ == "__main__":
    main()
