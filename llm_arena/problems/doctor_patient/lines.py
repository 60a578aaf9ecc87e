"""What doctor-patient-v0 tells its seats, and how a doctor's line is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.doctor_patient.cases import Opening
from llm_arena.problems.doctor_patient.conditions import table
from llm_arena.problems.doctor_patient.diagnosis import OPEN_PRICE, diagnosis
from llm_arena.types import Cause, Message, Reply

_LINE = re.compile(r"[ \t*_`#]*(ASK|TEST|DIAGNOSIS)[*_`]*[ \t]*:[ \t*_`]*(.*)", re.IGNORECASE | re.ASCII)
_ENTRY = re.compile(r"[ \t]*(?:#?[0-9]{1,2}[.):]|[-*])[ \t]*(.+)")
_NUMBER = re.compile(r"(?:^|(?<=[\s;,]))#?[0-9]{1,2}[.):]")
_SHARE = re.compile(r"[ :\u2013\u2014-]{1,5}(?:about )?[0-9]{1,3}(?:\.[0-9]{1,3})? ?%$")
_BRACKETS = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
MAX_LINE = 1000
"""A longer line is none of the protocol, and no name."""

MAX_COST = 1000
OPEN_QUESTIONS = 2
"""How many open questions of a game get an answer."""

PATIENT_TEXT = (
    "You play a patient in a game; it is not medical advice. Answer the doctor in one short sentence. "
    "Tell only what is asked, truthfully by your card: what is not on it you do not have. "
    "Say it like this: Yes, I have ... or: No, I do not have ... Name no disease."
)


def check_settings(
    choices: Mapping[str, tuple[str, Collection[str]]],
    limits: Mapping[str, tuple[int, int, int]],
    costs: Mapping[str, float],
) -> None:
    """Raises a `UsageError` if a setting of the game is out of its range.

    Args:
        choices: name -> what was given, and what is allowed.
        limits: name -> what was given, the least and the greatest whole number that is allowed.
        costs: name -> what was given.
    """
    for name, (given, allowed) in choices.items():
        if given not in allowed:
            raise UsageError(f"{name}={given!r:.100}; expected {' or '.join(allowed)}")
    for name, (count, low, high) in limits.items():
        if not isinstance(count, int) or isinstance(count, bool) or not low <= count <= high:
            raise UsageError(f"{name}={count!r:.100}; expected a whole number from {low} to {high}")
    for name, cost in costs.items():
        if not isinstance(cost, int | float) or isinstance(cost, bool) or not 0 <= cost <= MAX_COST:
            raise UsageError(f"{name}={cost!r:.100}; expected a number from 0 to {MAX_COST}")


def doctor_text(question_cost: float, test_cost: float, ranked: int, *, listed: bool, tested: bool) -> str:
    """Returns the rules for the doctor.

    Args:
        question_cost: what a question costs.
        test_cost: what a test costs, times its price.
        ranked: how many conditions a diagnosis may name.
        listed: whether the conditions are listed.
        tested: whether the game has tests; without, their list and all about them is left out.
    """
    known = table()
    prices = "; ".join(f"{test.name} ({test.price})" for test in known.tests.values())
    order = "TEST: blood count\n(orders a test, once)\n" if tested else ""
    test_costs = f", a test {test_cost:g} times its price" if tested else ""
    tests = f"\nTests with prices: {prices}." if tested else ""
    conditions = f"\nConditions: {'; '.join(known.conditions)}." if listed else ""
    places = "; ".join(f"{place}. ..." for place in range(1, ranked + 1))
    return (
        "You play a doctor in a game; it is not medical advice. Find out what the patient has. "
        "Reply with one line each time:\n"
        "ASK: fever\n(asks the patient about up to three things; each counts as a question; "
        f"What else? counts as {OPEN_PRICE}, at most {OPEN_QUESTIONS} times)\n"
        f"{order}DIAGNOSIS: {places}\n(ends the game: the likeliest condition first)\n"
        f"A question costs {question_cost:g}{test_costs}. "
        f"The right condition at place 1 pays 1, at place r 1/r.{tests}{conditions}"
    )


def who(opening: Opening) -> str:
    """Returns a patient in words.

    >>> who(Opening(8, "male", "fever")), who(Opening(34, "female", "fever"))
    ('an 8-year-old boy', 'a 34-year-old woman')
    """
    child, grown = {"female": ("girl", "woman"), "male": ("boy", "man")}[opening.sex]
    article = "an" if opening.age in (8, 11, 18) or 80 <= opening.age <= 89 else "a"
    return f"{article} {opening.age}-year-old {child if opening.age < 16 else grown}"


def left_text(questions: int, tests: int | None) -> str:
    """Returns what a doctor has left, and which lines it may reply with.

    Args:
        questions: how many are left.
        tests: how many are left; None in a game without tests.
    """
    may = [f"{kind}: ..." for kind, left in (("ASK", questions), ("TEST", tests)) if left]
    line = " or ".join([*may, "DIAGNOSIS: 1. ..."])
    left = "" if tests is None else f" Tests left: {tests}."
    return f"Questions left: {questions}.{left} Reply with one line: {line}"


def example(*, tested: bool) -> list[Message]:
    """Returns what a doctor's view begins with: without worked lines SmolLM2-135M answers in prose only."""
    tests = 2 if tested else None
    came, heard = "A 50-year-old man comes to you and says: I have a headache.", "> No, I do not have a stiff neck."
    return [
        {"role": "user", "content": f"{came}\n{left_text(9, tests)}"},
        {"role": "assistant", "content": "ASK: stiff neck"},
        {"role": "user", "content": f"The patient says:\n{heard}\n{left_text(8, tests)}"},
        {"role": "assistant", "content": "TEST: blood count" if tested else "DIAGNOSIS: 1. tension headache"},
    ]


def random_line(rng: np.random.Generator, tests: Sequence[str], *, asks: bool, ranked: int) -> str:
    """Draws a doctor's line: a question about one item, a test or a diagnosis. Arguments as for `doctor_grammar`."""
    items, names, drawn = list(table().items), list(table().conditions), rng.random()
    if drawn < 0.6 and asks:
        return f"ASK: {items[int(rng.integers(len(items)))]}"
    if drawn < 0.8 and tests:
        return f"TEST: {tests[int(rng.integers(len(tests)))]}"
    return diagnosis([names[int(number)] for number in rng.permutation(len(names))[:ranked]])


def doctor_grammar(tests: Sequence[str], *, asks: bool, ranked: int, listed: bool) -> str:
    """Returns the regular expression of a doctor's reply.

    Args:
        tests: those that may be ordered.
        asks: whether questions are left.
        ranked: how many conditions a diagnosis may name.
        listed: whether only names of the table are allowed, else any words (and may be refused).
    """
    # the names of the table have no character that means something in a pattern
    name = f"({'|'.join(table().conditions)})" if listed else "[A-Za-z][A-Za-z0-9' -]{1,60}"
    more = "".join(f"(; {place}\\. {name}" for place in range(2, ranked + 1)) + ")?" * (ranked - 1)
    lines = [f"DIAGNOSIS: 1\\. {name}{more}"]
    if tests:
        lines.append(f"TEST: ({'|'.join(tests)})")
    if asks:
        lines.append("ASK: [A-Za-z][^\\n:<]{0,150}")
    return f"([^\\n:<]{{0,300}}\\n)?({'|'.join(lines)})"


def read_protocol(reply: Reply, *, tested: bool) -> tuple[str, str]:
    r"""Returns (`ASK`, `TEST` or `DIAGNOSIS`, the text after it); names of a diagnosis are separated by newlines.

    >>> read_protocol(Reply("It may be the flu.\nASK: a fever?"), tested=True)
    ('ASK', 'a fever?')

    Args:
        reply: the doctor's.
        tested: whether the game has tests, and a hint may name them.

    Raises:
        IllegalReply: there is no such line, or there are two different ones.
    """
    hint = f"Reply with one line that begins with {'ASK:, TEST:' if tested else 'ASK:'} or DIAGNOSIS:"
    lines = strip_thinking(reply).split("\n")
    if reply.finish == "length":
        lines.pop()  # it may be half a line
    found: tuple[str, str] | None = None
    for number, line in enumerate(lines):
        match = _protocol(line)
        if not match:
            continue
        kind, text = match[1].upper(), match[2].strip(" \t*_`")
        if kind == "DIAGNOSIS":
            text = "\n".join(_names(text, lines, number + 1))
        if not text or (kind, text) == found:
            continue
        if found:
            raise IllegalReply(Cause.AMBIGUOUS, hint)
        found = (kind, text)
    if not found:
        raise IllegalReply(Cause.LENGTH if reply.finish == "length" else Cause.UNPARSABLE, hint)
    return found


def _protocol(line: str) -> re.Match[str] | None:
    return _LINE.fullmatch(line.rstrip()) if len(line) <= MAX_LINE else None


def _names(text: str, lines: list[str], at: int) -> list[str]:
    """Returns the names of a diagnosis: those of its line, and of the numbered lines right below it (from `at` on).

    A blank line ends them once there are some, and so does the next line of the protocol.
    """
    parts = text.split(";") if ";" in text else _NUMBER.split(text) if _NUMBER.search(text) else text.split(",")
    names = [name for part in parts for name in [_name(part)] if name]
    while at < len(lines) and not _protocol(lines[at]):
        match = _ENTRY.fullmatch(lines[at].rstrip()) if len(lines[at]) <= MAX_LINE else None
        if match is None and (names or lines[at].strip()):
            break
        name = _name(match[1]) if match else ""
        names += [name] if name else []
        at += 1
    return names


def _name(part: str) -> str:
    """Returns a name without its number, its share in percent and brackets around all of it."""
    name = _NUMBER.sub("", part.strip(" \t*_`"), count=1).strip(" \t*_`.,;")
    name = _SHARE.sub("", name).strip(" \t*_`.,;")
    whole = _BRACKETS.fullmatch(name)
    return whole[1].strip() if whole else name


__all__ = [
    "OPEN_QUESTIONS",
    "PATIENT_TEXT",
    "check_settings",
    "doctor_grammar",
    "doctor_text",
    "example",
    "left_text",
    "random_line",
    "read_protocol",
    "who",
]
