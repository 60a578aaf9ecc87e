r"""research-v0: a lead splits a question among searchers, who look things up with tools; the lead answers.

Roles     lead_0, and searcher_0 .. searcher_{N-1} (argument `searchers`, 0 to 8, default 2), called searcher 1 to
          searcher N. With `searchers=0` the lead has the tools itself: a single agent to compare a team with.
Corpus    an embedded encyclopaedia of an invented world, 356 articles (llm_arena/problems/research/world.py), or one's
          own at the path `corpus` (llm_arena/problems/research/corpus.py says in which form). Each seed `world`
          (default 0) has
          a world of its own, with other facts: train in some, test in others. The spec holds the digest of the
          documents, `corpus_sha256`; a corpus that has changed since is refused. Needs the extra `research` (BM25).
Question  of the embedded world, drawn by the episode's generator, with `hops` = 1, 2 or 3 facts from as many articles
          (default 2), from the split `train` or `heldout` (llm_arena/problems/research/questions.py); or the arguments
          `question` and `answer` (text, a number, or a list of texts that are all right), which a file of starts fills
          from its fields. One's own corpus needs them.
Actions   The lead writes a line `ASSIGN 1: ...` for each searcher; a searcher without one is told the whole question,
          of two lines for one searcher the last counts. Or it answers between <final_answer> and </final_answer>; of
          two answers the last counts, an empty one is none, lines that begin with `>` are quotations. A searcher calls
          a tool, by
          <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call> or the same with "open" and
          {"id": "...", "page": 1}, or ends its search by `REPORT: ...`, up to the end of its reply. It has `max_calls`
          calls (default 8) and then has to report. A call that finds nothing is a legal call, and counts.
Order     The lead assigns; then all searchers work at once, each by one call or report a turn, until all have reported;
          then the lead reads the reports and answers, or assigns again while it has rounds (`rounds`, default 1). Each
          round gives a searcher a fresh view and fresh calls: it is a new sub-agent, and remembers nothing.
Sees      The lead sees the question and the reports, quoted, and never a tool's result. A searcher sees its assignment
          and the results of its own calls: neither the question, unless it is told it, nor the other searchers. Nobody
          is shown the right answer.
Budget    A view may hold 12000 characters (option `budget`), about 3500 tokens; then its seat is asked for a summary,
          and goes on with that. Eight calls in the embedded corpus hold about 5000, in one's own at most 10000 or so.
Rewards   the same for all seats: 1 if the answer is right, else 0, minus `call_cost` (default 0) for each call that the
          team made. Worked: right after 5 calls with call_cost=0.01: +0.95 each; wrong after 5 calls: -0.05 each.
Checking  equal to a name of the answer but for case, punctuation and the words a, an, the; numbers by value alone.
          Signs, symbols (C++) and what joins digits (1/2) count. More than the answer ("Orsk or Yar") or a part of it
          ("Kessel" for "Mira Kessel") is wrong.
Illegal   a call that can't be read or fits no tool, two different calls, a call and a report in one reply, a call when
          none is left, no report; of the lead, lines and an answer in one reply, or neither, a line for a searcher that
          does not exist or has left, a line when no round is left. `forfeit`: a searcher pays 1 and leaves, reports
          nothing, and the others go on; if the lead forfeits, it pays 1 and the game ends unanswered. `skip`: a
          searcher loses the call, or reports nothing if none is left; the lead gives no lines at first, and later no
          answer. A reply cut by the token cap is read as it stands.
Ends      with the lead's answer: "right" or "wrong"; or "no answer".
Hidden    the question (from searchers) and its answer (from all).
Exploits  An answer can be guessed: of the drawn questions one constant answer is right in 1 of 100, of the few heldout
          questions of one hop in 2 of 100. A lead may answer without any search; about a corpus of real texts a model
          may know the answer by heart, about the invented world it can't. Searchers are paid for what the lead does:
          one that reports nothing is paid for the work of the others. What documents and reports say is quoted, with
          broken tags, and can't pass for the game's own words, but it may still persuade its reader. One world has
          few facts: a policy that is trained in it for long learns the articles by heart, and `heldout` questions of
          the same world don't show it; test in another `world`.
          A searcher may guess ids instead of searching; the embedded ones are numbered at random. The wording of the
          drawn questions is a few dozen phrases, which a trained policy may learn as the scripted player knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_arena.arguments import whole
from llm_arena.compaction import SAMPLE
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply, read_tagged, strip_thinking
from llm_arena.problems.final_answers import TAG, fenced, tagged, without_quotes
from llm_arena.problems.research.answers import is_right
from llm_arena.problems.research.corpus import TOOLS, embedded, load, words
from llm_arena.problems.research.lines import (
    count,
    given_question,
    lead_task,
    read_assignments,
    read_report,
    reply_grammar,
    reported,
    request,
    searcher_task,
)
from llm_arena.problems.research.questions import ask, check_settings, draw_question, parse
from llm_arena.problems.research.search import next_step, put_together
from llm_arena.problems.splits import Split
from llm_arena.tool_calls import ToolCall, read_tool_call, write_tool_call
from llm_arena.types import Cause, Json, Move, Outcome, Reply, View

LEAD = "lead_0"
_FOUND = "The answer is "


def scripted(view: View, rng: np.random.Generator) -> str:
    """Follows the question's steps through the articles, for questions in the words of the embedded world."""
    if view.compacting:
        return SAMPLE
    facts = view.facts
    if view.role == "lead" and not facts["alone"]:
        return _lead(facts)
    step = next_step(facts["assignment"], facts["calls"])
    if isinstance(step, ToolCall) and facts["calls_left"]:
        return write_tool_call(step)
    found = step if isinstance(step, str) else None
    if view.role == "lead":
        return tagged(found or "unknown")
    return f"REPORT: {_FOUND}{found}" if found else "REPORT: I did not find it."


def _lead(facts: Json) -> str:
    """Gives the two parts of a difference to different searchers, and a chain to all of them."""
    paths = parse(facts["question"]) or ()
    parts = [ask(path) for path in paths] if len(paths) > 1 and len(facts["searchers"]) > 1 else [facts["question"]]
    found = {
        report["assignment"]: report["report"].removeprefix(_FOUND)
        for report in facts["reports"]
        if (report["report"] or "").startswith(_FOUND)
    }
    missing = [part for part in parts if part not in found]
    if missing and facts["rounds_left"]:
        return "\n".join(f"ASSIGN {n}: {missing[at % len(missing)]}" for at, n in enumerate(facts["searchers"]))
    return tagged((None if missing else put_together([found[part] for part in parts])) or "unknown")


class Research(ArenaEnv):
    """A lead splits a question among searchers, who look things up with tools; the lead answers.

    Args:
        searchers: how many, 0 to 8; 0: the lead searches itself.
        hops: how many facts a drawn question needs, 1 to 3.
        split: where questions are drawn from, `train` or `heldout`.
        question: the question; None draws one of the embedded world.
        answer: its right answer, a text, a number, or a list of texts; given if and only if `question` is.
        world: which world's encyclopaedia, 0 to 2**32 - 1.
        corpus: path of a folder of .txt and .md files or of a file of JSON lines; None: the embedded world.
        corpus_sha256: the digest that the corpus has to have; None: whatever it has.
        max_calls: how many tool calls each searcher has in a round, 1 to 100.
        rounds: how often the lead may assign, 1 to 10; without searchers there are none.
        call_cost: what each call costs everybody; all possible calls together at most 1.
        options: those of `ArenaEnv`.

    Raises:
        UsageError: an argument is out of its range, or the corpus can't be read or has another digest.
        MissingExtra: the extra `research` is not installed.
    """

    id = "research-v0"
    summary = "A lead splits a question among searchers, who look things up with tools; the lead answers."
    roles = {"lead": 1, "searcher": (0, 8)}
    cooperative = True
    hidden: tuple[str, ...] = ("problem",)
    insiders = ("lead",)  # the answer follows from the question and the corpus
    budget = 12_000
    baselines = {"scripted": scripted}
    input_arg = "question"
    label_arg = "answer"

    def __init__(
        self,
        *,
        searchers: int = 2,
        hops: int = 2,
        split: Split = "train",
        question: str | None = None,
        answer: str | int | float | list[str] | None = None,
        world: int = 0,
        corpus: str | None = None,
        corpus_sha256: str | None = None,
        max_calls: int = 8,
        rounds: int = 1,
        call_cost: float = 0.0,
        **options: Any,
    ) -> None:
        check_settings(hops, split, world)
        whole(self.id, "max_calls", max_calls, 1, 100)
        whole(self.id, "rounds", rounds, 1, 10)
        self.given = given_question(question, answer, corpus=corpus, world=world, drawn=(hops, split) != (2, "train"))
        self.corpus = embedded(world) if corpus is None else load(corpus)
        if corpus_sha256 not in (None, self.corpus.sha256):
            raise UsageError(
                f"{self.id}: the corpus {corpus or '(embedded)'} has the sha256 {self.corpus.sha256}, expected is "
                f"{corpus_sha256}; it has changed: restore it, or leave out corpus_sha256"
            )
        several = searchers if isinstance(searchers, int) else 0  # the base class refuses what is no number
        calls = max_calls * (several * rounds or 1)
        turns = calls + 1 + (rounds * (several + 1) if several else 0)
        if options.get("max_turns") is None:
            options["max_turns"] = turns
        super().__init__(counts={"searcher": searchers}, **options)
        if self.max_turns < turns:
            raise UsageError(f"{self.id}: max_turns={self.max_turns}; expected at least {turns}, all calls and reports")
        numeric = isinstance(call_cost, int | float) and not isinstance(call_cost, bool)
        if not numeric or not 0 <= call_cost * calls <= 1:
            limit = f"{1 / calls:g}: {calls} calls cost 1"
            raise UsageError(f"{self.id}: call_cost={call_cost!r:.60}; expected 0 to {limit}")
        self.hops, self.split, self.world = hops, split, world
        self.max_calls, self.rounds, self.call_cost = max_calls, rounds, call_cost
        self.searchers = [seat for seat in self.possible_agents if seat != LEAD]
        if self.given is not None or not self.searchers:
            self.hidden = ()  # nothing is dealt that a seat does not know

    def resolved(self) -> dict[str, Json]:
        """Returns the digest of the corpus."""
        return {"corpus_sha256": self.corpus.sha256}

    def deal(self, rng: np.random.Generator) -> None:
        """Draws the question."""
        self.problem = self.given or draw_question(rng, hops=self.hops, split=self.split, world_seed=self.world)

    def begin(self, rng: np.random.Generator) -> str:
        """Asks the lead."""
        self.deal(rng)
        self.round = 0
        self.calls_made = 0
        self.assigned: dict[str, str] = {}
        self.log: dict[str, list[Json]] = {seat: [] for seat in self.possible_agents}
        self.reports: list[Json] = []
        self.working: list[str] = []
        self.dropped: set[str] = set()
        self.tell(LEAD, f"{lead_task(len(self.searchers), self.max_calls)}\n\n{self._request()}")
        return LEAD

    def knows(self, seat: str) -> Json:
        """Returns the question for the lead, what it was told for a searcher."""
        return self.problem.text if seat == LEAD else self.assigned.get(seat)

    def tools(self, seat: str) -> list[Json]:
        """Returns `search` and `open`, for a seat that searches and has calls left."""
        searches = seat in self.working or not self.searchers
        return TOOLS if searches and seat in self.pending and self._calls_left(seat) else []

    def grammar(self, seat: str) -> Json:
        """Returns a regular expression of the replies that are legal now."""
        leads = seat == LEAD
        assign = self._assignable() if leads else []
        return reply_grammar(calls=bool(self.tools(seat)), report=not leads, answer=leads, assign=assign)

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """Draws a search for one word of the task, a document, a report of nothing, or a title as answer."""
        task = self.problem.text if seat == LEAD else self.assigned.get(seat, "")
        known = words(task) or ["all"]
        numbers = self._assignable() if seat == LEAD else []
        if numbers and rng.random() < 0.8:
            return "\n".join(f"ASSIGN {number}: {_draw(known, rng)}" for number in numbers)
        documents = list(self.corpus.documents.values())
        if self.tools(seat) and rng.random() < 0.8:
            if rng.random() < 0.5:
                return write_tool_call(ToolCall("search", {"query": _draw(known, rng)}))
            return write_tool_call(ToolCall("open", {"id": documents[int(rng.integers(len(documents)))].id}))
        if seat == LEAD:
            title = documents[int(rng.integers(len(documents)))].title
            return tagged(" ".join(words(title))[:100] or "unknown")
        return "REPORT: I found nothing certain."

    def facts(self, seat: str) -> Json:
        """Returns the seat's task, its calls with their results, and for the lead who is there and was reported."""
        mine = {"calls": [list(call) for call in self.log[seat]], "calls_left": self._calls_left(seat)}
        if seat != LEAD:
            return {"assignment": self.assigned.get(seat), **mine}
        return {
            "question": self.problem.text,
            "assignment": self.problem.text,
            "alone": not self.searchers,
            "searchers": [self._number(other) for other in self._there()],
            "reports": [dict(report) for report in self.reports],
            "rounds_left": self.rounds - self.round,
            **mine,
        }

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes assignments or the answer of the lead, a call or a report of a searcher."""
        text = strip_thinking(reply)
        own = Reply(without_quotes(text), reply.finish)
        call = read_tool_call(own, TOOLS) if seat != LEAD or not self.searchers else None
        if call is not None and not self._calls_left(seat):
            raise IllegalReply(Cause.ILLEGAL, f"You have no calls left. {self._form(seat)}")
        if seat != LEAD:
            return self._searched(seat, call, text)
        answer, lines = read_tagged(own, TAG), read_assignments(own)
        if (answer is not None) + bool(lines) + (call is not None) > 1:
            raise IllegalReply(Cause.AMBIGUOUS, f"Do one thing at a time. {self._form(seat)}")
        if call is not None:
            self._use(LEAD, call)
            self._tell_result(LEAD)
            return Move(next=LEAD, action={"tool": call.name, **call.arguments})
        if answer is not None:
            right = is_right(answer, self.problem.answers)
            return self._end_with("right" if right else "wrong", {"answer": answer})
        if not lines:
            raise IllegalReply(Cause.UNPARSABLE, self._form(seat))
        if set(lines) - set(self._assignable()):
            raise IllegalReply(Cause.ILLEGAL, f"You can't assign that. {self._form(seat)}")
        return self._assign(lines)

    def forfeit(self, seat: str, cause: Cause) -> Move:
        """A searcher pays and leaves, and the others go on; without the lead's answer the game ends."""
        if self.overflow_seat == seat:  # which ends the game
            return Move(rewards={seat: -self.forfeit_cost})
        if seat == LEAD:
            return self._end_with(f"no answer: {seat} gave {cause} reply", None, forfeiter=seat)
        self._report(seat, None)
        self.dropped.add(seat)
        return self._go_on(seat, None)

    def skip(self, seat: str) -> Move:
        """A searcher loses a call, or reports nothing; the lead gives no lines, or no answer."""
        alone = not self.searchers
        if (seat != LEAD or alone) and self._calls_left(seat):
            self.log[seat].append([None, {}, "You called nothing."])
        elif seat != LEAD:
            self._report(seat, None)
        elif alone or self.round:
            return self._end_with("no answer", None)
        else:
            return self._assign({})
        if seat != LEAD:
            return self._go_on(seat, None)
        self._tell_result(LEAD)
        return Move(next=LEAD)

    def describe(self) -> str:
        """Returns the question, and once the game is over its answer and where it stands."""
        lines = [f"question: {self.problem.text}"]
        if self.over:
            lines.append(f"right answer: {self.problem.answers[0]}")
            lines += [f"stands in: {'; '.join(self.problem.evidence)}"] if self.problem.evidence else []
        return "\n".join(lines)

    def _assignable(self) -> list[int]:
        """Returns the numbers of the searchers that may be given a task now: none once the rounds are used up."""
        return [self._number(seat) for seat in self._there()] if self.round < self.rounds else []

    def _there(self) -> list[str]:
        return [seat for seat in self.searchers if seat not in self.dropped]

    def _number(self, seat: str) -> int:
        return self.searchers.index(seat) + 1

    def _calls_left(self, seat: str) -> int:
        return self.max_calls - len(self.log[seat])

    def _form(self, seat: str) -> str:
        """Returns in words what `seat` may write now."""
        ways = ["call one tool"] if (seat != LEAD or not self.searchers) and self._calls_left(seat) else []
        if seat != LEAD:
            ways.append("write REPORT: and what you found")
        else:
            ways += ["write lines like ASSIGN 1: find it"] if self._assignable() else []
            ways.append(f"write the answer between <{TAG}> and </{TAG}>")
        text = " or ".join(ways)
        return f"{text[0].upper()}{text[1:]}."

    def _request(self) -> str:
        return request(self.problem.text, self._assignable(), alone=not self.searchers)

    def _assign(self, lines: dict[int, str]) -> Move:
        """Gives each searcher its task, in a fresh view."""
        self.working = [self.searchers[number - 1] for number in self._assignable()]
        self.round += 1
        for seat in self.working:
            self.assigned[seat] = lines.get(self._number(seat), self.problem.text)
            self.log[seat] = []
            task = searcher_task(self.assigned[seat], self.max_calls)
            self.replace_view(seat, [{"role": "user", "content": task}])
        return Move(next=self.working, action={"assign": {str(number): line for number, line in lines.items()}})

    def _searched(self, seat: str, call: ToolCall | None, text: str) -> Move:
        report = read_report(text)
        if call is not None and report:
            raise IllegalReply(Cause.AMBIGUOUS, f"Do one thing at a time. {self._form(seat)}")
        if call is not None:
            self._use(seat, call)
            return self._go_on(seat, {"tool": call.name, **call.arguments})
        if not report:
            raise IllegalReply(Cause.UNPARSABLE, self._form(seat))
        self._report(seat, report)
        return self._go_on(seat, {"report": report})

    def _use(self, seat: str, call: ToolCall) -> None:
        self.calls_made += 1
        self.log[seat].append([call.name, call.arguments, self.corpus.call(call.name, call.arguments)])

    def _tell_result(self, seat: str) -> None:
        name, _, result = self.log[seat][-1]
        left = self._calls_left(seat)
        shown = fenced(result) if name else result
        text = f"{shown}\n\n{count(left, 'call')} left. {self._form(seat)}"
        self.tell(seat, text, role="tool" if name else "user")

    def _report(self, seat: str, report: str | None) -> None:
        self.working.remove(seat)
        told = {"searcher": self._number(seat), "assignment": self.assigned[seat], "report": report}
        self.reports.append({"round": self.round, **told})

    def _go_on(self, seat: str, action: Json) -> Move:
        """Ends the phase if `seat` was its last: tells the results, or the reports once all are in."""
        rewards, leaves = ({seat: -self.forfeit_cost}, [seat]) if seat in self.dropped else ({}, [])
        if self.pending != [seat]:
            return Move(action=action, rewards=rewards, leaves=leaves)
        for other in self.working:
            self._tell_result(other)
        if not self.working:
            told = reported([report for report in self.reports if report["round"] == self.round])
            self.tell(LEAD, f"{told}\n\n{self._request()}")
        return Move(next=self.working or LEAD, action=action, rewards=rewards, leaves=leaves)

    def _end_with(self, reason: str, action: Json, *, forfeiter: str = "") -> Move:
        score = float(reason == "right")
        seats = [LEAD, *self._there()]
        rewards = dict.fromkeys(seats, score - self.call_cost * self.calls_made)
        if forfeiter:
            rewards[forfeiter] = -self.forfeit_cost
        scores = dict.fromkeys(self.possible_agents, score)
        outcome = Outcome(winners=seats if score else [], reason=reason, scores=scores)
        return Move(rewards=rewards, outcome=outcome, action=action)


def _draw(items: Sequence[str], rng: np.random.Generator) -> str:
    return items[int(rng.integers(len(items)))]
