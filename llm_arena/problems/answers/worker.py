"""The process that compares answers by computer algebra: `python -m llm_arena.problems.answers.worker`.

It writes `"ready"`, then answers each line of its input, `{"given": ..., "gold": ..., "seconds": ..., "kill": ...}`,
with a line that is a verdict, or `"slow"` if that took more than `seconds` of processor time and it was not to be
killed for it. It ends with its input. See `process` for who speaks to it.
"""

from __future__ import annotations

import json
import signal
import sys
import warnings
from types import FrameType

import sympy  # type: ignore[import-untyped]
import sympy.core.random  # type: ignore[import-untyped]

from llm_arena.problems.answers.compare import Verdict, compare
from llm_arena.problems.answers.forms import read_form
from llm_arena.problems.answers.latex import LOG_BASE, Unreadable, read_expression
from llm_arena.problems.answers.relations import same_statement

MEMORY = 1 << 30
"""Address space, in bytes, on top of what the imports took."""
WALL_FACTOR = 10
"""Seconds on the clock for each second of processor time, before the process is taken to be stuck."""

_POINTS = [sympy.Rational(*ratio) for ratio in ((7, 5), (-11, 3), (3, 13), (-2, 7), (17, 4))]
"""Where an expression is tried: of both signs, and without a meaning."""


class _Slow(BaseException):
    """A comparison took its time; no `except Exception` of sympy may stop it."""


def is_zero(value: sympy.Expr) -> Verdict:
    """Returns right if `value` is proven zero, wrong if it is seen not to be, else undecided."""
    if value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return "undecided"
    if value.is_zero or sympy.expand(value) == 0:
        return "right"
    return "right" if sympy.simplify(value) == 0 or value.equals(0) else "undecided"


def same_value(given: str, gold: str) -> Verdict:
    """Compares two expressions: right if proven equal, wrong if seen to differ where both have real values."""
    try:
        left, right = read_expression(given), read_expression(gold)
    except Unreadable:
        return "undecided"
    if left == right:
        return "right"
    if left.is_infinite or right.is_infinite:
        return "wrong"
    # of an unknown function, or of a logarithm to an unknown base, equality can be proven and difference can't be seen
    unknown = any(side.has(LOG_BASE) or side.atoms(sympy.core.function.AppliedUndef) for side in (left, right))
    found = is_zero(left - right) if unknown else "undecided"
    if found == "undecided" and not unknown:
        found = "wrong" if _differ(left, right) else is_zero(left - right)
    return found


def _differ(left: sympy.Expr, right: sympy.Expr) -> bool:
    """Returns whether the two are seen to differ at a point where both have a value; a real one, unless i occurs."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    complex_ = left.has(sympy.I) or right.has(sympy.I)
    for points in (_POINTS, [abs(point) for point in _POINTS]):
        for shift in range(len(points)):
            at = {symbol: points[(shift + place) % len(points)] for place, symbol in enumerate(symbols)}
            values = left.subs(at), right.subs(at)
            if all(value.is_finite and (complex_ or value.is_real) for value in values):
                difference = values[0] - values[1]
                if difference.equals(0) is False:
                    return True
            if not symbols:
                return False
    return False


def limit_memory() -> None:
    """Limits the address space, where the system can (Linux)."""
    if sys.platform == "linux":
        import resource

        with open("/proc/self/statm") as pages:
            used = int(pages.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        wanted = used + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _give_up(number: int, frame: FrameType | None) -> None:
    raise _Slow


def _set_timers(seconds: float, kill: bool) -> None:
    """Starts the timers of the kernel.

    They count processor time, so that a verdict does not depend on what else the machine does. Where Python code runs
    long enough, a first one asks it to stop; what does not is ended by the second, and what waits by the third.
    """
    signal.signal(signal.SIGPROF, signal.SIG_DFL if kill else _give_up)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * seconds)


def _stop_timers() -> None:
    for timer in (signal.ITIMER_PROF, signal.ITIMER_VIRTUAL, signal.ITIMER_REAL):
        signal.setitimer(timer, 0)


def answer(given: str, gold: str) -> Verdict:
    """Returns the verdict on two normalized answers, undecided where sympy fails."""
    # sympy tries random points, from a generator of its own. This process is ours alone, and a verdict must not depend
    # on the questions before it.
    sympy.core.random.seed(0)
    try:
        return compare(read_form(given), read_form(gold), same_value, same_statement(same_value))
    except Exception:  # sympy raises anything on odd input, MemoryError and RecursionError included
        return "undecided"


def main() -> None:
    """Answers questions until the input ends."""
    warnings.simplefilter("ignore")
    for number in (signal.SIGALRM, signal.SIGVTALRM):
        signal.signal(number, signal.SIG_DFL)  # the kernel ends the process, whatever code is running
    sys.set_int_max_str_digits(0)  # our own limits hold
    for pair in (
        ("\\sqrt{x^2+x}", "x + 1"),
        ("\\sin^2 x+\\cos^2 x", "1"),
        ("2x > 6", "x > 3"),
        ("\\sqrt8", "2\\sqrt2"),
    ):
        answer(*pair)  # what is slow once, such as late imports
    limit_memory()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        verdict: str
        try:
            _set_timers(question["seconds"], question["kill"])
            verdict = answer(question["given"], question["gold"])
            _stop_timers()
        except _Slow:
            _stop_timers()
            verdict = "slow"
        print(json.dumps(verdict), flush=True)


if __name__ == "__main__":
    main()
