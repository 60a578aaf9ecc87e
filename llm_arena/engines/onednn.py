"""Linear layers by oneDNN, in float32 on x86 CPUs.

PyTorch's CPU builds multiply float32 matrices by MKL, which on AMD processors does not use AVX-512. oneDNN, which the
same builds contain, does. Measured on one core of an AMD EPYC (family 26) with the shapes of SmolLM2-135M: about 230
against 105 GFLOP/s for 64 and more rows, in the forward product and in both backward products. The results are plain
float32 products, only summed in another order.
"""

from __future__ import annotations

import platform
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_MIN_WEIGHTS = 1 << 16
"""Smaller layers gain nothing: a call of oneDNN costs about 10 microseconds more."""


class OneDnnLinear(nn.Linear):
    """A linear layer that multiplies by oneDNN, and by PyTorch's own way where that does not apply."""

    def forward(self, input: Tensor) -> Tensor:
        """Returns `input @ weight.T + bias` [..., out_features]."""
        plain = input.dtype != torch.float32 or input.device.type != "cpu" or input.numel() == 0
        if plain or self.weight.dtype != torch.float32 or torch.is_autocast_enabled("cpu"):
            return functional.linear(input, self.weight, self.bias)
        if torch.is_grad_enabled():
            product: Tensor = _Product.apply(input, self.weight, self.bias)
            return product
        return _multiply(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    """The product with its gradients; all three are products of the same kind."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _multiply(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            _multiply(grad, weight.t(), None) if wants_input else None,
            _multiply(rows.t(), input.reshape(-1, input.shape[-1]).t(), None) if wants_weight else None,
            rows.sum(0) if wants_bias else None,
        )


def _multiply(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return product


def use_onednn(model: nn.Module) -> int:
    """Turns the large linear layers of `model` into `OneDnnLinear`, in place, where this machine has oneDNN.

    Parameters, names and what is saved stay as they were. Layers that were derived from `nn.Linear` are left alone.

    Returns:
        How many layers were turned.
    """
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not (x86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
        return 0
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and layer.weight.numel() >= _MIN_WEIGHTS]
    for layer in layers:
        layer.__class__ = OneDnnLinear
    return len(layers)
