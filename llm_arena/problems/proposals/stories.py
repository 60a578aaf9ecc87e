"""Word problems with numbers left out: whoever fills in the numbers has posed a problem with a known answer.

Every number from 2 upwards fits in every place: a quotient is rounded down by what is asked, and where a result may be
below zero, the story can go there.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec

from llm_arena.problems.proposals.language import Limits, Result, evaluate

LEAST = 2
"""Smallest number that fits."""


class Template(msgspec.Struct, frozen=True):
    """A story with slots `{a}`, `{b}`, ..., and its answer as an expression of the slots."""

    text: str
    formula: str


TEMPLATES = (
    Template(
        "A shop sells {a} pens a day for {b} days, and {c} more on the day after. How many pens does it sell?",
        "a * b + c",
    ),
    Template(
        "A lift stands at floor {a}. It goes up {b} floors, then down {c} floors; floors below ground are "
        "negative. At which floor is it?",
        "a + b - c",
    ),
    Template("{a} sweets are put into bags of {b}. How many bags are full?", "a // b"),
    Template("{a} sweets are shared equally among {b} children, as far as it goes. How many are left over?", "a % b"),
    Template(
        "At noon it is {a} degrees. Then it gets {b} degrees colder, and {c} degrees warmer. How many degrees is it?",
        "a - b + c",
    ),
    Template(
        "A hall has {a} rows of {b} seats and {c} rows of {d} seats. How many seats does it have?", "a * b + c * d"
    ),
    Template(
        "A baker makes {a} trays of {b} rolls and packs them into boxes of {c}. How many boxes are full?", "a * b // c"
    ),
    Template(
        "A field is {a} metres long and {b} metres wide. A rope is laid {c} times along its whole edge. How many "
        "metres of rope is that?",
        "(a + b) * 2 * c",
    ),
    Template(
        "A train leaves with {a} passengers. At each of {b} stops {c} more get on. How many passengers does it carry "
        "at the end?",
        "a + b * c",
    ),
    Template(
        "An account holds {a} coins. On each of {b} days {c} coins are paid from it, and it may go below zero. How "
        "many coins does it hold?",
        "a - b * c",
    ),
    Template("It is {a} minutes past midnight. {b} minutes later, how many full hours have passed?", "(a + b) // 60"),
    Template(
        "A wheel has {a} teeth. It is turned {b} times by {c} teeth. By how many teeth has it passed its last full "
        "turn?",
        "b * c % a",
    ),
)
"""Their numbers are their names in fingerprints and traces: new ones go to the end."""


def slots(template: Template) -> list[str]:
    """Returns the names of the slots, in alphabetical order."""
    return sorted(set(re.findall(r"[a-z]", template.formula)))


def fill(number: int, values: Mapping[str, int], limits: Limits | None = None) -> Result:
    """Returns the problem that template `number` becomes with `values`, one for each slot.

    Raises:
        LanguageError: a value or the answer exceeds the limits.
    """
    template = TEMPLATES[number]
    formula = re.sub(r"[a-z]", lambda slot: str(values[slot.group()]), template.formula)
    result = evaluate(formula, limits)
    mark = hashlib.blake2b(f"story {number} {result.fingerprint}".encode(), digest_size=16).hexdigest()
    return msgspec.structs.replace(result, text=template.text.format(**values), fingerprint=mark)


def read_story(text: str, limits: Limits | None = None) -> Result | None:
    """Returns the problem that a filled story is; None if it is none of these.

    Raises:
        LanguageError: a value or the answer exceeds the limits.
    """
    for number, template in enumerate(TEMPLATES):
        pattern = re.sub(r"\\\{([a-z])\\\}", r"(?P<\1>[0-9]+)", re.escape(template.text))
        found = re.fullmatch(pattern, text)
        if found:
            return fill(number, {name: int(value) for name, value in found.groupdict().items()}, limits)
    return None
