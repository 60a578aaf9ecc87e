"""Where problems come from: arithmetic, files, data sets; how they are drawn, pinned and refused."""

import doctest
import hashlib
import importlib.metadata
import importlib.util
import json
import time

import pytest

from llm_arena.errors import MissingExtra, UsageError
from llm_arena.problems import sources
from llm_arena.problems.sources import open_source, questions
from llm_arena.problems.sources import rows as problem_rows
from problem_source_parts import (
    drawn,
    no_network,  # noqa: F401 -- a fixture of the whole file
    rng,
)

LINES = [
    {"prompt": "What is 3 + 4?", "answer": "7"},
    {"problem": "Half of 1?", "label": r"\frac{1}{2}"},
    {"question": "Name the capital of Norway.", "answer": "Oslo"},
]


def jsonl(folder, rows, name="problems.jsonl", **kwargs):
    path = folder / name
    path.write_text("".join(json.dumps(row, **kwargs) + "\n" for row in rows), encoding="utf-8")
    return str(path)


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
    with pytest.raises(UsageError, match=f"has SHA-256 .* expected {digest}: it has changed"):
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
        with pytest.raises(UsageError, match="has SHA-256 .*: it has changed"):
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


# ---- all sources --------------------------------------------------------------------------------------------------


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
