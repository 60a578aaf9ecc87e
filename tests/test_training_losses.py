"""The policy loss on numbers worked by hand."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_arena.training.config import LossName
from llm_arena.training.importance import unit_means
from llm_arena.training.losses import (
    LOSSES,
    cispo,
    dapo,
    entropy,
    gspo,
    k1,
    k2,
    k3,
    kl,
    masked,
    ppo_clip,
    reinforce,
    shifted,
)

Tokens = list[tuple[float, float, float, bool]]


def token_mean(logprobs: torch.Tensor, mask: torch.Tensor, advantage: float = 1.0) -> torch.Tensor:
    old = logprobs.detach()
    return reinforce(logprobs, old, old, torch.full_like(old, advantage), mask, max(float(mask.sum()), 1.0))


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


@pytest.mark.parametrize("name", list(LOSSES))
def test_an_advantage_under_a_zero_mask_has_no_gradient(name: str) -> None:
    old = torch.tensor([-1.0, -2.0])
    logprobs = old.clone().requires_grad_()
    extra = {"log_ratio": torch.zeros(2)} if name == "gspo" else {}
    unknown = torch.tensor([1.0, float("nan")])
    loss = LOSSES[name].with_bounds()(logprobs, old, old, unknown, torch.tensor([1.0, 0.0]), 1.0, **extra)
    torch.autograd.backward(loss)
    assert math.isfinite(float(loss.detach()))
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, 0.0]


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


def slow_ppo(tokens: Tokens, low: float, high: float) -> float:
    terms = []
    for now, old, advantage, counts in tokens:
        ratio = math.exp(now - old)
        terms.append(-min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage) if counts else 0.0)
    return math.fsum(terms)


def slow_gspo(tokens: Tokens, low: float, high: float) -> float:
    """Tokens 0, 1, 2 are one unit, 3, 4, 5 the next, and so on; masked ones are no part of it."""
    terms = []
    for first in range(0, len(tokens), 3):
        unit = [token for token in tokens[first : first + 3] if token[3]]
        ratio = math.exp(math.fsum(now - old for now, old, _, _ in unit) / len(unit)) if unit else 1.0
        for *_, advantage, _ in unit:
            terms.append(-min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage))
    return math.fsum(terms)


def slow_cispo(tokens: Tokens, low: float, high: float) -> float:
    return math.fsum(
        -min(max(math.exp(now - old), 1 - low), 1 + high) * advantage * now
        for now, old, advantage, counts in tokens
        if counts
    )


def slow_reinforce(tokens: Tokens, low: float, high: float) -> float:
    return math.fsum(-advantage * now for now, _, advantage, counts in tokens if counts)


SLOW: dict[str, Callable[[Tokens, float, float], float]] = {
    "reinforce": slow_reinforce,
    "ppo_clip": slow_ppo,
    "dr_grpo": slow_ppo,
    "dapo": slow_ppo,
    "gspo": slow_gspo,
    "cispo": slow_cispo,
}


def whole(name: str, logprobs: torch.Tensor, old: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """What `gspo` needs besides, with units of three tokens."""
    if name != "gspo":
        return {}
    unit = torch.arange(len(old)) // 3
    counted = unit_means(mask.to(old.dtype), unit).clamp(min=1e-9)
    return {"log_ratio": unit_means(masked(logprobs.detach() - old, mask), unit) / counted}


@pytest.mark.parametrize("name", LOSSES)
@given(tokens=TOKENS, low=st.floats(0, 0.9), high=st.floats(0.01, 2))
@settings(deadline=None, max_examples=40)
def test_every_loss_equals_a_loop_over_tokens(name: str, tokens: Tokens, low: float, high: float) -> None:
    now, old, advantage, mask = columns(tokens)
    value = LOSSES[name].with_bounds(low, high)(now, old, old, advantage, mask, 4.0, **whole(name, now, old, mask))
    assert float(value) == pytest.approx(SLOW[name](tokens, low, high) / 4.0, rel=1e-9, abs=1e-9)


@given(tokens=TOKENS)
@settings(deadline=None)
def test_in_the_first_update_all_losses_have_the_gradient_of_reinforce(tokens: Tokens) -> None:
    """With their own bounds and one divisor. `gspo` as well: it differs by its own divisor, a mean by units, alone."""
    old, _, advantage, mask = columns(tokens)
    slopes = {}
    for name, kind in LOSSES.items():
        logprobs = old.clone().requires_grad_()
        extra = whole(name, logprobs, old, mask)
        torch.autograd.backward(kind.with_bounds()(logprobs, old, old, advantage, mask, 3.0, **extra))
        assert logprobs.grad is not None
        slopes[name] = logprobs.grad
    assert list(slopes) == ["reinforce", "ppo_clip", "dr_grpo", "dapo", "gspo", "cispo"]
    for name, slope in slopes.items():
        assert torch.allclose(slope, slopes["reinforce"], rtol=0, atol=1e-12), name


def test_the_registry_has_what_the_authors_set() -> None:
    found = {name: (kind.clip_low, kind.clip_high, kind.divisor) for name, kind in LOSSES.items()}
    assert found == {
        "reinforce": (None, None, "constant"),
        "ppo_clip": (0.2, 0.2, "constant"),
        "dr_grpo": (0.2, 0.2, "constant"),
        "dapo": (0.2, 0.28, "tokens"),
        "gspo": (3e-4, 4e-4, "units"),
        "cispo": (None, 4.0, "tokens"),
    }
    assert tuple(LOSSES) == get_args(LossName)
    for kind in LOSSES.values():  # the functions' own defaults are the same
        own = {k: v.default for k, v in inspect.signature(kind.function).parameters.items() if k.startswith("clip")}
        assert own == {name: getattr(kind, name) for name in kind.bounds}


def slope_of(loss: Callable[..., torch.Tensor], log_ratio: float, advantage: float, **extra: object) -> float:
    old = torch.tensor([-1.5], dtype=torch.float64)
    logprobs = (old + log_ratio).requires_grad_()
    torch.autograd.backward(loss(logprobs, old, old, torch.full_like(old, advantage), torch.ones(1), 1.0, **extra))
    assert logprobs.grad is not None
    return float(logprobs.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [
        (1.25, 1.0, -1.25),  # ppo_clip would have stopped at 1.2
        (1.3, 1.0, 0.0),
        (0.7, -1.0, 0.0),
        (0.9, -1.0, 0.9),
    ],
)
def test_dapo_clips_higher_by_hand(ratio: float, advantage: float, slope: float) -> None:
    assert slope_of(dapo, math.log(ratio), advantage) == pytest.approx(slope, abs=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "slope"),
    [(1.0, 2.0, -2.0), (3.0, 2.0, -6.0), (8.0, 2.0, -10.0), (8.0, -2.0, 10.0), (0.1, 2.0, -0.2)],
)
def test_cispo_keeps_a_gradient_everywhere_by_hand(ratio: float, advantage: float, slope: float) -> None:
    """The slope is minus the bounded ratio times the advantage: 8 counts as 5."""
    assert slope_of(cispo, math.log(ratio), advantage) == pytest.approx(slope, abs=1e-12)
    if ratio == 0.1:
        assert slope_of(cispo, math.log(ratio), advantage, clip_low=0.5) == pytest.approx(-1.0)


@pytest.mark.parametrize("name", ["ppo_clip", "dr_grpo", "dapo", "gspo"])
@pytest.mark.parametrize("advantage", [0.0, 1.0])
def test_a_ratio_that_overflows_has_no_gradient_where_it_is_clipped(name: str, advantage: float) -> None:
    logprobs, old, ones = torch.tensor([100.0], requires_grad=True), torch.zeros(1), torch.ones(1)
    extra = whole(name, logprobs.detach(), old, ones)
    torch.autograd.backward(LOSSES[name].function(logprobs, old, old, advantage * ones, ones, 1.0, **extra))
    assert logprobs.grad is not None and logprobs.grad.tolist() == [0.0]


def test_gspo_by_hand() -> None:
    """Two tokens whose ratios are e^0.02 and e^-0.01: the unit's is e^0.005. A third alone is beyond 1 + 4e-4.

    Up (advantage 1): e^0.005 = 1.00501 is above 1.0004, so the unit of two has no gradient, though its second token
    has come down. Down (advantage -1): it may come back, each of its tokens with slope e^0.005. The third has a ratio
    of e^-0.0002, within the bounds.
    """
    old = torch.zeros(3, dtype=torch.float64)
    log_ratio = torch.tensor([0.005, 0.005, -0.0002], dtype=torch.float64)
    for advantage, expected in ((1.0, [0.0, 0.0, -0.9998]), (-1.0, [1.005013, 1.005013, 0.9998])):
        logprobs = torch.tensor([0.02, -0.01, -0.0002], dtype=torch.float64).requires_grad_()
        assert unit_means(logprobs.detach() - old, torch.tensor([0, 0, 1])).tolist() == pytest.approx(
            log_ratio.tolist()
        )
        rest = (old, old, torch.full_like(old, advantage), torch.ones(3), 1.0)
        torch.autograd.backward(gspo(logprobs, *rest, log_ratio=log_ratio))
        assert logprobs.grad is not None and logprobs.grad.tolist() == pytest.approx(expected, abs=1e-6)


def test_gspo_has_the_gradient_of_the_papers_sequence_objective() -> None:
    """`mean over units of min(s A, clip(s) A)`, differentiated through s, is this loss with each token over T."""
    generator = torch.Generator().manual_seed(3)
    unit = torch.tensor([0, 1, 0, 2, 1, 0])
    old = -torch.rand(6, generator=generator, dtype=torch.float64)
    moved = (torch.rand(6, generator=generator, dtype=torch.float64) - 0.5) * 1e-3
    advantage = torch.tensor([1.0, -2.0, 1.0, 0.5, -2.0, 1.0], dtype=torch.float64)
    slopes = []
    for paper in (True, False):
        logprobs = (old + moved).requires_grad_()
        if paper:
            s = torch.exp(unit_means(logprobs - old, unit))
            first = torch.tensor([0, 1, 3])  # one token of each unit
            bounded = s.clamp(1 - 3e-4, 1 + 4e-4)
            loss = -torch.minimum(s * advantage, bounded * advantage)[first].sum() / 3
        else:
            share = 1 / torch.tensor([3.0, 2.0, 3.0, 1.0, 2.0, 3.0], dtype=torch.float64)
            means = unit_means(logprobs.detach() - old, unit)
            loss = gspo(logprobs, old, old, advantage * share, torch.ones(6), 3.0, log_ratio=means)
        torch.autograd.backward(loss)
        assert logprobs.grad is not None
        slopes.append(logprobs.grad)
    assert torch.allclose(*slopes, rtol=1e-12, atol=0) and bool((slopes[0] != 0).any())


def test_estimates_of_the_kl_by_hand() -> None:
    now, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    assert float(k1(now, reference)) == pytest.approx(0.5)
    assert float(k2(now, reference)) == pytest.approx(0.125)
    assert float(k3(now, reference)) == pytest.approx(math.exp(-0.5) - 0.5)


@pytest.mark.parametrize("name", LOSSES)
def test_no_loss_sees_what_is_masked(name: str) -> None:
    bad = float("nan")
    logprobs = torch.tensor([-1.0, bad, -float("inf")], requires_grad=True)
    old = torch.tensor([-1.0, bad, -float("inf")])
    extra = {"log_ratio": torch.tensor([0.0, bad, bad])} if name == "gspo" else {}
    loss = LOSSES[name].with_bounds()(logprobs, old, old, torch.ones(3), torch.tensor([1, 0, 0]), 1.0, **extra)
    torch.autograd.backward(loss)
    assert float(loss.detach()) in (-1.0, 1.0)
    assert logprobs.grad is not None and logprobs.grad.tolist() == [-1.0, 0.0, 0.0]
