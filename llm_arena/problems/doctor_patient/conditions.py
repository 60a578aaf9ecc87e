"""The table behind doctor-patient-v0: conditions, and what they do to a patient. A game, not medical advice.

It is read from `conditions.toml`, which was written by hand from textbook knowledge, simplified, with rounded chances.
Nobody should be treated by it.

Symptoms  what a patient can feel, each with the words that patients and doctors use for it; `!` is before words that
          say the opposite ("vaccinated"). One that a condition does not list has the chance `NOISE` all the same.
History   habits and events, each with its chance in the population, which holds where a condition lists no other.
Tests     what can be ordered, with a price in units, and the findings that it may report; else it is normal. A finding
          that a condition does not list is reported with the chance `FALSE_FINDING` in all, by test.
Condition how often it is drawn, ages (each year alike), sex, the chances of its symptoms, history and findings, and its
          look-alikes (paired both ways). The chances of the file are those of textbook cases; `TYPICAL` and `FOUND`
          make those of symptoms and findings smaller, but for symptoms of 100, without which there is no such illness.
Limits    `[only]` and `[ages]`: what only one sex, or only some ages, can have.

Given the condition, symptoms, history and tests are independent of each other, but that some symptoms bring a wider one
(`[implies]`). A simplification, on which the scripted doctor is built too.

Names     `find_condition` and `find_test` read a name strictly: case, accents, hyphens, apostrophes, text in brackets
          and a leading article do not count, nor British against American spelling (`anaemia`, `diarrhoea`, `tumour`,
          `generalised`). What is left must be a name of the table or one of its listed synonyms. A longer text
          that holds a name is no name.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import msgspec

TYPICAL = 0.65
"""What the chances of symptoms in the file are multiplied by: patients are less typical than textbooks."""

FOUND = 0.85
"""What the chances of findings in the file are multiplied by."""

NOISE = 0.02
"""Chance of a symptom that the condition does not list."""

FALSE_FINDING = 0.06
"""Chance that a test reports a finding which the condition does not list, all such findings together."""

LEADING = 0.2
"""A symptom with at least this chance may be what the patient comes with."""


class Symptom(msgspec.Struct, frozen=True):
    """Something that a patient may be asked about: a symptom or a fact of its history."""

    name: str
    phrase: str
    "What comes after `I have`."
    aliases: tuple[str, ...]
    opposite: tuple[str, ...]
    "Those of the aliases that say that the patient does not have it."
    base: float
    "Its chance where a condition lists none."


class Exam(msgspec.Struct, frozen=True):
    """Something that a doctor can order."""

    name: str
    price: int
    aliases: tuple[str, ...]
    findings: dict[str, str]
    "Finding -> what the report says."


class Condition(msgspec.Struct, frozen=True):
    """One row of the table. Chances are from 0 to 1."""

    name: str
    aliases: tuple[str, ...]
    weight: float
    ages: tuple[int, int]
    female: float
    symptoms: dict[str, float]
    history: dict[str, float]
    findings: dict[str, dict[str, float]]
    "Test -> finding -> chance."
    alike: tuple[str, ...]


class Table(msgspec.Struct, frozen=True):
    """All of `conditions.toml`, by name and in its order."""

    symptoms: dict[str, Symptom]
    history: dict[str, Symptom]
    tests: dict[str, Exam]
    conditions: dict[str, Condition]
    only: dict[str, str]
    "Item, test or `test/finding` -> the one sex that can have it; for the other a test is normal."
    ages: dict[str, tuple[int, int]]
    "Item, test or `test/finding` -> the youngest and the oldest that can have it."
    implies: dict[str, str]
    "Symptom -> the wider one that comes with it."

    @property
    def items(self) -> dict[str, Symptom]:
        """Symptoms and history together: all that a patient can be asked about."""
        return {**self.symptoms, **self.history}

    def possible(self, key: str, sex: str, age: int) -> bool:
        """Whether patients of this sex and age can have an item, be ordered a test, or have a `test/finding`."""
        low, high = self.ages.get(key, (0, age))
        return self.only.get(key, sex) == sex and low <= age <= high

    def chance(self, condition: str, item: str) -> float:
        """Returns the chance of an item for a patient with this condition that can have it."""
        row = self.conditions[condition]
        if item in self.symptoms:
            return row.symptoms.get(item, NOISE)
        return row.history.get(item, self.history[item].base)

    def leading(self, condition: str, sex: str, age: int) -> dict[str, float]:
        """Returns symptom -> the chance that such a patient comes with it: those above `LEADING`, in proportion."""
        row = self.conditions[condition]
        led = {name: p for name, p in row.symptoms.items() if p >= LEADING and self.possible(name, sex, age)}
        total = sum(led.values())
        return {name: chance / total for name, chance in led.items()}

    def findings(self, condition: str, test: str) -> dict[str, float]:
        """Returns the chance of each finding of a test; what is missing to 1 is a normal result."""
        listed = self.conditions[condition].findings.get(test, {})
        others = [finding for finding in self.tests[test].findings if finding not in listed]
        return {**listed, **{finding: FALSE_FINDING / len(others) for finding in others}}


@cache
def table() -> Table:
    """Returns the table; it is read once.

    Raises:
        KeyError, ValueError: the file contradicts itself (a name that is not declared, a chance above 1).
    """
    text = resources.files("llm_arena.problems.doctor_patient").joinpath("conditions.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    symptoms = {name: _symptom(name, text, NOISE) for name, text in raw.pop("symptoms").items()}
    history = {}
    for name, line in raw.pop("history").items():
        base, _, words = line.partition("; ")
        history[name] = _symptom(name, words, int(base) / 100)
    only = {item: sex for sex, items in raw.pop("only").items() for item in items}
    ages = {item: (low, high) for item, (low, high) in raw.pop("ages").items()}
    implies = raw.pop("implies")
    tests = {name: _test(name, line) for name, line in raw.pop("tests").items()}
    rows = {name: _condition(name, row) for name, row in raw.items()}
    alike: dict[str, list[str]] = {name: [] for name in rows}
    for name, row in rows.items():
        for other in row.alike:
            alike[name].append(other)
            alike[other].append(name)
    rows = {name: msgspec.structs.replace(row, alike=tuple(dict.fromkeys(alike[name]))) for name, row in rows.items()}
    found = Table(symptoms, history, tests, rows, only, ages, implies)
    _check(found)
    return found


def _symptom(name: str, line: str, base: float) -> Symptom:
    phrase, _, others = line.partition(": ")
    words = _split(others)
    opposite = tuple(word[1:] for word in words if word.startswith("!"))
    return Symptom(name, phrase, (name, *(word.removeprefix("!") for word in words)), opposite, base)


def _test(name: str, line: str) -> Exam:
    head, _, listed = line.partition(" / ")
    price, _, aliases = head.partition("; ")
    pairs = (finding.partition(": ") for finding in listed.split("; "))
    return Exam(name, int(price), (name, *_split(aliases)), {finding: report for finding, _, report in pairs})


def _condition(name: str, row: Mapping[str, Any]) -> Condition:
    findings: dict[str, dict[str, float]] = {}
    for place, chance in _chances(row["findings"]).items():
        test, _, finding = place.partition("/")
        findings.setdefault(test, {})[finding] = chance * FOUND
    low, high = row["ages"]
    return Condition(
        name=name,
        aliases=(name, *_split(row["aka"])),
        weight=float(row["weight"]),
        ages=(low, high),
        female=row.get("female", 50) / 100,
        symptoms={
            item: chance if chance == 1 else chance * TYPICAL for item, chance in _chances(row["symptoms"]).items()
        },
        history=_chances(row["history"]),
        findings=findings,
        alike=tuple(_split(row["alike"])),
    )


def _split(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def _chances(line: str) -> dict[str, float]:
    pairs = (part.rsplit(" ", 1) for part in line.split("; ") if part)
    return {name: int(percent) / 100 for name, percent in pairs}


def _check(found: Table) -> None:
    """Raises what `table` documents."""
    for row in found.conditions.values():
        unknown = [name for name in row.symptoms if name not in found.symptoms]
        unknown += [name for name in row.history if name not in found.history]
        unknown += [name for name in row.alike if name not in found.conditions]
        unknown += [
            f"{test}/{finding}"
            for test, chances in row.findings.items()
            for finding in chances
            if test not in found.tests or finding not in found.tests[test].findings
        ]
        if unknown:
            raise KeyError(f"conditions.toml: {row.name} names {unknown}, which are not declared")
        sums = [sum(chances.values()) + FALSE_FINDING for chances in row.findings.values()]
        sexes = [sex for sex, share in (("female", row.female), ("male", 1 - row.female)) if share > 0]
        led = all(found.leading(row.name, sex, age) for sex in sexes for age in range(row.ages[0], row.ages[1] + 1))
        chances = (*row.history.values(), *sums)
        if not led or not all(0 < p <= 1 for p in row.symptoms.values()) or not all(0 < p < 1 for p in chances):
            raise ValueError(
                f"conditions.toml: {row.name} has no leading symptom at some age, or a chance out of range"
            )


# ---- names -------------------------------------------------------------------------------------------------------


def normal_name(text: str) -> str:
    """Returns a name without what does not count in names; see the module's docstring.

    >>> normal_name("The Iron-deficiency Anemia (severe)")
    'iron deficiency anemia'
    >>> normal_name("Crohn's disease") == normal_name("crohns disease")
    True
    """
    plain = unicodedata.normalize("NFKD", text).casefold()
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    plain = re.sub(r"\([^()]*\)", " ", plain)
    plain = re.sub("['\u2019`]", "", plain)
    plain = plain.replace("\u00e6", "e").replace("\u0153", "e")
    plain = re.sub(r"[^a-z0-9]+", " ", plain).replace("ae", "e").replace("oe", "e")
    plain = re.sub(r"is(e[ds]?|ation)\b", r"iz\1", re.sub(r"our\b", "or", plain))
    return re.sub(r"^(?:an?|the) ", "", plain.strip())


@cache
def condition_names() -> dict[str, str]:
    """Returns normal name -> condition, synonyms included."""
    return {normal_name(alias): row.name for row in table().conditions.values() for alias in row.aliases}


@cache
def _test_names() -> dict[str, str]:
    return {normal_name(alias): test.name for test in table().tests.values() for alias in test.aliases}


def find_condition(text: str) -> str | None:
    """Returns the condition that `text` names, or None.

    >>> find_condition("Flu."), find_condition("some flu")
    ('influenza', None)
    """
    return condition_names().get(normal_name(text))


def find_test(text: str) -> str | None:
    """Returns the test that `text` names, or None.

    >>> find_test("Chest X-Ray")
    'chest x-ray'
    """
    return _test_names().get(normal_name(text))


__all__ = [
    "Condition",
    "Exam",
    "Symptom",
    "Table",
    "condition_names",
    "find_condition",
    "find_test",
    "normal_name",
    "table",
]
