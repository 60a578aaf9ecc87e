"""Where problems come from: arithmetic, files, data sets, generators; how they are drawn, graded and pinned."""

import doctest
import hashlib
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

from llm_arena.errors import MissingExtra, UsageError
from llm_arena.problems import sources
from llm_arena.problems.sources import open_source, questions
from llm_arena.problems.sources import reasoning_gym as reasoning_gym_source
from llm_arena.problems.sources import rows as problem_rows

LINES = [
    {"prompt": "What is 3 + 4?", "answer": "7"},
    {"problem": "Half of 1?", "label": r"\frac{1}{2}"},
    {"question": "Name the capital of Norway.", "answer": "Oslo"},
]

SPLITS = ("train", "heldout")


@pytest.fixture(autouse=True)
def no_network(monkeypatch, tmp_path_factory):
    """Hugging Face's libraries stay offline, and write nothing into the user's cache."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import huggingface_hub.constants
    from datasets import config

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))


def rng(seed=0):
    return np.random.default_rng(seed)


def jsonl(folder, rows, name="problems.jsonl", **kwargs):
    path = folder / name
    path.write_text("".join(json.dumps(row, **kwargs) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def drawn(source, number=40):
    return {(question.text, question.answer) for question in (source.draw(rng(seed)) for seed in range(number))}


# ---- arithmetic, and one given problem -----------------------------------------------------------------------------


def test_arithmetic_is_the_default_and_its_splits_share_nothing():
    source = open_source(level=3)
    question = source.draw(rng())
    assert (question.text, question.answer) == ("What is (6 - 7) * 1?", "-1")
    assert source.grade(question, "-1.0") == "right" and source.grade(question, "1") == "wrong"
    assert source.resolved() == {"source": "arithmetic", "source_sha256": None} and not source.slow
    assert source.describe() == "arithmetic, level 3, train"
    assert not drawn(open_source(level=1), 200) & drawn(open_source(level=1, split="heldout"), 200)


def test_one_given_problem_is_a_source_like_any_other():
    source = open_source(problem="What is 1/2 + 1/2?", answer=1)
    assert drawn(source) == {("What is 1/2 + 1/2?", "1")}
    assert source.grade(source.draw(rng()), r"\frac{2}{2}") == "right" and source.checker == "exact"
    assert open_source(problem="Root of 8?", answer=r"2\sqrt{2}").slow
    assert not open_source(problem="Root of 8?", answer=r"2\sqrt{2}", checker="exact").slow


# ---- files ---------------------------------------------------------------------------------------------------------


def test_a_file_is_read_drawn_graded_and_recorded(tmp_path):
    path = jsonl(tmp_path, LINES)
    source = open_source(path)
    assert drawn(source) == {
        ("What is 3 + 4?", "7"),
        ("Half of 1?", r"\frac{1}{2}"),
        ("Name the capital of Norway.", "Oslo"),
    }
    digest = hashlib.sha256((tmp_path / "problems.jsonl").read_bytes()).hexdigest()
    assert source.resolved() == {"source": path, "source_sha256": digest}
    assert open_source(path, sha256=digest).sha256 == digest and source.describe() == f"3 problems of {path}"
    for question in map(source.draw, map(rng, range(20))):
        assert source.grade(question, question.answer) == "right" and source.grade(question, "Bergen") == "wrong"
        assert source.grade(question, "") == "wrong"


def test_a_changed_file_is_refused_and_an_unpinned_one_is_read_again(tmp_path):
    path = jsonl(tmp_path, LINES[:1])
    digest = open_source(path).sha256
    jsonl(tmp_path, LINES[2:])
    with pytest.raises(UsageError, match="its problems have changed"):
        open_source(path, sha256=digest)
    assert drawn(open_source(path)) == {("Name the capital of Norway.", "Oslo")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{broken", ":2: no JSON"),
        ("[1, 2]", ":2: got"),
        ('{"text": "What?", "answer": "7"}', ":2: has text, answer; expected one of problem, question, prompt"),
        ('{"prompt": "What?"}', ":2: has prompt; expected one of answer, label"),
        ('{"prompt": " ", "answer": "7"}', ":2: prompt is ' '"),
        ('{"prompt": "What?", "answer": true}', ":2: answer is True"),
        ('{"prompt": "What?", "answer": NaN}', ":2: answer is nan"),
        ('{"prompt": "What?", "answer": ""}', ":2: answer is ''"),
        ('{"prompt": "What is \\ud800?", "answer": "7"}', ":2: prompt is 'What is \\ud800?'"),
        ('{"prompt": "What?", "answer": "\\udfff"}', ":2: answer is '\\udfff'"),
        ('{"prompt": [{"role": "user", "content": "\\ud800"}], "answer": "7"}', ":2: prompt is"),
        ('{"prompt": "What?", "answer": ' + "1" + "0" * 400 + "}", ":2: answer is 1000"),
        ('{"prompt": [{"role": "assistant", "content": "Hi"}], "answer": "7"}', ":2: prompt is"),
        ('{"prompt": "What?", "answer": ' + "[" * 100_000, ":2: no JSON"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(LINES[0]) + "\n" + line + "\n")
    with pytest.raises(UsageError) as error:
        open_source(str(path))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, said in (("empty", "no problems"), ("binary", "can't be read"), ("gone", "No such file")):
        with pytest.raises(UsageError, match=said):
            open_source(str(tmp_path / f"{name}.jsonl"))


def test_unicode_line_separators_are_text(tmp_path):  # PrimeIntellect-ai/verifiers PR 1644
    rows = [{"prompt": f"What{mark}is it?", "answer": "7"} for mark in ("\u2028", "\x85", "\x0b", "\n", "🐉")]
    for ascii_only in (True, False):
        source = open_source(jsonl(tmp_path, rows, f"{ascii_only}.jsonl", ensure_ascii=ascii_only))
        assert [question for question, _ in source.rows] == [row["prompt"] for row in rows]


def test_chat_messages_and_worked_answers_are_read(tmp_path):
    rows = [
        {"prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "4/2?"}], "label": 2},
        {"question": "Clips?", "answer": "In May 48/2 = 24.\n#### 1,072"},
        {"problem": "Half?", "solution": r"It is 1 of 2, so $\boxed{\frac{1}{2}}$."},
    ]
    assert open_source(jsonl(tmp_path, rows)).rows == (
        ("Be brief.\n\n4/2?", "2"),
        ("Clips?", "1,072"),
        ("Half?", r"\frac{1}{2}"),
    )


# ---- data sets -----------------------------------------------------------------------------------------------------


def test_data_sets_on_disk_are_read_alike_whatever_their_format(tmp_path):
    import datasets

    rows = [{"question": "What is 3 + 4?", "answer": "7"}, {"question": "What is 1 + 1?", "answer": "2"}]
    table = datasets.Dataset.from_list(rows)
    table.to_parquet(tmp_path / "rows.parquet")
    table.save_to_disk(tmp_path / "saved")
    (tmp_path / "folder").mkdir()
    jsonl(tmp_path / "folder", rows, "test.jsonl")
    sources = [
        open_source(f"hf:{tmp_path}/rows.parquet"),
        open_source(f"hf:{tmp_path}/saved"),
        open_source(f"hf:{tmp_path}/folder:test"),
        open_source(f"hf:{tmp_path}/folder:test:question:answer"),
    ]
    assert len({source.sha256 for source in sources}) == 1 and len(sources[0].sha256) == 64
    for source in sources:
        assert drawn(source) == {("What is 3 + 4?", "7"), ("What is 1 + 1?", "2")}
        assert open_source(source.name, sha256=source.sha256).resolved() == source.resolved()
        with pytest.raises(UsageError, match="problems have changed"):
            open_source(source.name, sha256="0" * 64)


def test_columns_are_found_or_named(tmp_path):
    path = jsonl(tmp_path, [{"q": "What is 3 + 4?", "gold": 7, "noise": None}])
    assert drawn(open_source(f"hf:{path}:train:q:gold")) == {("What is 3 + 4?", "7")}
    with pytest.raises(UsageError, match="has q, gold, noise; expected one of problem, question, prompt"):
        open_source(f"hf:{path}")
    with pytest.raises(UsageError, match="expected one of wrong"):
        open_source(f"hf:{path}:train:q:wrong")
    with pytest.raises(UsageError, match="row 0: noise is None"):
        open_source(f"hf:{path}:train:q:noise")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:nobody/there", "offline, fetch it first"),
        ("hf:nobody/there/main:test", "offline, fetch it first"),
        ("hf:./not-there", "does not exist; check the path"),
        ("hf:./not-there.parquet", "does not exist; check the path"),
        ("hf:./notes.txt", "is no file of .parquet"),
        ("hf:./broken.parquet", "can.t be loaded"),
        ("hf:.", "can.t be loaded"),
        ("hf:", "expected hf:OWNER/NAME"),
        ("hf:a/b:train:question", "expected hf:OWNER/NAME"),
        ("hf:a/b::q:a", "expected hf:OWNER/NAME"),
    ],
)
def test_a_data_set_that_can_not_be_had_says_what_helps(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("7")
    (tmp_path / "broken.parquet").write_text("7")
    with pytest.raises(UsageError, match=said) as error:
        open_source(name)
    assert "\n" not in str(error.value)


# ---- reasoning_gym -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        ("reasoning-gym:chain_sun", {}, 'Did you mean "chain_sum"'),
        ("reasoning-gym:", {}, "has no ''"),
        ("reasoning-gym:chain_sum@0.0.1", {}, "reasoning-gym==0.0.1"),
        ("reasoning-gym:word_ladder", {}, "PYTHONHASHSEED"),
        ("reasoning-gym:simple_integration", {}, "as Python code"),
        ("reasoning-gym:chain_sum:seed=3", {}, "without seed and size"),
        ("reasoning-gym:chain_sum:max_terms", {}, "expected KEY=VALUE"),
        ("reasoning-gym:chain_sum:colour=red", {}, "settings are refused"),
        ("reasoning-gym:chain_sum:min_terms=9:max_terms=2", {}, "settings are refused"),
        ("reasoning-gym:chain_sum", {"checker": "exact"}, "grades itself"),
        ("reasoning-gym:chain_sum", {"sha256": "0" * 64}, "for files and data sets"),
        ("reasoning-gym:chain_sum", {"level": 2}, "for source='arithmetic'"),
        ("arithmetic", {"sha256": "0" * 64}, "for files and data sets"),
        ("arithmetics", {}, 'Did you mean "arithmetic"'),
        (7, {}, "expected a name"),
        ("a\x00.jsonl", {}, "expected a name"),
        ("\udcff.jsonl", {}, "expected a name"),
        ("hf:./a\x00.jsonl", {}, "expected a name"),
        ("reasoning-gym:coin_flip", {}, "can't be used"),
        ("reasoning-gym:propositional_logic", {}, "can't be used"),
        ("arithmetic", {"problem": "What?", "answer": "7", "level": 3}, "for problems that are drawn"),
        ("arithmetic", {"problem": "What?", "answer": "7", "split": "heldout"}, "for problems that are drawn"),
        ("arithmetic", {"problem": "What?", "answer": "7", "operators": "+"}, "for problems that are drawn"),
        ("problems.jsonl", {"problem": "What?", "answer": "7"}, "give one of them"),
        ("problems.jsonl", {"split": "heldout"}, "give another file"),
        ("hf:a/b", {"split": "heldout"}, "name another split"),
        ("problems.jsonl", {"level": 2}, "for source='arithmetic'"),
        ("arithmetic", {"checker": "guess"}, "expected one of exact, math"),
        ("arithmetic", {"problem": "What?"}, "give both"),
    ],
)
def test_what_does_not_go_together_is_refused(name, kwargs, said):
    with pytest.raises(UsageError) as error:
        open_source(name, **kwargs)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_missing_packages_name_the_extra(monkeypatch, tmp_path):
    path = jsonl(tmp_path, LINES)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("reasoning-gym:chain_sum", "hf:a/b", f"hf:{path}"):
        with pytest.raises(MissingExtra, match="llm-arena\\[problems\\]"):
            open_source(name)
    assert drawn(open_source(path))  # a file of JSON lines needs nothing


def test_working_is_cut_off_answers():
    assert problem_rows.final_answer("#### ") == "####"
    assert problem_rows.final_answer(" 7 ") == "7"


def test_a_large_file_is_read_once(tmp_path):
    path = jsonl(tmp_path, [{"prompt": f"What is {n} + 0?", "answer": n} for n in range(5000)])
    open_source(path)
    start = time.perf_counter()
    for _ in range(20):
        open_source(path)
    assert time.perf_counter() - start < 1.0  # a game is made for each episode


def test_examples_in_docstrings_hold():
    for module in (problem_rows, questions, sources):
        result = doctest.testmod(module)
        assert result.attempted and not result.failed
