"""Ctrl-C before our programs can say anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from llm_arena.startup import is_our_program

SCRIPT = [sys.executable, str(Path(sys.executable).with_name("llm-arena"))]


@pytest.mark.parametrize("command", [[*SCRIPT, "list"], [sys.executable, "-m", "llm_arena.train.self_play", "--help"]])
@pytest.mark.parametrize("module", ["numpy", "gymnasium", "llm_arena.registry"])
def test_ctrl_c_while_importing_is_quiet(command: list[str], module: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.rpartition("|")[2].strip() == module:  # just imported
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(timeout=20) == 130
    assert "Traceback" not in rest and "llm-arena: interrupted" in rest


def test_other_programs_keep_their_own_ctrl_c(tmp_path: Path) -> None:
    program = "import signal, llm_arena; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("argv", "ours"),
    [
        (["python", "/venv/bin/llm-arena", "list"], True),
        (["/venv/bin/llm-arena"], True),
        (["python", "-m", "llm_arena", "list"], True),
        (["python", "-P", "-m", "llm_arena.train.self_play"], True),
        (["python", "-m", "pytest", "llm-arena"], False),
        (["python", "-c", "import llm_arena"], False),
        (["python", "my_script.py", "llm-arena"], False),
        (["python", "-m"], False),
    ],
)
def test_only_our_own_programs_are_meant(argv: list[str], ours: bool) -> None:
    assert is_our_program(argv) is ours
