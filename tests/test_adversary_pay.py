"""What adversary-v0 pays by label and by judge, that honest play pays most, and what scripted players get."""

import itertools
import re

import numpy as np
import pytest

import llm_arena
from adversary_parts import ATTACK, GAME, KEEP, PASS, game, played, tag
from llm_arena.problems.attacks import pay
from llm_arena.types import Ending

TABLE = [
    (tag(7), PASS, None, 1, 1, "thinker_0"),
    (tag(7), ATTACK, KEEP, 1, -1, "thinker_0"),
    (tag(7), ATTACK, tag("7.0"), 1, -1, "thinker_0"),
    (tag(7), ATTACK, tag(8), -1, -2, None),
    (tag(8), PASS, None, -1, -1, None),
    (tag(8), ATTACK, KEEP, -1, 0.5, "adversary_0"),
    (tag(8), ATTACK, tag(9), -1, 0.5, "adversary_0"),
    (tag(8), ATTACK, tag(7), 0.75, 1, "adversary_0"),
]


@pytest.mark.parametrize(("first", "call", "after", "thinker", "adversary", "winner"), TABLE)
def test_every_line_of_the_table(first, call, after, thinker, adversary, winner):
    env = played(*[reply for reply in (first, call, after) if reply is not None])
    assert env.over and env.ending is Ending.TERMINATED
    assert env.returns == {"thinker_0": thinker, "adversary_0": adversary} == env.outcome.scores
    assert env.outcome.winners == ([winner] if winner else []) and env.outcome.draw is (winner is None)
    expected = {seat: 1 if winner in (seat, None) else 2 for seat in ("thinker_0", "adversary_0")}
    assert env.outcome.ranks == expected


@pytest.mark.parametrize(("first", "call", "after", "thinker", "adversary", "winner"), TABLE)
def test_a_judge_who_knows_pays_by_the_same_table(first, call, after, thinker, adversary, winner):
    env = played(*[reply for reply in (first, call, after) if reply is not None], judge="seat", answer=None)
    while not env.over:
        [answer] = re.findall(r"Answer:\n> (\S+)", env.observe("judge_0")["messages"][-1]["content"])
        env.step(f"VERDICT: {'right' if float(answer) == 7 else 'wrong'}")
    assert env.returns == {"thinker_0": thinker, "adversary_0": adversary, "judge_0": 0}
    assert env.outcome.winners == ([winner] if winner else []) and "judge_0" not in env.outcome.ranks


@pytest.mark.parametrize(
    ("replies", "thinker", "adversary"),
    [
        ((tag(8), ATTACK, tag(9), ATTACK, tag(7)), 0.75, 0.75),
        ((tag(8), ATTACK, tag(7), PASS), 0.75, 1.0),
        ((tag(7), PASS), 1.0, 1.0),
        ((tag(7), ATTACK, tag(8), ATTACK, tag(7)), 1.0, -0.5),
        ((tag(7), ATTACK, KEEP, PASS), 1.0, 0.0),
        ((tag(8), PASS), -1.0, -1.0),
        ((tag(8), ATTACK, KEEP, PASS), -1.0, -0.25),
    ],
)
def test_two_rounds_worked_by_hand(replies, thinker, adversary):
    env = played(*replies, rounds=2)
    assert env.over and env.returns == {"thinker_0": thinker, "adversary_0": adversary}


# ---- the trap --------------------------------------------------------------------------------------------------


RIGHT, WRONG = tag(7), itertools.cycle([tag(8), tag(9)])


def thinker(kind, q, mend):
    """Returns a strategy: (answer before or None, attacked) -> [(probability, reply)]."""

    def reply(right):
        if right is None:
            return [(1.0, next(WRONG))] if kind == "sandbag" else [(q, RIGHT), (1 - q, next(WRONG))]
        if kind == "sandbag":
            return [(q, RIGHT), (1 - q, next(WRONG))]
        if right:
            return [(1.0, next(WRONG))] if kind == "caves" else [(1.0, KEEP)]
        return [(mend, RIGHT), (1 - mend, KEEP)]

    return reply


def adversary(kind, d, f):
    def reply(right):
        chance = {"always": 1.0, "never": 0.0, "honest": f if right else d}[kind]
        return [(chance, ATTACK), (1 - chance, PASS)]

    return reply


def expected(thinks, attacks, rounds=1):
    """Returns the mean rewards (thinker, adversary) of two strategies, by walking through all that can happen."""

    def walk(env):
        if env.over:
            return np.array([env.returns["thinker_0"], env.returns["adversary_0"]])
        right = None if not env.answers else env.answers[env.now] == "7"
        total = np.zeros(2)
        for chance, reply in (thinks if env.agent_selection == "thinker_0" else attacks)(right):
            if chance:
                after = env.clone()
                after.step(reply)
                total += chance * walk(after)
        return total

    return walk(game(rounds=rounds))


D, F, M = 0.9, 0.1, 0.5


@pytest.mark.parametrize("q", [0.1, 0.3, 0.5, 0.7, 0.87])
def test_the_formulas_of_the_docstring_come_out_of_the_game(q):
    honest = thinker("honest", q, M)
    assert expected(honest, adversary("honest", D, F))[1] == pytest.approx(
        q * (1 - 2 * F) + (1 - q) * (D * (1.5 + 0.5 * M) - 1)
    )
    assert expected(honest, adversary("always", D, F))[1] == pytest.approx(-q + (1 - q) * (0.5 + 0.5 * M))
    assert expected(honest, adversary("never", D, F))[1] == pytest.approx(2 * q - 1)


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("q", [0.1, 0.3, 0.5, 0.7, 0.87])
def test_honest_play_is_the_best_answer_in_the_documented_range(q, rounds):
    calls = {kind: adversary(kind, D, F) for kind in ("honest", "always", "never")}
    thinks = {kind: thinker(kind, q, M) for kind in ("honest", "caves", "sandbag")}
    paid = {(t, a): expected(thinks[t], calls[a], rounds) for t in thinks for a in calls}
    for kind in ("always", "never"):
        assert paid["honest", "honest"][1] > paid["honest", kind][1], kind
    for opponent in calls:
        for kind in ("caves", "sandbag"):
            assert paid["honest", opponent][0] >= paid[kind, opponent][0], (kind, opponent)
            if opponent != "never" or kind == "sandbag":
                assert paid["honest", opponent][0] > paid[kind, opponent][0], (kind, opponent)
    together = {pair: sum(both) for pair, both in paid.items()}
    for pair in (("caves", "always"), ("sandbag", "always"), ("caves", "honest"), ("sandbag", "honest")):
        assert together["honest", "honest"] > together[pair], pair


def test_outside_of_the_range_a_lazy_adversary_does_as_well():
    for q, lazy in ((0.05, "always"), (0.95, "never")):
        honest = thinker("honest", q, M)
        assert expected(honest, adversary(lazy, D, F))[1] > expected(honest, adversary("honest", D, F))[1]
        best = expected(honest, adversary("honest", 1.0, 0.0))[1]  # one that sees all is best whatever q
        assert best > expected(honest, adversary(lazy, D, F))[1]


def test_no_pair_gets_more_than_two_in_sum():
    best = 0.0
    for rounds in (1, 2, 3):
        for states in itertools.product(("right", "wrong", "unknown"), repeat=rounds + 1):
            for attacks in range(rounds + 1):
                calls = [(states[k], "attack", states[k + 1]) for k in range(attacks)]
                last = states[attacks]
                if attacks < rounds:
                    calls.append((last, "pass", last))
                both = pay(states[0], last, calls, rounds)
                assert -1 <= both[0] <= 1 and -2 <= both[1] <= 1
                if sum(both) >= 2:
                    assert states[0] == "right" and attacks == 0
                best = max(best, sum(both))
    assert best == 2


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_an_adversary_who_sees_all_attacks_what_is_wrong_and_nothing_else(rounds):
    """By backward induction, whatever a thinker does that is not broken by a true attack."""

    def value(state, number, mend):
        if number == rounds:
            return 0.0, None
        left = rounds - number
        passes = left * (1.0 if state == "right" else -1.0)
        if state == "right":
            attack = -1.0 + value("right", number + 1, mend)[0]
        else:
            attack = mend * (1 + value("right", number + 1, mend)[0])
            attack += (1 - mend) * (0.5 + value("wrong", number + 1, mend)[0])
        return max((passes, "pass"), (attack, "attack"))

    for mend in (0.0, 0.3, 1.0):
        for number in range(rounds):
            assert value("right", number, mend)[1] == "pass" and value("wrong", number, mend)[1] == "attack"


# ---- scripted players -----------------------------------------------------------------------------------------


def returns(players, seeds, **kwargs):
    """Returns [seed, (thinker, adversary)] of episodes; who is not named plays random legal replies."""
    rows = []
    for seed in range(seeds):
        env, rng = llm_arena.make(GAME, **kwargs), np.random.default_rng(seed)
        env.reset(seed=seed)
        while not env.over:
            seat = env.agent_selection
            name = players.get(env.role_of(seat))
            env.step(env.baselines[name](env.view(seat), rng) if name else env.sample_reply(seat, rng))
        rows.append([env.returns["thinker_0"], env.returns["adversary_0"]])
    return np.array(rows)


def above(good, plain):
    half = 1.96 * np.sqrt(np.var(good) / len(good) + np.var(plain) / len(plain))
    return np.mean(good) - np.mean(plain) - half > 0


def test_scripted_players_beat_random_ones():
    for other in ({}, {"adversary": "exact"}):
        random = returns(other, 200)[:, 0]
        hasty = returns({"thinker": "hasty"} | other, 200)[:, 0]
        exact = returns({"thinker": "exact"} | other, 200)[:, 0]
        assert set(exact) == {1.0} and above(hasty, random) and above(exact, hasty)
    for other in ({"thinker": "hasty"}, {}):
        assert above(returns({"adversary": "exact"} | other, 200)[:, 1], returns(other, 200)[:, 1])
    by_label = returns({"thinker": "hasty", "adversary": "exact"}, 50, rounds=2)
    judged = returns({"thinker": "hasty", "adversary": "exact", "judge": "exact"}, 50, rounds=2, judge="seat")
    assert np.array_equal(by_label, judged)


def test_scripted_players_know_nothing_of_other_problems():
    env = llm_arena.make(GAME, problem="Name a river.", judge="seat")
    for name in ("exact", "hasty"):
        env.reset(seed=0)
        while not env.over:
            env.step(env.baselines[name](env.view(env.agent_selection), np.random.default_rng(0)))
        assert env.turns == 3 and set(env.returns.values()) == {0.0}
