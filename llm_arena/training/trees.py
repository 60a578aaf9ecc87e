"""Prefix trees: sequences that begin alike, laid out so that what they share stands once.

A tree is laid out depth first in one row; token q sees token k exactly if k is an ancestor of q or q itself, and its
position is its depth, so the hidden state of a node equals the one it has in each sequence it stands for. The head runs
only at nodes whose next token is trained.

Worked example, sequences `1 2 7` and `1 2 8 9` with 7, 8 and 9 trained. Row: `1 2 8`, for 7 and 9 are only targets.
Targets: 7 and 8 after node 1 (one row of logits for both), 9 after node 2.

Depth first order makes the mask cheap: the descendants of node k are the nodes k .. end[k] - 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A sequence without what comes after its last prediction: inputs [n], and uses [U] by position of the input."""

    inputs: Ids
    node: Ids
    "Per use: the position whose next token is trained."
    target: Ids
    use: Ids
    "Per use: its index among the trained tokens of the batch."

    @classmethod
    def of(cls, token_ids: Ids, trained: NDArray[np.bool_], first_use: int) -> Branch:
        """Returns the branch of a sequence with something to train, whose uses are numbered from `first_use` on."""
        where = np.flatnonzero(trained)
        return cls(
            inputs=token_ids[: where[-1]],
            node=where - 1,
            target=token_ids[where],
            use=np.arange(first_use, first_use + len(where)),
        )


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
    use: Ids

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children, so that plain causal attention is the same."""
        return bool((self.end == len(self.ids)).all())


def ordered(ids: Sequence[Ids]) -> list[int]:
    """Returns the order in which neighbours share the longest prefixes: lexicographic, by big-endian bytes."""
    keys = [one.astype(">i8").tobytes() for one in ids]
    return sorted(range(len(ids)), key=keys.__getitem__)


def unique_tokens(ids: Sequence[Ids]) -> int:
    """Returns the number of nodes of the prefix trees of sorted `ids`."""
    return sum(len(one) for one in ids) - sum(_common(a, b) for a, b in itertools.pairwise(ids))


def rows(branches: Sequence[Branch], max_row_tokens: int, max_depth: float = math.inf) -> Iterator[Row]:
    """Yields the prefix trees, those above `max_row_tokens` cut so that the fewest tokens are repeated.

    A branch that is longer than `max_depth` shares nothing and is a row of its own.

    Branches in order, where each row is a run of them that begins with what it shares with the run before: the best
    cuts are found from left to right, as the best way to end at a branch does not depend on what follows.
    """
    if not branches:
        return
    order = ordered([branch.inputs for branch in branches])
    sorted_ = [branches[index] for index in order]
    shared = [0] + [_common(a.inputs, b.inputs) for a, b in itertools.pairwise(sorted_)]
    fewest, cut = [0], [0]
    for high in range(1, len(sorted_) + 1):
        size, low = len(sorted_[high - 1].inputs), high - 1
        best, at = fewest[low] + size, low
        while low and shared[low] and len(sorted_[high - 1].inputs) <= max_depth >= len(sorted_[low - 1].inputs):
            size += len(sorted_[low - 1].inputs) - shared[low]
            if size > max_row_tokens:
                break
            low -= 1
            if fewest[low] + size <= best:  # of equal ones the longest run: fewer rows
                best, at = fewest[low] + size, low
        fewest.append(best)
        cut.append(at)
    spans, high = [], len(sorted_)
    while high:
        spans.append((cut[high], high))
        high = cut[high]
    for low, high in reversed(spans):
        yield _tree(sorted_[low:high])


def _common(left: Ids, right: Ids) -> int:
    shortest = min(len(left), len(right))
    differs = left[:shortest] != right[:shortest]
    first = int(differs.argmax()) if shortest else 0
    return first if shortest and differs[first] else shortest


def _tree(branches: Sequence[Branch]) -> Row:
    """Lays the prefix tree of sorted branches out depth first."""
    ids: list[Ids] = []
    depth: list[Ids] = []
    node: list[Ids] = []
    size = 0
    path = np.empty(0, dtype=np.int64)
    closed: list[tuple[Ids, int]] = []
    before = np.empty(0, dtype=np.int64)
    for branch in branches:
        kept = _common(before, branch.inputs)
        closed.append((path[kept:], size))
        fresh = len(branch.inputs) - kept
        path = np.concatenate([path[:kept], np.arange(size, size + fresh)])
        ids.append(branch.inputs[kept:])
        depth.append(np.arange(kept, kept + fresh))
        node.append(path[branch.node])
        size += fresh
        before = branch.inputs
    end = np.full(size, size, dtype=np.int64)
    for left, at in closed:
        end[left] = at
    return Row(
        ids=np.concatenate(ids),
        depth=np.concatenate(depth),
        end=end,
        node=np.concatenate(node),
        target=np.concatenate([branch.target for branch in branches]),
        use=np.concatenate([branch.use for branch in branches]),
    )
