r"""A strict reader of expressions, LaTeX or plain, for sympy: what it does not know it refuses, and drops nothing.

    sum      term (("+" | "-") term)*
    term     factor (("*" | "/") factor | factor)*
    factor   ("+" | "-")* power
    power    atom ("!" | "%")? ["^" exponent]
    atom     number | symbol | "(" sum ")" | "|" sum "|" | \frac | \sqrt | \binom | function argument

A symbol is a letter or a Greek letter, with or without a subscript; `e` and `i` are the constants, and all others are
real. `f`, `g` and `h` before a bracket are unknown functions, other letters are factors. A function without brackets
takes the product that follows it (`\sin 2x`). Where readers of mathematics disagree (`1/ab`, `\sin x / 2`,
`2 3`, `x_1^2_3`), no reading is given.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import sympy  # type: ignore[import-untyped]

MAX_BITS = 40_000
"""Of a number that a power, a factorial or a binomial makes."""
MAX_EXPONENT = 10_000
"""Of powers of powers, multiplied."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)|(?P<letters>[A-Za-z]+)|(?P<command>\\[A-Za-z]+)"
    r"|(?P<sign>[-+*/^_(){}\[\]!|%]))"
)
# letters side by side are a product; what may be a word is none
_PRODUCT = re.compile(r"(?!(?:is|or|if|no|of|to|gcd|lcm|sgn|mph)$)(?:[A-Za-z]{1,2}|[abcxyz]{3}|[^aeiouAEIOU]{3})")
_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau upsilon phi chi psi omega "
    "Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_VARIANTS = {"\\varepsilon": "epsilon", "\\vartheta": "theta", "\\varphi": "phi", "\\ell": "ell"}
_SYMBOLS = {f"\\{name}": name for name in _GREEK.split()} | _VARIANTS
_FUNCTIONS: dict[str, Callable[[sympy.Expr], sympy.Expr]] = {
    f"\\{name}": getattr(sympy, sympy_name)
    for name, sympy_name in (
        *((name, name) for name in ["sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp"]),
        *((f"arc{name}", f"a{name}") for name in ["sin", "cos", "tan", "cot"]),
        ("ln", "log"),
    )
}
_INVERSE = {"\\sin": sympy.asin, "\\cos": sympy.acos, "\\tan": sympy.atan, "\\cot": sympy.acot}
_TIMES, _OVER = ("*", "\\cdot", "\\times"), ("/", "\\div")
_UNKNOWN_FUNCTIONS = ("f", "g", "h", "F", "G", "H")
LOG_BASE = sympy.Symbol("base of log", positive=True)
r"""Of `\log` without one: 10 to some readers, e to others."""


class Unreadable(Exception):
    """The text is no expression that the reader is sure about."""


def read_expression(text: str) -> sympy.Expr:
    r"""Returns the expression that all of `text` is, with exact numbers.

    >>> read_expression(r"\frac{x}{2} + 0.1"), read_expression("2^T")
    (x/2 + 1/10, 2**T)

    Raises:
        Unreadable: it is none, or has a number beyond the bounds above.
    """
    return _Reader(text).whole()


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = []
        self.at = 0
        self.bare = False  # whether what was read last is a function whose argument has no brackets
        place, text = 0, text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if not found:
                raise Unreadable(text)
            place = found.end()
            token = found.group().strip()
            if not found["letters"]:
                self.tokens.append(token)
            elif _PRODUCT.fullmatch(token):
                self.tokens.extend(token)
            else:
                raise Unreadable(token)

    def whole(self) -> sympy.Expr:
        value = self.sum()
        if self.peek():
            raise Unreadable(self.peek())
        return value

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise Unreadable(token)
        self.at += 1
        return token

    def takes(self, *wanted: str) -> bool:
        if self.peek() in wanted:
            self.at += 1
            return True
        return False

    def sum(self, close: str = "") -> sympy.Expr:
        value = self.term(close)
        while self.peek() in ("+", "-"):
            value = value + self.term(close) if self.take() == "+" else value - self.term(close)
        return value

    def term(self, close: str) -> sympy.Expr:
        """Reads a product. `close` is "|" between such bars, where the next one closes."""
        first = self.peek()
        value = self.factor(close)
        plain, over, bare = first[:1].isdigit() and not value.free_symbols, False, self.bare
        while True:
            if self.peek() in _TIMES:
                self.take()
                value, plain = value * self.factor(close), False
            elif self.peek() in _OVER:
                if bare:  # \sin x / 2
                    raise Unreadable("/")
                self.take()
                divisor = self.peek()
                value = value / self.factor(close)
                plain, over = plain and divisor[:1].isdigit(), True
            elif self.begins(close):
                # 3/4 x is three quarters of x, 1/ab and 1/2(3) nobody knows; 2 3 is nothing
                if self.peek()[:1].isdigit() or (over and (not plain or self.peek() == "(")):
                    raise Unreadable(self.peek())
                if bare and self.peek() in ("(", "{", "|"):  # \sin x (y + 1)
                    raise Unreadable(self.peek())
                value, plain = value * self.power(close), plain and over
            else:
                return value
            bare = self.bare

    def begins(self, close: str) -> bool:
        """Returns whether the next token begins a factor."""
        token = self.peek()
        return bool(token) and token not in (close, *"+-^_)]}!%", "\\rfloor", "\\rceil", *_TIMES, *_OVER)

    def factor(self, close: str) -> sympy.Expr:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        value = self.power(close)
        return -value if negative else value

    def power(self, close: str) -> sympy.Expr:
        begin = self.peek()
        value = self.atom(close)
        bare = self.bare and (begin in _FUNCTIONS or begin in ("\\log", "\\lg"))
        if self.peek() in ("!", "%", "^") and bare:
            raise Unreadable(self.peek())
        if self.takes("%"):
            value = value / 100
        elif self.takes("!"):
            value = _factorial(value)
        if self.peek() in ("!", "%"):
            raise Unreadable(self.peek())
        if self.takes("^"):
            value = _raised(value, self.exponent(close))
            if begin in _UNKNOWN_FUNCTIONS and self.peek() == "(":  # the inverse, a derivative, a power?
                raise Unreadable("(")
        if self.peek() in ("_", "!"):
            raise Unreadable(self.peek())
        self.bare = bare
        return value

    def exponent(self, close: str) -> sympy.Expr:
        negative = self.takes("-")
        if self.peek() in _FUNCTIONS or self.peek() in ("\\log", "\\lg"):  # x^\sin y
            raise Unreadable("^")
        value = self.atom(close)
        if self.takes("^"):
            value = _raised(value, self.exponent(close))
        return -value if negative else value

    def atom(self, close: str) -> sympy.Expr:
        token = self.take()
        if token[0] in "0123456789.":
            return self.number(token)
        if token in ("(", "[", "{"):
            value = self.sum()
            self.take({"(": ")", "[": "]", "{": "}"}[token])
            return value
        if token == "|" and close != "|":
            value = self.sum("|")
            self.take("|")
            return sympy.Abs(value)
        if token.isalpha() or token in _SYMBOLS:
            return self.symbol(token)
        if token == "\\pi":
            return sympy.pi
        if token == "\\infty":
            return sympy.oo
        if token == "\\frac":
            return self.fraction()
        if token == "\\sqrt":
            return self.root()
        if token == "\\binom":
            return _binomial(self.group(), self.group())
        if token in ("\\lfloor", "\\lceil"):
            value = self.sum()
            self.take("\\r" + token[2:])
            return sympy.floor(value) if token == "\\lfloor" else sympy.ceiling(value)
        return self.function(token, close)

    def number(self, token: str) -> sympy.Expr:
        value = sympy.Rational(token if token[-1] != "." else token[:-1])
        if token.isdigit() and self.peek() == "\\frac":
            begin = self.at
            self.take()
            top, bottom = self.group(), self.group()
            if top.is_Integer and bottom.is_Integer:
                if not 0 <= top < bottom:  # a mixed number or a product
                    raise Unreadable("\\frac")
                return value + top / bottom
            self.at = begin
        return value

    def symbol(self, token: str) -> sympy.Expr:
        name = _SYMBOLS.get(token, token)
        if self.takes("_"):
            inside = [self.take()]
            if inside == ["{"]:
                inside = []
                while not self.takes("}"):
                    inside.append(self.take())
            if not inside or not all(re.fullmatch(r"[0-9A-Za-z+-]+|\\[A-Za-z]+", part) for part in inside):
                raise Unreadable("_")
            name += "_" + " ".join(inside)
        if name in ("e", "i"):
            return sympy.E if name == "e" else sympy.I
        if token in _UNKNOWN_FUNCTIONS and self.peek() == "(":
            return sympy.Function(name)(self.group("(", ")"))
        return sympy.Symbol(name, real=True)

    def group(self, opening: str = "{", closing: str = "}") -> sympy.Expr:
        self.take(opening)
        value = self.sum()
        self.take(closing)
        return value

    def fraction(self) -> sympy.Expr:
        differential = self.peek(1) == "d"
        top = self.group()
        if differential and self.peek(1) == "d":  # dy/dx is no quotient
            raise Unreadable("\\frac")
        bottom = self.group()
        if bottom.is_zero:
            raise Unreadable("a division by zero")
        return top / bottom

    def root(self) -> sympy.Expr:
        degree = self.group("[", "]") if self.peek() == "[" else sympy.Integer(2)
        value = self.group()
        if degree == 2:
            return sympy.sqrt(value)
        if not degree.is_Integer or degree < 2:
            raise Unreadable("\\sqrt")
        return _raised(value, 1 / degree)

    def function(self, token: str, close: str) -> sympy.Expr:
        if token in ("\\log", "\\lg"):
            base = sympy.Integer(10) if token == "\\lg" else LOG_BASE
            if token == "\\log" and self.takes("_"):
                base = self.group() if self.peek() == "{" else self.atom(close)
            return sympy.log(self.argument(close)) / sympy.log(base)
        if token not in _FUNCTIONS:
            raise Unreadable(token)
        power, function = None, _FUNCTIONS[token]
        if self.takes("^"):
            power = self.exponent(close)
            if power == -1 and token in _INVERSE:
                function, power = _INVERSE[token], None
            elif not (power.is_Integer and power > 0):
                raise Unreadable("^")
        value = function(self.argument(close))
        return value if power is None else _raised(value, power)

    def argument(self, close: str) -> sympy.Expr:
        """Reads what a function is applied to; without a bracket up to the next function, bracket, sign or end."""
        if self.peek() == "(":
            value = self.group("(", ")")
            self.bare = False
            return value
        value = self.power(close)
        while (
            self.begins(close) and self.peek() not in _FUNCTIONS and self.peek() not in ("(", "{", "|", "\\log", "\\lg")
        ):
            if self.peek()[:1].isdigit():
                raise Unreadable(self.peek())
            value = value * self.power(close)
        self.bare = True
        return value


def _raised(base: sympy.Expr, exponent: sympy.Expr) -> sympy.Expr:
    if base.is_Rational and exponent.is_Rational:
        bits = max(int(base.p).bit_length(), int(base.q).bit_length())
        if base == 0 and exponent <= 0:
            raise Unreadable("a power of zero")
        if base not in (-1, 0, 1) and bits * abs(exponent) > MAX_BITS:
            raise Unreadable("a power with too many digits")
    inner = [abs(power.exp) for power in base.atoms(sympy.Pow) if power.exp.is_Rational]
    if exponent.is_Rational and inner and max(inner) * abs(exponent) > MAX_EXPONENT:
        raise Unreadable("a power of a power with too great an exponent")
    if exponent.is_Rational and exponent.q > 1 and exponent.q % 2 and base.is_real:  # the real root, not a complex one
        size = sympy.Pow(sympy.Abs(base), exponent)
        return size if exponent.p % 2 == 0 else sympy.sign(base) * size
    return sympy.Pow(base, exponent)


def _factorial(value: sympy.Expr) -> sympy.Expr:
    if value.is_number and not (value.is_Integer and 0 <= value <= 1000):
        raise Unreadable("!")
    return sympy.factorial(value)


def _binomial(top: sympy.Expr, bottom: sympy.Expr) -> sympy.Expr:
    if any(value.is_number and not (value.is_Integer and 0 <= value <= 1000) for value in (top, bottom)):
        raise Unreadable("\\binom")
    return sympy.binomial(top, bottom)
