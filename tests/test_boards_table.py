"""Tables: what they count, what they warn of, and how they are written."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from typing import Any

import numpy as np
import pytest
from markdown_it import MarkdownIt

from llm_arena.boards.formats import to_csv, to_markdown, to_text
from llm_arena.boards.table import Row, Table, make_table
from llm_arena.rating import MatchRow, SeatRow, wilson
from llm_arena.types import EnvSpec

SPEC = EnvSpec(id="game-v0")


def row(number: int, seats: list[tuple[str, int | None, float]], **changes: Any) -> MatchRow:
    given: dict[str, Any] = {"id": f"m{number}", "block": f"b{number}", "seed": number, "status": "finished"}
    extra = changes.pop("seat", {})
    places = {
        f"player_{i}": SeatRow(entrant=name, role="player", rank=rank, reward=reward, **extra)
        for i, (name, rank, reward) in enumerate(seats)
    }
    return MatchRow(spec=SPEC, seats=places, pool="p", **given | changes)


def wins(one: str, other: str, count: int, start: int = 0) -> list[MatchRow]:
    return [row(start + i, [(one, 1, 1.0), (other, 2, -1.0)]) for i in range(count)]


def table(rows: list[MatchRow], entrants: str = "AB", planned: int | None = None, **changes: Any) -> Table:
    given: dict[str, Any] = {"anchor": None, "prior_sd": 1.5, "planned": len(rows) if planned is None else planned}
    return make_table("p", rows, entrants, **given | changes)


def by_name(found: Table) -> dict[str, Row]:
    return {row.entrant: row for row in found.rows}


def test_counts_rates_and_rewards_by_hand() -> None:
    rows = [*wins("A", "B", 3), row(3, [("B", 1, 1.0), ("A", 2, -1.0)]), row(4, [("A", 1, 0.0), ("B", 1, 0.0)])]
    a = by_name(table(rows))["A"]
    assert (a.wins, a.draws, a.losses, a.win_rate, a.matches) == (3, 1, 1, 0.7, 5)
    assert (a.win_low, a.win_high) == pytest.approx(wilson(3.5, 5), abs=1e-6)
    assert a.reward == pytest.approx(0.4)
    # Five starts of one match: the plain t interval, t = 2.776 for 4 degrees of freedom.
    values = np.array([1, 1, 1, -1, 0])
    assert a.reward_half_width == pytest.approx(2.776445 * values.std(ddof=1) / math.sqrt(5), rel=1e-5)


def test_matches_of_one_start_are_one_piece_of_luck() -> None:
    alone = [row(i, [("A", None, float(i % 2))]) for i in range(8)]
    twice = [row(i, [("A", None, float(i // 2 % 2))], seed=i // 2) for i in range(16)]
    one, two = table(alone, "A").rows[0], table(twice, "A").rows[0]
    assert two.reward_half_width == pytest.approx(one.reward_half_width)


def test_a_table_without_rows_and_one_with_a_single_entrant() -> None:
    assert table([], "").rows == []
    found = table([], "A", planned=0)
    assert [(row.entrant, row.rating, row.rank_low, row.status) for row in found.rows] == [
        ("A", 1000, None, "no matches")
    ]
    for made in (table([], ""), found):
        json.dumps(made.model, allow_nan=False)
        assert to_text(made) and to_markdown(made) and to_csv(made.rows)


def test_perfect_records_are_valid_json_and_say_what_they_are() -> None:
    rows = [*wins("A", "B", 10), *wins("B", "C", 9, 10), *wins("C", "B", 3, 20), *wins("C", "D", 5, 30)]
    found = table(rows, "ABCD")
    assert [row.entrant for row in found.rows] == list("ABCD")
    assert [row.status for row in found.rows] == [
        "provisional, no upper bound",
        "provisional",
        "provisional",
        "provisional, no lower bound",
    ]
    text = json.dumps([{f: getattr(row, f) for f in Row.__struct_fields__} for row in found.rows], allow_nan=False)
    assert "NaN" not in text
    json.dumps(found.model, allow_nan=False)


def test_missing_and_void_matches_make_a_table_incomplete() -> None:
    void = row(9, [("A", None, 0.0), ("B", None, 0.0)], status="void", reason="engine: EngineError")
    found = table([*wins("A", "B", 3), void], planned=6)
    assert found.warnings == [
        "incomplete: 3 of the planned matches are missing, 1 of them void (mostly engine: EngineError); give the same"
        " command again"
    ]
    assert (found.played, found.void, by_name(found)["A"].void, by_name(found)["A"].matches) == (3, 1, 1, 3)


def test_groups_that_never_met_are_marked() -> None:
    found = table([*wins("A", "B", 3), *wins("C", "D", 2, 3)], "ABCDE")
    assert "2 groups that never met" in found.warnings[0]
    groups = {name: row.status.rpartition(" ")[2] for name, row in by_name(found).items()}
    assert groups["A"] == groups["B"] != groups["C"] == groups["D"]
    assert by_name(found)["E"].status == "no matches"


def test_matches_that_were_cut_off_are_told() -> None:
    found = table([*wins("A", "B", 3), row(3, [("A", 1, 0.0), ("B", 1, 0.0)], status="truncated")])
    assert found.warnings == ["matches that were cut off, and count as drawn where they had no outcome: 1"]


def test_forfeits_and_tokens_are_counted_by_match_and_turn() -> None:
    rows = [
        row(0, [("A", 2, -1.0)], status="forfeit", seat={"forfeited": True, "turns": 2, "tokens": 9}),
        row(1, [("A", 2, -1.0), ("B", 1, 1.0)], seat={"turns": 1, "tokens": 0}),
    ]
    a = by_name(table(rows))["A"]
    assert (a.forfeits, a.tokens_per_turn) == (1, 3.0)
    assert by_name(table(rows))["B"].tokens_per_turn is None


def test_rewards_without_ranks_are_compared_on_the_same_starts() -> None:
    # Starts differ far more than entrants do: only pairs of one start tell A from B.
    rng = np.random.default_rng(0)
    luck = rng.normal(scale=10, size=40)
    rows = [
        row(i, [("A", None, float(x + 1 + rng.normal(scale=0.1)))], id=f"a{i}", block=f"a{i}")
        for i, x in enumerate(luck)
    ]
    rows += [row(i, [("B", None, float(x))], id=f"b{i}", block=f"b{i}") for i, x in enumerate(luck)]
    found = table(rows)
    assert not found.rated and found.model is None
    assert [(row.entrant, row.rank_low, row.rank_high, row.status) for row in found.rows] == [
        ("A", 1, 1, ""),
        ("B", 2, 2, ""),
    ]
    assert found.rows[0].reward_half_width is not None and found.rows[0].reward_half_width > 1
    few = table([entry for entry in rows if entry.seed < 1])
    assert [(row.rank_low, row.rank_high, row.status) for row in few.rows] == [(1, 2, "provisional")] * 2


@pytest.mark.parametrize("starts, ranks", [(5, (1, 2)), (6, (1, 1))])
@pytest.mark.parametrize("rewards", [(1.0, 0.0), (1.2, 0.1)])  # binary fractions, and others: sums of 1.2 are rounded
def test_equal_differences_are_sure_only_after_some_starts(
    starts: int, ranks: tuple[int, int], rewards: tuple[float, float]
) -> None:
    rows = [
        row(i, [(name, None, reward)], id=f"{name}{i}")
        for i in range(starts)
        for name, reward in zip("AB", rewards, strict=True)
    ]
    best = table(rows).rows[0]
    assert (best.entrant, best.rank_low, best.rank_high) == ("A", *ranks)
    assert best.reward_half_width is None  # not 0


def test_rounding_is_no_spread() -> None:
    # Three seats a start get 1.2 each: sum and mean are rounded apart in many of these.
    for starts in range(2, 40):
        rows = [row(i, [("A", None, 1.2), ("A", None, 1.2), ("A", None, 1.2)]) for i in range(starts)]
        assert table(rows, "A", alone=True).rows[0].reward_half_width is None
    # Starts differ, but the gap is 1.2 at each, rounding apart.
    rows = [row(i, [("A", None, i * 0.37 + 1.2)], id=f"a{i}") for i in range(5)]
    rows += [row(i, [("B", None, i * 0.37)], id=f"b{i}") for i in range(5)]
    assert [(row.rank_low, row.rank_high) for row in table(rows).rows] == [(1, 2), (1, 2)]


def test_an_anchor_that_met_nobody_anchors_nothing() -> None:
    free, held = table(wins("A", "B", 4), "ABZ"), table(wins("A", "B", 4), "ABZ", anchor="Z")
    assert held.warnings == ['the anchor "Z" met nobody in a match that ranks: 1000 is the mean instead']
    assert held.rows == free.rows
    rows = by_name(held)
    assert (rows["Z"].status, rows["Z"].rank_low) == ("no matches", None)
    assert rows["Z"].half_width is not None and rows["Z"].half_width > 400
    assert held.model is not None and held.model["anchor"] is None
    anchored = table(wins("A", "B", 4), "ABZ", anchor="B")
    assert (anchored.warnings, by_name(anchored)["B"].rating, by_name(anchored)["B"].half_width) == ([], 1000, 0)


def test_matches_that_rank_nobody_are_counted_aloud() -> None:
    together = [row(9 + i, [("A", None, 1.0), ("B", None, 1.0)]) for i in range(3)]
    found = table([*wins("A", "B", 4), *together])
    assert found.warnings == ["matches in which all won or all lost, and which no rating counts: 3"]
    assert (by_name(found)["A"].wins, by_name(found)["A"].matches) == (4, 7)


def test_entrants_that_sat_alone_get_no_rating() -> None:
    rows = [row(i, [(name, 1, 1.0), (name, 1, 1.0)], id=f"{name}{i}") for i in range(3) for name in "AB"]
    for played in (rows, []):
        found = table(played, alone=True)
        assert not found.rated and found.model is None
        assert [row.rating for row in found.rows] == [None, None]
    # even if some row of them says that two met
    assert not table(wins("A", "B", 4), alone=True).rated


def test_what_a_seat_is_worth_is_told_and_valid_json() -> None:
    rows = [
        row(i, [("A", a, 0.0), ("B", 3 - a, 0.0)] if i % 2 else [("B", a, 0.0), ("A", 3 - a, 0.0)])
        for i, a in enumerate([1, 1, 1, 1, 1, 1, 2, 2])
    ]
    model = table(rows).model
    assert model is not None
    seats = json.loads(json.dumps(model["seats"], allow_nan=False))
    assert seats["player_0"]["nats"] == pytest.approx(-seats["player_1"]["nats"])
    assert seats["player_0"]["nats"] > 0.1 < seats["player_0"]["standard_error"]
    one_sided = table(wins("A", "B", 3)).model
    assert one_sided is not None and one_sided["seats"] == {}


def shown_by_markdown(text: str) -> list[str]:
    """What a reader sees of the second column of a table."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", page)
    assert not re.search(r"<(?!/?(h1|h2|p|table|thead|tbody|tr|td|th)\b)", page)
    return [html.unescape(cell) for cell in cells[1 :: cells.index("status") + 1]]


@pytest.mark.parametrize(
    "name",
    [
        "&lt;b&gt; &amp;",
        "~~struck~~",
        "*b* _i_ `c` <b> [x](y) ![x](y) # $x$ a\\|b",
        "plain v1.2-x (a, b): c",
        "a@b.org",
    ],
)
def test_markdown_shows_names_as_they_are(name: str) -> None:
    found = table([row(0, [(name, 1, 1.0), ("B", 2, -1.0)])], [name, "B"])  # type: ignore[arg-type]
    assert shown_by_markdown(to_markdown(found)) == ["entrant", name, "B"]


def test_markdown_makes_no_links_of_addresses() -> None:
    # GitHub makes links of addresses that begin with a scheme or www, if no backslash stands between.
    name = "https://x.org/a HTTP://y.org www.z.org awww.b c: d"
    found = table([row(0, [(name, 1, 1.0), ("B", 2, -1.0)])], [name, "B"])  # type: ignore[arg-type]
    text = to_markdown(found)
    assert r"https\://x.org/a HTTP\://y.org www\.z.org awww.b c: d" in text
    assert shown_by_markdown(text) == ["entrant", name, "B"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "'quoted", "'=x"])
def test_a_spreadsheet_reads_no_name_as_a_formula(name: str) -> None:
    rows = [row(0, [(name, 1, 1.0), ("B", 2, -1.0)])]
    read = list(csv.reader(io.StringIO(to_csv(table(rows, [name, "B"]).rows), newline="")))  # type: ignore[arg-type]
    assert [line[1] for line in read] == ["entrant", f"'{name}", "B"]
    reward = read[0].index("reward")
    assert [line[reward] for line in read[1:]] == ["1.0", "-1.0"]  # a number stays a number


def test_formats_hold_names_that_look_like_markup() -> None:
    name = '*bold* <b> [x](y), "q"'
    found = table([row(0, [(name, 1, 1.0), ("B", 2, -1.0)])], [name, "B"])  # type: ignore[arg-type]
    assert r"\*bold\* \<b\> \[x\](y)" in to_markdown(found)
    read = list(csv.DictReader(io.StringIO(to_csv(found.rows))))
    assert [entry["entrant"] for entry in read] == [name, "B"]
    assert read[0]["rating"] == str(found.rows[0].rating)
    lines = to_text(found).splitlines()
    assert lines[2].index("rating") + len("rating") == lines[3].index(f"{found.rows[0].rating:.0f}") + 4


def test_a_narrow_terminal_gets_fewer_columns_and_is_told_which() -> None:
    found = table([*wins("A", "B", 3), *wins("B", "A", 2, 3)], planned=6)
    whole = to_text(found)
    assert to_text(found, 200) == whole
    for columns in (90, 70, 60, 50):
        text = to_text(found, columns)
        assert max(map(len, text.splitlines())) <= columns
        head = text.splitlines()[2].split()
        assert {"rank", "entrant", "rating", "+-"} <= set(head)
    assert text.endswith("\n  left out, for want of room: 95 %, reward, win\n  rate, win, draw, loss")
    assert "  incomplete: 1 of the planned matches are\n  missing" in text
    unrated = table([row(i, [(name, None, 1.0)], id=f"{name}{i}") for i in range(3) for name in "AB"])
    assert to_text(unrated, 20).splitlines()[2].split() == ["rank", "entrant", "reward", "+-", "status"]
