"""The top of a run's page: what was trained, what came of it in one line, and what to know before trusting it.

All of it is computed from the run's files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llm_arena.rating import Record
from llm_arena.report.charts import short
from llm_arena.report.panels import by_role, earnings, tolerance
from llm_arena.report.run_files import RunFiles
from llm_arena.training import alarms
from llm_arena.types import Json

HIGH_SHARE = 0.1
"""From this share of turns on, in the last tenth of a run, cut or refused replies are worth a warning."""

_ENDS = 0.1
"""Share of a run that counts as its start, and as its end."""


@dataclass(frozen=True)
class Notice:
    """A sentence that stands before everything else."""

    text: str
    serious: bool = False


def title(run: RunFiles) -> str:
    """Returns the page's title: the game and the model, or the folder's name."""
    parts = [_word(run, "harness") or _word(run, "env") or run.path.name, _word(run, "model")]
    return " · ".join(part for part in parts if part)


def facts(run: RunFiles) -> list[tuple[str, str]]:
    """Returns what was trained, as (label, text); what the files do not say is left out."""
    config, lines = run.config, []
    rank, opponent = config.get("lora_rank"), _word(run, "opponent")
    if run.config:
        how = f"LoRA adapter of rank {rank}" if isinstance(rank, int) and rank > 0 else "all weights"
        lines.append(("trained", f"{_word(run, 'model') or 'a model'}, {how}"))
        arguments = _word(run, "env_args")
        if harness := _word(run, "harness"):
            lines.append(("harness", harness))
        else:
            lines.append(("game", " ".join([_word(run, "env"), arguments if arguments != "{}" else ""]).strip()))
        self_play = "itself" if config.get("roster") in ({}, "{}", None) else "see roster, under settings"
        lines.append(("opponent", opponent or self_play))
        loss = [_word(run, name) for name in ("loss", "estimator", "credit")]
        lines.append(("loss, estimator, credit", ", ".join(loss) if all(loss) else ""))
    planned = config.get("num_steps")
    lines.append(("steps", f"{run.num_steps:,} of {planned:,}" if isinstance(planned, int) else f"{run.num_steps:,}"))
    if "step_seconds" in run.curves:
        lines.append(("training time", duration(math.fsum(run.curves["step_seconds"].finite()))))
    lines += _where(run)
    if "trained_tokens" in run.curves:
        lines.append(("trained tokens", f"{run.curves['trained_tokens'].finite().sum():,.0f}"))
    lines.append(("folder", run.path.name))
    return [(label, text) for label, text in lines if text]


def verdict(run: RunFiles) -> str:
    """Returns what came of the run, in a line: a match of trained against something, else how a curve moved."""
    records = [record for record in comparisons(run) if record.opponent and record.n]
    if records:
        first = records[0]
        low, high = first.interval()
        word = "beats" if low > 0.5 else "loses to" if high < 0.5 else "is not told apart from"
        rate = f"win rate {first.rate:.2f} [{low:.2f}, {high:.2f}] in {first.n:,} matches"
        return f"{first.entrant} {word} {first.opponent}: {rate}"
    for panel in earnings(run.curves):
        said = []
        for role, curve in list(panel.curves.items())[:3]:
            start, end = curve.mean_of_share(0, _ENDS), curve.mean_of_share(1 - _ENDS, 1)
            if math.isfinite(start) and math.isfinite(end):
                said.append(f"{role} {start:+.3g}" + (f" to {end:+.3g}" if run.num_steps > 1 else ""))
        if said:
            word = panel.title.split()[0].lower()
            if run.num_steps == 1:
                return f"{word} in the only step: {', '.join(said)}"
            return f"{word} from the first to the last tenth of the steps: {', '.join(said)}"
    return ""


def comparisons(run: RunFiles) -> list[Record]:
    """Returns the run's comparisons, those with impossible counts left out."""
    records = run.results.comparisons if run.results else []
    return [record for record in records if min(record.wins, record.draws, record.losses) >= 0]


def notices(run: RunFiles) -> list[Notice]:
    """Returns what to know first: what is missing, what failed, what is not healthy; the serious before the rest."""
    problems = (Notice(problem, serious=True) for problem in run.problems)
    found = [*problems, *_alarms(run), *_progress(run), *_faults(run), *_shares(run)]
    return sorted(found, key=lambda notice: not notice.serious)


def duration(seconds: float) -> str:
    """Returns a time in the two largest units that it has."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.3g} s"


def _where(run: RunFiles) -> Iterator[tuple[str, str]]:
    for name in ("engine", "learner"):
        given = run.config.get(name)
        if isinstance(given, dict):
            words = (("kind", ""), ("dtype", "dtype "), ("devices", "devices "))
            yield name, ", ".join(before + given[key] for key, before in words if isinstance(given.get(key), str))


def _alarms(run: RunFiles) -> Iterator[Notice]:
    """Yields the alarms that rang, with what was seen the last time; serious if that was near the run's end."""
    for name in [name for name in run.curves if name.startswith("alarm/")]:
        at = np.flatnonzero(np.isfinite(run.curves[name].values))
        if not len(at):
            continue
        count = int(at[-1]) + 1
        values = {metric: curve.values for metric, curve in run.curves.items()}
        evaluated = np.flatnonzero(np.isfinite(values["eval/matches"])).tolist() if "eval/matches" in values else ()
        learns = [np.nan_to_num(values[metric][:count], nan=-1.0) for metric in sorted(values) if "learns/" in metric]
        rows = [
            {metric: float(column[place]) for metric, column in values.items() if np.isfinite(column[place])}
            for place in alarms.looked_at(count, evaluated, list(zip(*learns, strict=True)))
        ]
        said = [str(alarm) for alarm in alarms.ringing(rows) if f"alarm/{alarm.name}" == name]
        step = run.curves[name].steps[count - 1]
        when = f"{len(at):,} of {run.num_steps:,} steps, last at step {step:,.0f}"
        recent = run.num_steps - count < alarms.WINDOW
        yield Notice(f"{said[0] if said else name.replace('/', ' ')} [{when}]", serious=recent)


def _progress(run: RunFiles) -> Iterator[Notice]:
    planned = run.config.get("num_steps")
    if not run.num_steps:
        yield Notice("No step has been logged: the run has just begun, or stopped before its first step ended.")
    elif isinstance(planned, int) and run.num_steps < planned:
        yield Notice(
            f"The run is not complete: {run.num_steps:,} of {planned:,} steps are logged. If it is not running, the "
            "same command goes on with it.",
            serious=True,
        )
    elif isinstance(planned, int) and not run.complete:
        yield Notice("All steps are logged, but the folder has no final model (final/).", serious=True)


def _faults(run: RunFiles) -> Iterator[Notice]:
    void = run.curves["void"].finite().sum() if "void" in run.curves else 0.0
    played = run.curves["episodes"].finite().sum() if "episodes" in run.curves else 0.0
    void, total = (void, void + played) if void else (run.picks.void, run.picks.count)
    if void:
        kinds = ", ".join(f"{kind} ({count:,})" for kind, count in run.picks.failures.most_common(3))
        yield Notice(
            f"{void:,.0f} of {total:,.0f} episodes are void: a fault of the machinery ended them, and they taught "
            f"nothing{f'. What failed: {kinds}' if kinds else ''}.",
            serious=True,
        )
    if "max_logprob_gap" in run.curves:
        curve, most = run.curves["max_logprob_gap"], tolerance(run.config)
        over = np.flatnonzero(curve.values > most)  # NaN is not above
        if len(over):
            worst = int(np.nanargmax(curve.values))
            yield Notice(
                f"Engine and learner differ by more than {most:g} nats in {len(over):,} of {run.num_steps:,} steps, at "
                f"most by {short(curve.values[worst])} (step {curve.steps[worst]:,.0f}).",
                serious=True,
            )
    if run.not_finite:
        names = ", ".join(f"{name} ({count:,})" for name, count in run.not_finite.most_common(4))
        yield Notice(f"Values that are not finite, drawn as gaps: {names}.", serious=True)
    odd = sum(record not in comparisons(run) for record in (run.results.comparisons if run.results else []))
    if odd:
        yield Notice(f"{odd} comparisons of results.json have counts below 0 and are left out.", serious=True)


def _shares(run: RunFiles) -> Iterator[Notice]:
    kinds = (("reply/truncated", "were cut by the token cap"), ("reply/illegal", "were not taken by the game"))
    for metric, what in kinds:
        ends = {role: curve.mean_of_share(1 - _ENDS, 1) for role, curve in by_role(run.curves, metric).items()}
        high = sorted((share, role) for role, share in ends.items() if share > HIGH_SHARE)[::-1]
        if high:
            named = ", ".join(f"{share:.0%} of {role}" for share, role in high[:4])
            more = f", and of {len(high) - 4} more roles" if len(high) > 4 else ""
            yield Notice(f"Many replies {what} in the last tenth of the steps: {named}{more}.")
    if "rewards_missing" in run.curves and (missing := run.curves["rewards_missing"].finite().sum()):
        yield Notice(f"{missing:,.0f} rewards were missing: their seats taught nothing.")


def _word(run: RunFiles, name: str) -> str:
    value: Json = run.config.get(name)
    return value if isinstance(value, str) else ""


__all__ = ["Notice", "comparisons", "duration", "facts", "notices", "title", "verdict"]
