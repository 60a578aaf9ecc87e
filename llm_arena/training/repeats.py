"""How much of what a seat says another seat has just said: the sign of a pair that repeats each other.

The measure is the share of a reply's word 4-grams that stand in the last reply of another seat before it, pooled over
the replies of a role. Thoughts, quoted lines (`> ...`) and text in `<final_answer>` tags are left out, for a verifier
accepts an answer by writing it again; a reply of fewer than four words, such as a move, has no 4-gram and counts
nowhere, not as a last reply either. What a seat repeats of its own is not looked at. Shares of copied n-grams as a
measure of overlap: See et al. 2017, arXiv:1704.04368, section 7.2.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.final_answers import TAG, without_quotes
from llm_arena.types import Trace

WORDS = 4
"""Length of an n-gram. In replies of a small model to each other, 3-grams such as `the answer is` stand by chance."""

_TAGGED = re.compile(rf"<{TAG}>[^<]*</{TAG}>")
_WORD = re.compile(r"\w+")


class Repeats:
    """Counts over the traces of a step."""

    def __init__(self) -> None:
        self._all: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    def add(self, trace: Trace, seats: Collection[str]) -> None:
        """Counts the replies of `seats` against those of all seats."""
        if len(trace.seats) < 2:
            return
        last: dict[str, set[tuple[str, ...]]] = {}
        for turn in trace.turns:
            grams = _grams(turn.text)
            before = next((said for seat, said in reversed(last.items()) if seat != turn.seat), None)
            if turn.seat in seats and before is not None:
                role = trace.seats[turn.seat].role
                self._all[role] += len(grams)
                self._repeated[role] += sum(gram in before for gram in grams)
            if grams:  # an "ok" says nothing that could be repeated, so it is no last reply
                last.pop(turn.seat, None)  # so that the order is that of the last replies
                last[turn.seat] = set(grams)

    def row(self) -> dict[str, float]:
        """Returns `reply/repeated/ROLE`, and without a role the share over all; left out where there is no 4-gram."""
        roles = {
            f"reply/repeated/{role}": self._repeated[role] / count for role, count in sorted(self._all.items()) if count
        }
        return {"reply/repeated": self._repeated.total() / self._all.total()} | roles if roles else {}


def _grams(text: str) -> list[tuple[str, ...]]:
    try:
        said = strip_thinking(text)
    except IllegalReply:  # thoughts that never end: nothing was said
        return []
    words = _WORD.findall(_TAGGED.sub(" ", without_quotes(said)).casefold())
    return list(zip(*(words[first:] for first in range(WORDS)), strict=False))
