r"""Expressions and small programs whose value is one whole number, read and run by our own code: never `eval`.

What a model writes is read strictly, run within `Limits`, and comes to a `Result` or to a `LanguageError`, and to
nothing else. Every program is also a Python program, and prints the same there.

    expression   a sum, in which "/" divides exactly: 7 / 2 * 4 is 14, and 7 / 2 alone is no whole number
    program      statements, one a line; one number is printed, once
    statement    NAME "=" value | NAME ("+=" | "-=" | "*=") sum | NAME "[" sum "]" "=" sum | "print(" sum ")"
                 | "if" condition ":" block ["else" ":" block] | "for" NAME "in" range ":" block
    range        "range(" sum ["," sum] ")" | NAME of a list
    block        the lines that follow, indented by the same number of spaces, more than the line before
    condition    sum ("<" | "<=" | ">" | ">=" | "==" | "!=") sum
    value        sum | "[" sum ("," sum)* "]"
    sum          term (("+" | "-") term)*
    term         factor (("*" | "//" | "%") factor)*        // and % round down, as in Python; "/" in expressions only
    factor       "-" factor | NUMBER | NAME | NAME "[" sum "]" | "(" sum ")" | FUNCTION "(" NAME of a list ")"
    FUNCTION     "len" | "sum" | "min" | "max"
    NAME         one letter from a to z, and one digit if need be; so no text can be said in names
    NUMBER       decimal digits without a leading zero

Comments and blank lines are left out. Numbers are exact; lists hold numbers, and a list has one name.

Two problems have one fingerprint if they are the same computation: names, spaces, brackets, the order of sums and
products, the order of lines that don't depend on each other, lines and blocks that what is printed does not depend on,
conditions that compare written numbers, and loops written out do not matter. It is found while the problem runs: each
number carries a hash of how it came about, for which sums add and products multiply modulo a prime; the printed
number's hash is taken together with those of the conditions, ranges and places that were looked at on the way to it.
Arithmetic is not simplified, so what changes nothing in it is another computation: `+ 0`, `* 1`, `6 / 2` for 3, or a
condition on a name that happens to hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple, TypeGuard

import msgspec

from llm_arena.problems.proposals.language_reader import (
    NAME,
    LanguageError,
    Limits,
    Node,
    read_expression,
    read_program,
    within,
)

_PRIME = 2**127 - 1
_COMPARE: dict[str, Callable[[Fraction | int, Fraction | int], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}


class Result(msgspec.Struct, frozen=True):
    """What a problem comes to."""

    text: str
    "The problem, written in one way: nothing but tokens of the language."
    value: int
    fingerprint: str
    "Equal for equal computations, 32 hexadecimal digits."
    effort: int
    "Digits that are worked on: for + - and comparisons those of the longer number, for * / // % the product of both."
    steps: int


class _Number(NamedTuple):
    """A number, and how it came about, as a term of sums and as a factor of products."""

    value: Fraction | int
    term: int
    factor: int


def evaluate(text: str, limits: Limits | None = None) -> Result:
    """Returns what an arithmetic expression comes to.

    >>> evaluate("(3+4) * 2").value, evaluate("2*(4 + 3)").fingerprint == evaluate("(3+4) * 2").fingerprint
    (14, True)

    Raises:
        LanguageError: it is none, is no whole number, or exceeds a limit.
    """
    limits = limits or Limits()
    node, shown = read_expression(text, limits)
    machine = _Machine(limits)
    number = machine.number(node)
    return machine.result(shown, number, [("expression", number.term)])


def run(text: str, limits: Limits | None = None) -> Result:
    r"""Returns what a program prints.

    >>> run("x = 3\nfor i in range(2):\n    x = x * 2\nprint(x)").value
    12

    Raises:
        LanguageError: it is no program, fails, prints nothing or more than one number, or exceeds a limit.
    """
    limits = limits or Limits()
    body, shown = read_program(text, limits)
    machine, bare = _Machine(limits), _Machine(limits)
    machine.run(body)
    if machine.printed is None:
        raise LanguageError("nothing is printed; end with print(x)")
    bare.run(_kept(body, _needed(body)))  # the same number in the same way, without what has no effect on it
    return machine.result(shown, machine.printed, [("program", machine.printed.term), ("control", bare.control)])


def _needed(body: list[Node]) -> set[str]:
    """Returns the names that what is printed may depend on, by which statements set and read them, in any order."""
    needed: set[str] = set()
    while True:
        grown = needed.union(*[_read(statement) for statement in _kept(body, needed)])
        if grown == needed:
            return needed
        needed = grown


def _kept(body: list[Node], needed: set[str]) -> list[Node]:
    """Returns the statements that print, or set a name that is needed, and the blocks around them."""
    kept: list[Node] = []
    for statement in body:
        blocks = [_kept(part, needed) for part in statement if _is_block(part, statement)]
        own = statement[0] == "print" or (statement[0] != "if" and statement[1] in needed)
        if own or any(blocks):
            rest = iter(blocks)
            kept.append(tuple(next(rest) if _is_block(part, statement) else part for part in statement))
    return kept


def _is_block(part: object, statement: Node) -> TypeGuard[list[Node]]:
    return isinstance(part, list) and statement[0] in ("if", "for")


def _read(statement: Node) -> set[str]:
    """Returns the names that a statement reads, with those of its blocks."""
    names: set[str] = set()
    for part in statement[2:] if statement[0] in ("let", "list", "for") else statement[1:]:
        if _is_block(part, statement):
            names = names.union(*[_read(inner) for inner in part])
        else:
            names |= _names(part)
    return names


def _names(node: object) -> set[str]:
    """Returns the names in a tree."""
    if isinstance(node, str):
        return {node} if NAME.fullmatch(node) else set()
    names: set[str] = set()
    for part in node if isinstance(node, tuple | list) else ():
        names |= _names(part)
    return names


class _Machine:
    """Carries out what was read, counting."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bound = 10**limits.value_digits
        self.steps = self.effort = self.control = 0
        self.names: dict[str, _Number | list[_Number]] = {}
        self.printed: _Number | None = None

    def result(self, text: str, number: _Number, marks: list[tuple[str, int]]) -> Result:
        if number.value != int(number.value):
            raise LanguageError(f"{number.value} is no whole number")
        fingerprint = hashlib.blake2b(repr(marks).encode(), digest_size=16).hexdigest()
        return Result(text, int(number.value), fingerprint, self.effort, self.steps)

    def run(self, body: list[Node]) -> None:
        for statement in body:
            self._step()
            match statement:
                case ("let", str(name), tuple(value)):
                    self.names[name] = self.number(value)
                case ("list", str(name), list(items)):
                    within(len(items), self.limits.items, "items")
                    self.names[name] = [self.number(item) for item in items]
                case ("put", str(name), tuple(place), tuple(value)):
                    number = self.number(value)  # before the place, as in Python
                    values = self._list(name)
                    values[self._place(place, values)] = number
                case ("print", tuple(value)):
                    if self.printed is not None:
                        raise LanguageError("more than one number is printed; print one, once")
                    self.printed = self.number(value)
                case ("if", str(sign), tuple(left), tuple(right), list(then), *rest):
                    left_number, right_number = self.number(left), self.number(right)
                    if _names(left) or _names(right):
                        self._note(sign, left_number.term, right_number.term)
                    self._choose(sign, left_number, right_number, then, rest)
                case ("for", str(name), "range", tuple(first), tuple(last), list(inner)):
                    low, high = self.number(first), self.number(last)
                    if _names(first) or _names(last):  # else what the loop does says how often it is done
                        self._note("range", low.term, high.term)
                    for count in range(int(low.value), int(high.value)):
                        self.names[name] = _literal(count)
                        self._step()
                        self.run(inner)
                case ("for", str(name), "list", str(other), list(inner)):
                    for item in self._list(other):
                        self.names[name] = item
                        self._step()
                        self.run(inner)
                case _:
                    raise AssertionError(statement)  # the reader makes no other

    def number(self, node: Node) -> _Number:
        match node:
            case ("number", int(value)):
                return _literal(value)
            case ("name", str(name)):
                found = self.names.get(name)
                if not isinstance(found, _Number):
                    raise LanguageError(f"{name} is a list" if found is not None else f"{name} has no value yet")
                return found
            case ("item", str(name), tuple(place)):
                values = self._list(name)
                return values[self._place(place, values)]
            case ("negative", tuple(inner)):
                number = self.number(inner)
                return _Number(-number.value, -number.term % _PRIME, -number.factor % _PRIME)
            case (str(sign), tuple(left), tuple(right)):
                return self._operate(sign, self.number(left), self.number(right))
            case (str(function), str(name)):
                return self._fold(function, self._list(name))
        raise AssertionError(node)  # the reader makes no other

    def _operate(self, sign: str, left: _Number, right: _Number) -> _Number:
        self._step()
        lengths = _length(left), _length(right)
        self.effort += max(lengths) if sign in "+-" else lengths[0] * lengths[1]
        if sign in ("/", "//", "%") and right.value == 0:
            raise LanguageError("division by 0")
        value: Fraction | int
        match sign:
            case "+":
                value, term = left.value + right.value, (left.term + right.term) % _PRIME
            case "-":
                value, term = left.value - right.value, (left.term - right.term) % _PRIME
            case "*":
                value, factor = left.value * right.value, left.factor * right.factor % _PRIME
            case "/":
                value, factor = Fraction(left.value) / right.value, left.factor * pow(right.factor, -1, _PRIME) % _PRIME
            case "//":
                value, factor = left.value // right.value, _hash("//", left.term, right.term)
            case _:
                value, factor = left.value % right.value, _hash("%", left.term, right.term)
        self._check(value)
        if sign in ("+", "-"):
            return _Number(value, term, _hash("sum", term))
        return _Number(value, _hash("product", factor), factor)

    def _fold(self, function: str, values: list[_Number]) -> _Number:
        numbers = [number.value for number in values]
        for number in values:
            self._step()
            self.effort += _length(number) if function != "len" else 0
        terms = sorted(number.term for number in values)
        mark = sum(terms) % _PRIME if function == "sum" else _hash(function, *terms)
        result = {"len": len, "sum": sum, "min": min, "max": max}[function](numbers)  # type: ignore[operator]  # of one type
        self._check(result)
        return _Number(result, mark, _hash("sum" if function == "sum" else function, mark))

    def _choose(self, sign: str, left: _Number, right: _Number, then: list[Node], rest: list[object]) -> None:
        self.effort += max(_length(left), _length(right))
        if _COMPARE[sign](left.value, right.value):
            self.run(then)
        elif rest and isinstance(rest[0], list):
            self.run(rest[0])

    def _place(self, node: Node, values: list[_Number]) -> int:
        place = self.number(node)
        if _names(node):
            self._note("place", place.term)
        if not 0 <= place.value < len(values):
            raise LanguageError(f"there is no item {place.value} in a list of {len(values)}")
        return int(place.value)

    def _list(self, name: str) -> list[_Number]:
        found = self.names.get(name)
        if not isinstance(found, list):
            raise LanguageError(f"{name} is no list")
        return found

    def _note(self, what: str, *marks: int) -> None:
        self.control = (self.control + _hash(what, *marks)) % _PRIME  # a sum: the order of lines does not count

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self.limits.steps:
            raise LanguageError(f"it takes more than {self.limits.steps} steps")

    def _check(self, value: Fraction | int) -> None:
        if abs(value.numerator) >= self.bound or value.denominator >= self.bound:
            raise LanguageError(f"a number on the way has more than {self.limits.value_digits} digits")


def _literal(value: int) -> _Number:
    return _Number(value, _hash("term", value), _hash("factor", value))


def _length(number: _Number) -> int:
    return len(str(abs(number.value.numerator)))


def _hash(what: str, *marks: int) -> int:
    digest = hashlib.blake2b(f"{what} {marks}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "big") % (_PRIME - 1) + 1  # never 0, so that every factor can be divided by


__all__ = ["LanguageError", "Limits", "Result", "evaluate", "run"]
