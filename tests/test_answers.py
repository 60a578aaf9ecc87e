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
from llm_arena.problems import answers
from llm_arena.problems.answers import check, check_exactly, needs_algebra
from llm_arena.problems.answers import forms as answer_forms
from llm_arena.problems.answers import latex as answer_latex
from llm_arena.problems.answers import numbers as answer_numbers
from llm_arena.problems.answers import process as answer_process
from llm_arena.problems.answers import text as answer_text
from llm_arena.problems.answers import units as answer_units
from llm_arena.problems.answers.compare import MAX_PAIRS, _matches
from llm_arena.problems.answers.latex import Unreadable, read_expression
from llm_arena.problems.answers.numbers import TooBig, rational
from llm_arena.problems.answers.process import AnswerProcess

TOWER = r"\boxed{7^{7^{7^{7^{7}}}} - 2}"  # huggingface/Math-Verify issue 65
ENDLESS = "(x^2+y^2+z^2+2xy+2yz+2xz)^{400}", "(x+y+z)^{800}"
"""Equal, and takes minutes to expand."""
SECOND = "(x^2+y^2+2xy)^{80}", "(x+y)^{160}"
"""Takes some tenths of a second to expand: too long to be quick."""

LINES = (Path(__file__).parent / "data" / "answers.txt").read_text().split("\n\n")
EXACT, ALGEBRA = (
    [tuple(line.split(" ;; ")) for line in part.splitlines() if line and not line.startswith("#")] for part in LINES
)


@pytest.fixture(autouse=True)
def no_process_left():
    yield
    answer_process.close()


@pytest.mark.parametrize("module", [answer_forms, answer_latex, answer_numbers, answer_text, answer_units, answers])
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


def timed(prediction, gold, seconds=1.0):
    began = time.monotonic()
    return check(prediction, gold, seconds=seconds), time.monotonic() - began


def test_plain_checks_do_not_wait_for_hard_ones():
    check("x + 1", "1 + x")
    with ThreadPoolExecutor(32) as threads:
        endless = [threads.submit(timed, *ENDLESS) for _ in range(6)]
        tower = threads.submit(timed, TOWER, "3")
        plain = [threads.submit(timed, "4", "4") for _ in range(20)]
        time.sleep(0.3)
        algebra = [threads.submit(timed, r"\sqrt{8}", r"2\sqrt{2}") for _ in range(3)]
        assert [done.result()[0] for done in plain + algebra] == ["right"] * 23
        assert max(done.result()[1] for done in plain) < 0.5
        assert max(done.result()[1] for done in algebra) < 2.5  # the six take over 6 s, one after another
        assert tower.result()[0] in ("wrong", "undecided") and tower.result()[1] < 0.5
        assert [done.result()[0] for done in endless] == ["undecided"] * 6
        assert max(done.result()[1] for done in endless) > 5
    assert check(r"\sqrt{8}", r"2\sqrt{2}") == "right"  # a new process answers


def test_a_slow_comparison_leaves_the_quick_process_alive():
    check("x + 1", "1 + x")
    [quick] = processes_of(os.getpid())
    assert check(*SECOND) == "right"  # in the slow one
    assert quick in processes_of(os.getpid()) and len(processes_of(os.getpid())) == 2


def test_time_is_the_processors_not_the_clocks():
    process = AnswerProcess()
    try:
        process.ask("x + 1", "1 + x", 1.0)
        found = []
        asked = threading.Thread(target=lambda: found.append(process.ask(*SECOND, 1.5)))
        asked.start()
        time.sleep(0.1)
        [worker] = processes_of(os.getpid())
        os.kill(worker, signal.SIGSTOP)  # the machine is busy with something else
        time.sleep(4.0)
        os.kill(worker, signal.SIGCONT)
        asked.join()
        assert found == ["right"]
    finally:
        process.close()


def test_a_process_that_waits_for_ever_is_given_up(monkeypatch):
    monkeypatch.setattr(answer_process, "WALL_FACTOR", 1)
    process = AnswerProcess()
    process.ask("x + 1", "1 + x", 5.0)
    [worker] = processes_of(os.getpid())
    os.kill(worker, signal.SIGSTOP)
    began = time.monotonic()
    assert process.ask("x + 1", "1 + x", 0.2) == "undecided"
    assert time.monotonic() - began < 3 and not processes_of(os.getpid())


def test_an_interrupt_closes_the_process_that_owes_an_answer():
    queue = answer_process._Queue(1)
    with pytest.raises(KeyboardInterrupt), queue.lend() as process:
        process.ask("x + 1", "1 + x", 1.0)
        raise KeyboardInterrupt
    assert not processes_of(os.getpid()) and not queue.free.empty()


def test_memory_is_bounded():
    assert check("x + 1", "1 + x") == "right"
    [worker] = processes_of(os.getpid())
    [limit] = [line for line in Path(f"/proc/{worker}/limits").read_text().splitlines() if "address space" in line]
    assert int(limit.split()[3]) < 8 << 30
    program = (
        "from llm_arena.problems.answers.worker import limit_memory; limit_memory()\n"
        "try: bytearray(2 << 30); print('taken')\nexcept MemoryError: print('refused', len(bytearray(100 << 20)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == f"refused {100 << 20}\n", ran.stderr
    assert check(r"x(10^{9999})^{9999}", "3x", seconds=3.0) == "undecided"


def nested_unions(levels, first):
    text = str(first)
    for level in range(levels):
        text = rf"({text}\cup{level})"
    return text


def test_nested_and_long_lists_are_compared_at_once():
    began = time.monotonic()
    assert check_exactly(nested_unions(28, -1), nested_unions(28, -2)) == "wrong"
    assert check_exactly(nested_unions(28, -1), nested_unions(28, -1)) == "right"
    long = [",".join(str(number % 90 + 10) for number in range(start, start + 200)) for start in (0, 1)]
    assert MAX_PAIRS < 200 * 200 and check_exactly(*long) == "undecided" and check_exactly(long[0], long[0]) == "right"
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    "text", [r"\begin{vmatrix}1&2\end{vmatrix}", r"\begin{cases}x=1\end{cases}", r"1, 2, \ldots", "at least 5 of them"]
)
def test_what_has_no_sure_reading_stays_text(text):
    form = answer_forms.read_form(text)
    assert isinstance(form, answer_forms.Leaf) and form.kind == "unread" and not needs_algebra(text)
    assert check_exactly(text, text) == "right"


def test_matching_is_one_to_one():
    assert _matches([["right", "right"], ["right", "wrong"]], ("right",))
    assert not _matches([["right", "wrong"], ["right", "wrong"]], ("right",))


def processes_of(parent):
    found = subprocess.run(["pgrep", "-P", str(parent), "-f", "answers.worker"], capture_output=True, text=True)
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
        f"threading.Thread(target=check, args={ENDLESS!r}, kwargs=dict(seconds=2.0)).start();"
        "print('asked', flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout.readline() == b"asked\n"
    deadline = time.monotonic() + 10
    while len(children := processes_of(parent.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 2  # the second is busy, or about to be
    assert all(os.getsid(child) == child for child in children)  # Ctrl-C in a terminal is for the parent
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 8
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


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


@pytest.mark.parametrize(
    "text",
    [
        *(
            "101_2",
            "f'(x)",
            "6 \\approx 5",
            r"\angle ABC",
            "2 3",
            "4 2x",
            "abcd",
            "5?",
            "x^",
            "x^{}",
            "(x",
            "x)",
            "|x",
            "1/ab",
        ),
        *(
            r"\sin x / 2",
            r"\sin x (y)",
            r"\sin^{y} x",
            "n!!",
            "x^2_1",
            "x_1_2",
            r"\text{x}",
            r"\frac{dy}{dx}",
            r"x \cdot",
        ),
        *(
            "f^{-1}(x)",
            r"2\frac{5}{3}",
            "10^{99999}",
            "2000!",
            "(x^{999})^{999}",
            "sin x",
            r"\foo",
            "x:y",
            "x, y",
            "x=1",
        ),
    ],
)
def test_what_the_reader_does_not_know_it_refuses(text):
    with pytest.raises(Unreadable):
        read_expression(text)


def test_the_reader_drops_nothing():
    assert {
        str(symbol) for symbol in read_expression(r"P(1+r)^T + \alpha_{12} x_{n+1} - \frac{a}{b}").free_symbols
    } == {
        *"PrTab",
        "alpha_12",
        "x_n + 1",
    }
    assert str(read_expression("0.1 + 0.2")) == "3/10"
