"""The pull to a reference, in a tabular model whose every sequence can be listed: mean gradients against true ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from llm_arena.training.batch import Tokens
from llm_arena.training.heads import Predictions
from llm_arena.training.importance import Importance
from llm_arena.training.losses import k1, k2, k3, kl, ppo_clip
from llm_arena.training.objective import KlEstimator, StepSettings, objective, prepared

WORDS = 3
SEQUENCES = list(itertools.product(range(WORDS), repeat=2))
WEIGHT = 0.7


class Table:
    """Log-probabilities of a first word, and of a second one after each first."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.logits = torch.randn(1 + WORDS, WORDS, generator=generator, dtype=torch.float64).requires_grad_()

    def rows(self, words: tuple[int, ...]) -> torch.Tensor:
        """[2, WORDS] log-probabilities at both positions of a sequence."""
        return torch.log_softmax(self.logits, -1)[[0, 1 + words[0]]]

    def of(self, words: tuple[int, ...]) -> torch.Tensor:
        """[2] log-probability of each word."""
        return self.rows(words)[[0, 1], list(words)]

    def chance(self, words: tuple[int, ...]) -> float:
        return float(self.of(words).sum().detach().exp())


POLICY, REFERENCE, SAMPLER, BEFORE = (Table(seed) for seed in range(4))


def gradient(loss: torch.Tensor) -> torch.Tensor:
    [found] = torch.autograd.grad(loss, POLICY.logits)
    return found


def mean_gradient(
    setting: StepSettings, sampled_by: Table = POLICY, old: Table = POLICY, *, known: bool = True
) -> torch.Tensor:
    """Over all sequences as `sampled_by` samples them: each alone, as a table of two tokens of one seat.

    Args:
        setting: of the objective.
        sampled_by: whose log-probabilities are the behaviour.
        old: the weights at the start of the step.
        known: whether the column `old` is filled, as it is where something needs it.
    """
    total = torch.zeros_like(POLICY.logits)
    for words in SEQUENCES:
        tokens = Tokens(
            advantage=torch.zeros(2, dtype=torch.float64),
            behaviour=sampled_by.of(words).detach(),
            turn=torch.tensor([0, 1]),
            trace=torch.tensor([0, 0]),
            seat=torch.tensor([0, 0]),
            whole_turns=True,
            old=old.of(words).detach() if known else None,
            reference=REFERENCE.of(words).detach() if setting.needs_reference else None,
        )
        exact = kl(POLICY.rows(words), REFERENCE.rows(words).detach()) if setting.wants_kl else None
        predictions = Predictions(
            chosen=POLICY.of(words),
            counts=torch.ones(2, dtype=torch.float64),
            head_of=torch.arange(2),
            entropy=None,
            kl=exact,
        )
        loss, _ = objective(predictions, prepared(tokens, setting), torch.tensor([0, 1]), setting)
        total += sampled_by.chance(words) * gradient(loss)
    return total


def setting(estimator: KlEstimator, **more: object) -> StepSettings:
    return StepSettings(lr=0.0, divisor=1.0, kl_weight=WEIGHT, kl_estimator=estimator, **more)  # type: ignore[arg-type]


def true_kl_of_sequences() -> torch.Tensor:
    """The gradient of KL between the distributions of whole sequences: also of how states are reached."""
    terms = [(POLICY.of(words).sum().exp() * k1(POLICY.of(words), REFERENCE.of(words)).sum()) for words in SEQUENCES]
    return WEIGHT * gradient(torch.stack(terms).sum())


def true_kl_of_positions(sampled_by: Table = POLICY) -> torch.Tensor:
    """The gradient of the expected sum of the KL at each position, with the states as they are sampled."""
    terms = [
        sampled_by.chance(words) * kl(POLICY.rows(words), REFERENCE.rows(words).detach()).sum() for words in SEQUENCES
    ]
    return WEIGHT * gradient(torch.stack(terms).sum())


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return bool(right.abs().max() > 1e-3) and torch.allclose(left, right, rtol=0, atol=1e-12)


@pytest.mark.parametrize("estimator", ["exact", "k2"])
def test_in_the_loss_the_mean_gradient_is_that_of_the_kl_at_each_position(estimator: KlEstimator) -> None:
    assert same(mean_gradient(setting(estimator), known=False), true_kl_of_positions())


def test_as_a_reward_the_mean_gradient_is_that_of_the_kl_of_sequences() -> None:
    assert same(mean_gradient(setting("k1_reward")), true_kl_of_sequences())
    assert not same(true_kl_of_positions(), true_kl_of_sequences())


def test_off_policy_the_weights_make_up_for_the_sampler() -> None:
    """By token: k2 has the KL at the states that were sampled. By trace: k1_reward has that of whole sequences."""
    by_token = Importance(how="truncate", cap=1e9, unit="token")
    by_trace = Importance(how="truncate", cap=1e9, unit="trace")
    assert same(mean_gradient(setting("k2", importance=by_token), SAMPLER, known=False), true_kl_of_positions(SAMPLER))
    assert same(mean_gradient(setting("k1_reward", importance=by_trace), SAMPLER), true_kl_of_sequences())
    assert same(mean_gradient(setting("exact"), SAMPLER, known=False), true_kl_of_positions(SAMPLER))
    assert not same(mean_gradient(setting("k2"), SAMPLER, known=False), true_kl_of_positions(SAMPLER))


def test_in_later_updates_k2_is_weighted_by_the_ratio() -> None:
    """Sampled by the weights before the step, with no difference of the engine."""
    found = mean_gradient(setting("k2", loss=ppo_clip), sampled_by=BEFORE, old=BEFORE)
    assert same(found, true_kl_of_positions(BEFORE))


def test_k3_in_the_loss_would_pull_the_other_way_round() -> None:
    """Its mean gradient is that of KL(reference || policy), and that of k1 is 0: why no setting offers them."""
    anchor = REFERENCE.rows((0, 0))[0].detach()

    def mean(cost: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> torch.Tensor:
        row = POLICY.rows((0, 0))[0]
        return gradient((row.detach().exp() * cost(row, anchor)).sum())

    assert same(mean(k3), gradient((anchor.exp() * (anchor - POLICY.rows((0, 0))[0])).sum()))
    assert float(mean(k1).abs().max()) < 1e-15
    assert same(mean(k2), gradient(kl(POLICY.rows((0, 0))[0], anchor)))


def test_the_kl_that_is_shown_is_k3_where_only_samples_are_at_hand() -> None:
    words = (1, 2)
    tokens = Tokens(
        advantage=torch.zeros(2, dtype=torch.float64),
        behaviour=POLICY.of(words).detach(),
        turn=torch.tensor([0, 0]),
        trace=torch.tensor([0, 0]),
        seat=torch.tensor([0, 0]),
        whole_turns=True,
        reference=REFERENCE.of(words).detach(),
    )
    predictions = Predictions(
        chosen=POLICY.of(words), counts=torch.ones(2), head_of=torch.arange(2), entropy=None, kl=None
    )
    _, sums = objective(predictions, tokens, torch.tensor([0, 1]), setting("k2"))
    expected = k3(POLICY.of(words), REFERENCE.of(words)).sum().detach()
    assert sums["kl"] == pytest.approx(float(expected))
