from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from llm_arena import trace_file
from llm_arena.errors import TraceError
from llm_arena.trace_file import NotWritten, TraceWriter, decode, encode, read_traces, upgrade
from llm_arena.types import Cause, Ending, EnvSpec, Failure, Outcome, SeatInfo, Trace, Turn

PROGRAMS = Path(__file__).parent / "programs"
SCHEMAS = Path(__file__).parent / "golden" / "schemas"


def trace(id="t", text="bet") -> Trace:
    return Trace(
        id=id,
        spec=EnvSpec(id="kuhn-poker-v0", kwargs={"retries": 1}),
        seed=2**64 - 1,
        seats={"player_0": SeatInfo(role="player", agent="random-legal")},
        turns=[Turn(index=0, seat="player_0", text=text, messages=[{"role": "user", "content": text}])],
    )


FULL = Trace(
    id="kuhn-poker-v0:1",
    spec=EnvSpec(id="kuhn-poker-v0", kwargs={"retries": 1, "turn_seconds": None}),
    seed=18446744073709551615,
    group="start 0",
    seats={
        "player_0": SeatInfo(role="player", agent="llm:smollm2-135m", policy="smollm2-135m"),
        "player_1": SeatInfo(role="player", agent="random-legal"),
    },
    turns=[
        Turn(
            index=0,
            seat="player_0",
            text="[fold]\n\u2028",
            finish="length",
            cause=Cause.ILLEGAL,
            messages=[
                {"role": "system", "content": "rules"},
                {"role": "user", "content": [{"type": "text", "text": "a card"}]},
            ],
            prompt_ids=[1, 2],
            completion_ids=[7, 0],
            logprobs=[-0.5, -1e-9],
            min_version=3,
            max_version=4,
            seconds=0.25,
        ),
        Turn(
            index=1,
            seat="player_0",
            text="bet",
            attempt=1,
            action={"random_legal": "bet"},
            messages=[{"role": "user", "content": "again"}],
            view_epoch=1,
            rewards={"player_0": 1.0, "player_1": -1.0},
            extends=0,
            prompt_ids=[3],
            completion_ids=[8],
            logprobs=[-2.0],
            min_version=4,
            max_version=4,
        ),
    ],
    returns={"player_0": 1.0, "player_1": -1.0},
    outcome=Outcome(
        winners=["player_0"],
        ranks={"player_0": 1, "player_1": 2},
        reason="player_1 folds",
        scores={"player_0": 1.0},
    ),
    ending=Ending.CONTEXT_OVERFLOW,
    failure=Failure(boundary="agent", kind="ValueError", message="boom", seat="player_1"),
    overflow_seat="player_1",
    env_stats={"player": {"turns": 2, "illegal": 1}},
    library="0.1.0",
    seconds=1.5,
)


def test_what_is_written_is_read_whatever_characters_it_holds(tmp_path):
    # verifiers PR 1644: only "\n" ends a record
    odd = ["\u2028", "\u0085", "\x0b", "\n", '"', "\U0001f600", "\x00", "\r\n", "\x1c", "", "\ufffd"]
    traces = [trace(str(index), f"a{text}b") for index, text in enumerate(odd)]
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        for one in traces:
            writer.write(one)
    assert list(read_traces(tmp_path / "t.jsonl")) == traces


def test_files_of_other_json_writers_are_read(tmp_path):
    plain = (
        b'{"schema": 1, "id": "t", "spec": {"id": "x-v0"}, "seed": 1, "seats": {}, '
        b'"env_stats": {"a": "\\u2028\xe2\x80\xa8"}}'
    )
    path = tmp_path / "t.jsonl"
    path.write_bytes(plain + b"\r\n" + plain)
    assert [t.env_stats for t in read_traces(path)] == [{"a": "\u2028\u2028"}] * 2
    with TraceWriter(path) as writer:  # the last line lacks its end and is whole
        writer.write(trace())
    assert writer.repaired_bytes == 0
    assert len(list(read_traces(path))) == 3


@pytest.mark.parametrize("cut", [1, 2, 40, -1])
def test_a_torn_tail_is_cut_off_at_the_next_start(tmp_path, cut):
    path = tmp_path / "t.jsonl"
    torn = encode(trace("torn"))[:-1][: cut if cut > 0 else -1]
    path.write_bytes(encode(trace("a")) + encode(trace("b")) + torn)
    assert [t.id for t in read_traces(path)] == ["a", "b"]
    with TraceWriter(path) as writer:
        assert writer.repaired_bytes == len(torn)
        writer.write(trace("c"))
    assert path.read_bytes() == b"".join(encode(trace(id)) for id in "abc")


def test_a_torn_first_record_leaves_an_empty_file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(trace())[:30])
    with TraceWriter(path):
        assert path.read_bytes() == b""


def test_a_long_torn_tail_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_file, "_CHUNK", 7)
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(trace("a")) + encode(trace("b"))[:-5])
    with TraceWriter(path) as writer:
        assert writer.repaired_bytes == len(encode(trace("b"))) - 5
    assert path.read_bytes() == encode(trace("a"))


@pytest.mark.parametrize("content", [b"my thesis", b'{"step": 1}\n{"step": 2}\n{"st', b"\x7fELF\n\n", b"\n", b"[1]"])
def test_a_file_of_another_kind_is_left_alone(tmp_path, content):
    path = tmp_path / "important.txt"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="no trace file"):
        TraceWriter(path)
    assert path.read_bytes() == content


def test_two_writers_on_one_file_are_refused_until_the_first_is_closed(tmp_path):
    path = tmp_path / "t.jsonl"
    with TraceWriter(path), pytest.raises(TraceError, match="another writer"):
        TraceWriter(path)
    TraceWriter(path).close()


def test_many_threads_share_a_writer(tmp_path):
    with TraceWriter(tmp_path / "t.jsonl") as writer:
        threads = [
            threading.Thread(target=lambda k=k: [writer.write(trace(f"{k}.{n}", "x" * 5000)) for n in range(10)])
            for k in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ids = [t.id for t in read_traces(tmp_path / "t.jsonl")]
    assert sorted(ids) == sorted(f"{k}.{n}" for k in range(4) for n in range(10))


def test_a_full_disk_is_a_clear_error_and_the_file_stays_whole(tmp_path):
    path = tmp_path / "t.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with TraceWriter(path) as writer:
        writer.write(trace("a"))
        before = path.read_bytes()
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))  # room for a part of the next line
        try:
            with pytest.raises(TraceError, match=r"trace b .* could not be written.*free some space"):
                writer.write(trace("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.read_bytes() == before
        writer.write(trace("c"))
    assert [t.id for t in read_traces(path)] == ["a", "c"]


def test_a_writer_that_cannot_undo_a_torn_line_writes_no_more(tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = TraceWriter(tmp_path / "t.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        patch.setattr(os, "ftruncate", full)
        with pytest.raises(TraceError, match="No space left"):
            writer.write(trace())
    with pytest.raises(TraceError, match="closed"):
        writer.write(trace())


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TraceError, match="can't write traces"):
        TraceWriter(tmp_path / "file" / "t.jsonl")
    with pytest.raises(TraceError, match="can't write traces"):
        TraceWriter(tmp_path)


def test_what_is_no_json_is_refused_and_nothing_is_written(tmp_path):
    bad = trace()
    bad.turns[0].action = object()
    with TraceWriter(tmp_path / "t.jsonl") as writer, pytest.raises(TraceError, match="can't be written as JSON"):
        writer.write(bad)
    bad = trace(text="\ud800")
    with TraceWriter(tmp_path / "t.jsonl") as writer, pytest.raises(TraceError, match="surrogates"):
        writer.write(bad)
    assert (tmp_path / "t.jsonl").read_bytes() == b""


def test_a_closed_writer_says_so(tmp_path):
    writer = TraceWriter(tmp_path / "new" / "folder" / "t.jsonl")
    writer.close()
    writer.close()
    with pytest.raises(TraceError, match="closed"):
        writer.write(trace())


def test_a_broken_record_in_the_middle_names_its_line(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(trace("a")) + b'{"schema":1,"id":3}\n' + encode(trace("b")))
    with pytest.raises(TraceError, match=r"t\.jsonl, line 2 is no trace record.*id"):
        list(read_traces(path))
    with pytest.raises(TraceError, match="no trace file"):
        list(read_traces(tmp_path / "absent.jsonl"))


def test_a_killed_writer_loses_at_most_the_line_in_writing(tmp_path):
    path = tmp_path / "t.jsonl"
    kept: list[str] = []
    for _ in range(2):  # the second goes on in the file of the first
        program = subprocess.Popen(
            [sys.executable, PROGRAMS / "play_and_write.py", path], stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        said = [program.stdout.readline().strip() for _ in range(20)]
        time.sleep(0.05)
        program.kill()
        said += program.stdout.read().split()
        program.wait()
        whole = [t.id for t in read_traces(path)]
        assert whole[: len(kept)] == kept
        new = whole[len(kept) :]
        assert new[: len(said)] == said  # what it had announced is on the disk
        assert len(new) <= len(said) + 1
        kept = whole


def test_the_golden_file_of_schema_1_is_read_and_written_as_ever():
    golden = (SCHEMAS / "schema_1.jsonl").read_bytes()
    assert decode(golden) == FULL
    assert encode(FULL) == golden


def test_there_is_a_golden_file_for_every_schema():
    assert sorted(path.name for path in SCHEMAS.iterdir()) == [
        f"schema_{number}.jsonl" for number in range(1, trace_file.SCHEMA + 1)
    ]


def test_a_newer_schema_is_refused_with_the_remedy(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(encode(trace()) + b'{"schema":99,"what":"ever"}\n')
    traces = read_traces(tmp_path / "t.jsonl")
    assert next(traces) == trace()
    with pytest.raises(TraceError, match=r"line 2 has schema 99.*reads up to 1.*pip install -U"):
        next(traces)


def test_an_old_schema_is_upgraded_step_by_step():
    table = {
        1: lambda record: {**record, "two": record["one"] * 2},
        2: lambda record: {key: value for key, value in record.items() if key != "one"},
    }
    old = {"schema": 1, "one": 5}
    assert upgrade(old, to=3, table=table) == {"schema": 3, "two": 10}
    assert old == {"schema": 1, "one": 5}
    with pytest.raises(TraceError, match="schema 0; this llm_arena reads 1 to 3"):
        upgrade({"schema": 0}, to=3, table=table)


def test_the_way_from_an_old_schema_is_taken_when_reading(monkeypatch):
    monkeypatch.setattr(trace_file, "SCHEMA", 2)
    monkeypatch.setattr(trace_file, "UPGRADES", {1: _rename})
    record = msgspec.to_builtins(trace())
    record["name"] = record.pop("id")
    assert decode(msgspec.json.encode(record)).id == "t"


def _rename(record):
    return {("id" if key == "name" else key): value for key, value in record.items()}


DEEP = b'{"schema":1,"x":' + b"[" * 200_000


@pytest.mark.parametrize("content", [b"[" * 200_000, b"my thesis", b'{"step": 1}', b'{"st', b"\0{"])
@pytest.mark.parametrize("before", [b"", encode(trace("a"))])
def test_only_what_begins_as_a_record_is_taken_for_a_torn_one(tmp_path, before, content):
    path = tmp_path / "t.jsonl"
    path.write_bytes(before + content)
    for use in (lambda path: list(read_traces(path)), TraceWriter):
        with pytest.raises(TraceError, match=r"is no trace (file|record)"):
            use(path)
    assert path.read_bytes() == before + content


@pytest.mark.parametrize("begun", [b"", b'{"sch', encode(trace("torn"))[:40], b" "])
@pytest.mark.parametrize("zeros", [0, 1, 100_000])
def test_readers_leave_out_what_writers_cut_off(tmp_path, begun, zeros):
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(trace("a")) + begun + b"\0" * zeros)
    assert [t.id for t in read_traces(path)] == ["a"]
    with TraceWriter(path) as writer:
        assert writer.repaired_bytes == len(begun) + zeros
    assert path.read_bytes() == encode(trace("a"))


def test_a_file_of_zeros_is_no_trace_file(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\0" * 100_000)
    for use in (lambda path: list(read_traces(path)), TraceWriter):
        with pytest.raises(TraceError, match=r"is no trace file"):
            use(path)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"seat": "ghost_0"}, "turns[1].seat is 'ghost_0', which is none of its seats: player_0, player_1"),
        ({"index": 7}, "turns[1].index is 7, expected 1"),
        ({"index": 0}, "turns[1].index is 0, expected 1"),
        ({"prompt_ids": [3, -1]}, "turns[1] has a token id that is no number in [0, 2**32)"),
        ({"completion_ids": [2**32]}, "turns[1] has a token id that is no number in [0, 2**32)"),
    ],
)
def test_turns_that_contradict_their_trace_are_no_record(tmp_path, change, says):
    odd = msgspec.structs.replace(FULL, turns=[FULL.turns[0], msgspec.structs.replace(FULL.turns[1], **change)])
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(FULL) + encode(odd))
    with pytest.raises(TraceError) as caught:
        list(read_traces(path))
    assert str(caught.value) == f"{path}, line 2 is no trace record: {says}"


def test_a_whole_last_record_of_a_newer_schema_is_not_taken_for_a_torn_one(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(b'{"schema":99}')
    with pytest.raises(TraceError, match="schema 99"):
        list(read_traces(tmp_path / "t.jsonl"))


def test_json_nested_too_deeply_is_a_broken_record(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(encode(trace("a")) + DEEP + b"\n")
    with pytest.raises(TraceError, match="line 2 is no trace record"):
        list(read_traces(path))
    path.write_bytes(DEEP + b"\n")
    with pytest.raises(TraceError, match="no trace file"):
        TraceWriter(path)
    path.write_bytes(encode(trace("a")) + DEEP)  # torn
    assert [t.id for t in read_traces(path)] == ["a"]
    with TraceWriter(path) as writer:
        assert writer.repaired_bytes == len(DEEP)


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + encode(trace("a")) + b"\n \r\n" + encode(trace("b")) + b"\n\n  ")
    assert [t.id for t in read_traces(path)] == ["a", "b"]
    path.write_bytes(b"\xef\xbb\xbf" + encode(trace("a")))
    with TraceWriter(path) as writer:
        writer.write(trace("b"))
    assert [t.id for t in read_traces(path)] == ["a", "b"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_named(tmp_path, encoding):
    (tmp_path / "t.jsonl").write_bytes(("\ufeff" + encode(trace()).decode()).encode(encoding))
    with pytest.raises(TraceError, match="UTF-16.*UTF-8"):
        list(read_traces(tmp_path / "t.jsonl"))


def test_pipes_are_read_and_folders_named(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    sender = threading.Thread(target=pipe.write_bytes, args=(encode(trace("a")),))
    sender.start()
    assert [t.id for t in read_traces(pipe)] == ["a"]
    sender.join()
    with pytest.raises(TraceError, match="is a folder"):
        list(read_traces(tmp_path))
    with pytest.raises(TraceError, match="there is no trace file"):
        list(read_traces("x" * 5000))


def test_a_record_that_could_not_be_written_is_handed_back(tmp_path, monkeypatch):
    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with TraceWriter(tmp_path / "t.jsonl") as writer, monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(NotWritten) as caught:
            writer.write(trace("a"))
    assert caught.value.trace == trace("a")
