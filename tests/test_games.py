"""The rules of Kuhn poker and tic-tac-toe, and their scripted players."""

import itertools

import numpy as np
import pytest

import llm_arena
from openspiel_parts import plays_alike

LINES = {  # who wins how many chips: None means the higher card
    ("check", "check"): (None, 1),
    ("bet", "fold"): ("player_0", 1),
    ("bet", "call"): (None, 2),
    ("check", "bet", "fold"): ("player_1", 1),
    ("check", "bet", "call"): (None, 2),
}


def kuhn(cards):
    """Returns a reset env in which player_0 and player_1 hold `cards`."""
    for seed in range(200):
        env = llm_arena.make("kuhn-poker-v0")
        env.reset(seed=seed)
        if tuple(env.cards.values()) == cards:
            return env
    raise AssertionError(f"{cards} was never dealt")


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("cards", list(itertools.permutations("JQK", 2)))
def test_kuhn_pays_right_on_every_line_of_every_deal(cards, line):
    env = kuhn(cards)
    for action in line:
        assert not env.over and action in env.legal_actions(env.agent_selection)
        env.step(action)
    winner, chips = LINES[line]
    winner = winner or ("player_0" if "JQK".index(cards[0]) > "JQK".index(cards[1]) else "player_1")
    assert env.over and env.outcome.winners == [winner]
    assert env.returns[winner] == chips and sum(env.returns.values()) == 0


def test_kuhns_value_comes_out_of_the_nash_players_by_enumeration():
    nash = llm_arena.registry and llm_arena.make("kuhn-poker-v0").baselines["optimal"]

    class Half:  # a generator whose random() walks both branches by their probability
        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    def value(env):
        if env.over:
            return env.returns["player_0"]
        seat = env.agent_selection
        view = env.view(seat)
        # the player compares random() with a probability p: find p by the switch between 0 and 1 in thirds
        picks = [nash(view, Half(point)) for point in (1 / 6, 1 / 2, 5 / 6)]
        total = 0.0
        for action in picks:
            after = env.clone()
            after.step(action)
            total += value(after) / 3
        return total

    values = [value(kuhn(cards)) for cards in itertools.permutations("JQK", 2)]
    assert sum(values) / 6 == pytest.approx(-1 / 18, abs=1e-12)


def play(env, agents, seed):
    """Plays one episode with scripted players `name by seat` and returns the returns."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    while not env.over:
        seat = env.agent_selection
        name = agents[seat]
        env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
    return env.returns


def moves(cells):
    """Returns a tic-tac-toe env after `cells` were played."""
    env = llm_arena.make("tic-tac-toe-v0")
    env.reset(seed=0)
    for cell in cells:
        assert not env.over
        env.step(cell)
    return env


def test_the_ninth_move_can_win():  # muzero-general issue 37
    env = moves("012435786")
    assert env.over and env.outcome.winners == ["player_0"] and not env.outcome.draw
    assert env.returns == {"player_0": 1.0, "player_1": -1.0}


def test_a_full_board_without_a_row_is_a_draw():  # muzero-general issue 37
    env = moves("012435768")
    assert env.outcome.draw and env.outcome.winners == []
    assert env.returns == {"player_0": 0.0, "player_1": 0.0}


@pytest.mark.parametrize("row", ["012", "345", "678", "036", "147", "258", "048", "246"])
@pytest.mark.parametrize("winner", ["player_0", "player_1"])
def test_every_row_wins_for_both(row, winner):
    rest = [cell for cell in "012345678" if cell not in row]
    if winner == "player_0":
        env = moves([row[0], rest[0], row[1], rest[1], row[2]])
    else:
        # X's three cells make no row themselves
        for spare in itertools.permutations(rest, 3):
            if not any(set(spare) == set(line) for line in ("012", "345", "678", "036", "147", "258", "048", "246")):
                break
        env = moves([spare[0], row[0], spare[1], row[1], spare[2], row[2]])
    assert env.outcome.winners == [winner]


def test_optimal_tic_tac_toe_never_loses_and_draws_itself():
    env = llm_arena.make("tic-tac-toe-v0")
    scores = {"player_0": 0.0, "player_1": 0.0}
    for seed in range(40):
        for mine in scores:
            agents = dict.fromkeys(env.possible_agents, None) | {mine: "optimal"}
            result = play(env, agents, seed)[mine]
            assert result >= 0
            scores[mine] += result
        assert play(env, dict.fromkeys(env.possible_agents, "optimal"), seed) == {"player_0": 0.0, "player_1": 0.0}
    assert scores["player_0"] > 30 and scores["player_1"] > 20


def test_optimal_kuhn_beats_random_play():
    env = llm_arena.make("kuhn-poker-v0")
    won = []
    for seed in range(400):
        for mine in env.possible_agents:
            won.append(play(env, dict.fromkeys(env.possible_agents, None) | {mine: "optimal"}, seed)[mine])
    half_width = 1.96 * np.std(won) / np.sqrt(len(won))
    assert np.mean(won) - half_width > 0


def test_cards_are_dealt_evenly():
    env = llm_arena.make("kuhn-poker-v0")
    counts = {}
    for seed in range(1200):
        env.reset(seed=seed)
        deal = tuple(env.cards.values())
        counts[deal] = counts.get(deal, 0) + 1
    assert len(counts) == 6 and min(counts.values()) > 140


def test_kuhn_poker_plays_like_openspiel():
    env = llm_arena.make("kuhn-poker-v0")
    numbers = {"check": 0, "fold": 0, "bet": 1, "call": 1}
    cards = [lambda env, seat=seat: ["JQK".index(env.cards[seat])] for seat in env.possible_agents]
    for seed in range(300):
        plays_alike(env, "kuhn_poker", numbers, seed, cards)


def test_tic_tac_toe_plays_like_openspiel():
    env = llm_arena.make("tic-tac-toe-v0")
    for seed in range(300):
        plays_alike(env, "tic_tac_toe", {str(cell): cell for cell in range(9)}, seed)
