"""The command line as a person meets it: exit codes, one-line errors, harmless output."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_arena.cli import COMMANDS, guarded, main
from llm_arena.cli_info import available_memory
from llm_arena.cli_parser import agent_spec, key_values
from llm_arena.errors import UsageError
from llm_arena.trace_file import TraceWriter, encode, read_traces
from llm_arena.types import EnvSpec, SeatInfo, Trace, Turn

Run = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = [sys.executable, "-m", "llm_arena"]
LONG = "x" * 5000
C_LOCALE = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    assert "Traceback" not in text
    return text


def test_help_teaches_with_examples(arena: Run) -> None:
    shown = arena("--help")
    assert shown.returncode == 0
    assert arena().stdout == shown.stdout
    for name in COMMANDS:
        assert f"  {name}" in shown.stdout
    assert "llm-arena play tic-tac-toe-v0 --seat player_0" in shown.stdout


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "train"])
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert f"llm-arena {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import llm_arena

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"llm-arena {llm_arena.__version__}\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["plya"], 'Did you mean "play"'),
        (["--versoin"], 'Did you mean "--version"'),
        (["play"], "are required: ENV. See"),
        (["play", "naming-v0", "--temperature", "1"], "seat a model with --agents MODEL"),
        (["play", "kuhn-poker"], None),
        (["play", "kun-poker-v0"], 'Did you mean "kuhn-poker-v0"'),
        (["play", "kuhn-poker-v7"], "kuhn-poker-v0"),
        (["play", "kuhn-poker-v0", "--agents", "randm-legal"], 'Did you mean "random-legal"'),
        (["play", "kuhn-poker-v0", "--agents", "player_9=random-legal"], "player_0"),
        (["play", "kuhn-poker-v0", "--seat", "playr_0"], 'Did you mean "player_0"'),
        (["play", "kuhn-poker-v0", "--sed", "1"], 'Did you mean "--seed"'),
        (["play", "kuhn-poker-v0", "--seed", "one"], "--seed"),
        (["play", "kuhn-poker-v0", "retrys=1"], "retries"),
        (["play", "kuhn-poker-v0", "retries"], "key=value"),
        (["play", "kuhn-poker-v0", "--seat", "player_0", "--agents", "player_0=random-legal"], "leave one out"),
        (["fetch"], "smollm2-135m"),
        (["fetch", "smollm"], "smollm2-135m"),
        (["show", "absent.jsonl"], "absent.jsonl"),
        (["replay", "absent.jsonl"], "absent.jsonl"),
        (["report", "absent"], "no run's folder"),
        (["train"], "naming-demo"),
        (["train", "naming-deno"], 'Did you mean "naming-demo"'),
        (["train", "naming-demo", "--stepz", "2"], "--steps"),
        (["train", "naming-demo", "--env", "kuhn-poker-v0"], "self-play"),
        (["list", "game"], 'Did you mean "games"'),
        (["check", "--verbose"], "--verbose"),
    ],
)
def test_a_mistake_is_one_line_with_the_remedy(
    arguments: list[str], message: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(arguments)
    shown = capsys.readouterr()
    if message is None:  # an unversioned id works, with a warning
        assert code == 0
        assert "warning" in one_line(shown.err)
        return
    assert code == 2
    assert shown.out == ""
    assert message in one_line(shown.err)


def test_a_mistake_exits_with_2_from_a_process(arena: Run) -> None:
    done = arena("play", "nope-v0")
    assert (done.returncode, done.stdout) == (2, "")
    assert one_line(done.stderr).startswith("llm-arena: ")


def test_hostile_names_in_errors_are_harmless(arena: Run) -> None:
    done = arena("play", "\x1b[2Jx\nllm-arena: all is well-v0")
    assert done.returncode == 2
    assert "\x1b" not in one_line(done.stderr)


def test_list_names_what_there_is(arena: Run) -> None:
    shown = arena("list").stdout
    for name in (
        "naming-v0",
        "namer 1-16",
        "kuhn-poker-v0/optimal",
        "random-legal",
        "human",
        "smollm2-135m",
        "naming-demo",
    ):
        assert name in shown, name
    assert "random-legal" not in arena("list", "games").stdout


def test_play_prints_the_episode_and_records_it(arena: Run, tmp_path: Path) -> None:
    done = arena("play", "kuhn-poker-v0", "retries=1", "--seed", "1", "--agents", "optimal", "--traces", "t.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert "kuhn-poker-v0 retries=1  seed 1" in done.stdout
    assert "to player_0 (user): You are player_0. Your card is J." in done.stdout
    [trace] = read_traces(tmp_path / "t.jsonl")
    assert trace.spec.kwargs["retries"] == 1
    assert f"player_0 {trace.returns['player_0']:+g}" in done.stdout

    again = arena("play", "kuhn-poker-v0", "--seed", "1", "retries=1", "--agents", "player=optimal")
    assert again.stdout == done.stdout.replace("recorded in t.jsonl\n", "")


def test_show_and_replay_read_what_play_recorded(arena: Run) -> None:
    for seed in ("1", "2"):
        arena("play", "kuhn-poker-v0", "--seed", seed, "--traces", "t.jsonl")
    listed = arena("show", "t.jsonl").stdout.splitlines()
    assert [line.split()[:2] for line in listed] == [["0", "kuhn-poker-v0:1"], ["1", "kuhn-poker-v0:2"]]
    assert "seed 2" in arena("show", "t.jsonl", "--index", "-1").stdout
    assert arena("show", "t.jsonl", "--index", "1").stdout == arena("show", "t.jsonl", "--index", "-1").stdout
    for index in ("2", "-3"):
        missing = arena("show", "t.jsonl", "--index", index)
        assert missing.returncode == 2
        assert "2 episodes" in one_line(missing.stderr)
    verified = arena("replay", "t.jsonl", "--verify")
    assert (verified.returncode, verified.stdout) == (0, "2 episodes replayed, all as recorded\n")
    assert "player_0" in arena("replay", "t.jsonl", "--index", "0").stdout


def test_replay_finds_a_record_that_was_changed(arena: Run, tmp_path: Path) -> None:
    arena("play", "kuhn-poker-v0", "--seed", "1", "--traces", "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text()
    record = json.loads(text)
    record["returns"] = {seat: -value for seat, value in record["returns"].items()}
    (tmp_path / "t.jsonl").write_text(text + json.dumps(record) + "\n")
    done = arena("replay", "t.jsonl", "--verify")
    assert done.returncode == 1
    assert "returns" in done.stderr
    assert "1 of 2 episodes" in done.stderr
    assert "Traceback" not in done.stderr


def test_broken_trace_files_are_one_line(arena: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text("{}\nno json\n")
    for command in ("show", "replay"):
        done = arena(command, "broken.jsonl")
        assert done.returncode == 1
        assert "line 1" in one_line(done.stderr)


def test_recorded_text_can_not_drive_the_terminal(arena: Run, tmp_path: Path) -> None:
    text = "\x1b[2J\x1b]0;owned\x07[bold red]x[/] \u202e\x9b31m\r"
    trace = Trace(
        id=text,
        spec=EnvSpec(id="game-v0", kwargs={"topic": text}),
        seed=1,
        seats={"player_0": SeatInfo(role="player", agent=text)},
        turns=[Turn(index=0, seat="player_0", text=text, messages=[{"role": "user", "content": text}])],
        returns={"player_0": 0.0},
    )
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        writer.write(trace)
    for arguments in (["show", "t.jsonl"], ["show", "t.jsonl", "--index", "0"]):
        shown = arena(*arguments).stdout
        assert not [char for char in shown if char in "\x1b\x07\x9b\u202e\r"]
        assert "\\x1b[2J\\x1b]0;owned\\x07[bold red]x[/]" in shown


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    seats = {"player_0": SeatInfo(role="player", agent="random-legal")}
    line = encode(Trace(id="x" * 100, spec=EnvSpec(id="game-v0"), seed=1, seats=seats))
    (tmp_path / "t.jsonl").write_bytes(line * 3000)  # more than a pipe holds
    process = subprocess.Popen(
        [*COMMAND, "show", "t.jsonl"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 141


def test_ctrl_c_anywhere_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert guarded(interrupted) == 130
    assert one_line(capsys.readouterr().err) == "llm-arena: interrupted\n"


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> int:
        raise OSError(28, "No space left on device", "run/metrics.jsonl")

    assert guarded(full) == 1
    assert "No space left on device: 'run/metrics.jsonl'" in one_line(capsys.readouterr().err)


def test_a_bug_keeps_its_traceback() -> None:
    def broken() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guarded(broken)


def test_check_names_problems_with_their_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLM_ARENA_CACHE", str(tmp_path / "cache"))
    assert main(["check"]) in (0, 1)  # by the memory and disk of the machine that runs the tests
    shown = capsys.readouterr().out
    for word in ("python", "engine transformers", "works (torch", "memory", "disk for runs", str(tmp_path / "cache")):
        assert word in shown, word
    assert "llm-arena fetch smollm2-135m" in shown
    monkeypatch.setenv("LLM_ARENA_CACHE", "/proc/nowhere")
    assert main(["check"]) == 1
    assert "set LLM_ARENA_CACHE" in capsys.readouterr().out


def test_the_memory_of_this_machine_is_plausible() -> None:
    free = available_memory()
    assert free is None or 1e7 < free < 1e14


def test_key_values() -> None:
    given = ["namers=4", "topic=coffee shop", "flag=true", "text=a=b", 'quoted="12"', "none=null", "bare="]
    assert key_values(given) == {
        "namers": 4,
        "topic": "coffee shop",
        "flag": True,
        "text": "a=b",
        "quoted": "12",
        "none": None,
        "bare": "",
    }
    for bad in (["namers"], ["=4"], ["a=1", "a=2"], ["a b=1"]):
        with pytest.raises(UsageError):
            key_values(bad)


def test_agent_specs() -> None:
    assert agent_spec("llm:folder/x") == "llm:folder/x"
    assert agent_spec("player_0=optimal, player_1=llm:a") == {"player_0": "optimal", "player_1": "llm:a"}
    servers = "openai:m@http://127.0.0.1:1/?a=b,https://example.org"
    assert agent_spec(servers) == servers
    assert agent_spec(f"player_0={servers},player_1=optimal") == {"player_0": servers, "player_1": "optimal"}
    for bad in ("player_0=", "a=b,c", "a=b,a=c"):
        with pytest.raises(UsageError):
            agent_spec(bad)


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from llm_arena.cli import main; main(['--help']);"
        "print([name for name in ('torch', 'transformers', 'scipy', 'jinja2', 'rich', 'tyro') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("content", [b"\0" * 100_000, b"[" * 200_000, b"my thesis", b""])
@pytest.mark.parametrize("options", [[], ["--verify"]])
def test_what_holds_no_episode_does_not_verify(
    content: bytes, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "z.jsonl").write_bytes(content)
    assert main(["replay", str(tmp_path / "z.jsonl"), *options]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("is no trace file" if content else "holds no episodes") in one_line(shown.err)


def test_an_empty_file_is_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "z.jsonl").touch()
    for path in (str(tmp_path / "z.jsonl"), os.devnull):
        assert main(["show", path]) == 0
        assert capsys.readouterr().out == f"{path} holds no episodes\n"
        assert main(["show", path, "--index", "0"]) == 1
        assert "holds no episodes" in one_line(capsys.readouterr().err)


def test_a_folder_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("show", "replay"):
        assert main([command, str(tmp_path)]) == 2
        assert "is a folder" in one_line(capsys.readouterr().err)


def test_traces_come_through_a_pipe(arena: Run, tmp_path: Path) -> None:
    arena("play", "kuhn-poker-v0", "--seed", "1", "--traces", "t.jsonl")
    done = arena("replay", "/dev/stdin", "--verify", stdin=(tmp_path / "t.jsonl").read_text())
    assert (done.returncode, done.stdout) == (0, "1 episode replayed, all as recorded\n")


def test_an_episode_is_shown_whatever_comes_after_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(Trace(id="one", spec=EnvSpec(id="game-v0"), seed=1, seats={})) + b"garbage\n")
    assert main(["show", str(path), "--index", "0"]) == 0
    assert "episode one" in capsys.readouterr().out
    assert main(["show", str(path), "--index", "1"]) == 1
    assert "line 2" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(redirection: str, tmp_path: Path) -> None:
    command = f'"$0" -m llm_arena play kuhn-poker-v0 --seed 1 --traces t.jsonl {redirection}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(read_traces(tmp_path / "t.jsonl"))) == 1


def test_arguments_are_utf8_in_every_locale(arena: Run, tmp_path: Path) -> None:
    done = arena("play", "naming-v0", "topic=café", "--traces", "t.jsonl", env=C_LOCALE)
    assert done.returncode == 0, done.stderr
    assert "caf\\xe9" in done.stdout
    [trace] = read_traces(tmp_path / "t.jsonl")
    assert trace.spec.kwargs["topic"] == "café"


@pytest.mark.parametrize("locale", [C_LOCALE, {"PYTHONUTF8": "1"}])
def test_an_argument_that_is_no_text_is_a_usage_error(locale: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [*map(os.fsencode, COMMAND), b"play", b"naming-v0", b"topic=caf\xe9"],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, **locale},
    )
    assert done.returncode == 2
    assert "no UTF-8" in one_line(done.stderr.decode("ascii"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_does_not_cost_the_episode(arena: Run) -> None:
    plain = arena("play", "kuhn-poker-v0", "--seed", "1")
    done = arena("play", "kuhn-poker-v0", "--seed", "1", "--traces", "/dev/full")
    assert done.returncode == 1
    assert done.stdout == plain.stdout
    assert "could not be written: No space left" in one_line(done.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", LONG],
        ["replay", LONG],
        ["report", LONG],
        ["play", LONG],
        ["play", "kuhn-poker-v0", "--agents", LONG],
        ["play", "kuhn-poker-v0", "--agents", f"llm:{LONG}"],
        ["play", "kuhn-poker-v0", "--agents", "player=" + "x " * 2500],
        ["play", "kuhn-poker-v0", "--seat", LONG],
        [LONG],
    ],
)
def test_a_very_long_name_is_unknown_and_its_message_short(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert len(one_line(capsys.readouterr().err)) < 1000


def test_a_clipped_message_keeps_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", LONG]) == 2
    shown = one_line(capsys.readouterr().err)
    assert shown.startswith('llm-arena: no training script "xxx')
    assert "naming-demo" in shown
    assert len(shown) < 400


def test_json_nested_too_deeply_is_a_text() -> None:
    assert key_values(["a=" + "[" * 100_000]) == {"a": "[" * 100_000}


def test_ctrl_c_before_a_coroutine_starts_says_no_more_than_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    async def never() -> None:
        """Not awaited."""

    def interrupted() -> int:
        waiting = never()
        raise KeyboardInterrupt(waiting)

    assert guarded(interrupted) == 130
    gc.collect()
    assert capsys.readouterr().err == "llm-arena: interrupted\n"
