"""The door to OpenSpiel: payoffs and refusals, luck from the episode, what a seat sees, the table in docs/doors.md."""

import importlib.metadata
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyspiel
import pytest

import llm_arena
from llm_arena.adapters import label_actions
from llm_arena.adapters.openspiel import RULES, OpenSpielGame, draw_chance
from llm_arena.errors import EnvContractError, MissingExtra, NameNotFound, NamespaceNotFound, UsageError
from llm_arena.leaks import secrets_are_kept
from llm_arena.registry import env_class
from llm_arena.types import EnvSpec, Reply

# what is checked, with arguments that make it short: the checks take time with the square of the turns
TRIED = {
    "tic_tac_toe": {},
    "connect_four": {"max_turns": 16},
    "breakthrough": {"parameters": {"rows": 5, "columns": 4}, "max_turns": 12},
    "nim": {"parameters": {"pile_sizes": "1;2;3"}},
    "pig": {"max_turns": 12},
    "kuhn_poker": {},
    "leduc_poker": {},
    "liars_dice": {},
    "hanabi": {"max_turns": 8},
    "matrix_pd": {},
    "goofspiel": {"parameters": {"num_cards": 3, "imp_info": True}},
}


@pytest.mark.parametrize("game", TRIED)
def test_a_tried_game_passes_every_check(game):
    llm_arena.check_env(llm_arena.make(f"openspiel/{game}", **TRIED[game]))


def test_the_documents_table_lists_what_is_tried_here():
    text = (Path(__file__).resolve().parents[1] / "docs" / "doors.md").read_text()
    assert sorted(re.findall(r"^\| `openspiel/([^`]+)`", text, re.MULTILINE)) == sorted(TRIED)
    assert set(RULES) == set(TRIED)


def dealt(cards, players=2):
    """Returns a reset Kuhn poker env in which the players hold `cards`."""
    for seed in range(400):
        env = llm_arena.make("openspiel/kuhn_poker", parameters={"players": players})
        env.reset(seed=seed)
        if tuple(env.drawn) == cards:
            return env
    raise AssertionError(f"{cards} was never dealt")


@pytest.mark.parametrize(
    ("line", "winner", "chips"),
    [
        (["Pass", "Pass"], "player_1", 1),  # the higher card wins the antes
        (["Bet", "Pass"], "player_0", 1),  # a fold
        (["Bet", "Bet"], "player_1", 2),
        (["Pass", "Bet", "Pass"], "player_1", 1),
        (["Pass", "Bet", "Bet"], "player_1", 2),
    ],
)
def test_kuhn_poker_pays_as_worked_by_hand(line, winner, chips):
    env = dealt((0, 2))
    for action in line:
        env.step(action)
    loser = "player_0" if winner == "player_1" else "player_1"
    assert env.over and env.outcome.winners == [winner] and env.outcome.ranks == {winner: 1, loser: 2}
    assert env.returns == {winner: chips, loser: -chips}


def test_a_forfeit_costs_the_worst_legal_loss_and_goes_to_the_others():
    env = dealt((0, 2))
    env.step("I would rather not say")
    assert env.returns == {"player_0": -2.0, "player_1": 2.0} and env.outcome.winners == ["player_1"]
    env = dealt((0, 1, 2), players=3)
    env.step("")
    assert env.returns == {"player_0": -2.0, "player_1": 1.0, "player_2": 1.0}


def test_in_a_shared_game_a_forfeit_takes_back_what_was_reached():
    env = llm_arena.make("openspiel/hanabi", parameters={"colors": 2, "ranks": 2, "hand_size": 2})
    for seed in range(50):  # until somebody plays a card that fits
        env.reset(seed=seed)
        env.step("Play 0")
        if env.returns["player_0"] > 0:
            break
    assert env.returns == {"player_0": 1.0, "player_1": 1.0} and env.cooperative and not env.zero_sum
    env.step("")
    assert env.returns == {"player_0": 0.0, "player_1": 0.0} and env.outcome.winners == []


def test_rewards_of_each_move_are_paid_when_they_are_made():
    env = llm_arena.make("openspiel/cliff_walking", max_turns=30)
    env.reset(seed=0)
    env.step("RIGHT")
    assert env.returns["player_0"] == env.position.returns()[0] == -100.0  # straight off the cliff


def test_chance_has_openspiels_probabilities():
    deals = Counter()
    env = llm_arena.make("openspiel/kuhn_poker")
    for seed in range(600):
        env.reset(seed=seed)
        deals[tuple(env.drawn)] += 1
    assert len(deals) == 6 and all(70 <= count <= 135 for count in deals.values())  # 100 +- 3.5 deviations

    class Coin:  # three outcomes of which one has nearly all the weight
        def __init__(self):
            self.seen = []

        def is_chance_node(self):
            return len(self.seen) < 400

        def chance_outcomes(self):
            return [(7, 0.05), (8, 0.9), (9, 0.05)]

        def apply_action(self, outcome):
            self.seen.append(outcome)

    counts = Counter(draw_chance(Coin(), np.random.default_rng(0)))
    assert set(counts) == {7, 8, 9} and 330 <= counts[8] <= 385


def test_both_choose_at_the_same_time_and_neither_sees_the_other():
    env = llm_arena.make("openspiel/matrix_pd")
    views = []
    for first in ("Cooperate", "Defect"):
        env.reset(seed=0)
        assert env.pending == ["player_0", "player_1"]
        env.step(first)
        assert env.pending == ["player_1"] and not any(env.returns.values())
        views.append((env.observe("player_1"), env.infos["player_1"]))
    assert views[0] == views[1]
    env.step("Cooperate")
    assert env.returns == {"player_0": 10.0, "player_1": 0.0}


def test_a_seat_reads_its_own_card_only():
    told = {cards: dealt(cards).observe("player_0")["messages"] for cards in [(0, 1), (0, 2), (1, 2)]}
    assert told[0, 1] == told[0, 2] != told[1, 2]


@pytest.mark.parametrize("place", ["view", "facts"])
def test_a_planted_leak_is_found(place):
    class Leaky(OpenSpielGame):
        def sees(self, seat):
            return str(self.position) if place == "view" else super().sees(seat)

        def knows(self, seat):
            return self.position.is_terminal() or self.position.information_state_string(self.player(seat))

        def facts(self, seat):
            return str(self.position) if place == "facts" else super().facts(seat)

    for game in ("kuhn_poker", "leduc_poker"):
        with pytest.raises(EnvContractError, match="learns something"):
            secrets_are_kept(Leaky(game=game), 0)


def test_what_others_did_is_told_where_nothing_is_hidden():
    env = llm_arena.make("openspiel/tic_tac_toe")
    env.reset(seed=0)
    env.step("[x(1,1)]")
    said = env.observe("player_1")["messages"][-1]["content"]
    assert "player_0 x(1,1)" in said and "...\n.x.\n..." in said
    env.step("x(1,1)")
    assert str(env.last_step.cause) == "illegal"  # x is not player_1's mark


def test_an_action_that_is_gone_is_illegal_not_unreadable():
    env = llm_arena.make("openspiel/tic_tac_toe")
    env.reset(seed=0)
    for reply in ("x(1,1)", "o(0,0)", "x(1,1)"):
        env.step(reply)
    assert str(env.last_step.cause) == "illegal" and env.returns == {"player_0": -1.0, "player_1": 1.0}


def test_names_that_fold_together_are_told_apart_by_number():
    # a pawn and a bishop that can both take on c3
    game = pyspiel.load_game("chess")
    state = game.new_initial_state("4k3/8/8/8/1p1b4/2P5/8/7K b - - 0 1")
    legal = state.legal_actions()
    labels = label_actions({action: state.action_to_string(action) for action in legal})
    assert len(labels) == len(legal) and set(labels.values()) == set(legal)
    assert any(re.fullmatch(r"bxc3 #\d+", label) for label in labels)
    assert any(re.fullmatch(r"Bxc3 #\d+", label) for label in labels)


def test_odd_names_become_something_that_can_be_said():
    assert label_actions({4: "", 5: "x\ny", 6: "[P1]Bid: 2;"}) == {"action 4": 4, "x y": 5, "Bid: 2": 6}


def test_a_spec_makes_its_env_again_and_holds_the_version():
    env = llm_arena.make("openspiel/kuhn_poker", parameters={"players": 3}, retries=1)
    assert env.possible_agents == ["player_0", "player_1", "player_2"] and env.spec.id == "openspiel/kuhn_poker"
    assert env.spec.kwargs["version"] == importlib.metadata.version("open_spiel")
    again = llm_arena.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.spec == env.spec and again.max_turns == env.max_turns == env.rules.max_game_length()


def test_another_version_is_refused_and_can_be_overruled():
    spec = EnvSpec(id="openspiel/kuhn_poker", kwargs={"game": "kuhn_poker", "version": "0.9"})
    with pytest.raises(UsageError, match=r"recorded with open_spiel 0\.9, and .* is installed"):
        llm_arena.make(spec)
    assert llm_arena.make(spec, version=None).spec.kwargs["version"] != "0.9"


def test_the_game_stands_in_the_id():
    assert llm_arena.make(EnvSpec(id="openspiel/nim", kwargs={"game": "go"})).spec.kwargs["game"] == "nim"


@pytest.mark.parametrize(
    ("game", "parameters", "error", "words"),
    [
        ("kuhn_pokre", None, NameNotFound, 'Did you mean "kuhn_poker"'),
        ("mfg_garnet", None, UsageError, "mean field"),
        ("negotiation", None, UsageError, "could not be replayed"),
        ("dou_dizhu", None, UsageError, "different actions"),
        ("kuhn_poker", {"players": 99}, UsageError, "can't be set up"),
        ("kuhn_poker", {"players": 0}, UsageError, "can't be set up"),
        ("kuhn_poker", {"cards": 4}, UsageError, "can't be set up"),
        ("kuhn_poker", {"x" * 5000: 4}, UsageError, "can't be set up"),
        ("kuhn_poker", "abc", UsageError, "names with values"),
        ("kuhn_poker", 5, UsageError, "names with values"),
        ("kuhn_poker", {1: 2}, UsageError, "names with values"),
        # at these OpenSpiel would end the process
        ("hanabi", {"players": 99}, UsageError, "players=99; expected a whole number from 2 to 5"),
        ("hanabi", {"colors": 0}, UsageError, "colors=0; expected a whole number from 1 to 5"),
        ("hanabi", {"hand_size": 0}, UsageError, "hand_size=0"),
        ("hanabi", {"players": 5, "colors": 1}, UsageError, "more cards than the 10"),
    ],
)
def test_what_cant_be_played_says_why_in_one_line(game, parameters, error, words):
    with pytest.raises(error, match=words) as caught:
        llm_arena.make(f"openspiel/{game}", parameters=parameters)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_odd_options_are_told_and_tries_need_no_turns():
    with pytest.raises(UsageError, match="retries='1'"):
        llm_arena.make("openspiel/kuhn_poker", retries="1")
    env = llm_arena.make("openspiel/tic_tac_toe", retries=3)
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    assert env.max_turns == 9
    while not env.over:
        env.step(
            "?"
            if rng.random() < 0.5 and env.attempt(env.agent_selection) < 3
            else env.sample_reply(env.agent_selection, rng)
        )
    assert env.outcome is not None


@pytest.mark.parametrize(("ranks", "cards"), [(1, 3), (2, 4), (5, 10)])
def test_the_cards_of_hanabi_are_counted_as_openspiel_counts_them(ranks, cards):
    for hand in (cards // 2, cards // 2 + 1):
        parameters = {"colors": 1, "ranks": ranks, "hand_size": hand}
        if 2 * hand <= cards:
            llm_arena.make("openspiel/hanabi", parameters=parameters).reset(seed=0)
        else:
            with pytest.raises(UsageError, match="more cards"):
                llm_arena.make("openspiel/hanabi", parameters=parameters)


def test_a_missing_suite_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(MissingExtra, match=r'pip install "llm-arena\[openspiel\]"'):
        llm_arena.make("openspiel/kuhn_poker")
    monkeypatch.setattr(OpenSpielGame, "package", "no-such-package")
    with pytest.raises(MissingExtra, match="no-such-package"):
        llm_arena.make("openspiel/kuhn_poker")


def test_ids_of_doors_are_known_but_not_listed_and_nothing_is_imported():
    assert "openspiel/kuhn_poker" in llm_arena.registry and "openspiel/kuhn_poker" not in list(llm_arena.registry)
    assert llm_arena.spec("openspiel/nim").kwargs == {"game": "nim"}
    assert env_class("openspiel/nim") is env_class("openspiel/go")
    with pytest.raises(NamespaceNotFound, match='Did you mean "openspiel"'):
        llm_arena.make("openspeil/nim")
    code = (
        "import sys, llm_arena; print([m for m in ('pyspiel', 'textarena', 'llm_arena.adapters') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_mcts_beats_random_legal_from_both_seats():
    matches = 24
    for mine in (0, 1):
        seats = {f"player_{mine}": "openspiel/connect_four/mcts", f"player_{1 - mine}": "random-legal"}
        won = 0
        for seed in range(matches):
            trace = llm_arena.play("openspiel/connect_four", agents=seats, seed=seed)
            won += trace.outcome.winners == [f"player_{mine}"]
        # Wilson's interval, 95 %
        rate, z = won / matches, 1.96
        middle = (rate + z * z / (2 * matches)) / (1 + z * z / matches)
        half = z * np.sqrt(rate * (1 - rate) / matches + z * z / (4 * matches**2)) / (1 + z * z / matches)
        assert middle - half > 0.5, f"mcts as player_{mine} won {won} of {matches}"


def test_mcts_refuses_games_that_hide_something():
    env = llm_arena.make("openspiel/kuhn_poker")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="hides nothing"):
        env.baselines["mcts"](env.view("player_0"), np.random.default_rng(0))


def test_a_cut_reply_and_thoughts_are_read_as_everywhere():
    env = dealt((0, 2))
    env.step(Reply("<think>[Bet]?</think> [Pass]"))
    assert env.last_step.action == "Pass"
    env.step(Reply("I think that I would ACTION: Be", finish="length"))
    assert str(env.last_step.cause) == "length"
