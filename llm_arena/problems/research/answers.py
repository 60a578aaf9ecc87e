"""Whether an answer to a question about documents is right: the same name or words, or the same number."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from llm_arena.parsing import stream_safe
from llm_arena.problems.answers import check_exactly

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_NUMERAL = re.compile(r"[-+\u2212]?[$\u20ac\u00a3]?(?:[0-9][0-9.,/]*|\.[0-9]+)%?")
_MARKS = " \t\n*_`\"'\u2018\u2019\u201c\u201d"
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_JOINS = re.compile(r"(?<=[0-9])[-./:,](?=[0-9])|(?<!\w)-(?=[0-9])")
_SYMBOLS = "#%@^"


def is_right(given: str, answers: Sequence[str]) -> bool:
    """Returns whether an answer is one of `answers`: equal but for case, punctuation, spaces and the words a, an, the.

    Numbers are compared by value alone (`check_exactly`). Elsewhere too signs and symbols count, and what joins digits.
    Part of an answer, or more than it, is wrong; so is an empty one.

    >>> is_right("the Orsk.", ["Orsk"]), is_right("Orsk or Yar", ["Orsk"]), is_right("12345", ["12,345"])
    (True, False, True)
    >>> is_right("5", ["-5"]), is_right("C", ["C++"]), is_right("1/2 cups", ["1-2 cups"])
    (False, False, False)
    """
    plain = plain_answer(given)
    if not plain:
        return False
    for answer in answers:
        if _NUMERAL.fullmatch(answer.strip()):
            if check_exactly(given.strip(_MARKS).rstrip(".,;:!?").strip(_MARKS), answer) == "right":
                return True
        elif plain == plain_answer(answer):
            return True
    return False


def plain_answer(text: str) -> str:
    """Returns an answer without what does not count in a comparison."""
    folded = unicodedata.normalize("NFKC", stream_safe(text)).casefold().replace("&", " and ")
    folded = re.sub("[\u2010-\u2015\u2212]", "-", folded)
    folded = _THOUSANDS.sub(lambda found: found.group().replace(",", ""), folded)
    joins = {found.start() for found in _JOINS.finditer(folded)}  # signs, and what stands between two digits
    kept = "".join(
        char if _counts(char) or place in joins else " " if char not in "'\u2019" else ""
        for place, char in enumerate(folded)
    )
    return " ".join(_ARTICLES.sub(" ", kept).split()) or " ".join(kept.split())


def _counts(char: str) -> bool:
    return char.isalnum() or char in _SYMBOLS or unicodedata.category(char) in ("Sm", "Sc", "So")


__all__ = ["is_right", "plain_answer"]
