"""Votes and ends of undercover-v0: who leaves, who is paid, and how the scripted player does."""

import numpy as np
import pytest

import llm_arena
from llm_arena.checks import play_out
from llm_arena.errors import UsageError
from llm_arena.types import Cause, Ending, Reply
from undercover_parts import CLUES, game, give_clues, vote


def under(env):
    return [seat for seat, side in env.sides.items() if side == "undercover"]


def play(env, choose, seed):
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    play_out(
        env, rng, lambda env, seat: (choose(env, seat) or (lambda *_: env.sample_reply(seat, rng)))(env.view(seat), rng)
    )
    return env


# ---- votes and ends: the numbers of the module's docstring ---------------------------------------------------------


def test_civilians_win_when_the_undercover_is_out():
    env = game()
    [spy] = under(env)
    give_clues(env)
    vote(env, spy)
    assert env.over and env.outcome.reason == "the undercovers are out" and spy not in env.outcome.winners
    assert env.returns == {seat: -1.0 if seat == spy else 0.25 for seat in env.possible_agents}


def test_undercovers_win_when_they_are_as_many():
    env = game(players=4)
    [spy] = under(env)
    for civilian in [seat for seat in env.possible_agents if seat != spy][:2]:
        assert not env.over
        give_clues(env)
        vote(env, civilian)
    assert env.outcome.winners == [spy] and "as many as" in env.outcome.reason
    assert env.returns[spy] == 1.0 and sum(env.returns.values()) == pytest.approx(0)
    env = game(players=8, undercovers=2)
    spies = under(env)
    for civilian in [seat for seat in env.possible_agents if seat not in spies][:4]:
        give_clues(env, [f"{clue} {n}" for n in range(9) for clue in CLUES])
        vote(env, civilian)
    assert env.returns == pytest.approx({seat: 1.0 if seat in spies else -1 / 3 for seat in env.possible_agents})
    assert env.outcome.ranks == {seat: 1 if seat in spies else 2 for seat in env.possible_agents}


def test_a_tie_removes_nobody_and_the_last_round_is_the_undercovers():
    env = game(players=4, rounds=2)
    for _ in range(2):
        assert not env.over
        give_clues(env)
        for seat in list(env.pending):  # two against two
            env.step(f"VOTE: {'player_1' if seat in ('player_0', 'player_2') else 'player_0'}")
    assert env.outcome.winners == under(env) and env.outcome.reason == "undercover outlasts round 2"


@pytest.mark.parametrize("reveal", [True, False])
def test_reveal_says_which_side_left(reveal):
    env = game(reveal=reveal)
    civilian = next(seat for seat in env.possible_agents if env.sides[seat] == "civilian")
    watcher = next(seat for seat in env.possible_agents if seat not in (civilian, *under(env)))
    give_clues(env)
    vote(env, civilian)
    seen = env.transcript(watcher)
    assert f"{civilian} leaves." in seen and (f"{civilian} was a civilian." in seen) == reveal
    assert env.facts(watcher)["out"] == {civilian: "civilian" if reveal else None}


# ---- bad replies ---------------------------------------------------------------------------------------------------


def test_a_forfeiter_is_out_and_the_others_play_on():
    env = game()
    [spy] = under(env)
    quitter = next(seat for seat in env.queue if seat != spy)
    while env.agent_selection != quitter:
        env.step(f"CLUE: {CLUES[len(env.clues)]}")
    env.step("I resign.\nGoodbye.")
    assert not env.over and quitter not in env.alive and env.last_step.cause is Cause.UNPARSABLE
    assert f"{quitter} drops out. {quitter} was a civilian." in env.transcript(env.agent_selection)
    give_clues(env)
    assert quitter not in env.pending
    vote(env, spy)
    paid = {seat: 0.25 for seat in env.possible_agents} | {quitter: -1.0, spy: 0.25}
    assert env.returns == pytest.approx(paid) and quitter not in env.outcome.winners
    assert env.outcome.ranks[quitter] == 3


def test_an_undercover_that_forfeits_ends_the_game():
    env = game(clues="at once")
    [spy] = under(env)
    for at, seat in enumerate(env.possible_agents):
        assert not env.over
        env.step("" if seat == spy else f"CLUE: {CLUES[at]}")
    assert env.over and env.returns == {seat: -1.0 if seat == spy else 0.25 for seat in env.possible_agents}


def test_a_forfeit_in_the_vote_is_told_after_it():
    env = game(players=6)
    give_clues(env)
    before = {seat: env.facts(seat) for seat in env.pending[1:]}
    env.step("nobody")
    for seat in env.pending:
        assert env.facts(seat) == before[seat]
        assert "drops out" not in env.transcript(seat)
    for seat in list(env.pending):
        env.step(f"VOTE: {'player_0' if seat != 'player_0' else 'player_1'}")
    assert "player_0" not in env.alive and len(env.alive) == 5  # it alone: nobody else is voted out


def test_when_everybody_forfeits_nobody_is_paid():
    env = game(clues="at once")
    for _ in range(5):
        env.step("")
    assert env.outcome.draw and set(env.returns.values()) == {0.0}


def test_skip_and_overflow():
    env = game(illegal="skip")
    first = env.agent_selection
    env.step("")
    assert f"{first} gives no clue." in env.transcript(env.agent_selection) and first in env.alive
    env = game(overflow="forfeit")
    env.truncate(Ending.CONTEXT_OVERFLOW, "player_1")
    assert env.returns["player_1"] == -1 and sum(env.returns.values()) == pytest.approx(0)


def test_a_chosen_seat_is_undercover_and_the_outcome_says_who_was():
    for seed in range(10):
        assert under(game(seed, undercover=["player_3"])) == ["player_3"]
        spies = under(game(seed, players=6, undercovers=2, undercover=["player_3"]))
        assert "player_3" in spies and len(spies) == 2
    assert len({str(under(game(seed, players=6, undercovers=2, undercover=["player_3"]))) for seed in range(20)}) > 2
    env = game(undercover=["player_3"])
    give_clues(env)
    vote(env, "player_3")
    assert env.outcome.facts == {"sides": env.sides, "words": env.words} and env.sides["player_3"] == "undercover"
    assert under(game(0, undercover="player_2")) == ["player_2"]
    again = llm_arena.make(env.spec)
    again.reset(seed=5)
    assert under(again) == ["player_3"]


def test_bad_arguments_are_refused():
    for bad in (
        {"players": 3},
        {"players": 5, "undercovers": 2},
        {"undercovers": 0},
        {"undercovers": 1.0},
        {"undercovers": True},
        {"undercovers": [1]},
        {"undercover": ["player_9"]},
        {"undercover": ["player_0", "player_1"]},
        {"undercover": ["player_0", "player_0"], "undercovers": 2, "players": 6},
        {"undercover": 5},
        {"undercover": [["player_0"]]},
        {"pair": 5},
        {"pair": {"wine": 1, "beer": 2}},
        {"split": ["train"]},
        {"clues": ["at once"]},
        {"clues": "sung"},
        {"split": "test"},
        {"rounds": 0},
        {"reveal": "no"},
        {"pair": ["wine"]},
        {"pair": ["wine", "Wine"]},
        {"pair": "ab"},
    ):
        with pytest.raises(UsageError, match="undercover-v0"):
            llm_arena.make("undercover-v0", **bad)


# ---- the scripted player -------------------------------------------------------------------------------------------


def spy_wins(civilians, spies, episodes, **kwargs):
    env = llm_arena.make("undercover-v0", **kwargs)
    won = []
    for seed in range(episodes):
        play(env, lambda env, seat: spies if env.sides[seat] == "undercover" else civilians, seed)
        won.append(float(env.returns[under(env)[0]] > 0))
    return np.array(won)


def interval(values):
    half = 1.96 * np.std(values) / np.sqrt(len(values))
    return np.mean(values) - half, np.mean(values) + half


def test_hints_beat_random_clues_on_both_sides():
    hints = llm_arena.make("undercover-v0").baselines["hints"]
    luck = spy_wins(None, None, 200)
    assert 0.33 < luck.mean() < 0.52  # what the docstring says of luck
    caught = spy_wins(hints, None, 100)
    assert interval(caught - luck[:100])[1] < 0  # civilians
    hiding = spy_wins(hints, hints, 100)
    assert interval(hiding - caught)[0] > 0  # the undercover, among civilians who know how
    for kwargs in ({"clues": "at once"}, {"players": 8, "undercovers": 2}, {"split": "heldout"}):
        assert spy_wins(hints, None, 20, **kwargs).mean() < 0.2


def test_hints_play_words_that_are_not_listed():
    env = game(3)
    env = play(env, lambda env, seat: env.baselines["hints"], 3)
    env2 = play(game(3, pair=["zorb", "quux"]), lambda env, seat: env.baselines["hints"], 3)
    assert env.outcome and env2.outcome


def test_a_reply_of_words_costs_no_seat_its_clue():
    env = game()
    env.step(Reply("I will say it warms.\nCLUE: warms you", "length"))
    assert env.last_step.cause is Cause.LEGAL and env.clues[-1][2] == "warms you"


def test_the_turn_limit_leaves_room_for_a_whole_game():
    assert llm_arena.make("undercover-v0").max_turns == 50
    assert llm_arena.make("undercover-v0", retries=2).max_turns == 50
    assert llm_arena.make("undercover-v0", max_turns=7).max_turns == 7
