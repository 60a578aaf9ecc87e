"""The real vLLM, killed: it is started anew with the weights last published, and nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from llm_arena.engines.base import Sampling
from llm_arena.engines.kept_files import KeptFiles
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import REVIVALS, VllmEngine
from llm_arena.errors import EngineError
from llm_arena.training.learner import Learner
from llm_arena.training.sync import Publisher
from server_parts import alive
from vllm_parts import PROMPTS, Served, check, gap, shake
from vllm_parts import tied as tied  # a fixture: the alias says that it is meant to be here

PROGRAM = Path(__file__).parent / "programs" / "serve_on.py"


def engines_of(parent: int) -> list[int]:
    """Ids of the living engine processes of a process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, of = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            spawned = b"spawn_main" in (folder / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if int(of) == parent and state != "Z" and spawned:
            found.append(int(folder.name))
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    assert found
    return found


def kill(engine: VllmEngine) -> None:
    """Kills the engine's process and waits until the system has ended it."""
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: engine._process.dead, 5)


def close(served: Served) -> None:
    """Closes an engine, and takes away the logs of its deaths."""
    served.runtime.close()
    shutil.rmtree(served.engine._process.folder, ignore_errors=True)


# ---- full weights ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replaced(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine that serves the third version of full weights, whose folder is gone."""
    served = Served(VllmEngine(EngineSettings(kind="vllm", args='{"max_model_len": 512}')))
    learner = Learner.load(tied)
    folder = tmp_path_factory.mktemp("weights")
    publisher = Publisher(learner, served.engine, served.runtime, policy="learner", folder=folder)
    served.publish("learner", tied, 0)
    for version in (1, 2):
        shake(learner)
        publisher.publish(version)
    shutil.rmtree(folder)
    yield SimpleNamespace(served=served, engine=served.engine, learner=learner, publisher=publisher)
    close(served)


def test_the_weights_last_published_serve_on_though_their_folder_is_gone(
    replaced: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine, served = replaced.engine, replaced.served
    before, end = engine.pid, engine._end

    async def in_flight() -> list[Any]:
        calls = [engine.generate([1], Sampling(max_new_tokens=500, seed=k), "learner") for k in range(3)]
        running = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0.3)
        kill(engine)
        return await running

    failures = served.runtime.run(in_flight(), timeout=30)
    assert [type(failure) for failure in failures] == [EngineError] * 3
    assert "has died with exit code -9" in str(failures[0])
    assert "the next request starts it anew" in str(failures[0])
    with caplog.at_level(logging.WARNING, logger="llm_arena"):
        completions = served.ask(["learner"])
    assert [done.min_version for done in completions] == [2] * len(PROMPTS)
    assert gap(replaced.learner.model, completions, PROMPTS) <= 1e-4
    assert engine.pid != before
    assert engine._end == end is not None  # the tokenizer, which only the first folder had
    [line] = [record.getMessage() for record in caplog.records]  # eight waited, one start
    assert f"(pid {before}) has died with exit code -9" in line
    assert f"starting it anew, time 1 of {REVIVALS}" in line
    shake(replaced.learner)
    replaced.publisher.publish(3)
    assert check(replaced.publisher, 3) <= 1e-4


@pytest.mark.soak
def test_a_publication_that_meets_a_death_still_takes_place(replaced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, client = replaced.engine, replaced.served.client
    left = engine._process.revivals_left

    async def dies(method: str, args: tuple[Any, ...] = ()) -> None:
        kill(engine)
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "collective_rpc", dies)
    shake(replaced.learner)
    replaced.publisher.publish(4)
    assert engine._process.revivals_left == left - 1
    assert replaced.served.ask(["learner"])[0].min_version == 4
    assert check(replaced.publisher, 4) <= 1e-4


def test_closing_meanwhile_leaves_no_process_and_answers_all_who_wait(replaced: Any) -> None:
    """Last of this engine's tests: it is closed afterwards."""
    process, first = replaced.engine._process, replaced.engine.pid
    kill(replaced.engine)
    caught: list[BaseException] = []

    def ask() -> None:
        try:
            replaced.served.ask(["learner"])
        except BaseException as error:  # looked at below
            caught.append(error)

    def children() -> list[Any]:
        found = multiprocessing.active_children()
        return [child for child in found if "EngineCore" in child.name and child.pid != first]

    before = children()
    asking = threading.Thread(target=ask)
    asking.start()
    [child] = wait_for(lambda: [child for child in children() if child not in before])
    began = time.monotonic()
    replaced.served.runtime.close()
    asking.join(10)
    assert time.monotonic() - began < 15
    assert len(caught) == 1 and isinstance(caught[0], asyncio.CancelledError | EngineError)
    assert not child.is_alive()
    assert {entry.suffix for entry in process.folder.iterdir()} == {".log"}  # of the deaths


# ---- the files behind it -----------------------------------------------------------------------------------------


def test_files_stay_as_they_were_though_their_folder_goes(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    files = {first: ["tokenizer.json", "a.safetensors", "x.safetensors.index.json"], second: ["b.safetensors"]}
    for folder, names in files.items():
        folder.mkdir()
        for name in [*names, "config.json"]:
            (folder / name).write_text(f"{folder.name} {name}")

    def held() -> list[str]:
        """Files below the folder that this process holds open."""
        handles = Path("/proc/self/fd").iterdir()
        return [name for handle in handles if (name := os.path.realpath(handle)).startswith(str(tmp_path))]

    kept = KeptFiles(first)
    assert len(held()) == 4
    assert kept.folder(tmp_path / "0") == first  # nothing has changed, so nothing is copied
    kept.replace_weights(KeptFiles(second))
    wanted = {
        "tokenizer.json": "first tokenizer.json",
        "config.json": "first config.json",
        "b.safetensors": "second b.safetensors",
    }
    for number, gone in enumerate([None, second, first]):
        if gone is not None:
            shutil.rmtree(gone)
        found = kept.folder(tmp_path / f"again{number}")
        assert {file.name: file.read_text() for file in found.iterdir()} == wanted
    first.mkdir()
    (first / "config.json").write_text("another")
    assert (kept.folder(tmp_path / "last") / "config.json").read_text() == "first config.json"
    kept.close()
    kept.close()
    assert held() == []


def test_files_that_were_overwritten_in_place_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"old")
    kept = KeptFiles(folder)
    (folder / "model.safetensors").write_bytes(b"newer")
    with pytest.raises(EngineError, match="model.safetensors was changed in place since it was published"):
        kept.folder(tmp_path / "again")
    kept.close()


# ---- adapters ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters of the tied model that change it a lot."""
    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    for number in range(5):
        model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
        settings = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(model, settings).save_pretrained(folder / str(number))
    return [folder / str(number) for number in range(5)]


@pytest.fixture(scope="module")
def shared(tied: Path) -> Iterator[Served]:
    served = Served(VllmEngine(EngineSettings(kind="vllm", args='{"max_model_len": 256}'), max_lora_rank=4))
    served.publish("base", tied, 0)
    served.publish("same", tied, 0)
    yield served
    close(served)


@pytest.fixture(scope="module")
def models(tied: Path, adapters: list[Path]) -> list[Any]:
    """What each adapter makes of the base, by PEFT; the base itself is last."""

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)

    return [*(PeftModel.from_pretrained(base(), folder).eval() for folder in adapters), base()]


def gaps(served: Served, policies: list[str], models: list[Any]) -> list[float]:
    """Asks all policies in one batch; returns how far each is from its model, in nats."""
    completions, n = served.ask(policies), len(policies)
    return [gap(model, completions[place::n], PROMPTS[place::n]) for place, model in enumerate(models)]


def test_two_adapters_in_two_versions_serve_on_under_their_ids(
    shared: Served, adapters: list[Path], models: list[Any], tmp_path: Path
) -> None:
    for number, (policy, version) in enumerate([("left", 0), ("left", 1), ("right", 0), ("right", 1), ("left@1", 7)]):
        passing = shutil.copytree(adapters[number], tmp_path / "passing")
        shared.publish(policy, passing, version)
        shutil.rmtree(passing)
    wanted = ["left@0", "left", "right@0", "right"], models[:4]
    others = ["left@1", "base", "left@1@7", "same"], [models[4], models[-1], models[4], models[-1]]
    # `left@1` is a policy of its own here, which goes before the second version of `left`
    assert max(gaps(shared, *wanted) + gaps(shared, *others)) <= 1e-4
    assert [done.min_version for done in shared.ask(["left@1", "left"])[:2]] == [7, 1]
    assert min(gaps(shared, ["left", "left@0", "right", "right@0"], models[:4])) > 0.1
    kill(shared.engine)
    assert max(gaps(shared, *wanted) + gaps(shared, *others)) <= 1e-4
    assert [done.min_version for done in shared.ask(["left@0", "left", "right@0", "right"])[:4]] == [0, 1, 0, 1]
    assert len(shared.runtime.run(shared.client.list_loras())) == 6  # and the one that changes nothing


def test_forgetting_waits_for_the_requests_and_frees_the_adapter(shared: Served, adapters: list[Path]) -> None:
    engine = shared.engine

    async def forgets() -> tuple[Any, Any]:
        running = asyncio.ensure_future(engine.generate([1], Sampling(max_new_tokens=250), "passing@0"))
        await asyncio.sleep(0.05)
        forgetting = asyncio.ensure_future(engine.forget("passing"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(LookupError, match="no policy 'passing' was published"):
            await engine.generate([1], Sampling(max_new_tokens=1), "passing")
        await forgetting
        assert running.done()
        return await running, await shared.client.list_loras()

    before = shared.runtime.run(shared.client.list_loras())
    folders = len(list((engine._process.folder / "adapters").iterdir()))
    for version in range(2):
        shared.publish("passing", adapters[version], version)
    done, after = shared.runtime.run(forgets(), timeout=60)
    assert (done.min_version, len(done.token_ids)) == (0, 250)
    assert after == before
    assert len(list((engine._process.folder / "adapters").iterdir())) == folders
    shared.publish("passing", adapters[2], 0)  # the id is free again
    shared.runtime.run(engine.forget("passing"))
    shared.publish("second name", Path(engine.describe()["base"]), 0)
    shared.runtime.run(engine.forget("second name"))
    for policy, error, says in (
        ("base", EngineError, "'base' is the model that this vLLM engine runs on"),
        ("second name", LookupError, "no policy 'second name'"),
        ("right@0", LookupError, "no policy 'right@0'"),  # a version alone is none
    ):
        with pytest.raises(error, match=says):
            shared.runtime.run(engine.forget(policy))
    assert {"base", "left", "left@1", "right", "same"} == set(engine.describe()["policies"])


def test_more_adapters_than_vllm_holds_are_all_exact(shared: Served, adapters: list[Path], models: list[Any]) -> None:
    names = [f"past{k}" for k in range(40)]
    for k, name in enumerate(names):
        shared.publish(name, adapters[k % 5], k)
    assert len(shared.runtime.run(shared.client.list_loras())) == 33
    for first in (0, 4, 36, 8):
        found = gaps(
            shared, [*names[first : first + 3], "base"], [*(models[(first + k) % 5] for k in range(3)), models[-1]]
        )
        assert max(found) <= 1e-4
    for name in names:
        shared.runtime.run(shared.engine.forget(name))
    assert max(gaps(shared, ["left@0", "left", "right@0", "right"], models[:4])) <= 1e-4


# ---- the end in the middle of it ---------------------------------------------------------------------------------


@pytest.fixture
def reviving(tied: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[str], int]]]:
    """Starts a program whose engine was killed and is on its way again; returns it and the new process's id."""
    running: list[subprocess.Popen[str]] = []

    def start() -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tied)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        running.append(process)
        assert process.stdout is not None
        first = int(process.stdout.readline())
        os.kill(first, signal.SIGKILL)
        [second] = wait_for(lambda: [pid for pid in engines_of(process.pid) if pid != first])
        return process, second

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.soak
def test_kill_9_of_the_parent_meanwhile_leaves_nothing(
    reviving: Callable[[], tuple[subprocess.Popen[str], int]],
) -> None:
    process, pid = reviving()
    process.kill()
    process.wait()
    wait_for(lambda: not alive(pid), 5)


@pytest.mark.soak
def test_ctrl_c_meanwhile_ends_the_program(reviving: Callable[[], tuple[subprocess.Popen[str], int]]) -> None:
    process, pid = reviving()
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=15)
    assert time.monotonic() - began < 12
    assert process.returncode == 130, errors
    assert "llm-arena: interrupted" in errors.splitlines()
    assert "Traceback" not in errors
    assert not alive(pid)
