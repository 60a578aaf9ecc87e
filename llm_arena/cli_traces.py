"""`llm-arena rescore` and `llm-arena export`: recorded episodes as data."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from llm_arena.cli_parser import Parser
from llm_arena.errors import UsageError
from llm_arena.report.text import table_lines, visible


def run_rescore(argv: list[str]) -> int:
    """Scores recorded episodes again, prints what that changes, and writes them."""
    parser = Parser(
        "rescore",
        "Score recorded episodes again with your own function. It gets a trace and returns a number for all seats,\n"
        "{seat: number}, {role: number}, or None where no reward is known; if its parameter is named traces, it gets\n"
        "the list of a group and returns one of these for each. Outcomes and scores stay as they are; returns change.",
        [
            "llm-arena rescore traces.jsonl --reward my_rewards:short_answers",
            "llm-arena rescore traces.jsonl --reward my_rewards:short_answers --out rescored.jsonl",
        ],
    )
    parser.add_argument("traces", metavar="TRACES", type=Path, help="a file of traces (JSON lines)")
    parser.add_argument("--reward", required=True, metavar="MODULE:FUNCTION", help="found from the current folder too")
    parser.add_argument("--out", metavar="NEW.jsonl", type=Path, help="write the traces there with their new returns")
    options = parser.parse_args(argv)
    from llm_arena.rescore import rescore_traces, takes_groups

    if os.getcwd() not in sys.path and "" not in sys.path:  # last: a file in it must not hide a package
        sys.path.append(os.getcwd())
    passes = 1 + takes_groups(options.reward)
    with _progress(options.traces, passes) as on_bytes:
        done = rescore_traces(options.traces, options.reward, options.out, on_bytes=on_bytes)
    rows = [("role", "seats", "mean before", "mean after", "unknown")]
    rows += [
        (name, f"{role.seats}", _mean(role.mean_before), _mean(role.mean_after),
         f"{role.seats - role.known_after}")
        for name, role in sorted(done.roles.items())
    ]  # fmt: skip
    print("\n".join(table_lines(rows)))
    left = [f"{done.void} void"] if done.void else []
    left += [f"{done.incomplete} in groups with a void one"] if done.incomplete else []
    print(f"{done.traces} episodes{', of them not scored: ' + ', '.join(left) if left else ''}")
    if options.out is not None:
        print(f"written to {visible(str(options.out), newlines=False)}")
    return 0


def run_export(argv: list[str]) -> int:
    """Writes recorded episodes as a table."""
    parser = Parser(
        "export",
        "Write recorded episodes as a table: a Parquet file, or a folder that the package datasets loads.",
        [
            "llm-arena export traces.jsonl sequences.parquet",
            "llm-arena export traces.jsonl my_dataset",
            "llm-arena export traces.jsonl turns.parquet --rows turns",
        ],
    )
    parser.add_argument("traces", metavar="TRACES", type=Path, help="a file of traces (JSON lines)")
    parser.add_argument("out", metavar="OUT", type=Path, help="NAME.parquet, or a folder; must not be there")
    parser.add_argument(
        "--rows",
        choices=("sequences", "turns", "episodes"),
        default="sequences",
        help="what a row is: a token stream with its mask, a turn, or an episode (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    from llm_arena.export import export_traces

    with _progress(options.traces, 1) as on_bytes:
        done = export_traces(options.traces, options.out, rows=options.rows, on_bytes=on_bytes)
    void = f", {done.void} of them void" if done.void else ""
    print(
        f"{done.rows:,} {options.rows} of {done.traces:,} episodes{void}: "
        f"{visible(str(options.out), newlines=False)}, {done.bytes:,} bytes"
    )
    return 0


@contextmanager
def _progress(path: Path, passes: int) -> Iterator[Callable[[int], object] | None]:
    """Yields what counts the bytes that were read, for a bar in a terminal; None elsewhere."""
    if not os.path.exists(path):  # unlike `Path.exists`, says no to a name that is too long
        raise UsageError(f"there is no file {path}")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give a file of traces, e.g. {path / 'traces.jsonl'}")
    if not sys.stderr.isatty() or not path.is_file():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("read"), BarColumn(bar_width=30), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("read", total=os.path.getsize(path) * passes)
        yield lambda size: bar.advance(task, size)


def _mean(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:+.4f}"


__all__ = ["run_export", "run_rescore"]
