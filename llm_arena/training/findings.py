"""What a check of alarms finds, and the checks that ask whether what was learned is worth something."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

WINDOW = 5
"""So many of the newest steps must agree, so that no single step rings."""
FALLS = 3
"""So many evaluations in a row, each with a lower win rate than the one before."""
CONSISTENT = 0.55
"""Share of pairs that a judge judges alike in both orders. One that tosses a coin has 0.5, one that always takes a
place 0; GPT-4 had 0.65 and GPT-3.5 0.46 on answers to MT-bench (Zheng et al. 2023, arXiv:2306.05685, table 2)."""
FEWEST_PAIRS = 100
"""So many pairs: a judge with 0.65 is then below 0.55 in 2 of 100 windows, one with 0.5 in 4 of 5."""

Rows = Sequence[Mapping[str, float]]
"""Of metrics.jsonl: the metrics of each step."""


class Finding(NamedTuple):
    """What a check found; its alarm's name is the check's."""

    seen: str
    remedy: str


def is_evaluated(row: Mapping[str, float]) -> bool:
    """Whether the policy met its initial self after this step."""
    return "eval/matches" in row


def collapse(rows: Rows) -> Finding | None:
    """Looks at what the policy earns against the model that it began as; see `evaluation`."""
    evaluated = [row for row in rows if is_evaluated(row)]
    remedy = (
        "Anchor it (kl_weight 1 to a slow average, or kl_reference initial), mix in past versions and fixed opponents, "
        "or lower lr; in a new run, from the checkpoint before."
    )
    found = [row for row in evaluated if "eval/win_rate" in row]
    rates = [row["eval/win_rate"] for row in found[-1 - FALLS :]]
    falls = len(rates) > FALLS and all(now < before for before, now in itertools.pairwise(rates))
    if falls and found[-1]["eval/win_rate_high"] < rates[0]:
        said = ", ".join(f"{rate:.2f}" for rate in rates)
        return Finding(
            f"the win rate against the initial model fell in {FALLS} evaluations in a row, {said}, and by more than "
            f"its noise (the last is at most {found[-1]['eval/win_rate_high']:.2f})",
            remedy,
        )
    if found and found[-1]["eval/win_rate_high"] < 0.5:
        return Finding(
            f"the policy loses to the model that it began as: win rate {rates[-1]:.2f}, at most "
            f"{found[-1]['eval/win_rate_high']:.2f}",
            remedy,
        )
    last = evaluated[-1] if evaluated else {}
    if last.get("eval/difference_high", 0.0) < 0:
        return Finding(
            f"the policy earns less than the model that it began as: {last['eval/difference']:+.3g} on the same starts,"
            f" at most {last['eval/difference_high']:+.3g}",
            remedy,
        )
    return None


def judge_inconsistent(rows: Rows) -> Finding | None:
    """Looks at how many pairs the judges judge otherwise when they are turned: enough pairs, not steps, are needed."""
    last = rows[-WINDOW:]
    pairs = sum(row.get("judge/pairs", 0.0) for row in last)
    alike = sum(row.get("judge/pairs", 0.0) * row.get("judge/consistency", 0.0) for row in last)
    if pairs < FEWEST_PAIRS or alike / pairs >= CONSISTENT:
        return None
    return Finding(
        f"of {pairs:.0f} pairs the judge judged {alike / pairs:.0%} alike in both orders (last "
        f"{'step' if len(last) == 1 else f'{len(last)} steps'}); a coin has 50%",
        'Seat a stronger judge or a reward model (roster \'{"judge": "AGENT"}\'), or more of them (judges); sample it '
        "with a lower temperature. Pairs that it judges otherwise when they are turned are drawn, so that it adds "
        "noise and no bias: what it pays for is mostly chance.",
    )


__all__ = [
    "CONSISTENT",
    "FALLS",
    "FEWEST_PAIRS",
    "WINDOW",
    "Finding",
    "Rows",
    "collapse",
    "is_evaluated",
    "judge_inconsistent",
]
