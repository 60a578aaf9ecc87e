"""Rewards in, advantages out: one number per (trace, seat), broadcast later to every token that the seat sampled.

Three rules hold here.

- The baseline belongs to (env id, role). A mean over all seats of a zero-sum game is 0 whatever the policy does, and
  would make the first mover's edge a permanent credit.
- Every (trace, seat) has one vote in its baseline, however many turns or sequences it has.
- Void traces have no reward, no tokens and no effect on their siblings.

With w the reward of one (trace, seat), its token rewards included, the estimators are

    none        A = w
    rae         A = w - b(env, role);  b is an EMA over votes, read before it is updated   (SPIRAL, arXiv:2506.24119)
    loo         A = w - mean of the others in the group                                    (RLOO, arXiv:2402.14740)
    group_mean  A = w - mean of the group                                                  (Dr. GRPO, arXiv:2503.20783)
    grpo        A = (w - mean) / std of the group                                          (arXiv:2402.03300)
    role_norm   A = (w - mean) / std over the batch's votes of one (env, role)             (MARSHAL, arXiv:2510.15414)

where a group is the votes of one role under one group id; for the roles that a game names in `peers`, of one episode.
`role_norm` needs no groups; there the whole batch is one for each role.

Where a group holds several episodes, a seat is compared with the other episodes only: what a sibling of its own
episode was paid depends on what the seat did, and a baseline that held it would pull towards R_own - R_sibling instead
of R_own. So with m the mean of the votes of other episodes and n the number of episodes, `loo` is w - m and the mean
that the last three subtract leaves (w - m) (n - 1) / n; for one seat of a role in an episode that is the table above.
Where a group is one episode, siblings are what there is to compare with; but not in a run of a harness, whose rewards
are whatever its code says: a group of which one run is left has no contrast.

Tokens of one seat have one advantage, unless there are token rewards: then that of token t is A minus what the seat
earned before t, in the same scale (`Credit.scales`). A constant for all its tokens is the special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from llm_arena.errors import UsageError
from llm_arena.registry import HARNESS
from llm_arena.training.token_rewards import TokenRewards, TurnSignal, earned, read
from llm_arena.types import Trace

Estimator = Literal["rae", "loo", "group_mean", "grpo", "role_norm", "none"]
CreditBy = Literal["seat", "trace", "group"]
GroupReward = Callable[[list[Trace]], Sequence[tuple[float, Mapping[str, float]]]]

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


class Baselines:
    """Running mean reward per (env id, role): `b <- decay * b + (1 - decay) * reward`, starting at 0.

    With `bias_correction` (the default) the value read is `b / (1 - decay ** votes)`, the weighted mean of the rewards
    seen so far. Without it the value creeps up from 0 over about `1 / (1 - decay)` votes, and all that time a role that
    always loses is told that losing is worse than usual.

    >>> running = Baselines(decay=0.9, bias_correction=False)
    >>> [round(running.advantage("g", "r", reward), 6) for reward in (1, 1, -1)]
    [1.0, 0.9, -1.19]
    """

    def __init__(self, decay: float = 0.95, *, bias_correction: bool = True) -> None:
        if not 0 <= decay < 1:
            raise UsageError(f"the decay of a baseline must be in [0, 1), got {decay}")
        self.decay = decay
        self.bias_correction = bias_correction
        self._mean: dict[tuple[str, str], float] = {}
        self._votes: dict[tuple[str, str], int] = {}

    def value(self, env_id: str, role: str) -> float:
        """Returns the baseline of a role; 0 before its first vote."""
        key = env_id, role
        votes = self._votes.get(key, 0)
        if not votes:
            return 0.0
        return self._mean[key] / (1 - self.decay**votes) if self.bias_correction else self._mean[key]

    def update(self, env_id: str, role: str, reward: float) -> None:
        """Counts one vote."""
        key = env_id, role
        self._mean[key] = self.decay * self._mean.get(key, 0.0) + (1 - self.decay) * reward
        self._votes[key] = self._votes.get(key, 0) + 1

    def advantage(self, env_id: str, role: str, reward: float) -> float:
        """Returns `reward` minus the baseline as it was before, then counts the vote."""
        before = self.value(env_id, role)
        self.update(env_id, role, reward)
        return reward - before

    def state(self) -> list[dict[str, object]]:
        """Returns the state as JSON."""
        return [
            {"env_id": env_id, "role": role, "mean": self._mean[env_id, role], "votes": votes}
            for (env_id, role), votes in self._votes.items()
        ]

    def load(self, state: Iterable[Mapping[str, object]]) -> None:
        """Takes the state that `state` returned."""
        self._mean.clear()
        self._votes.clear()
        for row in state:
            key = str(row["env_id"]), str(row["role"])
            self._mean[key] = float(str(row["mean"]))
            self._votes[key] = int(str(row["votes"]))


def votes_by_seat(traces: Iterable[Trace], seats: Callable[[Trace], Iterable[str]]) -> list[Vote]:
    """Returns one vote for each seat in `seats(trace)` that had a turn, its reward the seat's return.

    What a seat gets that was never asked says nothing about what the policy does.
    """
    return [
        _vote(trace, seat, trace.seats[seat].role, trace.id, trace.returns.get(seat))
        for trace in traces
        if not trace.void
        for seat in seats(trace)
        if not trace.turns or any(turn.seat == seat for turn in trace.turns)
    ]


def votes_by_trace(traces: Iterable[Trace]) -> list[Vote]:
    """Returns one vote per trace, its reward the sum over all seats. In a zero-sum game that sum is always 0."""
    return [
        _vote(trace, EVERY_SEAT, EVERY_SEAT, trace.id, math.fsum(trace.returns.values()) if trace.returns else None)
        for trace in traces
        if not trace.void
    ]


def votes_by_group(
    traces: Sequence[Trace], seats: Callable[[Trace], Iterable[str]], group_reward: GroupReward
) -> tuple[list[Vote], dict[str, list[float]], int]:
    """Scores whole groups of separate episodes against each other, after all of a group have ended.

    A contest is scored over exactly its members: a group with a void member is dropped whole, because fewer contestants
    are another contest.

    Returns:
        the votes, the metrics that `group_reward` reported (name -> values), and the number of dropped groups.

    Raises:
        UsageError: `group_reward` did not return one (reward, metrics) pair per trace.
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
        given = list(members)
        scored = list(group_reward(given))
        if list(map(id, given)) != list(map(id, members)):
            raise UsageError("group_reward changed its list of traces; let it work on a copy")
        if len(scored) != len(members):
            raise UsageError(
                f"group_reward returned {len(scored)} results for the {len(members)} traces of group {group!r}; "
                "it must return one (reward, metrics) pair per trace, in the order of the traces"
            )
        for trace, (reward, numbers) in zip(members, scored, strict=True):
            votes += [_vote(trace, seat, trace.seats[seat].role, f"group {group}", reward) for seat in seats(trace)]
            for name, number in numbers.items():
                metrics.setdefault(name, []).append(float(number))
    return votes, metrics, incomplete


def _vote(trace: Trace, seat: str, role: str, unit: str, reward: float | None) -> Vote:
    return Vote(
        trace_id=trace.id,
        seat=seat,
        role=role,
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
        UsageError: unknown estimator, or `rae` without baselines.
    """
    credit = Credit()
    known: list[tuple[Vote, float]] = []
    for vote in votes:
        if vote.reward is None or not math.isfinite(vote.reward):
            credit.missing += 1
            credit.advantages[vote.trace_id, vote.seat] = credit.scales[vote.trace_id, vote.seat] = 0.0
        else:
            known.append((vote, float(vote.reward)))
            credit.rewards[vote.trace_id, vote.seat] = float(vote.reward)
    together = _role if estimator == "role_norm" else _group
    credit.groups = len({together(vote) for vote in votes})
    match estimator:
        case "none":
            credit.advantages.update({(vote.trace_id, vote.seat): reward for vote, reward in known})
        case "rae":
            if baselines is None:
                raise UsageError("the estimator rae needs running baselines")
            _running(known, baselines, credit)
        case "loo" | "group_mean" | "grpo" | "role_norm":
            groups: dict[tuple[str, str], list[tuple[Vote, float]]] = {}
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
            credit.advantages[vote.trace_id, vote.seat] = reward - baselines.value(vote.env_id, vote.role)
        for vote, reward in members:
            baselines.update(vote.env_id, vote.role, reward)


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
