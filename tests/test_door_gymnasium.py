"""One seat of a game as a `gymnasium.Env`: rewards, ends, opponents of every kind, seeds, both registries."""

import asyncio
import json
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import llm_arena
from llm_arena.adapters.single import SeatEnv
from llm_arena.agent import Agent
from llm_arena.env import ArenaEnv
from llm_arena.errors import ContextOverflow, UnknownName, UsageError
from llm_arena.runtime import Runtime
from llm_arena.spaces import ChatSpace, ReplySpace
from llm_arena.types import Action, Move, Outcome, Reply

GAMES = ["kuhn-poker-v0", "naming-v0", "tic-tac-toe-v0", "prisoners-dilemma-v0", "leduc-poker-v0"]


def kuhn(card, other, **arguments):
    """Player 0's seat with the cards that are asked for; and its first info."""
    env = llm_arena.make("kuhn-poker-v0", role="player", **arguments)
    for seed in range(200):
        _, info = env.reset(seed=seed)
        if env.game.cards == {"player_0": card, "player_1": other}:
            return env, info
    raise AssertionError("no such deal in 200")


def folds(view, rng):
    return view.legal_actions[-1]


def first(view, rng):
    return view.legal_actions[0]


@pytest.mark.parametrize("env_id", GAMES)
def test_gymnasiums_checker_passes_without_a_warning(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(f"llm_arena/{env_id}").unwrapped)
        check_env(gymnasium.make(f"llm_arena/{env_id}", render_mode="ansi").unwrapped)


def test_observations_and_actions_are_of_the_declared_spaces():
    env, info = kuhn("K", "J")
    observation, _ = env.reset(seed=0)
    assert env.observation_space == gymnasium.spaces.Dict({"messages": ChatSpace()})
    assert env.observation_space.contains(observation) and env.action_space == ReplySpace()
    assert info == {"role": "player", "attempt": 0, "legal_actions": ["check", "bet"]}
    assert observation["messages"][0]["role"] == "system"


def test_a_step_pays_what_came_in_since_the_last_one():
    # A bet that is folded to wins one chip; the fold is the opponent's move, and comes in with our own step.
    env, _ = kuhn("K", "J", opponents=folds)
    _, reward, terminated, truncated, info = env.step("bet")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["outcome"]["winners"] == ["player_0"] and info["ending"] == "terminated" and info["cause"] == "legal"
    with pytest.raises(UsageError, match="is over for player_0"):
        env.step("bet")


def test_the_seat_acts_again_where_the_game_lets_it():
    # check, bet, then a call: 2 chips with the better card.
    def bets(view, rng):
        return "bet" if "bet" in view.legal_actions else "call"

    env, _ = kuhn("K", "J", opponents=bets)
    _, reward, terminated, _, info = env.step("check")
    assert (reward, terminated) == (0.0, False) and info["legal_actions"] == ["call", "fold"]
    _, reward, terminated, _, info = env.step("call")
    assert (reward, terminated) == (2.0, True)
    assert env.trace.returns == {"player_0": 2.0, "player_1": -2.0}


def test_a_seat_that_acts_second_is_reset_to_its_own_turn():
    env = llm_arena.make("kuhn-poker-v0", role="player_1", opponents={"player_0": "kuhn-poker-v0/optimal"})
    observation, info = env.reset(seed=1)
    assert env.seat == "player_1" and "legal_actions" in info
    assert "player_0" in observation["messages"][-1]["content"]


def test_bad_replies_are_steps_of_their_own():
    env, _ = kuhn("K", "J", opponents=folds, retries=1)
    observation, reward, terminated, _, info = env.step("hm")
    assert (reward, terminated, info["attempt"], info["cause"]) == (0.0, False, 1, "unparsable")
    assert "Try again" in observation["messages"][-1]["content"]
    _, reward, terminated, _, info = env.step("hm")
    assert terminated and reward == -2.0 and info["outcome"]["winners"] == ["player_1"]


def test_a_turn_limit_truncates():
    env = llm_arena.make("tic-tac-toe-v0", role="player", opponents=first, max_turns=3)
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step("8")
    assert (terminated, truncated) == (False, False)
    _, reward, terminated, truncated, info = env.step(info["legal_actions"][-1])
    assert (terminated, truncated, reward) == (False, True, 0.0)
    assert info["ending"] == "truncated" and info["outcome"] is None


class Pays(ArenaEnv):
    """Three seats in turn, twice; rewards arrive during the turns of others."""

    id = "test-pays-v0"
    roles = {"player": 3}
    paid = [{}, {0: 0.25}, {0: 0.5, 1: -0.5}, {}, {}, {0: -1, 1: 0, 2: 1}]

    def begin(self, rng):
        return "player_0"

    def sample_reply(self, seat, rng):
        return "x"

    def resolve(self, seat, reply):
        rewards = {f"player_{k}": reward for k, reward in self.paid[self.turns - 1].items()}
        if self.turns == 6:
            return Move(rewards=rewards, outcome=Outcome(winners=["player_2"], reason="six turns"))
        return Move(rewards=rewards, next=self.next_seat(seat))


@pytest.mark.parametrize(("seat", "rewards"), [(0, [0.75, -1.0]), (1, [-0.5, 0.0]), (2, [0.0, 1.0])])
def test_rewards_from_the_turns_of_others_are_paid_once_and_the_last_ones_too(seat, rewards):
    # Farama-Foundation/PettingZoo issues #355 and #1260, thu-ml/tianshou issue #900
    env = SeatEnv(Pays(), f"player_{seat}")
    env.reset(seed=0)
    assert [env.step("x")[1] for _ in range(2)] == rewards
    assert env.trace.returns[f"player_{seat}"] == sum(rewards)


class Leaver(ArenaEnv):
    """Whoever says `leave` is out with a reward of 1; the game ends when all have."""

    id = "test-leaver-v0"
    roles = {"player": 2}

    def begin(self, rng):
        return "player_0"

    def legal_actions(self, seat):
        return ["stay", "leave"]

    def resolve(self, seat, reply):
        if reply == "stay":
            return Move(next=self.next_seat(seat))
        others = [other for other in self.agents if other != seat and self._alive(other)]
        if not others:
            return Move(rewards={seat: 1}, outcome=Outcome(winners=[seat], reason="the last one left"))
        return Move(rewards={seat: 1}, leaves=[seat], next=others)


def test_a_seat_that_leaves_is_done_while_the_others_play_on():
    stays = iter(["stay", "leave"])
    env = SeatEnv(Leaver(), "player_0", lambda view, rng: next(stays))
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("leave")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info["role"] == "player" and info["outcome"]["winners"] == ["player_1"]
    assert [turn.seat for turn in env.trace.turns] == ["player_0", "player_1", "player_1"]
    with pytest.raises(UsageError, match="is over"):
        env.step("leave")


def test_a_seat_that_left_is_terminated_even_if_the_others_are_truncated():
    env = SeatEnv(Leaver(max_turns=4), "player_0", lambda view, rng: "stay")
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("leave")
    assert (reward, terminated, truncated, info["ending"]) == (1.0, True, False, "truncated")


def test_a_game_that_ends_before_the_seats_turn_needs_one_step_for_its_end():
    class First(Pays):
        id = "test-first-v0"

        def resolve(self, seat, reply):
            return Move(rewards={"player_1": -1.0}, outcome=Outcome(winners=[seat], reason="at once"))

    env = SeatEnv(First(), "player_1")
    _, info = env.reset(seed=0)
    assert info["outcome"]["reason"] == "at once"
    _, reward, terminated, truncated, info = env.step("whatever")
    assert (reward, terminated, truncated) == (-1.0, True, False) and len(env.trace.turns) == 1
    with pytest.raises(UsageError, match="is over"):
        env.step("whatever")


def test_a_simultaneous_phase_pays_when_all_have_answered():
    env = llm_arena.make("naming-v0", role="namer", opponents="scripted", namers=3, topic="coffee shop")
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step("x")
    assert terminated and reward == env.trace.returns["namer_0"] < 0
    assert [turn.seat for turn in env.trace.turns] == ["namer_0", "namer_1", "namer_2"]


@pytest.mark.parametrize("seat", ["player_0", "player_1"])
def test_an_episode_is_the_one_that_play_plays(seat):
    # The same seed: the same deal and the same draws of the opponents, and a record that replays.
    env = llm_arena.make("leduc-poker-v0", role=seat)
    for seed in range(5):
        env.reset(seed=seed)
        whole = llm_arena.play("leduc-poker-v0", agents="random-legal", seed=seed)
        for turn in whole.turns:
            if turn.seat == seat:
                env.step(turn.text)
        llm_arena.verify(env.trace)
        assert [(t.seat, t.text, t.messages) for t in env.trace.turns] == [
            (t.seat, t.text, t.messages) for t in whole.turns
        ]
        assert env.trace.returns == whole.returns


# huggingface/OpenEnv issues #1078 and #1102: a wrapper that drops the seed, so that equal seeds gave different games
def test_seeds_reproduce_and_resets_without_one_go_on():
    def episodes(env):
        said = []
        for seed in (7, None, None):
            observation, info = env.reset(seed=seed)
            while "outcome" not in info:
                observation, *_, info = env.step(info["legal_actions"][0])
            said.append(observation)
        return said

    one, two = (llm_arena.make("leduc-poker-v0", role="player") for _ in range(2))
    played = episodes(one)
    assert played == episodes(two) == episodes(one)
    assert played[0] != played[1] or played[1] != played[2]


def test_opponents_may_differ_by_role_and_seat():
    env = llm_arena.make(
        "naming-v0",
        role="namer_1",
        namers=4,
        judge="seat",
        opponents={"judge": "rubric-judge", "namer": "scripted", "namer_3": first_name},
    )
    env.reset(seed=0)
    env.step("Bean There")
    agents = {seat: info.agent for seat, info in env.trace.seats.items()}
    assert agents == {
        "namer_0": "naming-v0/scripted",
        "namer_1": "gymnasium",
        "namer_2": "naming-v0/scripted",
        "namer_3": "first_name",
        "judge_0": "naming-v0/rubric-judge",
    }


def first_name(view, rng):
    return "The First Name"


class Slow:
    """An agent that needs an event loop, and edits what it is given."""

    name = "slow"
    policy = None

    def __init__(self, seconds=0.001):
        self.seconds = seconds
        self.threads = set()

    async def act(self, view, past):
        await asyncio.sleep(self.seconds)
        self.threads.add(threading.current_thread().name)
        view.messages.clear()
        return Action(reply=Reply(view.legal_actions[-1]))


def test_agents_that_wait_play_on_a_runtime_also_inside_a_running_loop():
    slow = Slow()
    assert isinstance(slow, Agent)
    env, _ = kuhn("K", "J", opponents=slow)

    async def in_a_notebook():
        return env.step("bet")

    assert asyncio.run(in_a_notebook())[1] == 1.0
    assert slow.threads == {"llm_arena-runtime"}
    llm_arena.verify(env.trace)  # the record holds what the agent was shown, not what it made of that
    env.close()
    env.close()


def test_the_clock_runs_for_opponents():
    env, _ = kuhn("K", "J", opponents=Slow(seconds=5), turn_seconds=0.05)
    _, reward, terminated, _, _ = env.step("bet")
    assert terminated and reward == 2.0 and env.trace.turns[-1].cause == "timeout"
    env.close()


def test_an_opponents_full_context_truncates():
    class Full:
        name, policy = "full", None

        async def act(self, view, past):
            raise ContextOverflow("full")

    env, _ = kuhn("K", "J", opponents=Full())
    _, reward, terminated, truncated, info = env.step("bet")
    assert (reward, terminated, truncated, info["ending"]) == (0.0, False, True, "context_overflow")
    env.close()


def test_scripts_need_no_thread_and_a_given_runtime_stays_open():
    before = set(threading.enumerate())
    envs = [llm_arena.make("kuhn-poker-v0", role="player", opponents="optimal") for _ in range(8)]
    assert not set(threading.enumerate()) - before
    with Runtime() as runtime:
        env = llm_arena.make("kuhn-poker-v0", role="player", opponents=Slow(), runtime=runtime)
        env.reset(seed=0)
        env.step("bet")
        env.close()
        assert not runtime.closed
    assert len(envs) == 8


def test_a_model_plays_the_other_seat(tiny_model):
    env = llm_arena.make("kuhn-poker-v0", role="player", opponents=str(tiny_model), illegal="random_legal")
    played = []
    for _ in range(2):
        env.reset(seed=3)
        env.step("bet")
        turn = env.trace.turns[-1]
        assert turn.seat == "player_1" and turn.completion_ids and len(turn.logprobs) == len(turn.completion_ids)
        played.append((turn.text, turn.completion_ids))
    assert played[0] == played[1]
    env.close()


@pytest.mark.parametrize("role", ["dealer", "player_2"])
def test_unknown_roles_are_told(role):
    with pytest.raises(UnknownName, match="It has: player, player_0, player_1"):
        llm_arena.make("kuhn-poker-v0", role=role)


def test_wrong_opponents_are_told():
    before = set(threading.enumerate())
    with pytest.raises(UnknownName, match='no agent or model "optimol"'):
        llm_arena.make("kuhn-poker-v0", role="player", opponents="optimol")
    with pytest.raises(UnknownName, match="no seat or role 'playr'"):
        llm_arena.make("kuhn-poker-v0", role="player", opponents={"playr": "optimal"})
    with pytest.raises(UsageError, match="the seat that you play"):
        llm_arena.make("kuhn-poker-v0", role="player", opponents={"player_0": "optimal"})
    with pytest.raises(UsageError, match="is no agent"):
        llm_arena.make("kuhn-poker-v0", role="player", opponents=5)
    assert not set(threading.enumerate()) - before


def test_wrong_calls_are_told():
    env = llm_arena.make("kuhn-poker-v0", role="player")
    with pytest.raises(UsageError, match=r"call reset\(\) before"):
        env.step("bet")
    with pytest.raises(UsageError, match="has no trace yet"):
        env.trace  # noqa: B018  # a property that raises
    env.reset(seed=0)
    with pytest.raises(UsageError, match="an action is text; got int"):
        env.step(0)


def test_gymnasium_makes_it_with_arguments_and_renders():
    env = gymnasium.make("llm_arena/kuhn-poker-v0", role="player_1", opponents="optimal", render_mode="ansi", retries=2)
    assert env.unwrapped.seat == "player_1" and env.unwrapped.game.retries == 2
    env.reset(seed=0)
    assert env.render().startswith("kuhn-poker-v0, seed 0")
    assert set(gymnasium.registry) >= {f"llm_arena/{env_id}" for env_id in llm_arena.registry}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_it_works_in_a_vector(mode):
    vector = gymnasium.make_vec(
        "llm_arena/kuhn-poker-v0",
        num_envs=3,
        vectorization_mode=mode,
        vector_kwargs={"shared_memory": False} if mode == "async" else {},
        role="player",
        opponents="optimal",
    )
    observations, infos = vector.reset(seed=0)
    assert len(observations["messages"]) == 3 and list(infos["role"]) == ["player"] * 3
    _, rewards, terminated, _, _ = vector.step(("fold",) * 3)  # nobody has bet, so this is illegal
    assert list(rewards) == [-2.0] * 3 and all(terminated)
    vector.close()


def test_registering_costs_nothing_at_import(tmp_path):
    program = (
        "import json, sys, gymnasium, llm_arena; "
        "print(json.dumps(['llm_arena/kuhn-poker-v0' in gymnasium.registry, sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    registered, modules = json.loads(done.stdout)
    assert registered and not [name for name in modules if name.startswith(("llm_arena.adapters", "torch"))]


def test_the_documents_code_runs(tiny_model):
    text = (Path(__file__).resolve().parents[1] / "docs" / "single_agent.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, "single_agent.md", "exec"), {"MODEL": str(tiny_model)})
