"""The model that self-play is held to: a slow average of the weights in training, or those that training began with.

It is kept as tensors that take the places of the trained ones for the length of a forward pass. So it costs as much
memory as what trains, which for an adapter is little, and nothing at all where it is the adapter's base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from llm_arena.training.lora import Adapter

Kind = Literal["ema", "initial"]


class Reference:
    """The reference of one learner.

    Args:
        kind: `ema` follows the parameters by `follow`, `initial` stays.
        parameters: those that train, as they are at the start.
        adapter: that they belong to, if they do. An adapter starts without effect, so the initial model is its base.
    """

    def __init__(self, kind: Kind, parameters: Mapping[str, nn.Parameter], adapter: Adapter | None) -> None:
        self._parameters = parameters
        self._adapter = adapter if kind == "initial" else None
        self.moves = kind == "ema"
        self.tensors: dict[str, Tensor] = {}
        "By the names of the parameters; empty where the reference is the adapter's base."
        if self._adapter is None:
            self.tensors = {name: parameter.data.clone() for name, parameter in parameters.items()}

    def follow(self, decay: float) -> None:
        """Moves the slow average: `decay * average + (1 - decay) * parameters`. Nothing else moves."""
        if self.moves:
            now = [parameter.data for parameter in self._parameters.values()]
            torch._foreach_lerp_(list(self.tensors.values()), now, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Turns the model into the reference for a while. No graph may be open, for it would see other tensors."""
        if self._adapter is not None:
            with self._adapter.disabled():
                yield
            return
        own = {name: parameter.data for name, parameter in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.data = self.tensors[name]
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = own[name]
