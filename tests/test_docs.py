"""The pages of the games: made from the code, up to date, and with everything that a page has to say."""

import importlib.util
import re
from pathlib import Path

import pytest

import llm_arena
from llm_arena.errors import MissingExtra
from llm_arena.registry import env_class
from llm_arena.report.env_page import REQUIRED, env_page, sections

ROOT = Path(__file__).resolve().parents[1]
SHELF = [env_id for env_id in llm_arena.registry if "/" not in env_id]


def made():
    spec = importlib.util.spec_from_file_location("make_env_pages", ROOT / "docs" / "make_env_pages.py")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program.pages()


def test_the_pages_are_those_that_the_code_makes():
    pages = made()
    there = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "envs").glob("*.md")}
    stale = sorted(name for name in {*pages, *there} if pages.get(name) != there.get(name))
    assert not stale, f"run `python docs/make_env_pages.py`; these differ: {stale}"
    assert sorted(pages) == sorted(["README.md", *(f"{env_id}.md" for env_id in SHELF)])


@pytest.mark.parametrize("env_id", SHELF)
def test_a_game_says_what_its_page_needs(env_id):
    game = env_class(env_id)
    found = sections(game)
    assert [name for name in REQUIRED if not found.get(name)] == []
    assert "Worked" in found["Rewards"] and re.search(r"[0-9]", found["Rewards"])
    own = [name for name in game.arguments() if name not in llm_arena.ArenaEnv.arguments()]
    undescribed = [name for name in own if not re.search(rf"^\s+{name}: \S", game.__doc__, re.MULTILINE)]
    assert undescribed == []
    assert all((player.__doc__ or "").strip() for player in game.baselines.values())


def test_a_page_shows_text_as_text():
    page = env_page(env_class("thinker-verifier-v0"))
    prose = [line for line in page.splitlines() if not line.startswith(("`", " "))]
    assert not any("<final" in re.sub(r"`[^`]*`", "", line) for line in prose)
    assert "&lt;final_answer>" in page and "An episode" not in page


def test_a_page_needs_no_extra(monkeypatch):
    def missing(self, **kwargs):
        raise MissingExtra("not installed")

    game = env_class("research-v0")
    monkeypatch.setattr(game, "__init__", missing)
    assert "# research-v0" in env_page(game)
