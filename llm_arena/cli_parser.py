"""The argument parser of the commands: usage errors are one line and suggest the nearest option."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.types import Json


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` where argparse prints several lines and exits."""

    def __init__(self, command: str, description: str, examples: Sequence[str] = ()) -> None:
        super().__init__(
            prog=f"llm-arena {command}",
            description=description,
            epilog="examples:\n  " + "\n  ".join(examples) if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Raises a `UsageError` with the nearest option, if an option is unknown."""
        unknown = re.search(r"unrecognized arguments: (-\S+)", message)
        hint = did_you_mean(unknown[1].partition("=")[0], self._option_string_actions) if unknown else ""
        raise UsageError(f"{self.prog.removeprefix('llm-arena ')}: {message}.{hint} See {self.prog} --help")


def key_values(pairs: Sequence[str]) -> dict[str, Json]:
    """Reads `key=value` arguments; a value that is JSON (`4`, `true`, `[1, 2]`) is taken as such, else as text.

    Raises:
        UsageError: an argument has no `=`, a key stands there twice, or an argument is no UTF-8.
    """
    found: dict[str, Json] = {}
    for pair in map(_utf8, pairs):
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise UsageError(f'"{pair}" is no game argument; expected key=value, e.g. namers=4 or topic="coffee shop"')
        if key in found:
            raise UsageError(f'the game argument "{key}" is given twice')
        try:
            found[key] = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            found[key] = value
    return found


def agent_spec(text: str) -> str | dict[str, str]:
    """Reads `--agents`: one agent for all seats, or `seat=agent,seat=agent` (roles count as seats).

    An address may hold `=`, and an agent several addresses: `player_0=openai:m@http://a,http://b,player_1=optimal`.

    Raises:
        UsageError: a part has no `=`, or a seat stands there twice.
    """
    if "=" not in text.partition("://")[0]:
        return text
    found: dict[str, str] = {}
    for part in re.split(r",(?!\s*https?://)", text):
        seat, equals, agent = (piece.strip() for piece in part.partition("="))
        if not (equals and seat and agent):
            raise UsageError(
                f'--agents "{text}" can\'t be read at "{part}"; expected e.g. player_0=optimal,player_1=human'
            )
        if seat in found:
            raise UsageError(f'--agents names "{seat}" twice')
        found[seat] = agent
    return found


def _utf8(argument: str) -> str:
    """Returns an argument as the text that was typed: in a C locale Python reads what is not ASCII as surrogates."""
    if not any("\ud800" <= char <= "\udfff" for char in argument):
        return argument
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError as error:
        raise UsageError(f'the argument "{argument}" is no UTF-8 text; type it in a UTF-8 terminal') from error


__all__ = ["Parser", "agent_spec", "key_values"]
