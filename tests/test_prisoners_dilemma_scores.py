"""What the iterated prisoner's dilemma pays: scores worked by hand, missing choices, noise."""

import itertools

import numpy as np
import pytest

import llm_arena
from llm_arena.types import Ending
from prisoners_dilemma_parts import NAMES, C, D, meet, reset


def choices(env, seat):
    return "".join(chosen[seat][0] for chosen in env.history)


# ten rounds with 5, 3, 1, 0, by hand
SCORES = {
    ("always-cooperate", "always-cooperate"): (30, 30),
    ("always-cooperate", "always-defect"): (0, 50),
    ("always-cooperate", "tit-for-tat"): (30, 30),
    ("always-cooperate", "generous-tit-for-tat"): (30, 30),
    ("always-cooperate", "grim-trigger"): (30, 30),
    ("always-cooperate", "win-stay-lose-shift"): (30, 30),
    ("always-defect", "always-defect"): (10, 10),
    ("always-defect", "tit-for-tat"): (14, 9),
    ("always-defect", "grim-trigger"): (14, 9),
    ("always-defect", "win-stay-lose-shift"): (30, 5),  # it cooperates in every other round
    ("tit-for-tat", "tit-for-tat"): (30, 30),
    ("tit-for-tat", "generous-tit-for-tat"): (30, 30),
    ("tit-for-tat", "grim-trigger"): (30, 30),
    ("tit-for-tat", "win-stay-lose-shift"): (30, 30),
    ("generous-tit-for-tat", "generous-tit-for-tat"): (30, 30),
    ("generous-tit-for-tat", "grim-trigger"): (30, 30),
    ("generous-tit-for-tat", "win-stay-lose-shift"): (30, 30),
    ("grim-trigger", "grim-trigger"): (30, 30),
    ("grim-trigger", "win-stay-lose-shift"): (30, 30),
    ("win-stay-lose-shift", "win-stay-lose-shift"): (30, 30),
}


def test_the_round_robin_has_the_scores_worked_by_hand():
    for pair in itertools.combinations_with_replacement(NAMES, 2):
        if set(pair) == {"always-defect", "generous-tit-for-tat"}:
            continue  # luck decides, see below
        expected = SCORES[pair]
        env = meet(*pair)
        assert tuple(env.returns.values()) == expected, pair
        assert tuple(env.outcome.scores.values()) == expected
        swapped = meet(*reversed(pair))
        assert tuple(swapped.returns.values()) == expected[::-1], pair


def test_generous_tit_for_tat_forgives_a_third_of_defections():
    env = meet("generous-tit-for-tat", "always-defect", rounds=1000)
    forgiven = choices(env, "player_0")[1:].count("c") / 999
    assert abs(forgiven - 1 / 3) < 4 * (1 / 3 * 2 / 3 / 999) ** 0.5
    # with 4, 3, 2, 0 it is min(1 - 1/3, 1/2)
    env = meet("generous-tit-for-tat", "always-defect", rounds=1000, temptation=4, punishment=2)
    forgiven = choices(env, "player_0")[1:].count("c") / 999
    assert abs(forgiven - 1 / 2) < 4 * (1 / 4 / 999) ** 0.5


@pytest.mark.parametrize(
    ("name", "against", "plays"),
    [
        ("tit-for-tat", "cdcddc", "ccdcdd"),
        ("grim-trigger", "ccdccc", "cccddd"),
        ("win-stay-lose-shift", "cdcddc", "ccddcd"),
        ("always-defect", "cccccc", "dddddd"),
        ("always-cooperate", "dddddd", "cccccc"),
    ],
)
def test_each_strategy_answers_as_its_name_says(name, against, plays):
    env = meet(name, [C if letter == "c" else D for letter in against], rounds=6)
    assert choices(env, "player_0") == plays


@pytest.mark.parametrize(
    ("first", "second", "paid"), [(C, C, (3.5, 3.5)), (C, D, (-1, 6)), (D, C, (6, -1)), (D, D, (1, 1))]
)
def test_each_pair_of_choices_pays_what_the_arguments_say(first, second, paid):
    env = reset(rounds=1, temptation=6, reward=3.5, sucker=-1)
    env.step(first)
    assert set(env.returns.values()) == {0.0}  # nothing is paid before both have chosen
    env.step(second)
    assert tuple(env.returns.values()) == paid
    assert env.outcome.draw == (paid[0] == paid[1])


def test_rewards_come_round_by_round_and_the_views_say_what_happened():
    env = reset(rounds=2)
    env.step(C)
    env.step(D)
    assert env.rewards == {"player_0": 0, "player_1": 5}
    said = env.observe("player_0")["messages"][-1]["content"]
    assert said == (
        "You: cooperate. player_1: defect. You get 0, player_1 gets 5.\n\n"
        "Round 2 of 2. Reply with one word: cooperate or defect."
    )
    env.step(D)
    env.step(D)
    assert env.over and env.returns == {"player_0": 1, "player_1": 6}
    assert env.outcome.winners == ["player_1"] and env.outcome.ranks == {"player_0": 2, "player_1": 1}


def test_nobody_sees_a_choice_before_it_has_chosen():
    for talk in (False, True):
        one, other = reset(talk=talk), reset(talk=talk)
        one.step(C)
        other.step(D)
        for env in (one, other):
            assert env.agent_selection == "player_1"
        assert one.observe("player_1") == other.observe("player_1")
        assert one.facts("player_1") == other.facts("player_1")
        assert one.infos["player_1"] == other.infos["player_1"]


def test_a_forfeit_pays_s_for_the_rest_and_p_to_the_other():
    env = reset(rounds=10, sucker=-1)
    env.step(D)
    env.step(C)
    env.step("maybe")
    assert env.agent_selection == "player_1" and not env.over  # the other answers first
    env.step(D)
    assert env.over and env.outcome.reason == "forfeit: player_0 gave unparsable reply"
    assert env.returns == {"player_0": 5 - 9, "player_1": -1 + 9 * 1}
    assert env.outcome.winners == ["player_1"]


@pytest.mark.parametrize("rule", ["forfeit", "skip"])
@pytest.mark.parametrize("payoffs", [(5, 3, 1, 0), (0, -1, -2, -3)])
def test_making_the_other_fail_pays_no_more_than_defecting(rule, payoffs):
    """Whatever the other would have played: always-defect gets at least as much."""
    arguments = dict(zip(("temptation", "reward", "punishment", "sucker"), payoffs, strict=True))
    for mine in (C, D):
        env = reset(illegal=rule, **arguments)
        while not env.over:
            env.step(mine if env.agent_selection == "player_0" else "</s>")
        broken = env.returns["player_0"]
        assert broken == 10 * payoffs[2]
        assert all(meet("always-defect", name, **arguments).returns["player_0"] >= broken for name in NAMES)


def test_who_forfeits_loses_however_many_points_it_has():
    env = reset(rounds=2)
    env.step(D)
    env.step(C)
    env.step(D)
    env.step("")
    assert env.returns == {"player_0": 6, "player_1": 0} and env.outcome.winners == ["player_0"]
    env = reset(rounds=2, reward=3)
    env.step(C)
    env.step(D)
    env.step(C)
    env.step("")
    assert env.returns == {"player_0": 1, "player_1": 5} and env.outcome.winners == ["player_0"]
    assert env.outcome.ranks == {"player_0": 1, "player_1": 2}


def test_no_missing_choice_pays_more_than_the_worst_choice():
    payoffs = {"temptation": 7, "reward": 5, "punishment": 2, "sucker": 1}
    worst = meet("always-cooperate", "always-defect", **payoffs).returns["player_0"]
    for rule in ("forfeit", "skip"):
        env = reset(illegal=rule, **payoffs)
        while not env.over:
            env.step("" if env.agent_selection == "player_0" else D)
        assert env.returns["player_0"] <= 0 < worst


def test_both_forfeit():
    env = reset()
    env.step("")
    env.step("")
    assert (
        env.over
        and env.outcome.draw
        and env.outcome.reason == "forfeit: player_0 gave empty reply and player_1 gave empty reply"
    )
    assert set(env.returns.values()) == {0.0}


def test_a_skipped_choice_is_a_defection_to_the_strategies():
    env = reset(illegal="skip", rounds=3)
    env.step("what?")
    env.step(C)
    assert env.returns == {"player_0": 0, "player_1": 1}
    assert env.facts("player_1")["history"] == [[C, None]]
    assert "player_0: no choice" in env.observe("player_1")["messages"][-1]["content"]
    rng = np.random.default_rng(0)
    replies = {name: env.baselines[name](env.view("player_1"), rng) for name in NAMES}
    assert replies["tit-for-tat"] == replies["grim-trigger"] == replies["win-stay-lose-shift"] == D


def test_an_overflow_that_forfeits_pays_the_rest_at_once():
    env = reset(rounds=4, overflow="forfeit", sucker=-1)
    env.truncate(Ending.CONTEXT_OVERFLOW, "player_1")
    assert env.returns == {"player_0": 4, "player_1": -4}


# ---- noise -----------------------------------------------------------------------------------------------------


def test_a_slip_is_paid_seen_by_both_and_told_to_its_player_alone():
    env = llm_arena.make("prisoners-dilemma-v0", rounds=2, noise=0.3)
    seen = set()
    for seed in range(100):
        env.reset(seed=seed)
        assert (
            "With probability 0.3 a choice comes out as the other one"
            in env.observe("player_0")["messages"][0]["content"]
        )
        env.step(C)
        env.step(C)
        came = tuple(env.history[0].values())
        seen.add(came)
        assert tuple(env.returns.values()) == {(C, C): (3, 3), (C, D): (0, 5), (D, C): (5, 0), (D, D): (1, 1)}[came]
        for number, seat in enumerate(env.possible_agents):
            mine, theirs = came[number], came[1 - number]
            other = env.possible_agents[1 - number]
            slip = "" if mine == C else " by mistake (you chose cooperate)"
            assert env.observe(seat)["messages"][-1]["content"].startswith(
                f"You: {mine}{slip}. {other}: {theirs}. You get"
            )
            assert env.facts(seat)["history"] == [[mine, theirs]] and env.facts(seat)["noise"] == 0.3
    assert len(seen) == 4


def test_choices_slip_as_often_as_the_noise_says_each_by_itself():
    env = reset(rounds=1000, noise=0.1)
    while not env.over:
        env.step(C)
    slipped = np.array([[chosen[seat] == D for seat in env.possible_agents] for chosen in env.history])
    assert np.all(np.abs(slipped.mean(axis=0) - 0.1) < 4 * (0.1 * 0.9 / 1000) ** 0.5)
    assert abs(slipped.all(axis=1).mean() - 0.01) < 4 * (0.01 * 0.99 / 1000) ** 0.5


def mean_points(answer, noise, rounds):
    """Points a round of two alike whose next choice is `answer(own, other's)`, from the chain of their four states."""
    states = list(itertools.product("cd", repeat=2))

    def step(old, new):
        wanted = (answer(*old), answer(*reversed(old)))
        return np.prod([1 - noise if came == want else noise for came, want in zip(new, wanted, strict=True)])

    chain = np.array([[step(old, new) for new in states] for old in states])
    odds, total = np.array([1.0, 0, 0, 0]), 0.0  # both begin as after cooperation
    for _ in range(rounds):
        odds = odds @ chain
        total += odds @ np.array([3, 0, 5, 1])
    return total / rounds


def test_noise_costs_tit_for_tat_a_quarter_and_win_stay_lose_shift_little():
    """The numbers of the page from the chain, and the chain against play."""
    answers = {
        "tit-for-tat": lambda mine, theirs: theirs,
        "win-stay-lose-shift": lambda mine, theirs: "c" if mine == theirs else "d",
    }
    in_the_end = {name: mean_points(answer, 0.02, 20_000) for name, answer in answers.items()}
    assert in_the_end == pytest.approx({"tit-for-tat": 2.25, "win-stay-lose-shift": 2.90}, abs=0.01)
    for name, answer in answers.items():
        means = [sum(meet(name, name, seed, rounds=40, noise=0.1).returns.values()) / 80 for seed in range(60)]
        assert abs(np.mean(means) - mean_points(answer, 0.1, 40)) < 4 * np.std(means) / 60**0.5


def test_what_is_missing_does_not_slip():
    env = reset(rounds=30, noise=0.5, illegal="skip")
    while not env.over:
        env.step(C if env.agent_selection == "player_0" else "x")
    assert {chosen["player_1"] for chosen in env.history} == {None}
    assert {chosen["player_0"] for chosen in env.history} == {C, D}


# ---- the scripted players -------------------------------------------------------------------------------------


def test_always_defect_beats_random_choices_and_tit_for_tat_gains_by_cooperation():
    env, rng, better = llm_arena.make("prisoners-dilemma-v0"), np.random.default_rng(0), []
    for seed in range(60):
        env.reset(seed=seed)
        while not env.over:
            seat = env.agent_selection
            mine = seat == f"player_{seed % 2}"
            env.step(env.baselines["always-defect"](env.view(seat), rng) if mine else env.sample_reply(seat, rng))
        better.append(env.returns[f"player_{seed % 2}"] - env.returns[f"player_{1 - seed % 2}"])
    assert np.mean(better) - 1.96 * np.std(better) / np.sqrt(len(better)) > 0
