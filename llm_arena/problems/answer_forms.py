r"""The form of an answer: which parts it has, and how parts are compared.

An answer is a leaf (a number, an expression, words) or a form of several parts:

    1, 5, 7   {1, 4}   \pm 7   x = 1 or x = 2       several values, in any order
    (0, 1.5)   [0, 1)   3 < x \le 5   matrix rows    values in order; their brackets count
    (-1, 0) \cup (2, 3)                             several intervals, in any order
    x + 2y = 3   a < b < c                          relations: all sides and signs count
    x = 5                                           a value with a name; the name counts if both have one
    41 cm                                           a value with a unit; the unit counts if both have one

All parts must agree. `compare` is given a function for leaves and another for relations, so that the same code decides
with plain fractions at once, and with computer algebra in another process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from llm_arena.problems.answer_numbers import TooBig, rational
from llm_arena.problems.answer_text import split_top, whole_group

Verdict = Literal["right", "wrong", "undecided"]
"""Whether an answer is right; `undecided` where that could not be found out, and never right."""


@dataclass(frozen=True)
class Leaf:
    """One value, as text. `words` are compared as text only."""

    text: str
    words: bool = False
    unit: str = ""


@dataclass(frozen=True)
class Parts:
    """Several values. `brackets` is empty where order does not count, else what encloses the values in order."""

    items: tuple[Form, ...]
    brackets: str = ""


@dataclass(frozen=True)
class Named:
    """A value with a name, and the relation that says so, unless it is a list."""

    name: str
    value: Form
    relation: Relation | None = None


@dataclass(frozen=True)
class Relation:
    r"""Sides and the signs between them: `=`, `<`, `\le`, `>`, `\ge`, `\ne`."""

    sides: tuple[str, ...]
    signs: tuple[str, ...]


Form = Leaf | Parts | Named | Relation
Compare = Callable[[str, str], Verdict]
CompareRelations = Callable[[Relation, Relation], Verdict]

_SIGN = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|<=|>=|!=|[=<>\u2264\u2265\u2260]")
_SIGN_NAMES = {"<=": "\\le", ">=": "\\ge", "!=": "\\ne", "\u2264": "\\le", "\u2265": "\\ge", "\u2260": "\\ne"}
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\}|[A-Za-z][A-Za-z ]*[A-Za-z])"
    r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9,]+\}))?'*(?:\([A-Za-z0-9]+\))?"
)
_COMMA = re.compile(r"[,;]")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_OR = re.compile(r"\s+(?:or|and)\s+|\s*\\text\{\s*(?:or|and)\s*\}\s*|\s*\\(?:lor|vee|land|wedge)(?![A-Za-z])\s*")
_MEMBER = re.compile(r"[A-Za-z]\s*\\in(?![A-Za-z])")
_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")
_UNIT = re.compile(r"(.*[0-9.}%)])\s*(?:\\text\{([^{}]+)\}|(?<=[0-9] )([A-Za-z]{2,}(?: [A-Za-z]+)*))(\^\{?[23]\}?)?")
_CLOCK = re.compile(r"[0-9]+(?::[0-9]+)+(?:\s*[AaPp]\.?[Mm]\.?)?")
_MATRIX = re.compile(r"\\begin\{([a-zA-Z]*matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_PRODUCT = re.compile(r"(?=[abc]*[xyz])[abcxyz]{2,3}")


def read_form(text: str) -> Form:
    r"""Returns the form of a normalized answer.

    >>> form = read_form("n = 1, 5")
    >>> form.name, [leaf.text for leaf in form.value.items]
    ('n', ['1', '5'])
    """
    if member := _MEMBER.match(text):
        text = text[member.end() :].strip()
    pieces, unions = split_top(text, _UNION)
    if unions:
        return Parts(tuple(read_form(piece) for piece in pieces))
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row for row in matrix[2].split("\\\\") if row.strip()]
        cells = (Parts(tuple(read_form(cell.strip()) for cell in row.split("&")), "row") for row in rows)
        return Parts(tuple(cells), "matrix")
    pieces = [piece for part in split_top(text, _COMMA)[0] for piece in split_top(part, _OR)[0]]
    if len(pieces) > 1:
        return _several([read_form(piece) for piece in pieces])
    sides, signs = split_top(text, _SIGN)
    if signs:
        return _relation(sides, [_SIGN_NAMES.get(sign, sign) for sign in signs])
    inside = whole_group(text)
    if inside is not None:
        return _group(*inside)
    upper, lower = _both_signs(text)
    if upper != lower:
        return Parts((_leaf(upper), _leaf(lower)))
    return _leaf(text)


def _several(items: Sequence[Form]) -> Form:
    r"""Returns a list of values; `n = 1, 5, 7` is one list with a name, and `\pm 1, 3` has three values."""
    first = items[0]
    if isinstance(first, Named) and all(not isinstance(item, Named) or item.name == first.name for item in items):
        plain = [item.value if isinstance(item, Named) else item for item in items]
        return Named(first.name, Parts(tuple(_spread(plain))))
    return Parts(tuple(_spread(items)))


def _spread(items: Sequence[Form]) -> Iterator[Form]:
    for item in items:
        if isinstance(item, Parts) and not item.brackets:
            yield from item.items
        else:
            yield item


def _group(brackets: str, inside: str) -> Form:
    pieces, _ = split_top(inside, _COMMA)
    if brackets == "{}":
        return _several([read_form(piece) for piece in pieces]) if inside.strip() else Parts(())
    if len(pieces) == 1:
        return read_form(inside.strip())
    return Parts(tuple(read_form(piece) for piece in pieces), brackets)


def _relation(sides: Sequence[str], signs: Sequence[str]) -> Form:
    names = [side if _NAME.fullmatch(side) else None for side in sides]
    if set(signs) == {"="}:
        if None not in (values := {_value(side) for side in sides}) and len(values) == 1:
            return _leaf(sides[-1])  # 12 + 30 = 42
        if names[0] is None and names[-1] is not None:  # 5 = x
            sides, names = sides[::-1], names[::-1]
        name = names[0]
        if name is not None and not re.search(rf"(?<![A-Za-z\\]){re.escape(name)}(?![A-Za-z])", sides[-1]):
            return Named(_plain(name), read_form(sides[-1]), Relation((sides[0], sides[-1]), ("=",)))
    return _interval(sides, signs, names) or Relation(tuple(sides), tuple(signs))


def _interval(sides: Sequence[str], signs: Sequence[str], names: Sequence[str | None]) -> Form | None:
    r"""Returns the interval that a bounded name lies in: `3 < x \le 5` is x in (3, 5]."""
    if not set(signs) <= _FLIPPED.keys() or len(sides) > 3 or sum(name is not None for name in names) != 1:
        return None
    if signs[0] in (">", "\\ge"):
        sides, names, signs = sides[::-1], names[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    at = next(place for place, name in enumerate(names) if name is not None)
    if set(signs) - {"<", "\\le"} or (len(sides) == 3 and at != 1):
        return None
    low = _leaf(sides[at - 1]) if at else _leaf("-\\infty")
    high = _leaf(sides[at + 1]) if at + 1 < len(sides) else _leaf("\\infty")
    relation = Relation(tuple(sides), tuple(signs))
    opening = "[" if at and signs[at - 1] == "\\le" else "("
    closing = "]" if at < len(signs) and signs[at] == "\\le" else ")"
    return Named(_plain(sides[at]), Parts((low, high), opening + closing), relation)


def _value(text: str) -> Fraction | None:
    try:
        return rational(text)
    except TooBig:
        return None


def _both_signs(text: str) -> tuple[str, str]:
    r"""Returns `text` with the upper and with the lower signs of `\pm` and `\mp`."""
    upper = re.sub(r"\\pm(?![A-Za-z])|\u00b1", "+", re.sub(r"\\mp(?![A-Za-z])", "-", text))
    lower = re.sub(r"\\pm(?![A-Za-z])|\u00b1", "-", re.sub(r"\\mp(?![A-Za-z])", "+", text))
    return upper.strip(), lower.strip()


def _leaf(text: str) -> Leaf:
    if _CLOCK.fullmatch(text):
        return Leaf(_plain(text), words=True)
    if unit := _UNIT.fullmatch(text):
        return Leaf(unit[1].strip(), unit=_plain((unit[2] or unit[3]) + (unit[4] or "")))
    bare = _TEXT_COMMAND.sub(r"\1", text)
    letters = bare.replace(" ", "")
    if bare != text or (len(letters) > 1 and letters.isalpha() and not _PRODUCT.fullmatch(letters)):
        return Leaf(_plain(text), words=True)
    if re.search(r"(?<![A-Za-z\\])[A-Za-z]{2,}\s+[A-Za-z]{2,}", text):  # prose around numbers
        return Leaf(_plain(text), words=True)
    return Leaf(re.sub(r"^\+\s*", "", text))


def _plain(text: str) -> str:
    plain = " ".join(_TEXT_COMMAND.sub(r"\1", text).split())
    return plain.casefold() if len(plain) > 1 else plain  # x and X are two things


def compare(given: Form, gold: Form, same: Compare, related: CompareRelations) -> Verdict:
    """Compares all parts of two forms.

    Args:
        given: the form of the prediction.
        gold: the form of the right answer.
        same: compares two expressions.
        related: compares two relations.
    """
    if isinstance(given, Named) or isinstance(gold, Named):
        return _compare_named(given, gold, same, related)
    if isinstance(given, Relation) or isinstance(gold, Relation):
        return related(given, gold) if isinstance(given, Relation) and isinstance(gold, Relation) else "wrong"
    if isinstance(given, Leaf) and isinstance(gold, Leaf):
        return _compare_leaves(given, gold, same)
    if isinstance(given, Leaf) or isinstance(gold, Leaf):
        parts, leaf = (gold, given) if isinstance(given, Leaf) else (given, gold)
        assert isinstance(parts, Parts)
        if parts.brackets or not parts.items:
            return "wrong"
        return all_of(compare(item, leaf, same, related) for item in parts.items)  # {5, 5} is 5
    if given.brackets != gold.brackets:
        return "wrong"
    if gold.brackets:
        if len(given.items) != len(gold.items):
            return "wrong"
        pairs = zip(given.items, gold.items, strict=True)
        return all_of(compare(left, right, same, related) for left, right in pairs)
    return all_of([_covers(given, gold, same, related), _covers(gold, given, same, related)])


def _covers(these: Parts, those: Parts, same: Compare, related: CompareRelations) -> Verdict:
    """Whether each of `these` is among `those`."""
    return all_of(any_of(compare(item, other, same, related) for other in those.items) for item in these.items)


def _compare_named(given: Form, gold: Form, same: Compare, related: CompareRelations) -> Verdict:
    if isinstance(given, Named) and isinstance(gold, Named):
        if given.name == gold.name:
            return compare(given.value, gold.value, same, related)
        return _compare_equations(given, gold, related)
    if isinstance(given, Relation) or isinstance(gold, Relation):
        return _compare_equations(given, gold, related)
    left, right = (form.value if isinstance(form, Named) else form for form in (given, gold))
    return compare(left, right, same, related)


def _compare_equations(given: Form, gold: Form, related: CompareRelations) -> Verdict:
    """Compares what both say as relations; a value alone says nothing of an equation it is not solved for."""
    left, right = (form.relation if isinstance(form, Named) else form for form in (given, gold))
    return related(left, right) if isinstance(left, Relation) and isinstance(right, Relation) else "wrong"


def _compare_leaves(given: Leaf, gold: Leaf, same: Compare) -> Verdict:
    if given.unit and gold.unit and given.unit != gold.unit:
        return "wrong"
    if given.words or gold.words:
        return "right" if _plain(given.text) == _plain(gold.text) else "wrong"
    if not given.text or not gold.text:
        return "wrong"
    return "right" if given.text == gold.text else same(given.text, gold.text)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns wrong if any is wrong, else undecided if any is, else right."""
    found: Verdict = "right"
    for verdict in verdicts:
        if verdict == "wrong":
            return "wrong"
        found = "undecided" if verdict == "undecided" else found
    return found


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns right if any is right, else undecided if any is, else wrong."""
    found: Verdict = "wrong"
    for verdict in verdicts:
        if verdict == "right":
            return "right"
        found = "undecided" if verdict == "undecided" else found
    return found
