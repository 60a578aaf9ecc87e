"""Traces as tables: what comes out is what is stored, exactly, in every program that reads it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet
import pytest

import llm_arena
from llm_arena import export
from llm_arena.cli import main
from llm_arena.errors import MissingExtra, TraceError, UsageError
from llm_arena.export import EPISODES, SEQUENCES, TURNS, export_traces
from llm_arena.recorder import sequences
from llm_arena.trace_file import encode, read_traces
from llm_arena.types import Ending, EnvSpec, Failure, Outcome, SeatInfo, Trace, Turn

SEATS = {
    "thinker_0": SeatInfo(role="thinker", agent="llm:learner", policy="learner"),
    "verifier_0": SeatInfo(role="verifier", agent="llm:frozen", policy="frozen"),
    "judge_0": SeatInfo(role="judge", agent="scripted"),
}


def made(number: int) -> Trace:
    rng = np.random.default_rng(number)
    trace = Trace(
        id=f"t{number}",
        spec=EnvSpec(id="thinker-verifier-v0", kwargs={"level": number}),
        seed=2**64 - 1 - number,
        group="g",
        seats=SEATS,
        returns={"thinker_0": 0.1 * number, "verifier_0": -1.0},
        outcome=Outcome(winners=["thinker_0"], reason="right \u2028 \x00", facts={"answer": [number, None, "ä"]}),
        env_stats={"thinker": {"turns": 3}},
        seconds=1.5,
    )
    last: dict[str, int] = {}
    for index in range(7):
        seat = list(SEATS)[index % 3]
        turn = Turn(index=index, seat=seat, text=f"né {index}\n", action={"x": [index]}, seconds=index / 7)
        turn.messages = [{"role": "user", "content": "told"}]
        if seat != "judge_0":
            sampled = int(rng.integers(0, 5))
            turn.prompt_ids = rng.integers(0, 2**31 - 1, rng.integers(0, 4)).tolist()
            turn.completion_ids = rng.integers(0, 200_000, sampled).tolist()
            turn.logprobs = (-rng.exponential(1, sampled)).tolist()  # all bits of a double
            turn.extends = last.get(seat) if rng.random() < 0.7 else None
            turn.min_version, turn.max_version = index, index + 1
            last[seat] = index
        trace.turns.append(turn)
    return trace


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "traces.jsonl"
    void = msgspec.structs.replace(
        made(3), ending=Ending.VOID, failure=Failure(boundary="engine", kind="X", message="y"), returns={}, outcome=None
    )
    path.write_bytes(b"".join(map(encode, [made(0), made(1), void, made(2)])))
    return path


def sequence_dicts(path: Path) -> list[dict]:
    return [
        {
            "trace_id": trace.id,
            "group": trace.group,
            "env": trace.spec.id,
            "seed": trace.seed,
            "seat": one.seat,
            "role": one.role,
            "agent": trace.seats[one.seat].agent,
            "policy": one.policy,
            "token_ids": one.token_ids,
            "mask": one.mask,
            "logprobs": one.logprobs,
            "turn_of": one.turn_of,
            "turns": one.turns,
            "min_version": one.min_version,
            "max_version": one.max_version,
            "finish": one.finish,
            "ending": one.ending,
            "return": trace.returns.get(one.seat),
            "outcome": msgspec.json.encode(trace.outcome).decode(),
            "texts": [trace.turns[turn].text for turn in one.turns],
        }
        for trace in read_traces(path)
        for one in sequences(trace)
    ]


def test_sequences_come_back_exactly(file, tmp_path):
    done = export_traces(file, tmp_path / "x.parquet")
    rows = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert rows == sequence_dicts(file)
    assert len(rows) >= 6 and {row["policy"] for row in rows} == {"learner", "frozen"}
    assert (done.traces, done.void, done.rows) == (4, 1, len(rows))
    assert done.bytes == (tmp_path / "x.parquet").stat().st_size
    assert list(rows[0]) == list(SEQUENCES)


def test_turns_come_back_exactly(file, tmp_path):
    export_traces(file, tmp_path / "x.parquet", rows="turns")
    rows = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    turns = [(trace, turn) for trace in read_traces(file) for turn in trace.turns]
    assert len(rows) == len(turns) == 28 and list(rows[0]) == list(TURNS)
    for row, (trace, turn) in zip(rows, turns, strict=True):
        assert (row["trace_id"], row["turn"], row["seat"], row["ending"]) == (
            trace.id, turn.index, turn.seat, trace.ending,
        )  # fmt: skip
        for name in ("text", "finish", "cause", "attempt", "view_epoch", "extends", "prompt_ids", "completion_ids"):
            assert row[name] == getattr(turn, name)
        for name in ("logprobs", "min_version", "max_version", "guided", "seconds"):
            assert row[name] == getattr(turn, name)
        for name in ("messages", "action", "rewards"):
            assert msgspec.json.decode(row[name]) == getattr(turn, name)
        assert row["return"] == trace.returns.get(turn.seat)
        assert row["role"] == trace.seats[turn.seat].role


def test_episodes_come_back_exactly(file, tmp_path):
    export_traces(file, tmp_path / "x.parquet", rows="episodes")
    rows = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    assert list(rows[0]) == list(EPISODES)
    for row, trace in zip(rows, read_traces(file), strict=True):
        assert (row["trace_id"], row["seed"], row["ending"], row["turns"]) == (trace.id, trace.seed, trace.ending, 7)
        assert msgspec.json.decode(row["env_args"]) == trace.spec.kwargs
        assert msgspec.json.decode(row["returns"]) == trace.returns
        assert row["outcome"] is None or msgspec.json.decode(row["outcome"], type=Outcome) == trace.outcome
        assert msgspec.json.decode(row["seats"], type=dict[str, SeatInfo]) == trace.seats
        assert (row["failure"] is None) == (not trace.void)
        assert row["sampled_tokens"] == sum(len(turn.completion_ids) for turn in trace.turns)


@pytest.mark.parametrize("rows", ["sequences", "turns", "episodes"])
def test_a_folder_loads_in_datasets_in_both_ways(rows, file, tmp_path, monkeypatch):
    datasets = importlib.import_module("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    export_traces(file, tmp_path / "x.parquet", rows=rows)
    done = export_traces(file, tmp_path / "folder", rows=rows)
    expected = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    loaded = datasets.load_from_disk(tmp_path / "folder")["train"]
    assert loaded.to_list() == expected and len(expected) == done.rows
    again = datasets.load_dataset(str(tmp_path / "folder"), split="train", cache_dir=str(tmp_path / "cache"))
    assert again.to_list() == expected
    assert datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "x.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    ).to_list() == expected  # fmt: skip


def test_rows_are_written_as_they_come(file, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_CHUNK", 60)
    export_traces(file, tmp_path / "x.parquet")
    assert pyarrow.parquet.ParquetFile(tmp_path / "x.parquet").num_row_groups > 3
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist() == sequence_dicts(file)


def test_a_file_without_traces_is_an_empty_table(tmp_path):
    (tmp_path / "empty.jsonl").write_bytes(b"")
    assert export_traces(tmp_path / "empty.jsonl", tmp_path / "x.parquet").rows == 0
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").column_names == list(SEQUENCES)
    datasets = importlib.import_module("datasets")
    export_traces(tmp_path / "empty.jsonl", tmp_path / "folder")
    assert datasets.load_from_disk(tmp_path / "folder")["train"].num_rows == 0


def test_what_can_t_be_read_leaves_nothing(file, tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(file.read_bytes() + b'{"schema":99,"id":"x"}\n')
    for out in ("x.parquet", "folder"):
        with pytest.raises(TraceError, match="schema 99"):
            export_traces(broken, tmp_path / out)
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.parametrize(
    "rows, field, value, message",
    [
        ("episodes", "seed", -1, "trace t1: seed is -1, which doesn't fit into a column of uint64"),
        ("sequences", "seed", 2**64, "trace t1: seed is 18446744073709551616, which doesn't fit"),
        (
            "turns",
            "min_version",
            2**31,
            "trace t1: min_version is 2147483648, which doesn't fit into a column of int32",
        ),
        ("turns", "completion_ids", [2**31], "trace t1: completion_ids is .2147483648., which doesn't fit"),
        ("sequences", "prompt_ids", [2**31], "trace t1: token_ids is .*, which doesn't fit"),
    ],
)
def test_a_number_that_is_too_large_for_its_column_names_the_trace(rows, field, value, message, tmp_path):
    bad = made(1)
    if field == "seed":
        bad.seed = value
    else:
        setattr(bad.turns[0], field, value)
    path = tmp_path / "traces.jsonl"
    path.write_bytes(b"".join(map(encode, [made(0), bad, made(2)])))
    for out in ("x.parquet", "folder"):
        with pytest.raises(TraceError, match=message):
            export_traces(path, tmp_path / out, rows=rows)
    assert list(tmp_path.iterdir()) == [path]


def test_names_that_are_taken_or_odd(file, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "x.parquet").write_text("mine")
    for out in ("there", "x.parquet"):
        with pytest.raises(TraceError, match="exists; choose another name"):
            export_traces(file, tmp_path / out)
    with pytest.raises(UsageError, match=r"end it with .parquet, or name a folder"):
        export_traces(file, tmp_path / "x.csv")
    for out in ("", "."):
        with pytest.raises(UsageError, match="has no name to write to"):
            export_traces(file, out)
    with pytest.raises(UsageError, match="rows='words'"):
        export_traces(file, tmp_path / "y.parquet", rows="words")
    assert (tmp_path / "x.parquet").read_text() == "mine"


def test_without_pyarrow_it_names_the_extra(file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r'pip install "llm-arena\[export\]"'):
        export_traces(file, tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def test_importing_the_library_does_not_import_pyarrow():
    code = (
        "import sys, llm_arena; llm_arena.export_traces; llm_arena.rescore_traces; sys.exit('pyarrow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_command(tmp_path, capsys):
    path = tmp_path / "kuhn.jsonl"
    llm_arena.play("kuhn-poker-v0", seed=0, traces=path)
    assert main(["export", str(path), str(tmp_path / "x.parquet"), "--rows", "turns"]) == 0
    shown = capsys.readouterr().out
    assert "turns of 1 episodes: " in shown and shown.endswith(" bytes\n")
    assert main(["export", str(path), str(tmp_path / "y.parquet")]) == 0
    assert capsys.readouterr().out.startswith("0 sequences of 1 episodes")  # nobody sampled tokens
    assert main(["export", str(tmp_path), str(tmp_path / "z.parquet")]) == 2
    assert main(["export", str(path), str(tmp_path / "z.parquet"), "--rows", "words"]) == 2
