"""Questions about the invented world of `world`, of one, two or three hops, each with one right answer.

A question of n hops needs n facts, from n articles. There are two shapes:

    chain       Which river runs through the town where the founder of the firm Harrow Works was born?      (3 facts)
    difference  How many years lie between the birth of Mira Kessel and the founding of Vornholt?           (2 facts)

A chain has to be followed step by step; the parts of a difference can be looked up side by side. Steps that go against
a fact (`the firm founded by ...`) are asked only where one subject has that value. No single article answers a question
of two or more hops: none names both ends of a chain, nor both things of a difference.

Four of five questions belong to the split `train`, every fifth, by a hash of what is asked, to `heldout`. The splits
share facts, never a question: the wording does not count, nor the order of a difference. Another world has other facts.

`parse` reads a question back, and `read_value` an article; scripted players get by with these two and the tools.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence

import msgspec
import numpy as np

from llm_arena.errors import UsageError
from llm_arena.problems.research.prose import RELATIONS
from llm_arena.problems.research.world import KEPT, MOST_WORLDS, world
from llm_arena.problems.splits import Split

HOPS = (1, 2, 3)
BACK = "~"
"""Before a relation: from its value to its subject."""

ASKS: dict[str, tuple[str, ...]] = {
    "founded": ("In which year was {x} founded?", "When was {x} founded?"),
    "population": ("How many inhabitants does {x} have?", "What is the population of {x}?"),
    "river": ("Which river runs through {x}?", "On which river does {x} lie?"),
    "craft": ("For which craft is {x} known?", "What is the best-known craft of {x}?"),
    "mayor": ("Who was the first mayor of {x}?", "What is the name of the first mayor of {x}?"),
    "source": ("In which hills does {x} rise?", "Where is the source of {x}?"),
    "length": ("How many kilometres long is {x}?", "What is the length of {x} in kilometres?"),
    "born": ("In which year was {x} born?", "What is the year of birth of {x}?"),
    "birthplace": ("In which town was {x} born?", "What is the birthplace of {x}?"),
    "profession": ("What was the profession of {x}?", "As what did {x} work?"),
    "teacher": ("Who was the teacher of {x}?", "Whose pupil was {x}?"),
    "started": ("In which year did {x} open its doors?", "When did {x} start business?"),
    "founder": ("Who founded {x}?", "Who was the founder of {x}?"),
    "seat": ("In which town is {x} based?", "Where is the head office of {x}?"),
    "product": ("What does {x} make?", "What is the main product of {x}?"),
    "begun": ("In which year was {x} first held?", "When did {x} begin?"),
    "venue": ("In which town is {x} held?", "Which town is the venue of {x}?"),
    "honours": ("Whom does {x} honour?", "Whose memory does {x} keep?"),
    "appeared": ("In which year did {x} appear?", "When was {x} first published?"),
    "author": ("Who wrote {x}?", "Who is the author of {x}?"),
    "setting": ("In which town is {x} set?", "Where does the action of {x} take place?"),
    "completed": ("In which year was {x} completed?", "When was {x} opened?"),
    "architect": ("Who designed {x}?", "Who was the architect of {x}?"),
    "site": ("In which town does {x} stand?", "Where does {x} stand?"),
    "~mayor": ("Of which town was {x} the first mayor?",),
    "~founder": ("Which firm was founded by {x}?", "Which firm did {x} found?"),
    "~seat": ("Which firm is based in {x}?", "Which firm has its head office in {x}?"),
    "~venue": ("Which festival is held in {x}?", "Which festival has {x} as its venue?"),
    "~honours": ("Which festival honours {x}?", "Which festival keeps the memory of {x}?"),
    "~author": ("Which work was written by {x}?", "Which work did {x} write?"),
    "~architect": ("Which building was designed by {x}?", "Which building did {x} design?"),
}
"""Step -> how it is asked for, as the last one of a chain."""

PHRASES: dict[str, tuple[str, ...]] = {
    "river": ("the river that runs through {x}",),
    "mayor": ("the first mayor of {x}",),
    "birthplace": ("the town where {x} was born", "the birthplace of {x}"),
    "teacher": ("the teacher of {x}",),
    "founder": ("the founder of {x}", "the person who founded {x}"),
    "seat": ("the town where {x} is based",),
    "venue": ("the town where {x} is held",),
    "honours": ("the person whom {x} honours",),
    "author": ("the author of {x}", "the person who wrote {x}"),
    "setting": ("the town in which {x} is set",),
    "architect": ("the architect of {x}",),
    "site": ("the town where {x} stands",),
    "~mayor": ("the town whose first mayor was {x}",),
    "~founder": ("the firm founded by {x}",),
    "~seat": ("the firm based in {x}",),
    "~venue": ("the festival held in {x}",),
    "~honours": ("the festival that honours {x}",),
    "~author": ("the work written by {x}",),
    "~architect": ("the building designed by {x}",),
}
"""Step -> how what it leads to is named inside a question."""

EVENTS: dict[str, str] = {
    "founded": "the founding of {x}",
    "born": "the birth of {x}",
    "started": "the opening of {x}",
    "begun": "the beginning of {x}",
    "appeared": "the appearance of {x}",
    "completed": "the completion of {x}",
}
"""Relation with a year -> how it is named in a difference."""

_DIFFERENCES = ("How many years lie between {a} and {b}?", "How many years passed between {a} and {b}?")


class Path(msgspec.Struct, frozen=True):
    """Where a question starts, and which steps lead to what it asks for."""

    start: str
    steps: tuple[str, ...]


class Question(msgspec.Struct, frozen=True):
    """A question with its answer."""

    text: str
    answers: tuple[str, ...]
    "What is taken for right; the first is the answer's full name."
    paths: tuple[Path, ...] = ()
    evidence: tuple[str, ...] = ()
    "Titles of the articles that state the facts, in the order in which they are needed."


def draw_question(rng: np.random.Generator, *, hops: int = 2, split: Split = "train", world_seed: int = 0) -> Question:
    """Draws a question.

    >>> draw_question(np.random.default_rng(0), hops=2).text
    'How many inhabitants does the town where Yelena Dolmen was born have?'

    Args:
        rng: where it is drawn from.
        hops: 1, 2 or 3 facts.
        split: `train` or `heldout`.
        world_seed: which world.

    Raises:
        UsageError: an argument is out of its range.
    """
    check_settings(hops, split, world_seed)
    while True:
        if hops == 1 or rng.random() < 2 / 3:
            drawn = _walk(rng, hops, world_seed)
            paths = [drawn] if drawn else []
        else:
            both = _walk(rng, hops - 1, world_seed, to_year=True), _walk(rng, 1, world_seed, to_year=True)
            paths = [path for path in both if path]
            if len(paths) < 2 or not _comparable(paths, world_seed):
                continue
        if not paths or split_of(paths) != split or not _needs_all(paths, world_seed):
            continue
        return _question(paths, rng, world_seed)


def check_settings(hops: int, split: str, world_seed: int = 0) -> None:
    """Raises a `UsageError` if a setting of `draw_question` is out of its range."""
    if type(hops) is not int or hops not in HOPS:  # True and 1.0 are equal to 1
        raise UsageError(f"hops={hops!r}; expected one of {', '.join(map(str, HOPS))}")
    if split not in ("train", "heldout"):
        raise UsageError(f"split={split!r}; expected train or heldout")
    if type(world_seed) is not int or not 0 <= world_seed < MOST_WORLDS:
        raise UsageError(f"world={world_seed!r:.60}; expected a whole number from 0 to {MOST_WORLDS - 1}")


def split_of(paths: Sequence[Path]) -> Split:
    """Returns the split that a question belongs to, whatever its wording."""
    asked = "+".join(sorted("|".join([path.start, *path.steps]) for path in paths))
    return "heldout" if hashlib.blake2b(asked.encode(), digest_size=1).digest()[0] % 5 == 0 else "train"


def follow(path: Path, world_seed: int = 0) -> tuple[str, list[str]]:
    """Returns what a path leads to, and the mentions of the subjects whose facts it takes."""
    place, subjects = path.start, []
    for step in path.steps:
        if step.startswith(BACK):
            [place] = _subjects(world_seed)[step.removeprefix(BACK), place]
            subjects.append(place)
        else:
            subjects.append(place)
            place = world(world_seed).facts[place, step]
    return place, subjects


def parse(text: str) -> tuple[Path, ...] | None:
    """Returns the paths of a question in the words of this module, or None if it is in others.

    >>> parse("In which town is the firm founded by Osanna Corvane based?")
    (Path(start='Osanna Corvane', steps=('~founder', 'seat')),)
    """
    for frame in _DIFFERENCES:
        found = _pattern(frame).fullmatch(text.strip())
        events = [_read_event(found[side]) for side in ("a", "b")] if found else []
        if events and all(events):
            return tuple(event for event in events if event)
    for step, frames in ASKS.items():
        for frame in frames:
            found = _pattern(frame).fullmatch(text.strip())
            if found:
                inner = _read_phrase(found["x"])
                return (Path(inner.start, (*inner.steps, step)),)
    return None


def ask(path: Path, rng: np.random.Generator | None = None) -> str:
    """Returns the question for what a path leads to; its wording is drawn, or the first one."""
    text = path.start
    for step in path.steps[:-1]:
        text = _pick(PHRASES[step], rng).format(x=text)
    return _pick(ASKS[path.steps[-1]], rng).format(x=text)


def read_value(text: str, title: str, relation: str) -> str | None:
    """Returns the value that the article `title` states for a relation, or None if it states none.

    >>> read_value("Yar is a river. It is 391 kilometres long.", "Yar", "length")
    '391'
    """
    values = {"year": r"[0-9]{4}", "number": r"[0-9,]+", "words": r"[a-z].*|the [A-Z].*"}
    value = values.get(RELATIONS[relation].value, r"(?:[Tt]he river )?[A-Z][a-z]+(?: [A-Z][a-z]+)?")
    subject = rf'(?:He|She|It|[^.]*{re.escape(title)}"?)'
    for sentence in re.split(r"(?<=\.)\s+", text):
        for template in RELATIONS[relation].sentences:
            pattern = re.escape(template).replace(r"\{S\}", subject).replace(r"\{P\}", "(?:His|Her|Its)")
            found = re.fullmatch(pattern.replace(r"\{o\}", f"({value})"), sentence)
            if found:
                return re.sub("^The river", "the river", found[1])
    return None


def title_of(mention: str) -> str:
    """Returns the title of what a text calls `mention`.

    >>> title_of("the river Orsk"), title_of('the play "The Paper Key"'), title_of("the Plum Fair")
    ('Orsk', 'The Paper Key', 'Plum Fair')
    """
    quoted = re.search(r'"(.+)"', mention)
    return quoted[1] if quoted else re.sub(r"^the (?:river |firm )?", "", mention)


def _question(paths: Sequence[Path], rng: np.random.Generator, world_seed: int) -> Question:
    ends, subjects = zip(*(follow(path, world_seed) for path in paths), strict=True)
    entities = world(world_seed).entities
    evidence = tuple(entities[subject].title for each in subjects for subject in each)
    if len(paths) == 1:
        entity = entities.get(ends[0])
        answers = (entity.title, entity.mention) if entity else (ends[0],)
        return Question(ask(paths[0], rng), tuple(dict.fromkeys(answers)), tuple(paths), evidence)
    order = [int(at) for at in rng.permutation(2)]
    a, b = (_event(paths[at], rng) for at in order)
    text = _pick(_DIFFERENCES, rng).format(a=a, b=b)
    return Question(text, (str(abs(int(ends[0]) - int(ends[1]))),), tuple(paths[at] for at in order), evidence)


def _walk(rng: np.random.Generator, hops: int, world_seed: int, *, to_year: bool = False) -> Path | None:
    """Draws a path, or None where the draw leads nowhere."""
    entities = world(world_seed).entities
    starts = list(entities)
    place = start = starts[int(rng.integers(len(starts)))]
    visited, steps = {start}, list[str]()
    while len(steps) < hops:
        last = len(steps) == hops - 1
        choices = [
            (step, end)
            for step, end in _steps(world_seed, place)
            if end not in visited and (step in EVENTS if last and to_year else last or end in entities)
        ]
        if not choices:
            return None
        step, place = choices[int(rng.integers(len(choices)))]
        visited.add(place)
        steps.append(step)
    return Path(start, tuple(steps))


@functools.lru_cache(maxsize=400 * KEPT)
def _steps(world_seed: int, place: str) -> list[tuple[str, str]]:
    """Returns the steps from a thing, and where each leads."""
    facts = world(world_seed).facts
    forward = [(relation, facts[place, relation]) for relation in RELATIONS if (place, relation) in facts]
    back = [
        (step, found[0])
        for step in PHRASES
        if step.startswith(BACK) and len(found := _subjects(world_seed).get((step.removeprefix(BACK), place), [])) == 1
    ]
    return forward + back


@functools.lru_cache(maxsize=KEPT)
def _subjects(world_seed: int) -> dict[tuple[str, str], list[str]]:
    """Returns (relation, value) -> the subjects that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for (subject, relation), value in world(world_seed).facts.items():
        found.setdefault((relation, value), []).append(subject)
    return found


def _comparable(paths: Sequence[Path], world_seed: int) -> bool:
    one, other = paths
    (left, left_subjects), (right, right_subjects) = follow(one, world_seed), follow(other, world_seed)
    return one.start != other.start and not {*left_subjects} & {*right_subjects} and left != right


def _needs_all(paths: Sequence[Path], world_seed: int) -> bool:
    """Returns whether each fact takes an article of its own, and no single article has it all.

    None may name both ends of a chain, or both starts of a difference.
    """
    subjects = [subject for path in paths for subject in follow(path, world_seed)[1]]
    if len(subjects) == 1:
        return True
    ends = [paths[0].start, paths[1].start if len(paths) > 1 else follow(paths[0], world_seed)[0]]
    one, other = (title_of(end) for end in ends)
    return len({*subjects}) == len(subjects) and not any(one in text and other in text for text in _texts(world_seed))


@functools.lru_cache(maxsize=KEPT)
def _texts(world_seed: int) -> list[str]:
    return [article.text for article in world(world_seed).articles]


def _event(path: Path, rng: np.random.Generator) -> str:
    text = path.start
    for step in path.steps[:-1]:
        text = _pick(PHRASES[step], rng).format(x=text)
    return EVENTS[path.steps[-1]].format(x=text)


def _read_event(text: str) -> Path | None:
    for step, frame in EVENTS.items():
        found = _pattern(frame).fullmatch(text)
        if found:
            inner = _read_phrase(found["x"])
            return Path(inner.start, (*inner.steps, step))
    return None


def _read_phrase(text: str) -> Path:
    for step, frames in PHRASES.items():
        for frame in frames:
            found = _pattern(frame).fullmatch(text)
            if found:
                inner = _read_phrase(found["x"])
                return Path(inner.start, (*inner.steps, step))
    return Path(text, ())


@functools.cache
def _pattern(frame: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{([abx])\\\}", r"(?P<\1>.+)", re.escape(frame)))


def _pick(frames: Sequence[str], rng: np.random.Generator | None) -> str:
    return frames[0 if rng is None else int(rng.integers(len(frames)))]
