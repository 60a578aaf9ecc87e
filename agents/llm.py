"""A language model in a seat: `llm:MODEL`, or just a model's name or folder.

Token ids are recorded when sampled and never made again from text. The next prompt of a seat extends the ids of its
last call where the model's chat template allows it; else the chat is rendered afresh. With `history="append"` they are
extended whatever the template makes of the past, until the game replaces the view or other tools may be called.

Where a game has tools, the model is told of them and calls them in its own way (see llm_arena.tool_format); the game
gets the call in the library's form, the trace has the ids as they were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from llm_arena.engines.base import Engine, Sampling
from llm_arena.errors import ContextOverflow, EnvContractError, ModelError, UsageError
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat, History
from llm_arena.types import Action, Json, Message, PastTurn, Reply, View


@dataclass(frozen=True)
class Settings:
    """How an LLM agent plays."""

    max_new_tokens: int = 64
    "Cap on the tokens of one reply."
    max_context_tokens: int | None = None
    "Cap on the prompt and the reply together; None for the model's own."
    temperature: float = 1.0
    "Of the sampling; 0 is greedy."
    stop_ids: Sequence[int] = ()
    "More ids that end a reply, beside those of the model's chat format."
    system: str | None = None
    "System text of this agent, put before the game's own."
    history: History = "template"
    """The seat's own past in its next prompt: as the chat template prints it now (`template`; many drop old thinking,
    which begins a new sequence), or as it was sent and sampled (`append`)."""
    thinking: bool | None = None
    "Switches thinking on or off, in chat templates that can; None leaves it as the template has it."
    guided: bool = False
    """Sample only what the game's grammar allows, on the turns where it has one. Needs vLLM; such turns are never
    trained, because which ids were allowed is not recorded."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}; give at least 1")
        if self.history not in get_args(History):
            raise UsageError(f"history is {self.history!r}; give one of {', '.join(get_args(History))}")
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"temperature is {self.temperature}; give a finite number, 0 (greedy) or more")
        if self.max_context_tokens is not None and self.max_context_tokens <= self.max_new_tokens:
            raise UsageError(
                f"max_context_tokens={self.max_context_tokens} leaves no room for a prompt before "
                f"max_new_tokens={self.max_new_tokens}; raise the first or lower the second"
            )


def make(
    argument: str,
    *,
    runtime: Runtime,
    max_new_tokens: int = 64,
    max_context_tokens: int | None = None,
    temperature: float = 1.0,
    stop_ids: Sequence[int] = (),
    system: str | None = None,
    history: History = "template",
    thinking: bool | None = None,
    guided: bool = False,
) -> ServedLLMAgent:
    """Makes the agent `llm:MODEL`; `MODEL` is a known name, a folder, or a hub id. For the settings see `Settings`.

    Raises:
        UsageError: no model was named, or a setting is out of range.
    """
    if not argument:
        raise UsageError("an LLM agent needs a model: write llm:MODEL, e.g. llm:smollm2-135m")
    settings = Settings(
        max_new_tokens=max_new_tokens,
        max_context_tokens=max_context_tokens,
        temperature=temperature,
        stop_ids=stop_ids,
        system=system,
        history=history,
        thinking=thinking,
        guided=guided,
    )
    return ServedLLMAgent(argument, runtime, settings)


class LLMAgent:
    """Samples replies from one policy of an engine.

    Args:
        engine: where to sample.
        policy: id of a policy that was published to the engine.
        chat: turns messages to ids for this policy.
        settings: how to play; None for the defaults.
        name: the agent string that makes an equal agent again.

    Raises:
        UsageError: the settings ask for guided replies, and the engine can't give them.
        ModelError: the chat template can't do what `history` or `thinking` asks for.
    """

    def __init__(
        self,
        engine: Engine,
        policy: str,
        chat: ChatFormat,
        settings: Settings | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.name = f"llm:{policy}" if name is None else name
        self.policy: str | None = policy
        self.settings = settings or Settings()
        if self.settings.guided and not engine.takes_grammar:
            raise UsageError(f"guided=True needs --engine vllm; the {engine.name} engine samples freely")
        self._policy = policy
        self._engine = engine
        self._chat = chat = chat.with_thinking(self.settings.thinking) if self.settings.thinking is not None else chat
        if self.settings.history == "append" and chat.why_not_append:
            raise ModelError(chat.why_not_append)
        self._stop_ids = tuple(dict.fromkeys((*chat.stop_ids, *self.settings.stop_ids)))

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Renders the view, extending the ids of the last call where possible, and samples a reply.

        Raises:
            ContextOverflow: prompt and `max_new_tokens` do not fit into the context.
            EnvContractError: the engine refuses the game's grammar.
        """
        prompt_ids = self._prompt(view, past)
        new, limit = self.settings.max_new_tokens, self.settings.max_context_tokens
        if limit is not None and len(prompt_ids) + new > limit:
            raise ContextOverflow(
                f"seat {view.seat}: {len(prompt_ids)} prompt tokens and {new} new ones exceed "
                f"max_context_tokens={limit}; raise it, or let the game shorten the view"
            )
        sampling = Sampling(
            max_new_tokens=new,
            temperature=self.settings.temperature,
            stop_ids=self._stop_ids,
            seed=view.seed,
            grammar=view.grammar if self.settings.guided else None,
        )
        try:
            completion = await self._engine.generate(prompt_ids, sampling, self._policy)
        except UsageError as error:
            if sampling.grammar is None:
                raise
            raise EnvContractError(
                f"the grammar that the game gives {view.seat} can't guide its replies: {error}; "
                "mend grammar(seat) of the game, or play without guided"
            ) from error
        text = self._chat.read(prompt_ids, completion.token_ids, [] if view.compacting else view.tools)
        return Action(reply=Reply(text, finish=completion.finish), prompt_ids=prompt_ids, completion=completion)

    def _prompt(self, view: View, past: Sequence[PastTurn]) -> list[int]:
        """Returns all ids to send for `view`."""
        messages = self._with_system(view.messages)
        last = past[-1] if past else None
        if last is not None and last.prompt_ids is not None and last.completion is not None:
            added = len(messages) - len(view.messages)
            seen = last.num_messages + added
            # A replaced view has another past; where the next message is not the seat's own reply, the game edited it.
            own = Message(role="assistant", content=str(last.reply))
            goes_on = last.view_epoch == view.view_epoch and messages[seen : seen + 1] == [own]
            if goes_on and self._began_so(messages, added, past, view.tools):
                go_on = self._chat.append if self.settings.history == "append" else self._chat.extend
                news, stops = messages[seen + 1 :], self._stop_ids
                ids = go_on(messages[:seen], last.prompt_ids, last.completion, news, view.tools, stops)
                if ids is not None:
                    return ids
        return self._chat.render(messages, view.tools)

    def _began_so(self, messages: list[Message], added: int, past: Sequence[PastTurn], tools: list[Json]) -> bool:
        """Whether the ids of the last call began as the chat does now; the tools of then may have been others.

        They began with the oldest prompt of this view that they hold as a whole, which was rendered afresh.
        """
        sent = past[-1].prompt_ids or []
        for turn in past:
            began = turn.prompt_ids
            if turn.view_epoch == past[-1].view_epoch and began is not None and sent[: len(began)] == began:
                try:
                    return self._chat.render(messages[: turn.num_messages + added], tools) == began
                except ModelError:  # the template does not take these tools with these messages
                    return False
        return False

    def _with_system(self, messages: list[Message]) -> list[Message]:
        """Puts the agent's own system text before the game's, in one system message."""
        own = self.settings.system
        if own is None:
            return messages
        first = messages[0] if messages else None
        if first is not None and first["role"] == "system" and isinstance(first["content"], str):
            return [Message(role="system", content=f"{own}\n\n{first['content']}"), *messages[1:]]
        return [Message(role="system", content=own), *messages]


class ServedLLMAgent:
    """An LLM agent whose model is loaded by the runtime at its first turn."""

    def __init__(self, model: str, runtime: Runtime, settings: Settings) -> None:
        self.name = f"llm:{model}"
        self.policy: str | None = model
        self.settings = settings
        self._model = model
        self._runtime = runtime

    async def prepare(self) -> None:
        """Loads the model, so that the first turn does not wait for it.

        Raises:
            UsageError: the settings don't go with the engine.
            ModelError, UnknownName: the model can't be found, loaded or used for chat.
        """
        await self._agent()

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Plays as `LLMAgent` does.

        Raises:
            ContextOverflow: prompt and `max_new_tokens` do not fit into the context.
            ModelError, UnknownName: the model can't be found, loaded or used for chat.
        """
        agent = await self._agent()
        return await agent.act(view, past)

    async def _agent(self) -> LLMAgent:
        served = await self._runtime.policy(self._model)
        limit = self.settings.max_context_tokens
        settings = replace(self.settings, max_context_tokens=served.max_context_tokens if limit is None else limit)
        return LLMAgent(served.engine, served.policy_id, served.chat, settings, name=self.name)
