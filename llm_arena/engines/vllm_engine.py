"""Samples with vLLM: its client lives here, its engine core is a child process.

One engine serves one base model. With `max_lora_rank` it serves adapters of that base beside it, each version under a
name, id and folder of its own: vLLM keys its prefix cache by the adapter's name and path, so versions never share
stale keys and values, need no reset, and older ones go on serving. A second full-weight model needs a second engine.

vLLM is not repeatable under batching: which requests share a batch depends on time, and with it the last digits of
logits. Recorded actions replay exactly; sampling them anew may not.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_arena.engines import vllm_grammars, vllm_start
from llm_arena.engines.base import Sampling
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_process import NAP_SECONDS, VllmProcess
from llm_arena.engines.weight_folders import (
    computation,
    refuse_foreign_adapter,
    refuse_unfit,
    tensor_shapes,
    write_null_adapter,
)
from llm_arena.errors import EngineError, UnknownName, did_you_mean
from llm_arena.threads import in_thread
from llm_arena.types import Completion

COLDEST = 0.01
"""Lowest temperature above 0 that vLLM samples at."""
KEPT_VERSIONS = 8
"""So many versions of an adapter stay loaded, the newest; the others are unloaded."""


@dataclass
class _Adapter:
    """One version of an adapter as vLLM knows it."""

    request: Any
    folder: Path
    users: int = 0
    "Requests that sample from it now."


@dataclass
class _Base:
    """The full weights that are served."""

    directory: Path
    "Where they came from at the start; it may be gone by now."
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    owner: str
    version: int
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
        self._adapters: dict[str, dict[int, _Adapter]] = {}
        self._null: _Adapter | None = None
        self._numbers = itertools.count(1)
        self._adapter_numbers = itertools.count(1)
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
        self._process.refuse_if_dead()
        await self._open.wait()  # full weights are being exchanged
        self._process.refuse_if_dead()
        version, adapter = self._resolve(policy)
        self._check(prompt_ids, sampling, policy)
        if adapter is not None:
            adapter.users += 1
        try:
            output = await self._process.call(self._sample(prompt_ids, sampling, adapter))
        except EngineError as error:
            refusal = vllm_grammars.refusal(error.__cause__, sampling.grammar)
            if refusal is None:
                raise
            raise refusal from error
        finally:
            if adapter is not None:
                adapter.users -= 1
        [choice] = output.outputs
        if choice.finish_reason not in ("stop", "length"):
            raise EngineError(f"vLLM ended a request with {choice.finish_reason!r}")
        token_ids = list(choice.token_ids)
        return Completion(
            token_ids=token_ids,
            logprobs=sampled_logprobs(token_ids, choice.logprobs),
            finish=choice.finish_reason,
            min_version=version,
            max_version=version,
            guided=sampling.grammar is not None,
        )

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Takes a model folder, or the folder of an adapter (PEFT); see `Engine.publish`.

        Full weights replace those that are served once all running requests have ended, and the prefix cache is
        emptied. An adapter is copied and loaded beside what runs.

        Raises:
            EngineError: the folder holds no model, or one that doesn't fit; or the process has died.
        """
        # A caller that gives up leaves no exchange half done: it goes on, and others wait for its end.
        task = asyncio.ensure_future(self._publish(policy, Path(directory), version))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def _publish(self, policy: str, directory: Path, version: int) -> None:
        async with self._publishing:
            self._process.refuse_if_dead()
            if (directory / "adapter_config.json").is_file():
                await self._publish_adapter(policy, directory, version)
            elif self._base is None:
                await self._start(policy, directory, version)
            elif policy == self._base.owner:
                await self._replace(directory, version)
            elif self.takes(directory):
                self._base.aliases.add(policy)
            else:
                raise EngineError(
                    f"this vLLM engine serves the full weights of {self._base.owner!r}; {policy!r} needs an engine of "
                    "its own, or publish it as an adapter of the same base"
                )

    async def sleep(self) -> None:
        """Frees the GPU for the learner: weights go to the host's memory, keys and values are dropped."""
        if self._sleeps and self._process.client is not None and not vllm_start.is_cpu():
            await self._process.call(self._process.client.sleep(level=1, mode="wait"))

    async def wake(self) -> None:
        """Takes the GPU back after `sleep`."""
        if self._sleeps and self._process.client is not None and not vllm_start.is_cpu():
            await self._process.call(self._process.client.wake_up())

    async def close(self) -> None:
        """Ends the process, and answers everybody who waits with `EngineError`."""
        if not self._process.closed:
            closing = self._process.close()
            self._open.set()
            await closing

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
            "policies": sorted({*self._adapters, *([base.owner, *base.aliases] if base else [])}),
            "arguments": self._settings.vllm_args(),
        }

    # ---- sampling -------------------------------------------------------------------------------------------------

    def _resolve(self, policy: str) -> tuple[int, _Adapter | None]:
        base = self._base
        name, at, wanted = policy.rpartition("@")
        versions = self._adapters.get(policy)
        if versions:
            newest = max(versions)
            return newest, versions[newest]
        if at and name in self._adapters and wanted.isdecimal():
            found = self._adapters[name].get(int(wanted))
            if found is None:
                kept = ", ".join(map(str, sorted(self._adapters[name])))
                raise UnknownName(f"version {wanted} of policy {name!r} is not loaded any more; there are: {kept}")
            return int(wanted), found
        if base is not None and policy in (base.owner, *base.aliases):
            return base.version, self._null
        known = [*self._adapters, *([base.owner, *base.aliases] if base else [])]
        raise UnknownName(f"no policy {policy!r} was published to the vllm engine.{did_you_mean(policy, known)}")

    def _check(self, prompt_ids: Sequence[int], sampling: Sampling, policy: str) -> None:
        if sampling.max_new_tokens < 1 or not 0 <= sampling.temperature < float("inf"):
            raise EngineError(
                f"cannot sample {sampling.max_new_tokens} tokens at temperature {sampling.temperature}; "
                "give max_new_tokens >= 1 and a finite temperature >= 0"
            )
        if 0 < sampling.temperature < COLDEST:
            raise EngineError(
                f"temperature {sampling.temperature} is below {COLDEST}, which vLLM would take; give 0 (greedy) or "
                f"at least {COLDEST}"
            )
        if not prompt_ids:
            raise EngineError("the prompt is empty; send at least one id")
        vocabulary = self._process.client.model_config.get_vocab_size()
        if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
            raise EngineError(f"the prompt holds an id outside of the vocabulary (0 to {vocabulary - 1})")
        if sampling.grammar is not None:
            vllm_grammars.check(sampling, self._end)
        longest = self.max_context_tokens
        if longest is not None and len(prompt_ids) + sampling.max_new_tokens > longest:
            raise EngineError(
                f"{len(prompt_ids)} prompt ids and {sampling.max_new_tokens} new ones exceed the {longest} positions "
                f"that the vllm engine has for policy {policy!r}; set the agent's max_context_tokens, or "
                "--engine.max-model-len"
            )

    async def _sample(self, prompt_ids: list[int], sampling: Sampling, adapter: _Adapter | None) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            seed=sampling.seed % (1 << 63),  # vLLM sends it as a signed number
            stop_token_ids=list(sampling.stop_ids),
            ignore_eos=True,  # only our stop ids end a completion
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=vllm_grammars.parameters(sampling.grammar),
        )
        last = None
        async for output in self._process.client.generate(
            {"prompt_token_ids": list(prompt_ids)},
            params,
            f"r{next(self._numbers)}",
            lora_request=None if adapter is None else adapter.request,
        ):
            last = output
        return last

    # ---- weights --------------------------------------------------------------------------------------------------

    async def _start(self, policy: str, directory: Path, version: int) -> None:
        config, shapes = computation(directory), tensor_shapes(directory)
        found = vllm_start.arguments(directory, self._settings, max_lora_rank=self._max_lora_rank, sleeps=self._sleeps)
        found |= vllm_grammars.arguments(directory, found.get("structured_outputs_config"))
        await self._process.start(found, self._settings.cuda_devices())
        self.max_context_tokens = int(self._process.client.model_config.max_model_len)
        tokenizer = self._process.client.tokenizer
        self._end = None if tokenizer is None else tokenizer.eos_token_id
        self._base = _Base(directory.resolve(), config, shapes, policy, version)
        # The first request takes up to 18 s on a CPU; nobody's clock should run then.
        for tokens in (1, 2):
            await self._process.call(self._sample([0], Sampling(max_new_tokens=tokens), None))
        await self._forget_prefixes()

    async def _replace(self, directory: Path, version: int) -> None:
        base = self._base
        assert base is not None
        if base.aliases:
            raise EngineError(
                f"the weights of {base.owner!r} serve {', '.join(sorted(base.aliases))} too, and can't be replaced"
            )
        refuse_unfit(directory, base.config, base.shapes)
        self._open.clear()
        try:
            while self._process.running:  # they are sampling from the old weights
                await asyncio.wait(self._process.running)
            client = self._process.client
            await self._process.call(client.collective_rpc("load_policy", args=(str(directory.resolve()),)))
            await self._forget_prefixes()
            base.replaced, base.version = True, version
        finally:
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
        if version in self._adapters.get(policy, {}):
            raise EngineError(f"version {version} of {policy!r} was published before; each version is published once")
        if self._base.replaced:
            raise EngineError("the base's weights were replaced, so adapters no longer fit it")
        refuse_foreign_adapter(directory, self._base.shapes)
        if self._null is None and vllm_start.is_cpu():
            self._null = await self._load_adapter(directory, "null", write_null_adapter)
            await self._process.call(self._process.client.pin_lora(self._null.request.lora_int_id))
        adapter = await self._load_adapter(directory, f"{policy}@{version}", shutil.copytree)
        versions = self._adapters.setdefault(policy, {})
        versions[version] = adapter
        for old in sorted(versions)[:-KEPT_VERSIONS]:
            gone = versions.pop(old)
            while gone.users:  # unloaded under a request, it would end the process
                await asyncio.sleep(NAP_SECONDS)
                self._process.refuse_if_dead()
            await self._process.call(self._process.client.remove_lora(gone.request.lora_int_id))
            shutil.rmtree(gone.folder, ignore_errors=True)

    async def _load_adapter(self, directory: Path, name: str, copy: Callable[[Path, Path], object]) -> _Adapter:
        from vllm.lora.request import LoRARequest

        number = next(self._adapter_numbers)
        folder = self._process.folder / "adapters" / f"{number}"
        await in_thread(copy, directory, folder)[0]
        request = LoRARequest(lora_name=f"{name}#{number}", lora_int_id=number, lora_path=str(folder))
        if not await self._process.call(self._process.client.add_lora(request)):
            raise EngineError(f"vLLM did not take the adapter {directory}")
        return _Adapter(request, folder)


def sampled_logprobs(token_ids: Sequence[int], positions: Sequence[Mapping[int, Any]] | None) -> list[float]:
    """Returns the log-probability [T] of each sampled id.

    A position may list other ids beside the sampled one, likelier ones first; the sampled id is looked up by itself.

    Args:
        token_ids: the sampled ids [T].
        positions: per position, id -> an object with `logprob` [T].

    Raises:
        EngineError: a position is missing, does not have the sampled id, or a number is not finite.
    """
    given = [] if positions is None else list(positions)
    if len(given) != len(token_ids):
        raise EngineError(f"vLLM returned {len(token_ids)} ids with {len(given)} log-probabilities")
    missing = [token for token, position in zip(token_ids, given, strict=True) if token not in position]
    if missing:
        raise EngineError(f"vLLM returned no log-probability for the sampled id {missing[0]}")
    found = [float(position[token].logprob) for token, position in zip(token_ids, given, strict=True)]
    if not all(map(math.isfinite, found)):
        raise EngineError(f"vLLM returned the log-probabilities {found!r:.100}; are the weights finite?")
    return found
