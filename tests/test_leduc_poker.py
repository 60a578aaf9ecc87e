"""Leduc poker: payoffs by hand and against OpenSpiel, the solved strategy, what is hidden."""

import json

import numpy as np
import pyspiel
import pytest

import llm_arena
from llm_arena.errors import EnvContractError
from llm_arena.leaks import secrets_are_kept
from llm_arena.problems.solvers.leduc import best_response, exploitability, solve, stored
from llm_arena.registry import env_class
from llm_arena.types import Cause
from openspiel_parts import plays_alike

NUMBERS = {"fold": 0, "check": 1, "call": 1, "bet": 2, "raise": 2}
LeducPoker = env_class("leduc-poker-v0")


def dealt(first, second, board, **options):
    """Returns a reset env with these cards."""
    env = llm_arena.make("leduc-poker-v0", **options)
    for seed in range(2000):
        env.reset(seed=seed)
        if (*env.cards.values(), env.board) == (first, second, board):
            return env
    raise AssertionError("never dealt")


@pytest.mark.parametrize(
    ("cards", "line", "paid"),
    [
        ("KQQ", "bet raise call check bet call", -9),  # a pair beats a king
        ("KQQ", "bet raise fold", -3),
        ("JKQ", "bet fold", 1),
        ("KQJ", "check check check check", 1),
        ("JQK", "check check check check", -1),
        ("QQJ", "bet raise call bet raise call", 0),  # equal cards split the pot
        ("JKJ", "check bet raise call check bet raise call", 13),
        ("KJJ", "check bet raise call check bet raise call", -13),
        ("KJQ", "check bet raise call check bet raise fold", 9),
        ("KJQ", "check bet fold", -1),
        ("KJQ", "check check bet raise fold", -5),
    ],
)
def test_payoffs_worked_by_hand(cards, line, paid):
    env = dealt(*cards)
    for action in line.split():
        assert not env.over and action in env.legal_actions(env.agent_selection)
        env.step(action)
    assert env.over and env.returns == {"player_0": paid, "player_1": -paid}
    assert env.outcome.scores == env.returns
    assert env.outcome.draw == (paid == 0)
    assert env.outcome.winners == ([] if paid == 0 else ["player_0" if paid > 0 else "player_1"])


@pytest.mark.parametrize(
    ("line", "legal"),
    [
        ("", "check bet"),
        ("check", "check bet"),
        ("bet", "fold call raise"),
        ("check bet raise", "fold call"),  # two raises are the most
        ("bet call", "check bet"),
        ("check check bet raise", "fold call"),
    ],
)
def test_what_is_legal(line, legal):
    env = dealt("J", "Q", "K")
    for action in line.split():
        env.step(action)
    assert env.legal_actions(env.agent_selection) == legal.split()


@pytest.mark.parametrize("reply", ["raise", "call", "fold", "check, bet", "[check] or [bet]", "all in"])
def test_what_is_not_legal_forfeits_the_worst_loss(reply):
    env = dealt("K", "Q", "J")
    env.step(reply)
    assert env.last_step.cause is not Cause.LEGAL and env.returns == {"player_0": -13.0, "player_1": 13.0}


def test_it_plays_like_openspiel():
    env = llm_arena.make("leduc-poker-v0")
    both = {card: (2 * rank, 2 * rank + 1) for rank, card in enumerate("JQK")}
    cards = [
        lambda env: both[env.cards["player_0"]],
        lambda env: both[env.cards["player_1"]],
        lambda env: both[env.board],
    ]
    for seed in range(500):
        plays_alike(env, "leduc_poker", NUMBERS, seed, cards)


def test_cards_are_dealt_evenly():
    env, counts = llm_arena.make("leduc-poker-v0"), {}
    for seed in range(3000):
        env.reset(seed=seed)
        deal = (*env.cards.values(), env.board)
        counts[deal] = counts.get(deal, 0) + 1
    # of 120 deals 8 have three given different ranks, 4 a given pair and a third
    assert len(counts) == 24
    for deal, count in counts.items():
        expected = 3000 * (8 if len(set(deal)) == 3 else 4) / 120
        assert abs(count - expected) < 5 * expected**0.5, deal


def test_the_stored_strategy_is_nearly_an_equilibrium():
    table = stored()
    assert len(table) == 288 and all(abs(sum(row) - 1) < 1e-3 for row in table.values())
    assert exploitability(table) < 0.001
    assert best_response(table, 0) == pytest.approx(-0.0856, abs=0.001)  # the game's value


def test_exploitability_is_that_of_openspiel():
    """The same for the stored strategy and for a bad one, which always chooses evenly."""
    game = pyspiel.load_game("leduc_poker")
    uniform = {key: [1 / len(row)] * len(row) for key, row in stored().items()}
    for table in (stored(), uniform):
        policy = {}

        def fill(state, table=table, policy=policy):
            if state.is_terminal():
                return
            if not state.is_chance_node():
                cards, board, line = [], "", ""
                for number, step in enumerate(state.full_history()):
                    if step.player != pyspiel.PlayerId.CHANCE:
                        line += "fcr"[step.action]
                    elif number < 2:
                        cards.append("JQK"[step.action // 2])
                    else:
                        board, line = "JQK"[step.action // 2], line + "/"
                row = table[f"{cards[state.current_player()]}{board}:{line}"]
                policy[state.information_state_string()] = list(zip(state.legal_actions(), row, strict=True))
            for action in state.legal_actions():
                fill(state.child(action))

        fill(game.new_initial_state())
        assert len(policy) == 936
        theirs = pyspiel.nash_conv(game, pyspiel.TabularPolicy(policy)) / 2
        assert theirs == pytest.approx(exploitability(table), abs=1e-3)
    assert exploitability(uniform) > 1


def test_the_program_makes_the_stored_table_again():
    # a short run: the stored one has 2000 iterations
    table = solve(200)
    assert table.keys() == stored().keys() and json.dumps(table) == json.dumps(solve(200))
    assert exploitability(table) < 0.01


def winnings(agents, games):
    env, rng, won = llm_arena.make("leduc-poker-v0"), np.random.default_rng(0), []
    for seed in range(games):
        env.reset(seed=seed)
        while not env.over:
            seat = env.agent_selection
            name = agents[seat]
            env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
        won.append(env.returns["player_0"])
    return np.mean(won), 1.96 * np.std(won) / np.sqrt(games)


def test_cfr_beats_random_play_from_both_seats():
    mean, half_width = winnings({"player_0": "cfr", "player_1": None}, 1500)
    assert mean - half_width > 0
    mean, half_width = winnings({"player_0": None, "player_1": "cfr"}, 1500)
    assert mean + half_width < 0


def test_cfr_against_itself_gets_the_games_value():
    mean, half_width = winnings({"player_0": "cfr", "player_1": "cfr"}, 3000)
    assert abs(mean + 0.0856) < 1.7 * half_width


def test_the_open_card_is_told_when_it_lies_open_and_not_before():
    env = dealt("J", "Q", "K")
    env.step("bet")
    assert "open card is" not in str(env.observe("player_1")) + str(env.observe("player_0"))
    assert env.facts("player_0")["board"] is None
    env.step("call")
    for seat in env.possible_agents:
        assert "The open card is K." in env.observe(seat)["messages"][-1]["content"]
        assert env.facts(seat)["board"] == "K"
    assert (
        "Chips paid: player_0 3, player_1 3. Reply with one word: check or bet."
        in env.observe("player_0")["messages"][-1]["content"]
    )


def test_cards_are_told_in_the_outcome_after_a_showdown_alone():
    env = dealt("J", "Q", "K")
    for _ in range(4):
        env.step("check")
    shown = "player_0 shows J, player_1 shows Q, the open card is K"
    assert all(info["outcome"]["reason"] == shown for info in env.infos.values())
    assert not any("shows" in str(env.observe(seat)) for seat in env.possible_agents)
    for line in ("bet fold", "check check bet fold"):
        env = dealt("J", "Q", "K")
        for action in line.split():
            env.step(action)
        assert all(info["outcome"]["reason"].endswith("folds") for info in env.infos.values())


def test_retries_leave_room_for_the_longest_game():
    env = dealt("J", "K", "J", retries=1)
    assert env.max_turns == 8
    for action in ["check", "bet", "raise", "call", "check", "bet", "raise", "call"]:
        env.step("all in")
        env.step(action)
    assert env.returns == {"player_0": 13, "player_1": -13}


class Facts(LeducPoker):
    def facts(self, seat):
        return {**super().facts(seat), "next": self.board}


class Views(LeducPoker):
    def begin(self, rng):
        first = super().begin(rng)
        self.tell("player_0", f"player_1 looks at a {self.cards['player_1']}.")
        return first


@pytest.mark.parametrize(("leaky", "where"), [(Facts, "facts"), (Views, "messages")])
def test_planted_leaks_are_caught(leaky, where):
    secrets_are_kept(llm_arena.make("leduc-poker-v0"), 0)
    with pytest.raises(EnvContractError, match=f"learns something.*from its {where}"):
        secrets_are_kept(leaky(), 0)


@pytest.mark.parametrize("arguments", [{}, {"retries": 1}, {"illegal": "random_legal"}])
def test_it_is_a_well_behaved_env(arguments):
    llm_arena.check_env(llm_arena.make("leduc-poker-v0", **arguments), seed=5)
