"""The contest of `naming-v0`: how names are read, which of them are compared, and what comparisons pay.

Names are known by their number in the contest, from 0; None is an unreadable one.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from typing import Literal, get_args

import msgspec
import numpy as np

from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, stream_safe, strip_thinking
from llm_arena.problems.naming.judges import JUDGES, token_count
from llm_arena.problems.naming.topics import SPLITS
from llm_arena.problems.pure_judges import SEAT, ask_judge, load_judge
from llm_arena.problems.text_lists import read_texts
from llm_arena.types import Cause, Ending, Reply, Trace

Schedule = Literal["all-pairs", "circular", "one-winner"]
Normalize = Literal["opponents", "matchups"]

MAX_CHARACTERS = 400
"""Longest name; 64 tokens of English fit."""

MAX_TOPIC = 80
"""Longest topic, in characters."""

MAX_NAMERS = 16

FORFEIT_COST = 1.0
"""What a context overflow costs under `overflow="forfeit"`, where others can get it: the worst that a contest pays."""

NAME_GRAMMAR = "[!-/:;=?@\\[-`{-~]{0,1}[0-9A-Za-zÀ-ÖØ-öø-ÿ][ -;=?-~À-ÿ]{0,98}"
"""A regular expression of names: letters and marks of Latin-1 but `<` and `>`, which could open a thought."""

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)
"""What Unicode tells to show nothing of (Default_Ignorable_Code_Point) and doesn't call a control or format character:
names that differ in it look the same."""
_BLANK = "\u2800"
"""The Braille pattern without a dot: white space by its looks only."""


class Rules(msgspec.Struct, frozen=True):
    """Who compares which names, and what sums are divided by."""

    judge: str
    normalize: Normalize
    schedule: Schedule
    neighbours: int
    "In `circular`: how many next names in the circle each is compared with."

    def check(self, game: str) -> None:
        """Raises a `UsageError` that begins with `game` if some value is out of its range."""
        if self.normalize not in get_args(Normalize):
            raise UsageError(f"{game}: normalize={self.normalize!r}; expected opponents or matchups")
        if self.schedule not in get_args(Schedule):
            expected = ", ".join(get_args(Schedule))
            raise UsageError(f"{game}: schedule={self.schedule!r}; expected one of {expected}")
        near = self.neighbours
        if not isinstance(near, int) or isinstance(near, bool) or not 1 <= near <= MAX_NAMERS // 2:
            raise UsageError(f"{game}: neighbours={near!r}; expected 1 to {MAX_NAMERS // 2}")
        if near != 1 and self.schedule != "circular":
            raise UsageError(f'{game}: neighbours={near} needs schedule="circular"; got "{self.schedule}"')
        if self.judge != SEAT:
            load_judge(self.judge, JUDGES)

    def opponents(self, count: int) -> int:
        """Returns how many others each of `count` names is compared with."""
        return min(2 * self.neighbours, count - 1) if self.schedule == "circular" else count - 1

    def questions(self, count: int, judges: int) -> int:
        """Returns how often `judges` seats are asked about `count` names, at most: in both orders each time."""
        return 2 * judges if self.schedule == "one-winner" else count * self.opponents(count)

    def pairs(self, count: int) -> list[tuple[int, int]]:
        """Returns the names that are compared with each other, each pair once, the lower number first.

        >>> Rules("rubric", "opponents", "circular", 1).pairs(4)
        [(0, 1), (0, 3), (1, 2), (2, 3)]
        """
        if self.schedule != "circular":
            return list(combinations(range(count), 2))
        met = {frozenset((at, (at + step) % count)) for at in range(count) for step in range(1, self.neighbours + 1)}
        return sorted((min(pair), max(pair)) for pair in met if len(pair) == 2)

    def sums(self, count: int, compare: Callable[[int, int], int]) -> list[float]:
        """Returns wins minus losses of each name, from `compare`: 1, 0 or -1 for the first of two names."""
        sums = [0.0] * count
        for left, right in self.pairs(count):
            result = compare(left, right)
            sums[left] += result
            sums[right] -= result
        return sums

    def pay(self, sums: Sequence[float]) -> list[float]:
        """Returns the rewards for wins minus losses: divided by the opponents, or by all pairs (`matchups`).

        One winner is compared with each of the others, and nobody else is: opponents and pairs are as many.
        """
        count = len(sums)
        met = self.opponents(count)
        pairs = met if self.schedule == "one-winner" else count * met / 2
        divisor = (met if self.normalize == "opponents" else pairs) or 1
        return [total / divisor for total in sums]


def sums_of_best(count: int, best: Collection[int]) -> list[float]:
    """Returns wins minus losses of each name where one is the best: it beats all others, each other loses to it.

    Several best ones get the mean over which of them had won: nobody draws a lot.

    >>> sums_of_best(4, [2]), sums_of_best(3, [0, 1])
    ([-1.0, -1.0, 3.0, -1.0], [0.5, 0.5, -1.0])
    """
    return [(count / len(best) if at in best else 0.0) - 1.0 for at in range(count)]


def hold_contest(topic: str, rules: Rules, names: Sequence[str | None]) -> tuple[list[float], list[float], list[float]]:
    """Compares `names` (None: unreadable) by a judge that is a function.

    Returns:
        rewards, wins minus losses, and the judge's numbers (-inf: unreadable), in the order of `names`.

    Raises:
        UsageError: the judge raised, or did not return one finite number per name.
    """
    readable = sorted(name for name in names if name is not None)
    numbers: list[float] = []
    if readable:
        judge = load_judge(rules.judge, JUDGES)
        called = "(topic, names) and returns one finite number for each name"
        numbers = ask_judge(rules.judge, judge, (topic, readable), len(readable), called)
    # one number per name, so that equal names tie whatever the judge makes of places
    marks = dict(zip(readable, numbers, strict=True))
    values = [-math.inf if name is None else marks[name] for name in names]
    if rules.schedule == "one-winner":
        top = max(values, default=0.0)
        sums = sums_of_best(len(values), [at for at, value in enumerate(values) if value == top])
    else:
        sums = rules.sums(len(values), lambda left, right: _sign(values[left], values[right]))
    return rules.pay(sums), sums, values


def _sign(mine: float, other: float) -> int:
    return (mine > other) - (mine < other)


# ---- names and topics ------------------------------------------------------------------------------------------


def read_name(reply: Reply) -> str:
    r"""Returns the name that `reply` gives.

    >>> read_name(Reply("  Velvet   Roast \n"))
    'Velvet Roast'

    Raises:
        IllegalReply: nothing was said, several lines were given (ambiguous), more than `MAX_CHARACTERS`, or neither a
            letter nor a digit.
    """
    lines = [line for line in map(_clean, strip_thinking(reply).splitlines()) if line]
    if not lines:
        raise IllegalReply(Cause.EMPTY, "Reply with a name.")
    if len(lines) > 1:
        raise IllegalReply(Cause.AMBIGUOUS, "Reply with one name on one line.")
    if len(lines[0]) > MAX_CHARACTERS:
        raise IllegalReply(Cause.UNPARSABLE, f"A name has at most {MAX_CHARACTERS} characters.")
    if not any(map(str.isalnum, lines[0])):
        raise IllegalReply(Cause.UNPARSABLE, "A name has letters or digits.")
    return lines[0]


def _clean(line: str) -> str:
    line = _INVISIBLE.sub("", line.replace(_BLANK, " "))
    kept = (char for char in line if char.isspace() or unicodedata.category(char) not in ("Cc", "Cf", "Cs"))
    return unicodedata.normalize("NFC", stream_safe(" ".join("".join(kept).split())))


def topics_of(topics: str | Sequence[str] | None, sha256: str | None, split: str) -> tuple[Sequence[str], str | None]:
    """Returns the topics that an episode draws from, and the SHA-256 of their file (None: of no file).

    Raises:
        UsageError: the list or file is not one of topics (see `read_texts`).
    """
    if topics is None:
        return SPLITS[split], None
    found = read_texts("topics", topics, sha256, longest=MAX_TOPIC, example="coffee shop")
    return found.texts, found.sha256


def draw(words: Sequence[str], rng: np.random.Generator) -> str:
    """Returns one of `words`."""
    return words[int(rng.integers(len(words)))]


# ---- groups of separate episodes -------------------------------------------------------------------------------


def pay_group(traces: list[Trace]) -> list[tuple[float, dict[str, float]]]:
    """Pays one-seat episodes of one topic exactly as one episode with all their names would.

    A circle is in the order of the traces.

    Returns:
        reward (it stands in for the trace's own return) and metrics by trace, in order. A void trace gets NaN and
        no metrics, and the others are compared without it.

    Raises:
        UsageError: an episode has more than one seat, or topics or settings differ.
    """
    settings = {_contest_of(trace) for trace in traces if not trace.void}
    if len(settings) > 1:
        raise UsageError(f"naming-v0: a group has one topic and one judge; got {sorted(map(str, settings))}")
    if not settings:
        return [(math.nan, {}) for _ in traces]
    told = [_said(trace) for trace in traces]
    if any(trace.ending is Ending.CONTEXT_OVERFLOW for trace in traces):
        return _pay_overflow(traces, [penalty for _, _, penalty in told])
    names = [name for takes_part, name, _ in told if takes_part]
    contest = iter(zip(*hold_contest(*settings.pop(), names), strict=True))
    paid: list[tuple[float, dict[str, float]]] = []
    for trace, (takes_part, name, penalty) in zip(traces, told, strict=True):
        if trace.void:
            paid.append((math.nan, {}))
            continue
        reward, total, _ = next(contest) if takes_part else (0.0, 0.0, 0.0)
        tokens = 0.0 if name is None else float(token_count(name))
        numbers = {"win_score": reward, "wins_minus_losses": total, "name_tokens": tokens}
        paid.append((reward + penalty, numbers))
    return paid


def _pay_overflow(traces: list[Trace], penalties: Sequence[float]) -> list[tuple[float, dict[str, float]]]:
    """Pays a group in which contexts overflowed; the first would end one episode with all its names.

    That knows of one overflow. Of several in a group, each pays a share to each of the rest, as an unreadable name
    loses to each readable one: the sum stays 0, nobody gets more than a contest pays, and without a rest all get 0.
    """
    full = [trace.ending is Ending.CONTEXT_OVERFLOW for trace in traces]
    first = full.index(True)
    forfeit = traces[first].spec.kwargs["overflow"] == "forfeit"
    members = sum(not trace.void for trace in traces)
    share = FORFEIT_COST / max(members - 1, 1) if forfeit else 0.0
    paid: list[tuple[float, dict[str, float]]] = []
    for at, trace in enumerate(traces):
        won = share * (-(members - sum(full)) if full[at] else sum(full))
        answered = penalties[at] if at < first else 0.0
        paid.append((math.nan, {}) if trace.void else (won + answered, {"win_score": won}))
    return paid


def _contest_of(trace: Trace) -> tuple[str, Rules]:
    """Returns topic and rules of a one-seat episode; its topic may have been drawn from its seed."""
    kwargs = trace.spec.kwargs
    if trace.spec.id != "naming-v0" or kwargs.get("namers") != 1:
        raise UsageError(
            f"naming-v0: group_reward compares episodes with namers=1; {trace.id} is {trace.spec.to_json()}"
        )
    if kwargs["judge"] == SEAT:
        raise UsageError(
            'naming-v0: group_reward has no seats to judge for it; with judge="seat" use credit by seat and namers=2 '
            "or more"
        )
    topics, _ = topics_of(kwargs["topics"], kwargs["topics_sha256"], kwargs["split"])
    topic = kwargs["topic"] or draw(topics, np.random.default_rng(trace.seed))
    return topic, Rules(kwargs["judge"], kwargs["normalize"], kwargs["schedule"], kwargs["neighbours"])


def _said(trace: Trace) -> tuple[bool, str | None, float]:
    """Returns whether an episode takes part in the contest, its name (None: unreadable), and its penalty."""
    kwargs = trace.spec.kwargs
    if trace.ending is not Ending.TERMINATED:
        return False, None, 0.0
    action = trace.turns[-1].action
    if isinstance(action, dict):
        return True, read_name(Reply(action["random_legal"])), 0.0
    if action is not None:
        return True, str(action), 0.0
    return kwargs["illegal"] == "forfeit", None, float(kwargs["penalty"]) if kwargs["illegal"] == "penalty" else 0.0


__all__ = [
    "FORFEIT_COST",
    "MAX_CHARACTERS",
    "MAX_NAMERS",
    "MAX_TOPIC",
    "NAME_GRAMMAR",
    "Normalize",
    "Rules",
    "Schedule",
    "draw",
    "hold_contest",
    "pay_group",
    "read_name",
    "sums_of_best",
    "topics_of",
]
