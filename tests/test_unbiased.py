"""What training follows on average is the gradient of what each seat expects to be paid: summed over all episodes.

Every episode of a small game goes through recorder, credit, labels, batch and learner; with its returns multiplied by
its probability the sum is the expectation, to the last digits. The same sum shows that plausible mistakes are mistakes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from enumerable_parts import SHAPES, Call, Episode, Odds, World, exact_gradient, flat, odds, play_all_ways, tiny_llama
from llm_arena.training import credit
from llm_arena.training.batch import TrainSequence
from llm_arena.training.credit import Baselines
from llm_arena.training.importance import Importance
from llm_arena.training.learner import Learner
from llm_arena.types import Trace
from unbiased_parts import apart, as_policy, credited, descent, plain, renamed, scaled

LEARNER = "learner"
CLOSE = 1e-9
LARGE = 1e9
"""Keeps improbable episodes' returns away from the floor below which an estimator sees rounding and no contrast."""


pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def world(name: str, *policies: str) -> World:
    seats = list(dict.fromkeys(seat for seat, _ in SHAPES[name].turns))
    given = policies or (LEARNER,) * len(seats)
    return play_all_ways(name, dict(zip(seats, given, strict=True)))


def models_of(one: World, seed: int = 0) -> dict[str, Any]:
    return {policy: tiny_llama(seed + 10 * k) for k, policy in enumerate(sorted(set(one.policies.values())))}


def expected(one: World, models: Mapping[str, Any], policy: str, *, by: str = "seat", **options: Any) -> torch.Tensor:
    """The library's gradient of all episodes, each by its probability."""
    now = odds(one, models)
    traces = scaled(now.traces, now.chance)
    gained = credited(traces, [who for who in models if who != "frozen"], by=by)
    return descent(Learner(models[policy]), traces, gained, policy, plain(), **options)


@pytest.mark.parametrize("name", ["duel", "zero", "roles", "compact", "errand", "trio", "stripped"])
def test_shared_weights(name: str) -> None:
    one = world(name)
    models = models_of(one)
    assert apart(expected(one, models, LEARNER), exact_gradient(one, models, LEARNER)) < CLOSE


@pytest.mark.parametrize(("name", "policies"), [("duel", ("a", "b")), ("roles", ("a", "b")), ("errand", ("a", "b"))])
def test_weights_per_role(name: str, policies: tuple[str, ...]) -> None:
    one = world(name, *policies)
    models = models_of(one)
    for policy in policies:
        assert apart(expected(one, models, policy), exact_gradient(one, models, policy)) < CLOSE


@pytest.mark.parametrize("policies", [("learner", "frozen"), ("frozen", "learner")])
@pytest.mark.parametrize("name", ["duel", "compact", "errand", "stripped"])
def test_a_frozen_opponent(name: str, policies: tuple[str, str]) -> None:
    one = world(name, *policies)
    models = models_of(one)
    assert apart(expected(one, models, LEARNER), exact_gradient(one, models, LEARNER)) < CLOSE


@pytest.mark.parametrize("name", ["trio", "errand", "compact"])
def test_credit_by_trace(name: str) -> None:
    one = world(name)
    models = models_of(one)
    exact = exact_gradient(one, models, LEARNER, by_trace=True)
    assert apart(expected(one, models, LEARNER, by="trace"), exact) < CLOSE
    assert apart(expected(one, models, LEARNER), exact) > 0.1  # each seat's own pay is something else


@pytest.mark.parametrize("temperature", [0.7, 1.4])
def test_the_temperature_of_sampling_is_that_of_training(temperature: float) -> None:
    one = world("duel")
    models = models_of(one)
    now = odds(one, models, temperature)
    traces = scaled(now.traces, now.chance)
    found = descent(
        Learner(models[LEARNER]), traces, credited(traces, [LEARNER]), LEARNER, plain(temperature=temperature)
    )
    assert apart(found, exact_gradient(one, models, LEARNER, temperature=temperature)) < CLOSE
    wrong = descent(Learner(models[LEARNER]), traces, credited(traces, [LEARNER]), LEARNER, plain())
    assert apart(wrong, exact_gradient(one, models, LEARNER, temperature=temperature)) > 0.05
    assert apart(wrong, exact_gradient(one, models, LEARNER)) > 0.05


# ---- estimators that look at several episodes: all pairs of episodes of a game with 27 of them ----------------------


def pairs(one: World, models: Mapping[str, Any]) -> tuple[list[Any], list[float]]:
    """Every ordered pair of episodes as a group of two, and `LARGE` times the pair's probability at both members."""
    now = odds(one, models)
    traces, chances = [], []
    for left, right in itertools.product(range(len(now.traces)), repeat=2):
        group = f"{left}-{right}"
        traces += [renamed(now.traces[at], f"{group}-{place}", group) for place, at in enumerate((left, right))]
        chances += [LARGE * float(now.chance[left] * now.chance[right])] * 2
    return traces, chances


@pytest.mark.parametrize(("estimator", "factor"), [("loo", 1.0), ("group_mean", 0.5), ("none", 1.0)])
@pytest.mark.parametrize(
    ("name", "policies"),
    [
        ("brief", ("learner", "learner")),
        ("short", ("learner", "learner")),  # two seats of one role, which must not be each other's baseline
        ("short", ("learner", "frozen")),
        ("short", ("a", "b")),
    ],
)
def test_groups_of_two(estimator: str, factor: float, name: str, policies: tuple[str, str]) -> None:
    one = world(name, *policies)
    models = models_of(one)
    traces, chances = pairs(one, models)
    gained = credited(scaled(traces, chances), [who for who in policies if who != "frozen"], estimator=estimator)
    found = descent(Learner(models[policies[0]]), traces, gained, policies[0], plain(divisor=2 * LARGE))
    assert apart(found, factor * exact_gradient(one, models, policies[0])) < CLOSE


def test_a_contest_of_two_episodes() -> None:
    """Credit by group: an episode is paid by comparison with the other one, which is luck as far as it can tell."""
    one = world("short")
    models = models_of(one)
    chance = odds(one, models).chance
    table = np.random.default_rng(3).normal(size=(27, 27))
    traces, chances = pairs(one, models)
    odds_of = {trace.id: by for trace, by in zip(traces, chances, strict=True)}

    def group_reward(members: list[Trace]) -> list[tuple[float, dict[str, float]]]:
        own, other = (int(number) for number in members[0].group.split("-"))
        paid = (table[own, other], table[other, own])
        return [(odds_of[trace.id] * float(worth), {}) for trace, worth in zip(members, paid, strict=True)]

    gained = credited(traces, [LEARNER], by="group", group_reward=group_reward)
    numbers = {id(episode): number for number, episode in enumerate(one.episodes)}
    exact = exact_gradient(one, models, LEARNER, paid=lambda episode, seat: float(table[numbers[id(episode)]] @ chance))
    found = descent(Learner(models[LEARNER]), traces, gained, LEARNER, plain(divisor=2 * LARGE))
    assert apart(found, exact) < CLOSE


@pytest.mark.parametrize("bias_correction", [True, False])
def test_a_running_baseline(bias_correction: bool) -> None:
    one = world("short")
    models = models_of(one)
    exact = exact_gradient(one, models, LEARNER)
    assert apart(second_of_two(one, models, bias_correction), exact) < CLOSE


def second_of_two(one: World, models: Mapping[str, Any], bias_correction: bool = False) -> torch.Tensor:
    """The gradient of the second of two episodes after the first, over all pairs."""
    traces, chances = pairs(one, models)
    paid = scaled(traces, chances)
    learner, kept, advantages = Learner(models[LEARNER]), [], {}
    for first, second in zip(paid[::2], paid[1::2], strict=True):
        baselines = Baselines(0.5, bias_correction=bias_correction)
        credited([first], [LEARNER], estimator="rae", baselines=baselines)
        advantages |= credited([second], [LEARNER], estimator="rae", baselines=baselines).advantages
        kept.append(second)
    gained = credit.Credit(advantages=advantages)
    return descent(learner, kept, gained, LEARNER, plain(divisor=LARGE))


# ---- token rewards --------------------------------------------------------------------------


def token_pay(call: Call) -> list[float]:
    """What each token of a call is paid: an arbitrary function of all that was said up to it."""
    return [
        float(np.random.default_rng([5, *call.prompt, 9, *call.completion[: at + 1]]).normal())
        for at in range(len(call.completion))
    ]


def with_token_pay(episode: Episode, seat: str) -> float:
    return episode.returns[seat] + sum(sum(token_pay(call)) for call in episode.calls if call.seat == seat)


@pytest.mark.parametrize(
    ("name", "by", "policies"),
    [
        ("duel", "seat", ("learner", "learner")),
        ("compact", "seat", ("learner", "frozen")),
        ("errand", "seat", ("a", "b")),
        ("errand", "trace", ("learner", "learner")),
        ("stripped", "trace", ("learner", "learner")),
    ],
)
def test_rewards_of_single_tokens(name: str, by: str, policies: tuple[str, str]) -> None:
    one = world(name, *policies)
    models = models_of(one)
    now = odds(one, models)
    traces = scaled(now.traces, now.chance)
    pays = {
        trace.id: {at: [chance * pay for pay in token_pay(call)] for at, call in enumerate(episode.calls)}
        for trace, episode, chance in zip(traces, one.episodes, now.chance, strict=True)
    }

    def token_rewards(trace: Trace) -> dict[int, dict[str, list[float]]]:
        return {at: {"rewards": rewards} for at, rewards in pays[trace.id].items()}

    trained = [who for who in models if who != "frozen"]
    gained = credited(traces, trained, by=by, token_rewards=token_rewards)
    for policy in trained:
        exact = exact_gradient(one, models, policy, by_trace=by == "trace", paid=with_token_pay)
        assert apart(descent(Learner(models[policy]), traces, gained, policy, plain()), exact) < CLOSE
        assert apart(exact_gradient(one, models, policy, by_trace=by == "trace"), exact) > 0.1


# ---- KL to a reference --------------------------------------------------------------------------


def kl_of_sequences(one: World, now: Odds, slow: Odds, policy: str) -> torch.Tensor:
    """What each seat of a policy expects its tokens' log-ratios to add up to, as a function of its own tokens."""
    mine, other = now.tokens.sum(-1), slow.tokens.sum(-1).detach()
    total = torch.zeros((), dtype=torch.float64)
    for seat in [seat for seat, who in one.policies.items() if who == policy]:
        for episode, places in zip(one.episodes, one.places, strict=True):
            log_chance = ratio = torch.zeros((), dtype=torch.float64)
            for call, place in zip(episode.calls, places, strict=True):
                own = call.seat == seat
                log_chance = log_chance + (mine[place] if own else mine[place].detach())
                ratio = ratio + mine[place] - other[place] if own else ratio
            total = total + log_chance.exp() * ratio
    return total


def kl_of_tokens(one: World, models: Mapping[str, Any], slow: Any, policy: str) -> torch.Tensor:
    """The whole KL at each place where a token of the policy is sampled, as often as the place is expected to come."""
    now = odds(one, models)
    total = torch.zeros((), dtype=torch.float64)
    for number, (who, call) in enumerate(one.distinct):
        if who != policy:
            continue
        often = sum(chance * places.count(number) for chance, places in zip(now.chance, one.places, strict=True))
        ids = torch.tensor([[*call.prompt, *call.completion]])
        rows = [torch.log_softmax(model(input_ids=ids).logits[0], -1) for model in (models[policy], slow)]
        for at in range(len(call.prompt) - 1, len(call.prompt) + len(call.completion) - 1):
            total = total + often * (rows[0][at].exp() * (rows[0][at] - rows[1][at].detach())).sum()
    return total


@pytest.mark.parametrize(
    ("name", "policies", "estimator"),
    [
        ("short", ("learner", "learner"), "k1_reward"),
        ("short", ("learner", "learner"), "k2"),
        ("short", ("learner", "learner"), "exact"),
        ("brief", ("frozen", "learner"), "k2"),
        ("brief", ("learner", "frozen"), "k1_reward"),
        ("compact", ("learner", "frozen"), "k1_reward"),
    ],
)
def test_kl_to_a_reference(name: str, policies: tuple[str, str], estimator: str) -> None:
    """`k1_reward` follows the KL of all that a seat says; `k2` and `exact` that of each token, where it is said."""
    one, weight = world(name, *policies), 0.7
    models, slow = models_of(one), tiny_llama(77)
    now = odds(one, models)
    learner = Learner(models[LEARNER], reference="ema")
    assert learner.reference is not None
    for key, parameter in slow.named_parameters():
        learner.reference.tensors[key].copy_(parameter.data)
    settings = plain(kl_weight=weight, kl_estimator=estimator)
    gained = credited(now.traces, [LEARNER])
    found = torch.zeros(())
    for trace, chance in zip(now.traces, now.chance, strict=True):
        found = found + float(chance) * descent(learner, [trace], gained, LEARNER, settings)
    if estimator == "k1_reward":
        pull = kl_of_sequences(one, now, odds(one, {**models, LEARNER: slow}), LEARNER)
    else:
        pull = kl_of_tokens(one, models, slow, LEARNER)
    gradient = flat(torch.autograd.grad(pull, list(models[LEARNER].parameters())))
    exact = exact_gradient(one, models, LEARNER)
    assert apart(found, exact - weight * gradient) < CLOSE
    assert apart(exact, exact - weight * gradient) > 0.1


# ---- samples of other weights --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "policies"),
    [("duel", ("learner", "learner")), ("compact", ("learner", "learner")), ("errand", ("learner", "frozen"))],
)
def test_samples_of_other_weights_by_whole_traces(name: str, policies: tuple[str, str]) -> None:
    """The weight of a trace is the product over all of its trained tokens, and exact; that of a token is not."""
    one = world(name, *policies)
    models = models_of(one)
    then = odds(one, {**models, LEARNER: tiny_llama(50)})
    exact = exact_gradient(one, models, LEARNER)
    traces = scaled(then.traces, then.chance)
    gained = credited(traces, [LEARNER])
    found = {}
    for unit in ("token", "turn", "trace"):
        importance = Importance(how="truncate", cap=1e12, unit=unit)  # type: ignore[arg-type]
        found[unit] = descent(Learner(models[LEARNER]), traces, gained, LEARNER, plain(importance=importance))
    assert apart(found["trace"], exact) < 1e-8
    assert apart(found["token"], exact) > 0.05
    assert apart(found["turn"], exact) > 0.05


# ---- mistakes --------------------------------------------------------------------------


def test_training_the_opponents_tokens_is_found() -> None:
    one = world("duel", "learner", "frozen")
    models = models_of(one)
    now = odds(one, models)
    traces = [as_policy(trace, "player_1", LEARNER) for trace in scaled(now.traces, now.chance)]
    gained = credited(traces, [LEARNER])
    exact = exact_gradient(one, models, LEARNER)
    assert apart(descent(Learner(models[LEARNER]), traces, gained, LEARNER, plain()), exact) > 0.1
    for trace in traces:
        gained.advantages[trace.id, "player_1"] = gained.advantages[trace.id, "player_0"]
    assert apart(descent(Learner(models[LEARNER]), traces, gained, LEARNER, plain()), exact) > 0.1


def without_the_first(sequences: list[TrainSequence]) -> list[TrainSequence]:
    """Drops what came before the compaction: that of the first seat's two sequences which trains the summary."""
    return [one for one in sequences if not before_the_summary(one)]


def before_the_summary(one: TrainSequence) -> bool:
    """Whether it is a stream of the first seat, whose opening says 1 2 0, that trains the reply right after it."""
    ids = one.token_ids.tolist()
    return ids[:3] == [1, 2, 0] and bool(one.trained[3])


def test_dropping_what_came_before_a_compaction_is_found() -> None:
    one = world("compact")
    models = models_of(one)
    exact = exact_gradient(one, models, LEARNER)
    dropped = expected(one, models, LEARNER, change=without_the_first)
    assert apart(dropped, exact) > 0.1


def test_the_summed_reward_of_a_zero_sum_game_is_no_signal() -> None:
    one = world("zero")
    models = models_of(one)
    exact = exact_gradient(one, models, LEARNER)
    assert exact.norm() > 0.1
    assert expected(one, models, LEARNER, by="trace").norm() < CLOSE


def test_a_baseline_that_holds_the_episodes_own_reward_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world("short")
    models = models_of(one)

    def late(known: Any, baselines: Baselines, gained: credit.Credit) -> None:
        for vote, reward in known:
            baselines.update(vote.env_id, vote.role, reward)
        for vote, reward in known:
            gained.advantages[vote.trace_id, vote.seat] = reward - baselines.value(vote.env_id, vote.role)

    monkeypatch.setattr(credit, "_running", late)
    assert apart(second_of_two(one, models), exact_gradient(one, models, LEARNER)) > 0.1


def test_a_baseline_that_holds_a_siblings_reward_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seats of one role and one episode: the second seat's pay depends on what the first did."""
    one = world("short")
    models = models_of(one)

    def one_by_one(known: Any, baselines: Baselines, gained: credit.Credit) -> None:
        for vote, reward in known:
            gained.advantages[vote.trace_id, vote.seat] = baselines.advantage(vote.env_id, vote.role, reward)

    monkeypatch.setattr(credit, "_running", one_by_one)
    assert apart(second_of_two(one, models), exact_gradient(one, models, LEARNER)) > 0.02


def test_dividing_each_sequence_by_its_length_is_found() -> None:
    def averaged(sequences: list[TrainSequence]) -> list[TrainSequence]:
        for one in sequences:
            one.advantage[:] /= max(int(one.trained.sum()), 1)
        return sequences

    one = world("duel")
    models = models_of(one)
    exact = exact_gradient(one, models, LEARNER)
    found = expected(one, models, LEARNER, change=averaged)
    assert apart(found * float(exact.dot(found) / found.dot(found)), exact) > 0.05  # and not only up to a factor
