r"""adversary-v0: a thinker answers a problem, an adversary attacks the answer or lets it stand, the thinker may revise.

Roles     thinker_0 and adversary_0; with `judge="seat"` also judge_0.
Problem   `source` (llm_arena/problems/sources): `arithmetic` by `level` 1 to 5, `operators` and `split` (default), a
          file FILE.jsonl, a data set hf:OWNER/NAME, a generator reasoning-gym:NAME. Or one problem by the arguments
          `problem` and `answer` (a file of starts fills them from its fields `prompt` and `label`); with a judge the
          answer may be left out.
Actions   the thinker: words with its answer in the last <final_answer>...</final_answer>; its first reply needs one
          (`answer_format="lenient"` also takes the last \boxed{} or number). The adversary ends with a line FLAW: and
          what is wrong, an attack, or with NO FLAW, a pass; the last such line counts. FLAW: none, and the like, is a
          pass, and so is NO FLAW with a reason; a line that says both ("FLAW: no error, but...") is ambiguous. After
          an attack the thinker replies: with a new answer, or, if its reply has none, keeping the old one. Up to
          `rounds` attacks (1 to 5, default 1). Lines that begin with `>`, in which a seat quotes another, don't count.
Ends      with a pass, or with the thinker's reply to the last attack; then the judge, if there is one, gives verdicts.
Rewards   thinker: +1 if its first and its last answer are right, +0.75 if only the last is, -1 if the last is wrong.
          Adversary, for each call by the answer before it and after it:

            before   adversary   thinker    after   thinker   adversary
            right    passes                 right   +1        +1
            right    attacks     keeps      right   +1        -1
            right    attacks     changes    right   +1        -1         the same value, written anew
            right    attacks     changes    wrong   -1        -2         a right answer was broken
            wrong    passes                 wrong   -1        -1
            wrong    attacks     keeps      wrong   -1        +0.5
            wrong    attacks     changes    wrong   -1        +0.5
            wrong    attacks     changes    right   +0.75     +1

          With `rounds` R its calls are worth 1/R each, and a pass stands for all calls that are left. Worked, R = 2:
          wrong, attacked, still wrong, attacked, right: thinker 0.75, adversary (0.5 + 1) / 2 = 0.75. Wrong, attacked,
          right, pass: 0.75 and (1 + 1) / 2 = 1. Right, pass at once: 1 and 1. Right, attacked, wrong, attacked, right:
          1 (first and last are right), and (-2 + 1) / 2 = -0.5.
Honesty   the game is not zero-sum: that would pay the thinker for a wrong answer that nobody noticed, and the adversary
          for breaking right ones. Instead no pair of players gets more in sum than 2, which is what a right answer that
          is let stand pays. Failing on purpose to be mended pays 0.75 + 1. Let the thinker be right at first with
          probability q, let it when attacked keep right answers and mend wrong ones with probability m, and let the
          adversary attack wrong answers with probability d and right ones with f. The honest adversary then gets
          q(1-2f) + (1-q)(d(1.5+0.5m) - 1), one that always attacks -q + (1-q)(0.5+0.5m), one that never does 2q - 1.
          Honest beats always if 2q(1-f) > (1-q)(1-d)(1.5+0.5m), and never if (1-q)d(1.5+0.5m) > 2qf. For d = 0.9, f =
          0.1, m = 0.5 that is q from 0.09 to 0.88; whatever q if it sees all (d = 1, f = 0). To the thinker, giving in
          at every attack and failing on purpose never pay more than keeping right answers, against all three; nor does
          a pair that attacks always and gives in always, in sum. A thinker whose answer is right with probability r
          should keep it unless another is right with s > r / 0.875.
Unknown   an answer that the check can't tell is no right one for the thinker; calls on it are worth 0 to the adversary.
Judge     `judge="seat"`: judge_0 says of each different answer, once the debate is over and each time in a fresh view,
          VERDICT: right or VERDICT: wrong, and the table goes by that. It is shown the answer, what the thinker said
          with it, objections and replies to them, each quoted on one line with the words of the protocol broken, so
          that none passes for a verdict; its own last such line counts, not in a reply that its cap cut. There are no
          two entries, so there are no two orders to ask in. Without a verdict (or VERDICT: unsure) an answer is
          unknown: not broken, a last one pays the thinker 0, a call on it pays the adversary 0. The judge is an
          official: no rank, paid nothing, but for the penalty under `penalty`. Where the source has an answer it is not
          used; the env counts how many of the judge's verdicts agree with it: `agreed` of `graded`.
Illegal   `forfeit`: the thinker gets -1 and the game ends; the adversary is paid for its calls so far, an unanswered
          attack counts as kept. The adversary gets -2, and the thinker what its answer deserves. A judge gives no
          verdict. `skip`: a thinker without a first answer gets -1, later it keeps its answer; a call that the
          adversary misses pays it -2/R, and the next call comes. `random_legal`: a first answer that is surely wrong,
          kept answers, missed calls.
Outcome   the thinker wins if its first and last answers are right, the adversary if it attacked a wrong answer and the
          first one was wrong; else it is a draw: nobody is strong who breaks right answers or lets wrong ones stand.
Sees      both seats the problem and, quoted and with broken tags, what the other said, without thoughts, and the
          answer that is talked about, on a quoted line of its own. Nobody sees the right answer before the end;
          spectators do then. (`hidden` is empty: no two deals differ in the answer alone. Tests compare the views of
          two games that do.) The judge sees nothing but its questions.
Exploits  by label the words of an attack need not be true: "FLAW: wrong" pays like a proof, if the answer is wrong;
          only where the thinker listens to reasons, mended answers (+1 for +0.5) pay for them. Near q = 0 or 1 a lazy
          adversary that always or never attacks does well: keep the thinker's q within the range above by `level`. A
          judge can be talked round by both seats; a thinker may prefer no verdict (0) to a bad one (-1) and write what
          confuses the judge: watch `no_verdict`. Under a judge who calls everything right, passing always is best.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llm_arena.arguments import one_of, whole
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.answers import check_exactly
from llm_arena.problems.attacks import (
    ASKS_FOR_CALL,
    ASKS_FOR_VERDICT,
    OPENING,
    Call,
    Status,
    pay,
    read_call,
    read_judgement,
)
from llm_arena.problems.final_answers import (
    TAG,
    fenced,
    read_answer,
    shown_answer,
    tagged,
    visible_text,
)
from llm_arena.problems.sources.arithmetic import solve
from llm_arena.problems.sources.game import ProblemGame
from llm_arena.problems.verdicts import quoted
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

THINKER, ADVERSARY, JUDGE = "thinker_0", "adversary_0", "judge_0"

_LINES = "([^<\n]{0,400}\n){0,8}"
_MAX_QUOTED = 1000


def exact(view: View, rng: np.random.Generator) -> str:
    """Solves arithmetic in every seat: answers and keeps, attacks what differs, judges by its own answer."""
    value, answer = solve(view.facts["problem"]), view.facts["answer"]
    agrees = value is not None and answer is not None and check_exactly(answer, str(value)) == "right"
    if view.role == "thinker":
        if answer is not None and (agrees or value is None):
            return "My answer stands."
        return tagged("unknown") if value is None else f"It is {value}. {tagged(str(value))}"
    if view.role == "adversary":
        return "NO FLAW" if agrees or value is None else f"FLAW: it is {value}."
    return "VERDICT: unsure" if value is None else f"VERDICT: {'right' if agrees else 'wrong'}"


def hasty(view: View, rng: np.random.Generator) -> str:
    """Thinks as `exact` does, but its first answer is off by up to 9 in two of five problems."""
    value = solve(view.facts["problem"])
    if value is None or view.facts["answer"] is not None or rng.random() < 0.6:
        return exact(view, rng)
    return tagged(str(value + int(rng.integers(1, 10))))


class Adversary(ProblemGame):
    """A thinker answers a problem; an adversary is paid for attacking wrong answers and for letting right ones stand.

    Args:
        problem: the text of one problem; None draws from `source`.
        answer: its right answer, a number or LaTeX; may be left out only with a judge.
        source: where problems come from, see llm_arena/problems/sources.
        source_sha256: what a file or data set must be; None: whatever it is, which the spec then records.
        level: of `arithmetic`, 1 to 5.
        operators: of `arithmetic`, some of `+-*/`; None: those of the level.
        split: `train` or `heldout`, of `arithmetic` and `reasoning-gym`.
        rounds: how many attacks there may be, 1 to 5.
        judge: `label` or `seat`.
        answer_format: `tag` or `lenient`.
        checker: `exact` or `math`; None: math if a right answer needs algebra.
        options: those of `ArenaEnv`; `max_turns` leaves room for all attacks and verdicts.

    Raises:
        UsageError: an argument is out of its range, or a source can't be opened.
        MissingExtra: the checker or the source needs a package that is not installed.
    """

    id = "adversary-v0"
    summary = "A thinker answers a problem; an adversary attacks wrong answers and lets right ones stand."
    roles = {"thinker": 1, "adversary": 1, "judge": (0, 1)}
    officials = ("judge",)
    forfeit_cost = 2.0
    baselines = {"exact": exact, "hasty": hasty}
    baseline_roles = {"hasty": ["thinker"]}

    def __init__(
        self,
        *,
        problem: str | None = None,
        answer: str | None = None,
        rounds: int = 1,
        judge: Literal["label", "seat"] = "label",
        **options: Any,
    ) -> None:
        whole(self.id, "rounds", rounds, 1, 5)
        one_of(self.id, "judge", judge, ("label", "seat"))
        unlabelled = judge == "seat" and problem is not None and answer is None
        turns = 1 + 2 * rounds + (1 + rounds if judge == "seat" else 0)
        if options.get("max_turns") is None:
            options["max_turns"] = turns
        label = "none" if unlabelled else answer
        super().__init__(problem=problem, answer=label, counts={"judge": int(judge == "seat")}, **options)
        if self.max_turns < turns:
            raise UsageError(
                f"{self.id}: max_turns={self.max_turns}; expected at least {turns} for rounds={rounds}, judge={judge}"
            )
        self.rounds, self.judge, self.unlabelled = rounds, judge, unlabelled

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the problem and asks the thinker."""
        self.question = self.source.draw(rng)
        self.answers: list[str] = []
        self.said: list[str] = []
        self.calls: list[Call] = []
        self.now = 0
        self.verdicts: list[Status] = []
        self.culprit: tuple[str, Cause] | None = None
        self.by_rule = False
        "Whether the adversary's next reply was drawn for it by the rule `random_legal`: that is a missed call."
        self.replace_view(THINKER, OPENING["thinker"])
        self.replace_view(ADVERSARY, OPENING["adversary"])
        self.tell(THINKER, self.question.text)
        return THINKER

    def grammar(self, seat: str) -> str:
        """Returns some lines, and then what the seat's replies end with."""
        if seat == ADVERSARY:
            return f"{_LINES}(NO FLAW|FLAW: [A-Za-z0-9][^<\n]{{0,300}})"
        if seat == JUDGE:
            return f"{_LINES}VERDICT: (right|wrong|unsure)"
        ending = f"<{TAG}>[A-Za-z0-9(+\\-][^<\n]{{0,99}}</{TAG}>"
        words = "[A-Za-z0-9][^<>]{0,400}"
        return f"({words}|({words})?{ending})" if self.answers else f"({words})?{ending}"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws an answer below 100, an attack or a pass, or a verdict."""
        if rng is self.rng:  # for the rule `random_legal`: who breaks the rules is paid by no luck
            self.by_rule = seat == ADVERSARY
            words = "I don't know." if self.answers else tagged("unknown")
            return {THINKER: words, ADVERSARY: "NO FLAW", JUDGE: "VERDICT: unsure"}[seat]
        first = rng.random() < 0.5
        if seat == THINKER:
            answer = f"It is so. {tagged(str(int(rng.integers(100))))}"
            return answer if first or not self.answers else "My answer stands."
        if seat == ADVERSARY:
            return "NO FLAW" if first else "FLAW: it is another number."
        return f"VERDICT: {'right' if first else 'wrong'}"

    def facts(self, seat: str) -> Json:
        """Returns the problem and the answer that is talked about, or that a judge is asked about; or None."""
        answer = self.answers[self.now] if self.answers else None
        if seat == JUDGE:
            answer = self.answers[len(self.verdicts)] if seat in self.pending else None
        return {"problem": self.question.text, "answer": answer}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes an answer, a call, a reply to an attack, or a verdict."""
        if seat == JUDGE:
            return self._judged(read_judgement(reply))
        if seat == ADVERSARY:
            attack = read_call(reply)
            missed, self.by_rule = self.by_rule, False
            return self._missed() if missed else self._called(attack, strip_thinking(reply).strip())
        text = visible_text(reply)
        answer = read_answer(text, self.answer_format)
        if answer is None and not self.answers:
            raise IllegalReply(Cause.UNPARSABLE, f"Write your answer between <{TAG}> and </{TAG}>.")
        return self._answered(text, answer)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The seat gets its worst reward, and the game goes to its end without it. A judge gives no verdict."""
        if self.overflow_seat == seat:
            return Move(rewards={THINKER: {THINKER: -1.0}, ADVERSARY: {ADVERSARY: -2.0}}.get(seat, {}))
        if seat == JUDGE:
            return self._judged("unknown")
        self.culprit = seat, cause
        return self._finish(None)

    def skip(self, seat: str) -> Move:
        """A judge gives no verdict, a call is missed, and a thinker keeps its answer; without any it has lost."""
        if seat == JUDGE:
            return self._judged("unknown")
        if seat == ADVERSARY:
            return self._missed()
        if self.answers:
            return self._answered(None, None)
        lost = 0.0 if self.illegal == "penalty" else -1.0  # the penalty alone is paid under that rule
        outcome = Outcome(winners=[ADVERSARY], ranks={ADVERSARY: 1, THINKER: 2}, reason="no answer")
        return Move(rewards={THINKER: lost}, outcome=outcome)

    def describe(self) -> str:
        """Returns the problem, and its right answer once the game is over."""
        return f"problem: {self.question.text}" if self.unlabelled else super().describe()

    def _answered(self, text: str | None, answer: str | None) -> Move:
        """Takes the thinker's first answer, or its reply to an attack."""
        if answer is not None:
            if answer not in self.answers:
                self.answers.append(answer)
                self.said.append(text or "")
            self.now = self.answers.index(answer)
        if self.calls:
            self.calls[-1].reply, self.calls[-1].after = text, self.now
            if len(self.calls) == self.rounds:
                return self._finish(answer)
        said = "said nothing." if text is None else f"said:\n{fenced(text)}"
        shown = f"The thinker's answer:\n{fenced(shown_answer(self.answers[self.now]))}"
        problem = "" if self.calls else f"{self.question.text}\n\n"
        self.tell(ADVERSARY, f"{problem}The thinker {said}\n\n{shown}\n\n{ASKS_FOR_CALL}")
        return Move(next=ADVERSARY, action=answer)

    def _called(self, attack: str | None, text: str) -> Move:
        self.calls.append(Call(self.now, "pass" if attack is None else "attack", attack or ""))
        if attack is None:
            return self._finish({"attack": None})
        self.tell(
            THINKER,
            f"The adversary said:\n{fenced(text)}\n\nYour answer:\n"
            f"{fenced(shown_answer(self.answers[self.now]))}\n\nCheck it. "
            f"If it stands, say so without a tag. If not, write the right answer between <{TAG}> and </{TAG}>.",
        )
        return Move(next=THINKER, action={"attack": attack})

    def _missed(self) -> Move:
        """The adversary misses one call; the thinker is not asked."""
        self.calls.append(Call(self.now, "missed"))
        if len(self.calls) == self.rounds:
            return self._finish(None)
        self.tell(ADVERSARY, f"You made no call. {ASKS_FOR_CALL}")
        return Move(next=ADVERSARY)

    def _finish(self, action: Json) -> Move:
        """Has each answer judged, by label at once."""
        if self.judge == "seat" and self.answers:
            return self._ask_judge(action)
        graded = [self.source.grade(self.question, answer) for answer in self.answers]
        self.verdicts = ["unknown" if verdict == "undecided" else verdict for verdict in graded]
        return self._decide(action)

    def _ask_judge(self, action: Json) -> Move:
        """Shows the judge the next answer, with what was said about it."""
        number = len(self.verdicts)
        debate = f"\n\nWhat the thinker said:\n{quoted(self.said[number][:_MAX_QUOTED])}"
        for call in self.calls:
            if call.before == number and call.made == "attack":
                debate += f"\n\nObjection:\n{quoted(call.attack[:_MAX_QUOTED])}"
                debate += (
                    f"\n\nReply to it:\n{quoted(call.reply[:_MAX_QUOTED])}" if call.reply else "\n\nNo reply to it."
                )
        question = f"Problem: {self.question.text}\n\nAnswer:\n{quoted(self.answers[number][:_MAX_QUOTED])}{debate}"
        self.replace_view(JUDGE, [*OPENING["judge"], {"role": "user", "content": f"{question}\n\n{ASKS_FOR_VERDICT}"}])
        return Move(next=JUDGE, action=action)

    def _judged(self, verdict: Status) -> Move:
        answer = self.answers[len(self.verdicts)]
        self.verdicts.append(verdict)
        counts = {"no_verdict": verdict == "unknown"}
        label = "undecided" if self.unlabelled else self.source.grade(self.question, answer)
        if verdict != "unknown" and label != "undecided":
            counts |= {"graded": True, "agreed": verdict == label}
        for name, count in counts.items():
            self.note("judge", name, int(count))
        return self._ask_judge(verdict) if len(self.verdicts) < len(self.answers) else self._decide(verdict)

    def _decide(self, action: Json) -> Move:
        """Pays by the table and ends the game."""
        first: Status = self.verdicts[0] if self.verdicts else "wrong"
        last: Status = self.verdicts[self.now] if self.verdicts else "wrong"
        calls = [
            (self.verdicts[call.before], call.made, self.verdicts[call.before if call.after is None else call.after])
            for call in self.calls
        ]
        unknown = -1.0 if self.judge == "label" else 0.0
        missed = 0.0 if self.illegal == "penalty" else -2.0  # the penalty alone is paid under that rule
        thinker, adversary = pay(first, last, calls, self.rounds, unknown=unknown, missed=missed)
        rewards = {THINKER: thinker, ADVERSARY: adversary}
        attacked = any(before == "wrong" and made == "attack" for before, made, _ in calls)
        winner = THINKER if first == last == "right" else ADVERSARY if first == "wrong" and attacked else None
        attacks = sum(made == "attack" for _, made, _ in calls)
        reason = f"first {first}, last {last}, attacks {attacks}"
        if self.culprit is not None:
            seat, cause = self.culprit
            rewards[seat] = {THINKER: -1.0, ADVERSARY: -2.0}[seat]
            winner = ADVERSARY if seat == THINKER else THINKER
            reason = f"forfeit: {seat} gave {cause} reply"
        ranks = {seat: 1 if winner in (seat, None) else 2 for seat in (THINKER, ADVERSARY)}
        winners = [] if winner is None else [winner]
        outcome = Outcome(winners=winners, ranks=ranks, draw=winner is None, reason=reason, scores=dict(rewards))
        return Move(rewards=rewards, outcome=outcome, action=action)
