r"""Is this answer right? Numbers are compared exactly and at once; other mathematics in a guarded process.

Three steps, of which each decides what it can:

1. Form (`answer_forms`): all parts of both answers are compared, by name, bracket and sign. Parts that are arithmetic
   on rational numbers (`1,250`, `$41.00`, `\frac{3}{7}`, `2^{10} - 1`, `50\%`) get exact fractions; words, choices
   (`C`) and clock times (`3:30`) are compared as text. No tolerance: 0.33 is not 1/3.
2. Guard: what is too long, too deep or a tower of powers is `undecided`, at once and everywhere alike.
3. Algebra: the rest needs the extra `problems`. math-verify's LaTeX parser and sympy run in a process with a time limit
   and a memory limit (`answer_process`); what exceeds them is `undecided`. Only a proof is `right`, only a difference
   seen is `wrong`.

The comparison is ours and not math-verify's `verify`, which compares with a tolerance and looks at one side or one part
of some answers (huggingface/Math-Verify issues #14, #26, #41, #60).
"""

from __future__ import annotations

import re

from llm_arena.problems.answer_forms import Form, Leaf, Named, Relation, Verdict, compare, read_form
from llm_arena.problems.answer_numbers import TooBig, rational
from llm_arena.problems.answer_process import ask, require_algebra
from llm_arena.problems.answer_text import normalize_answer

MAX_CHARACTERS = 1000
"""Longer answers are undecided."""
MAX_DEPTH = 30
"""Brackets in brackets."""
MAX_EXPONENT = 10_000
MAX_DIGITS = 300
"""Of one number."""
SECONDS = 5.0
"""Limit of one algebraic comparison."""

_INFINITIES = ("\\infty", "-\\infty")
_EXPONENT = re.compile(r"\^\s*")
_BIG_ARGUMENT = re.compile(r"[0-9]{4,}\s*\)*\s*!|[!)]\s*!|\\binom\s*\{[^{}]*[0-9]{4,}")


def check(prediction: str, gold: str, *, seconds: float = SECONDS) -> Verdict:
    r"""Returns whether `prediction` is the answer `gold`: right, wrong or undecided, which is never right.

    Boxes, dollar signs, spacing and spelling don't matter. May be called from any thread. An empty prediction is wrong.

    >>> check(r"\boxed{\frac{1}{2}}", "0.5")
    'right'
    >>> check("7", r"\pm 7")
    'wrong'

    Args:
        prediction: what was answered.
        gold: the right answer.
        seconds: limit of an algebraic comparison, once its turn has come and its process has started.

    Raises:
        MissingExtra: algebra is needed, and the extra `problems` is not installed.
    """
    verdict = check_exactly(prediction, gold)
    if verdict != "undecided":
        return verdict
    given, right = normalize_answer(prediction[:MAX_CHARACTERS]), normalize_answer(gold[:MAX_CHARACTERS])
    if max(len(prediction), len(gold)) > MAX_CHARACTERS or not (is_small(given) and is_small(right)):
        return "undecided"
    return ask(given, right, seconds)


def check_exactly(prediction: str, gold: str) -> Verdict:
    r"""Returns the verdict as far as form and fractions decide it; what needs algebra is undecided.

    >>> check_exactly(r"\sqrt{2}", r"2^{1/2}")
    'undecided'
    """
    if max(len(prediction), len(gold)) > MAX_CHARACTERS:
        return "undecided"
    given, right = normalize_answer(prediction), normalize_answer(gold)
    if not given:
        return "wrong"
    if not right or max(depth(given), depth(right)) > MAX_DEPTH:
        return "undecided"
    return compare(read_form(given), read_form(right), same_value, same_relation)


def needs_algebra(gold: str) -> bool:
    r"""Returns whether an answer has parts that are neither numbers nor words.

    >>> needs_algebra(r"2\sqrt{2}"), needs_algebra("1, 5"), needs_algebra("Oslo"), needs_algebra("x + 2y = 3")
    (True, False, False, True)
    """
    text = normalize_answer(gold)
    return len(gold) > MAX_CHARACTERS or depth(text) > MAX_DEPTH or _is_algebraic(read_form(text))


def _is_algebraic(form: Form) -> bool:
    if isinstance(form, Relation):
        return True
    if isinstance(form, Named):
        return _is_algebraic(form.value)
    if isinstance(form, Leaf):  # a single letter is a choice
        return not (form.words or len(form.text) < 2 or same_value(form.text, "0") != "undecided")
    return any(_is_algebraic(item) for item in form.items)


def same_value(given: str, gold: str) -> Verdict:
    """Compares two expressions if both are rational numbers or infinite."""
    try:
        left, right = rational(given), rational(gold)
    except TooBig:
        return "undecided"
    if left is not None and right is not None:
        return "right" if left == right else "wrong"
    endless = given in _INFINITIES, gold in _INFINITIES
    if all(endless) or (any(endless) and (left is not None or right is not None)):
        return "wrong"  # equal text was right before
    if len(given) == len(gold) == 1:
        return "wrong"  # two letters, or a letter and a digit
    return "undecided"


def same_relation(given: Relation, gold: Relation) -> Verdict:
    """Compares two relations that are the same text, or need algebra."""
    return "right" if given == gold else "undecided"


def depth(text: str) -> int:
    """Returns how many brackets stand in each other, counting opening ones that never close."""
    deepest = now = 0
    for char in text:
        now = max(0, now + (char in "([{") - (char in ")]}"))
        deepest = max(deepest, now)
    return deepest


def is_small(text: str) -> bool:
    r"""Returns whether evaluating `text` can be tried: a matter of text alone, so the same on every machine.

    >>> is_small("x^{2^{3}} + 10!"), is_small("7^{7^{7}}"), is_small("10^{100000}")
    (True, False, False)
    """
    if depth(text) > MAX_DEPTH or re.search(rf"[0-9]{{{MAX_DIGITS},}}", text) or _BIG_ARGUMENT.search(text):
        return False
    return all(_bound(_argument(text, found.end())) <= MAX_EXPONENT for found in _EXPONENT.finditer(text))


def _bound(text: str) -> float:
    """Returns a number that the value of `text`, an exponent, hardly exceeds: literals multiply, powers count."""
    bound = 1.0
    place = 0
    while place < len(text):
        number = re.compile(r"[0-9]+").match(text, place)
        if number:
            bound = min(bound * max(1.0, float(number.group()[:20])), 1e30)
            place = number.end()
        elif text[place] == "^":
            place = _EXPONENT.match(text, place).end()  # type: ignore[union-attr]  # it matches at a caret
            inner = _argument(text, place)
            bound = min(max(bound, 2.0) ** min(_bound(inner), 100.0), 1e30)
            place += len(inner)
        elif text[place] == "!":
            return 1e30
        else:
            place += 1
    return bound


def _argument(text: str, start: int) -> str:
    """Returns the exponent that begins at `start`: a group with its brackets, or one signed token."""
    if text[start : start + 1] not in ("{", "("):
        token = re.compile(r"[-+]?(?:[0-9.]+|\\?[A-Za-z]+)?(?:\^.*)?").match(text, start)
        return token.group() if token else ""
    level = 0
    for place in range(start, len(text)):
        level += (text[place] in "([{") - (text[place] in ")]}")
        if level == 0:
            return text[start : place + 1]
    return text[start:]


__all__ = ["Verdict", "check", "check_exactly", "needs_algebra", "require_algebra"]
