"""What a source of problems is: it draws questions, and grades what was answered to them.

Games hold one `Source` and know nothing of where its questions come from; `llm_arena.problems.sources` opens them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from llm_arena.errors import UsageError
from llm_arena.problems.answers import Verdict, check, check_exactly, needs_algebra, require_algebra
from llm_arena.problems.sources.arithmetic import check_settings, draw_problem
from llm_arena.problems.splits import Split
from llm_arena.types import Json

CHECKERS = ("exact", "math", None)
MAX_NUMBER = 1e300
"""Bound of an answer that is given as a number and not as text."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Question(msgspec.Struct, frozen=True):
    """One problem.

    `answer` is the right answer, or empty where many are right and the source only knows one when it sees it. `entry`
    is what the source needs to grade answers, for nobody else's eyes.
    """

    text: str
    answer: str
    entry: Json = None


class Source(ABC):
    """Where problems come from. Holds no state: all luck is the generator that `draw` gets."""

    name: str
    "What `open_source` opens this source by, complete with versions that a replay needs."
    sha256: str | None = None
    "Of the problems, for sources that are files or data sets."
    slow: bool = False
    "Whether drawing or grading may take over 50 ms."

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Question:
        """Draws a question."""

    @abstractmethod
    def grade(self, question: Question, answer: str) -> Verdict:
        """Returns whether `answer` is right; `undecided`, which is never right, where that could not be found out."""

    @abstractmethod
    def describe(self) -> str:
        """Returns in a few words what the questions are."""

    def resolved(self) -> dict[str, Json]:
        """Returns the arguments `source` and `source_sha256` as a game's spec records them."""
        return {"source": self.name, "source_sha256": self.sha256}


class CheckedSource(Source):
    """A source whose answers are compared with the right one by `llm_arena.problems.answers`.

    Args:
        checker: `exact` or `math`; None: `math` if `algebraic`.
        algebraic: whether a right answer needs algebra.

    Raises:
        UsageError: there is no such checker.
        MissingExtra: the checker is `math`, and the extra `problems` is not installed.
    """

    def __init__(self, checker: str | None, *, algebraic: bool) -> None:
        if checker not in CHECKERS:
            raise UsageError(f"checker={checker!r}; expected one of {', '.join(map(str, CHECKERS))}")
        self.checker = checker or ("math" if algebraic else "exact")
        self.slow = self.checker == "math"
        if self.slow:
            require_algebra()  # now, and not in the middle of a game

    def grade(self, question: Question, answer: str) -> Verdict:
        """Compares with the right answer, by form and fractions (`exact`) or by algebra as well (`math`)."""
        return (check if self.checker == "math" else check_exactly)(answer, question.answer)


class Arithmetic(CheckedSource):
    """Arithmetic with whole numbers, see `llm_arena.problems.sources.arithmetic`."""

    name = "arithmetic"

    def __init__(self, level: int, operators: str | None, split: Split, checker: str | None) -> None:
        check_settings(level, operators, split)
        super().__init__(checker, algebraic=False)
        self.level, self.operators, self.split = level, operators, split

    def draw(self, rng: np.random.Generator) -> Question:
        """Draws an expression."""
        drawn = draw_problem(rng, level=self.level, operators=self.operators, split=self.split)
        return Question(drawn.text, drawn.answer)

    def describe(self) -> str:
        """Returns level and split."""
        return f"arithmetic, level {self.level}, {self.split}"


@dataclass(frozen=True)
class ProblemRows:
    """Problems that are written down: (question, answer) by row, and the SHA-256 of what they were read from."""

    rows: tuple[tuple[str, str], ...]
    sha256: str

    @cached_property
    def algebraic(self) -> bool:
        """Whether a right answer needs algebra."""
        return any(needs_algebra(answer) for _, answer in self.rows)


class Rows(CheckedSource):
    """Problems that are written down. Each is as likely as any other; a row that stands there twice counts twice."""

    def __init__(self, name: str, problems: ProblemRows, checker: str | None) -> None:
        super().__init__(checker, algebraic=checker is None and problems.algebraic)
        self.name, self.rows, self.sha256 = name, problems.rows, problems.sha256

    def draw(self, rng: np.random.Generator) -> Question:
        """Draws a row."""
        return Question(*self.rows[int(rng.integers(len(self.rows)))])

    def describe(self) -> str:
        """Returns name and number of problems."""
        return f"{len(self.rows)} problems of {self.name}"


class Given(CheckedSource):
    """One problem, given by arguments. It is drawn without luck, and its name is that of the default source."""

    name = "arithmetic"

    def __init__(self, problem: object, answer: object, checker: str | None) -> None:
        if not (isinstance(problem, str) and problem.strip() and is_text(problem)):
            raise UsageError(f"problem={problem!r:.100}; expected the text of a problem")
        text = answer_text(answer)
        if text is None:
            raise UsageError(f"answer={answer!r:.100}; expected a number, or text like '7' or '\\frac{{1}}{{2}}'")
        super().__init__(checker, algebraic=needs_algebra(text))
        self.question = Question(problem, text)

    def draw(self, rng: np.random.Generator) -> Question:
        """Returns the problem."""
        return self.question

    def describe(self) -> str:
        """Returns that it is one problem."""
        return "one given problem"


def answer_text(answer: object) -> str | None:
    """Returns a right answer, given as text or a finite number, as text; None if it is neither, or blank.

    >>> answer_text(7), answer_text(" x "), answer_text(True)
    ('7', ' x ', None)
    """
    if isinstance(answer, str):
        return answer if answer.strip() and is_text(answer) else None
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not abs(answer) < MAX_NUMBER:
        return None
    return str(answer)


def is_text(text: str) -> bool:
    r"""Returns whether `text` can be written down: halves of UTF-16 pairs, as JSON may name them, are no characters.

    >>> is_text("\U0001f409"), is_text("\ud83d")
    (True, False)
    """
    return not _SURROGATE.search(text)


__all__ = [
    "Arithmetic",
    "CheckedSource",
    "Given",
    "ProblemRows",
    "Question",
    "Rows",
    "Source",
    "Verdict",
    "answer_text",
    "is_text",
]
