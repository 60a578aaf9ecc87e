"""A model on a server that speaks OpenAI's interface: `openai:MODEL@URL`, several URLs with commas between.

Works with OpenAI's own, with vLLM, SGLang, llama.cpp and most others. There are two ways to play:

As text, the default: the server gets chat messages and renders them itself. The trace then has texts only: which ids
were sampled, nobody knows, so none are recorded, and such a seat can't be trained on.

With `tokenizer`, on vLLM or SGLang: the chat is rendered here, ids go to the server and ids come back, and the trace is
token-exact, as for a model that is served here. The model is frozen either way; to train one on a server, give the
trainer an engine of the kind `openai`.

The key comes from the environment variable that `api_key_env` names, and is written nowhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from llm_arena import chat_text
from llm_arena.agent import Agent
from llm_arena.engines.http_pool import MODELS, HttpPool, Patience
from llm_arena.engines.http_replies import Fault, Unread, filtered, shown, too_long
from llm_arena.engines.openai_engine import API_KEY_ENV, FIRST_TRIES, OpenAIEngine, vocabulary_of
from llm_arena.engines.urls import refuse_odd_variable
from llm_arena.errors import ContextOverflow, EngineError, ServerRefusal, UsageError
from llm_arena.models import resolve_model
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime, ServedPolicy, context_tokens
from llm_arena.tool_format import in_text
from llm_arena.types import Action, FinishReason, Json, PastTurn, Reply, View

_NAMED = re.compile(r"(?P<model>.+?)@(?P<urls>https?://.+)")
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
    "content_filter": "refused",
}
_NO_LIST = (403, 404, 405)
"""Statuses of servers that play, but list no models, or not for every key."""
_KEEPERS: set[asyncio.Task[None]] = set()
"""Tasks that keep a connection. A loop alone would not hold them, and they would be garbage while they wait."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How a model on a server plays."""

    max_new_tokens: int = 64
    "Cap on the tokens of one reply."
    temperature: float = 1.0
    "Of the sampling; 0 is greedy."
    system: str | None = None
    "System text of this agent, put before the game's own."
    tokenizer: str | None = None
    "Whose chat format to use for token-exact play: a known model, a folder or a hub id. None plays as text."
    api_key_env: str | None = API_KEY_ENV
    "Environment variable with the key; it is sent if it is set. None sends none."

    def __post_init__(self) -> None:
        """Checks types as well, for a configuration file and Python can give anything.

        Raises:
            UsageError: a value that can't work.
        """
        new: Any = self.max_new_tokens
        if not isinstance(new, int) or isinstance(new, bool) or new < 1:
            raise UsageError(f"max_new_tokens is {new!r:.100}; give a whole number, at least 1")
        heat: Any = self.temperature
        if not isinstance(heat, int | float) or isinstance(heat, bool) or not 0 <= heat < float("inf"):
            raise UsageError(f"temperature is {heat!r:.100}; give a finite number, 0 (greedy) or more")
        texts: list[tuple[str, Any, tuple[type, ...]]] = [
            ("system", self.system, (str,)),
            ("tokenizer", self.tokenizer, (str, Path)),
        ]
        for name, given, kinds in texts:
            if given is not None and not isinstance(given, kinds):
                raise UsageError(f"{name} is {given!r:.100}; give text, or None for none")
        refuse_odd_variable(self.api_key_env)


def make(
    argument: str,
    *,
    runtime: Runtime,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    system: str | None = None,
    tokenizer: str | None = None,
    api_key_env: str | None = API_KEY_ENV,
) -> ChatAgent | TokenAgent:
    """Makes the agent `openai:MODEL@URL[,URL2]`; a URL may end with `/v1` or not. For the settings see `Settings`.

    Raises:
        UsageError: model or address are missing or wrong, or a setting is of a wrong type or out of range.
        MissingExtra: aiohttp is not installed.
    """
    found = _NAMED.fullmatch(argument)
    if found is None:
        raise UsageError(
            "an agent on a server needs a model and an address: write openai:MODEL@URL, e.g. "
            "openai:smollm2-135m@http://127.0.0.1:8000"
        )
    settings = Settings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        system=system,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
    )
    if tokenizer is None:
        return ChatAgent(found["model"], found["urls"], settings)
    return TokenAgent(found["model"], found["urls"], settings, tokenizer, runtime)


class _Part(msgspec.Struct):
    text: str
    type: Literal["text"]


class _Message(msgspec.Struct):
    content: str | list[_Part] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Chat(msgspec.Struct):
    choices: list[_Choice]
    usage: Any = None


class ChatAgent:
    """Plays by chat completions: texts there, texts back. It has no policy that could be trained.

    Args:
        model: its name on the server.
        urls: addresses, with commas between.
        settings: how to play; `tokenizer` plays no part.
        patience: how long servers are waited for.
    """

    def __init__(self, model: str, urls: str, settings: Settings, *, patience: Patience | None = None) -> None:
        self.pool = HttpPool(urls, api_key_env=settings.api_key_env, patience=patience)
        self.name = f"openai:{model}@{','.join(self.pool.urls)}"
        self.policy: str | None = None
        self.settings = settings
        self._model = model
        self._keeper: asyncio.Task[None] | None = None  # what keeps a connection is no state of a game
        # OpenAI's newer models refuse the name that all others know.
        own = any((urlsplit(url).hostname or "").endswith("openai.com") for url in self.pool.urls)
        self._cap = "max_completion_tokens" if own else "max_tokens"

    async def prepare(self) -> None:
        """Asks each server for its models, so that a wrong address or key is told before anything is played.

        Raises:
            ServerRefusal: the key is wrong.
            EngineError: no server answers.
        """
        self._keep()
        urls = self.pool.urls
        asked = (self.pool.get(MODELS, url=url, text=True, tries=FIRST_TRIES) for url in urls)
        silent: list[EngineError] = []
        for error in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(error, EngineError) and not isinstance(error, ServerRefusal):
                silent.append(error)
            elif isinstance(error, BaseException) and getattr(error, "status", None) not in _NO_LIST:
                raise error
        if len(silent) == len(urls):
            raise silent[0]
        for error in silent:
            _log.warning("a server is left out until it answers: %s", error)

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Sends the view and returns the reply.

        Raises:
            ContextOverflow: the server says that the chat is too long.
            ServerRefusal: it would refuse this again.
            EngineError: it did not answer in time.
        """
        self._keep()
        body: dict[str, Json] = {
            "model": self._model,
            "messages": self._messages(view),
            self._cap: self.settings.max_new_tokens,
            "temperature": self.settings.temperature,
            "seed": view.seed % (1 << 31),
        }
        try:
            return Action(reply=await self.pool.call(partial(self._ask, msgspec.json.encode(body))))
        except ServerRefusal as error:
            if too_long(error):
                raise ContextOverflow(f"seat {view.seat}: {error}") from error
            if filtered(error):  # some refuse a prompt in this way
                return Action(reply=Reply("", "refused"))
            raise

    def _keep(self) -> None:
        if self._keeper is None:
            self._keeper = _kept(self, self.pool)

    async def _ask(self, body: bytes, url: str) -> Reply:
        return await self.pool.fetch("POST", f"{url}/v1/chat/completions", body, read_reply)

    def _messages(self, view: View) -> list[dict[str, Any]]:
        messages = in_text(chat_text.plain(view.messages), view.tools)
        own = self.settings.system
        if own is None:
            return messages
        if messages and messages[0]["role"] == "system":
            return [{"role": "system", "content": f"{own}\n\n{messages[0]['content']}"}, *messages[1:]]
        return [{"role": "system", "content": own}, *messages]


class TokenAgent:
    """Plays one of the server's models token-exactly: ids there, ids and log-probabilities back.

    Args:
        model: its name on the server.
        urls: addresses, with commas between.
        settings: how to play.
        tokenizer: whose chat format; a known model, a folder or a hub id.
        runtime: where the agent plays.
        patience: how long servers are waited for.
    """

    def __init__(
        self,
        model: str,
        urls: str,
        settings: Settings,
        tokenizer: str,
        runtime: Runtime,
        *,
        patience: Patience | None = None,
    ) -> None:
        self._engine = OpenAIEngine(urls, api_key_env=settings.api_key_env, patience=patience)
        self.name = f"openai:{model}@{','.join(self._engine.pool.urls)}"
        self.policy: str | None = self.name
        self.settings = settings
        self._model = model
        self._engine.serves(self.name, model)
        self._tokenizer = tokenizer
        self._runtime = runtime
        self._player: asyncio.Task[Agent] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Loads the chat format, and asks the servers whether they have the model.

        Raises:
            UnknownName: a server does not have the model.
            EngineError: no server answers.
            ModelError: the tokenizer can't be found, or has no chat template.
        """
        await self._agent()

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Plays as a model that is served here does.

        Raises:
            ContextOverflow: prompt and `max_new_tokens` do not fit into the context.
            ServerRefusal: the server would refuse this again.
            EngineError: it did not answer in time.
        """
        agent = await self._agent()
        return await agent.act(view, past)

    async def _agent(self) -> Agent:
        if self._keeper is None:
            self._keeper = _kept(self, self._engine)
        if self._player is None:
            # A task of its own: it goes on for other seats when the first that waits is cancelled.
            self._player = asyncio.get_running_loop().create_task(self._make())
        try:
            return await asyncio.shield(self._player)
        except Exception:
            self._player = None  # the next call tries again
            raise

    async def _make(self) -> Agent:
        from llm_arena.tokens import ChatFormat

        await self._engine.prepare()
        folder = await self._runtime.call(resolve_model, self._tokenizer)
        chat = await self._runtime.call(ChatFormat.load, folder)
        # A model's table may be longer than its tokenizer's list, and its last rows be sampled once in a while.
        vocabulary = max(len(chat.tokenizer), vocabulary_of(folder) or 0)
        self._engine.serves(self.name, self._model, vocabulary=vocabulary)
        served = ServedPolicy(self._engine, self.name, chat, context_tokens(folder, self._engine))
        name = f"{self.name}#{id(self)}"  # another agent may play the same model with another tokenizer
        self._runtime.serve(name, served)
        weakref.finalize(self, self._runtime.unserve, name).atexit = False
        own = self.settings
        return make_agent(
            f"llm:{name}",
            runtime=self._runtime,
            max_new_tokens=own.max_new_tokens,
            temperature=own.temperature,
            system=own.system,
        )


def read_reply(raw: bytes) -> Reply:
    """Returns the reply in a chat completion. Log-probabilities without ids, and calls of tools, are left out.

    Raises:
        Fault: it is no whole chat completion.
    """
    try:
        told = msgspec.json.decode(raw, type=_Chat)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = f"the server's reply of {len(raw)} bytes is no chat completion: {shown(str(error))}"
        raise Unread(why, raw) from error
    if not told.choices:
        raise Unread("the server returned 0 choices, expected is 1", raw)
    if len(told.choices) != 1:
        raise Fault(f"the server returned {len(told.choices)} choices, expected is 1")
    [choice] = told.choices
    finish = _FINISHES.get(choice.finish_reason or "")
    if finish is None:
        raise Fault(f"the server ended a reply with {choice.finish_reason!r:.60}, expected: {', '.join(_FINISHES)}")
    content = choice.message.content
    text = "".join(part.text for part in content) if isinstance(content, list) else content
    if choice.message.refusal and not text:
        finish = "refused"
    return Reply(text, finish, _counted(told.usage))


def _counted(usage: Any) -> int | None:
    """Returns how many tokens a server counted; None where that is no such number, for which no reply is dropped."""
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and not isinstance(total, bool) and 0 < total < 1 << 31 else None


def _kept(agent: ChatAgent | TokenAgent, connection: HttpPool | OpenAIEngine) -> asyncio.Task[None]:
    """Returns a task that closes an agent's connection when it is cancelled: at the end of the agent or its runtime."""

    async def keep() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await connection.close()

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its tasks had ended before
            loop.call_soon_threadsafe(task.cancel)  # any thread may find the agent to be garbage

    loop = asyncio.get_running_loop()
    task = loop.create_task(keep())
    _KEEPERS.add(task)
    task.add_done_callback(_KEEPERS.discard)
    weakref.finalize(agent, end).atexit = False
    return task


__all__ = ["ChatAgent", "Settings", "TokenAgent", "make", "read_reply"]
