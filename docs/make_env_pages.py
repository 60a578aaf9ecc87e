"""Writes docs/envs/: a page for each game of the shelf, and the index: `python docs/make_env_pages.py`.

The pages are made from the games' docstrings and specs, and the recorded episodes of tests/golden. Edit those.
"""

from __future__ import annotations

import sys
from pathlib import Path

import llm_arena
from llm_arena.registry import env_class
from llm_arena.report.env_page import env_index, env_page

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "envs"


def pages() -> dict[str, str]:
    """Returns the text of each file of docs/envs by name."""
    shelf = [env_id for env_id in llm_arena.registry if (ROOT / "tests" / "golden" / f"{env_id}.jsonl").exists()]
    written = {"README.md": env_index([env_class(env_id) for env_id in shelf])}
    for env_id in shelf:
        [example] = llm_arena.read_traces(ROOT / "tests" / "golden" / f"{env_id}.jsonl")
        written[f"{env_id}.md"] = env_page(env_class(env_id), example)
    return written


def main() -> None:
    """Writes what differs, and removes pages of games that are gone."""
    PAGES.mkdir(exist_ok=True)
    made = pages()
    for old in PAGES.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    print(f"{len(made)} files in {PAGES.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
