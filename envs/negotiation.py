"""negotiation-v0: two players divide books, hats and balls, each with secret values, by talking and proposing.

Roles     player_0 and player_1 write messages in turn; player_0 begins.
Problem   five to seven items of three kinds, and each player's value for each kind, drawn by the episode's generator:
          all items together are worth 10 to each player, every kind is worth something to somebody, and some kind to
          both (Lewis et al. 2017; llm_arena/problems/solvers/bargaining.py). `split` holds about every fifth of the 519
          different tasks back; exchanging the players or the kinds makes no different task.
Actions   any text, then one line: `PROPOSE: books 1, hats 2, balls 0` (what the speaker keeps; the other gets the
          rest), `ACCEPT` (the proposal of the message before), or `WALK` (ends the game). Of several such lines the
          last counts. Thoughts don't count, nor does the last line of a reply that was cut by its token cap: after
          `ACCEPT` there may have come more. A proposal names every kind once. The other player is shown the text as a
          quotation of at most 600 characters, and the proposal in the game's own words; what the text says binds
          nobody.
Rewards   the own value of the deal / 10, times `discount` for each round before the deal's (a round is a message of
          each; default 1.0, no discount). Without a deal 0 each. Worked: 1 book, 2 hats, 3 balls; player_0 values them
          1, 0, 3, player_1 2, 4, 0. player_0 keeps the book and the balls, player_1 accepts: 10 and 8 points, rewards
          1.0 and 0.8; in round 3 with discount 0.9, 0.81 and 0.648.
Illegal   under `forfeit` the game ends without a deal, and the seat pays 1. `skip` passes the turn: nothing was said,
          and no proposal stands.
Ends      with ACCEPT, with WALK, or after `rounds` rounds (default 5) without a deal. A proposal in the last message
          can't be accepted any more.
Outcome   scores are the values of the deal in points, before discounts. Winner and ranks go by them; no deal is a draw.
          The last move's action has a report: whether the deal is Pareto-efficient, its distance to the nearest
          efficient deal's values, the Nash bargaining point (the greatest product of both values; of equal ones the
          greater sum, the smaller difference, then the most for player_0), and the greatest sum of values of any deal.
Sees      each player the items, its own values and all messages; never the other's values. When the game is over the
          outcome, which both infos hold, tells both players' points and those of the Nash point, and no view does.
Exploits  ranks reward refusing: a player who takes no deal but a greedy one is never behind. Judge by returns and by
          the report. `nash` gives in to an ultimatum: `stubborn` as player_0, who wants all but one item to the end,
          gets 0.80 from it, as much as `nash` gets from itself, and leaves it 0.27 instead of 0.66 (mean rewards of 300
          games); from `fair-share`, which refuses, it gets 0.24. Who learns from one of them learns its weakness: play
          against both. Two copies of one policy can agree on a code for their values, which is no negotiation with
          others: play them against `nash` and strangers. Nobody is punished for lying about values. Whoever proposes in
          the last message but one makes an ultimatum: swap seats. With `discount=1` delay costs nothing.
Baseline  each knows only its own values and the proposals. `nash` believes in the other's values by Bayes' rule,
          proposes what maximises own value ** (2 - progress) * believed value, which ends at the believed Nash point,
          and accepts what is worth as much as its next proposal; when it writes the last message of the game it accepts
          anything that is worth something. `fair-share` proposes the believed Nash point from the start, and accepts
          what is worth that much, or as much as it believes the other to get; in the last message half of the latter is
          enough, and less it refuses. `stubborn` wants all but one item, and takes anything in the last message.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import msgspec
import numpy as np

from llm_arena.arguments import one_of, whole
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, quote, strip_thinking
from llm_arena.problems.solvers.bargaining import (
    KINDS,
    TOTAL,
    Triple,
    believed_values,
    concede,
    deals,
    draw_counts,
    draw_values,
    points,
    report,
    rest,
    worth,
)
from llm_arena.problems.splits import Split
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

OTHER = {"player_0": "player_1", "player_1": "player_0"}
ACCEPT, WALK = "ACCEPT", "WALK"
HINT = f"End with one line: PROPOSE: books ?, hats ?, balls ? (numbers that you keep), or {ACCEPT}, or {WALK}."
ASK = "End it with a line PROPOSE, ACCEPT or WALK."
MOST_CHARACTERS = 600
"""Characters of a message's text that the other player is shown."""
_WRAPPING = " \t*_`\"'.!"
_PROPOSE = re.compile(r"PROPOSE\s*:(.*)", re.IGNORECASE)
_KIND, _COUNT = r"\b(?P<kind>books?|hats?|balls?)\b", "(?P<count>[0-9]{1,4})"
_ITEMS = (
    re.compile(rf"{_KIND}\s*[:=]?\s*{_COUNT}\b", re.IGNORECASE),
    re.compile(rf"\b{_COUNT}\s*{_KIND}", re.IGNORECASE),
)
"""A proposal is all in one of these forms: `books 1, hats 2` or `1 book, 2 hats`."""
_SAYINGS = ("I like the books.", "Let us be fair.", "That is my last word.", "What do you need most?")


def proposal(kept: Triple) -> str:
    """Returns the protocol line of a proposal.

    >>> proposal((1, 2, 0))
    'PROPOSE: books 1, hats 2, balls 0'
    """
    return f"PROPOSE: {listed(kept)}"


@functools.cache
def proposals(counts: Triple) -> tuple[str, ...]:
    """Returns the protocol lines of all proposals."""
    return tuple(map(proposal, deals(counts)))


def listed(items: Triple) -> str:
    """Returns items as text."""
    return ", ".join(f"{kind} {count}" for kind, count in zip(KINDS, items, strict=True))


def read_message(text: str, cut: bool = False) -> tuple[str, str]:
    """Returns (what is said, the last protocol line) of a message without thoughts; the other lines are what is said.

    Args:
        text: the message.
        cut: whether it was cut by its length; then its last line is none of the protocol, for it may have gone on.

    Raises:
        IllegalReply: there is no protocol line (unparsable).
    """
    said: list[str] = []
    found = ""
    lines = text.splitlines()
    unfinished = len(lines) - 1 if cut and text.endswith(lines[-1]) else -1
    for number, line in enumerate(lines):
        bare = "" if number == unfinished else line.strip(_WRAPPING)
        if bare.upper() in (ACCEPT, WALK, "WALK AWAY"):
            found = bare.upper().split()[0]
        elif _PROPOSE.match(bare):
            found = bare
        else:
            said.append(line)
    if not found:
        raise IllegalReply(Cause.UNPARSABLE, HINT)
    return "\n".join(said).strip(), found


def read_proposal(line: str, counts: Triple) -> Triple:
    """Returns what a line `PROPOSE: ...` wants to keep.

    Raises:
        IllegalReply: a kind is missing or named twice (unparsable), or more is asked for than there is (illegal).
    """
    body = line.partition(":")[2]
    for pattern in _ITEMS:
        named = {item["kind"].lower().rstrip("s") + "s": int(item["count"]) for item in pattern.finditer(body)}
        left = re.sub(r"[\s,;.]|\band\b", "", pattern.sub("", body))
        if not left and len(named) == len(KINDS) == len(pattern.findall(body)):
            break
    else:
        raise IllegalReply(Cause.UNPARSABLE, HINT)
    if any(named[kind] > count for kind, count in zip(KINDS, counts, strict=True)):
        raise IllegalReply(Cause.ILLEGAL, f"There are only {listed(counts)}.")
    return named["books"], named["hats"], named["balls"]


def _told(view: View) -> tuple[Triple, Triple, list[Triple], float]:
    """Returns the items, the own values, what the other wanted to keep by proposal, and what ACCEPT would give."""
    facts = view.facts
    mine = tuple(facts["values"])
    kept = [tuple(offer["keeps"]) for offer in facts["offers"] if offer["by"] != view.seat]
    return tuple(facts["counts"]), mine, kept, 0 if facts["offered"] is None else worth(mine, facts["offered"])


def nash(view: View, rng: np.random.Generator) -> str:
    """Concedes towards the Nash point that it believes in from its own values and the other's proposals."""
    facts = view.facts
    counts, mine, kept, offered = _told(view)
    last = facts["messages"] - 1
    if facts["message"] == last:
        return ACCEPT if offered > 0 else WALK
    progress = min(facts["message"] / (last - 1), 1.0) if last > 1 else 1.0
    plan = concede(counts, mine, kept, progress)
    if offered > 0 and offered >= worth(mine, plan) * facts["discount"]:
        return ACCEPT
    return f"I would like this.\n{proposal(plan)}"


def fair_share(view: View, rng: np.random.Generator) -> str:
    """Wants the Nash point that it believes in, and in the end half as much as it believes the other to get."""
    facts = view.facts
    counts, mine, kept, offered = _told(view)
    plan, last = concede(counts, mine, kept, 1.0), facts["message"] == facts["messages"] - 1
    if offered > 0:
        theirs = worth(believed_values(counts, mine, kept), kept[-1])
        if offered >= min(worth(mine, plan), theirs / 2 if last else theirs):
            return ACCEPT
    return WALK if last else f"I want a fair deal.\n{proposal(plan)}"


def stubborn(view: View, rng: np.random.Generator) -> str:
    """Wants all but the one item that it can best do without; in the last message it takes what it can get."""
    facts = view.facts
    counts, mine, _, offered = _told(view)
    last = facts["message"] == facts["messages"] - 1
    if offered > 0 and (last or offered >= TOTAL - min(mine)):
        return ACCEPT
    plan = max((kept for kept in deals(counts) if kept != counts), key=lambda kept: worth(mine, kept))
    return WALK if last else f"This is my only offer.\n{proposal(plan)}"


class Negotiation(ArenaEnv):
    """Two players divide books, hats and balls; each knows only its own values.

    Args:
        rounds: how many messages each player may write, 1 to 50.
        discount: what a deal's value is multiplied with for each round before it, above 0, up to 1.
        split: where tasks are drawn from, `train` or `heldout`.
        options: those of `ArenaEnv`; `max_turns` leaves room for all messages.

    Raises:
        UsageError: an argument is out of its range.
    """

    id = "negotiation-v0"
    summary = "Two players with secret values divide books, hats and balls by talking and proposing."
    roles = {"player": 2}
    hidden = ("values",)
    baselines = {"nash": nash, "fair-share": fair_share, "stubborn": stubborn}

    def __init__(self, *, rounds: int = 5, discount: float = 1.0, split: Split = "train", **options: Any) -> None:
        whole(self.id, "rounds", rounds, 1, 50)
        if not isinstance(discount, int | float) or isinstance(discount, bool) or not 0 < discount <= 1:
            raise UsageError(f"{self.id}: discount={discount!r}; expected a number above 0, up to 1")
        one_of(self.id, "split", split, ("train", "heldout"))
        if options.get("max_turns") is None:
            options["max_turns"] = 2 * rounds
        super().__init__(**options)
        self.rounds, self.discount, self.split = rounds, float(discount), split

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the items and the values, and asks player_0."""
        self.counts = draw_counts(rng)
        self.offers: list[tuple[str, Triple]] = []
        self.standing: Triple | None = None
        self.message = 0
        self.deal(rng)
        for seat in self.possible_agents:
            self.tell(seat, self._rules(seat))
        self.tell("player_0", f"You write the first of {2 * self.rounds} messages. {ASK}")
        return "player_0"

    def deal(self, rng: np.random.Generator) -> None:
        """Draws both players' values."""
        first, second = draw_values(self.counts, rng, self.split)
        self.values = {"player_0": first, "player_1": second}

    def grammar(self, seat: str) -> Json:
        """Returns a regular expression: up to three lines of text, then a protocol line."""
        numbers = [f"{kind} [0-{count}]" for kind, count in zip(KINDS, self.counts, strict=True)]
        accept = "" if self.standing is None else f"{ACCEPT}|"
        return rf"([^\n<>]{{0,300}}\n){{0,3}}(PROPOSE: {', '.join(numbers)}|{accept}{WALK})"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a proposal, with words or without; it accepts a quarter of all proposals, and seldom walks away."""
        luck = rng.random()
        if luck < 0.05:
            return WALK
        if luck < 0.3 and self.standing is not None:
            return ACCEPT
        lines = proposals(self.counts)
        said = f"{_SAYINGS[int(rng.integers(len(_SAYINGS)))]}\n" if rng.random() < 0.5 else ""
        return said + lines[int(rng.integers(len(lines)))]

    def facts(self, seat: str) -> Json:
        """Returns items, own values, proposals so far, what ACCEPT would give the seat (or None), and the clock."""
        return {
            "counts": list(self.counts),
            "values": list(self.values[seat]),
            "offers": [{"by": by, "keeps": list(kept)} for by, kept in self.offers],
            "offered": None if self.standing is None else list(rest(self.counts, self.standing)),
            "message": self.message,
            "messages": 2 * self.rounds,
            "discount": self.discount,
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes one message."""
        text = strip_thinking(reply)
        if not text.strip():
            raise IllegalReply(Cause.EMPTY, HINT)
        said, line = read_message(text, reply.finish == "length")
        if line == WALK:
            return self._close(f"no deal: {seat} walks away", None, {"walk": True})
        if line == ACCEPT:
            if self.standing is None:
                raise IllegalReply(Cause.ILLEGAL, "There is no proposal to accept.")
            kept = self.standing if seat == "player_1" else rest(self.counts, self.standing)
            return self._close(f"{seat} accepts", kept, {"accept": True})
        kept = read_proposal(line, self.counts)
        self.offers.append((seat, kept))
        self.standing = kept
        return self._pass_on(seat, said, {"propose": list(kept)})

    def skip(self, seat: str) -> Move:
        """Nothing is said, and no proposal stands."""
        self.standing = None
        return self._pass_on(seat, "", None)

    def describe(self) -> str:
        """Returns the items and both players' values."""
        held = "; ".join(f"{seat} values {listed(values)}" for seat, values in self.values.items())
        return f"items: {listed(self.counts)}; {held}"

    def _pass_on(self, seat: str, said: str, action: Json) -> Move:
        """Tells the other player, or ends the game after the last message."""
        other = OTHER[seat]
        self.message += 1
        if self.message == 2 * self.rounds:
            return self._close("no answer: no deal with the last message", None, action)
        parts = [f"{seat} says:\n{quote(said, max_characters=MOST_CHARACTERS)}"] if said else []
        if self.standing is None:
            parts.append(f"{seat} proposes nothing.")
        else:
            mine = rest(self.counts, self.standing)
            worth_it = int(worth(self.values[other], mine))
            parts.append(f"{seat} proposes that you get {listed(mine)}. That is worth {worth_it} to you.")
        last = self.message + 1 == 2 * self.rounds
        number = f"Your message is number {self.message + 1} of {2 * self.rounds}"
        parts.append(f"{number}, the last one: a new proposal comes too late." if last else f"{number}. {ASK}")
        self.tell(other, "\n\n".join(parts))
        return Move(next=other, action=action)

    def _close(self, reason: str, kept: Triple | None, action: Json) -> Move:
        """Ends the game; `kept` is what player_0 has in the deal."""
        first, second = self.values["player_0"], self.values["player_1"]
        judged = report(self.counts, kept, first, second)
        got = (0, 0) if kept is None else points(self.counts, kept, first, second)
        values = dict(zip(self.possible_agents, got, strict=True))
        factor = self.discount ** (self.message // 2) / TOTAL
        draw = kept is None or got[0] == got[1]
        ranks = {seat: 1 if draw or value == max(got) else 2 for seat, value in values.items()}
        if kept is not None:
            found = "efficient" if judged.efficient else f"{judged.distance:.2f} points from efficient"
            reason += (
                f": player_0 has {listed(kept)} ({got[0]}), player_1 {listed(rest(self.counts, kept))} ({got[1]}); "
                f"{found}; Nash point {judged.nash_values[0]} and {judged.nash_values[1]}"
            )
        outcome = Outcome(
            winners=[] if draw else [seat for seat, rank in ranks.items() if rank == 1],
            ranks=ranks,
            draw=draw,
            reason=reason,
            scores={seat: float(value) for seat, value in values.items()},
        )
        # through JSON, as the trace will hold it
        told = {**(action or {}), "report": msgspec.json.decode(msgspec.json.encode(judged))}
        return Move(rewards={seat: value * factor for seat, value in values.items()}, outcome=outcome, action=told)

    def _rules(self, seat: str) -> str:
        values = self.values[seat]
        less = ""
        if self.discount < 1:
            less = f" After each round of two messages a deal is worth {self.discount:g} times what it was."
        return (
            f"You are {seat}. You and {OTHER[seat]} divide these items: {listed(self.counts)}. What one of each is "
            f"worth to you, which only you know: {listed(values)}. All items together are worth {TOTAL} to you, and "
            f"{TOTAL} to {OTHER[seat]}, whose values are others. Get as much value as you can; without a deal you both "
            f"get 0.{less}\n\n"
            "Write a short message. Its last line must be one of these three:\n"
            "PROPOSE: books ?, hats ?, balls ?\n"
            "ACCEPT\n"
            "WALK\n"
            "In PROPOSE write how many of each you keep; the other gets the rest. ACCEPT takes the other's proposal. "
            "WALK ends the talks without a deal."
        )
