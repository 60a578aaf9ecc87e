"""A scripted searcher: it follows a question's steps through the articles, with nothing but the tools' results.

It understands the wording of `questions` and the sentences of the embedded world, and no other. What it does not
know is where things stand: of like names it has to find the right article, and backward steps it has to try.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence

from llm_arena.problems.research.questions import BACK, Path, parse, read_value, title_of
from llm_arena.tool_calls import ToolCall
from llm_arena.types import Json

_HIT = re.compile(r"^\[([^\]]+)\] (.*?)(?: \(page \d+ of \d+\))? \| ", re.MULTILINE)


def next_step(question: str, calls: Sequence[tuple[str | None, dict[str, Json], str]]) -> ToolCall | str | None:
    """Returns the next call of a search, or what it has found; None: nothing.

    Args:
        question: what is looked for.
        calls: name, arguments and result of the calls so far. The search is played again from them, for a player keeps
            no state; calls that it would not have made are of no use to it.
    """
    results = {repr((name, arguments)): result for name, arguments, result in calls}
    search = _search(parse(question) or ())
    try:
        call = next(search)
        while (made := repr((call.name, call.arguments))) in results:
            call = search.send(results[made])
    except StopIteration as end:
        found: str | None = end.value
        return found
    return call


def put_together(ends: Sequence[str]) -> str | None:
    """Returns the answer of a question whose paths lead to `ends`: the end itself, or the difference of two years."""
    if len(ends) == 2 and all(re.fullmatch("[0-9]{1,4}", end) for end in ends):
        return str(abs(int(ends[0]) - int(ends[1])))
    return title_of(ends[0]) if len(ends) == 1 else None


def _search(paths: Sequence[Path]) -> Generator[ToolCall, str, str | None]:
    """Searches a thing by name, opens its article, reads the fact, and goes on with what it names."""
    ends: list[str] = []
    for path in paths:
        place = path.start
        for step in path.steps:
            found = yield from (_back if step.startswith(BACK) else _forward)(place, step.removeprefix(BACK))
            if found is None:
                return None
            place = found
        ends.append(place)
    return put_together(ends)


def _forward(place: str, relation: str) -> Generator[ToolCall, str, str | None]:
    title = title_of(place)
    hits = _HIT.findall((yield ToolCall("search", {"query": title})))
    exact = [hit for hit in hits if hit[1] == title] or hits
    if not exact:
        return None
    return read_value((yield ToolCall("open", {"id": exact[0][0]})), title, relation)


def _back(place: str, relation: str) -> Generator[ToolCall, str, str | None]:
    title = title_of(place)
    for id, name in _HIT.findall((yield ToolCall("search", {"query": f"{title} {relation}"}))):
        if name == title:
            continue
        value = read_value((yield ToolCall("open", {"id": id})), name, relation)
        if value is not None and title_of(value) == title:
            return str(name)
    return None
