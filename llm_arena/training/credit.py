"""Rewards in, advantages out: one number per (trace, seat), broadcast later to every token that the seat sampled.

Three rules hold here.

- The baseline belongs to (env id, role, policy). A mean over all seats of a zero-sum game is 0 whatever the policy
  does, and would make the first mover's edge a permanent credit; a mean over the policies that hold seats of a role
  would do the same for the better policy.
- Every (trace, seat) has one vote in its baseline, however many turns or sequences it has.
- Void traces have no reward, no tokens and no effect on their siblings.

With w the reward of one (trace, seat), its token rewards included, the estimators are

    none        A = w
    rae         A = w - b(env, role, policy); b is an EMA over votes, read before its update (SPIRAL, arXiv:2506.24119)
    loo         A = w - mean of the others in the group                                    (RLOO, arXiv:2402.14740)
    group_mean  A = w - mean of the group                                                  (Dr. GRPO, arXiv:2503.20783)
    grpo        A = (w - mean) / std of the group                                          (arXiv:2402.03300)
    role_norm   A = (w - mean) / std over the batch's votes of one (env, role, policy)     (MARSHAL, arXiv:2510.15414)

where a group is the votes of one role and policy under one group id; for the roles that a game names in `peers`, of one
episode and whatever policy. `role_norm` needs no groups; there the whole batch is one for each role and policy.

Where a group holds several episodes, a seat is compared with the other episodes only: what a sibling of its own
episode was paid depends on what the seat did, and a baseline that held it would pull towards R_own - R_sibling instead
of R_own. So with m the mean of the votes of other episodes and n the number of episodes, `loo` is w - m and the mean
that the last three subtract leaves (w - m) (n - 1) / n; for one seat of a role in an episode that is the table above.
Where a group is one episode, siblings are what there is to compare with, whichever policies hold them (`_together` says
why); but not in a run of a harness, whose rewards are whatever its code says: a group of which one run is left has no
contrast.

Tokens of one seat have one advantage, unless there are token rewards: then that of token t is A minus what the seat
earned before t, in the same scale (`Credit.scales`). A constant for all its tokens is the special case.
"""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from llm_arena.errors import UsageError
from llm_arena.registry import HARNESS
from llm_arena.rescore import MOST_REWARD, ask_group, shown
from llm_arena.training.running_baselines import POOLED
from llm_arena.training.running_baselines import Baselines as Baselines  # belongs to what this module offers
from llm_arena.training.token_rewards import TokenRewards, TurnSignal, earned, read
from llm_arena.types import Trace

Estimator = Literal["rae", "loo", "group_mean", "grpo", "role_norm", "none"]
CreditBy = Literal["seat", "trace", "group"]
GroupReward = Callable[[list[Trace]], Iterable[Any]]
"""From the traces of a group to a reward, or a pair (reward, metrics), for each; see `votes_by_group`."""

NOISE_FLOOR = 1e-6
"""A group whose spread is below this (times its largest |reward|, at least 1) has no contrast, only rounding."""

EVERY_SEAT = ""
"""Stands in for seat and role in credit by trace, where one advantage serves all trained tokens."""


@dataclass(frozen=True, kw_only=True)
class Vote:
    """The reward of one seat in one trace, and with whom it may be compared."""

    trace_id: str
    seat: str
    role: str
    env_id: str
    group: str
    unit: str
    "Votes of one unit depend on each other's actions (one trace, or one group under `group_reward`)."
    reward: float | None
    "None or NaN means unknown: no advantage, no effect on any baseline."
    policy: str = POOLED
    "Whose reward it is, where it is that of one policy."


@dataclass(kw_only=True)
class Credit:
    """The advantages of one batch of traces, and what was left without signal."""

    advantages: dict[tuple[str, str], float] = field(default_factory=dict)
    "By (trace id, seat). A seat that is absent has no signal and trains nothing."
    rewards: dict[tuple[str, str], float] = field(default_factory=dict)
    "The reward behind each advantage, where it is known; token rewards included."
    scales: dict[tuple[str, str], float] = field(default_factory=dict)
    "What a token reward counts in each advantage: 1 / std under grpo and role_norm, 0 without any contrast, else 1."
    signals: dict[str, dict[int, TurnSignal]] = field(default_factory=dict)
    "Token rewards and masks, by trace id and turn index."
    metrics: dict[str, list[float]] = field(default_factory=dict)
    "What a group reward reported besides the rewards."
    groups: int = 0
    uninformative: int = 0
    "Groups of one, or with equal rewards, under an estimator that compares within groups."
    missing: int = 0
    "Votes without a reward (None or NaN)."
    void: int = 0
    incomplete: int = 0
    "Groups dropped whole because a member of a contest under `group_reward` was void."

    def of(self, trace_id: str, seat: str) -> float | None:
        """Returns the advantage of a seat in a trace, or None if it has none."""
        value = self.advantages.get((trace_id, seat))
        return self.advantages.get((trace_id, EVERY_SEAT)) if value is None else value

    def credits_whole(self, trace_id: str) -> bool:
        """Whether one advantage serves all seats of a trace (credit by trace)."""
        return (trace_id, EVERY_SEAT) in self.advantages

    def scale_of(self, trace_id: str, seat: str) -> float:
        """Returns what a token reward counts in the advantage of a seat in a trace."""
        key = trace_id, EVERY_SEAT if self.credits_whole(trace_id) else seat
        return self.scales.get(key, 1.0)


def votes_by_seat(traces: Iterable[Trace], seats: Callable[[Trace], Iterable[str]]) -> list[Vote]:
    """Returns one vote for each seat in `seats(trace)` that had a turn, its reward the seat's return.

    What a seat gets that was never asked says nothing about what the policy does.
    """
    return [
        _vote(trace, seat, trace.id, trace.returns.get(seat))
        for trace in traces
        if not trace.void
        for seat in seats(trace)
        if not trace.turns or any(turn.seat == seat for turn in trace.turns)
    ]


def votes_by_trace(traces: Iterable[Trace]) -> list[Vote]:
    """Returns one vote per trace, its reward the sum over all seats. In a zero-sum game that sum is always 0.

    It belongs to no one policy: all that take part earn the same sum, so none is better by it.
    """
    return [
        _vote(trace, EVERY_SEAT, trace.id, math.fsum(_learnable(trace)) if trace.returns else None)
        for trace in traces
        if not trace.void
    ]


def votes_by_group(
    traces: Sequence[Trace], seats: Callable[[Trace], Iterable[str]], group_reward: GroupReward
) -> tuple[list[Vote], dict[str, list[float]], int]:
    """Scores whole groups of separate episodes against each other, after all of a group have ended.

    A contest is scored over exactly its members: a group with a void member is dropped whole, because fewer contestants
    are another contest. The game compares episodes whoever played them; an episode's reward then goes to each of its
    seats, and is measured from what the same policy got. Where the episodes of a group have the same policies that is
    what the role got; where they differ, a mean over the role would credit the better policy for being better.

    `group_reward` gets copies, as token rewards and `rescore` give them, and may return what `rescore` takes: a number,
    {seat: number}, {role: number} or None (unknown) for each trace, or a pair of that and {metric: number}. A NaN is
    unknown too.

    Returns:
        the votes, the metrics that `group_reward` reported (name -> values), and the number of dropped groups.

    Raises:
        UsageError: `group_reward` failed, or did not return one of these for each trace; names the group.
    """
    groups: dict[str, list[Trace]] = {}
    for trace in traces:
        groups.setdefault(trace.group, []).append(trace)
    votes: list[Vote] = []
    metrics: dict[str, list[float]] = {}
    incomplete = 0
    for group, members in groups.items():
        if any(trace.void for trace in members):
            incomplete += 1
            continue
        scored = ask_group(members, group_reward, "group_reward", copy.deepcopy(members), nan_is_unknown=True)
        for trace, (returns, said) in zip(members, scored, strict=True):
            votes += [_vote(trace, seat, f"group {group}", returns.get(seat)) for seat in seats(trace)]
            for name, value in said.items():
                number: Any = value if isinstance(value, numbers.Real | np.bool_) else None
                if number is None or abs(number) > MOST_REWARD:
                    raise UsageError(
                        f"group_reward returned {shown(value)} as the metric {name!r:.80} of trace {trace.id} of group "
                        f"{group}; expected a number of a size of at most {MOST_REWARD:g}"
                    )
                metrics.setdefault(str(name), []).append(float(number))
    return votes, metrics, incomplete


def _learnable(trace: Trace) -> list[float]:
    """Returns the returns of all seats, none of them so large that their sum may be no number."""
    for seat, reward in trace.returns.items():
        _check_size(reward, trace.id, seat)
    return list(trace.returns.values())


def _check_size(reward: float, trace_id: str, whose: str) -> None:
    if math.isfinite(reward) and abs(reward) > MOST_REWARD:
        raise UsageError(
            f"trace {trace_id} pays {whose or 'its seats'} {reward:g}; a reward's size is at most {MOST_REWARD:g}: "
            "scale it"
        )


def _vote(trace: Trace, seat: str, unit: str, reward: float | None) -> Vote:
    whole = seat == EVERY_SEAT
    return Vote(
        trace_id=trace.id,
        seat=seat,
        role=EVERY_SEAT if whole else trace.seats[seat].role,
        policy=POOLED if whole else trace.seats[seat].policy or POOLED,
        env_id=trace.spec.id,
        group=trace.group or trace.id,
        unit=unit,
        reward=reward,
    )


def estimate(votes: Sequence[Vote], estimator: Estimator, baselines: Baselines | None = None) -> Credit:
    """Turns votes into advantages.

    Args:
        votes: in the order in which they may enter a running baseline.
        estimator: see the module's table.
        baselines: read and updated by `rae`; unused otherwise.

    Raises:
        UsageError: unknown estimator, `rae` without baselines, or a reward above `MOST_REWARD`.
    """
    credit = Credit()
    known: list[tuple[Vote, float]] = []
    for vote in votes:
        if vote.reward is None or not math.isfinite(vote.reward):
            credit.missing += 1
            credit.advantages[vote.trace_id, vote.seat] = credit.scales[vote.trace_id, vote.seat] = 0.0
        else:
            _check_size(vote.reward, vote.trace_id, vote.seat)
            known.append((vote, float(vote.reward)))
            credit.rewards[vote.trace_id, vote.seat] = float(vote.reward)
    together = _together(known, _role if estimator == "role_norm" else _group)
    credit.groups = len({together(vote) for vote in votes})
    match estimator:
        case "none":
            credit.advantages.update({(vote.trace_id, vote.seat): reward for vote, reward in known})
        case "rae":
            if baselines is None:
                raise UsageError("the estimator rae needs running baselines")
            _running(known, baselines, credit)
        case "loo" | "group_mean" | "grpo" | "role_norm":
            groups: dict[tuple[str, ...], list[tuple[Vote, float]]] = {}
            for vote, reward in known:
                groups.setdefault(together(vote), []).append((vote, reward))
            for members in groups.values():
                _compare(members, estimator, credit)
            credit.uninformative += credit.groups - len(groups)
        case _:
            raise UsageError(f"unknown estimator {estimator!r}; known are {', '.join(get_args(Estimator))}")
    return credit


def _group(vote: Vote) -> tuple[str, str]:
    return vote.group, vote.role


def _role(vote: Vote) -> tuple[str, str]:
    return vote.env_id, vote.role


def _together(
    known: Iterable[tuple[Vote, float]], key: Callable[[Vote], tuple[str, str]]
) -> Callable[[Vote], tuple[str, ...]]:
    """Returns what votes that are compared with each other have in common: `key`, and mostly the policy.

    Over several episodes each policy is compared with itself: else the one that is better has an advantage above 0
    whatever it does. Within one episode (peers, or a group of one) all siblings are compared, whoever holds them. What
    is to be taken out there is the problem that they share, and a policy with a single seat would have nothing to be
    compared with and learn nothing. Nor would comparing the seats of one policy alone be right: of four players in a
    zero-sum game, two of each policy, its two would learn to raise R_own - R_sibling, while with all four the
    difference is R_own up to a factor. The price is that a better policy's mean advantage stays above 0 there, which
    is noise: a sibling's reward is a baseline as good or as bad whichever policy earned it.
    """
    episodes: dict[tuple[str, str], set[str]] = {}
    for vote, _ in known:
        episodes.setdefault(key(vote), set()).add(vote.trace_id)

    def shared(vote: Vote) -> tuple[str, ...]:
        several = len(episodes.get(key(vote), ())) > 1
        return (*key(vote), vote.policy) if several else key(vote)

    return shared


def _running(known: list[tuple[Vote, float]], baselines: Baselines, credit: Credit) -> None:
    """Reads the baseline for a whole unit before any of the unit's votes enters it.

    Within a unit the rewards depend on each other's actions (one namer's win is another's loss), so a baseline that
    held a sibling's reward would depend on the seat's own actions, and the gradient would no longer be unbiased.
    """
    units: dict[str, list[tuple[Vote, float]]] = {}
    for vote, reward in known:
        units.setdefault(vote.unit, []).append((vote, reward))
    for members in units.values():
        for vote, reward in members:
            credit.advantages[vote.trace_id, vote.seat] = reward - baselines.value(vote.env_id, vote.role, vote.policy)
        for vote, reward in members:
            baselines.update(vote.env_id, vote.role, reward, vote.policy)


def _compare(members: Sequence[tuple[Vote, float]], estimator: Estimator, credit: Credit) -> None:
    """Sets the advantages of votes that are compared with each other."""
    rewards = [reward for _, reward in members]
    size = len(rewards)
    mean = math.fsum(rewards) / size
    std = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / size)
    scaled = estimator in ("grpo", "role_norm")
    units: dict[str, list[float]] = {}
    for vote, reward in members:
        units.setdefault(vote.trace_id, []).append(reward)
    alone = len(units) == 1 and (size == 1 or members[0][0].env_id.startswith(HARNESS))
    if alone or std <= NOISE_FLOOR * max(1.0, *(abs(reward) for reward in rewards)):
        credit.uninformative += 1
        for vote, _ in members:
            credit.advantages[vote.trace_id, vote.seat] = 0.0
            # Equal sums may hide different token rewards, whose part in the mean gradient must not depend on that.
            credit.scales[vote.trace_id, vote.seat] = 0.0 if scaled or alone else 1.0
        return
    apart = 1 < len(units) < size
    for vote, reward in members:
        if apart:
            own = units[vote.trace_id]
            others = (size * mean - math.fsum(own)) / (size - len(own))
            left = (reward - others) * (1.0 if estimator == "loo" else (len(units) - 1) / len(units))
        else:
            left = (reward - mean) * (size / (size - 1) if estimator == "loo" else 1.0)
        scale = 1 / std if scaled else 1.0
        credit.advantages[vote.trace_id, vote.seat] = left * scale
        credit.scales[vote.trace_id, vote.seat] = scale


def check(
    by: CreditBy, *, zero_sum: bool = False, force: bool = False, group_reward: GroupReward | None = None
) -> None:
    """Refuses a way of crediting that can't work with a game.

    Raises:
        UsageError: credit by trace in a zero-sum game without `force`, or credit by group without a group reward.
    """
    if by == "trace" and zero_sum and not force:
        raise UsageError(
            "credit by trace sums the rewards of all seats, and in a zero-sum game that sum is always 0: nothing would "
            "be learned. Use credit by seat"
        )
    if by == "group" and group_reward is None:
        raise UsageError("credit by group needs a game with a group_reward(traces) function; use credit by seat")


def assign(
    traces: Sequence[Trace],
    *,
    by: CreditBy,
    estimator: Estimator,
    baselines: Baselines,
    learners: Callable[[Trace], Iterable[str]],
    group_reward: GroupReward | None = None,
    peers: Collection[str] = (),
    token_rewards: TokenRewards | None = None,
) -> Credit:
    """Returns the advantages of a batch of traces.

    Args:
        traces: of one step, void ones included.
        by: `seat` credits each seat with its own return; `trace` gives all trained tokens of a trace one advantage from
            the summed return; `group` scores separate episodes of a group against each other.
        estimator: see the module's table.
        baselines: running baselines, updated here by `rae`.
        learners: the seats of a trace that are being trained.
        group_reward: for `by="group"`.
        peers: roles whose seats are compared within their episode, under `by="seat"`; see `ArenaEnv.peers`.
        token_rewards: pays single tokens, and may keep some from being trained; see `token_rewards`.

    Raises:
        UsageError: credit by group without a group reward, or token rewards that don't fit their trace.
    """
    metrics: dict[str, list[float]] = {}
    incomplete = 0
    if by == "seat":
        votes = [
            replace(vote, group=vote.trace_id) if vote.role in peers else vote
            for vote in votes_by_seat(traces, learners)
        ]
    elif by == "trace":
        votes = votes_by_trace(traces)
    else:
        check(by, group_reward=group_reward)
        assert group_reward is not None  # checked above
        votes, metrics, incomplete = votes_by_group(traces, learners, group_reward)
    signals: dict[str, dict[int, TurnSignal]] = {}
    if token_rewards is not None:
        by_id = {trace.id: trace for trace in traces if not trace.void}
        signals = {id: read(token_rewards, trace) for id, trace in by_id.items()}
        for id, turns in signals.items():
            for index, signal in turns.items():
                _check_size(float(np.abs(signal.rewards).max(initial=0.0)), id, f"a token of turn {index}")
        votes = [_with_token_rewards(vote, by_id[vote.trace_id], signals[vote.trace_id]) for vote in votes]
    credit = estimate(votes, estimator, baselines)
    credit.metrics, credit.incomplete, credit.signals = metrics, incomplete, signals
    credit.void = sum(trace.void for trace in traces)
    return credit


def _with_token_rewards(vote: Vote, trace: Trace, signals: Mapping[int, TurnSignal]) -> Vote:
    """Returns the vote with the token rewards of its seat, or of the whole trace, added to its reward."""
    if vote.reward is None:
        return vote
    return replace(vote, reward=vote.reward + earned(trace, signals, None if vote.seat == EVERY_SEAT else vote.seat))
