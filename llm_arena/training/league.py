"""Leagues: whom the learner meets, beside itself. Pure bookkeeping, which loads no torch and touches no weights.

Plain self-play goes round in circles: a policy forgets how to beat what it once beat, and nobody in the game shows it.
So a share of the starts is played against past versions of the policy, and a share against anchors that never change.
Only the learner's seats of such an episode are trained; all episodes of a start have the same opponent.

Past versions are drawn by prioritized fictitious self-play (PFSP; AlphaStar, doi:10.1038/s41586-019-1724-z): version j
has the weight

    w_j = (1 - p_j)^2        p_j = (wins + draws / 2) / games   of the learner against j, 0.5 before `min_games` games

so that games go to what the learner does not beat yet. If all weights are 0, all are alike. Counts are of the whole
run: a version that was beaten for long comes back slowly once it is no longer beaten.

Anchors are drawn alike, whatever comes of the games. They are few, the user chose each, and they are the yardstick: one
that is beaten has to be met again for forgetting to show, and one that can't be beaten (a solver, a large model) would
take nearly all games under PFSP.

Nothing is random but by a hash of (seed, step, start) and the counts, so a resumed run meets the same opponents. Where
batches are played ahead of the learner, those of step s are drawn from the league as it was after max(0, s - ahead)
steps, which is what was known when they began; the league keeps as many of its own past states.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from llm_arena.errors import TrainingError, UsageError
from llm_arena.rating import match_row
from llm_arena.training.league_settings import LeagueSettings, entrant_name
from llm_arena.training.sources import derive_seed
from llm_arena.types import Json, SeatInfo, Trace


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """An opponent, and what came of the learner's games against it.

    A game with several seats counts once: its win, draw and loss are the shares of the pairs (a seat of the learner, a
    seat of the member) in which the learner ranks better, equal and worse. So among equals the win rate is 0.5 also
    where one of many wins.
    """

    agent: str
    "The agent string to seat, e.g. `learner@40` or `random-legal`."
    step: int | None = None
    "After so many steps a past version was kept; None for an anchor."
    number: int = 0
    "The how many-th version of the run it is, from 1; 0 for an anchor."
    games: int = 0
    wins: float = 0.0
    draws: float = 0.0
    losses: float = 0.0
    faults: int = 0
    "Of these games, those that a bad reply of this member ended. They count as they ended, but show no skill."

    def win_rate(self, min_games: int) -> float:
        """Returns the learner's win rate against it, draws as half; 0.5 before `min_games` games."""
        return (self.wins + self.draws / 2) / self.games if self.games >= min_games else 0.5


class Standings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a draw depends on, beside settings and seed: the members and their counts at some step."""

    past: tuple[Member, ...] = ()
    "Oldest first."
    anchors: tuple[Member, ...] = ()

    def draw(self, settings: LeagueSettings, seed: int, step: int, k: int) -> Member | None:
        """Returns whom start `k` of step `step` meets; None: itself."""
        at = _uniform(seed, step, k, "kind")
        if at < settings.self_play:
            return None
        of_past = at < settings.self_play + settings.past
        members = self.past if of_past else self.anchors
        weights = [(1 - one.win_rate(settings.min_games)) ** 2 if of_past else 1.0 for one in members]
        return _pick(members, weights, _uniform(seed, step, k, "member"))


class _State(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    step: int
    taken: int
    now: Standings
    before: tuple[Standings, ...]


class League:
    """The opponents of one learner.

    Args:
        settings: the mix; its anchors as traces name them, or their games are not found.
        seed: of the run.
        policy: whom the league is for, `learner` or `learner:NAME`; past versions are named `learner@STEP`.
        ahead: how many steps ahead of the learner batches are played (`max_staleness`).
        officials: roles that take no part in the contest; see `ArenaEnv.officials`.

    Raises:
        UsageError: an anchor is named like something that is trained.
    """

    def __init__(
        self,
        settings: LeagueSettings,
        *,
        seed: int,
        policy: str = "learner",
        ahead: int = 0,
        officials: Collection[str] = (),
    ) -> None:
        anchors = settings.anchor_names()
        refuse_trained(anchors, policy)
        self.settings = settings
        self.policy = policy
        self._seed = seed
        self._ahead = ahead
        self._officials = frozenset(officials)
        self._step = 0
        self._taken = 0
        self._now = Standings(anchors=tuple(Member(agent=name) for name in anchors))
        self._before: tuple[Standings, ...] = ()  # after each of the steps before this one, as far as they are needed

    @property
    def step(self) -> int:
        """Steps that were counted."""
        return self._step

    @property
    def members(self) -> list[Member]:
        """Who may be met from now on, past versions first, oldest first."""
        return [*self._now.past, *self._now.anchors]

    @property
    def due(self) -> bool:
        """Whether a version is to be kept now."""
        return self.settings.past > 0 and self._step > 0 and self._step % self.settings.snapshot_every == 0

    def version_name(self, step: int) -> str:
        """Returns the policy id of a past version."""
        return f"{self.policy}@{step}"

    def needed(self) -> set[str]:
        """Returns the past versions that some batch may still meet: whose weights an engine has to have.

        With batches played ahead, a version is needed for a while after it was evicted.
        """
        return {one.agent for standings in (*self._before, self._now) for one in standings.past}

    def opponent(self, step: int, k: int) -> Member | None:
        """Returns whom start `k` of step `step` meets; None: the learner holds all seats.

        Raises:
            UsageError: the league that this step draws from is yet to come, or is no longer kept.
        """
        wanted = max(0, step - self._ahead)
        back = self._step - wanted
        if not 0 <= back <= len(self._before):
            raise UsageError(
                f"step {step} meets the league as it is after {wanted} steps, but {self._step} are counted and the "
                f"{len(self._before)} before are kept; ask for steps {self._step} to {self._step + self._ahead}"
            )
        standings = self._before[-back] if back else self._now
        return standings.draw(self.settings, self._seed, step, k)

    def record(self, step: int, traces: Iterable[Trace]) -> dict[str, float]:
        """Counts the games of a step that was learned, each trace id once.

        What counts is a game that ranks a seat of the learner against one of a member, by the rules of
        `rating.match_row`. Void games count nothing, nor do those of versions that were evicted since.

        Returns:
            The step's own metrics: games and win rate against past versions, and against each anchor.

        Raises:
            UsageError: it is not the step after those that were counted.
        """
        if step != self._step:
            raise UsageError(f"the league has counted {self._step} steps, so step {self._step} is next; got {step}")
        before = self._now
        found = {entrant_name(one.agent): one for one in self.members}
        for trace in {trace.id: trace for trace in traces}.values():
            for name, result in self._results(trace, found).items():
                found[name] = _plus(found[name], result)
        after = [found[entrant_name(one.agent)] for one in self.members]
        self._before = (*self._before, before)[-self._ahead :] if self._ahead else ()
        self._now = Standings(past=tuple(after[: len(before.past)]), anchors=tuple(after[len(before.past) :]))
        self._step += 1
        metrics = _gains("past", before.past, self._now.past)
        for old, new in zip(before.anchors, self._now.anchors, strict=True):
            metrics |= _gains(entrant_name(new.agent), [old], [new])
        return metrics

    def snapshot(self, step: int) -> list[str]:
        """Adds the learner as it is after `step` steps, and evicts what is too many.

        The newest half of `keep` stays. Of the older versions the one goes whose number has the fewest factors of two,
        among such the oldest: they end up as far apart as 2, 4, 8, ... versions, evenly over the run within a factor of
        two however long it is. Which ones are hard to beat plays no part: PFSP sees to that among those that are there,
        its counts are noisy, and what guards against going in circles is that old ways of playing stay on the list.

        Returns:
            The names that no later draw meets. Their weights may go as soon as they are not `needed`.

        Raises:
            UsageError: the league has counted another number of steps, or has this version.
        """
        if step != self._step or (self._now.past and self._now.past[-1].step == step):
            raise UsageError(
                f"a version of step {step} can't be kept: {self._step} steps are counted, and the versions are of "
                f"{[one.step for one in self._now.past]}; keep one version after a step is counted"
            )
        self._taken += 1
        past = [*self._now.past, Member(agent=self.version_name(step), step=step, number=self._taken)]
        evicted = []
        while len(past) > self.settings.keep:
            older = past[: len(past) - (self.settings.keep + 1) // 2]
            gone = min(older, key=lambda one: (one.number & -one.number, one.number))
            past.remove(gone)
            evicted.append(gone.agent)
        self._now = Standings(past=tuple(past), anchors=self._now.anchors)
        return evicted

    def state(self) -> Json:
        """Returns the state as JSON."""
        return msgspec.to_builtins(
            _State(policy=self.policy, step=self._step, taken=self._taken, now=self._now, before=self._before)
        )

    def load(self, state: Json) -> None:
        """Takes the state that `state` returned.

        Raises:
            TrainingError: it is none, or that of a league with other settings.
        """
        try:
            saved = msgspec.convert(state, _State)
        except msgspec.ValidationError as error:
            raise TrainingError(f"the state of the league can't be read: {error}; start anew with --fresh") from error
        mine, theirs = ([one.agent for one in standings.anchors] for standings in (self._now, saved.now))
        kept = min(saved.step, self._ahead)
        if (saved.policy, theirs, len(saved.before)) != (self.policy, mine, kept):
            raise TrainingError(
                f"the state of the league is of {saved.policy} with the anchors {theirs} and {len(saved.before)} "
                f"earlier states; expected are {self.policy}, {mine} and {kept}. Start anew with --fresh"
            )
        self._step, self._taken, self._now, self._before = saved.step, saved.taken, saved.now, saved.before

    def _results(self, trace: Trace, members: Mapping[str, Member]) -> dict[str, Member]:
        """Returns what one game adds to the counts of each member in it."""
        held = {seat: entrant_of(info) for seat, info in trace.seats.items()}
        # Not every agent with a policy is called after it.
        named = {seat: entrant_name(info.agent) for seat, info in trace.seats.items()}
        held |= {seat: name for seat, name in named.items() if name in members}
        officials = {seat: who for seat, who in held.items() if trace.seats[seat].role in self._officials}
        row = match_row(trace, {seat: who for seat, who in held.items() if seat not in officials}, officials=officials)
        own = [seat.rank for seat in row.seats.values() if seat.entrant == self.policy and seat.rank is not None]
        results = {}
        for name in sorted({seat.entrant for seat in row.seats.values()} & members.keys()):
            seats = [seat for seat in row.seats.values() if seat.entrant == name]
            pairs = [(mine, seat.rank) for mine in own for seat in seats if seat.rank is not None]
            if pairs:
                results[name] = Member(
                    agent=name,
                    games=1,
                    wins=sum(mine < their for mine, their in pairs) / len(pairs),
                    draws=sum(mine == their for mine, their in pairs) / len(pairs),
                    losses=sum(mine > their for mine, their in pairs) / len(pairs),
                    faults=int(any(seat.forfeited for seat in seats)),
                )
        return results


def refuse_trained(anchors: Iterable[str], policy: str = "learner") -> None:
    """Raises a UsageError if an anchor is named like something that is trained with `policy`."""
    for name in anchors:
        if entrant_name(name).partition(":")[0].partition("@")[0] == policy.partition(":")[0]:
            raise UsageError(
                f'the anchor "{name}" is named like a policy that is trained, but an anchor never changes; for '
                "past versions give league.past a share"
            )


def entrant_of(info: SeatInfo) -> str:
    """Returns who sat in a seat: the policy, or the agent where there is none."""
    return info.policy or info.agent


def _plus(one: Member, result: Member) -> Member:
    return msgspec.structs.replace(
        one,
        games=one.games + result.games,
        wins=one.wins + result.wins,
        draws=one.draws + result.draws,
        losses=one.losses + result.losses,
        faults=one.faults + result.faults,
    )


def _gains(label: str, before: Sequence[Member], after: Sequence[Member]) -> dict[str, float]:
    """Returns games and win rate between two states of the same members."""
    games = sum(one.games for one in after) - sum(one.games for one in before)
    metrics = {f"league/games/{label}": float(games)}
    if games:
        points = [math.fsum(one.wins + one.draws / 2 for one in members) for members in (before, after)]
        metrics[f"league/win_rate/{label}"] = (points[1] - points[0]) / games
    return metrics


def _uniform(seed: int, step: int, k: int, what: str) -> float:
    """Returns a number in [0, 1) from the 53 upper bits of a hash, as many as a float holds."""
    return (derive_seed(seed, "league", step, k, what) >> 11) / 2**53


def _pick(members: Sequence[Member], weights: Sequence[float], at: float) -> Member | None:
    """Returns the member in whose part of the summed weights `at` falls; None where there are none."""
    total = math.fsum(weights)
    if not total:
        weights, total = [1.0] * len(members), float(len(members))
    left = at * total
    for one, weight in zip(members, weights, strict=True):
        left -= weight
        if left < 0:
            return one
    # Rounding may leave a crumb over.
    return next((one for one, weight in zip(members[::-1], weights[::-1], strict=True) if weight), None)


__all__ = ["League", "Member", "Standings", "entrant_of", "refuse_trained"]
