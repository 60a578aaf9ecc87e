import ast
import doctest
import operator
from fractions import Fraction

import numpy as np
import pytest

import llm_arena.problems.sources.arithmetic as arithmetic
from llm_arena.errors import UsageError
from llm_arena.problems.sources.arithmetic import LEVELS, draw_problem, solve, split_of

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def pythons_value(node):
    """Python's own reading of an expression, in fractions."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    return OPERATORS[type(node.op)](pythons_value(node.left), pythons_value(node.right))


def expression_of(problem):
    return problem.text.removeprefix("What is ").removesuffix("?")


def test_docstring_examples_hold():
    assert doctest.testmod(arithmetic).failed == 0


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("operators", [None, "+", "-", "*", "/", "*/", "+-*/"])
def test_answers_are_what_python_makes_of_the_expression(level, operators):
    rng = np.random.default_rng(level)
    operands, _, usual = LEVELS[level]
    for _ in range(60):
        problem = draw_problem(rng, level=level, operators=operators)
        tree = ast.parse(expression_of(problem), mode="eval").body
        value = pythons_value(tree)
        assert value == int(problem.answer) == solve(problem.text)
        numbers = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        assert len(numbers) == operands and all(node.value > 0 for node in numbers)
        used = {char for char in expression_of(problem) if char in "+-*/"}
        assert used <= set(operators or usual)


def test_every_operator_of_a_level_is_drawn():
    rng = np.random.default_rng(0)
    for level, (_, _, operators) in LEVELS.items():
        texts = "".join(expression_of(draw_problem(rng, level=level)) for _ in range(200))
        assert {char for char in texts if char in "+-*/"} == set(operators)


def test_the_generator_decides_and_no_other():
    draws = [[draw_problem(np.random.default_rng(seed), level=3) for seed in range(20)] for _ in range(2)]
    assert draws[0] == draws[1] and len(set(problem.text for problem in draws[0])) > 15


def test_the_splits_share_no_problem():
    rng = np.random.default_rng(0)
    train = {draw_problem(rng, level=1).text for _ in range(2000)}
    heldout = {draw_problem(rng, level=1, split="heldout").text for _ in range(500)}
    assert not train & heldout and len(train) + len(heldout) == 81
    assert {split_of(text.removeprefix("What is ").removesuffix("?")) for text in heldout} == {"heldout"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 + 5", "5 + 3"),
        ("3 * 5", "5 * 3"),
        ("1 + (2 + 3)", "3 + 2 + 1"),
        ("7 - (2 - 3)", "3 + (7 - 2)"),
        ("(6 - 7) * 2", "2 * (6 - 7)"),
        ("8 / 2 / 4", "8 / 4 / 2"),
        ("(1 + 2) * (3 + 4)", "(4 + 3) * (2 + 1)"),
    ],
)
def test_a_problem_turned_round_is_the_same_to_the_splits(one, other):
    assert arithmetic._canonical(ast.parse(one, mode="eval").body) == arithmetic._canonical(
        ast.parse(other, mode="eval").body
    )


@pytest.mark.parametrize(("one", "other"), [("5 - 3", "3 - 5"), ("3 + 5", "3 * 5"), ("2 * (3 + 4)", "2 * 3 + 4")])
def test_different_problems_are_different_to_the_splits(one, other):
    assert arithmetic._canonical(ast.parse(one, mode="eval").body) != arithmetic._canonical(
        ast.parse(other, mode="eval").body
    )


@pytest.mark.parametrize("level", [1, 2])
def test_no_heldout_sum_has_a_twin_in_train(level):
    greatest = LEVELS[level][1]
    sums = [(a, b) for a in range(1, greatest + 1) for b in range(1, greatest + 1)]
    heldout = {pair for pair in sums if split_of("{} + {}".format(*pair)) == "heldout"}
    assert heldout == {(b, a) for a, b in heldout} and 0.1 < len(heldout) / len(sums) < 0.35


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("operators", ["+", "-", "*", "/"])
def test_each_split_has_problems_of_each_kind(level, operators):
    for split in ("train", "heldout"):
        assert draw_problem(np.random.default_rng(0), level=level, operators=operators, split=split).text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("What is 2 + 3 * 4?", 14),
        ("Compute (2 + 3) * 4.", 20),
        ("-3 + 5", 2),
        ("10 - (4 - 1)", 7),
        ("12 / 4 / 3", 1),
        ("7 / 2", None),
        ("1 / 0", None),
        ("9 ** 9 ** 9", None),
        ("7 // 2", None),
        ("__import__('os')", None),
        ("How many are there?", None),
        ("(" * 3000 + "1" + ")" * 3000, None),
        ("1" * 6000, None),
    ],
)
def test_solve_reads_whole_arithmetic_only(text, value):
    assert solve(text) == value


@pytest.mark.parametrize(
    "bad",
    [
        {"level": 0},
        {"level": 6},
        {"level": True},
        {"level": 1.0},
        {"level": [1]},
        {"operators": ""},
        {"operators": "%"},
        {"operators": 5},
        {"split": "test"},
    ],
)
def test_settings_out_of_range_are_refused(bad):
    with pytest.raises(UsageError, match=str(next(iter(bad)))):
        draw_problem(np.random.default_rng(0), **bad)
