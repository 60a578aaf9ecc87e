"""Starting the real vLLM: its process and the end of it, its arguments."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_arena.engines import vllm_start
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.errors import EngineError, UnknownName, UsageError
from llm_arena.models import random_model
from server_parts import alive
from vllm_parts import Served
from vllm_parts import tied as tied  # a fixture: the alias says that it is meant to be here

PROGRAM = Path(__file__).parent / "programs" / "serve_tiny.py"


# ---- the process -------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all temporary files, with a name so short that sockets fit in."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


@pytest.fixture
def serving(tied: Path, temporary: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], int]]]:
    """Starts a program without a main guard that serves the tied model; returns it and the engine's process id."""
    running: list[subprocess.Popen[str]] = []

    def start(how: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-", str(tied)] if how == "stdin" else [sys.executable, str(PROGRAM), str(tied)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        running.append(process)
        assert process.stdin is not None and process.stdout is not None
        if how == "stdin":
            process.stdin.write(PROGRAM.read_text())
            process.stdin.close()
        return process, int(process.stdout.readline())

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_nothing_is_left_after_kill_9_of_the_parent(
    serving: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, pid = serving("stdin")  # which has no main module to import in a child
    assert os.getsid(pid) == pid
    process.kill()
    process.wait()
    end = time.monotonic() + 5
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(pid)


def test_ctrl_c_closes_the_engine_and_ends_the_program(
    serving: Callable[[str], tuple[subprocess.Popen[str], int]], temporary: Path
) -> None:
    process, pid = serving("script")
    assert len(list(temporary.glob("llm-arena-vllm-*/sockets/*"))) >= 2
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 130, errors
    assert errors.strip() == "llm-arena: interrupted"
    assert not alive(pid)
    # vLLM's own, of which it tells nobody the name
    assert not [left.name for left in temporary.iterdir() if not left.name.startswith(("vllm_dist_", "torchinductor"))]


def test_sockets_are_in_the_engines_folder_unless_too_long_or_put_elsewhere(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vllm_start.sockets_in(temporary) == {"VLLM_RPC_BASE_PATH": str(temporary / "sockets")}
    long = tmp_path / ("a" * 80)
    long.mkdir()
    assert vllm_start.sockets_in(long) == {} and not list(long.iterdir())
    monkeypatch.setenv("VLLM_RPC_BASE_PATH", "mine")
    assert vllm_start.sockets_in(temporary) == {}


def test_an_engine_that_ends_does_not_go_through_its_heap() -> None:
    code = (
        "import gc\nfrom llm_arena.engines.vllm_child import settle\nsettle()\n"
        "gc.freeze()\ngc.unfreeze()\nassert gc.get_freeze_count() > 0"  # as vLLM does after its start, and at its end
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_before_its_first_line_of_python_is_no_affair_of_a_childs(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(vllm_start.LOG_VARIABLE, str(temporary / "log"))
    monkeypatch.setenv(vllm_start.PARENT_VARIABLE, str(os.getpid()))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    child = multiprocessing.get_context("spawn").Process(target=os.getpid)
    with vllm_start._our_main():
        child.start()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGINT)
    child.join(30)
    assert child.exitcode == 0
    assert "Traceback" not in capfd.readouterr().err + (temporary / "log").read_text()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_closing_while_it_starts_leaves_no_process(tied: Path) -> None:
    served = Served(VllmEngine())
    caught: list[BaseException] = []

    def publish() -> None:
        try:
            served.publish("p", tied, 0)
        except BaseException as error:  # looked at below
            caught.append(error)

    def engines() -> list[str]:
        return [child.name for child in multiprocessing.active_children() if "EngineCore" in child.name]

    before = engines()
    starting = threading.Thread(target=publish)
    starting.start()
    end = time.monotonic() + 60
    while engines() == before and time.monotonic() < end:
        time.sleep(0.05)
    assert engines() != before
    began = time.monotonic()
    served.runtime.close()
    starting.join(10)
    assert time.monotonic() - began < 15
    assert len(caught) == 1 and isinstance(caught[0], asyncio.CancelledError | EngineError)
    assert engines() == before


def test_a_process_that_dies_as_soon_as_it_answered_is_an_error(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    log, given_up, ended = tmp_path / "log", threading.Event(), []
    client = SimpleNamespace(shutdown=lambda timeout: ended.append(timeout))
    monkeypatch.setattr(AsyncLLM, "from_engine_args", lambda _: client)  # and no process is there
    log.write_text("(EngineCore pid=7) RuntimeError: no memory left\n")
    for says in (
        r"vLLM did not start: RuntimeError: no memory left \(all it said is in",
        "was closed while it started",
    ):
        with pytest.raises(EngineError, match=says):
            vllm_start.start({"model": str(tied)}, log=log, devices=None, given_up=given_up)
        given_up.set()
    assert len(ended) == 2


def test_on_a_cpu_nothing_is_compiled_unless_asked_and_the_environment_is_as_before(
    tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.engine.async_llm import AsyncLLM

    seen = []

    def started(_: Any) -> Any:
        seen.append(os.environ.get("TORCHDYNAMO_DISABLE"))
        raise RuntimeError("enough")

    monkeypatch.setattr(AsyncLLM, "from_engine_args", started)
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    for eager, own in ((True, None), (False, None), (True, "0")):
        if own is not None:
            monkeypatch.setenv("TORCHDYNAMO_DISABLE", own)
        with pytest.raises(EngineError, match="enough"):
            vllm_start.start(
                {"model": str(tied), "enforce_eager": eager},
                log=tmp_path / "log",
                devices=None,
                given_up=threading.Event(),
            )
        assert os.environ.get("TORCHDYNAMO_DISABLE") == own
    assert seen == ["1", None, "0"]


# ---- arguments ---------------------------------------------------------------------------------------------------


def test_vllms_own_arguments_are_checked_against_the_installed_version() -> None:
    assert vllm_start.check_arguments({"max-model-len": 64}) == {"max_model_len": 64}
    with pytest.raises(UnknownName, match="no engine argument 'max_model_length'. Did you mean \"max_model_len\""):
        VllmEngine(EngineSettings(kind="vllm", args='{"max_model_length": 64}'))
    with pytest.raises(UsageError, match=r"engine\.logprobs_mode is set by llm_arena"):
        VllmEngine(EngineSettings(kind="vllm", args='{"logprobs_mode": "raw_logits"}'))
    with pytest.raises(UsageError, match=r"engine\.tensor_parallel_size is set by llm_arena; use engine\.devices"):
        VllmEngine(EngineSettings(kind="vllm", args='{"tensor_parallel_size": 2}'))


def test_arguments_that_vllm_refuses_are_one_line(tied: Path) -> None:
    for args, says in (
        ({"max_num_batched_tokens": "much"}, "max_num_batched_tokens"),
        ({"kv_cache_memory_bytes": 100}, "cache blocks"),
    ):
        served = Served(VllmEngine(EngineSettings(kind="vllm").with_args(args)))
        with pytest.raises(EngineError, match=f"vLLM did not start: .*({says})") as caught:
            served.publish("p", tied, 0)
        assert "\n" not in str(caught.value)
        served.runtime.close()
        kept = re.search(r"all it said is in (\S+)\)", str(caught.value))
        assert kept is None or Path(kept[1]).stat().st_size > 0


def test_devices_that_the_build_does_not_have_are_refused(tied: Path) -> None:
    with pytest.raises(UsageError, match="the installed vLLM is the CPU build"):
        vllm_start.arguments(tied, EngineSettings(kind="vllm", devices="0"), max_lora_rank=0, sleeps=False)


def test_a_child_sees_the_devices_that_are_ours_to_give() -> None:
    assert vllm_start.visible_devices([1, 2], None) == "1,2"
    assert vllm_start.visible_devices([1], "4, 5") == "5"
    assert vllm_start.visible_devices([0], "GPU-1,GPU-2") == "GPU-1"
    with pytest.raises(UsageError, match="names device 1, but CUDA_VISIBLE_DEVICES=3 has 1"):
        vllm_start.visible_devices([1], "3")


def test_memory_holds_at_least_one_whole_context(tmp_path: Path) -> None:
    folder = random_model(tmp_path / "long", words=["a"], hidden_size=1024, layers=16, heads=8, max_positions=16384)
    found = vllm_start.arguments(folder, EngineSettings(kind="vllm"), max_lora_rank=0, sleeps=False)
    per_token = 2 * 16 * 8 * 128 * 4
    assert vllm_start.kv_bytes_per_token(folder, 4) == per_token
    assert found["max_model_len"] == 8192
    assert found["kv_cache_memory_bytes"] == per_token * (8192 + 64)
