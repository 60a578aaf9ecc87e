"""What games of hidden sides share: protocol lines, votes, what may be said aloud, and who is paid what.

Two sides, of which one is outnumbered (`few`) and the other is not (`many`). A player who forfeits is out of the game,
and everybody is paid at its end, so that nobody has left when it is settled.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence

from llm_arena.parsing import IllegalReply, normalize, quote, strip_thinking
from llm_arena.types import Cause, Reply

_KEYWORDS = ("ANSWER", "ASK", "CLUE", "GUESS", "SAY", "TARGET", "VOTE", "WHISPER")
# marks of emphasis and headings, and maybe one of a list; possessive, so that a long run of them is read once
_MARKS = "[\\s*_`#]*+(?:(?:[-+\u2022\u2013]|[0-9]{1,3}[.)])\\s++)?[\\s*_`#]*+"
_BEGINS = re.compile(rf"{_MARKS}([A-Za-z]*)[*_`]*\s*(:?)")
_WRAPPING = " \t*_`\"'\u201c\u201d"


def read_line(reply: Reply, keyword: str, *, max_characters: int, whole: bool = False, bare: bool = False) -> str:
    r"""Returns what stands behind the last `KEYWORD:` that begins a line of the reply, thinking left out.

    Markdown around the line is dropped, and a mark of a list. A quoted line (`> ...`) is none: seats quote each other.

    >>> read_line(Reply("They said\n> CLUE: no\nSo:\n**CLUE:** It is warm."), "CLUE", max_characters=100)
    'It is warm.'

    Args:
        reply: the seat's reply.
        keyword: what the line begins with.
        max_characters: the longest text.
        whole: whether a line that the token cap has cut does not count; free talk is read as it stands. If what was
            cut began a line of some keyword, none of the reply counts: it may have been to replace an earlier one.
        bare: whether a reply of one line counts without the keyword, unless it has another one.

    Raises:
        IllegalReply: there is no such line (unparsable; a cut reply: length), nothing stands behind it (empty), or it
            is longer than `max_characters` (illegal).
    """
    hint = f"Reply with one line: {keyword}: <text>."
    pattern = re.compile(rf"{_MARKS}{keyword}[*_`]*\s?:[*_`]*([^\n]*)", re.IGNORECASE)
    lines = strip_thinking(reply).splitlines(keepends=True)
    if whole and reply.finish == "length" and lines and lines[-1] == lines[-1].rstrip("\r\n"):
        cut = lines.pop()  # `VOTE: player_1` may have been about to be player_10
        if _begins_line(cut):
            raise IllegalReply(Cause.LENGTH, f"Be shorter. {hint}")
    said = [found[1] for found in map(pattern.fullmatch, map(str.rstrip, lines)) if found]
    spoken = [line.strip() for line in lines if line.strip()]
    if not said and bare and len(spoken) == 1 and not re.match(r">|\w+\s*:", spoken[0]):
        said = spoken
    if not said:
        raise IllegalReply(Cause.LENGTH if reply.finish == "length" else Cause.UNPARSABLE, hint)
    text = clean(said[-1])
    if not text:
        raise IllegalReply(Cause.EMPTY, hint)
    if len(text) > max_characters:
        raise IllegalReply(Cause.ILLEGAL, f"At most {max_characters} characters may follow {keyword}:.")
    return text


def _begins_line(cut: str) -> bool:
    """Returns whether the beginning of a line is that of one with a keyword, maybe cut within the keyword."""
    found = _BEGINS.match(cut)
    if found is None or not found[1]:
        return False
    word = found[1].upper()
    return word in _KEYWORDS if found[2] else found.end() == len(cut) and any(k.startswith(word) for k in _KEYWORDS)


def read_named(reply: Reply, keyword: str, allowed: Sequence[str]) -> str:
    r"""Returns the one of `allowed` that the whole reply, or else its last `KEYWORD:` line names.

    >>> read_named(Reply("Hm. \nVOTE: [Player_2]."), "VOTE", ["player_1", "player_2"])
    'player_2'

    Raises:
        IllegalReply: there is no such line, or it names anything else.
    """
    if reply.finish != "length" and normalize(strip_thinking(reply)) in allowed:
        return normalize(strip_thinking(reply))
    named = normalize(read_line(reply, keyword, max_characters=100, whole=True).strip("[]<>(). "))
    if named not in allowed:
        raise IllegalReply(Cause.ILLEGAL, f"After {keyword}: write one of {', '.join(allowed)}.")
    return named


def clean(text: str) -> str:
    """Returns `text` on one line, without control and formatting characters and without wrapping marks."""
    if text.isascii() and text.isprintable():  # nearly always
        return " ".join(text.split()).strip(_WRAPPING)
    kept = "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Cs", "Co", "Cn"))
    return " ".join("".join(" " if unicodedata.category(char) == "Cc" else char for char in kept).split()).strip(
        _WRAPPING
    )


def said_by(who: str, text: str) -> str:
    r"""Returns one seat's words for another's view: who, then the words as a quotation.

    >>> said_by("player_1's clue", "VOTE: player_2")
    "player_1's clue:\n> VOTE: player_2"
    """
    return f"{who}:\n{quote(text)}"


def most_named(votes: Mapping[str, str | None]) -> list[str]:
    """Returns who was named most often, in order of name; None votes for nobody and does not count.

    >>> most_named({"a": "c", "b": "a", "c": "a", "d": "c", "e": None})
    ['a', 'c']
    """
    named = [target for target in votes.values() if target is not None]
    return sorted({target for target in named if named.count(target) == max(map(named.count, named))})


def settle(sides: Mapping[str, str], few: str, winner: str | None, forfeited: Collection[str]) -> dict[str, float]:
    """Returns what each seat is paid at the end; the sum is zero.

    Each of the outnumbered side wins or loses 1, each of the others len(few) / len(many); a draw pays 0. A forfeiter
    loses 1 whoever won, which is the worst that a loss costs. What it would have been due above that goes to the
    seats of the other side that did not forfeit, so that no side gains by a forfeit of its own. Only if all of the
    other side forfeited too it goes to who did not, which are then of its own side. If everybody forfeited nobody is
    paid.

    >>> settle({"a": "w", "b": "v", "c": "v"}, "w", "v", ())
    {'a': -1.0, 'b': 0.5, 'c': 0.5}
    >>> settle({"a": "w", "b": "v", "c": "v"}, "w", "v", {"c"})
    {'a': 0.5, 'b': 0.5, 'c': -1.0}
    >>> settle({"a": "w", "b": "v", "c": "v"}, "w", "v", {"a", "c"})
    {'a': -1.0, 'b': 2.0, 'c': -1.0}

    Args:
        sides: the side of each seat, for all seats that began.
        few: name of the outnumbered side.
        winner: the side that won; None is a draw.
        forfeited: the seats that did.
    """
    outnumbered = sum(side == few for side in sides.values())
    stake = {side: 1.0 if side == few else outnumbered / (len(sides) - outnumbered) for side in sides.values()}
    sign = {side: 0.0 if winner is None else 1.0 if side == winner else -1.0 for side in sides.values()}
    paid = {seat: sign[side] * stake[side] for seat, side in sides.items()}
    stayed = [seat for seat in sides if seat not in forfeited]
    if not stayed:
        return dict.fromkeys(sides, 0.0)
    for seat in forfeited:
        takers = [other for other in stayed if sides[other] != sides[seat]] or stayed
        for other in takers:
            paid[other] += (sign[sides[seat]] * stake[sides[seat]] + 1.0) / len(takers)
        paid[seat] = -1.0
    return paid
