r"""Is this answer right? Numbers are compared exactly and at once; other mathematics in a guarded process.

Three steps, of which each decides what it can:

1. Form (`forms`, `compare`): all parts of both answers are compared, by name, bracket and sign. Parts
   that are arithmetic on rational numbers (`1,250`, `$41.00`, `\frac{3}{7}`, `2^{10} - 1`, `50\%`, `1.2 million`) get
   exact fractions; words, choices (`C`) and clock times (`3:30`) are compared as text. No tolerance: 0.33 is not 1/3,
   and 0.333... is.
2. Guard: what is too long, too deep or a tower of powers is `undecided`, at once and everywhere alike.
3. Algebra: the rest needs the extra `problems`. A strict reader (`latex`) and sympy run in a process with a
   limit of processor time and of memory (`process`); what exceeds them is `undecided`. Only a proof is `right`,
   only a difference seen is `wrong`. Symbols are real.

Reader and comparison are ours and not math-verify's. Its `verify` compares with a tolerance and looks at one side or
one part of some answers (huggingface/Math-Verify issues #14, #26, #41, #60), and its parser drops what it does not know
(the base of `101_2`, primes, `\approx`). An equation that is yet to be solved is never right for its solution: it may
be the question itself.
"""

from __future__ import annotations

import re

from llm_arena.problems.answers.compare import Verdict, compare
from llm_arena.problems.answers.forms import Form, Leaf, Named, Parts, Relation, read_form, value_of
from llm_arena.problems.answers.numbers import TooBig, rational
from llm_arena.problems.answers.process import ask, require_algebra
from llm_arena.problems.answers.text import normalize_answer

MAX_CHARACTERS = 1000
"""Longer answers are undecided."""
MAX_DEPTH = 30
"""Brackets in brackets."""
MAX_EXPONENT = 10_000
MAX_DIGITS = 300
"""Of one number."""
SECONDS = 5.0
"""Limit of one algebraic comparison, in processor time."""

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
        seconds: limit of an algebraic comparison, in processor time.

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
    return compare(read_form(given), read_form(right), same_value, same_statement)


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
        return not (form.kind != "value" or len(form.text) < 2 or same_value(form.text, "0") != "undecided")
    if isinstance(form, Parts) and form.joint:
        return True
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


def same_statement(given: Form, gold: Form) -> Verdict:
    """Compares a statement with another form: the same text is right, and no number answers what can't be solved."""
    if given == gold:
        return "right"
    for form, other in ((given, gold), (gold, given)):
        if isinstance(form, Relation) and isinstance(other, Leaf) and value_of(other.text) is not None:
            letters = set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])", " ".join(form.sides)))
            values = {value_of(side) for side in form.sides}
            if len(letters) > 1 or (None not in values and set(form.signs) == {"="}):  # 12 + 31 = 42
                return "wrong"
    return "undecided"


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
