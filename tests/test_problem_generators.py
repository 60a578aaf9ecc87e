"""Problems of reasoning_gym: what is drawn, replayed, graded, and what no grader is fooled or held up by."""

import importlib.metadata
import importlib.util
import json
import os
import random
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest

from llm_arena.errors import UsageError
from llm_arena.problems.sources import open_source
from llm_arena.problems.sources import reasoning_gym as reasoning_gym_source
from problem_source_parts import (
    drawn,
    no_network,  # noqa: F401 -- a fixture of the whole file
    rng,
)

SPLITS = ("train", "heldout")


def generators():
    import reasoning_gym.factory

    return sorted(set(reasoning_gym.factory.DATASETS) - set(reasoning_gym_source.REFUSED))


def test_a_generator_draws_by_seed_grades_itself_and_names_its_version():
    source = open_source("reasoning-gym:chain_sum:min_terms=2:max_terms=2")
    version = importlib.metadata.version("reasoning-gym")
    assert source.name == f"reasoning-gym:chain_sum@{version}:min_terms=2:max_terms=2" and source.slow
    assert source.resolved() == {"source": source.name, "source_sha256": None}
    assert drawn(source) == drawn(open_source(source.name)) and len(drawn(source)) > 30
    question = source.draw(rng())
    assert source.grade(question, question.answer) == "right" and source.grade(question, "no idea") == "wrong"
    assert source.grade(question, f"the answer is {question.answer}") == "wrong"  # which its grader pays in part
    asked = {split: {question for question, _ in drawn(open_source(source.name, split=split), 200)} for split in SPLITS}
    assert min(map(len, asked.values())) > 100 and not asked["train"] & asked["heldout"]


def test_a_generator_with_too_few_problems_for_a_split_says_so():
    source = open_source("reasoning-gym:chain_sum")
    source._make = lambda seed: [{"question": "What is 1 + 1?", "answer": "2"}]
    other = {"train": "heldout", "heldout": "train"}[reasoning_gym_source.split_of("What is 1 + 1?")]
    source.split = other
    with pytest.raises(UsageError, match="too few problems"):
        source.draw(rng())


JUNK = ("", "hello", "[[1", "99991**99991**99991**99991", "__import__('os').abort()", "[" * 4000, "\x00", "9" * 5001)

_DRAW = """
import json, sys
import numpy as np
from llm_arena.problems.sources import open_source
found = {}
for name in json.loads(sys.stdin.read()):
    source = open_source("reasoning-gym:" + name)
    found[name] = [source.draw(np.random.default_rng(seed)).text for seed in range(2)]
print(json.dumps(found))
"""


def test_every_generator_that_is_not_refused_replays_elsewhere_grades_right_and_leaves_the_global_generators():
    others = subprocess.Popen(
        [sys.executable, "-c", _DRAW],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    before = random.getstate(), repr(np.random.get_state())
    mine, unlike = {}, []
    for name in generators():
        source = open_source(f"reasoning-gym:{name}")
        questions = [source.draw(rng(seed)) for seed in range(2)]
        mine[name] = [question.text for question in questions]
        for question in questions:
            if question.answer and name != "boxnet" and source.grade(question, question.answer) != "right":
                unlike.append((name, question))
            for junk in JUNK:
                if junk != question.answer and source.grade(question, junk) == "right":
                    unlike.append((name, junk))
    assert (random.getstate(), repr(np.random.get_state())) == before and not unlike
    theirs, _ = others.communicate(json.dumps(generators()), timeout=300)
    assert json.loads(theirs) == mine


def forged(answer):
    """Returns texts that hold an answer, or a part of it, and more."""
    begins = (answer[:length] for length in (1, 2, len(answer) // 2, len(answer) - 1))
    around = (f"not {answer}", f"{answer} or 7", f"-{answer}", f"{answer} 7", f"{answer} hello")
    return ["0", "nan", "inf", *begins, *around]


def same(text, answer):
    """Returns whether two texts differ by a blank or stop at their end, or are numbers that differ by rounding."""
    if text.rstrip(" .)\n") == answer.rstrip(" .)\n"):
        return True
    try:
        given, right = ([float(number) for number in each.split(",")] for each in (text, answer))
    except ValueError:
        return False
    return len(given) == len(right) and all(abs(a - b) <= 0.01 * abs(b) for a, b in zip(given, right, strict=True))


def test_no_grader_takes_what_holds_an_answer_for_one():
    farmed = []
    for name in generators():
        source = open_source(f"reasoning-gym:{name}")
        for question in (source.draw(rng(seed)) for seed in range(100, 103)):
            for text in forged(question.answer or "A+1"):
                if not same(text, question.answer) and source.grade(question, text) == "right":
                    farmed.append((name, question.answer, text))
    assert not farmed


def test_no_answer_takes_a_grader_long():
    for name in generators():
        source = open_source(f"reasoning-gym:{name}")
        question = source.draw(rng())
        start = time.perf_counter()
        for text in ("1e99999999", "-1e-99999999", "A+999999999", "1/1e99999999", "9" * 4999, "[" * 4999):
            assert source.grade(question, text) in ("wrong", "undecided")
        assert time.perf_counter() - start < 1.0, name
    source = open_source("reasoning-gym:codeio")
    question = next(drawn for drawn in (source.draw(rng(seed)) for seed in range(99)) if drawn.answer.startswith("{"))
    start = time.perf_counter()
    large = json.dumps({f"k{number}": number for number in range(400)})
    assert source.grade(msgspec.structs.replace(question, answer=large), large.replace("399", "398")) == "wrong"
    assert time.perf_counter() - start < 0.1


def test_right_answers_in_another_form_stay_right():
    forms = {
        "complex_arithmetic": lambda question: question.answer.replace(" ", "").replace("i", "j"),
        "graph_color": lambda question: json.dumps(question.entry["metadata"]["possible_answer"]),
        "rubiks_cube": lambda question: question.entry["metadata"]["example_correct_answer"],
        "gsm_symbolic": lambda question: f" {question.answer}.0",
        "spell_backward": lambda question: question.answer.upper(),
        "quantum_lock": lambda question: question.answer.replace(" ", "").replace("\u2192", "->"),
        "power_function": lambda question: f"{float(question.answer):.6e}",
        "knights_knaves": lambda question: question.answer.rstrip("."),
        "group_anagrams": lambda question: json.dumps(json.loads(question.answer)[::-1]),
    }
    for name, written in forms.items():
        source = open_source(f"reasoning-gym:{name}")
        for question in (source.draw(rng(seed)) for seed in range(3)):
            assert source.grade(question, written(question)) == "right", (name, question.answer, written(question))


@pytest.mark.parametrize(
    "name", ["binary_matrix", "countdown", "n_queens", "puzzle24", "spiral_matrix", "string_insertion"]
)
def test_no_grader_runs_a_players_text(name, tmp_path):
    source = open_source(f"reasoning-gym:{name}")
    question = source.draw(rng())
    witness = tmp_path / "was-run"
    for attack in (f"open({str(witness)!r}, 'w')", f"[open({str(witness)!r}, 'w')]", "9**9**9**9", "9*\n*9**9**9"):
        assert source.grade(question, attack) == "undecided"
    assert not witness.exists() and source.grade(question, question.answer) == "right"


def test_what_a_grader_takes_besides_the_expected_text_stays_right():
    countdown = open_source("reasoning-gym:countdown")
    question = countdown.draw(rng())
    assert countdown.grade(question, f"({question.answer}) + 0 * 1") == "wrong"  # uses numbers that are not given
    assert countdown.grade(question, f" ({question.answer}) ") == "right"
    queens = open_source("reasoning-gym:n_queens")
    question = queens.draw(rng())
    for valid in question.entry["metadata"]["valid_answers"]:
        assert queens.grade(question, valid) == "right"
