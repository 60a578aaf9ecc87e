"""naming-demo: trains a model by self-play on naming-v0, then ranks it against its initial self and a scripted namer.

Eight topics a step, four names each, every two names compared by the rubric. Afterwards {trained, initial, scripted}
meet in matches of two names, seats swapped, on topics that were never trained on. The run's folder gets the metrics,
all traces and `index.html`. The same command goes on where it was stopped.

The last line of the output is JSON: `win_rate` of trained against initial = (wins + draws/2) / `matches`,
`heldout_topics`, `seconds_after_fetch` (of this process, from the moment that the model is there), `peak_rss_gb`,
`max_logprob_gap` (largest difference between engine and learner over all trained tokens, in nats).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llm_arena.cli import guarded
from llm_arena.errors import EngineError, UsageError
from llm_arena.matchmaking import Match, match_rows, play_matches, round_robin
from llm_arena.models import resolve_model
from llm_arena.problems.naming_topics import SPLITS
from llm_arena.rating import Record, standings, win_rate
from llm_arena.report import write_report
from llm_arena.report.results import Results, Sample, load_results
from llm_arena.report.text import table_lines
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.trace_file import TraceWriter, read_traces
from llm_arena.training.config import TrainConfig, parse
from llm_arena.types import EnvSpec, Trace

TRAINED, INITIAL, SCRIPTED = "trained", "initial", "scripted"

TOPICS = SPLITS["heldout"]
"""With the seats swapped, two matches on each topic for every two entrants."""

SHOWN_TOPICS = 8

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
    initial = resolve_model(config.model)
    began = time.monotonic()
    from llm_arena.training.loop import train  # loads torch

    result = train(config, script="naming-demo")
    matches = plan_matches(config)
    path = result.run_dir / "matches.jsonl"
    before = [trace for trace in read_traces(path) if not trace.void] if path.exists() else []
    done = {trace.id for trace in before}
    missing = [match for match in matches if match.id not in done]
    results = load_results(result.run_dir)
    if results is None or missing or not result.was_complete:
        traces = [*before, *play(config, missing, initial, result.final_dir, path)]
        results = evaluate(matches, traces, began, result.max_logprob_gap)
        results.save(result.run_dir)
    page = write_report(result.run_dir)
    print("\n".join(summary(results)))
    print(f"\nrun     {result.run_dir}\nmodel   {result.final_dir}\nreport  {page}\n")
    print(json.dumps(results.figures, allow_nan=False))
    return 0


def evaluate(matches: Sequence[Match], traces: Sequence[Trace], began: float, max_logprob_gap: float) -> Results:
    """Returns what the matches say, with the figures of this process.

    Raises:
        EngineError: no match of the trained against the initial model could be played.
    """
    rows = match_rows(matches, traces)
    record = win_rate(rows, TRAINED, INITIAL)
    if not record.n:
        failure = next((trace.failure for trace in traces if trace.failure), None)
        raise EngineError(f"all matches are void; the first: {failure and failure.message}")
    return Results(
        comparisons=[
            record,
            win_rate(rows, TRAINED, SCRIPTED),
            win_rate(rows, INITIAL, SCRIPTED),
            *standings(rows),
        ],
        samples=samples(matches, traces),
        figures={
            "win_rate": round(record.rate, 4),
            "matches": record.n,
            "heldout_topics": len(TOPICS),
            "seconds_after_fetch": round(time.monotonic() - began, 1),
            "peak_rss_gb": round(peak_memory() / 1e9, 2),
            "max_logprob_gap": max_logprob_gap,
        },
    )


def plan_matches(config: TrainConfig) -> list[Match]:
    """Returns the matches of all three entrants on the held-out topics, with the rules of the training."""
    rules = {**config.env_kwargs(), "namers": 2}
    specs = [EnvSpec(id=config.env, kwargs={**rules, "topic": topic}) for topic in TOPICS]
    return round_robin(specs, [TRAINED, INITIAL, SCRIPTED], seed=config.seed)


def play(config: TrainConfig, matches: Sequence[Match], initial: Path, final: Path, path: Path) -> list[Trace]:
    """Plays matches, appends each to `path` as it ends, and returns their traces."""
    if not matches:
        return []
    settings: dict[str, Any] = {
        "max_new_tokens": config.max_new_tokens,
        "max_context_tokens": config.max_context_tokens,
        "temperature": config.temperature,
        "system": config.system,
    }
    with Runtime(max_open_episodes=config.max_open_episodes) as runtime, TraceWriter(path) as writer:
        agents = {
            TRAINED: make_agent(f"llm:{final}", runtime=runtime, **settings),
            INITIAL: make_agent(f"llm:{initial}", runtime=runtime, **settings),
            SCRIPTED: make_agent(f"{config.env}/scripted", runtime=runtime),
        }
        with progress_bar(len(matches)) as advance:

            def keep(trace: Trace) -> None:
                writer.write(trace)
                advance()

            return play_matches(matches, agents, runtime, on_trace=keep)


def samples(matches: Sequence[Match], traces: Sequence[Trace]) -> list[Sample]:
    """Returns the names that the initial and the trained model gave to the first few topics, in their matches."""
    by_id = {trace.id: trace for trace in traces if not trace.void}
    names: dict[str, dict[str, list[str]]] = {}
    for match in matches:
        if set(match.entrants.values()) == {TRAINED, INITIAL} and match.id in by_id:
            said = names.setdefault(match.spec.kwargs["topic"], {TRAINED: [], INITIAL: []})
            for turn in by_id[match.id].turns:
                said[match.entrants[turn.seat]].append(turn.text.strip())
    shown = list(names.items())[:SHOWN_TOPICS]
    return [Sample(start=topic, before=said[INITIAL], after=said[TRAINED]) for topic, said in shown]


def summary(results: Results) -> Iterator[str]:
    """Yields the lines that sum up a run: names before and after, and who beat whom."""
    yield "\nnames for topics that were not trained on\n"
    names = [("topic", "before", "after")]
    names += [(item.start, _clip(item.before[0]), _clip(item.after[0])) for item in results.samples]
    yield from (f"  {line}" for line in table_lines(names))
    yield f"\nmatches on {len(TOPICS)} such topics, seats swapped\n"
    yield from (f"  {line}" for line in table_lines([_HEAD, *map(_cells, results.comparisons)]))


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


@contextmanager
def progress_bar(total: int) -> Iterator[Callable[[], None]]:
    """Shows how many matches are played, on standard error, and yields the function that counts one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("matches "), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("matches", total=total)
        yield lambda: bar.advance(task)


def peak_memory() -> int:
    """Returns the most memory that this process has held at once, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    sys.exit(guarded(main))
