"""research-v0: assignments, searches, reports, the answer, what is paid, and the scripted players."""

import re

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import llm_arena
from llm_arena.errors import UsageError
from llm_arena.parsing import quote
from llm_arena.problems.research.corpus import embedded
from llm_arena.types import Cause, Reply
from research_parts import ASKED, ASSIGN, OPEN, RIGHT, SEARCH, WRONG, Research, begun, call, play, task, told

# ---- the course of the game, and what is paid --------------------------------------------------------------------


def test_a_right_answer_pays_everybody_one_and_a_wrong_one_nothing():
    for answer, paid in ((RIGHT, 1.0), (WRONG, 0.0)):
        env = begun(ASSIGN, SEARCH, OPEN, OPEN, "REPORT: nothing", "REPORT: the Ivet", answer)
        assert env.over and env.returns == dict.fromkeys(env.possible_agents, paid)
        assert env.outcome.reason == ("right" if paid else "wrong")
        assert env.outcome.winners == (env.possible_agents if paid else [])
        assert env.outcome.scores == dict.fromkeys(env.possible_agents, paid)


def test_calls_cost_everybody_what_the_documentation_says():
    calls = [ASSIGN, SEARCH, SEARCH, OPEN, OPEN, OPEN, "REPORT: nothing", "REPORT: the Ivet"]
    assert begun(*calls, RIGHT, call_cost=0.01).returns == pytest.approx(
        dict.fromkeys(Research().possible_agents, 0.95)
    )
    assert begun(*calls, WRONG, call_cost=0.01).returns == pytest.approx(
        dict.fromkeys(Research().possible_agents, -0.05)
    )


def test_the_lead_may_answer_at_once():
    env = begun(RIGHT)
    assert env.over and env.returns == {"lead_0": 1.0, "searcher_0": 1.0, "searcher_1": 1.0}


def test_searchers_act_at_once_and_learn_their_results_after_the_phase():
    env = begun(ASSIGN)
    assert env.pending == ["searcher_0", "searcher_1"]
    env.step(SEARCH)
    assert env.pending == ["searcher_1"] and told(env, "searcher_0")[-1][0] == "assistant"
    env.step(OPEN)
    assert env.pending == ["searcher_0", "searcher_1"]
    role, result = told(env, "searcher_0")[-1]
    assert role == "tool" and result == (
        quote(embedded().search("river Ildrmere"))
        + "\n\n7 calls left. Call one tool or write REPORT: and what you found."
    )
    role, result = told(env, "searcher_1")[-1]
    assert role == "tool" and result.startswith("> [d136] Ildrmere\n> Ildrmere is a market town")


def test_who_has_reported_waits_for_the_others():
    env = begun(ASSIGN, "REPORT: I know it already", SEARCH)
    assert env.pending == ["searcher_1"]
    env.step("REPORT: the Ivet")
    assert env.pending == ["lead_0"]
    last = told(env, "lead_0")[-1][1]
    assert last.startswith(
        "Searcher 1, asked: find Ildrmere\nreported:\n> I know it already\n\n"
        "Searcher 2, asked: find its river\nreported:\n> the Ivet\n\nQuestion: What runs through Ildrmere?"
    )
    assert "ASSIGN" not in last and "<final_answer>" in last


def test_a_searcher_without_a_line_is_told_the_whole_question_and_the_last_line_counts():
    env = begun("Let me see.\nASSIGN 2: no\n**ASSIGN 2:** find   its river\n")
    assert task(env, "searcher_0") == "What runs through Ildrmere?"
    assert task(env, "searcher_1") == "find its river"


def test_after_the_last_call_only_a_report_is_left():
    env = begun(ASSIGN, SEARCH, SEARCH, OPEN, OPEN, max_calls=2, retries=1)
    assert told(env, "searcher_0")[-1][1].endswith("0 calls left. Write REPORT: and what you found.")
    assert env.tools("searcher_0") == [] and "tool_call" not in env.grammar("searcher_0")
    env.step(SEARCH)
    assert env.last_step.cause is Cause.ILLEGAL and env.attempt("searcher_0") == 1
    env.step("REPORT: the Ivet")
    env.step("REPORT: the Ivet")
    assert env.pending == ["lead_0"]


def test_another_round_begins_afresh():
    env = begun("ASSIGN 1: find Ildrmere", SEARCH, "REPORT: a", "REPORT: b", rounds=2)
    assert "ASSIGN 1: what searcher 1" in told(env, "lead_0")[-1][1]
    env.step("ASSIGN 2: find the Ivet")
    assert task(env, "searcher_1") == "find the Ivet" and len(told(env, "searcher_1")) == 1
    assert task(env, "searcher_0") == ASKED["question"] and len(told(env, "searcher_0")) == 1
    assert env.facts("searcher_0") == {"assignment": ASKED["question"], "calls": [], "calls_left": 8}
    env.step("REPORT: c")
    env.step("REPORT: d")
    last = told(env, "lead_0")[-1][1]
    assert "\n> c\n" in last and "\n> a\n" not in last and "ASSIGN" not in last
    env.step(RIGHT)
    assert env.returns["searcher_1"] == 1.0


def test_a_single_agent_searches_itself():
    env = begun(SEARCH, OPEN, searchers=0)
    assert env.possible_agents == ["lead_0"] and told(env, "lead_0")[-1][0] == "tool"
    assert [tool["name"] for tool in env.tools("lead_0")] == ["search", "open"]
    env.step(RIGHT)
    assert env.returns == {"lead_0": 1.0}
    env = begun(SEARCH, OPEN, searchers=0, max_calls=2)
    assert env.tools("lead_0") == [] and told(env, "lead_0")[-1][1].endswith(
        "0 calls left. Write the answer between <final_answer> and </final_answer>."
    )


def test_calls_that_find_nothing_are_legal_and_say_so():
    env = begun(ASSIGN, call("open", id="nope"), call("search", query=" "), call("open", id="d136", page=9), SEARCH)
    assert "There is no document 'nope'" in told(env, "searcher_0")[2][1]
    assert "Nothing found" in told(env, "searcher_1")[2][1]
    assert "there is no page 9" in told(env, "searcher_0")[-1][1]
    assert env.calls_made == 4


def test_max_turns_leaves_room_for_all_calls_and_less_is_refused():
    env = llm_arena.make("research-v0", searchers=2, max_calls=3, rounds=2, retries=1)
    assert env.max_turns == 1 + 2 * (2 * (3 + 1) + 1)
    for seed in range(3):
        env.reset(seed=seed)
        while not env.over:  # everybody uses every call and every retry
            seat = env.agent_selection
            usual = "ASSIGN 1: find it" if seat == "lead_0" else OPEN
            last = "<final_answer>x</final_answer>" if seat == "lead_0" else "REPORT: nothing"
            can = env._assignable() if seat == "lead_0" else env.tools(seat)
            env.step("hm" if env.attempt(seat) == 0 else usual if can else last)
        assert env.outcome is not None and env.outcome.reason == "wrong" and env.turns == env.max_turns
    with pytest.raises(UsageError, match="max_turns=18; expected at least 19"):
        llm_arena.make("research-v0", searchers=2, max_calls=3, rounds=2, retries=1, max_turns=18)


# ---- replies that are none ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply, cause",
    [
        ("I would look up the river.", Cause.UNPARSABLE),
        ("REPORT:", Cause.UNPARSABLE),
        ("I will REPORT: in a moment", Cause.UNPARSABLE),
        ('<tool_call>{"name": "search"', Cause.UNPARSABLE),
        ("<tool_call>search Ildrmere</tool_call>", Cause.UNPARSABLE),
        (call("find", query="x"), Cause.ILLEGAL),
        (call("search", query=3), Cause.ILLEGAL),
        (call("search"), Cause.ILLEGAL),
        (call("open", id="d136", page="two"), Cause.ILLEGAL),
        (SEARCH + OPEN, Cause.AMBIGUOUS),
        (SEARCH + "\nREPORT: the Ivet", Cause.AMBIGUOUS),
        ("<think>" + SEARCH + "</think>", Cause.UNPARSABLE),
        ("<think>REPORT: the Ivet", Cause.UNPARSABLE),
    ],
)
def test_a_searcher_that_fails_drops_out_and_the_other_goes_on(reply, cause):
    env = begun(ASSIGN, reply)
    assert env.last_step.cause is cause and env.returns["searcher_0"] == -1.0
    assert env.pending == ["searcher_1"] and env.terminations["searcher_0"]
    env.step(None)  # the seat's removal
    env.step(SEARCH)
    assert env.pending == ["searcher_1"] and told(env, "searcher_1")[-1][0] == "tool"
    env.step("REPORT: the Ivet")
    assert "Searcher 1, asked: find Ildrmere\nreported nothing.\n\nSearcher 2" in told(env, "lead_0")[-1][1]
    env.step(RIGHT)
    assert env.returns == {"lead_0": 1.0, "searcher_0": -1.0, "searcher_1": 1.0}
    assert env.outcome.winners == ["lead_0", "searcher_1"]


def test_thoughts_before_a_call_do_not_count():
    env = begun(ASSIGN, f"<think>{OPEN} REPORT: x</think>I look.\n{SEARCH}")
    assert env.last_step.action == {"tool": "search", "query": "river Ildrmere"}


def test_reports_belong_to_their_searchers_when_one_fails():  # radixark/miles issue #2800
    tasks = "\n".join(f"ASSIGN {n}: task {n}" for n in range(1, 6))
    env = begun(tasks, searchers=5, rounds=2)
    for seat in env.possible_agents[1:]:
        if seat == "searcher_2":
            env.step("")
            env.step(None)
        else:
            env.step(f"REPORT: by {seat}")
    last = told(env, "lead_0")[-1][1]
    for n in (1, 2, 4, 5):
        assert f"Searcher {n}, asked: task {n}\nreported:\n> by searcher_{n - 1}\n" in last
    assert "Searcher 3, asked: task 3\nreported nothing." in last and "ASSIGN 3" not in last and "ASSIGN 4" in last
    again = env.clone()
    again.step("ASSIGN 3: go on")  # it has left
    assert again.last_step.cause is Cause.ILLEGAL and again.over
    env.step("ASSIGN 4: go on")
    assert env.pending == ["searcher_0", "searcher_1", "searcher_3", "searcher_4"]
    for _ in range(4):
        env.step("REPORT: nothing")
    env.step(RIGHT)
    assert env.returns == dict.fromkeys(env.possible_agents, 1.0) | {"searcher_2": -1.0}


def test_when_the_last_to_answer_fails_the_phase_still_ends():
    env = begun(ASSIGN, SEARCH, "")
    env.step(None)
    assert env.pending == ["searcher_0"] and told(env, "searcher_0")[-1][0] == "tool"


def test_when_all_searchers_have_left_the_lead_still_answers():
    env = begun(ASSIGN, "", rounds=3)
    for _ in range(3):
        env.step(None if env.terminations.get(env.agent_selection) else "")
    assert env.pending == ["lead_0"] and "ASSIGN" not in told(env, "lead_0")[-1][1]
    env.step(RIGHT)
    assert env.returns == {"lead_0": 1.0, "searcher_0": -1.0, "searcher_1": -1.0}


@pytest.mark.parametrize(
    "reply, cause",
    [
        ("I think it is the Ivet.", Cause.UNPARSABLE),
        ("<final_answer></final_answer>", Cause.UNPARSABLE),  # PeterGriffinJin/Search-R1 issue #79
        ("<final_answer>Ivet", Cause.UNPARSABLE),
        ("ASSIGN 1:", Cause.UNPARSABLE),
        ("ASSIGN 3: find it", Cause.ILLEGAL),
        ("ASSIGN 0: find it", Cause.ILLEGAL),
        ("ASSIGN 1: find it\n" + RIGHT, Cause.AMBIGUOUS),
        ("<think>" + RIGHT + "</think>", Cause.UNPARSABLE),
        (SEARCH, Cause.UNPARSABLE),
    ],
)
def test_a_lead_that_fails_ends_the_game_unanswered(reply, cause):
    env = begun(reply)
    assert env.last_step.cause is cause and env.over
    assert env.returns == {"lead_0": -1.0, "searcher_0": 0.0, "searcher_1": 0.0}
    assert env.outcome.reason == f"no answer: lead_0 gave {cause} reply" and env.outcome.winners == []


def test_a_lead_without_rounds_cannot_assign():
    env = begun(ASSIGN, "REPORT: a", "REPORT: b", ASSIGN)
    assert env.last_step.cause is Cause.ILLEGAL and env.over


def test_the_example_in_the_instructions_is_no_answer_and_two_answers_never_both_count():
    env = begun()
    assert "<final_answer>" in told(env, "lead_0")[-1][1]  # PeterGriffinJin/Search-R1 issue #79
    assert begun(RIGHT + WRONG).outcome.reason == "wrong" and begun(WRONG + RIGHT).outcome.reason == "right"
    assert begun("<final_answer>Ivet or Orsk</final_answer>").outcome.reason == "wrong"


def test_a_cut_reply_is_read_as_it_stands():
    env = begun(Reply("ASSIGN 1: find Ild", "length"))
    assert env.last_step.cause is Cause.LEGAL
    env.step(Reply("REPORT: the riv", "length"))
    env.step(Reply('<tool_call>{"name": "sea', "length"))
    assert env.last_step.cause is Cause.LENGTH


def test_skipping_loses_a_call_or_the_report():
    env = begun(ASSIGN, "", SEARCH, illegal="skip", max_calls=1)
    assert told(env, "searcher_0")[-1] == (
        "user",
        "You called nothing.\n\n0 calls left. Write REPORT: and what you found.",
    )
    env.step("")
    env.step("REPORT: the Ivet")
    assert "Searcher 1, asked: find Ildrmere\nreported nothing." in told(env, "lead_0")[-1][1]
    env.step("")
    assert env.outcome.reason == "no answer" and env.returns == dict.fromkeys(env.possible_agents, 0.0)
    env = begun("", illegal="skip")
    assert task(env, "searcher_0") == task(env, "searcher_1") == "What runs through Ildrmere?"
    env = begun("", "", "", illegal="skip", searchers=0, max_calls=2)
    assert env.over and env.outcome.reason == "no answer"


def test_a_penalty_is_paid_on_top_and_random_replies_are_legal():
    env = begun(ASSIGN, "", SEARCH, "REPORT: a", "REPORT: b", RIGHT, illegal="penalty", penalty=-0.5)
    assert env.returns == {"lead_0": 1.0, "searcher_0": 0.5, "searcher_1": 1.0}
    for seed in range(5):
        env = llm_arena.make("research-v0", illegal="random_legal")
        env.reset(seed=seed)
        while not env.over:
            env.step("hm")
        assert env.outcome.reason in ("right", "wrong")


def test_breaking_the_rules_never_pays_more_than_the_worst_legal_play():
    dear = {"call_cost": 1 / 8, "searchers": 1}
    worst = begun("ASSIGN 1: x", *[OPEN] * 8, "REPORT: x", WRONG, **dear)
    assert min(worst.returns.values()) == -1.0
    for replies in ([""], ["ASSIGN 1: x", ""], ["ASSIGN 1: x", OPEN, ""]):
        env = begun(*replies, **dear)
        assert env.returns[env.last_step.seat] == -1.0


# ---- grammars and players ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"searchers": 0}, {"searchers": 3, "rounds": 2, "max_calls": 2}])
def test_sampled_and_scripted_replies_match_the_grammar(arguments):
    for seed in range(8):
        for name in (None, "scripted"):
            env = llm_arena.make("research-v0", **arguments)
            env.reset(seed=seed)
            rng = np.random.default_rng(seed)
            while not env.over:
                seat = env.agent_selection
                view = env.view(seat)
                reply = env.baselines[name](view, rng) if name else view.sample_reply(rng)
                assert re.fullmatch(view.grammar, reply), (view.grammar, reply)
                env.step(reply)
                assert env.last_step.cause is Cause.LEGAL


@pytest.mark.parametrize("replies", [(), (ASSIGN,), (ASSIGN, SEARCH, SEARCH, SEARCH, SEARCH), ("alone",)])
def test_what_matches_the_grammar_is_legal(replies):
    alone = replies == ("alone",)
    env = begun(*(() if alone else replies), max_calls=2, rounds=2, searchers=0 if alone else 2)
    grammar = env.grammar(env.agent_selection)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.from_regex(grammar, fullmatch=True))
    def legal(reply):
        after = env.clone()
        after.step(reply)
        assert after.last_step.cause is Cause.LEGAL, reply

    legal()


@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("searchers", [0, 1, 2])
def test_scripted_players_solve_most_questions_and_beat_random_ones(hops, searchers):
    env = llm_arena.make("research-v0", hops=hops, searchers=searchers, split="heldout")
    gaps = [play(env, s, "scripted").returns["lead_0"] - play(env, s).returns["lead_0"] for s in range(60)]
    assert np.mean(gaps) - 1.96 * np.std(gaps) / np.sqrt(len(gaps)) > 0.8


def test_the_scripted_lead_splits_a_difference_and_asks_again_if_a_part_is_missing():
    env = llm_arena.make("research-v0", rounds=2)
    env.reset(seed=next(s for s in range(50) if "How many years" in (env.reset(seed=s), env.problem.text)[1]))
    rng = np.random.default_rng(0)
    assign = env.baselines["scripted"](env.view("lead_0"), rng)
    tasks = [line.partition(": ")[2] for line in assign.split("\n")]
    assert len(set(tasks)) == 2 and env.problem.text not in tasks
    env.step(assign)
    env.step("REPORT: The answer is 1900")
    env.step("REPORT: I did not find it.")
    again = env.baselines["scripted"](env.view("lead_0"), rng)
    assert again == f"ASSIGN 1: {tasks[1]}\nASSIGN 2: {tasks[1]}"
    env.step(again)
    env.step("REPORT: The answer is 1850")
    env.step("REPORT: I did not find it.")
    assert env.baselines["scripted"](env.view("lead_0"), rng) == "<final_answer>50</final_answer>"


def test_seeds_decide_the_question():
    texts = {seed: (play(env, seed).problem.text) for env in [llm_arena.make("research-v0")] for seed in range(20)}
    assert len(set(texts.values())) == 20
    env = llm_arena.make("research-v0")
    for _ in range(3):
        env.reset(seed=7)
        assert env.problem.text == texts[7]
        env.reset()
