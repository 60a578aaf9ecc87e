from __future__ import annotations

import asyncio

import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.errors import UnknownName, UsageError
from llm_arena.roster import agent_kinds, make_agent, resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Reply


class Own:
    name, policy = "own", None

    async def act(self, view, past):
        return Action(reply=Reply("x"))


def test_the_shelf_is_found_without_importing_it():
    assert {"random-legal", "llm", "human"} <= set(agent_kinds())


def test_a_bare_word_is_an_agent_of_the_shelf():
    agent = make_agent("random-legal")
    assert (agent.name, agent.policy) == ("random-legal", None)
    assert make_agent(agent.name).name == agent.name


def test_an_object_is_taken_as_it_is_and_anything_else_refused():
    own = Own()
    assert make_agent(own) is own
    with pytest.raises(UsageError, match="is no agent"):
        make_agent(3)


def test_scripted_players_are_named_with_their_game_or_bare_within_it():
    assert make_agent("kuhn-poker-v0/optimal").name == "kuhn-poker-v0/optimal"
    assert make_agent("optimal", env_id="kuhn-poker-v0").name == "kuhn-poker-v0/optimal"
    trace = llm_arena.play("kuhn-poker-v0", {"player_0": "optimal", "player_1": "random-legal"}, seed=0)
    assert [seat.agent for seat in trace.seats.values()] == ["kuhn-poker-v0/optimal", "random-legal"]


def test_a_folder_or_a_model_is_a_language_model(tiny_model):
    with Runtime(engine=FakeEngine()) as runtime:
        agent = make_agent(str(tiny_model), runtime=runtime, max_new_tokens=5)
        assert agent.name == f"llm:{tiny_model}"
        assert make_agent("smollm2-135m", runtime=runtime).name == "llm:smollm2-135m"
        trace = llm_arena.play("kuhn-poker-v0", agent, seed=0, runtime=runtime)
    seat = trace.seats["player_0"]
    assert (seat.agent, seat.policy) == (f"llm:{tiny_model}", str(tiny_model))
    assert all(turn.prompt_ids and 1 <= len(turn.completion_ids) <= 5 for turn in trace.turns)


def test_a_model_without_a_runtime_is_an_error_that_says_what_to_do():
    with pytest.raises(UsageError, match=r"needs a Runtime.*runtime=Runtime\(\)"):
        make_agent("smollm2-135m")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("random-legla", 'Did you mean "random-legal"'),
        ("smollm2-153m", 'Did you mean "smollm2-135m"'),
        ("nobody-at-all", "llm:OWNER/NAME"),
        ("robot:x", "Agents:"),
        ("", "Agents:"),
    ],
)
def test_an_unknown_name_lists_agents_and_models(name, suggestion):
    with pytest.raises(UnknownName) as caught:
        make_agent(name)
    message = str(caught.value)
    assert suggestion in message
    assert "random-legal" in message and "smollm2-135m" in message
    assert "\n" not in message


def test_an_unknown_scripted_player_is_an_error_that_lists_those_of_the_game():
    with pytest.raises(UnknownName, match=r'no scripted player "optimla"; it has: .*Did you mean "optimal"'):
        make_agent("kuhn-poker-v0/optimla")
    with pytest.raises(UnknownName, match="kuhn-poker-v0/optimal"):
        make_agent("optimla", env_id="kuhn-poker-v0")


def test_an_argument_that_an_agent_does_not_take_is_an_error():
    with pytest.raises(UsageError, match="takes no argument"):
        make_agent("random-legal:x")


def test_settings_that_an_agent_does_not_take_are_errors(tiny_model):
    with pytest.raises(UsageError, match="no setting 'temperature'"):
        make_agent("random-legal", temperature=1.0)
    with Runtime(engine=FakeEngine()) as runtime, pytest.raises(UsageError, match='Did you mean "max_new_tokens"'):
        make_agent(str(tiny_model), runtime=runtime, max_new_token=3)


def test_settings_go_to_the_agents_that_take_them(tiny_model):
    with Runtime(engine=FakeEngine()) as runtime:
        env = llm_arena.make("kuhn-poker-v0")
        names = {"player_0": str(tiny_model), "player_1": "random-legal"}
        roster = resolve_roster(env, names, runtime=runtime, max_new_tokens=3)
        assert roster["player_1"].name == "random-legal"
        with pytest.raises(UsageError, match=r"no agent here .* has a setting 'speed'"):
            resolve_roster(env, names, runtime=runtime, speed=3)


def test_a_roster_is_given_for_all_by_role_or_by_seat():
    env = llm_arena.make("kuhn-poker-v0")
    own = Own()
    everybody = resolve_roster(env, "random-legal")
    assert list(everybody) == env.possible_agents
    assert everybody["player_0"] is everybody["player_1"]
    mixed = resolve_roster(env, {"player": "random-legal", "player_1": own})
    assert (mixed["player_0"].name, mixed["player_1"]) == ("random-legal", own)
    assert list(resolve_roster(env, {"player_1": own, "player_0": own})) == env.possible_agents


def test_unknown_seats_and_seats_without_an_agent_are_errors():
    env = llm_arena.make("kuhn-poker-v0")
    with pytest.raises(UnknownName, match=r"no seat or role 'playr_0'\. Did you mean \"player_0\"\?"):
        resolve_roster(env, {"playr_0": "random-legal"})
    with pytest.raises(UsageError, match="no agent for player_1"):
        resolve_roster(env, {"player_0": "random-legal"})
    with pytest.raises(UnknownName):
        llm_arena.play("kuhn-poker-v9")


def test_a_setting_of_models_says_that_a_model_is_missing():
    env = llm_arena.make("kuhn-poker-v0")
    with pytest.raises(UsageError, match="seat a model with --agents MODEL"):
        resolve_roster(env, "random-legal", temperature=1.0)
    with pytest.raises(UsageError, match=r"setting 'tempo'\.$"):
        resolve_roster(env, "random-legal", tempo=1.0)


def test_a_name_that_is_too_long_is_unknown():
    with pytest.raises(UnknownName, match="no agent or model"):
        make_agent("x" * 5000)


def test_a_scripted_player_sits_only_where_it_plays():
    with pytest.raises(UsageError, match="entropy.*plays guesser.*--agents guesser=entropy,answerer=table"):
        llm_arena.play("twenty-questions-v0", "entropy", seed=0)
    trace = llm_arena.play("twenty-questions-v0", {"guesser": "entropy", "answerer": "table"}, seed=0)
    assert [seat.agent for seat in trace.seats.values()] == ["twenty-questions-v0/entropy", "twenty-questions-v0/table"]


def test_a_scripted_player_that_returns_no_text_is_told():
    async def waits(view, rng):
        return "bet"

    env = llm_arena.make("kuhn-poker-v0")
    for player in (waits, lambda view, rng: None):
        env.baselines = {"odd": player}
        seats = resolve_roster(env, "odd")
        with pytest.raises(UsageError, match="odd answered (coroutine|NoneType); expected is a plain function"):
            asyncio.run(seats["player_0"].act(view_of(env), ()))


def view_of(env):
    env.reset(seed=0)
    return env.view("player_0")


def test_a_scripted_player_of_another_game_is_refused():
    with pytest.raises(UsageError, match="plays tic-tac-toe-v0 and can't read kuhn-poker-v0.*optimal"):
        llm_arena.play("kuhn-poker-v0", "tic-tac-toe-v0/optimal", seed=0)
