"""Which charts a run's page has: what the roles earn, then the figures that show whether a training is healthy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from llm_arena.report.charts import MOST_SERIES, NARROW, SMALL, WIDE, Frame, line_chart, stacked_chart
from llm_arena.report.curves import Curve

MOST_OTHERS = 60
"""How many further metrics get a chart; a table names the rest."""

TOLERANCE = 1e-4
"""Largest healthy gap between engine and learner in nats, where a run does not say its own."""

_ROUNDING = 1e-9
"""A mean of numbers that cancel is this near to 0, not always at it."""

Curves = Mapping[str, Curve]


@dataclass(frozen=True)
class Panel:
    """One chart with its title and the names of its curves."""

    title: str
    curves: Curves
    note: str = ""
    stacked: bool = False
    log: bool = False
    zero: bool = False
    limit: float | None = None

    def draw(self, frame: Frame) -> Markup:
        """Returns the chart as SVG."""
        if self.stacked:
            return stacked_chart(self.curves, self.title, frame=frame)
        return line_chart(self.curves, self.title, frame=frame, log=self.log, limit=self.limit, zero=self.zero)

    def large(self) -> Markup:
        """Returns the chart for wide and for narrow screens; the page's style shows one of them."""
        parts = ((WIDE, "for-wide"), (NARROW, "for-narrow"))
        return Markup("").join(
            Markup('<div class="{}">{}</div>').format(name, self.draw(frame)) for frame, name in parts
        )

    def small(self) -> Markup:
        """Returns the chart as one of many small ones."""
        return self.draw(SMALL)

    @property
    def legend(self) -> list[str]:
        """Names of the curves that are drawn, where a legend is needed."""
        names = list(self.curves)[:MOST_SERIES]
        return names if len(names) > 1 or self.stacked else []

    @property
    def hidden(self) -> int:
        """How many curves are not drawn, for want of colours."""
        return max(0, len(self.curves) - MOST_SERIES)


def earnings(curves: Curves) -> list[Panel]:
    """Returns the charts on top: the game's own points and the reward, one curve per role.

    In a zero-sum game that one policy plays against itself the mean reward is 0 whatever it does: no chart of that.
    """
    panels: list[Panel] = []
    for word, what in (("score", "The game's own points"), ("reward", "Reward")):
        found = by_role(curves, word)
        if found and (not panels or any(_moves(curve) for curve in found.values())):
            panels.append(Panel(f"{word.capitalize()} by step", found, f"{what}, mean over the seats of a step."))
    return panels


def health(curves: Curves, config: Mapping[str, object]) -> list[Panel]:
    """Returns the small charts in the order in which a person would look at them; those without data are left out."""
    gap = {"largest": "max_logprob_gap", "mean": "mean_logprob_gap"}
    seconds = {"rollout": "rollout_seconds", "learn": "learn_seconds", "sync": "sync_seconds"}
    clip = _positive(config.get("grad_clip"))
    panels = [
        Panel("Entropy", _named(curves, {"entropy": "entropy"}), "nats per token", zero=True),
        Panel("KL to the reference", _if_moved(_named(curves, {"kl": "kl"})), "nats per token", zero=True),
        Panel(
            "Gradient norm",
            _named(curves, {"norm": "grad_norm"}),
            f"before clipping at {clip:g} (dashed)" if clip else "before clipping",
            zero=True,
            limit=clip,
        ),
        Panel(
            "Engine against learner",
            _named(curves, gap),
            f"difference of log-probabilities in nats; dashed: {tolerance(config):g}",
            log=True,
            limit=tolerance(config),
        ),
        Panel("Replies cut by the token cap", by_role(curves, "truncated"), "share of turns", zero=True),
        *_illegal(curves),
        Panel("Tokens per turn", by_role(curves, "tokens_per_turn"), "mean", zero=True),
        Panel("Trained tokens by role", _if_several(by_role(curves, "trained")), "share of all", stacked=True),
        Panel("Seconds per step", _named(curves, seconds), stacked=True),
        Panel("Tokens per second", _named(curves, {"tokens": "tokens_per_second"}), "sampled, whole step", zero=True),
    ]
    return [panel for panel in panels if any(len(curve.finite()) for curve in panel.curves.values())]


def others(curves: Curves, shown: list[Panel]) -> list[Panel]:
    """Returns charts of the metrics that no other panel has and that change, at most `MOST_OTHERS`."""
    used = {id(curve) for panel in shown for curve in panel.curves.values()}
    rest = [(name, curve) for name, curve in curves.items() if id(curve) not in used and _changes(curve)]
    return [Panel(name, {name: curve}) for name, curve in rest[:MOST_OTHERS]]


def by_role(curves: Curves, metric: str) -> dict[str, Curve]:
    """Returns the curves `<role>/<metric>` by role."""
    ending = f"/{metric}"
    return {name.removesuffix(ending): curve for name, curve in curves.items() if name.endswith(ending)}


def tolerance(config: Mapping[str, object]) -> float:
    """Returns the largest gap between engine and learner that the run takes as healthy, in nats."""
    return _positive(config.get("parity_tolerance")) or TOLERANCE


def _illegal(curves: Curves) -> Iterator[Panel]:
    for role, total in list(by_role(curves, "illegal").items())[:MOST_SERIES]:
        start = f"{role}/illegal/"
        causes = {name.removeprefix(start): curve for name, curve in curves.items() if name.startswith(start)}
        note = "share of turns, by cause" if causes else "none in any step"
        yield Panel(f"Replies not taken: {role}", causes or {"all": total}, note, stacked=True)


def _named(curves: Curves, names: Mapping[str, str]) -> dict[str, Curve]:
    return {label: curves[name] for label, name in names.items() if name in curves}


def _if_moved(curves: dict[str, Curve]) -> dict[str, Curve]:
    return {name: curve for name, curve in curves.items() if _moves(curve)}


def _if_several(curves: dict[str, Curve]) -> dict[str, Curve]:
    return curves if len(curves) > 1 else {}


def _moves(curve: Curve) -> bool:
    return bool((np.abs(curve.finite()) > _ROUNDING).any())


def _changes(curve: Curve) -> bool:
    values = curve.finite()
    return len(values) > 0 and bool(np.ptp(values) > max(1e-9 * np.abs(values).max(), 1e-15))


def _positive(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if number else None  # type: ignore[arg-type]  # `number` says that it is one


__all__ = ["MOST_OTHERS", "Panel", "by_role", "earnings", "health", "others", "tolerance"]
