r"""thinker-verifier-v0: one seat proposes answers to a problem, the other checks them and decides when it is answered.

Roles     thinker_0 and verifier_0 take turns, the thinker first.
Problem   `source` (llm_arena/problems/sources): `arithmetic` by `level` 1 to 5, `operators` and `split` (default), a
          file FILE.jsonl, a data set hf:OWNER/NAME, a generator reasoning-gym:NAME. Or one problem by the arguments
          `problem` and `answer` (a file of starts fills them from its fields `prompt` and `label`).
Actions   free text. What stands in the last <final_answer>...</final_answer> of a reply is its answer: the thinker's
          is a proposal, the verifier's is final. To accept, the verifier repeats the proposal in its tag; it may also
          correct it. A verifier's reply without an answer is an objection, and the thinker's turn. Only the seat's own
          reply is read, without its thoughts and without lines that begin with `>`, in which it quotes another; an
          empty tag is no answer; of two answers the last counts. With `answer_format="lenient"`, for small models that
          never write a tag, the last \boxed{} counts where there is no tag, else the last number of the reply: a
          verifier then objects by writing no number.
Verifier  `verifier="neutral"` (default): by the rules above. `adversarial`: told that the answer is probably wrong; its
          first reply is an objection even with an answer in it, unless a line `SURE: yes` stands there as well. For
          pairs that repeat each other: the verifier nods, and the second look is worth nothing. `permissive`: told to
          accept unless it sees a clear mistake; a reply without an answer accepts the last proposal (if there is one),
          unless a line begins with `OBJECTION:`. For models that hardly ever close a tag, and as the floor against
          which another verifier is worth its tokens.
Illegal   an empty reply, or one that is all thoughts. A reply cut by the token cap is read like any other: words
          without an answer are legal, and an answer that was closed before the cut counts. Under `forfeit` the game
          ends unanswered, a loss for both. `skip` passes the turn. `random_legal` draws words without an answer.
Ends      with the verifier's answer: "right", "wrong", or "undecided" if the check could not tell, which counts as
          wrong. Or with the turn limit `max_turns` (default 6): "no answer (turn limit)", which counts as wrong too.
Checking  `checker="exact"`: form and rational numbers (llm_arena/problems/answers), instant and the same everywhere;
          default where answers are made of numbers and words. `checker="math"`: algebra as well, in a process with a
          time limit, so that a slower machine may call undecided what a faster one decides; default for other answers,
          and needs the extra `problems`. Reasoning-gym's generators grade themselves.
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
Outcome   winners: both seats if right, else nobody. scores 1 or 0, the same for both. The env counts by role `verifier`
          what it did: `objected`, and at the end `accepted` (its answer is the last proposal) or `corrected`.
Sees      both seats the problem and, quoted and with broken tags, everything the other said; not its thoughts. Nobody
          sees the right answer; spectators see it at the end. (It is no secret of a seat, so `hidden` is empty: no two
          deals differ in it alone. Tests compare the views of two games that do.)
Exploits  a verifier that solves the problem itself makes the thinker a decoration, and with `shared` both are paid
          alike: compare with `additive`, or with the thinker frozen. A pair may agree that the verifier always accepts:
          `accepted` near the number of games says so. The line `SURE: yes` costs nothing, so training may teach a
          verifier to write it always; it makes a second look likely at first, it can't force one. Small answer spaces
          (level 1 has 17 answers, a yes or no question 2) pay for guessing: know what `random-legal` gets. A problem's
          text is shown as it is: an answer that stands in it is copied.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np

from llm_arena.arguments import one_of
from llm_arena.errors import UsageError
from llm_arena.parsing import quote
from llm_arena.problems.answers import check_exactly
from llm_arena.problems.final_answers import (
    TAG,
    fenced,
    read_answer,
    shown_answer,
    tagged,
    visible_text,
    without_quotes,
)
from llm_arena.problems.sources import Verdict
from llm_arena.problems.sources.arithmetic import solve
from llm_arena.problems.sources.game import ProblemGame, checked_weights
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

OTHER = {"thinker_0": "verifier_0", "verifier_0": "thinker_0"}
THINKER = (
    "You are the thinker. Solve the problem in one or two short sentences. "
    f"Then write your answer between <{TAG}> and </{TAG}>."
)
VERIFIER = {
    "neutral": (
        "You are the verifier. Solve the problem yourself and look for mistakes of the thinker. If you are sure, write "
        f"the right answer between <{TAG}> and </{TAG}>. Else say in one sentence what is wrong."
    ),
    "adversarial": (
        "You are the verifier. The thinker's answer is probably wrong. Solve the problem yourself, find the mistake. "
        "In your first reply say in one sentence what is wrong. Later, or if you are sure at once, write the right "
        f"answer between <{TAG}> and </{TAG}>. Your first reply counts as an answer only with this line in it:\n"
        "SURE: yes"
    ),
    "permissive": (
        "You are the verifier. Accept the thinker's answer unless you see a clear mistake. To accept, write it again "
        f"between <{TAG}> and </{TAG}>. If you see a mistake, begin a line with OBJECTION: and say what is wrong."
    ),
}
_SURE = re.compile(r"^[^\w\n]{0,9}SURE[^\w\n]{0,9}:[^\w\n]{0,9}yes\b", re.IGNORECASE | re.MULTILINE)
_OBJECTION = re.compile(r"^[^\w\n]{0,9}OBJECTION[^\w\n]{0,9}:", re.IGNORECASE | re.MULTILINE)


def scripted(view: View, rng: np.random.Generator) -> str:
    """Solves arithmetic exactly in both seats; on other problems it knows nothing, and as verifier it accepts."""
    value, proposal = solve(view.facts["problem"]), view.facts["proposal"]
    if view.role == "thinker":
        return "I don't know." if value is None else f"I get {value}. {tagged(str(value))}"
    if value is None:
        return "OBJECTION: show your work." if proposal is None else f"I accept.\nSURE: yes\n{tagged(proposal)}"
    right = proposal is not None and check_exactly(proposal, str(value)) == "right"
    return f"{'That is right.' if right else f'No, it is {value}.'}\nSURE: yes\n{tagged(str(value))}"


class ThinkerVerifier(ProblemGame):
    """A thinker proposes answers to one problem, a verifier checks them and gives the final one.

    Args:
        problem: the text of one problem; None draws from `source`.
        answer: its right answer, a number or LaTeX; given if and only if `problem` is.
        source: where problems come from, see llm_arena/problems/sources.
        source_sha256: what a file or data set must be; None: whatever it is, which the spec then records.
        level: of `arithmetic`, 1 to 5.
        operators: of `arithmetic`, some of `+-*/`; None: those of the level.
        split: `train` or `heldout`, of `arithmetic` and `reasoning-gym`.
        verifier: `neutral`, `adversarial` or `permissive`.
        reward: `shared` or `additive`.
        correct_reward_weight: of `shared`, if the final answer is right.
        incorrect_reward_weight: of `shared`, if it is not.
        w_own: of `additive`, for one's own answer.
        w_team: of `additive`, for the final answer.
        answer_format: `tag` or `lenient`.
        checker: `exact` or `math`; None: math if a right answer needs algebra.
        options: those of `ArenaEnv`.

    Raises:
        UsageError: an argument is out of its range, or a source can't be opened.
        MissingExtra: the checker or the source needs a package that is not installed.
    """

    id = "thinker-verifier-v0"
    summary = "A thinker proposes answers to a problem; a verifier checks them and gives the final one."
    roles = {"thinker": 1, "verifier": 1}
    cooperative = True
    max_turns = 6
    baselines = {"scripted": scripted}

    def __init__(
        self,
        *,
        verifier: Literal["neutral", "adversarial", "permissive"] = "neutral",
        reward: Literal["shared", "additive"] = "shared",
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
        one_of(self.id, "verifier", verifier, VERIFIER)
        one_of(self.id, "reward", reward, ("shared", "additive"))
        super().__init__(**options)
        if self.max_turns < 2:
            raise UsageError(f"{self.id}: max_turns={self.max_turns}; expected at least 2, a turn of each seat")
        self.verifier, self.reward = verifier, reward

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the problem and asks the thinker."""
        self.question = self.source.draw(rng)
        self.proposal: str | None = None
        self.checked = False
        "Whether the verifier has had a turn."
        self.tell("thinker_0", THINKER, role="system")
        self.tell("verifier_0", VERIFIER[self.verifier], role="system")
        self.tell("thinker_0", self.question.text)
        return "thinker_0"

    def facts(self, seat: str) -> Json:
        """Returns the problem and the thinker's last proposal."""
        return {"problem": self.question.text, "proposal": self.proposal}

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes the thinker's reasoning and proposal, or the verifier's objection or final answer."""
        text = visible_text(reply)
        answer = read_answer(text, self.answer_format)
        if seat == "thinker_0":
            self.proposal = answer or self.proposal
            return self._pass_on(seat, text, answer)
        answer = self._final_answer(text, answer)
        if answer is None:
            self.note("verifier", "objected")
            return self._pass_on(seat, text, None)
        same = answer == self.proposal or (self.proposal and check_exactly(answer, self.proposal) == "right")
        self.note("verifier", "accepted" if same else "corrected")
        verdict = self.source.grade(self.question, answer)
        return self._end_with(verdict, verdict, answer, final_right=verdict == "right")

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The game ends unanswered: a loss for both, for this is no game against each other."""
        return self._end_with("wrong", f"forfeit: {seat} gave {cause} reply", None, forfeiter=seat)

    def skip(self, seat: str) -> Move:
        """The other seat hears that nothing was said."""
        return self._pass_on(seat, None, None)

    def _final_answer(self, text: str, answer: str | None) -> str | None:
        """Returns what a verifier's reply answers by the rules for its kind; None: it objects."""
        if self.verifier == "adversarial" and not self.checked and not _SURE.search(without_quotes(text)):
            return None
        if self.verifier == "permissive" and answer is None and not _OBJECTION.search(without_quotes(text)):
            return self.proposal
        return answer

    def _pass_on(self, seat: str, text: str | None, answer: str | None) -> Move:
        """Tells the other seat what was said, unless the turn limit is reached."""
        self.checked = self.checked or seat == "verifier_0"
        if self.turns >= self.max_turns:
            return self._end_with("wrong", "no answer (turn limit)", answer)
        said = "said nothing." if text is None else f"said:\n{fenced(text)}"
        if seat == "verifier_0":
            message = f"The verifier {said}\n\n{self.question.text}"
        else:
            proposal = "The thinker gave no answer."
            if answer is not None:
                proposal = f"The thinker's answer:\n{quote(shown_answer(answer))}"
            message = f"{self.question.text}\n\nThe thinker {said}\n\n{proposal}\n\nWhat is the right answer?"
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
            proposed = self.proposal is not None and forfeiter != "thinker_0"
            thinker_right = proposed and self.source.grade(self.question, self.proposal or "") == "right"
            own = {"thinker_0": 1.0 if thinker_right else -1.0, "verifier_0": 1.0 if final_right else -1.0}
            rewards = {seat: self.weights["w_own"] * own[seat] + self.weights["w_team"] * team for seat in seats}
        outcome = Outcome(winners=seats if score else [], reason=reason, scores=dict.fromkeys(seats, score))
        return Move(rewards=rewards, outcome=outcome, action=answer)
