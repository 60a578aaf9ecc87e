"""What games about a problem share as games: where it comes from, how answers are written, what spectators see."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llm_arena.arguments import number, one_of
from llm_arena.env import ArenaEnv
from llm_arena.problems.final_answers import ANSWER_FORMATS, ANSWER_GRAMMAR, AnswerFormat, tagged
from llm_arena.problems.sources import Question, open_source
from llm_arena.problems.splits import Split
from llm_arena.types import Json

MAX_WEIGHT = 1_000_000


def checked_weights(env_id: str, **weights: float) -> dict[str, float]:
    """Returns weights of a reward by name.

    Raises:
        UsageError: one is no number from 0 to a million.
    """
    for name, weight in weights.items():
        number(env_id, name, weight, 0, MAX_WEIGHT)
    return weights


class ProblemGame(ArenaEnv):
    """A game about one problem of a source. A game draws its `question` when it begins.

    The arguments are described by the games, so that each game's page has all of its own.
    """

    question: Question
    input_arg = "problem"
    label_arg = "answer"

    def __init__(
        self,
        *,
        problem: str | None = None,
        answer: str | None = None,
        source: str = "arithmetic",
        source_sha256: str | None = None,
        level: int = 1,
        operators: str | None = None,
        split: Split = "train",
        answer_format: AnswerFormat = "tag",
        checker: Literal["exact", "math"] | None = None,
        **options: Any,
    ) -> None:
        one_of(self.id, "answer_format", answer_format, ANSWER_FORMATS)
        self.answer_format = answer_format
        self.source = open_source(
            source,
            problem=problem,
            answer=answer,
            level=level,
            operators=operators,
            split=split,
            sha256=source_sha256,
            checker=checker,
        )
        super().__init__(**options)
        self.slow = self.source.slow

    def resolved(self) -> dict[str, Json]:
        """Returns the source with its versions and digest."""
        return self.source.resolved()

    def grammar(self, seat: str) -> Json:
        """Returns some lines, and then maybe an answer in its tag."""
        return ANSWER_GRAMMAR

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws some words, in half of the cases with a number as answer."""
        if rng is self.rng:  # for the rule `random_legal`: who breaks the rules is right by no luck
            return "I don't know."
        value = int(rng.integers(0, 20))
        return f"It may be {value}." if rng.random() < 0.5 else f"It is {value}. {tagged(str(value))}"

    def describe(self) -> str:
        """Returns the problem, and its right answer once the game is over."""
        answer = self.question.answer or "(the source knows one when it sees it)"
        return f"problem: {self.question.text}" + (f"\nright answer: {answer}" if self.over else "")
