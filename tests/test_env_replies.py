"""What becomes of replies that are no legal action, and of seats that can't reply."""

import pytest

import llm_arena
from llm_arena.errors import UsageError
from llm_arena.types import Cause, Ending, Reply


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Reply(""), Cause.EMPTY),
        (Reply("  \n"), Cause.EMPTY),
        (Reply("", "length"), Cause.LENGTH),
        (Reply("well, I think that", "length"), Cause.LENGTH),
        (Reply("well, I think that"), Cause.UNPARSABLE),
        (Reply("[bet] or [check]"), Cause.AMBIGUOUS),
        (Reply("call"), Cause.ILLEGAL),
        (Reply("[raise]"), Cause.ILLEGAL),
        (Reply("bet", "timeout"), Cause.TIMEOUT),
        (Reply("bet", "refused"), Cause.REFUSED),
        (Reply("Bet.", "length"), Cause.LEGAL),
    ],
)
def test_the_ways_of_not_answering_stay_apart(reply, cause):
    env = llm_arena.make("kuhn-poker-v0")
    env.reset(seed=1)
    env.step(reply)
    assert env.last_step.cause is cause
    if cause is not Cause.LEGAL:
        assert env.stats["player"] == {"turns": 1, cause: 1}
        assert env.returns == {"player_0": -2.0, "player_1": 2.0}
        assert env.outcome.winners == ["player_1"] and "forfeit" in env.outcome.reason


def test_penalty_pays_the_offender_only_and_says_so():
    env = llm_arena.make("kuhn-poker-v0", illegal="penalty", penalty=-2.75)
    env.reset(seed=1)
    env.step("no idea")
    assert env.returns == {"player_0": -2.75, "player_1": 0.0}
    assert not env.zero_sum and env.over


def test_a_penalty_is_no_way_out_of_a_loss():
    assert llm_arena.make("kuhn-poker-v0", illegal="penalty").penalty == -2.0, "by default what a forfeit costs"
    for penalty in (-1.99, 0.5, float("nan"), 10**400, True):
        with pytest.raises(UsageError, match="penalty"):
            llm_arena.make("kuhn-poker-v0", illegal="penalty", penalty=penalty)
    with pytest.raises(UsageError, match="penalty"):
        llm_arena.make("naming-v0", illegal="penalty", penalty=0.1)
    assert llm_arena.make("naming-v0", illegal="penalty", penalty=-0.1).penalty == -0.1, "there the game goes on"


def test_retries_do_not_run_down_the_turn_limit():
    env = llm_arena.make("kuhn-poker-v0", retries=5, max_turns=3)
    env.reset(seed=1)
    env.step("check")
    for _ in range(5):
        env.step("no idea")
    assert env.turns == 1 and not env.over
    env.step("bet")
    env.step("fold")
    assert env.ending == "terminated"


def test_a_seat_hears_what_was_played_for_it():
    env = llm_arena.make("kuhn-poker-v0", illegal="random_legal")
    env.reset(seed=5)
    env.step("no idea")
    played = env.last_step.action["random_legal"]
    told = [message["content"] for message in env.observe("player_0")["messages"]]
    assert f"Your reply was unparsable. Played for you: {played}" in told


def test_random_legal_plays_on_and_reproduces():
    def run():
        env = llm_arena.make("kuhn-poker-v0", illegal="random_legal")
        env.reset(seed=5)
        while not env.over:
            env.step("no idea")
        return env.history, env.returns

    assert run() == run()


def test_forfeits_cost_at_least_the_worst_legal_loss():
    worst = {"kuhn-poker-v0": 2.0, "tic-tac-toe-v0": 1.0}
    for env_id, loss in worst.items():
        assert llm_arena.make(env_id).forfeit_cost >= loss


def test_context_overflow_ends_as_truncated_and_pays_by_the_setting():
    env = llm_arena.make("kuhn-poker-v0")
    env.reset(seed=1)
    env.truncate(Ending.CONTEXT_OVERFLOW, "player_0")
    assert env.ending is Ending.CONTEXT_OVERFLOW and all(env.truncations.values())
    assert env.returns == {"player_0": 0.0, "player_1": 0.0}
    strict = llm_arena.make("kuhn-poker-v0", overflow="forfeit")
    strict.reset(seed=1)
    strict.truncate(Ending.CONTEXT_OVERFLOW, "player_0")
    assert strict.returns == {"player_0": -2.0, "player_1": 2.0}
    again = strict.clone()
    assert again.returns == strict.returns and again.overflow_seat == "player_0"
