"""What doctor and patient say in doctor-patient-v0, read by rule: what is asked, what is claimed, and is it true.

Words     are compared in lower case, without articles, possessives and `of`, British spelling and a plural `s` folded.
          An item (a symptom or a fact of the history) is found by its name or one of the other words of the table, the
          longest first: "blood in my stool" is the item `bloody stool`, and no mention of anything else. Some words say
          the opposite of their item: "vaccinated" denies `no vaccination`.
Questions `asked_items`: the items that a question mentions, in their order. `inverted_items`: those that a yes would
          deny ("are you vaccinated?", "is your temperature normal?"). A question without an item is open if it
          has one of the phrases of `_OPEN` ("what else", "how do you feel"), else it is about nothing.
Answers   `read_answer`: each item that is mentioned is claimed or denied. From a word like no, not, never, without or
          don't on, items of the sentence are denied, until "but", "only", "just", "I have", "I am" and the like, or
          "yes". "Fever: no" and "fever, no." count too, and "my temperature was normal" denies. After a leading "yes"
          an asked item of that sentence is denied only if the denial is right before it ("yes, I could not sleep
          because of the cough" claims a cough). After "not sure" or "don't know" items are neither. If none of the
          asked items is mentioned, a yes or no is about all of them, and "I'm fine" denies them. An item both claimed
          and denied is contradicted.
Judged    `judge`: an answer is worth 0 if a claim or denial contradicts the card, whatever was asked; else 1/2 if an
          asked item got no answer, or something was told or guessed at ("perhaps a cough") that was not asked; else 1.
          Not counted as told: the complaint and what was told before; after an open question the first item that the
          patient has. To deny everything at an open question while something is untold is false. Naming a condition of
          the table (or a synonym) is telling.

What the rule can't see: words that are not in the table ("my pipes hurt"), degree, time and place ("only on Sundays"),
irony, a double negation, "not only", what is claimed of others ("my sister has a cough"), and a made-up story about
things that are no item. A patient can thus deceive in words outside the table without being caught.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Sequence
from functools import cache
from typing import Literal

import msgspec

from llm_arena.problems.doctor_patient.cases import Card
from llm_arena.problems.doctor_patient.conditions import condition_names, table

Stance = Literal["yes", "no", "both", "unsure"]

_TOKEN = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[.,;:!?\n]")
_STOP = frozenset({"a", "an", "the", "my", "your", "any", "some", "his", "her", "our", "of"})
_ENDS = frozenset(".;!?\n")
_TURNS = frozenset({"but", "however", "though", "although", "except", "yet", "only", "just", "yes", "yeah", "yep"})
_YES = frozenset({"yes", "yeah", "yep", "yup", "correct", "definitely", "absolutely"})
_AGREE = frozenset({"right", "sure", "indeed", "true", "certainly"})
"Words that say yes only when they stand alone."
_NO = frozenset(
    {"no", "nope", "not", "never", "none", "neither", "nor", "without", "deny", "denie", "cannot", "nothing"}
)
_NO_BARE = frozenset({"dont", "doesnt", "didnt", "havent", "hasnt", "isnt", "wasnt", "cant", "arent"})
_POSITIVE = frozenset({"have", "had", "feel", "felt", "am", "get", "got", "notice", "noticed", "suffer", "do", "did"})
_WELL = frozenset({"normal", "fine", "good", "ok", "okay", "alright", "healthy"})
_IS = frozenset({"is", "are", "was", "were", "been", "seem", "feel"})
_RAISED = frozenset({"high", "raised", "elevated", "up", "changed", "unusual"})
_LINK = frozenset({"or", "nor", "and", ",", "have", "had", "been", "having", "do", "does", "feel", "get", "got", "am"})
"Words between a denial and what it denies."
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
    unsure: tuple[str, ...]
    "Items that it mentions and is not sure of."
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
def _opposites() -> frozenset[tuple[str, ...]]:
    return frozenset(tuple(_words(alias)) for item in table().items.values() for alias in item.opposite)


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


def inverted_items(question: str) -> frozenset[str]:
    """Returns the items of a question that a yes would deny.

    >>> sorted(inverted_items("Are you vaccinated, and is your temperature normal? Any cough?"))
    ['fever', 'no vaccination']
    """
    words, phrases = _words(question), _item_phrases()
    inverted = set()
    for item, at in _mentions(words, phrases).items():
        end = at + (_match(words, at, phrases) or (1, ""))[0]
        well = (at > 0 and words[at - 1] in _WELL) or (end < len(words) and words[end] in _WELL)
        if well or tuple(words[at:end]) in _opposites():
            inverted.add(item)
    return frozenset(inverted)


def is_open(question: str) -> bool:
    """Returns whether a question without items asks for whatever there is.

    >>> is_open("What else do you feel?"), is_open("Do you like jazz?")
    (True, False)
    """
    return not asked_items(question) and _OPEN.search(question.casefold()) is not None


def read_answer(answer: str, asked: Sequence[str], inverted: Collection[str] = ()) -> Reading:
    """Returns what an answer says of items.

    Args:
        answer: the words.
        asked: the items that were asked about.
        inverted: those of them that a yes denies.

    >>> read_answer("No fever or chills, but I do have a cough.", ["fever"]).stances
    {'fever': 'no', 'chills': 'no', 'cough': 'yes'}
    >>> read_answer("Not at all.", ["fever"]).stances
    {'fever': 'no'}
    """
    words = _words(answer)
    leading = _leading(words)
    stances: dict[str, Stance] = {}
    unsure: dict[str, None] = {}
    polarity: Stance = "yes"
    denies = False
    gap = 0  # words since the last denial that are neither links nor items
    rest: list[str] = []  # what is no item
    at = 0
    while at < len(words):
        word = words[at]
        match = _match(words, at, _item_phrases())
        if match:
            length, item = match
            opposite = tuple(words[at : at + length]) in _opposites()
            said = _beside(words, at, at + length)
            if said is None:
                said = polarity
                if leading and item in asked and polarity == "no" and gap > 1:
                    said = _flipped(leading) if item in inverted else leading
                elif opposite:
                    said = _flipped(said)
            if said == "unsure":
                unsure[item] = None
            before = stances.get(item)
            stances[item] = said if before in (None, "unsure", said) else before if said == "unsure" else "both"
            rest.append("")
            at += length
            continue
        rest.append(word)
        doubt = next((phrase for phrase in _UNSURE if tuple(words[at : at + len(phrase)]) == phrase), None)
        if doubt:
            polarity = "unsure"
            at += len(doubt)
            rest.append("")
            continue
        if word in _ENDS or word in _TURNS or _affirms(words, at) or words[at + 1 : at + 2] == ["stop"]:
            polarity = "yes"
        elif _denies(word):
            denies = True
            # a leading no answers the question; it is no denial of what comes after its comma
            gap = 2 if at == 0 and words[1:2] == [","] else 0
            polarity = "unsure" if polarity == "unsure" else "no"
        elif word not in _LINK:
            gap += 1
        if word in _ENDS:
            leading = None  # it is about its own sentence
        at += 1
    if not any(item in stances for item in asked):
        whole, flips = _whole(words)
        for item in asked if whole else ():
            stances[item] = _flipped(whole) if whole and flips and item in inverted else whole or "unsure"
    named = tuple(_mentions(rest, _condition_phrases()))
    known: dict[str, Stance] = {item: said for item, said in stances.items() if said != "unsure"}
    return Reading(known, tuple(item for item in unsure if item not in known), named, denies)


def _flipped(said: Stance) -> Stance:
    return "no" if said == "yes" else "yes" if said == "no" else said


def _leading(words: Sequence[str]) -> Stance | None:
    """Returns the yes or no that an answer begins with."""
    first = words[0] if words else ""
    ended = len(words) > 1 and (words[1] == "," or words[1] in _ENDS)
    return "yes" if first in _YES else "no" if first in ("no", "nope") and ended else None


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
    """Returns the stance of `fever: no`, `fever, no.`, `temperature is normal`, `good appetite`; None for others."""
    after = [*words[end : end + 3], "", "", ""][:3]
    marked = after[0] in (":", "?")
    said, then = (after[1], after[2]) if marked or after[0] == "," else (after[0], after[1])
    if marked or then in ("", ",") or then in _ENDS:
        if said in ("no", "nope", "none", "not", "never", "nothing"):
            return "no"
        if said in _YES:
            return "yes"
    if _denies(after[0]) and not _RAISED.isdisjoint(after[1:]):
        return "no"
    if (after[0] in _IS and after[1] in _WELL) or after[0] in _WELL or (begin and words[begin - 1] in _WELL):
        return "no"
    return None


def _whole(words: Sequence[str]) -> tuple[Stance | None, bool]:
    """Returns what an answer says of all asked items, of which it mentions none, and whether as a yes or no."""
    leading = _leading(words)
    if leading and len(words) > 1 and words[1] in _ENDS:
        return leading, True
    spoken = [word for word in words if word not in _ENDS and word not in (",", ":")]
    if not spoken or any(tuple(spoken[at : at + len(one)]) == one for one in _UNSURE for at in range(len(spoken))):
        return None, True
    if leading:
        return leading, True
    well = any(word in _WELL or (word == "well" and at > 0) for at, word in enumerate(spoken))
    denial = any(map(_denies, spoken))
    if well:  # "I'm fine"; but "not so good" says nothing of an item
        return (None, True) if denial else ("no", False)
    if denial:
        return "no", True
    spoken = [word for word in spoken if word not in _AGREE]
    agreed = not spoken or any(word in _YES for word in spoken) or spoken == ["i", "think", "so"]
    return ("yes" if agreed or _affirms(spoken, 0) else None), True


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
    extra = [item for item in (*reading.stances, *reading.unsure) if item not in asked and item not in told]
    evaded = sum(item not in reading.stances for item in asked)
    volunteered = len(extra) + len(reading.named)
    if open_question:
        new = any(reading.stances.get(item) == "yes" and card.has(item) for item in extra)
        volunteered -= new
        untold = [item for item in card.symptoms if item not in told]
        if not new and reading.denies and untold:  # "nothing else", when there is something
            false_denials += 1
        evaded = int(not new and not reading.denies)
    score = 0.0 if false_claims or false_denials else 0.5 if evaded or volunteered else 1.0
    return Judgement(score, false_claims, false_denials, evaded, volunteered)


def answer_from_card(
    card: Card, asked: Sequence[str], told: Collection[str], *, open_question: bool, inverted: Collection[str] = ()
) -> str:
    """Returns the answer of a patient that says what is asked, and the truth.

    At an open question it tells what it has in an order that is shuffled by a hash of its card: in the order of the
    table, each thing told would deny all those before it. Arguments as for `judge` and `read_answer`.
    """
    known = table().items
    if open_question:
        untold = [item for item in card.symptoms if item not in told]
        first = min(untold, key=lambda item: _shuffled(card, item), default=None)
        return "No, nothing else." if first is None else f"I also have {known[first].phrase}."
    if not asked:
        return "I can't say anything about that."
    said = [f"{'I have' if card.has(item) else 'I do not have'} {known[item].phrase}" for item in asked]
    begin = "Yes, " if card.has(asked[0]) != (asked[0] in inverted) else "No, "
    return begin + ". ".join(said) + "."


def _shuffled(card: Card, item: str) -> bytes:
    return hashlib.blake2b("/".join((*card.symptoms, *card.history, item)).encode(), digest_size=8).digest()


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
    "inverted_items",
    "is_open",
    "judge",
    "lie_from_card",
    "read_answer",
]
