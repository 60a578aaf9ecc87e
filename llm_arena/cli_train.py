"""`llm-arena train` and `llm-arena report`."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

from llm_arena.cli_parser import Parser
from llm_arena.errors import UnknownName, UsageError, did_you_mean


def run_train(argv: list[str]) -> int:
    """Runs a script of the `train/` shelf with the rest of the command line."""
    scripts = shelf_files("train")
    listing = ", ".join(scripts)
    if not argv or argv[0].startswith("-"):
        if argv and argv[0] in ("-h", "--help"):
            width = max(map(len, scripts), default=0)
            print("usage: llm-arena train SCRIPT ...\n\nscripts:")
            for name, path in scripts.items():
                print(f"  {name:<{width}}  {summary(path)}")
            print("\nllm-arena train SCRIPT --help shows a script's settings.")
            return 0
        given = f' before "{argv[0]}"' if argv else ""
        raise UsageError(f"train: a script is missing{given}; there are: {listing}")
    name = argv[0].replace("_", "-").removesuffix(".py").removeprefix("train/")
    if name not in scripts:
        raise UnknownName(f'no training script "{argv[0]}".{did_you_mean(name, scripts)} There are: {listing}')
    module = importlib.import_module(f"llm_arena.train.{name.replace('-', '_')}")
    main: Callable[[list[str]], int | None] = module.main
    return main(argv[1:]) or 0


def run_report(argv: list[str]) -> int:
    """Writes the HTML page of a run's folder."""
    parser = Parser(
        "report",
        "Write the HTML page of a run from the files in its folder.",
        ["llm-arena report runs/self-play-1a2b3c4d"],
    )
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="the run's folder")
    run_dir: Path = parser.parse_args(argv).run_dir
    from llm_arena.report import write_report

    print(write_report(run_dir))
    return 0


def shelf_files(shelf: str) -> dict[str, Path]:
    """Returns the files of a shelf by the name they are asked for with, without importing one."""
    spec = importlib.util.find_spec(f"llm_arena.{shelf}")
    folders = (spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.py") if file.stem != "__init__")
    return {file.stem.replace("_", "-"): file for file in files}


def summary(path: Path) -> str:
    """Returns the first sentence of a file's docstring, without importing the file."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    text = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


__all__ = ["run_report", "run_train", "shelf_files", "summary"]
