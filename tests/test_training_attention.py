"""Attention along trees: blocks and flex_attention against the dense mask; how trees are cut."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from llm_arena.training import attention, trees
from llm_arena.training.attention import along_blocks, along_flex, blocks_of, flex_mask, tree_mask
from llm_arena.training.batch import TrainSequence, build
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepSettings
from llm_arena.training.trees import Branch
from model_parts import small_llama


def ends(rows: int, length: int, seed: int) -> NDArray[np.int64]:
    """Ends of the subtrees of random trees, the last nodes of a row padding."""
    rng = np.random.default_rng(seed)
    found = np.tile(np.arange(length) + 1, (rows, 1))
    for row in found:
        size = length - int(rng.integers(0, 4))
        parent = [-1] + [0] * (size - 1)
        path = [0]
        for node in range(1, size):
            del path[int(rng.integers(1, len(path) + 1)) :]
            parent[node] = path[-1]
            path.append(node)
        for node in range(size - 1, 0, -1):
            row[parent[node]] = max(row[parent[node]], row[node])
    return found


def numbers(rows: int, length: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, 4, length, 8), (rows, 2, length, 8), (rows, 2, length, 8)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def dense(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """By the book."""
    key, value = (every.repeat_interleave(2, dim=1) for every in (key, value))
    scores = (query @ key.transpose(-1, -2) * 0.3).masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, -1) @ value


@pytest.mark.parametrize("block", [1, 5, 8, 64])
def test_attention_along_blocks_is_attention_under_the_dense_mask(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "BLOCK", block)
    for seed in range(4):
        end = ends(2, 23, seed)
        mask = tree_mask(end, "cpu")
        given_ = numbers(2, 23, seed)
        weights = numbers(2, 23, 99)[0].detach()
        expected = dense(*given_, mask)
        slopes = torch.autograd.grad((expected * weights).sum(), given_)
        found = along_blocks(*given_, blocks_of(end, mask), 0.3)
        assert torch.allclose(found, expected, atol=1e-12)
        for one, other in zip(torch.autograd.grad((found * weights).sum(), given_), slopes, strict=True):
            assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_attention_under_the_dense_mask() -> None:
    end = ends(2, 40, 0)
    with torch.no_grad():
        given_ = [every.detach() for every in numbers(2, 40, 0)]
        found = along_flex(*given_, flex_mask(torch.from_numpy(end)), 0.3)
        assert torch.allclose(found, dense(*given_, tree_mask(end, "cpu")), atol=1e-6)


def test_blocks_hold_only_what_their_queries_see() -> None:
    """A stem of 200 tokens with 9 branches of 100: a block of 64 queries has the stem and at most two branches."""
    end = np.full((2, 1100), 1100)
    for first in range(200, 1100, 100):
        end[:, first : first + 100] = first + 100
    mask = tree_mask(end, "cpu")
    blocks = mask.arena_way  # type: ignore[attr-defined]
    assert sum(blocks.sizes) == 2 * 1100
    for seen, count in zip(blocks.masks, blocks.counts, strict=True):
        assert seen.any(0).all() and seen.shape[1] == count <= 200 + 100 + 64
    assert int(blocks.keys.max()) == 2 * 1100 - 1, "nodes of the second row come after those of the first"
    assert not hasattr(tree_mask(end[:, :128], "cpu"), "arena_way")


@pytest.mark.parametrize("recompute", [False, True])
def test_a_learner_that_attends_along_blocks_has_the_same_gradient(
    recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = Learner(small_llama(), recompute=recompute)
    rng = np.random.default_rng(0)
    sequences = []
    for index in range(20):
        ids = np.array([index % 2, *rng.integers(0, 2, 4), *rng.integers(0, 13, rng.integers(1, 9))])
        trained = np.arange(len(ids)) > 3
        values = {"advantage": np.full(len(ids), rng.normal()), "behaviour": -rng.random(len(ids))}
        sequences.append(TrainSequence(token_ids=ids, trained=trained, **values))

    def gradient(**how: Any) -> torch.Tensor:
        learner.optimizer.zero_grad()
        learner.accumulate(build(sequences, dtype=torch.float64, **how), StepSettings(lr=0.0, divisor=1.0))
        return torch.cat([own.grad.flatten() for own in learner.parameters.values() if own.grad is not None])

    expected = gradient(max_row_tokens=1, token_budget=1)  # each sequence alone, without a mask
    monkeypatch.setattr(attention, "DENSE_TOKENS", 0)
    monkeypatch.setattr(attention, "BLOCK", 8)
    called: list[int] = []
    plain = attention.along_blocks
    monkeypatch.setattr(attention, "along_blocks", lambda *given_: called.append(1) or plain(*given_))  # type: ignore[func-returns-value]
    found = gradient()
    assert called
    assert float((found - expected).norm() / expected.norm()) < 1e-6


def test_the_way_of_attention_is_no_part_of_a_saved_model(tmp_path: Any) -> None:
    config = LlamaConfig(
        vocab_size=13, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4
    )
    Learner(LlamaForCausalLM(config)).save(tmp_path)  # type: ignore[no-untyped-call]
    assert attention.NAME not in (tmp_path / "config.json").read_text()


def branch(ids: list[int]) -> Branch:
    return Branch.of(np.array([*ids, 0]), np.array([False] * len(ids) + [True]), 0)


@given(
    bodies=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=7),
    limit=st.integers(1, 14),
    deepest=st.sampled_from([0.0, 2.0, 4.0, math.inf]),
)
@settings(max_examples=100, deadline=None)
def test_trees_are_cut_where_the_fewest_tokens_are_repeated(
    bodies: list[list[int]], limit: int, deepest: float
) -> None:
    """Against all ways to cut the sorted sequences into runs."""

    def nodes(run: list[list[int]]) -> int:
        return len({tuple(ids[: k + 1]) for ids in run for k in range(len(ids))})

    def fits(run: list[list[int]]) -> bool:
        if nodes(run) == len(run[-1]):  # one sequence, and what it begins with
            return True
        return nodes(run) <= limit and len({ids[0] for ids in run}) == 1 and max(map(len, run)) <= deepest

    order = sorted(bodies)
    ways = []
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        runs: list[list[list[int]]] = [[order[0]]]
        for ids, cut in zip(order[1:], cuts, strict=True):
            if cut:
                runs.append([ids])
            else:
                runs[-1].append(ids)
        if all(fits(run) for run in runs):
            ways.append(sum(nodes(run) for run in runs))
    found = list(trees.rows([branch(ids) for ids in bodies], limit, deepest))
    assert sum(len(row.ids) for row in found) == min(ways)
    assert sum(len(row.target) for row in found) == len(bodies)
    assert all(row.is_chain or (row.depth.max() < deepest and len(row.ids) <= limit) for row in found)


def test_answers_of_one_token_share_a_prompt_of_any_length() -> None:
    [row] = trees.rows([branch([1, 2, 3])] * 5000, 2)
    assert row.ids.tolist() == [1, 2, 3] and len(row.target) == 5000


@pytest.mark.parametrize("least", [1, 2, 3, 4, 9])
def test_there_are_as_many_rows_as_wanted_or_as_there_are_branches(least: int) -> None:
    found = list(trees.rows([branch([1, 2, 3])] * 4, 8, least=least))
    assert min(least, 4) <= len(found) <= 4
    assert sum(len(row.target) for row in found) == 4
