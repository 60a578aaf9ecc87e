r"""Exact rational arithmetic on text, plain or LaTeX: what most answers are, without a computer algebra system.

    sum      term (("+" | "-") term)*
    term     factor (("*" | "/" | nothing) factor)*         "nothing" only before "(" or a command
    factor   ("+" | "-")* power
    power    postfix ["^" exponent]
    postfix  atom ("!" | "%")*
    atom     number | "(" sum ")" | "{" sum "}" | \frac{sum}{sum} | \sqrt{sum}, of a square only

A whole number before a fraction is a mixed number (`1\frac{1}{2}` is 3/2), and `50%` is 1/2. Work is bounded before it
is done: by length, by depth and by the size of each result.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

MAX_CHARACTERS = 1000
MAX_DEPTH = 40
MAX_BITS = 20_000
"""Of a numerator or a denominator; about 6,000 digits."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4}(?![0-9]))?)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<sign>[-+*/^(){}!%]))"
)
_TIMES, _OVER = ("*", "\\cdot", "\\times"), ("/", "\\div")
_OPENS = ("(", "\\frac", "\\sqrt")


class TooBig(Exception):
    """An expression would take too much time or memory to evaluate."""


class _NotRational(Exception):
    """The text is something else than arithmetic on rational numbers."""


def rational(text: str) -> Fraction | None:
    r"""Returns the exact value of `text`, or None if it is no arithmetic on rational numbers.

    >>> rational(r"2 \cdot (3 - \frac{1}{2})")
    Fraction(5, 1)
    >>> rational("x + 1") is None
    True

    Raises:
        TooBig: the text is arithmetic, but beyond the bounds above.
    """
    if len(text) > MAX_CHARACTERS:
        raise TooBig(f"{len(text)} characters")
    try:
        return _Reader(text).whole()
    except (_NotRational, ZeroDivisionError):
        return None


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.at = 0
        self.depth = 0
        place = 0
        while place < len(text.rstrip()):
            found = _TOKEN.match(text, place)
            if not found:
                raise _NotRational
            self.tokens.append(found.group().strip())
            place = found.end()

    def whole(self) -> Fraction:
        value = self.sum()
        if self.peek():
            raise _NotRational
        return value

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise _NotRational
        self.at += 1
        return token

    def sum(self) -> Fraction:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooBig(f"more than {MAX_DEPTH} brackets deep")
        value = self.term()
        while self.peek() in ("+", "-"):
            value = _bounded(value + self.term() if self.take() == "+" else value - self.term())
        self.depth -= 1
        return value

    def term(self) -> Fraction:
        value = self.factor()
        divided = False
        while True:
            token = self.peek()
            if token in _TIMES:
                self.take()
                value = _bounded(value * self.factor())
            elif token in _OVER:
                self.take()
                value, divided = _bounded(value / self.factor()), True
            elif token in _OPENS:
                if divided:  # 1/2(3) means one thing to one reader and another to the next
                    raise _NotRational
                value = _bounded(value * self.factor())
            else:
                return value

    def factor(self) -> Fraction:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = -sign if self.take() == "-" else sign
        return sign * self.power()

    def power(self) -> Fraction:
        value = self.postfix()
        if self.peek() != "^":
            return value
        self.take()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooBig(f"more than {MAX_DEPTH} exponents deep")
        exponent = self.factor()
        self.depth -= 1
        return _raised(value, exponent)

    def postfix(self) -> Fraction:
        value = self.atom()
        while self.peek() in ("!", "%"):
            value = _factorial(value) if self.take() == "!" else value / 100
        return value

    def atom(self) -> Fraction:
        token = self.take()
        if token[0] in "0123456789.":
            number = _bounded(Fraction(token))
            if token.isdigit() and self.peek() == "\\frac":  # a mixed number
                top, bottom = self.fraction()
                if not 0 <= top < bottom:
                    raise _NotRational
                return number + top / bottom
            return number
        if token in ("(", "{"):
            value = self.sum()
            self.take(")" if token == "(" else "}")
            return value
        self.at -= 1
        if token == "\\frac":
            top, bottom = self.fraction()
            return _bounded(top / bottom)
        if token == "\\sqrt":
            self.take()
            return _root(self.group())
        raise _NotRational

    def fraction(self) -> tuple[Fraction, Fraction]:
        self.take("\\frac")
        return self.group(), self.group()

    def group(self) -> Fraction:
        self.take("{")
        value = self.sum()
        self.take("}")
        return value


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    """Returns `base` to the power of a whole `exponent`.

    Raises:
        TooBig: the result has too many digits.
    """
    if exponent.denominator != 1:
        raise _NotRational
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and bits * abs(exponent) > MAX_BITS:
        raise TooBig("a power with too many digits")
    return Fraction(base ** int(exponent % 2 + 2 if abs(base) == 1 else exponent))


def _factorial(value: Fraction) -> Fraction:
    """Returns `value!` of a whole number from 0.

    Raises:
        TooBig: above 1000.
    """
    if value.denominator != 1 or value < 0:
        raise _NotRational
    if value > 1000:
        raise TooBig(f"the factorial of {value.numerator.bit_length()} bits")
    return _bounded(Fraction(math.factorial(int(value))))


def _root(value: Fraction) -> Fraction:
    if value < 0:
        raise _NotRational
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    if root * root != value:
        raise _NotRational
    return root


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise TooBig("a number with too many digits")
    return value
