"""Samples with vLLM: its client lives here, its engine core is a child process.

One engine serves one base model. With `max_lora_rank` it serves adapters of that base beside it, each version under a
name, id and folder of its own: vLLM keys its prefix cache by the adapter's name and path, so versions never share
stale keys and values, need no reset, and older ones go on serving. A second full-weight model needs a second engine.

A process that was killed (by the kernel, when memory ran out) is started anew, a few times, by the next request or
publication, with the weights that were published last. What it was working on is lost.

vLLM is not repeatable under batching: which requests share a batch depends on time, and with it the last digits of
logits. Recorded actions replay exactly; sampling them anew may not.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_arena.engines import vllm_grammars, vllm_sampling, vllm_start
from llm_arena.engines.base import Sampling
from llm_arena.engines.kept_files import KeptFiles
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_adapters import Adapter, Adapters
from llm_arena.engines.vllm_process import VllmProcess
from llm_arena.engines.weight_folders import computation, refuse_foreign_adapter, refuse_unfit, tensor_shapes
from llm_arena.errors import EngineError, UnknownName, did_you_mean
from llm_arena.threads import in_thread
from llm_arena.types import Completion

REVIVALS = 3
"""So often the process of one engine is started anew."""

_log = logging.getLogger(__name__)


@dataclass
class _Base:
    """The full weights that are served."""

    directory: Path
    "Where they came from at the start; it may be gone by now."
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    owner: str
    version: int
    files: KeptFiles
    "With the weights that are served."
    replaced: bool = False
    "Whether other weights than those of the start are served."
    aliases: set[str] = field(default_factory=set)


class VllmEngine:
    """Serves one base model, and adapters of it, from a vLLM process. The process starts at the first `publish`.

    Args:
        settings: devices, dtype, and vLLM's own arguments.
        max_lora_rank: highest rank of the adapters to come; 0 serves none.
        sleeps: the engine shares its GPU with the learner, and frees it between `sleep` and `wake`.

    Raises:
        MissingExtra: vLLM is not installed.
        UnknownName, UsageError: the installed vLLM has no such argument, or it can't be given.
    """

    name = "vllm"
    takes_grammar = True

    def __init__(self, settings: EngineSettings | None = None, *, max_lora_rank: int = 0, sleeps: bool = False) -> None:
        vllm_start.require()
        vllm_start.check_arguments((settings or EngineSettings(kind="vllm")).vllm_args())
        self._settings = settings or EngineSettings(kind="vllm")
        self._max_lora_rank = max_lora_rank
        self._sleeps = sleeps
        self._process = VllmProcess()
        self._base: _Base | None = None
        self._adapters = Adapters(self._process)
        self._numbers = itertools.count(1)
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._end: int | None = None
        self.max_context_tokens: int | None = None
        """Longest prompt and completion together, known once the process runs."""

    @property
    def pid(self) -> int | None:
        """Process id of the engine core; None before the start."""
        return self._process.pid

    @property
    def adapters(self) -> bool:
        """Whether this engine takes adapters."""
        return self._max_lora_rank > 0

    def takes(self, directory: Path) -> bool:
        """Whether the process runs and `publish` would take this full-weight folder under a new policy id."""
        base = self._base
        return base is not None and self.adapters and not base.replaced and base.directory == directory.resolve()

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        """Samples one completion; see `Engine.generate`. `NAME@3` asks for version 3 of the adapter `NAME`."""
        await self._serving()
        version, adapter = self._resolve(policy)
        vocabulary = self._process.client.model_config.get_vocab_size()
        vllm_sampling.check(
            prompt_ids, sampling, policy=policy, vocabulary=vocabulary, longest=self.max_context_tokens, end=self._end
        )
        if adapter is not None:
            adapter.users += 1
        try:
            return await self._process.call(self._sample(prompt_ids, sampling, version, adapter))
        except EngineError as error:
            refusal = vllm_grammars.refusal(error.__cause__, sampling.grammar)
            if refusal is None:
                raise
            raise refusal from error
        finally:
            if adapter is not None:
                adapter.users -= 1

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Takes a model folder, or the folder of an adapter (PEFT); see `Engine.publish`.

        Full weights replace those that are served once all running requests have ended, and the prefix cache is
        emptied. If that fails in the middle, the process is killed, and the next request finds the weights from before.
        An adapter is copied and loaded beside what runs.

        Raises:
            EngineError: the folder holds no model, or one that doesn't fit; something that was published before would
                answer in its place; the disk refuses; or the process has died.
        """
        await _to_the_end(self._publish(policy, Path(directory), version))

    async def _publish(self, policy: str, directory: Path, version: int) -> None:
        async with self._publishing:
            while True:
                await self._revive_if_dead()
                try:
                    await self._take(policy, directory, version)
                    return
                except EngineError:
                    # one that died by itself is tried again; these weights may be why one was killed
                    if self._base is None or self._process.killed or not self._process.dead:
                        raise

    async def _take(self, policy: str, directory: Path, version: int) -> None:
        if (directory / "adapter_config.json").is_file():
            await self._publish_adapter(policy, directory, version)
        elif self._base is None:
            await self._start(policy, directory, version)
        elif policy == self._base.owner:
            await self._replace(self._base, directory, version)
        elif policy in self._adapters.names:
            raise EngineError(
                f"{policy!r} is an adapter on this vllm engine, and would go on answering in place of the full weights "
                f"in {directory}; forget it first, or publish them under another name"
            )
        elif self.takes(directory):
            self._base.aliases.add(policy)
        else:
            raise EngineError(
                f"this vLLM engine serves the full weights of {self._base.owner!r}; {policy!r} needs an engine of "
                "its own, or publish it as an adapter of the same base"
            )

    async def forget(self, policy: str) -> None:
        """Drops an adapter with all its versions, or a second name of the base; see `Engine.forget`."""
        self._process.refuse_if_closed()
        await _to_the_end(self._forget(policy))

    async def _forget(self, policy: str) -> None:
        async with self._publishing:
            base = self._base
            if policy in self._adapters.names:
                await self._adapters.forget(policy)
            elif base is not None and policy in base.aliases:
                base.aliases.remove(policy)
            elif base is not None and policy == base.owner:
                raise EngineError(f"{policy!r} is the model that this vLLM engine runs on; close the engine instead")
            else:
                raise self._unknown(policy)

    async def sleep(self) -> None:
        """Frees the GPU for the learner: weights go to the host's memory, keys and values are dropped.

        A process that dies of it frees the GPU too; the next request starts it anew.
        """
        async with self._publishing:
            if self._can_sleep():
                await self._process.call_while_alive(self._process.client.sleep(level=1, mode="wait"))

    async def wake(self) -> None:
        """Takes the GPU back after `sleep`."""
        async with self._publishing:
            if self._can_sleep():
                await self._process.call_while_alive(self._process.client.wake_up())

    def _can_sleep(self) -> bool:
        """Whether there is a process that may be asleep; one that has died is awake when it is started anew."""
        there = self._process.client is not None and not self._process.dead
        return self._sleeps and there and not vllm_start.is_cpu()

    async def close(self) -> None:
        """Ends the process, and answers everybody who waits with `EngineError`."""
        if not self._process.closed:
            closing = self._process.close()
            self._open.set()
            await closing
            if self._base is not None:
                self._base.files.close()

    def describe(self) -> dict[str, Any]:
        """Returns what serves what, as JSON, for manifests."""
        import vllm

        base = self._base
        return {
            "engine": self.name,
            "version": vllm.__version__,
            "dtype": ""
            if self._process.client is None
            else str(self._process.client.model_config.dtype).removeprefix("torch."),
            "base": None if base is None else str(base.directory),
            "policies": sorted(self._known()),
            "arguments": self._settings.vllm_args(),
        }

    # ---- sampling -------------------------------------------------------------------------------------------------

    def _resolve(self, policy: str) -> tuple[int, Adapter | None]:
        base = self._base
        if found := self._adapters.newest(policy):
            return found
        if base is not None and policy in (base.owner, *base.aliases):
            return base.version, self._adapters.null
        if found := self._adapters.version_of(policy):
            return found
        raise self._unknown(policy)

    def _known(self) -> set[str]:
        base = self._base
        return {*self._adapters.names, *([base.owner, *base.aliases] if base else [])}

    def _unknown(self, policy: str) -> UnknownName:
        return UnknownName(
            f"no policy {policy!r} was published to the vllm engine.{did_you_mean(policy, self._known())}"
        )

    def _sample(
        self, prompt_ids: list[int], sampling: Sampling, version: int, adapter: Adapter | None
    ) -> Coroutine[Any, Any, Completion]:
        request = None if adapter is None else adapter.request
        name = f"r{next(self._numbers)}"
        return vllm_sampling.sample(self._process.client, name, prompt_ids, sampling, version, request)

    # ---- weights --------------------------------------------------------------------------------------------------

    async def _start(self, policy: str, directory: Path, version: int) -> None:
        config, shapes, files = computation(directory), tensor_shapes(directory), KeptFiles(directory)
        try:
            await self._launch(directory)
        except BaseException:
            files.close()
            raise
        self._base = _Base(directory.resolve(), config, shapes, policy, version, files)
        self._process.revivals_left = REVIVALS

    async def _launch(self, directory: Path) -> None:
        """Starts the process with a model folder, and lets it answer once."""
        found = vllm_start.arguments(directory, self._settings, max_lora_rank=self._max_lora_rank, sleeps=self._sleeps)
        found |= vllm_grammars.arguments(directory, found.get("structured_outputs_config"))
        await self._process.start(found, self._settings.cuda_devices())
        self.max_context_tokens = int(self._process.client.model_config.max_model_len)
        tokenizer = self._process.client.tokenizer
        self._end = None if tokenizer is None else tokenizer.eos_token_id
        # The first request takes up to 18 s on a CPU; nobody's clock should run then.
        for tokens in (1, 2):
            await self._process.call(self._sample([0], Sampling(max_new_tokens=tokens), 0, None))
        await self._forget_prefixes()

    async def _replace(self, base: _Base, directory: Path, version: int) -> None:
        if others := sorted(base.aliases or self._adapters.names):
            raise EngineError(f"the weights of {base.owner!r} serve {', '.join(others)} too, and can't be replaced")
        refuse_unfit(directory, base.config, base.shapes)
        files = KeptFiles(directory)
        self._open.clear()
        try:
            while self._process.running:  # they are sampling from the old weights
                await asyncio.wait(self._process.running)
            try:
                client = self._process.client
                await self._process.call(client.collective_rpc("load_policy", args=(str(directory.resolve()),)))
                await self._forget_prefixes()
            except BaseException:  # a cancellation too: weights of two versions, or old keys and values, must not serve
                await self._process.kill()
                raise
            base.files.replace_weights(files)
            base.replaced, base.version = True, version
        finally:
            files.close()
            self._open.set()

    async def _forget_prefixes(self) -> None:
        """Empties the prefix cache; what is in it was computed with other weights."""
        if not await self._process.call(self._process.client.reset_prefix_cache()):
            raise EngineError("vLLM's prefix cache could not be emptied, so old keys and values would be used")

    async def _publish_adapter(self, policy: str, directory: Path, version: int) -> None:
        if not self.adapters:
            raise EngineError(
                f"{directory} is an adapter, and this vllm engine was made for none (max_lora_rank=0); merge it into "
                "its base, or make the engine with the adapter's rank"
            )
        if self._base is None:
            raise EngineError(f"{directory} is an adapter; publish the model that it belongs to first")
        if self._base.replaced:
            raise EngineError("the base's weights were replaced, so adapters no longer fit it")
        refuse_foreign_adapter(directory, self._base.shapes)
        await self._adapters.publish(policy, directory, version)

    # ---- the process started anew ---------------------------------------------------------------------------------

    async def _serving(self) -> None:
        """Waits until the process serves whole weights; has it started anew if it has died.

        Raises:
            EngineError: it was closed, or has died too often.
        """
        while True:
            self._process.refuse_if_closed()
            if not self._open.is_set():  # full weights are being exchanged, or all are being loaded anew
                await self._open.wait()  # which may be cleared again by the time that we run
            elif self._process.dead:
                await _to_the_end(self._revive())
            else:
                return

    async def _revive(self) -> None:
        async with self._publishing:  # the first of those who wait does it; the others find it done
            await self._revive_if_dead()

    async def _revive_if_dead(self) -> None:
        self._process.refuse_if_closed()
        if not self._process.dead:
            return
        base, failed = self._base, None
        self._open.clear()
        try:
            while self._process.dead:
                if base is None or not self._process.revivals_left:
                    if failed is None:
                        self._process.refuse_if_dead()
                    raise EngineError(f"the vLLM process has died and could not be started anew: {failed}") from failed
                death = self._process.death()
                self._process.revivals_left -= 1
                number = REVIVALS - self._process.revivals_left
                _log.warning("%s; starting it anew, time %s of %s", death, number, REVIVALS)
                try:
                    await self._load_again(base, self._process.folder / f"base-{number}")
                except EngineError as error:
                    self._process.refuse_if_closed()
                    await self._process.kill()  # it may live, without some of its weights
                    failed = error
        finally:
            self._open.set()

    async def _load_again(self, base: _Base, aside: Path) -> None:
        try:
            await self._launch(await in_thread(base.files.folder, aside)[0])
            await self._adapters.load_all()
        finally:
            shutil.rmtree(aside, ignore_errors=True)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Awaits work that goes on when the caller gives up, so that nothing is left half done; others wait for its end."""
    task = asyncio.ensure_future(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.shield(task)
