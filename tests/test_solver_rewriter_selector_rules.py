"""The rules of solver-rewriter-selector-v0: phases, drop-outs, what is shown to whom, and who is paid for what."""

import pytest

from llm_arena.checks import snapshot
from llm_arena.types import Ending
from solver_rewriter_selector_parts import A, B, game, last, played, tag


def returns(env):
    """Returns the rewards of solvers, of rewriters and of the selector."""
    by_role = {"solver": [], "rewriter": [], "selector": []}
    for seat, reward in env.returns.items():
        by_role[env.role_of(seat)].append(reward)
    return tuple(by_role["solver"]), tuple(by_role["rewriter"]), *by_role["selector"]


# ---- phases --------------------------------------------------------------------------------------------------------


def test_solvers_then_rewriters_then_the_selector():
    env = game()
    assert env.pending == [f"solver_{k}" for k in range(5)]
    for k in range(5):
        assert env.agent_selection == f"solver_{k}"
        env.step(tag(k))
    assert env.pending == [f"rewriter_{k}" for k in range(5)]
    for k in range(5):
        env.step(tag(10 + k))
    assert env.pending == ["selector_0"] and env.legal_actions("selector_0") == [f"SELECT: {k}" for k in range(1, 6)]
    env.step("SELECT: 2")
    assert env.over and env.ending is Ending.TERMINATED and env.outcome.reason == "wrong"
    assert env.turns == 11 == env.max_turns


def test_rewriters_see_all_solutions_and_the_selector_all_rewrites():
    env = played([A, B, A], [B, A])
    said = last(env, "rewriter_0")
    assert said.startswith("What is 3 + 4?") and said == last(env, "rewriter_2")
    assert [f"Solution {k}, answer {answer}:\n> I get it." in said for k, answer in ((1, A), (2, B), (3, A))] == [
        True
    ] * 3
    assert not env.observe("selector_0")["messages"]  # it is not asked before the last rewriter has answered
    env.step("no idea")
    said = last(env, "selector_0")
    assert "Solution 1, answer 8:" in said and "Solution 3, no answer:\n> no idea" in said and "to 3" in said


def test_nobody_sees_another_of_the_same_phase():
    left, right = game(num_parallel=3), game(num_parallel=3)
    left.step(tag(A))
    right.step(tag(B))
    for seat in left.possible_agents[1:]:
        assert snapshot(left)["views"][seat] == snapshot(right)["views"][seat]
        assert left.facts(seat) == right.facts(seat) and left.legal_actions(seat) == right.legal_actions(seat)
    for env in (left, right):
        env.step(tag(A))
        env.step(tag(A))
    assert last(left, "rewriter_1") != last(right, "rewriter_1")
    left, right = played([A, A], [A]), played([A, A], [None])
    for seat in ("rewriter_1", "selector_0"):
        assert snapshot(left)["views"][seat] == snapshot(right)["views"][seat]
        assert left.facts(seat) == right.facts(seat) and left.legal_actions(seat) == right.legal_actions(seat)


def test_nobody_sees_the_answer_before_the_end():
    left, right = game(answer="1234", num_parallel=2), game(answer="9876", num_parallel=2)
    for reply in (tag(5), "Hm.", tag(6), ""):
        assert snapshot(left) == snapshot(right) and left.transcript() == right.transcript()
        left.step(reply)
        right.step(reply)
    assert snapshot(left) == snapshot(right)
    left.step("SELECT: 1")
    assert "right answer: 1234" in left.transcript() and "rewriter_1: (failed)" in left.transcript()


def test_thoughts_are_shown_to_nobody():
    env = game(num_parallel=1)
    env.step(f"<think>a secret</think> {tag(A)}")
    assert "secret" not in last(env, "rewriter_0") and "answer 7" in last(env, "rewriter_0")


# ---- rewards: the numbers of the module's docstring ----------------------------------------------------------------


def test_weighted_rewards_are_worked_out_right():
    env = played([A, B, None, A, B], [A, A, A, A, B], "SELECT: 5")
    assert env.outcome.reason == "wrong" and env.outcome.winners == []
    assert returns(env) == ((0.8, 0, 0, 0.8, 0), (0.8, 0.8, 0.8, 0.8, 0), 0)
    env = played([A, B, None, A, B], [A, A, A, A, B], "SELECT: 1")
    assert env.outcome.reason == "right" and env.outcome.winners == env.possible_agents
    assert returns(env) == ((1.2, 0, 0, 1.2, 0), (1.2, 1.2, 1.2, 1.2, 0), 1.2)
    assert env.stats["solver"] == {"turns": 5, "empty": 1, "failed": 1, "right": 2}
    assert env.stats["selector"] == {"turns": 1, "right": 1, "offered": 1}
    env = played([A], [A], "SELECT: 1", correct_reward_weight=2, incorrect_reward_weight=1)
    assert returns(env) == ((2,), (2,), 2)


@pytest.mark.parametrize(
    ("solver", "rewriter", "paid"),
    [
        (A, A, (1.5, 1.5, 1.5)),
        (B, A, (0.5, 1.5, 1.5)),
        (A, B, (-0.5, -1.5, -1.5)),
        (B, B, (-1.5, -1.5, -1.5)),
        (None, A, (-1.5, 1.5, 1.5)),
        (None, B, (-1.5, -1.5, -1.5)),
        (A, None, (-0.5, -1.5, -1.0)),
    ],
)
def test_additive_rewards_are_worked_out_right(solver, rewriter, paid):
    selection = None if rewriter is None else "SELECT: 1"
    env = played([solver], [rewriter], selection, reward="additive")
    assert env.over and tuple(env.returns.values()) == paid


def test_a_failed_seat_shifts_nobodys_reward():  # PrimeIntellect-ai/prime-rl PR 2590
    env = played([A, B, None, A, B], [B, None, A, B, B], "SELECT: 1")
    scores = [env.outcome.scores[f"solver_{k}"] for k in range(5)]
    assert scores == [1, 0, 0, 1, 0] and returns(env)[0] == (0.8, 0, 0, 0.8, 0)
    assert [env.outcome.scores[f"rewriter_{k}"] for k in range(5)] == [0, 0, 1, 0, 0]
    whole = played([A, B, A, A, B], [B, B, A, B, B], "SELECT: 3")  # a complete episode after it has its own numbers
    assert returns(whole) == ((1.2, 0, 1.2, 1.2, 0), (0, 0, 1.2, 0, 0), 1.2)


def test_a_wrong_seat_gains_nothing_by_misleading_the_team():
    for solver in (A, B):
        right = played([solver], [A], "SELECT: 1").returns["solver_0"]
        wrong = played([solver], [B], "SELECT: 1").returns["solver_0"]
        assert right > wrong if solver == A else right == wrong == 0
        right = played([solver], [A], "SELECT: 1", reward="additive").returns["solver_0"]
        assert right > played([solver], [B], "SELECT: 1", reward="additive").returns["solver_0"]


def test_undecided_is_not_right():
    env = played([A], ["x^2 - y"], "SELECT: 1")
    assert env.outcome.reason == "undecided" and returns(env) == ((0.8,), (0,), 0)
    env = played([A], [r"\sqrt{49}"], "SELECT: 1", checker="math")
    assert env.outcome.reason == "right" and env.slow


# ---- drop-outs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("illegal", ["forfeit", "skip"])
def test_the_selectors_numbers_count_the_rewrites_that_there_are(illegal):
    env = played([A, A, A], [None, B, A], illegal=illegal)
    assert env.legal_actions("selector_0") == ["SELECT: 1", "SELECT: 2"]
    assert "answer 8" in last(env, "selector_0").split("Solution 2")[0] and "Solution 3" not in last(env, "selector_0")
    env.step("SELECT: 2")
    assert env.outcome.reason == "right" and env.returns["rewriter_0"] == 0 and env.returns["rewriter_2"] == 1.2


def test_solutions_that_are_missing_are_not_shown():
    env = played([None, B, A])
    assert "Solution 1, answer 8" in last(env, "rewriter_0") and "Solution 3" not in last(env, "rewriter_0")


def test_rewriters_without_solutions_solve_the_problem_themselves():
    env = played([None, None], [B, A], "SELECT: 2")
    assert "No solver gave a solution." in last(env, "rewriter_1")
    assert env.outcome.reason == "right" and returns(env) == ((0, 0), (0, 1.2), 1.2)


def test_without_rewrites_there_is_no_answer():
    env = played([A, B], [None, None])
    assert env.over and env.outcome.reason == "no answer (no rewrite is left)" and env.outcome.winners == []
    assert returns(env) == ((0.8, 0), (0, 0), 0) and env.stats["selector"] == {"turns": 0, "right": 0, "offered": 0}


@pytest.mark.parametrize("silent", ["", "Number two is best.", "SELECT: 9"])
def test_a_selector_that_fails_leaves_no_answer(silent):
    env = played([A, B], [A, B], silent)
    assert env.over and env.outcome.reason.startswith("no answer (the selector gave")
    assert returns(env) == ((0.8, 0), (0.8, 0), 0)
    assert env.stats["selector"]["failed"] == 1 and env.stats["selector"]["offered"] == 1


def test_everybody_silent_ends():
    env = played([None, None], [None, None])
    assert env.outcome.reason == "no answer (no rewrite is left)" and set(env.returns.values()) == {0.0}
    env = played([None, None], [None, None], reward="additive", illegal="penalty", penalty=-0.25)
    assert returns(env) == ((-1.75, -1.75), (-1.75, -1.75), -1.0)


def test_breaking_the_rules_never_pays_more_than_the_worst_legal_play():
    for reward, worst in (("weighted", 0.0), ("additive", -1.5)):
        for illegal in ("forfeit", "skip", "penalty"):
            env = played([None, A], [A, None], "SELECT: 1", reward=reward, illegal=illegal)
            assert env.outcome.reason == "right"
            assert env.returns["solver_0"] <= worst and env.returns["rewriter_1"] <= worst


def test_who_breaks_the_rules_is_right_by_no_luck():
    env = played([None, None], [None], illegal="random_legal", answer_format="lenient")
    assert [solution.answer for solution in env.solutions.values()] == [None] * 3


def test_retries_come_first():
    env = game(num_parallel=2, retries=1)
    env.step("")
    assert env.agent_selection == "solver_0" and env.max_turns == 5
    env.step(tag(A))
    env.step(tag(B))
    assert env.pending == ["rewriter_0", "rewriter_1"]


def test_a_context_overflow_ends_the_game():
    for overflow, paid in (("no_loss", ((0, 0), (0, 0), 0)), ("forfeit", ((-0.5, -1.5), (-1, -1.5), -1))):
        env = played([A, B], reward="additive", overflow=overflow)
        env.truncate(Ending.CONTEXT_OVERFLOW, "rewriter_1")
        assert env.ending is Ending.CONTEXT_OVERFLOW and returns(env) == paid
