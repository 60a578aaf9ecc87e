"""The base class of every game: what an author writes, and the arguments that every game takes.

PettingZoo's agent is our seat: `agents`, `possible_agents` and `agent_selection` keep their names here because
they are its API. Everywhere else an agent is the object that acts in a seat.

A game is a subclass with an id, roles and two methods:

    class Coin(ArenaEnv):
        id = "coin-v0"
        roles = {"player": 1}

        def begin(self, rng):
            self.coin = str(rng.choice(["heads", "tails"]))
            self.tell("player_0", "Heads or tails?")
            return "player_0"

        def resolve(self, seat, reply):
            won = read_choice(reply, ["heads", "tails"]) == self.coin
            return Move(rewards={seat: float(won)}, outcome=Outcome(winners=[seat] if won else [], reason=self.coin))

An episode is its spec, its seed and its actions, hence `save_state`, `load_state`, `clone` and replay work for
every game without code of its own. A game therefore draws luck only from the generator that `begin` gets
(also `self.rng`), and never reads a clock, a file or a global generator.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import gymnasium
import msgspec
import numpy as np

from llm_arena.arguments import one_of
from llm_arena.bookkeeping import IllegalRule, StepRecord
from llm_arena.compaction import SAMPLE, Unit
from llm_arena.errors import EnvContractError, UnknownName, UsageError, did_you_mean
from llm_arena.parsing import IllegalReply, printable
from llm_arena.saving import SavedBooks
from llm_arena.spaces import ChatSpace, ReplySpace
from llm_arena.types import Cause, EnvSpec, Json, Message, Move, Outcome, Reply, Trace, View

Baseline = Callable[[View, np.random.Generator], str]
GroupReward = Callable[[list[Trace]], list[tuple[float, dict[str, float]]]]

_RULES: tuple[IllegalRule, ...] = ("forfeit", "skip", "random_legal", "penalty")
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*-v\d+")
_ROLE = re.compile(r"[a-z]+")


class ArenaEnv(SavedBooks):
    """A multi-role text game with the PettingZoo AEC API. See the module's docstring for how to write one.

    Args:
        counts: how many seats each role has; a role with a fixed count may be left out.
        render_mode: `ansi` (render returns a string), `human` (render prints), or None.
        retries: how often a seat may try again after a reply that is no legal action.
        illegal: what happens after the last try. `forfeit`: the seat loses at least its worst legal loss.
            `skip`: the seat's turn is passed over. `random_legal`: a legal reply is drawn for it. `penalty`: the
            seat is paid `penalty`, nobody else anything (the game is then not zero-sum).
        penalty: reward of the `penalty` rule, 0 or less; where the rule ends the game at most what a forfeit pays, so
            that it is no way out of a loss. None: what a forfeit costs.
        max_turns: how many turns before the env truncates the episode, not counting retries; None: the game's own.
        turn_seconds: the seat's clock for one turn, in seconds; None: no clock.
        overflow: what a context overflow of a seat's agent does: `no_loss` (nobody is paid) or `forfeit`.
        budget: how large a seat's view may grow before the seat is asked for a summary that replaces it (see
            llm_arena.compaction); None: the game's own, which is mostly no limit.
        budget_unit: what `budget` counts, `characters` or `tokens`; None: the game's own.

    Raises:
        UsageError: an option has a value out of its range.
    """

    id: ClassVar[str]
    roles: ClassVar[Mapping[str, int | tuple[int, int]]]
    summary: ClassVar[str] = ""
    "One line for lists; by default the first line of the game's docstring."
    max_turns: int = 100
    zero_sum: bool = False
    "Whether returns always sum to zero. With the `penalty` rule an instance says False."
    simultaneous: ClassVar[bool] = False
    "Whether each phase asks every seat at once; such games convert to PettingZoo's parallel API."
    slow: bool = False
    "Whether a step may take over 50 ms; then others play on meanwhile. With a slow setting an instance says True."
    officials: ClassVar[tuple[str, ...]] = ()
    "Roles that take no part in the contest: they are not ranked, and no entrant is rotated into them."
    peers: ClassVar[tuple[str, ...]] = ()
    "Roles whose seats compare within one episode and not across a group, because no two episodes set them one task."
    cooperative: ClassVar[bool] = False
    "Whether all seats win or lose together: then nobody is ranked, and on a board each entrant holds all seats."
    hidden: tuple[str, ...] = ()
    "Names of the attributes that hold what some seat may not know; an instance says what its settings hide."
    insiders: ClassVar[tuple[str, ...]] = ()
    "Roles that know all that is hidden, or can work it out from what they are told; the others are checked for leaks."
    system: ClassVar[str] = ""
    "System text that every seat's view begins with."
    forfeit_cost: ClassVar[float] = 1.0
    "What a forfeit costs: at least the worst legal loss."
    illegal: IllegalRule = "forfeit"
    retries: int = 0
    budget: int | None = None
    budget_unit: Unit = "characters"
    baselines: ClassVar[Mapping[str, Baseline]] = {}
    "Scripted players of this game, by name."
    baseline_roles: ClassVar[Mapping[str, Sequence[str]]] = {}
    "The roles that a scripted player plays, for those that don't play all."
    input_arg: ClassVar[str | None] = None
    "Keyword argument that the input field of a start fills, e.g. `topic`."
    label_arg: ClassVar[str | None] = None
    group_reward: ClassVar[staticmethod[[list[Trace]], list[tuple[float, dict[str, float]]]] | None] = None
    "Pays separate episodes of one group by comparing them, after all of them have ended."
    token_rewards: ClassVar[staticmethod[[Trace], Mapping[int, Any]] | None] = None
    "Pays and masks single tokens of a trace that has ended; llm_arena.training.token_rewards has the form."

    _defaults: ClassVar[dict[str, Json]]
    _given: dict[str, Json]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        taken = [name for name in cls.__dict__ if re.match(r"_[a-z]", name) and hasattr(ArenaEnv, name)]
        if taken:
            raise EnvContractError(
                f"{cls.__name__} defines {taken[0]}, which is the base class's own; choose another name"
            )
        cls._defaults = _defaults(cls)
        inherited = getattr(cls, "metadata", {})
        cls.metadata = {**inherited, "render_modes": ["ansi", "human"], "is_parallelizable": cls.simultaneous}
        if "id" not in cls.__dict__:
            return
        if not _ID.fullmatch(cls.id):
            raise EnvContractError(
                f'{cls.__name__}.id is "{cls.id}"; expected lower-case words and a version: my-game-v0'
            )
        bad = [role for role in cls.roles if not _ROLE.fullmatch(role)]
        if bad or not cls.roles:
            raise EnvContractError(f"{cls.id}: roles are lower-case letters, at least one; got {list(cls.roles)}")
        cls.metadata["name"] = cls.id.replace("-", "_")
        if "summary" not in cls.__dict__:
            cls.summary = next(iter((cls.__doc__ or "").strip().splitlines()), "").rstrip(".")

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Keeps the arguments, so that the env can be made again."""
        env = super().__new__(cls)
        env._given = kwargs
        return env

    def __init__(
        self,
        *,
        counts: Mapping[str, int] | None = None,
        render_mode: Literal["ansi", "human"] | None = None,
        retries: int | None = None,
        illegal: IllegalRule | None = None,
        penalty: float | None = None,
        max_turns: int | None = None,
        turn_seconds: float | None = None,
        overflow: Literal["no_loss", "forfeit"] = "no_loss",
        budget: int | None = None,
        budget_unit: Unit | None = None,
    ) -> None:
        self.render_mode = render_mode
        self.retries = type(self).retries if retries is None else retries
        self.illegal = type(self).illegal if illegal is None else illegal
        self.penalty = -self.forfeit_cost if penalty is None else penalty
        self.max_turns = type(self).max_turns if max_turns is None else max_turns
        self.turn_seconds = turn_seconds
        self.overflow = overflow
        self.budget = type(self).budget if budget is None else budget
        self.budget_unit = type(self).budget_unit if budget_unit is None else budget_unit
        self._check_options()
        if self.illegal == "penalty":
            self.zero_sum = False
        # a retry or a summary steps one seat twice, which PettingZoo's parallel API has no place for
        parallel = self.simultaneous and self.retries == 0 and self.budget is None
        self.metadata = {**type(self).metadata, "is_parallelizable": parallel}
        self.role_counts = self._seat_counts(counts or {})
        self._roles = {f"{role}_{k}": role for role, count in self.role_counts.items() for k in range(count)}
        self.possible_agents = list(self._roles)
        self.agents = []
        self._observation_spaces = {
            seat: gymnasium.spaces.Dict({"messages": ChatSpace()}) for seat in self.possible_agents
        }
        self._action_spaces = {seat: ReplySpace() for seat in self.possible_agents}
        self.spec = self._make_spec()
        self._stream = np.random.default_rng()
        self.episode_seed: int | None = None

    @classmethod
    def arguments(cls) -> dict[str, Json]:
        """Returns the keyword arguments that the env takes, with their defaults."""
        return {name: default for name, default in cls._defaults.items() if name != "counts"}

    @property
    def given_arguments(self) -> dict[str, Json]:
        """The keyword arguments that this env was made with."""
        return dict(self._given)

    # ---- what an author writes -------------------------------------------------------------------------------

    def begin(self, rng: np.random.Generator) -> str | Iterable[str]:
        """Deals, tells the opening views, and returns who acts first (several seats: a simultaneous phase)."""
        raise NotImplementedError(f"{type(self).__name__} needs begin(rng)")  # an author's duty, not a stub

    def deal(self, rng: np.random.Generator) -> None:
        """Draws what some seat may not know, and sets the attributes named in `hidden`.

        `begin` makes its other draws first, then calls this, then tells the views. The leak check deals anew.
        """

    def knows(self, seat: str) -> Json:
        """Returns what the rules let `seat` know now of the attributes named in `hidden`.

        By default its own entries of those that are dicts by seat, and nothing of the others.
        """
        held = {name: getattr(self, name) for name in self.hidden}
        return {name: value.get(seat) for name, value in held.items() if isinstance(value, Mapping)}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes one reply. Raise `IllegalReply` before anything is changed if it is no legal action."""
        raise NotImplementedError(f"{type(self).__name__} needs resolve(seat, reply)")  # an author's duty, not a stub

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the replies that are legal for `seat` now, or None where they can't be listed."""
        return None

    def grammar(self, seat: str) -> Json:
        """Returns a regular expression (str) or JSON schema (dict) of the replies that are legal now, or None."""
        legal = self.legal_actions(seat)
        return "|".join(map(re.escape, legal)) if legal else None

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws some legal reply. A game that can't list its actions writes its own."""
        legal = self.legal_actions(seat)
        if not legal:
            raise EnvContractError(f"{self.id} lists no legal actions; it needs its own sample_reply(seat, rng)")
        return legal[int(rng.integers(len(legal)))]

    def tools(self, seat: str) -> list[Json]:
        """Returns the tools that `seat` may call now: `name`, `description`, `parameters` (a JSON schema).

        Read calls with `llm_arena.tool_calls.read_tool_call`, and tell results with `role="tool"`.
        """
        return []

    def resolved(self) -> dict[str, Json]:
        """Returns arguments whose value was settled while the env was made, e.g. the digest of a file; for the spec."""
        return {}

    def facts(self, seat: str) -> Json:
        """Returns what scripted players of `seat` may know, as JSON; never shown to language models."""
        return None

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The rule `forfeit`: by default the game ends and the seat pays `forfeit_cost`, to the others if zero-sum."""
        others = [other for other in self.agents if other != seat and self._alive(other)]
        rewards = {seat: -self.forfeit_cost}
        if type(self).zero_sum:
            rewards |= {other: self.forfeit_cost / len(others) for other in others}
        ranks = {seat: 2 if others else 1} | dict.fromkeys(others, 1)
        return Move(
            rewards=rewards, outcome=Outcome(winners=others, ranks=ranks, reason=f"forfeit: {seat} gave {cause} reply")
        )

    def skip(self, seat: str) -> Move | None:
        """The rule `skip`: what passing the seat's turn means; None where the game has no such thing."""
        return None

    def describe(self) -> str:
        """Returns the position in words for spectators; the transcript alone by default."""
        return ""

    def view(self, seat: str, seed: int = 0) -> View:
        """Returns all that an agent in `seat` may know, for a call with sampling seed `seed`."""
        compacting = seat in self.compacting
        return View(
            seat=seat,
            role=self._roles[seat],
            messages=self.observe(seat)["messages"],
            legal_actions=None if compacting else self.legal_actions(seat),
            grammar=None if compacting else self.grammar(seat),
            facts=self.facts(seat),
            attempt=self._attempts[seat],
            seed=seed,
            sample_reply=lambda rng: SAMPLE if compacting else self.sample_reply(seat, rng),
            view_epoch=self.view_epoch(seat),
            tools=self.tools(seat),
            compacting=compacting,
        )

    def render(self) -> str | None:
        """Returns (`ansi`) or prints (`human`) the spectator's transcript."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() was called without a render_mode; make the env with render_mode='ansi'")
            return None
        text = self.transcript()
        if self.render_mode == "ansi":
            return text
        print(text)
        return None

    def transcript(self, seat: str | None = None) -> str:
        """Returns the episode so far as text: for spectators, or only what `seat` has seen."""
        if seat is not None:
            return "\n".join(f"{m['role']}: {printable(_text(m))}" for m in self.observe(seat)["messages"])
        lines = [f"{self.id}, seed {self.episode_seed}"]
        lines += [f"{speaker}: {printable(text)}" for speaker, text in self._spoken]
        lines += [line for line in (self.describe(),) if line]
        if self.outcome is not None:
            lines.append(f"{self.outcome.reason}: {', '.join(f'{s} {r:+g}' for s, r in self.returns.items())}")
        elif self.ending is not None:
            lines.append(f"ended: {self.ending}")
        return "\n".join(lines)

    def close(self) -> None:
        """Releases nothing: games hold no resources. Closing twice is fine."""

    # ---- options ------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        one_of(self.id, "illegal", self.illegal, _RULES)
        if self.illegal == "skip" and type(self).skip is ArenaEnv.skip:
            raise UsageError(
                f"{self.id}: a turn can't be skipped in this game; use illegal='forfeit' or 'random_legal'"
            )
        if not isinstance(self.retries, int) or isinstance(self.retries, bool) or self.retries < 0:
            raise UsageError(f"{self.id}: retries={self.retries!r}; expected 0 or more")
        if not isinstance(self.max_turns, int) or self.max_turns < 1:
            raise UsageError(f"{self.id}: max_turns={self.max_turns!r}; expected 1 or more")
        if not isinstance(self.penalty, int | float) or not -1e9 < self.penalty <= 0:
            raise UsageError(f"{self.id}: penalty={self.penalty!r}; expected a number from -1e9 to 0")
        if self.illegal == "penalty" and type(self).skip is ArenaEnv.skip and self.penalty > -self.forfeit_cost:
            raise UsageError(
                f"{self.id}: penalty={self.penalty!r}; it ends this game, so expected at most {-self.forfeit_cost:g}, "
                f"what a forfeit pays: else breaking the rules is a way out of a loss"
            )
        clock = self.turn_seconds
        if clock is not None and (not isinstance(clock, int | float) or not 0 < clock < math.inf):
            raise UsageError(f"{self.id}: turn_seconds={clock!r}; expected seconds above 0, or None")
        one_of(self.id, "overflow", self.overflow, ("no_loss", "forfeit"))
        budget = self.budget
        if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 1):
            raise UsageError(f"{self.id}: budget={self.budget!r}; expected 1 or more, or None")
        one_of(self.id, "budget_unit", self.budget_unit, ("characters", "tokens"))
        if self.render_mode is not None:
            one_of(self.id, "render_mode", self.render_mode, ("ansi", "human"))

    def _seat_counts(self, counts: Mapping[str, int]) -> dict[str, int]:
        unknown = [role for role in counts if role not in self.roles]
        if unknown:
            raise UnknownName(f"{self.id} has no role {unknown[0]!r}.{did_you_mean(unknown[0], self.roles)}")
        seats: dict[str, int] = {}
        for role, allowed in self.roles.items():
            low, high = (allowed, allowed) if isinstance(allowed, int) else allowed
            count = counts.get(role, low)
            if not isinstance(count, int) or isinstance(count, bool) or not low <= count <= high:
                raise UsageError(f"{self.id}: {count!r} seats for {role}; expected {low} to {high}")
            if count:
                seats[role] = count
        return seats

    def _make_spec(self) -> EnvSpec:
        kwargs = {**self._defaults, **self._given, **self.resolved()}
        # the game's own defaults are resolved, so that a trace replays after they have changed
        for name in ("retries", "illegal", "penalty", "max_turns", "budget", "budget_unit"):
            kwargs[name] = getattr(self, name)
        kwargs = {name: value for name, value in kwargs.items() if name not in ("render_mode", "counts")}
        try:
            as_json = msgspec.json.decode(msgspec.json.encode(kwargs))
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self.id}: arguments must be JSON so that episodes can be replayed: {error}") from error
        return EnvSpec(id=self.id, kwargs=as_json)


def _defaults(cls: type[ArenaEnv]) -> dict[str, Json]:
    """Returns the keyword defaults of a game's constructor and of the base class."""
    defaults: dict[str, Json] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, ArenaEnv) and "__init__" in base.__dict__:
            parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
            named = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
            defaults |= {p.name: None if p.default is inspect.Parameter.empty else p.default for p in named}
    return defaults


ArenaEnv._defaults = _defaults(ArenaEnv)


def _text(message: Message) -> str:
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] if part["type"] == "text" else "[image]" for part in content)


__all__ = ["ArenaEnv", "Baseline", "GroupReward", "IllegalReply", "IllegalRule", "StepRecord"]
