"""PettingZoo's AEC bookkeeping, done once for every game: turns, phases, rewards, bad replies, ends.

Order of one step, as PettingZoo's own envs have it: an ended seat's removal; else the actor's accumulated reward
is zeroed, the reply resolved, rewards paid and accumulated, ends marked, and the next seat selected.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import gymnasium
import msgspec
import numpy as np
from pettingzoo import AECEnv

from llm_arena.compaction import compacted
from llm_arena.errors import EnvContractError, UsageError
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.replies import UNANSWERED, clean, refusal, retry_text, unanswered, unusable_summary
from llm_arena.types import Cause, Ending, Json, Move, Outcome, Reply
from llm_arena.views import Views, copy_messages

IllegalRule = Literal["forfeit", "skip", "random_legal", "penalty"]


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the newest step did."""

    seat: str
    reply: Reply
    cause: Cause
    attempt: int
    "0 for the first try of the turn."
    action: Json
    rewards: dict[str, float]
    "Rewards of this step by seat, zeros left out."


class AECBooks(Views, AECEnv[str, dict[str, Any], str]):
    """What every game has in common once it is set up. Games derive from `env.ArenaEnv`, which adds the rest."""

    id: ClassVar[str]
    system: ClassVar[str] = ""
    "System text that every seat's view begins with."
    retries: int
    illegal: IllegalRule
    penalty: float
    max_turns: int
    overflow: Literal["no_loss", "forfeit"]
    role_counts: dict[str, int]
    episode_seed: int | None
    _roles: dict[str, str]
    _stream: np.random.Generator | None
    _observation_spaces: dict[str, gymnasium.spaces.Space[Any]]
    _action_spaces: dict[str, gymnasium.spaces.Space[str]]

    # ---- what a game supplies, see ArenaEnv -------------------------------------------------------------------

    @abstractmethod
    def begin(self, rng: np.random.Generator) -> str | Iterable[str]:
        """Deals, tells the opening views, and returns who acts first (several seats: a simultaneous phase)."""

    @abstractmethod
    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes one reply. Raises `IllegalReply`, before anything is changed, if it is no legal action."""

    @abstractmethod
    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the replies that are legal for `seat` now, or None where they can't be listed."""

    @abstractmethod
    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws some legal reply."""

    @abstractmethod
    def forfeit(self, seat: str, cause: Cause) -> Move:
        """Returns what the rule `forfeit` does."""

    @abstractmethod
    def skip(self, seat: str) -> Move | None:
        """Returns what the rule `skip` does; None where a turn can't be skipped."""

    # ---- the AEC API -----------------------------------------------------------------------------------------

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        """Returns the seat's space of observations, the same object at each call."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Space[str]:
        """Returns the seat's space of replies, the same object at each call."""
        return self._action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Starts a new episode.

        Args:
            seed: 0 to 2**64 - 1; the same seed gives the same episode. None draws one from the env's own stream
                (which a given seed restarts). `episode_seed` holds the seed that was used.
            options: tolerated for PettingZoo's sake; games take keyword arguments instead.
        """
        if seed is None:
            seed = int(self.stream.integers(0, 2**64, dtype=np.uint64))
        else:
            seed = seed if type(seed) is int and 0 <= seed < 2**64 else _check_seed(seed)
            self._stream, self._stream_seed = None, seed
        self.episode_seed = seed
        self.rng = np.random.default_rng(seed)
        seats = self.possible_agents
        self.agents = list(seats)
        self.rewards = dict.fromkeys(seats, 0.0)
        self.returns: dict[str, float] = dict.fromkeys(seats, 0.0)
        self._cumulative_rewards = dict.fromkeys(seats, 0.0)
        self.terminations = dict.fromkeys(seats, False)
        self.truncations = dict.fromkeys(seats, False)
        self._open_views(seats, self.system)
        self._attempts = dict.fromkeys(seats, 0)
        self._history: list[Json] = []
        self._spoken: list[tuple[str, str]] = []
        self.turns = 0
        self.over = False
        self.outcome: Outcome | None = None
        self.ending: Ending | None = None
        self.overflow_seat: str | None = None
        self.last_step: StepRecord | None = None
        self.stats: dict[str, dict[str, int]] = {role: {"turns": 0} for role in self.role_counts}
        self.pending: list[str] = []
        self._phase_open = False
        self._anyone_ended = False
        self._news: set[str] = set(seats)
        self.infos = {}
        self.agent_selection = seats[0]
        self._open_phase(self.begin(self.rng))
        self._refresh()

    def step(self, action: str | None) -> None:
        """Takes the reply of `agent_selection`, or None for a seat that has ended.

        Raises:
            UsageError: the env was not reset, or a live seat was given something else than text.
            ValueError: a seat that has ended was given something else than None.
        """
        if self.episode_seed is None:
            raise UsageError(f"{self.id}: call reset() before step()")
        if not self.agents:
            raise UsageError(f"{self.id}: the episode is over and every seat has been stepped; call reset()")
        seat = self.agent_selection
        if self.terminations[seat] or self.truncations[seat]:
            self._step_dead(seat, action)
            return
        if not isinstance(action, str):
            raise UsageError(f"{self.id}: {seat} is in the game, so its action is text; got {type(action).__name__}")
        reply = clean(action)
        text = str(reply)
        self._history.append([text, reply.finish])
        self._spoken.append((seat, text))
        self._cumulative_rewards[seat] = 0.0
        self._views[seat].append({"role": "assistant", "content": text})
        self._news.add(seat)
        if self.budget is not None:
            self._count(seat, reply)
        attempt = self._attempts[seat]
        if seat in self.compacting:
            move, cause = self._take_summary(seat, reply)
        else:
            self.turns += 1
            move, cause = self._take(seat, reply)
        self._book(seat, move)
        action_read, rewards = None, {}
        if move is not None:
            action_read = move.action
            if move.rewards:
                rewards = {other: reward for other, reward in self.rewards.items() if reward}
        self.last_step = StepRecord(
            seat=seat, reply=reply, cause=cause, attempt=attempt, action=action_read, rewards=rewards
        )
        self._refresh()

    def observe(self, agent: str) -> dict[str, Any]:
        """Returns `{"messages": [...]}`, a copy of what the seat has seen. Looking changes nothing."""
        if agent not in self._roles:
            self._known(agent)
        if self.episode_seed is None:
            raise UsageError(f"{self.id}: call reset() before observe()")
        return {"messages": copy_messages(self._views[agent])}

    def truncate(self, ending: Ending, seat: str | None = None) -> None:
        """Ends the episode from outside, e.g. because the context of `seat` overflowed.

        With `overflow="forfeit"` a context overflow counts as a forfeit of that seat; otherwise nobody is paid.
        """
        if self.over:
            return
        self._history.append({"truncate": str(ending), "seat": seat})
        for other in self.rewards:
            self.rewards[other] = 0.0
        if ending is Ending.CONTEXT_OVERFLOW and seat is not None:
            self.overflow_seat = seat
            if self.overflow == "forfeit":
                self._pay(self.forfeit(seat, Cause.LENGTH).rewards)
        self._end(ending, truncated=True)
        self._refresh()

    def next_seat(self, seat: str) -> str:
        """Returns the next seat after `seat` in seat order that is still in the game (maybe itself)."""
        at = self.possible_agents.index(seat)
        order = self.possible_agents[at + 1 :] + self.possible_agents[: at + 1]
        return next(other for other in order if self._alive(other))

    def note(self, role: str, name: str, by: int = 1) -> None:
        """Adds to what `stats` counts of a role under a name."""
        counts = self.stats[role]
        counts[name] = counts.get(name, 0) + by

    def role_of(self, seat: str) -> str:
        """Returns the role of `seat`."""
        self._known(seat)
        return self._roles[seat]

    def attempt(self, seat: str) -> int:
        """Returns how many bad replies the seat has given in its running turn."""
        return self._attempts[seat]

    @property
    def stream(self) -> np.random.Generator:
        """Where resets without a seed draw theirs from; a given seed restarts it."""
        if self._stream is None:  # made when it is first needed: that takes as long as a short game
            self._stream = np.random.default_rng([self._stream_seed, 1])
        return self._stream

    # ---- compaction ------------------------------------------------------------------------------------------

    def _take_summary(self, seat: str, reply: Reply) -> tuple[Move | None, Cause]:
        """Replaces the view by the summary in `reply`. A bad one is tried again, forfeits, or leaves it empty."""
        cause = unusable_summary(reply)
        role = self._roles[seat]
        if cause is not None:
            self.note(role, cause)
            if self._attempts[seat] < self.retries:
                self._attempts[seat] += 1
                self._views[seat].append({"role": "user", "content": retry_text(cause, "Write a summary.")})
                return None, cause
        request = self.compacting.pop(seat)
        if cause is not None and self.illegal == "forfeit":
            return self.forfeit(seat, cause), cause
        summary = "" if cause is not None else strip_thinking(reply).strip()
        self.note(role, "compactions")
        self._attempts[seat] = 0
        self._replace(seat, compacted(self._views[seat], self._openings[seat], request, self._cut(summary)))
        return None, cause or Cause.LEGAL

    # ---- bookkeeping -----------------------------------------------------------------------------------------

    def _take(self, seat: str, reply: Reply) -> tuple[Move | None, Cause]:
        """Returns the move that the reply leads to (None: the seat tries again), and why."""
        role = self._roles[seat]
        self.stats[role]["turns"] += 1
        try:
            if reply.finish != "stop" or not reply or reply.isspace():
                unusable = unanswered(reply)
                if unusable is not None:
                    raise IllegalReply(unusable, UNANSWERED.get(unusable, ""))
            return self.resolve(seat, reply), Cause.LEGAL
        except IllegalReply as bad:
            cut = reply.finish == "length" and bad.cause in (Cause.UNPARSABLE, Cause.EMPTY)
            cause = Cause.LENGTH if cut else bad.cause
            self.note(role, cause)
            if self._attempts[seat] < self.retries:
                self.turns -= 1  # the turn goes on: a seat can't run down the limit by replying badly
                self._attempts[seat] += 1
                self._views[seat].append({"role": "user", "content": retry_text(cause, bad.hint)})
                return None, cause
            return self._apply_rule(seat, cause), cause

    def _apply_rule(self, seat: str, cause: Cause) -> Move:
        if self.illegal == "forfeit":
            return self.forfeit(seat, cause)
        if self.illegal == "random_legal":
            drawn = Reply(self.sample_reply(seat, self.rng))
            self._views[seat].append({"role": "user", "content": f"{refusal(cause)}. Played for you: {drawn}"})
            move = self.resolve(seat, drawn)
            return msgspec.structs.replace(move, action={"random_legal": str(drawn)})
        skipped = self.skip(seat)
        if self.illegal == "penalty":
            rest = skipped or Move(outcome=Outcome(reason=f"penalty: {seat} gave {cause} reply"))
            rewards = dict(rest.rewards)
            rewards[seat] = rewards.get(seat, 0.0) + self.penalty
            return msgspec.structs.replace(rest, rewards=rewards)
        assert skipped is not None  # _check_options refused the rule otherwise
        return skipped

    def _book(self, seat: str, move: Move | None) -> None:
        """Books one move: rewards, who leaves, who is next, the end."""
        for other in self.rewards:
            self.rewards[other] = 0.0
        if move is not None:
            self._attempts[seat] = 0
            self.pending.remove(seat)
            self._phase_open = self._phase_open and bool(self.pending)
            if self._phase_open and move.outcome is None and set(move.rewards) - {seat}:
                raise EnvContractError(f"{self.id}: rewards for {list(move.rewards)} before the phase is over")
            if move.rewards:
                self._pay(move.rewards)
            for other in move.leaves:
                if not self._alive(other):
                    raise EnvContractError(f"{self.id}: {other!r} leaves, but it is not in the game")
                self.terminations[other] = True
                self._anyone_ended = True
                if other in self.pending:
                    self.pending.remove(other)
            self._phase_open = self._phase_open and bool(self.pending)
            if move.outcome is not None:
                self.outcome = move.outcome
                self._end(Ending.TERMINATED, truncated=False)
            elif move.next or not self.pending:
                self._open_phase(move.next)
        if not self.over and self.turns >= self.max_turns:
            self._end(Ending.TRUNCATED, truncated=True)

    def _pay(self, rewards: Mapping[str, float]) -> None:
        for seat, reward in rewards.items():
            self._known(seat)
            reward = float(reward)
            if not math.isfinite(reward):
                raise EnvContractError(f"{self.id}: the reward of {seat} is {reward}; rewards are finite numbers")
            if seat not in self.rewards:
                if reward:
                    raise EnvContractError(f"{self.id}: {seat} has left and can't be paid {reward}")
                continue
            self.rewards[seat] += reward
            self.returns[seat] += reward
            self._cumulative_rewards[seat] += reward

    def _open_phase(self, first: str | Iterable[str]) -> None:
        if isinstance(first, str) and not self.pending and self._alive(first):  # most turns of most games
            self.pending = [first]
            self._phase_open = False
            self._news.add(first)
        else:
            seats = [first] if isinstance(first, str) else list(first)
            for seat in seats:
                self._known(seat)
            if self.pending:
                raise EnvContractError(f"{self.id}: next={seats} while {self.pending} have not answered")
            dead = [seat for seat in seats if not self._alive(seat)]
            if not seats or dead or len(set(seats)) < len(seats):
                raise EnvContractError(
                    f"{self.id}: next is {seats}; expected one or more different seats that are in the game"
                    + (f", but {dead} have left" if dead else "")
                )
            self.pending = sorted(seats, key=self.possible_agents.index) if len(seats) > 1 else seats
            self._phase_open = len(seats) > 1
            self._news.update(self.pending)
        if self.budget is not None:
            self._ask_for_summaries()

    def _end(self, ending: Ending, *, truncated: bool) -> None:
        self.over = self._anyone_ended = True
        self._news.update(self.agents)
        self.ending = ending
        self.pending = []
        self._phase_open = False
        for seat in self.agents:
            if self._alive(seat):
                (self.truncations if truncated else self.terminations)[seat] = True

    def _step_dead(self, seat: str, action: str | None) -> None:
        if action is not None:
            raise ValueError("when an agent is dead, the only valid action is None")
        self._history.append(None)
        for table in (self.terminations, self.truncations, self.rewards, self._cumulative_rewards, self.infos):
            del table[seat]
        self.agents.remove(seat)
        for other in self.rewards:
            self.rewards[other] = 0.0
        if not self.over:
            self._refresh()
        elif self.agents:
            self.agent_selection = self.agents[0]  # every seat has ended

    def _refresh(self) -> None:
        """Points `agent_selection` at an ended seat if there is one, else at who acts, and fills the infos."""
        dead = None
        if self._anyone_ended:
            dead = next((seat for seat in self.agents if self.terminations[seat] or self.truncations[seat]), None)
            self._anyone_ended = dead is not None
        if dead is not None:
            self.agent_selection = dead
        elif self.pending:
            self.agent_selection = self.pending[0]
        # who has yet to answer in a phase can do what it could before
        self.infos = self.infos.copy()
        for seat in self._news:
            if seat in self.pending or self.over:
                self.infos[seat] = self._info(seat)
            elif seat in self.rewards:  # it has not been removed
                self.infos[seat] = {"role": self._roles[seat]}
        self._news.clear()

    def _info(self, seat: str) -> dict[str, Any]:
        info: dict[str, Any] = {"role": self._roles[seat]}
        if self.over:
            info["outcome"] = msgspec.to_builtins(self.outcome)
            info["ending"] = str(self.ending)
        elif seat in self.pending:
            info["attempt"] = self._attempts[seat]
            if seat in self.compacting:
                info["compacting"] = True
                return info
            legal = self.legal_actions(seat)
            if legal is not None:
                info["legal_actions"] = legal
        return info

    def _alive(self, seat: str) -> bool:
        return seat in self.terminations and not self.terminations[seat] and not self.truncations[seat]

    def _refuse_mid_phase(self, what: str, seat: str) -> None:
        # the reply of the one who answers last is taken already
        if self._phase_open and seat in self.pending and len(self.pending) > 1:
            raise EnvContractError(f"{self.id}: {what}({seat!r}) before that seat has answered in this phase")

    def _known(self, seat: str) -> None:
        if seat not in self._roles:
            raise EnvContractError(f"{self.id}: there is no seat {seat!r}; seats are {self.possible_agents}")


def _check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise UsageError(f"seed={seed!r}; expected an integer from 0 to 2**64 - 1")
    return int(seed)
