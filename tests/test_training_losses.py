"""The policy loss on numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_arena.training.losses import LOSSES, entropy, kl, ppo_clip, reinforce, shifted, token_divisor


def token_mean(logprobs: torch.Tensor, mask: torch.Tensor, advantage: float = 1.0) -> torch.Tensor:
    old = logprobs.detach()
    return reinforce(logprobs, old, old, torch.full_like(old, advantage), mask, token_divisor(mask))


@pytest.mark.parametrize(("completion", "expected"), [((20, 21), 3.5), ((20,), 3.0)])
def test_the_first_completion_token_has_a_loss(completion: tuple[int, ...], expected: float) -> None:
    ids = torch.tensor([10, 11, 12, *completion])
    mask = torch.tensor([0, 0, 0] + [1] * len(completion))
    logprobs = -torch.arange(1.0, len(ids))  # of targets 11, 12, 20, 21
    assert float(token_mean(logprobs, shifted(mask))) == pytest.approx(expected)


def test_ignored_tokens_leave_the_sum_and_the_count() -> None:
    logprobs = torch.full((16,), -1.0, requires_grad=True)
    finished = torch.tensor([1] * 12 + [0] * 4)
    assert float(token_mean(logprobs, finished).detach()) == pytest.approx(1.0)
    loss = token_mean(logprobs, torch.zeros(16))
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0.0
    assert logprobs.grad is not None and bool((logprobs.grad == 0).all())


def test_whatever_stands_under_a_zero_mask_has_no_effect() -> None:
    logprobs = torch.tensor([-1.0, -float("inf"), float("nan")], requires_grad=True)
    loss = token_mean(logprobs, torch.tensor([1, 0, 0]))
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 1.0
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, 0.0, 0.0]


def test_an_empty_batch_has_loss_zero() -> None:
    nothing = torch.zeros(0, requires_grad=True)
    loss = token_mean(nothing, torch.zeros(0))
    torch.autograd.backward(loss)
    assert float(loss.detach()) == 0.0


def test_entropy_and_kl_by_hand() -> None:
    half = torch.log(torch.tensor([[0.5, 0.5], [0.75, 0.25]]))
    other = torch.log(torch.tensor([[0.25, 0.75], [0.75, 0.25]]))
    assert entropy(half).tolist() == pytest.approx([0.693147, 0.562335], abs=1e-6)
    assert kl(half, other).tolist() == pytest.approx([0.143841, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.1, 2.0, -2.2, -2.2),  # within the clip
        (1.5, 2.0, -2.6, 0.0),  # above it, and pulled up: 1.3 counts
        (0.5, 2.0, -1.0, -1.0),  # below it, and pulled up: it may come back
        (1.0, -2.0, 2.0, 2.0),
        (0.85, -2.0, 1.7, 1.7),
        (0.5, -2.0, 1.6, 0.0),  # below it, and pulled down: 0.8 counts
        (1.5, -2.0, 3.0, 3.0),  # above it, and pulled down: it may come back
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    """With bounds of 0.8 and 1.3; the slope is that of the loss by the log-probability."""
    old = torch.tensor([-1.5], dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    value = ppo_clip(
        logprobs, old, old, torch.full_like(old, advantage), torch.ones(1), 1.0, clip_low=0.2, clip_high=0.3
    )
    torch.autograd.backward(value)
    assert float(value.detach()) == pytest.approx(loss, abs=1e-12)
    assert logprobs.grad is not None and float(logprobs.grad) == pytest.approx(slope, abs=1e-12)


TOKENS = st.lists(
    st.tuples(st.floats(-9, 0), st.floats(-9, 0), st.floats(-3, 3), st.booleans()), min_size=1, max_size=12
)


def columns(tokens: list[tuple[float, float, float, bool]]) -> list[torch.Tensor]:
    return [torch.tensor(column, dtype=torch.float64) for column in zip(*tokens, strict=True)]


@given(tokens=TOKENS, low=st.floats(0, 0.9), high=st.floats(0, 2))
@settings(deadline=None)
def test_ppo_clip_equals_a_loop_over_tokens(
    tokens: list[tuple[float, float, float, bool]], low: float, high: float
) -> None:
    expected = 0.0
    for now, old, advantage, counts in tokens:
        if counts:
            ratio = math.exp(now - old)
            expected -= min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage) / 4.0
    now, old, advantage, mask = columns(tokens)
    value = LOSSES["ppo_clip"](low, high)(now, old, old, advantage, mask, 4.0)
    assert float(value) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(tokens=TOKENS, low=st.floats(0, 0.9), high=st.floats(0, 2))
@settings(deadline=None)
def test_in_the_first_update_ppo_clip_has_the_gradient_of_reinforce(
    tokens: list[tuple[float, float, float, bool]], low: float, high: float
) -> None:
    old, _, advantage, mask = columns(tokens)
    slopes = []
    for name in ("reinforce", "ppo_clip"):
        logprobs = old.clone().requires_grad_()
        torch.autograd.backward(LOSSES[name](low, high)(logprobs, old, old, advantage, mask, 3.0))
        assert logprobs.grad is not None
        slopes.append(logprobs.grad)
    assert torch.allclose(*slopes, rtol=0, atol=1e-12)


def test_ppo_clip_does_not_see_what_is_masked() -> None:
    bad = float("nan")
    logprobs = torch.tensor([-1.0, bad, -float("inf")], requires_grad=True)
    old = torch.tensor([-1.0, bad, -float("inf")])
    loss = ppo_clip(logprobs, old, old, torch.ones(3), torch.tensor([1, 0, 0]), 1.0)
    torch.autograd.backward(loss)
    assert float(loss.detach()) == -1.0
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, 0.0, 0.0]
