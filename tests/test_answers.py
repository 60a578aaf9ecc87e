"""Verdicts on answers. Most rows have the shape of a public report: huggingface/Math-Verify issues 14, 26, 41, 60."""

import doctest
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_arena.errors import EngineError, MissingExtra
from llm_arena.problems import answer_forms, answer_numbers, answer_process, answer_text, answers
from llm_arena.problems.answer_numbers import TooBig, rational
from llm_arena.problems.answers import check, check_exactly

TOWER = r"\boxed{7^{7^{7^{7^{7}}}} - 2}"  # huggingface/Math-Verify issue 65
ENDLESS = "(x+y+z+1)^{900}(x+y+z+2)^{900}"
"""Passes the guard, and takes minutes to expand."""

LINES = (Path(__file__).parent / "data" / "answers.txt").read_text().split("\n\n")
EXACT, ALGEBRA = (
    [tuple(line.split(" ;; ")) for line in part.splitlines() if line and not line.startswith("#")] for part in LINES
)


@pytest.fixture(autouse=True)
def no_process_left():
    yield
    answer_process.close()


@pytest.mark.parametrize("module", [answer_forms, answer_numbers, answer_text, answers])
def test_docstring_examples_hold(module):
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


def wrappings(text):
    return [
        text,
        rf"\boxed{{{text}}}",
        rf"$\boxed{{{text}}}$.",
        *([] if "$" in text else [f"${text}$", rf"\( {text} \)"]),
    ]


@pytest.mark.parametrize(("prediction", "gold", "verdict"), EXACT)
def test_form_and_fractions_decide_at_once(prediction, gold, verdict):
    for wrapped in wrappings(prediction):
        for right in wrappings(gold):
            assert check_exactly(wrapped, right) == verdict, (wrapped, right)


def test_algebra_decides_the_rest():
    for prediction, gold, verdict in ALGEBRA:
        for wrapped in wrappings(prediction)[:2]:
            assert check(wrapped, gold) == verdict, (wrapped, gold)
        assert check(prediction, wrappings(gold)[1]) == verdict, (prediction, gold)


def test_the_right_answer_is_right_and_never_a_wrong_one_turned_round():
    for prediction, gold, verdict in EXACT:
        assert check_exactly(gold, gold) == "right", gold
        if verdict == "wrong" and prediction:
            assert check_exactly(gold, prediction) == "wrong"


@pytest.mark.parametrize("empty", ["", "  ", "$$", r"\boxed{}", r"\boxed{4", "**", "."])
def test_nothing_is_never_right(empty):
    assert check(empty, "4") == "wrong"
    assert check("4", empty) != "right" and check(empty, empty) != "right"


@pytest.mark.parametrize(
    "huge",
    [
        TOWER,
        "10^{100000}",
        "2^{2^{2^{2^{2}}}}",
        "x^{9^{9^{9}}}",
        "9^9^9^9",
        "((9!)!)!",
        "99999! + x",
        "x + " + "1" * 400,
        "(" * 200 + "x" + ")" * 200,
        r"\frac{1}{" * 200 + "x" + "}" * 200,
        "x+" * 5000 + "x",
        r"\boxed{" * 3000,
    ],
)
def test_what_is_too_big_is_never_right_and_at_once(huge):
    began = time.monotonic()
    assert check(huge, "3x") in ("undecided", "wrong")
    assert check("3x", huge) in ("undecided", "wrong")
    assert time.monotonic() - began < 0.5
    assert not answer_process._pools  # nothing was started for it


def test_plain_checks_do_not_wait_for_hard_ones():
    def timed(prediction, gold):
        began = time.monotonic()
        return check(prediction, gold, seconds=1.0), time.monotonic() - began

    with ThreadPoolExecutor(24) as threads:
        endless = [threads.submit(timed, ENDLESS, "3x") for _ in range(2)]
        tower = threads.submit(timed, TOWER, "3")
        plain = [threads.submit(timed, "4", "4") for _ in range(20)]
        assert [done.result()[0] for done in plain] == ["right"] * 20
        assert max(done.result()[1] for done in plain) < 0.5
        assert tower.result()[0] in ("wrong", "undecided") and tower.result()[1] < 0.5
        assert [done.result()[0] for done in endless] == ["undecided"] * 2
    assert check(r"\sqrt{8}", r"2\sqrt{2}") == "right"  # a new process answers


def test_memory_is_bounded():
    assert check(r"x(10^{9999})^{9999}", "3x", seconds=3.0) == "undecided"
    assert check(r"\sqrt{8}", r"2\sqrt{2}") == "right"


def processes_of(parent):
    found = subprocess.run(["pgrep", "-P", str(parent), "-f", "answer_worker"], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_the_process_is_kept_and_replaced_after_its_death():
    assert check("x + 1", "1 + x") == "right"
    [first] = processes_of(os.getpid())
    assert check("x + 2", "2 + x") == "right" and processes_of(os.getpid()) == [first]
    os.kill(first, signal.SIGKILL)
    assert check("x + 3", "3 + x") == "right"
    [second] = processes_of(os.getpid())
    assert second != first


def test_no_process_outlives_a_killed_parent():
    program = (
        "import sys, threading; from llm_arena.problems.answers import check; check('x + 1', '1 + x');"
        f"threading.Thread(target=check, args=({ENDLESS!r}, '3x'), kwargs=dict(seconds=2.0)).start();"
        "print('asked', flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"asked\n"
    time.sleep(0.2)
    [child] = processes_of(parent.pid)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_the_users_main_module_is_not_run(tmp_path):
    script = tmp_path / "unguarded.py"
    (tmp_path / "sympy.py").write_text("raise SystemExit('imported the wrong sympy')")
    script.write_text(
        "import sys; sys.path.pop(0); print('main')\n"
        "from llm_arena.problems.answers import check\n"
        "print(check('x+1', '1+x'))"
    )
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "main\nright\n", ran.stderr


def test_a_missing_extra_is_named_only_when_it_is_needed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert check(r"\frac{1}{2}", "0.5") == "right"
    with pytest.raises(MissingExtra, match=r'"llm-arena\[problems\]"'):
        check("x + 1", "1 + x")


def test_a_process_that_does_not_start_is_a_fault_and_no_verdict(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EngineError, match="did not start"):
        check("x + 1", "1 + x")


def test_checks_from_many_threads_get_their_own_answers():
    asked = [(f"x + {n}", f"{n % 3} + x") for n in range(12)]
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda pair: check(*pair), asked))
    assert found == ["right" if n == n % 3 else "wrong" for n in range(12)]
    assert threading.active_count() < 20


@given(
    st.text(alphabet="0123456789.,-+*/^(){}[]\\$ %!xyfracsqtpmboed=<>:&|"),
    st.sampled_from(["4", "x", "(1, 2)", "x = 3"]),
)
def test_any_text_gets_a_verdict(text, gold):
    assert check_exactly(text, gold) in ("right", "wrong", "undecided")


@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=999), st.fractions(max_denominator=99))
def test_fractions_are_compared_exactly(left, right):
    written = rf"\frac{{{left.numerator}}}{{{left.denominator}}}"
    assert rational(written) == left
    assert check_exactly(written, f"{right.numerator}/{right.denominator}") == ("right" if left == right else "wrong")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("-2^2", -4),
        ("2^{-3}", Fraction(1, 8)),
        ("2^3^2", 512),
        (r"-1\frac{1}{2}", Fraction(-3, 2)),
        ("1.5e3", 1500),
        ("50%", Fraction(1, 2)),
        ("2(3)(4)", 24),
        ("1/2(3)", None),
        ("3 4", None),
        ("5!", 120),
        (r"\sqrt{16}", 4),
        (r"\sqrt{2}", None),
        ("1/0", None),
        ("0^{-1}", None),
        ("2^{1/2}", None),
        ("(1", None),
        ("x", None),
        ("", None),
    ],
)
def test_rational_arithmetic(text, value):
    assert rational(text) == value


@pytest.mark.parametrize("text", ["9^{9^9}", "10!!!!", "1001!", "1e9999", "(" * 99 + "1" + ")" * 99, "1" * 2000])
def test_rational_arithmetic_is_bounded(text):
    with pytest.raises(TooBig):
        rational(text)
