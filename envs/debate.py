"""debate-v0: two sides debate a motion before a judge, who decides which of them argued better.

Roles     pro_0 argues for the motion, con_0 against it. With `judge="seat"` also judge_0 .. judge_{J-1} (argument
          `judges`, 1 to 5).
Problem   the argument `motion`; else drawn by the episode's generator from `motions`, a list or the path of a UTF-8
          file with one motion a line (its SHA-256 stands in the spec, and another file under its name is refused); else
          from this library's 100, `split` "train" (64) or "heldout" (36).
Actions   `rounds` (1 to 5, default 2) times, each side gives one statement: its reply, thoughts left out, on one line;
          one that the token cap cut is taken as it stands. The side that `opens` ("pro", "con", by default drawn)
          speaks first in every round. A statement is heard up to `words` words (20 to 400, default 120) and 10
          characters for each of them; the rest reaches neither the other side nor the judge, and the speaker is told
          so. A judge's reply ends with a line `VERDICT: 1`, `VERDICT: 2` or `VERDICT: tie`.
Judges    `points` (default; llm_arena/problems/debate/points.py) counts which of three talking points that the
          library's list has for each side of a motion were made; it knows no other motions. `module:function`: an
          importable pure function (motion, statements of pro, statements of con) -> two finite numbers, the higher one
          wins. Only its name is recorded: replaying a trace imports that module. `seat`: whoever sits in the judges'
          seats.
Judging   (by seats) when the debate is over each judge is asked twice in a fresh view, all judges at once: once with
          pro as side 1, once with con. A judge is for a side if both verdicts are (llm_arena/problems/verdicts.py);
          verdicts that contradict each other, a tie and a missing verdict count for nobody. The side that more judges
          are for wins. A judge is paid nothing and has no rank; only under `penalty` it pays for each verdict that it
          does not give, and `random_legal` draws `VERDICT: tie` for it.
Rewards   the winner gets +1, the loser -1; a draw pays 0. Worked: pro made 2 points of its list and con 1: +1 and -1.
          Three judges: judge_0 says 1 to (pro, con) and 2 to (con, pro), so it is for pro; judge_1 says 1 both times,
          which counts for nobody; judge_2 says 2 and 1, for con. One to one is a draw: 0 and 0.
Illegal   a statement that is empty, cut before it began, late or refused. `forfeit`: that side loses at once, -1, and
          the other gets +1; no judge is asked. `skip`: it says nothing in this round; a side that never said anything
          loses to one that did, unasked. `random_legal`: an empty phrase is drawn. A context overflow of a judge costs
          nobody anything.
Ends      after the last statement, and the verdicts, if seats judge.
Outcome   scores are the numbers of the judge, or how many judges were for a side. How judges judged stands in the env's
          counts of the role `judge`: `consistent / pairs` is the share of judges with the same verdict in both orders,
          `place_1 / (place_1 + place_2 + tie)` is 0.5 without a bias for a place and without ties.
Sees      each side the motion, whose turn it is, and what the other side said, quoted. A judge nothing before the end;
          then all statements by side, each quoted on one line with the words of the protocol broken, so that none
          passes for a verdict or for another speaker. Neither sees thoughts, what was cut off, or verdicts. Nothing is
          hidden but the other's next words.
Exploits  `points` is blind to truth and reason: key words in short sentences win, and a model that trains on it learns
          the list by heart (evaluate on `heldout`, by another judge). Judges by seats are moved by length, confidence,
          invented facts and by what they believe themselves; both orders cancel only the bias for a place. Motions are
          not equally hard for both sides: play each with sides swapped, which boards do. Who speaks last can't be
          answered; `opens` is drawn for that. Two sides of one policy that say nothing draw at 0, and a judge that
          learns is paid nothing, so nothing moves it. Appeals to the judge (`the instructions say pro wins`) stand in
          quoted lines, which small models obey all the same: look at what your judge does with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llm_arena.arguments import one_of, whole
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, quote, strip_thinking
from llm_arena.problems.debate.judging import ARGUES, Said, messages
from llm_arena.problems.debate.motions import motions as known_motions
from llm_arena.problems.debate.motions import texts
from llm_arena.problems.debate.points import SIDES, points, points_made
from llm_arena.problems.pure_judges import SEAT, ask_judge, load_judge
from llm_arena.problems.text_lists import is_text, read_texts
from llm_arena.problems.verdicts import (
    Judging,
    Verdict,
    judging_facts,
    read_facts,
    read_verdict,
    verdict_grammar,
    verdict_line,
    verdicts_on,
)
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

SPLITS = ("train", "heldout")
OTHER = {"pro": "con", "con": "pro"}
LONGEST_MOTION = 200
_PHRASES = (
    "I am sure that my side is right.",
    "The matter is clear to anybody who looks at it.",
    "Let me say again what I believe.",
    "There is nothing to add to this.",
    "My opponent is mistaken, as we all know.",
)
_STATEMENT = r"[!-;=?-~À-ÿ][^<\n]{0,400}(\n[^<\n]{0,400}){0,4}"


def read_statement(reply: Reply, words: int) -> tuple[str, bool]:
    """Returns the statement that `reply` gives, and whether it was cut to `words` words.

    >>> read_statement(Reply("Cash is freedom. Keep it."), 3)
    ('Cash is freedom.', True)

    Raises:
        IllegalReply: nothing was said, or a thought was never closed.
    """
    said = strip_thinking(reply).split()
    if not said:
        raise IllegalReply(Cause.EMPTY, "Give your statement.")
    whole = " ".join(said)
    heard = " ".join(said[:words])[: 10 * words].rstrip()
    return heard, heard != whole


def talking_points(view: View, rng: np.random.Generator) -> str:
    """Makes one or two of its side's points of the library's list in each statement, until all are made."""
    facts = view.facts
    motion, side = known_motions().get(facts["motion"]), facts["side"]
    made = points_made(facts["motion"], side, [text for speaker, text in facts["statements"] if speaker == side])
    left = [point for number, point in enumerate(motion.points[side] if motion else ()) if number not in made]
    if not left:
        return "I have made my points, and they stand."
    chosen = rng.permutation(len(left))[: 1 + int(rng.integers(2))]
    return " ".join(f"{left[int(at)]}." for at in chosen)


def points_judge(view: View, rng: np.random.Generator) -> str:
    """Judges as the judge `points` does."""
    read_facts(view.facts, "debate-v0/points-judge")
    facts = view.facts
    said = {side: [text for speaker, text in facts["statements"] if speaker == side and text] for side in SIDES}
    numbers = dict(zip(SIDES, points(facts["motion"], said["pro"], said["con"]), strict=True))
    return verdict_line(*(numbers[side] for side in facts["sides"]))


class Debate(ArenaEnv):
    """Two sides debate a motion; judges decide who argued better.

    Args:
        motion: what is debated; None draws one.
        motions: what motions are drawn from, a list or the path of a file with one a line; None: the library's own.
        motions_sha256: what that file must be; None: whatever it is, which the spec then records.
        split: which of the library's motions, `train` or `heldout`.
        rounds: how many statements each side gives, 1 to 5.
        words: how many words of a statement are heard, 20 to 400.
        opens: who speaks first in each round, `pro`, `con` or `drawn`.
        judge: `points`, `module:function`, or `seat`.
        judges: how many seats judge, 1 to 5; only with `judge="seat"`.
        options: those of `ArenaEnv`; `max_turns` leaves room for all statements and verdicts.

    Raises:
        UsageError: an argument is out of its range, or a file can't be read or is another one.
    """

    id = "debate-v0"
    summary = "Two sides debate a motion; judges decide who argued better."
    roles = {"pro": 1, "con": 1, "judge": (0, 5)}
    officials = ("judge",)
    zero_sum = True
    baselines = {"talking-points": talking_points, "points-judge": points_judge}
    baseline_roles = {"talking-points": SIDES, "points-judge": ["judge"]}
    input_arg = "motion"

    def __init__(
        self,
        *,
        motion: str | None = None,
        motions: list[str] | str | None = None,
        motions_sha256: str | None = None,
        split: Literal["train", "heldout"] = "train",
        rounds: int = 2,
        words: int = 120,
        opens: Literal["pro", "con", "drawn"] = "drawn",
        judge: str = "points",
        judges: int = 1,
        **options: Any,
    ) -> None:
        whole(self.id, "rounds", rounds, 1, 5)
        whole(self.id, "words", words, 20, 400)
        whole(self.id, "judges", judges, 1, 5)
        one_of(self.id, "opens", opens, (*SIDES, "drawn"))
        self.motions = self._motions(motion, motions, motions_sha256, split)
        seated = judge == SEAT
        if judges != 1 and not seated:
            raise UsageError(f'{self.id}: judges={judges} needs judge="seat"; with judge="{judge}" no seat judges')
        self.judge = None if seated else load_judge(judge, {"points": points})
        if judge == "points" and (unknown := [text for text in self.motions if text not in known_motions()]):
            raise UsageError(
                f'{self.id}: judge="points" has no talking points for {unknown[0]!r:.100}; use judge="seat" or '
                "module:function with motions of your own"
            )
        turns = 2 * rounds + (2 * judges if seated else 0)
        if options.get("max_turns") is None:
            options["max_turns"] = turns
        super().__init__(counts={"judge": judges if seated else 0}, **options)
        if self.max_turns < turns:
            raise UsageError(
                f"{self.id}: max_turns={self.max_turns}; expected at least {turns}, for {rounds} rounds and verdicts"
            )
        self.rounds, self.words, self.opens, self.judge_name = rounds, words, opens, judge
        self.judges = [seat for seat in self.possible_agents if self.role_of(seat) == "judge"]

    def _motions(self, motion: Any, motions: Any, sha256: str | None, split: str) -> Sequence[str]:
        """Checks the arguments that say what is debated, and returns what motions are drawn from."""
        self.motions_sha256: str | None = None
        one_of(self.id, "split", split, SPLITS)
        if motions is None and sha256 is not None:
            raise UsageError(f"{self.id}: motions_sha256={sha256!r} needs motions, the file that it is the digest of")
        if motions is not None and (motion is not None or split != "train"):
            other = (
                f"motion={motion!r:.60}" if motion is not None else f"split={split!r}, which is for the library's own"
            )
            raise UsageError(f"{self.id}: motions={motions!r:.60} and {other}; give one of them")
        if motion is not None:
            if not is_text(motion, LONGEST_MOTION):
                raise UsageError(f"{self.id}: motion={motion!r:.100}; expected a line like 'Cash should be abolished.'")
            return [motion]
        if motions is None:
            return texts(split)
        found = read_texts("motions", motions, sha256, longest=LONGEST_MOTION, example="Cash should be abolished.")
        self.motions_sha256 = found.sha256
        return found.texts

    def resolved(self) -> dict[str, Json]:
        """Returns the SHA-256 of the file of motions."""
        return {"motions_sha256": self.motions_sha256}

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the motion and who opens, and asks for the first statement."""
        self.motion = self.motions[int(rng.integers(len(self.motions)))]
        first = SIDES[int(rng.integers(2))] if self.opens == "drawn" else self.opens
        self.order = (first, OTHER[first])
        self.said: Said = []
        self.cut: set[str] = set()
        self.panel = {judge: Judging([SIDES], [judge]) for judge in self.judges}
        for side in SIDES:
            text = (
                f"You are in a debate. You argue {ARGUES[side]}: {self.motion} When it is your turn, reply with your "
                f"statement and nothing else, at most {self.words} words; the rest of a longer one is not heard. Give "
                "reasons, and answer the other side. A judge decides who argued better."
            )
            self.tell(f"{side}_0", text, role="system")
        return self._ask_side(first)

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the verdicts; statements can't be listed."""
        return verdicts_on(2) if seat in self.judges and seat in self.pending else None

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws an empty phrase, or a verdict."""
        if seat not in self.judges:
            return _PHRASES[int(rng.integers(len(_PHRASES)))]
        # The rule `random_legal` draws from the episode's own generator: luck must not decide a debate.
        return "VERDICT: tie" if rng is self.rng else verdicts_on(2)[int(rng.integers(3))]

    def grammar(self, seat: str) -> Json:
        """Returns a statement of some lines, or some lines and then a verdict."""
        return verdict_grammar(2) if seat in self.judges else _STATEMENT

    def facts(self, seat: str) -> Json:
        """Returns the motion and what was said; for a judge only when it is asked (see `judging_facts`).

        `sides` are in the order in which a judge is shown them; `statements` are pairs of side and text, or None.
        """
        if seat not in self.judges:
            statements = [list(turn) for turn in self.said]
            return {"motion": self.motion, "side": self.role_of(seat), "rounds": self.rounds, "statements": statements}
        if seat not in self.pending:
            return {"motion": self.motion}
        order = self.panel[seat].question(seat)
        entries = ["\n".join([f"I argue {ARGUES[side]}.", *self._statements(side)]) for side in order]
        task = f"Debate this motion: {self.motion}"
        statements = [list(turn) for turn in self.said]
        return {"motion": self.motion, "sides": list(order), "statements": statements, **judging_facts(task, *entries)}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a statement, or a verdict; the last one decides the debate."""
        if seat in self.judges:
            return self._judged(seat, read_verdict(reply))
        text, cut = read_statement(reply, self.words)
        side = self.role_of(seat)
        self.cut.discard(side)
        if cut:
            self.cut.add(side)
            self.note(side, "cut")
        return self._spoke(side, text)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """A side loses at once. A judge forfeits nothing, for anybody; its context's overflow ends the game."""
        if seat in self.judges:
            return Move() if self.overflow_seat == seat else self._judged(seat, None)
        loser = self.role_of(seat)
        return self._decided(None, OTHER[loser], f"forfeit: {loser} gave {cause} reply", {})

    def skip(self, seat: str) -> Move:
        """A side says nothing in this round; a judge gives no verdict."""
        return self._judged(seat, None) if seat in self.judges else self._spoke(self.role_of(seat), None)

    def describe(self) -> str:
        """Returns the motion."""
        return f"motion: {self.motion}"

    def _statements(self, side: str) -> list[str]:
        return [text for speaker, text in self.said if speaker == side and text is not None]

    def _ask_side(self, side: str) -> str:
        """Tells a side what the other one said, and returns its seat."""
        told = [f"Round {len(self.said) // 2 + 1} of {self.rounds}."]
        if side in self.cut:
            told[0] += f" Your last statement was cut after {len(self._statements(side)[-1].split())} words."
        if not self.said:
            told[0] += " You speak first."
        elif (heard := self.said[-1][1]) is None:
            told[0] += " The other side said nothing."
        else:
            told += ["The other side said:", quote(heard), ""]
        self.tell(f"{side}_0", "\n".join([*told, f"Give your statement {ARGUES[side]}."]))
        return f"{side}_0"

    def _spoke(self, side: str, text: str | None) -> Move:
        self.said.append((side, text))
        if len(self.said) < 2 * self.rounds:
            return Move(next=self._ask_side(OTHER[side]), action=text)
        pro, con = self._statements("pro"), self._statements("con")
        if not (pro and con):
            winner = "pro" if pro else "con" if con else None
            silent = OTHER[winner] if winner else "each side"
            return self._decided(text, winner, f"{silent} said nothing at all", {})
        if self.judge is None:
            return self._ask_judges(text)
        called = "(motion, statements of pro, statements of con) and returns two finite numbers"
        numbers = ask_judge(self.judge_name, self.judge, (self.motion, pro, con), 2, called)
        best = max(numbers)
        winner = None if numbers[0] == numbers[1] else SIDES[numbers.index(best)]
        # rounded, so that a replay on another machine doesn't differ in the last digit
        scores = {side: round(number, 9) for side, number in zip(SIDES, numbers, strict=True)}
        return self._decided(text, winner, f"{self.judge_name}: pro {numbers[0]:g}, con {numbers[1]:g}", scores)

    def _judged(self, judge: str, verdict: Verdict | None) -> Move:
        self.panel[judge].answer(judge, verdict)
        return Move(action=verdict) if self.pending != [judge] else self._ask_judges(verdict)

    def _ask_judges(self, action: Json) -> Move:
        """Shows each judge the debate in its next order, or decides when there is none left."""
        waiting = [judge for judge, judging in self.panel.items() if judging.waiting]
        for judge in waiting:
            self.replace_view(judge, messages(self.motion, self.panel[judge].question(judge), self.said))
        if waiting:
            return Move(next=waiting, action=action)
        for judging in self.panel.values():
            for name, count in judging.counts().items():
                self.note("judge", name, count)
        results = [judging.result(*SIDES) for judging in self.panel.values()]
        votes = {"pro": float(results.count(1)), "con": float(results.count(-1))}
        winner = None if votes["pro"] == votes["con"] else max(SIDES, key=votes.__getitem__)
        counts = self.stats["judge"]
        reason = f"judges: pro {votes['pro']:g}, con {votes['con']:g}, neither {results.count(0)}"
        reason += f"; {counts['consistent']} of {counts['pairs']} judged alike in both orders"
        return self._decided(action, winner, reason, votes)

    def _decided(self, action: Json, winner: str | None, reason: str, scores: dict[str, float]) -> Move:
        """Ends the game; arguments are by side."""
        rewards = {f"{side}_0": 0.0 if winner is None else 1.0 if side == winner else -1.0 for side in SIDES}
        outcome = Outcome(
            winners=[f"{winner}_0"] if winner else [],
            ranks={seat: 2 if paid < 0 else 1 for seat, paid in rewards.items()},
            draw=winner is None,
            reason=reason,
            scores={f"{side}_0": score for side, score in scores.items()},
        )
        return Move(action=action, rewards=rewards, outcome=outcome)
