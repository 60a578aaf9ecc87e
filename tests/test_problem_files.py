"""Files that users give to games: read as UTF-8, again when they were written, and refused when they are others."""

import hashlib

import pytest

from llm_arena.errors import UsageError
from llm_arena.problems.files import check_digest, read_utf8


def test_text_and_digest_are_those_of_the_file_as_it_is_now(tmp_path):
    path = tmp_path / "texts.txt"
    for content in ("moon base\n", "\ufefftea b\u00e4rge\r\n\u2028"):
        path.write_bytes(content.encode())
        assert read_utf8("topics", str(path)) == (
            content.removeprefix("\ufeff"),
            hashlib.sha256(content.encode()).hexdigest(),
        )


@pytest.mark.parametrize("name", ["none.txt", "", "\x00", "x" * 300, "latin.txt"])
def test_what_is_no_file_of_text_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(UsageError, match=r"^topics='[^\n]*can't be read: [^\n]+; expected the path[^\n]*$"):
        read_utf8("topics", f"{tmp_path}/{name}")
    with pytest.raises(UsageError, match=r"^topics=3 can't be read"):
        read_utf8("topics", 3)


def test_another_digest_is_refused_and_none_is_any():
    check_digest("topics", "a.txt", "ab", None)
    check_digest("topics", "a.txt", "ab", "ab")
    with pytest.raises(UsageError, match=r"^topics='a.txt' has SHA-256 ab, expected cd: .* leave topics_sha256 out"):
        check_digest("topics", "a.txt", "ab", "cd")
