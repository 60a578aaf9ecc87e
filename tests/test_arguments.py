"""Checks of arguments: what each takes, and what it says of the rest."""

import re

import pytest

from llm_arena.arguments import flag, number, one_of, whole
from llm_arena.errors import UsageError

NAN = float("nan")


@pytest.mark.parametrize(
    ("check", "limits", "good", "bad", "expected"),
    [
        (whole, (1, 5), [1, 5], [0, 6, 2.0, True, "2", None, [2], NAN], "a whole number from 1 to 5"),
        (number, (0, 0.5), [0, 0.25, 0.5], [-1e-9, 0.6, NAN, 10**400, False, "0", None], "a number from 0 to 0.5"),
        (one_of, (("pro", "con"),), ["pro", "con"], ["Pro", "", None, 1, ["pro"], {"pro"}], "one of pro, con"),
        (one_of, ({"pro": 1, "con": 2},), ["pro"], [["pro"], {"pro": 1}], "one of pro, con"),
        (flag, (), [True, False], [0, 1, "yes", None, []], "true or false"),
    ],
)
def test_what_is_out_of_range_is_told_on_one_line(check, limits, good, bad, expected):
    for given in good:
        check("game-v0", "x", given, *limits)
    for given in bad:
        said = f"game-v0: x={repr(given)[:100]}; expected {expected}"
        with pytest.raises(UsageError, match=f"^{re.escape(said)}$"):
            check("game-v0", "x", given, *limits)
    with pytest.raises(UsageError) as caught:
        check("game-v0", "x", "a\n" * 5000, *limits)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
