"""The vLLM engine around faults that a real vLLM has at no set moment: client and process are stand-ins here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from llm_arena.engines import vllm_adapters, vllm_start
from llm_arena.engines.base import Sampling
from llm_arena.engines.vllm_engine import REVIVALS, VllmEngine
from llm_arena.errors import EngineError

MIXED = 99
"""What the stand-in samples while its weights are in passing."""


class Process:
    """Stands for the engine's process."""

    pid, exitcode = 1, -9

    def __init__(self) -> None:
        self.alive = True

    def is_alive(self) -> bool:
        return self.alive

    def kill(self) -> None:
        self.alive = False

    def join(self, seconds: float) -> None:
        assert not self.alive


class Client:
    """Stands for vLLM's client. Each id that it samples is the number of the weights that it then serves."""

    tokenizer = None
    model_config = SimpleNamespace(max_model_len=64, get_vocab_size=lambda: 100, dtype="torch.float32")

    def __init__(self, model: str, process: Process) -> None:
        self.process = process
        self.serves = number_in(Path(model))
        self.load: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0.1)
        self.empties = True
        self.sampling = 0

    async def generate(self, prompt: Any, params: Any, name: str, lora_request: Any) -> AsyncIterator[Any]:
        self.sampling += 1
        await asyncio.sleep(0.05)
        self.sampling -= 1
        chosen = [{self.serves: SimpleNamespace(logprob=-1.0)}]
        choice = SimpleNamespace(finish_reason="length", token_ids=[self.serves], logprobs=chosen)
        yield SimpleNamespace(outputs=[choice])

    async def collective_rpc(self, method: str, args: tuple[str]) -> None:
        self.serves = MIXED
        await self.load()
        self.serves = number_in(Path(args[0]))

    async def reset_prefix_cache(self) -> bool:
        return self.empties and not self.sampling  # as vLLM does

    async def add_lora(self, request: Any) -> bool:
        return True

    async def dies(self, **_: Any) -> None:
        self.process.kill()
        await asyncio.Event().wait()

    sleep = wake_up = dies

    def shutdown(self, timeout: float) -> None:
        self.process.kill()


def weights(folder: Path, number: int) -> Path:
    """A model folder that holds a number."""
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 64}')
    save_file({"layer.weight": torch.full((2, 2), float(number))}, folder / "model.safetensors")
    return folder


def number_in(folder: Path) -> int:
    return int(load_file(folder / "model.safetensors")["layer.weight"][0, 0])


def adapter(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    sides = {f"base_model.model.layer.lora_{side}.weight": torch.ones(2, 2) for side in "AB"}
    save_file(sides, folder / "adapter_model.safetensors")
    return folder


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The client of each start, the newest last."""
    started: list[Client] = []

    def start(found: dict[str, Any], **_: Any) -> tuple[Client, Process]:
        process = Process()
        started.append(Client(found["model"], process))
        return started[-1], process

    monkeypatch.setattr(vllm_start, "start", start)
    monkeypatch.setattr(vllm_start, "arguments", lambda folder, *_, **__: {"model": str(folder)})
    monkeypatch.setattr(vllm_start, "is_cpu", lambda: False)
    return started


def run(engine: VllmEngine, work: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await asyncio.wait_for(work(), 120)  # the first of all imports vLLM
        finally:
            await engine.close()
            shutil.rmtree(engine._process.folder, ignore_errors=True)

    asyncio.run(whole())


async def asked(engine: VllmEngine, policy: str = "p") -> tuple[int, int]:
    """Returns the version that a completion names, and the weights that it is of."""
    done = await engine.generate([1], Sampling(max_new_tokens=1), policy)
    return done.min_version, done.token_ids[0]


# ---- full weights in passing -------------------------------------------------------------------------------------


def test_who_waited_for_a_revival_waits_for_the_exchange_after_it_too(clients: list[Client], tmp_path: Path) -> None:
    engine = VllmEngine()

    async def work() -> None:
        await engine.publish("p", weights(tmp_path / "1", 1), 1)
        clients[0].process.kill()
        publishing = asyncio.ensure_future(engine.publish("p", weights(tmp_path / "2", 2), 2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        found = await asyncio.gather(*(asked(engine) for _ in range(3)))
        await publishing
        assert found == [(2, 2)] * 3

    run(engine, work)
    assert len(clients) == 2


async def _raises() -> None:
    raise RuntimeError("CUDA out of memory")


@pytest.mark.parametrize("fault", ["the load", "the prefix cache", "given up"])
def test_an_exchange_that_fails_leaves_the_weights_from_before(
    fault: str, clients: list[Client], tmp_path: Path
) -> None:
    engine = VllmEngine()

    async def work() -> None:
        await engine.publish("p", weights(tmp_path / "1", 1), 1)
        clients[0].empties = fault != "the prefix cache"
        if fault == "the load":
            clients[0].load = _raises
        publishing = asyncio.ensure_future(engine._publish("p", weights(tmp_path / "2", 2), 2))
        if fault == "given up":  # as it is when Python exits
            await asyncio.sleep(0.05)
            publishing.cancel()
        asking = asyncio.ensure_future(asked(engine))
        says = {"the load": "vLLM failed: RuntimeError: CUDA out of memory", "the prefix cache": "old keys and values"}
        with pytest.raises(asyncio.CancelledError if fault == "given up" else EngineError, match=says.get(fault)):
            await publishing
        assert await asked(engine) == await asking == (1, 1)
        # weights that do not load are not tried until no revival is left
        assert (len(clients), engine._process.revivals_left) == (2, REVIVALS - 1)
        await engine.publish("p", tmp_path / "2", 2)
        assert await asked(engine) == (2, 2)

    run(engine, work)


def test_a_publication_that_meets_a_death_still_takes_place(clients: list[Client], tmp_path: Path) -> None:
    engine = VllmEngine()

    async def work() -> None:
        await engine.publish("p", weights(tmp_path / "1", 1), 1)
        clients[0].load = clients[0].dies
        await engine.publish("p", weights(tmp_path / "2", 2), 2)
        assert await asked(engine) == (2, 2)
        assert (len(clients), engine._process.revivals_left) == (2, REVIVALS - 1)

    run(engine, work)


def test_a_process_that_dies_after_each_start_is_an_error_for_all_who_wait(
    clients: list[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = VllmEngine()

    async def dies() -> None:
        await engine._process.call(clients[-1].dies())

    async def work() -> None:
        await engine.publish("p", weights(tmp_path / "1", 1), 1)
        monkeypatch.setattr(engine._adapters, "load_all", dies)
        clients[0].process.kill()
        failures = await asyncio.gather(*(asked(engine) for _ in range(5)), return_exceptions=True)
        assert len(clients) == 1 + REVIVALS
        assert {type(failure) for failure in failures} == {EngineError}
        assert all("has died" in str(failure) and "same command again" in str(failure) for failure in failures)
        with pytest.raises(EngineError, match="has died"):
            await engine.publish("p", tmp_path / "1", 2)

    run(engine, work)


def test_closing_in_an_exchange_is_told_as_that(clients: list[Client], tmp_path: Path) -> None:
    engine = VllmEngine()

    async def work() -> None:
        await engine.publish("p", weights(tmp_path / "1", 1), 1)
        publishing = asyncio.ensure_future(engine.publish("p", weights(tmp_path / "2", 2), 2))
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(EngineError, match="was closed"):
            await publishing
        assert not engine._process.killed

    run(engine, work)


# ---- asleep ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["sleep", "wake_up"])
def test_a_death_on_the_way_to_sleep_or_back_is_no_end(which: str, clients: list[Client], tmp_path: Path) -> None:
    engine = VllmEngine(sleeps=True)
    going = engine.sleep if which == "sleep" else engine.wake

    async def refuses(**_: Any) -> None:
        raise RuntimeError("no host memory")

    async def work() -> None:
        await engine.publish("p", weights(tmp_path / "1", 1), 1)
        await going()
        assert not clients[0].process.alive
        assert await asked(engine) == (1, 1)
        setattr(clients[1], which, refuses)
        with pytest.raises(EngineError, match="no host memory"):  # it lives
            await going()

    run(engine, work)
    assert len(clients) == 2


# ---- adapters ----------------------------------------------------------------------------------------------------


def test_an_adapter_that_the_disk_does_not_take_is_an_error_and_leaves_nothing(
    clients: list[Client], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = VllmEngine(max_lora_rank=1)
    good, torn = adapter(tmp_path / "good"), adapter(tmp_path / "torn")
    (torn / "z.txt").symlink_to("nowhere")  # the last of its files can't be copied
    copies = engine._process.folder / "adapters"

    def full(source: Path, target: Path) -> None:
        target.mkdir(parents=True)
        (target / "half").write_text("")
        raise SafetensorError("I/O error: No space left on device")

    async def work() -> None:
        await engine.publish("base", weights(tmp_path / "1", 1), 1)
        with pytest.raises(EngineError, match=rf"adapter in {torn} can't be copied to {copies}.*: \[Errno 2\] No such"):
            await engine.publish("a", torn, 0)
        assert list(copies.iterdir()) == []
        copies.rmdir()
        copies.write_text("in the way")
        with pytest.raises(EngineError, match=rf"adapter in {good} can't be copied to {copies}.*Errno"):
            await engine.publish("a", good, 0)
        copies.unlink()
        with monkeypatch.context() as on_a_cpu:
            on_a_cpu.setattr(vllm_start, "is_cpu", lambda: True)
            on_a_cpu.setattr(vllm_adapters, "write_null_adapter", full)
            with pytest.raises(EngineError, match="No space left on device"):
                await engine.publish("a", good, 0)
        assert list(copies.iterdir()) == []
        await engine.publish("a", good, 0)

    run(engine, work)


def test_what_an_earlier_publication_would_answer_for_is_refused(clients: list[Client], tmp_path: Path) -> None:
    engine = VllmEngine(max_lora_rank=1)
    base, good = weights(tmp_path / "1", 1), adapter(tmp_path / "good")

    async def remove_lora(number: int) -> bool:
        return True

    async def work() -> None:
        await engine.publish("base", base, 1)
        clients[0].remove_lora = remove_lora  # type: ignore[attr-defined]  # only here
        await engine.publish("a", good, 3)
        for policy, folder, version, says in (
            ("a", good, 3, "version 3 of 'a' was published before"),
            ("a", good, 2, "version 2 of 'a' is older than version 3, .* forget 'a' first"),
            ("a", base, 4, f"'a' is an adapter .* full weights in {base}; forget it first"),
            ("base", weights(tmp_path / "2", 2), 2, "the weights of 'base' serve a too, and can't be replaced"),
        ):
            with pytest.raises(EngineError, match=says):
                await engine.publish(policy, folder, version)
        assert await asked(engine, "a") == (3, 1)
        await engine.forget("a")
        await engine.publish("a", good, 2)
        assert await asked(engine, "a") == (2, 1)
        await engine.forget("a")
        await engine.publish("a", base, 1)
        assert await asked(engine, "a") == (1, 1)

    run(engine, work)
