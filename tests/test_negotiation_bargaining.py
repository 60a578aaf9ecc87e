"""Negotiation: tasks as in the paper, the report and beliefs against slow versions, and the scripted players."""

import itertools
import math

import numpy as np
import pytest

import llm_arena
from llm_arena.problems.solvers.bargaining import (
    TOTAL,
    all_counts,
    believed_values,
    deals,
    draw_counts,
    draw_values,
    fit,
    frontier,
    nash_deal,
    points,
    report,
    rest,
    split_of,
    value_vectors,
    worth,
)
from negotiation_parts import fixed, play

# ---- tasks and the report --------------------------------------------------------------------------------------


def test_tasks_are_as_in_the_paper():
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(500):
        counts = draw_counts(rng)
        seen.add(counts)
        assert 5 <= sum(counts) <= 7 and min(counts) >= 1
        first, second = draw_values(counts, rng)
        assert worth(first, counts) == worth(second, counts) == TOTAL
        assert all(a or b for a, b in zip(first, second, strict=True))
        assert any(a and b for a, b in zip(first, second, strict=True))
    assert seen == set(all_counts())


def test_every_pool_has_values_that_fit_in_both_splits():
    tasks, held = 0, 0
    different = set()
    for counts in all_counts():
        pairs = [(a, b) for a, b in itertools.product(value_vectors(counts), repeat=2) if fit(a, b)]
        splits = [split_of(counts, a, b) for a, b in pairs]
        assert set(splits) == {"train", "heldout"}, counts
        tasks, held = tasks + len(pairs), held + splits.count("heldout")
        for a, b in pairs:
            different.add(min(tuple(sorted(zip(counts, *pair, strict=True))) for pair in ((a, b), (b, a))))
    assert 0.15 < held / tasks < 0.25
    assert len(different) == 519  # as the page says


def test_a_task_and_its_mirror_images_are_in_one_split():
    rng = np.random.default_rng(3)
    for split in ("train", "heldout"):
        env = llm_arena.make("negotiation-v0", split=split)
        for seed in range(100):
            env.reset(seed=seed)
            first, second = env.values.values()
            for order in itertools.permutations(range(3)):
                counts, a, b = (tuple(each[kind] for kind in order) for each in (env.counts, first, second))
                assert split_of(counts, a, b) == split_of(counts, b, a) == split
    seen = {draw_values((2, 2, 3), rng, "heldout") for _ in range(200)}
    assert seen == {
        (a, b)
        for a, b in itertools.product(value_vectors((2, 2, 3)), repeat=2)
        if fit(a, b) and split_of((2, 2, 3), a, b) == "heldout"
    }


def slow_report(counts, kept, first, second):
    every = {d: points(counts, d, first, second) for d in deals(counts)}
    best = [p for p in every.values() if not any(q[0] >= p[0] and q[1] >= p[1] and q != p for q in every.values())]
    got = (0, 0) if kept is None else every[kept]
    nash = sorted(
        every.items(), key=lambda item: (-item[1][0] * item[1][1], -sum(item[1]), abs(item[1][0] - item[1][1]))
    )
    return got, got in best, min(math.dist(got, p) for p in best), nash[0], max(map(sum, every.values())), set(best)


def test_the_report_agrees_with_trying_every_deal():
    rng = np.random.default_rng(1)
    for _ in range(200):
        counts = draw_counts(rng)
        first, second = draw_values(counts, rng)
        choices = [None, *deals(counts)]
        kept = choices[int(rng.integers(len(choices)))]
        made = report(counts, kept, first, second)
        got, efficient, distance, (nash, nash_values), most, best = slow_report(counts, kept, first, second)
        assert (made.values, made.efficient, made.most) == (got, efficient, most)
        assert made.distance == pytest.approx(distance, abs=1e-6)
        assert (made.nash_deal, made.nash_values) == (nash, nash_values)
        assert frontier(counts, first, second) == best
        assert made.nash_values in best  # the Nash point is efficient


def test_ties_of_the_nash_point():
    # all kinds are worth 2 to both of 5 items: 6 * 4 = 4 * 6; the first in order leaves player_0 more
    counts, values = (1, 2, 2), (2, 2, 2)
    kept = nash_deal(counts, values, values)
    assert points(counts, kept, values, values) == (6, 4) and kept == (1, 2, 0)


def test_beliefs_follow_the_proposals():
    counts, mine = (2, 2, 2), (2, 2, 1)
    at_first = believed_values(counts, mine, [])
    assert at_first[0] == pytest.approx(at_first[1])  # nothing tells them apart
    later = believed_values(counts, mine, [(2, 0, 1), (2, 0, 1)])
    assert later[0] > at_first[0] and later[1] < at_first[1]
    assert worth(later, counts) == pytest.approx(TOTAL)


def test_what_the_other_gets_is_the_rest():
    assert rest((1, 2, 3), (1, 0, 2)) == (0, 2, 1)


# ---- the scripted player ---------------------------------------------------------------------------------------


NAMES = ["nash", "fair-share", "stubborn"]


@pytest.mark.parametrize("mine", ["player_0", "player_1"])
def test_nash_beats_random_play(mine):
    other = "player_1" if mine == "player_0" else "player_0"
    ahead, better = [], []
    for seed in range(150):
        env = play({mine: "nash", other: None}, seed)
        ahead.append(env.returns[mine] - env.returns[other])
        better.append(env.returns[mine] - play({mine: None, other: None}, seed).returns[mine])
    for gains in (ahead, better):
        assert np.mean(gains) - 1.96 * np.std(gains) / np.sqrt(len(gains)) > 0.1


def test_nash_against_itself_makes_good_deals():
    played = [play(dict.fromkeys(("player_0", "player_1"), "nash"), seed) for seed in range(150)]
    reports = [env.last_step.action["report"] for env in played]
    assert np.mean([r["efficient"] for r in reports]) > 0.85
    assert np.mean([sum(r["values"]) / r["most"] for r in reports]) > 0.9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arguments", [{"rounds": 1}, {"rounds": 2, "discount": 0.5}, {"rounds": 3}])
def test_scripted_players_say_only_what_is_legal(arguments, name):
    for seed in range(30):
        for names in ({"player_0": name, "player_1": None}, {"player_0": None, "player_1": name}):
            env = play(names, seed, **arguments)
            assert set(env.stats["player"]) == {"turns"}


@pytest.mark.parametrize("name", NAMES)
def test_scripted_players_use_only_what_they_may_know(name):
    """Their moves are the same whatever the other's values are."""
    env = llm_arena.make("negotiation-v0")
    for seed in range(20):
        env.reset(seed=seed)
        before = env.baselines[name](env.view("player_0"), np.random.default_rng(0))
        env.values["player_1"] = next(v for v in value_vectors(env.counts) if v != env.values["player_1"])
        assert env.baselines[name](env.view("player_0"), np.random.default_rng(0)) == before


@pytest.mark.parametrize("mine", ["player_0", "player_1"])
@pytest.mark.parametrize("name", ["fair-share", "stubborn"])
def test_the_others_beat_random_play_too(name, mine):
    other = "player_1" if mine == "player_0" else "player_0"
    ahead = [
        env.returns[mine] - env.returns[other] for env in (play({mine: name, other: None}, seed) for seed in range(100))
    ]
    assert np.mean(ahead) - 1.96 * np.std(ahead) / np.sqrt(len(ahead)) > 0.1


def test_nash_gives_in_to_an_ultimatum_and_fair_share_does_not():
    """The numbers of the page, of fewer games."""

    def mean(first, second):
        played = [play({"player_0": first, "player_1": second}, seed).returns for seed in range(120)]
        return [np.mean([returns[seat] for returns in played]) for seat in ("player_0", "player_1")]

    assert mean("stubborn", "nash") == pytest.approx([0.80, 0.27], abs=0.08)
    assert mean("nash", "nash") == pytest.approx([0.80, 0.66], abs=0.08)
    assert mean("stubborn", "fair-share") == pytest.approx([0.24, 0.17], abs=0.08)


def test_nash_accepts_anything_in_the_last_message_of_the_game_alone():
    for rounds_before, answers in ((8, False), (9, True)):
        env = fixed(rounds=5)
        for _ in range(rounds_before):
            env.step("PROPOSE: books 0, hats 2, balls 3")
        reply = env.baselines["nash"](env.view(env.agent_selection), np.random.default_rng(0))
        assert env.facts(env.agent_selection)["message"] == rounds_before
        # the book is left: worth 1 to player_0, 2 to player_1
        assert (reply == "ACCEPT") is answers
