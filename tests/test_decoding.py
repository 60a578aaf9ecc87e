"""Sampling from logits."""

import numpy as np
import pytest
import torch

from llm_arena.engines.decoding import _inverse_cdf


@pytest.mark.parametrize("size", [1, 255, 256, 257, 2000])
def test_inverse_cdf(size):
    generator = np.random.default_rng(size)
    probabilities = generator.dirichlet(np.full(size, 0.05), 200).astype(np.float32)
    probabilities[:, size // 3 : size // 2] = 0.0
    probabilities[:20, :-1] = 0.0  # nearly all in the last id, or nothing at all
    probabilities[:20, -1] = 1.0
    numbers = generator.random(200)
    numbers[::7], numbers[1::7] = 0.0, np.nextafter(1.0, 0.0)
    ids = _inverse_cdf(torch.tensor(probabilities), torch.tensor(numbers)).numpy()
    rows = np.arange(200)
    assert (probabilities[rows, ids] > 0).all()
    cdf = probabilities.astype(np.float64).cumsum(1)
    below = np.where(ids > 0, cdf[rows, ids - 1], 0.0)
    targets = numbers * cdf[:, -1]
    assert (below <= targets + 1e-12).all()
    assert (targets <= cdf[rows, ids] + 1e-12).all()
