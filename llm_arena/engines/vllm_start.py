"""Starting vLLM: its arguments checked, its process started without the user's main module, its log read on failure."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import multiprocessing
import multiprocessing.spawn
import multiprocessing.util
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_child import LOG_VARIABLE, PARENT_VARIABLE
from llm_arena.engines.weight_folders import computation
from llm_arena.errors import EngineError, MissingExtra, UnknownName, UsageError, did_you_mean

ENGINE = "EngineCore"
"""Begins the name of the process that vLLM starts."""
SOCKETS_VARIABLE = "VLLM_RPC_BASE_PATH"
CHILD_MAIN = "llm_arena.engines.vllm_child"
WORKER = "llm_arena.engines.vllm_worker.PolicyWorker"
LONGEST_DEFAULT_CONTEXT = 8192
"""Tokens; a model's own longest context can need more memory for one conversation than the machine has."""
CPU_KV_BYTES = 1 << 29
"""KV cache on a CPU, where vLLM would reserve a share of all memory: 11,000 tokens of SmolLM2-135M in float32."""

SHARED_GPU = 0.35
"""Share of a GPU's memory that an engine takes by default where the learner lives there too."""

OURS = (
    *(
        "model",
        "skip_tokenizer_init",
        "logprobs_mode",
        "generation_config",
        "worker_extension_cls",
        "disable_log_stats",
    ),
    *("dtype", "enable_lora", "max_lora_rank", "enable_sleep_mode", "tensor_parallel_size", "device_ids"),
)
"""Arguments of vLLM that the engine sets itself: other values would make its answers wrong."""

QUIET = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    # Starts the child by `spawn` on every platform, which our main module needs.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # On a CPU vLLM would put the model into a third process that spins while it is idle (a third of a core).
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
"""Environment of the child; vLLM reads some of it in this process, while it starts."""

CHANGED = (
    *(*QUIET, LOG_VARIABLE, PARENT_VARIABLE),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "NUMEXPR_MAX_THREADS", "LOCAL_WORLD_SIZE", "TORCHDYNAMO_DISABLE"),
)
CHANGED_PREFIXES = ("VLLM_", "TORCHINDUCTOR_", "AITER_", "OMP_", "KMP_", "CUDA_", "PYTORCH_", "NCCL_")
"""Environment variables that the start may change in this process."""

_starting = threading.Lock()


def installed() -> bool:
    """Whether vLLM is there. Imports nothing."""
    return importlib.util.find_spec("vllm") is not None


def require() -> None:
    """Raises MissingExtra where vLLM is not installed."""
    if not installed():
        raise MissingExtra(
            "the vLLM engine needs vLLM, which is not installed here. Linux: `make venv`, or pip install "
            "'llm-arena[vllm]' (NVIDIA GPUs). There is no wheel for macOS and Windows: use --engine.kind transformers"
        )


def check_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns vLLM's own arguments, by their names in the installed version.

    Args:
        given: name -> value; `max-model-len` and `max_model_len` are the same name.

    Raises:
        UnknownName: the installed vLLM has no such argument; the message suggests the nearest.
        UsageError: an argument that the engine sets itself.
    """
    if not given:
        return {}
    from vllm import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    checked: dict[str, Any] = {}
    for written, value in given.items():
        name = written.replace("-", "_")
        if name in OURS:
            hint = {"dtype": "engine.dtype", "tensor_parallel_size": "engine.devices"}.get(name)
            raise UsageError(
                f"engine.{name} is set by llm_arena"
                + (f"; use {hint}" if hint else ", for it decides what is recorded")
            )
        if name not in known:
            import vllm

            raise UnknownName(f"vLLM {vllm.__version__} has no engine argument {written!r}.{did_you_mean(name, known)}")
        checked[name] = value
    return checked


def is_cpu() -> bool:
    """Whether the installed vLLM computes on the CPU."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def arguments(directory: Path, settings: EngineSettings, *, max_lora_rank: int, sleeps: bool) -> dict[str, Any]:
    """Returns all engine arguments for serving a model folder.

    Raises:
        UnknownName, UsageError: an argument of the settings can't work.
        EngineError: the folder holds no model.
    """
    given = check_arguments(settings.vllm_args())
    cpu = is_cpu()
    devices = settings.cuda_devices()
    if cpu and devices:
        raise UsageError(f"engine.devices={settings.devices}, but the installed vLLM is the CPU build; leave it out")
    if not cpu and devices == []:
        raise UsageError("engine.devices=cpu, but the installed vLLM is a CUDA build; use --engine.kind transformers")
    dtype = settings.dtype if settings.dtype != "auto" else "float32" if cpu else "bfloat16"
    found: dict[str, Any] = {
        "model": str(directory),
        "skip_tokenizer_init": True,
        "logprobs_mode": "processed_logprobs",  # of the distribution that was really sampled from
        "generation_config": "vllm",  # or the model's own file would change temperature and stop ids
        "worker_extension_cls": WORKER,
        "disable_log_stats": True,
        "dtype": dtype,
        "max_num_seqs": 64,
        "max_model_len": min(context_tokens(directory), LONGEST_DEFAULT_CONTEXT),
    }
    if cpu:
        # 128 tokens, the default, is longer than most rules texts: the cache of shared prefixes would never hit.
        found |= {"enforce_eager": True, "block_size": 32}
    elif sleeps:
        found |= {"enable_sleep_mode": True, "gpu_memory_utilization": SHARED_GPU}
    if devices is not None and len(devices) > 1:
        found["tensor_parallel_size"] = len(devices)
    if max_lora_rank:
        found |= {"enable_lora": True, "max_lora_rank": _rank_step(max_lora_rank), "max_loras": 5, "max_cpu_loras": 33}
    found |= given
    if cpu and max_lora_rank and found["max_loras"] < 2:
        raise UsageError("engine.max_loras must be at least 2 on a CPU, where the base model takes one place itself")
    if not isinstance(found["max_model_len"], int):
        raise UsageError(f"engine.max_model_len must be a whole number of tokens, got {found['max_model_len']!r}")
    if cpu and "kv_cache_memory_bytes" not in given:
        longest = kv_bytes_per_token(directory, 2 if dtype != "float32" else 4) * (found["max_model_len"] + 64)
        found["kv_cache_memory_bytes"] = max(CPU_KV_BYTES, longest)
    return found


def start(found: Mapping[str, Any], *, log: Path, devices: list[int] | None, given_up: threading.Event) -> Any:
    """Starts the engine's process and returns vLLM's client of it, and the process. Takes 10 to 30 s.

    The user's main module is not imported in the child, so scripts without a main guard, notebooks and programs on
    standard input work.

    Args:
        found: all engine arguments.
        log: file for the child's output.
        devices: CUDA devices that the child may see; None for all.
        given_up: set from another thread, it ends the start, and the child.

    Raises:
        EngineError: it did not start; the message holds the child's own words.
    """
    with _put_back():
        # Imported before we change the environment: libraries that look at it only once must see the user's own.
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

    with _starting, _put_back(), _our_main(), _killing_if(given_up) as children:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        if is_cpu() and found.get("enforce_eager"):
            # For one sum beside each sampling vLLM would have a C++ compiler run at the first request, for seconds; two
            # engines that did so at once on a busy machine have ended each other.
            os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
        os.environ.update(sockets_in(log.parent))
        os.environ[LOG_VARIABLE] = str(log)
        os.environ[PARENT_VARIABLE] = str(os.getpid())
        if devices:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
        try:
            client = AsyncLLM.from_engine_args(AsyncEngineArgs(**found))
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            _refuse_if_given_up(given_up)
            raise EngineError(f"vLLM did not start: {_reason(error, log)}") from error
        there = children()
        if len(there) != 1:  # it died as soon as it had answered
            client.shutdown(timeout=1.0)
            _refuse_if_given_up(given_up)
            words = last_words(log) or "its process ended at once"
            raise EngineError(f"vLLM did not start: {words:.400} (all it said is in {log})")
        [process] = there
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        logging.getLogger("vllm").setLevel(logging.CRITICAL)  # we raise the same, and tell it in one line
    return client, process


def sockets_in(folder: Path) -> dict[str, str]:
    """Returns the environment with which vLLM puts its sockets into a folder that goes with the engine.

    By itself it leaves two in the system's folder for temporary files at each start. Where the path is too long for the
    name of a socket, it may; a folder that the user has named in the environment stays.

    Args:
        folder: of the engine; the sockets get one inside.
    """
    sockets, longest = folder / "sockets", 103  # on macOS; 107 on Linux
    if SOCKETS_VARIABLE in os.environ or len(f"{sockets}/{uuid.uuid4()}") > longest:
        return {}
    sockets.mkdir(exist_ok=True)
    return {SOCKETS_VARIABLE: str(sockets)}


def context_tokens(directory: Path) -> int:
    """Returns the longest context of a model folder, in tokens.

    Raises:
        EngineError: its config does not tell.
    """
    try:
        return int(_text_config(directory)["max_position_embeddings"])
    except KeyError as error:
        raise EngineError(f"{directory}: config.json has no max_position_embeddings") from error


def kv_bytes_per_token(directory: Path, bytes_per_number: int) -> int:
    """Returns how much the keys and values of one token take: 2 x layers x KV heads x head size x bytes.

    Raises:
        EngineError: the folder has no config that can be read.
    """
    config = _text_config(directory)
    try:
        heads = int(config["num_attention_heads"])
        size = int(config.get("head_dim") or config["hidden_size"] // heads)
        return (
            2
            * int(config["num_hidden_layers"])
            * int(config.get("num_key_value_heads") or heads)
            * size
            * (bytes_per_number)
        )
    except KeyError as error:
        raise EngineError(f"{directory}: config.json has no {error}; give --engine.kv-cache-memory-bytes") from error


def _text_config(directory: Path) -> dict[str, Any]:
    config = computation(directory)
    found: dict[str, Any] = config.get("text_config", config)
    return found


def _rank_step(rank: int) -> int:
    """Returns the smallest rank that vLLM reserves room for and that holds `rank`."""
    steps = (1, 8, 16, 32, 64, 128, 256, 320, 512)
    fitting = [step for step in steps if step >= rank]
    if not fitting:
        raise UsageError(f"lora_rank is {rank}; vLLM takes adapters of rank {steps[-1]} at most")
    return fitting[0]


def visible_devices(devices: Sequence[int], already: str | None) -> str:
    """Returns CUDA_VISIBLE_DEVICES for a child that is to see some of our devices, by their numbers here.

    >>> visible_devices([1], "4,5")
    '5'

    Args:
        devices: numbers as torch counts them in this process.
        already: the variable's value in this process; None: all devices are seen.

    Raises:
        UsageError: this process itself does not see a device.
    """
    if not already:
        return ",".join(map(str, devices))
    seen = [name.strip() for name in already.split(",")]
    if max(devices) >= len(seen):
        raise UsageError(
            f"engine.devices names device {max(devices)}, but CUDA_VISIBLE_DEVICES={already} has {len(seen)}"
        )
    return ",".join(seen[device] for device in devices)


@contextmanager
def _put_back() -> Iterator[None]:
    """Puts environment variables back that we, or vLLM as it is imported and started, may change. No others."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in {*before, *os.environ}:
            if name in CHANGED or name.startswith(CHANGED_PREFIXES):
                if name in before:
                    os.environ[name] = before[name]
                else:
                    os.environ.pop(name, None)


@contextmanager
def _our_main() -> Iterator[None]:
    """Has processes that this thread spawns import `CHILD_MAIN` in place of the user's main module.

    They start with Ctrl-C held back, until `CHILD_MAIN` has left our session: Python answers it with a traceback where
    no module of ours is there yet.
    """
    original = multiprocessing.spawn.get_preparation_data
    spawn = multiprocessing.util.spawnv_passfds
    own = threading.get_ident()

    def prepared(name: str) -> dict[str, Any]:
        data: dict[str, Any] = original(name)
        if threading.get_ident() == own:
            data.pop("init_main_from_path", None)
            data["init_main_from_name"] = CHILD_MAIN
        return data

    def spawned(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if threading.get_ident() != own:
            return spawn(path, args, passfds)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return spawn(path, args, passfds)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    multiprocessing.spawn.get_preparation_data = prepared
    multiprocessing.util.spawnv_passfds = spawned
    try:
        yield
    finally:
        multiprocessing.util.spawnv_passfds = spawn
        multiprocessing.spawn.get_preparation_data = original


@contextmanager
def _killing_if(given_up: threading.Event) -> Iterator[Callable[[], list[BaseProcess]]]:
    """Kills engine processes that are started meanwhile once `given_up` is set; yields a function that lists them."""
    before = set(multiprocessing.active_children())
    done = threading.Event()

    def children() -> list[BaseProcess]:
        return [child for child in multiprocessing.active_children() if child not in before and ENGINE in child.name]

    def watch() -> None:
        while not done.wait(0.1):
            if given_up.is_set():
                for child in children():
                    child.kill()

    watcher = threading.Thread(target=watch, name="llm-arena-vllm-start", daemon=True)
    watcher.start()
    try:
        yield children
    finally:
        done.set()
        watcher.join()


def _refuse_if_given_up(given_up: threading.Event) -> None:
    if given_up.is_set():
        raise EngineError("the vllm engine was closed while it started") from None


def last_words(log: Path) -> str:
    """Returns the last line of the child's output that names an error, or an empty string."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    errors = [re.sub(r"^(\(.*?pid=\d+\) )?(ERROR [\d:\- ]+\[.*?\] )?", "", line).strip() for line in lines]
    named = [line for line in errors if re.match(r"[\w.]*(Error|Exception)\b", line)]
    own = [line for line in named if "Engine core initialization failed" not in line]
    return (own or named or [""])[-1]


def _reason(error: Exception, log: Path) -> str:
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "Engine core initialization failed" not in first:
        details = " ".join(str(error).split())
        return f"{details:.400}"
    return f"{last_words(log) or first:.400} (all it said is in {log})"
