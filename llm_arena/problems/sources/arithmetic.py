"""Arithmetic problems with whole numbers as answers, drawn by level.

    level  operands  numbers    operators
    1      2         1 to 9     +
    2      2         1 to 99    + -
    3      3         1 to 20    + - *
    4      4         1 to 50    + - *
    5      5         1 to 99    + - * /        every division comes out even

An expression is a random tree over its operands, written with the brackets that it needs. Four of five expressions
belong to the split `train`, every fifth, by a hash for which the order of terms and factors doesn't count, to
`heldout`.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from llm_arena.errors import UsageError
from llm_arena.problems.splits import Split

LEVELS: dict[int, tuple[int, int, str]] = {
    1: (2, 9, "+"),
    2: (2, 99, "+-"),
    3: (3, 20, "+-*"),
    4: (4, 50, "+-*"),
    5: (5, 99, "+-*/"),
}
"""Level -> operands, greatest number, operators."""

MAX_DIVISOR = 12
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}
_EXPRESSION = re.compile(r"-?[0-9(][0-9+\-*/() ]*[0-9)]")


class Problem(msgspec.Struct, frozen=True):
    """A question and its answer, a whole number in decimal."""

    text: str
    answer: str


def draw_problem(
    rng: np.random.Generator, *, level: int = 1, operators: str | None = None, split: Split = "train"
) -> Problem:
    """Draws a problem.

    >>> draw_problem(np.random.default_rng(0), level=3)
    Problem(text='What is (6 - 7) * 1?', answer='-1')

    Args:
        rng: where it is drawn from.
        level: 1 to 5.
        operators: some of `+-*/`; None: those of the level.
        split: `train` or `heldout`.

    Raises:
        UsageError: an argument is out of its range.
    """
    check_settings(level, operators, split)
    operands, greatest, usual = LEVELS[level]
    while True:
        text, value, _ = _draw(rng, operands, greatest, operators or usual)
        if split_of(text) == split:
            return Problem(f"What is {text}?", str(value))


def check_settings(level: int, operators: str | None, split: str) -> None:
    """Raises a `UsageError` if a setting of `draw_problem` is out of its range."""
    if type(level) is not int or level not in LEVELS:  # True and 1.0 are equal to 1
        raise UsageError(f"level={level!r}; expected one of {', '.join(map(str, LEVELS))}")
    if operators is not None and (
        not isinstance(operators, str) or not operators or set(operators) - _PRECEDENCE.keys()
    ):
        raise UsageError(f"operators={operators!r}; expected some of + - * /, e.g. '+-'")
    if split not in ("train", "heldout"):
        raise UsageError(f"split={split!r}; expected train or heldout")


def split_of(expression: str) -> Split:
    """Returns the split that an expression belongs to, whatever level or seed it was drawn with.

    Expressions that differ in the order of sums and products alone are in one split: who knows 3 + 5 knows 5 + 3.
    """
    canonical = _canonical(ast.parse(expression, mode="eval").body)
    return "heldout" if hashlib.blake2b(canonical.encode(), digest_size=1).digest()[0] % 5 == 0 else "train"


def _canonical(node: ast.expr) -> str:
    """Returns an expression as one text for all orders and brackets of its sums and products."""
    if not isinstance(node, ast.BinOp):
        return ast.unparse(node)
    signs = ("+", "-") if isinstance(node.op, ast.Add | ast.Sub) else ("*", "/")
    return f"({''.join(sorted(_operands(node, signs)))})"


def _operands(node: ast.expr, signs: tuple[str, str]) -> Iterator[str]:
    """Yields the terms of a sum, or the factors of a product, each behind its sign."""
    same, inverse = (ast.Add, ast.Sub) if signs[0] == "+" else (ast.Mult, ast.Div)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, same | inverse):
        yield signs[0] + _canonical(node)
        return
    yield from _operands(node.left, signs)
    for operand in _operands(node.right, signs):
        turned = signs[1 - signs.index(operand[0])] if isinstance(node.op, inverse) else operand[0]
        yield turned + operand[1:]


def solve(text: str) -> int | None:
    """Returns the value of the first arithmetic expression in `text`; None if there is none or it is no whole number.

    >>> solve("What is 2 * (3 + 4)?")
    14
    """
    found = _EXPRESSION.search(text)
    if not found:
        return None
    try:
        return _value(ast.parse(found.group(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    """Evaluates + - * / and signs on whole numbers, and nothing else."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _value(left) + _value(right)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _value(left) - _value(right)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left) * _value(right)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            quotient, rest = divmod(_value(left), _value(right))
            if rest:
                raise ValueError("not a whole number")
            return quotient
    raise ValueError(f"{type(node).__name__} is no integer arithmetic")


def _draw(rng: np.random.Generator, operands: int, greatest: int, operators: str) -> tuple[str, int, int]:
    """Returns (text, value, precedence of the outermost operator) of an expression."""
    if operands == 1:
        number = int(rng.integers(1, greatest + 1))
        return str(number), number, 3
    operator = _pick(rng, operators)
    if operator == "/":
        return _division(rng, operands, greatest)
    left_operands = int(rng.integers(1, operands))
    left, left_value, left_precedence = _draw(rng, left_operands, greatest, operators)
    right, right_value, right_precedence = _draw(rng, operands - left_operands, greatest, operators)
    own = _PRECEDENCE[operator]
    # a - (b - c) and a * (b / c) need their brackets, a + (b + c) gets them too
    left = f"({left})" if left_precedence < own else left
    right = f"({right})" if right_precedence <= own else right
    value = {"+": left_value + right_value, "-": left_value - right_value, "*": left_value * right_value}[operator]
    return f"{left} {operator} {right}", value, own


def _division(rng: np.random.Generator, operands: int, greatest: int) -> tuple[str, int, int]:
    """Returns a chain a / b / ... that comes out even at every step: a is made from the result."""
    quotient = int(rng.integers(1, greatest + 1))
    divisors = [int(rng.integers(2, MAX_DIVISOR + 1)) for _ in range(operands - 1)]
    dividend = quotient * int(np.prod(divisors))
    return " / ".join(map(str, [dividend, *divisors])), quotient, _PRECEDENCE["/"]


def _pick(rng: np.random.Generator, items: Sequence[str]) -> str:
    return items[int(rng.integers(len(items)))]
