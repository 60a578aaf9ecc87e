"""naming-v0: several namers each invent a name for one topic; names are compared by a judge.

Roles     namer_0 .. namer_{N-1}, N from 1 to 16 (argument `namers`, default 4). All get the same messages and answer
          at once. With `judge="seat"` also judge_0 .. judge_{J-1} (argument `judges`).
Topic     the argument `topic`; else drawn by the episode's generator from `topics`, a list or the path of a UTF-8 file
          with one topic a line; else from this library's list `split` ("train" or "heldout"). A file's SHA-256 stands
          in the spec, and another file under its name is refused.
Actions   a namer replies with the name and nothing else, thinking left out: one non-blank line of at most 400
          characters with a letter or digit in it. Runs of white space become one space, characters that show nothing
          are dropped. A reply cut by the token cap is read as it stands: if it is one line it is a name, and if it was
          a ramble the judge says so.
          A judge's reply ends with a line `VERDICT: 1`, `VERDICT: 2` or `VERDICT: tie`.
Judges    `rubric` (default; see llm_arena/problems/naming/rubric.py), `length` (words and punctuation marks, the more
          the better), or `module:function`, an importable pure function (topic, names) -> one finite number per name,
          higher is better. It gets the names of the contest in sorted order, so that no seat has a better place. Only
          its name is recorded: replaying a trace imports that module. `seat`: whoever sits in the judges' seats.
Schedule  who is compared with whom. `all-pairs` (default): every two names. `circular`: each with the `neighbours` next
          ones of a circle, hence with as many before it; the circle is the order of seats, or of episodes in a group,
          so rotate who sits where. `one-winner`: one judgement picks the best of all names.
Judging   (by seats) each two different names that meet are shown to a judge in both orders, each time as a fresh view;
          llm_arena/problems/verdicts.py says how names are kept from passing for verdicts. A name wins a pair if both
          verdicts say so. Verdicts that contradict each other draw; so does a pair with a verdict missing after the
          retries, whatever the rule for illegal replies (`random_legal` draws `VERDICT: tie`). Equal names are not
          asked about, nor unreadable ones. The pairs are shared among the judges, who answer at once. In `one-winner`
          every judge is shown all different names and replies `VERDICT: ` with the number of the best, twice: the
          second time rotated by half of them. It has a choice if both verdicts name the same; the name that most judges
          chose is the best, and without a choice all readable names are. A judge is paid nothing and has no rank; only
          under `penalty` it pays for each verdict that it does not give.
Rewards   of two names that meet the better gets +1, the other -1; equal names and equal numbers 0. A seat's sum is
          divided by its opponents (`normalize="opponents"`, from -1 to 1), or by all pairs that meet ("matchups").
          Worked, `all-pairs`: lengths 3, 5, 5, 9 sum to -3, 0, 0, 3; divided by 3 opponents -1, 0, 0, 1, by 6 pairs
          -0.5, 0, 0, 0.5. `circular` with 1 neighbour, so that each meets the seats beside it, the last the first:
          lengths 3, 5, 9, 4 sum to -2, 0, 2, 0; by 2 opponents -1, 0, 1, 0, by 4 pairs -0.5, 0, 0.5, 0. K neighbours
          are min(2K, N - 1) opponents and N times half of that pairs. `one-winner`: the best name wins against each
          other, which lose to it alone: N - 1 and -1, divided by N - 1 either way. Lengths 3, 5, 9, 4 pay -1/3, -1/3,
          1, -1/3. W best ones get the mean over which of them had won, (N/W - 1) / (N - 1): lengths 9, 9, 3 pay 0.25,
          0.25, -0.5. One namer alone gets 0: `group_reward` pays several such episodes of one topic as if they were one
          contest, by any schedule. Worked by seats: of X, Y, Z a judge answers 1 to (X, Y) and 2 to (Y, X), so X beats
          Y; 1 to (X, Z) and 1 to (Z, X), a draw; 2 to (Y, Z) and nothing to (Z, Y), a draw. Sums 1, -1, 0; by opponents
          0.5, -0.5, 0. By seats with `one-winner`: shown X, Y, Z a judge answers 1, shown Y, Z, X it answers 3: X gets
          1, the others -0.5 each. Had it answered 1 again, it would have no choice, and all get 0.
Ends      when all have answered. `forfeit`: an unreadable reply loses all its comparisons, against another unreadable
          one it ties; it is never the best. `skip`: it is left out of the contest and gets 0. `penalty`: left out, and
          pays the penalty. A context overflow of a judge ends the episode and costs nobody anything; that of a namer
          costs nothing, or with `overflow="forfeit"` 1, shared by the other namers; one namer alone pays 0 as ever.
Outcome   ranks by wins minus losses; scores are the judge's numbers (an unreadable name has none; seats give none).
          How consistent the judges were stands in the env's counts of the role `judge` (see `Judging.counts`): the
          share of pairs judged alike in both orders is `consistent / pairs`, that of verdicts for place 1 is
          `place_1 / (place_1 + place_2 + tie)`, which is 0.5 without a bias and without ties. With `one-winner` there
          is a `place_K` for each name, and `pairs` are a judge's two verdicts.
Sees      a namer the topic; never another's name, not even at the end. A judge the names that it is asked about, sorted
          and without their seats, each question in a view of its own, and nothing else. Spectators see all.
Exploits  every judge rewards what it measures. `length`: any ramble. `rubric`: one fixed phrase with a linked word
          glued on, English-sounding nonsense; its module lists what it refuses (copied topics, talk to the judge,
          repeated words). Judges by seats favour places, which both orders make draws, and known names, great claims
          and the style of their own model (judge with another model, and compare with `rubric`); look at `consistent`.
          A judge that learns is paid nothing, so nothing moves it. Namers of one policy that all say the same tie at 0,
          and a group of equal rewards teaches nothing: sample with temperature, or set equal names against a fixed
          opponent. `circular` compares few: a bad name between two worse ones gets 1. `one-winner` tells nothing about
          who is not best, so that N - 1 of N names learn the same. Under `skip` no name is better than one that would
          lose: train with `forfeit`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llm_arena.arguments import one_of
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.problems.naming.contest import (
    FORFEIT_COST,
    MAX_NAMERS,
    MAX_TOPIC,
    NAME_GRAMMAR,
    Normalize,
    Rules,
    Schedule,
    draw,
    hold_contest,
    pay_group,
    read_name,
    sums_of_best,
    topics_of,
)
from llm_arena.problems.naming.judges import length
from llm_arena.problems.naming.rubric import rubric, score
from llm_arena.problems.naming.topics import MODIFIERS, NOUNS, SPLITS, associations
from llm_arena.problems.pure_judges import SEAT
from llm_arena.problems.text_lists import is_text
from llm_arena.problems.verdicts import (
    Choosing,
    Judging,
    Verdict,
    judging_facts,
    messages,
    read_facts,
    read_verdict,
    verdict_grammar,
    verdict_line,
    verdicts_on,
)
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View


def scripted(view: View, rng: np.random.Generator) -> str:
    """Coins ten names of a modifier and a stem linked to the topic, and says the one that the rubric likes best."""
    topic = view.facts["topic"]
    stems = associations(topic) or NOUNS
    coined = [f"{draw(MODIFIERS, rng)} {draw(stems, rng).capitalize()}" for _ in range(10)]
    return max(coined, key=lambda name: (score(name, topic), name))


def rubric_judge(view: View, rng: np.random.Generator) -> str:
    """Judges as the rubric does; of two namers, exactly as the judge `rubric`."""
    _, *names = read_facts(view.facts, "naming-v0/rubric-judge")
    return verdict_line(*rubric(view.facts["topic"], names))


def length_judge(view: View, rng: np.random.Generator) -> str:
    """Judges as the judge `length` does."""
    _, *names = read_facts(view.facts, "naming-v0/length-judge")
    return verdict_line(*length(view.facts["topic"], names))


class Naming(ArenaEnv):
    """N namers invent a name for one topic; names are compared by a judge.

    Args:
        namers: how many seats, 1 to 16.
        topic: what is to be named; None draws one.
        topics: what topics are drawn from, a list or the path of a file with one a line; None: the library's own.
        topics_sha256: what that file must be; None: whatever it is, which the spec then records.
        split: which of the library's topics, `train` or `heldout`.
        judge: `rubric`, `length`, `module:function`, or `seat`.
        judges: how many seats judge, 1 to 16; only with `judge="seat"`.
        schedule: who is compared with whom, `all-pairs`, `circular` or `one-winner`.
        neighbours: how many next names of the circle each meets, 1 to 8; only with `schedule="circular"`.
        normalize: what sums are divided by, `opponents` or `matchups`.
        options: those of `ArenaEnv`. With `judge="seat"`, `max_turns` leaves room for all questions.

    Raises:
        UsageError: an argument is out of its range, or a file can't be read or is another one.
    """

    id = "naming-v0"
    summary = "Several namers each invent a name for one topic; names are compared by a judge."
    roles = {"namer": (1, MAX_NAMERS), "judge": (0, 16)}
    officials = ("judge",)
    zero_sum = True
    simultaneous = True
    system = "You are a creative naming expert. Reply with just a name, nothing else."
    baselines = {"rubric-judge": rubric_judge, "length-judge": length_judge, "scripted": scripted}
    baseline_roles = {"rubric-judge": ["judge"], "length-judge": ["judge"], "scripted": ["namer"]}
    forfeit_cost = FORFEIT_COST
    input_arg = "topic"
    group_reward = staticmethod(pay_group)

    def __init__(
        self,
        *,
        namers: int = 4,
        topic: str | None = None,
        topics: list[str] | str | None = None,
        topics_sha256: str | None = None,
        split: Literal["train", "heldout"] = "train",
        judge: str = "rubric",
        judges: int = 1,
        schedule: Schedule = "all-pairs",
        neighbours: int = 1,
        normalize: Normalize = "opponents",
        **options: Any,
    ) -> None:
        self.given_topic, self.topics = topic, self._topics(topic, topics, topics_sha256, split)
        self.rules = Rules(judge, normalize, schedule, neighbours)
        self.rules.check(self.id)
        seated = judge == SEAT
        if judges != 1 and not seated:
            raise UsageError(f'{self.id}: judges={judges!r} needs judge="seat"; with judge="{judge}" no seat judges')
        if judges == 0:
            raise UsageError(f'{self.id}: judges=0; expected 1 to 16 with judge="seat"')
        # a count of another kind is refused by the base class
        asked = seated and isinstance(namers, int) and isinstance(judges, int)
        questions = self.rules.questions(namers, judges) if asked else 0
        if seated and options.get("max_turns") is None:
            options["max_turns"] = max(type(self).max_turns, namers + questions)
        super().__init__(counts={"namer": namers, "judge": judges if seated else 0}, **options)
        if self.max_turns < namers + questions:
            judged = f" and {questions} questions to be judged" if questions else ""
            raise UsageError(f"{self.id}: max_turns={self.max_turns} is too few for {namers} namers to answer{judged}")
        if seated:  # names first, then verdicts
            self.metadata = {**self.metadata, "is_parallelizable": False}
        self.namers = [seat for seat in self.possible_agents if self.role_of(seat) == "namer"]

    def _topics(self, topic: Any, topics: Any, sha256: str | None, split: str) -> Sequence[str]:
        """Checks the arguments that say what is named, and returns what topics are drawn from."""
        if topic is not None and not is_text(topic, MAX_TOPIC):
            raise UsageError(f"{self.id}: topic={topic!r:.100}; expected a noun phrase like 'coffee shop', or None")
        one_of(self.id, "split", split, SPLITS)
        if topics is None and sha256 is not None:
            raise UsageError(f"{self.id}: topics_sha256={sha256!r} needs topics, the file that it is the digest of")
        if topics is not None and (topic is not None or split != "train"):
            other = f"topic={topic!r:.60}" if topic is not None else f"split={split!r}, which is for the library's own"
            raise UsageError(f"{self.id}: topics={topics!r:.60} and {other}; give one of them")
        found, self.topics_sha256 = topics_of(topics, sha256, split)
        return found

    def resolved(self) -> dict[str, Json]:
        """Returns the SHA-256 of the file of topics."""
        return {"topics_sha256": self.topics_sha256}

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws the topic and asks every namer for a name at once."""
        self.topic = self.given_topic or draw(self.topics, rng)
        self.names: dict[str, str | None] = {}
        self.judging: Judging | Choosing = Judging([], self._judges)
        article = "an" if self.topic[0].lower() in "aeiou" else "a"
        self.task = f"Invent a creative name for {article} {self.topic}."
        self.tell(self.namers, self.task)
        return self.namers

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the verdicts of a judge that is asked; names can't be listed."""
        return None if seat in self.namers or seat not in self.pending else verdicts_on(self._shown(seat))

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a name of two words that have nothing to do with the topic, or a verdict."""
        if seat in self.namers:
            return f"{draw(MODIFIERS, rng)} {draw(NOUNS, rng)}"
        # The rule `random_legal` draws from the episode's own generator: luck must not decide a contest.
        return "VERDICT: tie" if rng is self.rng else draw(verdicts_on(self._shown(seat)), rng)

    def grammar(self, seat: str) -> Json:
        """Returns a name of up to 100 characters of Latin-1, or some lines and then a verdict."""
        return NAME_GRAMMAR if seat in self.namers else verdict_grammar(self._shown(seat))

    def facts(self, seat: str) -> Json:
        """Returns the topic, and for a judge that is asked the task and the names (see `judging_facts`)."""
        if seat in self.namers or seat not in self.pending:
            return {"topic": self.topic}
        return {"topic": self.topic, **judging_facts(self.task, *self.judging.question(seat))}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes the name of one seat, or a verdict; the last one decides the contest."""
        if seat not in self.namers:
            return self._judged(seat, read_verdict(reply, self._shown(seat)))
        name = read_name(reply)
        self.names[seat] = name
        return self._named(seat, name)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """An unreadable name loses its comparisons; the others play on. A judge forfeits nothing, for anybody.

        A context overflow ends the game at once.
        """
        if self.overflow_seat == seat:
            others = [other for other in self.namers if other != seat]
            if seat not in self.namers or not others:  # a namer alone is paid 0 whatever it does; a group charges it
                return Move()
            return Move(rewards={seat: -self.forfeit_cost, **dict.fromkeys(others, self.forfeit_cost / len(others))})
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
            if self._judges:
                lines.append(self.judging.summary())
        return "\n".join(lines)

    @property
    def _judges(self) -> list[str]:
        return [seat for seat in self.possible_agents if seat not in self.namers]

    def _shown(self, judge: str) -> int:
        """Returns how many names a judge is shown."""
        return len(self.judging.question(judge)) if judge in self.judging.waiting else 2

    def _named(self, seat: str, name: str | None) -> Move:
        if self.pending != [seat]:
            return Move(action=name)
        names = list(self.names.values())
        if not self._judges:
            return self._decided(name, *hold_contest(self.topic, self.rules, names))
        if self.rules.schedule == "one-winner":
            self.judging = Choosing(sorted({given for given in names if given is not None}), self._judges)
        else:
            met = [sorted((left, right)) for left, right in self._meetings() if left != right]
            self.judging = Judging(sorted({(left, right) for left, right in met}), self._judges)
        return self._ask(name)

    def _meetings(self) -> list[tuple[str, str]]:
        """Returns the readable names that the schedule compares."""
        names = list(self.names.values())
        pairs = [(names[left], names[right]) for left, right in self.rules.pairs(len(names))]
        return [(left, right) for left, right in pairs if left is not None and right is not None]

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
        sums = self._sums(self.judging)
        return self._decided(action, self.rules.pay(sums), sums, [-math.inf] * len(sums))

    def _sums(self, judging: Judging | Choosing) -> list[float]:
        """Returns wins minus losses: an unreadable name loses to any other, the rest is for the judges."""
        names = list(self.names.values())
        if isinstance(judging, Choosing):
            best = judging.best()
            places = [at for at, name in enumerate(names) if name in best]
            return sums_of_best(len(names), places or range(len(names)))

        def compare(at: int, other_at: int) -> int:
            mine, other = names[at], names[other_at]
            if mine is None or other is None:
                return (mine is not None) - (other is not None)
            return judging.result(mine, other)

        return self.rules.sums(len(names), compare)

    def _decided(self, action: Json, rewards: Sequence[float], sums: Sequence[float], values: Sequence[float]) -> Move:
        """Ends the game. The arguments are in the order of `names`."""
        seats = list(self.names)
        ranks = {seat: 1 + sum(better > mine for better in sums) for seat, mine in zip(seats, sums, strict=True)}
        # The judge's numbers, because rewards and comparisons sum to zero however good the names are. Rounded, so that
        # a replay on another machine doesn't differ in the last digit.
        scores = {seat: round(value, 9) for seat, value in zip(seats, values, strict=True) if value > -math.inf}
        draw = len(set(sums)) <= 1
        winners = [] if draw else [seat for seat in seats if ranks[seat] == 1]
        reason = "all names tie" if draw else f"best name: {', '.join(winners)}"
        if self._judges:
            reason += f"; {self.judging.summary()}"
        outcome = Outcome(winners=winners, ranks=ranks, draw=draw, reason=reason, scores=scores)
        return Move(action=action, rewards=dict(zip(seats, rewards, strict=True)), outcome=outcome)
