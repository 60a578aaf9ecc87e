"""Patients for doctor-patient-v0: drawn from the table of conditions, or read from a file. A game, not medical advice.

A patient is drawn in two steps, because the doctor knows one part of it from the start. First the opening: a condition
by its weight, then age, sex and what the patient comes with, given the condition. Then the rest, given the opening: the
condition again, by its chance after the opening, then symptoms, history and the findings of all tests. In law that is
the same as drawing the patient at once; but two patients with one opening may have different conditions.

Split     by a hash of the whole case: four of five cases are `train`, every fifth is `heldout`. Both have
          all conditions.
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
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.problems.conditions import find_condition, table

Split = Literal["train", "heldout"]
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


class Cases(Protocol):
    """Where patients come from."""

    def open(self, rng: np.random.Generator) -> Opening:
        """Draws an opening."""
        ...

    def deal(self, rng: np.random.Generator, opening: Opening) -> Case:
        """Draws a patient with this opening."""
        ...


# ---- chances -----------------------------------------------------------------------------------------------------


@cache
def item_chances(sex: str) -> np.ndarray:
    """Returns the chance of each item [conditions, items], in the order of the table, for one sex."""
    known = table()
    return np.array([[known.chance(condition, item, sex) for item in known.items] for condition in known.conditions])


@cache
def finding_chances(test: str) -> np.ndarray:
    """Returns the chance of each result of a test [conditions, findings + 1]; the last one is a normal result."""
    known = table()
    rows = []
    for condition in known.conditions:
        chances = known.findings(condition, test)
        found = [chances[finding] for finding in known.tests[test].findings]
        rows.append([*found, 1.0 - sum(found)])
    return np.array(rows)


def opening_chances(opening: Opening) -> np.ndarray:
    """Returns the chance [conditions] of each condition together with an opening; they sum to that of the opening."""
    known = table()
    chances = []
    for name, row in known.conditions.items():
        low, high = row.ages
        age = (low <= opening.age <= high) / (high - low + 1)
        sex = row.female if opening.sex == "female" else 1.0 - row.female
        led = known.leading(name, opening.sex).get(opening.complaint, 0.0) if age and sex else 0.0
        chances.append(row.weight * age * sex * led)
    return np.array(chances) / sum(row.weight for row in known.conditions.values())


# ---- drawn cases -------------------------------------------------------------------------------------------------


class TableCases:
    """Patients drawn from the table.

    Args:
        split: `train` or `heldout`.
        condition: the one condition that all of them have, by any of its names; None: all conditions.

    Raises:
        UsageError: an argument is out of its range.
    """

    def __init__(self, split: Split = "train", condition: str | None = None) -> None:
        if split not in ("train", "heldout"):
            raise UsageError(f"split={split!r}; expected train or heldout")
        self._split = split
        self._fixed = None
        if condition is not None:
            found = find_condition(condition) if isinstance(condition, str) else None
            if found is None:
                near = did_you_mean(str(condition), table().conditions)
                raise UsageError(f"condition={condition!r} is not in the table of conditions.{near}")
            self._fixed = list(table().conditions).index(found)

    def open(self, rng: np.random.Generator) -> Opening:
        """Draws an opening."""
        known = table()
        rows = list(known.conditions.values())
        row = rows[_pick(rng, self._allowed(np.array([row.weight for row in rows])))]
        age = int(rng.integers(row.ages[0], row.ages[1] + 1))
        sex = "female" if rng.random() < row.female else "male"
        led = known.leading(row.name, sex)
        return Opening(age, sex, list(led)[_pick(rng, np.array(list(led.values())))])

    def deal(self, rng: np.random.Generator, opening: Opening) -> Case:
        """Draws a patient with this opening, of the split."""
        weights = self._allowed(opening_chances(opening))
        while True:
            case = _draw(rng, opening, _pick(rng, weights))
            if split_of(case) == self._split:
                return case

    def _allowed(self, weights: np.ndarray) -> np.ndarray:
        if self._fixed is None:
            return weights
        only = np.zeros_like(weights)
        only[self._fixed] = 1.0
        return only


def _draw(rng: np.random.Generator, opening: Opening, number: int) -> Case:
    known = table()
    chances = item_chances(opening.sex)[number]
    present = {item for item, hit in zip(known.items, rng.random(len(chances)) < chances, strict=True) if hit}
    findings = {}
    for name, test in known.tests.items():
        result = _pick(rng, finding_chances(name)[number])
        finding = [*test.findings, NORMAL][result]
        possible = all(known.only.get(key, opening.sex) == opening.sex for key in (name, f"{name}/{finding}"))
        if finding != NORMAL and possible:
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
    digest = hashlib.blake2b(msgspec.json.encode(case, order="sorted"), digest_size=8).digest()
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
    split: Split, condition: str | None, path: str | None, sha256: str | None
) -> tuple[TableCases | FileCases, str | None]:
    """Returns the patients of the table, or of a file and its SHA-256.

    Args:
        split: of the table, `train` or `heldout`.
        condition: of the table, see `TableCases`.
        path: the file; None: the table.
        sha256: what the file must be; None: whatever it is.

    Raises:
        UsageError: an argument is out of its range or has no place here, or the file is another one, or no such file.
    """
    if path is None:
        if sha256 is not None:
            raise UsageError(f"cases_sha256={sha256!r:.100} is for a file of cases; give cases too, or leave it out")
        return TableCases(split, condition), None
    if split != "train" or condition is not None:
        raise UsageError(f"split={split!r}, condition={condition!r} are for the table; leave them out with cases")
    rows, digest = read_cases(path)
    if sha256 not in (None, digest):
        raise UsageError(
            f"cases={path!r} has SHA-256 {digest}, expected {sha256}: its cases have changed; restore the file, or "
            "leave cases_sha256 out to take what is there (results then do not compare)"
        )
    return FileCases(rows), digest


def read_cases(path: str) -> tuple[tuple[Case, ...], str]:
    """Reads a file of JSON lines and returns its cases and the SHA-256 of its bytes.

    Raises:
        UsageError: the file can't be read or has no case, or a line is no case; the message has its number.
    """
    try:
        found = Path(path).stat()
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"cases={path!r:.200} can't be read: {error}; expected the path of a file") from error
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _read(path: str, changed: int, size: int) -> tuple[tuple[Case, ...], str]:
    """Reads the file once, and again when it was written (`changed`, `size`)."""
    try:
        content = Path(path).read_bytes()
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cases={path!r:.200} can't be read: {error}; expected UTF-8 text of JSON lines") from error
    # not by splitlines(): JSON may hold U+2028 and its like as they are (PrimeIntellect-ai/verifiers PR #1644)
    lines = enumerate(text.split("\n"), start=1)
    cases = tuple(_read_line(f"{path}:{number}", line) for number, line in lines if line.strip())
    if not cases:
        raise UsageError(f"{path} has no cases; expected one JSON object a line with {', '.join(_FIELDS)}")
    return cases, hashlib.sha256(content).hexdigest()


def _read_line(place: str, line: str) -> Case:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: no JSON: {error}; expected an object with {', '.join(_FIELDS)}") from error
    if not isinstance(row, dict) or set(row) != set(_FIELDS):
        got = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise UsageError(f"{place}: got {got:.200}; expected an object with exactly {', '.join(_FIELDS)}")
    known = table()
    condition = find_condition(row["condition"]) if isinstance(row["condition"], str) else None
    if condition is None:
        near = did_you_mean(str(row["condition"]), known.conditions)
        raise UsageError(f"{place}: condition is {row['condition']!r:.100}, which is not in the table.{near}")
    age, sex, findings = row["age"], row["sex"], row["findings"]
    if not isinstance(age, int) or isinstance(age, bool) or not 0 <= age <= 120:
        raise UsageError(f"{place}: age is {age!r:.100}; expected a whole number from 0 to 120")
    if sex not in SEXES:
        raise UsageError(f"{place}: sex is {sex!r:.100}; expected {' or '.join(SEXES)}")
    symptoms = _names(place, "symptoms", row["symptoms"], known.symptoms)
    history = _names(place, "history", row["history"], known.history)
    if row["complaint"] not in symptoms:
        raise UsageError(f"{place}: complaint is {row['complaint']!r:.100}; expected one of its symptoms {symptoms}")
    wrong = [item for item in (*symptoms, *history) if known.only.get(item, sex) != sex]
    if wrong:
        raise UsageError(f"{place}: a {sex} patient can't have {wrong[0]!r}; leave it out")
    if not isinstance(findings, dict):
        raise UsageError(f"{place}: findings is {findings!r:.100}; expected an object of test and finding")
    for test, finding in findings.items():
        if test not in known.tests:
            raise UsageError(f"{place}: there is no test {test!r:.100}.{did_you_mean(test, known.tests)}")
        if not isinstance(finding, str) or finding not in known.tests[test].findings:
            options = ", ".join(known.tests[test].findings)
            raise UsageError(f"{place}: {test} reports {finding!r:.100}; expected one of {options}")
        if any(known.only.get(key, sex) != sex for key in (test, f"{test}/{finding}")):
            raise UsageError(f"{place}: {test} can't report {finding} for a {sex} patient; leave it out")
    return _case(condition, Opening(age, sex, row["complaint"]), [*symptoms, *history], findings)


def _names(place: str, field: str, given: Any, known: Collection[str]) -> list[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{place}: {field} is {given!r:.100}; expected a list of names")
    for name in given:
        if name not in known:
            raise UsageError(
                f"{place}: {field} has {name!r:.100}, which is not in the table.{did_you_mean(name, known)}"
            )
    return given


__all__ = [
    "NORMAL",
    "Card",
    "Case",
    "Cases",
    "FileCases",
    "Opening",
    "Split",
    "TableCases",
    "finding_chances",
    "item_chances",
    "open_cases",
    "opening_chances",
    "read_cases",
    "split_of",
]
