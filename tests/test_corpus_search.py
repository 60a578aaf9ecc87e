"""Corpora that are searched and read: the embedded one and one's own; and the search that is scripted."""

import hashlib
import importlib.util
import itertools
import json
import os
import time

import numpy as np
import pytest

from corpus_parts import drawn
from llm_arena.errors import MissingExtra, UsageError
from llm_arena.problems.research import corpus
from llm_arena.problems.research.answers import is_right
from llm_arena.problems.research.corpus import PAGE, Corpus, Document, embedded, load
from llm_arena.problems.research.search import next_step, put_together
from llm_arena.problems.research.world import world
from llm_arena.tool_calls import ToolCall

# ---- search and pages ------------------------------------------------------------------------------------------


def test_a_title_finds_its_article_first():
    found = [embedded().search(article.title).startswith(f"[{article.id}] ") for article in world().articles]
    assert np.mean(found) > 0.95


def test_results_are_a_line_each_with_a_snippet_that_fits_the_query():
    result = embedded().search("Who was the first mayor of Ildrmere?")
    lines = result.split("\n")
    assert len(lines) == corpus.HITS and lines[0].startswith("[d136] Ildrmere | ") and "mayor" in lines[0]
    assert all(len(line) < 260 for line in lines)


def test_ties_stand_in_the_order_of_ids():
    same = [Document(id, "Same", "one and the same text") for id in ("c", "a", "d", "b", "f", "e")]
    for order in itertools.islice(itertools.permutations(same), 0, 720, 97):
        result = Corpus(order, "").search("same text")
        assert [line[1] for line in result.split("\n")] == ["a", "b", "c", "d", "e"]


def test_a_search_is_repeatable():
    searches = [embedded().search("river Orsk mill") for _ in range(3)]
    assert len(set(searches)) == 1


@pytest.mark.parametrize("query", ["", "   ", "?!", "the of a", "xyzzy plugh", "\x00", "🐉", "a" * 100_000, "\ud800"])
def test_odd_queries_find_nothing_and_say_so(query):
    assert embedded().search(query).startswith("Nothing found")


def test_a_search_takes_under_two_milliseconds():
    corpus = embedded()
    times = []
    for question in drawn(3, number=200):
        start = time.perf_counter()
        corpus.search(question.text)
        times.append(time.perf_counter() - start)
    assert np.quantile(times, 0.25) < 0.002  # the rest may have waited for other processes


def test_the_index_is_made_once(tmp_path):
    assert embedded() is embedded()
    (tmp_path / "a.txt").write_text("Some text.")
    assert load(str(tmp_path)) is load(str(tmp_path))


def test_pages_hold_the_whole_text_and_are_found(tmp_path):
    words = [f"word{number}" for number in range(3000)]
    (tmp_path / "long.txt").write_text(" ".join(words))
    loaded = load(str(tmp_path))
    pages = loaded.pages["long.txt"]
    assert len(pages) > 10 and all(0 < len(page) <= PAGE for page in pages)
    assert " ".join(pages).split() == words
    hit = loaded.search("word2900")
    number = int(hit.partition("(page ")[2].split(" ")[0])
    assert "word2900" in loaded.open("long.txt", number) and f"page {number} of {len(pages)}" in hit
    assert loaded.open("long.txt", len(pages) + 1).startswith("long.txt has ")
    assert "no page 0" in loaded.open("long.txt", 0) and "no page -1" in loaded.open("long.txt", -1)


def test_a_text_without_blanks_is_cut_too():
    assert "".join(Corpus([Document("x", "x", "y" * 5000)], "").pages["x"]) == "y" * 5000


def test_what_documents_say_cannot_pass_for_control_characters():
    hostile = Document("x", "T\x1b[2J", "fine\x00 \u202eevil\u2028line")
    corpus = Corpus([hostile], "")
    for shown in (corpus.search("fine"), corpus.open("x")):
        assert not any(char in shown for char in "\x1b\x00\u202e\u2028")
    assert corpus.open("nope\x1b").startswith("There is no document 'nope\\\\x1b'")


# ---- one's own corpora -----------------------------------------------------------------------------------------


def test_a_folder_is_read_with_titles_and_digest(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.md").write_text("# The Title\n\nText of b.")
    (tmp_path / "a.txt").write_text("Text of a.")
    (tmp_path / "c.pdf").write_bytes(b"\xff\xfe")
    loaded = load(str(tmp_path))
    assert {id: document.title for id, document in loaded.documents.items()} == {"a.txt": "a", "sub/b.md": "The Title"}
    expected = hashlib.sha256()
    for name, content in (("a.txt", b"Text of a."), ("sub/b.md", b"# The Title\n\nText of b.")):
        expected.update(f"{name}\x00{len(content)}\x00".encode() + content)
    assert loaded.sha256 == expected.hexdigest()


def test_a_changed_file_is_read_anew(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("First text.")
    before = load(str(tmp_path))
    file.write_text("Other text, longer.")
    os.utime(file, ns=(1, 1))
    after = load(str(tmp_path))
    assert before.sha256 != after.sha256 and "Other" in after.open("a.txt")


def test_json_lines_are_read_whatever_separators_their_strings_hold(tmp_path):  # PrimeIntellect-ai/verifiers PR #1644
    file = tmp_path / "corpus.jsonl"
    rows = [{"id": f"n{at}", "title": "T", "text": f"one{char}two"} for at, char in enumerate('\u2028\x85\x0b\n"')]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    loaded = load(str(file))
    assert [loaded.documents[row["id"]].text for row in rows] == [row["text"] for row in rows]
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "line 2: .*expected one JSON object"),
        ("[1]", "line 2: .*expected one JSON object"),
        ('{"id": "x", "title": "t"}', "line 2: .*text"),
        ('{"id": 3, "title": "t", "text": "u"}', "line 2: .*expected one JSON object"),
        ('{"id": "a", "title": "t", "text": "u"}', "two documents with the id 'a'"),
        ('{"id": "", "title": "t", "text": "u"}', "line 2: the id is ''"),
        ('{"id": "x]y", "title": "t", "text": "u"}', "line 2: the id is"),
        ('{"id": "x", "title": "t", "text": "  "}', "line 2: the document 'x' has no text"),
        ('{"id": "x", "title": "t", "text": "is \\ud800 it"}', "line 2: "),
        ('{"id": "x", "title": "\\udfff", "text": "u"}', "line 2: "),
    ],
)
def test_bad_lines_are_refused_with_their_number(tmp_path, line, message):
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"id": "a", "title": "t", "text": "u"}\n' + line + "\n")
    with pytest.raises(UsageError, match=message):
        load(str(file))


@pytest.mark.parametrize("path", [5, b"x", "", " ", "a\x00b", "\udcff"])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(UsageError, match="expected the path"):
        load(path)


def test_a_name_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "fine.txt").write_text("fine")
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "w") as file:
        file.write("odd")
    with pytest.raises(UsageError, match="can't be written as text; rename it"):
        load(str(tmp_path))


def test_a_long_title_is_cut():
    corpus = Corpus([Document("a", "t" * 9999, "some words")], "0" * 64)
    assert max(len(corpus.search("words")), len(corpus.open("a"))) < 400


def test_corpora_that_cannot_be_read_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="there is no corpus at"):
        load(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"has no \.txt or \.md file"):
        load(str(tmp_path))
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UsageError, match="has no document"):
        load(str(tmp_path / "empty.jsonl"))
    (tmp_path / "a.txt").write_bytes("Ångström".encode("latin-1"))
    with pytest.raises(UsageError, match=r"a\.txt is not UTF-8 .* at byte 0\); convert it"):
        load(str(tmp_path))
    (tmp_path / "a.txt").write_text("fine now")
    (tmp_path / "b.txt").write_text("and one more")
    monkeypatch.setattr(corpus, "MAX_DOCUMENTS", 1)
    with pytest.raises(UsageError, match="has 2 documents; expected at most 1"):
        load(str(tmp_path))
    monkeypatch.setattr(corpus, "MAX_BYTES", 10)
    with pytest.raises(UsageError, match="has 20 bytes; expected at most 10"):
        load(str(tmp_path))


def test_a_missing_package_names_the_extra(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "bm25s" else find_spec(name))
    with pytest.raises(MissingExtra, match=r'pip install "llm-arena\[research\]"'):
        Corpus([Document("a", "a", "a")], "")


# ---- the scripted search ---------------------------------------------------------------------------------------


def search(question, most):
    """Runs the scripted search and returns (what it found, how many calls it made)."""
    calls = []
    while isinstance(step := next_step(question, calls), ToolCall) and len(calls) < most:
        calls.append((step.name, step.arguments, embedded().call(step.name, step.arguments)))
    return (None if isinstance(step, ToolCall) else step), len(calls)


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_the_scripted_search_solves_nearly_all_questions_in_two_calls_a_hop(hops):
    found = [(search(question.text, 8), question.answers) for question in drawn(hops, "heldout", 150, seed=5)]
    assert np.mean([answer is not None and is_right(answer, right) for (answer, _), right in found]) > 0.93
    assert np.mean([calls for (_, calls), _ in found]) < 2.6 * hops


def test_the_scripted_search_gives_up_on_what_it_does_not_understand():
    assert next_step("Why is the sky blue?", []) is None
    assert search("In which year was Nobody Nowhere born?", 8)[0] is None
    assert put_together(["1900", "1850"]) == "50" and put_together(["the river Orsk"]) == "Orsk"
    assert put_together(["1900", "9" * 5000]) is put_together(["1900", "long ago"]) is put_together([]) is None
