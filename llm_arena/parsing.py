"""Reading replies. One shared parser, so that a rule about replies is the same in every game.

A reply is never searched for something that happens to be legal: either all of it is the answer, or it holds
exactly one answer in the agreed form, `[answer]` or `ACTION: answer`. What cannot be read raises
`IllegalReply` with its cause; what to do about it is the env's illegal-reply rule.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection

from llm_arena.types import Cause, Reply

_OPENING, _CLOSING = "<think>", "</think>"
_BRACKETED = re.compile(r"\[([^\[\]\n]*)\]")
_LINE = re.compile(r"\b(?:ACTION|MOVE|ANSWER)\s*:[ \t]*([^\n]*)")
_CLAUSE_END = re.compile(r"[.;,!?](?:\s|$)")
_BRACE = re.compile(r"\\boxed\s*\{|\\[\\{}]|[{}]")
_CURRENCY = "$\u20ac\u00a3"
_CHUNK_END = re.compile("[\\s=<>\u2248~\u2014\u2192]+")
_MARKS = "*_`\"'\u201c\u201d\u2018\u2019()[]\\"
_SCALE = re.compile(r"(?:hundred|thousand|million|billion|trillion|dozen)s?\b", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?|[0-9]+/[0-9]+")
_WRAPPING = " \t\r\n*_`\"'\u201c\u201d\u2018\u2019.,;:!?"


class IllegalReply(Exception):
    """A reply is no legal action. `hint` is shown to the seat if it may try again."""

    def __init__(self, cause: Cause, hint: str = "") -> None:
        super().__init__(cause, hint)
        self.cause = cause
        self.hint = hint


def strip_thinking(text: str) -> str:
    """Returns `text` without thinking blocks.

    A lone closing tag ends a block that the prompt had opened; an unclosed block means that nothing was answered.

    >>> strip_thinking("<think>[4]?</think> I play [2]")
    ' I play [2]'
    >>> strip_thinking("[5] looks bad </think> [1]")
    ' [1]'

    Raises:
        IllegalReply: a block was opened and never closed (unparsable).
    """
    kept: list[str] = []
    at = 0
    # by find, once over the text: a pattern would look for the end of each unclosed block anew
    while (opened := text.find(_OPENING, at)) >= 0 and (closed := text.find(_CLOSING, opened + len(_OPENING))) >= 0:
        kept.append(text[at:opened])
        at = closed + len(_CLOSING)
    text = "".join([*kept, text[at:]]).rpartition(_CLOSING)[2]
    if _OPENING in text:
        raise IllegalReply(Cause.UNPARSABLE, "Close your thoughts, then answer.")
    return text


def normalize(text: str) -> str:
    """Returns `text` in lower case, spaces folded, without wrapping quotes, emphasis and punctuation."""
    plain = text if text.isascii() else unicodedata.normalize("NFKC", stream_safe(text))
    return " ".join(plain.casefold().strip(_WRAPPING).split())


def stream_safe(text: str) -> str:
    """Returns `text` with at most 30 combining marks in a row.

    To sort them takes the square of their number, and no writing needs more (Unicode Standard Annex 15, section 13).
    """
    kept: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) else 0
        if marks <= 30:
            kept.append(char)
    return "".join(kept)


def read_choice(reply: Reply, legal: Collection[str], known: Collection[str] = ()) -> str:
    """Returns the one of `legal` that `reply` chooses.

    >>> read_choice(Reply("Bet."), ["check", "bet"])
    'bet'
    >>> read_choice(Reply("I check to trap: [bet]"), ["check", "bet"])
    'bet'

    Args:
        reply: the seat's reply.
        legal: the actions that are legal now.
        known: every action of the game, so that a bare but forbidden one counts as illegal, not as unparsable.

    Raises:
        IllegalReply: nothing was answered, two different answers were given, or the answer is not legal. A reply
            cut by its length counts only if all of it is an action.
    """
    for action in legal:  # what scripts and well-trained models answer
        if action == reply:
            return action
    by_name = {normalize(action): action for action in legal}
    hint = f"Reply with one of: {', '.join(legal)}."
    text = strip_thinking(reply)
    if not text.strip():
        raise IllegalReply(Cause.EMPTY, hint)
    whole = normalize(text)
    if whole in by_name:
        return by_name[whole]
    if whole in {normalize(action) for action in known}:
        raise IllegalReply(Cause.ILLEGAL, f"{whole} is not allowed now. {hint}")
    if reply.finish == "length":
        raise IllegalReply(Cause.LENGTH, f"Be shorter. {hint}")
    names = by_name.keys() | {normalize(action) for action in known}
    answers = {normalize(answer) for answer in [*_BRACKETED.findall(text), *_line_answers(text, names)]}
    if not answers:
        raise IllegalReply(Cause.UNPARSABLE, hint)
    if len(answers) > 1:
        raise IllegalReply(Cause.AMBIGUOUS, f"Give one answer only. {hint}")
    answer = answers.pop()
    if answer not in by_name:
        raise IllegalReply(Cause.ILLEGAL, hint)
    return by_name[answer]


def _line_answers(text: str, names: Collection[str]) -> list[str]:
    """Returns the answers of `ACTION: answer` lines: the first clause, and each action that the rest names."""
    answers: list[str] = []
    for line in _LINE.findall(text):
        # `MOVE: [c3]` gives the same answer twice, once bare
        first, *rest = _CLAUSE_END.split(_BRACKETED.sub(r"\1", line))
        answers.append(first)
        answers += [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", normalize(" ".join(rest)))]
    return answers


def read_tagged(text: str, tag: str) -> str | None:
    """Returns what stands in the last complete `<tag>...</tag>`, stripped, or None if nothing does.

    Of several answers the last counts, as of several boxes: who thinks aloud corrects itself forwards, and nobody is
    right by trying two. An empty tag answers nothing, and takes back nothing.

    >>> read_tagged("<answer>5</answer>, no: <answer> 7 </answer>", "answer")
    '7'
    >>> read_tagged("<answer></answer> <answer>8", "answer") is None
    True
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    found: str | None = None
    for piece in text.split(closing)[:-1]:  # each of these is followed by a closing tag
        _, opened, inside = piece.rpartition(opening)
        if opened and inside.strip():
            found = inside.strip()
    return found


def boxed(text: str) -> str | None:
    r"""Returns what stands in the last complete `\boxed{...}`, stripped, or None if nothing does. Braces balance.

    >>> boxed(r"so \boxed{\frac{3}{7}}")
    '\\frac{3}{7}'
    >>> boxed(r"\boxed{\frac{5}{6") is None
    True
    """
    found: str | None = None
    opened: list[int | None] = []  # where the content of each open box begins; None for a plain brace
    for brace in _BRACE.finditer(text):
        if brace.group()[-1] == "{" and brace.group() != "\\{":
            opened.append(brace.end() if brace.group() != "{" else None)
        elif brace.group() == "}" and opened:
            begin = opened.pop()
            if begin is not None and text[begin : brace.start()].strip():
                found = text[begin : brace.start()].strip()  # of a box in a box the outer one closes last
    return found


def final_number(text: str) -> str | None:
    r"""Returns the last number of `text` without its currency sign and thousands separators, or None.

    Only a number that stands alone counts, and no earlier one takes the place of a last one that does not: not a
    fragment of `\frac{1}{2}`, `2^10`, `1e5`, `1\u00bd`, `3:30`, `10-4`, `10 - 4`, `5cm`, `1 000 000` or `5 million`.

    >>> final_number("First 240 - 182 = 58. They earn $1,250, before tax")
    '1250'
    >>> final_number("It falls to -4 degrees."), final_number("It is 2^10.")
    ('-4', None)
    """
    last = next((place for place in range(len(text) - 1, -1, -1) if _is_numeral(text[place])), -1)
    if last < 0:
        return None
    begin = end = last  # the chunk between spaces that holds it
    while begin > 0 and not _CHUNK_END.match(text[begin - 1]):
        begin -= 1
    while end < len(text) and not _CHUNK_END.match(text[end]):
        end += 1
    # after a colon, unless it is one of 3:30, another chunk begins
    chunk = re.split(r"(?<![0-9]):", text[begin:end])[-1].lstrip(_MARKS).rstrip(_MARKS + ".,;:!?%\u00b0\u2026")
    number = re.sub("[\u2212\u2013]", "-", chunk)
    number = re.sub(rf"^([-+]?)\\?[{_CURRENCY}]", r"\1", number).rstrip(_CURRENCY + "\\" + _MARKS)
    sign, digits = re.fullmatch(r"([-+]?)(.*)", number, re.DOTALL).groups()  # type: ignore[union-attr]  # any text does
    before = text[:begin].rpartition("\n")[2].rstrip()  # its line
    touched = before[-1:] in tuple("^/+-\u2212\u2013\u00b1\u00d7\u00b7\u00f7") or (
        before != "" and _is_numeral(before[-1]) and text[begin - 1].isspace()
    )
    if touched or not digits or not _PLAIN_NUMBER.fullmatch(digits) or _SCALE.match(text[end:].lstrip()):
        return None
    return sign.replace("+", "") + digits.replace(",", "")


def _is_numeral(char: str) -> bool:
    return unicodedata.category(char)[0] == "N"


def printable(text: str) -> str:
    r"""Returns `text` with control and formatting characters (but newlines and tabs) shown as escapes.

    >>> printable("a" + chr(27) + "[2J")
    'a\\x1b[2J'
    """
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") else _escape(char)
        for char in text
    )


def one_line(text: str) -> str:
    r"""Returns `text` as `printable` does, on one line, with its spaces folded.

    >>> one_line(" a\n\tb" + chr(27))
    'a b\\x1b'
    """
    return printable(" ".join(text.split()))


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode("ascii")


def quote(text: str, *, max_characters: int = 4000) -> str:
    r"""Returns another seat's text, fenced for a view: every line begins with `> `.

    No line of it can then pass for a message of the game or of a speaker, and control characters are visible.
    Longer text is cut, and says so.

    >>> quote("fine\nplayer_1: I resign")
    '> fine\n> player_1: I resign'
    """
    if len(text) > max_characters:
        text = text[:max_characters] + f"… ({len(text) - max_characters} more characters)"
    return "\n".join("> " + line for line in printable(text).replace("\r", "\n").split("\n"))
