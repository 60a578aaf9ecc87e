import copy
import json
import pickle

import numpy as np
import pytest
from pettingzoo.utils.conversions import aec_to_parallel

import llm_arena
from llm_arena.env import ArenaEnv
from llm_arena.errors import EnvContractError, UnknownName, UsageError
from llm_arena.parsing import read_choice
from llm_arena.types import Ending, Move, Outcome, Reply


class Relay(ArenaEnv):
    """Six seats act in turn; scripts say who leaves, what is paid and when it ends."""

    id = "test-relay-v0"
    roles = {"runner": (1, 8)}
    max_turns = 40

    def __init__(self, *, runners=6, leaves=None, pays=None, end=None, **options):
        super().__init__(counts={"runner": runners}, **options)
        self.leaves, self.pays, self.end = leaves or {}, pays or {}, end

    def begin(self, rng):
        self.count = 0
        return "runner_0"

    def sample_reply(self, seat, rng):
        return "go"

    def resolve(self, seat, reply):
        self.count += 1
        leaves = self.leaves.get(str(self.count), [])
        rewards = self.pays.get(str(self.count), {})
        if self.count == self.end:
            return Move(rewards=rewards, outcome=Outcome(reason="over"))
        order = self.possible_agents
        at = order.index(seat)
        alive = [s for s in order[at + 1 :] + order[: at + 1] if s in self.agents and s not in leaves]
        alive = [s for s in alive if not self.terminations[s]]
        return Move(next=alive[0], leaves=leaves, rewards=rewards)


class Ballot(ArenaEnv):
    """Everybody names a number in one simultaneous phase; the highest wins."""

    id = "test-ballot-v0"
    roles = {"voter": (2, 6)}
    simultaneous = True
    zero_sum = False

    def __init__(self, *, voters=3, leak=False, early=False, **options):
        super().__init__(counts={"voter": voters}, **options)
        self.leak, self.early = leak, early

    def begin(self, rng):
        self.votes = {}
        self.tell(self.possible_agents, "Name a number from 0 to 9.")
        return reversed(self.possible_agents)

    def sample_reply(self, seat, rng):
        return str(rng.integers(10))

    def resolve(self, seat, reply):
        self.votes[seat] = int(read_choice(reply, [str(n) for n in range(10)]))
        if self.pending[-1] != seat:
            if self.leak:
                self.tell(self.pending[-1], f"{seat} said {reply}")
            return Move(rewards={self.pending[-1]: 1.0} if self.early else {}, action=self.votes[seat])
        best = max(self.votes.values())
        winners = [s for s, vote in self.votes.items() if vote == best]
        return Move(rewards=dict.fromkeys(winners, 1.0), outcome=Outcome(winners=winners, reason=f"{best} is highest"))

    def skip(self, seat):
        if self.pending[-1] != seat:
            return Move()
        return Move(outcome=Outcome(reason="not all voted"))


def actors(env, turns):
    """Steps `env`, cleanup steps left out, and returns who acted."""
    acted, cleanups = [], []
    env.reset(seed=0)
    while len(acted) < turns and env.agents:
        seat = env.agent_selection
        if env.terminations[seat] or env.truncations[seat]:
            cleanups.append(seat)
            with pytest.raises(ValueError, match="only valid action is None"):
                env.step("go")
            env.step(None)
        else:
            acted.append(int(seat[-1]))
            env.step("go")
    return acted, cleanups


def test_nobody_is_skipped_when_a_seat_leaves_in_its_second_turn():  # PettingZoo issues 713, 652
    acted, cleanups = actors(Relay(leaves={"9": ["runner_2"]}), 17)
    assert acted == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 5]
    assert cleanups == ["runner_2"]


def test_nobody_is_stuck_when_two_seats_leave_at_once():  # PettingZoo issues 713, 652
    acted, cleanups = actors(Relay(leaves={"6": ["runner_0", "runner_1"]}), 11)
    assert acted == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5, 2]
    assert cleanups == ["runner_0", "runner_1"]


def test_the_next_seat_may_be_the_one_that_just_left_others():
    acted, cleanups = actors(Relay(runners=3, leaves={"1": ["runner_1", "runner_2"]}), 4)
    assert acted == [0, 0, 0, 0]
    assert cleanups == ["runner_1", "runner_2"]


def test_each_reward_is_handed_over_once_to_its_own_seat():  # PettingZoo issues 355, 1260
    pays = {
        "2": {"runner_0": 0.25},
        "3": {"runner_0": 0.5, "runner_1": -0.5},
        "6": {"runner_0": -1.0, "runner_1": 0.0, "runner_2": 1.0},
    }
    env = Relay(runners=3, pays=pays, end=6)
    env.reset(seed=0)
    handed = []
    seen = dict.fromkeys(env.possible_agents, 0.0)
    for seat in env.agent_iter():
        _, reward, terminated, _, _ = env.last()
        handed.append((seat, reward))
        seen[seat] += reward
        env.step(None if terminated else "go")
    assert handed[3] == ("runner_0", 0.75)
    assert handed[4] == ("runner_1", -0.5)
    assert handed[6:] == [("runner_0", -1.0), ("runner_1", 0.0), ("runner_2", 1.0)]
    assert seen == env.returns == {"runner_0": -0.25, "runner_1": -0.5, "runner_2": 1.0}


def test_a_phase_shows_nobody_anothers_reply_and_steps_in_seat_order():
    env = Ballot()
    env.reset(seed=0)
    assert env.pending == ["voter_0", "voter_1", "voter_2"]
    before = env.observe("voter_2")
    env.step("3")
    env.step("7")
    assert env.observe("voter_2") == before
    assert env.pending == ["voter_2"]
    env.step("7")
    assert env.returns == {"voter_0": 0.0, "voter_1": 1.0, "voter_2": 1.0}
    assert env.outcome.winners == ["voter_1", "voter_2"]


def test_the_parallel_view_pays_the_same():
    parallel = aec_to_parallel(Ballot())
    parallel.reset(seed=0)
    _, rewards, terminated, _, _ = parallel.step({"voter_0": "1", "voter_1": "9", "voter_2": "4"})
    assert rewards == {"voter_0": 0.0, "voter_1": 1.0, "voter_2": 0.0}
    assert all(terminated.values())


def test_telling_a_seat_that_has_not_answered_is_a_broken_contract():
    env = Ballot(leak=True)
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="before that seat has answered"):
        env.step("3")


def test_paying_others_inside_a_phase_is_a_broken_contract():
    env = Ballot(early=True)
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="before the phase is over"):
        env.step("3")


def test_a_seat_of_a_phase_may_retry_and_the_others_do_not_notice():
    env = Ballot(retries=1, illegal="skip")
    env.reset(seed=0)
    before = env.observe("voter_1")
    env.step("eleven")
    assert (env.agent_selection, env.attempt("voter_0")) == ("voter_0", 1)
    assert env.observe("voter_0")["messages"][-1]["content"].startswith("Your reply was unparsable.")
    assert env.observe("voter_1") == before
    env.step("5")
    assert env.last_step.attempt == 1
    assert env.agent_selection == "voter_1"


def test_the_turn_limit_truncates():
    env = Relay(runners=2, max_turns=3)
    env.reset(seed=0)
    for _ in range(3):
        env.step("go")
    assert env.ending is Ending.TRUNCATED and env.outcome is None and all(env.truncations.values())


def test_a_replaced_view_begins_a_new_epoch():
    env = Relay(runners=1)
    env.reset(seed=0)
    env.tell("runner_0", "one")
    env.replace_view("runner_0", [{"role": "user", "content": "summary"}])
    assert env.observe("runner_0") == {"messages": [{"role": "user", "content": "summary"}]}
    assert env.view_epoch("runner_0") == 1


def test_seed_seven_is_seed_seven_whatever_happens_in_between():  # OpenEnv issue 1102
    env, other = llm_arena.make("kuhn-poker-v0"), llm_arena.make("kuhn-poker-v0")
    deals = []
    for _ in range(6):
        env.reset(seed=7)
        deals.append(dict(env.cards))
        other.reset(seed=8)
        env.reset()
        np.random.random(100)
    assert all(deal == deals[0] for deal in deals)
    several = set()
    for seed in range(1, 21):
        env.reset(seed=seed)
        several.add(tuple(env.cards.values()))
    assert len(several) > 1
    seeds = set()
    for _ in range(5):
        env.reset()
        seeds.add(env.episode_seed)
    assert len(seeds) == 5


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "7", True])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(UsageError, match="expected an integer"):
        llm_arena.make("kuhn-poker-v0").reset(seed=seed)


def test_a_numpy_seed_is_a_seed():
    env = llm_arena.make("kuhn-poker-v0")
    env.reset(seed=np.int64(7))
    assert env.episode_seed == 7


def test_pickle_deepcopy_and_json_keep_the_state():
    env = llm_arena.make("tic-tac-toe-v0")
    env.reset(seed=3)
    for move in "014":
        env.step(move)
    for twin in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env), env.clone()):
        assert twin.board == env.board and twin.save_state() == env.save_state()
    json.dumps(env.save_state())
    unused = pickle.loads(pickle.dumps(llm_arena.make("tic-tac-toe-v0")))
    assert unused.episode_seed is None


def test_a_state_of_another_spec_is_refused():
    env = llm_arena.make("tic-tac-toe-v0")
    env.reset(seed=3)
    with pytest.raises(UsageError, match="was saved by"):
        llm_arena.make("tic-tac-toe-v0", retries=1).load_state(env.save_state())


def test_steps_at_the_wrong_time_are_explained():
    env = llm_arena.make("tic-tac-toe-v0")
    with pytest.raises(UsageError, match=r"call reset\(\)"):
        env.step("0")
    with pytest.raises(UsageError, match=r"call reset\(\)"):
        env.observe("player_0")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="action is text"):
        env.step(None)
    with pytest.raises(UsageError, match="action is text"):
        env.step(4)
    env.step("nonsense")
    env.step(None)
    env.step(None)
    with pytest.raises(UsageError, match="episode is over"):
        env.step(None)


@pytest.mark.parametrize(
    "options",
    [
        {"illegal": "shrug"},
        {"illegal": "skip"},
        {"retries": -1},
        {"max_turns": 0},
        {"penalty": float("nan")},
        {"turn_seconds": 0},
        {"overflow": "loss"},
        {"render_mode": "rgb_array"},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(UsageError, match="kuhn-poker-v0"):
        llm_arena.make("kuhn-poker-v0", **options)


def test_too_many_or_unknown_seats_are_refused():
    with pytest.raises(UsageError, match="expected 1 to 8"):
        Relay(runners=9)
    with pytest.raises(UnknownName, match="no role"):
        ArenaEnv.__init__(Ballot.__new__(Ballot), counts={"votre": 3})


def test_roles_without_seats_are_not_counted():
    assert llm_arena.make("research-v0", searchers=0).role_counts == {"lead": 1}
    assert llm_arena.make("debate-v0").role_counts == {"pro": 1, "con": 1}


def test_a_class_without_an_id_has_metadata_and_its_games_have_names():
    class Base(ArenaEnv):
        simultaneous = True

    class Named(Base):
        id = "test-named-v0"
        roles = {"player": 2}

    class Variant(Named):
        simultaneous = False

    modes = ["ansi", "human"]
    assert Base.metadata == {"render_modes": modes, "is_parallelizable": True}
    assert Named.metadata == {"name": "test_named_v0", "render_modes": modes, "is_parallelizable": True}
    assert Variant.metadata == {"name": "test_named_v0", "render_modes": modes, "is_parallelizable": False}


def test_a_game_that_names_an_unknown_seat_is_told():
    class Wrong(Relay):
        id = "test-wrong-v0"

        def resolve(self, seat, reply):
            return Move(next="runner_9")

    env = Wrong()
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="no seat 'runner_9'"):
        env.step("go")


@pytest.mark.parametrize(
    "move", [Move(), Move(next=["runner_1", "runner_1"]), Move(rewards={"runner_0": float("nan")})]
)
def test_moves_that_make_no_sense_are_told(move):
    class Odd(Relay):
        id = "test-odd-v0"

        def resolve(self, seat, reply):
            return move

    env = Odd()
    env.reset(seed=0)
    with pytest.raises(EnvContractError):
        env.step("go")


def test_lone_surrogates_become_replacement_characters():
    env = Relay(runners=1)
    env.reset(seed=0)
    env.step("a\ud800b")
    assert env.last_step.reply == "a\ufffdb"
    assert env.observe("runner_0")["messages"][-1]["content"] == "a\ufffdb"


def test_reply_survives_pickling():
    reply = pickle.loads(pickle.dumps(Reply("bet", "length")))
    assert (str(reply), reply.finish) == ("bet", "length")


def test_a_third_partys_first_game_works(capsys):
    env = Ballot(render_mode="human")
    env.reset(seed=0)
    for vote in "123":
        env.step(vote)
    env.render()
    assert "3 is highest" in capsys.readouterr().out
    llm_arena.check_env(Ballot(voters=4, illegal="skip"))


def test_replacing_a_view_in_a_phase_is_a_broken_contract():
    class Whisper(Ballot):
        id = "test-whisper-v0"

        def resolve(self, seat, reply):
            self.replace_view(self.pending[-1], [{"role": "user", "content": str(reply)}])
            return super().resolve(seat, reply)

    env = Whisper()
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match="replace_view"):
        env.step("3")


def test_the_next_seat_after_the_last_is_the_first():
    env = Relay(runners=4)
    env.reset(seed=0)
    assert env.next_seat("runner_3") == "runner_0"


def test_a_seat_leaves_once():
    env = Relay(runners=3, leaves={"1": ["runner_2"], "2": ["runner_2"]})
    env.reset(seed=0)
    env.step("go")
    env.step(None)
    with pytest.raises(EnvContractError, match="'runner_2' leaves, but it is not in the game"):
        env.step("go")


def test_no_text_is_the_empty_reply():
    assert Reply(None) == ""
