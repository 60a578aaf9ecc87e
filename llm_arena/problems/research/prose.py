"""In which words the invented world is written: the sentences for its facts, and those that state none."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["town", "river", "person", "firm", "festival", "work", "building"]
Value = Literal["town", "river", "person", "year", "number", "words"]


class Relation(msgspec.Struct, frozen=True):
    """What can be said of a kind of thing, and in which sentences.

    `{S}` is the subject, by name or pronoun, `{P}` its possessive, `{o}` the value.
    """

    kind: Kind
    value: Value
    sentences: tuple[str, ...]


RELATIONS: dict[str, Relation] = {
    "founded": Relation(
        "town",
        "year",
        (
            "{S} was founded in {o}.",
            "The oldest charter of {S} is dated {o}, the year of its founding.",
            "Settlers founded {S} in {o}.",
        ),
    ),
    "population": Relation(
        "town",
        "number",
        (
            "At the last count {S} had {o} inhabitants.",
            "About its size the census is plain: {S} is home to {o} people.",
            "{P} population is {o}.",
        ),
    ),
    "river": Relation(
        "town",
        "river",
        ("{S} lies on {o}.", "{o} runs through {S}.", "{P} old quarter stands on both banks of {o}."),
    ),
    "craft": Relation(
        "town",
        "words",
        ("{S} is known for {o}.", "{P} best-known craft is {o}.", "Visitors come to {S} for its {o}."),
    ),
    "mayor": Relation(
        "town",
        "person",
        ("{P} first mayor was {o}.", "{o} was the first mayor of {S}.", "The first mayor, {o}, gave {S} its council."),
    ),
    "source": Relation(
        "river",
        "words",
        ("{S} rises in {o}.", "{P} springs lie in {o}.", "{S} has its source in {o}."),
    ),
    "length": Relation(
        "river",
        "number",
        (
            "{S} is {o} kilometres long.",
            "{P} length is {o} kilometres.",
            "From spring to mouth {S} measures {o} kilometres.",
        ),
    ),
    "born": Relation(
        "person",
        "year",
        ("{S} was born in {o}.", "{P} year of birth is given as {o}.", "Parish books record the birth of {S} in {o}."),
    ),
    "birthplace": Relation(
        "person",
        "town",
        ("{S} was born in {o}.", "{P} birthplace was {o}.", "{S} came from {o}."),
    ),
    "profession": Relation(
        "person",
        "words",
        ("{S} worked as {o}.", "By profession {S} was {o}.", "{S} made a living as {o}."),
    ),
    "teacher": Relation(
        "person",
        "person",
        ("{S} was a pupil of {o}.", "{P} teacher was {o}.", "{S} learned the trade from {o}."),
    ),
    "started": Relation(
        "firm",
        "year",
        (
            "{S} was founded in {o}.",
            "{S} opened its doors in {o}.",
            "{P} first ledger begins in {o}, when it was founded.",
        ),
    ),
    "founder": Relation(
        "firm",
        "person",
        ("{S} was founded by {o}.", "{P} founder was {o}.", "It was {o} who founded {S}."),
    ),
    "seat": Relation(
        "firm",
        "town",
        ("{S} is based in {o}.", "{P} head office stands in {o}.", "{S} has its seat in {o}."),
    ),
    "product": Relation(
        "firm",
        "words",
        ("{S} makes {o}.", "{P} main product is {o}.", "Buyers know {S} for its {o}."),
    ),
    "begun": Relation(
        "festival",
        "year",
        (
            "{S} was first held in {o}.",
            "{S} began in {o}.",
            "{P} first programme was printed in {o}, the year it began.",
        ),
    ),
    "venue": Relation(
        "festival",
        "town",
        ("{S} is held in {o}.", "{P} venue is the town of {o}.", "Every year {S} fills the streets of {o}."),
    ),
    "honours": Relation(
        "festival",
        "person",
        ("{S} honours {o}.", "{S} is held in memory of {o}.", "{P} name day is that of {o}, whom it honours."),
    ),
    "appeared": Relation(
        "work",
        "year",
        ("{S} appeared in {o}.", "{S} was first published in {o}.", "{P} first edition is dated {o}."),
    ),
    "author": Relation(
        "work",
        "person",
        ("{S} was written by {o}.", "{P} author is {o}.", "{o} wrote {S} in two winters."),
    ),
    "setting": Relation(
        "work",
        "town",
        ("{S} is set in {o}.", "{P} action takes place in {o}.", "Most scenes of {S} play in {o}."),
    ),
    "completed": Relation(
        "building",
        "year",
        (
            "{S} was completed in {o}.",
            "Work on {S} ended in {o}.",
            "{S} was opened in {o}, as soon as it was completed.",
        ),
    ),
    "architect": Relation(
        "building",
        "person",
        ("{S} was designed by {o}.", "{P} architect was {o}.", "The plans for {S} were drawn by {o}."),
    ),
    "site": Relation(
        "building",
        "town",
        ("{S} stands in {o}.", "{S} can be seen in {o}.", "{P} place is the main square of {o}."),
    ),
}

OPENINGS: dict[Kind, tuple[str, ...]] = {
    "town": ("{S} is a town of narrow lanes and wide squares.", "{S} is a market town with a long wall."),
    "river": ("{S} is a slow river with many bends.", "{S} is a clear river that seldom freezes."),
    "person": ("{S} was a careful worker and a keen walker.", "{S} was much liked, and wrote many letters."),
    "firm": ("{S} is a family business that has outlived its rivals.", "{S} is a firm with a good name."),
    "festival": ("{S} is a yearly feast with music and stalls.", "{S} is a feast that draws guests from far away."),
    "work": ("{S} has been read in schools for generations.", "{S} was a success from the first day."),
    "building": ("{S} is a landmark that many painters have drawn.", "{S} is a fine piece of brickwork."),
}
FILLERS: dict[Kind, tuple[str, ...]] = {
    "town": (
        "On market days the lanes are closed to carts until {hour}.",
        "A fire destroyed the granary, but the townspeople rebuilt it within {few} months.",
        "The railway passes at some distance, and a {colour} tram links the station with the centre.",
        "Its arms show {few} keys on a {colour} field.",
        "The walls were taken down long ago, and a ring of {tree} trees marks their course.",
        "A row of {few} {colour} warehouses recalls the years when grain was shipped from here.",
        "The school has {few} teachers and a garden with a single {tree}.",
        "Every house in the upper street must be painted {colour}, by a rule that nobody can explain.",
        "Its council meets at {hour} in a room above the bakery.",
    ),
    "river": (
        "Barges were towed along its banks until the railway came.",
        "In dry summers children cross it on foot in {few} places.",
        "Its trout are small, and anglers prize them all the same.",
        "Floods have moved its bed more than once, as old maps show.",
        "Only {few} mills still turn on its upper course.",
        "After heavy rain its water is {colour} with clay.",
        "A ferry, painted {colour}, crosses it from dawn until {hour}.",
        "Rows of {tree} trees were planted along it to hold the banks.",
        "Smugglers are said to have hidden {few} boats in its reeds.",
    ),
    "person": (
        "Letters from these years show a dry humour and a dislike of travel by sea.",
        "A long illness interrupted the work, which was taken up again after {few} years.",
        "Friends remembered an excellent cook and a poor loser at cards.",
        "Only a single portrait is known, in a {colour} coat, and its likeness has been doubted.",
        "The papers were left to a nephew, who lost half of them in a move.",
        "Work began each day before {hour} and ended with a walk under the {tree} trees.",
        "Of {few} notebooks, bound in {colour} cloth, one survives.",
        "An asteroid, a street and a variety of {tree} bear the name.",
        "A debt of {few} silver coins, never repaid, is mentioned in the will.",
    ),
    "firm": (
        "In its early years some {few} people worked in two rented rooms.",
        "A strike lasted {few} weeks and ended with shorter hours for everybody.",
        "Its catalogues, printed on {colour} paper, are sought by collectors.",
        "The company has never taken a loan, a fact of which it is proud.",
        "Part of the old workshop is open to visitors until {hour} on Sundays.",
        "Its trademark is a {tree} leaf in a {colour} ring.",
        "After a flood the stock was dried in the loft for {few} months.",
        "The siren that called its workers sounds at {hour} to this day.",
        "It tried to sell abroad {few} times, with little luck.",
    ),
    "festival": (
        "Rain has stopped it only {few} times.",
        "Bakers sell a ring-shaped cake that can be had on no other day.",
        "The procession starts at {hour} and goes the long way round.",
        "Choirs from the whole valley take part, and a jury gives a prize carved from {tree} wood.",
        "In lean years it was kept up by {few} families alone.",
        "Guests wear something {colour}, or pay a small fine.",
        "At {hour} all lights are put out and a single trumpet is heard.",
        "Its {few} drummers rehearse in secret under the {tree} trees.",
        "Old people say that the songs used to be slower.",
    ),
    "work": (
        "Critics praised its plain style and quarrelled over its ending.",
        "A film was planned for {few} years, but nothing came of it.",
        "It has been translated {few} times, not always with care.",
        "The manuscript has many corrections in {colour} ink.",
        "Readers often write to ask what became of the younger sister.",
        "Its first chapter describes a {tree} tree struck by lightning, minute by minute.",
        "A cheap edition in {colour} covers sold out before {hour} on its first day.",
        "Schoolchildren still learn {few} pages of it by heart.",
        "The villain, a tax collector, is said to be drawn from life.",
    ),
    "building": (
        "Its staircase, without any inner support, was long thought unsafe.",
        "Swifts nest under its eaves and are counted each spring.",
        "The clock runs {few} minutes fast, and nobody wishes it changed.",
        "Money ran out twice, and the west side is plainer than the east.",
        "During restoration a sealed room full of ledgers was found.",
        "Its doors are {colour} and made of {tree} wood.",
        "At {hour} the caretaker rings a hand bell and lets out the last guests.",
        "The roof, of {colour} tiles, has leaked for {few} winters.",
        "A {tree} tree in its court is older than the walls.",
    ),
}

SLOTS: dict[str, tuple[str, ...]] = {
    "few": ("three", "four", "five", "six", "seven", "eight", "nine", "eleven", "twelve"),
    "colour": ("red", "green", "blue", "yellow", "white", "black", "brown", "violet"),
    "tree": ("lime", "elm", "walnut", "chestnut", "pear", "ash", "maple", "cherry"),
    "hour": ("noon", "dusk", "four o'clock", "six o'clock", "seven o'clock", "nine o'clock"),
}
"""What fillers are filled with: words, so that no number in digits is no fact."""
