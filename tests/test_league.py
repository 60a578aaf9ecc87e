"""Whom the learner meets: draws, counts, eviction, and going on from a saved state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from llm_arena.errors import TrainingError, UsageError
from llm_arena.training.league import League, Member, Standings
from llm_arena.training.league_settings import LeagueSettings
from llm_arena.types import Cause, Ending, EnvSpec, Outcome, SeatInfo, Trace, Turn

MIXED = LeagueSettings(
    self_play=0.6, past=0.2, anchors_share=0.2, anchors="random-legal, llm:smollm2-135m", snapshot_every=2, keep=4
)
PAST_ONLY = LeagueSettings(self_play=0.0, past=1.0, snapshot_every=1, keep=8, min_games=1)


def seat_info(who: str) -> SeatInfo:
    """A scripted player has a name of its own, a model is `llm:POLICY`."""
    scripted = who in ("random-legal", "optimal")
    return SeatInfo(role="player", agent=who if scripted else f"llm:{who}", policy=None if scripted else who)


def game(id: str, held: dict[str, str], outcome: Outcome | None, **fields: Any) -> Trace:
    """`held` is who has each seat; the seats are of the role `player`."""
    seats = {seat: seat_info(who) for seat, who in held.items()}
    return Trace(id=id, spec=EnvSpec(id="toy-v0"), seed=0, seats=seats, outcome=outcome, **fields)


def duel(id: str, other: str, winner: str | None = None, **fields: Any) -> Trace:
    """A game of two against `other`; a draw without a winner."""
    outcome = Outcome(winners=[f"player_{int(winner != 'learner')}"]) if winner else Outcome(draw=True)
    return game(id, {"player_0": "learner", "player_1": other}, outcome, **fields)


def duels(other: str, wins: int, draws: int, losses: int) -> list[Trace]:
    winners = ["learner"] * wins + [None] * draws + [other] * losses
    return [duel(f"{other} {number}", other, winner) for number, winner in enumerate(winners)]


def against(league: League, agent: str) -> Member:
    return next(one for one in league.members if one.agent == agent)


def played(settings: LeagueSettings, steps: int, *, ahead: int = 0) -> League:
    """A league after some steps in which older versions were beaten more often."""
    league = League(settings, seed=7, ahead=ahead)
    for step in range(steps):
        traces = [trace for i, one in enumerate(league.members) for trace in duels(one.agent, 9 - i, 1, i)]
        league.record(step, traces)
        if league.due:
            league.snapshot(league.step)
    return league


def draws(league: League, steps: range, starts: int = 8) -> list[str | None]:
    met = [league.opponent(step, k) for step in steps for k in range(starts)]
    return [one.agent if one is not None else None for one in met]


def test_versions_are_drawn_by_the_squared_share_of_points_not_won() -> None:
    """Win rates 0.9, 0.5 and 0 weigh 0.01, 0.25 and 1: shares of 1/126, 25/126 and 100/126."""
    past = (
        Member(agent="learner@1", step=1, number=1, games=10, wins=9, losses=1),
        Member(agent="learner@2", step=2, number=2, games=10, wins=3, draws=4, losses=3),
        Member(agent="learner@3", step=3, number=3, games=10, losses=10),
    )
    rates = [one.win_rate(1) for one in past]
    assert rates == [0.9, 0.5, 0.0]
    met = Counter(Standings(past=past).draw(PAST_ONLY, 5, step, k) for step in range(1000) for k in range(20))
    for one, weight in zip(past, (1, 25, 100), strict=True):
        expected = weight / 126
        assert met[one] / 20_000 == pytest.approx(expected, abs=4 * (expected * (1 - expected) / 20_000) ** 0.5)


def test_all_weights_of_zero_are_alike() -> None:
    past = tuple(Member(agent=f"learner@{i}", step=i, number=i, games=10, wins=10) for i in (1, 2))
    met = Counter(Standings(past=past).draw(PAST_ONLY, 0, step, 0) for step in range(2000))
    assert len(met) == 2 and min(met.values()) > 900


def test_a_version_counts_as_even_until_it_was_met_often_enough() -> None:
    one = Member(agent="learner@1", step=1, number=1, games=9, wins=9)
    assert one.win_rate(min_games=10) == 0.5
    assert one.win_rate(min_games=9) == 1.0
    assert Member(agent="learner@1").win_rate(min_games=1) == 0.5


def test_the_shares_hold() -> None:
    league = played(MIXED, 4)
    kinds = Counter(
        "self" if one is None else "past" if one.step is not None else one.agent
        for one in (league.opponent(4, k) for k in range(10_000))
    )
    bound = 4 * (0.2 * 0.8 / 10_000) ** 0.5  # four standard deviations
    assert kinds["self"] / 10_000 == pytest.approx(0.6, abs=1.3 * bound)
    assert kinds["past"] / 10_000 == pytest.approx(0.2, abs=bound)
    assert kinds["random-legal"] / 10_000 == pytest.approx(0.1, abs=bound)
    assert kinds["llm:smollm2-135m"] / 10_000 == pytest.approx(0.1, abs=bound)


def test_without_a_past_version_its_share_is_self_play() -> None:
    league = League(PAST_ONLY, seed=0)
    assert draws(league, range(1)) == [None] * 8
    league.record(0, [])
    league.snapshot(1)
    assert draws(league, range(1, 2)) == ["learner@1"] * 8


def test_seed_step_and_start_each_change_the_draw() -> None:
    league, other = played(MIXED, 6), League(MIXED, seed=8)
    other.load(league.state())
    table = draws(league, range(6, 7), 200)
    assert {None, "learner@6", "random-legal", "llm:smollm2-135m"} <= set(table)
    assert table != draws(other, range(6, 7), 200)
    later = League(MIXED, seed=7)
    later.load({**league.state(), "step": 8})
    assert table != draws(later, range(8, 9), 200)


PROGRAM = """
import json, sys
from llm_arena.training.league import League
from llm_arena.training.league_settings import LeagueSettings
assert "torch" not in sys.modules
league = League(LeagueSettings(**json.loads(sys.argv[1])), seed=7)
league.load(json.loads(sys.argv[2]))
met = [league.opponent(league.step, k) for k in range(100)]
print(json.dumps([one.agent if one is not None else None for one in met]))
"""


def test_every_process_draws_the_same() -> None:
    league = played(MIXED, 8)
    settings = {name: getattr(MIXED, name) for name in MIXED.__dataclass_fields__}
    command = [sys.executable, "-c", PROGRAM, json.dumps(settings), json.dumps(league.state())]
    outputs = [
        json.loads(subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=60))
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] == draws(league, range(8, 9), 100)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_league_that_goes_on_meets_the_same(ahead: int) -> None:
    whole = played(MIXED, 7, ahead=ahead)
    resumed = League(MIXED, seed=7, ahead=ahead)
    resumed.load(json.loads(json.dumps(whole.state())))
    assert resumed.state() == whole.state()
    for step in range(7, 15):
        steps = range(step, step + ahead + 1)
        assert draws(resumed, steps, 50) == draws(whole, steps, 50)
        for league in (resumed, whole):
            league.record(step, duels("learner@6", 1, 0, 3))
            if league.due:
                league.snapshot(league.step)
    assert resumed.needed() == whole.needed()


def test_batches_ahead_are_drawn_from_the_league_as_it_was_when_they_began() -> None:
    """With two steps ahead, step 5 meets the league as it is after 3 steps, whenever one asks."""
    league = played(PAST_ONLY, 3, ahead=2)
    early = draws(league, range(5, 6), 50)
    assert set(early) <= {"learner@1", "learner@2", "learner@3"}
    alone = played(PAST_ONLY, 3)
    now = [Standings(past=tuple(alone.members)).draw(PAST_ONLY, 7, 5, k) for k in range(50)]
    assert early == [one.agent if one else None for one in now]
    for step in (3, 4):
        league.record(step, duels("learner@3", 5, 0, 0))
        league.snapshot(step + 1)
    assert draws(league, range(5, 6), 50) == early
    assert "learner@5" in draws(league, range(7, 8), 50)
    for step in (4, 8):  # its league is gone; that of step 8 is yet to come
        with pytest.raises(UsageError, match=f"step {step} meets the league .* ask for steps 5 to 7"):
            league.opponent(step, 0)


def test_an_evicted_version_is_needed_until_no_batch_meets_it() -> None:
    settings = LeagueSettings(self_play=0.5, past=0.5, snapshot_every=1, keep=1)
    league = League(settings, seed=0, ahead=2)
    gone = []
    for step in range(3):
        league.record(step, [])
        gone.append(league.snapshot(step + 1))
    assert gone == [[], ["learner@1"], ["learner@2"]]
    assert [one.agent for one in league.members] == ["learner@3"]
    assert league.needed() == {"learner@1", "learner@2", "learner@3"}
    league.record(3, [])
    assert league.needed() == {"learner@2", "learner@3"}


def test_wins_draws_and_losses_are_counted_by_opponent() -> None:
    league = League(MIXED, seed=0)
    traces = duels("random-legal", 3, 2, 1) + duels("smollm2-135m", 0, 0, 2)
    metrics = league.record(0, traces)
    one = against(league, "random-legal")
    assert (one.games, one.wins, one.draws, one.losses) == (6, 3, 2, 1)
    assert one.win_rate(6) == pytest.approx(4 / 6)
    assert against(league, "llm:smollm2-135m").losses == 2
    assert metrics == {
        "league/games/past": 0,
        "league/games/random-legal": 6,
        "league/win_rate/random-legal": pytest.approx(4 / 6),
        "league/games/smollm2-135m": 2,
        "league/win_rate/smollm2-135m": 0,
    }
    assert league.record(1, duels("random-legal", 1, 0, 0))["league/win_rate/random-legal"] == 1  # of this step alone


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        ((1, 2, 2), (1, 0, 0)),
        ((2, 1, 2), (0, 0.5, 0.5)),
        ((2, 1, 3), (0.5, 0, 0.5)),
        ((3, 1, 2), (0, 0, 1)),
        ((1, 1, 1), (0, 1, 0)),
        ((1, 1, 3), (0.5, 0.5, 0)),
    ],
)
def test_a_game_of_three_counts_once_by_pairs_of_seats(
    ranks: tuple[int, int, int], counts: tuple[float, float, float]
) -> None:
    held = {"player_0": "learner", "player_1": "random-legal", "player_2": "random-legal"}
    league = League(MIXED, seed=0)
    league.record(0, [game("a", held, Outcome(ranks=dict(zip(held, ranks, strict=True))))])
    one = against(league, "random-legal")
    assert (one.games, one.wins, one.draws, one.losses) == (1, *counts)


def test_among_equals_the_win_rate_is_one_half_where_one_of_three_wins() -> None:
    held = {"player_0": "learner", "player_1": "random-legal", "player_2": "random-legal"}
    league = League(MIXED, seed=0)
    league.record(0, [game(seat, held, Outcome(winners=[seat])) for seat in held])
    assert against(league, "random-legal").win_rate(1) == pytest.approx(0.5)


def test_what_ranks_nobody_or_is_void_counts_nothing() -> None:
    league = League(MIXED, seed=0)
    before = league.members
    together = {"player_0": "learner", "player_1": "random-legal"}
    league.record(
        0,
        [
            duel("void", "random-legal", "learner", ending=Ending.VOID),
            game("all won", together, Outcome(winners=list(together))),
            game("all lost", together, Outcome()),
            game("self-play", dict.fromkeys(together, "learner"), Outcome(winners=["player_0"])),
            duel("a stranger", "optimal", "learner"),
            duel("evicted before", "learner@3", "learner"),
        ],
    )
    assert league.members == before


def test_a_game_that_the_turn_limit_cut_off_is_a_draw() -> None:
    league = League(MIXED, seed=0)
    held = {"player_0": "learner", "player_1": "random-legal"}
    league.record(0, [game("a", held, None, ending=Ending.TRUNCATED)])
    assert against(league, "random-legal").draws == 1


@pytest.mark.parametrize(("culprit", "wins", "faults"), [("player_1", 1, 1), ("player_0", 0, 0)])
def test_faults_of_the_opponent_are_counted_apart(culprit: str, wins: int, faults: int) -> None:
    bad = Turn(index=0, seat=culprit, text="x", cause=Cause.ILLEGAL)
    winner = "player_0" if culprit == "player_1" else "player_1"
    held = {"player_0": "learner", "player_1": "random-legal"}
    outcome = Outcome(winners=[winner], reason="forfeit: illegal")
    league = League(MIXED, seed=0)
    league.record(0, [game("a", held, outcome, turns=[bad])])
    one = against(league, "random-legal")
    assert (one.games, one.wins, one.losses, one.faults) == (1, wins, 1 - wins, faults)


def test_officials_are_no_opponents() -> None:
    """The anchor judges a game that the learner lost to it, and its seat as a judge has no rank."""
    league = League(MIXED, seed=0, officials=["judge"])
    trace = duel("a", "random-legal", "random-legal")
    trace.seats["judge_0"] = SeatInfo(role="judge", agent="random-legal")
    league.record(0, [trace])
    assert against(league, "random-legal").losses == 1
    trace.outcome = Outcome(draw=True)
    league.record(1, [trace])
    assert (against(league, "random-legal").draws, against(league, "random-legal").losses) == (1, 1)


def test_an_anchor_whose_policy_has_another_name_is_known_by_its_agent_string() -> None:
    league = League(LeagueSettings(self_play=0.5, anchors_share=0.5, anchors="openai:big"), seed=0)
    trace = duel("a", "x", "learner")
    trace.seats["player_1"] = SeatInfo(role="player", agent="openai:big", policy="big")
    league.record(0, [trace])
    assert against(league, "openai:big").wins == 1


def test_a_trace_and_a_step_count_once() -> None:
    league = League(MIXED, seed=0)
    trace = duel("a", "random-legal", "learner")
    league.record(0, [trace, trace])
    assert against(league, "random-legal").games == 1
    for step in (0, 2):
        with pytest.raises(UsageError, match=f"step 1 is next; got {step}"):
            league.record(step, [trace])
    assert against(league, "random-legal").games == 1


@pytest.mark.parametrize("keep", [1, 2, 3, 5, 10])
def test_eviction_leaves_anchors_and_the_newest_half(keep: int) -> None:
    settings = LeagueSettings(
        self_play=0.5, past=0.4, anchors_share=0.1, anchors="random-legal", snapshot_every=3, keep=keep
    )
    league = League(settings, seed=0)
    names: list[str] = []
    for step in range(180):
        league.record(step, [])
        if league.due:
            names.append(league.version_name(step + 1))
            evicted = league.snapshot(step + 1)
            assert len(evicted) == (len(names) > keep)
            assert not {"random-legal", *evicted} & set(names[-((keep + 1) // 2) :])
        past = [one.agent for one in league.members[:-1]]
        assert len(past) == min(len(names), keep)
        assert past[-((keep + 1) // 2) :] == names[-((keep + 1) // 2) :]
        assert league.members[-1].agent == "random-legal"


@pytest.mark.parametrize("keep", [5, 10, 16])
def test_older_versions_are_spread_evenly_over_the_run(keep: int) -> None:
    """No gap among them, or at an end, is twice as wide as if they were spread perfectly."""
    league = League(LeagueSettings(self_play=0.5, past=0.5, snapshot_every=1, keep=keep), seed=0)
    half = keep // 2
    for step in range(400):
        league.record(step, [])
        league.snapshot(step + 1)
        if step >= keep:
            steps = [0, *(one.step or 0 for one in league.members[: half + 1])]
            assert max(b - a for a, b in pairwise(steps)) < 2 * steps[-1] / (half + 1) + 1e-9


def test_a_version_is_kept_once_and_at_the_step_that_was_counted() -> None:
    league = League(PAST_ONLY, seed=0)
    assert not league.due
    league.record(0, [])
    assert league.due
    league.snapshot(1)
    for step in (1, 2):
        with pytest.raises(UsageError, match=f"a version of step {step} can't be kept"):
            league.snapshot(step)


def test_a_further_policy_has_versions_of_its_own() -> None:
    league = League(PAST_ONLY, seed=0, policy="learner:solver")
    league.record(0, [])
    league.snapshot(1)
    league.record(1, [game("a", {"player_0": "learner:solver", "player_1": "learner:solver@1"}, Outcome(draw=True))])
    assert against(league, "learner:solver@1").draws == 1


@pytest.mark.parametrize("name", ["learner", "llm:learner", "learner:a", "learner@40"])
def test_anchors_never_change(name: str) -> None:
    with pytest.raises(UsageError, match="named like a policy that is trained"):
        League(LeagueSettings(self_play=0.5, anchors_share=0.5, anchors=name), seed=0)


def test_the_default_is_self_play_alone() -> None:
    settings = LeagueSettings()
    assert not settings.on and settings.anchor_names() == []
    assert LeagueSettings(self_play=0.5, past=0.5).on
    assert LeagueSettings(
        self_play=0.7, past=0.1, anchors_share=0.1 + 0.1, anchors="a"
    ).on  # sums to 1 but for rounding
    assert draws(League(settings, seed=0), range(1), 50) == [None] * 50


def test_anchors_are_taken_as_a_list_too() -> None:
    given: Any = ["random-legal", "smollm2-135m"]
    settings = LeagueSettings(self_play=0.5, anchors_share=0.5, anchors=given)
    assert settings.anchors == "random-legal,smollm2-135m"
    assert settings.anchor_names() == given


@pytest.mark.parametrize("name", ["openai:m@http://a,https://b", "openai:m@http://a, http://b"])
def test_an_anchor_may_have_several_addresses(name: str) -> None:
    names: Any = ["random-legal", name, "optimal"]
    for given in (names, ",".join(names)):
        assert LeagueSettings(self_play=0.5, anchors_share=0.5, anchors=given).anchor_names() == names


def test_a_folder_spelt_in_two_ways_is_one_anchor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    for other in ("./tiny", "llm:tiny/", str(tmp_path / "tiny")):
        with pytest.raises(UsageError, match=r'names "tiny" twice \(also as ".*tiny/?"\)'):
            LeagueSettings(self_play=0.5, anchors_share=0.5, anchors=f"tiny,{other}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"past": 0.2}, r"self_play 1 \+ past 0.2 \+ anchors_share 0; set self_play to 0.8"),
        ({"past": 0.7, "anchors_share": 0.7, "anchors": "a"}, "lower past or anchors_share"),
        ({"past": -0.2, "self_play": 1.2}, "league.self_play must be a share .* got 1.2"),
        ({"past": float("nan")}, "league.past must be a share .* got nan"),
        ({"past": "0.2"}, "league.past must be a share .* got '0.2'"),
        ({"past": True, "self_play": 0}, "league.past must be a share .* got True"),
        ({"self_play": 0.8, "anchors_share": 0.2}, "anchors_share is 0.2, but there is no anchor"),
        ({"anchors": "random-legal"}, r"anchors_share is 0, but there are anchors \(random-legal\): give a share"),
        ({"anchors": "a,,b"}, "an empty name: 'a,,b'"),
        ({"anchors": "a, llm:a"}, 'names "a" twice'),
        ({"anchors": 3}, "agent strings separated by commas, got 3"),
        ({"keep": 0}, "league.keep must be a whole number of at least 1, got 0"),
        ({"min_games": 1.5}, "league.min_games must be .* got 1.5"),
        ({"snapshot_every": True}, "league.snapshot_every must be .* got True"),
    ],
)
def test_settings_that_can_not_work_say_what_does(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        LeagueSettings(**given)


@pytest.mark.parametrize("state", [None, [], {"step": "x"}, {}])
def test_a_damaged_state_is_told(state: object) -> None:
    with pytest.raises(TrainingError, match="can't be read: .* --fresh"):
        League(MIXED, seed=0).load(state)


def test_the_state_of_another_league_is_refused() -> None:
    saved = played(MIXED, 4).state()
    for other in (League(PAST_ONLY, seed=7), League(MIXED, seed=7, ahead=1), League(MIXED, seed=7, policy="learner:a")):
        before = other.state()
        with pytest.raises(TrainingError, match="the state of the league is of learner with the anchors"):
            other.load(saved)
        assert other.state() == before
