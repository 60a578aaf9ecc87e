"""Every loss, importance weight, KL and divisor against its formula, written out call by call.

Each case makes a step of two updates. The first is at the weights that were scored before the step, the second at other
weights, which take their place: there all ratios differ from 1, some beyond the clips. The gradients that the optimizer
is given are compared with those of a loop over calls which has the formulas of the papers and none of the library.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from enumerable_parts import tiny_llama
from gradient_parts import (
    MadeCall,
    accumulated,
    anywhere,
    between_turns,
    chosen,
    gradient_of,
    in_two,
    random_credit,
    spoken,
    synthetic,
)
from llm_arena.training.batch import TrainSequence, build
from llm_arena.training.config import TrainConfig
from llm_arena.training.credit import Credit
from llm_arena.training.importance import Importance
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.losses import LOSSES
from llm_arena.training.objective import StepSettings
from llm_arena.training.step_settings import step_settings
from llm_arena.types import Trace
from unbiased_parts import apart

CLOSE = 1e-9
VOCABULARY = 11
TEMPERATURE = 0.9


pytestmark = pytest.mark.usefixtures("one_thread")


def llama(seed: int = 0) -> Any:
    return tiny_llama(seed, VOCABULARY, 16, 2).eval()


def moved(model: Any, size: float, seed: int) -> Any:
    """A copy with other weights nearby."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * size)
    return other


class Setting:
    """Traces, the weights that scored them, other weights, a reference, and what the engine reported."""

    def __init__(self, seed: int = 1) -> None:
        self.old, self.reference = llama(seed), moved(llama(seed), 0.1, 8)
        self.now = moved(self.old, 0.015, 9)
        rng = np.random.default_rng(seed)
        self.traces: list[Trace] = []
        self.calls: list[MadeCall] = []
        for number in range(3):
            trace, own = synthetic(seed * 10 + number, VOCABULARY, turns=18, name=f"s{number}")
            noted = iter(own)
            for turn in trace.turns:
                if turn.guided:
                    continue
                call = next(noted)
                assert list(call.completion) == turn.completion_ids
                if call.completion:
                    exact = chosen(spoken(self.old, call, TEMPERATURE), call).detach().numpy()
                    turn.logprobs = (exact + rng.normal(size=len(exact)) * 0.5).tolist()
                self.calls.append(MadeCall(call.trace, call.seat, call.prompt, call.completion, tuple(turn.logprobs)))
            self.traces.append(trace)
        self.credit = random_credit(self.traces, seed=seed)
        self.mine = [c for c in self.calls if (c.trace, c.seat) in self.credit.advantages and c.completion]
        with torch.no_grad():
            both = (self.old, self.reference)
            self.rows = [tuple(spoken(model, call, TEMPERATURE) for model in both) for call in self.mine]


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting()


class Token:
    """What the formulas need of one token: `row` and `l`, its log-probability in it, have a gradient.

    `o` is the log-probability before the step, `m` that at sampling, `r` the reference's, `other` its whole row.
    """

    def __init__(self, call: int, made: MadeCall, at: int, row: Tensor, old: Tensor, other: Tensor) -> None:
        token = made.completion[at]
        self.call, self.trace, self.seat, self.at = call, made.trace, made.seat, at
        self.row, self.other = row, other
        self.l, self.o, self.m, self.r = row[token], float(old[token]), made.behaviour[at], float(other[token])

    def unit(self, kind: str) -> Any:
        return {"token": (self.call, self.at), "turn": self.call, "trace": self.trace}[kind]


def tokens_of(setting: Setting, now: Any) -> list[Token]:
    found = []
    for number, call in enumerate(setting.mine):
        rows = spoken(now, call, TEMPERATURE)
        old, slow = setting.rows[number]
        found += [Token(number, call, at, rows[at], old[at], slow[at]) for at in range(len(call.completion))]
    return found


def together(tokens: Sequence[Token], kind: str) -> dict[Any, list[Token]]:
    units: dict[Any, list[Token]] = {}
    for token in tokens:
        units.setdefault(token.unit(kind), []).append(token)
    return units


def by_hand(
    setting: Setting,
    now: Any,
    *,
    loss: str = "reinforce",
    how: str = "none",
    unit: str = "token",
    cap: float = 2.0,
    ratio_by: str = "turn",
    mean_by: str | None = None,
    divisor: float = 1.0,
    kl: str = "",
    kl_weight: float = 0.0,
    low: float = 0.2,
    high: float = 0.2,
) -> Tensor:
    tokens = tokens_of(setting, now)
    weight_units, ratio_units = together(tokens, unit), together(tokens, ratio_by)
    mean_units = together(tokens, mean_by) if mean_by else None
    total = torch.zeros((), dtype=torch.float64)
    for place, token in enumerate(tokens):
        v = math.exp(sum(other.o - other.m for other in weight_units[token.unit(unit)]))
        w = {"none": 1.0, "truncate": min(v, cap), "mask": v if v <= cap else 0.0}[how]
        a = setting.credit.advantages[token.trace, token.seat]
        if kl == "k1_reward":
            later = [other for other in tokens[place:] if (other.trace, other.seat) == (token.trace, token.seat)]
            a -= kl_weight * sum(other.o - other.r for other in later)
        rho = torch.exp(token.l - token.o)
        if loss == "reinforce":
            term = -w * a * token.l
        elif loss in ("ppo_clip", "dr_grpo", "dapo"):
            term = -w * torch.minimum(rho * a, rho.clamp(1 - low, 1 + high) * a)
        elif loss == "cispo":
            term = -w * min(float(rho.detach()), 1 + high) * a * token.l
        else:  # gspo: clipped or not by its unit's ratio s; if not, the gradient is s A grad l
            others = ratio_units[token.unit(ratio_by)]
            s = math.exp(sum(float(other.l.detach()) - other.o for other in others) / len(others))
            clipped = (a > 0 and s > 1 + high) or (a < 0 and s < 1 - low)
            term = torch.zeros(()) if clipped else -w * s * a * token.l
        if kl == "k2":
            term = term + kl_weight * w * float(rho.detach()) * (token.l - token.r) ** 2 / 2
        if kl == "exact":
            term = term + kl_weight * (token.row.exp() * (token.row - token.other)).sum()
        total = total + (term / len(mean_units[token.unit(mean_by or "")]) if mean_units else term)
    return gradient_of(now, total / divisor)


def updates(
    setting: Setting, settings: StepSettings, *, sequences: Sequence[TrainSequence] | None = None, **cuts: Any
) -> list[Tensor]:
    """The gradients that a step of the library hands to the optimizer: at the old weights, then at the new."""
    learner = Learner(copy.deepcopy(setting.old), reference="initial" if settings.kl_weight else None)
    if learner.reference is not None:
        for name, parameter in setting.reference.named_parameters():
            learner.reference.tensors[name].copy_(parameter.data)
    given = train_sequences(setting.traces, setting.credit, policy="learner") if sequences is None else sequences
    found: list[Tensor] = []

    def replaced() -> None:
        found.append(accumulated(learner.model).clone())
        with torch.no_grad():
            for name, parameter in setting.now.named_parameters():
                learner.parameters[name].copy_(parameter)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learner.optimizer, "step", replaced)
        learner.step(build(given, dtype=torch.float64, **cuts), settings)
    return found


def settings_of(loss: str = "reinforce", **more: Any) -> StepSettings:
    given = {"lr": 0.0, "divisor": 5.0, "epochs": 2, "temperature": TEMPERATURE, "grad_clip": 1e12}
    if loss == "gspo":
        given["ratio_by"] = "turn"
    bounds = {name: more.pop(name) for name in ("clip_low", "clip_high") if name in more}
    return StepSettings(**{**given, "loss": LOSSES[loss].with_bounds(**bounds), **more})


BOUNDS: dict[str, dict[str, float]] = {
    "reinforce": {},
    "ppo_clip": {"low": 0.2, "high": 0.2},
    "dr_grpo": {"low": 0.2, "high": 0.2},
    "dapo": {"low": 0.2, "high": 0.28},
    "gspo": {"low": 3e-4, "high": 4e-4},
    "cispo": {"high": 4.0},
}
"""The published clips."""
CUTS: list[dict[str, Any]] = [{}, {"max_row_tokens": 16, "token_budget": 40}]


def check(setting: Setting, settings: StepSettings, **options: Any) -> None:
    """Both updates, in one row after another and in many small ones."""
    expected = [by_hand(setting, weights, **options) for weights in (setting.old, setting.now)]
    for cuts in CUTS:
        for found, right in zip(updates(setting, settings, **cuts), expected, strict=True):
            assert apart(found, right) < CLOSE


def test_the_cases_differ(setting: Setting) -> None:
    """Ratios on both sides of the clips, weights on both sides of the cap, and units that matter."""
    tokens = tokens_of(setting, setting.now)
    ratios = np.array([math.exp(float(token.l.detach()) - token.o) for token in tokens])
    weights = np.array([math.exp(token.o - token.m) for token in tokens])
    for share in (
        (ratios > 1.28).mean(),
        (ratios < 0.8).mean(),
        (abs(ratios - 1) < 0.2).mean(),
        (weights > 1.3).mean(),
    ):
        assert 0.05 < share < 0.9
    for options in ({"how": "mask"}, {"how": "truncate"}, {"loss": "gspo", "low": 0.02, "high": 0.03}):
        name = "ratio_by" if "loss" in options else "unit"
        units = [by_hand(setting, setting.now, **{**options, name: unit}) for unit in ("token", "turn", "trace")]  # type: ignore[arg-type]
        for one, other in itertools.combinations(units, 2):
            assert apart(one, other) > 0.01


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_losses(setting: Setting, loss: str) -> None:
    check(setting, settings_of(loss), loss=loss, divisor=5.0, **BOUNDS[loss])
    different = apart(by_hand(setting, setting.now, loss=loss, **BOUNDS[loss]), by_hand(setting, setting.now))
    assert different > 0.01 or loss == "reinforce"


@pytest.mark.parametrize("loss", ["ppo_clip", "gspo", "cispo"])
def test_other_bounds(setting: Setting, loss: str) -> None:
    low = {} if loss == "cispo" else {"clip_low": 0.05}
    _, second = updates(setting, settings_of(loss, **low, clip_high=0.1))
    assert apart(second, by_hand(setting, setting.now, loss=loss, divisor=5.0, low=0.05, high=0.1)) < CLOSE


def test_one_step_and_one_divisor_make_all_losses_equal(setting: Setting) -> None:
    """In the first update every ratio is 1."""
    gradients = {loss: updates(setting, settings_of(loss, epochs=1))[0] for loss in LOSSES}
    for loss, found in gradients.items():
        assert apart(found, gradients["reinforce"]) < 1e-12, loss
    second = {loss: updates(setting, settings_of(loss))[1] for loss in LOSSES}
    assert apart(second["ppo_clip"], second["reinforce"]) > 0.01


@pytest.mark.parametrize("by", ["turn", "trace"])
def test_gspo_by_unit(setting: Setting, by: str) -> None:
    units = {"turn": len(setting.mine), "trace": len({call.trace for call in setting.mine})}[by]
    given = settings_of("gspo", ratio_by=by, mean_by=by, divisor=units, clip_low=0.02, clip_high=0.03)
    check(setting, given, loss="gspo", ratio_by=by, mean_by=by, divisor=units, low=0.02, high=0.03)


def test_gspo_by_turn_is_the_papers_objective(setting: Setting) -> None:
    """arXiv:2507.18071, equation 5: the mean over completions of min(s A, clip(s) A), s differentiated as it stands."""
    total = torch.zeros((), dtype=torch.float64)
    for call in setting.mine:
        now = chosen(spoken(setting.now, call, TEMPERATURE), call)
        old = chosen(spoken(setting.old, call, TEMPERATURE), call).detach()
        s, a = torch.exp((now - old).mean()), setting.credit.advantages[call.trace, call.seat]
        total = total - torch.minimum(s * a, s.clamp(1 - 0.02, 1 + 0.03) * a)
    expected = gradient_of(setting.now, total / len(setting.mine))
    given = settings_of(
        "gspo", ratio_by="turn", mean_by="turn", divisor=len(setting.mine), clip_low=0.02, clip_high=0.03
    )
    assert apart(updates(setting, given)[1], expected) < CLOSE


@pytest.mark.parametrize("unit", ["token", "turn", "trace"])
@pytest.mark.parametrize(
    ("how", "cap", "loss"),
    [("truncate", 1.3, "ppo_clip"), ("mask", 1.3, "reinforce"), ("mask", 1.3, "cispo"), ("truncate", 1e9, "reinforce")],
)
def test_importance(setting: Setting, how: str, cap: float, unit: str, loss: str) -> None:
    given = settings_of(loss, importance=Importance(how=how, unit=unit, cap=cap))  # type: ignore[arg-type]
    check(setting, given, loss=loss, how=how, unit=unit, cap=cap, divisor=5.0, **BOUNDS[loss])


@pytest.mark.parametrize(("loss", "how"), [("reinforce", "none"), ("ppo_clip", "truncate")])
@pytest.mark.parametrize("kl", ["exact", "k1_reward", "k2"])
def test_kl(setting: Setting, kl: str, how: str, loss: str) -> None:
    weighted = Importance(how=how, unit="turn", cap=1.3)  # type: ignore[arg-type]
    given = settings_of(loss, kl_weight=0.4, kl_estimator=kl, importance=weighted)
    options = {"how": how, "unit": "turn", "cap": 1.3, "kl": kl, "kl_weight": 0.4}
    check(setting, given, loss=loss, divisor=5.0, **options, **BOUNDS[loss])


@pytest.mark.parametrize("mean_by", ["turn", "trace"])
def test_a_mean_by_unit(setting: Setting, mean_by: str) -> None:
    given = settings_of("cispo", mean_by=mean_by, divisor=7.0)
    check(setting, given, loss="cispo", high=4.0, mean_by=mean_by, divisor=7.0)


EVERYTHING = [
    settings_of("gspo", ratio_by="trace", mean_by="trace", clip_low=0.02, clip_high=0.03),
    settings_of("gspo", ratio_by="turn", importance=Importance(how="mask", unit="turn", cap=1.3), clip_high=0.03),
    settings_of("dapo", importance=Importance(how="truncate", unit="trace", cap=1.3), kl_weight=0.3, kl_estimator="k2"),
    settings_of("reinforce", kl_weight=0.3, kl_estimator="k1_reward", mean_by="turn", entropy_weight=0.1),
]


@pytest.mark.parametrize("number", range(len(EVERYTHING)))
def test_storage_order_and_cuts_change_nothing(setting: Setting, number: int) -> None:
    """A stored sequence in two, sequences in another order, rows and micro-batches of other sizes."""
    given = EVERYTHING[number]
    plain = updates(setting, given)
    sequences = train_sequences(setting.traces, setting.credit, policy="learner")
    rng = np.random.default_rng(number)
    cut = between_turns if given.kl_estimator == "k1_reward" else anywhere  # a KL to go wants whole turns
    halves = [half for one in sequences for half in in_two(one, cut(one, rng))]
    order: Callable[[list[Any]], None] = rng.shuffle  # type: ignore[assignment]
    order(halves)
    for again in (
        updates(setting, given, sequences=halves),
        updates(setting, given, sequences=sequences[::-1], max_row_tokens=9, token_budget=25),
    ):
        for one, other in zip(again, plain, strict=True):
            assert apart(one, other) < CLOSE
    # three updates a pass: the first pass moves the weights after a third, the second is all at the new ones
    parts = updates(setting, given, minibatches=3)
    assert len(parts) == 6
    assert apart(torch.stack(parts[3:]).sum(0), plain[1]) < CLOSE


SEATS = 6
"""Trained seats: three traces with two each."""


@pytest.mark.parametrize(
    ("loss", "divisor"), [*((loss, "auto") for loss in sorted(LOSSES)), ("reinforce", "tokens"), ("dapo", "constant")]
)
def test_the_settings_of_a_run(setting: Setting, loss: str, divisor: str) -> None:
    """The command line's names, with what their authors set."""
    config = TrainConfig(loss=loss, divisor=divisor, temperature=TEMPERATURE, epochs=2, grad_clip=1e12)  # type: ignore[arg-type]
    batch = build(train_sequences(setting.traces, setting.credit, policy="learner"), dtype=torch.float64)
    tokens, turns = sum(len(call.completion) for call in setting.mine), len(setting.mine)
    published = {"dapo": "tokens", "cispo": "tokens", "gspo": "turns"}
    kind = published.get(loss, "constant") if divisor == "auto" else divisor
    options: dict[str, Any] = {
        "constant": {"divisor": SEATS},
        "tokens": {"divisor": tokens},
        "turns": {"divisor": turns, "mean_by": "turn"},
    }[kind]
    check(setting, step_settings(config, 0, batch, SEATS), loss=loss, **options, **BOUNDS[loss])


def test_the_credit_of_a_frozen_seat_has_no_part(setting: Setting) -> None:
    assert {seat for _, seat in setting.credit.advantages} == {"player_0", "player_1"}
    more = Credit(advantages={**setting.credit.advantages, ("s0", "player_2"): 100.0})
    sequences = train_sequences(setting.traces, more, policy="learner")
    plain = updates(setting, settings_of())
    for one, other in zip(updates(setting, settings_of(), sequences=sequences), plain, strict=True):
        assert torch.equal(one, other)
