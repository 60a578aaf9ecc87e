"""A person in a seat, in a real terminal: what is shown, what counts as a reply, and the ways to leave."""

from __future__ import annotations

import fcntl
import importlib
import io
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from llm_arena.errors import UsageError
from llm_arena.trace_file import read_traces

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "llm_arena"]


class Terminal:
    """A process with a terminal of its own, as a person has one."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C reaches it
        )
        os.close(theirs)
        self.screen = ""

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        """Waits until `text` has been printed after what was waited for before, and forgets all up to it."""
        end = time.monotonic() + seconds
        while text not in self.screen:
            if not select.select([self.ours], [], [], max(end - time.monotonic(), 0))[0]:
                pytest.fail(f"{text!r} was not printed in {seconds} s; the screen: {self.screen}")
            self.screen += os.read(self.ours, 65536).decode()
        self.screen = self.screen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def exit_code(self) -> int:
        """Reads the rest of the screen and returns how the process ended."""
        while select.select([self.ours], [], [], 60)[0]:
            try:
                data = os.read(self.ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not data:
                break
            self.screen += data.decode()
        return self.process.wait(timeout=60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts `llm-arena` in a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(*arguments, cwd=tmp_path))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


def test_a_person_plays_to_the_end(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    game = terminal("play", "kuhn-poker-v0", "--seat", "player_0", "--seed", "1", "--traces", "t.jsonl")
    game.wait_for("Your card is J")
    game.wait_for("legal: check | bet")
    game.wait_for("Ctrl-D leaves the game")
    game.wait_for("player_0> ")
    game.type("\n")
    game.wait_for("Ctrl-D leaves the game")
    game.type("cheque\n")
    game.wait_for("your turn (attempt 2)")
    game.wait_for("legal: check | bet")
    game.type("be\x7fet\n")  # the terminal's own line editing works
    assert game.exit_code() == 0
    assert "the game is over" in game.screen
    [trace] = read_traces(tmp_path / "t.jsonl")
    assert [turn.text for turn in trace.turns[:2]] == ["cheque", "bet"]
    assert [turn.seat for turn in trace.turns] == ["player_0", "player_0", "player_1"]
    assert trace.seats["player_0"].agent == "human"
    assert trace.seats["player_1"].agent == "random-legal"


def test_a_person_is_shown_only_what_is_new(terminal: Callable[..., Terminal]) -> None:
    game = terminal("play", "tic-tac-toe-v0", "--seat", "player_0", "--seed", "1")
    game.wait_for("player_0> ")
    first = game.screen
    game.type("5\n")
    game.wait_for("your turn")
    game.wait_for("player_0> ")
    assert "You play tic-tac-toe" not in first + game.screen.rpartition("your turn")[2]
    assert "Ctrl-D" not in game.screen
    game.type("\x04")
    assert game.exit_code() == 1


def test_a_worked_example_is_shown_with_its_reply(arena: Run) -> None:
    typed = "not an attack\nNO FLAW\n"
    done = arena("play", "adversary-v0", "--seat", "adversary_0", "--agents", "exact", "--seed", "5", stdin=typed)
    assert done.returncode == 0
    first, again = done.stdout.split("your turn (attempt 2)")
    assert [line.partition(":")[0] for line in first.splitlines() if line.startswith("example")] == [
        "example reply"
    ] * 2
    assert "example reply: 2 + 5 is 7" in first
    assert "example" not in again and ": not an attack" not in again.partition("the game is over")[0]


def test_ctrl_d_leaves_the_game(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    game = terminal("play", "kuhn-poker-v0", "--seat", "player_0", "--traces", "t.jsonl")
    game.wait_for("player_0> ")
    game.type("\x04")
    assert game.exit_code() == 1
    assert "the input ended while player_0 was to move" in game.screen
    assert "the void episode is recorded in t.jsonl" in game.screen
    assert "Traceback" not in game.screen
    [trace] = read_traces(tmp_path / "t.jsonl")
    assert trace.void
    assert trace.returns == {}


def test_ctrl_c_leaves_the_game(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    game = terminal("play", "kuhn-poker-v0", "--seat", "player_0", "--traces", "t.jsonl")
    game.wait_for("player_0> ")
    began = time.monotonic()
    game.type("\x03")
    assert game.exit_code() == 130
    assert time.monotonic() - began < 10
    assert "llm-arena: interrupted" in game.screen
    assert "the void episode is recorded in t.jsonl" in game.screen
    assert "Traceback" not in game.screen
    [trace] = read_traces(tmp_path / "t.jsonl")
    assert trace.void


def test_a_person_at_a_pipe_plays_too(arena: Run) -> None:
    done = arena("play", "naming-v0", "--agents", "human", "namers=2", "topic=tea house", stdin="Jasmine Cup\r\nTea")
    assert done.returncode == 0
    assert "namer_0: Jasmine Cup\n" in done.stdout
    assert "namer_1: Tea\n" in done.stdout
    ended = arena("play", "kuhn-poker-v0", "--seat", "player_0", stdin="")
    assert ended.returncode == 1
    assert "the input ended" in ended.stderr


def test_text_that_the_terminal_can_not_show_does_not_end_the_program(arena: Run) -> None:
    done = arena(
        "play",
        "naming-v0",
        "--agents",
        "human",
        "namers=1",
        "topic=café",
        stdin="Thé 茶\n",
        env={"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0
    assert "caf\\xe9" in done.stdout


def test_a_person_needs_an_input_that_can_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_arena import play

    monkeypatch.setattr(sys, "stdin", io.StringIO("check\n"))
    with pytest.raises(UsageError, match="in a terminal"):
        play("kuhn-poker-v0", "human", seed=1)


def test_the_human_agent_takes_no_argument() -> None:
    human = importlib.import_module("llm_arena.agents.human")
    with pytest.raises(UsageError, match="no argument"):
        human.make("bob")
    assert human.make().name == "human"
