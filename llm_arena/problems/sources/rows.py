"""Reading problems that are written down: files of JSON lines, and data sets in Hugging Face's format."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_arena.errors import UsageError, missing_extra
from llm_arena.parsing import boxed
from llm_arena.problems.files import read_utf8
from llm_arena.problems.sources.questions import ProblemRows, answer_text, is_text

QUESTION_COLUMNS = ("problem", "question", "prompt")
ANSWER_COLUMNS = ("answer", "label", "final_answer", "solution")
"""Where questions and answers are looked for, the first that is there counts."""

_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
_LAYOUT = "hf:OWNER/NAME[/CONFIG][:SPLIT[:QUESTION:ANSWER]]"


def read_file(path: str) -> ProblemRows:
    """Reads a file of JSON lines; its SHA-256 is that of its bytes.

    Raises:
        UsageError: it can't be read, a line is no problem (the message has its number), or there is none.
    """
    return _problems(path, *read_utf8("source", path))


_EXAMPLE = '{"prompt": "What is 3 + 4?", "answer": "7"}'


@lru_cache(maxsize=8)
def _problems(path: str, text: str, sha256: str) -> ProblemRows:
    rows = tuple(_lines(path, text))
    if not rows:
        raise UsageError(f"{path} has no problems; expected lines {_EXAMPLE}")
    return ProblemRows(rows, sha256)


def _lines(path: str, text: str) -> Iterator[tuple[str, str]]:
    # not by splitlines(): JSON may hold U+2028 and its like as they are (PrimeIntellect-ai/verifiers PR #1644)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{place}: no JSON: {error}; expected {_EXAMPLE}") from error
        if not isinstance(row, dict):
            raise UsageError(f"{place}: got {line.strip()[:60]}; expected {_EXAMPLE}")
        yield _read_row(place, row, _column(place, row, QUESTION_COLUMNS), _column(place, row, ANSWER_COLUMNS))


def _column(place: str, row: Mapping[str, Any] | Sequence[str], names: Sequence[str]) -> str:
    found = next((name for name in names if name in row), None)
    if found is None:
        raise UsageError(f"{place}: has {', '.join(map(str, row))[:200]}; expected one of {', '.join(names)}")
    return found


def _read_row(place: str, row: Mapping[str, Any], question: str, answer: str) -> tuple[str, str]:
    asked = _question_text(row[question])
    if asked is None:
        raise UsageError(f"{place}: {question} is {row[question]!r:.100}; expected the text of a problem")
    right = answer_text(row[answer])
    if right is None:
        raise UsageError(f"{place}: {answer} is {row[answer]!r:.100}; expected a number, or text that is not blank")
    return asked, final_answer(right)


def _question_text(given: Any) -> str | None:
    """Returns the text of a question; one in chat messages is that of its system and user messages."""
    if isinstance(given, list) and given and all(isinstance(message, dict) for message in given):
        if any(message.get("role") not in ("system", "user") for message in given):
            return None
        parts = [message.get("content") for message in given]
        given = "\n\n".join(parts) if all(isinstance(part, str) for part in parts) else None
    return given if isinstance(given, str) and given.strip() and is_text(given) else None


def final_answer(text: str) -> str:
    r"""Returns the answer at the end of its working: after the last `####`, else in the last box, else all of it.

    >>> final_answer("Half of 8 is 4.\n#### 1,004"), final_answer(r"so \boxed{\frac{1}{2}}."), final_answer("Oslo")
    ('1,004', '\\frac{1}{2}', 'Oslo')
    """
    _, marked, after = text.rpartition("####")
    if marked and after.strip():
        return after.strip()
    return boxed(text) or text.strip()


def read_hub(name: str) -> ProblemRows:
    """Reads a split of a data set; its SHA-256 is that of the questions and answers.

    Args:
        name: `OWNER/NAME[/CONFIG][:SPLIT[:QUESTION:ANSWER]]`; a path begins with `.`, `/` or `~`.

    Raises:
        UsageError: it can't be had or read, or has no such split or columns.
        MissingExtra: the package `datasets` is not installed.
    """
    path, *rest = name.split(":")
    if not path or len(rest) not in (0, 1, 3) or not all(rest):
        raise UsageError(f"source='hf:{name}'; expected {_LAYOUT}")
    split, question, answer = rest if len(rest) == 3 else [*(rest or ["train"]), "", ""]
    if importlib.util.find_spec("datasets") is None:
        raise missing_extra(f"source='hf:{name}'", "datasets", "problems")
    return _read_hub(path, split, question, answer, _changed(path))


def _is_local(path: str) -> bool:
    return path.startswith((".", "/", "~"))


def _changed(path: str) -> int:
    """Returns when a local file was changed, so that one that has been is read again."""
    file = Path(path).expanduser()
    return file.stat().st_mtime_ns if _is_local(path) and file.is_file() else 0


@lru_cache(maxsize=8)
def _read_hub(path: str, split: str, question: str, answer: str, changed: int) -> ProblemRows:
    place = f"hf:{path}:{split}"
    table = _load(place, path, split)
    columns = list(table.column_names)
    question = _column(place, columns, [question] if question else QUESTION_COLUMNS)
    answer = _column(place, columns, [answer] if answer else ANSWER_COLUMNS)
    pairs = zip(table[question], table[answer], strict=True)
    rows = tuple(
        _read_row(f"{place}, row {number}", {question: asked, answer: right}, question, answer)
        for number, (asked, right) in enumerate(pairs)
    )
    if not rows:
        raise UsageError(f"{place} has no problems")
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row).encode() + b"\n")
    return ProblemRows(rows, digest.hexdigest())


def _load(place: str, path: str, split: str) -> Any:
    """Returns a `datasets.Dataset`."""
    datasets: Any = importlib.import_module("datasets")  # takes seconds, and has no types
    local = Path(path).expanduser().resolve()  # a bare name would be looked for on the hub
    if _is_local(path) and not local.exists():
        raise UsageError(f"{place}: {local} does not exist; check the path")
    try:
        if not _is_local(path):
            owner_and_name, config = "/".join(path.split("/")[:2]), "/".join(path.split("/")[2:])
            return datasets.load_dataset(owner_and_name, config or None, split=split)
        if local.is_file():
            builder = _BUILDERS.get(local.suffix)
            if builder is None:
                raise UsageError(f"{place}: {local.name} is no file of {', '.join(_BUILDERS)}, nor a folder")
            return datasets.load_dataset(builder, data_files={split: str(local)}, split=split)
        if (local / "dataset_info.json").is_file():
            return datasets.load_from_disk(str(local))
        return datasets.load_dataset(str(local), split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, UsageError):
            raise
        why = " ".join(str(error).split())[:300]
        remedy = (
            "check the path and the split"
            if _is_local(path)
            else "check name, config and split; offline, fetch it first where there is a network, or give a local copy "
            "as hf:./FOLDER"
        )
        raise UsageError(f"{place} can't be loaded ({type(error).__name__}: {why}); {remedy}") from error


__all__ = ["ANSWER_COLUMNS", "QUESTION_COLUMNS", "final_answer", "read_file", "read_hub"]
