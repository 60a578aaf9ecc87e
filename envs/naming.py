"""naming-v0: several namers each invent a name for one topic; every two names are compared.

Roles     namer_0 .. namer_{N-1}, N from 1 to 16 (argument `namers`, default 4). All get the same messages and answer
          at once; nobody sees another's name. With `judge="seat"` also judge_0 .. judge_{J-1} (argument `judges`).
Topic     the argument `topic`, else drawn from the list `split` ("train" or "heldout") by the episode's generator.
Name      the reply, thinking left out: one non-blank line of at most 400 characters. Runs of white space become one
          space, control and format characters are dropped. A reply cut by the token cap is read as it stands: if it
          is one line it is a name, and if it was a ramble the judge says so.
Judges    `rubric` (default; see llm_arena/problems/naming_rubric.py), `length` (words and punctuation marks, the more
          the better), or `module:function`, an importable pure function (topic, names) -> one finite number per name,
          higher is better. It gets the names of the contest in sorted order, so that no seat has a better place. Only
          its name is recorded: replaying a trace imports that module. `seat`: whoever sits in the judges' seats.
Judging   (by seats) each two different names are shown to a judge in both orders, each time as a fresh view, and
          `VERDICT: 1`, `VERDICT: 2` or `VERDICT: tie` ends its reply; llm_arena/problems/verdicts.py says how names
          are kept from passing for verdicts. A name wins a pair if both verdicts say so. Verdicts that contradict each
          other draw; so does a pair with a verdict missing after the retries, whatever the rule for illegal replies
          (`random_legal` draws `VERDICT: tie`). Equal names are not asked about, nor unreadable ones. The pairs are
          shared among the judges, who answer at once. A judge is paid nothing and has no rank; only under `penalty`
          it pays for each verdict that it does not give.
Rewards   of each two names the better gets +1, the other -1; equal names and equal numbers 0. A seat's sum is divided
          by its opponents (`normalize="opponents"`, from -1 to 1), or by all pairs of the contest ("matchups"). Worked:
          lengths 3, 5, 5, 9 sum to -3, 0, 0, 3; divided by 3 opponents -1, 0, 0, 1, by 6 pairs -0.5, 0, 0, 0.5. One
          namer alone gets 0: `group_reward` pays several such episodes of one topic as if they were one contest.
          Worked by seats: of X, Y, Z a judge answers 1 to (X, Y) and 2 to (Y, X), so X beats Y; 1 to (X, Z) and 1 to
          (Z, X), a draw; 2 to (Y, Z) and nothing to (Z, Y), a draw. Sums 1, -1, 0; by opponents 0.5, -0.5, 0.
Ends      when all have answered. `forfeit`: an unreadable reply loses all its comparisons, against another unreadable
          one it ties. `skip`: it is left out of the contest and gets 0. `penalty`: left out, and pays the penalty. A
          context overflow of a judge ends the episode and costs nobody anything.
Outcome   ranks by wins minus losses; scores are the judge's numbers (an unreadable name has none; seats give none).
          How consistent the judges were stands in the env's counts of the role `judge` (see `Judging.counts`): the
          share of pairs judged alike in both orders is `consistent / pairs`, that of verdicts for place 1 is
          `place_1 / (place_1 + place_2 + tie)`, which is 0.5 without a bias and without ties.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.naming_judges import SEAT, hold_contest, length, load_judge, pay, token_count
from llm_arena.problems.naming_rubric import rubric, score
from llm_arena.problems.naming_topics import MODIFIERS, NOUNS, SPLITS, associations
from llm_arena.problems.verdicts import (
    Judging,
    Verdict,
    judging_facts,
    messages,
    read_facts,
    read_verdict,
    verdict_line,
)
from llm_arena.types import Cause, Ending, Json, Move, Outcome, Reply, Trace, View

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


def scripted(view: View, rng: np.random.Generator) -> str:
    """Coins ten names of a modifier and a stem linked to the topic, and says the one that the rubric likes best."""
    topic = view.facts["topic"]
    stems = associations(topic) or NOUNS
    coined = [f"{_draw(MODIFIERS, rng)} {_draw(stems, rng).capitalize()}" for _ in range(10)]
    return max(coined, key=lambda name: (score(name, topic), name))


def rubric_judge(view: View, rng: np.random.Generator) -> str:
    """Judges as the rubric does; of two namers, exactly as the judge `rubric`."""
    _, *names = read_facts(view.facts, "naming-v0/rubric-judge")
    return verdict_line(*rubric(view.facts["topic"], names))


def length_judge(view: View, rng: np.random.Generator) -> str:
    """Judges as the judge `length` does."""
    _, *names = read_facts(view.facts, "naming-v0/length-judge")
    return verdict_line(*length(view.facts["topic"], names))


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
    if kwargs["judge"] == SEAT:
        raise UsageError(
            'naming-v0: group_reward has no seats to judge for it; with judge="seat" use credit by seat and namers=2 '
            "or more"
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
        judge: `rubric`, `length`, `module:function`, or `seat`.
        judges: how many seats judge, 1 to 16; only with `judge="seat"`.
        normalize: `opponents` or `matchups`.
        options: those of `ArenaEnv`. With `judge="seat"`, `max_turns` leaves room for all questions and retries.
    """

    id = "naming-v0"
    summary = "Several namers each invent a name for one topic; every two names are compared."
    roles = {"namer": (1, 16), "judge": (0, 16)}
    officials = ("judge",)
    zero_sum = True
    simultaneous = True
    system = "You are a creative naming expert. Reply with just a name, nothing else."
    baselines = {"rubric-judge": rubric_judge, "length-judge": length_judge, "scripted": scripted}
    input_arg = "topic"
    group_reward = staticmethod(pay_group)

    def __init__(
        self,
        *,
        namers: int = 4,
        topic: str | None = None,
        split: Literal["train", "heldout"] = "train",
        judge: str = "rubric",
        judges: int = 1,
        normalize: Literal["opponents", "matchups"] = "opponents",
        **options: Any,
    ) -> None:
        if topic is not None and not _is_topic(topic):
            raise UsageError(f"{self.id}: topic={topic!r:.100}; expected a noun phrase like 'coffee shop', or None")
        if split not in SPLITS:
            raise UsageError(f"{self.id}: split={split!r}; expected one of {', '.join(SPLITS)}")
        if normalize not in ("opponents", "matchups"):
            raise UsageError(f"{self.id}: normalize={normalize!r}; expected opponents or matchups")
        seated = judge == SEAT
        if not seated:
            load_judge(judge)
        if judges != 1 and not seated:
            raise UsageError(f'{self.id}: judges={judges!r} needs judge="seat"; with judge="{judge}" no seat judges')
        if judges == 0:
            raise UsageError(f'{self.id}: judges=0; expected 1 to 16 with judge="seat"')
        questions = namers * (namers - 1) if seated and isinstance(namers, int) else 0
        if seated and options.get("max_turns") is None:
            retries = options.get("retries")
            tries = 1 + (retries if isinstance(retries, int) else 0)
            options["max_turns"] = max(type(self).max_turns, tries * (namers + questions))
        super().__init__(counts={"namer": namers, "judge": judges if seated else 0}, **options)
        if self.max_turns < namers + questions:
            asked = f" and {questions} questions to be judged" if questions else ""
            raise UsageError(f"{self.id}: max_turns={self.max_turns} is too few for {namers} namers to answer{asked}")
        self.given_topic, self.split, self.judge, self.normalize = topic, split, judge, normalize
        if seated:  # names first, then verdicts
            self.metadata = {**self.metadata, "is_parallelizable": False}
        else:
            del self.role_counts["judge"]
        self.namers = [seat for seat in self.possible_agents if self.role_of(seat) == "namer"]

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws the topic and asks every namer for a name at once."""
        self.topic = self.given_topic or draw_topic(self.split, rng)
        self.names: dict[str, str | None] = {}
        self.judging = Judging([], self._judges)
        article = "an" if self.topic[0].lower() in "aeiou" else "a"
        self.task = f"Invent a creative name for {article} {self.topic}."
        self.tell(self.namers, self.task)
        return self.namers

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a name of two words that have nothing to do with the topic, or a verdict."""
        if seat in self.namers:
            return f"{_draw(MODIFIERS, rng)} {_draw(NOUNS, rng)}"
        # The rule `random_legal` draws from the episode's own generator: luck must not decide a contest.
        return "VERDICT: tie" if rng is self.rng else f"VERDICT: {_draw(('1', '2', 'tie'), rng)}"

    def facts(self, seat: str) -> Json:
        """Returns the topic, and for a judge that is asked the task and the two names (see `judging_facts`)."""
        if seat in self.namers or seat not in self.pending:
            return {"topic": self.topic}
        return {"topic": self.topic, **judging_facts(self.task, *self.judging.question(seat))}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes the name of one seat, or a verdict; the last one decides the contest."""
        if seat not in self.namers:
            return self._judged(seat, read_verdict(reply))
        name = read_name(reply)
        self.names[seat] = name
        return self._named(seat, name)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """An unreadable name loses its comparisons; the others play on. A judge forfeits nothing, for anybody.

        A context overflow ends the game at once.
        """
        if self.overflow_seat == seat:
            others = [other for other in self.namers if other != seat]
            paid = {other: self.forfeit_cost / len(others) for other in others}
            return Move(rewards={seat: -self.forfeit_cost, **paid} if seat in self.namers else {})
        if seat not in self.namers:
            return self._judged(seat, None)
        self.names[seat] = None
        return self._named(seat, None)

    def skip(self, seat: str) -> Move:
        """A namer takes no part in the contest; a judge gives no verdict."""
        return self._named(seat, None) if seat in self.namers else self._judged(seat, None)

    def describe(self) -> str:
        """Returns the topic, and once all is decided how each name did and how consistent the judges were."""
        lines = [f"topic: {self.topic}"]
        if self.outcome is not None:
            for rank, seat in sorted((rank, seat) for seat, rank in self.outcome.ranks.items()):
                name = self.names[seat]
                lines.append(f"{rank}. {seat}: {'(unreadable)' if name is None else name}")
            if self.judge == SEAT:
                lines.append(self.judging.summary())
        return "\n".join(lines)

    @property
    def _judges(self) -> list[str]:
        return [seat for seat in self.possible_agents if seat not in self.namers]

    def _named(self, seat: str, name: str | None) -> Move:
        if self.pending != [seat]:
            return Move(action=name)
        names = list(self.names.values())
        if self.judge != SEAT:
            return self._decided(name, *hold_contest(self.topic, self.judge, self.normalize, names))
        different = sorted({given for given in names if given is not None})
        self.judging = Judging(list(combinations(different, 2)), self._judges)
        return self._ask(name)

    def _judged(self, judge: str, verdict: Verdict | None) -> Move:
        self.judging.answer(judge, verdict)
        return Move(action=verdict) if self.pending != [judge] else self._ask(verdict)

    def _ask(self, action: Json) -> Move:
        """Shows each judge its next question, or decides the contest when there is none left."""
        for judge in self.judging.waiting:
            self.replace_view(judge, messages(self.task, *self.judging.question(judge)))
        if self.judging.waiting:
            return Move(next=self.judging.waiting, action=action)
        self.stats["judge"] |= self.judging.counts()
        names = self.names.values()
        sums = [sum(self._beats(mine, other) for other in names) for mine in names]
        return self._decided(action, pay(sums, self.normalize), sums, [-math.inf] * len(sums))

    def _beats(self, mine: str | None, other: str | None) -> int:
        """Returns 1, 0 or -1: an unreadable name loses to any other, the rest is for the judges."""
        if mine is None or other is None:
            return (mine is not None) - (other is not None)
        return self.judging.result(mine, other)

    def _decided(self, action: Json, rewards: Sequence[float], sums: Sequence[int], values: Sequence[float]) -> Move:
        """Ends the game. The arguments are in the order of `names`."""
        seats = list(self.names)
        ranks = {seat: 1 + sum(better > mine for better in sums) for seat, mine in zip(seats, sums, strict=True)}
        # The judge's numbers, because rewards and comparisons sum to zero however good the names are. Rounded, so that
        # a replay on another machine doesn't differ in the last digit.
        scores = {seat: round(value, 9) for seat, value in zip(seats, values, strict=True) if value > -math.inf}
        draw = len(set(sums)) <= 1
        winners = [] if draw else [seat for seat in seats if ranks[seat] == 1]
        reason = "all names tie" if draw else f"best name: {', '.join(winners)}"
        if self.judge == SEAT:
            reason += f"; {self.judging.summary()}"
        outcome = Outcome(winners=winners, ranks=ranks, draw=draw, reason=reason, scores=scores)
        return Move(action=action, rewards=dict(zip(seats, rewards, strict=True)), outcome=outcome)
