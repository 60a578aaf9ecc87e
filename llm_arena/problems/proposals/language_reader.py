"""Reading the small language: text to tokens, and tokens to trees by recursive descent. See `language`."""

from __future__ import annotations

import re

import msgspec

MAX_CHARACTERS = 2000
MAX_DEPTH = 20
"""Of brackets and signs in each other, and of blocks in each other."""
MAX_TOKENS = 200
"""Of a line. A chain of sums is as deep a tree as it is long, and the machine goes down it by recursion."""
FUNCTIONS = ("len", "sum", "min", "max")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_TOKEN = re.compile(r" *(?:([0-9]+)|([A-Za-z_][A-Za-z_0-9]*)|(//|[-+*]=|[<>=!]=|[-+*/%()\[\],:<>=]))")
NAME = re.compile(r"[a-z][0-9]?")
_ALIKE = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "\u2013": "-"})

Node = tuple[object, ...]
"""(kind, ...) of a piece of a program: small tuples, because they are made and walked only here and by the machine."""


class LanguageError(Exception):
    """A text is no expression or program, or runs beyond its limits; the message says why, in one line."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a problem."""

    operands: int = 100
    "Numbers that are written."
    digits: int = 9
    "Of a number that is written."
    lines: int = 30
    steps: int = 1000
    "Operations and statements that are carried out."
    value_digits: int = 18
    "Of every number on the way, numerator and denominator."
    items: int = 50
    "Of a list."


def read_expression(text: str, limits: Limits) -> tuple[Node, str]:
    """Returns an arithmetic expression as a tree, and written in one way.

    Raises:
        LanguageError: it is none, or exceeds a limit.
    """
    tokens = _Tokens(_short(text), limits, exact=True)
    node = tokens.sum()
    tokens.end()
    within(tokens.numbers, limits.operands, "numbers")
    return node, tokens.text()


def read_program(text: str, limits: Limits) -> tuple[list[Node], str]:
    """Returns a program as a list of statements, and written in one way.

    Raises:
        LanguageError: it is none, or exceeds a limit.
    """
    lines = _read_lines(_short(text), limits)
    body, after = _block(lines, 0, 0)
    if after < len(lines):
        raise LanguageError(f"line {after + 1} is indented for no reason")
    within(sum(line.numbers for _, line in lines), limits.operands, "numbers")
    return body, "\n".join(" " * 4 * level + line.text() for level, line in lines)


def _short(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise LanguageError(f"{len(text)} characters; expected at most {MAX_CHARACTERS}")
    return text.translate(_ALIKE)


def within(count: int, limit: int, what: str) -> None:
    """Raises a `LanguageError` if there are more than `limit`."""
    if count > limit:
        raise LanguageError(f"{count} {what}; at most {limit} are allowed")


class _Tokens:
    """The tokens of one line, read by recursive descent."""

    def __init__(self, line: str, limits: Limits, *, exact: bool = False) -> None:
        self.tokens: list[str] = []
        self.at = self.depth = self.numbers = 0
        self.times = ("*", "/", "//", "%") if exact else ("*", "//", "%")
        self.exact = exact
        place, line = 0, line.rstrip(" ")
        while place < len(line):
            found = _TOKEN.match(line, place)
            if not found:
                raise LanguageError(f"{line[place:].lstrip()[:1]!r} has no meaning here")
            number, name, sign = found.groups()
            if number is not None:
                within(len(number), limits.digits, "digits")
                self.numbers += 1
                if len(number) > 1 and number[0] == "0":
                    raise LanguageError(f"{number} begins with 0")
            self.tokens.append(number or name or sign)
            within(len(self.tokens), MAX_TOKENS, "numbers, names and signs in a line")
            place = found.end()

    def text(self) -> str:
        """Returns the line with spaces where one writes them."""
        shown = ""
        previous = ""
        for place, token in enumerate(self.tokens):
            before = self.tokens[place - 2] if place > 1 else ""
            sign = previous == "-" and (
                not before or not (before[-1].isalnum() or before in ")]") or before in ("in", "if")
            )
            calls = token in "([" and previous and (previous in FUNCTIONS or previous in ("range", "print"))
            indexes = token == "[" and bool(NAME.fullmatch(previous))
            tight = not shown or token in ")],:" or previous in ("(", "[") or sign or calls or indexes
            shown += token if tight else " " + token
            previous = token
        return shown

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise LanguageError(f"expected {wanted or 'more'!r}, got {token or 'the end of the line'!r}"[:100])
        self.at += 1
        return token

    def end(self) -> None:
        if self.peek():
            raise LanguageError(f"{self.peek()[:20]!r} stands where the line should end")

    def name(self) -> str:
        token = self.take()
        if not NAME.fullmatch(token):
            raise LanguageError(f"{token[:20]!r} is no name; names are one letter, and a digit if need be")
        return token

    def sum(self) -> Node:
        self.depth += 1
        within(self.depth, MAX_DEPTH, "brackets in each other")
        node = self.term()
        while self.peek() in ("+", "-"):
            node = (self.take(), node, self.term())
        self.depth -= 1
        return node

    def term(self) -> Node:
        node = self.factor()
        while self.peek() in self.times:
            node = (self.take(), node, self.factor())
        return node

    def factor(self) -> Node:
        token = self.take()
        if token == "-":
            self.depth += 1
            within(self.depth, MAX_DEPTH, "signs and brackets in each other")
            inner = self.factor()
            self.depth -= 1
            return ("negative", inner)
        if token == "(":
            node = self.sum()
            self.take(")")
            return node
        if token[0].isdigit():
            return ("number", int(token))
        if not self.exact and token in FUNCTIONS:
            self.take("(")
            name = self.name()
            self.take(")")
            return (token, name)
        if self.exact or not NAME.fullmatch(token):
            raise LanguageError(f"expected a number, got {token[:20]!r}")
        if self.peek() == "[":
            self.take()
            place = self.sum()
            self.take("]")
            return ("item", token, place)
        return ("name", token)

    def statement(self) -> Node:
        """Reads a line; what has a block of its own gets it later."""
        head = self.take()
        if head == "print":
            self.take("(")
            node: Node = ("print", self.sum())
            self.take(")")
        elif head == "if":
            left, sign, right = self.sum(), self.take(), self.sum()
            if sign not in COMPARISONS:
                raise LanguageError(f"expected a comparison like a < b, got {sign[:20]!r}")
            node = ("if", sign, left, right)
            self.take(":")
        elif head == "else":
            node = ("else",)
            self.take(":")
        elif head == "for":
            name = self.name()
            self.take("in")
            node = ("for", name, *self._range())
            self.take(":")
        else:
            self.at -= 1
            node = self._assignment()
        self.end()
        return node

    def _range(self) -> Node:
        if self.peek() != "range":
            return ("list", self.name())
        self.take()
        self.take("(")
        first: Node = ("number", 0)
        last = self.sum()
        if self.peek() == ",":
            self.take()
            first, last = last, self.sum()
        self.take(")")
        return ("range", first, last)

    def _assignment(self) -> Node:
        name = self.name()
        if self.peek() == "[":
            self.take()
            place = self.sum()
            self.take("]")
            self.take("=")
            return ("put", name, place, self.sum())
        sign = self.take()
        if sign in ("+=", "-=", "*="):
            return ("let", name, (sign[0], ("name", name), self.sum()))
        if sign != "=":
            raise LanguageError(f"expected = after {name}, got {sign[:20]!r}")
        if self.peek() != "[":
            return ("let", name, self.sum())
        self.take()
        items = [self.sum()]
        while self.peek() == ",":
            self.take()
            items.append(self.sum())
        self.take("]")
        return ("list", name, items)


def _read_lines(text: str, limits: Limits) -> list[tuple[int, _Tokens]]:
    """Returns (level, tokens) of the lines that say something."""
    lines: list[tuple[int, _Tokens]] = []
    widths = [0]
    for line in text.replace("\r\n", "\n").expandtabs(4).split("\n"):
        line = line.partition("#")[0].rstrip(" ")
        if not line:
            continue
        width = len(line) - len(line.lstrip(" "))
        if width > widths[-1]:
            widths.append(width)
        while width < widths[-1]:
            widths.pop()
        if width != widths[-1]:
            raise LanguageError(f"line {len(lines) + 1} is indented like no line before it")
        lines.append((len(widths) - 1, _Tokens(line, limits)))
        within(len(lines), limits.lines, "lines")
        within(len(widths), MAX_DEPTH, "blocks in each other")
    return lines


def _block(lines: list[tuple[int, _Tokens]], at: int, level: int) -> tuple[list[Node], int]:
    """Reads the block that begins with line `at`; returns it and where it ends."""
    body: list[Node] = []
    while at < len(lines) and lines[at][0] == level:
        node = lines[at][1].statement()
        at += 1
        if node[0] in ("if", "for", "else"):
            inner, after = _block(lines, at, level + 1)
            if not inner:
                raise LanguageError(f"line {at} needs an indented block after it")
            at = after
            if node[0] == "else":
                if not body or body[-1][0] != "if" or len(body[-1]) != 5:
                    raise LanguageError("else follows no if")
                node = (*body.pop(), inner)
            else:
                node = (*node, inner)
        body.append(node)
    return body, at
