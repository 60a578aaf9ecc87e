"""An invented world and its encyclopaedia: a few hundred short articles that agree with each other.

Towns, rivers, people, firms, festivals, works and buildings, and the facts that link them, are drawn by a generator of
its own (a hash and a counter, so that every machine and every version of numpy gets the same world) and written out as
prose. Nothing is copied from anywhere, so no model knows an answer from its training data; names are made of invented
syllables, and many differ in one syllable or share a surname, so that a search has near misses.

There is a world for each seed, 0 and up. Names recur in others, and mean other things there: no fact is carried over.

    kind      facts
    town      founded (year), population, river, craft, mayor (person)
    river     source (hills), length (km)
    person    born (year), birthplace (town), profession, teacher (person)
    firm      started (year), founder (person), seat (town), product
    festival  begun (year), venue (town), honours (person)
    work      appeared (year), author (person), setting (town)
    building  completed (year), architect (person), site (town)

Each fact has one value. It is stated in the article of its subject; a third of the towns also name somebody born there,
and some founders' articles name their firm.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import msgspec

from llm_arena.problems.research.prose import FILLERS, OPENINGS, RELATIONS, SLOTS, Kind

MOST_WORLDS = 2**32
KEPT = 16
"""So many worlds are kept in a process, and as many indices of them."""


class Entity(msgspec.Struct, frozen=True):
    """One thing of the world."""

    kind: Kind
    title: str
    "Title of its article, unique."
    mention: str
    "How a text names it inside a sentence: `the river Orsk`."
    pronouns: tuple[str, str]
    "`She`, `Her`."


class Article(msgspec.Struct, frozen=True):
    """One article of the encyclopaedia."""

    id: str
    title: str
    text: str


class World(msgspec.Struct, frozen=True):
    """All things, their facts and their articles."""

    entities: dict[str, Entity]
    "By mention."
    facts: dict[tuple[str, str], str]
    "(mention of the subject, relation) -> the value: a mention, a number, or words."
    articles: list[Article]


_NAMES = """
town heads: Vorn, Quel, Ombr, Tash, Ildr, Brax, Nemb, Sorv, Kesh, Durl, Falm, Yost, Grev, Pelk, Zarn, Luth
town tails: holt, mere, stow, uva, ick, enhal, oril, ansk
rivers: Orsk, Velma, Tarnel, Issou, Kembra, Drosk, Ulmet, Farrow
rivers: Neth, Sabble, Yar, Quonder, Bressel, Lomma, Ivet, Corrin
hills: Grey, Marrow, Copper, Lantern, Saddle, Wolf, Thistle, Amber
hills: Pilgrim, Drummer, Ladle, Widow, Anvil, Sparrow, Juniper, Bellows
women: Mira, Selka, Odette, Runa, Ilvi, Tamsin, Bettany, Corva, Dessa, Yelena, Pia, Marit, Hulda, Osanna
men: Joren, Albin, Tiber, Casmir, Edric, Volk, Rasmus, Ossian, Bram, Leopold, Henning, Quill, Tavish, Anselm
surnames: Dolven, Dolmen, Harrak, Harrow, Vessel, Kessel, Ternby, Tornby, Askell
surnames: Aspell, Brandel, Brindel, Corvane, Corwen
surnames: Hallick, Hallock, Merrin, Merron, Pallster, Pollster, Stavik, Stavrek
surnames: Undset, Underly, Wexel, Wixley, Zander, Zindel
crafts: bell founding, basket weaving, lace making, glass blowing, boat building, cheese making, clock making
crafts: rope walking, paper milling, kite making, saddle making, salt boiling, button carving, organ building
crafts: honey pressing, tile painting, felt making, cutlery forging, candle dipping, puppet carving
professions: a surveyor, a midwife, a printer, an engraver, a schoolteacher, a botanist, a bookbinder, an organist
professions: a locksmith, a judge, a ferry pilot, a cartographer, an apothecary, a stonemason, a translator
professions: a beekeeper, an astronomer, a notary, a weaver, a lens grinder
products: umbrellas, barometers, bicycle lamps, piano strings, tea tins, sewing machines, fishing reels, door hinges
products: chess sets, fountain pens, ship compasses, oil stoves, letter scales, garden shears, hat boxes, typewriters
products: water meters, signal horns, coffee mills, accordions
trades: Works, Brothers, & Company, Manufactory, Trading House
festival heads: Lantern, Herring, Plum, Drum, Kite, Bell, Goose, Snow
festival heads: Barley, Ribbon, Candle, Ferry, Mask, Apple, Torch, Bridge
festival tails: Fair, Night, Week
work forms: novel, play, ballad
work heads: Salt, Winter, Glass, Borrowed, Seventh, Silent, Crooked, Paper, Iron, Hollow, Patient, Northern
work tails: Ladder, Orchard, Ferry, Key, Winter Guest, Letters, Mill, Compass, Choir, Staircase
building tails: Hall, Library, Tower, Baths, Theatre, Exchange, Observatory, Station
"""


def _read_names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for line in _NAMES.strip().splitlines():
        label, _, words = line.partition(": ")
        names.setdefault(label, []).extend(words.split(", "))
    return names


_NAMED = _read_names()


class _Dice:
    """A stream of numbers from a hash of a name and a counter: the same on every machine, for ever."""

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def below(self, bound: int) -> int:
        """Returns a number from 0 to `bound` - 1; the bias of the remainder is below 1e-12."""
        self.count += 1
        drawn = hashlib.blake2b(f"{self.name}:{self.count}".encode(), digest_size=8).digest()
        return int.from_bytes(drawn, "big") % bound

    def pick(self, items: Sequence[str]) -> str:
        """Returns one of `items`."""
        return items[self.below(len(items))]

    def deck(self, items: Sequence[str]) -> list[str]:
        """Returns the items in random order."""
        rest = list(items)
        return [rest.pop(self.below(len(rest))) for _ in items]


def world(seed: int = 0) -> World:
    """Returns a world; made once in a process, in some 50 ms."""
    return _make(seed)


@functools.lru_cache(maxsize=KEPT)
def _make(seed: int) -> World:
    dice = _Dice(f"llm_arena research world {seed}")
    entities = _name_things(dice)
    facts = _link(dice, entities)
    return World(entities=entities, facts=facts, articles=_write(dice, entities, facts))


def _name_things(dice: _Dice) -> dict[str, Entity]:
    found: list[Entity] = []

    def add(kind: Kind, title: str, mention: str, pronouns: tuple[str, str] = ("It", "Its")) -> None:
        found.append(Entity(kind, title, mention, pronouns))

    towns = dice.deck([head + tail for head in _NAMED["town heads"] for tail in _NAMED["town tails"]])[:60]
    for title in towns:
        add("town", title, title)
    for title in _NAMED["rivers"]:
        add("river", title, f"the river {title}")
    people = dice.deck([f"{first} {last}" for first in _NAMED["women"] + _NAMED["men"] for last in _NAMED["surnames"]])[
        :110
    ]
    for title in people:
        add("person", title, title, ("She", "Her") if title.split()[0] in _NAMED["women"] else ("He", "His"))
    for title in dice.deck([f"{last} {trade}" for last in _NAMED["surnames"] for trade in _NAMED["trades"]])[:50]:
        add("firm", title, f"the firm {title}")
    for title in dice.deck(
        [f"{head} {noun}" for head in _NAMED["festival heads"] for noun in _NAMED["festival tails"]]
    )[:30]:
        add("festival", title, f"the {title}")
    for title in dice.deck([f"The {head} {tail}" for head in _NAMED["work heads"] for tail in _NAMED["work tails"]])[
        :50
    ]:
        add("work", title, f'the {dice.pick(_NAMED["work forms"])} "{title}"')
    for title in dice.deck([f"{last} {noun}" for last in _NAMED["surnames"] for noun in _NAMED["building tails"]])[:40]:
        add("building", title, f"the {title}")
    return {entity.mention: entity for entity in found}


def _link(dice: _Dice, entities: dict[str, Entity]) -> dict[tuple[str, str], str]:
    """Draws the facts. Years make sense: nobody founds, builds, writes or teaches as a child."""
    of_kind: dict[Kind, list[str]] = {}
    for mention, entity in entities.items():
        of_kind.setdefault(entity.kind, []).append(mention)
    facts: dict[tuple[str, str], str] = {}
    born: dict[str, int] = {}
    people = of_kind["person"]
    for at, person in enumerate(people):  # teachers come first in the list, and are older
        born[person] = 1790 + at + dice.below(12)
        teacher = people[dice.below(at - 25)] if at > 25 else ""
        facts[person, "born"] = str(born[person])
        facts[person, "birthplace"] = dice.pick(of_kind["town"])
        facts[person, "profession"] = dice.pick(_NAMED["professions"])
        if teacher:
            facts[person, "teacher"] = teacher
    populations = dice.deck([f"{number // 1000},{number % 1000:03d}" for number in range(2011, 90_000, 397)])
    for town in of_kind["town"]:
        facts[town, "founded"] = str(1080 + dice.below(600))
        facts[town, "population"] = populations.pop()
        facts[town, "river"] = dice.pick(of_kind["river"])
        facts[town, "craft"] = dice.pick(_NAMED["crafts"])
        facts[town, "mayor"] = dice.pick(people)
    lengths = dice.deck([str(number) for number in range(41, 400, 7)])
    for river, hills in zip(of_kind["river"], dice.deck(_NAMED["hills"]), strict=True):
        facts[river, "source"] = f"the {hills} Hills"
        facts[river, "length"] = lengths.pop()

    def made(thing: str, maker: str, by: str, when: str, place: str) -> None:
        facts[thing, by] = maker
        facts[thing, when] = str(born[maker] + 24 + dice.below(30))
        facts[thing, place] = dice.pick(of_kind["town"])

    for firm, founder in zip(of_kind["firm"], dice.deck(people), strict=False):
        made(firm, founder, "founder", "started", "seat")
        facts[firm, "product"] = dice.pick(_NAMED["products"])
    for festival, person in zip(of_kind["festival"], dice.deck(people), strict=False):
        made(festival, person, "honours", "begun", "venue")
    for work in of_kind["work"]:
        made(work, dice.pick(people), "author", "appeared", "setting")
    for building in of_kind["building"]:
        made(building, dice.pick(people), "architect", "completed", "site")
    return facts


def _write(dice: _Dice, entities: dict[str, Entity], facts: dict[tuple[str, str], str]) -> list[Article]:
    natives: dict[str, list[str]] = {}
    firms: dict[str, str] = {}
    for (subject, relation), value in facts.items():
        if relation == "birthplace":
            natives.setdefault(value, []).append(subject)
        elif relation == "founder":
            firms[value] = subject
    texts: dict[str, str] = {}
    for mention, entity in entities.items():
        said = [(relation, facts[mention, relation]) for relation in RELATIONS if (mention, relation) in facts]
        said = [said[int(at)] for at in dice.deck([str(at) for at in range(len(said))])]
        lines = [dice.pick(OPENINGS[entity.kind]).format(S=mention)]
        for relation, value in said:
            template = dice.pick(RELATIONS[relation].sentences)
            by_name = not template.startswith("{S}") or dice.below(3) == 0
            lines.append(template.format(S=mention if by_name else entity.pronouns[0], P=entity.pronouns[1], o=value))
        if mention in natives and dice.below(3) == 0:
            lines.append(f"Among the people born here was {dice.pick(natives[mention])}.")
        if mention in firms and dice.below(2) == 0:
            lines.append(f"In later years came the founding of {firms[mention]}.")
        lookalike = _lookalike(dice, entity, entities)
        if lookalike and dice.below(2) == 0:
            lines.append(f"{entity.pronouns[0]} should not be confused with {lookalike}.")
        fillers = dice.deck(FILLERS[entity.kind])
        length = 62 + dice.below(45)
        while len(" ".join(lines).split()) < length and fillers:
            slots = {name: dice.pick(words) for name, words in SLOTS.items()}
            lines.insert(1 + dice.below(len(lines)), fillers.pop().format(**slots))
        texts[mention] = " ".join(line[0].upper() + line[1:] for line in lines)
    order = dice.deck(list(entities))  # ids say nothing about kinds
    return [Article(f"d{at:03d}", entities[mention].title, texts[mention]) for at, mention in enumerate(order, start=1)]


def _lookalike(dice: _Dice, entity: Entity, entities: dict[str, Entity]) -> str | None:
    """Returns the mention of another thing of this kind with the same beginning or the same last word, if any."""
    last = entity.title.split()[-1]
    near = [
        other.mention
        for other in entities.values()
        if other.kind == entity.kind
        and other.title != entity.title
        and (other.title[:4] == entity.title[:4] or other.title.split()[-1] == last)
    ]
    return dice.pick(near) if near else None


__all__ = ["KEPT", "MOST_WORLDS", "Article", "Entity", "World", "world"]
