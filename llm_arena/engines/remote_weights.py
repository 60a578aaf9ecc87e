"""Weights in passing to vLLM servers that run elsewhere: published under a new name per version, and never lost unseen.

Every version is served under a name of its own, `POLICY@VERSION-NONCE`, adapters and full weights alike; the base's own
name is gone while other weights than its own are served. So a request says which weights it wants, and a server that
does not have them answers "unknown model" instead of sampling from others. A server that died and was started again
has none of the names: `verify` finds that out, and publishes to it what the others have.

Adapters go through vLLM's own route for them. Full weights need what `llm-arena serve` adds to a server (see
`vllm_routes`). The server reads the weights from a folder, so it must see the same file system under the same paths.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from llm_arena.engines.http_pool import HttpPool
from llm_arena.engines.remote_published import Copies, Published, Version
from llm_arena.engines.remote_servers import (
    Seen,
    adapter_rank,
    look,
    names,
    no_adapters,
    refuse_adapter,
    refuse_full,
    same_model,
)
from llm_arena.engines.vllm_routes import INFO, WEIGHTS
from llm_arena.engines.weight_folders import computation
from llm_arena.errors import EngineError, ServerRefusal, UnknownName, UsageError, did_you_mean
from llm_arena.threads import in_thread

LOAD_ADAPTER = "/v1/load_lora_adapter"
UNLOAD_ADAPTER = "/v1/unload_lora_adapter"
PUBLISH_TRIES = 40
"""How often a server is asked before a publication fails: five minutes, in which it may be started again."""
LOAD_TRIES = 3
"""vLLM tells a wrong adapter as an internal error (500), which the pool would try again and again."""
CLOSE_SECONDS = 3.0
"""How long a server gets to put back what it was started with."""
_log = logging.getLogger(__name__)


class RemoteWeights:
    """What was published to the servers of a pool, and under which names.

    A request that samples from published weights is made inside `using`, which says the name to send as `model`:

        async with weights.using(policy) as (name, version):
            if pool.fresh(url):
                await weights.verify(url)
            ...  # a 404 after all: `verify` again, and ask again if it returns True

    Args:
        pool: of the servers, which all get every version.
    """

    def __init__(self, pool: HttpPool) -> None:
        self._pool = pool
        self._state = Published()
        self._seen: dict[str, Seen] = {}
        self._copies = Copies()
        self._publishing = asyncio.Lock()
        self._locks = {url: asyncio.Lock() for url in pool.urls}
        self._admitting, self._settled = asyncio.Event(), asyncio.Event()
        self._admitting.set()
        self._settled.set()
        self._left = asyncio.Event()

    # ---- for requests ---------------------------------------------------------------------------------------------

    def policies(self) -> list[str]:
        """Returns the ids of all policies that were published."""
        return self._state.policies()

    def model_name(self, policy: str) -> tuple[str, int]:
        """Returns the name that the servers know a policy's newest version by, and the version.

        Args:
            policy: its id; `NAME@3` is version 3 of the adapter `NAME`.

        Raises:
            UnknownName: nothing was published under this id, or the version is not loaded any more.
        """
        found = self._state.find(policy)
        if isinstance(found, Version):
            return found.name, found.version
        return self._base_name(), found

    @contextlib.asynccontextmanager
    async def using(self, policy: str) -> AsyncIterator[tuple[str, int]]:
        """Holds a policy's weights in place while a request samples from them; yields what `model_name` returns.

        Waits while full weights are being exchanged. An exchange waits for the requests that are inside.

        Raises:
            UnknownName: see `model_name`.
        """
        await self._admitting.wait()
        found = self._state.find(policy)
        if not isinstance(found, Version):
            yield self._base_name(), found
            return
        found.users += 1
        try:
            yield found.name, found.version
        finally:
            found.users -= 1
            self._left.set()

    async def verify(self, url: str) -> bool:
        """Makes sure that a server has all that was published; returns whether anything was missing.

        Raises:
            ServerRefusal: the server has another model now, weights of somebody else, or takes none any more.
            EngineError: it can't be asked, or does not take them.
        """
        state = self._state
        if not (state.full or state.adapters or state.aliases):
            return False
        await self._settled.wait()  # with full weights in passing, nobody could say what should be there
        async with self._locks[url]:
            # a request that finds nobody there may ask another server, so it is not kept here
            return await self._restore(url, await look(self._pool, url, tries=1), tries=LOAD_TRIES)

    # ---- publishing -----------------------------------------------------------------------------------------------

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Gives all servers a model folder or an adapter's folder (PEFT); see `Engine.publish`.

        Raises:
            UsageError: a server can't be published to; the message says how to start one that can.
            EngineError: a server does not take the weights. Then no server keeps them.
        """
        # A caller that gives up leaves no exchange half done: it goes on, and others wait for its end.
        task = asyncio.ensure_future(self._publish(policy, Path(directory), version))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def forget(self, policy: str) -> None:
        """Drops a policy's versions from all servers, once their requests have ended.

        Raises:
            UnknownName: nothing was published under this id.
            EngineError: its full weights are what the servers serve.
        """
        async with self._publishing:
            state = self._state
            if policy == state.owner:
                raise EngineError(f"{policy!r} is what {self._pool} serves with full weights, and can't be forgotten")
            if policy in state.aliases:
                del state.aliases[policy]
                return
            if policy not in state.adapters:
                raise UnknownName(f"no policy {policy!r} was published.{did_you_mean(policy, self.policies())}")
            for old in state.take_all(policy):
                await self._unload(old)

    async def close(self) -> None:
        """Has the servers put back what they were started with, if they can at once, and removes our copies.

        A server that serves another run's weights by now goes on with them.
        """
        state, self._state = self._state, Published()
        loaded = [old.name for versions in state.adapters.values() for old in versions.values()]

        async def put_back(url: str) -> None:
            info = None if state.full is None else await self._pool.get(INFO, url=url, tries=1)
            if isinstance(info, dict) and self._copies.ours(info.get("weights")):
                await self._pool.post(WEIGHTS, {"name": "", "directory": ""}, url=url, tries=1)
            for name in loaded:
                await self._pool.post(UNLOAD_ADAPTER, {"lora_name": name}, url=url, text=True, tries=1)

        if state.full is not None or loaded:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.gather(*map(put_back, self._pool.urls), return_exceptions=True)
        self._copies.close()

    async def _publish(self, policy: str, directory: Path, version: int) -> None:
        async with self._publishing:
            for url in self._pool.urls:
                async with self._locks[url]:
                    seen = await look(self._pool, url, tries=PUBLISH_TRIES)
                    await self._restore(url, seen, tries=PUBLISH_TRIES)
                    self._seen[url] = seen
            if (directory / "adapter_config.json").is_file():
                await self._publish_adapter(policy, directory, version)
            else:
                await self._publish_full(policy, directory, version)

    async def _publish_full(self, policy: str, directory: Path, version: int) -> None:
        state = self._state
        computation(directory)  # raises where there is no model
        if policy != state.owner:
            if state.full is None and await self._is_base(directory):
                self._base_name()
                state.aliases[policy] = version
                return
            if others := sorted({*state.policies()} - {policy}):
                raise EngineError(
                    f"{self._pool} serves {', '.join(others)}, and one server has one set of full weights; serve "
                    f"{policy!r} from a server of its own, or publish it as an adapter of the same base"
                )
        for url, seen in self._seen.items():
            refuse_full(url, seen)
            foreign = None if seen.info is None else seen.info.get("weights")
            if foreign and not self._copies.ours(foreign):
                _log.warning(
                    "%s gives up the weights %.100r of another run for %r; two can't share it", url, foreign, policy
                )
        await self._replace(policy, await self._copies.make(policy, directory, version))

    async def _replace(self, policy: str, new: Version) -> None:
        state, old = self._state, self._state.full
        self._admitting.clear()
        try:
            await self._drained(old)
            self._settled.clear()
            try:
                await self._on_all(lambda url: self._exchange(url, new), f"version {new.version} of {policy!r}")
            except (EngineError, UsageError):
                await self._quietly(lambda url: self._exchange(url, old, LOAD_TRIES))
                self._copies.remove(new)
                raise
            state.full, state.owner = new, policy
            state.aliases.pop(policy, None)
        finally:
            self._settled.set()
            self._admitting.set()
        if old is not None:
            self._copies.remove(old)

    async def _publish_adapter(self, policy: str, directory: Path, version: int) -> None:
        state = self._state
        if state.full is not None:
            raise EngineError("the base's weights were replaced, so adapters no longer fit it")
        if version in state.adapters.get(policy, {}):
            raise EngineError(f"version {version} of {policy!r} was published before; each version is published once")
        for url, seen in self._seen.items():
            refuse_adapter(url, seen, directory)
        new = await self._copies.make(policy, directory, version)
        try:
            await self._on_all(lambda url: self._load(url, new), f"version {version} of {policy!r}")
        except (EngineError, UsageError):
            await self._quietly(lambda url: self._unload_at(url, new))
            self._copies.remove(new)
            raise
        state.adapters.setdefault(policy, {})[version] = new
        for old in state.take_old(policy):
            await self._unload(old)

    async def _drained(self, old: Version | None) -> None:
        """Waits until no request samples from a version any more."""
        while old is not None and old.users:
            self._left.clear()
            await self._left.wait()

    async def _unload(self, old: Version) -> None:
        await self._drained(old)
        await self._quietly(lambda url: self._unload_at(url, old))
        self._copies.remove(old)

    # ---- one server -----------------------------------------------------------------------------------------------

    async def _restore(self, url: str, seen: Seen, *, tries: int) -> bool:
        state, missing = self._state, False
        if state.full is not None:
            weights = None if seen.info is None else seen.info.get("weights")
            if seen.info is None or seen.info.get("takes_weights") is not True:
                raise ServerRefusal(f"{url} took full weights before, and takes none now: was another server started?")
            if weights != state.full.name:
                if weights and not self._copies.ours(weights):
                    raise ServerRefusal(
                        f"{url} serves the weights {weights!r:.100}, which somebody else published since; a server "
                        "takes full weights from one run at a time"
                    )
                await self._exchange(url, state.full, tries)
                missing = True
        elif (state.aliases or state.adapters) and seen.bases != (known := self._seen[url]).bases:
            raise ServerRefusal(f"{url} serves {names(seen.bases)} now; when it was published to, {names(known.bases)}")
        for versions in state.adapters.values():
            for version in list(versions.values()):
                if version.name not in seen.adapters:
                    try:
                        await self._load(url, version)
                    except UsageError as error:  # it took adapters before
                        raise ServerRefusal(f"a server came back that is another one: {error}") from error
                    missing = True
        return missing

    async def _exchange(self, url: str, new: Version | None, tries: int = PUBLISH_TRIES) -> None:
        """Has a server take full weights; None for those that it was started with."""
        body = {"name": "", "directory": ""} if new is None else {"name": new.name, "directory": str(new.folder)}
        await self._pool.post(WEIGHTS, body, url=url, tries=tries)

    async def _load(self, url: str, new: Version) -> None:
        body = {"lora_name": new.name, "lora_path": str(new.folder)}
        try:
            await self._pool.post(LOAD_ADAPTER, body, url=url, text=True, tries=LOAD_TRIES)
        except ServerRefusal as error:
            if error.status in (404, 405):
                raise no_adapters(url, adapter_rank(new.folder)) from error
            if (
                new.name not in (await look(self._pool, url, tries=LOAD_TRIES)).adapters
            ):  # it is there if the first reply was lost
                raise

    async def _unload_at(self, url: str, old: Version) -> None:
        await self._pool.post(UNLOAD_ADAPTER, {"lora_name": old.name}, url=url, text=True, tries=1)

    # ---- all servers ----------------------------------------------------------------------------------------------

    async def _on_all(self, act: Callable[[str], Awaitable[None]], what: str) -> None:
        """Acts on all servers at once; raises if one fails, when all have ended."""
        errors = await self._gathered(act)
        for error in errors.values():
            if not isinstance(error, EngineError):
                raise error
        if errors:
            words = "; ".join(f"{error}" for error in errors.values())
            raise EngineError(f"{what} was not published: {len(errors)} of {len(self._locks)} servers failed: {words}")

    async def _quietly(self, act: Callable[[str], Awaitable[None]]) -> None:
        """Acts on all servers; one that can't is found out by `verify` when it is asked next."""
        for error in (await self._gathered(act)).values():
            if not isinstance(error, EngineError | UsageError):
                raise error

    async def _gathered(self, act: Callable[[str], Awaitable[None]]) -> dict[str, BaseException]:
        async def locked(url: str) -> None:
            async with self._locks[url]:
                await act(url)

        results = await asyncio.gather(*map(locked, self._locks), return_exceptions=True)
        return {url: result for url, result in zip(self._locks, results, strict=True) if result is not None}

    # ---- names ----------------------------------------------------------------------------------------------------

    def _base_name(self) -> str:
        """Returns the name of the base, which all servers must know it by."""
        shared = set.intersection(*(set(seen.bases) for seen in self._seen.values()))
        if not shared:
            each = "; ".join(f"{url}: {names(seen.bases)}" for url, seen in self._seen.items())
            raise UsageError(f"these servers have no model in common ({each}); start them with the same --name")
        return min(shared)

    async def _is_base(self, directory: Path) -> bool:
        """Whether all servers serve the model of this folder, as they were started with it."""
        for seen in self._seen.values():
            if seen.info is not None and seen.info.get("weights") != "":
                return False
            roots = [Path(root) for root in seen.bases.values() if root]
            if not roots or not await in_thread(same_model, directory, roots[0])[0]:
                return False
        return True
