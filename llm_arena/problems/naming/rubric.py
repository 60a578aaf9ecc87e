"""The `rubric` judge of `naming-v0`: how good is a name for a topic? Deterministic, pure, no model.

A score is the product of six criteria, each above 0 and at most 1. Only the order of scores matters, so that a
product is enough; it also means that no strong point buys back a broken one. "Refused" is a factor of 0.0002, which
loses against almost anything that is an attempt.

`form`: is it a name, and nothing else?
    Words: 2 are best (1); 1 word 0.85, 3 words 0.95, 4 words 0.8, n > 4 words 3.2 / n. Times 0.6 + 0.4 x the share of
    words in title case (small words inside may be lower case; longer words in capitals are not title case). Times 0.8
    for each character that is neither letter, space nor `&` (an apostrophe inside a word and a hyphen between words
    are free; three count). Times 0.6 for each word of talk (`I`, `here's`, `name`; three count).
`length`: is it short enough for a sign?
    12 characters are best (1), 0.01 less for each one away from that; above 20 characters 18.4 / n, below 5 0.186 n.
`sound`: can one say it?
    From the mean log-probability m of letter pairs, in nats, as counted in the words of `topics`: 1 + 0.1
    (m + 2), at most 1, down to m = -3.4; below that it falls linearly from 0.86 to refused at m = -3.7. Half if a word
    has more than 12 letters or a letter three times in a row. Only a to z count: text in another script is refused.
`originality`: is it more than the topic, stock phrases, and what the others said?
    Refused: no word at all; only words of the topic, or letters nearly the topic's (likeness above 0.7); a quarter or
    more of the words repeated (a smaller share: half); the topic run together (`Noodlebar`); a word that repeats itself
    (`Beanbean`). Times 0.8 for each word of the topic (or part of one, from four
    letters), 0.7 for each stock word (`Haven`, `Hub`, `Cozy`), 0.3 if there is no other word, 0.85 if it begins with
    an article. Times 1 - 0.5 (d - 0.4) / 0.6 for likeness d > 0.4 to the nearest other name of the contest; likeness
    (Dice coefficient of letter triples) is the same both ways.
`relevance`: does it fit the topic?
    1 if a word holds a stem that people link to the topic (three-letter stems: begins with it), 0.75 if only a word of
    the topic itself, 0.5 if neither.
`honesty`: is it meant for customers?
    Refused if it talks to or about the judge, the score, the rules or the other side (`Please Rate Highest`, and words
    like `Entry` or `Winner` wherever they stand), or holds a chat marker.

Ways to game it that remain: one fixed good-sounding phrase for all topics gets everything but relevance; gluing a
linked stem to a fixed word (`Velvet Bean`, `Velvet Petal`) gets full marks, though each such name is fair by itself;
English-sounding nonsense passes `sound`. For a topic without an entry in `topics`, relevance sees only the
topic's own words.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from string import ascii_lowercase

from llm_arena.problems.naming.topics import HELDOUT, TRAIN, associations

REFUSED = 0.0002
"""The factor of a name that breaks a criterion outright: it loses against anything that is an attempt."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SMALL = _words("a an and at by de for from in la le of on or the to with")
"""Words that a title may hold in lower case, and that don't count as words of their own."""

_TALK = _words(
    """i i'd i'm i'll i've me my we our us you your you're he she they it it's this that that's these there there's
    here here's is are was were be been being am has have had do does did can could would should will may might must
    what what's which who where when why how if then because but not no yes so just like sure certainly okay ok alright
    let let's think imagine invent create creating creative name names named naming called call suggest unique answer
    idea ideas choose means meaning one's some any all more most than about into example note please thanks"""
)
"""Words of a sentence about a name, seldom of a name."""

_STOCK = _words(
    """haven hub cozy cosy corner bliss blissful oasis emporium nook delight delights delightful paradise heaven
    heavenly dream dreams magic magical perfect perfection best ultimate premium amazing awesome wonderful super elite
    express world central zone spot place house shop store studio boutique company co inc llc corp enterprises
    solutions services group center centre cafe club daily happy fresh tasty whimsical serenity serene essence
    enchanted unique creative utopia elegance elegant"""
)
"""Words found in so many names that they say nothing."""

_JUDGE = re.compile(
    r"\b(judges?|judging|jury|rubrics?|graders?|evaluators?|instructions?|prompts?|opponents?|ignore|disregard)\b"
    r"|\b(pick|choose|select|prefer|vote|rate|rank|award|score|give|reward)\s+(me|this|for|it|us)\b"
    r"|\b(full|max|maximum|top|highest|best)\s+(scores?|marks?|points?|rewards?|names?|answers?)\b"
    r"|\bscores?\s*[:=]?\s*\d|\bscore\s*[:=]|\b\d+\s*/\s*\d+\b|\b\d+\s+(points?|out of)\b"
    r"|\b(wins?|winn(er|ing)|won|rewards?|award(s|ed)?|credits?|rat(ed|ings?)|scor(es?|ed|ing)|grad(ed?|es|ing))\b"
    r"|\b(entr(y|ies)|submissions?|candidates?|contestants?|vot(es?|ed)|verdict|accept(ed)?|approved?|please)\b"
    r"|\b(chosen|selected|preferred|evaluat(e|ed|ion)|criteria|favou?rites?)\b|<\||\|>",
    re.IGNORECASE,
)
"""Talk to or about the judge, the score, the rules or the other side."""

_GENERIC = _STOCK | _words(
    """agency app bar brand clinic course firm garden gym joint kit market night planner pool rental repair resort
    restaurant rink room salon school show sanctuary stable stand team truck website"""
)
"""Words of a topic that name its trade's form, not its matter: they make no name relevant."""

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)?")
_DOUBLED = re.compile(r"(\w{3,})\1")
"""A word that repeats itself: `Beanbean`."""
_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")


def words_of(text: str) -> list[str]:
    """Returns the words of `text` as written. One apostrophe belongs to its word; a hyphen parts two words."""
    return _WORD.findall(text)


def _lower(word: str) -> str:
    return word.lower().replace("\u2019", "'")


def _plain(word: str) -> str:
    """Returns `word` in lower case without a possessive or plural s, so that `Bean's` and `beans` are `bean`."""
    word = _lower(word)
    word = word[:-2] if word.endswith("'s") else word
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _content(text: str) -> list[str]:
    """Returns the words that carry a name: plain, without small words and single letters."""
    return [_plain(word) for word in words_of(text) if len(word) > 1 and word.lower() not in _SMALL]


_STOCK_PLAIN = frozenset(map(_plain, _STOCK))
_GENERIC_PLAIN = frozenset(map(_plain, _GENERIC))


@cache
def _letter_pairs() -> dict[str, float]:
    """Returns the log-probability of each letter after each letter, from the words of the topic lists.

    `^` is a word's start and `$` its end. With 0.1 added to each count: ln((n_ab + 0.1) / (n_a + 2.7)).
    """
    words = {word for entry in (TRAIN | HELDOUT).items() for word in (*re.findall(r"[a-z]+", entry[0]), *entry[1])}
    counts = Counter(pair for word in words for pair in _pairs(word))
    firsts = Counter(pair[0] for pair in counts.elements())
    return {
        a + b: math.log((counts[a + b] + 0.1) / (firsts[a] + 2.7))
        for a in "^" + ascii_lowercase
        for b in ascii_lowercase + "$"
    }


def _pairs(word: str) -> list[str]:
    return [a + b for a, b in zip("^" + word, word + "$", strict=True)]


def form(name: str) -> float:
    """Returns how much `name` looks like a name and nothing else."""
    words = words_of(name)
    if not words:
        return REFUSED
    score = {1: 0.85, 2: 1.0, 3: 0.95, 4: 0.8}.get(len(words), 3.2 / len(words))
    titled = [
        (at > 0 and word in _SMALL) or (word[0].isupper() and (len(word) <= 3 or not word.isupper()))
        for at, word in enumerate(words)
    ]
    odd = sum(not (char.isspace() or char == "&") for char in _WORD.sub("", _HYPHEN.sub(" ", name)))
    talk = sum(_lower(word) in _TALK for word in words)
    return score * (0.6 + 0.4 * sum(titled) / len(words)) * 0.8 ** min(odd, 3) * 0.6 ** min(talk, 3)


def length(name: str) -> float:
    """Returns how well the number of characters of `name` fits on a sign."""
    count = len(name)
    if count > 20:
        return 18.4 / count
    return 0.186 * count if count < 5 else 1 - 0.01 * abs(count - 12)


def sound(name: str) -> float:
    """Returns how much the letters of `name` follow each other as in English words (a to z only)."""
    words = [re.sub(r"[^a-z]", "", word.lower()) for word in words_of(name)]
    pairs = [pair for word in words if word for pair in _pairs(word)]
    if not pairs:
        return REFUSED
    mean = sum(_letter_pairs()[pair] for pair in pairs) / len(pairs)
    # In nats per pair: English names lie between -2 and -3, random letters around -4.5.
    score = min(1.0, 1 + 0.1 * (mean + 2)) if mean >= -3.4 else max(REFUSED, 0.86 * (mean + 3.7) / 0.3)
    clumsy = any(len(word) > 12 or re.search(r"(.)\1\1", word) for word in words)
    return score * (0.5 if clumsy else 1.0)


def originality(name: str, topic: str, others: Sequence[str] = ()) -> float:
    """Returns how far `name` is from the topic's own words, stock phrases, itself and the contest's other names."""
    own = _content(name)
    asked = _content(topic)
    topical = {word for word in own if any(word == other or (len(word) > 3 and word in other) for other in asked)}
    fresh = [word for word in own if word not in topical and word not in _STOCK_PLAIN]
    distinct = len(set(own))
    if set(own) == topical or distinct <= 0.75 * len(own) or likeness(name, topic) > 0.7:
        return REFUSED
    if "".join(own) == "".join(asked) or any(_DOUBLED.search(word) for word in own):
        return REFUSED
    score = (1.0 if fresh else 0.3) * (1.0 if distinct == len(own) else 0.5)
    score *= 0.8 ** sum(word in topical for word in own)
    score *= 0.7 ** sum(word in _STOCK_PLAIN and word not in topical for word in own)
    score *= 0.85 if words_of(name)[0].lower() in ("a", "an", "the") else 1.0
    nearest = max((likeness(name, other) for other in others), default=0.0)
    return score * (1 - 0.5 * max(0.0, nearest - 0.4) / 0.6)


def likeness(first: str, second: str) -> float:
    """Returns the Dice coefficient of the two texts' sets of letter triples; 1 for equal words, the same both ways."""
    a, b = _triples(first), _triples(second)
    return 2 * len(a & b) / (len(a) + len(b)) if a and b else float(first == second)


def _triples(text: str) -> set[str]:
    padded = "".join(f"  {word} " for word in map(_plain, words_of(text)))
    return {padded[at : at + 3] for at in range(len(padded) - 2)}


def relevance(name: str, topic: str) -> float:
    """Returns whether `name` holds a stem linked to `topic` (1), only a word of the topic itself (0.75), or neither."""
    words = [_plain(word) for word in words_of(name)]
    if any(_holds(word, stem) for word in words for stem in associations(topic)):
        return 1.0
    matter = [word for word in _content(topic) if word not in _GENERIC_PLAIN]
    return 0.75 if any(_holds(word, stem) for word in words for stem in matter) else 0.5


def _holds(word: str, stem: str) -> bool:
    return stem in word if len(stem) > 3 else word.startswith(stem)


def honesty(name: str) -> float:
    """Returns 1, or next to nothing for text to or about the judge, the score or the rules."""
    return REFUSED if _JUDGE.search(name) else 1.0


def criteria(name: str, topic: str, others: Sequence[str] = ()) -> dict[str, float]:
    """Returns each criterion's factor for `name`, all in (0, 1], in the order of the module's docstring."""
    return {
        "form": form(name),
        "length": length(name),
        "sound": sound(name),
        "originality": originality(name, topic, others),
        "relevance": relevance(name, topic),
        "honesty": honesty(name),
    }


def score(name: str, topic: str, others: Sequence[str] = ()) -> float:
    """Returns the product of the criteria, rounded to 12 digits (logarithms differ in the last bit by platform).

    >>> score("Velvet Roast", "coffee shop") > score("The Coffee Haven", "coffee shop") > score("Shop", "coffee shop")
    True

    Args:
        name: any text; empty text scores 0.
        topic: what is to be named.
        others: the contest's other names.
    """
    name = name.strip()
    return round(math.prod(criteria(name, topic, others).values()), 12) if name else 0.0


def rubric(topic: str, names: Sequence[str]) -> list[float]:
    """The judge: the score of each of `names` in a contest with the others."""
    return [score(name, topic, [*names[:at], *names[at + 1 :]]) for at, name in enumerate(names)]


__all__ = ["REFUSED", "criteria", "likeness", "rubric", "score"]
