"""The records that everything else passes around. Standard library and msgspec only.

One word, one meaning (a seat is PettingZoo's agent):

    seat      a place in one episode, `<role>_<k>`          role      what a seat is for
    agent     the object that acts in a seat                policy    weights that an LLM agent samples from
    turn      one AEC step by one seat                      trace     the complete record of one episode
    sequence  one token stream of a trace                   group     traces that may be compared

Rewards, returns and advantages are keyed by seat; baselines, metrics and ratings by role.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np

from llm_arena.errors import TraceError

SCHEMA = 1
"""Version of the trace format written by this library."""

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict with string keys."""

FinishReason = Literal["stop", "length", "timeout", "refused"]
"""How a reply ended: the seat stopped, hit its token cap, ran out of its clock, or its server declined."""


class Part(TypedDict):
    """A piece of a message's content: text, or an image kept beside the trace under its hash."""

    # One class for both kinds, because msgspec can't decode a union of two TypedDicts.
    type: Literal["text", "image"]
    text: NotRequired[str]
    sha256: NotRequired[str]
    media_type: NotRequired[str]


class Message(TypedDict):
    """One chat message. `content` is a string or a list of typed parts."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[Part]


class Reply(str):
    """An action: the text that a seat answered, and how that text ended.

    A plain `str` given to `env.step` counts as a reply that ended by `stop`.

    >>> Reply("bet", finish="length").finish
    'length'
    """

    __slots__ = ("context_tokens", "finish")
    finish: FinishReason
    context_tokens: int | None
    "How many tokens the seat's context holds with this reply, as its agent counted them; None where nobody did."

    def __new__(cls, text: str | None = "", finish: FinishReason = "stop", context_tokens: int | None = None) -> Reply:
        """Makes a reply from text; None, which some servers answer for no text, is the empty reply."""
        reply = str.__new__(cls, "" if text is None else text)
        reply.finish = finish
        reply.context_tokens = context_tokens
        return reply

    def __reduce__(self) -> tuple[type[Reply], tuple[str, FinishReason, int | None]]:
        return Reply, (str(self), self.finish, self.context_tokens)


class Cause(StrEnum):
    """Why a reply was or was not taken. The kinds of bad reply stay apart on purpose."""

    LEGAL = "legal"
    ILLEGAL = "illegal"
    "Readable, but the rules forbid it here."
    UNPARSABLE = "unparsable"
    "Text without an answer in the agreed form."
    AMBIGUOUS = "ambiguous"
    "Two different answers."
    EMPTY = "empty"
    LENGTH = "length"
    "Cut by the token cap before an answer could be read."
    TIMEOUT = "timeout"
    "The seat's own clock ran out."
    REFUSED = "refused"
    "The model's server declined to answer."


class Ending(StrEnum):
    """How an episode ended. Only `terminated` and `truncated` are the game's own doing."""

    TERMINATED = "terminated"
    TRUNCATED = "truncated"
    "The env's turn limit."
    CONTEXT_OVERFLOW = "context_overflow"
    "A seat's conversation no longer fits its agent's context."
    VOID = "void"
    "A fault of the infrastructure: no loss, no reward, no training signal."


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a finished game. Rewards are a view of them and are kept apart."""

    winners: list[str] = []
    "Seats that won; empty for a draw or a game without winners."
    ranks: dict[str, int] = {}
    "Rank by seat, 1 is best, equal numbers are ties; empty where the game has no order."
    draw: bool = False
    reason: str = ""
    "In words, e.g. `three in a row`, `forfeit: illegal`."
    scores: dict[str, float] = {}
    "The game's own points by seat, where it has some."
    facts: dict[str, Json] | msgspec.UnsetType = msgspec.UNSET
    "What else a study needs to know of the finished game: who held which card, what the secret was. Unset: nothing."


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What `ArenaEnv.resolve` returns for one reply.

    Example: `Move(next="player_1")` passes the turn; `Move(rewards={"player_0": 1, "player_1": -1},
    outcome=Outcome(winners=["player_0"], reason="bet called"))` ends the game.
    """

    next: str | Sequence[str] = ()
    "Who acts next. Several seats open a simultaneous phase; empty goes on with a running phase."
    rewards: dict[str, float] = {}
    "Rewards that this reply caused, by seat."
    outcome: Outcome | None = None
    "Set when the game is over."
    leaves: Sequence[str] = ()
    "Seats that are out of the game from now on, while the others play on."
    action: Json = None
    "The action as the game read it, for the trace."


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A fault inside an episode, as data."""

    boundary: Literal["env", "agent", "engine", "parser", "runtime"]
    kind: str
    "Name of the exception's class."
    message: str
    seat: str | None = None


class EnvSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What `make` needs to build an env again: its id and keyword arguments, as JSON."""

    id: str
    kwargs: dict[str, Json] = {}

    def to_json(self) -> str:
        """Returns the spec as one JSON object with sorted keys."""
        return msgspec.json.encode(self, order="sorted").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> EnvSpec:
        """Reads what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)


class Completion(msgspec.Struct, kw_only=True):
    """One sampled stretch, exactly as the engine produced it; never made again from text."""

    token_ids: list[int]
    "Sampled ids [T], the sampled stop id included."
    logprobs: list[float]
    "Log-probability [T] of each sampled id, in nats, under the distribution really sampled from."
    finish: Literal["stop", "length"]
    min_version: int = 0
    max_version: int = 0
    "Oldest and newest version of the policy that sampled these tokens."
    guided: bool = False
    "Whether a grammar limited what could be sampled; then `logprobs` are not those of the policy alone."


class Action(msgspec.Struct, kw_only=True):
    """What an agent returns from `act`: a reply, and for an LLM the exact tokens behind it."""

    reply: Reply
    prompt_ids: list[int] | None = None
    "All ids sent [P], or None where no tokens are known."
    completion: Completion | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a seat may know when it acts. Nothing in it reveals another seat's secret."""

    seat: str
    role: str
    messages: list[Message]
    legal_actions: list[str] | None
    grammar: Json
    facts: Json
    attempt: int
    "0 for the first try, n for the n-th retry of the same turn."
    seed: int
    "64-bit sampling seed of this call, a hash of (run seed, episode, seat, turn, attempt)."
    sample_reply: Callable[[np.random.Generator], str]
    "Draws some legal reply for this seat."
    view_epoch: int = 0
    "How often the seat's view has been replaced."
    tools: list[Json] = []
    "Tools that the seat may call now (not in a summary): `name`, `description`, and `parameters` as a JSON schema."
    compacting: bool = False
    "Whether the seat is asked for a summary of its view, which is about to be replaced (see llm_arena.compaction)."


class PastTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One earlier turn of the same seat, as its agent may see it. Agents themselves keep no state."""

    index: int
    "Index of the turn in the trace."
    num_messages: int
    "How many messages the seat's view held when it acted (counted since the view was last replaced)."
    view_epoch: int
    "How often the seat's view had been replaced by then."
    reply: Reply
    prompt_ids: list[int] | None
    completion: Completion | None


class Turn(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One AEC step of one seat. A retry is a turn of its own.

    Ids are stored as a chain. Turn 4 with `extends=1`, `prompt_ids=[9, 9]` was sent: all ids of turn 1 (its
    prompt and its completion), then `9, 9`. With `extends=None` the ids stand alone: a new sequence.
    """

    index: int
    seat: str
    text: str
    finish: FinishReason = "stop"
    cause: Cause = Cause.LEGAL
    attempt: int = 0
    action: Json = None
    messages: list[Message] = []
    "Messages that are new in the seat's view since its last turn."
    view_epoch: int = 0
    "How often the seat's view had been replaced; a higher number than at its last turn: `messages` is the whole view."
    rewards: dict[str, float] = {}
    extends: int | None = None
    prompt_ids: list[int] | None = None
    "Prompt ids after those of the turn that this one extends; None where no tokens are known."
    completion_ids: list[int] = []
    logprobs: list[float] = []
    min_version: int = 0
    max_version: int = 0
    guided: bool = False
    "Whether a grammar limited what could be sampled; such a turn is not trained."
    seconds: float = 0.0
    "Wall time of the agent's `act`, in seconds."


class SeatInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who sat where."""

    role: str
    agent: str
    "The agent string that the seat was made from, e.g. `random-legal` or `llm:smollm2-135m`."
    policy: str | None = None
    "Id of the policy that the agent samples from; None for agents without one."


class Trace(msgspec.Struct, kw_only=True):
    """The complete record of one episode: many sequences, one outcome."""

    schema: int = SCHEMA
    id: str
    spec: EnvSpec
    seed: int
    "The episode seed, 64 bits."
    group: str = ""
    "Traces with the same group may be compared: same start, same seats, same opponents."
    seats: dict[str, SeatInfo]
    turns: list[Turn] = []
    returns: dict[str, float] = {}
    "Sum of rewards by seat; empty for a void episode."
    outcome: Outcome | None = None
    ending: Ending = Ending.TERMINATED
    failure: Failure | None = None
    overflow_seat: str | None = None
    "The seat whose context overflowed, for that ending."
    env_stats: dict[str, Json] = {}
    "Counts by role that the env keeps: turns, illegal replies by cause."
    library: str = ""
    "Version of llm_arena that wrote the trace."
    seconds: float = 0.0

    @property
    def void(self) -> bool:
        """Whether a fault of the infrastructure voided the episode."""
        return self.ending is Ending.VOID

    def full_ids(self, index: int) -> tuple[list[int], list[int]]:
        """Returns (all prompt ids sent [P], completion ids [T]) of turn `index`.

        Raises:
            ValueError: the turn has no tokens.
            TraceError: it extends what is no earlier turn of its seat with tokens.
        """
        *earlier, turn = self.stream(index)
        if turn.prompt_ids is None:
            raise ValueError(f"turn {index} of trace {self.id} was played by an agent without tokens")
        pieces = [piece for step in earlier for piece in (step.prompt_ids or [], step.completion_ids)]
        return [token for piece in [*pieces, turn.prompt_ids] for token in piece], turn.completion_ids

    def stream(self, index: int) -> list[Turn]:
        """Returns the turns from the first of a token stream to turn `index`, each extending the one before.

        Raises:
            TraceError: one of them extends what is no earlier turn of its seat with tokens.
        """
        at = range(len(self.turns))[index]
        path = [self.turns[at]]
        while (before := path[-1].extends) is not None:
            earlier = self.turns[before] if 0 <= before < at else None
            seat = path[-1].seat
            if earlier is None or earlier.seat != seat or earlier.prompt_ids is None:
                raise TraceError(
                    f"trace {self.id}: turn {at} extends {before}, which is no earlier turn of {seat} with tokens"
                )
            path.append(earlier)
            at = before
        return path[::-1]


class TokenSequence(msgspec.Struct, kw_only=True):
    """One token stream of a trace, merged from turns by exact prefix of ids.

    Worked example: turn 1 was sent `[1, 2]` and sampled `[7]`; turn 2 was sent `[1, 2, 7, 3]` and sampled `[8, 9]`.
    One sequence: `token_ids=[1, 2, 7, 3, 8, 9]`, `mask=[0, 0, 1, 0, 1, 1]`, `turns=[1, 2]`.
    """

    trace_id: str
    seat: str
    role: str
    policy: str | None
    token_ids: list[int]
    mask: list[bool]
    "1 on sampled ids [L]."
    logprobs: list[float]
    "Behaviour log-probability [L] in nats; 0.0 where mask is 0."
    turn_of: list[int]
    "Index of the turn that sampled each id [L]; -1 where mask is 0."
    turns: list[int]
    "The turns whose sampled ids it trains, oldest first."
    min_version: int = 0
    max_version: int = 0
    "Oldest and newest version of the policy that sampled the ids where mask is 1."
    finish: FinishReason = "stop"
    "How the stream's last turn ended."
    ending: Ending = Ending.TERMINATED
    "How the episode ended."
