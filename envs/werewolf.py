r"""werewolf-v0: hidden wolves kill by night, and by day everybody talks and votes on whom to hang.

Roles     player_0 .. player_{N-1}, N from 7 to 12 (argument `players`, default 7). Which card a seat holds is drawn
          and hidden: `wolves` wolves (2, or 3 from 9 players on), one seer, one doctor, the rest villagers. Seer,
          doctor and villagers are the village. The argument `cards` fixes the cards of some seats or all
          ({"player_0": "wolf"}), the rest are drawn: so an entrant is put into a chosen card.
Actions   by night `TARGET: player_3`, by day `SAY: ...` and `VOTE: player_3` or `VOTE: nobody`. The last line of its
          kind in a reply counts; a reply that is nothing but one line of talk, or a name, counts without the keyword.
Night     all living players answer at once, each with `TARGET: player_3`, another living player. A wolf names whom to
          kill, not a wolf; who is named by most wolves, and of several the one that the first wolf in seat order named
          among them. The seer is told whether its target is a wolf. The doctor's target is not killed this night.
          A villager names a suspect, which does nothing and is shown to nobody (for studies, it stands in the trace).
          That everybody answers, in the same form, keeps the order of turns from telling who is awake. A wolf may write
          `WHISPER: ...` on a line before, at most 200 characters; the other wolves read it in the morning, with all
          wolves' targets.
Day       who died is told, with its card. Then `talks` times (default 1) around the table `SAY: ...`, one line of at
          most 300 characters; who begins is drawn, and moves on by one each time. Then all vote at once,
          `VOTE: player_3` or `VOTE: nobody`. Who is named most often is hanged and its card shown; if several are, or
          most name nobody, nobody is.
Illegal   no such line, or a target that is not allowed. Under `forfeit` the player is out, its card is shown, the
          others play on; under `skip` and `penalty` it does, says or votes nothing, this once.
Ends      no wolf is left: the village wins. As many wolves as others, or more: the wolves win. After `days` days
          (None: as many as players) or if nobody is left: a draw. Checked after each night, vote and forfeit.
Rewards   at the end and for all, dead or alive: each wolf +1 or -1, each of the village -+ wolves / village; the sum is
          zero. A draw pays 0. Worked: 7 players, 2 wolves: the wolves win: +1, +1 and five times -0.4; the village
          wins: -1, -1 and five times +0.4. A forfeiter pays 1 whoever wins; what it would have been due above that
          goes to those of the other team that did not forfeit (if all of it did, to whoever did not): a villager
          forfeits and the wolves win: -1 for it, -0.4 for the other four, and the wolves share 0.6 more: +1.3 each.
Outcome   winners: the seats of the team that won without those that forfeited; ranks 1 and 2 (3: forfeited). facts:
          `cards` by seat.
Sees      the own card; a wolf the other wolves. Nobody sees who did what by night; the seer its own results, the
          wolves their own side's targets and whispers. What is said, quoted, with its speaker; all votes once all have
          voted; the cards of the dead and of who dropped out. The dead are told nothing more and answer nothing.
          Whispers, targets and cards are in no view, info, facts or grammar of a seat that may not know them; the cards
          stand in the facts of the outcome.
Exploits  claims are free: a wolf may call itself the seer, and nothing checks it until a card is shown. To say nothing
          is legal ("SAY: pass"). The first night's kill is blind, and so is much of the result: compare teams over many
          seeds, with seats rotated. Random wolves beat a random village of 5 in about 94 of 100 games, so a side's
          return is to be compared with that of its own baseline. Copies of one model may know each other by style;
          seat mixed entrants. A wolf that is about to lose loses no more by forfeiting, and gains nothing for its side.
          That a seat has dropped out shows in the AEC order only after the phase, as in the views.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llm_arena.arguments import whole
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, quote
from llm_arena.problems.deduction.game import HiddenSides
from llm_arena.problems.deduction.sides import most_named, read_line, read_named, said_by
from llm_arena.problems.deduction.werewolf import DOCTOR, NOBODY, SEER, TALK, VILLAGER, WOLF, draw, scripted
from llm_arena.types import Cause, Json, Move, Reply

WOLVES, VILLAGE = "wolves", "village"
MAX_WHISPER, MAX_TALK = 200, 300
"""Longest whisper and statement, in characters."""

_DUTY = {
    WOLF: "Choose with the other wolves whom to kill.",
    SEER: "Choose whom to look at: you will learn whether it is a wolf.",
    DOCTOR: "Choose whom to protect from the wolves this night.",
    VILLAGER: "You sleep. Name whom you suspect; it does nothing, and nobody sees it.",
}
_POWER = {
    WOLF: "By night the wolves kill a player. By day pretend to be a villager.",
    SEER: "By night you learn whether one player is a wolf.",
    DOCTOR: "By night you protect one player from being killed.",
    VILLAGER: "You have no power but your vote.",
}


class Werewolf(HiddenSides):
    """Hidden wolves kill by night; by day everybody talks and votes on whom to hang.

    Args:
        players: how many seats, 7 to 12.
        wolves: how many of them are wolves: 2, or 3 with 9 players or more.
        cards: card by seat, of the seats whose card is not drawn: `wolf`, `seer`, `doctor` or `villager`.
        talks: how often all speak each day, 1 to 5.
        days: after how many days the game is drawn; None: as many as players.
        options: those of `ArenaEnv`.
    """

    id = "werewolf-v0"
    roles = {"player": (7, 12)}
    zero_sum = True
    few = WOLVES
    hidden: tuple[str, ...] = ("cards",)
    baselines = {"scripted": scripted}

    def __init__(
        self,
        *,
        players: int = 7,
        wolves: int = 2,
        cards: Mapping[str, str] | None = None,
        talks: int = 1,
        days: int | None = None,
        **options: Any,
    ) -> None:
        if (
            type(wolves) is not int
            or not 2 <= wolves <= 3
            or (wolves == 3 and isinstance(players, int) and players < 9)
        ):
            raise UsageError(f"{self.id}: wolves={wolves!r}; expected 2, or 3 with 9 players or more")
        whole(self.id, "talks", talks, 1, 5)
        if days is not None:
            whole(self.id, "days", days, 1, 50)
        self.wolf_count, self.talks = wolves, talks
        self.days = days or (players if isinstance(players, int) else 12)
        if options.get("max_turns") is None:
            options["max_turns"] = (players if isinstance(players, int) else 12) * (2 + talks) * self.days
        super().__init__(counts={"player": players}, **options)
        self.fixed, self.undealt = self._check_cards({} if cards is None else cards)
        if len(set(self.undealt)) < 2:
            self.hidden = ()  # all is settled: there is no other deal to compare with

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws who speaks first, deals the cards, and begins the first night."""
        self.first = int(rng.integers(len(self.possible_agents)))
        self.deal(rng)
        self.alive = list(self.possible_agents)
        self.forfeited = []
        self.out: dict[str, str] = {}
        self.checked: dict[str, bool] = {}
        self.pack: list[dict[str, str]] = []
        self.talk: list[tuple[int, str, str]] = []
        self.votes: list[dict[str, str | None]] = []
        self.whispers: dict[str, str] = {}
        self.day = 0
        village = len(self.alive) - self.wolf_count
        for seat, card in self.cards.items():
            pack = [other for other in self._wolves() if other != seat] if card == WOLF else []
            friends = f" The other wolves: {', '.join(pack)}." if pack else ""
            self.tell(
                seat,
                f"You play Werewolf. You are {seat} of {len(self.alive)} players: {self.wolf_count} wolves and "
                f"{village} villagers, one of whom is the seer and one the doctor. The wolves win when they are as "
                "many as the others, the village when all wolves are dead. By night the wolves kill a player; by day "
                f"all talk, then vote whom to hang.\nYour secret card: {card}. {_POWER[card]}{friends}",
                role="system",
            )
        return self._fall_asleep()

    def deal(self, rng: np.random.Generator) -> None:
        """Draws who holds which card."""
        drawn = iter([self.undealt[int(at)] for at in rng.permutation(len(self.undealt))])
        self.cards = {seat: self.fixed[seat] if seat in self.fixed else next(drawn) for seat in self.possible_agents}

    def knows(self, seat: str) -> Json:
        """Returns the seat's card, for a wolf the pack and what it did, for the seer what it saw, and shown cards."""
        card = self.cards[seat]
        known: dict[str, Json] = {"card": card, "out": self.out}
        if card == WOLF:
            known |= {"wolves": self._wolves(), "pack": self.pack}
        return known | ({"checked": self.checked} if card == SEER else {})

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns targets by night (a whisper may come before) and votes by day; talk can't be listed."""
        if seat not in self.alive:
            return []
        if self.phase == "talk":
            return None
        return [f"{'TARGET' if self.phase == 'night' else 'VOTE'}: {target}" for target in self._targets(seat)]

    def grammar(self, seat: str) -> Json:
        """Returns a pattern of targets, statements or votes."""
        if seat not in self.alive:
            return None
        if self.phase == "talk":
            return r"SAY: [A-Za-z][A-Za-z0-9 ,.'!?_-]{0,298}"
        targets = "|".join(self._targets(seat))
        if self.phase == "vote":
            return f"VOTE: ({targets})"
        whisper = r"(WHISPER: [A-Za-z][A-Za-z0-9 ,.'!?_-]{0,198}\n)?" if self.cards[seat] == WOLF else ""
        return f"{whisper}TARGET: ({targets})"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a target or vote, or an empty phrase."""
        legal = self.legal_actions(seat)
        return draw(legal, rng) if legal else f"SAY: {draw(TALK, rng)}"

    def facts(self, seat: str) -> Json:
        """Returns the seat's card and what it saw or the pack did, and what is public: talk, votes, shown cards."""
        card = self.cards[seat]
        return {
            "card": card,
            "wolves": self._wolves() if card == WOLF else [],
            "checked": dict(self.checked) if card == SEER else {},
            "phase": self.phase,
            "day": self.day,
            "alive": list(self.alive),
            "out": dict(self.out),
            "talk": [list(said) for said in self.talk],
            "votes": [dict(votes) for votes in self.votes],
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a target, a statement or a vote."""
        if self.phase == "talk":
            return self.booked(seat, read_line(reply, "SAY", max_characters=MAX_TALK, bare=True))
        if self.phase == "vote":
            return self.booked(seat, read_named(reply, "VOTE", self._targets(seat)))
        target = read_named(reply, "TARGET", self._targets(seat))
        if self.cards[seat] == WOLF:
            try:
                self.whispers[seat] = read_line(reply, "WHISPER", max_characters=MAX_WHISPER)
            except IllegalReply as bad:
                if bad.cause is Cause.ILLEGAL:  # too long; to say nothing is fine
                    raise
        return self.booked(seat, target)

    def describe(self) -> str:
        """Returns the cards by seat."""
        return ", ".join(f"{seat}: {card}" for seat, card in self.cards.items())

    def _check_cards(self, fixed: object) -> tuple[dict[str, str], list[str]]:
        """Returns the fixed cards by seat, and the others of the deck."""
        deck = [WOLF] * self.wolf_count + [SEER, DOCTOR]
        deck += [VILLAGER] * (len(self.possible_agents) - len(deck))
        given = fixed if isinstance(fixed, Mapping) else {"": fixed}
        for seat, card in given.items():
            if seat not in self.possible_agents or card not in deck:
                raise UsageError(
                    f"{self.id}: cards={fixed!r:.100}; expected cards by seat of {', '.join(self.possible_agents)}, "
                    f"not more than {self.wolf_count} {WOLF}, one {SEER}, one {DOCTOR}, the rest {VILLAGER}"
                )
            deck.remove(card)
        return dict(given), deck

    def _wolves(self) -> list[str]:
        return [seat for seat, card in self.cards.items() if card == WOLF]

    def _targets(self, seat: str) -> list[str]:
        others = [other for other in self.alive if other != seat]
        if self.phase == "vote":
            return [*others, NOBODY]
        return [other for other in others if self.cards[other] != WOLF] if self.cards[seat] == WOLF else others

    def _fall_asleep(self) -> list[str]:
        """Asks all for their nightly targets."""
        self.phase = "night"
        self.given: dict[str, str | None] = {}
        self.whispers = {}
        for seat in self.alive:
            names = ", ".join(self._targets(seat))
            self.tell(
                seat,
                f"Night {self.day + 1}. {_DUTY[self.cards[seat]]} One of: {names}. Reply with one line: "
                "TARGET: <player>"
                + (" (before it you may write to the wolves: WHISPER: <text>)" if self.cards[seat] == WOLF else ""),
            )
        return self.alive

    def booked(self, seat: str, said: str | None) -> Move:
        """Books what one seat did (None: nothing); goes on when the last of the phase has answered."""
        self.given[seat] = said
        if self.phase == "talk":
            return self._spoke(seat, said)
        if self.pending != [seat]:
            return Move(action=said)
        return self._wake_up(said) if self.phase == "night" else self._hang(said)

    def _wake_up(self, action: Json) -> Move:
        """Ends the night: who dies, what the seer saw, what the wolves did."""
        acts = {seat: target for seat, target in self.given.items() if target and seat not in self.forfeited}
        hunt = {seat: target for seat, target in acts.items() if self.cards[seat] == WOLF}
        named = most_named(hunt)
        prey = next((target for target in hunt.values() if target in named), None)  # of several: the first wolf's
        saved = {target for seat, target in acts.items() if self.cards[seat] == DOCTOR}
        killed = [prey] if prey and prey not in saved and prey not in self.forfeited else []
        self._tell_pack(hunt)
        for seat, target in acts.items():
            if self.cards[seat] == SEER:
                self.checked[target] = self.cards[target] == WOLF
                if seat not in killed:
                    self.tell(seat, f"You looked: {target} is {'' if self.checked[target] else 'not '}a wolf.")
        self.day += 1
        if killed:
            text = f"{killed[0]} was killed in the night. Its card: {self.cards[killed[0]]}."
        else:
            text = "Nobody was killed in the night."
        return self._bury(killed, f"Day {self.day}. {text}", action) or self._open_talk(1, action)

    def _tell_pack(self, hunt: dict[str, str]) -> None:
        """Tells each wolf what the others chose and whispered."""
        self.pack.append(hunt)
        awake = [seat for seat in self._wolves() if seat in self.alive and seat not in self.forfeited]
        for seat in awake:
            for other in awake:
                if other != seat and other in hunt:
                    whisper = f" and whispered:\n{quote(self.whispers[other])}" if other in self.whispers else "."
                    self.tell(seat, f"By night the wolf {other} chose {hunt[other]}{whisper}")

    def _open_talk(self, turn: int, action: Json) -> Move:
        self.phase, self.turn_of_talk, self.given = "talk", turn, {}
        self.queue = self.speaking_order()
        return self._ask_to_speak(action)

    def _ask_to_speak(self, action: Json) -> Move:
        self.tell(self.queue[0], f"Day {self.day}. Speak to all in one short line. Reply with one line: SAY: <text>")
        return Move(next=self.queue[0], action=action)

    def _spoke(self, seat: str, said: str | None) -> Move:
        self.queue.remove(seat)
        listeners = [other for other in self.alive if other != seat and other not in self.forfeited]
        if said is not None:
            self.talk.append((self.day, seat, said))
            self.tell(listeners, said_by(f"{seat} says", said))
        ended = self._bury([], "", said)
        if ended:
            return ended
        if self.queue:
            return self._ask_to_speak(said)
        if self.turn_of_talk < self.talks:
            return self._open_talk(self.turn_of_talk + 1, said)
        self.phase, self.given = "vote", {}
        for voter in self.alive:
            names = ", ".join(self._targets(voter))
            self.tell(voter, f"Vote whom to hang: {names}. Reply with one line: VOTE: <player>")
        return Move(next=self.alive, action=said)

    def _hang(self, action: Json) -> Move:
        votes = {seat: self.given[seat] for seat in self.alive if seat not in self.forfeited}
        self.votes.append(votes)
        named = most_named(votes)
        hanged = [seat for seat in named if seat != NOBODY and seat not in self.forfeited] if len(named) == 1 else []
        shown = ", ".join(f"{seat} for {target or NOBODY}" for seat, target in votes.items())
        result = f"{hanged[0]} is hanged. Its card: {self.cards[hanged[0]]}." if hanged else "Nobody is hanged."
        ended = self._bury(hanged, f"Votes: {shown}. {result}", action)
        if ended:
            return ended
        if self.day >= self.days:
            return self._finish(None, f"no answer: nobody has won after day {self.day}", action)
        return Move(next=self._fall_asleep(), action=action)

    def _bury(self, dead: list[str], text: str, action: Json) -> Move | None:
        """Tells `text`, takes out the dead and who forfeited; returns the end of the game, if this is it."""
        dropped = [seat for seat in self.alive if seat in self.forfeited and seat not in dead]
        if text:
            self.tell([seat for seat in self.alive if seat not in self.forfeited], text)
        self.alive = [seat for seat in self.alive if seat not in dead and seat not in dropped]
        for seat in dropped:
            self.tell(self.alive, f"{seat} drops out. Its card: {self.cards[seat]}.")
        self.out |= {seat: self.cards[seat] for seat in [*dead, *dropped]}
        wolves = sum(self.cards[seat] == WOLF for seat in self.alive)
        if not self.alive:
            return self._finish(None, "nobody is left", action)
        if not wolves:
            return self._finish(VILLAGE, "all wolves are out", action)
        if 2 * wolves >= len(self.alive):
            return self._finish(WOLVES, "the wolves are as many as the others", action)
        return None

    def _finish(self, winner: str | None, reason: str, action: Json) -> Move:
        teams = {seat: WOLVES if card == WOLF else VILLAGE for seat, card in self.cards.items()}
        return self.finished(teams, winner, reason, action=action, facts={"cards": self.cards})
