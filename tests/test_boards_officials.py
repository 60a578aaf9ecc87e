"""Officials: seats that take no part in the contest, in matches, rows, tables, files, and the loss's divisor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import llm_arena
from llm_arena.boards.board import Board, BoardError, Entrant, Game, board_of
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.leaderboard import Leaderboard, rate
from llm_arena.cli import main
from llm_arena.env import ArenaEnv
from llm_arena.errors import UnknownName, UsageError
from llm_arena.matchmaking import round_robin, seats_of
from llm_arena.rating import match_row
from llm_arena.runtime import Runtime
from llm_arena.training.config import TrainConfig
from llm_arena.training.planning import LEARNER, Planner
from llm_arena.training.sources import DealtSource
from llm_arena.types import Ending, EnvSpec, Failure, Outcome, SeatInfo, Trace

JUDGE = {"judge": "naming-v0/rubric-judge"}
SEATED = {"namers": 2, "split": "heldout", "judge": "seat"}
PLAYERS = [
    Entrant(name="scripted", agent="naming-v0/scripted"),
    Entrant(name="random", agent="random-legal"),
    Entrant(name="other", agent="naming-v0/scripted"),
]


def game(officials: Any = None, **changes: Any) -> Game:
    return Game(id="naming-v0", args=SEATED | changes, officials=JUDGE if officials is None else officials)


def board(*games: Game, **changes: Any) -> Board:
    given: dict[str, Any] = {"name": "test", "entrants": PLAYERS, "games": list(games), "matches": 6}
    return Board(**given | changes)


def test_entrants_rotate_over_the_contest_and_officials_stay() -> None:
    spec = EnvSpec(id="naming-v0", kwargs=SEATED | {"judges": 2})
    assert seats_of(spec) == (["namer_0", "namer_1"], {"judge_0": "judge", "judge_1": "judge"})
    officials = {"judge": "J", "judge_1": "K"}
    matches = round_robin([spec], ["A", "B"], officials=officials)
    assert sorted(match.entrants["namer_0"] for match in matches) == ["A", "B"]
    assert [set(match.entrants) for match in matches] == [{"namer_0", "namer_1"}] * 2
    assert [match.officials for match in matches] == [{"judge_0": "J", "judge_1": "K"}] * 2
    [alone] = round_robin([spec], ["A"], officials=officials, alone=True)
    assert (alone.entrants, alone.officials) == ({"namer_0": "A", "namer_1": "A"}, {"judge_0": "J", "judge_1": "K"})


def test_a_scripted_judge_in_a_seat_gives_the_table_of_the_same_judge_without_one() -> None:
    seated = play_board(board(game()))
    plain = play_board(board(Game(id="naming-v0", args=SEATED | {"judge": "rubric"})))
    assert seated.complete and [table.rated for table in seated.tables] == [True]
    assert seated.rows == plain.rows
    best = {row.entrant: row for row in seated.rows}
    assert best["scripted"].wins > 0 and best["random"].wins == 0
    unjudged = {row.id: row for row in plain.matches}
    for row in seated.matches:
        # seats that judge give no points
        paid = {seat: msgspec.structs.replace(entry, score=None) for seat, entry in unjudged[row.id].seats.items()}
        assert (row.seats, unjudged[row.id].officials) == (paid, {})
        [judge] = row.officials.values()
        assert (judge.entrant, judge.role, judge.rank) == ("naming-v0/rubric-judge", "judge", None)
        assert judge.turns in (2, 0)  # equal names are not asked about


@pytest.mark.parametrize("outcome", [None, Outcome(draw=True), Outcome(winners=["namer_0", "judge_0"])])
def test_an_official_has_no_rank_however_the_match_ends(outcome: Outcome | None) -> None:
    roles = {"namer_0": "namer", "namer_1": "namer", "judge_0": "judge"}
    trace = Trace(
        id="m",
        spec=EnvSpec(id="naming-v0"),
        seed=0,
        seats={seat: SeatInfo(role=role, agent="x") for seat, role in roles.items()},
        returns={"namer_0": 0.0, "namer_1": 0.0, "judge_0": -1.0},
        outcome=outcome,
        ending=Ending.TRUNCATED if outcome is None else Ending.TERMINATED,
    )
    row = match_row(trace, {"namer_0": "A", "namer_1": "B"}, officials={"judge_0": "J"})
    won = outcome is not None and bool(outcome.winners)
    assert {seat: entry.rank for seat, entry in row.seats.items()} == {"namer_0": 1, "namer_1": 2 if won else 1}
    assert {seat: (entry.rank, entry.reward) for seat, entry in row.officials.items()} == {"judge_0": (None, -1.0)}
    with pytest.raises(UsageError, match="an official for each that is not ranked"):
        match_row(trace, {"namer_0": "A", "namer_1": "B"})


class Referee(ArenaEnv):
    """Its official acts first, and nobody ever wins."""

    id = "referee-v0"
    roles = {"referee": 1, "player": 2}
    officials = ("referee",)
    max_turns = 3

    def begin(self, rng: Any) -> str:
        return "referee_0"

    def resolve(self, seat: str, reply: Any) -> Any:
        return llm_arena.Move(next=self.possible_agents[(self.possible_agents.index(seat) + 1) % 3])

    def sample_reply(self, seat: str, rng: Any) -> str:
        return "good"


@pytest.fixture(scope="module")
def referee() -> None:
    llm_arena.register(Referee.id, Referee)


@pytest.mark.usefixtures("referee")
def test_a_match_that_is_cut_off_is_a_draw_between_those_who_contend() -> None:
    entrants = [Entrant(name=name, agent="random-legal") for name in ("random", "again")]
    found = play_board(board(Game(id="referee-v0", officials={"referee_0": "random-legal"}), entrants=entrants))
    [table] = found.tables
    assert {row.entrant: (row.wins, row.draws, row.losses) for row in table.rows} == {
        "random": (0, 6, 0),
        "again": (0, 6, 0),
    }
    assert [row.status for row in found.matches] == ["truncated"] * 6


TOML = {
    "entrants": [{"agent": "naming-v0/scripted"}, {"agent": "random-legal"}],
    "games": [{"id": "naming-v0", "args": SEATED, "officials": JUDGE}],
}


def test_a_board_file_names_officials_with_or_without_settings() -> None:
    found = board_of(TOML, name="n", where="n.toml")
    assert found.games[0].holders()["judge"] == Entrant(name="judge", agent="naming-v0/rubric-judge")
    table = {"judge": {"agent": "smollm2-135m", "temperature": 0.0, "max_new_tokens": 8}}
    found = board_of({**TOML, "games": [{**TOML["games"][0], "officials": table}]}, name="n", where="n.toml")  # type: ignore[dict-item]
    [holder] = found.games[0].holders().values()
    assert holder.words == "smollm2-135m max_new_tokens=8 temperature=0.0"
    assert next(iter(found.schedule()["naming-v0"])).officials == {"judge_0": holder.words}


@pytest.mark.parametrize(
    "given, kind, says",
    [
        (game({}), UsageError, 'naming-v0: the role "judge" takes no part.*\\[games.officials\\] judge = "AGENT"'),
        (
            game({"jugde": "random-legal"}),
            UnknownName,
            'no official "jugde"; it has: judge, judge_0. Did you mean "judge"',
        ),
        (game(JUDGE | {"namer": "random-legal"}), UnknownName, 'no official "namer"'),
        (game(judge="rubric"), UnknownName, 'no official "judge"; with these arguments it has none'),
        (game({"judge": "naming-v0/rubric"}), UnknownName, 'no scripted player "rubric"'),
        (game({"judge": {"agent": "random-legal", "temprature": 1}}), UsageError, "no setting 'temprature'"),
    ],
)
def test_officials_that_do_not_fit_are_refused(given: Game, kind: type[Exception], says: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=says):
        play_board(board(given), folder=tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_tables_and_secrets_of_officials_are_checked_like_those_of_entrants() -> None:
    with pytest.raises(UsageError, match='game naming-v0, official judge: a key "agent"'):
        board(game({"judge": {"agnt": "random-legal"}}))
    with pytest.raises(UsageError, match="looks like a secret"):
        board(game({"judge": {"agent": "random-legal", "api_key": "x"}}))


def test_a_judge_that_is_no_better_than_a_coin_is_told() -> None:
    table = play_board(board(game({"judge": "random-legal"}), matches=80)).tables[0]
    assert table.judged[0] >= 100 and table.judged[1] < 0.55 * table.judged[0]
    assert any("alike in both orders, and a coin has 50%" in warning for warning in table.warnings)


def test_officials_are_part_of_what_was_played(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = play_board(board(game()), folder=tmp_path)
    pairs, alike = found.tables[0].judged
    assert pairs == alike == sum(row.judging["pairs"] for row in found.matches) > 0  # a script is not led by places
    words = f"naming-v0: 18 of 18 matches, judge: naming-v0/rubric-judge, {pairs} of {pairs} pairs judged alike in both"
    assert str(found).splitlines()[0] == f"{words} orders"
    assert f"{words.partition(': ')[2]} orders." in found.to_markdown()
    assert found.to_json()["pools"]["naming-v0"]["judged_alike"] == pairs
    assert found.to_json()["pools"]["naming-v0"]["officials"] == JUDGE
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    held = {"agent": "naming-v0/rubric-judge", "settings": {}, "weights": None}
    assert manifest["pools"]["naming-v0"]["officials"] == {"judge": held}
    assert rate(tmp_path).rows == found.rows
    with pytest.raises(BoardError, match="game naming-v0: other officials"):
        play_board(board(game({"judge": "naming-v0/length-judge"})), folder=tmp_path)
    assert main(["replay", str(tmp_path / "traces.jsonl"), "--verify"]) == 0
    assert "18 episodes replayed, all as recorded" in capsys.readouterr().out
    # a row of another judge's verdicts is no row of this board
    lines = (tmp_path / "matches.jsonl").read_text().splitlines()
    (tmp_path / "matches.jsonl").write_text(
        "\n".join([lines[0].replace("rubric-judge", "length-judge"), *lines[1:]]) + "\n"
    )
    with pytest.raises(BoardError, match="line 1.*officials"):
        rate(tmp_path)


def test_a_model_may_judge_and_its_weights_are_named(tiny_model: Path, tmp_path: Path) -> None:
    judge = {"judge": {"agent": str(tiny_model), "max_new_tokens": 2}}
    found = play_board(board(game(judge), matches=2), folder=tmp_path)
    [table] = found.tables
    assert table.played == table.planned and all(row.draws for row in table.rows)  # it gives no verdict
    assert all(row.tokens_per_turn is None for row in table.rows)
    assert any(entry.tokens for row in found.matches for entry in row.officials.values())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["pools"]["naming-v0"]["officials"]["judge"]["weights"]["folder"] == str(tiny_model)
    assert manifest["weights"] == {}
    [engine] = manifest["sessions"][0]["engines"]
    assert engine["players"] == [f"{tiny_model} max_new_tokens=2"]


def test_evaluate_takes_officials_and_a_fault_of_theirs_is_nobodys_loss() -> None:
    found = llm_arena.evaluate(["naming-v0/scripted", "random-legal"], game(), matches=4)
    assert isinstance(found, Leaderboard) and found.complete
    trace = Trace(
        id="m",
        spec=EnvSpec(id="naming-v0"),
        seed=0,
        seats={seat: SeatInfo(role="x", agent="x") for seat in ("namer_0", "namer_1", "judge_0")},
        ending=Ending.VOID,
        failure=Failure(boundary="agent", kind="RuntimeError", message="gone", seat="judge_0"),
    )
    row = match_row(trace, {"namer_0": "A", "namer_1": "B"}, officials={"judge_0": "J"})
    assert row.status == "void"
    assert {entry.rank for entry in (*row.seats.values(), *row.officials.values())} == {None}


def test_the_losss_divisor_leaves_officials_out() -> None:
    config = TrainConfig(env="naming-v0", env_args=json.dumps(SEATED | {"judges": 3}), starts_per_step=4, group_size=2)
    with Runtime() as runtime:
        planner = Planner(config, None, DealtSource(per_batch=4), runtime)
        assert planner.trained_seats(LEARNER) == 4 * 2 * 2
        judge_only = {"namer": "naming-v0/scripted", "judge": "learner"}
        assert Planner(config, judge_only, DealtSource(per_batch=4), runtime).trained_seats(LEARNER) == 1
