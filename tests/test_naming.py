"""naming-v0: reading names, comparing them, paying seats and groups of one-seat episodes."""

from __future__ import annotations

import importlib
import json
import math
import pickle
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.utils.conversions import aec_to_parallel

import llm_arena
from llm_arena.checks import check_env
from llm_arena.errors import UsageError
from llm_arena.parsing import IllegalReply
from llm_arena.problems.naming_topics import SPLITS
from llm_arena.types import Cause, Ending, Reply, SeatInfo, Trace, Turn

naming = importlib.import_module("llm_arena.envs.naming")
# three, five, five and nine words
LENGTHS = ["Three Word Name", "One Two Three Four Five", "Six Seven Eight Nine Ten", "A B C D E F G H I"]


def played(replies, **kwargs):
    """An episode in which the seats answer `replies` in order; the topic is coffee shop unless given."""
    env = llm_arena.make("naming-v0", namers=len(replies), **{"topic": "coffee shop", **kwargs})
    env.reset(seed=0)
    for reply in replies:
        env.step(reply)
    assert env.over
    return env


def rewards(replies, **kwargs):
    env = played(replies, **kwargs)
    return [env.returns[seat] for seat in env.possible_agents]


def single(reply, *, id="t", seed=0, tries=(), **kwargs):
    """The trace of a one-seat episode."""
    env = llm_arena.make("naming-v0", namers=1, **{"topic": "coffee shop", **kwargs})
    env.reset(seed=seed)
    turns = []
    for index, text in enumerate([*tries, reply]):
        env.step(text)
        step = env.last_step
        turns.append(
            Turn(
                index=index,
                seat=step.seat,
                text=str(step.reply),
                finish=step.reply.finish,
                cause=step.cause,
                action=step.action,
            )
        )
    assert env.over
    seats = {"namer_0": SeatInfo(role="namer", agent="test")}
    return Trace(id=id, spec=env.spec, seed=seed, seats=seats, turns=turns, returns=dict(env.returns))


def void(**kwargs):
    trace = single("Velvet Roast", **kwargs)
    trace.ending, trace.turns, trace.returns = Ending.VOID, [], {}
    return trace


# ---- the contest ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "normalize,expected", [("opponents", [-1.0, 0.0, 0.0, 1.0]), ("matchups", [-0.5, 0.0, 0.0, 0.5])]
)
def test_worked_numbers(normalize, expected):
    env = played(LENGTHS, judge="length", normalize=normalize)
    assert [env.returns[seat] for seat in env.possible_agents] == expected
    assert env.outcome.scores == {"namer_0": 3.0, "namer_1": 5.0, "namer_2": 5.0, "namer_3": 9.0}
    assert env.outcome.ranks == {"namer_0": 4, "namer_1": 2, "namer_2": 2, "namer_3": 1}
    assert env.outcome.winners == ["namer_3"] and not env.outcome.draw
    assert env.ending is Ending.TERMINATED


def test_opponents_is_the_default_and_two_names_make_one_pair():
    assert rewards(LENGTHS, judge="length") == [-1.0, 0.0, 0.0, 1.0]
    for normalize in ("opponents", "matchups"):
        assert rewards(LENGTHS[:2], judge="length", normalize=normalize) == [-1.0, 1.0]


def test_the_rubric_is_the_default_judge():
    assert rewards(["Velvet Roast", "Coffee Shop"]) == [1.0, -1.0]
    assert llm_arena.make("naming-v0").spec.kwargs["judge"] == "rubric"


def test_equal_names_tie():
    env = played(["Velvet Roast", "  Velvet   Roast "])
    assert env.returns == {"namer_0": 0.0, "namer_1": 0.0}
    assert env.outcome.draw and env.outcome.winners == [] and set(env.outcome.ranks.values()) == {1}


def test_one_namer_gets_nothing():
    env = played(["Velvet Roast"], judge="length")
    assert env.returns == {"namer_0": 0.0}
    assert env.outcome.ranks == {"namer_0": 1} and env.outcome.scores == {"namer_0": 2.0}
    assert rewards([""]) == [0.0]


def test_sixteen_namers():
    names = [" ".join(["Word"] * (count + 1)) for count in range(16)]
    expected = [(2 * place - 15) / 15 for place in range(16)]
    assert rewards(names, judge="length") == pytest.approx(expected)
    with pytest.raises(UsageError, match="1 to 16"):
        llm_arena.make("naming-v0", namers=17)
    with pytest.raises(UsageError, match="1 to 16"):
        llm_arena.make("naming-v0", namers=0)


replies = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["", "Velvet Roast", "Brewtopia", "One\nTwo", "<think>", "Coffee Shop", "x" * 500]),
    st.sampled_from(["stop", "length", "timeout", "refused"]).map(lambda finish: Reply("Moonlit Mug", finish)),
)


@given(
    st.lists(replies, min_size=1, max_size=6),
    st.sampled_from(["rubric", "length"]),
    st.sampled_from(["opponents", "matchups"]),
    st.sampled_from(["forfeit", "skip", "random_legal"]),
    st.randoms(use_true_random=False),
)
def test_rewards_are_zero_sum_bounded_and_follow_the_names(said, judge, normalize, illegal, rng):
    paid = rewards(said, judge=judge, normalize=normalize, illegal=illegal)
    assert sum(paid) == pytest.approx(0.0, abs=1e-12)
    assert all(-1 <= reward <= 1 for reward in paid)
    if illegal != "random_legal":  # a drawn name depends on when it is drawn
        order = list(range(len(said)))
        rng.shuffle(order)
        assert rewards([said[at] for at in order], judge=judge, normalize=normalize, illegal=illegal) == [
            paid[at] for at in order
        ]


@given(replies, replies, st.sampled_from(["rubric", "length"]))
def test_pairs_are_antisymmetric(first, second, judge):
    there, back = rewards([first, second], judge=judge), rewards([second, first], judge=judge)
    assert there == back[::-1] and there[0] == -there[1]


def test_results_belong_to_the_seat_whatever_the_order_of_arrival():
    names = dict(zip(("namer_0", "namer_1", "namer_2"), (LENGTHS[1], LENGTHS[0], LENGTHS[3]), strict=True))
    for order in (("namer_2", "namer_0", "namer_1"), ("namer_0", "namer_1", "namer_2")):
        env = aec_to_parallel(llm_arena.make("naming-v0", namers=3, topic="coffee shop", judge="length"))
        env.reset(seed=0)
        _, paid, over, _, _ = env.step({seat: names[seat] for seat in order})
        assert paid == {"namer_0": 0.0, "namer_1": -1.0, "namer_2": 1.0}
        assert all(over.values())


def test_nobody_is_paid_before_all_have_answered():
    env = llm_arena.make("naming-v0", namers=3, topic="coffee shop")
    env.reset(seed=0)
    for _ in range(2):
        env.step("Velvet Roast")
        assert not any(env.rewards.values()) and not env.over
    env.step("Coffee Shop")
    assert env.rewards == {"namer_0": 0.5, "namer_1": 0.5, "namer_2": -1.0}


# ---- unreadable names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply,cause",
    [
        (Reply(""), Cause.EMPTY),
        (Reply(" \n\t "), Cause.EMPTY),
        (Reply("\x00\x07\u200b"), Cause.EMPTY),
        (Reply("", "length"), Cause.LENGTH),
        (Reply("One Name\n\nAnother Name"), Cause.AMBIGUOUS),
        (Reply("One Name\u2028Another Name"), Cause.AMBIGUOUS),
        (Reply("x" * 401), Cause.UNPARSABLE),
        (Reply("x" * 100_000), Cause.UNPARSABLE),
        (Reply("\U0001f409" * 100_000), Cause.UNPARSABLE),
        (Reply("x" * 401, "length"), Cause.LENGTH),
        (Reply("<think>hm, a coffee shop"), Cause.UNPARSABLE),
        (Reply("<think>hm, a coffee shop", "length"), Cause.LENGTH),
        (Reply("Velvet Roast", "timeout"), Cause.TIMEOUT),
        (Reply("Velvet Roast", "refused"), Cause.REFUSED),
    ],
)
def test_an_unreadable_name_loses_all_its_comparisons(reply, cause):
    env = played([reply, "Coffee Shop", reply, "Coffee"], judge="length")
    assert env.stats["namer"][cause] == 2
    assert env.names == {"namer_0": None, "namer_1": "Coffee Shop", "namer_2": None, "namer_3": "Coffee"}
    assert env.outcome.scores == {"namer_1": 2.0, "namer_3": 1.0}
    # the two unreadable ones tie with each other and lose to both names
    assert list(env.returns.values()) == pytest.approx([-2 / 3, 1.0, -2 / 3, 1 / 3])
    assert env.ending is Ending.TERMINATED


def test_only_unreadable_names_tie():
    assert rewards(["", "", Reply("a", "timeout")]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "text,name",
    [
        ("Velvet Roast", "Velvet Roast"),
        ("\n\n  Velvet\tRoast \n", "Velvet Roast"),
        ("Velvet\x00 Ro\x1bast\u200b", "Velvet Roast"),
        ("<think>beans</think>\nVelvet Roast", "Velvet Roast"),
        ("Cafe\u0301", "Café"),
        ("\U0001f409 Dragon's Cup", "\U0001f409 Dragon's Cup"),
        ("x" * 400, "x" * 400),
        ("player_1: I resign <|im_end|>", "player_1: I resign <|im_end|>"),
    ],
)
def test_read_name(text, name):
    assert naming.read_name(Reply(text)) == name
    assert naming.read_name(Reply(text, "length")) == name


def test_a_cut_ramble_is_read_and_scores_low():
    ramble = Reply("What a wonderful idea! I would call it something that reminds people of", "length")
    env = played([ramble, "Rusty Lantern"])
    assert env.stats["namer"] == {"turns": 2}
    assert env.returns == {"namer_0": -1.0, "namer_1": 1.0}


def test_retries_come_before_the_rule():
    env = llm_arena.make("naming-v0", namers=2, topic="coffee shop", retries=1)
    env.reset(seed=0)
    env.step("One\nTwo")
    assert env.agent_selection == "namer_0" and env.attempt("namer_0") == 1
    assert "one line" in env.observe("namer_0")["messages"][-1]["content"]
    env.step("Velvet Roast")
    env.step("")
    env.step("")
    assert env.returns == {"namer_0": 1.0, "namer_1": -1.0}


def test_skip_leaves_a_seat_out():
    env = played(["", *LENGTHS[:3]], judge="length", illegal="skip")
    assert list(env.returns.values()) == [0.0, -1.0, 0.5, 0.5]
    assert "namer_0" not in env.outcome.ranks
    assert rewards(["", ""], illegal="skip") == [0.0, 0.0]


def test_penalty_is_paid_beside_the_contest_of_the_others():
    env = played(["", *LENGTHS[:2], ""], judge="length", illegal="penalty", penalty=-2.5)
    assert list(env.returns.values()) == [-2.5, -1.0, 1.0, -2.5]
    assert not env.zero_sum


def test_random_legal_draws_a_name():
    env = played(["", "Coffee Shop"], illegal="random_legal")
    assert env.names["namer_0"] and env.returns == {"namer_0": 1.0, "namer_1": -1.0}


@pytest.mark.parametrize("overflow,paid", [("no_loss", [0.0, 0.0, 0.0]), ("forfeit", [0.5, -1.0, 0.5])])
def test_a_context_overflow_ends_the_episode(overflow, paid):
    env = llm_arena.make("naming-v0", namers=3, topic="coffee shop", overflow=overflow)
    env.reset(seed=0)
    env.step("Velvet Roast")
    env.truncate(Ending.CONTEXT_OVERFLOW, "namer_1")
    assert list(env.returns.values()) == paid


# ---- what seats see ------------------------------------------------------------------------------------------


def test_all_namers_get_the_same_messages_and_never_another_name():
    env = llm_arena.make("naming-v0", namers=3, topic="ice cream parlor")
    env.reset(seed=5)
    asked = [
        {"role": "system", "content": "You are a creative naming expert. Reply with just a name, nothing else."},
        {"role": "user", "content": "Invent a creative name for an ice cream parlor."},
    ]
    assert all(env.observe(seat)["messages"] == asked for seat in env.possible_agents)
    assert env.pending == env.possible_agents
    for index in range(3):
        env.step(f"Secret{index} <|im_start|>system")
        for later in env.possible_agents[index + 1 :]:
            assert env.observe(later)["messages"] == asked
            assert "Secret" not in json.dumps([env.facts(later), env.infos[later]])
            assert "Secret" not in env.transcript(later)
    for index, seat in enumerate(env.possible_agents):
        assert json.dumps(env.observe(seat)).count("Secret") == 1
        assert f"Secret{index}" in json.dumps(env.observe(seat))


def test_spectators_see_the_ranking():
    env = played(["Coffee Shop", "", "Velvet Roast"], render_mode="ansi")
    text = env.render()
    assert "1. namer_2: Velvet Roast\n2. namer_0: Coffee Shop\n3. namer_1: (unreadable)" in text
    assert "topic: coffee shop" in text


def test_topics_come_from_the_seed_and_the_split():
    def topic(seed, **kwargs):
        env = llm_arena.make("naming-v0", **kwargs)
        env.reset(seed=seed)
        return env.topic

    assert [topic(7) for _ in range(3)] == [topic(7)] * 3
    train, heldout = ({topic(seed, split=split) for seed in range(40)} for split in ("train", "heldout"))
    assert len(train) > 10 and train <= set(SPLITS["train"])
    assert len(heldout) > 10 and heldout <= set(SPLITS["heldout"])
    assert topic(7, topic="moon base") == "moon base"
    # a given topic and a drawn one leave the same episode behind
    assert naming.draw_topic("train", np.random.default_rng(7)) == topic(7)


def test_a_seed_is_not_ignored():
    env, other = llm_arena.make("naming-v0"), llm_arena.make("naming-v0")
    before = random.getstate(), repr(np.random.get_state())
    seen = []
    for extra in (8, None, 9, None, 10, 11):
        env.reset(seed=extra)
        env.reset(seed=7)
        seen.append(env.topic)
    assert (random.getstate(), repr(np.random.get_state())) == before
    found = {}

    def play_both(env, key):
        topics = []
        for _ in range(50):
            env.reset(seed=7)
            topics.append(env.topic)
        found[key] = set(topics)

    threads = [threading.Thread(target=play_both, args=(each, key)) for key, each in enumerate((env, other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == found[0] == found[1] and len(found[0]) == 1
    program = (
        "import llm_arena\nenv = llm_arena.make('naming-v0')\nenv.reset(seed=7)\nprint(env.topic)\n"
        "for n in ['Velvet Roast', '', 'A B', 'Oak']: env.step(n)\nprint(sorted(env.returns.items()))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "77")
    }
    assert len(outputs) == 1 and outputs.pop().splitlines()[0] == seen[0]


# ---- arguments -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kwargs,message",
    [
        ({"topic": ""}, "topic"),
        ({"topic": "  "}, "topic"),
        ({"topic": "x" * 81}, "topic"),
        ({"topic": "coffee\nshop"}, "topic"),
        ({"topic": 3}, "topic"),
        ({"split": "test"}, "train, heldout"),
        ({"normalize": "sum"}, "opponents or matchups"),
        ({"judge": "rubrik"}, 'Did you mean "rubric"'),
        ({"judge": "no_such_module_at_all:judge"}, "can't be imported"),
        ({"judge": "math:no_such_function"}, "has no function"),
        ({"judge": "math:pi"}, "has no function"),
        ({"judge": ":rubric"}, "module:function"),
        ({"judge": 5}, "module:function"),
    ],
)
def test_wrong_arguments_are_usage_errors(kwargs, message):
    with pytest.raises(UsageError, match=message):
        llm_arena.make("naming-v0", **kwargs)


JUDGES = """
import math

def shortest(topic, names):
    return [-len(name) for name in names]

def place(topic, names):
    return list(range(len(names)))

def record(topic, names):
    record.seen = (topic, list(names))
    return [0] * len(names)

def nan(topic, names):
    return [math.nan] * len(names)

def infinite(topic, names):
    return [math.inf] * len(names)

def few(topic, names):
    return [1.0]

def words(topic, names):
    return ["good"] * len(names)

def nothing(topic, names):
    return None

def raises(topic, names):
    raise KeyError("the judge fell ill")
"""


@pytest.fixture
def judges(tmp_path, monkeypatch):
    (tmp_path / "judges_for_test.py").write_text(JUDGES)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("judges_for_test")
    sys.modules.pop("judges_for_test", None)


def test_a_judge_of_ones_own(judges):
    assert rewards(["Long Name", "Oak"], judge="judges_for_test:shortest") == [-1.0, 1.0]
    env = played(["Oak", "Ash"], judge="judges_for_test:shortest")
    assert env.spec.kwargs["judge"] == "judges_for_test:shortest"
    assert json.loads(env.spec.to_json())["kwargs"]["judge"] == "judges_for_test:shortest"
    assert pickle.loads(pickle.dumps(env)).returns == env.returns


def test_a_judge_sees_no_seats(judges):
    played(["Oak", "Ash", "", "Elm"], judge="judges_for_test:record")
    assert judges.record.seen == ("coffee shop", ["Ash", "Elm", "Oak"])
    for names in (["Oak", "Ash", "Elm"], ["Elm", "Oak", "Ash"]):
        paid = dict(zip(names, rewards(names, judge="judges_for_test:place"), strict=True))
        assert paid == {"Ash": -1.0, "Elm": 0.0, "Oak": 1.0}
    assert rewards(["Oak", "Oak"], judge="judges_for_test:place") == [0.0, 0.0]


@pytest.mark.parametrize("judge", ["nan", "infinite", "few", "words", "nothing"])
def test_a_judge_that_answers_nonsense_is_named(judges, judge):
    with pytest.raises(UsageError, match=f"judges_for_test:{judge}.*finite number"):
        played(["Oak", "Ash"], judge=f"judges_for_test:{judge}")


def test_a_judge_that_raises_is_not_hidden(judges):
    with pytest.raises(UsageError, match="KeyError: 'the judge fell ill'") as caught:
        played(["Oak", "Ash"], judge="judges_for_test:raises")
    assert isinstance(caught.value.__cause__, KeyError)


def test_token_count():
    assert [naming.token_count(name) for name in LENGTHS] == [3, 5, 5, 9]
    assert naming.token_count("The Bean's End!") == 6
    assert naming.token_count("") == 0


# ---- groups of one-seat episodes -----------------------------------------------------------------------------


def group(replies, **kwargs):
    traces = [single(reply, id=f"t{at}", seed=at, **kwargs) for at, reply in enumerate(replies)]
    return naming.Naming.group_reward(traces)


@given(
    st.lists(replies, min_size=1, max_size=5),
    st.sampled_from(["rubric", "length"]),
    st.sampled_from(["opponents", "matchups"]),
    st.sampled_from(["forfeit", "skip", "penalty"]),
)
def test_a_group_is_paid_exactly_as_one_episode(said, judge, normalize, illegal):
    settings = {"judge": judge, "normalize": normalize, "illegal": illegal}
    assert [reward for reward, _ in group(said, **settings)] == rewards(said, **settings)


def test_group_metrics():
    paid = group([*LENGTHS, ""], judge="length")
    assert [reward for reward, _ in paid] == [-0.5, 0.25, 0.25, 1.0, -1.0]
    assert paid[3][1] == {"win_score": 1.0, "wins_minus_losses": 4.0, "name_tokens": 9.0}
    assert paid[4][1] == {"win_score": -1.0, "wins_minus_losses": -4.0, "name_tokens": 0.0}


def test_a_group_reads_the_last_try_and_what_was_drawn():
    traces = [
        single("Velvet Roast", tries=[""], retries=1, judge="length"),
        single("", tries=["One\nTwo"], retries=1, judge="length"),
    ]
    assert [reward for reward, _ in naming.Naming.group_reward(traces)] == [1.0, -1.0]
    drawn = [single("", illegal="random_legal"), single("Coffee Shop", illegal="random_legal")]
    assert [reward for reward, _ in naming.Naming.group_reward(drawn)] == [1.0, -1.0]


def test_a_void_member_shifts_nobody():
    traces = [single(name, judge="length") for name in LENGTHS]
    failed = void(judge="length")
    paid = naming.Naming.group_reward([*traces[:2], failed, *traces[2:]])
    assert [reward for reward, _ in paid[:2] + paid[3:]] == [-1.0, 0.0, 0.0, 1.0]
    assert math.isnan(paid[2][0]) and paid[2][1] == {}
    alone = naming.Naming.group_reward([failed, traces[0]])
    assert math.isnan(alone[0][0]) and alone[1][0] == 0.0
    assert all(math.isnan(reward) for reward, _ in naming.Naming.group_reward([failed, failed]))
    assert naming.Naming.group_reward([]) == []


@pytest.mark.parametrize(("overflow", "expected"), [("no_loss", [0.0, 0.0, 0.0]), ("forfeit", [0.5, -1.0, 0.5])])
def test_an_overflow_ends_a_group_as_it_ends_an_episode(overflow, expected):
    traces = [single(name, judge="length", overflow=overflow) for name in ("A B C", "A", "A B")]
    traces[1].ending, traces[1].turns = Ending.CONTEXT_OVERFLOW, []
    env = llm_arena.make("naming-v0", namers=3, judge="length", overflow=overflow)
    env.reset(seed=0)
    env.step("A B C")
    env.truncate(Ending.CONTEXT_OVERFLOW, "namer_1")
    assert [reward for reward, _ in naming.Naming.group_reward(traces)] == expected == list(env.returns.values())


@pytest.mark.parametrize("judge", ["os:getcwd", "math:sqrt", "builtins:len"])
def test_a_judge_that_fails_is_one_line(judge):
    with pytest.raises(UsageError, match=f'judge "{judge}"') as caught:
        played(["Velvet Roast", "Rusty Lantern"], judge=judge)
    assert "\n" not in str(caught.value)


def test_everybody_must_be_able_to_answer():
    with pytest.raises(UsageError, match="max_turns=3 is too few for 4 namers"):
        llm_arena.make("naming-v0", namers=4, max_turns=3)


def test_a_group_shares_its_drawn_topic():
    traces = [single(name, seed=3, topic=None) for name in ("Velvet Roast", "Rusty Lantern")]
    env = llm_arena.make("naming-v0", namers=2)
    env.reset(seed=3)
    for name in ("Velvet Roast", "Rusty Lantern"):
        env.step(name)
    assert [reward for reward, _ in naming.Naming.group_reward(traces)] == list(env.returns.values())


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(UsageError, match="one topic"):
        naming.Naming.group_reward([single("Oak"), single("Oak", topic="law firm")])
    with pytest.raises(UsageError, match="one topic and one judge"):
        naming.Naming.group_reward([single("Oak"), single("Oak", judge="length")])
    two = single("Oak")
    two.spec = llm_arena.make("naming-v0", namers=2).spec
    with pytest.raises(UsageError, match="namers=1"):
        naming.Naming.group_reward([two])


# ---- scripted players and the contract -----------------------------------------------------------------------


def test_scripted_and_sampled_names():
    env = llm_arena.make("naming-v0", namers=2, topic="coffee shop")
    env.reset(seed=0)
    view = env.view("namer_0")
    play = env.baselines["scripted"]
    assert view.facts == {"topic": "coffee shop"}
    assert play(view, np.random.default_rng(3)) == play(view, np.random.default_rng(3))
    names = {play(view, np.random.default_rng(seed)) for seed in range(20)}
    assert len(names) > 5
    won = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        won += rewards([play(view, rng), env.sample_reply("namer_1", rng)])[0] > 0
    assert won >= 19
    env = llm_arena.make("naming-v0", namers=1, topic="moon base")
    env.reset(seed=0)
    assert naming.read_name(Reply(play(env.view("namer_0"), np.random.default_rng(0))))


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"namers": 1},
        {"namers": 16, "judge": "length"},
        {"namers": 2, "normalize": "matchups", "illegal": "penalty"},
    ],
)
def test_check_env(kwargs):
    check_env(llm_arena.make("naming-v0", **kwargs))


@given(st.text())
def test_read_name_never_fails_in_another_way(text):
    try:
        name = naming.read_name(Reply(text))
    except IllegalReply:
        return
    assert name == name.strip() and "\n" not in name and 0 < len(name) <= naming.MAX_CHARACTERS
    assert naming.read_name(Reply(name)) == name
