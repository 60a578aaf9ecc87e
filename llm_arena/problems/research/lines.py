"""What is written in `research-v0`: the protocol's lines, how they are read and constrained, and the prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from llm_arena.errors import UsageError
from llm_arena.parsing import one_line
from llm_arena.problems.final_answers import TAG, fenced
from llm_arena.problems.research.answers import plain_answer
from llm_arena.problems.research.questions import Question
from llm_arena.problems.sources.questions import answer_text, is_text
from llm_arena.types import Json

MAX_ASSIGNMENT = 500
"""Characters of an assignment that a searcher is told."""
MAX_REPORT = 1500
"""Characters of a report that the lead is shown."""

_ASSIGN = re.compile(r"^[ \t*_]*ASSIGN[ \t]+([0-9]{1,3})[*_]*:[*_]*[ \t]*([^\n]*)", re.MULTILINE)
_REPORT = re.compile(r"^[ \t*_]*REPORT[*_]*:[*_]*", re.MULTILINE)

# For grammars: words that begin no line of the protocol and no tag; text; text inside a JSON string.
_FREE = r"([^\n<:]{0,160}\n)?"
_TEXT = "[!-;=?-~\u00a1-\u167f\u3041-\u9fff][ -;=?-~\u00a1-\u167f\u3041-\u9fff]{0,199}"
_STRING = "[ !#-;=?-\\[\\]-~\u00a1-\u167f\u3041-\u9fff]{1,120}"
_CALLS = (
    rf'<tool_call>\{{"name": "search", "arguments": \{{"query": "{_STRING}"\}}\}}</tool_call>'
    rf'|<tool_call>\{{"name": "open", "arguments": \{{"id": "{_STRING}"(, "page": [1-9][0-9]?)?\}}\}}</tool_call>'
)

_HOW_TO_CALL = (
    "Call one tool at a time, like this:\n"
    '<tool_call>{"name": "search", "arguments": {"query": "some words"}}</tool_call>\n'
    '<tool_call>{"name": "open", "arguments": {"id": "an id from the results"}}</tool_call>\n'
)


def read_assignments(text: str) -> dict[int, str]:
    r"""Returns the tasks of `ASSIGN n: task` lines by number, on one line each; of two for one number the last counts.

    >>> read_assignments("Let us split it.\nASSIGN 1: find the river\n**ASSIGN 2:** find the year")
    {1: 'find the river', 2: 'find the year'}
    """
    lines = {int(number): one_line(line) for number, line in _ASSIGN.findall(text)}
    return {number: line[:MAX_ASSIGNMENT] for number, line in lines.items() if line}


def read_report(text: str) -> str:
    r"""Returns what follows the last `REPORT:` at the beginning of a line, to the end; empty if nothing does.

    >>> read_report("I have it.\nREPORT: the river Orsk,\nsays d017")
    'the river Orsk,\nsays d017'
    """
    starts = list(_REPORT.finditer(text))
    return text[starts[-1].end() :].strip() if starts else ""


def reply_grammar(*, calls: bool, report: bool, answer: bool, assign: Sequence[int]) -> str:
    """Returns a regular expression of the replies that are legal.

    Args:
        calls: whether a tool may be called.
        report: whether a report may be given.
        answer: whether the final answer may be given.
        assign: searchers that may be given a task; the lines of the first ones may be left out.
    """
    lines = [f"ASSIGN {number}: {_TEXT}" for number in assign]
    ways = [_CALLS] * calls + [f"REPORT: {_TEXT}"] * report + [f"<{TAG}>{_TEXT}</{TAG}>"] * answer
    return f"{_FREE}({'|'.join(ways + [chr(10).join(lines[at:]) for at in range(len(lines))])})"


def lead_task(searchers: int, max_calls: int) -> str:
    """Returns what the lead is told before the question."""
    if not searchers:
        return f"You look things up in a library. {_HOW_TO_CALL}You have {count(max_calls, 'call')}."
    return (
        f"You lead {count(searchers, 'searcher')} who can look things up in a library; you can't. "
        "They don't know the question."
    )


def searcher_task(assignment: str, max_calls: int) -> str:
    """Returns what a searcher is told."""
    return (
        f"You look things up in a library. Your task: {assignment}\n\n{_HOW_TO_CALL}"
        f"You have {count(max_calls, 'call')}. Then write REPORT: and what you found."
    )


def request(question: str, assign: Sequence[int], alone: bool) -> str:
    """Returns what the lead is asked: to assign tasks to the searchers `assign` or answer, or to answer."""
    answer = f"the answer, as short as possible, between <{TAG}> and </{TAG}>."
    if not assign:
        return f"Question: {question}\n\n{'When you know it' if alone else 'Now'} write {answer}"
    lines = "\n".join(f"ASSIGN {number}: what searcher {number} has to find out" for number in assign)
    return f"Question: {question}\n\nWrite a line for each searcher:\n{lines}\nOr write {answer}"


def reported(reports: Sequence[Json]) -> str:
    """Returns the reports of a round as the lead is told them, in the order of the searchers."""
    parts = []
    for report in sorted(reports, key=lambda report: int(report["searcher"])):
        said = report["report"]
        told = "reported nothing." if said is None else f"reported:\n{fenced(said, max_characters=MAX_REPORT)}"
        parts.append(f"Searcher {report['searcher']}, asked: {report['assignment']}\n{told}")
    return "\n\n".join(parts)


def given_question(question: object, answer: object, *, corpus: object, world: int, drawn: bool) -> Question | None:
    """Returns the question that an env was given, or None if it is to be drawn.

    Args:
        question: its text, or None.
        answer: its answer, or None.
        corpus: the path of one's own corpus, or None.
        world: which world's corpus else.
        drawn: whether an argument was given that is for drawn questions only.

    Raises:
        UsageError: one of question and answer is missing, or is no question or answer; or an argument is of no use.
    """
    if (question is None) != (answer is None):
        raise UsageError(f"question={question!r:.100}, answer={answer!r:.100}; give both, or none to have one drawn")
    if question is None:
        if corpus is not None:
            raise UsageError(
                f"corpus={corpus!r:.100} needs question and answer; questions are drawn of the embedded one"
            )
        return None
    if drawn:
        raise UsageError(f"hops and split are for questions that are drawn; leave them out with {question=!r:.100}")
    if corpus is not None and world:
        raise UsageError(f"world={world} is for the embedded corpus; leave it out with corpus={corpus!r:.100}")
    if not isinstance(question, str) or not question.strip() or not is_text(question):
        raise UsageError(f"question={question!r:.100}; expected the text of a question")
    listed = answer if isinstance(answer, list | tuple) else [answer]
    texts = [_answer_text(each) for each in listed]
    if not texts or not all(texts):
        raise UsageError(f"answer={answer!r:.100}; expected a text, a finite number, or a list of them")
    return Question(question.strip(), tuple(texts))


def _answer_text(answer: object) -> str:
    """Returns an answer as text; empty if it is none."""
    text = answer_text(answer) or ""
    return text if plain_answer(text) else ""


def count(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> count(1, "call"), count(2, "call")
    ('1 call', '2 calls')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
