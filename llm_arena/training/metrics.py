"""Numbers about a step, per role, as flat JSON: `namer/reward`, `step_seconds`, ..."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from llm_arena.training.batch import Batch
from llm_arena.training.credit import Credit
from llm_arena.training.objective import StepStats
from llm_arena.types import Cause, Ending, Trace

Row = dict[str, float]


def of_traces(traces: Sequence[Trace], learners: Callable[[Trace], Iterable[str]], credit: Credit) -> Row:
    """Returns the metrics of a batch of traces. Per role they count the trained seats only.

    For each role: `reward` (mean per seat), `score` (mean of the game's own points, where it has some), `turns` and
    `tokens` (means per seat), `tokens_per_turn`, `truncated` (share of turns cut by the token cap), `illegal` (share
    of turns that were no legal action) and `illegal/<cause>`, `trained` (the role's share of all tokens that are
    trained). For the batch: `void`, `early` (share of episodes that ended before the game was
    decided: cut by the env or the context, or by a reply that was no legal action), what the credit left without
    signal, and `guided_turns` and `guided_tokens`: sampled under a grammar, and therefore not trained.
    """
    played = [trace for trace in traces if not trace.void]
    rewards: dict[str, list[float]] = {}
    scores: dict[str, list[float]] = {}
    seats: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    cut: Counter[str] = Counter()
    causes: Counter[tuple[str, Cause]] = Counter()
    guided: Counter[str] = Counter()
    guided_turns = 0
    early = 0
    for trace in played:
        trained = set(learners(trace))
        reason = trace.outcome.reason if trace.outcome is not None else ""
        early += trace.ending is not Ending.TERMINATED or reason.startswith(("forfeit", "penalty"))
        for seat in trained:
            role = trace.seats[seat].role
            seats[role] += 1
            reward = credit.rewards.get((trace.id, seat), trace.returns.get(seat, math.nan))
            rewards.setdefault(role, []).append(reward)
            if trace.outcome is not None and seat in trace.outcome.scores:
                scores.setdefault(role, []).append(trace.outcome.scores[seat])
        for turn in trace.turns:
            if turn.seat in trained:
                role = trace.seats[turn.seat].role
                turns[role] += 1
                tokens[role] += len(turn.completion_ids)
                cut[role] += turn.finish == "length"
                causes[role, turn.cause] += turn.cause is not Cause.LEGAL
                guided_turns += turn.guided
                guided[role] += len(turn.completion_ids) if turn.guided else 0
    row: Row = {
        "episodes": len(played),
        "void": credit.void,
        "early": early / max(len(played), 1),
        "groups": credit.groups,
        "groups_uninformative": credit.uninformative,
        "groups_incomplete": credit.incomplete,
        "rewards_missing": credit.missing,
        "sampled_tokens": tokens.total(),
        "guided_turns": guided_turns,
        "guided_tokens": guided.total(),
    }
    for role in sorted(seats):
        row[f"{role}/reward"] = _mean(rewards[role])
        if role in scores:
            row[f"{role}/score"] = _mean(scores[role])
        row[f"{role}/turns"] = turns[role] / seats[role]
        row[f"{role}/tokens"] = tokens[role] / seats[role]
        row[f"{role}/tokens_per_turn"] = tokens[role] / max(turns[role], 1)
        row[f"{role}/truncated"] = cut[role] / max(turns[role], 1)
        bad = {cause: count for (who, cause), count in causes.items() if who == role and count}
        row[f"{role}/illegal"] = sum(bad.values()) / max(turns[role], 1)
        row |= {f"{role}/illegal/{cause}": count / turns[role] for cause, count in sorted(bad.items())}
        row[f"{role}/trained"] = (tokens[role] - guided[role]) / max(tokens.total() - guided.total(), 1)
    return row | {f"group/{name}": _mean(values) for name, values in credit.metrics.items()}


def of_step(batch: Batch, stats: StepStats, *, lr: float, clips: bool) -> Row:
    """Returns the numbers of one policy's optimizer step.

    Args:
        batch: what it learned from.
        stats: what the learner measured.
        lr: its learning rate.
        clips: whether its loss bounds ratios.
    """
    ratios = {"clip_fraction": stats.clip_fraction, "approx_kl": stats.approx_kl, "updates": stats.updates}
    return {
        "loss": stats.loss,
        "entropy": stats.entropy,
        "kl": stats.kl,
        "grad_norm": stats.grad_norm,
        "lr": lr,
        "max_logprob_gap": stats.max_gap,
        "mean_logprob_gap": stats.mean_gap,
        "trained_tokens": batch.trained_tokens,
        "total_tokens": batch.total_tokens,
        "computed_tokens": batch.computed_tokens,
        "unique_ratio": batch.unique_ratio,
        **(ratios if clips else {}),
    }


def warn_if_all_guided(row: Row) -> None:
    """Warns, once in a process, of roles that a step did not train because all of their turns were guided."""
    roles = [name.removesuffix("/trained") for name, share in row.items() if name.endswith("/trained") and share == 0]
    idle = [role for role in roles if row[f"{role}/tokens"]]
    if row["guided_tokens"] and idle:
        warnings.warn(
            f"every turn of {' and '.join(idle)} was guided by a grammar, and guided turns are not trained: nothing is "
            "learned there; train without guided, and guide opponents or evaluations only",
            stacklevel=2,
        )


def headline(row: Row) -> tuple[str, float]:
    """Returns the number to show as (name, value). Scores go first: in a zero-sum game the mean reward is always 0."""
    for ending in ("/score", "/reward"):
        names = [name for name in row if name.endswith(ending)]
        if names:
            return ending[1:], sum(row[name] for name in names) / len(names)
    return "reward", 0.0


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return math.fsum(known) / len(known) if known else 0.0
