"""Decoding one batch with a transformers model: prefill, key/value cache, sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from llm_arena.engines.base import Sampling
from llm_arena.engines.batching import Request
from llm_arena.errors import EngineError
from llm_arena.types import Completion

# Rows that have ended leave the batch when they are at least this share of it: leaving copies the cache.
_DROP_SHARE = 0.2

# Sampling first picks a block of so many ids, then an id in it: short sums instead of one long running sum.
_BLOCK = 256


class Batch:
    """Decoding of one batch. Tensor row r belongs to request `rows[r]`; requests leave as they end.

    Prompts are padded on the left, so that the newest id of every row stands in the last column; the padding is masked
    and positions count from the first real id. Without padding there is no mask, and attention takes its fast path.
    """

    def __init__(self, model: Any, requests: Sequence[Request], device: torch.device) -> None:
        self._model = model
        self._requests = requests
        self._device = device
        self._ids: list[list[int]] = [[] for _ in requests]
        self._logprobs: list[list[float]] = [[] for _ in requests]
        self._ended = [request.dropped for request in requests]
        self._uniforms = [_uniforms(request.sampling) for request in requests]
        self._cache = _roomy_cache(model, max(request.sampling.max_new_tokens for request in requests))
        self.rows = list(range(len(requests)))
        """Request of each tensor row; empty when all have ended."""
        self._prefill()

    def _prefill(self) -> None:
        """Computes each different prompt once, then copies its cache to all rows that share it."""
        prompts = {tuple(request.prompt_ids): None for request in self._requests}
        place = {prompt: index for index, prompt in enumerate(prompts)}
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.long)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = torch.tensor(prompt)
            mask[index, longest - len(prompt) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        self._mask = None if bool(mask.all()) else mask.to(self._device)
        self._forward(ids.to(self._device), positions.to(self._device))
        if len(prompts) < len(self._requests):
            self._take([place[tuple(request.prompt_ids)] for request in self._requests])

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor) -> None:
        """Feeds `ids` [R, N]; sets the logits [R, V], in float32, that follow the last id of each row."""
        output = self._model(
            input_ids=ids,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._logits: torch.Tensor = output.logits[:, -1].float()
        self._position: torch.Tensor = positions[:, -1]

    def _take(self, rows: list[int]) -> None:
        """Makes the batch of the given tensor rows; a row may be taken several times."""
        select = torch.tensor(rows, device=self._device)
        self._cache.batch_select_indices(select)
        self._logits = self._logits[select]
        self._position = self._position[select]
        self._mask = None if self._mask is None else self._mask[select]

    def step(self) -> None:
        """Samples one id for every request that goes on, and computes the logits of the next."""
        sampled, logprobs = self._draw()
        for request, token, logprob in zip(self.rows, sampled.tolist(), logprobs.tolist(), strict=True):
            if self._ended[request]:
                continue
            sampling = self._requests[request].sampling
            self._ids[request].append(token)
            self._logprobs[request].append(logprob)
            full = len(self._ids[request]) == sampling.max_new_tokens
            self._ended[request] = full or token in sampling.stop_ids or self._requests[request].dropped
        going = [row for row, request in enumerate(self.rows) if not self._ended[request]]
        if not going:
            self.rows = []
            return
        if len(going) <= (1 - _DROP_SHARE) * len(self.rows):
            self._take(going)
            self.rows = [self.rows[row] for row in going]
            sampled = sampled[torch.tensor(going, device=self._device)]
        if self._mask is not None:
            self._mask = torch.cat([self._mask, self._mask.new_ones(len(self.rows), 1)], dim=1)
        self._forward(sampled[:, None], self._position[:, None] + 1)

    def _draw(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (ids [R], their logprobs [R] in float32) for all tensor rows, by inverse CDF."""
        samplings = [self._requests[request].sampling for request in self.rows]
        # A row that has ended but is still in the batch draws with the number 0; its id is never read.
        numbers = [
            0.0 if self._ended[request] else float(self._uniforms[request][len(self._ids[request])])
            for request in self.rows
        ]
        heat = torch.tensor([[sampling.temperature or 1.0] for sampling in samplings], device=self._device)
        logprobs = torch.log_softmax(self._logits / heat, dim=-1)
        ids = _inverse_cdf(logprobs.exp(), torch.tensor(numbers, dtype=torch.float64, device=self._device))
        greedy = torch.tensor([sampling.temperature == 0 for sampling in samplings], device=self._device)
        if bool(greedy.any()):
            ids = torch.where(greedy, self._logits.argmax(-1), ids)
        chosen = logprobs.gather(1, ids[:, None])[:, 0]
        if not bool(chosen.isfinite().all()):
            raise EngineError("the model's logits are not finite; its weights are broken")
        return ids, chosen

    def completions(self) -> list[Completion]:
        """Returns the completions, in the order of the requests."""
        return [
            Completion(
                token_ids=ids,
                logprobs=logprobs,
                finish="stop" if ids and ids[-1] in request.sampling.stop_ids else "length",
            )
            for request, ids, logprobs in zip(self._requests, self._ids, self._logprobs, strict=True)
        ]


def _uniforms(sampling: Sampling) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Returns one number in [0, 1) for each id that may come [T]."""
    return np.random.Generator(np.random.Philox(sampling.seed % 2**64)).random(sampling.max_new_tokens)


def _inverse_cdf(probabilities: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Returns for each row the first id whose cumulative probability exceeds the row's number [R].

    Args:
        probabilities: [R, V] in float32; they need not sum to exactly 1.
        numbers: [R] in float64, at least 0 and below 1.
    """
    rows, size = probabilities.shape
    blocks = torch.nn.functional.pad(probabilities, (0, -size % _BLOCK)).view(rows, -1, _BLOCK)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    block, rest = _pick(ends, numbers * ends[:, -1])
    inner = blocks[torch.arange(rows, device=blocks.device), block].cumsum(-1, dtype=torch.float64)
    return (block * _BLOCK + _pick(inner, rest)[0]).clamp(max=size - 1)


def _pick(ends: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the first place in each row of `ends` [R, N] above its target [R], and the target less what is before."""
    # Below the last end even after rounding, so that the place exists and has a probability above 0.
    below = torch.minimum(targets, torch.nextafter(ends[:, -1], torch.zeros_like(targets)))
    # NaN is above everything; the caller finds it in the logprob of the id.
    place = torch.searchsorted(ends, below[:, None], right=True).clamp(max=ends.shape[1] - 1)
    before = torch.where(place > 0, ends.gather(1, (place - 1).clamp(min=0)), 0.0)
    return place[:, 0], below - before[:, 0]


class _RoomyLayer(DynamicLayer):
    """A cache layer with room for the tokens to come, so that a step writes one column instead of copying all."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._space: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends keys and values [R, H, N, D]; returns all so far [R, H, L, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        if self._space is None or after > self._space[0].shape[-2]:
            old = self.keys, self.values
            self._space = self._roomy(key_states, before, after), self._roomy(value_states, before, after)
            for space, states in zip(self._space, old, strict=True):
                if before and states is not None:
                    space[..., :before, :] = states
        keys, values = self._space
        keys[..., before:after, :] = key_states
        values[..., before:after, :] = value_states
        self.keys, self.values = keys[..., :after, :], values[..., :after, :]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Makes the cache of the given rows; the room is made anew with the next token."""
        super().batch_select_indices(indices)
        self._space = None

    def _roomy(self, states: torch.Tensor, before: int, after: int) -> torch.Tensor:
        rows, heads, _, size = states.shape
        return states.new_empty(rows, heads, after + (self._room if before else 0), size)


def _roomy_cache(model: Any, room: int) -> DynamicCache:
    """Returns an empty cache; its plain layers have room for `room` tokens after the prompt."""
    cache = DynamicCache(config=model.config)
    cache.layers = [_RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache
