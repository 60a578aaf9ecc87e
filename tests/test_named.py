"""Functions named by a setting: modules that fail in every way while they are imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_arena.cli import main
from llm_arena.errors import UsageError
from llm_arena.harness import load_harness
from llm_arena.named import load_function


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("named_syntax", "x = 1\ndef f(:\n", "SyntaxError: invalid syntax ({file}, line 2)"),
        ("named_nul", 'x = "\0"\n', "SyntaxError: source code string cannot contain null bytes ({file}"),
        ("named_name", "\n\nabsent\n", "NameError: name 'absent' is not defined ({file}, line 3)"),
        ("named_lines", "raise RuntimeError('a\\nb')\n", "RuntimeError: a b ({file}, line 1)"),
        ("named_exit", "import sys\nsys.exit(0)\n", "SystemExit: 0 ({file}, line 2)"),
        ("named_import", "import absent_module\n", "No module named 'absent_module' ({file}, line 1)"),
        ("named_deep", "import json\njson.loads('x')\n", "line 1 column 1 (char 0) ("),
    ],
)
def test_a_module_that_fails_is_named_with_its_line(
    name: str, text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for load in (lambda given: load_function("reward", given, "a:b"), load_harness):
        with pytest.raises(UsageError) as caught:
            load(f"{name}:f")
        assert f"module {name} can't be imported: " in str(caught.value)
        assert says.format(file=file) in str(caught.value) and "\n" not in str(caught.value)


def test_a_module_that_ends_the_program_ends_the_command_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "named_ends.py").write_text("raise SystemExit\n")
    (tmp_path / "traces.jsonl").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["rescore", str(tmp_path / "traces.jsonl"), "--reward", "named_ends:f"]) == 2
    assert "named_ends.py, line 1)" in capsys.readouterr().err


def test_which_file_has_no_such_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_empty.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"named_empty has no function f\. \(loaded: .*named_empty.py\)"):
        load_function("reward", "named_empty:f", "a:b")
    with pytest.raises(UsageError, match=r"sys has no function f\. \(loaded: built-in\)"):  # whatever sys.py is there
        load_function("reward", "sys:f", "a:b")
