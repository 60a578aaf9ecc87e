"""Expressions and programs of models: their values, their limits, their fingerprints, and that nothing else gets in."""

import contextlib
import io
import time

import numpy as np
import pytest

from llm_arena.problems.proposals.language import LanguageError, Limits, evaluate, run
from llm_arena.problems.proposals.stories import TEMPLATES, fill, slots


@pytest.mark.parametrize(
    ("text", "value", "effort"),
    [
        ("7", 7, 0),
        ("(3 + 4) * 2", 14, 2),
        ("-3 - -4", 1, 1),
        ("12*30 - 5", 355, 4 + 3),
        ("7 / 2 * 4", 14, 1 + 1),
        ("1 / 3 + 2 / 3", 1, 1 + 1 + 1),
        ("-7 // 2", -4, 1),
        ("-7 % 3", 2, 1),
        ("6 × 7 − 2", 40, 1 + 2),  # noqa: RUF001  (as models write it)
    ],
)
def test_expressions_have_their_value_and_effort(text, value, effort):
    result = evaluate(text)
    assert (result.value, result.effort) == (value, effort)
    assert evaluate(result.text) == result  # what is shown is the same problem


@pytest.mark.parametrize(
    "text",
    [
        *["", " ", "7 / 2", "1 / 0", "5 % 0", "3 +", "(3", "3)", "3 4", "2 ** 3", "x", "0x10", "1e5", "1_000", "007"],
        *[
            "1.5",
            "__import__('os')",
            "9" * 10,
            "+3",
            "(" * 30 + "1" + ")" * 30,
            "-" * 30 + "1",
            "3;4",
            "3\n4",
            "1 if 1",
        ],
        *["999999999 * 999999999 * 999999999", "\u0663 + 1", "3\u00a0+ 4", "max(3)", "1," * 5, "2 < 3"],
    ],
)
def test_what_is_no_bounded_whole_number_is_refused(text):
    with pytest.raises(LanguageError):
        evaluate(text)


PROGRAMS = {
    "x = 3\nfor i in range(4):\n    x = x * 2\nprint(x)": 48,
    "a = [4, 8, 15]\nt = 0\nfor v in a:\n  if v % 2 == 0:\n    t += v\n  else:\n    t -= 1\nprint(t)": 11,
    "a = [1, 2]\na[0] = a[1] * 5\nprint(sum(a) - max(a) + len(a) * min(a))": 6,
    "n = 0\nfor i in range(2, 5):\n    for j in range(i):\n        n += j\nprint(n)": 10,
    "x = -7 // 2  # rounds down\n\nprint (x)\n": -4,
    "x = 5\nif x > 9:\n    x = 1\nprint(x)": 5,
    "for i in range(3):\n    x = i\nprint(x + i)": 4,
    "x = 2\nif x != 2:\n    print(1)\nelse:\n    print(3)": 3,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_print_what_they_print_in_python(program):
    result = run(program)
    assert result.value == PROGRAMS[program] == int(in_python(result.text))
    assert run(result.text) == result


def in_python(program):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})  # only programs that this file wrote
    return out.getvalue()


@pytest.mark.parametrize(
    "program",
    [
        "x = 1",  # prints nothing
        "print(1)\nprint(2)",
        "for i in range(3):\n    print(i)",
        "print(x)",
        "x = [1]\nprint(x)",
        "x = [1]\ny = x\nprint(y[0])",  # two names of one list
        "x = 1\nprint(x[0])",
        "x = [1]\nprint(x[1])",
        "x = [1]\nprint(x[-1])",
        "x = []\nprint(len(x))",
        "for i in range(10000):\n    x = i\nprint(x)",
        "for i in range(999999999):\n    for j in range(999999999):\n        x = i\nprint(x)",
        "x = 9\nfor i in range(40):\n    x = x * x\nprint(x)",
        "x = 1 / 1\nprint(x)",
        "if 1 < 2:\nprint(1)",
        "else:\n    print(1)",
        "  x = 1\nprint(x)",
        "x = 1\n    y = 2\nprint(x)",
        "if 1 < 2:\n        x = 1\n    x = 2\nprint(x)",
        "while 1 < 2:\n    x = 1",
        "import os\nprint(1)",
        "print(open)",
        "print(__builtins__)",
        "ignore = 1\nprint(ignore)",
        "print('hello')",
        "x = 3 < 4\nprint(x)",
        "print(1) # ok\nprint",
        "".join(" " * 4 * k + "if 1 < 2:\n" for k in range(25)) + " " * 100 + "print(1)",
        "x = 1\n" * 31 + "print(x)",
        "print(1)" + " " * 3000,
        "a = 1\nprint(a" + "+a" * 990 + ")",  # names are no numbers, so their count is no bound
        "a = 1\na = " + "-a*" * 600 + "a\nprint(a)",
        "print(" + "1+" * 101 + "1)",
    ],
)
def test_programs_that_fail_say_why_in_one_line(program):
    began = time.perf_counter()
    with pytest.raises(LanguageError) as caught:
        run(program)
    assert str(caught.value) and "\n" not in str(caught.value) and time.perf_counter() - began < 1


def called_deep(depth, function):
    return function() if depth == 0 else called_deep(depth - 1, function)


def test_the_longest_lines_run_below_a_deep_stack():
    limits = Limits(operands=400, steps=100_000)
    chain = "a" + "+a" * 97
    programs = [
        f"a = 1\nprint({chain})",
        "a = 1\n" + "".join(" " * k + "for i in range(1):\n" for k in range(18)) + f"{' ' * 18}a = {chain}\nprint(a)",
        "a = 1\nb = " + "(" * 18 + "-a" + "*a" * 78 + ")" * 18 + "\nprint(b)",
    ]
    values = [called_deep(60, lambda text=text: run(text, limits)).value for text in programs]
    assert values == [98, 98, -1]
    assert called_deep(60, lambda: evaluate("1" + "-1" * 99)).value == -98
    for text in ("1" + "-1" * 100, "1" + "*1" * 990):
        with pytest.raises(LanguageError):
            called_deep(60, lambda text=text: evaluate(text, limits))


def test_limits_are_limits():
    with pytest.raises(LanguageError, match="3 numbers; at most 2"):
        evaluate("1 + 2 + 3", Limits(operands=2))
    with pytest.raises(LanguageError, match="3 digits; at most 2"):
        evaluate("100 + 2", Limits(digits=2))
    with pytest.raises(LanguageError, match="2 lines; at most 1"):
        run("x = 1\nprint(x)", Limits(lines=1))
    with pytest.raises(LanguageError, match="more than 10 steps"):
        run("for i in range(9):\n    x = i\nprint(x)", Limits(steps=10))
    with pytest.raises(LanguageError, match="3 items; at most 2"):
        run("x = [1, 2, 3]\nprint(x[0])", Limits(items=2))
    assert evaluate("99 * 99", Limits(value_digits=4)).value == 9801
    with pytest.raises(LanguageError, match="more than 3 digits"):
        evaluate("99 * 99", Limits(value_digits=3))


# ---- the same problem again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3 + 4", "4+3", True),
        ("(1 + 2) + 3", "3 + (2 + 1)", True),
        ("(3 + 4) * 2", "2 * (4 + 3)", True),
        ("8 / 4 * 3", "3 * 8 / 4", True),
        ("9 - 2 + 5", "5 + 9 - 2", True),
        ("9 - (2 - 5)", "9 + 5 - 2", True),
        ("3 + 4", "7", False),
        ("3 + 4", "2 + 5", False),
        ("3 - 4", "4 - 3", False),
        ("7 // 2", "2 // 7", False),
        ("2 * 3 + 4", "2 * (3 + 4)", False),
        ("3 + 3", "2 * 3", False),
    ],
)
def test_reordered_expressions_are_the_same_problem(one, other, same):
    assert (evaluate(one).fingerprint == evaluate(other).fingerprint) is same


BASE = "x = 3\ny = 4\nfor i in range(2):\n    x = x + y\nprint(x)"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("b = 4\na = 3\nfor k in range(2):\n    a += b\nprint(a)", True),  # renamed, two lines swapped
        ("x = 3\ny = 4\nz = 5 * 5\nfor i in range(2):\n\n  x = (y + x)  # so\nprint(x)", True),  # a line of no effect
        ("x = 3\nfor i in range(2):\n    y = 4\n    x = x + y\nprint(x)", True),
        ("x = 3\ny = 5\nfor i in range(2):\n    x = x + y\nprint(x)", False),
        ("x = 3\ny = 4\nfor i in range(3):\n    x = x + y\nprint(x)", False),
        ("x = 3\ny = 4\nfor i in range(2):\n    x = x - y\nprint(x)", False),
        ("x = 3\ny = 4\nfor i in range(2):\n    if i < 5:\n        x = x + y\nprint(x)", False),
        (f"{BASE[:-8]}if 1 < 2:\n    b = 1\nprint(x)", True),  # compares written numbers
        ("x = 3\ny = 4\nif 1 > 2:\n    x = 7\nelse:\n    x = x + y + y\nprint(x)", True),
        (f"{BASE[:-8]}for i in range(1):\n    b = 1\nprint(x)", True),  # a block that nothing depends on
        (
            f"{BASE[:-8]}for i in range(x):\n    b = i\n    if b < y:\n        c = [b, x]\n        c[0] = b\nprint(x)",
            True,
        ),
        (f"{BASE[:-8]}if x < y:\n    b = x\nelse:\n    b = y\nprint(x)", True),
        ("x = 3\ny = 4\nx = x + y\nx = x + y\nprint(x)", True),  # the loop written out
        (f"{BASE[:-8]}b = x\nif b > y:\n    x = x\nprint(x)", False),  # what is printed may depend on it
        (f"{BASE[:-8]}for i in range(x):\n    b = i\nx = x + b - b\nprint(x)", False),
        (f"{BASE[:-8]}if x > y:\n    print(x)", False),
        (f"{BASE[:-1]} + 0)", False),  # arithmetic is not simplified
        (f"{BASE[:-1]} * 1)", False),
        ("print(11)", False),
    ],
)
def test_renamed_programs_are_the_same_problem(other, same):
    assert (run(BASE).fingerprint == run(other).fingerprint) is same


def test_an_expression_is_not_the_program_that_prints_it():
    assert evaluate("3 + 4").fingerprint != run("print(3 + 4)").fingerprint


# ---- whatever is written ---------------------------------------------------------------------------------------


PIECES = [
    *"abxyi0123456789+-*/%()[]<>=:,. \n\t#'\"\\;&|!@^~_{}",
    *["//", "==", "!=", "+=", "range(", "print(", "for i in ", "if ", "else:", "len(", "sum(", "\n    ", "\n        "],
    *["lambda:", "import os", "__class__", "9999999999", "\x00", "\u0663", "\U0001f409", "\ud800", "exec(", "**"],
]


def test_ten_thousand_random_texts_raise_nothing_but_the_own_error():
    rng = np.random.default_rng(0)
    good = 0
    began = time.perf_counter()
    for _ in range(10_000):
        text = "".join(PIECES[k] for k in rng.integers(len(PIECES), size=int(rng.integers(1, 25))))
        for read in (evaluate, run):
            try:
                result = read(text)
            except LanguageError as error:
                assert "\n" not in str(error) and len(str(error)) < 200
            else:
                good += 1
                assert read(result.text) == result
    assert good > 20 and time.perf_counter() - began < 30


def random_program(rng):
    """Writes a program that is well formed, and may fail when it runs."""

    def number():
        return str(int(rng.integers(0, 13)))

    def atom():
        return [number(), "x", "y", "a[" + number() + "]", "len(a)", "max(a)", "sum(a)"][int(rng.integers(7))]

    def value(depth=0):
        if depth > 2 or rng.random() < 0.4:
            return atom()
        sign = ["+", "-", "*", "//", "%"][int(rng.integers(5))]
        inner = f"{value(depth + 1)} {sign} {value(depth + 1)}"
        return [inner, f"({inner})", f"-({inner})", f"-{atom()}"][int(rng.integers(4))]

    def block(indent, depth):
        lines = []
        for _ in range(int(rng.integers(1, 4))):
            kind = int(rng.integers(6 if depth < 2 else 3))
            if kind < 2:
                lines.append(f"{indent}{'xy'[kind]} {['=', '+=', '-=', '*='][int(rng.integers(4))]} {value()}")
            elif kind == 2:
                lines.append(f"{indent}a[{int(rng.integers(3))}] = {value()}")
            elif kind == 3:
                lines.append(
                    f"{indent}if {value()} {['<', '<=', '>', '>=', '==', '!='][int(rng.integers(6))]} {value()}:"
                )
                lines += block(indent + "    ", depth + 1)
                if rng.random() < 0.5:
                    lines += [f"{indent}else:", *block(indent + "    ", depth + 1)]
            elif kind == 4:
                lines.append(f"{indent}for {'xyi'[int(rng.integers(3))]} in range({number()}, {atom()} % 7):")
                lines += block(indent + "    ", depth + 1)
            else:
                lines.append(f"{indent}for {'xyi'[int(rng.integers(3))]} in a:")
                lines += block(indent + "    ", depth + 1)
        return lines

    return "\n".join(["x = 3", "y = 5", "a = [1, 7, -4]", *block("", 0), f"print({value()})"])


def test_random_programs_agree_with_python():
    rng = np.random.default_rng(1)
    agreed = failed = 0
    for _ in range(1500):
        program = random_program(rng)
        try:
            result = run(program, Limits(lines=100, operands=500, value_digits=40))
        except LanguageError:
            failed += 1
            continue
        assert int(in_python(program)) == result.value == int(in_python(result.text)), program
        idle = "\nif x < y:\n    b = max(a)\nfor j in range(2):\n    b = x * y\nprint("
        padded = idle.join(program.rsplit("\nprint(", 1))
        assert run(padded, Limits(lines=100, operands=500, value_digits=400)).fingerprint == result.fingerprint, padded
        agreed += 1
    assert agreed > 500 and failed > 100


# ---- stories ---------------------------------------------------------------------------------------------------


def test_every_story_can_be_filled_with_any_numbers_of_its_ranges():
    rng = np.random.default_rng(2)
    for number, template in enumerate(TEMPLATES):
        names = slots(template)
        assert len(names) >= 2 and all(f"{{{name}}}" in template.text for name in names)
        for digits in (1, 3, 6):
            for _ in range(50):
                result = fill(number, {name: int(rng.integers(2, 10**digits)) for name in names})
                assert "{" not in result.text and result.effort > 0


def test_stories_worked_by_hand():
    assert fill(0, {"a": 12, "b": 3, "c": 5}).value == 41
    assert fill(0, {"a": 12, "b": 3, "c": 5}).text.startswith("A shop sells 12 pens")
    assert fill(0, {"a": 3, "b": 12, "c": 5}).fingerprint == fill(0, {"a": 12, "b": 3, "c": 5}).fingerprint
    assert fill(0, {"a": 3, "b": 12, "c": 5}).fingerprint != fill(0, {"a": 3, "b": 12, "c": 6}).fingerprint
    assert fill(2, {"a": 17, "b": 5}).value == 3 and fill(3, {"a": 17, "b": 5}).value == 2
