"""The scripted player of `werewolf-v0`, for every card, and the words that it says and understands.

It says `I am the seer. player_3 is a wolf. player_5 is not a wolf.` and `I suspect player_3.`, and reads the same from
others; any other talk means nothing to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from llm_arena.types import Json, View

WOLF, SEER, DOCTOR, VILLAGER = "wolf", "seer", "doctor", "villager"
"""The cards."""

NOBODY = "nobody"
"""What a vote for nobody names."""

TALK = ("I have no idea yet.", "I am a villager.", "I trust nobody.", "Let us vote with care.")
"""Phrases that say nothing."""

_CLAIM = re.compile(r"I am the seer\b")
_RESULT = re.compile(r"(player_\d+) is (not )?a wolf\b")
_SUSPECT = re.compile(r"I suspect (player_\d+)")


def scripted(view: View, rng: np.random.Generator) -> str:
    """Plays any card by its facts: the seer reveals what it saw, the village follows, wolves act as one.

    A villager votes for a wolf that a believed seer found, else for whoever was suspected most. Nobody believes a seer
    that another one contradicts, or whose card was something else. Wolves kill and hang the seer that they know of.
    """
    facts, me, card = view.facts, view.seat, view.facts["card"]
    others = [seat for seat in facts["alive"] if seat != me]
    wolves = set(facts["wolves"])
    seers, found, cleared, suspected = _heard(facts, me)
    checked = facts["checked"]
    found |= {seat for seat in others if checked.get(seat) is True}
    cleared |= {seat for seat in others if checked.get(seat) is False}
    prey = [seat for seat in others if seat not in wolves]
    if facts["phase"] == "night":
        if card == WOLF:
            order = [*(seat for seat in prey if seat in seers), *(seat for seat in prey if seat in cleared), *prey]
            # all wolves count on by the same number, so that the doctor can't count on the first seat
            return f"TARGET: {order[0] if seers & set(prey) else prey[facts['day'] * 3 % len(prey)]}"
        if card == SEER:
            return f"TARGET: {draw([seat for seat in others if seat not in checked] or others, rng)}"
        if card == DOCTOR:
            return f"TARGET: {draw([seat for seat in others if seat in seers] or others, rng)}"
        return f"TARGET: {draw([seat for seat in others if seat in found] or others, rng)}"
    if card == WOLF:  # the same choice for all wolves: a seer, or who is suspected already, or the first
        targets = [seat for seat in prey if seat in seers] or [seat for seat in prey if seat in found]
        target = (targets or sorted(prey, key=lambda seat: -suspected.count(seat)))[0]
        return f"SAY: I suspect {target}." if facts["phase"] == "talk" else f"VOTE: {target}"
    if facts["phase"] == "talk":
        if card == SEER and checked:
            seen = [f"{seat} is {'' if wolf else 'not '}a wolf." for seat, wolf in checked.items() if seat in others]
            return f"SAY: {' '.join(['I am the seer.', *seen])}"
        if found & set(others):
            return f"SAY: I suspect {sorted(found & set(others))[0]}."
        return f"SAY: {draw(TALK, rng)}"
    rivals = (seers - {me}) if card == SEER else set()
    targets = [seat for seat in others if seat in rivals or seat in found]
    if not targets:  # no proof: whoever was suspected most, but nobody that a seer cleared
        open_seats = [seat for seat in others if seat not in cleared and seat not in seers]
        counts = {seat: suspected.count(seat) for seat in open_seats}
        targets = [seat for seat in open_seats if counts[seat] == max(counts.values())]
    return f"VOTE: {draw(targets, rng) if targets else NOBODY}"


def _heard(facts: Json, me: str) -> tuple[set[str], set[str], set[str], list[str]]:
    """Returns (believed seers, wolves and innocents by their word, seats that were suspected today) from the talk."""
    words: dict[str, dict[str, bool]] = {}
    suspected: list[str] = []
    for day, seat, text in facts["talk"]:
        if _CLAIM.search(text):
            words.setdefault(seat, {}).update({who: not no for who, no in _RESULT.findall(text)})
        elif day == facts["day"]:
            suspected += [who for who in _SUSPECT.findall(text) if who != me]
    shown = facts["out"]
    believed = {seat: said for seat, said in words.items() if shown.get(seat, SEER) == SEER and seat != me
                and all((shown[who] == WOLF) == wolf for who, wolf in said.items() if who in shown)}  # fmt: skip
    if SEER in shown.values():  # then every other one lied
        believed = {seat: said for seat, said in believed.items() if seat in shown}
    if len(believed) > 1:
        return set(believed), set(), set(), suspected
    found = {who for said in believed.values() for who, wolf in said.items() if wolf and who != me}
    cleared = {who for said in believed.values() for who, wolf in said.items() if not wolf}
    return set(believed), found, cleared, suspected


def draw(choices: Sequence[str], rng: np.random.Generator) -> str:
    """Returns one of `choices`, each with the same probability."""
    return choices[int(rng.integers(len(choices)))]
