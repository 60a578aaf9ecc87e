"""Problems that a player poses: how one is written in a reply, and read, and drawn.

    expression   PROBLEM: (3 + 4) * 2                     an arithmetic expression
    program      PROGRAM: ... END, on lines of their own  a program of `language`
    template     FILL: a = 12, b = 3, c = 5               the numbers of a story of `stories`

Of several problems in a reply the last one counts. What is posed is shown as it was understood, written anew from its
tokens, so that no other word of the proposer gets through to those who solve it.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec
import numpy as np

from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.proposals.language import LanguageError, Limits, Result, evaluate, run
from llm_arena.problems.proposals.stories import LEAST, TEMPLATES, fill, slots
from llm_arena.types import Cause, Reply

Form = Literal["expression", "program", "template"]
FORMS: tuple[Form, ...] = ("expression", "program", "template")
MARKERS: dict[str, Form] = {"PROBLEM": "expression", "PROGRAM": "program", "FILL": "template"}
EXAMPLES: dict[Form, tuple[tuple[str, int], ...]] = {
    "expression": (("PROBLEM: (3 + 4) * 2", 0), ("PROBLEM: 9 - 2 * 3", 0)),
    "program": (("PROGRAM:\nx = 3\nfor i in range(4):\n    x = x + i\nprint(x)\nEND", 0),),
    "template": (("FILL: a = 2, b = 9, c = 5", 0), ("FILL: a = 8, b = 3", 2)),
}
"""Worked turns for prompts: replies, and the story that they fill."""
_MARKER = re.compile(r"[ \t*_`]*(PROBLEM|PROGRAM|FILL)[*_`]*:[ \t]*(.*)")
_FILLED = re.compile(r"[a-z] ?= ?[0-9]{1,9}(?: ?[,;] ?[a-z] ?= ?[0-9]{1,9})*")
TRIES = 1000


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Which problems may be posed."""

    forms: tuple[Form, ...]
    operands: int
    "Numbers of an expression."
    digits: int
    "Of every number that is written."
    lines: int
    "Of a program."

    def limits(self, form: Form) -> Limits:
        """Returns the bounds of a problem of this form; all that `draw` writes stays within them."""
        if form == "expression":
            return Limits(operands=self.operands, digits=self.digits, value_digits=self.operands * self.digits + 1)
        if form == "program":
            longest = self.digits + self.lines * (max(self.digits, 3) + 1)
            return Limits(digits=self.digits, lines=self.lines, value_digits=longest)
        return Limits(digits=max(self.digits, 2), value_digits=3 * self.digits + 3)

    @property
    def answer_digits(self) -> int:
        """How many digits an answer may have."""
        return max(self.limits(form).value_digits for form in self.forms)


class Proposal(msgspec.Struct, frozen=True):
    """A problem that was posed."""

    form: Form
    text: str
    value: int
    fingerprint: str
    effort: int


def read_proposal(reply: Reply, window: Window, template: int) -> Proposal:
    """Returns the problem that `reply` poses.

    Raises:
        IllegalReply: there is none (unparsable), or it is outside of the window, or has no whole number as its answer.
    """
    lines = strip_thinking(reply).splitlines()
    marked = [(place, match) for place, match in enumerate(map(_MARKER.fullmatch, lines)) if match]
    wanted = " or ".join(f"{marker}:" for marker, form in MARKERS.items() if form in window.forms)
    if not marked:
        raise IllegalReply(Cause.UNPARSABLE, f"Write your problem after {wanted}")
    place, match = marked[-1]
    form, rest = MARKERS[match[1]], match[2].strip()
    if form not in window.forms:
        raise IllegalReply(Cause.ILLEGAL, f"Write your problem after {wanted}")
    cut = reply.finish == "length"
    try:
        if form == "program":
            return _proposal(form, run(_body(rest, lines[place + 1 :], cut), window.limits(form)))
        if cut and place == len(lines) - 1 and not reply.endswith("\n"):
            raise IllegalReply(Cause.LENGTH, "Be shorter.")
        written = rest.strip(" *_`$.")
        if form == "expression":
            return _proposal(form, evaluate(written, window.limits(form)))
        return _proposal(form, fill(template, _values(written, window, template), window.limits(form)))
    except LanguageError as error:
        raise IllegalReply(Cause.ILLEGAL, f"Your problem can't be posed: {error}.") from error


def _proposal(form: Form, result: Result) -> Proposal:
    return Proposal(form, result.text, result.value, result.fingerprint, result.effort)


def _body(rest: str, lines: list[str], cut: bool) -> str:
    """Returns the lines of a program: up to END, or to the end of its fence, or of the reply."""
    body = [rest] if rest and not rest.startswith("```") else []
    for line in lines:
        if line.strip() == "END" or (line.startswith("```") and body):
            return "\n".join(body)
        if not line.startswith("```"):
            body.append(line)
    if cut:
        raise IllegalReply(Cause.LENGTH, "Be shorter, and write END after the program.")
    return "\n".join(body)


def _values(written: str, window: Window, template: int) -> dict[str, int]:
    names = slots(TEMPLATES[template])
    hint = f"Give a number to each of {', '.join(names)}, like FILL: {', '.join(f'{name} = {LEAST}' for name in names)}"
    if not _FILLED.fullmatch(written):
        raise IllegalReply(Cause.UNPARSABLE, hint)
    pairs = re.findall(r"([a-z]) ?= ?([0-9]+)", written)
    if sorted(name for name, _ in pairs) != names:
        raise IllegalReply(Cause.ILLEGAL, hint)
    values = {name: int(value) for name, value in pairs}
    if not all(LEAST <= value < 10**window.digits for value in values.values()):
        raise IllegalReply(Cause.ILLEGAL, f"Numbers are from {LEAST} to {10**window.digits - 1}.")
    return values


def _filled(values: list[tuple[str, int]]) -> str:
    return "FILL: " + ", ".join(f"{name} = {value}" for name, value in values)


def grammar(window: Window, template: int) -> str:
    """Returns a regular expression of replies that pose a problem: some of them, as brackets in brackets have none.

    Free lines come first; then what `draw` may write.
    """
    number = f"(0|[1-9][0-9]{{0,{window.digits - 1}}})" if window.digits > 1 else "[0-9]"
    posed = {
        "expression": f"PROBLEM: {_expressions(number, window.operands)}",
        "program": f"PROGRAM:\na = {number}\nb = {number}\n{_statements(number, window.lines)}print\\([ab]\\)\nEND",
        "template": _fillings(window.digits, template),
    }
    return f"([^<\n]{{0,400}}\n){{0,8}}({'|'.join(posed[form] for form in window.forms)})"


def _expressions(number: str, operands: int) -> str:
    flat = f"{number}( [-+*] {number}){{1,{operands - 1}}}"
    if operands < 4:
        return flat
    part = f"({number}|\\({number} [-+*] {number}\\))"
    return f"({flat}|{part}( [-+*] {part}){{1,{operands // 2 - 1}}})"


def _statements(number: str, lines: int) -> str:
    """Returns statements of two lines at most: products only with written numbers, so that no value grows too long."""
    single = f"[ab] = [ab] [-+] ([ab]|{number})\n|[ab] = [ab] \\* {number}\n"
    loop = f"for i in range\\([1-9]\\):\n    [ab] = [ab] [-+] ([abi]|{number})\n"
    return f"({single}|{loop}){{0,{(lines - 3) // 2}}}"


def _fillings(digits: int, template: int) -> str:
    number = f"([2-9]|[1-9][0-9]{{1,{digits - 1}}})" if digits > 1 else "[2-9]"
    return "FILL: " + ", ".join(f"{name} = {number}" for name in slots(TEMPLATES[template]))


def draw(rng: np.random.Generator, window: Window, template: int) -> str:
    """Draws a reply that poses a problem of the window, of any of its forms."""
    form = window.forms[int(rng.integers(len(window.forms)))]
    if form == "expression":
        return f"PROBLEM: {_draw_expression(rng, window)}"
    if form == "program":
        return _draw_program(rng, window)
    values = [(name, max(LEAST, _draw_number(rng, window.digits))) for name in slots(TEMPLATES[template])]
    return _filled(values)


def _draw_expression(rng: np.random.Generator, window: Window) -> str:
    def number() -> str:
        return str(_draw_number(rng, window.digits))

    if window.operands < 4 or rng.random() < 0.5:
        parts = [number() for _ in range(int(rng.integers(2, window.operands + 1)))]
    else:
        count = int(rng.integers(2, window.operands // 2 + 1))
        parts = [number() if rng.random() < 0.5 else f"({number()} {_sign(rng)} {number()})" for _ in range(count)]
    return parts[0] + "".join(f" {_sign(rng)} {part}" for part in parts[1:])


def _draw_program(rng: np.random.Generator, window: Window) -> str:
    def name(names: str = "ab") -> str:
        return names[int(rng.integers(len(names)))]

    def operand(names: str) -> str:
        return name(names) if rng.random() < 0.5 else str(_draw_number(rng, window.digits))

    lines = [f"{letter} = {_draw_number(rng, window.digits)}" for letter in "ab"]
    for _ in range(int(rng.integers((window.lines - 3) // 2 + 1))):
        kind = int(rng.integers(3))
        if kind == 0:
            lines.append(f"{name()} = {name()} {'+-'[int(rng.integers(2))]} {operand('ab')}")
        elif kind == 1:
            lines.append(f"{name()} = {name()} * {_draw_number(rng, window.digits)}")
        else:
            lines.append(f"for i in range({int(rng.integers(1, 10))}):")
            lines.append(f"    {name()} = {name()} {'+-'[int(rng.integers(2))]} {operand('abi')}")
    return "\n".join(["PROGRAM:", *lines, f"print({name()})", "END"])


def _draw_number(rng: np.random.Generator, digits: int) -> int:
    return int(rng.integers(1, 10 ** int(rng.integers(1, digits + 1))))


def _sign(rng: np.random.Generator) -> str:
    return "+-*"[int(rng.integers(3))]
