"""The scripted doctor of doctor-patient-v0: Bayes over the table of conditions. A game, not medical advice.

It knows the table, which is public, and believes what it hears, but for one answer in fifty (`DOUBT`). The chance of a
condition after the opening, answers and results is the product of their chances given the condition, as the table has
them. Each turn it does what is worth most: the expected loss of entropy (in nats, times `VALUE`) less its price. It
asks about one item at a time, or an open question, orders each test once, and diagnoses when nothing is worth its price
any more, or when questions and tests are used up. Of an open question it takes each thing that the patient may still
have as equally likely to be told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llm_arena.problems.doctor_patient.cases import NORMAL, Opening, finding_chances, item_chances, opening_chances
from llm_arena.problems.doctor_patient.conditions import table
from llm_arena.types import Json

DOUBT = 0.02
"""Chance that an answer is not true."""

VALUE = 0.3
"""Reward that a nat of certainty is taken to be worth; 0.2 to 0.4 pay about alike."""

OPEN_PRICE = 3
"""How many questions an open question counts as."""

_TINY = 1e-12


def posterior(facts: Mapping[str, Json]) -> np.ndarray:
    """Returns the chance of each condition [conditions], in the order of the table, from the facts of a doctor."""
    known = table()
    opening = Opening(facts["age"], facts["sex"], facts["complaint"])
    chances = opening_chances(opening) + _TINY
    items = _told(item_chances(opening.sex, opening.age))
    order = list(known.items)
    answers = dict(facts["answers"])
    if facts["nothing_else"]:
        answers = dict.fromkeys(known.symptoms, False) | answers
    for item, said in answers.items():
        if item != opening.complaint:
            column = items[:, order.index(item)]
            chances = chances * (column if said else 1.0 - column)
    for test, finding in facts["results"].items():
        results = [*known.tests[test].findings, NORMAL]
        chances = chances * (finding_chances(test, opening.sex, opening.age)[:, results.index(finding)] + _TINY)
    total: np.ndarray = chances / chances.sum()
    return total


def _told(chances: np.ndarray) -> np.ndarray:
    """Returns the chances that a patient says yes, given those that it has the thing."""
    return chances * (1.0 - 2.0 * DOUBT) + DOUBT


def ranking(chances: np.ndarray, places: int) -> list[str]:
    """Returns the likeliest conditions, the likeliest first."""
    names = list(table().conditions)
    return [names[number] for number in np.argsort(-chances, kind="stable")[:places]]


def _entropy(chances: np.ndarray) -> np.ndarray:
    """Returns the entropy of each row [..., conditions] in nats."""
    total: np.ndarray = -np.sum(chances * np.log(chances + _TINY), axis=-1)
    return total


def _gains(chances: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Returns the expected loss of entropy of each question, from P(outcome | condition) [conditions, q, outcomes]."""
    joint = chances[:, None, None] * outcomes
    seen = joint.sum(axis=0)
    after = _entropy(np.moveaxis(joint / (seen + _TINY), 0, -1))
    gains: np.ndarray = _entropy(chances) - (seen * after).sum(axis=-1)
    return gains


def next_step(facts: Mapping[str, Json]) -> str:
    """Returns the doctor's reply: `ASK: item`, `ASK: What else?`, `TEST: name` or `DIAGNOSIS: ...`."""
    known = table()
    sex, age = facts["sex"], facts["age"]
    chances = posterior(facts)
    worth: dict[str, float] = {}
    if facts["questions_left"] > 0:
        said = _told(item_chances(sex, age))
        gains = _gains(chances, np.stack([said, 1.0 - said], axis=-1))
        done = {*facts["asked"], *facts["answers"], facts["complaint"]}
        worth |= {
            f"ASK: {item}": VALUE * float(gain) - facts["question_cost"]
            for item, gain in zip(known.items, gains, strict=True)
            if item not in done
        }
        if facts["open_left"] > 0 and facts["questions_left"] >= OPEN_PRICE and not facts["nothing_else"]:
            gain = _gains(chances, _open_outcomes(said, facts["answers"])[:, None, :])[0]
            worth["ASK: What else?"] = VALUE * float(gain) - OPEN_PRICE * facts["question_cost"]
    if facts["tests_left"] > 0:
        for name, test in known.tests.items():
            if name not in facts["results"]:
                gain = _gains(chances, finding_chances(name, sex, age)[:, None, :])[0]
                worth[f"TEST: {name}"] = VALUE * float(gain) - facts["test_cost"] * test.price
    best = max(worth, key=lambda step: worth[step], default="")
    if best and worth[best] > 0:
        return best
    return diagnosis(ranking(chances, facts["ranked"]))


def _open_outcomes(said: np.ndarray, answers: Mapping[str, bool]) -> np.ndarray:
    """Returns P(what is told at an open question | condition) [conditions, symptoms left + 1]; the last is nothing."""
    left = said[:, [number for number, item in enumerate(table().symptoms) if item not in answers]]
    nothing = np.prod(1.0 - left, axis=1, keepdims=True)
    told: np.ndarray = left / left.sum(axis=1, keepdims=True) * (1.0 - nothing)
    return np.concatenate([told, nothing], axis=1)


def diagnosis(names: list[str]) -> str:
    """Returns the protocol line of a ranked diagnosis.

    >>> diagnosis(["influenza", "common cold"])
    'DIAGNOSIS: 1. influenza; 2. common cold'
    """
    return "DIAGNOSIS: " + "; ".join(f"{place}. {name}" for place, name in enumerate(names, start=1))


__all__ = ["DOUBT", "OPEN_PRICE", "VALUE", "diagnosis", "next_step", "posterior", "ranking"]
