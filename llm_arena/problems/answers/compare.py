"""Comparing the forms of two answers, part by part.

`compare` is given a function for leaves and another for relations, so that the same code decides with plain fractions
at once, and with computer algebra in another process. Wrong is only what differs in a way that is seen; a form that
might say the same in another way is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from llm_arena.problems.answers.forms import Form, Leaf, Named, Parts, Relation, plain

Verdict = Literal["right", "wrong", "undecided"]
"""Whether an answer is right; `undecided` where that could not be found out, and never right."""

Compare = Callable[[str, str], Verdict]
CompareRelations = Callable[[Form, Form], Verdict]

MAX_PAIRS = 10_000
"""Parts of the one times parts of the other: what is compared at most."""


def compare(given: Form, gold: Form, same: Compare, related: CompareRelations) -> Verdict:
    """Compares all parts of two forms; undecided if they have too many.

    Args:
        given: the form of the prediction.
        gold: the form of the right answer.
        same: compares two expressions.
        related: compares two forms of which one is a relation or has its statements joined another way.
    """
    if given == gold and _is_read(gold):
        return "right"
    if count(given) * count(gold) > MAX_PAIRS:
        return "undecided"
    return _compare(given, gold, same, related)


def count(form: Form) -> int:
    """Returns how many leaves and relations a form has; each pair of them is compared at most once."""
    if isinstance(form, Named):
        return count(form.value)
    return sum(map(count, form.items)) if isinstance(form, Parts) else 1


def _is_read(form: Form) -> bool:
    """Returns whether no part of a form is empty: nothing is never right."""
    if isinstance(form, Leaf):
        return bool(form.text)
    if isinstance(form, Named):
        return _is_read(form.value)
    if isinstance(form, Relation):
        return all(form.sides)
    return all(map(_is_read, form.items))


def _compare(given: Form, gold: Form, same: Compare, related: CompareRelations) -> Verdict:
    if isinstance(given, Relation) or isinstance(gold, Relation):
        return related(given, gold)
    if isinstance(given, Named) or isinstance(gold, Named):
        return _compare_named(given, gold, same, related)
    if isinstance(given, Leaf) and isinstance(gold, Leaf):
        return _compare_leaves(given, gold, same)
    if isinstance(given, Leaf):
        assert isinstance(gold, Parts)
        return _compare_with_leaf(gold, given, same, related)
    if isinstance(gold, Leaf):
        return _compare_with_leaf(given, gold, same, related)
    if given.joint != gold.joint:
        return related(given, gold)
    if _is_union(given) or _is_union(gold):
        found = _compare_in_any_order(given, gold, same, related) if _is_union(given) and _is_union(gold) else "wrong"
        return found if found == "right" else related(given, gold)  # intervals may overlap or touch
    if given.ordered and gold.ordered:
        return _compare_in_order(given, gold, same, related)
    if not given.ordered and not gold.ordered:
        found = _compare_in_any_order(given, gold, same, related)
        return found if found != "wrong" or (_are_values(given) and _are_values(gold)) else related(given, gold)
    ordered, other = (given, gold) if given.ordered else (gold, given)
    if len(other.items) == 1 or (other.is_set and other.items and not other.joint):
        return all_of(_compare(item, ordered, same, related) for item in other.items)
    return "wrong"


def _is_union(parts: Parts) -> bool:
    return parts.is_set and not parts.brackets and any(isinstance(item, Parts) and item.ordered for item in parts.items)


def _are_values(parts: Parts) -> bool:
    """Returns whether a list has values only, at most named ones, so that one that differs is seen to."""
    named = [item for item in parts.items if isinstance(item, Named)]
    return not parts.joint or (
        len(named) == len(parts.items) and all(item.relation and item.relation.signs == ("=",) for item in named)
    )


def _compare_with_leaf(parts: Parts, leaf: Leaf, same: Compare, related: CompareRelations) -> Verdict:
    if leaf.kind == "unread" or (leaf.kind == "words" and not parts.items):  # no solution is the empty set
        return "undecided"
    if parts.joint:
        return "undecided"
    if parts.ordered or not parts.items or (len(parts.items) > 1 and not parts.is_set):
        return "wrong"
    return all_of(_compare(item, leaf, same, related) for item in parts.items)  # {5, 5} is 5


def _compare_in_order(given: Parts, gold: Parts, same: Compare, related: CompareRelations) -> Verdict:
    if given.brackets != gold.brackets:
        return "undecided" if {given.brackets, gold.brackets} & {"matrix", "row"} else "wrong"  # a column is a vector
    if len(given.items) != len(gold.items):
        return "wrong"
    pairs = zip(given.items, gold.items, strict=True)
    return all_of(_compare(left, right, same, related) for left, right in pairs)


def _compare_in_any_order(given: Parts, gold: Parts, same: Compare, related: CompareRelations) -> Verdict:
    """Matches items one to one, or in sets each with one or more."""
    table = [[_compare(left, right, same, related) for right in gold.items] for left in given.items]
    if given.is_set or gold.is_set:
        columns = [list(column) for column in zip(*table, strict=True)]
        if not table or not columns:
            return "right" if not given.items and not gold.items else "wrong"
        return all_of(any_of(verdicts) for verdicts in [*table, *columns])
    if len(given.items) != len(gold.items):
        return "wrong"
    if _matches(table, ("right",)):
        return "right"
    return "undecided" if _matches(table, ("right", "undecided")) else "wrong"


def _matches(table: Sequence[Sequence[Verdict]], good: tuple[Verdict, ...]) -> bool:
    """Returns whether each row can have a column of its own whose verdict is `good` (Kuhn's augmenting paths)."""
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, verdict in enumerate(table[row]):
            if verdict in good and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(table)))


def _compare_named(given: Form, gold: Form, same: Compare, related: CompareRelations) -> Verdict:
    if isinstance(given, Named) and isinstance(gold, Named) and given.name != gold.name:
        return related(given, gold)
    if any(isinstance(form, Parts) and form.joint for form in (given, gold)):
        return related(given, gold)
    left, right = (form.value if isinstance(form, Named) else form for form in (given, gold))
    return _compare(left, right, same, related)


def _compare_leaves(given: Leaf, gold: Leaf, same: Compare) -> Verdict:
    if not given.text or not gold.text:
        return "wrong"
    if given.unit and gold.unit and given.unit != gold.unit:
        return "wrong"
    if "unread" in (given.kind, gold.kind):
        return "right" if given.text == gold.text else "undecided"
    if "words" in (given.kind, gold.kind):
        if plain(given.text) == plain(gold.text):
            return "right"
        # AB and BA may be a segment, a product or two words
        shuffled = len(gold.text) < 4 and sorted(given.text) == sorted(gold.text)
        return "undecided" if shuffled else "wrong"
    return "right" if given.text == gold.text else same(given.text, gold.text)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns wrong if any is wrong, else undecided if any is, else right."""
    found: Verdict = "right"
    for verdict in verdicts:
        if verdict == "wrong":
            return "wrong"
        found = "undecided" if verdict == "undecided" else found
    return found


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Returns right if any is right, else undecided if any is, else wrong."""
    found: Verdict = "wrong"
    for verdict in verdicts:
        if verdict == "right":
            return "right"
        found = "undecided" if verdict == "undecided" else found
    return found
