"""Sequences to batches in which every shared prefix is computed once.

The sequences of a batch share prefixes: the rules text, the topic, the moves so far. Merged into prefix trees, each
unique token goes through the model once. A tree is laid out depth first in one row; token q sees token k exactly if k
is an ancestor of q or q itself, and its position is its depth, so the hidden state of a node equals the one it has in
each sequence it stands for. The head runs only at nodes whose next token is trained.

Worked example, sequences `1 2 7` and `1 2 8 9` with 7, 8 and 9 trained. Row: `1 2 8`, for 7 and 9 are only targets.
Targets: 7 and 8 after node 1 (one row of logits for both), 9 after node 2.

Depth first order makes the mask cheap: the descendants of node k are the nodes k .. end[k] - 1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING_SHARE = 0.04
"""Rows join a micro-batch while padding stays below this share of it."""
PADDING_TOKENS = 64
"""Padding that is cheaper than another forward pass, in tokens."""

Ids = NDArray[np.int64]
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

    def __post_init__(self) -> None:
        """Checks the shapes.

        Raises:
            ValueError: arrays of different length, or a trained token without context.
        """
        lengths = {len(self.token_ids), len(self.trained), len(self.advantage), len(self.behaviour)}
        if len(lengths) != 1:
            raise ValueError(f"token_ids, trained, advantage and behaviour have different lengths: {sorted(lengths)}")
        if len(self.trained) and self.trained[0]:
            raise ValueError("the first token of a sequence has no context and can't be trained; a prompt is missing")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One prefix tree, depth first: nodes [n] and the uses [U] of its predictions."""

    ids: Ids
    depth: Ids
    end: Ids
    "End (exclusive) of each node's subtree."
    node: Ids
    "Per use: the node whose next token is trained."
    target: Ids
    advantage: Floats
    behaviour: Floats

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children, so that plain causal attention is the same."""
        return bool((self.end == len(self.ids)).all())


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows of similar length, padded to one length: B rows of L tokens, P predicting positions, U uses."""

    input_ids: Tensor
    "[B, L]"
    position_ids: Tensor
    "[B, L]"
    attention_mask: Tensor | None
    "[B, 1, L, L], True where the query (third axis) may look; None for plain causal attention."
    heads: Tensor
    "[P] positions in the flattened [B * L] whose next token is trained."
    counts: Tensor
    "[P] how many uses each of them has."
    head_of: Tensor
    "[U] index into `heads` of each use."
    target: Tensor
    "[U] the trained id."
    advantage: Tensor
    "[U]"
    behaviour: Tensor
    "[U]"
    old: Tensor | None = None
    "[U] log-probabilities before the step's first update; None stands for those of the weights as they are."


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The micro-batches of one step, and how much sharing saved."""

    parts: list[list[MicroBatch]]
    "The micro-batches of each minibatch."
    total_tokens: int
    "Tokens of all sequences."
    unique_tokens: int
    "Nodes of the prefix trees over the whole batch."
    computed_tokens: int
    "Tokens that go through the model, padding and repeated prefixes included."
    trained_tokens: int

    def __iter__(self) -> Iterator[MicroBatch]:
        """Yields the micro-batches of all minibatches."""
        return itertools.chain.from_iterable(self.parts)

    @property
    def unique_ratio(self) -> float:
        """Unique tokens by total tokens; the ideal speed-up is its inverse."""
        return self.unique_tokens / max(self.total_tokens, 1)


def build(
    sequences: Sequence[TrainSequence],
    *,
    max_row_tokens: int = 512,
    token_budget: int = 2048,
    minibatches: int = 1,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Batch:
    """Merges sequences into prefix trees and packs the trees into micro-batches.

    Args:
        sequences: in any order; the gradient doesn't depend on it.
        max_row_tokens: a tree larger than this is cut where its parts share least; the shared prefix is then repeated,
            which costs less than attention over one large dense mask.
        token_budget: most tokens (padding included) of a micro-batch, unless one row alone is larger.
        minibatches: how many parts to deal the trees into, as equal in number as can be. Where there are fewer trees,
            they are cut smaller; there are never more parts than sequences with something to train.
        seed: of the dealing. With one minibatch nothing depends on it.
        dtype: of advantages and behaviour log-probabilities.
        device: of all tensors.
    """
    full = _sorted([sequence.token_ids for sequence in sequences])
    unique = _unique_tokens([sequences[index].token_ids for index in full], 0, len(full))
    trimmed = [_trim(sequence) for sequence in sequences if sequence.trained.any()]
    rows = list(_rows(trimmed, max_row_tokens))
    while len(rows) < min(minibatches, len(trimmed)):
        max_row_tokens //= 2
        rows = list(_rows(trimmed, max_row_tokens))
    if minibatches > 1:
        rows = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
    dealt = [rows[first::minibatches] for first in range(min(minibatches, len(rows)))]
    parts = [_pack(part, token_budget, dtype, device) for part in dealt]
    return Batch(
        parts=parts,
        total_tokens=sum(len(sequence.token_ids) for sequence in sequences),
        unique_tokens=unique,
        computed_tokens=sum(micro.input_ids.numel() for part in parts for micro in part),
        trained_tokens=sum(int(sequence.trained.sum()) for sequence in sequences),
    )


@dataclass(frozen=True, kw_only=True)
class _Trimmed:
    """A sequence without what comes after its last prediction: inputs [n], and uses [U] by position of the input."""

    inputs: Ids
    node: Ids
    target: Ids
    advantage: Floats
    behaviour: Floats


def _trim(sequence: TrainSequence) -> _Trimmed:
    where = np.flatnonzero(sequence.trained)
    return _Trimmed(
        inputs=sequence.token_ids[: where[-1]],
        node=where - 1,
        target=sequence.token_ids[where],
        advantage=sequence.advantage[where],
        behaviour=sequence.behaviour[where],
    )


def _sorted(ids: Sequence[Ids]) -> list[int]:
    """Returns the order in which neighbours share the longest prefixes: lexicographic, by big-endian bytes."""
    keys = [one.astype(">i8").tobytes() for one in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)


def _common(left: Ids, right: Ids) -> int:
    shortest = min(len(left), len(right))
    differs = left[:shortest] != right[:shortest]
    first = int(differs.argmax()) if shortest else 0
    return first if shortest and differs[first] else shortest


def _unique_tokens(ids: Sequence[Ids], low: int, high: int) -> int:
    """Returns the number of nodes of the prefix trees of sorted `ids[low:high]`."""
    return sum(len(ids[i]) - (_common(ids[i - 1], ids[i]) if i > low else 0) for i in range(low, high))


def _rows(sequences: Sequence[_Trimmed], max_row_tokens: int) -> Iterator[Row]:
    if not sequences:
        return
    order = _sorted([sequence.inputs for sequence in sequences])
    ordered = [sequences[index] for index in order]
    shared = np.array([0] + [_common(a.inputs, b.inputs) for a, b in itertools.pairwise(ordered)])
    lengths = np.array([len(sequence.inputs) for sequence in ordered])
    nodes_before = np.concatenate([[0], np.cumsum(lengths - shared)])
    spans = [(0, len(ordered))]
    while spans:
        low, high = spans.pop()
        size = nodes_before[high] - nodes_before[low] + shared[low]
        inner = shared[low + 1 : high]
        if high - low > 1 and (size > max_row_tokens or inner.min() == 0):
            least = low + 1 + np.flatnonzero(inner == inner.min())
            middle = (nodes_before[low] + nodes_before[high]) / 2
            cut = int(least[np.abs(nodes_before[least] - middle).argmin()])
            spans += [(cut, high), (low, cut)]
        else:
            yield _tree(ordered[low:high])


def _tree(sequences: Sequence[_Trimmed]) -> Row:
    """Lays the prefix tree of sorted sequences out depth first."""
    ids: list[Ids] = []
    depth: list[Ids] = []
    node: list[Ids] = []
    size = 0
    path = np.empty(0, dtype=np.int64)
    closed: list[tuple[Ids, int]] = []
    before = np.empty(0, dtype=np.int64)
    for sequence in sequences:
        kept = _common(before, sequence.inputs)
        closed.append((path[kept:], size))
        fresh = len(sequence.inputs) - kept
        path = np.concatenate([path[:kept], np.arange(size, size + fresh)])
        ids.append(sequence.inputs[kept:])
        depth.append(np.arange(kept, kept + fresh))
        node.append(path[sequence.node])
        size += fresh
        before = sequence.inputs
    end = np.full(size, size, dtype=np.int64)
    for left, at in closed:
        end[left] = at
    return Row(
        ids=np.concatenate(ids),
        depth=np.concatenate(depth),
        end=end,
        node=np.concatenate(node),
        target=np.concatenate([sequence.target for sequence in sequences]),
        advantage=np.concatenate([sequence.advantage for sequence in sequences]),
        behaviour=np.concatenate([sequence.behaviour for sequence in sequences]),
    )


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
    mask: Tensor | None = None
    if not all(row.is_chain for row in rows):
        key = torch.arange(length)
        query = key[:, None]
        mask = (key <= query) & (query < torch.from_numpy(end)[:, None, :])
        mask = mask[:, None].to(device)
    positions = np.concatenate([row.node + i * length for i, row in enumerate(rows)])
    heads, head_of, counts = np.unique(positions, return_inverse=True, return_counts=True)
    return MicroBatch(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.from_numpy(depth).to(device),
        attention_mask=mask,
        heads=torch.from_numpy(heads).to(device),
        counts=torch.from_numpy(counts).to(device, dtype),
        head_of=torch.from_numpy(head_of).to(device),
        target=torch.from_numpy(np.concatenate([row.target for row in rows])).to(device),
        advantage=torch.from_numpy(np.concatenate([row.advantage for row in rows])).to(device, dtype),
        behaviour=torch.from_numpy(np.concatenate([row.behaviour for row in rows])).to(device, dtype),
    )
