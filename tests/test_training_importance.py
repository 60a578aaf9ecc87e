"""Importance weights and sums over turns, seats and traces, against loops and numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_arena.training.batch import Tokens
from llm_arena.training.heads import Predictions
from llm_arena.training.importance import (
    Correction,
    Importance,
    Unit,
    beyond,
    effective_share,
    later_sums,
    ratios,
    unit_means,
    unit_sums,
    weights,
)
from llm_arena.training.objective import MOST_MEASURED, StepSettings, StepStats, objective, prepared

ROWS = st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=20)


def float64(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(rows=ROWS)
@settings(deadline=None)
def test_sums_equal_loops(rows: list[tuple[float, int, int]]) -> None:
    values, turn = float64([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
    groups = [[value for value, other, _ in rows if other == own] for _, own, _ in rows]
    assert unit_sums(values, turn).tolist() == pytest.approx([sum(group) for group in groups], abs=1e-9)
    assert unit_means(values, turn).tolist() == pytest.approx([sum(g) / len(g) for g in groups], abs=1e-9)


@given(rows=ROWS)
@settings(deadline=None)
def test_later_sums_equal_a_loop(rows: list[tuple[float, int, int]]) -> None:
    """Turn numbers 3 * seat + place, so that a turn belongs to one seat; the table is in any order of turns."""
    table = [(value, 5 * seat + turn, seat) for value, turn, seat in rows]
    expected = []
    for at, (_, turn, seat) in enumerate(table):
        later = [
            value
            for other, (value, its_turn, its_seat) in enumerate(table)
            if its_seat == seat and (its_turn > turn or (its_turn == turn and other >= at))
        ]
        expected.append(sum(later))
    columns = [torch.tensor([row[place] for row in table]) for place in (1, 2)]
    found = later_sums(float64([row[0] for row in table]), *columns)
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_sums_of_nothing() -> None:
    nothing, ids = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    assert len(unit_sums(nothing, ids)) == len(later_sums(nothing, ids, ids)) == 0


@pytest.mark.parametrize(
    ("how", "unit", "expected", "cut"),
    [
        # v of the tokens: e, 1/e, 4, 1; of the turns (0 1), (2), (3): 1, 4, 1; of the traces (0 1 2), (3): 4, 1
        ("truncate", "token", [2.0, math.exp(-1), 2.0, 1.0], 2),
        ("truncate", "turn", [1.0, 1.0, 2.0, 1.0], 1),
        ("truncate", "trace", [2.0, 2.0, 2.0, 1.0], 3),
        ("mask", "token", [0.0, math.exp(-1), 0.0, 1.0], 2),
        ("mask", "turn", [1.0, 1.0, 0.0, 1.0], 1),
        ("mask", "trace", [0.0, 0.0, 0.0, 1.0], 3),
        ("none", "token", [1.0, 1.0, 1.0, 1.0], 0),
    ],
)
def test_weights_by_hand(how: Correction, unit: Unit, expected: list[float], cut: int) -> None:
    old = float64([-1.0, -2.0, -1.0, -3.0])
    behaviour = old - float64([1.0, -1.0, math.log(4), 0.0])
    units = {"token": None, "turn": torch.tensor([0, 0, 1, 2]), "trace": torch.tensor([0, 0, 0, 1])}[unit]
    setting = Importance(how=how, cap=2.0, unit=unit)
    ratio = ratios(old, behaviour, units)
    assert weights(ratio, setting).tolist() == pytest.approx(expected, rel=1e-12)
    assert beyond(ratio, setting) == cut


def test_what_is_no_number_is_masked_or_refused_later() -> None:
    ratio = float64([math.nan, math.inf, 1.0])
    assert weights(ratio, Importance(how="mask")).tolist() == [0.0, 0.0, 1.0]
    cut = weights(ratio, Importance(how="truncate")).tolist()
    assert math.isnan(cut[0]) and cut[1:] == [2.0, 1.0]
    assert beyond(ratio, Importance(how="mask")) == beyond(ratio, Importance(how="truncate")) == 2


def test_the_effective_share() -> None:
    assert effective_share(4.0, 4.0, 4) == 1.0
    assert effective_share(2.0, 4.0, 4) == 0.25  # one weight of 2, three of 0
    assert effective_share(0.0, 0.0, 4) == 0.0


def table(**columns: torch.Tensor) -> Tokens:
    """Six tokens: turns (0 1), (2 3), (4), (5) of the traces (0 1 2 3) and (4 5)."""
    return Tokens(
        advantage=float64([1.0, 1.0, 1.0, 1.0, -2.0, -2.0]),
        behaviour=float64([-1.0, -0.5, -2.0, -1.0, -0.2, -3.0]),
        turn=torch.tensor([0, 0, 1, 1, 2, 3]),
        trace=torch.tensor([0, 0, 0, 0, 1, 1]),
        seat=torch.tensor([0, 0, 0, 0, 1, 1]),
        whole_turns=True,
        **columns,
    )


OLD = float64([-0.5, -1.0, -1.0, -1.5, -0.1, -1.0])
NOW = float64([-0.6, -0.9, -1.2, -1.2, -0.15, -0.8])


def parts(setting: StepSettings, tokens: Tokens, cuts: list[list[int]]) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient [6] by the tokens' log-probabilities, and the sums, micro-batch by micro-batch."""
    logprobs = NOW.clone().requires_grad_()
    tokens, sums = prepared(tokens, setting), dict[str, float]()
    for cut in cuts:
        predictions = Predictions(
            chosen=logprobs[cut],
            counts=torch.ones(len(cut), dtype=torch.float64),
            head_of=torch.arange(len(cut)),
            entropy=None,
            kl=None,
        )
        total, found = objective(predictions, tokens, torch.tensor(cut), setting)
        torch.autograd.backward(total)
        for name, value in found.items():
            sums[name] = max(sums.get(name, 0.0), value) if name.startswith("max") else sums.get(name, 0.0) + value
    assert logprobs.grad is not None
    return logprobs.grad, sums


@pytest.mark.parametrize("how", ["truncate", "mask"])
@pytest.mark.parametrize("unit", ["token", "turn", "trace"])
def test_the_objective_weights_tokens_as_a_loop_does(how: Correction, unit: Unit) -> None:
    ids = {"token": list(range(6)), "turn": [0, 0, 1, 1, 2, 3], "trace": [0, 0, 0, 0, 1, 1]}[unit]
    plain = table()
    expected, used = [], []
    for own in range(6):
        ratio = math.exp(sum(float(OLD[k] - plain.behaviour[k]) for k in range(6) if ids[k] == ids[own]))
        weight = min(ratio, 2.0) if how == "truncate" else ratio * (ratio <= 2.0)
        used.append((weight, ratio > 2.0))
        expected.append(-weight * float(plain.advantage[own]) / 3.0)
    setting = StepSettings(lr=0.0, divisor=3.0, importance=Importance(how=how, cap=2.0, unit=unit))
    for cuts in ([[0, 1, 2, 3, 4, 5]], [[4, 5], [2, 3], [0, 1]]):
        slope, sums = parts(setting, table(old=OLD), cuts)
        assert slope.tolist() == pytest.approx(expected, rel=1e-12)
        stats = StepStats.of(sums | {"max_norm": 0.0}, trained_tokens=6, epochs=1, updates=1)
        assert stats.capped == pytest.approx(sum(cut for _, cut in used) / 6)
        total, squares = sum(w for w, _ in used), sum(w**2 for w, _ in used)
        assert stats.effective == pytest.approx(total**2 / (6 * squares))
        gaps = (plain.behaviour - OLD).tolist()
        assert stats.mismatch == pytest.approx(sum(math.exp(-gap) - 1 + gap for gap in gaps) / 6)


@pytest.mark.parametrize("behaviour", [-200.0, -3000.0, -math.inf, math.nan])
def test_what_is_measured_stays_a_number(behaviour: float) -> None:
    broken = dataclasses.replace(table(old=OLD), behaviour=torch.full_like(OLD, behaviour))
    _, sums = parts(StepSettings(lr=0.0, divisor=1.0), broken, [[0, 1, 2, 3, 4, 5]])
    assert sums["mismatch"] == 6 * MOST_MEASURED
    _, sums = parts(StepSettings(lr=0.0, divisor=1.0), table(old=OLD - 3000.0), [[0, 1, 2, 3, 4, 5]])
    assert sums["approx_kl"] == 6 * MOST_MEASURED


def test_without_a_correction_nothing_is_weighted() -> None:
    slope, sums = parts(StepSettings(lr=0.0, divisor=1.0), table(old=OLD), [[0, 1, 2, 3, 4, 5]])
    assert slope.tolist() == [-1.0, -1.0, -1.0, -1.0, 2.0, 2.0]
    assert (sums["capped"], sums["weight"], sums["weight_squared"]) == (0.0, 6.0, 6.0)


def test_a_token_that_cannot_be_sampled_is_masked() -> None:
    tokens = table(old=OLD)
    tokens.behaviour[2] = -math.inf
    setting = StepSettings(lr=0.0, divisor=1.0, importance=Importance(how="mask", cap=5.0))
    slope, _ = parts(setting, tokens, [[0, 1, 2, 3, 4, 5]])
    assert float(slope[2]) == 0.0 and bool(torch.isfinite(slope).all())


@pytest.mark.parametrize("by", ["turn", "trace"])
def test_a_mean_by_units_as_a_loop_does(by: str) -> None:
    ids = {"turn": [0, 0, 1, 1, 2, 3], "trace": [0, 0, 0, 0, 1, 1]}[by]
    advantage = table().advantage.tolist()
    expected = [-advantage[k] / ids.count(ids[k]) / len(set(ids)) for k in range(6)]
    setting = StepSettings(lr=0.0, divisor=len(set(ids)), mean_by=by)  # type: ignore[arg-type]
    for cuts in ([[0, 1, 2, 3, 4, 5]], [[4, 5], [2, 3], [0, 1]]):
        slope, _ = parts(setting, table(), cuts)
        assert slope.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_mean_by_units_scales_entropy_and_kl_as_well() -> None:
    """Two uses of one position, in turns of two tokens and of one: shares 1/2 and 1; entropy 0.7, KL 0.3."""
    tokens = Tokens(
        advantage=float64([0.0, 0.0, 0.0]),
        behaviour=float64([-1.0, -1.0, -1.0]),
        turn=torch.tensor([0, 0, 1]),
        trace=torch.tensor([0, 0, 0]),
        seat=torch.tensor([0, 0, 0]),
        whole_turns=True,
    )
    setting = StepSettings(lr=0.0, divisor=2.0, mean_by="turn", entropy_weight=0.1, kl_weight=0.2)
    predictions = Predictions(
        chosen=float64([-1.0, -1.0]).requires_grad_(),
        counts=float64([2.0]),
        head_of=torch.tensor([0, 0]),
        entropy=float64([0.7]),
        kl=float64([0.3]),
    )
    total, sums = objective(predictions, prepared(tokens, setting), torch.tensor([1, 2]), setting)
    assert float(total.detach()) == pytest.approx(1.5 * (0.2 * 0.3 - 0.1 * 0.7) / 2.0)
    assert (sums["entropy"], sums["kl"]) == (pytest.approx(1.4), pytest.approx(0.6))  # the metrics stay by token
