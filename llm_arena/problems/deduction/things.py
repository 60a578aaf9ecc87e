"""500 secrets for `twenty-questions-v0`, what is true of them, and which questions ask for it.

The data (`things_data`) says yes, no, or that it is not clear: a grape is round to some, a cow is a food to
some. Questions ask for what is usually so: a secret's colour is that of the typical one, "bigger than a person" means a
grown person, a vegetable is what a cook calls one. What can't be asked of a secret (whether chess is sour) is "no".

Every fifth secret in the order of the data is held out (`heldout`), the others are to learn from (`train`).
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from llm_arena.problems.deduction.things_data import PROPERTIES, SECRETS

_ADVERBS = frozenset(["usually", "often", "mostly", "mainly", "typically", "generally", "normally", "commonly"])
_SAME = {"an": "a", "the": "a", "was": "is", "did": "does", "could": "can", "grey": "gray", "colour": "color"}
_SUBJECT = re.compile(r"^(is|does|can|are) (this|that|a (secret )?(thing|object|item)|a secret)\b")
_PEOPLE = re.compile(r"^(do|can) (you|we|one|humans|someone|somebody)\b")
_KIND = re.compile(r"^is it (a|some) (kind|type|sort) of (a )?")
_VERB = re.compile(r"^(is|are|do|does|can) ")


def _reading(question: str) -> str:
    """Returns a question in the form in which questions are compared: all of its words, in their order.

    Left out is only what changes nothing: adverbs like "usually", and how the secret, people or kinds are named.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    words = [_SAME.get(word, word) for word in re.findall(r"\w+", text) if word not in _ADVERBS]
    read = re.sub(r"^it is ", "is it ", " ".join(words))
    read = _PEOPLE.sub(r"\1 people", _SUBJECT.sub(r"\1 it", read))
    return _KIND.sub("is it a ", read)


@lru_cache(maxsize=1)
def questions() -> dict[str, str]:
    """Returns the question of each property, in the order of the table."""
    return {key: said[0] for key, said in phrasings().items()}


@lru_cache(maxsize=1)
def phrasings() -> dict[str, tuple[str, ...]]:
    """Returns each property's question and other phrasings that are listed for it."""
    rows = [line.split(" | ") for line in PROPERTIES.strip().splitlines()]
    return {key: (question, *(rest[0].split("; ") if rest else ())) for key, question, *rest in rows}


@lru_cache(maxsize=1)
def _readings() -> dict[str, str]:
    """Returns the property that each understood reading asks for. What two properties could mean is left out."""
    exact = {
        read if _VERB.match(read) else f"is it a {read}": key
        for key, listed in phrasings().items()
        for read in map(_reading, listed)
    }
    bare: dict[str, set[str]] = {}
    for reading, key in exact.items():
        bare.setdefault(reading.replace(" a ", " "), set()).add(key)  # "is it fruit" for "is it a fruit"
    return {reading: next(iter(keys)) for reading, keys in bare.items() if len(keys) == 1} | exact


@lru_cache(maxsize=1)
def _rows() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Returns of each secret what it has, and what is not clear."""
    rows: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    shared: set[str] = set()
    for line in SECRETS.strip().splitlines():
        if line.startswith("= "):
            shared = set(line[2:].split())
            continue
        for entry in line.split(";"):
            name, own = (part.strip() for part in entry.split(":"))
            marks = {word.lstrip("?-"): word[0] for word in [*shared, *own.split()]}  # its own words after the group's
            for color in ("black", "white"):
                if marks.get(color, "-") not in "?-":
                    marks[f"part{color}"] = color
                elif marks.get(f"part{color}", "-") not in "?-":
                    marks[color] = "?"
            yes = frozenset(key for key, mark in marks.items() if mark not in "?-")
            rows[name] = yes, frozenset(key for key, mark in marks.items() if mark == "?")
    return rows


@lru_cache(maxsize=1)
def table() -> dict[str, frozenset[str]]:
    """Returns the properties of each secret, by name."""
    return {name: yes for name, (yes, _) in _rows().items()}


@lru_cache(maxsize=1)
def unclear() -> dict[str, frozenset[str]]:
    """Returns of each secret the properties of which neither yes nor no is true, by name."""
    return {name: doubts for name, (_, doubts) in _rows().items()}


@lru_cache(maxsize=1)
def secrets() -> dict[str, tuple[str, ...]]:
    """Returns the secrets of each split, `train` and `heldout`, and of `all`."""
    names = tuple(table())
    return {
        "train": tuple(name for at, name in enumerate(names) if at % 5 != 4),
        "heldout": names[4::5],
        "all": names,
    }


@lru_cache(maxsize=4096)
def property_of(question: str) -> str | None:
    """Returns the property of the table that a question asks for, or None.

    Only a question whose words are, in their order, those of the table's question, or of a listed phrasing of it, is
    understood; what adds, turns round or denies something is not.

    >>> property_of("Is it an animal?"), property_of("can you eat it"), property_of("Does it eat people?")
    ('animal', 'edible', None)
    """
    read = _reading(question)
    if read in table():  # "Orange?" asks for a thing or for a color
        return None
    understood = _readings()
    return understood.get(read) or understood.get(f"is it a {read}") or understood.get(f"is it {read}")


def truth(secret: str, question: str) -> bool | None:
    """Returns what the table says; None if it is not clear, the secret not known or the question not understood."""
    row, key = table().get(secret), property_of(question)
    return None if row is None or key is None or key in unclear()[secret] else key in row
