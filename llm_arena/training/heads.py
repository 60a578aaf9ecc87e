"""What the output head says of the trained tokens of one micro-batch.

The head runs only at positions whose next token is trained. With a vocabulary of 49,152 ids a row of its logits takes
192 KiB, so they decide how much memory a step takes. There are three ways:

- plain: all rows at once, while their logits take at most `PLAIN_BYTES`. The fastest, and the exact entropy costs
  little beside it.
- chunked by `torch.nn.functional.linear_cross_entropy`: rows in chunks of `CHUNK_BYTES` that the backward pass computes
  once more. The least memory, but log-probabilities of the trained tokens are all that it gives.
- chunked by checkpoints: the same, for what needs whole rows (entropy bonus, exact KL to a reference), for heads that
  are no plain linear layers, and in 16 bits, where log-softmax is made in float32.

Measured with 2,048 rows of SmolLM2-135M (hidden 576, float32, one core of an AMD EPYC, CPU seconds forward and
backward, and memory above the weights): plain 2.3 s and 920 MB, checkpoints of 512 rows 4.5 s and 590 MB,
`linear_cross_entropy` by 512 rows 5.3 s and 310 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from llm_arena.engines.onednn import OneDnnLinear
from llm_arena.errors import ModelError
from llm_arena.training import losses
from llm_arena.training.batch import MicroBatch

PLAIN_BYTES = 1 << 29
"""Most bytes of the logits of one micro-batch that are kept whole. With an entropy bonus or an exact KL it takes about
three times as much."""
CHUNK_BYTES = 1 << 26
"""Most bytes of the logits of a chunk, where they are not kept whole."""


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Of one micro-batch: U uses, at P positions whose next token is trained."""

    chosen: Tensor
    "[U] log-probability of each trained token, with gradient."
    counts: Tensor
    "[P] uses of each position."
    head_of: Tensor
    "[U] position of each use."
    entropy: Tensor | None
    """[P] in nats, exact over the vocabulary, with gradient if that was asked for. None where logits were not kept:
    there minus the mean log-probability of the trained tokens is an unbiased estimate, if they are fresh samples."""
    kl: Tensor | None
    "[P] KL(policy || reference) in nats, exact, with gradient; None unless it was asked for."


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What the head is given at the P predicting positions, and the head's weights that belong to it."""

    values: Tensor
    "[P, H] hidden states, or [P, V] logits of a model that does more than a linear head."
    weights: dict[str, Tensor]
    "Of the head, by name; empty if `values` are logits."

    @property
    def are_logits(self) -> bool:
        """Whether the model has made the logits itself."""
        return not self.weights


class Head:
    """The output head of a causal language model.

    Args:
        model: a transformers causal LM.

    Raises:
        ModelError: it has no output head.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._module: nn.Module = _head_of(model)
        self._is_separate = is_separate(model)
        self._is_linear = self._is_separate and type(self._module) in (nn.Linear, OneDnnLinear)

    def rows(self, inputs: dict[str, Any], positions: Tensor) -> Rows:
        """Makes the forward pass up to the head.

        Args:
            inputs: of the model, [B, L].
            positions: [P] in the flattened [B * L].
        """
        if not self._is_separate:
            return Rows(values=self._model(**inputs).logits.flatten(0, 1)[positions], weights={})
        hidden = self._model.base_model(**inputs).last_hidden_state.flatten(0, 1)[positions]
        return Rows(values=hidden, weights=dict(self._module.named_parameters()))

    def frozen_rows(self, inputs: dict[str, Any], positions: Tensor) -> Rows:
        """Returns `rows` without gradient, which stay what they are when other weights take the model's places."""
        with torch.no_grad():
            found = self.rows(inputs, positions)
        return Rows(values=found.values, weights={name: weight.data for name, weight in found.weights.items()})

    def predictions(
        self,
        rows: Rows,
        micro: MicroBatch,
        temperature: float,
        *,
        entropy: bool = False,
        reference: Rows | None = None,
    ) -> Predictions:
        """Returns what the head says of the trained tokens.

        Args:
            rows: of the weights that are asked.
            micro: whose trained tokens.
            temperature: of the distribution.
            entropy: whether it is needed with its gradient. Without, it is only a by-product of the plain way.
            reference: frozen rows of the reference, if the KL to it is needed.
        """
        wide = len(rows.values) * self._row_bytes(rows) > PLAIN_BYTES
        is_float = rows.values.dtype in (torch.float32, torch.float64)
        if wide and self._is_linear and is_float and not entropy and reference is None:
            chosen = self._by_cross_entropy(rows, micro, temperature)
            return Predictions(chosen=chosen, counts=micro.counts, head_of=micro.head_of, entropy=None, kl=None)
        if not wide or rows.are_logits:
            if not entropy and reference is None:
                logits = self._logits(rows, slice(None))
                chosen, spread = _Chosen.apply(logits, micro.head_of, micro.target, temperature)
                return Predictions(chosen=chosen, counts=micro.counts, head_of=micro.head_of, entropy=spread, kl=None)
            logprobs = self._logprobs(rows, slice(None), temperature)
            others = None if reference is None else self._logprobs(reference, slice(None), temperature)
            return Predictions(
                chosen=logprobs[micro.head_of, micro.target],
                counts=micro.counts,
                head_of=micro.head_of,
                entropy=losses.entropy(logprobs if entropy else logprobs.detach()),
                kl=None if others is None else losses.kl(logprobs, others),
            )
        return self._by_checkpoints(rows, micro, temperature, entropy, reference)

    def _by_cross_entropy(self, rows: Rows, micro: MicroBatch, temperature: float) -> Tensor:
        hidden = rows.values[micro.head_of]
        found = functional.linear_cross_entropy(
            hidden if temperature == 1 else hidden / temperature,
            rows.weights["weight"],
            micro.target,
            linear_bias=None if "bias" not in rows.weights else rows.weights["bias"] / temperature,
            reduction="none",
            options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=self._chunk(rows)),
        )
        return -found

    def _by_checkpoints(
        self, rows: Rows, micro: MicroBatch, temperature: float, entropy: bool, reference: Rows | None
    ) -> Predictions:
        order = micro.head_of.argsort(stable=True)
        first_use = torch.cat([torch.zeros_like(micro.head_of[:1]), micro.head_of.bincount().cumsum(0)]).tolist()

        def part(at: slice, head_of: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
            logprobs = self._logprobs(rows, at, temperature)
            others = None if reference is None else self._logprobs(reference, at, temperature)
            return (
                logprobs[head_of - at.start, target],
                losses.entropy(logprobs) if entropy else None,
                None if others is None else losses.kl(logprobs, others),
            )

        found = []
        for at in self._chunks(rows):
            uses = order[first_use[at.start] : first_use[at.stop]]
            given = (at, micro.head_of[uses], micro.target[uses])
            found.append(checkpoint(part, *given, use_reentrant=False, preserve_rng_state=False))
        chosen, spread, kl = zip(*found, strict=True)
        return Predictions(
            chosen=torch.cat(chosen)[order.argsort()],
            counts=micro.counts,
            head_of=micro.head_of,
            entropy=torch.cat(spread) if entropy else None,
            kl=None if reference is None else torch.cat(kl),
        )

    def _logprobs(self, rows: Rows, at: slice, temperature: float) -> Tensor:
        """Returns log-probabilities [P, V] over the whole vocabulary at some of the rows."""
        logits = self._logits(rows, at)
        return torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)

    def _logits(self, rows: Rows, at: slice) -> Tensor:
        """Returns logits [P, V], in float32 at least."""
        logits = rows.values[at]
        if not rows.are_logits:
            logits = torch.func.functional_call(self._module, rows.weights, (logits,))
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits

    def _row_bytes(self, rows: Rows) -> int:
        vocabulary = rows.values.shape[-1] if rows.are_logits else rows.weights["weight"].shape[0]
        return int(vocabulary) * max(4, rows.values.element_size())  # log-softmax is made in float32 at least

    def _chunk(self, rows: Rows) -> int:
        return max(1, CHUNK_BYTES // self._row_bytes(rows))

    def _chunks(self, rows: Rows) -> Iterator[slice]:
        size, count = self._chunk(rows), len(rows.values)
        return (slice(start, min(start + size, count)) for start in range(0, count, size))


class _Chosen(torch.autograd.Function):
    """Log-probabilities [U] of chosen ids, and entropy [P] of their rows, from logits [P, V] that nobody else needs.

    The logits' memory holds first the log-probabilities and then the gradient, and all is done a few rows at a time,
    which stay in the processor's cache meanwhile. Row by row it is what torch's own functions do.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, head_of: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        held = logits.detach()
        entropy = held.new_empty(len(held))
        for at in _steps(held):
            rows = held[at] if temperature == 1 else held[at] / temperature
            held[at] = rows = torch.log_softmax(rows, dim=-1)
            entropy[at] = losses.entropy(rows)
        ctx.held, ctx.where, ctx.temperature = held, (head_of, target), temperature
        ctx.mark_non_differentiable(entropy)
        return held[head_of, target], entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        held, (head_of, target) = ctx.held, ctx.where
        del ctx.held  # its memory becomes the gradient's, so there is no second time
        order = head_of.argsort(stable=True)
        first = [0, *head_of.bincount(minlength=len(held)).cumsum(0).tolist()]
        for at in _steps(held):
            uses = order[first[at.start] : first[at.stop]]
            rows = torch.zeros_like(held[at])
            rows.index_put_((head_of[uses] - at.start, target[uses]), grad[uses], accumulate=True)
            rows = torch._log_softmax_backward_data(rows, held[at], -1, held.dtype)
            held[at] = rows if ctx.temperature == 1 else rows / ctx.temperature
        return held, None, None, None


def _steps(rows: Tensor) -> Iterator[slice]:
    """Cuts rows [P, V] into pieces that stay in cache; on other devices into few."""
    size = (2 << 20) * torch.get_num_threads() if rows.device.type == "cpu" else CHUNK_BYTES
    count = max(1, size // max(1, rows.shape[1] * rows.element_size()))
    return (slice(start, min(start + count, len(rows))) for start in range(0, len(rows), count))


def _head_of(model: Any) -> nn.Module:
    head = model.get_output_embeddings()
    if head is None or not hasattr(model, "base_model"):
        raise ModelError(f"{type(model).__name__} has no output head: not a causal language model")
    return head  # type: ignore[no-any-return]  # transformers leaves the type open


def is_separate(model: Any) -> bool:
    """Whether logits are just the output head over the last hidden state, so that the head may run on few positions.

    Some families scale or cap the logits after the head, or scale what goes into it; they take the slower way. They
    are told by what comes out when the head is made to say something else: large numbers, on which no cap is small.

    Raises:
        ModelError: the model has no output head.
    """
    head = _head_of(model)
    given: list[Tensor] = []

    def say(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        given.append(args[0])
        return torch.linspace(-100, 100, output.numel(), dtype=output.dtype, device=output.device).view_as(output)

    ids = torch.arange(2, device=next(model.parameters()).device)[None]
    hook = head.register_forward_hook(say)
    try:
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits
            hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            said = head(hidden)
    except AttributeError:  # its base model gives something else
        return False
    finally:
        hook.remove()
    return bool(torch.equal(logits, said)) and bool(torch.allclose(given[0], hidden, rtol=1e-5, atol=1e-6))
