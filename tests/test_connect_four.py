"""Connect four: fours in every direction, full boards, the search, and OpenSpiel's connect_four."""

import itertools
import time

import numpy as np
import pytest

import llm_arena
from llm_arena.errors import UsageError
from llm_arena.problems.solvers.connect_four import COLUMNS, Search, best_column, has_four, landing, threats
from llm_arena.types import Cause
from openspiel_parts import plays_alike


def played(moves, **options):
    """Returns an env after `moves`, none of which ended it but perhaps the last."""
    env = llm_arena.make("connect-four-v0", **options)
    env.reset(seed=0)
    for move in moves:
        assert not env.over
        env.step(move)
    return env


@pytest.mark.parametrize(
    ("moves", "winner"),
    [
        ("4141414", "player_0"),  # upright
        ("1122334", "player_0"),  # level
        ("12233434464", "player_0"),  # rising
        ("76655454424", "player_0"),  # falling
        ("15257535", "player_1"),
        ("172737", None),  # three each
        ("1425364", None),  # the fourth stone of X lands a row higher
    ],
)
def test_fours_win_in_every_direction(moves, winner):
    if winner is None:
        assert not played(moves).over
        return
    env = played(moves)
    loser = "player_1" if winner == "player_0" else "player_0"
    assert env.outcome.winners == [winner] and env.outcome.reason == "four in a row"
    assert env.returns == {winner: 1.0, loser: -1.0}
    assert env.outcome.ranks == {winner: 1, loser: 2}


def test_every_four_and_no_other_line_counts():
    """All 69 fours of the board are found, one by one, and each line of four that runs over an edge is not."""
    steps = [(0, 1), (1, 0), (1, 1), (1, -1)]
    lines = {
        tuple((x + dx * k, y + dy * k) for k in range(4))
        for x, y, (dx, dy) in itertools.product(range(7), range(6), steps)
    }
    inside = {line for line in lines if all(0 <= x < 7 and 0 <= y < 6 for x, y in line)}
    assert len(inside) == 69
    for line in inside:
        stones = sum(1 << 7 * x + y for x, y in line)
        assert has_four(stones)
        for x, y in line:  # one short, the missing cell is the threat
            cell = 1 << 7 * x + y
            assert not has_four(stones ^ cell)
            if line[0][0] != line[1][0] or (x, y) == line[-1]:  # below a column's stones no cell is free
                assert threats(stones ^ cell, stones ^ cell) & cell
    for column in range(6):  # the top of a column and the foot of the next are no line
        assert not has_four(0b111 << 7 * column + 3 | 1 << 7 * (column + 1))


def test_threats_agree_with_trying_every_cell():
    rng = np.random.default_rng(0)
    for _ in range(300):
        mine = occupied = 0
        for number in range(int(rng.integers(4, 36))):
            free = [column for column in COLUMNS if landing(occupied) & column]
            stone = landing(occupied) & free[int(rng.integers(len(free)))]
            occupied |= stone
            mine |= stone if number % 2 else 0
        cells = [1 << 7 * x + y for x in range(7) for y in range(6)]
        if has_four(mine):
            continue
        slow = sum(cell for cell in cells if not cell & occupied and has_four(mine | cell))
        assert threats(mine, occupied) == slow


def test_a_full_board_without_a_four_is_a_draw():
    env = played(full_board(last_wins=False))
    assert (
        env.outcome.draw and env.outcome.reason == "full board" and env.outcome.ranks == dict.fromkeys(env.returns, 1)
    )
    assert set(env.returns.values()) == {0.0}


def full_board(last_wins):
    """Returns 42 moves of random play in which the last stone wins, or doesn't."""
    env = llm_arena.make("connect-four-v0")
    for seed in range(100_000):
        env.reset(seed=0)
        rng = np.random.default_rng(seed)
        while not env.over:
            env.step(env.sample_reply(env.agent_selection, rng))
        if len(env.moves) == 42 and env.outcome.draw != last_wins:
            return "".join(map(str, env.moves))
    raise AssertionError("no such game")


def test_the_last_free_cell_can_win():  # werner-duvaud/muzero-general issue 37
    env = played(full_board(last_wins=True))
    assert env.outcome.winners == ["player_1"] and not env.outcome.draw
    assert env.returns == {"player_0": -1.0, "player_1": 1.0}


def test_a_full_column_is_illegal_and_the_board_is_shown():
    env = played("444444")
    assert env.legal_actions("player_0") == ["1", "2", "3", "5", "6", "7"]
    shown = env.observe("player_0")["messages"][-1]["content"]
    assert shown == (
        "player_1 plays 4.\nBoard:\n1 2 3 4 5 6 7\n. . . O . . .\n. . . X . . .\n. . . O . . .\n. . . X . . .\n"
        ". . . O . . .\n. . . X . . .\nYour move. Reply with one column number."
    )
    env.step("4")
    assert env.last_step.cause is Cause.ILLEGAL
    assert env.returns == {"player_0": -1.0, "player_1": 1.0}
    assert env.outcome.winners == ["player_1"]


@pytest.mark.parametrize("reply", ["8", "0", "-1", "column 3", "[1] [2]", "I play 3 and then 4", "<think>[3]"])
def test_what_is_no_column_forfeits(reply):
    env = played("4")
    env.step(reply)
    assert env.last_step.cause is not Cause.LEGAL and env.returns == {"player_0": 1.0, "player_1": -1.0}


def test_retries_leave_room_for_a_whole_game():
    env = llm_arena.make("connect-four-v0", retries=2)
    env.reset(seed=0)
    for move in full_board(last_wins=False):
        env.step("9")
        env.step("9")
        env.step(move)
    assert env.over and str(env.ending) == "terminated"


def columns(moves):
    """Returns (stones of the side to move, stones of both)."""
    mine = occupied = 0
    for move in moves:
        stone = landing(occupied) & COLUMNS[int(move) - 1]
        occupied |= stone
        mine = occupied ^ (mine | stone)
    return mine, occupied


@pytest.mark.parametrize(
    ("moves", "answers"),
    [
        ("414141", {4}),  # wins at once
        ("41414", {4}),  # blocks at once
        ("11223", {4}),  # blocks a level three with one open end
        ("112233", {4}),  # wins before it blocks
        ("4455", {3, 6}),  # opens a three with two open ends, which wins
    ],
)
def test_search_wins_and_blocks_at_once(moves, answers):
    for seed in range(5):
        assert best_column(*columns(moves), np.random.default_rng(seed)) + 1 in answers


def test_search_finds_every_win_and_every_block_of_random_positions():
    rng, won, blocked = np.random.default_rng(3), 0, 0
    for _ in range(150):
        moves = ""
        for _ in range(int(rng.integers(8, 24))):
            mine, occupied = columns(moves)
            if has_four(mine ^ occupied) or landing(occupied) == 0:
                break
            free = [str(c + 1) for c in range(7) if landing(occupied) & COLUMNS[c]]
            moves += free[int(rng.integers(len(free)))]
        mine, occupied = columns(moves)
        if has_four(mine ^ occupied) or has_four(mine):
            continue
        stone = landing(occupied) & COLUMNS[best_column(mine, occupied, rng)]
        wins, losses = (
            threats(mine, occupied) & landing(occupied),
            threats(mine ^ occupied, occupied) & landing(occupied),
        )
        if wins:
            assert stone & wins
            won += 1
        elif losses:
            assert stone & losses or losses & (losses - 1)
            blocked += 1
    assert won > 10 and blocked > 10


def test_search_beats_random_play_from_both_seats():
    env, rng = llm_arena.make("connect-four-v0"), np.random.default_rng(0)
    results, seconds = [], []
    for seed in range(20):
        for mine in env.possible_agents:
            env.reset(seed=seed)
            while not env.over:
                seat = env.agent_selection
                if seat == mine:
                    view, begun = env.view(seat), time.perf_counter()
                    reply = env.baselines["search"](view, rng)
                    seconds.append(time.perf_counter() - begun)
                else:
                    reply = env.sample_reply(seat, rng)
                env.step(reply)
            results.append(env.returns[mine])
    assert np.mean(results) - 1.96 * np.std(results) / np.sqrt(len(results)) > 0.9
    assert np.median(seconds) < 0.05  # the median, for other work on the machine stretches single moves


@pytest.mark.parametrize(
    ("stronger", "weaker", "seeds"),
    [
        ("search", "search-4", 25),
        ("search-4", "search-2", 60),
        ("search-2", "win-or-block", 15),
        ("win-or-block", None, 20),
    ],
)
def test_each_scripted_player_beats_the_next_weaker_one(stronger, weaker, seeds):
    env, rng, results = llm_arena.make("connect-four-v0", opening=8), np.random.default_rng(0), []
    for seed in range(seeds):
        for mine in env.possible_agents:
            env.reset(seed=seed)
            while not env.over:
                seat = env.agent_selection
                name = stronger if seat == mine else weaker
                env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
            results.append(env.returns[mine])
    assert np.mean(results) - 1.96 * np.std(results) / np.sqrt(len(results)) > 0


def test_a_search_looks_no_further_than_it_may(monkeypatch):
    asked = []
    monkeypatch.setattr(Search, "value", lambda self, mine, occupied, depth, alpha, beta: asked.append(depth) or 0)
    for most in (1, 2, 4):
        asked.clear()
        best_column(*columns("4455"), np.random.default_rng(0), most_moves=most)
        assert set(asked) == set(range(most))


def test_win_or_block_does_what_it_says():
    env, rng = llm_arena.make("connect-four-v0"), np.random.default_rng(0)
    for moves, answers in [("414141", {"4"}), ("41414", {"4"}), ("112233", {"4"}), ("4", set("1234567"))]:
        env = played(moves)
        drawn = {env.baselines["win-or-block"](env.view(env.agent_selection), rng) for _ in range(100)}
        assert drawn == answers


@pytest.mark.parametrize("number", [1, 5, 8, 16])
def test_an_opening_is_drawn_and_decides_nothing(number):
    env, seen = llm_arena.make("connect-four-v0", opening=number), set()
    for seed in range(60):
        env.reset(seed=seed)
        assert env.agent_selection == f"player_{number % 2}"
        assert [stones.bit_count() for stones in env.stones.values()] == [(number + 1) // 2, number // 2]
        board = "".join(env.rows)
        assert (board.count("X"), board.count("O")) == ((number + 1) // 2, number // 2)
        occupied = env.stones["player_0"] | env.stones["player_1"]
        assert not any(threats(stones, occupied) & landing(occupied) for stones in env.stones.values())
        assert not any(map(has_four, env.stones.values()))
        again = played(map(str, env.moves))  # the same position as by play
        assert again.rows == env.rows and again.stones == env.stones
        for seat in env.possible_agents:
            assert f"Moves made already: {number}." in env.observe(seat)["messages"][1]["content"]
        assert "Board:" in env.observe(env.agent_selection)["messages"][-1]["content"]
        seen.add(tuple(env.moves))
    assert len(seen) == 7 if number == 1 else len(seen) > 50
    env.reset(seed=3)
    moves = list(env.moves)
    env.reset(seed=3)
    assert env.moves == moves


@pytest.mark.parametrize("opening", [-1, 17, 2.0, True, "4"])
def test_openings_out_of_range_are_told(opening):
    with pytest.raises(UsageError, match="opening=.*expected a whole number from 0 to 16"):
        llm_arena.make("connect-four-v0", opening=opening)


def test_the_same_seed_searches_alike_and_others_vary():
    found = [best_column(*columns("4444441"), np.random.default_rng(seed)) for seed in (1, 1)]
    assert found[0] == found[1]
    assert len({best_column(0, 0, np.random.default_rng(seed)) for seed in range(5)}) == 1
    assert len({best_column(*columns("444444"), np.random.default_rng(seed)) for seed in range(30)}) > 1


def test_it_plays_like_openspiel():
    env = llm_arena.make("connect-four-v0")
    numbers = {str(column): column - 1 for column in range(1, 8)}
    for seed in range(200):
        plays_alike(env, "connect_four", numbers, seed)


@pytest.mark.parametrize("arguments", [{}, {"retries": 1}, {"illegal": "random_legal"}, {"opening": 7}])
def test_it_is_a_well_behaved_env(arguments):
    llm_arena.check_env(llm_arena.make("connect-four-v0", **arguments), seed=5)
