"""What is looked at in every reply before its game reads it, and what a seat is told of a bad one."""

from __future__ import annotations

import re

from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.types import Cause, Reply

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(action: str) -> Reply:
    """Returns the action as a `Reply`; lone surrogates, which no encoding can store, become U+FFFD."""
    if type(action) is Reply and action.isascii():
        return action
    text = action if action.isascii() else _SURROGATE.sub("\ufffd", action)
    return Reply(text, action.finish, action.context_tokens) if isinstance(action, Reply) else Reply(text)


def unanswered(reply: Reply) -> Cause | None:
    """Returns why a reply is none, whatever the game; None if it says something."""
    if reply.finish == "timeout":
        return Cause.TIMEOUT
    if reply.finish == "refused":
        return Cause.REFUSED
    if not reply.strip():
        return Cause.LENGTH if reply.finish == "length" else Cause.EMPTY
    return None


UNANSWERED = {
    Cause.TIMEOUT: "Your clock ran out.",
    Cause.EMPTY: "Your reply was empty.",
    Cause.LENGTH: "Your reply was empty.",
}


def unusable_summary(summary: Reply) -> Cause | None:
    """Returns why a summary can't be used, or None."""
    try:
        return unanswered(summary) or (None if strip_thinking(summary).strip() else Cause.EMPTY)
    except IllegalReply as bad:
        return Cause.LENGTH if summary.finish == "length" else bad.cause


def refusal(cause: Cause) -> str:
    """Returns in words that a reply was not taken."""
    return "Your reply was not accepted" if cause is Cause.TIMEOUT else f"Your reply was {cause}"


def retry_text(cause: Cause, hint: str) -> str:
    """Returns what a seat is told that may try again."""
    return f"{refusal(cause)}. {hint} Try again.".replace(".. ", ". ").replace("  ", " ")
