"""Guess the number: rewards by hand, the race, drop-outs, what is hidden, and the scripted guessers."""

import random
import re
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

import llm_arena
from llm_arena.errors import EnvContractError, UsageError
from llm_arena.leaks import secrets_are_kept
from llm_arena.registry import env_class
from llm_arena.types import Cause, Ending, Reply

GuessNumber = env_class("guess-number-v0")


def hiding(secret, **arguments):
    """Returns a reset env whose number is `secret`."""
    env = llm_arena.make("guess-number-v0", **arguments)
    for seed in range(3000):
        env.reset(seed=seed)
        if env.secret == secret:
            return env
    raise AssertionError("never drawn")


def play(env, names, seed):
    """Plays one episode with scripted guessers by seat; None: random legal replies."""
    env.reset(seed=seed)
    rng = np.random.default_rng([seed, 7])  # not the generator that hides the number
    while not env.over:
        seat = env.agent_selection
        name = names[seat]
        env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
    return env


def last_message(env, seat):
    return env.observe(seat)["messages"][-1]["content"]


def test_the_fourth_guess_pays_seven_tenths():
    env = hiding(37)
    for guess, said in [("50", "lower"), ("25", "higher"), ("25", "higher")]:
        env.step(guess)
        assert f"the number is {said}" in last_message(env, "guesser_0")
    env.step("37")
    assert env.returns["guesser_0"] == pytest.approx(0.7)
    assert env.outcome.winners == ["guesser_0"] and env.outcome.reason == "guesser_0 finds 37 at guess 4"


def test_not_finding_it_pays_nothing_and_says_what_it_was():
    env = hiding(37, guesses=2)
    env.step("1")
    assert last_message(env, "guesser_0") == (
        "1 is wrong: the number is higher. Guesses left: 1. Your guess. Reply with one number."
    )
    env.step("2")
    assert env.returns == {"guesser_0": 0.0} and env.outcome.winners == []
    assert env.outcome.reason == "no answer: not found, it was 37" and env.ending is Ending.TERMINATED


def test_bisection_needs_17_sevenths_guesses_of_seven_numbers():
    env = llm_arena.make("guess-number-v0", low=1, high=7, guesses=3)
    got = {}
    for seed in range(200):
        play(env, {"guesser_0": "bisection"}, seed)
        got[env.secret] = env.returns["guesser_0"]
    assert got == pytest.approx({4: 1, 2: 2 / 3, 6: 2 / 3, 1: 1 / 3, 3: 1 / 3, 5: 1 / 3, 7: 1 / 3})
    assert sum(got.values()) / 7 == pytest.approx(0.5238, abs=1e-4)


@pytest.mark.parametrize(("hints", "high"), [(True, 100), (False, 10)])
def test_bisection_beats_random_guesses(hints, high):
    env = llm_arena.make("guess-number-v0", high=high, hints=hints)
    better = [
        play(env, {"guesser_0": "bisection"}, seed).returns["guesser_0"]
        - play(env, {"guesser_0": None}, seed).returns["guesser_0"]
        for seed in range(1500)
    ]
    assert np.mean(better) - 1.96 * np.std(better) / np.sqrt(len(better)) > 0


def test_bisection_always_finds_one_of_a_hundred_in_seven():
    env = llm_arena.make("guess-number-v0", guesses=7)
    assert all(play(env, {"guesser_0": "bisection"}, seed).returns["guesser_0"] > 0 for seed in range(300))


@cache
def race_value(count):
    """How likely the one to guess wins a race of two with `count` candidates left, by trying every guess."""
    if not count:
        return Fraction(0)

    def win(guess):
        below, above = guess - 1, count - guess
        parts = [Fraction(1, count)]
        parts += [Fraction(side, count) * (1 - race_value(side)) for side in (below, above) if side]
        return sum(parts)

    return max(map(win, range(1, count + 1)))


def test_the_race_has_the_values_of_the_docstring_and_parity_reaches_them():
    for count in range(1, 40):
        assert race_value(count) == (Fraction(count + 1, 2 * count) if count % 2 else Fraction(1, 2))
    env = llm_arena.make("guess-number-v0", low=1, high=7, guessers=2)
    won = [play(env, {"guesser_0": "parity", "guesser_1": "parity"}, seed).returns["guesser_0"] for seed in range(3000)]
    expected = float(2 * race_value(7) - 1)
    assert np.mean(won) == pytest.approx(expected, abs=3 * np.std(won) / 3000**0.5)


def test_parity_beats_bisection_and_random_in_a_race():
    env = llm_arena.make("guess-number-v0", low=1, high=7, guessers=2)
    for other in ("bisection", None):
        won = []
        for seed in range(2000):
            for mine, theirs in (("guesser_0", "guesser_1"), ("guesser_1", "guesser_0")):
                won.append(play(env, {mine: "parity", theirs: other}, seed).returns[mine])
        assert np.mean(won) - 1.96 * np.std(won) / np.sqrt(len(won)) > 0


def test_the_finder_of_three_gets_one_and_the_others_pay_it():
    env = hiding(37, guessers=3)
    env.step("50")
    for seat in ("guesser_1", "guesser_2"):
        assert any("guesser_0 guesses: 50 is wrong: the number is lower." in m["content"] for m in env._views[seat])
    env.step("37")
    assert env.returns == {"guesser_0": -0.5, "guesser_1": 1.0, "guesser_2": -0.5}
    assert env.outcome.ranks == {"guesser_0": 2, "guesser_1": 1, "guesser_2": 2}


def test_a_race_without_a_finder_is_a_draw():
    env = hiding(37, guessers=2, guesses=1)
    env.step("1")
    env.step("2")
    assert env.outcome.draw and env.outcome.ranks == {"guesser_0": 1, "guesser_1": 1}
    assert set(env.returns.values()) == {0.0}


def test_one_drops_out_and_the_others_play_on():
    env = hiding(37, guessers=3)
    env.step("I don't know")
    env.step(None)
    assert env.returns == {"guesser_0": -1.0, "guesser_1": 0.5, "guesser_2": 0.5}
    assert env.agent_selection == "guesser_1" and not env.over
    env.step("1")
    env.step("37")
    assert env.returns == {"guesser_0": -1.0, "guesser_1": -0.5, "guesser_2": 1.5}
    assert env.outcome.ranks == {"guesser_0": 3, "guesser_1": 2, "guesser_2": 1}
    assert "guesser_1 guesses" not in str(env.observe("guesser_0"))


def test_the_last_one_left_wins_the_race():
    env = hiding(37, guessers=3)
    env.step("")
    env.step(None)
    env.step("-")
    assert env.over and env.outcome.winners == ["guesser_2"] and env.outcome.reason.startswith("forfeit: guesser_1")
    assert env.returns == {"guesser_0": -1.0, "guesser_1": -0.5, "guesser_2": 1.5}


def test_a_drop_out_after_which_nobody_has_a_guess_ends_the_race():
    env = hiding(37, guessers=3, guesses=1)
    env.step("1")
    env.step("2")
    env.step("no")
    assert env.over and env.outcome.draw and env.outcome.ranks == {"guesser_0": 1, "guesser_1": 1, "guesser_2": 3}
    assert env.returns == {"guesser_0": 0.5, "guesser_1": 0.5, "guesser_2": -1.0}


def test_alone_a_forfeit_costs_one_and_a_skip_a_guess():
    env = hiding(37)
    env.step("0")
    assert env.over and env.returns == {"guesser_0": -1.0}
    env = hiding(37, illegal="skip", guesses=2)
    env.step("x")
    env.step("37")
    assert env.returns == {"guesser_0": 0.5}


def test_an_overflow_that_forfeits_asks_nobody():
    env = hiding(37, guessers=3, overflow="forfeit")
    seen = len(env.observe("guesser_1")["messages"])
    env.truncate(Ending.CONTEXT_OVERFLOW, "guesser_0")
    assert env.returns == {"guesser_0": -1.0, "guesser_1": 0.5, "guesser_2": 0.5}
    assert len(env.observe("guesser_1")["messages"]) == seen


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("37", Cause.LEGAL),
        (" 037. ", Cause.LEGAL),
        ("Of 1 to 100 I take [37]", Cause.LEGAL),
        ("**37**", Cause.LEGAL),
        ("It is not 50.\nACTION: 37", Cause.LEGAL),
        ("<think>[12] or [13]?</think>37", Cause.LEGAL),
        (f"<think>{', '.join(map(str, range(1, 61)))}</think>[37]", Cause.LEGAL),  # as many numbers as it likes
        ("<think>37", Cause.UNPARSABLE),
        ("0", Cause.ILLEGAL),
        ("101", Cause.ILLEGAL),
        ("[1234567]", Cause.ILLEGAL),
        ("-37", Cause.UNPARSABLE),
        ("37.5", Cause.UNPARSABLE),
        ("1e2", Cause.UNPARSABLE),
        ("It is between 1 and 37", Cause.UNPARSABLE),
        ("12345678901234567890", Cause.UNPARSABLE),
        ("[36] [37]", Cause.AMBIGUOUS),
        (" ".join(map(str, range(100))), Cause.UNPARSABLE),
        ("thirty-seven", Cause.UNPARSABLE),
    ],
)
def test_how_replies_are_read(reply, cause):
    env = hiding(37)
    env.step(reply)
    assert env.last_step.cause is cause
    assert (env.returns["guesser_0"] == 1.0) == (cause is Cause.LEGAL)


def test_a_reply_that_was_cut_is_read_only_if_it_is_all_number():
    env = hiding(37)
    env.step(Reply("I take [37]", "length"))
    assert env.last_step.cause is Cause.LENGTH


@pytest.mark.parametrize(
    "bounds", [(0, 1), (0, 9), (1, 100), (5, 123), (0, 1000), (99, 101), (1, 250), (37, 4021), (7, 10)]
)
def test_the_grammar_holds_exactly_the_numbers_of_the_range(bounds):
    low, high = bounds
    env = llm_arena.make("guess-number-v0", low=low, high=high)
    env.reset(seed=0)
    pattern = re.compile(env.grammar("guesser_0"))
    assert {n for n in range(5000) if pattern.fullmatch(str(n))} == set(range(low, high + 1))
    assert not any(map(pattern.fullmatch, ("", "00", "007", "-1", "1 ")))


def test_a_seed_hides_the_same_number_whatever_happens_in_between():  # huggingface/OpenEnv issue 1102
    env, other = llm_arena.make("guess-number-v0"), llm_arena.make("guess-number-v0")
    found = set()
    for number in range(6):
        env.reset(seed=7)
        found.add(env.secret)
        other.reset(seed=8)
        other.step("50")
        env.reset()
        random.random()
        np.random.random(number)
    assert len(found) == 1
    secrets = set()
    for seed in range(1, 21):
        env.reset(seed=seed)
        secrets.add(env.secret)
    assert len(secrets) > 10


def test_numbers_are_drawn_evenly():
    env, counts = llm_arena.make("guess-number-v0", low=3, high=7), {}
    for seed in range(1000):
        env.reset(seed=seed)
        counts[env.secret] = counts.get(env.secret, 0) + 1
    assert sorted(counts) == [3, 4, 5, 6, 7] and min(counts.values()) > 140


class Facts(GuessNumber):
    def facts(self, seat):
        return {**super().facts(seat), "even": self.secret % 2 == 0}


class Hint(GuessNumber):
    def begin(self, rng):
        first = super().begin(rng)
        self.tell(self.possible_agents, f"The last digit is {self.secret % 10}.")
        return first


@pytest.mark.parametrize(("leaky", "where"), [(Facts, "facts"), (Hint, "messages")])
def test_planted_leaks_are_caught(leaky, where):
    secrets_are_kept(llm_arena.make("guess-number-v0", guessers=2), 0)
    with pytest.raises(EnvContractError, match=f"learns something.*from its {where}"):
        secrets_are_kept(leaky(), 0)


def test_the_limit_of_turns_is_a_whole_game_whatever_the_retries():
    for retries in (0, 3):
        assert llm_arena.make("guess-number-v0", guessers=2, guesses=4, retries=retries).max_turns == 8
    env = hiding(37, guesses=2, retries=2)
    for reply in ("x", "x", "1", "x", "x", "2"):
        env.step(reply)
    assert env.ending is Ending.TERMINATED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"low": 5, "high": 5}, "low=5, high=5"),
        ({"low": -1}, "low=-1"),
        ({"high": 2_000_000}, "high=2000000"),
        ({"guesses": 0}, "guesses=0"),
        ({"guesses": True}, "guesses=True"),
        ({"guessers": 9}, "9 seats"),
        ({"guessers": "2"}, "'2' seats"),
        ({"hints": "no"}, "hints='no'"),
    ],
)
def test_arguments_out_of_range_are_told(arguments, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        llm_arena.make("guess-number-v0", **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"guessers": 3},
        {"hints": False, "high": 5},
        {"guessers": 2, "retries": 2},
        {"guessers": 4, "illegal": "skip"},
    ],
)
def test_it_is_a_well_behaved_env(arguments):
    llm_arena.check_env(llm_arena.make("guess-number-v0", **arguments), seed=5)
