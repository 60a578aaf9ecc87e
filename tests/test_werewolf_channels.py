"""Private channels of werewolf-v0: nothing private is seen by anybody else."""

import json
import re

import numpy as np
import pytest

import llm_arena
from llm_arena.checks import check_env
from llm_arena.errors import EnvContractError
from llm_arena.leaks import secrets_are_kept
from llm_arena.registry import env_class
from llm_arena.types import Cause
from werewolf_parts import CARDS, D, S, V, W, dealt, night, seat, text_of


def all_seen(env, number):
    """Returns everything that a seat could learn from, as one string."""
    who = seat(number)
    views = [env.observe(who), env.infos.get(who), env.facts(who), env.grammar(who), env.legal_actions(who)]
    return json.dumps([*views, env.transcript(who), env.tools(who)])


# ---- private channels ----------------------------------------------------------------------------------------------


def test_whispers_and_targets_of_wolves_reach_wolves_alone():
    env = dealt()
    whispers = {"player_0": "let us take the fourth", "player_1": "agreed old friend"}
    night(env, kill=4, check=6, protect=5, whispers=whispers)
    assert "By night the wolf player_1 chose player_4 and whispered:\n> agreed old friend" in text_of(env, 0)
    assert "let us take the fourth" in text_of(env, 1)
    rng = np.random.default_rng(0)
    while not env.over:
        for number in range(2, 7):
            seen = all_seen(env, number)
            assert not any(words in seen for words in (*whispers.values(), "By night the wolf", "WHISPER"))
        env.step(env.sample_reply(env.agent_selection, rng))


def test_a_whisper_by_somebody_else_goes_nowhere():
    env = dealt()
    for actor in list(env.pending):
        env.step(f"WHISPER: psst {actor}\n{env.legal_actions(actor)[-1]}")
        assert env.last_step.cause is Cause.LEGAL
    for number in range(7):
        heard = [who for who in env.possible_agents if f"> psst {who}" in text_of(env, number)]
        others = {"player_0": ["player_1"], "player_1": ["player_0"]}.get(seat(number), [])
        assert heard == [who for who in others if seat(number) in env.alive]


def test_what_the_seer_saw_is_the_seers():
    env = dealt()
    night(env, kill=4, check=0, protect=5)
    for number in (0, 1, 3, 5, 6):
        seen = all_seen(env, number)
        assert "You looked" not in seen and env.facts(seat(number))["checked"] == {}


def replay_both(left, right, watcher, replies):
    """Plays the same replies in two games, comparing all that `watcher` can see; returns how many were compared."""
    compared = 0
    for reply in replies:
        assert all_seen(left, watcher) == all_seen(right, watcher)
        assert left.pending == right.pending and left.agent_selection == right.agent_selection
        for env in (left, right):
            env.step(reply)
        assert left.last_step.cause is right.last_step.cause is Cause.LEGAL
        compared += 1
    assert all_seen(left, watcher) == all_seen(right, watcher)
    return compared


# player_6 watches; in these deals others have swapped cards.
OTHERS = {
    "a villager and a wolf": (W, V, S, D, W, V, V),
    "the seer and the doctor": (W, W, D, S, V, V, V),
    "the seer and a villager": (W, W, V, D, V, S, V),
    "the doctor and a villager": (W, W, S, V, D, V, V),
    "both wolves": (V, V, S, D, W, W, V),
}


@pytest.mark.parametrize("cards", OTHERS.values(), ids=OTHERS)
def test_a_villager_can_not_tell_two_deals_apart(cards):
    # all name player_3 at night but for those who may not: whoever is a wolf, the doctor does not save player_3
    night_one = ["TARGET: player_3"] * 3 + ["TARGET: player_6"] + ["TARGET: player_3"] * 3
    if cards[3] != CARDS[3]:  # the victim's card is shown, so the victim is one that holds the same card in both deals
        return_to = next(at for at in (2, 6, 5, 4) if at != 6 and cards[at] == CARDS[at])
        night_one = [f"TARGET: player_{return_to if at != return_to else 6}" for at in range(7)]
    doctors = {CARDS.index(D), cards.index(D)}
    for at in doctors:  # may save nobody that the wolves name
        night_one[at] = "TARGET: player_6"
    night_one = [f"WHISPER: I am {at}\n{reply}" for at, reply in enumerate(night_one)]
    left, right = dealt(), dealt(cards)
    compared = replay_both(left, right, 6, night_one)
    assert left.out == right.out and len(left.out) == 1
    compared += replay_both(left, right, 6, ["SAY: I am a villager."] * 6)
    compared += replay_both(left, right, 6, ["VOTE: nobody"] * 6)
    assert compared == 19 and left.phase == "night" and left.day == 1


def test_another_wolf_is_known_to_wolves_and_villagers_differ_for_nobody():
    left, right = dealt((W, W, S, D, V, V, V)), dealt((W, W, S, V, D, V, V))
    assert all_seen(left, 0) == all_seen(right, 0) and all_seen(left, 2) == all_seen(right, 2)
    assert "The other wolves: player_1." in text_of(left, 0)
    other = dealt((W, V, S, D, W, V, V))
    assert all_seen(left, 0) != all_seen(other, 0)
    assert all_seen(left, 2) == all_seen(other, 2)


def test_the_order_of_turns_is_the_same_for_every_deal():
    def order(cards):
        env, rng, turns = dealt(cards, illegal="skip"), np.random.default_rng(0), []
        for _ in range(14):
            turns.append((env.agent_selection, list(env.pending)))
            env.step("" if env.phase == "night" else env.sample_reply(env.agent_selection, rng))
        return turns

    assert order(CARDS) == order((V, V, V, D, S, W, W)) == order((V, W, V, S, D, V, W))


def test_planted_leaks_are_caught():
    base = env_class("werewolf-v0")

    class InView(base):
        def _tell_pack(self, hunt):
            super()._tell_pack(hunt)
            self.tell(self.alive, f"The wolves thought of {sorted(hunt.values())}")

    class InFacts(base):
        def facts(self, seat):
            return super().facts(seat) | {"seer": self.checked}

    class InGrammar(base):
        def grammar(self, seat):
            return f"{super().grammar(seat)}{'|x' if self.cards['player_3'] == W else ''}"

    class InLegal(base):
        def legal_actions(self, seat):
            return [*(super().legal_actions(seat) or []), *self._wolves()]

    for leaky in (InView, InFacts, InGrammar, InLegal):
        with pytest.raises(EnvContractError, match="learns something"):
            secrets_are_kept(leaky(), 0)


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"players": 9, "wolves": 3, "talks": 2, "days": 2},
        {"players": 8, "retries": 1},
        {"cards": {"player_1": W, "player_4": S}},
        {"cards": {"player_0": W, "player_1": W, "player_2": S, "player_3": D}},
    ],
)
def test_the_checks_pass(kwargs):
    check_env(llm_arena.make("werewolf-v0", **kwargs))


def test_what_is_drawn_matches_the_grammar_and_is_legal():
    env = dealt()
    rng = np.random.default_rng(2)
    while not env.over:
        actor = env.agent_selection
        for reply in [*(env.legal_actions(actor) or []), env.sample_reply(actor, rng)]:
            assert re.fullmatch(env.grammar(actor), reply)
        env.step(reply)
        assert env.last_step.cause is Cause.LEGAL
    assert re.fullmatch(dealt().grammar("player_0"), "WHISPER: Let us kill the seer.\nTARGET: player_2")
    assert not re.fullmatch(dealt().grammar("player_4"), "WHISPER: psst\nTARGET: player_2")
