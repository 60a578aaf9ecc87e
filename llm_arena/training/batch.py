"""Sequences to batches in which every shared prefix is computed once.

The sequences of a batch share prefixes: the rules text, the topic, the moves so far. Merged into prefix trees (see
`trees`), each unique token goes through the model once. What the loss needs of each trained token stands in one flat
table for the whole batch; a micro-batch holds its model inputs, and where in that table its tokens are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from llm_arena.training import trees
from llm_arena.training.attention import tree_mask
from llm_arena.training.trees import Branch, Ids, Row

PADDING_SHARE = 0.04
"""Rows join a micro-batch while padding stays below this share of it."""
PADDING_TOKENS = 64
"""Padding that is cheaper than another forward pass, in tokens."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TrainSequence:
    """One token stream with what the loss needs, each array aligned to tokens [L]."""

    token_ids: Ids
    trained: NDArray[np.bool_]
    "True on the tokens that get a loss. Never on the first, which has no context."
    advantage: Floats
    behaviour: Floats
    "Log-probability at sampling time, where `trained`."
    unit: Ids | None = None
    "Where `trained`, a number for the turn that sampled the token, unique in the batch. None: all of one turn."
    trace_unit: int | None = None
    "A number for the trace and the policy, unique in the batch. None: this sequence is all of it."
    seat_unit: int | None = None
    "A number for the trace and the seat, likewise."

    def __post_init__(self) -> None:
        """Checks the shapes.

        Raises:
            ValueError: arrays of different length, or a trained token without context.
        """
        aligned = [self.token_ids, self.trained, self.advantage, self.behaviour]
        lengths = {len(array) for array in (aligned if self.unit is None else [*aligned, self.unit])}
        if len(lengths) != 1:
            raise ValueError(
                f"token_ids, trained, advantage, behaviour and unit have different lengths: {sorted(lengths)}"
            )
        if len(self.trained) and self.trained[0]:
            raise ValueError("the first token of a sequence has no context and can't be trained; a prompt is missing")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The trained tokens of a batch, N of them: sequences in the order given, then by position.

    The first five columns come with the batch. The others are None until a pass before the updates fills them.
    """

    advantage: Tensor
    "[N]"
    behaviour: Tensor
    "[N] log-probability at sampling time."
    turn: Tensor
    "[N] which turn sampled it, numbered from 0 without gaps."
    trace: Tensor
    "[N] which (trace, policy) it belongs to, numbered likewise."
    seat: Tensor
    "[N] which (trace, seat), numbered likewise."
    whole_turns: bool
    "Whether each turn's tokens stand in one sequence, and so in one micro-batch, as those of a recorded trace do."
    old: Tensor | None = None
    "[N] log-probability before the step's first update."
    reference: Tensor | None = None
    "[N] log-probability under the reference."
    now: Tensor | None = None
    "[N] log-probability before this update, where a loss needs whole turns or traces of them."
    ratio: Tensor | None = None
    "[N] importance ratio of the token's whole trace, before it is cut."
    unit_log_ratio: Tensor | None = None
    "[N] mean log ratio of the token's whole turn or trace."
    share: Tensor | None = None
    "[N] 1 / number of trained tokens of the token's turn or trace, where the loss is a mean by these."
    kl_to_go: Tensor | None = None
    "[N] summed log-probability over the reference's of the seat's tokens from this one on, where that is a reward."

    def __len__(self) -> int:
        """Returns N."""
        return len(self.advantage)

    @property
    def turns(self) -> int:
        """How many turns have trained tokens."""
        return int(self.turn.max()) + 1 if len(self) else 0

    @property
    def traces(self) -> int:
        """How many traces have trained tokens."""
        return int(self.trace.max()) + 1 if len(self) else 0


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows of similar length, padded to one length: B rows of L tokens, P predicting positions, U uses."""

    input_ids: Tensor
    "[B, L]"
    position_ids: Tensor
    "[B, L]"
    attention_mask: Tensor | None
    "[B, 1, L, L], True where the query (third axis) may look; None for plain causal attention."
    depth: int
    "Tokens of the longest sequence in it."
    heads: Tensor
    "[P] positions in the flattened [B * L] whose next token is trained."
    counts: Tensor
    "[P] how many uses each of them has."
    head_of: Tensor
    "[U] index into `heads` of each use."
    target: Tensor
    "[U] the trained id."
    use: Tensor
    "[U] index into the batch's tokens."


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The micro-batches of one step, and how much sharing saved."""

    parts: list[list[MicroBatch]]
    "The micro-batches of each minibatch."
    tokens: Tokens
    total_tokens: int
    "Tokens of all sequences."
    unique_tokens: int
    "Nodes of the prefix trees over the whole batch."
    computed_tokens: int
    "Tokens that go through the model, padding and repeated prefixes included."

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yields the micro-batches of all minibatches."""
        return itertools.chain.from_iterable(self.parts)

    @property
    def trained_tokens(self) -> int:
        """How many tokens get a loss."""
        return len(self.tokens)

    @property
    def unique_ratio(self) -> float:
        """Unique tokens by total tokens; the ideal speed-up is its inverse."""
        return self.unique_tokens / max(self.total_tokens, 1)


def build(
    sequences: Sequence[TrainSequence],
    *,
    max_row_tokens: int = 2048,
    max_tree_depth: float = math.inf,
    token_budget: int = 2048,
    minibatches: int = 1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Batch:
    """Merges sequences into prefix trees and packs the trees into micro-batches.

    Args:
        sequences: in any order; the gradient doesn't depend on it.
        max_row_tokens: a tree larger than this is cut so that the fewest tokens are repeated; one sequence, and what it
            begins with, stays whole.
        max_tree_depth: sequences longer than this share with what they begin with only; `Learner.max_tree_depth` is
            what a model can do.
        token_budget: most tokens (padding included) of a micro-batch, unless one row alone is larger.
        minibatches: how many parts to deal the trees into, as equal in number as can be. Where there are fewer trees,
            they are cut smaller; there are never more parts than sequences with something to train.
        seed: of the dealing. With one minibatch nothing depends on it.
        dtype: of advantages and behaviour log-probabilities.
        device: of all tensors.
    """
    full = trees.ordered([sequence.token_ids for sequence in sequences])
    first_use = itertools.accumulate((int(sequence.trained.sum()) for sequence in sequences), initial=0)
    branches = [
        Branch.of(sequence.token_ids, sequence.trained, first)
        for sequence, first in zip(sequences, first_use, strict=False)  # the last sum is the number of all
        if sequence.trained.any()
    ]
    rows = list(trees.rows(branches, max_row_tokens, max_tree_depth, minibatches))
    if minibatches > 1:
        rows = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
    dealt = [rows[first::minibatches] for first in range(min(minibatches, len(rows)))]
    parts = [_packed(part, max_tree_depth, token_budget, dtype, device) for part in dealt]
    return Batch(
        parts=parts,
        tokens=_table(sequences, dtype, device),
        total_tokens=sum(len(sequence.token_ids) for sequence in sequences),
        unique_tokens=trees.unique_tokens([sequences[index].token_ids for index in full]),
        computed_tokens=sum(micro.input_ids.numel() for part in parts for micro in part),
    )


def _table(sequences: Sequence[TrainSequence], dtype: torch.dtype, device: str | torch.device) -> Tokens:
    """Returns the table of trained tokens as far as it is known from the sequences."""

    def column(arrays: Sequence[NDArray[np.generic]], kind: type[np.generic]) -> Tensor:
        picked = [array[one.trained] for array, one in zip(arrays, sequences, strict=True)]
        return torch.from_numpy(np.concatenate([np.empty(0, kind), *picked]))

    def units(given: Sequence[Ids | None]) -> Tensor:
        own = 1 + max((int(unit.max(initial=-1)) for unit in given if unit is not None), default=-1)
        filled = [
            np.full(len(one.trained), own + index) if unit is None else unit
            for index, (unit, one) in enumerate(zip(given, sequences, strict=True))
        ]
        numbers: Tensor = column(filled, np.int64).unique(return_inverse=True)[1]
        return numbers.to(device)

    traces = [None if one.trace_unit is None else np.full(len(one.trained), one.trace_unit) for one in sequences]
    seats = [None if one.seat_unit is None else np.full(len(one.trained), one.seat_unit) for one in sequences]
    turn = units([one.unit for one in sequences])
    apart = sum(len(np.unique((one.trained if one.unit is None else one.unit)[one.trained])) for one in sequences)
    return Tokens(
        advantage=column([one.advantage for one in sequences], np.float64).to(device, dtype),
        behaviour=column([one.behaviour for one in sequences], np.float64).to(device, dtype),
        turn=turn,
        whole_turns=not len(turn) or apart == int(turn.max()) + 1,
        trace=units(traces),
        seat=units(seats),
    )


def _packed(
    rows: Sequence[Row], max_tree_depth: float, token_budget: int, dtype: torch.dtype, device: str | torch.device
) -> list[MicroBatch]:
    """Puts rows of similar length together, and no chain that is too deep for a mask with a tree that needs one."""
    deep = [row for row in rows if row.is_chain and len(row.ids) > max_tree_depth]
    others = [row for row in rows if not (row.is_chain and len(row.ids) > max_tree_depth)]
    return _pack(others, token_budget, dtype, device) + _pack(deep, token_budget, dtype, device)


def _pack(rows: Sequence[Row], token_budget: int, dtype: torch.dtype, device: str | torch.device) -> list[MicroBatch]:
    """Puts rows of similar length together."""
    micro: list[MicroBatch] = []
    waiting: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        computed = (len(waiting) + 1) * len(row.ids)
        padding = computed - len(row.ids) - sum(len(other.ids) for other in waiting)
        if waiting and (computed > token_budget or padding > max(PADDING_SHARE * computed, PADDING_TOKENS)):
            micro.append(_stack(waiting, dtype, device))
            waiting = []
        waiting.append(row)
    if waiting:
        micro.append(_stack(waiting, dtype, device))
    return micro


def _stack(rows: Sequence[Row], dtype: torch.dtype, device: str | torch.device) -> MicroBatch:
    length = max(len(row.ids) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    depth = np.tile(np.arange(length), (len(rows), 1))
    # A padding token sees itself alone, so that its softmax is defined; nobody looks at it.
    start = np.tile(np.arange(length), (len(rows), 1))
    end = start + 1
    for i, row in enumerate(rows):
        n = len(row.ids)
        ids[i, :n], depth[i, :n], end[i, :n] = row.ids, row.depth, row.end
    mask = None if all(row.is_chain for row in rows) else tree_mask(end, device)
    positions = np.concatenate([row.node + i * length for i, row in enumerate(rows)])
    heads, head_of, counts = np.unique(positions, return_inverse=True, return_counts=True)
    return MicroBatch(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.from_numpy(depth).to(device),
        attention_mask=mask,
        depth=1 + max(int(row.depth.max()) for row in rows),
        heads=torch.from_numpy(heads).to(device),
        counts=torch.from_numpy(counts).to(device, dtype),
        head_of=torch.from_numpy(head_of).to(device),
        target=torch.from_numpy(np.concatenate([row.target for row in rows])).to(device),
        use=torch.from_numpy(np.concatenate([row.use for row in rows])).to(device),
    )
