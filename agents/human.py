"""A person at the terminal: `human`.

Sees what a model in the same seat would see, and types the reply: one line, or several of which all but the last end
with a backslash. It goes through the same rules as a model's: a typing error is an illegal reply, so give the game some
`retries`. Needs a POSIX terminal or a pipe as standard input.
"""

from __future__ import annotations

import asyncio
import io
import os
import select
import sys
import threading
from collections.abc import Sequence
from typing import TextIO

from llm_arena.errors import ArenaError, UsageError
from llm_arena.report.text import message_text, visible
from llm_arena.types import Action, PastTurn, Reply, View

_SHOWN_ACTIONS = 60
_HINT = "(type a reply and press Enter; a line that ends with \\ goes on in the next; Ctrl-D leaves the game)\n"


class PlayerLeft(ArenaError, EOFError):
    """The input ended (Ctrl-D, or the end of a pipe), so the person plays no further; the episode is void."""


class Human:
    """Asks a person for each reply.

    Args:
        source: file descriptor to read from; None for standard input.
        output: where to write; None for standard output.
    """

    def __init__(self, *, source: int | None = None, output: TextIO | None = None) -> None:
        self.name = "human"
        self.policy: str | None = None
        self._source = source
        self._output = output
        self._at_keyboard = asyncio.Lock()  # two seats of one game that are asked at once take turns

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Shows what is new to the seat, then waits for a line that is not blank.

        Raises:
            PlayerLeft: the input ended.
            UsageError: there is no input that can be waited for.
        """
        source = _stdin() if self._source is None else self._source
        async with self._at_keyboard:
            self._write("\n".join(_screen(view, past)) + "\n")
            if not past and not view.attempt:
                self._write(_HINT)
            while True:
                self._write(f"{visible(view.seat)}> ")
                line = await self._lines(source)
                if line is None:
                    self._write("\n")
                    raise PlayerLeft(f"the input ended while {view.seat} was to move: the game is void, nobody lost it")
                if not os.isatty(source):  # a terminal shows what is typed by itself
                    self._write(visible(line) + "\n")
                if line.strip():
                    return Action(reply=Reply(line))
                self._write(_HINT)

    async def _lines(self, source: int) -> str | None:
        """Returns one reply: a line, and those after it for as long as they end with a backslash."""
        lines: list[str] = []
        while (line := await self._line(source)) is not None:
            lines.append(line)
            if not line.endswith("\\"):
                break
            lines[-1] = line[:-1]
        return "\n".join(lines) if lines else None

    async def _line(self, source: int) -> str | None:
        stop = threading.Event()
        try:
            # In a thread of its own: the loop serves other games and models while the person thinks.
            return await asyncio.get_running_loop().run_in_executor(None, _read_line, source, stop)
        finally:
            stop.set()

    def _write(self, text: str) -> None:
        output = sys.stdout if self._output is None else self._output
        output.write(text)
        output.flush()


def make(argument: str = "") -> Human:
    """Makes the agent of `human`.

    Raises:
        UsageError: an argument was given.
    """
    if argument:
        raise UsageError(f'the agent "human" takes no argument, but "human:{argument}" was given')
    return Human()


def _screen(view: View, past: Sequence[PastTurn]) -> list[str]:
    """Returns the lines to show: messages since the seat's last turn but its own reply, tools, legal actions."""
    seen = past[-1].num_messages if past and past[-1].view_epoch == view.view_epoch else 0
    lines = ["", f"--- {visible(view.seat)}, your turn{f' (attempt {view.attempt + 1})' if view.attempt else ''} ---"]
    news = view.messages[seen:]
    if seen and news and news[0]["role"] == "assistant":
        news = news[1:]  # the seat's own reply
    for message in news:
        # what else stands in the seat's name are worked examples of the game
        lines.append(f"{'example reply: ' * (message['role'] == 'assistant')}{visible(message_text(message))}")
    for tool in view.tools:
        names = ", ".join(tool["parameters"].get("properties", ()))
        lines.append(visible(f"tool: {tool['name']}({names}): {tool['description']}"))
    if view.tools:
        lines.append('call one with <tool_call>{"name": ..., "arguments": {...}}</tool_call>')
    if view.legal_actions is not None:
        shown = [visible(action, newlines=False) for action in view.legal_actions[:_SHOWN_ACTIONS]]
        more = len(view.legal_actions) - len(shown)
        lines.append(f"legal: {' | '.join(shown)}{f' | and {more} more' if more else ''}")
    return lines


def _stdin() -> int:
    try:
        return sys.stdin.fileno()
    except (AttributeError, io.UnsupportedOperation) as error:
        raise UsageError(
            "a person plays in a terminal, but standard input can't be waited for here (a notebook?);"
            " run `llm-arena play ENV --seat SEAT` in a terminal"
        ) from error


def _read_line(source: int, stop: threading.Event) -> str | None:
    """Reads one line without its end; None at the end of the input, or when `stop` was set.

    Byte by byte and unbuffered, so that nothing typed ahead is lost between calls and an abandoned wait holds no lock.
    """
    data = bytearray()
    while not stop.is_set():
        if not select.select([source], [], [], 0.1)[0]:
            continue
        byte = os.read(source, 1)
        if byte == b"\n" or (not byte and data):
            return data.decode("utf-8", errors="replace").rstrip("\r")
        if not byte:
            return None
        data += byte
    return None


__all__ = ["Human", "PlayerLeft", "make"]
