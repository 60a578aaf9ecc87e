"""Samples on servers that run elsewhere: token ids to vLLM or SGLang over HTTP, ids and log-probabilities back.

What a server reports as log-probability is up to the server. They have to be those of the distribution that was sampled
from: vLLM needs `--logprobs-mode processed_logprobs`, which `llm-arena serve` sets and tells. Other servers do not tell
how they were started, so that is in the hands of whoever started them; a trainer's parity check finds it out. SGLang's
are right by default. All that shapes the distribution is sent, so a server's own defaults play no part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_arena.engines.base import Sampling
from llm_arena.engines.http_dialects import LARGEST_ID, Models, read_completion, read_models, request
from llm_arena.engines.http_pool import LOOK_SECONDS, MODELS, HttpPool, Patience
from llm_arena.engines.http_replies import Fault, too_long
from llm_arena.errors import ContextOverflow, EngineError, ServerRefusal, UnknownName, UsageError, did_you_mean
from llm_arena.types import Completion

if TYPE_CHECKING:
    from llm_arena.engines.remote_weights import RemoteWeights

API_KEY_ENV = "OPENAI_API_KEY"
COLDEST = 0.01
"""Lowest temperature above 0 that vLLM samples at."""
FIRST_TRIES = 3
"""So often a server is asked what it serves, the first time; one that is not there should be told soon."""
_log = logging.getLogger(__name__)


class OpenAIEngine:
    """Serves policies from one or several equal servers, each request from the one with the least to do.

    A policy is one that was published here, or a model that the servers were started with and that `serves` names.

    Args:
        urls: addresses, or one string of them with commas between.
        api_key_env: environment variable with the key, sent if it is set.
        patience: how long servers are waited for.

    Raises:
        MissingExtra: aiohttp is not installed.
        UsageError: an address is wrong.
    """

    name = "openai"

    def __init__(
        self, urls: str | Sequence[str], *, api_key_env: str | None = API_KEY_ENV, patience: Patience | None = None
    ) -> None:
        self.pool = HttpPool(urls, api_key_env=api_key_env, patience=patience)
        self.max_context_tokens: int | None = None
        """Longest prompt and completion together, known once a server was asked."""
        self.takes_grammar = True
        """Whether requests may have a grammar: on vLLM, and as long as no server was asked what it is."""
        self._models: dict[str, Models] = {}
        self._frozen: dict[str, str] = {}
        self._vocabularies: dict[str, int] = {}
        self._weights: RemoteWeights | None = None
        self._doubted: set[str] = set()
        self._asking: dict[str, asyncio.Task[Models]] = {}
        self._verifying: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def serves(self, policy: str, model: str | None = None, *, vocabulary: int | None = None) -> None:
        """Has requests for `policy` answered by a model that the servers have, as it is.

        Args:
            policy: id of the policy.
            model: the servers' name for it; None: the same.
            vocabulary: how many ids it has, if that is known.
        """
        self._frozen[policy] = policy if model is None else model
        if vocabulary is not None:
            self._vocabularies[policy] = vocabulary

    async def prepare(self) -> None:
        """Asks each server what it serves.

        Raises:
            UnknownName: a model that `serves` was told of is not there.
            ServerRefusal: a server refuses to tell, or its log-probabilities can't be used.
            EngineError: no server answers.
        """
        urls = self.pool.urls
        found = await asyncio.gather(*(self._models_of(url, FIRST_TRIES) for url in urls), return_exceptions=True)
        silent: list[EngineError] = []
        for url, models in zip(urls, found, strict=True):
            if isinstance(models, EngineError) and not isinstance(models, ServerRefusal):
                silent.append(models)
                continue
            if isinstance(models, BaseException):
                raise models
            for model in self._frozen.values():
                if model not in models.names:
                    names = [self.pool.shown(name) for name in models.names[:20]]
                    raise UnknownName(
                        f"{url} serves no model {model!r}.{did_you_mean(model, names)} It serves: {', '.join(names)}."
                    )
        if len(silent) == len(urls):
            raise silent[0]
        for error in silent:
            _log.warning("a server is left out until it answers: %s", error)

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        """Samples one completion; see `Engine.generate`.

        Raises:
            ServerRefusal: the server would refuse this again.
            ContextOverflow: the server says that prompt and completion are too long for it.
        """
        self._refuse_if_unknown(policy)
        if not self._models:
            await self.pool.call(self._models_of)
        self._check(prompt_ids, sampling)
        vocabulary = self._vocabularies.get(policy)

        async def ask(url: str) -> Completion:
            kind = (await self._models_of(url)).kind
            async with self._using(policy, url) as (name, version):
                path, body = request(kind, name, prompt_ids, sampling)

                def read(raw: bytes) -> Completion:
                    return read_completion(kind, raw, prompt_ids, sampling, version=version, vocabulary=vocabulary)

                return await self._send(url, path, body, read, policy, sampling)

        return await self.pool.call(ask)

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Gives all servers a model folder, or the folder of an adapter (PEFT); see `Engine.publish`.

        Raises:
            UsageError: a server can't be given weights.
            EngineError: a server does not answer, or does not take them.
        """
        await self.prepare()
        if self._weights is None:
            from llm_arena.engines.remote_weights import RemoteWeights

            self._weights = RemoteWeights(self.pool)
        await self._weights.publish(policy, Path(directory), version)
        size = vocabulary_of(Path(directory))
        if size is not None:
            self._vocabularies[policy] = size

    async def forget(self, policy: str) -> None:
        """Drops a policy; see `Engine.forget`. A server's own model goes on being served to others."""
        self._refuse_if_unknown(policy)
        if self._frozen.pop(policy, None) is None and self._weights is not None:
            await self._weights.forget(policy)
        self._vocabularies.pop(policy, None)

    async def close(self) -> None:
        """Aborts what runs and closes all connections; the servers run on. Closing twice is fine."""
        weights, self._weights = self._weights, None
        if weights is not None:
            await weights.close()
        await self.pool.close()

    def describe(self) -> dict[str, Any]:
        """Returns which servers serve what, as JSON, for manifests."""
        versions = {f"{models.kind} {self.pool.shown(models.version)}".strip() for models in self._models.values()}
        dtypes = {models.dtype for models in self._models.values()}
        told = {"dtype": self.pool.shown(", ".join(sorted(dtypes)))} if dtypes and "" not in dtypes else {}
        return {
            "engine": self.name,
            "version": ", ".join(sorted(versions)),
            "urls": list(self.pool.urls),
            "policies": sorted({*self._frozen, *(self._weights.policies() if self._weights is not None else [])}),
            **told,
        }

    # ---- one request ----------------------------------------------------------------------------------------------

    def _refuse_if_unknown(self, policy: str) -> None:
        if policy in self._frozen:
            return
        if self._weights is None:
            raise UnknownName(
                f"no policy {policy!r} was published to the openai engine, and none of its servers' models was named "
                f"so.{did_you_mean(policy, self._frozen)}"
            )
        self._weights.model_name(policy)

    @contextlib.asynccontextmanager
    async def _using(self, policy: str, url: str) -> AsyncIterator[tuple[str, int]]:
        """Yields what a server calls a policy, and its version, which both stay as they are meanwhile."""
        if policy in self._frozen:
            yield self._frozen[policy], 0
            return
        if self._weights is None:
            raise EngineError(f"the connection to {self.pool} was closed")
        async with self._weights.using(policy) as found:
            async with self._verifying[url]:
                if url in self._doubted or self.pool.fresh(url):
                    self._doubted.add(url)  # until all of it is there, whatever the server answers meanwhile
                    await self._weights.verify(url)
                    self._doubted.discard(url)
            yield found

    async def _models_of(self, url: str, tries: int = 1) -> Models:
        if url in self._models:
            return self._models[url]
        asking = self._asking.get(url)
        if asking is None:
            # One question for all who want to know; whoever is cancelled takes the answer from nobody.
            asking = self._asking[url] = asyncio.get_running_loop().create_task(self._learn(url, tries))
            asking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(asking)

    async def _learn(self, url: str, tries: int) -> Models:
        try:
            self._models[url] = models = await self._ask_models(url, tries)
        finally:
            del self._asking[url]
        self.takes_grammar &= models.kind == "vllm"
        longest = [self.max_context_tokens, models.max_context_tokens]
        self.max_context_tokens = min((length for length in longest if length is not None), default=None)
        return models

    async def _ask_models(self, url: str, tries: int) -> Models:
        async def ask(at: str) -> Models:
            return await self.pool.fetch("GET", at + MODELS, None, read_models)

        models = await self.pool.call(ask, url=url, tries=tries, seconds=LOOK_SECONDS)
        if models.kind != "vllm":
            return models
        from llm_arena.engines.remote_servers import info_of

        info = await info_of(self.pool, url, tries=tries)
        told: Any = None
        with contextlib.suppress(EngineError):  # behind a proxy there may be no such page
            told = await self.pool.get("/version", url=url, tries=1)
        version = told.get("version") if isinstance(told, dict) else None
        return replace(models, version=str(version or ""), dtype=str((info or {}).get("dtype") or ""))

    async def _send(
        self, url: str, path: str, body: bytes, read: Callable[[bytes], Completion], policy: str, sampling: Sampling
    ) -> Completion:
        try:
            return await self.pool.fetch("POST", url + path, body, read)
        except ServerRefusal as error:
            if error.status == 404 and policy not in self._frozen:
                self._doubted.add(url)
                raise Fault(f"{url} has lost the policy {policy!r}: {error}") from error
            if too_long(error):
                raise ContextOverflow(f"policy {policy!r}: {error}") from error
            if error.status == 400 and sampling.grammar is not None:
                raise UsageError(f"the server refuses the grammar {sampling.grammar!r:.200}: {error}") from error
            raise

    def _check(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        new, temperature = sampling.max_new_tokens, sampling.temperature
        if new < 1 or not (temperature == 0 or COLDEST <= temperature < float("inf")):
            raise EngineError(
                f"cannot sample {new} tokens at temperature {temperature}; give max_new_tokens >= 1 and a temperature "
                f"of 0 (greedy) or at least {COLDEST}, as vLLM would take that for anything lower"
            )
        if not prompt_ids:
            raise EngineError("the prompt is empty; send at least one id")
        if not 0 <= min(prompt_ids) <= max(prompt_ids) <= LARGEST_ID:
            raise EngineError(f"the prompt holds an id that can't be one: {min(prompt_ids)} or {max(prompt_ids)}")
        if sampling.grammar is not None and not (self.takes_grammar and isinstance(sampling.grammar, str | dict)):
            raise UsageError(
                "a grammar is a regular expression or a JSON schema, and only vLLM takes one from us; "
                f"got {sampling.grammar!r:.80}"
            )
        longest = self.max_context_tokens
        if longest is not None and len(prompt_ids) + new > longest:
            raise EngineError(
                f"{len(prompt_ids)} prompt ids and {new} new ones exceed the {longest} positions that the server has; "
                "set the agent's max_context_tokens, or the server's --max-model-len"
            )


def vocabulary_of(directory: Path) -> int | None:
    """Returns how many ids the model of a folder has; None where it does not tell."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        size = config.get("text_config", config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None
