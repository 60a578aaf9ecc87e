r"""solver-rewriter-selector-v0: some solve a problem, as many rewrite the solutions, one selects the final answer.

Roles     solver_0 .. solver_{N-1}, rewriter_0 .. rewriter_{N-1}, selector_0; N = `num_parallel`, 1 to 16, default 5.
Problem   as in thinker-verifier-v0: `source` (llm_arena/problems/sources), by default `arithmetic` by `level`,
          `operators` and `split`; or one problem by `problem` and `answer`, which a file of starts fills.
Actions   in three phases. All solvers answer at once, then all rewriters, then the selector. Solvers and rewriters
          write free text; what stands in the last <final_answer>...</final_answer> of a reply is its answer, and one
          without an answer is wrong. Only the seat's own reply is read, without its thoughts and without lines that
          begin with `>`, in which it quotes another. With `answer_format="lenient"` the last \boxed{} counts where
          there is no tag, else the last number. The selector ends its reply with a line `SELECT: 2`; the last such line
          counts, and a number alone will do.
Illegal   an empty reply, or one that is all thoughts; of the selector one without a line `SELECT:`, or with a number
          that no rewrite has. Under `forfeit` and `skip` the seat drops out and the others go on: its solution is not
          shown, and the numbers count the rewrites that there are. `penalty` charges the seat as well. `random_legal`
          draws words without an answer, or some rewrite.
Ends      with the selector's choice: "right", "wrong", or "undecided" if the check could not tell, which counts as
          wrong. If no solver answered, the rewriters are told so and solve the problem themselves. If no rewriter
          answered there is nothing to select: "no answer (no rewrite is left)"; if the selector fails:
          "no answer (the selector gave ... reply)". The solvers' answers do not stand in for them.
Checking  as in thinker-verifier-v0: `checker="exact"` or `"math"`; reasoning-gym's generators grade themselves.
Rewards   all at the end, each seat for its own answer: solver_3 for what solver_3 wrote, whoever else failed
          (PrimeIntellect-ai/prime-rl PR #2590 zipped results with other seats' rewards). A seat that failed gets the
          worst legal reward, and nothing for what others answered.
          `reward="weighted"` (default): own * w, where own is 1 if the seat's own answer is right, else 0, and w is
          `correct_reward_weight` = 1.2 if the selected answer is right, else `incorrect_reward_weight` = 0.8; the
          selector's own answer is the one it selects. Worked: a right solver or rewriter 1.2 in a right team, 0.8 in a
          wrong one; a wrong one 0 in both; the selector 1.2 or 0. Of five solvers 0 and 3 are right, 1 and 4 wrong,
          2 fails; all rewriters are right but rewriter 4, and that one is selected: solvers 0.8, 0, 0, 0.8, 0,
          rewriters 0.8, 0.8, 0.8, 0.8, 0, selector 0.
          Own correctness is 0 or 1, and not -1 or 1, because a weight multiplies a signed number: a wrong solver would
          get 1.2 * -1 = -1.2 in a right team and 0.8 * -1 = -0.8 in a wrong one, and be paid for misleading it. With 0
          it has nothing to gain either way. For the same reason `incorrect_reward_weight` is at most the other.
          `reward="additive"`: `w_own` * own + `w_team` * team, each +1 or -1. Worked, with 0.5 and 1: a right solver
          +1.5 in a right team and -0.5 in a wrong one, a wrong solver +0.5 and -1.5, the selector +1.5 or -1.5, a seat
          that failed -1.5 whatever the team did, and one that was never asked -1, for the team's loss.
Groups    votes are compared by group and role (llm_arena/training/credit.py): the solvers of all episodes of a start
          are one group of samples of one prompt. The rewriters of one episode have one prompt too; those of the other
          episodes read other solutions.
Outcome   winners: all seats if the selected answer is right, else nobody. scores: 1 for each seat whose own answer is
          right, else 0. The env counts `right` and `failed` by role, and for the selector `offered`: 1 if some rewrite
          was right. right / offered is how well it selects.
Sees      solvers the problem; rewriters the problem and all solutions, quoted, numbered in the order of seats; the
          selector the problem and all rewrites likewise, behind two worked examples. Within a phase nobody sees
          another's reply. Thoughts are shown to nobody. Nobody sees the right answer; spectators see it at the end. (It
          is no secret of a seat, so `hidden` is empty: no two deals differ in it alone.)
Exploits  rewriters may copy the commonest answer, and if all do the selector has no choice; `majority` plays that way,
          and is what a trained team has to beat. A selector that says `SELECT: 1` always is right as often as a
          rewriter is. A rewriter's text may ask to be selected; it gains nothing by that unless it is right. Wrong
          seats under `weighted` are indifferent to the team's result. Small answer spaces pay for guessing, and among
          N guesses the right one is there more often than a single guess is right.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llm_arena.arguments import one_of, whole
from llm_arena.errors import UsageError
from llm_arena.problems.answers import check_exactly
from llm_arena.problems.final_answers import (
    TAG,
    commonest,
    read_answer,
    shown_answer,
    tagged,
    visible_text,
)
from llm_arena.problems.selections import Solution, messages, read_selection, selection_line, shown
from llm_arena.problems.sources.arithmetic import solve
from llm_arena.problems.sources.game import ProblemGame, checked_weights
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

SYSTEM = {
    "solver": (
        "You are a solver. Solve the problem in one or two short sentences. "
        f"Then write your answer between <{TAG}> and </{TAG}>."
    ),
    "rewriter": (
        "You are a rewriter. You are shown a problem and solutions of others, of which some may be wrong. Write one "
        f"better solution in one or two short sentences. Then write your answer between <{TAG}> and </{TAG}>."
    ),
}


def majority(view: View, rng: np.random.Generator) -> str:
    """Rewrites or selects the commonest answer, and solves nothing itself."""
    answers = view.facts["answers"]
    found = commonest(answers)
    if view.role == "selector":
        return selection_line(1 if found is None else found + 1)
    return "I don't know." if found is None else f"Most say so. {tagged(answers[found])}"


def scripted(view: View, rng: np.random.Generator) -> str:
    """Solves arithmetic exactly in all seats; on other problems it goes by the commonest answer."""
    value = solve(view.facts["problem"])
    if value is None:
        return "I don't know." if view.role == "solver" else majority(view, rng)
    if view.role != "selector":
        return f"I get {value}. {tagged(str(value))}"
    answers = view.facts["answers"]
    right = [
        at for at, answer in enumerate(answers, start=1) if answer and check_exactly(answer, str(value)) == "right"
    ]
    return selection_line(right[0]) if right else majority(view, rng)


class SolverRewriterSelector(ProblemGame):
    """N solvers answer one problem, N rewriters improve on their solutions, a selector picks one rewrite.

    Args:
        num_parallel: how many solvers, and how many rewriters, 1 to 16.
        problem: the text of one problem; None draws from `source`.
        answer: its right answer, a number or LaTeX; given if and only if `problem` is.
        source: where problems come from, see llm_arena/problems/sources.
        source_sha256: what a file or data set must be; None: whatever it is, which the spec then records.
        level: of `arithmetic`, 1 to 5.
        operators: of `arithmetic`, some of `+-*/`; None: those of the level.
        split: `train` or `heldout`, of `arithmetic` and `reasoning-gym`.
        reward: `weighted` or `additive`.
        correct_reward_weight: of `weighted`, if the selected answer is right.
        incorrect_reward_weight: of `weighted`, if it is not; at most the other.
        w_own: of `additive`, for one's own answer.
        w_team: of `additive`, for the selected answer.
        answer_format: `tag` or `lenient`.
        checker: `exact` or `math`; None: math if a right answer needs algebra.
        options: those of `ArenaEnv`. `max_turns` leaves room for all seats.

    Raises:
        UsageError: an argument is out of its range, or a source can't be opened.
        MissingExtra: the checker or the source needs a package that is not installed.
    """

    id = "solver-rewriter-selector-v0"
    summary = "Several solve a problem, as many rewrite the solutions, one selects the final answer."
    roles = {"solver": (1, 16), "rewriter": (1, 16), "selector": 1}
    cooperative = True
    baselines = {"scripted": scripted, "majority": majority}
    baseline_roles = {"majority": ("rewriter", "selector")}

    def __init__(
        self,
        *,
        num_parallel: int = 5,
        reward: Literal["weighted", "additive"] = "weighted",
        correct_reward_weight: float = 1.2,
        incorrect_reward_weight: float = 0.8,
        w_own: float = 0.5,
        w_team: float = 1.0,
        **options: Any,
    ) -> None:
        self.weights = checked_weights(
            self.id,
            correct_reward_weight=correct_reward_weight,
            incorrect_reward_weight=incorrect_reward_weight,
            w_own=w_own,
            w_team=w_team,
        )
        if incorrect_reward_weight > correct_reward_weight:
            raise UsageError(
                f"{self.id}: incorrect_reward_weight={incorrect_reward_weight} is above correct_reward_weight="
                f"{correct_reward_weight}, which pays right seats for a wrong team; expected at most that"
            )
        one_of(self.id, "reward", reward, ("weighted", "additive"))
        whole(self.id, "num_parallel", num_parallel, 1, 16)
        seats = 2 * num_parallel + 1
        if options.get("max_turns") is None:
            options["max_turns"] = seats
        super().__init__(counts={"solver": num_parallel, "rewriter": num_parallel}, **options)
        if self.max_turns < seats:
            raise UsageError(f"{self.id}: max_turns={self.max_turns}; expected at least {seats}, a turn of each seat")
        self.reward = reward
        self.seats_of: dict[str, list[str]] = {role: [] for role in self.roles}
        for seat in self.possible_agents:
            self.seats_of[self.role_of(seat)].append(seat)

    def begin(self, rng: np.random.Generator) -> list[str]:
        """Draws the problem and asks all solvers at once."""
        self.question = self.source.draw(rng)
        self.solutions: dict[str, Solution | None] = {}
        "By seat, solvers and rewriters; None: the seat failed."
        self.failed: set[str] = set()
        for role, text in SYSTEM.items():
            self.tell(self.seats_of[role], text, role="system")
        self.tell(self.seats_of["solver"], self.question.text)
        return self.seats_of["solver"]

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns a line for each rewrite; solvers and rewriters write freely."""
        if self.role_of(seat) != "selector" or seat not in self.pending:
            return None
        return [selection_line(number) for number in range(1, len(self._written("rewriter")) + 1)]

    def grammar(self, seat: str) -> Json:
        """Returns some lines, and then maybe an answer in its tag, or the selector's line."""
        lines = self.legal_actions(seat)
        return super().grammar(seat) if lines is None else rf"([^<>\n]{{0,300}}\n){{0,7}}({'|'.join(lines)})"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws some words, in half of the cases with a number as answer; or some rewrite."""
        lines = self.legal_actions(seat)
        return super().sample_reply(seat, rng) if lines is None else lines[int(rng.integers(len(lines)))]

    def facts(self, seat: str) -> Json:
        """Returns the problem, and for who is asked about solutions their answers, in the order of their numbers."""
        before = {"rewriter": "solver", "selector": "rewriter"}.get(self.role_of(seat))
        if before is None or seat not in self.pending:
            return {"problem": self.question.text}
        return {"problem": self.question.text, "answers": [solution.answer for _, solution in self._written(before)]}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a solution, or the selector's choice, which ends the game."""
        if self.role_of(seat) == "selector":
            rewrites = self._written("rewriter")
            number = read_selection(reply, len(rewrites))
            return self._end_with(rewrites[number - 1][0], action=number)
        text = visible_text(reply)
        solution = Solution(text, read_answer(text, self.answer_format))
        return self._go_on(seat, solution)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The seat drops out and the others go on. A context overflow ends the game, which then has no answer."""
        role = self.role_of(seat)
        self.failed.add(seat)
        self.note(role, "failed")
        if role == "selector" or self.overflow_seat == seat:
            return self._end_with(None, reason=f"no answer (the {role} gave {cause} reply)")
        return self._go_on(seat, None)

    def skip(self, seat: str) -> Move:
        """The seat drops out, as under `forfeit`."""
        return self.forfeit(seat, Cause.EMPTY)

    def describe(self) -> str:
        """Returns the problem, and once the game is over its right answer and what was answered."""
        lines = [super().describe()]
        if self.over:
            for seat, solution in self.solutions.items():
                said = "(failed)" if solution is None else "(none)" if solution.answer is None else solution.answer
                lines.append(f"{seat}: {shown_answer(said)}")
        return "\n".join(lines)

    def _written(self, role: str) -> list[tuple[str, Solution]]:
        """Returns the solutions that there are, by seat, in the order of seats."""
        found = [(seat, self.solutions.get(seat)) for seat in self.seats_of[role]]
        return [(seat, solution) for seat, solution in found if solution is not None]

    def _go_on(self, seat: str, solution: Solution | None) -> Move:
        """Takes a solution (None: the seat failed); when the phase is over, asks those who come next."""
        self.solutions[seat] = solution
        action = None if solution is None else solution.answer
        if self.pending != [seat]:
            return Move(action=action)
        if self.role_of(seat) == "solver":
            solutions = shown([solution for _, solution in self._written("solver")]) or "No solver gave a solution."
            self.tell(self.seats_of["rewriter"], f"{self.question.text}\n\n{solutions}\n\nWrite your solution.")
            return Move(next=self.seats_of["rewriter"], action=action)
        rewrites = [rewrite for _, rewrite in self._written("rewriter")]
        if not rewrites:
            return self._end_with(None, reason="no answer (no rewrite is left)", action=action)
        self.replace_view("selector_0", messages(self.question.text, rewrites))
        return Move(next="selector_0", action=action)

    def _end_with(self, selected: str | None, *, reason: str = "", action: Json = None) -> Move:
        """Ends the game with the answer of the seat `selected`; None: there is none."""
        answers = {seat: solution.answer for seat, solution in self.solutions.items() if solution}
        # each different answer is graded once: a check may take seconds
        verdicts = {
            answer: self.source.grade(self.question, answer)
            for answer in dict.fromkeys(answers.values())
            if answer is not None
        }
        own = {seat: verdicts.get(answer or "", "wrong") == "right" for seat, answer in answers.items()}
        verdict = "wrong" if selected is None else verdicts.get(answers[selected] or "", "wrong")
        team = verdict == "right"
        if selected is not None:
            own["selector_0"] = team
        rewards = {seat: self._reward(seat, own.get(seat), team) for seat in self.possible_agents}
        scores = {seat: float(own.get(seat, False)) for seat in self.possible_agents}
        for role, stats in self.stats.items():
            stats["right"] = sum(own.get(seat, False) for seat in self.seats_of[role])
        self.stats["selector"]["offered"] = int(any(own.get(seat, False) for seat in self.seats_of["rewriter"]))
        winners = self.possible_agents if team else []
        return Move(
            rewards=rewards, outcome=Outcome(winners=winners, reason=reason or verdict, scores=scores), action=action
        )

    def _reward(self, seat: str, own: bool | None, team: bool) -> float:
        """Returns what a seat gets whose own answer is right, wrong, or missing: it failed, or was never asked."""
        if self.reward == "weighted":
            return self.weights["correct_reward_weight" if team else "incorrect_reward_weight"] if own else 0.0
        w_own, w_team = self.weights["w_own"], self.weights["w_team"]
        if seat in self.failed:
            return -w_own - w_team
        return w_own * (0 if own is None else 1 if own else -1) + w_team * (1 if team else -1)
