"""Cross-play: who meets whom, figures worked by hand, differences on paired starts, resume, the command line."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import special

import llm_arena
from llm_arena.boards.board import BoardError
from llm_arena.boards.cross_play import cross_play
from llm_arena.cli import main
from llm_arena.env import ArenaEnv
from llm_arena.errors import EngineError, UnknownName, UsageError
from llm_arena.rating.counts import wilson
from llm_arena.rating.intervals import clustered_mean, clustered_share, paired_difference
from llm_arena.recorder import verify
from llm_arena.registry import make_env
from llm_arena.sides import held_out, sides
from llm_arena.trace_file import read_traces
from llm_arena.types import Action, Move, Outcome, PastTurn, Reply, View


class Says:
    """Gives a number that does not hang on the view; `boost` more at even starts."""

    policy: str | None = None

    def __init__(self, number: int, boost: int = 0, fails: range = range(0)) -> None:
        self.name, self.number, self.boost, self.fails, self.calls = f"says-{number}-{boost}", number, boost, fails, 0

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        self.calls += 1
        if self.calls in self.fails:
            raise EngineError("gone")
        return Action(reply=Reply(str(self.number + self.boost * (1 - view.facts["luck"] % 2))))


class Deal(ArenaEnv):
    """Both name a number; the seller earns its own less the buyer's, the buyer its own and luck."""

    id = "test-deal-v0"
    roles = {"seller": 1, "buyer": 1}

    def begin(self, rng: np.random.Generator) -> str:
        self.luck, self.said = int(rng.integers(10)), dict[str, int]()
        self.tell(self.possible_agents, "A number?")
        return "seller_0"

    def facts(self, seat: str) -> Any:
        return {"luck": self.luck}

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        return str(rng.integers(3))

    def resolve(self, seat: str, reply: Reply) -> Move:
        self.said[seat] = int(reply)
        if seat == "seller_0":
            return Move(next="buyer_0")
        sold, bought = self.said["seller_0"], self.said["buyer_0"]
        rewards = {"seller_0": float(sold - bought), "buyer_0": float(bought + self.luck)}
        winner, loser = ("seller_0", "buyer_0") if sold > bought else ("buyer_0", "seller_0")
        ranks = {winner: 1, loser: 1 if sold == bought else 2}
        return Move(rewards=rewards, outcome=Outcome(ranks=ranks, scores={"seller_0": 10.0 * sold}))


@pytest.fixture
def deal(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(llm_arena.registry, "entries", dict(llm_arena.registry.entries))  # forgotten after this test
    llm_arena.register(Deal.id, Deal)
    return Deal.id


def luck_of(episodes: int) -> list[int]:
    """The luck of each start, from the match seeds of a cross-play."""
    found = cross_play({"a": Says(1), "b": Says(2)}, Deal.id, episodes=episodes)
    return [round(seen.column_return - 1) for seen in found.seen["a", "a"]]


def test_each_cell_by_hand_and_what_is_due_to_whom(deal: str) -> None:
    """`strong` says 3, and 5 at even luck; `weak` says 1. What is due to the seller is told from the buyer's part."""
    luck = luck_of(12)
    even = [int(number % 2 == 0) for number in luck]
    assert 0 < sum(even) < 12
    found = cross_play({"strong": Says(3, boost=2), "weak": Says(1)}, deal, episodes=12)
    assert (found.planned, found.played, found.starts, found.complete) == (48, 48, 12, True)
    assert (found.sides.row, found.sides.column) == ("seller", "buyer")
    assert found.cell("strong", "strong").row_return.mean == 0
    cell = found.cell("strong", "weak")
    paid = [3 + 2 * one - 1 for one in even]
    assert cell.row_return.mean == pytest.approx(np.mean(paid))
    width = special.stdtrit(11, 0.975) * np.std(paid, ddof=1) / math.sqrt(12)
    assert cell.row_return.half_width == pytest.approx(width)
    assert cell.column_return.mean == pytest.approx(1 + np.mean(luck))
    assert cell.row_score.mean == pytest.approx(10 * np.mean([3 + 2 * one for one in even]))
    assert (cell.column_score, cell.episodes, cell.win_rate.share) == (None, 12, 1.0)
    assert (cell.win_rate.low, cell.win_rate.high) == pytest.approx(wilson(12, 12))
    assert found.cell("weak", "strong").win_rate.share == 0.0
    assert found.cell("weak", "weak").win_rate.share == 0.5  # draws; and they are different roles
    # As a buyer luck is most of the return, and cancels on paired starts.
    as_buyer = found.difference("strong", "weak", side="column", against="weak")
    gap = [2 + 2 * one for one in even]
    assert as_buyer.mean == pytest.approx(np.mean(gap))
    assert as_buyer.half_width == pytest.approx(special.stdtrit(11, 0.975) * np.std(gap, ddof=1) / math.sqrt(12))
    assert as_buyer.sure and as_buyer.half_width < found.cell("weak", "weak").column_return.half_width
    as_seller = found.difference("strong", "weak")
    assert as_seller.mean == pytest.approx(np.mean(gap))  # against both alike
    assert [gap.against for gap in found.differences()] == [None, "strong", "weak"] * 2


def test_starts_and_seeds_are_those_of_every_cell_and_of_no_other_seed(deal: str, tmp_path: Path) -> None:
    found = cross_play({"a": Says(1), "b": Says(2)}, deal, episodes=5, folder=tmp_path)
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    by_start: dict[str, set[int]] = {}
    for trace in traces:
        verify(trace)
        by_start.setdefault(trace.id.partition("|")[0], set()).add(trace.seed)
    assert [len(seeds) for seeds in by_start.values()] == [1] * 5
    other = cross_play({"a": Says(1), "b": Says(2)}, deal, episodes=5, seed=1)
    assert found.cell("a", "a").column_return != other.cell("a", "a").column_return
    more = cross_play({"c": Says(0), "a": Says(1)}, deal, episodes=7)  # entrants and episodes may be added
    assert more.seen["a", "a"][:5] == found.seen["a", "a"]


def test_a_game_of_one_role_is_played_on_each_seat_and_each_seating_once() -> None:
    found = cross_play({"best": "optimal", "chance": "random-legal"}, "kuhn-poker-v0", episodes=21)
    assert (found.starts, found.planned) == (11, 44)  # two alone, two with seats swapped, for each start
    there, back = found.cell("best", "chance"), found.cell("chance", "best")
    assert there.episodes == back.episodes == 22
    assert there.row_return.mean == -back.row_return.mean
    assert there.win_rate.share == pytest.approx(1 - back.win_rate.share)
    itself = found.cell("best", "best")
    assert (itself.win_rate, itself.row_return.mean, itself.episodes) == (None, 0.0, 11)
    four = sides(make_env("naming-v0", namers=3))
    assert four.turns and len(four.seatings) == 3
    assert four.seatings[1] == (("namer_1",), ("namer_0", "namer_2"))


@pytest.mark.parametrize(
    ("env_id", "roles", "row", "column"),
    [
        ("thinker-verifier-v0", None, {"thinker"}, {"verifier"}),
        ("thinker-verifier-v0", ["verifier"], {"verifier"}, {"thinker"}),
        ("solver-rewriter-selector-v0", ["rewriter"], {"rewriter"}, {"solver", "selector"}),
        ("kuhn-poker-v0", ["player_1", "player_0"], {"player"}, {"player"}),
    ],
)
def test_sides_by_role(env_id: str, roles: list[str] | None, row: set[str], column: set[str]) -> None:
    env = make_env(env_id)
    found = sides(env, roles)
    [(own, others)] = found.seatings
    assert ({*map(env.role_of, own)}, {*map(env.role_of, others)}) == (row, column)
    assert sorted(own + others) == sorted(env.possible_agents) and not found.turns


def test_held_out_starts_are_the_default() -> None:
    assert held_out(make_env("naming-v0").spec).kwargs["split"] == "heldout"
    assert held_out(make_env("naming-v0").spec, ["split"]).kwargs["split"] == "train"
    assert held_out(make_env("naming-v0", topics=["a hat"]).spec).kwargs["split"] == "train"  # as they were given
    assert held_out(make_env("kuhn-poker-v0").spec) == make_env("kuhn-poker-v0").spec


def test_roles_may_have_entrants_of_their_own_and_officials_an_agent(tmp_path: Path) -> None:
    found = cross_play(
        {"script": "scripted", "chance": "random-legal"},
        llm_arena.make("naming-v0", namers=2, judge="seat"),
        roles={"namer_0": ["script"], "namer_1": ["script", "chance"]},
        starts=[{"topic": "coffee shop"}, {"topic": "river"}, {"topic": "moon"}],
        officials={"judge": "length-judge"},
        folder=tmp_path,
    )
    assert (found.rows, found.columns, found.starts) == (["script"], ["script", "chance"], 3)
    cell = found.cell("script", "chance")
    assert cell.judged_pairs == cell.judged_alike == 3  # a scripted judge is not led by places
    assert "3 of 3" in found.to_text() and "judges judged alike" in found.to_text()
    topics = {trace.spec.kwargs["topic"] for trace in read_traces(tmp_path / "traces.jsonl")}
    assert topics == {"coffee shop", "river", "moon"}


def test_void_and_forfeits_stand_apart_and_a_folder_goes_on(deal: str, tmp_path: Path) -> None:
    entrants: dict[str, Any] = {"flaky": Says(2, fails=range(3, 5)), "fine": Says(1)}
    first = cross_play(entrants, deal, episodes=6, folder=tmp_path)
    assert (first.played, first.complete) == (22, False)
    assert sum(cell.void for cell in first.cells.values()) == 2
    assert "incomplete: 2 matches" in first.to_text() and "Void matches" in first.to_text()
    calls = entrants["fine"].calls
    entrants["flaky"] = Says(2)
    again = cross_play(entrants, deal, episodes=6, folder=tmp_path)
    assert again.complete and entrants["fine"].calls <= calls + 2
    assert again.to_json() == cross_play(entrants, deal, episodes=6).to_json()
    kept = json.loads((tmp_path / "cross_play.json").read_text(), parse_constant=pytest.fail)
    assert kept == json.loads(json.dumps(again.to_json()))
    assert (tmp_path / "cross_play.md").read_text() == again.to_markdown()
    with pytest.raises(BoardError, match="seed: 0 -> 1"):
        cross_play(entrants, deal, episodes=6, seed=1, folder=tmp_path)
    quiet = cross_play({"a": "random-legal", "b": "optimal"}, "kuhn-poker-v0", episodes=4)
    assert "forfeits" not in quiet.to_text()


def test_an_outage_in_one_seat_makes_nobody_better() -> None:
    class First(Says):
        """Takes the first free cell, with which who moves first wins; fails in some games of the second seat."""

        def __init__(self, share: int) -> None:
            super().__init__(0)
            self.share = share
            self.games = 0

        async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
            if view.seat == "player_1" and not past:
                self.games += 1
                if self.games % 3 < self.share:
                    raise EngineError("the server is away")
            assert view.legal_actions
            return Action(reply=Reply(view.legal_actions[0]))

    found = cross_play({"a": First(0), "b": First(2)}, "tic-tac-toe-v0", episodes=12)
    assert found.cell("a", "b").void > 2
    assert found.cell("a", "b").win_rate.share == found.cell("b", "a").win_rate.share == 0.5
    assert found.cell("a", "b").row_return.mean == found.difference("a", "b", against="a").mean == 0.0


def test_a_forfeit_is_counted_for_who_gave_it() -> None:
    class Bad(Says):
        async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
            return Action(reply=Reply("I resign"))

    found = cross_play({"bad": Bad(0), "ok": "optimal"}, "kuhn-poker-v0", roles=["player_0"], episodes=3)
    cell = found.cell("bad", "ok")
    assert (cell.row_forfeits, cell.column_forfeits, cell.row_return.mean, cell.void) == (3, 0, -2.0, 0)
    assert "3 + 0" in found.to_text()


@pytest.mark.parametrize(
    ("entrants", "env", "settings", "says"),
    [
        ("optimal", "kuhn-poker-v0", {}, "give a mapping"),
        (["optimal", "optimal"], "kuhn-poker-v0", {}, "twice"),
        ({"a": "optimum"}, "kuhn-poker-v0", {}, 'Did you mean "optimal"'),
        ({"a": "optimal"}, "kuhn-poker-v0", {"episodes": 0}, "episodes=0"),
        ({"a": "optimal"}, "kuhn-poker-v0", {"roles": ["dealer"]}, "no role or seat 'dealer'"),
        ({"a": "optimal"}, "kuhn-poker-v0", {"roles": ["player_0", "player_0"]}, "player_0 on both sides"),
        ({"a": "optimal"}, "kuhn-poker-v0", {"roles": ["player"]}, "leaves one side"),
        ({"a": "random-legal"}, "solver-rewriter-selector-v0", {}, r"roles=\['solver'\]"),
        ({"a": "random-legal"}, "naming-v0", {"roles": {"namer_0": ["b"]}}, "which is no entrant"),
        ({"a": "faithful", "b": "random-legal"}, "doctor-patient-v0", {}, "plays patient, and can't be doctor"),
        ({"a": "random-legal"}, "thinker-verifier-v0", {"officials": {"judge": "x"}}, "no official"),
    ],
)
def test_what_can_not_be_played_is_refused(entrants: Any, env: Any, settings: Any, says: str) -> None:
    with pytest.raises((UsageError, UnknownName), match=says):
        cross_play(entrants, env, **settings)


def test_means_shares_and_differences_by_starts() -> None:
    """Three starts, two results each: deviations from 2 sum to -2, 0 and 2, so var = 3/2 * 8 / 36 = 1/3."""
    values = {0: [1.0, 1.0], 1: [1.0, 3.0], 2: [3.0, 3.0]}
    mean = clustered_mean(values)
    assert mean is not None and (mean.mean, mean.n, mean.starts) == (2.0, 6, 3)
    assert mean.half_width == pytest.approx(special.stdtrit(2, 0.975) * math.sqrt(1 / 3))
    same = clustered_mean({0: [1.0], 1: [1.0]})
    assert same is not None and same.half_width is None and clustered_mean({}) is None
    # Results of a start that are always the same are one result: 20 starts of 4 are worth 20.
    together = clustered_share({start: [float(start % 2)] * 4 for start in range(20)})
    low, high = wilson(10, 20)
    assert together is not None and together.n == 80
    assert (together.low, together.high) == pytest.approx((low, high), abs=0.006)  # n/d is 19 there: G/(G-1)
    swapped = clustered_share({start: [0.0, 1.0] for start in range(20)})
    assert swapped is not None and (swapped.low, swapped.high) == pytest.approx(wilson(20, 40))
    gap = paired_difference({0: [1.0, 3.0], 1: [5.0], 2: [9.0]}, {1: [4.0], 0: [0.0], 7: [1.0]})
    assert gap is not None and (gap.mean, gap.starts) == (1.5, 2)
    assert gap.half_width == pytest.approx(special.stdtrit(1, 0.975) * 0.5)


def test_an_interval_holds_the_truth_19_times_of_20() -> None:
    """Starts of spread 1, two results each of spread 0.5 around it: 400 samples of 12 starts."""
    rng, held = np.random.default_rng(0), 0
    for _ in range(400):
        luck = rng.normal(size=12)
        mean = clustered_mean({start: (luck[start] + rng.normal(scale=0.5, size=2)).tolist() for start in range(12)})
        assert mean is not None and mean.low is not None and mean.high is not None
        held += mean.low < 0 < mean.high
    assert 366 <= held <= 394  # 380 +- 3 standard deviations


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["cross-play", "kuhn-poker-v0", "--entrant", "best=optimal", "--entrant", "chance=random-legal"]
    assert main([*command, "--episodes", "10", "--out", "xp"]) == 0
    shown = capsys.readouterr()
    assert "kuhn-poker-v0: 20 of 20 matches on 5 starts, seed 0" in shown.out and "best - chance" in shown.out
    assert shown.err == "match 20/20  0:00 left\n" and shown.out.endswith("folder  xp\n")
    assert main([*command, "--episodes", "10", "--out", "xp"]) == 0
    assert capsys.readouterr() == (shown.out, "")
    assert main([*command, "--role", "player_0=best", "--role", "player_1=best,chance", "--markdown"]) == 0
    assert "| best |" in capsys.readouterr().out
    (tmp_path / "starts.jsonl").write_text('{"prompt": "tea"}\n{"prompt": "ink"}\n')
    names = ["cross-play", "naming-v0", "namers=2", "--entrant", "a=scripted", "--starts", "starts.jsonl"]
    assert main(names) == 0
    assert "on 2 starts" in capsys.readouterr().out
    for wrong, says in (
        (["cross-play", "kuhn-poker-v0"], "no entrant was given"),
        ([*command, "--entrant", "best=x"], 'names "best" twice'),
        ([*command, "--entrant", "optimal"], "expected NAME=AGENT"),
        ([*command, "--role", "player_0=best", "--role", "player_1"], "says nobody"),
        ([*command, "--entrants", "a=b"], 'Did you mean "--entrant"'),
    ):
        assert main(wrong) == 2
        errors = capsys.readouterr().err
        assert says in errors and errors.count("\n") == 1
    assert main(["cross-play", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("trained=", "initial=", "--role", "held out", "examples:", "cross_play.json"))
