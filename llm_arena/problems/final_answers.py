r"""The final answer of a reply in the games about problems: written, read, and asked for as a grammar.

Who quotes another's answer to refute it has not given it. So others see a reply by `fenced`, in which the tags are
broken (`<·final_answer>`), and lines that begin with `>` are left out before an answer is read (`without_quotes`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from llm_arena.parsing import IllegalReply, boxed, final_number, one_line, quote, read_tagged, strip_thinking
from llm_arena.problems.answers import check_exactly
from llm_arena.types import Cause, Reply

AnswerFormat = Literal["tag", "lenient"]

ANSWER_FORMATS = ("tag", "lenient")

TAG = "final_answer"
MAX_SHOWN = 200
"""Characters of an answer that are repeated in a line of its own."""

_QUOTED = re.compile(r"^[ \t]*>[^\n\r]*", re.MULTILINE)
_TAGS = re.compile(rf"<(?=/?(?:{TAG}|think|tool_call)>)")

# Any words are legal, so this asks for less than the rules allow: some lines, and then maybe an answer.
ANSWER_GRAMMAR = rf"[A-Za-z0-9][^<>\n]{{0,300}}(\n[^<>\n]{{1,300}}){{0,7}}(<{TAG}>[^<>\n]{{1,100}}</{TAG}>)?"
"""Of a reply with or without an answer, as a regular expression."""


def tagged(answer: str) -> str:
    """Returns `answer` in the tag.

    >>> tagged("7")
    '<final_answer>7</final_answer>'
    """
    return f"<{TAG}>{answer}</{TAG}>"


def visible_text(reply: Reply) -> str:
    """Returns a reply without thoughts and white space around it.

    Raises:
        IllegalReply: nothing is left (empty), or thoughts were not closed (unparsable).
    """
    text = strip_thinking(reply).strip()
    if not text:
        raise IllegalReply(Cause.EMPTY, f"Give your reasons, and the answer between <{TAG}> and </{TAG}>.")
    return text


def without_quotes(text: str) -> str:
    r"""Returns `text` with the lines empty that begin with `>`: what is quoted there is not the seat's own.

    >>> without_quotes("You wrote:\n> <final_answer>7</final_answer>\nNo.")
    'You wrote:\n\nNo.'
    """
    return _QUOTED.sub("", text.replace("\r", "\n"))


def fenced(text: str, *, max_characters: int = 4000) -> str:
    r"""Returns a seat's text for another seat's view: quoted, without tags that would count if they were copied.

    >>> fenced("I get <final_answer>7</final_answer>")
    '> I get <·final_answer>7<·/final_answer>'
    """
    return quote(_TAGS.sub("<·", text), max_characters=max_characters)


def read_answer(text: str, answer_format: AnswerFormat) -> str | None:
    r"""Returns the answer in a seat's own text, or None: the last tag's, for `lenient` else the last box or number.

    Lines that begin with `>` do not count.

    >>> read_answer("7, no: <final_answer>8</final_answer> or 9", "tag"), read_answer("It is 7.", "tag")
    ('8', None)
    >>> read_answer("It is 7.", "lenient")
    '7'
    """
    text = without_quotes(text)
    answer = read_tagged(text, TAG)
    return answer if answer or answer_format == "tag" else boxed(text) or final_number(text)


def shown_answer(answer: str) -> str:
    """Returns an answer as others are shown it: on one line, without control characters, and not long."""
    return one_line(answer)[:MAX_SHOWN]


def commonest(answers: Sequence[str | None]) -> int | None:
    """Returns the index of the answer that most others equal, the first of several; None if nobody gave one.

    Self-consistency (Wang et al. 2022, arXiv:2203.11171).

    >>> commonest([None, "2", "1.0", "1"])
    2
    """
    votes = [
        0 if mine is None else sum(other is not None and check_exactly(mine, other) == "right" for other in answers)
        for mine in answers
    ]
    return votes.index(max(votes)) if any(votes) else None


__all__ = [
    "ANSWER_FORMATS",
    "ANSWER_GRAMMAR",
    "MAX_SHOWN",
    "TAG",
    "AnswerFormat",
    "commonest",
    "fenced",
    "read_answer",
    "shown_answer",
    "tagged",
    "visible_text",
    "without_quotes",
]
