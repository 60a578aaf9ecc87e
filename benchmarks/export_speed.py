"""How fast stored traces become tables, and how large those are.

    python benchmarks/export_speed.py [--turns 100000]

Writes made-up traces (two seats, ten turns each, 60 new prompt ids and 80 sampled ones a turn; ids drawn with the
frequencies of words in a text, log-probabilities that are 32-bit numbers, as engines give them), then exports them as
Parquet and as a folder for `datasets`, each in a process of its own. Sizes are per turn, beside the JSON lines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from llm_arena.report.text import table_lines
from llm_arena.trace_file import encode
from llm_arena.types import EnvSpec, Outcome, SeatInfo, Trace, Turn

SEATS = {
    "thinker_0": SeatInfo(role="thinker", agent="llm:learner", policy="learner"),
    "verifier_0": SeatInfo(role="verifier", agent="llm:smollm2-135m", policy="smollm2-135m"),
}
TURNS, NEW, SAMPLED, VOCABULARY = 10, 60, 80, 49_152

EXPORT = """
import json, resource, sys, time
from llm_arena.export import export_traces
import pyarrow.parquet
began = time.perf_counter()
done = export_traces(sys.argv[1], sys.argv[2], rows=sys.argv[3])
seconds = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"rows": done.rows, "seconds": seconds, "bytes": done.bytes, "peak_mb": peak / 1024}))
"""


def ids(rng: np.random.Generator, count: int) -> list[int]:
    """Draws ids, of which few are frequent and most are rare."""
    drawn: list[int] = (rng.zipf(1.2, 4 * count) - 1).tolist()
    kept = [token for token in drawn if token < VOCABULARY][:count]
    return kept + [0] * (count - len(kept))


def made(number: int) -> Trace:
    """Returns a made-up trace of `TURNS` turns."""
    rng = np.random.default_rng(number)
    trace = Trace(
        id=f"{number:08d}",
        spec=EnvSpec(id="thinker-verifier-v0", kwargs={"level": 2}),
        seed=number,
        group=f"{number // 8:08d}",
        seats=SEATS,
        returns={"thinker_0": float(number % 2), "verifier_0": 1.0},
        outcome=Outcome(winners=list(SEATS), reason="right", scores=dict.fromkeys(SEATS, 1.0)),
    )
    for index in range(TURNS):
        sampled = ids(rng, SAMPLED)
        text = " ".join(f"{token:x}" for token in sampled[: SAMPLED * 3 // 4])
        trace.turns.append(
            Turn(
                index=index,
                seat=list(SEATS)[index % 2],
                text=text,
                messages=[{"role": "user", "content": f"The other said:\n> {text}"}],
                extends=index - 2 if index > 1 else None,
                prompt_ids=ids(rng, NEW),
                completion_ids=sampled,
                logprobs=(-rng.exponential(1.0, SAMPLED)).astype(np.float32).astype(float).tolist(),
            )
        )
    return trace


def main() -> int:
    """Measures, and prints a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=100_000, help="turns in all (default: %(default)s)")
    turns = parser.parse_args().turns // TURNS * TURNS
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces.jsonl"
        began = time.perf_counter()
        with open(traces, "wb") as file:
            for number in range(turns // TURNS):
                file.write(encode(made(number)))
        jsonl = traces.stat().st_size
        print(
            f"{turns:,} turns, {jsonl:,} bytes of JSON lines, made in {time.perf_counter() - began:.0f} s", flush=True
        )
        rows = [("table", "rows", "seconds", "rows/s", "turns/s", "bytes/turn", "of JSON lines", "peak MB")]
        found = []
        for table, out in (("sequences", "s.parquet"), ("turns", "t.parquet"), ("sequences", "folder")):
            command = [sys.executable, "-c", EXPORT, str(traces), str(Path(folder) / out), table]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            one = json.loads(shown)
            kind = "Parquet" if out.endswith(".parquet") else "datasets"
            found.append(
                {
                    "table": f"{table}, {kind}",
                    "rows_per_second": round(one["rows"] / one["seconds"]),
                    "turns_per_second": round(turns / one["seconds"]),
                    "bytes_per_turn": round(one["bytes"] / turns, 1),
                    "of_jsonl": round(one["bytes"] / jsonl, 3),
                    "peak_mb": round(one["peak_mb"]),
                }
            )
            last = found[-1]
            rows.append(
                (
                    str(last["table"]),
                    f"{one['rows']:,}",
                    f"{one['seconds']:.1f}",
                    f"{last['rows_per_second']:,}",
                    f"{last['turns_per_second']:,}",
                    str(last["bytes_per_turn"]),
                    str(last["of_jsonl"]),
                    str(last["peak_mb"]),
                )
            )
        print("\n".join(table_lines(rows)))
        print(json.dumps({"turns": turns, "jsonl_bytes_per_turn": round(jsonl / turns, 1), "tables": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
