"""Patients for doctor-patient-v0: drawn from the table of conditions, or read from a file. A game, not medical advice.

A patient is drawn in two steps, because the doctor knows one part of it from the start. First the opening: a condition
by its weight, then age, sex and what the patient comes with, given the condition. Then the rest, given the opening: the
condition again, by its chance after the opening, then symptoms, history and the findings of all tests. In law that is
the same as drawing the patient at once; but two patients with one opening may have different conditions.

Split     by a hash of the whole case: about four of five cases are `train`, the others `heldout`, and both have all
          conditions. With `split_by="condition"` by a hash of the condition's name: about every fifth condition is
          held out whole, for studies of what carries over to an illness that was never seen in training.
File      JSON lines, one case each, checked line by line (`read_cases`):

    {"condition": "influenza", "age": 34, "sex": "female", "complaint": "fever",
     "symptoms": ["fever", "cough"], "history": ["sick contact"], "findings": {"throat or nose swab": "influenza"}}

          Names are those of `conditions.toml`; a condition may have one of its synonyms. Symptoms hold the complaint,
          and what a symptom brings with it is added. A test without a finding is normal. All lines are as likely.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.problems.doctor_patient.conditions import find_condition, table
from llm_arena.problems.files import check_digest, read_utf8
from llm_arena.problems.splits import Split

SplitBy = Literal["case", "condition"]
NORMAL = "normal"
SEXES = ("female", "male")
_FIELDS = ("condition", "age", "sex", "complaint", "symptoms", "history", "findings")


class Opening(msgspec.Struct, frozen=True):
    """What a doctor knows of a patient before the first question."""

    age: int
    sex: str
    complaint: str


class Card(msgspec.Struct, frozen=True):
    """What a patient knows of itself, in the order of the table. What is not there it does not have."""

    symptoms: tuple[str, ...]
    history: tuple[str, ...]

    def has(self, item: str) -> bool:
        """Whether the patient has a symptom, or a fact in its history."""
        return item in self.symptoms or item in self.history


class Case(msgspec.Struct, frozen=True):
    """One patient. Symptoms and history are in the order of the table; findings are by test, normal ones left out."""

    condition: str
    age: int
    sex: str
    complaint: str
    symptoms: tuple[str, ...]
    history: tuple[str, ...]
    findings: dict[str, str]

    @property
    def opening(self) -> Opening:
        """What the doctor is told."""
        return Opening(self.age, self.sex, self.complaint)

    @property
    def card(self) -> Card:
        """What the patient is told."""
        return Card(self.symptoms, self.history)


# ---- chances -----------------------------------------------------------------------------------------------------


@cache
def _item_chances() -> np.ndarray:
    known = table()
    return np.array([[known.chance(condition, item) for item in known.items] for condition in known.conditions])


@lru_cache(maxsize=64)
def item_chances(sex: str, age: int) -> np.ndarray:
    """Returns the chance of each item [conditions, items], in the order of the table, for a sex and an age."""
    possible = np.array([table().possible(item, sex, age) for item in table().items])
    chances: np.ndarray = _item_chances() * possible
    return chances


@cache
def _finding_chances(test: str) -> np.ndarray:
    known = table()
    listed = [known.findings(condition, test) for condition in known.conditions]
    return np.array([[chances[finding] for finding in known.tests[test].findings] for chances in listed])


@lru_cache(maxsize=2048)
def finding_chances(test: str, sex: str, age: int) -> np.ndarray:
    """Returns the chance of each result of a test [conditions, findings + 1]; the last one is a normal result."""
    can, names = table().possible(test, sex, age), table().tests[test].findings
    found = _finding_chances(test) * np.array([can and table().possible(f"{test}/{name}", sex, age) for name in names])
    return np.column_stack([found, 1.0 - found.sum(axis=1)])


def opening_chances(opening: Opening) -> np.ndarray:
    """Returns the chance [conditions] of each condition together with an opening; they sum to that of the opening."""
    known = table()
    chances = []
    for name, row in known.conditions.items():
        low, high = row.ages
        age = (low <= opening.age <= high) / (high - low + 1)
        sex = row.female if opening.sex == "female" else 1.0 - row.female
        led = known.leading(name, opening.sex, opening.age).get(opening.complaint, 0.0) if age and sex else 0.0
        chances.append(row.weight * age * sex * led)
    return np.array(chances) / sum(row.weight for row in known.conditions.values())


# ---- drawn cases -------------------------------------------------------------------------------------------------


class TableCases:
    """Patients drawn from the table.

    Args:
        split: `train` or `heldout`.
        condition: the one condition that all of them have, by any of its names; None: all conditions.
        by: what is held out, each fifth `case` or each fifth `condition`.

    Raises:
        UsageError: an argument is out of its range.
    """

    def __init__(self, split: Split = "train", condition: str | None = None, by: SplitBy = "case") -> None:
        for name, given, allowed in (("split", split, ("train", "heldout")), ("split_by", by, ("case", "condition"))):
            if given not in allowed:
                raise UsageError(f"{name}={given!r:.100}; expected {' or '.join(allowed)}")
        self._split, self._by = split, by
        names = list(table().conditions)
        self._may = np.array([by == "case" or _side(name.encode()) == split for name in names], float)
        if condition is not None:
            found = find_condition(condition) if isinstance(condition, str) else None
            if found is None:
                near = did_you_mean(str(condition)[:100], names)
                raise UsageError(f"condition={condition!r:.100} is not in the table of conditions.{near}")
            if not self._may[names.index(found)]:
                raise UsageError(
                    f"condition={found!r} is not in split={split!r} by condition; use the other split, or "
                    "split_by='case'"
                )
            self._may = np.array([name == found for name in names], float)

    def open(self, rng: np.random.Generator) -> Opening:
        """Draws an opening."""
        known = table()
        rows = list(known.conditions.values())
        row = rows[_pick(rng, self._may * np.array([row.weight for row in rows]))]
        age = int(rng.integers(row.ages[0], row.ages[1] + 1))
        sex = "female" if rng.random() < row.female else "male"
        led = known.leading(row.name, sex, age)
        return Opening(age, sex, list(led)[_pick(rng, np.array(list(led.values())))])

    def deal(self, rng: np.random.Generator, opening: Opening) -> Case:
        """Draws a patient with this opening, of the split."""
        weights = self._may * opening_chances(opening)
        while True:
            case = _draw(rng, opening, _pick(rng, weights))
            if self._by == "condition" or split_of(case) == self._split:
                return case


def _draw(rng: np.random.Generator, opening: Opening, number: int) -> Case:
    known = table()
    chances = item_chances(opening.sex, opening.age)[number]
    present = {item for item, hit in zip(known.items, rng.random(len(chances)) < chances, strict=True) if hit}
    findings = {}
    for name, test in known.tests.items():
        result = _pick(rng, finding_chances(name, opening.sex, opening.age)[number])
        finding = [*test.findings, NORMAL][result]
        if finding != NORMAL:
            findings[name] = finding
    return _case(list(known.conditions)[number], opening, present | {opening.complaint}, findings)


def _case(condition: str, opening: Opening, present: Iterable[str], findings: dict[str, str]) -> Case:
    known = table()
    whole = {*present}
    whole |= {known.implies[item] for item in whole if item in known.implies}
    return Case(
        condition=condition,
        age=opening.age,
        sex=opening.sex,
        complaint=opening.complaint,
        symptoms=tuple(item for item in known.symptoms if item in whole),
        history=tuple(item for item in known.history if item in whole),
        findings=findings,
    )


def _pick(rng: np.random.Generator, weights: np.ndarray) -> int:
    """Draws a place by its weight."""
    ends = np.cumsum(weights)
    return int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))


def split_of(case: Case) -> Split:
    """Returns the split that a case belongs to, whatever seed it was drawn with."""
    return _side(msgspec.json.encode(case, order="sorted"))


def _side(content: bytes) -> Split:
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return "heldout" if int.from_bytes(digest, "big") % 5 == 0 else "train"


# ---- cases from a file -------------------------------------------------------------------------------------------


class FileCases:
    """Patients of a file; two lines with one opening are told apart by questions and tests only."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases

    def open(self, rng: np.random.Generator) -> Opening:
        """Draws a line, for its opening."""
        return self._cases[int(rng.integers(len(self._cases)))].opening

    def deal(self, rng: np.random.Generator, opening: Opening) -> Case:
        """Draws one of the lines with this opening."""
        same = [case for case in self._cases if case.opening == opening]
        return same[int(rng.integers(len(same)))]


def open_cases(
    split: Split, condition: str | None, path: str | None, sha256: str | None, *, by: SplitBy = "case"
) -> tuple[TableCases | FileCases, str | None]:
    """Returns the patients of the table, or of a file and its SHA-256.

    Args:
        split: of the table, `train` or `heldout`.
        condition: of the table, see `TableCases`.
        path: the file; None: the table.
        sha256: what the file must be; None: whatever it is.
        by: of the table, what is held out, see `TableCases`.

    Raises:
        UsageError: an argument is out of its range or has no place here, or the file is another one, or no such file.
    """
    if path is None:
        if sha256 is not None:
            raise UsageError(f"cases_sha256={sha256!r:.100} is for a file of cases; give cases too, or leave it out")
        return TableCases(split, condition, by), None
    if (split, condition, by) != ("train", None, "case"):
        given = f"split={split!r:.100}, split_by={by!r:.100}, condition={condition!r:.100}"
        raise UsageError(f"{given} are for the table; leave them out with cases")
    rows, digest = read_cases(path)
    check_digest("cases", path, digest, sha256)
    return FileCases(rows), digest


def read_cases(path: str) -> tuple[tuple[Case, ...], str]:
    """Reads a file of JSON lines and returns its cases and the SHA-256 of its bytes.

    Raises:
        UsageError: the file can't be read or has no case, or a line is no case; the message has its number.
    """
    text, digest = read_utf8("cases", path)
    return _cases(path, text), digest


@lru_cache(maxsize=8)
def _cases(path: str, text: str) -> tuple[Case, ...]:
    # not by splitlines(): JSON may hold U+2028 and its like as they are (PrimeIntellect-ai/verifiers PR #1644)
    lines = enumerate(text.split("\n"), start=1)
    cases = tuple(_read_line(f"{path}:{number}", line) for number, line in lines if line.strip())
    if not cases:
        raise UsageError(f"{path} has no cases; expected one JSON object a line with {', '.join(_FIELDS)}")
    return cases


def _read_line(place: str, line: str) -> Case:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: no JSON: {error}; expected an object with {', '.join(_FIELDS)}") from error
    if not isinstance(row, dict) or set(row) != set(_FIELDS):
        got = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        raise UsageError(f"{place}: got {got:.200}; expected an object with exactly {', '.join(_FIELDS)}")
    known = table()
    condition = find_condition(row["condition"]) if isinstance(row["condition"], str) else None
    if condition is None:
        near = did_you_mean(str(row["condition"])[:100], known.conditions)
        raise UsageError(f"{place}: condition is {row['condition']!r:.100}, which is not in the table.{near}")
    age, sex, findings = row["age"], row["sex"], row["findings"]
    if not isinstance(age, int) or isinstance(age, bool) or not 0 <= age <= 120:
        raise UsageError(f"{place}: age is {age!r:.100}; expected a whole number from 0 to 120")
    if sex not in SEXES:
        raise UsageError(f"{place}: sex is {sex!r:.100}; expected {' or '.join(SEXES)}")
    symptoms = _names(place, "symptoms", row["symptoms"], known.symptoms)
    history = _names(place, "history", row["history"], known.history)
    if row["complaint"] not in symptoms:
        raise UsageError(
            f"{place}: complaint is {row['complaint']!r:.100}; expected one of its symptoms {symptoms!r:.200}"
        )
    wrong = [item for item in (*symptoms, *history) if not known.possible(item, sex, age)]
    if wrong:
        raise UsageError(f"{place}: a {sex} patient of {age} can't have {wrong[0]!r}; leave it out")
    if not isinstance(findings, dict):
        raise UsageError(f"{place}: findings is {findings!r:.100}; expected an object of test and finding")
    for test, finding in findings.items():
        if test not in known.tests:
            raise UsageError(f"{place}: there is no test {test!r:.100}.{did_you_mean(test[:100], known.tests)}")
        if not isinstance(finding, str) or finding not in known.tests[test].findings:
            options = ", ".join(known.tests[test].findings)
            raise UsageError(f"{place}: {test} reports {finding!r:.100}; expected one of {options}")
        if not all(known.possible(key, sex, age) for key in (test, f"{test}/{finding}")):
            raise UsageError(f"{place}: {test} can't report {finding} for a {sex} patient of {age}; leave it out")
    return _case(condition, Opening(age, sex, row["complaint"]), [*symptoms, *history], findings)


def _names(place: str, field: str, given: Any, known: Collection[str]) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{place}: {field} is {given!r:.100}; expected a list of names")
    for name in given:
        if name not in known:
            raise UsageError(
                f"{place}: {field} has {name!r:.100}, which is not in the table.{did_you_mean(name[:100], known)}"
            )
    return given


__all__ = [
    "NORMAL",
    "Card",
    "Case",
    "FileCases",
    "Opening",
    "SplitBy",
    "TableCases",
    "finding_chances",
    "item_chances",
    "open_cases",
    "opening_chances",
    "read_cases",
    "split_of",
]
