"""Stored runs scored again: only returns change, nothing is half written, and errors name the trace."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import llm_arena
from llm_arena.cli import main
from llm_arena.errors import TraceError, UsageError
from llm_arena.rescore import rescore_traces
from llm_arena.trace_file import encode, read_traces
from llm_arena.types import Ending, EnvSpec, Failure, Outcome, SeatInfo, Trace, Turn

SEATS = {f"namer_{k}": SeatInfo(role="namer", agent="x") for k in range(2)} | {
    "judge_0": SeatInfo(role="judge", agent="y")
}


def made(number: int, group: str = "", *, void: bool = False) -> Trace:
    trace = Trace(
        id=f"t{number}",
        spec=EnvSpec(id="naming-v0"),
        seed=number,
        group=group,
        seats=SEATS,
        turns=[Turn(index=0, seat="namer_0", text="name " * number, rewards={"namer_0": 1.0})],
        returns={"namer_0": 1.0, "namer_1": -1.0, "judge_0": 0.0},
        outcome=Outcome(winners=["namer_0"], reason="judged", scores={"namer_0": 3.0}),
    )
    if void:
        failure = Failure(boundary="engine", kind="X", message="gone")
        trace = msgspec.structs.replace(trace, ending=Ending.VOID, failure=failure, returns={}, outcome=None)
    return trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(b"".join(map(encode, [made(1, "a"), made(2, "b"), made(3, "a", void=True), made(4, "b")])))
    return path


def returns(path: Path) -> list[dict[str, float]]:
    return [trace.returns for trace in read_traces(path)]


def test_only_returns_change(file, tmp_path):
    out = tmp_path / "new.jsonl"
    done = rescore_traces(file, lambda trace: trace.seed / 2, out)
    for before, after in zip(read_traces(file), read_traces(out), strict=True):
        if before.void:
            assert after == before
        else:
            assert after.returns == dict.fromkeys(SEATS, before.seed / 2)
            assert msgspec.structs.replace(after, returns=before.returns) == before
    assert (done.traces, done.void, done.incomplete) == (4, 1, 0)
    namer, judge = done.roles["namer"], done.roles["judge"]
    assert (namer.seats, namer.mean_before, namer.known_after) == (6, 0.0, 6)
    assert namer.mean_after == judge.mean_after == pytest.approx((0.5 + 1 + 2) / 3)


@pytest.mark.parametrize(
    "reward, expected",
    [
        (2, {"namer_0": 2.0, "namer_1": 2.0, "judge_0": 2.0}),
        (np.float32(0.5), {"namer_0": 0.5, "namer_1": 0.5, "judge_0": 0.5}),
        (True, {"namer_0": 1.0, "namer_1": 1.0, "judge_0": 1.0}),
        ({"namer": 1, "namer_1": -1, "judge": 0.25}, {"namer_0": 1.0, "namer_1": -1.0, "judge_0": 0.25}),
        ({"namer_1": 3}, {"namer_1": 3.0}),  # the others are unknown, not 0
        ({"namer": None, "judge": 1}, {"judge_0": 1.0}),
        (None, {}),
        ({}, {}),
    ],
)
def test_what_a_reward_may_return(reward, expected, file, tmp_path):
    done = rescore_traces(file, lambda trace: reward, tmp_path / "new.jsonl")
    assert returns(tmp_path / "new.jsonl") == [expected, expected, {}, expected]
    unknown = sum(role.seats - role.known_after for role in done.roles.values())
    assert unknown == 3 * (3 - len(expected))


def test_a_mean_of_nothing_is_nan(file):
    done = rescore_traces(file, lambda trace: None)
    assert math.isnan(done.roles["judge"].mean_after) and done.roles["judge"].mean_before == 0.0


def test_groups_are_scored_together_and_stay_in_their_places(file, tmp_path):
    asked = []

    def against_each_other(traces):
        asked.append([trace.id for trace in traces])
        return [trace.seed - sum(other.seed for other in traces) / len(traces) for trace in traces]

    done = rescore_traces(file, against_each_other, tmp_path / "new.jsonl")
    assert asked == [["t2", "t4"]]  # group a has a void member
    assert [trace.id for trace in read_traces(tmp_path / "new.jsonl")] == ["t1", "t2", "t3", "t4"]
    assert returns(tmp_path / "new.jsonl") == [{}, dict.fromkeys(SEATS, -1.0), {}, dict.fromkeys(SEATS, 1.0)]
    assert (done.void, done.incomplete) == (1, 1)


def test_ungrouped_traces_of_one_id_are_groups_of_one(tmp_path):
    """Two equal runs in one file: a trace meets nobody of the other run, and each keeps its place."""
    path, asked = tmp_path / "two.jsonl", []
    path.write_bytes(b"".join(map(encode, [made(1), made(2, "t1"), made(1), made(3, "t1"), made(3)])))

    def against_each_other(traces):
        asked.append([trace.id for trace in traces])
        return [trace.seed + len(traces) / 10 for trace in traces]

    rescore_traces(path, against_each_other, tmp_path / "new.jsonl")
    assert sorted(asked) == [["t1"], ["t1"], ["t2", "t3"], ["t3"]]
    assert [paid["namer_0"] for paid in returns(tmp_path / "new.jsonl")] == [1.1, 2.2, 1.1, 3.2, 3.1]


def test_a_group_with_two_traces_of_one_id_is_refused(file, tmp_path):
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(UsageError, match=r"traces.jsonl has trace t1 of group a twice"):
        rescore_traces(file, lambda traces: [1.0] * len(traces), tmp_path / "new.jsonl")
    assert not (tmp_path / "new.jsonl").exists()
    assert rescore_traces(file, lambda trace: 1.0).traces == 8  # by trace there is nothing to mix up


def test_a_game_s_own_group_reward_can_score(tmp_path):
    path = tmp_path / "solo.jsonl"
    namers = [llm_arena.play(llm_arena.make("naming-v0", namers=1, topic="bakery"), seed=seed) for seed in range(3)]
    path.write_bytes(
        b"".join(encode(msgspec.structs.replace(trace, group="g", id=str(k))) for k, trace in enumerate(namers))
    )
    paid = llm_arena.make("naming-v0", namers=1).group_reward(list(read_traces(path)))
    rescore_traces(path, "llm_arena.envs.naming:pay_group", tmp_path / "new.jsonl")
    assert returns(tmp_path / "new.jsonl") == [{"namer_0": reward} for reward, _ in paid]


def spoils(trace):
    for turn in trace.turns:
        turn.text, turn.rewards = "spoiled", {}
    trace.spec.kwargs["spoiled"] = True
    trace.seats.pop("judge_0")
    trace.returns.clear()


def test_what_a_reward_does_to_its_traces_is_not_written_and_not_counted(file, tmp_path):
    def alone(trace):
        spoils(trace)
        return 0.5

    def together(traces):
        for trace in traces:
            spoils(trace)
        return [0.25, 0.75]

    for reward, expected in ((alone, [0.5, 0.5, 0.5]), (together, [None, 0.25, 0.75])):
        out = tmp_path / f"{reward.__name__}.jsonl"
        done = rescore_traces(file, reward, out)
        stored = [trace for trace in read_traces(file) if not trace.void]
        after = [trace for trace in read_traces(out) if not trace.void]
        assert [trace.returns for trace in after] == [
            {} if paid is None else dict.fromkeys(SEATS, paid) for paid in expected
        ]
        assert [msgspec.structs.replace(trace, returns=made(1).returns) for trace in after] == stored
        assert [done.roles[role].known_before for role in ("namer", "judge")] == [6, 3]


def fails(trace):
    if trace.seed == 4:
        raise KeyError("score")
    return 1.0


def sorts(traces):
    traces.sort(key=lambda trace: trace.seed, reverse=True)
    return [trace.seed for trace in traces]


async def waits(trace):
    return 1.0


@pytest.mark.parametrize(
    "reward, message",
    [
        (fails, r"fails failed for trace t4: KeyError: 'score'; where it knows no reward, let it return None"),
        (lambda trace: "1", "returned '1' for trace t1; expected a finite number"),
        (lambda trace: 10**400, "returned 1000.* for trace t1; expected a finite number"),
        (lambda trace: {"namer": 10**5000}, "returned a dict for trace t1; expected a finite number"),
        (lambda trace: np.complex64(1), "for trace t1; expected a finite number"),
        (lambda trace: math.nan, "returned nan for trace t1; expected a finite number"),
        (lambda trace: {"namer_0": math.inf}, "returned .* for trace t1"),
        (lambda trace: {"namer_9": 1}, r"rewards 'namer_9' in trace t1. Did you mean \"namer_1\"\?"),
        (lambda trace: [1, 2, 3], "returned .* for trace t1"),
        (sorts, r"sorts sorted or changed its list of traces; let it work on a copy"),
        (lambda traces: [traces.pop().seed for _ in range(2)], "sorted or changed its list"),
        (waits, "waits is an async function"),
        (lambda trace: -1e308, r"returned -1e\+308 for trace t1; a reward's size is at most 1e\+30"),
        (lambda traces: [math.nan, 1.0], "returned nan for trace t2 of group b; expected a finite number"),
        (lambda traces: [1.0], "returned 1 rewards for the 2 traces of group b"),
        (lambda traces: 1.0, "returned 1.0 for group b; expected one reward for each of its traces"),
        (lambda traces: {"namer": 1.0}, "for group b; expected one reward for each"),
        ("no_such_module:f", "module no_such_module can't be imported"),
        ("math:no_such", "math has no function no_such"),
        ("math", "expected module:function"),
        (":f", "expected module:function"),
    ],
)
def test_a_reward_that_fails_stops_it_and_leaves_nothing(reward, message, file, tmp_path):
    before = set(tmp_path.iterdir())
    with pytest.raises(UsageError, match=message):
        rescore_traces(file, reward, tmp_path / "new.jsonl")
    assert set(tmp_path.iterdir()) == before


def test_a_file_that_is_there_is_left_alone(file, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text("mine")
    for out in (other, file, tmp_path):
        with pytest.raises(TraceError, match="exists; choose another name"):
            rescore_traces(file, lambda trace: 1, out)
    assert other.read_text() == "mine" and len(returns(file)) == 4


def test_a_full_disk_and_a_folder_that_takes_no_files_are_errors_about_the_new_file(file, tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patched,
        pytest.raises(TraceError, match=r"new.jsonl can't be written: No space left"),
    ):
        patched.setattr("os.fsync", full)
        rescore_traces(file, lambda trace: 1, tmp_path / "new.jsonl")
    with pytest.raises(TraceError, match=r"x.jsonl can't be written"):
        rescore_traces(file, lambda trace: 1, file / "x.jsonl")
    assert list(tmp_path.iterdir()) == [file]


def test_torn_tails_and_newer_schemas(file, tmp_path):
    whole = file.read_bytes()
    file.write_bytes(whole + encode(made(9))[:-20])
    assert rescore_traces(file, lambda trace: 1, tmp_path / "new.jsonl").traces == 4
    file.write_bytes(whole.replace(b'"schema":1', b'"schema":99', 1))
    with pytest.raises(TraceError, match="line 1 has schema 99"):
        rescore_traces(file, lambda trace: 1, tmp_path / "more.jsonl")
    assert not (tmp_path / "more.jsonl").exists()


def test_a_pipe_can_be_scored_by_trace_but_not_by_group(file, tmp_path):
    for reward, fine in (("lambda trace: 1", True), ("lambda traces: [1] * len(traces)", False)):
        code = (
            "import sys; from llm_arena.rescore import rescore_traces\n"
            f"print(rescore_traces('/dev/stdin', {reward}).traces)"
        )
        done = subprocess.run([sys.executable, "-c", code], input=file.read_bytes(), capture_output=True, check=False)
        assert (done.stdout == b"4\n") == fine
        assert fine or b"no ordinary file" in done.stderr


def test_ctrl_c_leaves_nothing_half_written(file, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, signal\n"
        "def score(trace):\n"
        "    if trace.seed == 4:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return 1\n"
    )
    command = [sys.executable, "-m", "llm_arena", "rescore", str(file), "--reward", "slow:score", "--out", "new.jsonl"]
    before = set(tmp_path.iterdir())
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130 and done.stderr == "llm-arena: interrupted\n"
    assert {path for path in tmp_path.iterdir() if path.name != "__pycache__"} == before
    # and what a kill left does not stand in the way
    (tmp_path / ".new.jsonl.part").mkdir()
    (tmp_path / ".new.jsonl.part" / "new.jsonl").write_text("half")
    (tmp_path / ".new.jsonl.part" / "new.jsonl.lock").touch()
    (tmp_path / "slow.py").write_text("def score(trace):\n    return 2\n")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and len(returns(tmp_path / "new.jsonl")) == 4
    assert not (tmp_path / ".new.jsonl.part").exists()


def test_the_command_prints_what_changes(file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "rescore_test_rewards.py").write_text("def score(trace):\n    return {'namer': trace.seed}\n")
    arguments = ["rescore", str(file), "--reward", "rescore_test_rewards:score", "--out", "new.jsonl"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "role   seats  mean before  mean after  unknown",
        "judge  3      +0.0000      -           3",
        "namer  6      +0.0000      +2.3333     0",
        "4 episodes, of them not scored: 1 void",
        "written to new.jsonl",
    ]
    assert main(arguments) == 1
    assert "new.jsonl exists" in capsys.readouterr().err
    assert main(["rescore", "nowhere.jsonl", "--reward", "math:sqrt"]) == 2
    assert main(["rescore", str(file)]) == 2
