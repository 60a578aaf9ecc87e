r"""Where games get their problems: `open_source(name)`.

    arithmetic                      drawn by `level`, `operators` and `split`, see problems/sources/arithmetic.py
    FILE.jsonl                      one problem a line, `{"prompt": "What is 3 + 4?", "answer": "7"}`
    hf:OWNER/NAME[/CONFIG][:SPLIT]  a data set of the Hugging Face hub (package `datasets`), SPLIT `train` unless said;
                                    or a folder or file on this machine, hf:./rows.parquet
    reasoning-gym:NAME[:KEY=VALUE]  a generator of the package `reasoning_gym`, e.g. reasoning-gym:chain_sum:max_terms=3

Questions stand in a column `problem`, `question` or `prompt` (text or chat messages), answers in `answer`, `label`,
`final_answer` or `solution`; others are named at the end: hf:OWNER/NAME:SPLIT:QUESTION:ANSWER. Of an answer with
its working the part after the last `####`, or in the last \boxed{}, is the answer.

Episodes can be replayed. A file or data set is recorded with the SHA-256 of what was read, and other problems under its
name are refused; a generator is recorded with the package's version, and another version is refused.

`split` is for sources that draw without end: no problem of theirs is in `train` and in `heldout`. Data sets and files
have splits of their own, and are taken whole.
"""

from __future__ import annotations

from llm_arena.errors import UsageError, did_you_mean
from llm_arena.problems.files import check_digest
from llm_arena.problems.sources.arithmetic import check_settings
from llm_arena.problems.sources.questions import (
    Arithmetic,
    CheckedSource,
    Given,
    Question,
    Rows,
    Source,
    Verdict,
    is_text,
)
from llm_arena.problems.sources.reasoning_gym import ReasoningGym
from llm_arena.problems.sources.rows import read_file, read_hub
from llm_arena.problems.splits import Split

DEFAULT = "arithmetic"
GYM, HUB = "reasoning-gym:", "hf:"


def open_source(
    name: str = DEFAULT,
    *,
    problem: str | None = None,
    answer: str | float | None = None,
    level: int = 1,
    operators: str | None = None,
    split: Split = "train",
    sha256: str | None = None,
    checker: str | None = None,
) -> Source:
    """Opens a source of problems. What it reads is kept for the process.

    >>> import numpy as np
    >>> source = open_source(level=3)
    >>> question = source.draw(np.random.default_rng(0))
    >>> question.text, source.grade(question, "-1")
    ('What is (6 - 7) * 1?', 'right')

    Args:
        name: see the module's docstring.
        problem: the text of one problem, which is then the only one; the name stays the default.
        answer: its answer; given if and only if `problem` is.
        level: of `arithmetic`, 1 to 5.
        operators: of `arithmetic`, some of `+-*/`; None: those of the level.
        split: `train` or `heldout`, of `arithmetic` and `reasoning-gym`.
        sha256: what a file or data set must be; None: whatever it is.
        checker: how answers are compared, `exact` or `math`; None: `math` if an answer needs algebra. Reasoning-gym
            grades itself and takes None only.

    Raises:
        UsageError: there is no such source, it can't be read, it is another one than `sha256` says, or an argument is
            out of its range or does not go with the source.
        MissingExtra: a package is missing that the source needs.
    """
    check_settings(level, operators, split)
    if (problem is None) != (answer is None):
        raise UsageError(f"problem={problem!r:.100}, answer={answer!r:.100}; give both, or none to draw problems")
    if not isinstance(name, str) or not is_text(name) or "\x00" in name:
        raise UsageError(f"source={name!r}; expected a name like arithmetic, FILE.jsonl or hf:OWNER/NAME")
    if problem is not None and name != DEFAULT:
        raise UsageError(f"source={name!r} and problem={problem!r:.60}; give one of them")
    if sha256 is not None and (problem is not None or name == DEFAULT or name.startswith(GYM)):
        raise UsageError(f"source_sha256={sha256!r} is for files and data sets; leave it out with source={name!r}")
    if problem is not None:
        if level != 1 or operators is not None or split != "train":
            raise UsageError(
                f"level={level!r}, operators={operators!r}, split={split!r} are for problems that are drawn; got "
                f"problem={problem!r:.60}: leave them out"
            )
        return Given(problem, answer, checker)
    if name == DEFAULT:
        return Arithmetic(level, operators, split, checker)
    if level != 1 or operators is not None:
        raise UsageError(f"level={level!r}, operators={operators!r} are for source='arithmetic'; got source={name!r}")
    if name.startswith(GYM):
        return ReasoningGym(name, split, checker)
    return _open_rows(name, split, sha256, checker)


def _open_rows(name: str, split: Split, sha256: str | None, checker: str | None) -> Rows:
    if not name.startswith(HUB) and not name.endswith(".jsonl"):
        known = (DEFAULT, GYM, HUB)
        raise UsageError(
            f"source={name!r}; expected arithmetic, FILE.jsonl, reasoning-gym:NAME or hf:OWNER/NAME."
            f"{did_you_mean(name, known)}"
        )
    if split != "train":
        remedy = "name another split, hf:OWNER/NAME:test" if name.startswith(HUB) else "give another file"
        raise UsageError(f"split={split!r} is for sources that draw without end; with source={name!r} {remedy}")
    problems = read_hub(name.removeprefix(HUB)) if name.startswith(HUB) else read_file(name)
    check_digest("source", name, problems.sha256, sha256)
    return Rows(name, problems, checker)


__all__ = ["CheckedSource", "Question", "Source", "Verdict", "open_source"]
