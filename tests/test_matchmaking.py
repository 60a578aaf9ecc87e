"""Blocks and round robins: every entrant holds every seat, on the same start."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from llm_arena.errors import UnknownName, UsageError
from llm_arena.matchmaking import Match, match_rows, play_matches, round_robin, seated_block
from llm_arena.rating import total_rewards, win_rate
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.types import EnvSpec, Trace

KUHN = EnvSpec(id="kuhn-poker-v0")
NAMING = EnvSpec(id="naming-v0", kwargs={"namers": 3, "topic": "tea house"})


def play_all(matches: list[Match], agents: dict[str, str]) -> list[Trace]:
    traces: dict[str, Trace] = {}
    with Runtime() as runtime:
        players = {name: make_agent(agent) for name, agent in agents.items()}
        play_matches(matches, players, runtime, lambda trace: traces.update({trace.id: trace}))
    return [traces[match.id] for match in matches]


def test_in_a_block_every_entrant_holds_every_seat_once() -> None:
    seats, lineup = ["a_0", "b_0", "b_1"], ["P", "Q", "R"]
    block = seated_block(NAMING, seats, lineup, seed=7, block="b")
    held = Counter((seat, entrant) for match in block for seat, entrant in match.entrants.items())
    assert held == {(seat, entrant): 1 for seat in seats for entrant in lineup}
    assert all((match.seed, match.spec, match.block) == (7, NAMING, "b") for match in block)
    assert len({match.id for match in block}) == 3


def test_a_rotation_goes_round_in_one_direction() -> None:
    # coworld issue 40: undone in the wrong direction, a rotation looks right with two entrants and is wrong with three.
    first, second, third = seated_block(NAMING, ["s_0", "s_1", "s_2"], ["P", "Q", "R"], seed=0, block="b")
    assert first.entrants == {"s_0": "P", "s_1": "Q", "s_2": "R"}
    assert second.entrants == {"s_0": "Q", "s_1": "R", "s_2": "P"}
    assert third.entrants == {"s_0": "R", "s_1": "P", "s_2": "Q"}


def test_a_round_robin_plays_every_pair_on_every_start_with_one_seed() -> None:
    matches = round_robin([KUHN, KUHN], ["A", "B", "C"], seed=3)
    assert len(matches) == 2 * 3 * 2
    pairs = Counter(tuple(sorted(match.entrants.values())) for match in matches)
    assert pairs == dict.fromkeys(combinations("ABC", 2), 4)
    seeds = {match.block.split("|")[1]: set[int]() for match in matches}
    for match in matches:
        seeds[match.block.split("|")[1]].add(match.seed)
    assert [len(found) for found in seeds.values()] == [1, 1]
    assert len(set.union(*seeds.values())) == 2
    assert len({match.id for match in matches}) == len(matches)
    assert matches == round_robin([KUHN, KUHN], ["A", "B", "C"], seed=3)
    assert matches != round_robin([KUHN, KUHN], ["A", "B", "C"], seed=4)


def test_entrants_and_blocks_added_later_change_no_match_that_was_planned() -> None:
    few = round_robin([NAMING], ["A", "C", "D"], blocks=2, seed=1, pool="p")
    more = round_robin([NAMING], ["D", "C", "B", "A"], blocks=3, seed=1, pool="p")
    by_id = {match.id: match for match in more}
    assert [by_id[match.id] for match in few] == few
    assert len(by_id) == len(more) == 4 * 3 * 3
    assert {match.pool for match in more} == {"p"}


def test_blocks_beyond_the_starts_use_them_again_with_new_seeds() -> None:
    other = EnvSpec(id="naming-v0", kwargs={"namers": 3, "topic": "book shop"})
    matches = round_robin([NAMING, other], ["A", "B", "C"], blocks=4)
    starts = {match.seed: match.spec.kwargs["topic"] for match in matches}
    assert list(starts.values()) == ["tea house", "book shop", "tea house", "book shop"]


def test_with_three_seats_the_order_round_the_table_varies() -> None:
    circles = set()
    for match in round_robin([NAMING], ["A", "B", "C"], blocks=20):
        seated = "".join(match.entrants.values())
        start = seated.index("A")
        circles.add(seated[start:] + seated[:start])
    assert circles == {"ABC", "ACB"}


def test_alone_an_entrant_holds_all_seats_on_the_same_starts_as_the_others() -> None:
    matches = round_robin([NAMING], ["A", "B"], blocks=3, alone=True)
    assert [set(match.entrants.values()) for match in matches] == [{"A"}, {"B"}] * 3
    assert [len(match.entrants) for match in matches] == [3] * 6
    assert len({match.block for match in matches}) == 6
    assert len({match.seed for match in matches}) == 3
    solo = round_robin([EnvSpec(id="naming-v0", kwargs={"namers": 1})], ["A"], alone=True)
    assert [match.entrants for match in solo] == [{"namer_0": "A"}]


@pytest.mark.parametrize(
    "spec, entrants, problem",
    [
        (EnvSpec(id="naming-v0", kwargs={"namers": 1}), ["A", "B"], "1 seat"),
        (NAMING, ["A", "B"], "3 seat"),
        (KUHN, ["A", "A"], "named twice"),
    ],
)
def test_a_schedule_that_can_not_be_is_refused(spec: EnvSpec, entrants: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        round_robin([spec], entrants)


def test_a_block_with_the_wrong_number_of_entrants_is_refused() -> None:
    with pytest.raises(UsageError, match="2 seats"):
        seated_block(KUHN, ["player_0", "player_1"], ["A"], seed=0, block="b")
    with pytest.raises(UsageError, match="twice"):
        seated_block(KUHN, ["player_0", "player_1"], ["A", "A"], seed=0, block="b")


def test_seat_swaps_take_the_deal_out_of_a_comparison() -> None:
    # Two equal players, in tic-tac-toe's seats of unequal worth: what one wins in a seat, the other wins in it as well.
    matches = round_robin([EnvSpec(id="tic-tac-toe-v0")] * 3, ["A", "B"])
    rows = match_rows(matches, play_all(matches, {"A": "tic-tac-toe-v0/optimal", "B": "tic-tac-toe-v0/optimal"}))
    assert win_rate(rows, "A", "B").draws == 6


def test_the_better_entrant_wins_from_both_seats() -> None:
    matches = round_robin([EnvSpec(id="tic-tac-toe-v0")] * 8, ["weak", "strong"])
    traces = play_all(matches, {"weak": "random-legal", "strong": "tic-tac-toe-v0/optimal"})
    rows = match_rows(matches, traces)
    record = win_rate(rows, "strong", "weak")
    assert record.losses == 0
    assert record.wins > 8
    assert total_rewards(rows)["strong"] == record.wins == -total_rewards(rows)["weak"]
    for match, trace in zip(matches, traces, strict=True):
        for seat, entrant in match.entrants.items():
            assert (trace.seats[seat].agent == "random-legal") == (entrant == "weak")


def test_rewards_follow_entrants_through_three_rotations() -> None:
    matches = round_robin([NAMING], ["P", "Q", "R"])
    agents = {"P": "naming-v0/scripted", "Q": "random-legal", "R": "random-legal"}
    traces = play_all(matches, agents)
    totals = total_rewards(match_rows(matches, traces))
    by_hand = dict.fromkeys("PQR", 0.0)
    for match, trace in zip(matches, traces, strict=True):
        for seat, reward in trace.returns.items():
            by_hand[match.entrants[seat]] += reward
    assert totals == by_hand
    assert totals["P"] == 3.0  # first by the rubric against random words, in whatever seat


def test_rows_are_found_by_id_and_a_match_played_again_counts_once() -> None:
    matches = round_robin([KUHN], ["A", "B"])
    traces = play_all(matches, {"A": "kuhn-poker-v0/optimal", "B": "random-legal"})
    rows = match_rows(matches, [*reversed(traces), traces[0]])
    assert [row.id for row in rows] == [match.id for match in matches]
    assert match_rows(matches, traces[1:]) == rows[1:]


def test_an_entrant_without_an_agent_is_named() -> None:
    with pytest.raises(UnknownName, match='"B"'):
        play_all(round_robin([KUHN], ["A", "B"]), {"A": "random-legal"})
