r"""undercover-v0: everybody gets a word, one gets a near one, and nobody is told who; clues and votes find out.

Roles     player_0 .. player_{N-1}, N from 4 to 8 (argument `players`, default 5). Civilians hold one word, the
          undercovers (argument `undercovers`: 1, or 2 from 6 players on) the other word of a pair such as wine / beer.
          A player is told its word and nothing else: it may be the undercover itself. Who is undercover is drawn, or is
          the argument `undercover`, a seat or several (the rest are drawn): so an entrant is put into a chosen side.
Pair      drawn from the list `split` ("train" or "heldout", llm_arena/problems/deduction/words.py; 322 pairs, every
          fifth held out), or the argument `pair`, two words. Which of the two the civilians hold is drawn.
Actions   a round begins with clues: `CLUE: ...`, one line of at most 100 characters in letters of English. Then all
          vote at once: `VOTE: player_2`, for another player who is in the game. The last such line of a reply counts;
          a reply that is nothing but one line, or a name, counts without the keyword.
          `clues="in turn"` (default): one after another, each hears the earlier ones; who begins is drawn, and moves on
          by one living seat each round. `clues="at once"`: nobody hears a clue of the round before all are given.
Illegal   a clue that says the own word, a part of it (three letters or more), an inflection (wolf: wolves; run:
          running) or a word with it inside (four letters or more: rain, rainfall), also in pieces ("cof fee"), letter
          by letter whatever stands between, or with a letter doubled or left single ("cofee"); a clue whose words
          somebody has already said in this order; letters outside a to z after accents are dropped. A vote for oneself.
          Under `forfeit` the player is out, the others play on; under `skip` and `penalty` it says or votes nothing,
          this once.
Leaving   whoever is named most often. If several are, nobody leaves. `reveal=True` (default) tells the side of who
          leaves, `reveal=False` does not. The words stay secret until the end.
Ends      the civilians win when all undercovers are out, the undercovers when they are as many as the civilians or more
          (checked after each vote and each forfeit), or when they outlast the last round (argument `rounds`; None: as
          many as players). If nobody is left it is a draw.
Rewards   at the end and for all, also for who has left: each undercover +1 or -1, each civilian -+ undercovers /
          civilians; the sum is zero. Worked: 5 players, 1 undercover: the civilians win +0.25 each and the undercover
          pays 1. 8 players, 2 undercovers who win: +1 each, and each of the 6 civilians pays 1/3. A forfeiter pays 1
          whoever wins; what it would have been due above that goes to those of the other side that did not forfeit (if
          all of it did, to whoever did not): a civilian of 5 forfeits and the civilians win: -1 for it, +0.25 for the
          other three, and the undercover pays 1 but gets the 0.25 + 1 = 1.25 that the forfeiter was due above -1:
          +0.25.
Outcome   winners: the seats of the side that won without those that forfeited; ranks 1 and 2 (3: forfeited). facts:
          `sides` and `words`, by seat.
Sees      the own word; all clues, quoted, with their speaker; all votes once all have voted; who left, and with
          `reveal` its side. Whoever has left is told nothing more. Sides and words are never in the view, facts or
          grammar of another seat; they stand in the facts of the outcome. That the game goes on after somebody left
          says that the undercovers are not all out.
Exploits  the rule on clues reads English spelling: it can't see rhymes, translations, p1ano, emoji, "cof then fee" or a
          definition, nor that a clue is an earlier one in other words. With `clues="at once"` to give the word away is
          good for the civilians: nobody hears the clues before all are given, so whoever stands alone with another word
          is found in round 1, and what the rule can't see is a way there. With `clues="in turn"` the undercover hears
          it and says the same. Clues that fit everything ("I like it") are legal: good for an undercover, bad for
          civilians. Copies of one model may share a code without meaning to; seat mixed entrants. Luck alone gives the
          undercover of 5 about 4 of 10 games (random players, random votes), 2 of 8 about 7, so compare each side with
          its own baseline. The word list is public: who knows it by heart knows both words from one, as the baseline
          `hints` does; `split="heldout"` is for judging.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llm_arena.arguments import flag, one_of, whole
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply
from llm_arena.problems.deduction.game import HiddenSides
from llm_arena.problems.deduction.sides import most_named, read_line, read_named, said_by
from llm_arena.problems.deduction.words import WordPair, letters, pair_of, pairs, says_word
from llm_arena.types import Cause, Json, Move, Reply, View

MAX_CLUE = 100
"""Longest clue, in characters."""

CIVILIAN, UNDERCOVER = "civilian", "undercover"
_VAGUE = (
    *("big", "small", "old", "new", "common", "rare", "useful", "nice", "simple", "strange", "light", "heavy", "soft"),
    *("hard", "cheap", "costly", "safe", "loud", "quiet", "fast", "slow", "clean", "dry", "warm", "cool", "plain"),
    *("bright", "dark", "strong", "famous", "modern"),
)
_FRAMES = ("{}", "think of {}", "it goes with {}", "again {}", "I would say {}")


def _words(clue: str) -> str:
    return " ".join(re.findall("[a-z0-9]+", letters(clue)))


def _fit(clue: str, pair: WordPair, word: str, other: str) -> int:
    """Returns 1 if a clue hints at `word` alone, -1 if at `other` alone, else 0."""
    return any(hint in clue for hint in pair.own[word]) - any(hint in clue for hint in pair.own[other])


def hints(view: View, rng: np.random.Generator) -> str:
    """Knows the hints of the word list, reads the others' clues by them, and votes for whoever fits worst.

    It takes the word that more of the others have hinted at for the civilians' (a revealed civilian counts double).
    While that is its own it gives hints for its word alone or for both; when it is not, it hides behind the other word.
    """
    facts, word, pair = view.facts, view.facts["word"], pair_of().get(view.facts["word"])
    living = [seat for seat in facts["alive"] if seat != view.seat]
    if pair is None:
        return view.sample_reply(rng)
    [other] = [near for near in pair.words if near != word]
    fits = dict.fromkeys(view.facts["players"], 0)
    for _, seat, clue in facts["clues"]:
        fits[seat] += _fit(clue, pair, word, other)
    weight = {seat: {CIVILIAN: 2, UNDERCOVER: -2, None: 1}[facts["out"].get(seat)] for seat in fits}
    fooled = sum(weight[seat] * ((fit > 0) - (fit < 0)) for seat, fit in fits.items() if seat != view.seat) < 0
    if facts["phase"] == "vote":
        known = [*pair.shared, *pair.own[word], *pair.own[other]]
        vague = {seat: -sum(any(hint in clue for hint in known) for _, who, clue in facts["clues"] if who == seat)
                 for seat in living}  # fmt: skip
        # who is fooled speaks for the majority's word, and names who fits that one worst
        worst = {seat: (fits[seat] if fooled else -fits[seat], vague[seat]) for seat in living}
        named = [seat for seat in living if worst[seat] == max(worst.values())]
        return f"VOTE: {named[int(rng.integers(len(named)))]}"
    said = {_words(clue) for _, _, clue in facts["clues"]}
    own, shared = pair.own[other if fooled else word], pair.shared
    order = [*own, *shared] if rng.random() < 0.5 else [*shared, *own]
    clues = [frame.format(hint) for frame in _FRAMES for hint in order]
    fresh = [clue for clue in clues if _words(clue) not in said and not says_word(clue, word)]
    return f"CLUE: {fresh[0]}" if fresh else view.sample_reply(rng)


class Undercover(HiddenSides):
    """Everybody gets a word, one gets a near one; clues and votes find the undercover.

    Args:
        players: how many seats, 4 to 8.
        undercovers: how many hold the other word: 1, or 2 with 6 players or more.
        undercover: a seat or seats that hold the other word, at most `undercovers`; the rest of them are drawn.
        pair: the two words; None draws a pair.
        split: where pairs are drawn from, `train` or `heldout`.
        clues: `in turn` or `at once`.
        rounds: after how many rounds the undercovers have won; None: as many as players.
        reveal: whether the side of who leaves is told.
        options: those of `ArenaEnv`.
    """

    id = "undercover-v0"
    roles = {"player": (4, 8)}
    zero_sum = True
    few = UNDERCOVER
    hidden: tuple[str, ...] = ("sides", "words")
    baselines = {"hints": hints}

    def __init__(
        self,
        *,
        players: int = 5,
        undercovers: int = 1,
        undercover: Sequence[str] | str = (),
        pair: Sequence[str] | None = None,
        split: Literal["train", "heldout"] = "train",
        clues: Literal["in turn", "at once"] = "in turn",
        rounds: int | None = None,
        reveal: bool = True,
        **options: Any,
    ) -> None:
        if (
            type(undercovers) is not int
            or not 1 <= undercovers <= 2
            or (undercovers == 2 and isinstance(players, int) and players < 6)
        ):
            raise UsageError(f"{self.id}: undercovers={undercovers!r}; expected 1, or 2 with 6 players or more")
        one_of(self.id, "split", split, pairs())
        one_of(self.id, "clues", clues, ("in turn", "at once"))
        if rounds is not None:
            whole(self.id, "rounds", rounds, 1, 50)
        flag(self.id, "reveal", reveal)
        self.given_pair = None if pair is None else self._check_pair(pair)
        self.split, self.at_once, self.reveal, self.undercovers = split, clues == "at once", reveal, undercovers
        self.rounds = rounds or (players if isinstance(players, int) else 8)
        if options.get("max_turns") is None:
            options["max_turns"] = 2 * (players if isinstance(players, int) else 8) * self.rounds
        super().__init__(counts={"player": players}, **options)
        fixed = list(undercover) if isinstance(undercover, list | tuple) else [undercover]
        if (
            not all(fixed.count(seat) == 1 and seat in self.possible_agents for seat in fixed)
            or len(fixed) > undercovers
        ):
            raise UsageError(
                f"{self.id}: undercover={undercover!r:.100}; expected a seat or at most {undercovers} different "
                f"seats of {', '.join(self.possible_agents)}"
            )
        self.fixed = fixed
        if len(fixed) == undercovers:
            self.hidden = ()  # with its own word a seat has all that is drawn: there is no other deal to compare with

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws the pair and who begins, deals the words, and asks for the first clues."""
        listed = pairs()[self.split]
        self.pair = self.given_pair or listed[int(rng.integers(len(listed)))].words
        self.first = int(rng.integers(len(self.possible_agents)))
        self.deal(rng)
        self.alive = list(self.possible_agents)
        self.forfeited = []
        self.told: dict[str, str | None] = {}
        self.round = 0
        self.clues: list[tuple[int, str, str]] = []
        self.said: set[str] = set()
        self.votes: list[dict[str, str | None]] = []
        count = f"{len(self.alive)} players, {self.undercovers} of them undercover."
        for seat in self.possible_agents:
            self.tell(
                seat,
                f"You are {seat} of {count} Everybody has a secret word. The undercover has a slightly different word, "
                "and nobody is told who that is: it may be you. Each round all give a clue about their own word, then "
                "all vote, and whoever gets the most votes leaves. Civilians win when the undercover is out. Don't say "
                f"your word: the undercover listens.\nYour word is: {self.words[seat]}",
                role="system",
            )
        return self._open_round()

    def deal(self, rng: np.random.Generator) -> None:
        """Draws who is undercover, and which word of the pair the civilians hold."""
        seats = self.possible_agents
        drawn = [seats[int(at)] for at in rng.permutation(len(seats))]
        under = [*self.fixed, *(seat for seat in drawn if seat not in self.fixed)][: self.undercovers]
        civil = int(rng.integers(2))
        self.sides = {seat: UNDERCOVER if seat in under else CIVILIAN for seat in seats}
        self.words = {seat: self.pair[1 - civil if seat in under else civil] for seat in seats}

    def knows(self, seat: str) -> Json:
        """Returns the seat's own word, and the sides that were told."""
        return {"word": self.words[seat], "told": self.told}

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the votes; clues can't be listed."""
        if seat not in self.alive:
            return []
        if self.phase == "clue":
            return None
        return [f"VOTE: {other}" for other in self.alive if other != seat]

    def grammar(self, seat: str) -> Json:
        """Returns a pattern of clues or of votes. A clue that matches it may still say the word."""
        if seat not in self.alive:
            return None
        if self.phase == "clue":
            return r"CLUE: [A-Za-z][A-Za-z0-9 ,.'-]{0,98}"
        return f"VOTE: ({'|'.join(other for other in self.alive if other != seat)})"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a vote, or a clue that says nothing in particular."""
        votes = self.legal_actions(seat)
        if votes:
            return votes[int(rng.integers(len(votes)))]
        while True:  # 30 * 29 clues, of which few can have been said or forbidden
            first, second = (_VAGUE[int(at)] for at in rng.permutation(len(_VAGUE))[:2])
            clue = f"It is {first} and {second}"
            if _words(clue) not in self.said and not says_word(clue, self.words[seat]):
                return f"CLUE: {clue}"

    def facts(self, seat: str) -> Json:
        """Returns the seat's word, the phase, who is in, the clues and votes so far, and what was told of who left."""
        return {
            "word": self.words[seat],
            "phase": self.phase,
            "round": self.round,
            "players": list(self.possible_agents),
            "alive": list(self.alive),
            "clues": [list(clue) for clue in self.clues],
            "votes": [dict(votes) for votes in self.votes],
            "out": dict(self.told),
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a clue or a vote."""
        if self.phase == "vote":
            return self.booked(seat, read_named(reply, "VOTE", [other for other in self.alive if other != seat]))
        clue = read_line(reply, "CLUE", max_characters=MAX_CLUE, bare=True)
        if not re.search("[a-z]", letters(clue)):
            raise IllegalReply(Cause.ILLEGAL, "A clue has words.")
        if any(char.isalpha() and not char.isascii() for char in letters(clue)):
            raise IllegalReply(Cause.ILLEGAL, "Write the clue in English letters.")
        if says_word(clue, self.words[seat]):
            raise IllegalReply(Cause.ILLEGAL, "A clue may not say your word or a part of it.")
        if _words(clue) in self.said:
            raise IllegalReply(Cause.ILLEGAL, "That clue was given before; give another.")
        return self.booked(seat, clue)

    def describe(self) -> str:
        """Returns the words by seat."""
        return ", ".join(f"{seat} ({self.sides[seat]}): {word}" for seat, word in self.words.items())

    def _check_pair(self, pair: Sequence[str]) -> tuple[str, str]:
        good = isinstance(pair, list | tuple) and len(pair) == 2 and all(
            isinstance(word, str) and re.fullmatch(r"[A-Za-z][A-Za-z '-]{1,38}[A-Za-z]", word) for word in pair
        )  # fmt: skip
        if not good or _words(pair[0]) == _words(pair[1]):
            raise UsageError(f"{self.id}: pair={pair!r:.100}; expected two different words of letters, or None")
        return pair[0], pair[1]

    def _open_round(self) -> list[str]:
        self.round += 1
        self.phase = "clue"
        self.given: dict[str, str | None] = {}
        self.queue = self.speaking_order()
        if self.at_once:
            self._ask_clue(self.queue)
            return self.alive
        self._ask_clue(self.queue[:1])
        return self.queue[:1]

    def _ask_clue(self, seats: list[str]) -> None:
        for seat in seats:
            self.tell(
                seat,
                f"Round {self.round}. Your word is {self.words[seat]}. Give a short clue about it without saying it. "
                "Reply with one line: CLUE: ...",
            )

    def booked(self, seat: str, said: str | None) -> Move:
        """Books a clue or vote (None: there is none); goes on when the last of the phase has answered."""
        self.given[seat] = said
        if self.phase == "clue" and not self.at_once:
            self._tell_clues([seat])
            return self._after_turn(seat, said)
        if self.pending != [seat]:
            return Move(action=said)
        if self.phase == "clue":
            self._tell_clues(self.queue)
            return self._remove([], said) or self._open_vote(said)
        return self._count_votes(said)

    def _after_turn(self, seat: str, said: str | None) -> Move:
        ended = self._remove([], said)
        if ended:
            return ended
        rest = self.queue[self.queue.index(seat) + 1 :]
        if not rest:
            return self._open_vote(said)
        self._ask_clue(rest[:1])
        return Move(next=rest[:1], action=said)

    def _tell_clues(self, speakers: list[str]) -> None:
        for speaker in speakers:
            clue = self.given[speaker]
            listeners = [seat for seat in self.alive if seat != speaker and seat not in self.forfeited]
            if clue is not None:
                self.clues.append((self.round, speaker, clue))
                self.said.add(_words(clue))
                self.tell(listeners, said_by(f"{speaker}'s clue", clue))
            elif speaker not in self.forfeited:
                self.tell(listeners, f"{speaker} gives no clue.")

    def _open_vote(self, action: Json) -> Move:
        self.phase, self.given = "vote", {}
        for seat in self.alive:
            others = ", ".join(other for other in self.alive if other != seat)
            self.tell(seat, f"Who is undercover? Vote for one of {others}. Reply with one line: VOTE: <player>")
        return Move(next=self.alive, action=action)

    def _count_votes(self, action: Json) -> Move:
        votes = {seat: self.given[seat] for seat in self.alive if seat not in self.forfeited}
        self.votes.append(votes)
        named = [seat for seat in most_named(votes) if seat not in self.forfeited]
        voted_out = named if len(most_named(votes)) == 1 else []
        shown = ", ".join(f"{seat} for {target or 'nobody'}" for seat, target in votes.items())
        result = f"{voted_out[0]} leaves." if voted_out else "Nobody is voted out."
        self.tell(self.alive, f"Votes: {shown}. {result}")
        ended = self._remove(voted_out, action)
        if ended:
            return ended
        if self.round >= self.rounds:
            return self._finish(UNDERCOVER, f"undercover outlasts round {self.round}", action)
        return Move(next=self._open_round(), action=action)

    def _remove(self, voted_out: list[str], action: Json) -> Move | None:
        """Takes out who was voted out and who forfeited; returns the end of the game, if this is it."""
        for seat in [*voted_out, *(seat for seat in self.alive if seat in self.forfeited)]:
            self.told[seat] = self.sides[seat] if self.reveal else None
            article = "an" if self.sides[seat] == UNDERCOVER else "a"
            side = f"{seat} was {article} {self.sides[seat]}." if self.reveal else ""
            drops = f"{seat} drops out. " if seat in self.forfeited else ""
            self.alive = [other for other in self.alive if other != seat]
            if side or drops:
                self.tell([other for other in self.alive if other not in self.forfeited], (drops + side).strip())
        under = sum(self.sides[seat] == UNDERCOVER for seat in self.alive)
        if not self.alive:
            return self._finish(None, "nobody is left", action)
        if not under:
            return self._finish(CIVILIAN, "the undercovers are out", action)
        if 2 * under >= len(self.alive):
            return self._finish(UNDERCOVER, "the undercovers are as many as the civilians", action)
        return None

    def _finish(self, winner: str | None, reason: str, action: Json) -> Move:
        facts = {"sides": self.sides, "words": self.words}
        return self.finished(self.sides, winner, reason, action=action, facts=facts)
