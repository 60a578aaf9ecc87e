"""A view that outgrows its budget is replaced by the seat's own summary, in any game."""

import pytest

import llm_arena
from llm_arena.compaction import REQUEST, outgrown
from llm_arena.env import ArenaEnv
from llm_arena.errors import UsageError
from llm_arena.types import Cause, Move, Outcome, Reply


class Chat(ArenaEnv):
    """Two seats say six things in turn; each hears the other."""

    id = "test-chat-v0"
    roles = {"talker": 2}

    def begin(self, rng):
        self.said = 0
        self.tell(self.possible_agents, "Talk about the weather.")
        return "talker_0"

    def sample_reply(self, seat, rng):
        return f"It rains {int(rng.integers(1000))}."

    def resolve(self, seat, reply):
        self.said += 1
        if self.said == 12:
            return Move(outcome=Outcome(reason="all is said"))
        other = self.next_seat(seat)
        self.tell(other, f"The other said: {reply}")
        return Move(next=other)


def contents(env, seat):
    return [message["content"] for message in env.observe(seat)["messages"]]


def talk(env, *replies):
    for reply in replies:
        env.step(reply)


def test_a_large_view_is_replaced_by_its_opening_the_summary_and_what_came_since():
    env = Chat(budget=150)
    env.reset(seed=0)
    talk(env, "a" * 30, "b" * 30)
    assert env.agent_selection == "talker_0" and not env.compacting  # 23 + 30 + 46 characters so far, then 76 more
    talk(env, "c" * 30, "d" * 30)
    assert contents(env, "talker_0")[-1] == REQUEST
    view = env.view("talker_0")
    assert view.compacting and view.legal_actions is None and view.grammar is None
    assert env.infos["talker_0"]["compacting"] is True
    turns = env.turns
    env.step("We spoke of rain.")
    assert env.turns == turns and env.agent_selection == "talker_0" and env.view_epoch("talker_0") == 1
    assert contents(env, "talker_0") == [
        "Talk about the weather.",
        "Your summary of what came before:\nWe spoke of rain.",
        "The other said: " + "d" * 30,
    ]
    assert env.last_step.cause is Cause.LEGAL and env.stats["talker"]["compactions"] == 1
    assert not env.view("talker_0").compacting and env.view_epoch("talker_1") == 0


def test_without_a_budget_nothing_is_replaced():
    env = Chat()
    env.reset(seed=0)
    while not env.over:
        env.step("x" * 1000)
    assert env.view_epoch("talker_0") == 0 and env.turns == 12


def test_a_budget_smaller_than_the_task_asks_once_a_turn_and_the_game_ends():
    env = Chat(budget=1)
    env.reset(seed=0)
    steps = 0
    while not env.over:
        env.step("x")
        steps += 1
    assert env.turns == 12 and steps == 12 + env.stats["talker"]["compactions"] == 12 + 10


@pytest.mark.parametrize("summary", ["", "<think>never closed", Reply("", "length"), Reply("late", "timeout")])
def test_a_bad_summary_is_tried_again_then_forfeits(summary):
    env = Chat(budget=1, retries=1)
    env.reset(seed=0)
    talk(env, "a", "b")
    assert "talker_0" in env.compacting
    env.step(summary)
    assert env.attempt("talker_0") == 1 and "talker_0" in env.compacting and env.pending == ["talker_0"]
    env.step(summary)
    assert env.over and env.outcome.reason.startswith("forfeit: talker_0")


@pytest.mark.parametrize("rule", ["random_legal", "penalty"])
def test_under_other_rules_a_bad_summary_keeps_nothing(rule):
    env = Chat(budget=1, illegal=rule)
    env.reset(seed=0)
    talk(env, "a", "b", "")
    assert contents(env, "talker_0")[1].endswith("(You wrote no summary.)") and env.returns["talker_0"] == 0
    env.step("I go on.")
    assert env.agent_selection == "talker_1" and not env.over


def test_a_long_summary_is_cut_to_half_of_the_budget():
    env = Chat(budget=1000)
    env.reset(seed=0)
    talk(env, "a" * 900, "b" * 900, "s" * 100_000)
    [_, summary, _] = contents(env, "talker_0")
    assert summary == "Your summary of what came before:\n" + "s" * 500 + " ... (cut)"


def test_thoughts_are_no_summary():
    env = Chat(budget=1)
    env.reset(seed=0)
    talk(env, "a", "b", "<think>hidden plan</think> It rains.")
    assert contents(env, "talker_0")[1] == "Your summary of what came before:\nIt rains."


def test_tokens_are_those_that_the_agent_counted_and_an_estimate_of_what_came_since():
    view = [{"role": "user", "content": "x" * 30}, {"role": "assistant", "content": "y" * 30}]
    told = [*view, {"role": "user", "content": "z" * 30}]
    assert not outgrown(told, 110, "tokens", (100, 2)) and outgrown(told, 109, "tokens", (100, 2))
    assert not outgrown(told, 30, "tokens", None) and outgrown(told, 29, "tokens", None)
    env = Chat(budget=50, budget_unit="tokens")
    env.reset(seed=0)
    talk(env, Reply("a", "stop", 60), "b")
    assert env.compacting == {"talker_0": 3} and env.save_state()["history"][0] == ["a", "stop", 60]
    copy = env.clone()
    assert copy.compacting == env.compacting


def test_a_tool_result_that_is_kept_is_no_tool_message_any_more():
    class Tools(Chat):
        def resolve(self, seat, reply):
            self.tell(seat, "3 hits", role="tool")
            return Move(next=seat) if self.turns < 4 else Move(outcome=Outcome(reason="done"))

    env = Tools(budget=1)
    env.reset(seed=0)
    talk(env, "<tool_call>", "summary")
    assert env.observe("talker_0")["messages"][-1] == {
        "role": "user",
        "content": "Result of your call:\n> 3 hits",
    }


def test_a_compacted_episode_is_one_trace_that_replays():
    trace = llm_arena.play(
        llm_arena.make("thinker-verifier-v0", budget=300, max_turns=20), agents="random-legal", seed=3
    )
    assert {turn.view_epoch for turn in trace.turns} >= {0, 1}
    llm_arena.verify(trace)
    assert trace.spec.kwargs["budget"] == 300


@pytest.mark.parametrize("budget", [0, -1, 2.5])
def test_a_bad_budget_is_told(budget):
    with pytest.raises(UsageError, match="budget"):
        llm_arena.make("kuhn-poker-v0", budget=budget)


def test_a_bad_unit_is_told():
    with pytest.raises(UsageError, match="characters, tokens"):
        llm_arena.make("kuhn-poker-v0", budget=10, budget_unit="words")


def test_a_game_with_a_budget_passes_the_checks():
    llm_arena.check_env(llm_arena.make("thinker-verifier-v0", budget=300))
    llm_arena.check_env(llm_arena.make("naming-v0", budget=10))
