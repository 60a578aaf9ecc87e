"""The room table: a module imports only from rooms before its own, or from its own room without a cycle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "llm_arena"
SHELVES = ("envs", "agents", "train", "leaderboards")

ROOMS = [
    ["types", "errors", "startup"],
    [
        "env",
        "arguments",
        "named",
        "bookkeeping",
        "registry",
        "spaces",
        "parsing",
        "problems",
        "checks",
        "leaks",
        "compaction",
        "views",
        "tool_calls",
        "replies",
        "saving",
        "global_luck",
        "sides",
    ],
    ["agent", "engines", "tokens", "tool_format", "chat_text", "models", "model_sources", "lockstep", "threads"],
    ["rating"],
    [
        "recorder",
        "trace_file",
        "links",
        "rescore",
        "export",
        "runtime",
        "episode",
        "rollout",
        "roster",
        "matchmaking",
        "game_tree",
        "harness",
    ],
    ["training", "boards"],
    ["adapters", "launch"],
    ["report"],
    ["cli", "__main__"],
]
"""What belongs to which room, in the order in which an episode passes through them."""

ROOM_OF = {name: number for number, room in enumerate(ROOMS, start=1) for name in room}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> dict[str, int]:
    """All modules that a file imports, anywhere in it, with a line; `from x import y` is `x.y` if that is a module."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                inner = ROOT.joinpath(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").is_file() or inner.is_dir()
                found[f"{base}.{alias.name}" if is_module else base] = node.lineno
    return found


def room_of(module: str) -> int | None:
    """The room of `llm_arena.x.y`: by the first name after the library's, which for `cli_play` is `cli`."""
    part = module.split(".")[1]
    return ROOM_OF.get(part) or ROOM_OF.get(part.split("_")[0] if part.startswith("cli_") else part)


LIBRARY_FILES = sorted(path for path in LIBRARY.rglob("*.py") if path != LIBRARY / "__init__.py")


def ours(path: Path) -> dict[str, int]:
    return {name: line for name, line in imports_of(path).items() if name.split(".")[0] == "llm_arena"}


def test_every_module_has_a_room() -> None:
    homeless = [str(path.relative_to(ROOT)) for path in LIBRARY_FILES if room_of(module_name(path)) is None]
    assert not homeless, f"not in the room table (tests/test_layers.py): {homeless}"


def test_modules_import_only_from_rooms_before_their_own() -> None:
    wrong = []
    for path in LIBRARY_FILES:
        here = room_of(module_name(path))
        for name, line in ours(path).items():
            there = room_of(name) if "." in name else len(ROOMS)  # the package itself is for users, and for the cli
            if there is None or here is None or there > here:
                wrong.append(f"{path.relative_to(ROOT)}:{line} (room {here}) imports {name} (room {there})")
    assert not wrong, "\n".join(wrong)


def test_rooms_have_no_cycle() -> None:
    edges = {module_name(path): set(ours(path)) for path in LIBRARY_FILES}
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> None:
        assert module not in trail, "import cycle: " + " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for name in sorted(edges.get(module, ())):
                visit(name, [*trail, module])
            done.add(module)

    for module in sorted(edges):
        visit(module, [])


def test_shelf_files_import_the_library_and_nothing_else_of_ours() -> None:
    wrong = []
    for path in sorted(path for shelf in SHELVES for path in (ROOT / shelf).glob("*.py")):
        for name, line in imports_of(path).items():
            parts = name.split(".")
            second = parts[1] if len(parts) > 1 else ""
            if parts[0] in (*SHELVES, "tests", "benchmarks") or (parts[0] == "llm_arena" and second in SHELVES):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", ["llm_arena", "tests", "benchmarks"])
def test_nothing_imports_a_shelf_file_by_name(folder: str) -> None:
    wrong = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name, line in imports_of(path).items():
            parts = name.removeprefix("llm_arena.").split(".")
            if parts[0] in SHELVES:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_check_sees_imports_inside_functions(tmp_path: Path) -> None:
    file = tmp_path / "x.py"
    file.write_text(
        "def f():\n    import torch.nn\n    from llm_arena.types import Trace\n    from llm_arena import env\n"
    )
    assert imports_of(file) == {"torch.nn": 2, "llm_arena.types": 3, "llm_arena.env": 4}
