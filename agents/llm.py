"""A language model in a seat: `llm:MODEL`, or just a model's name or folder.

Token ids are recorded when sampled and never made again from text. The next prompt of a seat extends the ids of its
last call where the model's chat template allows it; else the chat is rendered afresh.

Where a game has tools, the model is told of them and calls them in its own way (see llm_arena.tool_format); the game
gets the call in the library's form, the trace has the ids as they were sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llm_arena.engines.base import Engine, Sampling
from llm_arena.errors import ContextOverflow, EnvContractError, UsageError
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
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
    guided: bool = False
    """Sample only what the game's grammar allows, on the turns where it has one. Needs vLLM; such turns are never
    trained, because which ids were allowed is not recorded."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}; give at least 1")
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
        self._chat = chat
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
            seen = last.num_messages + len(messages) - len(view.messages)
            # A replaced view has another past; where the next message is not the seat's own reply, the game edited it.
            own = Message(role="assistant", content=str(last.reply))
            goes_on = last.view_epoch == view.view_epoch and messages[seen : seen + 1] == [own]
            if goes_on and self._opens(messages[:seen], last.prompt_ids, view.tools):
                extended = self._chat.extend(
                    messages[:seen], last.prompt_ids, last.completion, messages[seen + 1 :], view.tools
                )
                if extended is not None:
                    return extended
        return self._chat.render(messages, view.tools)

    def _opens(self, messages: list[Message], sent: list[int], tools: list[Json]) -> bool:
        """Whether the ids that were sent open as the chat does with the tools of now; those of then may be others."""
        first = next((at for at, message in enumerate(messages) if message["role"] == "assistant"), len(messages))
        if not any(message["role"] == "user" for message in messages[:first]):
            return True  # no template has to print that alone
        opening = self._chat.render(messages[:first], tools)
        return sent[: len(opening)] == opening

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
