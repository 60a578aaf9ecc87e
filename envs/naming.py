"""naming-v0: several namers each invent a name for one topic; every two names are compared.

Roles     namer_0 .. namer_{N-1}, N from 1 to 16 (argument `namers`, default 4). All get the same messages and answer
          at once; nobody sees another's name.
Topic     the argument `topic`, else drawn from the list `split` ("train" or "heldout") by the episode's generator.
Name      the reply, thinking left out: one non-blank line of at most 400 characters. Runs of white space become one
          space, control and format characters are dropped. A reply cut by the token cap is read as it stands: if it
          is one line it is a name, and if it was a ramble the judge says so.
Judges    `rubric` (default; see llm_arena/problems/naming_rubric.py), `length` (words and punctuation marks, the more
          the better), or `module:function`, an importable pure function (topic, names) -> one finite number per name,
          higher is better. It gets the names of the contest in sorted order, so that no seat has a better place. Only
          its name is recorded: replaying a trace imports that module.
Rewards   of each two names the better gets +1, the other -1; equal names and equal numbers 0. A seat's sum is divided
          by its opponents (`normalize="opponents"`, from -1 to 1), or by all pairs of the contest ("matchups"). Worked:
          lengths 3, 5, 5, 9 sum to -3, 0, 0, 3; divided by 3 opponents -1, 0, 0, 1, by 6 pairs -0.5, 0, 0, 0.5. One
          namer alone gets 0: `group_reward` pays several such episodes of one topic as if they were one contest.
Ends      when all have answered. `forfeit`: an unreadable reply loses all its comparisons, against another unreadable
          one it ties. `skip`: it is left out of the contest and gets 0. `penalty`: left out, and pays the penalty.
Outcome   ranks by wins minus losses; scores are the judge's numbers (an unreadable name has none).
"""

from __future__ import annotations

import importlib
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError, did_you_mean
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.naming_rubric import rubric, score
from llm_arena.problems.naming_topics import MODIFIERS, NOUNS, SPLITS, associations
from llm_arena.types import Cause, Ending, Json, Move, Outcome, Reply, Trace, View

Judge = Callable[[str, Sequence[str]], Sequence[float]]
"""(topic, names) -> one finite number per name, higher is better. Pure."""

MAX_CHARACTERS = 400
"""Longest name; 64 tokens of English fit."""


def read_name(reply: Reply) -> str:
    r"""Returns the name that `reply` gives.

    >>> read_name(Reply("  Velvet   Roast \n"))
    'Velvet Roast'

    Raises:
        IllegalReply: nothing was said, several lines were given (ambiguous), or more than `MAX_CHARACTERS`.
    """
    lines = [line for line in map(_clean, strip_thinking(reply).splitlines()) if line]
    if not lines:
        raise IllegalReply(Cause.EMPTY, "Reply with a name.")
    if len(lines) > 1:
        raise IllegalReply(Cause.AMBIGUOUS, "Reply with one name on one line.")
    if len(lines[0]) > MAX_CHARACTERS:
        raise IllegalReply(Cause.UNPARSABLE, f"A name has at most {MAX_CHARACTERS} characters.")
    return lines[0]


def _clean(line: str) -> str:
    kept = (char for char in line if char.isspace() or unicodedata.category(char) not in ("Cc", "Cf", "Cs"))
    return unicodedata.normalize("NFC", " ".join("".join(kept).split()))


def token_count(name: str) -> int:
    """Returns how many words and punctuation marks `name` has; an env knows no tokenizer.

    >>> token_count("The Bean's End!")
    6
    """
    return len(re.findall(r"\w+|[^\w\s]", name))


def length(topic: str, names: Sequence[str]) -> list[float]:
    """The judge `length`: the longer the better, a stand-in from the tutorial that this game comes from."""
    return [float(token_count(name)) for name in names]


def load_judge(name: str) -> Judge:
    """Returns the judge called `name`.

    Raises:
        UsageError: there is no such judge, or its module or function can't be found.
    """
    judges: dict[str, Judge] = {"rubric": rubric, "length": length}
    if name in judges:
        return judges[name]
    module, colon, function = str(name).partition(":")
    if not (colon and module and function):
        close = did_you_mean(str(name), judges)
        raise UsageError(f'judge="{name}"; expected rubric, length or module:function, e.g. my_judges:shortest.{close}')
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise UsageError(f'judge="{name}": module {module} can\'t be imported: {error}') from error
    if not callable(found):
        raise UsageError(f'judge="{name}": {module} has no function {function}')
    judge: Judge = found
    return judge


def hold_contest(
    topic: str, judge: str, normalize: str, names: Sequence[str | None]
) -> tuple[list[float], list[int], list[float]]:
    """Compares every two of `names` (None: unreadable).

    Returns:
        rewards, wins minus losses, and the judge's numbers (-inf: unreadable), in the order of `names`.

    Raises:
        UsageError: the judge raised, or did not return one finite number per name.
    """
    readable = sorted(name for name in names if name is not None)
    judged = load_judge(judge)
    try:
        returned = judged(topic, readable) if readable else []
    except Exception as error:  # a judge is somebody else's code
        raise UsageError(
            f'judge "{judge}" failed: {type(error).__name__}: {error}; it is called with (topic, names) and returns '
            "one finite number for each name"
        ) from error
    numbers = list(returned) if isinstance(returned, Iterable) else [returned]
    fine = [isinstance(number, int | float | np.number) and math.isfinite(number) for number in numbers]
    if len(numbers) != len(readable) or not all(fine):
        given = f"{numbers!r:.200} for {len(readable)} names"
        raise UsageError(f'judge "{judge}" returned {given}; expected a finite number each')
    # one number per name, so that equal names tie whatever the judge makes of places
    marks = dict(zip(readable, map(float, numbers), strict=True))
    values = [-math.inf if name is None else marks[name] for name in names]
    sums = [sum((mine > other) - (mine < other) for other in values) for mine in values]
    count = len(names)
    divisor = (count - 1 if normalize == "opponents" else count * (count - 1) / 2) or 1
    return [total / divisor for total in sums], sums, values


def scripted(view: View, rng: np.random.Generator) -> str:
    """Coins ten names of a modifier and a stem linked to the topic, and says the one that the rubric likes best."""
    topic = view.facts["topic"]
    stems = associations(topic) or NOUNS
    coined = [f"{_draw(MODIFIERS, rng)} {_draw(stems, rng).capitalize()}" for _ in range(10)]
    return max(coined, key=lambda name: (score(name, topic), name))


def draw_topic(split: str, rng: np.random.Generator) -> str:
    """Returns the topic of an episode that was given none: the first draw of its generator."""
    return _draw(SPLITS[split], rng)


def _is_topic(topic: Any) -> bool:
    return isinstance(topic, str) and bool(topic.strip()) and topic.isprintable() and len(topic) <= 80


def _draw(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def pay_group(traces: list[Trace]) -> list[tuple[float, dict[str, float]]]:
    """Pays one-seat episodes of one topic exactly as one episode with all their names would.

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
    overflowed = next((at for at, trace in enumerate(traces) if trace.ending is Ending.CONTEXT_OVERFLOW), None)
    if overflowed is not None:
        return _pay_overflow(traces, overflowed, [penalty for _, _, penalty in told])
    names = [name for takes_part, name, _ in told if takes_part]
    contest = iter(zip(*hold_contest(*settings.pop(), names), strict=True))
    paid: list[tuple[float, dict[str, float]]] = []
    for trace, (takes_part, name, penalty) in zip(traces, told, strict=True):
        if trace.void:
            paid.append((math.nan, {}))
            continue
        reward, total, _ = next(contest) if takes_part else (0.0, 0, 0.0)
        tokens = 0.0 if name is None else float(token_count(name))
        numbers = {"win_score": reward, "wins_minus_losses": float(total), "name_tokens": tokens}
        paid.append((reward + penalty, numbers))
    return paid


def _pay_overflow(
    traces: list[Trace], overflowed: int, penalties: Sequence[float]
) -> list[tuple[float, dict[str, float]]]:
    """Pays a group in which a context overflowed, which ends one episode with all its names before the contest."""
    forfeit = traces[overflowed].spec.kwargs["overflow"] == "forfeit"
    others = sum(not trace.void for trace in traces) - 1
    paid: list[tuple[float, dict[str, float]]] = []
    for at, trace in enumerate(traces):
        share = 0.0 if not forfeit else -Naming.forfeit_cost if at == overflowed else Naming.forfeit_cost / others
        answered = penalties[at] if at < overflowed else 0.0
        paid.append((math.nan, {}) if trace.void else (share + answered, {"win_score": share}))
    return paid


def _contest_of(trace: Trace) -> tuple[str, str, str]:
    """Returns topic, judge and normalization of a one-seat episode; its topic may have been drawn from its seed."""
    kwargs = trace.spec.kwargs
    if trace.spec.id != "naming-v0" or kwargs.get("namers") != 1:
        raise UsageError(
            f"naming-v0: group_reward compares episodes with namers=1; {trace.id} is {trace.spec.to_json()}"
        )
    topic = kwargs["topic"] or draw_topic(kwargs["split"], np.random.default_rng(trace.seed))
    return topic, kwargs["judge"], kwargs["normalize"]


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


class Naming(ArenaEnv):
    """N namers invent a name for one topic; every two names are compared by a judge.

    Args:
        namers: how many seats, 1 to 16.
        topic: what is to be named; None draws one.
        split: where topics are drawn from, `train` or `heldout`.
        judge: `rubric`, `length` or `module:function`.
        normalize: `opponents` or `matchups`.
        options: those of `ArenaEnv`.
    """

    id = "naming-v0"
    summary = "Several namers each invent a name for one topic; every two names are compared."
    roles = {"namer": (1, 16)}
    zero_sum = True
    simultaneous = True
    system = "You are a creative naming expert. Reply with just a name, nothing else."
    baselines = {"scripted": scripted}
    input_arg = "topic"
    group_reward = staticmethod(pay_group)

    def __init__(
        self,
        *,
        namers: int = 4,
        topic: str | None = None,
        split: Literal["train", "heldout"] = "train",
        judge: str = "rubric",
        normalize: Literal["opponents", "matchups"] = "opponents",
        **options: Any,
    ) -> None:
        if topic is not None and not _is_topic(topic):
            raise UsageError(f"{self.id}: topic={topic!r:.100}; expected a noun phrase like 'coffee shop', or None")
        if split not in SPLITS:
            raise UsageError(f"{self.id}: split={split!r}; expected one of {', '.join(SPLITS)}")
        if normalize not in ("opponents", "matchups"):
            raise UsageError(f"{self.id}: normalize={normalize!r}; expected opponents or matchups")
        load_judge(judge)
        super().__init__(counts={"namer": namers}, **options)
        if self.max_turns < namers:
            raise UsageError(f"{self.id}: max_turns={self.max_turns} is too few for {namers} namers to answer")
        self.given_topic, self.split, self.judge, self.normalize = topic, split, judge, normalize

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws the topic and asks every seat for a name at once."""
        self.topic = self.given_topic or draw_topic(self.split, rng)
        self.names: dict[str, str | None] = {}
        article = "an" if self.topic[0].lower() in "aeiou" else "a"
        self.tell(self.possible_agents, f"Invent a creative name for {article} {self.topic}.")
        return self.possible_agents

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a name of two words that have nothing to do with the topic."""
        return f"{_draw(MODIFIERS, rng)} {_draw(NOUNS, rng)}"

    def facts(self, seat: str) -> Json:
        """Returns the topic."""
        return {"topic": self.topic}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes the name of one seat; the last one opens the contest."""
        name = read_name(reply)
        self.names[seat] = name
        return self._go_on(seat, name)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """An unreadable name loses its comparisons; the others play on. A context overflow ends the game at once."""
        if self.overflow_seat == seat:
            return super().forfeit(seat, cause)
        self.names[seat] = None
        return self._go_on(seat, None)

    def skip(self, seat: str) -> Move:
        """The seat takes no part in the contest."""
        return self._go_on(seat, None)

    def describe(self) -> str:
        """Returns the topic, and how each name did once all are in."""
        lines = [f"topic: {self.topic}"]
        if self.outcome is not None:
            for rank, seat in sorted((rank, seat) for seat, rank in self.outcome.ranks.items()):
                name = self.names[seat]
                lines.append(f"{rank}. {seat}: {'(unreadable)' if name is None else name}")
        return "\n".join(lines)

    def _go_on(self, seat: str, name: str | None) -> Move:
        if self.pending != [seat]:
            return Move(action=name)
        seats = [other for other in self.possible_agents if other in self.names]
        names = [self.names[other] for other in seats]
        rewards, sums, values = hold_contest(self.topic, self.judge, self.normalize, names)
        ranks = {other: 1 + sum(better > mine for better in sums) for other, mine in zip(seats, sums, strict=True)}
        # The judge's numbers, because rewards and comparisons sum to zero however good the names are. Rounded, so that
        # a replay on another machine doesn't differ in the last digit.
        scores = {other: round(value, 9) for other, value in zip(seats, values, strict=True) if value > -math.inf}
        draw = len(set(sums)) <= 1
        winners = [] if draw else [other for other in seats if ranks[other] == 1]
        reason = "all names tie" if draw else f"best name: {', '.join(winners)}"
        outcome = Outcome(winners=winners, ranks=ranks, draw=draw, reason=reason, scores=scores)
        return Move(action=name, rewards=dict(zip(seats, rewards, strict=True)), outcome=outcome)
