"""What doctor and patient say in doctor-patient-v0, read by rule: what is asked, what is claimed, and is it true.

Words     are compared in lower case, without articles, possessives and `of`, British spelling and a plural `s` folded.
          An item (a symptom or a fact of the history) is found by its name or one of the other words of the table, the
          longest first: "blood in my stool" is the item `bloody stool`, and no mention of anything else.
Questions `asked_items`: the items that a question mentions, in their order. A question without an item is open if it
          has one of the phrases of `_OPEN` ("what else", "how do you feel"), else it is about nothing.
Answers   `read_answer`: each item that is mentioned is claimed or denied. From a word like no, not, never, without or
          don't on, items of the sentence are denied, until "but", "I have", "I am" and the like, or "yes". "Fever: no"
          counts too, and "my temperature is normal" denies. After "not sure" or "don't know" items are neither. If none
          of the asked items is mentioned, a lone yes or no is about all of them. An item that is both claimed and
          denied is contradicted.
Judged    `judge`: an answer is worth 0 if a claim or denial contradicts the card, whatever was asked; else 1/2 if an
          asked item got no answer, or something was told that was not asked; else 1. Not counted as told: the
          complaint and what was told before; after an open question the first item. Naming a condition of the table
          (or a synonym) is telling.

What the rule can't see: words that are not in the table ("my pipes hurt"), degree, time and place ("only on Sundays"),
irony, a double negation, "not only", what is claimed of others ("my sister has a cough"), and a made-up story about
things that are no item. A patient can thus deceive in words outside the table without being caught.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Sequence
from functools import cache
from typing import Literal

import msgspec

from llm_arena.problems.conditions import condition_names, table
from llm_arena.problems.patient_cases import Card

Stance = Literal["yes", "no", "both", "unsure"]

_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[.,;:!?\n]")
_STOP = frozenset({"a", "an", "the", "my", "your", "any", "some", "his", "her", "our", "of"})
_ENDS = frozenset(".;!?\n")
_TURNS = frozenset({"but", "however", "though", "although", "except", "yet", "yes", "yeah", "yep"})
_YES = frozenset({"yes", "yeah", "yep", "correct", "right", "sure", "indeed", "true"})
_NO = frozenset(
    {"no", "nope", "not", "never", "none", "neither", "nor", "without", "deny", "denie", "cannot", "nothing"}
)
_NO_BARE = frozenset({"dont", "doesnt", "didnt", "havent", "hasnt", "isnt", "wasnt", "cant", "arent"})
_POSITIVE = frozenset({"have", "had", "feel", "felt", "am", "get", "got", "notice", "noticed", "suffer", "do", "did"})
_WELL = frozenset({"normal", "fine", "good", "ok", "okay", "alright"})
_BETWEEN = frozenset({"also", "only", "just", "really", "still", "do", "did", "often", "sometime", "alway"})
_UNSURE = (
    ("not", "sure"), ("not", "certain"), ("don't", "know"), ("dont", "know"), ("do", "not", "know"), ("can't", "say"),
    ("cannot", "say"), ("can't", "tell"), ("cannot", "tell"), ("can't", "remember"), ("unsure",), ("maybe",),
    ("perhap",),
)  # fmt: skip
_OPEN = re.compile(
    r"\b(?:else|other (?:symptom|complaint|problem)s?|tell me (?:more|about)|how (?:do|are) you feel(?:ing)?|"
    r"what (?:brings|is wrong|happened|seems|are your|is the)|describe|anything)\b"
)

Phrases = dict[str, list[tuple[tuple[str, ...], str]]]


class Reading(msgspec.Struct, frozen=True):
    """What an answer says."""

    stances: dict[str, Stance]
    "Item -> what is said of it, in the order of mention; asked items are there only if they got an answer."
    named: tuple[str, ...]
    "Conditions that the answer names."
    denies: bool
    "Whether it has a word like no."


class Judgement(msgspec.Struct, frozen=True):
    """What an answer is worth, and why."""

    score: float
    false_claims: int
    false_denials: int
    evaded: int
    volunteered: int


def _words(text: str) -> list[str]:
    """Returns words and punctuation, folded as the module's docstring says."""
    plain = unicodedata.normalize("NFKD", text).casefold().replace("\u2019", "'")
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    return [folded for token in _TOKEN.findall(plain) for folded in [_fold(token)] if folded not in _STOP]


def _fold(token: str) -> str:
    token = token.replace("ae", "e").replace("oe", "e") if len(token) > 4 else token
    return token[:-1] if len(token) > 3 and token.endswith("s") and not token.endswith("ss") else token


def _index(names: Collection[tuple[str, str]]) -> Phrases:
    """Returns first word -> (all words, name), the longest first."""
    index: Phrases = {}
    for alias, name in names:
        words = tuple(_words(alias))
        index.setdefault(words[0], []).append((words, name))
    for phrases in index.values():
        phrases.sort(key=lambda phrase: -len(phrase[0]))
    return index


@cache
def _item_phrases() -> Phrases:
    return _index([(alias, item.name) for item in table().items.values() for alias in item.aliases])


@cache
def _condition_phrases() -> Phrases:
    """Returns the names of conditions that are no words of an item as well (`diabetes`, `high blood pressure`)."""
    items = {words for phrases in _item_phrases().values() for words, _ in phrases}
    pairs = [(alias, name) for alias, name in condition_names().items() if len(alias) > 2]
    return _index([(alias, name) for alias, name in pairs if tuple(_words(alias)) not in items])


def _match(words: Sequence[str], at: int, phrases: Phrases) -> tuple[int, str] | None:
    """Returns (number of words, name) of the longest phrase at a place, or None."""
    for phrase, name in phrases.get(words[at], ()):
        if tuple(words[at : at + len(phrase)]) == phrase:
            return len(phrase), name
    return None


def _mentions(words: Sequence[str], phrases: Phrases) -> dict[str, int]:
    """Returns name -> place, in the order of mention."""
    found: dict[str, int] = {}
    at = 0
    while at < len(words):
        match = _match(words, at, phrases)
        if match:
            found.setdefault(match[1], at)
        at += match[0] if match else 1
    return found


def asked_items(question: str) -> list[str]:
    """Returns the items that a question is about, in their order.

    >>> asked_items("Do you have a temperature, or any blood in your stools?")
    ['fever', 'bloody stool']
    """
    return list(_mentions(_words(question), _item_phrases()))


def is_open(question: str) -> bool:
    """Returns whether a question without items asks for whatever there is.

    >>> is_open("What else do you feel?"), is_open("Do you like jazz?")
    (True, False)
    """
    return not asked_items(question) and _OPEN.search(question.casefold()) is not None


def read_answer(answer: str, asked: Sequence[str]) -> Reading:
    """Returns what an answer says of items.

    >>> read_answer("No fever or chills, but I do have a cough.", ["fever"]).stances
    {'fever': 'no', 'chills': 'no', 'cough': 'yes'}
    >>> read_answer("Not at all.", ["fever"]).stances
    {'fever': 'no'}
    """
    words = _words(answer)
    stances: dict[str, Stance] = {}
    polarity: Stance = "yes"
    denies = False
    rest: list[str] = []  # what is no item
    at = 0
    while at < len(words):
        word = words[at]
        match = _match(words, at, _item_phrases())
        if match:
            length, item = match
            said = _beside(words, at, at + length) or polarity
            before = stances.get(item)
            stances[item] = said if before in (None, "unsure", said) else before if said == "unsure" else "both"
            rest.append("")
            at += length
            continue
        rest.append(word)
        unsure = next((phrase for phrase in _UNSURE if tuple(words[at : at + len(phrase)]) == phrase), None)
        if unsure:
            polarity = "unsure"
            at += len(unsure)
            rest.append("")
            continue
        if word in _ENDS or word in _TURNS or _affirms(words, at):
            polarity = "yes"
        elif _denies(word):
            denies = True
            polarity = "unsure" if polarity == "unsure" else "no"
        at += 1
    if not any(item in stances for item in asked):
        whole = _whole(words)
        if whole:
            stances.update(dict.fromkeys(asked, whole))
    named = tuple(_mentions(rest, _condition_phrases()))
    return Reading({item: said for item, said in stances.items() if said != "unsure"}, named, denies)


def _denies(word: str) -> bool:
    return word in _NO or word in _NO_BARE or word.endswith("n't")


def _affirms(words: Sequence[str], at: int) -> bool:
    """Whether `I have`, `I also have`, `and have`, `I'm` and the like begin here."""
    if words[at] in ("i'm", "i've"):
        return True
    if words[at] not in ("i", "and"):
        return False
    after = at + 1
    while after < len(words) and words[after] in _BETWEEN:
        after += 1
    if after > at + 1 and words[at] == "i" and (after == len(words) or not _denies(words[after])):
        return True
    return after < len(words) and words[after] in _POSITIVE


def _beside(words: Sequence[str], begin: int, end: int) -> Stance | None:
    """Returns the stance of `fever: no`, `fever? yes`, `temperature is normal`, `good appetite`; None for others."""
    after = words[end : end + 2]
    if len(after) == 2 and after[0] in (":", "?"):
        return "yes" if after[1] in _YES else "no" if after[1] in ("no", "none", "not") else None
    if (len(after) == 2 and after[0] in ("is", "are") and after[1] in _WELL) or (begin and words[begin - 1] in _WELL):
        return "no"
    return None


def _whole(words: Sequence[str]) -> Stance | None:
    """Returns what an answer that mentions none of the asked items says of all of them."""
    spoken = [word for word in words if word not in _ENDS and word not in (",", ":")]
    if not spoken or any(tuple(spoken[at : at + len(one)]) == one for one in _UNSURE for at in range(len(spoken))):
        return None
    if spoken[0] in _YES:
        return "yes"
    if any(map(_denies, spoken)):
        return "no"
    return "yes" if _affirms(spoken, 0) else None


def judge(
    card: Card, reading: Reading, asked: Sequence[str], told: Collection[str], *, open_question: bool
) -> Judgement:
    """Returns what an answer is worth; see the module's docstring.

    Args:
        card: the truth.
        reading: what the answer says.
        asked: the items that were asked about.
        told: items that were told before, the complaint among them.
        open_question: whether the question was open.
    """
    false_claims = sum(said != "no" and not card.has(item) for item, said in reading.stances.items())
    false_denials = sum(said != "yes" and card.has(item) for item, said in reading.stances.items())
    extra = [item for item in reading.stances if item not in asked and item not in told]
    evaded = sum(item not in reading.stances for item in asked)
    volunteered = len(extra) + len(reading.named)
    if open_question:
        volunteered = max(len(extra) - 1, 0) + len(reading.named)
        untold = [item for item in card.symptoms if item not in told]
        if not extra and reading.denies and untold:  # "nothing else", when there is something
            false_denials += 1
        evaded = int(not extra and not reading.denies)
    score = 0.0 if false_claims or false_denials else 0.5 if evaded or volunteered else 1.0
    return Judgement(score, false_claims, false_denials, evaded, volunteered)


def answer_from_card(card: Card, asked: Sequence[str], told: Collection[str], *, open_question: bool) -> str:
    """Returns the answer of a patient that says what is asked, and the truth. Arguments as for `judge`."""
    known = table().items
    if open_question:
        untold = next((item for item in card.symptoms if item not in told), None)
        return "No, nothing else." if untold is None else f"I also have {known[untold].phrase}."
    if not asked:
        return "I can't say anything about that."
    said = [f"{'I have' if card.has(item) else 'I do not have'} {known[item].phrase}" for item in asked]
    begin = "Yes, " if card.has(asked[0]) else "No, "
    return begin + ". ".join(said) + "."


def lie_from_card(card: Card, asked: Sequence[str]) -> str:
    """Returns the opposite of the truth about the items that were asked about."""
    known = table().items
    return " ".join(f"I {'do not have' if card.has(item) else 'have'} {known[item].phrase}." for item in asked) or "No."


def card_text(card: Card) -> str:
    """Returns what the patient is shown of its case, how it feels and its history, no findings and no condition."""
    known = table().items
    feels = ", ".join(known[item].phrase for item in card.symptoms)
    history = ", ".join(known[item].phrase for item in card.history)
    return f"You have: {feels}.\nAlso true of you: {history or 'nothing else'}.\nYou have nothing else."


__all__ = [
    "Judgement",
    "Reading",
    "answer_from_card",
    "asked_items",
    "card_text",
    "is_open",
    "judge",
    "lie_from_card",
    "read_answer",
]
