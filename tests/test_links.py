"""Who heard whom: games worked by hand, and texts that stand somewhere by chance."""

from __future__ import annotations

from pathlib import Path

import pytest

import llm_arena
from llm_arena.links import _FEW, _Index, links, sequence_links
from llm_arena.recorder import sequences
from llm_arena.report import write_report
from llm_arena.trace_file import read_traces
from llm_arena.types import Action, EnvSpec, Reply, SeatInfo, Trace, Turn

NOTES = "Notes to myself, said by nobody else: novels lead nowhere."


class Script:
    """Says its lines, one a turn, and the same summary wherever one is asked for."""

    name, policy = "script", None

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    async def act(self, view, past):
        said = sum(turn.reply != NOTES for turn in past)
        return Action(reply=Reply(NOTES if view.compacting else self._lines[said]))


def play(game, lines, **kwargs):
    return llm_arena.play(llm_arena.make(game, **kwargs), {seat: Script(*said) for seat, said in lines.items()}, seed=1)


def talk(*turns, **info):
    """A trace of turns (seat, told, reply), e.g. ("a_0", "Hello.", "Hi."); what is told is one message or several."""
    trace = Trace(id="t", spec=EnvSpec(id="x"), seed=0, seats={})
    for index, (seat, told, reply, *rest) in enumerate(turns):
        trace.seats[seat] = SeatInfo(role=seat[:-2], agent="x")
        messages = [{"role": "user", "content": text} for text in ([told] if isinstance(told, str) else told)]
        trace.turns.append(Turn(index=index, seat=seat, text=reply, messages=messages, **dict(*rest)))
    return trace


def test_kuhn_poker_word_for_word():
    trace = play("kuhn-poker-v0", {"player_0": ["check", "call"], "player_1": ["bet"]})
    assert [turn.text for turn in trace.turns] == ["check", "bet", "call"]
    assert links(trace) == {1: [0], 2: [1]}


def test_a_thinker_and_a_verifier():
    said = {
        "thinker_0": [
            "<think>hm 17</think>It is 4. <final_answer>4</final_answer>",
            "It is 5. <final_answer>5</final_answer>",
        ],
        "verifier_0": ["That looks odd to me.", "Now it is right.\n<final_answer>5</final_answer>"],
    }
    trace = play("thinker-verifier-v0", said, problem="What is 2 + 3?", answer="5", max_turns=6)
    assert [turn.seat[0] for turn in trace.turns] == ["t", "v", "t", "v"]
    assert links(trace) == {1: [0], 2: [1], 3: [2]}


def test_solvers_that_say_the_same_rewriters_and_a_selector():
    said = {f"solver_{k}": [f"I get {k // 2}. <final_answer>{k // 2}</final_answer>"] for k in range(4)}
    said |= {f"rewriter_{k}": [f"I get {k // 2}. <final_answer>{k // 2}</final_answer>"] for k in range(4)}
    trace = play("solver-rewriter-selector-v0", said | {"selector_0": ["1"]}, num_parallel=4)
    found = links(trace)
    # solvers hear nobody; rewriters hear all solvers, and no rewriter that says the same; the selector only rewriters
    assert found == {4: [0, 1, 2, 3], 5: [0, 1, 2, 3], 6: [0, 1, 2, 3], 7: [0, 1, 2, 3], 8: [4, 5, 6, 7]}


def test_research_with_fresh_sub_agents_and_compaction():
    call = '<tool_call>{"name": "search", "arguments": {"query": "%s"}}</tool_call>'
    said = {
        "lead_0": [
            "ASSIGN 1: find out who wrote it\nASSIGN 2: find out where that was printed",
            "ASSIGN 1: look into the year of the flood\nASSIGN 2: look for the bridge at Keshick",
            "<final_answer>unknown</final_answer>",
        ],
        "searcher_0": [
            call % "novel",
            "REPORT: nobody knows who did it",
            "REPORT: the flood was in 1834",
        ],
        "searcher_1": ["REPORT: a printer in Ombruva, I think", "REPORT: there is no such bridge"],
    }
    trace = play("research-v0", said, question="Who?", answer="Me", rounds=2, budget=900)
    seats = [(turn.seat, turn.view_epoch) for turn in trace.turns]
    assert seats == [
        ("lead_0", 0),
        ("searcher_0", 1),
        ("searcher_1", 1),
        ("searcher_0", 1),  # a summary
        ("searcher_0", 2),
        ("lead_0", 0),
        ("searcher_0", 3),
        ("searcher_1", 2),
        ("lead_0", 0),  # a summary
        ("lead_0", 1),
    ]
    assert links(trace) == {
        1: [0],
        2: [0],
        4: [0, 3],  # its task again, and its own summary
        5: [2, 4],  # the reports
        6: [5],  # a new sub-agent, which remembers nothing
        7: [5],
        8: [6, 7],
        9: [5, 6, 7, 8],  # its summary, and the reports again, which repeat what was assigned
    }


def test_a_debate_whose_judge_hears_all_at_the_end():
    trace = llm_arena.play(llm_arena.make("debate-v0", judge="seat", judges=1), "random-legal", seed=3)
    sides = [turn.index for turn in trace.turns if turn.seat != "judge_0"]
    verdicts = [turn.index for turn in trace.turns if turn.seat == "judge_0"]
    found = links(trace)
    assert len(sides) == 4 and len(verdicts) >= 1
    assert [found.get(index, []) for index in sides] == [[], [0], [1], [2]]
    assert all(found[index] == sides for index in verdicts)  # and not its own verdict on the other order


def test_a_word_of_the_rules_is_no_link():
    rules = "In each round say cooperate or defect."
    trace = talk(
        ("a_0", rules, "defect"), ("b_0", rules, "defect"), ("a_0", "You get 1. Say cooperate or defect.", "defect")
    )
    assert links(trace) == {}
    shown = talk(("a_0", rules, "defect"), ("b_0", rules, "defect"), ("a_0", "b_0: defect. You get 1.", "defect"))
    assert links(shown) == {2: [1]}


def test_a_list_of_seats_is_no_vote():
    asked = "Vote for one of a_0, b_0, c_0."
    assert links(talk(("a_0", asked, "b_0"), ("b_0", asked, "c_0"), ("c_0", asked, "b_0"))) == {}
    told = talk(("a_0", asked, "b_0"), ("b_0", asked, "a_0"), ("c_0", ["Votes: a_0 for b_0, b_0 for nobody."], "b_0"))
    assert links(told) == {2: [0]}


def test_what_was_told_before_a_reply_does_not_hold_it():
    problem = "What is the sum of two and two?"
    assert links(talk(("a_0", problem, "the sum of two and two"), ("b_0", problem, "four"))) == {}


def test_a_text_that_stands_there_once_is_one_turn_s():
    said = "The river is deep and cold."
    once = talk(("a_0", "Go.", said), ("b_0", "Go on.", said), ("c_0", f"You hear:\n> {said}", "ok"))
    assert links(once) == {2: [1]}  # the latest
    twice = talk(("a_0", "Go.", said), ("b_0", "Go on.", said), ("c_0", f"You hear:\n> {said}\n> {said}", "ok"))
    assert links(twice) == {2: [0, 1]}


def test_a_turn_is_heard_once_in_a_view():
    said = "The river is deep and cold."
    trace = talk(("a_0", "Go.", said), ("b_0", f"> {said}", "yes"), ("a_0", "Go.", said), ("b_0", f"> {said}", "yes"))
    assert links(trace) == {1: [0], 3: [2]}


@pytest.mark.parametrize(
    "reply, told",
    [
        ("<think>secret plan</think> We meet at the old mill.", "b says: we meet at the old mill"),
        ("We  meet\nat the old mill.", "> We meet at\n> the old mill."),
        ("Meet me.\nMOVE: 4", "The other says:\n> Meet me.\nIt played elsewhere."),
        (
            "<final_answer>nine lives of a cat</final_answer>",
            "Its answer: <·final_answer>nine lives of a cat<·/final_answer>",
        ),
        ("word " * 29 + "and a very long tail of it", "> " + "word " * 29 + "and… (22 more characters)"),
        ("我同意这个看法但是我们应该再想一想", "另一个人说\n> 我同意这个看法但是我们应该再想一想"),
    ],
)
def test_how_games_pass_on_what_was_said(reply, told):
    assert links(talk(("a_0", "Go.", reply), ("b_0", told, "x"))) == {1: [0]}


@pytest.mark.parametrize(
    "reply, told", [("yes", "There is no yes in it."), ("", "Go."), ("...", "..."), ("4", "14 of 42")]
)
def test_what_says_nothing_is_no_link(reply, told):
    assert links(talk(("a_0", "Go.", reply), ("b_0", told, "x"))) == {}


def test_what_is_thought_is_not_heard():
    trace = talk(
        ("a_0", "Go.", "<think>the treasure is below the oak</think>pass"),
        ("b_0", "the treasure is below the oak", "x"),
    )
    assert links(trace) == {}


def with_ids(*turns):
    """A trace of one seat's turns (told, reply, extends)."""
    rows = []
    for number, (told, reply, extends) in enumerate(turns):
        ids = dict(extends=extends, prompt_ids=[number], completion_ids=[100 + number], logprobs=[-1.0])
        rows.append(("a_0", told, reply, ids))
    return talk(*rows)


def test_replies_that_a_template_prints_anew_belong_to_another_stream():
    goes_on = with_ids(("Go.", "one", None), ("Next.", "two", 0), ("Next.", "three", 1))
    assert links(goes_on) == {} and sequence_links(goes_on) == [[]]
    anew = with_ids(("Go.", "one", None), ("Next.", "two", None), ("Next.", "three", 1))
    assert links(anew) == {1: [0]}
    assert [one.turns for one in sequences(anew)] == [[0], [1, 2]]
    assert sequence_links(anew) == [[], [0]]


def test_links_of_sequences_follow_those_of_their_turns():
    said = "The river is deep and cold."
    ids = {"completion_ids": [2], "logprobs": [-1.0]}
    trace = talk(
        ("a_0", "Go.", said, {"prompt_ids": [1], **ids}),
        ("b_0", f"> {said}", "I know that much already.", {"prompt_ids": [1], **ids}),
        ("a_0", "> I know that much already.", "Then swim across it.", {"prompt_ids": [1, 2, 3], **ids}),
        ("b_0", "> Then swim across it.", "no", {"prompt_ids": [4], "extends": 1, **ids}),
        ("c_0", "Nobody tells you anything.", "ok", {"prompt_ids": [1], **ids}),
    )
    assert links(trace) == {1: [0], 2: [0, 1], 3: [2]}  # turn 2 was rendered anew
    assert [(one.seat, one.turns) for one in sequences(trace)] == [
        ("a_0", [0]),
        ("a_0", [2]),
        ("b_0", [1, 3]),
        ("c_0", [4]),
    ]
    assert sequence_links(trace) == [[], [0, 2], [0, 1], []]


def test_every_recorded_game_gives_earlier_turns_only():
    for file in sorted((Path(__file__).parent / "golden").glob("*.jsonl")):
        for trace in read_traces(file):
            for turn, heard in links(trace).items():
                assert heard == sorted(set(heard)) and all(0 <= other < turn for other in heard)


def test_the_page_of_a_run_shows_links(tmp_path):
    for seed in range(2):
        llm_arena.play("debate-v0", seed=seed, traces=tmp_path / "traces.jsonl")
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert page.count("· shown 1<") == page.count("· shown 2<") == page.count("· shown 3<") == 2


@pytest.mark.parametrize("told, heard", [("solver_0: {}", [0]), ("solver_1 said:\n> {}", [1]), ("> {}", [1])])
def test_of_equal_replies_the_one_that_is_named_was_heard(told, heard):
    for said in ("It is four, because two and two are.", "4"):
        quoted = told.format(said)
        trace = talk(("solver_0", "Go.", said), ("solver_1", "Go.", said), ("selector_0", quoted, "ok"))
        assert links(trace) == {2: heard}


@pytest.mark.parametrize("told", ["did not bet", "may bet", "has to bet", "never bets", "or bet"])
def test_what_a_seat_did_not_say_is_no_link(told):
    assert links(talk(("a_0", "Go.", "bet"), ("b_0", f"Now a_0 {told}", "x"))) == {}
    assert links(talk(("a_0", "Go.", "bet"), ("b_0", "Now a_0 only bets", "x"))) == {1: [0]}


class Answers:
    """Answers by role; a callable gets the last message."""

    name, policy = "answers", None

    def __init__(self, **said) -> None:
        self._said = said

    async def act(self, view, past):
        said = self._said[view.role]
        return Action(reply=Reply(said(view.messages[-1]["content"]) if callable(said) else said))


def run(harness, **said):
    return llm_arena.play(harness=harness, sample={}, agents={"*": Answers(**said)}, seed=0)


TASK = "What is the sum of two and two?\nEnd with your answer."


async def pipeline(ctx, sample):
    def numbered(replies):
        return "\n\n".join(f"Solution {number}:\n{reply}" for number, reply in enumerate(replies, start=1))

    solved = [await ctx.call("solver", TASK) for _ in range(2)]
    rewritten = [await ctx.call("rewriter", f"{TASK}\n\n{numbered(solved)}\n\nDo better.") for _ in range(2)]
    await ctx.call("selector", f"{TASK}\n\n{numbered(rewritten)}\n\nWhich is right?")
    return 1.0


@pytest.mark.parametrize(
    "solver, rewriter",
    [
        ("It is surely four, I think.", "Four it is, says arithmetic."),
        ("It is surely four, I think.", "It is surely four, I think."),  # copied
        ("4", "4"),
        ("What is the sum of two and two?", "Four it is, says arithmetic."),  # a line of the task, which all are told
    ],
)
def test_a_harness_of_solvers_rewriters_and_a_selector(solver, rewriter):
    trace = run(pipeline, solver=solver, rewriter=rewriter, selector="1")
    assert links(trace) == {2: [0, 1], 3: [0, 1], 4: [2, 3]}


def test_a_line_of_a_harness_s_own_prompt_is_no_link():
    async def in_three_styles(ctx, sample):
        for style in range(3):
            await ctx.call("solver", f"{TASK}\nWrite in style {style}.")
        return 1.0

    assert links(run(in_three_styles, solver=TASK.splitlines()[0])) == {}


def test_conversations_of_a_harness_that_talk_to_each_other():
    async def visit(ctx, sample):
        doctor = [{"role": "user", "content": "A patient comes in."}]
        patient = [{"role": "user", "content": "You have a cold."}]
        for _ in range(2):
            for role, own, other in (("doctor", doctor, patient), ("patient", patient, doctor)):
                said = await ctx.call(role, own)
                own.append({"role": "assistant", "content": said})
                other.append({"role": "user", "content": said})
        return 1.0

    for said in (
        {"doctor": "Where does it hurt you now?", "patient": "In my nose, mostly."},
        dict(doctor="ok", patient="no"),
    ):
        trace = run(visit, **said)
        assert [turn.seat for turn in trace.turns] == ["doctor_0", "patient_0"] * 2
        assert links(trace) == {1: [0], 2: [1], 3: [2]}


@pytest.mark.parametrize("reply", ["yes", "A reply that is long enough to be known."])
def test_a_branch_of_a_harness_is_shown_the_reply_that_it_goes_on_from(reply):
    async def branches(ctx, sample):
        first = [{"role": "user", "content": "Begin."}]
        said = await ctx.call("solver", first)
        await ctx.call("critic", f"What is wrong here?\n{said}")  # says the same
        for way in ("left", "right"):
            answer = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": f"Go {way}."}]
            await ctx.call("solver", answer)
        return 1.0

    trace = run(branches, solver=lambda last: reply if last == "Begin." else last, critic=reply)
    assert [turn.seat for turn in trace.turns] == ["solver_0", "critic_0", "solver_0", "solver_1"]
    assert links(trace) == {1: [0], 3: [0]}


def test_thousands_of_lines_are_told_apart():
    """Each turn has 1,000 lines of its own, and is told those of the four before it."""

    def reply(turn):
        return "\n".join(f"{turn} {line}" for line in range(1000))

    turns = [
        (f"p_{index % 4}", "\n".join(f"p_{other % 4}: {reply(other)}" for other in range(max(0, index - 4), index)))
        for index in range(60)
    ]
    trace = talk(*((seat, told, reply(index)) for index, (seat, told) in enumerate(turns)))
    assert {index: heard[-3:] for index, heard in links(trace).items()} == {
        index: list(range(max(0, index - 3), index)) for index in range(1, 60)
    }


def test_an_index_knows_words_and_neighbours_of_all_it_was_given():
    index = _Index(" a  b ")
    for _ in range(_FEW):
        assert index.may_hold(frozenset(["z"]))  # searched after all
    index.text += " c "
    assert index.may_hold(frozenset([("a", "b"), ("b", "c")])) and not index.may_hold(frozenset([("a", "c")]))
    index.text += " a  c "
    assert index.may_hold(frozenset([("a", "c"), ("c", "a")])) and not index.may_hold(frozenset(["z"]))
    assert index.may_hold_any(("z", "c")) and not index.may_hold_any(("z", "y"))
