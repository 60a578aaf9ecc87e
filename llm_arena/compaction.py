"""Compaction: a view that has outgrown its budget is replaced by the seat's own summary of it.

Any game can be played so: `make("debate-v0", budget=4000)`, in characters, or `budget_unit="tokens"`. When a seat whose
view is larger is to act, it is first asked for a summary (a turn of its own, not counted by `max_turns`). Then its view
is replaced by: what it was told before its first reply (its task), the summary (cut to half of the budget), and what it
was told since its last reply. Its next turn begins a new sequence of the same trace, so that training sees both.

Tokens are those that the seat's agent counted at its last turn (recorded with the action, so replays agree), and one
for every three characters told since; for seats without tokens (scripts, people) one for every three characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from llm_arena.parsing import quote
from llm_arena.types import Message

Unit = Literal["characters", "tokens"]

REQUEST = (
    "Your conversation has grown too long and is about to be replaced. Write a short summary for yourself: what you "
    "have learned, what was said, what you plan. You will see only your task, this summary, and what you are asked "
    "next."
)
SAMPLE = "Summary: I have nothing to add to my task."
"""A summary that is always usable."""

_CHARACTERS_PER_TOKEN = 3
_SHORTEST = 200


def outgrown(view: Sequence[Message], budget: int, unit: Unit, counted: tuple[int, int] | None) -> bool:
    """Returns whether a view is larger than its budget.

    Args:
        view: the seat's messages.
        budget: in `unit`.
        unit: what is counted.
        counted: for tokens: (how many the seat's agent counted at its last reply, how many messages its view had then).
    """
    if unit == "characters":
        return _characters(view) > budget
    tokens, messages = counted or (0, 0)
    return tokens + _characters(view[messages:]) // _CHARACTERS_PER_TOKEN > budget


def compacted(view: Sequence[Message], opening: int, request: int, summary: str) -> list[Message]:
    """Returns the view that takes the place of `view`.

    Args:
        view: the seat's messages, the request for a summary and the reply to it included.
        opening: how many messages it had before its first reply; they are kept.
        request: index of the request.
        summary: what the seat wants to keep.
    """
    last = max((at for at in range(request) if view[at]["role"] == "assistant"), default=request - 1)
    # a tool's result without its call is no chat that a template takes
    since = [_told(message) for message in view[max(last + 1, opening) : request]]
    kept = summary or "(You wrote no summary.)"
    return [*view[:opening], {"role": "user", "content": f"Your summary of what came before:\n{kept}"}, *since]


def summary_characters(budget: int, unit: Unit) -> int:
    """Returns how many characters of a summary are kept: half of the budget, and never so few that it says nothing."""
    return max(_SHORTEST, budget // 2 if unit == "characters" else budget * _CHARACTERS_PER_TOKEN // 2)


def _told(message: Message) -> Message:
    if message["role"] != "tool":
        return message
    # as a user message it would speak with the game's voice
    return {"role": "user", "content": f"Result of your call:\n{quote(message_text(message))}"}


def _characters(view: Sequence[Message]) -> int:
    return sum(len(message_text(message)) for message in view)


def message_text(message: Message) -> str:
    """Returns the text of a message; what is no text is left out."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
