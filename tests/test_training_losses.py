"""The policy loss on numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from llm_arena.training.losses import entropy, kl, reinforce, shifted, token_divisor


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
