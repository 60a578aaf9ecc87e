"""Episodes as plain text, safe to print: whatever a model wrote, the terminal shows it and doesn't obey it."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator, Sequence

from llm_arena.errors import ArenaError
from llm_arena.types import Cause, EnvSpec, Json, Message, Trace, Turn

_HIDDEN_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Controls (ANSI sequences begin with one), format characters (they reorder text, or take no room), lone surrogates,
line and paragraph separators."""

_SEEN = set("\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
"""Format characters that honest text needs: the joiners of emoji, Persian and Indic scripts, and visible signs."""

_SELECTORS = range(0xE0100, 0xE01F0)
"""Variation selectors 17 to 256: no room on screen, and enough of them to smuggle bytes past a reader."""


def visible(text: str, *, newlines: bool = True) -> str:
    r"""Returns `text` with every character that acts on a terminal or hides written as an escape.

    >>> visible("\x1b[2Jgone\u202e")
    '\\x1b[2Jgone\\u202e'

    Args:
        text: text of anyone.
        newlines: whether a line feed stays one; otherwise it is written as `\n`.
    """
    shown = text.translate(_SHOWN)
    return shown if newlines else shown.replace("\n", "\\n")


class _Shown(dict[int, str]):
    """What is shown for each character, found out when it is first met."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        hidden = unicodedata.category(char) in _HIDDEN_CATEGORIES or code in _SELECTORS
        escaped = hidden and char not in _SEEN and char not in "\n\t"
        self[code] = char.encode("unicode_escape").decode("ascii") if escaped else char
        return self[code]


_SHOWN = _Shown()


def message_text(message: Message) -> str:
    """Returns the text of a message; a part that is no text is named in brackets."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else f"[image {part['sha256'][:12]}]" for part in content)


def told(turn: Turn) -> list[Message]:
    """Returns what the seat was told since its last turn, worked examples with their replies included.

    Its own reply, which stands at its turn, is left out: it comes first, which an example's reply never does.
    """
    own = bool(turn.messages) and turn.messages[0]["role"] == "assistant"
    return turn.messages[own:]


def turn_note(turn: Turn) -> str:
    """Says what was not ordinary about a turn: its attempt, why it was not taken, how it was cut."""
    notes = [f"attempt {turn.attempt + 1}"] if turn.attempt else []
    if turn.cause is not Cause.LEGAL:
        notes.append(str(turn.cause))
    if turn.finish != "stop" and turn.finish != str(turn.cause):
        notes.append(f"finish: {turn.finish}")
    return ", ".join(notes)


def episode_lines(trace: Trace, *, messages: bool = True) -> Iterator[str]:
    """Yields an episode turn by turn as lines that are safe to print.

    Args:
        trace: the episode.
        messages: whether to show what each seat was told, or only what it replied.
    """
    yield visible(f"{spec_words(trace.spec)}  seed {trace.seed}  episode {trace.id}", newlines=False)
    for seat, info in trace.seats.items():
        yield visible(f"  {seat}: {info.agent}", newlines=False)
    yield ""
    for turn in trace.turns:
        if messages:
            for message in told(turn):
                yield from _block(f"to {turn.seat} ({message['role']})", message_text(message))
        note = turn_note(turn)
        yield from _block(f"{turn.seat}{f' [{note}]' if note else ''}", turn.text)
        if messages:
            yield ""
    if not messages:
        yield ""
    yield visible(ending_line(trace), newlines=False)


def spec_words(spec: EnvSpec) -> str:
    """Returns a spec's id and those arguments that are not the game's defaults (all, if the game is not known here)."""
    defaults = _default_arguments(spec.id)
    given = [f"{key}={value}" for key, value in spec.kwargs.items() if key not in defaults or defaults[key] != value]
    return " ".join([spec.id, *given])


@functools.cache
def _default_arguments(env_id: str) -> dict[str, Json]:
    from llm_arena.registry import make

    try:
        return make(env_id).spec.kwargs
    except ArenaError:  # unknown here, or it needs arguments
        return {}


def ending_line(trace: Trace) -> str:
    """Returns how an episode ended, in one line: ending, winners, reason, returns."""
    returns = "  ".join(f"{seat} {value:+.4g}" for seat, value in trace.returns.items())
    return f"{ending_words(trace)}   returns: {returns or 'none'}"


def ending_words(trace: Trace) -> str:
    """Returns how an episode ended: ending, winners and reason, or what failed."""
    if trace.failure is not None:
        where = f" in {trace.failure.seat}" if trace.failure.seat else ""
        return f"{trace.ending}: {trace.failure.boundary} failed{where}: {trace.failure.kind}: {trace.failure.message}"
    words = [str(trace.ending)]
    if trace.overflow_seat is not None:
        words.append(f"by {trace.overflow_seat}")
    if (outcome := trace.outcome) is not None:
        if outcome.winners:
            words.append(f"won by {', '.join(outcome.winners)}")
        elif outcome.draw:
            words.append("a draw")
        if outcome.reason:
            words.append(f"({outcome.reason})")
    return " ".join(words)


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows with aligned columns; the last column is as wide as it likes. Safe to print."""
    shown = [[visible(cell, newlines=False) for cell in row] for row in rows]
    columns = max(map(len, shown), default=0)
    widths = [max((len(row[i]) for row in shown if i < len(row) - 1), default=0) for i in range(columns)]
    padded = [[f"{cell:<{widths[i]}}" if i < len(row) - 1 else cell for i, cell in enumerate(row)] for row in shown]
    return ["  ".join(row).rstrip() for row in padded]


def _block(title: str, text: str) -> Iterator[str]:
    lines = visible(text).split("\n")
    yield f"{title}: {lines[0]}"
    indent = " " * 4
    yield from (indent + line for line in lines[1:])


__all__ = [
    "ending_line",
    "ending_words",
    "episode_lines",
    "message_text",
    "spec_words",
    "table_lines",
    "told",
    "turn_note",
    "visible",
]
