r"""twenty-questions-v0: a guesser finds a secret thing by questions that are answered yes, no or unknown.

Roles     guesser_0, and answerer_0, who knows the secret. With `answerers=0` there is no answerer: the table answers,
          and the game has one seat.
Secret    drawn from `split` ("train", "heldout", or "all") of 500 things with 184 yes-or-no properties
          (llm_arena/problems/deduction/things.py; every fifth is held out), or from the argument `secrets`: a
          list of names, or the path of a text file with one name a line (its SHA-256 enters the spec as
          `secrets_sha256`); or it is the argument `secret`. At most 60 letters, digits, spaces and '&.,:!()/+-. Without
          an answerer it has to be in the table.
Actions   the guesser: `ASK: Is it an animal?` or `GUESS: piano`; both use up one of `questions` (default 20) turns. A
          guess is right if it names the secret, article, case, hyphens and a plural s aside. The answerer:
          `ANSWER: yes`, `ANSWER: no` or `ANSWER: unknown`. The last such line of a reply counts; one that asks
          and guesses is ambiguous.
Table     understands a question that asks for one of its properties in the table's words or in a listed phrasing
          ("Is it edible?"), word for word but for adverbs like "usually"; what it does not understand, and what is
          neither true nor false of the secret (whether a grape is round), it answers with unknown. It never guesses at
          meaning: "Is it not an animal?" and "Does it eat people?" are unknown. `show_questions=True` lists the
          table's own questions to the guesser.
Rewards   guesser: 1 - (k - 1) / (2 * questions) if its k-th turn finds the secret, else 0. Worked: of 20, the first 1,
          the 11th 0.75, the 20th 0.525. A forfeit -1.
          answerer: for being true to the table, not for what becomes of the guesser. Of the questions to which the
          table says yes or no each answer that agrees with it counts +1, the opposite -1, unknown 0; the mean is taken
          apart for those where yes is right and those where no is, and the reward is the mean of the two (of the one,
          if there is only one; 0 without any). Worked: yes is right three times: yes, yes, unknown: 2/3; no is right
          twice: no, yes: 0; the reward is 1/3. A forfeit -1.
Ends      when the secret is guessed or the turns are used up. A guesser's forfeit ends it. An answerer that forfeits
          drops out, and the table answers for it from then on. `skip`: a guesser's turn is used up; an
          answerer's answer is unknown and counts -1. `random_legal`: a guesser asks "Is it secret?", which helps it to
          nothing; an answerer gives the answer that is untrue, if the table knows one. So no bad reply pays more than
          the worst legal play.
Outcome   winner: the guesser, if it found the secret. score: its reward. The answerer is an official, like a judge:
          not ranked; who holds the seat is an argument of a match. The counts of its role say how many answers the
          table could check (`checked`), and of those `true`, `false` and `undecided`. facts: `secret`.
Sees      the answerer: the secret and each question, quoted. The guesser: the answers, and whether a guess was right.
          The secret is not told at the end; it stands in the facts of the outcome.
Exploits  the table checks only what it understands: an answerer may lie about all else for nothing. A seat that answers
          can be asked about the name ("Does it come before M in the dictionary?"): halving an alphabet finds a listed
          secret in about 9 questions, nearly as fast as `entropy` (8), and says nothing of what the guesser knows of
          things. The answerer is told to answer unknown to such questions, but nothing checks that; without an answerer
          the table does not understand them. Saying no to everything is right for most single questions; the mean by
          right answer takes the gain away as soon as one yes was due, but not before. An answerer and a guesser that
          are one model can agree on a code of answers. Who knows the table asks best (baseline `entropy`):
          `split="heldout"` keeps the secrets apart, not the properties.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from llm_arena.arguments import flag, one_of, whole
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, normalize, quote
from llm_arena.problems.deduction import things
from llm_arena.problems.deduction.sides import read_line, read_named
from llm_arena.problems.text_lists import read_texts
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

ANSWERS = ("yes", "no", "unknown")
MAX_QUESTION, MAX_NAME = 200, 60
"""Longest question and longest name of a secret, in characters."""

_LETTERS = (
    "A-Za-z0-9\u00c0-\u024f\u0391-\u03a1\u03a3-\u03ff\u0400-\u0481\u048a-\u04ff\u3041-\u3096\u30a1-\u30fa"
    "\u4e00-\u9fff\uac00-\ud7a3"
)
_NAME = f"[{_LETTERS}][{_LETTERS} '\u2019&.,:!()/+-]{{0,{MAX_NAME - 1}}}"
"""Pattern of names: what no secret may have can't be guessed, and every secret can be."""

_GUESSER = (
    "You play twenty questions. There is a secret thing: an animal, a plant, a food, an object, a building, a part of "
    "nature, a job, a sport or a part of the body. Find out what it is by questions that are answered yes or no. A "
    "guess counts as a question. Each of your replies is one line, like these from another game:\n"
    "ASK: Is it in a fairy tale?\nASK: Does it have one horn?\nGUESS: unicorn"
)
_ASK = "Reply with one line that begins with ASK: or GUESS:"
_ANSWERER = (
    "You answer questions about a secret thing truthfully: yes, no, or unknown if neither is right. To questions "
    "about its name, such as its letters, answer unknown."
)
_REPLY = "Reply with one line: ANSWER: yes, ANSWER: no or ANSWER: unknown."


def _key(name: str) -> str:
    """Returns a name in the form in which a guess is compared with the secret."""
    words = normalize(name).replace("-", " ").split()
    return " ".join(words[1:] if words[:1] in (["a"], ["an"], ["the"]) else words).removesuffix("s")


def entropy(view: View, rng: np.random.Generator) -> str:
    """Asks for the property whose answer tells most of what is still possible; guesses if one or two are left.

    If answers contradict the table it goes on with the things that agree with most of them. What the table says is not
    clear agrees by half with yes and no, and a clear thing by half with unknown.
    """
    rows, unclear, log = things.table(), things.unclear(), view.facts["log"]
    wrong = {_key(text) for kind, text, _ in log if kind == "GUESS"}
    names = [name for name in view.facts["secrets"] if name in rows and _key(name) not in wrong]
    if not names:
        return view.sample_reply(rng)

    def says(name: str, key: str) -> str:
        return "unknown" if key in unclear[name] else "yes" if key in rows[name] else "no"

    asked = {things.property_of(text): answer for kind, text, answer in log if kind == "ASK"}
    misses = {
        name: sum(
            0.5 if "unknown" in (answer, says(name, key)) else 1.0
            for key, answer in asked.items()
            if key and says(name, key) != answer
        )
        for name in names
    }
    left = [name for name in names if misses[name] == min(misses.values())]
    if len(left) <= 2 or view.facts["left"] == 1:
        return f"GUESS: {left[0]}"

    def told(key: str) -> float:
        yes, vague = (sum(key in of[name] for name in left) for of in (rows, unclear))
        shares = [count / len(left) for count in (yes, vague, len(left) - yes - vague)]
        return -sum(share * math.log(share) for share in shares if share)

    worth = {key: told(key) for key in things.questions() if key not in asked}
    best = max(worth, key=lambda key: worth[key])
    return f"ASK: {things.questions()[best]}" if worth[best] > 0 else f"GUESS: {left[0]}"


def table(view: View, rng: np.random.Generator) -> str:
    """Answers what the table knows, else unknown."""
    return f"ANSWER: {_table_says(view.facts['secret'], view.facts['question'])}"


def _table_says(secret: str, question: str) -> str:
    return {True: "yes", False: "no", None: "unknown"}[things.truth(secret, question)]


class TwentyQuestions(ArenaEnv):
    """A guesser finds a secret thing by questions that are answered yes, no or unknown.

    Args:
        answerers: 1: a seat answers; 0: the table does.
        questions: how many questions and guesses the guesser has, 1 to 50.
        secret: the secret; None draws one.
        secrets: what it is drawn from, a list of names or the path of a text file; None: the table's `split`.
        secrets_sha256: digest that the file must have; None: any.
        split: part of the table that secrets are drawn from, `train`, `heldout` or `all`.
        show_questions: whether the guesser is shown the questions that the table understands.
        options: those of `ArenaEnv`. `max_turns` leaves room for all questions and answers.

    Raises:
        UsageError: an argument is out of its range, the file can't be read or has another digest, or without an
            answerer a secret is not in the table.
    """

    id = "twenty-questions-v0"
    roles = {"guesser": 1, "answerer": (0, 1)}
    officials = ("answerer",)
    hidden: tuple[str, ...] = ("secret",)
    insiders = ("answerer",)
    baselines = {"entropy": entropy, "table": table}
    baseline_roles = {"entropy": ["guesser"], "table": ["answerer"]}
    input_arg = "secret"

    def __init__(
        self,
        *,
        answerers: int = 1,
        questions: int = 20,
        secret: str | None = None,
        secrets: Sequence[str] | str | None = None,
        secrets_sha256: str | None = None,
        split: Literal["train", "heldout", "all"] = "train",
        show_questions: bool = False,
        **options: Any,
    ) -> None:
        whole(self.id, "questions", questions, 1, 50)
        one_of(self.id, "split", split, things.secrets())
        flag(self.id, "show_questions", show_questions)
        if secrets_sha256 is not None and secrets is None:
            raise UsageError(f"{self.id}: secrets_sha256 is the digest of a file; give secrets=PATH with it")
        self.digest: str | None = None
        self.pool = things.secrets()[split]
        if secrets is not None:
            self.pool, self.digest = self._read_secrets(secrets, secrets_sha256)
        self.given_secret = secret
        if secret is not None or len(self.pool) == 1:
            self.hidden = ()  # nothing is drawn that could be compared with another draw
        for name in (*([] if secrets is None else self.pool), *([] if secret is None else [secret])):
            self._check_name(name, in_table=answerers == 0)
        if options.get("max_turns") is None:
            options["max_turns"] = 2 * questions
        super().__init__(counts={"answerer": answerers}, **options)
        self.questions, self.show_questions = questions, show_questions

    def resolved(self) -> dict[str, Json]:
        """Returns the digest of the file of secrets, if there is one."""
        return {"secrets_sha256": self.digest}

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the secret and asks for the first question."""
        self.deal(rng)
        self.log: list[tuple[str, str, str]] = []
        self.question = ""
        self.used = 0
        self.tallies: dict[bool, list[int]] = {True: [], False: []}
        self.answering = "answerer_0" in self.possible_agents
        self.tell("guesser_0", _GUESSER, role="system")
        if self.answering:
            self.tell("answerer_0", f"{_ANSWERER}\nThe secret is: {self.secret}", role="system")
        shown = "\n".join(["Questions that are understood:", *things.questions().values(), ""])
        self.tell("guesser_0", (shown if self.show_questions else "") + f"You have {self.questions} questions. {_ASK}")
        return "guesser_0"

    def deal(self, rng: np.random.Generator) -> None:
        """Draws the secret."""
        self.secret = self.pool[int(rng.integers(len(self.pool)))]
        if self.given_secret is not None:
            self.secret = self.given_secret

    def knows(self, seat: str) -> Json:
        """Returns the answers for the guesser, the secret for the answerer."""
        return {"log": self.log} if seat == "guesser_0" else {"secret": self.secret}

    def legal_actions(self, seat: str) -> list[str] | None:
        """Returns the three answers; questions can't be listed."""
        return None if seat == "guesser_0" else [f"ANSWER: {answer}" for answer in ANSWERS]

    def grammar(self, seat: str) -> Json:
        """Returns a pattern of questions and guesses, or of answers."""
        if seat == "answerer_0":
            return "ANSWER: (yes|no|unknown)"
        return rf"(ASK: [A-Za-z][A-Za-z0-9 ,'-]{{0,150}}\?|GUESS: {_NAME})"

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws an answer; for the guesser a question of the table, or now and then a guess.

        From the episode's own generator, which stands in for a seat that broke the rules, only what gains it nothing.
        """
        if seat == "answerer_0":
            if rng is self.rng:
                untrue = {True: "no", False: "yes", None: "unknown"}
                return f"ANSWER: {untrue[things.truth(self.secret, self.question)]}"
            return f"ANSWER: {ANSWERS[int(rng.integers(len(ANSWERS)))]}"
        if rng is self.rng:
            return "ASK: Is it secret?"
        if rng.random() < 0.1:
            return f"GUESS: {self.pool[int(rng.integers(len(self.pool)))]}"
        known = list(things.questions().values())
        return f"ASK: {known[int(rng.integers(len(known)))]}"

    def facts(self, seat: str) -> Json:
        """Returns for the guesser what it asked and heard and what the secret may be; else secret and question."""
        if seat == "answerer_0":
            return {"secret": self.secret, "question": self.question}
        return {
            "log": [list(entry) for entry in self.log],
            "left": self.questions - self.used,
            "secrets": list(self.pool),
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a question, a guess or an answer."""
        if seat == "answerer_0":
            answer = read_named(reply, "ANSWER", ANSWERS)
            return self._answered(answer, answer)
        kind, text = self._read_turn(reply)
        self.used += 1
        if kind == "GUESS":
            if _key(text) == _key(self.secret):
                return self._finish(f"found with turn {self.used}", text, found=True)
            return self._continue(kind, text, "no", text)
        self.question = text
        if not self.answering:
            return self._continue(kind, text, _table_says(self.secret, text), text)
        self.tell("answerer_0", f"Question {self.used}:\n{quote(text)}\n{_REPLY}")
        return Move(next="answerer_0", action=text)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """The guesser's ends the game; for an answerer the table answers from then on."""
        if self.overflow_seat == seat:
            return Move(rewards={seat: -self.forfeit_cost})
        if seat == "guesser_0":
            return self._finish(f"forfeit: {seat} gave {cause} reply", None, forfeited=True)
        self.answering = False
        went_on = self._continue("ASK", self.question, _table_says(self.secret, self.question), None)
        leaves = [] if went_on.outcome else [seat]
        return Move(
            rewards=went_on.rewards | {seat: -self.forfeit_cost},
            outcome=went_on.outcome,
            next=went_on.next,
            leaves=leaves,
        )

    def skip(self, seat: str) -> Move:
        """The guesser's turn is used up; an answer is unknown, and counts as an untrue one."""
        if seat == "answerer_0":
            return self._answered("unknown", None, points=-1)
        self.used += 1
        return self._ask_again("You asked nothing.", None)

    def describe(self) -> str:
        """Returns the secret."""
        return f"secret: {self.secret}"

    def _read_secrets(self, given: object, digest: str | None) -> tuple[tuple[str, ...], str | None]:
        try:
            found = read_texts("secrets", given, digest, longest=MAX_NAME, example="piano")
        except UsageError as error:
            raise UsageError(f"{self.id}: {error!s:.400}") from error
        return tuple(name.strip() for name in found.texts), found.sha256

    def _check_name(self, name: object, *, in_table: bool) -> None:
        good = isinstance(name, str) and re.fullmatch(_NAME, unicodedata.normalize("NFC", name)) and _key(name)
        if not good:
            raise UsageError(
                f"{self.id}: secret {name!r:.100}; expected a name of at most {MAX_NAME} letters, digits, spaces and "
                "'&.,:!()/+-, with a letter or digit first, that is more than an article"
            )
        if in_table and name not in things.table():
            raise UsageError(
                f"{self.id}: the table does not know {name!r}, so answerers=0 can't answer; use answerers=1"
            )

    def _read_turn(self, reply: Reply) -> tuple[str, str]:
        """Returns ASK or GUESS, and what stands behind it."""
        lines = {}
        for kind, longest in (("ASK", MAX_QUESTION), ("GUESS", MAX_NAME)):
            try:
                lines[kind] = read_line(reply, kind, max_characters=longest, whole=True)
            except IllegalReply as bad:
                if bad.cause not in (Cause.UNPARSABLE, Cause.LENGTH):
                    raise
        if not lines:
            raise IllegalReply(Cause.UNPARSABLE, "Reply with one line: ASK: <question> or GUESS: <name>.")
        if len(lines) > 1:
            raise IllegalReply(Cause.AMBIGUOUS, "Either ask or guess, not both.")
        [(kind, text)] = lines.items()
        if not re.search(r"\w", text):
            raise IllegalReply(Cause.ILLEGAL, f"Write words after {kind}:.")
        return kind, text

    def _answered(self, answer: str, action: Json, points: int | None = None) -> Move:
        right = things.truth(self.secret, self.question)
        if right is not None:
            earned = 0 if answer == "unknown" else 1 if (answer == "yes") == right else -1
            self.tallies[right].append(earned if points is None else points)
        return self._continue("ASK", self.question, answer, action)

    def _continue(self, kind: str, text: str, answer: str, action: Json) -> Move:
        self.log.append((kind, text, answer))
        return self._ask_again(f"Answer: {answer}." if kind == "ASK" else "No, that is not it.", action)

    def _ask_again(self, heard: str, action: Json) -> Move:
        left = self.questions - self.used
        if not left:
            return self._finish(f"no answer: not found with {self.questions} questions", action)
        hurry = " Guess now." if left == 1 else ""
        self.tell("guesser_0", f"{heard} Questions left: {left}.{hurry} {_ASK}")
        return Move(next="guesser_0", action=action)

    def _finish(self, reason: str, action: Json, *, found: bool = False, forfeited: bool = False) -> Move:
        earned = 1 - (self.used - 1) / (2 * self.questions) if found else -self.forfeit_cost if forfeited else 0.0
        rewards = {"guesser_0": earned}
        if self.answering:
            means = [sum(scores) / len(scores) for scores in self.tallies.values() if scores]
            rewards["answerer_0"] = sum(means) / len(means) if means else 0.0
            checked = [*self.tallies[True], *self.tallies[False]]
            self.stats["answerer"] |= {"checked": len(checked), "true": checked.count(1), "false": checked.count(-1),
                                       "undecided": checked.count(0)}  # fmt: skip
        outcome = Outcome(
            winners=["guesser_0"] if found else [],
            ranks={"guesser_0": 1},
            reason=reason,
            scores={"guesser_0": earned},
            facts={"secret": self.secret},
        )
        return Move(rewards=rewards, outcome=outcome, action=action)
