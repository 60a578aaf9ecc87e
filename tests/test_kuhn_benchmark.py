"""`benchmarks/kuhn_exploitability.py`: it asks the model what real episodes ask it, and it runs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.game_tree import Tree
from llm_arena.models import random_model
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.training.action_chances import prompts_of


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


def test_prompts_are_those_of_real_episodes(kuhn: ModuleType, tmp_path: Path) -> None:
    chat = ChatFormat.load(random_model(tmp_path, words=kuhn.vocabulary()))
    tree = Tree("kuhn-poker-v0")
    prompts = dict(
        zip(
            ((infoset.view.facts["card"], *infoset.view.facts["history"]) for infoset in tree.infosets),
            prompts_of(tree, chat, ends=False),
            strict=True,
        )
    )
    ids = {}
    for action in ("check", "bet", "call", "fold"):
        [ids[action]] = chat.tokenizer.encode(action, add_special_tokens=False)
    seen = set()
    for seed, said in itertools.product(range(12), [("check", "bet", "fold"), ("bet", "call")]):
        engine = FakeEngine([[ids[action]] for action in said], policies=("learner",))
        with Runtime(engine=engine) as runtime:
            runtime.serve("learner", ServedPolicy(engine, "learner", chat, 512))
            trace = llm_arena.play(
                "kuhn-poker-v0", "llm:learner", seed, runtime=runtime, max_new_tokens=1, temperature=1.0
            )
        assert [turn.text for turn in trace.turns] == list(said)
        env = llm_arena.make("kuhn-poker-v0")
        env.reset(seed=seed)
        for index, turn in enumerate(trace.turns):
            place = (env.facts(turn.seat)["card"], *said[:index])
            assert trace.full_ids(index)[0] == prompts[place]
            seen.add(place)
    assert seen == set(prompts) and len(seen) == 12


def test_it_runs_and_tells_its_figures(kuhn: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert kuhn.main(["--num-steps", "2", "--starts-per-step", "8", "--evaluate-every", "1", "--lr", "0.01"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in shown[:-1]] == [["step", "0"], ["step", "1"], ["step", "2"]]
    figures = json.loads(shown[-1])
    assert figures["initial"] == 0.6127  # of seed 0, whatever its probabilities are read with
    assert figures["last"] != figures["initial"]
