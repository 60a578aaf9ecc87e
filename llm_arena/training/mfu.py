"""How well the learner uses its device: FLOPs that its step needs, by the FLOPs that its matrix products could do.

Model FLOPs utilization as in Chowdhery et al. 2022 (PaLM, arXiv:2204.02311, appendix B), with two differences. What
counts is needed once: tokens that sequences share, no padding, no pass that checkpointing repeats, no forward pass
without gradient. And the peak is measured, by the model's own layers alone on the learner's device, dtype and threads,
for a CPU's data sheet says little. So 1 is a learner that spends its whole time in matrix products at full rate; what
is missing is attention at its lower rate, softmax, padding, repeated prefixes, the optimizer. The rate is measured when
a run begins: on a machine that others use as well it moves with them, and the share may then be above 1.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from typing import Any

import torch

from llm_arena.training.batch import Batch
from llm_arena.training.learner import Learner

SECONDS = 0.6
"""At most about how long the rate is measured, once in a process for each kind of model."""
TRIES = 20
"""Enough for small models, which are done long before."""
FEWEST_ROWS, MOST_ROWS = 16, 512

Shape = tuple[int, int, bool]
"""Inputs, outputs, and whether the weight trains."""


class Meter:
    """Knows what one policy's learner needs for a batch, and what its device can do.

    Dense models only: of a mixture of experts it counts what stands in plain linear layers.

    Args:
        learner: whose rate is measured here.
    """

    def __init__(self, learner: Learner) -> None:
        model = learner.model
        head = model.get_output_embeddings()
        self._layers = Counter(
            _shape(module) for module in model.modules() if module is not head and _is_matrix(module)
        )
        self._per_token: int = sum(count * _flops(shape) for shape, count in self._layers.items())
        self._per_head_row = _flops(_shape(head))
        config = model.config.get_text_config()
        width: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._per_pair: int = 12 * config.num_hidden_layers * config.num_attention_heads * width
        self.rate: float = matrix_rate(
            tuple(sorted(self._layers.items())), learner.dtype, learner.device, torch.get_num_threads()
        )
        "FLOPs per second of the model's own matrix products, forward and backward."

    def flops(self, batch: Batch) -> float:
        """Returns the FLOPs that one pass over a batch needs, forward and backward.

        With P the parameters of all matrices but the head, T the unique tokens that go through the model, H the rows of
        the head, C the mean number of tokens that a token sees, and L layers of A heads of width D:

            6 P T + 6 (vocabulary * hidden) H + 12 L A D C T

        2 of each 6 are the weight's own gradient, and fall away for a weight that does not train: 4 with LoRA, whose
        adapters are counted with 6.
        """
        tokens = min(batch.unique_tokens, batch.computed_tokens)
        seen = sum(float((micro.position_ids + 1).sum()) for micro in batch) / max(batch.computed_tokens, 1)
        rows = sum(len(micro.heads) for micro in batch)
        return tokens * (self._per_token + self._per_pair * seen) + rows * self._per_head_row

    def share(self, batch: Batch, seconds: float, *, epochs: int = 1) -> float:
        """Returns the utilization of a step.

        Args:
            batch: what was learned.
            seconds: wall time of learning it.
            epochs: passes over it.
        """
        return epochs * self.flops(batch) / (max(seconds, 1e-9) * self.rate)


@functools.cache
def matrix_rate(layers: tuple[tuple[Shape, int], ...], dtype: torch.dtype, device: torch.device, threads: int) -> float:
    """Returns the FLOPs per second of products of these shapes, each as often as it is in `layers`.

    Forward and backward as a learner makes them: under bfloat16 autocast on CUDA. Of several tries the fastest counts.

    Args:
        layers: shapes and how many of each.
        dtype: of the weights.
        device: where.
        threads: torch's number of threads, which is part of what is measured.
    """
    with torch.random.fork_rng(devices=[]):  # tensors of zeros would be as fast on most devices, not on all
        torch.manual_seed(0)
        rows, best = FEWEST_ROWS, {shape: _seconds(shape, FEWEST_ROWS, dtype, device) for shape, _ in layers}
        ends = time.perf_counter() + SECONDS
        once = sum(best.values())
        if once < SECONDS:
            rows = int(min(MOST_ROWS, max(rows, rows * SECONDS / (4 * once))))
            best = {shape: _seconds(shape, rows, dtype, device) for shape, _ in layers}
        for _ in range(TRIES):
            if time.perf_counter() > ends:
                break
            for shape in best:
                best[shape] = min(best[shape], _seconds(shape, rows, dtype, device))
    needed = sum(count * rows * _flops(shape) for shape, count in layers)
    return needed / max(sum((count * best[shape] for shape, count in layers), 0.0), 1e-9)


def _seconds(shape: Shape, rows: int, dtype: torch.dtype, device: torch.device) -> float:
    """Returns the time of one product of `rows` rows with its backward pass."""
    inputs, outputs, trains = shape
    hidden = torch.randn(rows, inputs, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(outputs, inputs, dtype=dtype, device=device, requires_grad=trains)
    upstream = torch.ones(rows, outputs, device=device, dtype=torch.bfloat16 if device.type == "cuda" else dtype)
    _wait(device)
    began = time.perf_counter()
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        product = torch.nn.functional.linear(hidden, weight)
    product.backward(upstream)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _flops(shape: Shape) -> int:
    """Returns the FLOPs of one row through a layer: forward, gradient of the input, and gradient of the weight."""
    inputs, outputs, trains = shape
    return (6 if trains else 4) * inputs * outputs


def _is_matrix(module: torch.nn.Module) -> bool:
    weight = module._parameters.get("weight")  # its own: an adapter's wrapper shows its base layer's as well
    return isinstance(weight, torch.Tensor) and weight.dim() == 2 and not isinstance(module, torch.nn.Embedding)


def _shape(module: Any) -> Shape:
    outputs, inputs = module.weight.shape
    return inputs, outputs, module.weight.requires_grad
