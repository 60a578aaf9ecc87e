r"""doctor-patient-v0: a doctor asks a patient, orders tests and names what the patient has, from a table of conditions.

          A game, not medical advice: the table (llm_arena/problems/doctor_patient/conditions.toml) has textbook
          pictures, simplified, with rounded chances. Nobody should be treated by what is said in it.
Roles     doctor_0; and patient_0, unless `patient="card"`: then the env answers in the patient's stead, exactly by its
          card, so that doctors can be studied with a patient that is always faithful.
Problem   a case is drawn from 90 conditions with a chance for each symptom, fact of history and finding
          (llm_arena/problems/doctor_patient/cases.py); `split` holds about a fifth of the cases back, or with
          `split_by="condition"` about a fifth of the conditions; `condition` fixes the condition. Sex and age limit
          what a patient can have. Or it is a line of the file `cases`, whose SHA-256 enters the spec; the lines' fields
          are described there.
Actions   (doctor) one line, the only one of its kind in the reply; words before it are free, and not passed on
          (the doctor's view begins with two worked lines about another patient):
          `ASK: fever` or `ASK: Do you have a fever or chills?`. The table's words for symptoms and history are found in
          the question (llm_arena/problems/doctor_patient/talk.py). It is about the first three found, and each counts
          as a question. A question without any is about nothing, and counts as one. But the first two open ones ("what
          else?") ask for one thing more that the patient has, and count as 3 each: with free ones a doctor could hear
          the whole card and then the "nothing else" that denies all other symptoms.
          `TEST: chest x-ray`, a test of the list or a synonym, each at most once. The env reports the result.
          `DIAGNOSIS: 1. pneumonia; 2. acute bronchitis`, at most `ranked` names, also on numbered lines below. Names
          count without regard to case, accents, hyphens, apostrophes, brackets and British or American spelling, and by
          the synonyms of the table, with a number, brackets or percent around them or not. A name that is not in the
          table takes its place and is wrong; a diagnosis without any known name is refused. No line of the protocol is
          longer than 1000 characters.
          (patient) free text of at most 600 characters.
Illegal   (doctor) no such line, two different ones, an unknown test, one that was done, too many names, or no questions
          or tests left. A reply cut by the token cap counts without its last line. The class default is one retry.
          Then: `forfeit` ends the game. `skip` loses a question; without any left it ends the game undiagnosed.
          (patient) no text, or too much. `forfeit`: it leaves, and the env answers from its card from then on. `skip`:
          it says nothing, which is worth 0.
Rewards   doctor, at the end: 1/r if the right condition is named at rank r; else 0.1 if the first name is a look-alike
          of it (the table pairs them), else 0; less `question_cost` = 0.01 a question and `test_cost` = 0.015 times the
          price of each test (1 to 3). Worked: pneumonia first, after 5 questions and a chest x-ray (price 2):
          1 - 0.05 - 0.03 = 0.92. At rank 2: 0.5 - 0.08 = 0.42. Only acute bronchitis, a look-alike: 0.1 - 0.08 = 0.02.
          Worst: 15 questions and 4 tests of price 3, and wrong: -0.15 - 0.18 = -0.33. A forfeit costs 1, or the worst
          if that is more.
          patient, at the end: the mean worth of its answers about things of which it has one, and the mean of those
          about things of which it has none; then the mean of the two, or the one that there is, from 0 to 1; 0 if it
          was asked nothing. An answer is worth 0 if it claims what the card has not or denies what it has, 1/2 if it
          evades the question or volunteers, else 1. An answer to a question about nothing counts only if it is worth
          less than 1. Worked: "Yes." about a cough that it has 1, "Yes, and a fever." with both true 1/2, "No." 0: the
          mean is 0.5. With a "No." about chills that it has not, too, the pay is (0.5 + 1) / 2 = 0.75. A patient that
          forfeits gets -1 and no more.
          The two are named as winners together, and paid for different things: that a reward is high says nothing of
          the other seat. `cooperative` here means that there is no order between the seats, and that on a board each
          entrant holds both. Boards of doctors alone take `patient="card"`. Train each role with a baseline of its own.
Ends      with the diagnosis, a doctor's forfeit, or a skipped turn without questions left.
Outcome   winners: all seats but a patient that left if the right condition is at rank 1, else nobody; no ranks. scores:
          the doctor's share for its names, before costs; the patient's pay, even if it left. facts: the condition, the
          diagnosis, the questions spent and the tests, in order. Counts by the role `patient` in the env's statistics:
          answers, faithful, false_claims, false_denials, evaded, volunteered.
Sees      all: age, sex and what the patient comes with. doctor: the answers, quoted, and the results. patient: its card
          (what it feels, its history), the questions, quoted, and which items of its card they are about. It never
          sees findings or results. Nobody is told the worth of an answer. The condition is named by the outcome alone,
          when the game is over.
Hidden    the case. Only the patient knows its card; nobody knows the rest. (In a file whose lines all have different
          openings no two deals look alike to the doctor: `check_env` then says that it could compare nothing.)
Players   `bayes` (doctor) knows the table and believes what it hears; `faithful` and `liar` (patients) go by the card.
          Where tests tell enough, `bayes` asks nothing: `max_tests=0` makes it ask, to train or to compare patients.
Exploits  A doctor loses nothing by naming `ranked` conditions, and should. Asking for everything at once pays nothing,
          for each item counts. A reply full of made-up answers and a diagnosis is refused: it has several lines of the
          protocol. `names="listed"` (default) lists all conditions, so that no one fails by a name; "open" does not.
          A patient cannot be caught by rule in words that the table lacks: see the list in doctor_patient/talk.py. "I
          don't know" is worth 1/2 to each question about something, and so are always "No." and always "Yes." where it
          is asked about both kinds of things (a doctor that asks only about what it lacks pays "No." in full). The
          whole card told at every question is worth 1/2 too; it helps the doctor, makes questions idle, and shows in
          `volunteered`. An honest answer in words that the rule misreads is paid as a lie ("I feel sick with a fever"
          claims nausea). A patient that forfeits gives the doctor an exact one, and pays 1 for that. A doctor may waste
          questions on nothing, at its own cost. All names are in the prompt also with `split_by="condition"`. A rising
          reward of the pair may come from either seat: play each with the other's scripted player to tell.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, quote, strip_thinking
from llm_arena.problems.doctor_patient.cases import NORMAL, SplitBy, open_cases
from llm_arena.problems.doctor_patient.conditions import find_condition, find_test, table
from llm_arena.problems.doctor_patient.diagnosis import OPEN_PRICE, next_step
from llm_arena.problems.doctor_patient.lines import (
    OPEN_QUESTIONS,
    PATIENT_TEXT,
    check_settings,
    doctor_grammar,
    doctor_text,
    example,
    left_text,
    random_line,
    read_protocol,
    who,
)
from llm_arena.problems.doctor_patient.talk import (
    Reading,
    answer_from_card,
    asked_items,
    card_text,
    inverted_items,
    is_open,
    judge,
    lie_from_card,
    read_answer,
)
from llm_arena.problems.splits import Split
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

DOCTOR, PATIENT = "doctor_0", "patient_0"
ITEMS_A_QUESTION = 3
ALIKE_CREDIT = 0.1
MAX_ANSWER = 600


def bayes(view: View, rng: np.random.Generator) -> str:
    """Plays the doctor by Bayes' rule over the table; see llm_arena/problems/doctor_patient/diagnosis.py."""
    return next_step(view.facts)


def faithful(view: View, rng: np.random.Generator) -> str:
    """Plays the patient: says what is asked, and the truth."""
    return str(view.facts["truth"])


def liar(view: View, rng: np.random.Generator) -> str:
    """Plays the patient: says the opposite of the truth."""
    return str(view.facts["lie"])


class DoctorPatient(ArenaEnv):
    """A doctor asks a patient, orders tests and names what the patient has. A game, not medical advice.

    Args:
        patient: `seat`, or `card`: the env answers from the patient's card.
        split: where cases are drawn from, `train` or `heldout`.
        split_by: what is held out, `case` or `condition`.
        condition: what all patients have, by a name of the table; None: any condition. The doctor is not told.
        cases: the path of a file of cases, in place of the table's.
        cases_sha256: of that file; None: whatever is there.
        max_questions: how many things may be asked about, 0 to 100.
        max_tests: how many tests may be ordered, 0 to 40; with 0 the doctor is told nothing of tests.
        question_cost: of each question.
        test_cost: of a test, times its price.
        ranked: how many conditions a diagnosis may name, 1 to 5.
        names: `listed`: the doctor's prompt lists all conditions; `open`: it doesn't.
        options: those of `ArenaEnv`. `max_turns` leaves room for all questions and tests.

    Raises:
        UsageError: an argument is out of its range, or the file of cases can't be read or is another one.
    """

    id = "doctor-patient-v0"
    summary = "A doctor asks a patient, orders tests and names what it has; the patient is paid for faithful answers."
    roles = {"doctor": 1, "patient": (0, 1)}
    cooperative = True
    retries = 1
    hidden = ("cards", "condition", "findings")
    baselines = {"bayes": bayes, "faithful": faithful, "liar": liar}
    baseline_roles = {"bayes": ["doctor"], "faithful": ["patient"], "liar": ["patient"]}
    input_arg = "condition"

    def __init__(
        self,
        *,
        patient: Literal["seat", "card"] = "seat",
        split: Split = "train",
        split_by: SplitBy = "case",
        condition: str | None = None,
        cases: str | None = None,
        cases_sha256: str | None = None,
        max_questions: int = 15,
        max_tests: int = 4,
        question_cost: float = 0.01,
        test_cost: float = 0.015,
        ranked: int = 3,
        names: Literal["listed", "open"] = "listed",
        **options: Any,
    ) -> None:
        choices = {"patient": (patient, ("seat", "card")), "names": (names, ("listed", "open"))}
        limits = {"max_questions": (max_questions, 0, 100), "max_tests": (max_tests, 0, 40), "ranked": (ranked, 1, 5)}
        check_settings(choices, limits, {"question_cost": question_cost, "test_cost": test_cost})
        self.source, self.cases_sha256 = open_cases(split, condition, cases, cases_sha256, by=split_by)
        self.max_questions, self.max_tests = max_questions, max_tests
        self.question_cost, self.test_cost, self.ranked, self.names = question_cost, test_cost, ranked, names
        seated = int(patient == "seat")
        needed = (1 + seated) * max_questions + max_tests + 1
        if options.get("max_turns") is None:
            options["max_turns"] = needed
        super().__init__(counts={"doctor": 1, "patient": seated}, **options)
        if self.max_turns < needed:
            raise UsageError(
                f"{self.id}: max_turns={self.max_turns}; expected at least {needed} for {max_questions} questions "
                f"and {max_tests} tests, or None"
            )
        self.system_texts = {
            DOCTOR: doctor_text(question_cost, test_cost, ranked, listed=names == "listed", tested=max_tests > 0),
            PATIENT: PATIENT_TEXT,
        }

    def resolved(self) -> dict[str, Json]:
        """Returns the SHA-256 of the file of cases, if there is one."""
        return {"cases_sha256": self.cases_sha256}

    # ---- the game --------------------------------------------------------------------------------------------

    def begin(self, rng: np.random.Generator) -> str:
        """Draws the opening and the case, and lets the patient come in."""
        self.opening = self.source.open(rng)
        self.deal(rng)
        self.questions_left, self.tests_left, self.cost = self.max_questions, self.max_tests, 0.0
        self.question = ""
        self.asked: list[str] = []  # by the question that waits for its answer
        self.inverted: frozenset[str] = frozenset()  # those of them that a yes denies
        self.open_question, self.open_left, self.nothing_else = False, OPEN_QUESTIONS, False
        self.ever_asked: dict[str, None] = {}
        self.answers: dict[str, bool] = {self.opening.complaint: True}  # as the doctor heard them
        self.results: dict[str, str] = {}
        self.revealed: list[str] = []  # what the env itself has told the doctor of the case
        self.worth: list[tuple[bool, float]] = []  # whether it was about something that the patient has; the worth
        self.from_card = PATIENT not in self.possible_agents
        for seat in self.possible_agents:
            self.tell(seat, self.system_texts[seat], role="system")
        self.replace_view(DOCTOR, [*self.observe(DOCTOR)["messages"], *example(tested=self.max_tests > 0)])
        person = who(self.opening)
        phrase = table().items[self.opening.complaint].phrase
        said = f"{person.capitalize()} comes to you and says: I have {phrase}."
        self.tell(DOCTOR, f"Next patient. {said}\n{self._left()}")
        if not self.from_card:
            self.tell(PATIENT, f"You are {person}. You come because of {phrase}.\n{card_text(self.cards[PATIENT])}")
        return DOCTOR

    def deal(self, rng: np.random.Generator) -> None:
        """Draws what is behind the opening."""
        case = self.source.deal(rng, self.opening)
        self.cards = {PATIENT: case.card}  # in the game without a seat for the patient too
        self.condition, self.findings = case.condition, dict(case.findings)

    def knows(self, seat: str) -> Json:
        """Returns the patient's card for the patient, and for the doctor what the env has told it."""
        return card_text(self.cards[PATIENT]) if seat == PATIENT else list(self.revealed)

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes a question, a test or the diagnosis of the doctor, or an answer of the patient."""
        if seat == PATIENT:
            return self._answer(reply)
        kind, text = read_protocol(reply, tested=self.max_tests > 0)
        if kind == "ASK":
            return self._ask(text)
        return self._test(text) if kind == "TEST" else self._diagnose(text.split("\n"))

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """A doctor's ends the game; a patient leaves, and its card answers in its stead."""
        reason = f"forfeit: {seat} gave {cause} reply"
        if seat == DOCTOR:
            worst = self.max_questions * self.question_cost + self.max_tests * 3 * self.test_cost
            return self._finish(-max(self.forfeit_cost, worst), 0.0, [], reason)
        rewards = {PATIENT: -self.forfeit_cost}
        if self.overflow_seat is not None:  # the game is over
            return Move(rewards=rewards)
        self.from_card = True
        self.tell(DOCTOR, "The patient has left; from now on its file answers.")
        self._answer_from_card()
        return Move(next=DOCTOR, rewards=rewards, leaves=[PATIENT])

    def skip(self, seat: str) -> Move:
        """A doctor loses a question, or the game if none is left; a patient says nothing."""
        if seat == PATIENT:
            self._keep(0.0)
            self.tell(DOCTOR, f"The patient says nothing.\n{self._left()}")
            return Move(next=DOCTOR)
        if self.questions_left == 0:
            return self._finish(-self.cost, 0.0, [], "no answer: no diagnosis")
        self._spend_questions(1)
        self.tell(DOCTOR, f"You said nothing of use, and lost a question.\n{self._left()}")
        return Move(next=DOCTOR)

    def _ask(self, question: str) -> Move:
        if self.questions_left == 0:
            left = "TEST or DIAGNOSIS" if self.tests_left else "DIAGNOSIS"
            raise IllegalReply(Cause.ILLEGAL, f"You have no questions left: {left}.")
        self.question = question
        self.asked = asked_items(question)[: min(ITEMS_A_QUESTION, self.questions_left)]
        self.inverted = inverted_items(question)
        able = self.open_left > 0 and self.questions_left >= OPEN_PRICE
        self.open_question = not self.asked and able and is_open(question)
        self.open_left -= self.open_question
        self._spend_questions(OPEN_PRICE if self.open_question else max(len(self.asked), 1))
        self.ever_asked |= dict.fromkeys(self.asked)
        action = {"ask": list(self.asked), "open": self.open_question}
        if self.from_card:
            self._answer_from_card()
            return Move(next=DOCTOR, action=action)
        about = (
            "Tell one thing that you have not told yet." if self.open_question else "It is about nothing on your card."
        )
        if self.asked:
            about = f"Answer yes or no. The question is about: {', '.join(self.asked)}."
        self.tell(PATIENT, f"The doctor asks:\n{quote(question, max_characters=MAX_ANSWER)}\n{about}")
        return Move(next=PATIENT, action=action)

    def _answer(self, reply: Reply) -> Move:
        text = strip_thinking(reply).strip()
        if not text:
            raise IllegalReply(Cause.EMPTY, "Answer the doctor.")
        if len(text) > MAX_ANSWER:
            raise IllegalReply(Cause.UNPARSABLE, f"Answer in at most {MAX_ANSWER} characters.")
        reading = read_answer(text, self.asked, self.inverted)
        judged = judge(self.cards[PATIENT], reading, self.asked, self.answers, open_question=self.open_question)
        for name in ("false_claims", "false_denials", "evaded", "volunteered"):
            self.note("patient", name, getattr(judged, name))
        # a question about nothing pays nothing, or words without sense would earn full marks; a lie costs there too
        if self.asked or self.open_question or judged.score < 1.0:
            self._keep(judged.score)
        self._hear(reading)
        self.tell(DOCTOR, f"The patient says:\n{quote(text)}\n{self._left()}")
        return Move(next=DOCTOR, action={"says": dict(reading.stances)})

    def _truth(self) -> str:
        card, is_open_one = self.cards[PATIENT], self.open_question
        return answer_from_card(card, self.asked, self.answers, open_question=is_open_one, inverted=self.inverted)

    def _answer_from_card(self) -> None:
        text = self._truth()
        self.revealed.append(text)
        self._hear(read_answer(text, self.asked, self.inverted))
        self.tell(DOCTOR, f"The patient says:\n{quote(text)}\n{self._left()}")

    def _hear(self, reading: Reading) -> None:
        if self.open_question and reading.denies and "yes" not in reading.stances.values():
            self.nothing_else = True
        self.answers |= {item: said == "yes" for item, said in reading.stances.items() if said != "both"}

    def _keep(self, score: float) -> None:
        card = self.cards[PATIENT]
        about = [item for item in card.symptoms if item not in self.answers] if self.open_question else self.asked
        self.worth.append((any(map(card.has, about)), score))
        self.note("patient", "answers", 1)
        self.note("patient", "faithful", int(score == 1.0))

    def _spend_questions(self, number: int) -> None:
        self.questions_left -= number
        self.cost += number * self.question_cost

    def _test(self, text: str) -> Move:
        name = find_test(text)
        if self.tests_left == 0:
            raise IllegalReply(Cause.ILLEGAL, "You have no tests left: ASK or DIAGNOSIS.")
        if name is None:
            raise IllegalReply(Cause.ILLEGAL, "There is no such test; order one of the list.")
        if name in self.results:
            raise IllegalReply(Cause.ILLEGAL, f"The {name} was done already.")
        test = table().tests[name]
        finding = self.findings.get(name, NORMAL)
        self.tests_left -= 1
        self.cost += test.price * self.test_cost
        self.results[name] = finding
        report = f"Result of {name}: {test.findings.get(finding, NORMAL)}."
        self.revealed.append(report)
        self.tell(DOCTOR, f"{report}\n{self._left()}")
        return Move(next=DOCTOR, action={"test": name, "finding": finding})

    def _diagnose(self, names: list[str]) -> Move:
        if len(names) > self.ranked:
            raise IllegalReply(Cause.ILLEGAL, f"Name at most {self.ranked} conditions.")
        found = [find_condition(name) for name in names]
        if not any(found):
            raise IllegalReply(Cause.UNPARSABLE, "No such condition is known: write DIAGNOSIS: and its common name.")
        right = self.condition
        if right in found:
            rank = 1 + found.index(right)
            return self._finish(1.0 / rank - self.cost, 1.0 / rank, found, f"right at rank {rank}: {right}")
        alike = found[0] is not None and found[0] in table().conditions[right].alike
        credit = ALIKE_CREDIT if alike else 0.0
        return self._finish(
            credit - self.cost, credit, found, f"{'look-alike of' if alike else 'wrong: it was'} {right}"
        )

    def _finish(self, doctor: float, credit: float, found: list[str | None], reason: str) -> Move:
        scores, rewards = {DOCTOR: credit}, {DOCTOR: doctor}
        if PATIENT in self.possible_agents:
            kinds = [[worth for has, worth in self.worth if has == kind] for kind in (True, False)]
            means = [sum(kind) / len(kind) for kind in kinds if kind]
            scores[PATIENT] = sum(means) / len(means) if means else 0.0
            if not self.from_card:  # else it has left
                rewards[PATIENT] = scores[PATIENT]
        winners = [seat for seat in (DOCTOR, PATIENT) if seat == DOCTOR or seat in rewards] if credit == 1.0 else []
        spent = self.max_questions - self.questions_left
        facts = {"condition": self.condition, "diagnosis": found, "questions": spent, "tests": list(self.results)}
        outcome = Outcome(winners=winners, reason=reason, scores=scores, facts=facts)
        return Move(rewards=rewards, outcome=outcome, action={"diagnosis": found})

    # ---- what seats may know ---------------------------------------------------------------------------------

    def facts(self, seat: str) -> Json:
        """Returns what the doctor has heard and may still do, or for the patient its card and the question."""
        if seat == PATIENT:
            return {
                "card": {"symptoms": list(self.cards[PATIENT].symptoms), "history": list(self.cards[PATIENT].history)},
                "question": self.question,
                "asked": list(self.asked),
                "truth": self._truth(),
                "lie": lie_from_card(self.cards[PATIENT], self.asked),
            }
        return {
            "age": self.opening.age,
            "sex": self.opening.sex,
            "complaint": self.opening.complaint,
            "asked": list(self.ever_asked),
            "answers": dict(self.answers),
            "results": dict(self.results),
            "nothing_else": self.nothing_else,
            "open_left": self.open_left,
            "questions_left": self.questions_left,
            "tests_left": self.tests_left,
            "question_cost": self.question_cost,
            "test_cost": self.test_cost,
            "ranked": self.ranked,
        }

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a question about one item, a test or a diagnosis; a yes or no for the patient."""
        if seat == PATIENT:
            return ("Yes.", "No.")[int(rng.integers(2))]
        tests = self._untested()
        return random_line(rng, tests, asks=self.questions_left > 0, ranked=self.ranked)

    def grammar(self, seat: str) -> Json:
        """Returns the regular expression of a doctor's line, after at most one line of other words."""
        if seat == PATIENT:
            return None
        tests = self._untested()
        return doctor_grammar(tests, asks=self.questions_left > 0, ranked=self.ranked, listed=self.names == "listed")

    def _untested(self) -> list[str]:
        return [name for name in table().tests if name not in self.results] if self.tests_left else []

    def describe(self) -> str:
        """Returns the case, and what the answers were worth."""
        found = ", ".join(f"{test}: {finding}" for test, finding in self.findings.items())
        worth = f"\nworth of the answers: {', '.join(f'{score:g}' for _, score in self.worth)}" if self.worth else ""
        person = f"{who(self.opening)} with {self.condition}; {found or 'no findings'}"
        return f"{person}\n{card_text(self.cards[PATIENT])}{worth}"

    def _left(self) -> str:
        return left_text(self.questions_left, self.tests_left if self.max_tests else None)
