r"""The form of an answer: which parts it has, and how they hang together.

An answer is a leaf (a number, an expression, words) or a form of several parts:

    1, 5, 7   \pm 7   x = 1 or x = 2                several values, in any order
    {1, 4}   (-1, 0) \cup (2, 3)                    sets: in any order, and repeats don't count
    (0, 1.5)   [0, 1)   3 < x \le 5   matrix rows    values in order; their brackets count
    x > 3 and y < 5   x > 3 or y < 5                statements; "and" and "or" are two things
    x + 2y = 3   a < b < c                          relations: all sides and signs count
    x = 5   x \in [0, 1]                            a value with a name; the name counts if both have one
    41 cm   5 million   25 percent                  a value with a unit; the unit counts if both have one

What has no sure reading (`1, 2, \ldots`, a determinant, words around numbers) stays text: it is right where the same
text is expected, and else undecided.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from llm_arena.problems.answers.numbers import TooBig, rational
from llm_arena.problems.answers.text import DOLLAR, split_top, whole_group
from llm_arena.problems.answers.units import split_unit


@dataclass(frozen=True)
class Leaf:
    """One value, as text: an expression, words (other words are another answer), or text without a sure reading."""

    text: str
    kind: Literal["value", "words", "unread"] = "value"
    unit: str = ""


@dataclass(frozen=True)
class Parts:
    """Several values or statements.

    `brackets` is what encloses values in order; without them and in braces order does not count. Statements are joined
    by `and`, `or` or a comma, which may mean either. In a set repeats don't count.
    """

    items: tuple[Form, ...]
    brackets: str = ""
    joint: Literal["", "and", "or", ","] = ""
    is_set: bool = False

    @property
    def ordered(self) -> bool:
        """Whether the order of the values counts."""
        return self.brackets not in ("", "{}")


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

_SIGN = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|<=|>=|!=|[=<>\u2264\u2265\u2260]")
_SIGN_NAMES = {"<=": "\\le", ">=": "\\ge", "!=": "\\ne", "\u2264": "\\le", "\u2265": "\\ge", "\u2260": "\\ne"}
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+|\\text\{[^{}]*\}|[A-Za-z][A-Za-z ]*[A-Za-z])"
    r"(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9,]+\}))?'*(?:\([A-Za-z0-9]+\))?"
)
_JOINT = re.compile(
    r"(?:\s*([,;])\s*|\s+)(?:(or|and)\s+|\\text\{\s*(or|and)\s*\}\s*)|\s*\\text\{\s*(or|and)\s*\}\s*"
    r"|\s*\\(lor|vee|land|wedge)(?![A-Za-z])\s*|([,;])"
)
_SYMBOLIC = {"lor": "or", "vee": "or", "land": "and", "wedge": "and"}
_COMMA = re.compile(r"[,;]")
_UNION = re.compile(r"\\cup(?![A-Za-z])")
_MEMBER = re.compile(r"([A-Za-z](?:_[A-Za-z0-9])?)\s*\\in(?![A-Za-z])\s*")
_TEXT_COMMAND = re.compile(r"\\text\{([^{}]*)\}")
_CLOCK = re.compile(r"[0-9]{1,2}(?::[0-5][0-9]){1,2}(?:\s*[AaPp]\.?[Mm]\.?)?")
_MATRIX = re.compile(r"\\begin\{([bp]?matrix|smallmatrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_PRODUCT = re.compile(r"(?=[abc]*[xyz])[abcxyz]{2,3}")
_PROSE = re.compile(r"(?<![A-Za-z\\])(?:[A-Za-z]{4,}|[A-Za-z]{2,}\s+[A-Za-z]{2,})")


def read_form(text: str) -> Form:
    r"""Returns the form of a normalized answer.

    >>> form = read_form("n = 1, 5")
    >>> form.name, [leaf.text for leaf in form.value.items]
    ('n', ['1', '5'])
    """
    if "\\ldots" in text:  # 1, 2, ... goes on as the reader pleases
        return _unread(text)
    pieces, joints = split_top(text, _JOINT)
    if joints:
        return _joined(text, pieces, joints)
    if member := _MEMBER.match(text):
        return Named(_name(member[1]), read_form(text[member.end() :].strip()))
    pieces, unions = split_top(text, _UNION)
    if unions:
        return Parts(tuple(_spread([read_form(piece) for piece in pieces], ("", "{}"))), is_set=True)
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        rows = [row for row in matrix[2].split("\\\\") if row.strip()]
        cells = (Parts(tuple(read_form(cell.strip()) for cell in row.split("&")), "row") for row in rows)
        return Parts(tuple(cells), "matrix")
    if "\\begin" in text:  # |A| in another dress, a system, ...
        return _unread(text)
    sides, signs = split_top(text, _SIGN)
    if signs:
        return _relation(sides, [_SIGN_NAMES.get(sign, sign) for sign in signs])
    inside = whole_group(text)
    if inside is not None:
        return _group(*inside)
    upper, lower = _both_signs(text)
    if upper != lower:
        return Parts((_leaf(upper), _leaf(lower)), is_set=True)
    return _leaf(text)


def _joint(mark: str) -> str:
    found = _JOINT.fullmatch(mark)
    assert found is not None  # it is one of its matches
    _comma, word, text_word, lone_word, symbol, lone_comma = found.groups()
    return word or text_word or lone_word or _SYMBOLIC.get(symbol, "") or lone_comma


def _joined(text: str, pieces: Sequence[str], joints: Sequence[str]) -> Form:
    """Returns values as one list, however they are joined, and statements as what their joints make of them."""
    items = [read_form(piece) for piece in pieces]
    marks = {_joint(mark) for mark in joints}
    symbolic = any(re.search(r"\\[lvw]", mark) for mark in joints)
    names = [item.name for item in items if isinstance(item, Named)]
    if not symbolic and all(_is_value(item) for item in items) and len(set(names)) <= 1:
        return _unread(text) if {",", ";"} <= marks else _several(items)
    if len(marks) > 1 or any(isinstance(item, Parts) and item.joint for item in items):
        return _unread(text)  # x = 1 and y = 2, x = 2 and y = 1: which binds closer?
    [mark] = marks
    if mark == "or" and not symbolic and len(names) == len(items) and len(set(names)) == 1:
        return _several(items, is_set=True)
    if mark in ("and", "or"):
        return Parts(tuple(items), joint="and" if mark == "and" else "or")
    if len(names) == len(items) == len(set(names)):  # a value or a bound for each name: all hold
        return Parts(tuple(items), joint="and")
    return _unread(text) if len(set(names)) > 1 and len(set(names)) < len(names) else Parts(tuple(items), joint=",")


def _is_value(item: Form) -> bool:
    """Returns whether a form is a value, or says by an equation what a name's values are."""
    if isinstance(item, Named):
        return item.relation is None or item.relation.signs == ("=",)
    return not isinstance(item, Relation) and not (isinstance(item, Parts) and item.joint)


def _several(items: Sequence[Form], *, is_set: bool = False) -> Form:
    r"""Returns a list of values; `n = 1, 5, 7` is one list with a name, and `\pm 1, 3` has three values."""
    first = items[0]
    if isinstance(first, Named) and all(not isinstance(item, Named) or item.name == first.name for item in items):
        plain = [item.value if isinstance(item, Named) else item for item in items]
        return Named(first.name, Parts(tuple(_spread(plain)), is_set=is_set))
    return Parts(tuple(_spread(items)), is_set=is_set)


def _spread(items: Sequence[Form], among: tuple[str, ...] = ("",)) -> Iterator[Form]:
    """Yields the items of lists in a list, and of what else has brackets `among` these."""
    for item in items:
        if isinstance(item, Parts) and item.brackets in among and not item.joint:
            yield from item.items
        else:
            yield item


def _group(brackets: str, inside: str) -> Form:
    if brackets == "{}":
        form = read_form(inside) if inside.strip() else Parts(())
        if isinstance(form, Parts) and not form.brackets and not form.joint:
            return Parts(form.items, "{}", is_set=True)
        return form if isinstance(form, Named) or not _is_value(form) else Parts((form,), "{}", is_set=True)
    pieces, _ = split_top(inside, _COMMA)
    if len(pieces) == 1:
        return read_form(inside.strip())
    if "" in pieces or split_top(inside, _JOINT)[1] != split_top(inside, _COMMA)[1]:
        return _unread(brackets[0] + inside + brackets[1])
    return Parts(tuple(read_form(piece) for piece in pieces), brackets)


def _relation(sides: Sequence[str], signs: Sequence[str]) -> Form:
    names = [side if _NAME.fullmatch(side) and not _PRODUCT.fullmatch(side) else None for side in sides]  # xy = 1
    if set(signs) == {"="}:
        values = [value_of(side) for side in sides]
        known = {value for value in values if value is not None}
        if None not in values and len(known) == 1:
            return _leaf(sides[-1])  # 12 + 30 = 42
        if names[0] is None and names[-1] is not None:  # 5 = x
            sides, names = sides[::-1], names[::-1]
        name = names[0]
        one = name is not None and len(known) <= 1 and not any(names[1:-1])  # not x = 4 = 5, nor x = y = 3
        if one and not re.search(rf"(?<![A-Za-z\\]){re.escape(str(name))}(?![A-Za-z])", sides[-1]):
            return Named(_name(str(name)), read_form(sides[-1]), Relation((sides[0], sides[-1]), ("=",)))
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
    return Named(_name(sides[at]), Parts((low, high), opening + closing), relation)


def value_of(text: str) -> Fraction | None:
    """Returns the number that `text` is, or None if it is none or too big."""
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
        return Leaf(plain(text), "words")
    measured = split_unit(text)
    if measured:
        value = _leaf(measured[0])
        return value if value.kind == "unread" else Leaf(value.text, unit=measured[1])
    bare = _TEXT_COMMAND.sub(r"\1", text)
    letters = bare.replace(" ", "").replace("-", "")
    if len(letters) > 1 - (bare != text) and letters.isalpha() and not _PRODUCT.fullmatch(letters):
        return Leaf(plain(text), "words")
    if bare != text or DOLLAR in text or _PROSE.search(text):  # words around numbers
        return _unread(text)
    return Leaf(re.sub(r"^\+\s*", "", text))


def _unread(text: str) -> Leaf:
    return Leaf(" ".join(text.split()), "unread")


def plain(text: str) -> str:
    """Returns words without their `text` command and, unless it is a single letter, without their case."""
    spelled = " ".join(_TEXT_COMMAND.sub(r"\1", text).split())
    return spelled.casefold() if len(spelled) > 1 else spelled  # x and X are two things


def _name(text: str) -> str:
    """Returns a name, without case where it is words: AB and ab, f(x) and F(x) are different things."""
    spelled = " ".join(_TEXT_COMMAND.sub(r"\1", text).replace("{", "").replace("}", "").split())
    return spelled.casefold() if re.fullmatch(r"[A-Za-z ]{3,}", spelled) else spelled
