"""proposer-solver-v0: a proposer poses a problem with one checkable answer, and several solvers try it at once.

Roles     proposer_0, and solver_0 .. solver_{N-1}, N from 2 to 32 (argument `solvers`, default 8).
Problem   the argument `form` says what may be posed; `any` takes all three, and the proposer chooses.
          `expression` (default): PROBLEM: (3 + 4) * 2, with + - * / and brackets, and a whole number as its value.
          `program`: between the lines PROGRAM: and END, a small program that prints one whole number. Its language is a
          part of Python with a reader and a machine of our own (llm_arena/problems/proposals/language.py).
          `template`: a story with places for numbers is drawn for each round, and the proposer fills it: FILL: a = 12,
          b = 3, c = 5 (llm_arena/problems/proposals/stories.py).
Window    `max_operands` (2 to 12) numbers in an expression, `max_digits` (1 to 6) of each written number, `max_lines`
          (5 to 20) of a program. Steps, brackets, lists and the digits of every number on the way have bounds too.
Actions   the proposer: a problem; of several in a reply the last counts. A solver: ends with the line ANSWER: 14, a
          whole number in digits; of several such lines the last counts, and if that one holds no number, nothing does.
          A reply that its token cap cut counts if the problem or answer was closed by a new line (END for programs).
Again     a problem that was posed before is refused: in an earlier round, as an example that the proposer is shown, or
          in an earlier episode, if its fingerprint stands in the argument `seen`. Names, spaces, brackets, the order of
          sums and products, of independent lines, lines and blocks that what is printed does not depend on, conditions
          that compare written numbers, and loops written out make no new problem. Arithmetic is not simplified: `+ 0`,
          `* 1`, 6 / 2 in the place of 3, or a condition on a name that happens to hold do make one. An episode keeps
          nothing for the next: whoever runs many passes the fingerprints on, which stand in the actions of the traces.
Rewards   proposer: 4p(1-p) where p is the share of the N solvers that answer right; 0 for what is no problem, is none
          of the window, or was posed before (then solvers are not asked and get nothing). Solver: 1 if right, else 0.
          Worked: of 8 solvers 2 are right: p = 1/4, 4 * 1/4 * 3/4 = 0.75, and those 2 get 1. All or none right: 0. Of
          8, the reward is 1 at 4, 0.9375 at 3 and 5, 0.4375 at 1 and 7. If each solver is right with probability q, the
          mean reward is 4q(1-q)(1-1/N): 0.875 at best for 8 solvers, 0.5 for 2. `rounds` (default 1) adds up.
Illegal   a solver without a readable answer counts as one that did not solve the problem; the others go on, and it is
          asked again in the next round. A proposer may try again as `retries` allow. Then `forfeit` ends the game: what
          was earned stays, the worst that rules allow (0) is what the rest pays. `skip` passes to the next round.
          `random_legal` draws a problem that pays the proposer nothing, and an answer that is wrong.
Ends      after `rounds` rounds (1 to 20), each of a proposal and answers to it. There are no winners. Solvers are
          ranked by problems solved; the proposer, who plays another game, is not ranked. Scores: its mean reward, their
          share.
Sees      solvers: the problem, written anew from its tokens, and nothing else of the proposer's reply; after a round
          whether they were right, and the right answer. No solver sees another's answer. The proposer sees how many
          solved it, after the round. Templates are drawn by the episode's generator and shown when their round comes.
Groups    solvers of one episode had the same problems, and can be compared within it; solvers of another episode had
          others. Proposers can be compared across the episodes of a group (same templates, same window). The proposer's
          reward depends on the solvers of its episode alone, a solver's on nobody but itself and the proposer.
Exploits  a problem pays by how many solve it, not by what is learned from it: long sums with many digits serve as well
          as deep ones, and a coin flip would be ideal; problems with one right answer and exact grading leave only
          slips to flip. What solvers learn moves p, so a proposer that never changes stops being paid. It may pose one
          problem with other numbers, or with `+ 0` added, for ever: only equal computations are refused. In a group two
          proposers may pose the same problem and both are paid. Solvers could raise the proposer's pay by failing, but
          lose their own: 1 each, for at most 4(1-1/N)/N. (One policy in all seats, credited by `trace`, sees the sum:
          use `seat`.) No answer can be whispered: a problem has no comments, and its names are single letters.
"""

from __future__ import annotations

import math
import re
from typing import Any, Literal

import msgspec
import numpy as np

from llm_arena.arguments import one_of, whole
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.proposals.language import Limits, evaluate, run
from llm_arena.problems.proposals.proposals import (
    EXAMPLES,
    FORMS,
    TRIES,
    Form,
    Proposal,
    Window,
    draw,
    grammar,
    read_proposal,
)
from llm_arena.problems.proposals.stories import LEAST, TEMPLATES, read_story
from llm_arena.types import Cause, Json, Message, Move, Outcome, Reply, View

PROPOSER = "proposer_0"
_ANSWER = re.compile(r"[ \t*_`]*ANSWER[*_`]*:[ \t]*(.*)")
# far longer than any answer, and far shorter than what Python refuses to read
_NUMBER = re.compile("[-\u2212]?(?:[0-9]{1,3}(?:,[0-9]{3}){1,130}|[0-9]{1,400})")
_HINT = "End with one line: ANSWER: and a whole number."
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
SOLVING: list[Message] = [
    {"role": "system", "content": f"Solve the problem. {_HINT}"},
    {"role": "user", "content": "What is 2 + 5?"},
    {"role": "assistant", "content": "ANSWER: 7"},
    {"role": "user", "content": "What is 20 - 2 * 6?"},
    {"role": "assistant", "content": "2 * 6 is 12, and 20 - 12 is 8.\nANSWER: 8"},
]
"""How a solver's view begins: what it is to do, and two worked turns."""
WIDEST = Window(forms=FORMS, operands=12, digits=6, lines=20)
SLIP = 0.15
"""Probability with which the scripted solver `noisy` slips at one digit."""
_CANDIDATES = 60


def read_answer(reply: Reply) -> int:
    r"""Returns the whole number of the last line `ANSWER: n`.

    >>> read_answer(Reply("ANSWER: 13? No.\n**ANSWER: 1,014.**"))
    1014

    Raises:
        IllegalReply: there is no such line, the last one holds no whole number, or the reply was cut within it.
    """
    lines = strip_thinking(reply).splitlines()
    found = [(place, match[1]) for place, match in enumerate(map(_ANSWER.fullmatch, lines)) if match]
    if not found:
        raise IllegalReply(Cause.UNPARSABLE, _HINT)
    place, said = found[-1]
    if reply.finish == "length" and place == len(lines) - 1 and not reply.endswith("\n"):
        raise IllegalReply(Cause.LENGTH, f"Be shorter. {_HINT}")
    number = said.strip(" \t*_`$.")
    if not _NUMBER.fullmatch(number):
        raise IllegalReply(Cause.UNPARSABLE, _HINT)
    return int(number.replace(",", "").replace("\u2212", "-"))


def window_proposer(view: View, rng: np.random.Generator) -> str:
    """Poses a problem that half of the solvers should solve.

    It takes a solver to be right with probability exp(-rate * effort), fits the rate to the rounds so far (a slip per
    `SLIP` digits before the first), and of 60 random problems poses the one whose effort is nearest to ln 2 / rate.
    """
    facts = view.facts
    rates = [-math.log(1 - SLIP)]
    for past in facts["history"]:
        if past["effort"]:
            share = min(max(past["solved"], 0.5), facts["solvers"] - 0.5) / facts["solvers"]
            rates.append(-math.log(share) / past["effort"])
    target = math.log(2) * len(rates) / math.fsum(rates)
    window = msgspec.convert(facts["window"], Window)
    drawn = [view.sample_reply(rng) for _ in range(_CANDIDATES)]
    return min(drawn, key=lambda reply: abs(read_proposal(Reply(reply), window, facts["template"]).effort - target))


def exact_solver(view: View, rng: np.random.Generator) -> str:
    """Works out the answer."""
    return f"ANSWER: {_solve(view.facts)}"


def noisy_solver(view: View, rng: np.random.Generator) -> str:
    """Is right with probability (1 - `SLIP`) ** effort, else wrong by a small number."""
    value = _solve(view.facts)
    if rng.random() >= (1 - SLIP) ** view.facts["effort"]:
        value += int(rng.integers(1, 11)) * (1 if rng.random() < 0.5 else -1)
    return f"ANSWER: {value}"


def _solve(facts: Json) -> int:
    limits = Limits(operands=400, digits=400, value_digits=400)
    read = {"expression": evaluate, "program": run, "template": read_story}[facts["form"]]
    result = read(facts["problem"], limits)
    assert result is not None  # a story of ours
    return result.value


class ProposerSolver(ArenaEnv):
    """A proposer poses problems with one checkable answer; it is paid most when half of the solvers solve them.

    Args:
        form: `expression`, `program`, `template` or `any`.
        solvers: how many seats solve, 2 to 32.
        rounds: how many problems are posed, 1 to 20.
        max_operands: numbers of an expression, 2 to 12.
        max_digits: of each written number, 1 to 6.
        max_lines: of a program, 5 to 20.
        seen: fingerprints of problems that count as posed before.
        options: those of `ArenaEnv`; `max_turns` leaves room for all rounds.

    Raises:
        UsageError: an argument is out of its range.
    """

    id = "proposer-solver-v0"
    summary = "A proposer poses problems that half of the solvers should solve; solvers try them at once."
    peers = ("solver",)
    roles = {"proposer": 1, "solver": (2, 32)}
    baselines = {"window": window_proposer, "exact": exact_solver, "noisy": noisy_solver}
    baseline_roles = {"window": ["proposer"], "exact": ["solver"], "noisy": ["solver"]}

    def __init__(
        self,
        *,
        form: Literal["expression", "program", "template", "any"] = "expression",
        solvers: int = 8,
        rounds: int = 1,
        max_operands: int = 6,
        max_digits: int = 3,
        max_lines: int = 8,
        seen: list[str] | None = None,
        **options: Any,
    ) -> None:
        one_of(self.id, "form", form, (*FORMS, "any"))
        whole(self.id, "rounds", rounds, 1, 20)
        whole(self.id, "max_operands", max_operands, 2, 12)
        whole(self.id, "max_digits", max_digits, 1, 6)
        whole(self.id, "max_lines", max_lines, 5, 20)
        if seen is not None and not isinstance(seen, list | tuple):
            raise UsageError(f"{self.id}: seen={seen!r:.60}; expected a list of fingerprints, or None")
        bad = [mark for mark in seen or () if not (isinstance(mark, str) and _FINGERPRINT.fullmatch(mark))]
        if bad:
            raise UsageError(
                f"{self.id}: seen holds {bad[0]!r:.60}; expected fingerprints of 32 hexadecimal digits, as in the "
                "actions of a trace"
            )
        if options.get("max_turns") is None and isinstance(solvers, int):
            options["max_turns"] = rounds * (1 + solvers)
        super().__init__(counts={"solver": solvers}, **options)
        if self.max_turns < rounds * (1 + solvers):
            raise UsageError(
                f"{self.id}: max_turns={self.max_turns}; expected at least {rounds * (1 + solvers)} for "
                f"rounds={rounds} with solvers={solvers}"
            )
        forms: tuple[Form, ...] = FORMS if form == "any" else (form,)
        self.window = Window(forms=forms, operands=max_operands, digits=max_digits, lines=max_lines)
        self.rounds, self.seen = rounds, frozenset(seen or ())
        self.solvers = self.possible_agents[1:]

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the stories and asks for the first problem."""
        self.templates = [int(rng.integers(len(TEMPLATES))) for _ in range(self.rounds)]
        self.known = set(self.seen) | {
            read_proposal(Reply(reply), WIDEST, story).fingerprint
            for form in self.window.forms
            for reply, story in EXAMPLES[form]
        }
        self.round = 0
        self.unpaid = False
        "Whether the problem was drawn for the proposer by the rule `random_legal`."
        self.problem: Proposal | None = None
        self.answers: dict[str, int | None] = {}
        self.solved = dict.fromkeys(self.solvers, 0)
        self.history: list[dict[str, Json]] = []
        self.replace_view(PROPOSER, self._opening())
        for solver in self.solvers:
            self.replace_view(solver, SOLVING)
        return self._ask("")

    def grammar(self, seat: str) -> str:
        """Returns free lines, and then a problem or an answer."""
        if seat == PROPOSER:
            return grammar(self.window, self._template)
        return f"([^<\n]{{0,400}}\n){{0,8}}ANSWER: -?[0-9]{{1,{self.window.answer_digits}}}"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a problem of the window that was not posed before, or a number below 100."""
        by_rule = rng is self.rng  # for the rule `random_legal`: who breaks the rules is paid by no luck
        if seat != PROPOSER:
            if not by_rule:
                return f"ANSWER: {int(rng.integers(100))}"
            assert self.problem is not None  # the seat was asked about it
            return f"ANSWER: {self.problem.value + (1 if self.problem.value < 1 else -1)}"
        self.unpaid = self.unpaid or by_rule
        for _ in range(TRIES):
            reply = draw(rng, self.window, self._template)
            if read_proposal(Reply(reply), self.window, self._template).fingerprint not in self.known:
                return reply
        raise UsageError(
            f"{self.id}: {TRIES} random problems of the window stand in `seen`; widen it, or leave some out"
        )

    def facts(self, seat: str) -> Json:
        """Returns the window and the rounds so far, or the problem with the effort that it takes."""
        if seat == PROPOSER:
            return {
                "window": msgspec.to_builtins(self.window),
                "template": self._template,
                "solvers": len(self.solvers),
                "history": [dict(entry) for entry in self.history],
            }
        if self.problem is None:
            return {}
        return {"form": self.problem.form, "problem": self.problem.text, "effort": self.problem.effort}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Poses a problem, or takes an answer to it."""
        if seat != PROPOSER:
            return self._answered(seat, read_answer(reply))
        problem = read_proposal(reply, self.window, self._template)
        if problem.fingerprint in self.known:
            raise IllegalReply(Cause.ILLEGAL, "That problem was posed before. Write another one.")
        self.problem, self.answers = problem, {}
        self.known.add(problem.fingerprint)
        number = f"Problem {self.round + 1}.\n" if self.rounds > 1 else ""
        self.tell(self.solvers, number + _question(problem))
        action = {"form": problem.form, "problem": problem.text, "fingerprint": problem.fingerprint}
        return Move(next=self.solvers, action={**action, "answer": str(problem.value), "effort": problem.effort})

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """A solver did not solve the problem. A proposer ends the game; what was earned stays."""
        if self.overflow_seat == seat:
            return Move()
        if seat != PROPOSER:
            return self._answered(seat, None)
        return Move(outcome=self._outcome(f"forfeit: {seat} gave {cause} reply"))

    def skip(self, seat: str) -> Move:
        """A solver did not solve the problem; without a problem the round is over."""
        if seat != PROPOSER:
            return self._answered(seat, None)
        return self._close({"form": "none", "effort": 0, "solved": 0, "reward": 0.0}, {}, None, "There was no problem.")

    def describe(self) -> str:
        """Returns how many solved each problem."""
        return f"solved: {self._summary()}" if self.history else ""

    @property
    def _template(self) -> int:
        return self.templates[min(self.round, self.rounds - 1)]

    def _opening(self) -> list[Message]:
        """Returns how the proposer's view begins: its rules, and worked turns."""
        window = self.window
        parts = {
            "expression": f"Write an arithmetic expression of at most {window.operands} numbers with at most "
            f"{window.digits} digits, with + - * / and brackets. Its value is a whole number. Put it after PROBLEM:",
            "program": f"Write a Python program of at most {window.lines} lines that prints one whole number. It may "
            "use = + - * // % < == lists, for, range, if, else, len, sum, min, max, print; names are single letters. "
            "Put it between the lines PROGRAM: and END.",
            "template": f"Fill in the numbers of a story, from {LEAST} to {10**window.digits - 1}, after FILL:",
        }
        choice = "\nOr: ".join(parts[form] for form in window.forms)
        rules = (
            f"You pose a problem; {len(self.solvers)} solvers try it. You are paid most if half of them solve it, and "
            f"nothing if all or none do, or if it was posed before.\n{choice}"
        )
        messages: list[Message] = [{"role": "system", "content": rules}]
        for form in window.forms:
            for reply, story in EXAMPLES[form]:
                messages += [{"role": "user", "content": self._request(story)}, {"role": "assistant", "content": reply}]
        return messages

    def _request(self, story: int) -> str:
        told = f"The story: {TEMPLATES[story].text}\n" if "template" in self.window.forms else ""
        return f"{told}Pose a problem that was not posed before."

    def _ask(self, news: str) -> str:
        """Asks the proposer for a problem; returns its seat."""
        self.tell(PROPOSER, news + self._request(self._template))
        return PROPOSER

    def _answered(self, seat: str, answer: int | None) -> Move:
        self.answers[seat] = answer
        action = None if answer is None else str(answer)
        if self.pending != [seat]:
            return Move(action=action)
        assert self.problem is not None  # they were asked about it
        right = [solver for solver in self.solvers if self.answers[solver] == self.problem.value]
        share = len(right) / len(self.solvers)
        reward = 0.0 if self.unpaid else 4 * share * (1 - share)
        for solver in right:
            self.solved[solver] += 1
        entry = {
            "form": self.problem.form,
            "effort": self.problem.effort,
            "solved": len(right),
            "reward": reward,
            "fingerprint": self.problem.fingerprint,
        }
        rewards = {PROPOSER: reward} | dict.fromkeys(right, 1.0)
        return self._close(entry, rewards, action, f"{len(right)} of {len(self.solvers)} solved your problem.")

    def _close(self, entry: dict[str, Json], rewards: dict[str, float], action: Json, news: str) -> Move:
        """Ends a round, and the game with the last one."""
        self.history.append(entry)
        self.round += 1
        if self.round == self.rounds:
            return Move(rewards=rewards, action=action, outcome=self._outcome(f"solved: {self._summary()}"))
        if self.problem is not None and "fingerprint" in entry:
            for solver in self.solvers:
                verdict = "Right." if solver in rewards else f"Wrong: it is {self.problem.value}."
                self.tell(solver, verdict)
        self.problem, self.unpaid = None, False
        return Move(next=self._ask(f"{news}\n\n"), rewards=rewards, action=action)

    def _outcome(self, reason: str) -> Outcome:
        played = max(len(self.history), 1)
        scores = {PROPOSER: math.fsum(past["reward"] for past in self.history) / played}
        scores |= {solver: count / played for solver, count in self.solved.items()}
        counts = self.solved.values()
        ranks = {solver: 1 + sum(better > mine for better in counts) for solver, mine in self.solved.items()}
        return Outcome(ranks=ranks, reason=reason, scores=scores)

    def _summary(self) -> str:
        return ", ".join(f"{past['solved']} of {len(self.solvers)}" for past in self.history)


def _question(problem: Proposal) -> str:
    if problem.form == "expression":
        return f"What is {problem.text}?"
    if problem.form == "program":
        return f"What does this Python program print?\n\n{problem.text}"
    return problem.text
