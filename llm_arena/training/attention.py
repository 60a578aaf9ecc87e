"""Attention along prefix trees.

Node k of a row is seen by the nodes k .. end[k] - 1, its subtree (see `trees`). There are three ways to compute that,
equal but for rounding:

- a dense mask for torch's scaled_dot_product_attention: the reference, and the fastest for rows up to `DENSE_TOKENS`.
- blocks: longer rows are cut into blocks of queries, and each block is computed with the keys that one of its
  queries sees: its ancestors and itself. So attention costs about what it costs along the single sequences, and a tree
  need not be cut to keep its mask small. On a CPU, and wherever else `flex_attention` can't be compiled.
- `flex_attention` with a block mask, on CUDA. It has no backward pass on CPUs.

The ways are told apart by what the mask carries. A mask is always the dense one as well, so that a model that makes a
mask of its own from it still computes the right thing.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from llm_arena.training.trees import Ids

DENSE_TOKENS = 128
"""Rows up to this many tokens take the dense mask."""
BLOCK = 64
"""Queries of a block."""
NAME = "llm_arena_trees"
"""Under which transformers finds this way of attention."""


@dataclass
class Blocks:
    """Blocks of queries in the order of rows and positions, each with the keys that one of its queries sees."""

    sizes: list[int]
    "Queries of each block."
    counts: list[int]
    "Keys of each block."
    keys: Tensor
    "[sum of counts] which nodes they are, counted over all rows."
    masks: list[Tensor]
    "[queries, keys] of each block, True where the query may look."
    _biases: dict[tuple[torch.dtype, int], list[Tensor]] = field(default_factory=dict)

    def biases(self, dtype: torch.dtype, repeats: int) -> list[Tensor]:
        """Returns what to add to the scores, [1, 1, queries * repeats, keys] of each block; made once."""
        if (dtype, repeats) not in self._biases:
            self._biases[dtype, repeats] = [
                torch.zeros(mask.shape, dtype=dtype, device=mask.device)
                .masked_fill(~mask, -torch.inf)
                .repeat_interleave(repeats, 0)[None, None]
                for mask in self.masks
            ]
        return self._biases[dtype, repeats]


def tree_mask(end: Ids, device: str | torch.device) -> Tensor:
    """Returns the dense mask [B, 1, L, L] of rows, True where the query (third axis) may look.

    Where another way than the dense mask is meant, what that needs rides along, made once for all layers.

    Args:
        end: [B, L] ends (exclusive) of each node's subtree. Padding sees itself alone.
        device: of the mask.
    """
    ends = torch.from_numpy(end).to(device)
    key = torch.arange(end.shape[1], device=device)
    query = key[:, None]
    mask: Tensor = ((key <= query) & (query < ends[:, None, :]))[:, None]
    if end.shape[1] > DENSE_TOKENS:
        mask.arena_way = flex_mask(ends) if mask.is_cuda else blocks_of(end, mask)  # type: ignore[attr-defined]
    return mask


def blocks_of(end: Ids, mask: Tensor) -> Blocks:
    """Returns the blocks of all rows of a dense mask [B, 1, L, L]."""
    length = end.shape[1]
    sizes, seen, masks = [], [], []
    for row, ends in enumerate(end):
        for start in range(0, length, BLOCK):
            stop = min(start + BLOCK, length)
            keys = np.concatenate([np.flatnonzero(ends[:start] > start), np.arange(start, stop)])
            sizes.append(stop - start)
            seen.append(row * length + keys)
            masks.append(mask[row, 0, start:stop].index_select(1, torch.from_numpy(keys).to(mask.device)))
    return Blocks(sizes, [len(keys) for keys in seen], torch.from_numpy(np.concatenate(seen)).to(mask.device), masks)


def flex_mask(end: Tensor) -> Any:
    """Returns flex_attention's block mask of rows, from the ends [B, L] of their nodes' subtrees."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end[row, key])

    rows, length = end.shape
    return create_block_mask(seen, rows, None, length, length, device=end.device)


def along_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scale: float | None) -> Tensor:
    """Returns the attention [B, heads, L, D] of `query` [B, heads, L, D] to `key` and `value` [B, fewer heads, L, D].

    Query heads that share a key head are laid side by side as queries, so that keys are never repeated. Nodes are
    gathered and cut for all blocks at once: each copy, and each of its gradients, is one pass over memory.
    """
    rows, heads, length, width = query.shape
    shared = key.shape[1]
    groups = heads // shared
    asked = query.transpose(1, 2).reshape(rows * length, shared, groups, width).split(blocks.sizes)
    seen, told = (
        every.transpose(1, 2).reshape(rows * length, shared, width).index_select(0, blocks.keys).split(blocks.counts)
        for every in (key, value)
    )
    outputs = []
    for part, keys, values, bias in zip(asked, seen, told, blocks.biases(query.dtype, groups), strict=True):
        output = functional.scaled_dot_product_attention(
            part.transpose(0, 1).reshape(1, shared, -1, width),
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=bias,
            scale=scale,
        )
        outputs.append(output.view(shared, len(part), groups, width).transpose(0, 1))
    return torch.cat(outputs).view(rows, length, heads, width).transpose(1, 2)


def along_flex(query: Tensor, key: Tensor, value: Tensor, block_mask: Any, scale: float | None) -> Tensor:
    """Returns what `along_blocks` returns, by torch's flex_attention: compiled on CUDA, step by step elsewhere."""
    shares = query.shape[1] != key.shape[1]
    attend = _flex(query.is_cuda)
    output: Tensor = attend(query, key, value, block_mask=block_mask, scale=scale, enable_gqa=shares)
    return output


@functools.cache
def _flex(compiled: bool) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    way = getattr(attention_mask, "arena_way", None)
    if way is None or others.get("position_bias") is not None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return plain
    along = along_blocks if isinstance(way, Blocks) else along_flex
    return along(query, key, value, way, scaling).transpose(1, 2).contiguous(), None


def use_trees(model: Any) -> None:
    """Makes a model that attends by torch's scaled_dot_product_attention take the ways of this module, in place."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def max_tree_depth(model: Any) -> float:
    """Returns how long sequences may be that share a row of this model: none (0), so many tokens, or any (infinity).

    A tree is exact where layers look at what the mask shows and at nothing else. Layers with a window or chunks do so
    up to their width, for transformers takes the given mask in their place. Layers that carry a state along the row
    (convolutions, Mamba, linear attention), or read distances from the row, do not. What the configuration does not
    tell is tried on a small tree.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention", "chunked_attention"}:
        return 0
    widths = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    if kinds == {"full_attention"} or getattr(config, "use_sliding_window", True) is False:
        widths = []
    depth = min((width for width in widths if width), default=math.inf)
    return depth if depth < len(_TRIED) or _is_exact(model) else 0


_TRIED = (0, 1, 2)
"""Tried are the branches `0 1 2` and `0 2 1`, in a row `0 1 2 2 1`."""


@torch.no_grad()
def _is_exact(model: Any) -> bool:
    """Whether a small tree gives the logits of its branches."""
    device = next(model.parameters()).device
    branches = [torch.tensor([ids], device=device) for ids in (_TRIED, (0, 2, 1))]
    row, depth = torch.tensor([[0, 1, 2, 2, 1]], device=device), torch.tensor([[0, 1, 2, 1, 2]], device=device)
    mask = tree_mask(np.array([[5, 3, 3, 5, 5]]), device)
    apart = torch.cat([model(input_ids=ids, use_cache=False).logits[0] for ids in branches])
    try:
        together = model(input_ids=row, attention_mask=mask, position_ids=depth, use_cache=False).logits[0]
    except (ValueError, TypeError, RuntimeError, IndexError):  # a model that takes no such mask fails in its own way
        return False
    found = together[[0, 1, 2, 0, 3, 4]]
    return bool((found - apart).abs().max() <= 1e-3 * apart.abs().max())
