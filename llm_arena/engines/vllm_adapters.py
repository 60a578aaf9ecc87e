"""The adapters that a vLLM process serves: each version under a name, id and folder of its own.

vLLM holds so many in memory as `max_cpu_loras` says; of more it drops the one that was used longest ago, and reads it
again from its folder when a request asks for it. So any number is served, and each folder stays until its version goes.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_arena.engines import vllm_start
from llm_arena.engines.vllm_process import NAP_SECONDS, VllmProcess
from llm_arena.engines.weight_folders import write_null_adapter
from llm_arena.errors import EngineError, UnknownName
from llm_arena.threads import in_thread

KEPT_VERSIONS = 8
"""So many versions of an adapter stay loaded, the newest; the others are unloaded."""


@dataclass
class Adapter:
    """One version of an adapter as vLLM knows it."""

    request: Any
    folder: Path
    users: int = 0
    "Requests that sample from it now."


class Adapters:
    """Loads and unloads adapters of one vLLM process. One call at a time, but for `newest` and `version_of`.

    Args:
        process: whose.
    """

    def __init__(self, process: VllmProcess) -> None:
        self.null: Adapter | None = None
        """Goes with each row of the base model where vLLM needs one; see `write_null_adapter`."""
        self._process = process
        self._policies: dict[str, dict[int, Adapter]] = {}
        self._numbers = itertools.count(1)

    @property
    def names(self) -> list[str]:
        """Ids of all policies that are adapters."""
        return list(self._policies)

    def newest(self, policy: str) -> tuple[int, Adapter] | None:
        """Returns the newest version of a policy and its number; None if there is no such policy."""
        versions = self._policies.get(policy)
        return None if versions is None else max(versions.items(), key=lambda item: item[0])

    def version_of(self, name: str) -> tuple[int, Adapter] | None:
        """Reads `NAME@3` as version 3 of `NAME`; None if there is no such policy.

        Raises:
            UnknownName: there is, but not in this version.
        """
        policy, at, wanted = name.rpartition("@")
        if not at or policy not in self._policies or not wanted.isdecimal():
            return None
        versions = self._policies[policy]
        if int(wanted) not in versions:
            kept = ", ".join(map(str, sorted(versions)))
            raise UnknownName(f"version {wanted} of policy {policy!r} is not loaded any more; there are: {kept}")
        return int(wanted), versions[int(wanted)]

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Copies an adapter and loads it beside what runs; the oldest version goes if there are too many.

        Raises:
            EngineError: vLLM does not take it, the disk refuses, or this version or a later one was there before.
        """
        there = self._policies.get(policy, {})
        if version in there:
            raise EngineError(f"version {version} of {policy!r} was published before; each version is published once")
        if there and version < max(there):
            raise EngineError(
                f"version {version} of {policy!r} is older than version {max(there)}, which would go on answering; "
                f"publish a later one, or forget {policy!r} first"
            )
        if self.null is None and vllm_start.is_cpu():
            self.null = await self._load(directory, "null", write_null_adapter)
            await self._pin_null()
        adapter = await self._load(directory, f"{policy}@{version}", shutil.copytree)
        versions = self._policies.setdefault(policy, {})
        versions[version] = adapter
        for old in sorted(versions)[:-KEPT_VERSIONS]:
            await self._unload(versions.pop(old))

    async def forget(self, policy: str) -> None:
        """Unloads all versions of a policy, each when its requests have ended; new ones find none at once."""
        for adapter in self._policies.pop(policy).values():
            await self._unload(adapter)

    async def load_all(self) -> None:
        """Loads all adapters into a process that was started anew, under their ids and from their folders.

        Raises:
            EngineError: vLLM does not take one, or the process has died.
        """
        if self.null is not None:
            await self._add(self.null)
            await self._pin_null()
        for versions in self._policies.values():
            for adapter in versions.values():
                await self._add(adapter)

    async def _load(self, directory: Path, name: str, copy: Callable[[Path, Path], object]) -> Adapter:
        from safetensors import SafetensorError
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        folder = self._process.folder / "adapters" / f"{number}"
        request = LoRARequest(lora_name=f"{name}#{number}", lora_int_id=number, lora_path=str(folder))
        adapter = Adapter(request, folder)
        try:
            await in_thread(copy, directory, folder)[0]
            await self._add(adapter)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            reason = error.args[0][0][-1] if isinstance(error, shutil.Error) else error  # the first of its files
            raise EngineError(f"the adapter in {directory} can't be copied to {folder}: {reason}") from error
        except EngineError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return adapter

    async def _add(self, adapter: Adapter) -> None:
        self._process.refuse_if_closed()  # while it was copied
        if not await self._process.call(self._process.client.add_lora(adapter.request)):
            raise EngineError(f"vLLM did not take the adapter {adapter.request.lora_name}")

    async def _pin_null(self) -> None:
        assert self.null is not None
        await self._process.call(self._process.client.pin_lora(self.null.request.lora_int_id))

    async def _unload(self, adapter: Adapter) -> None:
        while adapter.users:  # unloaded under a request, it would end the process
            await asyncio.sleep(NAP_SECONDS)
            self._process.refuse_if_closed()
        shutil.rmtree(adapter.folder, ignore_errors=True)
        if self._process.dead:  # and with it the adapter
            return
        self._process.refuse_if_closed()
        await self._process.call_while_alive(self._process.client.remove_lora(adapter.request.lora_int_id))
