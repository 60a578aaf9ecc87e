"""Comparing statements, equations and inequalities, by computer algebra.

Statements in one symbol are compared by what solves them. In several symbols, two relations are the same if the
differences of their sides are multiples, and different if a point is seen that fulfils only one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import sympy  # type: ignore[import-untyped]

from llm_arena.problems.answers.compare import Compare, CompareRelations, Verdict
from llm_arena.problems.answers.forms import Form, Leaf, Named, Parts, Relation
from llm_arena.problems.answers.latex import LOG_BASE, Unreadable, read_expression

_COMPARED = {"=": sympy.Eq, "\\ne": sympy.Ne, "<": sympy.Lt, "\\le": sympy.Le, ">": sympy.Gt, "\\ge": sympy.Ge}
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}
_STEPS = [sympy.Rational(value, 2) for value in (-13, -8, -5, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 11, 13)]
"""Coordinates of the points at which relations in several symbols are tried."""


def same_statement(same: Compare) -> CompareRelations:
    """Returns a function that compares two forms of which one is a statement; `same` compares two expressions."""

    def compare(given: Form, gold: Form) -> Verdict:
        if given == gold:
            return "right"
        left, right = (form.relation if isinstance(form, Named) else form for form in (given, gold))
        try:
            found = _by_solving(given, gold)
            if found == "undecided" and isinstance(left, Relation) and isinstance(right, Relation):
                found = _by_form(left, right, same)
        except (Unreadable, NotImplementedError):  # sympy raises the second for what it can't solve
            return "undecided"
        # an equation that is yet to be solved may be the question itself
        solved = [isinstance(form, Relation) and "=" in form.signs for form in (given, gold)]
        return "undecided" if found == "right" and solved[0] != solved[1] and _one_symbol(given, gold) else found

    return compare


def _one_symbol(given: Form, gold: Form) -> bool:
    return len(_symbols(given) | _symbols(gold)) <= 1


def _symbols(form: Form) -> set[sympy.Symbol]:
    """Returns the symbols of a statement. Raises an `Unreadable` where a part of it is none."""
    if isinstance(form, Leaf):
        return set(_read(form.text).free_symbols) if form.kind == "value" else set()
    if isinstance(form, Parts):
        return set().union(*map(_symbols, form.items))
    if isinstance(form, Named):
        return set(_read(form.name).free_symbols) | _symbols(form.relation or form.value)
    return set().union(*(_read(side).free_symbols for side in form.sides))


def _read(text: str) -> sympy.Expr:
    value = read_expression(text)
    if value.has(LOG_BASE, sympy.I) or value.atoms(sympy.core.function.AppliedUndef):
        raise Unreadable(text)
    return value


# ---- one symbol: what solves it ------------------------------------------------------------------------------------


def _by_solving(given: Form, gold: Form) -> Verdict:
    symbols = _symbols(given) | _symbols(gold)
    if len(symbols) > 1 or any(_commas(form) for form in (given, gold)):
        return "undecided"
    symbol = symbols.pop() if symbols else sympy.Dummy(real=True)
    left, right = _solutions(given, symbol), _solutions(gold, symbol)
    if not (_is_known(left) and _is_known(right)) or left == right == sympy.S.EmptySet:
        return "undecided"  # two equations without real solutions may be different ones
    rest = (left - right, right - left)
    if any(_is_known(part) and part is not sympy.S.EmptySet for part in rest):
        return "wrong"
    return "right" if left == right or rest == (sympy.S.EmptySet, sympy.S.EmptySet) else "undecided"


def _commas(form: Form) -> bool:
    if isinstance(form, Named):
        return _commas(form.value)
    return isinstance(form, Parts) and (form.joint == "," or any(map(_commas, form.items)))


def _is_known(solutions: sympy.Set) -> bool:
    """Returns whether a set is made of points and intervals alone."""
    if isinstance(solutions, sympy.Union):
        return all(map(_is_known, solutions.args))
    return (
        isinstance(solutions, sympy.FiniteSet | sympy.Interval | sympy.sets.sets.EmptySet)
        and not solutions.free_symbols
    )


def _solutions(form: Form, symbol: sympy.Symbol) -> sympy.Set:
    """Returns the real numbers that a form allows. Raises an `Unreadable` if it is no matter of numbers."""
    if isinstance(form, Named):
        return _solutions(form.value, symbol)
    if isinstance(form, Leaf):
        value = _read(form.text)
        if form.kind != "value" or value.free_symbols or not value.is_real:
            raise Unreadable(form.text)
        return sympy.FiniteSet(value)
    if isinstance(form, Parts):
        if not form.ordered:
            sets = [_solutions(item, symbol) for item in form.items]
            return sympy.Intersection(*sets) if form.joint == "and" else sympy.Union(*sets)
        if len(form.items) != 2 or form.brackets not in ("()", "[]", "(]", "[)"):
            raise Unreadable(form.brackets)
        low, high = (_read(item.text) for item in form.items if isinstance(item, Leaf))
        return sympy.Interval(low, high, form.brackets[0] == "(", form.brackets[1] == ")")
    sets = [
        sympy.solveset(_COMPARED[sign](_read(left), _read(right)), symbol, sympy.S.Reals)
        for left, sign, right in zip(form.sides, form.signs, form.sides[1:], strict=False)
    ]
    return sympy.Intersection(*sets)


# ---- several symbols -----------------------------------------------------------------------------------------------


def _by_form(given: Relation, gold: Relation, same: Compare) -> Verdict:
    """Compares two relations: sides' differences are multiples, positive ones for inequalities, or a point differs."""
    given, gold = _ascending(given), _ascending(gold)
    left, right = _differences(given), _differences(gold)
    if {s for part in left for s in part.free_symbols} != {s for part in right for s in part.free_symbols}:
        return "wrong"
    if given.signs == gold.signs:
        if len(gold.signs) > 1 and all(same(*pair) == "right" for pair in zip(given.sides, gold.sides, strict=True)):
            return "right"
        triples = zip(left, right, gold.signs, strict=True)
        if all(_multiples(one, other, sign) for one, other, sign in triples):
            return "right"
    return "wrong" if _seen_to_differ(given, gold) else "undecided"


def _differences(relation: Relation) -> list[sympy.Expr]:
    sides = [_read(side) for side in relation.sides]
    return [sympy.expand(left - right) for left, right in itertools.pairwise(sides)]


def _multiples(left: sympy.Expr, right: sympy.Expr, sign: str) -> bool:
    if left.is_zero or right.is_zero or not right.free_symbols:
        return False
    ratio = sympy.cancel(sympy.together(left / right))
    if ratio.free_symbols:
        ratio = sympy.simplify(ratio)
    if ratio.free_symbols or ratio.is_zero is not False or ratio.is_finite is not True:
        return False
    return sign in ("=", "\\ne") or ratio.is_positive is True


def _seen_to_differ(given: Relation, gold: Relation) -> bool:
    """Returns whether a point is seen that fulfils one relation and not the other."""
    symbols = sorted(set().union(*(_read(side).free_symbols for side in (*given.sides, *gold.sides))), key=str)
    if any(set(relation.signs) & {"=", "\\ne"} for relation in (given, gold)):
        return given.signs == gold.signs and len(gold.signs) == 1 and _curves_differ(given, gold, symbols)
    for point in _grid(symbols):
        truths = [_holds(relation, point) for relation in (given, gold)]
        if None not in truths and truths[0] != truths[1]:
            return True
    return False


def _grid(symbols: list[sympy.Symbol]) -> Iterable[dict[sympy.Symbol, sympy.Expr]]:
    steps = _STEPS if len(symbols) <= 2 else _STEPS[:: len(symbols)]
    points = itertools.islice(itertools.product(steps, repeat=len(symbols)), 400)
    return (dict(zip(symbols, point, strict=True)) for point in points)


def _holds(relation: Relation, point: dict[sympy.Symbol, sympy.Expr]) -> bool | None:
    truth = True
    for (left, right), sign in zip(itertools.pairwise(relation.sides), relation.signs, strict=True):
        held = _COMPARED[sign](_read(left).subs(point), _read(right).subs(point))
        if held not in (sympy.true, sympy.false):
            return None
        truth &= bool(held)
    return truth


def _curves_differ(given: Relation, gold: Relation, symbols: list[sympy.Symbol]) -> bool:
    """Returns whether polynomial equations differ: a real point of one is none of the other, or no factor is shared."""
    [left], [right] = _differences(given), _differences(gold)
    if not (left.is_polynomial(*symbols) and right.is_polynomial(*symbols)):
        return False
    for one, other in ((left, right), (right, left)):
        for symbol in symbols:
            rest = [each for each in symbols if each != symbol]
            for point in itertools.islice(_grid(rest), 7):
                line = one.subs(point)
                if line.free_symbols != {symbol} or not all(c.is_rational for c in sympy.Poly(line, symbol).coeffs()):
                    continue
                for root in sympy.real_roots(line)[:2]:
                    if other.subs(point).subs(symbol, root).equals(0) is False:
                        return True
    return bool(sympy.gcd(left, right) == 1)


def _ascending(relation: Relation) -> Relation:
    r"""Returns the relation without `>` and `\ge`."""
    if not set(relation.signs) & {">", "\\ge"}:
        return relation
    signs = tuple(_FLIPPED.get(sign, sign) for sign in reversed(relation.signs))
    return Relation(relation.sides[::-1], signs)
