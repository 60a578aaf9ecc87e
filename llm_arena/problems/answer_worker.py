"""The process that compares answers by computer algebra: `python -m llm_arena.problems.answer_worker`.

It writes `"ready"`, then answers each line of its input, `{"given": ..., "gold": ..., "seconds": ...}`, with a line
that is a verdict. It ends with its input. See `answer_process` for who speaks to it.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import warnings
from typing import Any

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended.latex2sympy2 import (  # type: ignore[import-untyped]
    ConversionConfig,
    latex2sympy,
)

from llm_arena.problems.answer_forms import Relation, Verdict, compare, read_form

MEMORY = 1 << 30
"""Address space, in bytes, on top of what the imports took."""

_POINTS = [sympy.Rational(*ratio) for ratio in ((7, 5), (-11, 3), (3, 13), (-2, 7), (17, 4))]
"""Where an expression is tried: of both signs, and without a meaning."""

_SYMBOLS_AS_WRITTEN = ConversionConfig(lowercase_symbols=False)
_SPACED = re.compile(r"(?<![_0-9.])[0-9.]+\s+[0-9]")
_WORD = re.compile(r"(?<![A-Za-z\\])[A-Za-z]{4,}")
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}


class Unreadable(Exception):
    """The text is no expression that the parser knows."""


def expression(text: str) -> sympy.Expr:
    """Returns the expression that `text` is, with exact numbers and real symbols.

    Raises:
        Unreadable: it is none.
    """
    if _WORD.search(text) or _SPACED.search(text):
        raise Unreadable(text)
    try:
        parsed: Any = latex2sympy(text, conversion_config=_SYMBOLS_AS_WRITTEN)
    except Exception as error:  # the parser raises plain Exception
        raise Unreadable(text) from error
    if not isinstance(parsed, sympy.Expr):
        raise Unreadable(text)
    exact = parsed.replace(lambda part: isinstance(part, sympy.Float), lambda part: sympy.Rational(str(part)))
    symbols = {symbol: sympy.Symbol(symbol.name, real=True) for symbol in exact.free_symbols}
    symbols |= {symbol: sympy.I for symbol in symbols if symbol.name == "i"}
    return exact.xreplace(symbols).doit()


def is_zero(value: sympy.Expr) -> Verdict:
    """Returns right if `value` is proven zero, wrong if it is seen not to be, else undecided."""
    if value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return "undecided"
    if value.is_zero or sympy.expand(value) == 0:
        return "right"
    symbols = sorted(value.free_symbols, key=str)
    for point in range(len(_POINTS)):
        at = {symbol: _POINTS[(point + place) % len(_POINTS)] for place, symbol in enumerate(symbols)}
        if value.subs(at).equals(0) is False:
            return "wrong"
    return "right" if sympy.simplify(value) == 0 or value.equals(0) else "undecided"


def same_value(given: str, gold: str) -> Verdict:
    """Compares two expressions."""
    try:
        left, right = expression(given), expression(gold)
    except Unreadable:
        return "undecided"
    if left == right:
        return "right"
    if left.is_infinite or right.is_infinite:
        return "wrong"
    return is_zero(left - right)


def same_relation(given: Relation, gold: Relation) -> Verdict:
    """Compares two relations: their sides' differences must be multiples, positive ones for inequalities."""
    given, gold = _ascending(given), _ascending(gold)
    if given.signs != gold.signs:
        return "wrong"
    if len(gold.signs) > 1:
        pairs = zip(given.sides, gold.sides, strict=True)
        verdicts = [same_value(left, right) for left, right in pairs]
        return "right" if set(verdicts) == {"right"} else "wrong" if "wrong" in verdicts else "undecided"
    try:
        left, right = (expression(form.sides[0]) - expression(form.sides[1]) for form in (given, gold))
    except Unreadable:
        return "undecided"
    left, right = sympy.expand(left), sympy.expand(right)
    if left.free_symbols != right.free_symbols or not right.free_symbols:
        return "wrong" if left.free_symbols != right.free_symbols else "undecided"
    ratio = sympy.cancel(sympy.together(left / right))
    if ratio.free_symbols:
        ratio = sympy.simplify(ratio)
    if ratio.free_symbols:
        # seen to vary: proven different as multiples, which for polynomials of degree one is different as a whole
        return "wrong"
    if ratio.is_zero is not False or (gold.signs[0] not in ("=", "\\ne") and ratio.is_positive is not True):
        return "wrong" if ratio.is_zero or ratio.is_negative else "undecided"
    return "right"


def _ascending(relation: Relation) -> Relation:
    r"""Returns the relation without `>` and `\ge`."""
    if not set(relation.signs) & {">", "\\ge"}:
        return relation
    signs = tuple(_FLIPPED.get(sign, sign) for sign in reversed(relation.signs))
    return Relation(relation.sides[::-1], signs)


def limit_memory() -> None:
    """Limits the address space, where the system can (Linux)."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def main() -> None:
    """Answers questions until the input ends."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process, whatever code is running
    sys.set_int_max_str_digits(0)  # our own limits hold
    same_value("\\frac{x}{2}", "x + 1")  # builds the parser's tables, which takes long once
    limit_memory()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, question["seconds"])
        try:
            verdict = compare(read_form(question["given"]), read_form(question["gold"]), same_value, same_relation)
        except Exception:  # sympy raises anything on odd input, MemoryError and RecursionError included
            verdict = "undecided"
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
