"""docs/add_a_game.md runs as it stands there; plugins are found by entry point, and a broken one breaks nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "site"),
    }
    return subprocess.run(
        command, cwd=folder, env=environment | env, capture_output=True, text=True, timeout=120, check=False
    )


def install(folder: Path) -> None:
    """Does `pip install .` into the folder `site`, without network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = run([*command, "--target", str(folder / "site"), "."], folder)
    assert done.returncode == 0, done.stderr


def test_the_guide_runs_as_it_stands_there(tmp_path: Path) -> None:
    printed: dict[str, str] = {}
    for language, text in BLOCK.findall((DOCS / "add_a_game.md").read_text()):
        if language == "bash":
            for line in text.splitlines():
                if line == "pip install .":
                    install(tmp_path)
                    continue
                done = run(["bash", "-c", line], tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
                printed[line] = done.stdout
        else:
            name = re.match(r"# (\S+)\n", text)
            assert name is not None, f"a block of the guide does not begin with its file's name: {text[:60]!r}"
            (tmp_path / name[1]).write_text(text)
    assert set(os.listdir(tmp_path)) >= {"sealed_bid.py", "pyproject.toml", "play_it.py", "test_sealed_bid.py", "tiny"}
    (tested,) = [out for line, out in printed.items() if "pytest" in line]
    assert "7 passed" in tested
    (listed,) = [out for line, out in printed.items() if line.startswith("llm-arena list")]
    assert "two bidders" in listed.lower()
    (shown,) = [out for line, out in printed.items() if line.startswith("llm-arena show")]
    assert "bidder_1" in shown
    assert "half" in printed["python play_it.py"]


def entry_points(site: Path, name: str, text: str) -> None:
    """Installs a package that has nothing but entry points."""
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[llm_arena.envs]\n{text}\n")


PROGRAM = """
import sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import llm_arena
print([str(warning.message) for warning in caught])
print(sorted({"plug-in-v0", "raises-v0", "gone-v0", "kuhn-poker-v0"} & set(llm_arena.registry)))
print("my_plugin" in sys.modules, "my_broken_plugin" in sys.modules)
print(llm_arena.play("plug-in-v0", seed=0).returns, "my_plugin" in sys.modules)
for env_id in ("raises-v0", "gone-v0"):
    try:
        llm_arena.make(env_id)
    except Exception as error:
        print(type(error).__name__, error)
"""

PLUGIN = '''
from llm_arena import ArenaEnv, Move, Outcome

class PlugIn(ArenaEnv):
    """A game of one reply."""

    id = "plug-in-v0"
    roles = {"player": 1}

    def begin(self, rng):
        self.tell("player_0", "Say a.")
        return "player_0"

    def legal_actions(self, seat):
        return ["a"]

    def resolve(self, seat, reply):
        return Move(rewards={seat: 2}, outcome=Outcome(reason="said"))
'''


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    entry_points(
        site,
        "my_plugins",
        "plug-in-v0 = my_plugin:PlugIn\nraises-v0 = my_broken_plugin:Env\n"
        "gone-v0 = no_such_module:Env\nno version = x:Y",
    )
    (site / "my_plugin.py").write_text(PLUGIN)
    (site / "my_broken_plugin.py").write_text("import module_that_is_not_there\n")
    return tmp_path


def test_plugins_are_named_at_import_and_imported_when_they_are_made(plugins: Path) -> None:
    done = run([sys.executable, "-c", PROGRAM], plugins)
    assert done.returncode == 0, done.stderr
    warned, listed, imported, played, broken, gone = done.stdout.splitlines()
    assert "no version" in warned and "my_plugins" in warned and "malformed" in warned
    assert listed == "['gone-v0', 'kuhn-poker-v0', 'plug-in-v0', 'raises-v0']"
    assert imported == "False False"
    assert played == "{'player_0': 2.0} True"
    assert broken.startswith("EnvContractError raises-v0: its module my_broken_plugin can't be imported")
    assert gone.startswith("EnvContractError gone-v0: its module no_such_module can't be imported")


def test_the_command_line_lists_good_plugins_beside_broken_ones(plugins: Path) -> None:
    done = run([sys.executable, "-m", "llm_arena", "list"], plugins)
    assert done.returncode == 0, done.stderr
    assert "A game of one reply." in done.stdout and "raises-v0" in done.stdout and "can't be loaded" in done.stdout
    traces = plugins / "t.jsonl"
    assert (
        run([sys.executable, "-m", "llm_arena", "play", "plug-in-v0", "--traces", str(traces)], plugins).returncode == 0
    )
    replayed = run([sys.executable, "-m", "llm_arena", "replay", str(traces), "--verify"], plugins)
    assert replayed.returncode == 0, replayed.stderr
