"""The exploitability that `benchmarks/kuhn_exploitability.py` reports, against known values and real episodes."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.models import random_model
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat


@pytest.fixture(scope="module")
def kuhn() -> ModuleType:
    """The program, as a module."""
    path = Path(__file__).parents[1] / "benchmarks" / "kuhn_exploitability.py"
    spec = importlib.util.spec_from_file_location("kuhn_exploitability", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_uniform_play_is_exploitable_by_11_24ths(kuhn: ModuleType) -> None:
    places = itertools.product(kuhn.CARDS, itertools.chain(*kuhn.HISTORIES.values()))
    uniform = {(card, history): dict.fromkeys(kuhn.legal(history), 0.5) for card, history in places}
    assert kuhn.exploitability(uniform) == pytest.approx(11 / 24)


@pytest.mark.parametrize("bluff", [0.0, 0.2, 1 / 3])
def test_an_equilibrium_is_not_exploitable(kuhn: ModuleType, bluff: float) -> None:
    """Kuhn's family: player_0 bets J with chance a and K with 3 a, calls with Q with a + 1/3."""
    bet = {
        (): {"J": bluff, "Q": 0.0, "K": 3 * bluff},
        ("check",): {"J": 1 / 3, "Q": 0.0, "K": 1.0},
        ("bet",): {"J": 0.0, "Q": 1 / 3, "K": 1.0},
        ("check", "bet"): {"J": 0.0, "Q": bluff + 1 / 3, "K": 1.0},
    }
    policy = {}
    for history, chances in bet.items():
        for card, chance in chances.items():
            first, second = kuhn.legal(history)
            bold, shy = (second, first) if first == "check" else (first, second)
            policy[card, history] = {bold: chance, shy: 1 - chance}
    assert kuhn.exploitability(policy) == pytest.approx(0, abs=1e-9)
    values = [kuhn.value([policy, policy], cards) for cards in itertools.permutations(kuhn.CARDS, 2)]
    assert np.mean(values) == pytest.approx(-1 / 18)


def test_prompts_are_those_of_real_episodes(kuhn: ModuleType, tmp_path: Path) -> None:
    chat = ChatFormat.load(random_model(tmp_path, words=kuhn.vocabulary()))
    prompts = kuhn.Prompts(chat)
    seen = set()
    for seed, said in itertools.product(range(12), [("check", "bet", "fold"), ("bet", "call")]):
        engine = FakeEngine([[prompts.actions[action]] for action in said], policies=("learner",))
        with Runtime(engine=engine) as runtime:
            runtime.serve("learner", ServedPolicy(engine, "learner", chat, 512))
            trace = llm_arena.play(
                "kuhn-poker-v0", "llm:learner", seed, runtime=runtime, max_new_tokens=1, temperature=1.0
            )
        assert [turn.text for turn in trace.turns] == list(said)
        env = llm_arena.make("kuhn-poker-v0")
        env.reset(seed=seed)
        for index, turn in enumerate(trace.turns):
            place = env.facts(turn.seat)["card"], said[:index]
            assert trace.full_ids(index)[0] == prompts.ids[place]
            seen.add(place)
    assert seen == set(prompts.ids)
