"""Games that are won or lost together: nobody is rated, on a board each entrant holds all seats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from llm_arena.boards.board import Board, BoardError, Entrant, Game, board_of
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.leaderboard import rate
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.parsing import read_choice
from llm_arena.registry import env_class
from llm_arena.types import Move, Outcome


class Echo(ArenaEnv):
    """The second seat has to say the number that the first one said."""

    id = "echo-v0"
    roles = {"player": 2}
    cooperative = True
    max_turns = 2

    def begin(self, rng: Any) -> str:
        self.said = ""
        return "player_0"

    def legal_actions(self, seat: str) -> list[str]:
        return ["1", "2"]

    def resolve(self, seat: str, reply: Any) -> Move:
        number = read_choice(reply, self.legal_actions(seat))
        if seat == "player_0":
            self.said = number
            return Move(next="player_1")
        same = number == self.said
        outcome = Outcome(winners=self.possible_agents if same else [], reason="same" if same else "other")
        return Move(rewards=dict.fromkeys(self.possible_agents, float(same)), outcome=outcome)

    baselines = {"one": lambda view, rng: "1"}


@pytest.fixture(scope="module", autouse=True)
def echo() -> None:
    llm_arena.register(Echo.id, Echo)


def test_entrants_of_a_cooperative_game_hold_all_seats_and_get_no_rating() -> None:
    found = llm_arena.evaluate(["one", "random-legal"], "echo-v0", matches=40, anchor="one")
    [table] = found.tables
    assert (table.rated, table.model, table.warnings, table.planned, table.played) == (False, None, [], 80, 80)
    assert all(len({seat.entrant for seat in row.seats.values()}) == 1 for row in found.matches)
    one, luck = table.rows
    assert (one.entrant, one.reward, one.rank_low, one.rank_high) == ("one", 1.0, 1, 1)
    assert (luck.rating, luck.rank_low, luck.rank_high) == (None, 2, 2)
    # Right in half of 40 starts: 0.5 +- t(39) * 0.506 / sqrt(40) = 0.162 at most.
    assert luck.reward is not None and abs(luck.reward - 0.5) < 0.25
    assert luck.reward_half_width is not None and 0.1 < luck.reward_half_width < 0.163
    assert "rating" not in str(found) and "draw" not in str(found)


def test_a_board_says_how_a_cooperative_game_was_seated(tmp_path: Path) -> None:
    board = Board(name="b", entrants=[Entrant(name="one", agent="one")], games=[Game(id="echo-v0")], matches=3)
    assert board.rounded() == []
    found = play_board(board, folder=tmp_path)
    pool = json.loads((tmp_path / "manifest.json").read_text())["pools"]["echo-v0"]
    assert pool["seating"] == "self"
    assert rate(tmp_path).rows == found.rows
    # It is what the board would say itself, so saying it is no change.
    said = Board(name="b", entrants=board.entrants, games=[Game(id="echo-v0", seating="self")], matches=3)
    assert play_board(said, folder=tmp_path).rows == found.rows


def test_a_cooperative_game_of_rivals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='seating = "versus", but in echo-v0 all seats win or lose together'):
        llm_arena.evaluate(["one", "random-legal"], Game(id="echo-v0", seating="versus"), folder=tmp_path / "b")
    assert not (tmp_path / "b").exists()
    table = {"entrants": [{"agent": "one"}], "games": [{"id": "echo-v0", "seating": "versus"}]}
    with pytest.raises(UsageError, match="leave it out"):
        board_of(table, name="n", where="n.toml").schedule()


def test_other_games_are_versus_unless_they_say_otherwise(tmp_path: Path) -> None:
    players = [Entrant(name="random", agent="random-legal"), Entrant(name="optimal", agent="optimal")]
    board = Board(name="b", entrants=players, games=[Game(id="kuhn-poker-v0")], matches=2)
    play_board(board, folder=tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_text())["pools"]["kuhn-poker-v0"]["seating"] == "versus"
    alone = Board(name="b", entrants=players, games=[Game(id="kuhn-poker-v0", seating="self")], matches=2)
    with pytest.raises(BoardError, match="other arguments, starts or seating"):
        play_board(alone, folder=tmp_path)


def test_the_shelfs_cooperative_game_says_so() -> None:
    assert env_class("thinker-verifier-v0").cooperative
    assert not env_class("kuhn-poker-v0").cooperative
