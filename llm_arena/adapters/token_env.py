"""One seat of a game in token ids: what is sampled goes in, the next prompt comes out.

    env = llm_arena.token_env("kuhn-poker-v0", renderer="smollm2-135m", opponents="optimal")
    ids, stop_ids = env.reset(seed=0)
    result = env.step(sampled)  # reward, episode_done, next_observation, next_stop_condition, metrics

Here is how ids become a reply. What comes after the first stop id, or after `max_generation_tokens`, is cut off. Ids
that don't end with a stop id are a reply that was cut by length: the game reads it if it can, and else calls it that.
So leave the stop id in. Ids without text, or whose bytes are no text (a U+FFFD in it), are a parse error: the episode
is over with `failed_parse_reward`, and the game never sees them. Text that the game can't read is no parse error; it
goes to the game's own rule.

The next prompt begins with exactly the ids that were sent and sampled, wherever the chat template allows it (see
`ChatFormat.extend`). Where it and `max_generation_tokens` don't fit into `max_trajectory_tokens`, the episode is
truncated as by any context overflow: `overflow=` of the game says what that costs.

`EnvFromMessageEnv` is the same for coroutines.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from llm_arena.adapters.message_env import MessageGame
from llm_arena.adapters.single import DEFAULT, Opponents, SeatEnv
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.models import resolve_model
from llm_arena.registry import MessageEnvLike, make
from llm_arena.runtime import Runtime
from llm_arena.threads import in_thread
from llm_arena.tokens import ChatFormat
from llm_arena.tool_calls import ToolCall, write_tool_call
from llm_arena.tool_format import functions
from llm_arena.types import Action, Completion, EnvSpec, Json, Message, Reply, Trace


class Renderer(Protocol):
    """Turns chats to ids and ids to replies; `ChatFormat` is one."""

    stop_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> list[int]:
        """Returns the ids of the whole chat with the generation prompt [P]."""

    def extend(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
        tools: Sequence[Json] = (),
    ) -> list[int] | None:
        """Returns the next prompt as an extension of the ids so far [P'], or None where that can't be."""

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Sequence[Json] = ()) -> str:
        """Returns the reply that sampled ids [T] are."""


@dataclass
class StepResult:
    """What a step in token ids leads to."""

    reward: float
    "What the seat was paid since its last step."
    episode_done: bool
    next_observation: list[int]
    "All ids of the next prompt [P]; empty when the episode is over."
    next_stop_condition: tuple[int, ...]
    "Ids that end a reply."
    metrics: dict[str, float] = field(default_factory=dict)
    """`parse_error`, `max_tokens_reached`, `context_overflow`, a bad reply's cause (`illegal`, `unparsable`...), each
    1.0 where it applies; and those of a `MessageEnv`."""
    truncated: bool = False
    "Whether the episode was cut off, by the game's turn limit or the length of the context."


class TokenEnv:
    """See the module's docstring. Made by `token_env`.

    Args:
        seat: what is played.
        renderer: turns its chats to ids.
        failed_parse_reward: what ids that are no text are paid.
        max_trajectory_tokens: longest prompt and reply together; None: no limit.
        max_generation_tokens: longest reply; None: no limit.

    Raises:
        UsageError: a limit leaves no room.
    """

    def __init__(
        self,
        seat: SeatEnv,
        renderer: Renderer,
        *,
        failed_parse_reward: float,
        max_trajectory_tokens: int | None,
        max_generation_tokens: int | None,
    ) -> None:
        for name, limit in (("trajectory", max_trajectory_tokens), ("generation", max_generation_tokens)):
            if limit is not None and limit < 1:
                raise UsageError(f"max_{name}_tokens={limit}; expected 1 or more, or None")
        self.seat_env = seat
        self.renderer = renderer
        self.failed_parse_reward = failed_parse_reward
        self.max_trajectory_tokens = max_trajectory_tokens
        self.max_generation_tokens = max_generation_tokens
        self._ids: list[int] = []
        self._messages: list[Message] = []
        self._epoch = 0
        self._tools: list[Json] = []

    @property
    def message_env(self) -> Any:
        """The copy of a `MessageEnv` that plays the running episode; None for other games, and before `reset`."""
        return self.seat_env.game.message_env if isinstance(self.seat_env.game, MessageGame) else None

    @property
    def trace(self) -> Trace:
        """The record of the episode, if the game ended it; with tokens where `step` was given their logprobs.

        A game that counts its `budget` in tokens can't be replayed without them, so there they stand in the trace
        always; but what has no logprobs can't be trained on.

        Raises:
            UsageError: it is not over, or ended by a parse error.
        """
        return self.seat_env.trace

    def reset(self, seed: int | None = None) -> tuple[list[int], tuple[int, ...]]:
        """Starts an episode; returns the ids of the first prompt [P], and the ids that end a reply.

        Raises:
            UsageError: the prompt and a reply don't fit into `max_trajectory_tokens`, or the game was over before the
                seat had a turn.
        """
        self._ids = []
        _, info = self.seat_env.reset(seed=seed)
        if "outcome" in info:
            raise UsageError(
                f"{self.seat_env.game.id}: the game was over before {self.seat_env.seat} had a turn; reset() with "
                "another seed, or let others play who give it one"
            )
        ids = self._render(None)
        if self._is_full(ids):
            raise UsageError(
                f"{self.seat_env.game.id}: the first prompt has {len(ids)} ids, and with max_generation_tokens="
                f"{self.max_generation_tokens} that exceeds max_trajectory_tokens={self.max_trajectory_tokens}: too few"
            )
        self._ids = ids
        return list(ids), self.renderer.stop_ids

    def step(self, ids: Sequence[int], logprobs: Sequence[float] | None = None) -> StepResult:
        """Takes a sampled reply.

        Args:
            ids: what was sampled [T], the stop id included; a list, an array or a tensor.
            logprobs: its log-probabilities [T] in nats; with them the trace holds the tokens, for training.

        Raises:
            UsageError: reset() was not called, the episode is over, an id or logprob is none, or there is not one
                logprob for each id. The episode can go on then.
        """
        if not self._ids:
            raise UsageError("the episode is over, or has not begun; call reset()")
        taken, known = _ids_of(ids), None if logprobs is None else _logprobs_of(logprobs)
        if known is not None and len(known) != len(taken):
            raise UsageError(f"{len(known)} logprobs for {len(taken)} ids; expected one for each")
        sent, sampled = self._ids, self._cut(taken)
        ended = bool(sampled) and sampled[-1] in self.renderer.stop_ids
        metrics = {} if ended else {"max_tokens_reached": 1.0}
        text = self.renderer.read(sent, sampled, self._tools)
        if not ended:
            text = text.rstrip("\ufffd")  # the cut may have gone through a character
        self._ids = []
        if not text.strip() or "\ufffd" in text:
            return self._over(self.failed_parse_reward, metrics | {"parse_error": 1.0})
        completion = Completion(
            token_ids=sampled, logprobs=(known or [])[: len(sampled)], finish="stop" if ended else "length"
        )
        reply = Reply(text, completion.finish, len(sent) + len(sampled))
        game = self.seat_env.game
        counted = game.budget is not None and game.budget_unit == "tokens"
        recorded = (
            Action(reply=reply, prompt_ids=sent, completion=completion)
            if known is not None or counted
            else Action(reply=reply)
        )
        _, reward, terminated, truncated, info = self.seat_env.act(recorded)
        metrics |= _metrics(self.seat_env, info)
        if terminated or truncated:
            return self._over(reward, metrics, truncated)
        after = self._render((sent, completion, reply))
        if self._is_full(after):
            _, more, _, _, _ = self.seat_env.overflow()
            return self._over(reward + more, metrics | {"context_overflow": 1.0}, truncated=True)
        self._ids = after
        return StepResult(reward, False, list(after), self.renderer.stop_ids, metrics)

    def close(self) -> None:
        """Ends what was made for opponents. Closing twice is fine."""
        self.seat_env.close()

    def _cut(self, ids: Sequence[int]) -> list[int]:
        """Returns the ids up to the first stop id, that included, or as many as may be generated."""
        kept = list(ids[: self.max_generation_tokens])
        end = next((at for at, token in enumerate(kept, start=1) if token in self.renderer.stop_ids), len(kept))
        return kept[:end]

    def _render(self, last: tuple[list[int], Completion, Reply] | None) -> list[int]:
        """Returns the ids of the prompt for the seat's view, after the last ones if the chat goes on from there."""
        view = self.seat_env.view()
        past, messages = self._messages, view.messages
        goes_on = last is not None and self._epoch == view.view_epoch and self._tools == view.tools
        ids = None
        if last is not None and goes_on:
            sent, completion, reply = last
            own = Message(role="assistant", content=str(reply))
            if messages[: len(past) + 1] == [*past, own]:
                ids = self.renderer.extend(past, sent, completion, messages[len(past) + 1 :], view.tools)
        self._messages, self._epoch, self._tools = messages, view.view_epoch, view.tools
        return self.renderer.render(messages, view.tools) if ids is None else ids

    def _is_full(self, ids: Sequence[int]) -> bool:
        limit = self.max_trajectory_tokens
        return limit is not None and len(ids) + (self.max_generation_tokens or 0) > limit

    def _over(self, reward: float, metrics: dict[str, float], truncated: bool = False) -> StepResult:
        return StepResult(reward, True, [], self.renderer.stop_ids, metrics, truncated)


class Env(Protocol):
    """The tutorial's token-level env of one episode."""

    async def initial_observation(self) -> tuple[list[int], tuple[int, ...]]:
        """Returns the first prompt's ids [P], and the ids that end a reply."""

    async def step(self, action: Sequence[int]) -> StepResult:
        """Takes sampled ids [T]."""


class EnvFromMessageEnv(Env):
    """`TokenEnv` for coroutines: the game, its opponents and the template work in a thread, so that no loop waits.

    Args:
        renderer: see `token_env`.
        message_env: the env; see `token_env`.
        failed_parse_reward: what ids that are no text are paid.
        max_trajectory_tokens: longest prompt and reply together; None: no limit.
        max_generation_tokens: longest reply; None: no limit.
        more: `seat`, `opponents` and `runtime` of `token_env`.
    """

    def __init__(
        self,
        renderer: Any,
        message_env: Any,
        failed_parse_reward: float = -1.0,
        max_trajectory_tokens: int | None = None,
        max_generation_tokens: int | None = None,
        **more: Any,
    ) -> None:
        self.token_env = token_env(
            message_env,
            renderer=renderer,
            failed_parse_reward=failed_parse_reward,
            max_trajectory_tokens=max_trajectory_tokens,
            max_generation_tokens=max_generation_tokens,
            **more,
        )
        self.renderer = self.token_env.renderer
        self.failed_parse_reward = failed_parse_reward
        self.max_trajectory_tokens = max_trajectory_tokens
        self.max_generation_tokens = max_generation_tokens
        self._given = message_env

    @property
    def message_env(self) -> Any:
        """The env that was given; once it plays, the copy that does."""
        return self.token_env.message_env or self._given

    async def initial_observation(self, seed: int | None = None) -> tuple[list[int], tuple[int, ...]]:
        """Does what `TokenEnv.reset` does."""
        answer, _ = in_thread(self.token_env.reset, seed)
        return await answer

    async def step(self, action: Sequence[int], logprobs: Sequence[float] | None = None) -> StepResult:
        """Does what `TokenEnv.step` does."""
        answer, _ = in_thread(self.token_env.step, action, logprobs)
        return await answer


def token_env(
    env: str | EnvSpec | ArenaEnv | MessageEnvLike,
    seat: str | None = None,
    renderer: Any = None,
    failed_parse_reward: float = -1.0,
    max_trajectory_tokens: int | None = 256,
    max_generation_tokens: int | None = 64,
    *,
    opponents: Opponents = DEFAULT,
    runtime: Runtime | None = None,
) -> TokenEnv:
    """Returns one seat of a game in token ids.

    Args:
        env: an env, which is played from now on; what `make` takes; or an object in the manner of a `MessageEnv`.
        seat: a seat or role; None: the first seat.
        renderer: a `ChatFormat`; a transformers tokenizer; a model's name or folder; or a renderer of the package
            `renderers`, whose own affair it then is to keep markers in messages from working.
        failed_parse_reward: what ids that are no text are paid.
        max_trajectory_tokens: longest prompt and reply together; None: no limit.
        max_generation_tokens: longest reply; None: no limit.
        opponents: who plays the other seats; see `llm_arena.adapters.single.SeatEnv`.
        runtime: where language models among them are served.

    Raises:
        UsageError: the renderer is none, or a limit leaves no room.
        UnknownName: no such env, seat, agent or model.
        ModelError: the model has no chat template.
    """
    read = _renderer(renderer)
    game = env if isinstance(env, ArenaEnv) else make(env)
    return TokenEnv(
        SeatEnv(game, seat, opponents, runtime=runtime),
        read,
        failed_parse_reward=failed_parse_reward,
        max_trajectory_tokens=max_trajectory_tokens,
        max_generation_tokens=max_generation_tokens,
    )


class _Packaged:
    """A renderer of the package `renderers` (https://pypi.org/project/renderers), as one of ours."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self.stop_ids = tuple(renderer.get_stop_token_ids())

    def render(self, messages: Sequence[Message], tools: Sequence[Json] = ()) -> list[int]:
        return list(
            self._renderer.render_ids(list(messages), tools=functions(tools) or None, add_generation_prompt=True)
        )

    def extend(
        self,
        past_messages: Sequence[Message],
        prompt_ids: Sequence[int],
        completion: Completion,
        new_messages: Sequence[Message],
        tools: Sequence[Json] = (),
    ) -> list[int] | None:
        bridge = self._renderer.bridge_to_next_turn(
            list(prompt_ids), list(completion.token_ids), list(new_messages), tools=functions(tools) or None
        )
        return None if bridge is None else list(bridge.token_ids)

    def read(self, prompt_ids: Sequence[int], ids: Sequence[int], tools: Sequence[Json] = ()) -> str:
        parsed = self._renderer.parse_response(list(ids), tools=functions(tools) or None, prompt_ids=list(prompt_ids))
        calls = [ToolCall(call.name, call.arguments) for call in parsed.tool_calls if call.status == "ok"]
        return "\n".join([*filter(None, [parsed.content]), *map(write_tool_call, calls)])


def _renderer(given: Any) -> Renderer:
    if isinstance(given, ChatFormat | _Packaged):
        return given
    if isinstance(given, str | Path):
        return ChatFormat.load(resolve_model(given))
    if hasattr(given, "bridge_to_next_turn"):
        return _Packaged(given)
    if hasattr(given, "apply_chat_template"):
        return ChatFormat(given)
    raise UsageError(
        f"renderer={given!r:.80}; expected a ChatFormat, a tokenizer with a chat template, a model's name or folder, "
        "or a renderer of the package renderers"
    )


def _ids_of(given: Sequence[int]) -> list[int]:
    """Returns ids as plain numbers: those of arrays and tensors would go on into the next prompt and the trace."""
    try:
        ids = [operator.index(token) for token in given]
    except (TypeError, ValueError) as error:  # a tensor of several dimensions raises either
        raise UsageError(f"ids={given!r:.80}; expected whole numbers, one for each token: {error}") from error
    wrong = [token for token in ids if not 0 <= token < 2**31]
    if wrong:
        raise UsageError(f"{wrong[0]} is no id of a token; expected 0 or more, as the model samples them")
    return ids


def _logprobs_of(given: Sequence[float]) -> list[float]:
    try:
        logprobs = [float(number) for number in given]
    except (TypeError, ValueError) as error:
        raise UsageError(f"logprobs={given!r:.80}; expected numbers, one for each token: {error}") from error
    if not all(map(math.isfinite, logprobs)):
        raise UsageError(f"logprobs={logprobs!r:.80}; expected finite numbers, those of the ids that were sampled")
    return logprobs


def _metrics(seat: SeatEnv, info: dict[str, Any]) -> dict[str, float]:
    """Returns what the seat's own step is counted as."""
    metrics = {} if info["cause"] == "legal" else {str(info["cause"]): 1.0}
    action = seat.game.last_step.action if isinstance(seat.game, MessageGame) and seat.game.last_step else None
    return metrics | (action["metrics"] if isinstance(action, dict) else {})
