"""From traces to a loss by the public path: masks, divisors, and how sequences are stored, which must not matter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from llm_arena.training.batch import Batch, build
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepStats, prepared
from llm_arena.training.step_settings import step_settings
from llm_arena.types import Ending, EnvSpec, SeatInfo, Trace, Turn
from model_parts import small_llama

VOCABULARY = 24


class Output:
    """What transformers returns, as far as the learner looks."""

    def __init__(self, **fields: torch.Tensor) -> None:
        self.__dict__.update(fields)


class Body(nn.Module):
    def forward(self, input_ids: torch.Tensor, **rest: Any) -> Output:
        return Output(last_hidden_state=nn.functional.one_hot(input_ids, VOCABULARY).double())


class Bigrams(nn.Module):
    """A causal language model whose next id depends on the last one alone, by a table of chosen log-probabilities."""

    def __init__(self, logprobs: Mapping[tuple[int, int], float]) -> None:
        super().__init__()
        self.config = LlamaConfig(vocab_size=VOCABULARY)
        self.base_model = Body()
        self.head = nn.Linear(VOCABULARY, VOCABULARY, bias=False, dtype=torch.float64)
        table = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
        for (before, after), value in logprobs.items():
            table[before] = math.log(-math.expm1(value) / (VOCABULARY - 1))
            table[before, after] = value
        self.head.weight.data = table.T.contiguous()

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor, **rest: Any) -> Output:
        return Output(logits=self.head(self.base_model(input_ids).last_hidden_state))


def played(id: str, *completions: Sequence[int], prompt: Sequence[int] = (10, 11, 12), cut: bool = False) -> Trace:
    """A trace with a seat for each completion, all paid 1."""
    turns = [
        Turn(
            index=index,
            seat=f"solver_{index}",
            text="",
            prompt_ids=list(prompt),
            completion_ids=list(ids),
            logprobs=[-1.0] * len(ids),
            finish="length" if cut else "stop",
        )
        for index, ids in enumerate(completions)
    ]
    seats = {turn.seat: SeatInfo(role="solver", agent="x", policy="learner") for turn in turns}
    return Trace(id=id, spec=EnvSpec(id="toy-v0"), seed=0, seats=seats, turns=turns, returns=dict.fromkeys(seats, 1.0))


def learned(traces: Sequence[Trace], logprobs: Mapping[tuple[int, int], float], **settings: Any) -> StepStats:
    """Makes one step of plain REINFORCE with a mean over tokens; checks that nothing became NaN."""
    config = TrainConfig(divisor="tokens", estimator="none", **settings)
    gained = assign(
        traces, by="seat", estimator="none", baselines=Baselines(), learners=lambda trace: list(trace.seats)
    )
    sequences = train_sequences(traces, gained, policy="learner", ignore_truncated=config.ignore_truncated)
    learner = Learner(Bigrams(logprobs))
    batch = build(sequences, dtype=torch.float64)
    stats = learner.step(batch, step_settings(config, 0, batch, 4))
    state = [value for group in learner.state().values() for value in group.values()]
    assert all(bool(torch.isfinite(value).all()) for value in state)
    return stats


CHAIN = {(10, 11): -1.0, (11, 12): -2.0, (12, 20): -3.0, (20, 21): -4.0}


@pytest.mark.parametrize(("completion", "expected"), [((20, 21), 3.5), ((20,), 3.0)])
def test_the_first_sampled_token_has_a_loss(completion: tuple[int, ...], expected: float) -> None:
    assert learned([played("t", completion)], CHAIN).loss == pytest.approx(expected, rel=1e-12)


def test_cut_replies_leave_the_sum_and_the_count() -> None:
    """Twelve tokens of a finished reply, four of one that was cut, each with a loss of 1."""
    ones = {(12, 5): -1.0, (5, 5): -1.0}
    finished, cut = played("p", [5] * 12), played("q", [5] * 4, cut=True)
    assert learned([finished, cut], ones, ignore_truncated=True).loss == pytest.approx(1.0, rel=1e-12)
    assert learned([finished, cut], ones).loss == pytest.approx(1.0, rel=1e-12)
    assert learned([cut], ones, ignore_truncated=True) == StepStats()
    assert [len(trace.turns[0].completion_ids) for trace in (finished, cut)] == [12, 4]


def test_empty_replies_have_no_part() -> None:
    alone, beside = learned([played("t", (20, 21, 20))], CHAIN), learned([played("t", (20, 21, 20), ())], CHAIN)
    assert beside.loss == alone.loss and beside.updates == 1
    assert learned([played("t", ())], CHAIN) == StepStats()


def tiny_model(seed: int) -> Any:
    return small_llama(seed=seed, vocab_size=VOCABULARY, num_hidden_layers=1, num_attention_heads=2)


def dialogue(id: str, *, merged: bool) -> Trace:
    """Two seats, two turns each; the ids are the same whether second turns extend the first ones or stand alone."""
    number = sum(map(ord, id))
    turns: list[Turn] = []
    for index in range(4):
        completion = [(number + 3 * index + k) % VOCABULARY for k in range(1 + (number + index) % 3)]
        before = turns[index - 2] if index > 1 else None
        fresh = [20, index % 2, (number + index) % 7]
        sent = fresh if before is None else [*(before.prompt_ids or []), *before.completion_ids, *fresh]
        extends = index - 2 if merged and before is not None else None
        turns.append(
            Turn(
                index=index,
                seat=f"{'ab'[index % 2]}_0",
                text="",
                prompt_ids=fresh if extends is not None else sent,
                completion_ids=completion,
                logprobs=[-2.0 - 0.1 * ((number + k) % 13) for k in range(len(completion))],
                extends=extends,
            )
        )
    seats = {seat: SeatInfo(role=seat[0], agent="x", policy="learner") for seat in ("a_0", "b_0")}
    returns = {"a_0": 1.0 + number % 5, "b_0": -0.5 * (number % 3)}
    return Trace(id=id, spec=EnvSpec(id="toy-v0"), seed=0, group="g", seats=seats, turns=turns, returns=returns)


def pays(trace: Trace) -> dict[int, Any]:
    return {
        turn.index: {"rewards": [0.25 * (k + 1) for k in range(len(turn.completion_ids))]} for turn in trace.turns[:3]
    }


@pytest.fixture(scope="module")
def models() -> list[Learner]:
    """The weights in training, those before the step, and the reference's."""
    return [Learner(tiny_model(seed)) for seed in range(3)]


def gradient(models: Sequence[Learner], config: TrainConfig, traces: Sequence[Trace]) -> torch.Tensor:
    """Of an update later in a step: the ratios to the weights before it are not 1."""
    learner, before, reference = models
    gained = assign(
        traces,
        by="seat",
        estimator=config.estimator,
        baselines=Baselines(),
        learners=lambda trace: list(trace.seats),
        token_rewards=pays if config.token_rewards else None,
    )
    sequences = train_sequences(traces, gained, policy="learner")
    batch: Batch = build(sequences, dtype=torch.float64, max_row_tokens=12, token_budget=12)
    assert len(list(batch)) > 1
    settings = step_settings(config, 0, batch, 12)
    tokens = dataclasses.replace(
        batch.tokens,
        old=before.score(batch, 1.0, ["old"]).old,
        now=learner.score(batch, 1.0, ["old"]).old,
        reference=reference.score(batch, 1.0, ["old"]).old if settings.needs_reference else None,
    )
    learner.model.zero_grad()
    learner.accumulate(dataclasses.replace(batch, tokens=prepared(tokens, settings)), settings)
    return torch.cat([parameter.grad.flatten().clone() for parameter in learner.model.parameters()])


WIDE = {"clip_low": 0.9, "clip_high": 5.0}
"""Random weights are far apart; the authors' bounds would leave little."""


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"estimator": "role_norm", "token_rewards": "here:pays"},
        {"loss": "ppo_clip", **WIDE, "importance": "mask", "importance_unit": "turn", "importance_cap": 9.0},
        {"loss": "ppo_clip", **WIDE, "importance": "truncate", "importance_unit": "trace", "divisor": "turns"},
        {"loss": "dapo", **WIDE, "estimator": "loo", "importance": "truncate"},
        {"loss": "gspo", **WIDE},
        {"loss": "gspo", **WIDE, "importance_unit": "trace", "importance": "mask", "importance_cap": 1e4},
        {"loss": "cispo", "kl_weight": 0.3, "kl_estimator": "k2", "divisor": "traces"},
        {"loss": "dr_grpo", **WIDE, "kl_weight": 0.3, "kl_estimator": "k1_reward", "token_rewards": "here:pays"},
    ],
)
def test_how_sequences_are_stored_changes_nothing(models: list[Learner], settings: dict[str, Any]) -> None:
    config = TrainConfig(**{"estimator": "none", **settings})
    names = ["first", "second", "third"]
    whole = gradient(models, config, [dialogue(name, merged=True) for name in names])
    parts = gradient(models, config, [dialogue(name, merged=False) for name in names])
    mixed = gradient(models, config, [dialogue(name, merged=name == "first") for name in reversed(names)])
    assert float(whole.norm()) > 1e-3
    for other in (parts, mixed):
        # transformers computes RMSNorm in float32 even for float64 models, hence not closer
        assert float((other - whole).norm()) < 1e-6 * float(whole.norm())


def test_void_traces_train_nothing() -> None:
    void = dialogue("first", merged=True)
    void.ending, void.returns = Ending.VOID, {}
    gained = assign([void], by="seat", estimator="rae", baselines=Baselines(), learners=lambda trace: ["a_0"])
    assert train_sequences([void], gained, policy="learner") == []
