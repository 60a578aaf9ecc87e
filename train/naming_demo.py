"""naming-demo: trains a model by self-play on naming-v0, then ranks it against its initial self and a scripted namer.

Eight topics a step, four names each, every two names compared by the rubric. Afterwards {trained, initial, scripted}
meet in matches of two names, seats swapped, on topics that were never trained on. The run's folder gets the metrics,
all traces, the matches and their leaderboard in `ranking/`, and `index.html`. The same command goes on where it was
stopped.

The last line of the output is JSON: `win_rate` of trained against initial = (wins + draws/2) / `matches`,
`heldout_topics`, `seconds_after_fetch` (of this process, from the moment that the model is there), `peak_rss_gb` (of
this process and its children, such as vLLM's; see `Memory`; null on Windows), `max_logprob_gap` (largest difference
between engine and learner over all trained tokens, in nats).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from llm_arena.boards.board import Game
from llm_arena.boards.evaluate import evaluate
from llm_arena.boards.formats import to_text
from llm_arena.boards.leaderboard import Leaderboard
from llm_arena.boards.match_file import TRACES
from llm_arena.cli import guarded
from llm_arena.errors import UsageError
from llm_arena.models import resolve_model
from llm_arena.problems.naming.topics import SPLITS
from llm_arena.rating import Record, standings, win_rate
from llm_arena.report import write_report
from llm_arena.report.results import RankedRow, Results, Sample, load_results
from llm_arena.report.text import table_lines
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse

if sys.platform != "win32":
    import resource

TRAINED, INITIAL, SCRIPTED = "trained", "initial", "scripted"

TOPICS = SPLITS["heldout"]
"""With the seats swapped, two matches on each topic for every two entrants."""

SHOWN_TOPICS = 8

_SECONDS = 0.25
"""Between two looks at the memory."""

DEFAULTS = TrainConfig(
    env="naming-v0",
    env_args='{"judge": "rubric", "namers": 4}',
    model="smollm2-135m",
    num_steps=25,
    starts_per_step=8,
    max_new_tokens=24,
    lr=3e-5,
    lr_end=1e-5,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Trains, ranks, and reports."""
    arguments = sys.argv[1:] if argv is None else argv
    description = (__doc__ or "").partition("\n\n")[2]
    config = parse(
        TrainConfig, arguments, prog="llm-arena train naming-demo", description=description, default=DEFAULTS
    )
    if config.env != DEFAULTS.env:
        raise UsageError(f"naming-demo plays {DEFAULTS.env}, but --env {config.env} was given; use self-play for that")
    if config.harness is not None:
        raise UsageError(f"naming-demo plays {DEFAULTS.env}, and no --harness {config.harness}; use self-play for that")
    if config.seated():
        raise UsageError("naming-demo has one model in all seats, and takes no --roster; use self-play for that")
    initial = resolve_model(config.model)
    began = time.monotonic()
    from llm_arena.training.loop import train  # loads torch

    with Memory() as memory:
        result = train(config, script="naming-demo")
        # What was ranked before the training ended was other weights.
        board = rank(config, initial, result.final_dir, result.run_dir / "ranking", fresh=not result.was_complete)
    found = results_of(board, began, memory.peak, result.max_logprob_gap)
    results = load_results(result.run_dir)
    if results is None or not result.was_complete or results.comparisons != found.comparisons:
        results = found
        results.save(result.run_dir)
    page = write_report(result.run_dir)
    print("\n".join(summary(results, board)))
    print(f"\nrun     {result.run_dir}\nmodel   {result.final_dir}\nreport  {page}\n")
    print(json.dumps(results.figures, allow_nan=False))
    return 0


def rank(config: TrainConfig, initial: Path, final: Path, folder: Path, *, fresh: bool) -> Leaderboard:
    """Lets all three meet on the held-out topics, with the rules of the training, and returns their leaderboard."""
    settings = config.agent_settings()
    game = Game(id=config.env, args={**config.env_kwargs(), "namers": 2}, starts=[{"topic": topic} for topic in TOPICS])
    with Runtime(max_open_episodes=config.max_open_episodes, engine=config.engine) as runtime:
        return evaluate(
            {
                TRAINED: {"agent": f"llm:{final.resolve()}", **settings},
                INITIAL: {"agent": f"llm:{initial.resolve()}", **settings},
                SCRIPTED: f"{config.env}/scripted",
            },
            game,
            matches=2 * len(TOPICS),
            seed=config.seed,
            anchor=INITIAL,
            folder=folder,
            fresh=fresh,
            runtime=runtime,
            show_progress=True,
        )


def results_of(board: Leaderboard, began: float, peak: int | None, max_logprob_gap: float) -> Results:
    """Returns what the matches say, with the figures of this process."""
    rows = board.matches
    record = win_rate(rows, TRAINED, INITIAL)
    return Results(
        comparisons=[
            record,
            win_rate(rows, TRAINED, SCRIPTED),
            win_rate(rows, INITIAL, SCRIPTED),
            *standings(rows),
        ],
        samples=samples(board),
        figures={
            "win_rate": round(record.rate, 4) if record.n else None,
            "matches": record.n,
            "heldout_topics": len(TOPICS),
            "seconds_after_fetch": round(time.monotonic() - began, 1),
            "peak_rss_gb": None if peak is None else round(peak / 1e9, 2),
            "max_logprob_gap": max_logprob_gap,
        },
        ratings=list(ranked(board)),
    )


def ranked(board: Leaderboard) -> Iterator[RankedRow]:
    """Yields the rows of the report's ranking."""
    for row in board.rows:
        low, high = row.interval
        yield RankedRow(
            entrant=row.entrant,
            rating=row.rating,
            low=low,
            high=high,
            rank_low=row.rank_low,
            rank_high=row.rank_high,
            wins=row.wins,
            draws=row.draws,
            losses=row.losses,
            forfeits=row.forfeits,
            void=row.void,
        )


def samples(board: Leaderboard) -> list[Sample]:
    """Returns the names that the initial and the trained model gave to the first few topics, in their matches."""
    seated = {row.id: {seat: entry.entrant for seat, entry in row.seats.items()} for row in board.matches}
    names: dict[str, dict[str, list[str]]] = {topic: {TRAINED: [], INITIAL: []} for topic in TOPICS[:SHOWN_TOPICS]}
    assert board.folder is not None
    for trace in read_traces(board.folder / TRACES):
        topic = trace.spec.kwargs["topic"]
        if topic in names and not trace.void and set(seated[trace.id].values()) == {TRAINED, INITIAL}:
            for turn in trace.turns:
                names[topic][seated[trace.id][turn.seat]].append(turn.text.strip())
    return [
        Sample(start=topic, before=said[INITIAL], after=said[TRAINED])
        for topic, said in names.items()
        if said[INITIAL] and said[TRAINED]
    ]


def summary(results: Results, board: Leaderboard) -> Iterator[str]:
    """Yields the lines that sum up a run: names before and after, who beat whom, and the ratings."""
    yield "\nnames for topics that were not trained on\n"
    names = [("topic", "before", "after")]
    names += [(item.start, _clip(item.before[0]), _clip(item.after[0])) for item in results.samples]
    yield from (f"  {line}" for line in table_lines(names))
    yield f"\nmatches on {len(TOPICS)} such topics, seats swapped\n"
    yield from (f"  {line}" for line in table_lines([_HEAD, *map(_cells, results.comparisons)]))
    yield "\nratings\n"
    yield from to_text(board.tables[0]).splitlines()[2:]


def _clip(name: str, limit: int = 48) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


_HEAD = ("entrant", "against", " win", "draw", "loss", " rate", "95 % interval")


def _cells(record: Record) -> tuple[str, ...]:
    low, high = record.interval()
    counts = (f"{count:>4}" for count in (record.wins, record.draws, record.losses))
    void = f"  ({record.void} void)" if record.void else ""
    return (
        record.entrant,
        record.opponent or "all others",
        *counts,
        f"{record.rate:.3f}",
        f"{low:.3f} - {high:.3f}{void}",
    )


class Memory:
    """Measures the most memory that this process and its descendants held, in bytes, from entering it to leaving it.

    Several times a second the resident memory of all that live is added up; the largest sum counts, and at least the
    peak of this process. Pages that processes share, such as those of libraries, count for each, and a peak between two
    looks can be missed. Where the system shows no other processes, as on macOS, it is this one's peak alone, which is
    all there is without vLLM; on Windows nothing is measured.
    """

    def __init__(self) -> None:
        self.peak: int | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if sys.platform != "win32":
            own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            self.peak = max(self.peak or 0, own)

    def _watch(self) -> None:
        while not self._ended.wait(_SECONDS):
            now = held_memory()
            if now is not None:
                self.peak = max(self.peak or 0, now)


def held_memory() -> int | None:
    """Returns the resident memory of this process and its descendants together, in bytes; None: unknown."""
    if not Path("/proc/self/status").exists():
        return None
    status = {}
    for path in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            fields = dict(line.partition(":")[::2] for line in path.read_text().splitlines())
            status[int(path.parent.name)] = (int(fields["PPid"]), int(fields.get("VmRSS", "0").split()[0]) * 1024)
    mine = {os.getpid()}
    while more := {pid for pid, (parent, _) in status.items() if parent in mine} - mine:
        mine |= more
    return sum(status[pid][1] for pid in mine)


if __name__ == "__main__":
    sys.exit(guarded(main))
