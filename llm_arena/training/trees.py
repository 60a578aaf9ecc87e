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
from collections import deque
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


def rows(branches: Sequence[Branch], max_row_tokens: int, max_depth: float = math.inf, least: int = 1) -> Iterator[Row]:
    """Yields the prefix trees, those above `max_row_tokens` cut so that the fewest tokens are repeated.

    A branch that begins with the whole one before it costs nothing more and stays with it, whatever the size. One that
    is longer than `max_depth` shares a row with such branches only. Where there are fewer than `least` rows,
    `max_row_tokens` is halved until there are enough, or each branch is alone.
    """
    sorted_ = [branches[index] for index in ordered([branch.inputs for branch in branches])]
    lengths = [len(branch.inputs) for branch in sorted_]
    shared = [0, *(_common(a.inputs, b.inputs) for a, b in itertools.pairwise(sorted_))]
    spans = _spans(lengths, shared, max_row_tokens, max_depth)
    while len(spans) < min(least, len(branches)):
        max_row_tokens //= 2
        spans = _spans(lengths, shared, max_row_tokens, max_depth)
    for low, high in spans:
        yield _tree(sorted_[low:high])


def _spans(lengths: list[int], shared: list[int], max_row_tokens: int, max_depth: float) -> list[tuple[int, int]]:
    """Returns the runs `low .. high - 1` of sorted branches that are a row each, in time linear in the branches.

    The best cuts are found from left to right, as the best way to end at a branch does not depend on what follows. A
    row has `begin[high] - begin[low] + shared[low]` tokens, which only grows when it is made longer at either end. So
    the places where a row may begin are a window that moves to the right, and the best of them is a sliding minimum.

    Args:
        lengths: of the branches.
        shared: what each has in common with the one before.
        max_row_tokens: as of `rows`; 0 leaves each branch alone.
        max_depth: as of `rows`.
    """
    begin = [0, *itertools.accumulate(own - common for own, common in zip(lengths, shared, strict=False))]
    fewest, cut = [0], [0]
    worth: list[int] = []
    window: deque[int] = deque()  # by place, and so that each is better than those after it, or as good and longer
    for last, length in enumerate(lengths):
        if not shared[last] or max_depth < lengths[last - 1] != shared[last]:
            window.clear()
        worth.append(fewest[last] - begin[last] + shared[last])
        while window and worth[window[-1]] > worth[last]:
            window.pop()
        window.append(last)
        most = length if length > max_depth else max(length, max_row_tokens)  # a chain of prefixes is as long as it
        while window[0] < last and (
            not max_row_tokens or begin[last + 1] - begin[window[0]] + shared[window[0]] > most
        ):
            window.popleft()
        fewest.append(begin[last + 1] + worth[window[0]])
        cut.append(window[0])
    spans, high = [], len(lengths)
    while high:
        spans.append((cut[high], high))
        high = cut[high]
    return spans[::-1]


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
