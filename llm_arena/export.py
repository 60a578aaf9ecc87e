"""Stored runs as tables: one Parquet file, or a folder that `datasets` loads.

Both are written while the traces are read, so that a run of any size needs little memory.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from llm_arena.errors import TraceError, UsageError, missing_extra
from llm_arena.recorder import sequences
from llm_arena.trace_file import read_traces, written_whole
from llm_arena.types import Json, Trace

Rows = Literal["sequences", "turns", "episodes"]

_CHUNK = 1_000_000
"""So many ids and characters are held before they are written: some 50 MB."""

_FILES = (".json", ".jsonl", ".csv", ".arrow")
"""Kinds of file that somebody may expect, and that are not written."""

_README = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: train/*.arrow
---
Written by `llm-arena export`; load it with `datasets.load_from_disk` or `datasets.load_dataset`.
"""

Columns = Mapping[str, str]
"""Name -> Arrow type; a `*` before it: a list of them."""

SEQUENCES: Columns = {
    "trace_id": "string",
    "group": "string",
    "env": "string",
    "seed": "uint64",
    "seat": "string",
    "role": "string",
    "agent": "string",
    "policy": "string",
    "token_ids": "*int32",
    "mask": "*bool",
    "logprobs": "*float64",
    "turn_of": "*int32",
    "turns": "*int32",
    "min_version": "int32",
    "max_version": "int32",
    "finish": "string",
    "ending": "string",
    "return": "float64",
    "outcome": "string",
    "texts": "*string",
}
"""A row per token stream, see `TokenSequence`; `texts` are the replies of `turns`, `outcome` is JSON."""

TURNS: Columns = {
    "trace_id": "string",
    "group": "string",
    "env": "string",
    "seed": "uint64",
    "turn": "int32",
    "seat": "string",
    "role": "string",
    "agent": "string",
    "policy": "string",
    "view_epoch": "int32",
    "attempt": "int32",
    "messages": "string",
    "text": "string",
    "finish": "string",
    "cause": "string",
    "action": "string",
    "rewards": "string",
    "extends": "int32",
    "prompt_ids": "*int32",
    "completion_ids": "*int32",
    "logprobs": "*float64",
    "min_version": "int32",
    "max_version": "int32",
    "guided": "bool",
    "seconds": "float64",
    "ending": "string",
    "return": "float64",
}
"""A row per turn, as it is stored: new messages and new prompt ids alone; `messages`, `action`, `rewards` are JSON."""

EPISODES: Columns = {
    "trace_id": "string",
    "group": "string",
    "env": "string",
    "env_args": "string",
    "seed": "uint64",
    "seats": "string",
    "returns": "string",
    "outcome": "string",
    "ending": "string",
    "failure": "string",
    "overflow_seat": "string",
    "turns": "int32",
    "sampled_tokens": "int64",
    "env_stats": "string",
    "library": "string",
    "seconds": "float64",
}
"""A row per trace; `env_args`, `seats`, `returns`, `outcome`, `failure`, `env_stats` are JSON."""

TABLES: Mapping[str, Columns] = {"sequences": SEQUENCES, "turns": TURNS, "episodes": EPISODES}


@dataclass(frozen=True)
class Exported:
    """What `export_traces` wrote."""

    traces: int
    void: int
    rows: int
    bytes: int
    "Size of what was written."


def export_traces(
    traces: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    rows: Rows = "sequences",
    on_bytes: Callable[[int], object] | None = None,
) -> Exported:
    """Writes the traces of a file as a table with the columns `SEQUENCES`, `TURNS` or `EPISODES`.

    Void traces have no sequences; their turns and episodes are there, with that ending.

    Args:
        traces: the file.
        out: what to write, which must not be there: a file if it ends with `.parquet`, else a folder for
            `datasets.load_from_disk` and `datasets.load_dataset`, with one split, `train`.
        rows: what a row is.
        on_bytes: told the size of each line that was read.

    Raises:
        MissingExtra: pyarrow is not installed.
        UsageError: `rows` is unknown, or `out` ends like another kind of file, or in no name at all.
        TraceError: the traces can't be read or hold a number too large for its column, or `out` exists or can't be
            written.
    """
    if rows not in TABLES:
        raise UsageError(f"rows={rows!r}; expected one of {', '.join(TABLES)}")
    path = Path(out)
    if path.suffix.lower() in _FILES:
        raise UsageError(f"{path} would be no table; end it with .parquet, or name a folder")
    arrow = _arrow()
    counts = _Counts()
    with written_whole(path) as aside, ExitStack() as stack:
        schema = _schema(arrow, TABLES[rows])
        parquet = path.suffix.lower() == ".parquet"
        write = (_parquet if parquet else _folder)(arrow, schema, aside, stack)
        for chunk in _chunks(_all_rows(read_traces(traces, on_bytes), rows, counts)):
            columns = [_column(arrow, chunk, place, field) for place, field in enumerate(schema)]
            write(arrow.Table.from_arrays(columns, schema=schema))
            counts.rows += len(chunk)
        stack.close()
        files = [file for file in aside.rglob("*") if file.is_file()] if aside.is_dir() else [aside]
        size = sum(file.stat().st_size for file in files)
    return Exported(traces=counts.traces, void=counts.void, rows=counts.rows, bytes=size)


@dataclass
class _Counts:
    traces: int = 0
    void: int = 0
    rows: int = 0


def _all_rows(traces: Iterable[Trace], rows: Rows, counts: _Counts) -> Iterator[list[Any]]:
    of = {"sequences": _sequence_rows, "turns": _turn_rows, "episodes": _episode_rows}[rows]
    for trace in traces:
        counts.traces += 1
        counts.void += trace.void
        yield from of(trace)


def _chunks(rows: Iterable[list[Any]]) -> Iterator[list[list[Any]]]:
    chunk: list[list[Any]] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row) + sum(len(cell) for cell in row if isinstance(cell, list | str))
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _column(arrow: Any, rows: list[list[Any]], place: int, field: Any) -> Any:
    """Returns one column of some rows.

    Raises:
        TraceError: a value does not fit into its type; names the trace.
    """
    try:
        return arrow.array([row[place] for row in rows], type=field.type)
    except (arrow.ArrowException, OverflowError, UnicodeError) as error:
        if len(rows) > 1:  # then one of them alone raises, too
            for row in rows:
                _column(arrow, [row], place, field)
        value = f"{rows[0][place]!r:.60}"
        raise TraceError(
            f"trace {rows[0][0]}: {field.name} is {value}, which doesn't fit into a column of {field.type}: {error}"
        ) from error


def _sequence_rows(trace: Trace) -> Iterator[list[Any]]:
    """In the order of `SEQUENCES`, as the other two are in that of their columns."""
    outcome = _json(trace.outcome)
    for found in sequences(trace):
        yield [
            *_head(trace),
            found.seat,
            found.role,
            trace.seats[found.seat].agent,
            found.policy,
            found.token_ids,
            found.mask,
            found.logprobs,
            found.turn_of,
            found.turns,
            found.min_version,
            found.max_version,
            found.finish,
            str(found.ending),
            trace.returns.get(found.seat),
            outcome,
            [trace.turns[index].text for index in found.turns],
        ]


def _turn_rows(trace: Trace) -> Iterator[list[Any]]:
    for turn in trace.turns:
        info = trace.seats[turn.seat]
        yield [
            *_head(trace),
            turn.index,
            turn.seat,
            info.role,
            info.agent,
            info.policy,
            turn.view_epoch,
            turn.attempt,
            _json(turn.messages),
            turn.text,
            turn.finish,
            str(turn.cause),
            _json(turn.action),
            _json(turn.rewards),
            turn.extends,
            turn.prompt_ids,
            turn.completion_ids,
            turn.logprobs,
            turn.min_version,
            turn.max_version,
            turn.guided,
            turn.seconds,
            str(trace.ending),
            trace.returns.get(turn.seat),
        ]


def _episode_rows(trace: Trace) -> Iterator[list[Any]]:
    trace_id, group, env, seed = _head(trace)
    yield [
        trace_id,
        group,
        env,
        _json(trace.spec.kwargs),
        seed,
        _json(trace.seats),
        _json(trace.returns),
        _json(trace.outcome),
        str(trace.ending),
        _json(trace.failure),
        trace.overflow_seat,
        len(trace.turns),
        sum(len(turn.completion_ids) for turn in trace.turns),
        _json(trace.env_stats),
        trace.library,
        trace.seconds,
    ]


def _head(trace: Trace) -> tuple[str, str, str, int]:
    return trace.id, trace.group, trace.spec.id, trace.seed


def _json(value: Json) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _parquet(arrow: Any, schema: Any, path: Path, stack: ExitStack) -> Callable[[Any], object]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    floats = [field.name for field in schema if field.type == arrow.list_(arrow.float64())]
    writer = parquet.ParquetWriter(
        path,
        schema,
        compression="zstd",
        # An engine's logprobs are 32-bit numbers, so half of their bytes are zeros; side by side those vanish.
        use_dictionary=[field.name for field in schema if field.name not in floats],
        column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in floats},
    )
    return stack.enter_context(writer).write_table  # type: ignore[no-any-return]  # pyarrow has no types


def _folder(arrow: Any, schema: Any, path: Path, stack: ExitStack) -> Callable[[Any], object]:
    """What `datasets` writes itself for one split, and a card that tells `load_dataset` where it is."""
    data = "data-00000-of-00001.arrow"
    split = path / "train"
    split.mkdir(parents=True)
    (path / "README.md").write_text(_README, encoding="utf-8")
    (path / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}), encoding="utf-8")
    (split / "dataset_info.json").write_text(json.dumps({"features": None}), encoding="utf-8")
    state: dict[str, Any] = {
        "_data_files": [{"filename": data}],
        "_fingerprint": os.urandom(8).hex(),
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    (split / "state.json").write_text(json.dumps(state), encoding="utf-8")
    file = stack.enter_context(arrow.OSFile(str(split / data), "wb"))
    return stack.enter_context(arrow.ipc.new_stream(file, schema)).write_table  # type: ignore[no-any-return]  # as above


def _schema(arrow: Any, columns: Columns) -> Any:
    def of(kind: str) -> Any:
        return arrow.list_(of(kind[1:])) if kind.startswith("*") else arrow.type_for_alias(kind)

    return arrow.schema([(name, of(kind)) for name, kind in columns.items()])


def _arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ModuleNotFoundError as error:
        raise missing_extra("exporting traces", "pyarrow", "export") from error


__all__ = ["EPISODES", "SEQUENCES", "TURNS", "Exported", "export_traces"]
