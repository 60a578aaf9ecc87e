"""The door to PettingZoo's classic games: names of moves, text of positions, refusals, the table in docs/doors.md."""

import importlib.metadata
import re
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pettingzoo
import pytest
from pettingzoo.env_registry.exceptions import FailedToImport

import llm_arena
from llm_arena.adapters.zoo import KINDS, ZooGame, _gtp
from llm_arena.checks import play_out
from llm_arena.errors import EnvContractError, MissingExtra, NameNotFound, UsageError
from llm_arena.leaks import secrets_are_kept
from llm_arena.types import EnvSpec

# what is checked, with arguments that make it short: the checks take time with the square of the turns
TRIED = {
    "tictactoe_v3": {},
    "connect_four_v3": {"max_turns": 12},
    "chess_v6": {"max_turns": 6},
    "go_v5": {"parameters": {"board_size": 5}, "max_turns": 8},
    "rps_v2": {"parameters": {"max_cycles": 3}},
    "leduc_holdem_v4": {},
    "texas_holdem_v4": {"max_turns": 12},
    "texas_holdem_no_limit_v6": {"parameters": {"num_players": 3}, "max_turns": 12},
    "hanabi_v5": {"max_turns": 8},
}


@pytest.mark.parametrize("game", TRIED)
def test_a_tried_game_passes_every_check(game):
    llm_arena.check_env(llm_arena.make(f"pettingzoo/{game}", **TRIED[game]))


def test_the_documents_table_lists_what_is_tried_here_and_all_of_pettingzoos_classics():
    text = (Path(__file__).resolve().parents[1] / "docs" / "doors.md").read_text()
    assert sorted(re.findall(r"^\| `pettingzoo/([^`]+)`", text, re.MULTILINE)) == sorted(TRIED) == sorted(KINDS)
    classics = [name for name in pettingzoo.aec_registry if name.startswith("classic/")]
    assert sorted(name.removeprefix("classic/").replace("-v", "_v") for name in classics) == sorted(KINDS)


def played(game, *replies, seed=0, **arguments):
    env = llm_arena.make(f"pettingzoo/{game}", **arguments)
    env.reset(seed=seed)
    for reply in replies:
        env.step(reply)
    return env


def test_three_in_a_row_wins():
    env = played("tictactoe_v3", "0", "3", "1", "4", "2")  # PettingZoo numbers cells by columns
    assert env.outcome.winners == ["player_0"] and env.returns == {"player_0": 1.0, "player_1": -1.0}


def test_a_taken_cell_is_illegal_and_costs_the_game():
    env = played("tictactoe_v3", "4", "4")
    assert str(env.last_step.cause) == "illegal" and env.returns == {"player_0": 1.0, "player_1": -1.0}


def test_the_board_reads_as_it_stands():
    env = played("tictactoe_v3", "1", "8")
    assert "You are X.\n0 3 6\nX 4 7\n2 5 O" in env.observe("player_0")["messages"][-1]["content"]
    env = played("connect_four_v3", "3", "3", "0")
    board = env.observe("player_1")["messages"][-1]["content"].split("Legal")[0].splitlines()
    assert board[0] == "You are O." and board[-2:] == [". . . O . . .", "X . . X . . ."]


def test_four_in_a_column_win():
    env = played("connect_four_v3", "0", "1", "0", "1", "0", "1", "0")
    assert env.outcome.winners == ["player_0"]


def test_fools_mate():
    env = played("chess_v6", "f2f3", "e7e5", "g2g4", "d8h4")
    assert env.outcome.winners == ["player_1"] and env.returns == {"player_0": -1.0, "player_1": 1.0}


def test_chess_moves_are_those_of_python_chess_for_both_colours():
    env = llm_arena.make("pettingzoo/chess_v6", max_turns=60)
    env.reset(seed=0)
    rng = np.random.default_rng(5)
    while not env.over:
        assert sorted(env.legal_actions(env.agent_selection)) == sorted(m.uci() for m in env.raw.board.legal_moves)
        env.step(env.sample_reply(env.agent_selection, rng))
    assert env.turns > 20


def test_go_points_are_named_as_pettingzoo_names_them():
    env = played("go_v5", parameters={"board_size": 5})
    coords = pytest.importorskip("pettingzoo.classic.go.coords")
    with env.luck:
        env.shape()
        for flat in range(26):
            assert _gtp(5, None if flat == 25 else divmod(flat, 5)) == coords.to_gtp(coords.from_flat(flat))


def test_two_boards_of_go_do_not_disturb_each_other():
    alone = played("go_v5", "E5", "A1", "pass", "C3", parameters={"board_size": 5})
    small = played("go_v5", "E5", parameters={"board_size": 5})
    large = played("go_v5", "J9", parameters={"board_size": 9})
    for reply, elsewhere in (("A1", "H8"), ("pass", "A9"), ("C3", "pass")):
        small.step(reply)
        large.step(elsewhere)
    assert small.transcript() == alone.transcript()
    large.step("pass")
    assert large.over and "E5" not in large.observe("player_0")["messages"][-1]["content"].split("Last move")[-1][:9]


def test_two_passes_end_go_and_komi_decides_an_empty_board():
    env = played("go_v5", "pass", "pass", parameters={"board_size": 5})
    assert env.outcome.winners == ["player_1"]


def test_rounds_of_rock_paper_scissors_are_paid_and_hidden_until_both_chose():
    env = played("rps_v2", "rock", parameters={"max_cycles": 2})
    before = env.observe("player_1")
    assert played("rps_v2", "paper", parameters={"max_cycles": 2}).observe("player_1") == before
    env.step("scissors")
    assert env.returns == {"player_0": 1.0, "player_1": -1.0}
    assert "you rock, they scissors" in env.observe("player_0")["messages"][-1]["content"]
    env.step("rock")
    assert "you scissors, they rock" in env.observe("player_1")["messages"][-1]["content"]
    env.step("rock")
    assert env.over and env.outcome.winners == ["player_0"] and env.returns["player_0"] == 1.0


def test_a_forfeit_costs_as_much_as_losing_every_round():
    env = played("rps_v2", "rock", "scissors", "", parameters={"max_cycles": 4})
    assert env.returns == {"player_0": -4.0, "player_1": 4.0}


@pytest.mark.parametrize("game", ["leduc_holdem_v4", "texas_holdem_v4", "texas_holdem_no_limit_v6"])
def test_poker_pays_zero_sum_and_a_forfeit_costs_more_than_any_play(game):
    env = llm_arena.make(f"pettingzoo/{game}")
    for seed in range(60):
        env.reset(seed=seed)
        rng = np.random.default_rng(seed)

        def bold(env, seat, rng=rng):
            raises = [move for move in env.legal_actions(seat) if "raise" in move or "all in" in move]
            return raises[-1] if raises and rng.random() < 0.9 else env.sample_reply(seat, rng)

        play_out(env, rng, bold)
        assert abs(sum(env.returns.values())) < 1e-9
        assert min(env.returns.values()) >= -env.forfeit_cost


def test_hands_are_read_as_rlcard_holds_them():
    env = played("texas_holdem_v4", seed=3)
    hands = [[card.get_index() for card in player.hand] for player in env.raw.env.game.players]
    for number, seat in enumerate(env.possible_agents):
        text = env.kind.see(env.raw, env.agent(seat))
        assert f"Your hand: {' '.join(hands[number])}." in text
        assert not any(card in text for card in hands[1 - number])


@pytest.mark.parametrize("place", ["view", "facts"])
@pytest.mark.parametrize("game", ["leduc_holdem_v4", "texas_holdem_v4", "hanabi_v5"])
def test_a_planted_leak_is_found(game, place):
    class Leaky(ZooGame):
        def ask(self):
            seat = super().ask()
            if place == "view":
                self.tell(seat, str(self.dealt))
            return seat

        def facts(self, seat):
            return self.dealt if place == "facts" else None

    with pytest.raises(EnvContractError, match="learns something"):
        secrets_are_kept(Leaky(game=game, max_turns=4), 0)


def test_hanabi_is_shared_and_pays_its_score():
    env = llm_arena.make("pettingzoo/hanabi_v5", parameters={"colors": 2, "ranks": 2, "hand_size": 2})
    for seed in range(20):
        env.reset(seed=seed)
        play_out(env, np.random.default_rng(seed))
        score = env.raw.hanabi_env.game_state.returns()[0]
        assert env.returns == {"player_0": score, "player_1": score} and env.outcome.winners == []


def test_a_spec_makes_its_env_again_and_holds_both_versions():
    env = llm_arena.make("pettingzoo/leduc_holdem_v4", retries=2)
    wanted = f"{importlib.metadata.version('pettingzoo')} (rlcard {importlib.metadata.version('rlcard')})"
    assert env.spec.kwargs["version"] == wanted
    assert llm_arena.make(EnvSpec.from_json(env.spec.to_json())).spec == env.spec
    with pytest.raises(UsageError, match="recorded with pettingzoo 1.20"):
        llm_arena.make(env.spec, version="1.20")


class Buttons(pettingzoo.AECEnv):
    """Two agents press one of `n` buttons in turn; without a mask, and with an observation of one number."""

    metadata = {"name": "buttons_v0", "render_modes": []}

    def __init__(self, space=None, render_mode=None):
        self.space = space or gymnasium.spaces.Discrete(3)
        self.possible_agents = ["left", "right"]
        self.render_mode = render_mode

    def observation_space(self, agent):
        return gymnasium.spaces.Discrete(9)

    def action_space(self, agent):
        return self.space

    def observe(self, agent):
        return np.array([self.pressed])

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.pressed = list(self.possible_agents), "left", 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        if self.terminations[self.agent_selection]:
            return self._was_dead_step(action)
        self.pressed += action
        self.rewards = {"left": 0.0, "right": 0.0, self.agent_selection: float(action)}
        if self.agent_selection == "right":
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = "right" if self.agent_selection == "left" else "left"
        return None


@pytest.fixture
def registered():
    yield pettingzoo.register("aec", "mine/buttons-v0", Buttons)
    del pettingzoo.aec_registry["mine/buttons-v0"]


def test_any_registered_game_of_numbered_actions_is_played_by_number(registered):
    env = played("mine/buttons-v0", "action 2")
    assert "Observation: [2]" in env.observe("player_1")["messages"][-1]["content"]
    env.step("action 1")
    assert env.returns == {"player_0": 2.0, "player_1": 1.0} and env.outcome.winners == ["player_0"]


def test_actions_without_names_are_refused(registered):
    with pytest.raises(UsageError, match="Discrete actions only"):
        llm_arena.make("pettingzoo/mine/buttons-v0", parameters={"space": gymnasium.spaces.Box(0, 1)})


@pytest.mark.parametrize(
    ("game", "parameters", "words"),
    [
        ("rps_v2", {"max_cycles": "x"}, "max_cycles='x'; expected something like 15"),
        ("rps_v2", {"max_cycles": 1.5}, "max_cycles=1.5"),
        ("rps_v2", {"max_cycles": 0}, "nothing to play"),
        ("go_v5", {"board_size": 30}, "can't be set up"),
        ("go_v5", {"board_size": 0}, "nothing to play"),
        ("go_v5", {"komi": "x"}, "komi='x'"),  # which would raise at the end of a game
        ("texas_holdem_v4", {"num_players": 40}, "can't be set up"),
        ("hanabi_v5", {"players": 99}, "from 2 to 5"),  # at which OpenSpiel would end the process
        ("chess_v6", "abc", "names with values"),
    ],
)
def test_odd_parameters_are_told_in_one_line(game, parameters, words):
    with pytest.raises(UsageError, match=words) as caught:
        llm_arena.make(f"pettingzoo/{game}", parameters=parameters)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 700


def test_parameters_of_the_right_kind_are_taken():
    env = llm_arena.make("pettingzoo/go_v5", parameters={"board_size": 5, "komi": 6})
    env.reset(seed=0)
    play_out(env, np.random.default_rng(0))
    assert env.over and env.max_turns == 100


def test_what_cant_be_played_says_why(monkeypatch):
    with pytest.raises(NameNotFound, match='Did you mean "connect_four_v3"'):
        llm_arena.make("pettingzoo/connect_for_v3")
    with pytest.raises(UsageError, match="can't be set up"):
        llm_arena.make("pettingzoo/rps_v2", parameters={"num_actions": 4})
    for name in [name for name in sys.modules if "hanabi" in name or "shimmy" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(MissingExtra, match=r'"shimmy".*llm-arena\[classic\]'):
        llm_arena.make("pettingzoo/hanabi_v5")


def test_without_the_extra_the_remedy_is_told(monkeypatch):
    def make(*arguments, **kwargs):
        try:
            raise ModuleNotFoundError("No module named 'pygame'", name="pygame")
        except ModuleNotFoundError as error:
            raise FailedToImport("Failed to import entry point") from error

    monkeypatch.setattr(pettingzoo, "make", make)  # its registry keeps what it has imported once
    with pytest.raises(MissingExtra, match=r'needs the package "pygame".*llm-arena\[classic\]'):
        llm_arena.make("pettingzoo/connect_four_v3")
