r"""thinker-verifier-v0: one seat proposes answers to a problem, the other checks them and decides when it is answered.

Roles     thinker_0 and verifier_0 take turns, the thinker first.
Problem   the arguments `problem` and `answer` (a file of starts fills them from its fields `prompt` and `label`), else
          arithmetic drawn by the episode's generator: `level` 1 to 5, `operators` and `split` as in
          llm_arena/problems/arithmetic.py.
Actions   free text. What stands in the last <final_answer>...</final_answer> of a reply is its answer: the thinker's
          is a proposal, the verifier's is final. To accept, the verifier repeats the proposal in its tag; it may also
          correct it. A verifier's reply without an answer is criticism, and the thinker's turn. Only the seat's own
          reply is read, without its thoughts; an empty tag is no answer; of two answers the last counts. With
          `answer_format="lenient"`, for small models that never write a tag, the last \boxed{} counts where there is
          no tag, else the last number of the reply: a verifier then criticizes by writing no number.
Illegal   an empty reply, or one that is all thoughts. A reply cut by the token cap is read like any other: words
          without an answer are legal, and an answer that was closed before the cut counts. Under `forfeit` the game
          ends unanswered, a loss for both. `skip` passes the turn.
Ends      with the verifier's answer: "right", "wrong", or "undecided" if the check could not tell, which counts as
          wrong. Or with the turn limit `max_turns` (default 6, retries included; the game ends early when another turn
          with its retries might not fit): "no answer (turn limit)", which counts as wrong too.
Checking  `checker="exact"`: form and rational numbers (llm_arena/problems/answers.py), instant and the same everywhere;
          default where the answer is made of numbers and words. `checker="math"`: algebra as well, in a process with a
          time limit, so that a slower machine may call undecided what a faster one decides; default for other answers,
          and needs the extra `problems`.
Rewards   `reward="shared"` (default): both seats get r * w, with r = +1 if the final answer is right, else -1, and
          w = `correct_reward_weight` = 1.2 if it is right, else `incorrect_reward_weight` = 0.8. Worked: right +1.2
          each, wrong or unanswered -0.8 each, so an early policy that mostly fails is not drowned in failures.
          The trap is that a weight multiplies a signed number. On rewards of 0 and 1 the incorrect weight does nothing
          (0.8 * 0 = 0, and 1.2 * 1 = 1.2); and where the weight follows the team's result but the reward is one's own,
          -1 or +1, a thinker that was wrong in a team that was right pays 1.2 * -1 = -1.2, more than the 0.8 * -1 =
          -0.8 of a team that was wrong: it is paid for pulling the verifier down. Here r and w follow one result, so
          right is always above wrong.
          `reward="additive"` tells who did it, without that trap: r = `w_own` * own + `w_team` * team, each +1 or -1.
          team: the final answer is right. own: for the thinker, its last proposal is right; for the verifier, its final
          answer is. Worked, with 0.5 and 1: the thinker is right and accepted +1.5, +1.5; the verifier spoils a right
          proposal -0.5, -1.5; it mends a wrong one +0.5, +1.5; a wrong one is accepted -1.5, -1.5; a right proposal
          runs into the turn limit -0.5, -1.5.
Outcome   winners: both seats if right, else nobody. scores 1 or 0, the same for both.
Hidden    the right answer, from both seats. (It is no secret of a seat, so `hidden` is empty: no two deals differ in it
          alone. Tests compare the views of two games that do.)
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, boxed, final_number, printable, quote, read_tagged, strip_thinking
from llm_arena.problems.answers import Verdict, check, check_exactly, needs_algebra, require_algebra
from llm_arena.problems.arithmetic import Split, check_settings, draw_problem, solve
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

TAG = "final_answer"
OTHER = {"thinker_0": "verifier_0", "verifier_0": "thinker_0"}
SYSTEM = {
    "thinker_0": (
        "You are the thinker. Solve the problem in one or two short sentences. "
        f"Then write your answer between <{TAG}> and </{TAG}>."
    ),
    "verifier_0": (
        "You are the verifier. Solve the problem yourself and look for mistakes of the thinker. If you are sure, write "
        f"the right answer between <{TAG}> and </{TAG}>. Else say in one sentence what is wrong."
    ),
}
MAX_PROPOSAL = 200
"""Characters of a proposal that are repeated in a line of its own."""


def tagged(answer: str) -> str:
    """Returns `answer` in the tag."""
    return f"<{TAG}>{answer}</{TAG}>"


def scripted(view: View, rng: np.random.Generator) -> str:
    """Solves arithmetic exactly in both seats; on other problems it knows nothing, and as verifier it accepts."""
    value, proposal = solve(view.facts["problem"]), view.facts["proposal"]
    if view.role == "thinker":
        return "I don't know." if value is None else f"I get {value}. {tagged(str(value))}"
    if value is None:
        return "Show your work." if proposal is None else f"I accept. {tagged(proposal)}"
    right = proposal is not None and check_exactly(proposal, str(value)) == "right"
    return f"{'That is right.' if right else f'No, it is {value}.'} {tagged(str(value))}"


class ThinkerVerifier(ArenaEnv):
    """A thinker proposes answers to one problem, a verifier checks them and gives the final one.

    Args:
        problem: the text of the problem; None draws arithmetic.
        answer: its right answer, a number or LaTeX; given if and only if `problem` is.
        level: of the arithmetic, 1 to 5.
        operators: of the arithmetic, some of `+-*/`; None: those of the level.
        split: where arithmetic is drawn from, `train` or `heldout`.
        reward: `shared` or `additive`.
        correct_reward_weight: of `shared`, if the final answer is right.
        incorrect_reward_weight: of `shared`, if it is not.
        w_own: of `additive`, for one's own answer.
        w_team: of `additive`, for the final answer.
        answer_format: `tag` or `lenient`.
        checker: `exact` or `math`; None: exact where the answer is a number, else math.
        options: those of `ArenaEnv`.

    Raises:
        UsageError: an argument is out of its range.
        MissingExtra: the checker is `math`, and the extra `problems` is not installed.
    """

    id = "thinker-verifier-v0"
    summary = "A thinker proposes answers to a problem; a verifier checks them and gives the final one."
    roles = {"thinker": 1, "verifier": 1}
    cooperative = True
    max_turns = 6
    baselines = {"scripted": scripted}
    input_arg = "problem"
    label_arg = "answer"

    def __init__(
        self,
        *,
        problem: str | None = None,
        answer: str | None = None,
        level: int = 1,
        operators: str | None = None,
        split: Split = "train",
        reward: Literal["shared", "additive"] = "shared",
        correct_reward_weight: float = 1.2,
        incorrect_reward_weight: float = 0.8,
        w_own: float = 0.5,
        w_team: float = 1.0,
        answer_format: Literal["tag", "lenient"] = "tag",
        checker: Literal["exact", "math"] | None = None,
        **options: Any,
    ) -> None:
        check_settings(level, operators, split)
        self._check_problem(problem, answer)
        weights = {
            "correct_reward_weight": correct_reward_weight,
            "incorrect_reward_weight": incorrect_reward_weight,
            "w_own": w_own,
            "w_team": w_team,
        }
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
                raise UsageError(f"{self.id}: {name}={weight!r}; expected a finite number from 0")
        choices = {
            "reward": (reward, ("shared", "additive")),
            "answer_format": (answer_format, ("tag", "lenient")),
            "checker": (checker, ("exact", "math", None)),
        }
        for name, (given, allowed) in choices.items():
            if given not in allowed:
                raise UsageError(f"{self.id}: {name}={given!r}; expected one of {', '.join(map(str, allowed))}")
        super().__init__(**options)
        if self.max_turns < 2 * (1 + self.retries):
            raise UsageError(
                f"{self.id}: max_turns={self.max_turns}; expected at least {2 * (1 + self.retries)}, a turn of each "
                f"seat with retries={self.retries}"
            )
        self.given_problem, self.given_answer = problem, None if answer is None else str(answer)
        self.level, self.operators, self.split = level, operators, split
        self.reward, self.weights, self.answer_format = reward, weights, answer_format
        algebraic = self.given_answer is not None and needs_algebra(self.given_answer)
        self.checker = checker or ("math" if algebraic else "exact")
        self.slow = self.checker == "math"
        if self.slow:
            require_algebra()  # now, and not in the middle of a game

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the problem and asks the thinker."""
        if self.given_problem is None or self.given_answer is None:
            drawn = draw_problem(rng, level=self.level, operators=self.operators, split=self.split)
            self.problem, self.answer = drawn.text, drawn.answer
        else:
            self.problem, self.answer = self.given_problem, self.given_answer
        self.proposal: str | None = None
        for seat, system in SYSTEM.items():
            self.tell(seat, system, role="system")
        self.tell("thinker_0", self.problem)
        return "thinker_0"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws some words, in half of the cases with a number as answer."""
        number = int(rng.integers(0, 20))
        return f"It may be {number}." if rng.random() < 0.5 else f"It is {number}. {tagged(str(number))}"

    def facts(self, seat: str) -> Json:
        """Returns the problem and the thinker's last proposal."""
        return {"problem": self.problem, "proposal": self.proposal}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes the thinker's reasoning and proposal, or the verifier's criticism or final answer."""
        text = strip_thinking(reply).strip()
        if not text:
            raise IllegalReply(Cause.EMPTY, f"Give your reasons, and the answer between <{TAG}> and </{TAG}>.")
        answer = self._read_answer(text)
        if seat == "thinker_0":
            self.proposal = answer or self.proposal
            return self._pass_on(seat, text, answer)
        if answer is None:
            return self._pass_on(seat, text, None)
        verdict = self._judge(answer)
        return self._end_with(verdict, verdict, answer, final_right=verdict == "right")

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The game ends unanswered: a loss for both, for this is no game against each other."""
        return self._end_with("wrong", f"forfeit: {seat} gave {cause} reply", None, forfeiter=seat)

    def skip(self, seat: str) -> Move:
        """The other seat hears that nothing was said."""
        return self._pass_on(seat, None, None)

    def describe(self) -> str:
        """Returns the problem, and its right answer once the game is over."""
        return f"problem: {self.problem}" + (f"\nright answer: {self.answer}" if self.over else "")

    def _check_problem(self, problem: object, answer: object) -> None:
        if (problem is None) != (answer is None):
            raise UsageError(
                f"{self.id}: problem={problem!r:.100}, answer={answer!r:.100}; give both, or none to draw arithmetic"
            )
        if problem is not None and not (isinstance(problem, str) and problem.strip()):
            raise UsageError(f"{self.id}: problem={problem!r:.100}; expected the text of a problem")
        numeric = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
        if answer is not None and not numeric and not (isinstance(answer, str) and answer.strip()):
            raise UsageError(
                f"{self.id}: answer={answer!r:.100}; expected a number, or text like '7' or '\\frac{{1}}{{2}}'"
            )

    def _read_answer(self, text: str) -> str | None:
        answer = read_tagged(text, TAG)
        return answer if answer or self.answer_format == "tag" else boxed(text) or final_number(text)

    def _judge(self, answer: str) -> Verdict:
        """Returns whether `answer` is right."""
        return (check if self.checker == "math" else check_exactly)(answer, self.answer)

    def _pass_on(self, seat: str, text: str | None, answer: str | None) -> Move:
        """Tells the other seat what was said, unless the turn limit is reached."""
        if self.turns + 1 + self.retries > self.max_turns:
            return self._end_with("wrong", "no answer (turn limit)", answer)
        said = "said nothing." if text is None else f"said:\n{quote(text)}"
        if seat == "verifier_0":
            message = f"The verifier {said}\n\n{self.problem}"
        else:
            proposal = "The thinker gave no answer."
            if answer is not None:
                proposal = f"The thinker's answer: {printable(' '.join(answer.split()))[:MAX_PROPOSAL]}"
            message = f"{self.problem}\n\nThe thinker {said}\n\n{proposal}\n\nWhat is the right answer?"
        self.tell(OTHER[seat], message)
        return Move(next=OTHER[seat], action=answer)

    def _end_with(
        self, verdict: Verdict, reason: str, answer: str | None, *, final_right: bool = False, forfeiter: str = ""
    ) -> Move:
        team = 1.0 if verdict == "right" else -1.0
        score = float(verdict == "right")
        seats = self.possible_agents
        if self.reward == "shared":
            weight = self.weights["correct_reward_weight" if team > 0 else "incorrect_reward_weight"]
            rewards = dict.fromkeys(seats, team * weight)
        else:
            proposed = self.proposal is not None and forfeiter != "thinker_0" and self._judge(self.proposal) == "right"
            own = {"thinker_0": 1.0 if proposed else -1.0, "verifier_0": 1.0 if final_right else -1.0}
            rewards = {seat: self.weights["w_own"] * own[seat] + self.weights["w_team"] * team for seat in seats}
        outcome = Outcome(winners=seats if score else [], reason=reason, scores=dict.fromkeys(seats, score))
        return Move(rewards=rewards, outcome=outcome, action=answer)
