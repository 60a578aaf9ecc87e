"""Playing boards: resume, additions, changes that are refused, void and forfeit, a dead engine, several games."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from llm_arena.boards.board import Board, BoardError, Entrant, Game
from llm_arena.boards.evaluate import play_board
from llm_arena.boards.leaderboard import Leaderboard, rate
from llm_arena.boards.match_file import read_rows
from llm_arena.errors import EngineError, UnknownName, UsageError
from llm_arena.recorder import verify
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.types import Action, EnvSpec, PastTurn, Reply, View

KUHN = Game(id="kuhn-poker-v0")
RANDOM, OPTIMAL = Entrant(name="random", agent="random-legal"), Entrant(name="optimal", agent="optimal")


def board(**changes: Any) -> Board:
    given: dict[str, Any] = {"name": "test", "entrants": [RANDOM, OPTIMAL], "games": [KUHN], "matches": 8}
    return Board(**given | changes)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


class Scripted:
    """Says the first legal action, and counts; raises `fault` at the calls `when`."""

    name, policy = "scripted", None

    def __init__(self, fault: Exception | None = None, when: range = range(0), reply: str | None = None) -> None:
        self.calls = 0
        self.fault, self.when, self.reply = fault, when, reply

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        self.calls += 1
        if self.fault is not None and self.calls - 1 in self.when:
            raise self.fault
        legal = view.legal_actions or ["x"]
        return Action(reply=Reply(self.reply if self.reply is not None else legal[0]))


def test_evaluate_in_memory() -> None:
    found = llm_arena.evaluate(["optimal", "random-legal"], "tic-tac-toe-v0", matches=20, seed=1)
    assert isinstance(found, Leaderboard)
    [table] = found.tables
    assert (table.planned, table.played, table.void, table.warnings, found.complete) == (20, 20, 0, [], True)
    best, worst = found.rows
    assert (best.entrant, best.rank_low, best.rank_high, best.losses) == ("optimal", 1, 1, 0)
    assert (worst.rank_low, worst.rank_high) == (2, 2)
    assert best.rating is not None and worst.rating is not None and best.rating > 1000 > worst.rating
    assert "optimal" in str(found) and "| 1 | optimal |" in found.to_markdown()
    assert found.to_csv().splitlines()[1].startswith("tic-tac-toe-v0,optimal,1,1,")
    json.dumps(found.to_json(), allow_nan=False)
    again = llm_arena.evaluate(["random-legal", "optimal"], "tic-tac-toe-v0", matches=20, seed=1)
    assert again.rows == found.rows


def test_evaluate_takes_objects_tables_and_specs() -> None:
    scripted = Scripted()
    found = llm_arena.evaluate(
        {"mine": scripted, "theirs": {"agent": "random-legal"}},
        [EnvSpec(id="kuhn-poker-v0"), EnvSpec(id="kuhn-poker-v0", kwargs={"retries": 1}), "tic-tac-toe-v0"],
        matches=2,
        anchor="theirs",
    )
    assert [table.pool for table in found.tables] == ["kuhn-poker-v0", "kuhn-poker-v0 retries=1", "tic-tac-toe-v0"]
    assert [table.played for table in found.tables] == [2, 2, 2]
    assert all(row.rating == 1000 for row in found.rows if row.entrant == "theirs")
    assert scripted.calls > 0


@pytest.mark.parametrize(
    "entrants, envs, settings, problem",
    [
        (["random-legal", "random-legal"], "kuhn-poker-v0", {}, "twice"),
        ([], "kuhn-poker-v0", {}, "no entrant"),
        (["random-legal"], [], {}, "no game"),
        (["random-legal"], "kuhn-poker-v0", {}, "at least two seats"),
        (["random-legal", "optimal"], "kuhn-poker-v0", {"matches": 0}, "matches = 0"),
        (["random-legal", "optimal"], "kuhn-poker-v0", {"prior_sd": -1.0}, "prior_sd"),
        (["random-legal", "optimal"], "kuhn-poker-v0", {"anchor": "optima"}, 'Did you mean "optimal"'),
        (["random-legal", "optimum"], "kuhn-poker-v0", {}, 'Did you mean "optimal"'),
        (
            ["random-legal", "kuhn-poker-v0/optimal"],
            ["tic-tac-toe-v0"],
            {},
            "can't read tic-tac-toe-v0, whose scripted players are: opt",
        ),
        (["random-legal", "optimal"], "kuhn-poker", {}, "no version"),
        ({"a": {"model": "x"}, "b": "optimal"}, "kuhn-poker-v0", {}, '"agent"'),
        ({"a": {"agent": "random-legal", "temprature": 1}, "b": "optimal"}, "kuhn-poker-v0", {}, "temprature"),
        ({"a|b": "random-legal", "b": "optimal"}, "kuhn-poker-v0", {}, "without |"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_can_not_be_evaluated_is_refused(entrants: Any, envs: Any, settings: Any, problem: str) -> None:
    with pytest.raises((UsageError, UnknownName, UserWarning), match=problem.replace("|", r"\|")):
        llm_arena.evaluate(entrants, envs, **settings)


def test_a_folder_holds_all_and_every_match_replays(tmp_path: Path) -> None:
    found = play_board(board(), folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "leaderboard.csv",
        "leaderboard.md",
        "manifest.json",
        "matches.jsonl",
        "ratings.json",
        "traces.jsonl",
    ]
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    assert [trace.id for trace in traces] == [row["id"] for row in lines(tmp_path / "matches.jsonl")]
    for trace in traces:
        verify(trace)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["board"]["seed"] == 0 and manifest["board"]["engine"]["kind"] == "transformers"
    assert manifest["entrants"].keys() == {"random", "optimal"}
    assert manifest["pools"]["kuhn-poker-v0"]["specs"][0]["kwargs"]["illegal"] == "forfeit"
    [session] = manifest["sessions"]
    assert session["versions"]["llm-arena"] == llm_arena.__version__ and session["engines"] == []
    ratings = json.loads((tmp_path / "ratings.json").read_text(), parse_constant=pytest.fail)
    assert ratings["pools"]["kuhn-poker-v0"]["model"]["converged"] is True
    shown = {name: (tmp_path / name).read_bytes() for name in ("ratings.json", "leaderboard.csv", "leaderboard.md")}
    for name in shown:
        (tmp_path / name).unlink()
    assert rate(tmp_path).rows == found.rows
    assert {name: (tmp_path / name).read_bytes() for name in shown} == shown


def test_the_same_call_plays_what_is_missing(tmp_path: Path) -> None:
    found = play_board(board(), folder=tmp_path)
    path = tmp_path / "matches.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:3]))
    (tmp_path / "traces.jsonl").write_bytes(
        b"".join((tmp_path / "traces.jsonl").read_bytes().splitlines(keepends=True)[:3])
    )
    assert rate(tmp_path).tables[0].warnings == [
        "incomplete: 5 of the planned matches are missing; give the same command again"
    ]
    assert play_board(board(), folder=tmp_path).rows == found.rows
    assert sorted(path.read_bytes().splitlines(keepends=True)) == sorted(whole)
    before = path.read_bytes()
    assert play_board(board(), folder=tmp_path).rows == found.rows
    assert path.read_bytes() == before
    assert len(json.loads((tmp_path / "manifest.json").read_text())["sessions"]) == 2


def test_matches_without_a_trace_are_told(tmp_path: Path) -> None:
    play_board(board(), folder=tmp_path)
    path = tmp_path / "traces.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*whole[:4], b"no record\n", whole[5]]))
    told = ["matches without a trace, which count but can't be read or replayed: 3"]
    for found in (rate(tmp_path), play_board(board(), folder=tmp_path)):
        assert (found.tables[0].warnings, found.tables[0].played) == (told, 8)
    path.unlink()
    assert rate(tmp_path).tables[0].warnings == [told[0].replace(": 3", ": 8")]
    assert told[0].replace(": 3", ": 8") in (tmp_path / "leaderboard.md").read_text()


def test_more_matches_entrants_and_games_play_only_what_is_new(tmp_path: Path) -> None:
    play_board(board(), folder=tmp_path)
    before = (tmp_path / "matches.jsonl").read_bytes()
    more = board(
        entrants=[Entrant(name="another", agent="random-legal"), OPTIMAL, RANDOM],
        games=[KUHN, Game(id="tic-tac-toe-v0")],
        matches=10,
        anchor="random",
    )
    found = play_board(more, folder=tmp_path)
    after = (tmp_path / "matches.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(after.splitlines()) == 2 * 3 * 10
    assert [table.played for table in found.tables] == [30, 30]


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"matches": 4}, "matches: 8 -> 4 (fewer)"),
        ({"games": [Game(id="kuhn-poker-v0", args={"retries": 1})]}, "game kuhn-poker-v0: other arguments"),
        ({"games": [Game(id="tic-tac-toe-v0")]}, "game kuhn-poker-v0: gone"),
        ({"entrants": [RANDOM, Entrant(name="optimal", agent="random-legal")]}, "optimal: optimal -> random-legal"),
        ({"entrants": [RANDOM, Entrant(name="best", agent="optimal")]}, "entrant optimal: gone"),
    ],
)
def test_a_board_that_would_play_otherwise_is_refused(tmp_path: Path, changes: Any, words: str) -> None:
    play_board(board(), folder=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(BoardError) as refused:
        play_board(board(**changes), folder=tmp_path)
    assert words in str(refused.value) and "--fresh" in str(refused.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    found = play_board(board(**changes), folder=tmp_path, fresh=True)
    assert found.complete
    assert len(lines(tmp_path / "matches.jsonl")) == found.tables[0].planned
    assert len(lines(tmp_path / "traces.jsonl")) == found.tables[0].planned


def test_an_anchor_and_a_prior_may_change_for_they_change_no_match(tmp_path: Path) -> None:
    play_board(board(), folder=tmp_path)
    before = (tmp_path / "matches.jsonl").read_bytes()
    found = play_board(board(anchor="random", prior_sd=0.5), folder=tmp_path)
    assert (tmp_path / "matches.jsonl").read_bytes() == before
    assert {row.entrant: row.rating for row in found.rows}["random"] == 1000


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    llm_arena.play("kuhn-poker-v0", seed=0, traces=tmp_path / "traces.jsonl")
    before = (tmp_path / "traces.jsonl").read_bytes()
    for fresh in (False, True):
        with pytest.raises(BoardError, match="no board's folder"):
            play_board(board(), folder=tmp_path, fresh=fresh)
    assert (tmp_path / "traces.jsonl").read_bytes() == before
    with pytest.raises(BoardError, match="no board's folder"):
        rate(tmp_path)


def with_object(agent: Scripted, folder: Path | None, matches: int = 8) -> Leaderboard:
    entrants = {"mine": agent, "random": "random-legal"}
    return llm_arena.evaluate(entrants, "kuhn-poker-v0", matches=matches, folder=folder)


def test_void_matches_are_counted_left_out_and_played_again(tmp_path: Path) -> None:
    found = with_object(Scripted(RuntimeError("gone"), range(2)), tmp_path)
    [table] = found.tables
    assert (table.played, table.void, table.planned) == (6, 2, 8)
    assert table.warnings == [
        "incomplete: 2 of the planned matches are missing, 2 of them void (mostly agent: RuntimeError); give the same"
        " command again"
    ]
    assert {row.entrant: (row.wins + row.losses, row.void) for row in table.rows} == {"mine": (6, 2), "random": (6, 2)}
    again = with_object(Scripted(), tmp_path)
    assert (again.tables[0].played, again.tables[0].void, again.tables[0].warnings) == (8, 0, [])
    assert len(lines(tmp_path / "matches.jsonl")) == 10


def test_a_forfeit_is_a_loss_and_is_shown() -> None:
    found = with_object(Scripted(reply="I resign"), None)
    rows = {row.entrant: row for row in found.rows}
    assert (rows["mine"].losses, rows["mine"].forfeits, rows["random"].wins, rows["random"].forfeits) == (8, 8, 8, 0)
    assert rows["mine"].status.startswith("provisional, no lower bound")
    assert "forfeits" in str(found)


def test_a_dead_engine_leaves_finished_matches_and_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"out of memory\).* are kept; the same command plays the others"):
        with_object(Scripted(EngineError("out of memory"), range(20, 1000)), tmp_path, matches=200)
    kept = [row for row in lines(tmp_path / "matches.jsonl") if row["status"] != "void"]
    assert 0 < len(kept) < 200
    found = with_object(Scripted(), tmp_path, matches=200)
    assert found.tables[0].played == 200
    rows = lines(tmp_path / "matches.jsonl")
    assert [row for row in rows if row["id"] == kept[0]["id"]] == [kept[0]]


class Model(Scripted):
    """Scripted, and says that a model of its own speaks."""

    def __init__(self, policy: str, *args: Any) -> None:
        super().__init__(*args)
        self.policy = self.name = policy  # type: ignore[assignment]


def test_one_dead_engine_of_several_is_noticed_while_others_matches_go_on() -> None:
    entrants = {
        "dead": Model("dead-model", EngineError("gone"), range(1000)),
        **{name: Model(name) for name in ("a", "b", "c", "d", "e")},
    }
    dead = r"the engine of dead-model failed 3 matches in a row \(EngineError: gone\)"
    with Runtime(max_open_episodes=1) as runtime, pytest.raises(EngineError, match=dead):
        llm_arena.evaluate(entrants, "kuhn-poker-v0", matches=100, runtime=runtime)


def test_faults_that_come_now_and_then_do_not_end_a_board() -> None:
    class Sometimes(Model):
        async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
            self.when = range(self.calls, self.calls + (self.calls % 5 == 0))
            return await super().act(view, past)

    entrants = {"now and then": Sometimes("m", EngineError("gone")), "random": "random-legal"}
    with Runtime(max_open_episodes=1) as runtime:
        found = llm_arena.evaluate(entrants, "kuhn-poker-v0", matches=60, runtime=runtime)
    assert found.tables[0].void > 5


def test_a_board_of_which_nothing_could_be_played_is_an_error() -> None:
    with pytest.raises(EngineError, match="all matches are void; the last: RuntimeError: gone"):
        with_object(Scripted(RuntimeError("gone"), range(1000)), None)


def test_entrants_alone_are_ordered_by_their_mean_reward() -> None:
    game = Game(id="naming-v0", args={"namers": 2, "illegal": "penalty", "penalty": -0.5}, seating="self")
    found = llm_arena.evaluate({"scripted": "naming-v0/scripted", "silent": Scripted(reply="")}, game, matches=40)
    [table] = found.tables
    assert not table.rated
    assert [(row.entrant, row.rank_low, row.rank_high, row.rating) for row in table.rows] == [
        ("scripted", 1, 1, None),
        ("silent", 2, 2, None),
    ]
    assert table.rows[1].reward == -0.5
    assert "rating" not in str(found)


def test_models_are_named_with_their_weights(tiny_model: Path, tmp_path: Path) -> None:
    entrants = {"tiny": {"agent": str(tiny_model), "max_new_tokens": 2}, "random": "random-legal"}
    found = llm_arena.evaluate(entrants, "kuhn-poker-v0", matches=2, folder=tmp_path / "board")
    rows = {row.entrant: row for row in found.rows}
    assert rows["tiny"].tokens_per_turn is not None and 1 <= rows["tiny"].tokens_per_turn <= 2
    assert rows["random"].tokens_per_turn is None
    manifest = json.loads((tmp_path / "board" / "manifest.json").read_text())
    assert manifest["weights"]["tiny"]["folder"] == str(tiny_model)
    assert manifest["weights"].keys() == {"tiny"}
    [engine] = manifest["sessions"][0]["engines"]
    assert engine["engine"] == "transformers" and engine["policies"] == [str(tiny_model)]


def test_weights_that_changed_are_another_entrant(tiny_model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_model, copy)
    entrants = {"tiny": {"agent": str(copy), "max_new_tokens": 2}, "random": "random-legal"}
    llm_arena.evaluate(entrants, "kuhn-poker-v0", matches=2, folder=tmp_path / "board")
    [weights] = copy.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(BoardError, match="entrant tiny: other weights"):
        llm_arena.evaluate(entrants, "kuhn-poker-v0", matches=2, folder=tmp_path / "board")


def test_rows_on_the_disk_are_the_rows_of_the_board(tmp_path: Path) -> None:
    found = play_board(board(), folder=tmp_path)
    by_id = {match.id: match for matches in board().schedule().values() for match in matches}
    assert read_rows(tmp_path / "matches.jsonl", by_id) == {row.id: row for row in found.matches}
