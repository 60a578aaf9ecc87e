"""Problems of the package reasoning_gym (open-thought/reasoning-gym): generators with graders of their own.

`reasoning-gym:NAME[:KEY=VALUE...]`: the keys are those of the generator's configuration, the values JSON or text, e.g.
`reasoning-gym:chain_sum:min_terms=2:max_terms=3`. An answer is right if the generator's `score_answer` gives it full
marks, 1.0. What it gives less is wrong: reasoning_gym pays for having the right answer somewhere in a text, or for a
part of it, which a player can farm. Some graders pick out of a text what they like, and pay in full for `not 312`,
`312 or 7` or `nan`. So an answer that is not literally the expected one is shown to a grader only if it has the form of
one: that in `SAFE` by generator, and else it may have no words that the expected answer has not, nor more numbers. What
is not in the form of `SAFE`, or long, is undecided, which is never right. `OWN` are compared here.

Its graders are strict about form: most compare text, so `1,234` is wrong where `1234` is right.

Splits: half of the problems, by a hash of their text, are `train`, the others `heldout`, so that no problem is in both
(different seeds alone often draw the same).

Replay: the seeds come from the episode's generator. Some generators draw from the global generators of Python and
NumPy; those are seeded for a draw and put back behind it. The package's version is part of the name, and another one is
refused. Generators are left out (`REFUSED`) that can't be replayed, or whose graders run a player's text as program or
pay for anything.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from llm_arena.errors import UsageError, did_you_mean, missing_extra
from llm_arena.global_luck import OwnLuck
from llm_arena.problems.sources.questions import Question, Source, Verdict
from llm_arena.problems.splits import Split

FULL_MARKS = 1.0
"""What `score_answer` must give for an answer to be right."""
MAX_CHARACTERS = 5000
TIMES_LONGER = 4
"""So much longer than the expected one, and `SLACK` more, an answer may be: graders of long lists are slow."""
SLACK = 200

_UNSTABLE = "draws otherwise in each process (it depends on PYTHONHASHSEED), so that episodes could not be replayed"
_RUNS_CODE = "its grader runs the answer as Python code"
REFUSED = {
    "bf": "prints to the terminal while it draws",
    "coin_flip": "its grader takes any number from 0 to the right one for right",
    "composite": "mixes other generators; name one of them",
    "game_of_life_halting": "its grader gives full marks to any text where the answer is True",
    "intermediate_integration": _RUNS_CODE,
    "isomorphic_strings": _UNSTABLE,
    "knight_swap": _UNSTABLE,
    "polynomial_multiplication": _RUNS_CODE,
    "propositional_logic": "its grader gives full marks to a premise that is copied",
    "ransom_note": _UNSTABLE,
    "simple_integration": _RUNS_CODE,
    "word_ladder": _UNSTABLE,
}
"""Generator -> why it can't be used. As of 0.1.25; tests go through all the others."""

_LISTS = re.compile(r"""[\[\]A-Z0-9_'", \n]*""")
_SUM = re.compile(r"(?!.*\*\s*\*)[0-9+\-*/() ]{0,200}")
_REAL = r"[-+]?[0-9]{1,30}(?:\.[0-9]{0,30})?"
_REALS = re.compile(rf"{_REAL}(?:, ?{_REAL}){{0,30}}")
_KNIGHT = r"[A-Za-z]+ is an? [a-z]+"
_MOVE = r"Move disk [0-9]{1,3} from Peg [0-9]{1,3} to Peg [0-9]{1,3}"
_POURED = r'"(?:fill [A-Z]|empty [A-Z]|pour [A-Z]->[A-Z])"'
SAFE: dict[str, re.Pattern[str]] = {
    # The graders of these evaluate an answer that is not literally the expected one. Sums have no powers, lists hold
    # capitals and numbers alone: nothing there is a call, an attribute or long to compute.
    "binary_matrix": _LISTS,
    "countdown": _SUM,
    "n_queens": _LISTS,
    "puzzle24": _SUM,
    "spiral_matrix": _LISTS,
    "string_insertion": _LISTS,
    # The graders of these look for an answer in a text, or there are right answers that look otherwise.
    "boxnet": re.compile(r"""\[[A-Za-z0-9_.,:()\[\]{}" \n]*\]"""),
    "complex_arithmetic": re.compile(rf"{_REAL}(?: ?[-+] ?[0-9]{{1,30}}(?:\.[0-9]{{0,30}})?[ij])?|{_REAL}[ij]"),
    "fraction_simplification": re.compile(
        r"(?:\$\\d?frac\{-?[0-9]{1,30}\}\{[0-9]{1,30}\}\$|-?[0-9]{1,30} ?/ ?[0-9]{1,30})"
    ),
    "graph_color": re.compile(r'\{[0-9":, \n]*\}'),
    "jugs": re.compile(rf"\[ ?{_POURED}(?:, ?{_POURED})* ?\]"),
    "kakurasu": re.compile(r"[01 \n]*"),
    "knights_knaves": re.compile(rf"{_KNIGHT}(?:(?:, and |, | and ){_KNIGHT}){{0,20}}\.?"),
    "palindrome_generation": re.compile("[a-z]*"),
    "polynomial_equations": _REALS,
    "power_function": re.compile(rf"{_REAL}(?:[eE][-+]?[0-9]{{1,2}})?"),
    "quantum_lock": re.compile("[A-C](?: ?(?:\u2192|->|,)? ?[A-C])*"),
    "rubiks_cube": re.compile("[UDLRFBMESxyz]'?(?: [UDLRFBMESxyz]'?)*"),
    "rush_hour": re.compile("[A-Z][-+][1-9](?: [A-Z][-+][1-9])*"),
    "shortest_path": re.compile("infeasible|(?:up|down|left|right)(?: (?:up|down|left|right))*"),
    "sokoban": re.compile("[UDLR]*"),
    "survo": re.compile(r"[0-9 \n]*"),
    "tower_of_hanoi": re.compile(rf"{_MOVE}(?:\n{_MOVE})*"),
}
"""Generator -> what an answer looks like that may be shown to its grader; any other is undecided."""

_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")
_ENDLESS = re.compile(r"(?<![0-9a-z.])[0-9.]+e[-+]?0*[0-9]{3}|[0-9]{400}", re.IGNORECASE)


def _same_number(answer: str, expected: str) -> bool:
    return all(re.fullmatch(_REAL, text) for text in (answer, expected)) and float(answer) == float(expected)


def _same_json(answer: str, expected: str) -> bool:
    try:
        given, right = (json.dumps(json.loads(text), sort_keys=True) for text in (answer, expected))
    except (ValueError, RecursionError):
        return False
    return given == right


OWN: dict[str, Callable[[str, str], bool]] = {
    "codeio": _same_json,  # its grader measures the distance of trees, for seconds
    "gsm_symbolic": _same_number,  # its grader takes the first number of a text, without the sign
    "spell_backward": lambda answer, expected: answer.lower() == expected.lower(),  # its grader takes a beginning
}
"""Generator -> whether an answer is the expected one, instead of its grader."""

MAX_DRAWS = 64
"""How often is drawn for a problem of the split; a generator with any variety fails once in 2**64 times."""
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError)


class ReasoningGym(Source):
    """A generator of reasoning_gym.

    Args:
        name: `reasoning-gym:NAME[@VERSION][:KEY=VALUE...]`.
        split: `train` or `heldout`.
        checker: must be None, for the generator grades.

    Raises:
        UsageError: there is no such generator, it can't be used, its configuration is refused, or another version of
            the package is installed than the name says.
        MissingExtra: reasoning_gym is not installed.
    """

    slow = True  # some draw for half a second

    def __init__(self, name: str, split: Split, checker: str | None) -> None:
        if checker is not None:
            raise UsageError(
                f"checker={checker!r} with source={name!r}; expected None, for reasoning_gym grades itself"
            )
        if importlib.util.find_spec("reasoning_gym") is None:
            raise missing_extra(f"source={name!r}", "reasoning-gym", "problems")
        asked, *settings = name.split(":")[1:]
        self.generator, _, version = asked.partition("@")
        installed = importlib.metadata.version("reasoning-gym")
        if version not in ("", installed):
            raise UsageError(
                f"source={name!r}: reasoning-gym {installed} is installed, whose problems may be others; "
                f'`pip install "reasoning-gym=={version}"` to replay, or leave @{version} out to begin anew'
            )
        self._gym: Any = importlib.import_module("reasoning_gym")  # takes a second, and has no types
        known = sorted(set(importlib.import_module("reasoning_gym.factory").DATASETS) - set(REFUSED))
        if self.generator in REFUSED:
            raise UsageError(f"source={name!r}: {self.generator} can't be used: {REFUSED[self.generator]}")
        if self.generator not in known:
            raise UsageError(
                f"source={name!r}: reasoning-gym {installed} has no {self.generator!r}."
                f"{did_you_mean(self.generator, known)} It has {', '.join(known)}."
            )
        self.name = ":".join([f"reasoning-gym:{self.generator}@{installed}", *settings])
        self.split = split
        self._settings = _read_settings(name, settings)
        try:
            self._grader = self._make(0)
        except (AssertionError, TypeError, ValueError) as error:
            raise UsageError(f"source={name!r}: its settings are refused: {error or type(error).__name__}") from error

    def draw(self, rng: np.random.Generator) -> Question:
        """Draws seeds from `rng`, until the generator seeded with one has a question of the split.

        Raises:
            UsageError: the generator has no such question.
        """
        for _ in range(MAX_DRAWS):
            seed = int(rng.integers(2**31))
            with OwnLuck(seed):
                entry = self._make(seed)[0]
            if split_of(entry["question"]) == self.split:
                answer = entry["answer"]
                return Question(entry["question"], "" if answer is None else str(answer), entry)
        raise UsageError(f"source={self.name!r} has too few problems for split={self.split!r}; give it other settings")

    def grade(self, question: Question, answer: str) -> Verdict:
        """Asks the generator's grader."""
        refused = None if answer == question.answer else self._refused(question, answer)
        if refused is not None:
            return refused
        own = OWN.get(self.generator)
        if own is not None:
            return "right" if answer == question.answer or own(answer.strip(), question.answer) else "wrong"
        try:
            score = self._grader.score_answer(answer, question.entry)
        except _UNREADABLE:  # the grader's parser gave up
            return "undecided"
        return "right" if score >= FULL_MARKS else "wrong"

    def _refused(self, question: Question, answer: str) -> Verdict | None:
        """Returns the verdict on what may not be shown to the grader; None: it may."""
        expected = question.answer
        most = SLACK + TIMES_LONGER * len(expected) if expected else MAX_CHARACTERS
        if len(answer) > min(most, MAX_CHARACTERS) or _ENDLESS.search(answer):
            return "undecided"
        if self.generator in SAFE:
            return None if SAFE[self.generator].fullmatch(answer.strip()) else "undecided"
        words = Counter(_WORD.findall(answer.lower())) - Counter(_WORD.findall(expected.lower()))
        return "wrong" if words or len(_NUMBER.findall(answer)) > len(_NUMBER.findall(expected)) else None

    def describe(self) -> str:
        """Returns generator, version and split."""
        return f"{self.name}, {self.split}"

    def _make(self, seed: int) -> Any:
        return self._gym.create_dataset(self.generator, seed=seed, size=1, **self._settings)


def split_of(question: str) -> Split:
    """Returns the split that a question belongs to."""
    return "heldout" if hashlib.blake2b(question.encode(), digest_size=1).digest()[0] % 2 else "train"


def _read_settings(name: str, settings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.isidentifier() or key in ("seed", "size") or key in found:
            raise UsageError(f"source={name!r}: {setting!r}; expected KEY=VALUE, each once, without seed and size")
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


__all__ = ["FULL_MARKS", "OWN", "REFUSED", "SAFE", "ReasoningGym"]
