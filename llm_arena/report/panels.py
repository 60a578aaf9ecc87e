"""Which charts a run's page has: what the roles earn on top, then reward, multi_agent, loss and speed in small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from llm_arena.report.charts import MOST_SERIES, NARROW, SMALL, WIDE, Frame, line_chart, stacked_chart
from llm_arena.report.curves import Curve
from llm_arena.training import alarms

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
        found = by_role(curves, f"{word}/avg")
        if found and (not panels or any(_moves(curve) for curve in found.values())):
            panels.append(Panel(f"{word.capitalize()} by step", found, f"{what}, mean over the seats of a step."))
    return panels


def groups(curves: Curves, config: Mapping[str, object]) -> dict[str, list[Panel]]:
    """Returns the small charts by group, in the order in which a person would look at them.

    What has no data is left out.
    """
    found = {
        "Reward": _reward(curves),
        "Conversation (multi_agent)": _conversation(curves),
        "Loss": _loss(curves, config),
        "Speed": _speed(curves),
    }
    drawn = {
        title: [panel for panel in panels if any(_drawable(curve, panel.log) for curve in panel.curves.values())]
        for title, panels in found.items()
    }
    return {title: panels for title, panels in drawn.items() if panels}


def _reward(curves: Curves) -> list[Panel]:
    no_signal = {"equal rewards": "groups_uninformative", "incomplete": "groups_incomplete"}
    return [
        Panel("Spread of rewards", _with_all(curves, "reward/std"), "standard deviation within a role", zero=True),
        Panel("Groups without signal", _if_moved(_named(curves, no_signal)), "groups of a step", zero=True),
    ]


def _conversation(curves: Curves) -> list[Panel]:
    name = "multi_agent/{}".format
    early, tokens = name("early_termination_rate"), name("conversation_token_count")
    ends = _if_moved({label.replace("_", " "): curve for label, curve in by_role(curves, "ended").items()})
    decided = _named(curves, {"decided": early}) if ends else {}
    return [
        Panel(name("avg_turns"), by_role(curves, name("avg_turns")), "per episode, retries not counted", stacked=True),
        Panel(early, _with_all(curves, early), "share of episodes; a role's: that it ended", zero=True),
        Panel("How episodes ended", decided | ends, "share", stacked=True),
        Panel(tokens, by_role(curves, tokens), "per episode, those that a seat's calls share once", stacked=True),
        Panel("Tokens per reply", by_role(curves, "reply/tokens"), "mean", zero=True),
        Panel("Replies cut by the token cap", by_role(curves, "reply/truncated"), "share", zero=True),
        *_illegal(curves),
        Panel(
            "Repeated from another seat",
            _if_moved(by_role(curves, "reply/repeated")),
            f"share of 4-grams; dashed: {alarms.REPEATED:g}",
            zero=True,
            limit=alarms.REPEATED,
        ),
    ]


def _loss(curves: Curves, config: Mapping[str, object]) -> list[Panel]:
    gap = {"largest": "max_logprob_gap", "mean": "mean_logprob_gap"}
    clip = _positive(config.get("grad_clip"))
    split = "loss_mask/role_split"
    shares = {"unique tokens": "unique_ratio", "head rows per trained token": "head_rows_per_trained_token"}
    return [
        Panel("Entropy", _with_policies(curves, "entropy"), "nats per token", zero=True),
        Panel("KL to the reference", _if_moved(_with_policies(curves, "kl")), "nats per token", zero=True),
        Panel(
            "Gradient norm",
            _with_policies(curves, "grad_norm"),
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
        Panel("Mismatch", _with_policies(curves, "mismatch"), "mean k3 in nats per token", log=True),
        Panel(split, _if_several(by_role(curves, split)), "share of the trained tokens", stacked=True),
        Panel("Shared work", _named(curves, shares), "1: nothing is shared", zero=True),
    ]


def _speed(curves: Curves) -> list[Panel]:
    seconds = {"rollout": "rollout_seconds", "learn": "learn_seconds", "sync": "sync_seconds"}
    episode = {"mean": "episode_seconds/avg", "longest": "episode_seconds/max"}
    return [
        Panel("Seconds per step", _named(curves, seconds), stacked=True),
        Panel("Tokens per second", _named(curves, {"tokens": "tokens_per_second"}), "sampled, whole step", zero=True),
        Panel("Learner's mfu", _with_policies(curves, "mfu"), "of the rate of its own matrix products", zero=True),
        Panel("Seconds per episode", _named(curves, episode), zero=True),
        Panel("Overlap", _if_moved(_named(curves, {"overlap": "overlap"})), "of rollout and learning", zero=True),
        Panel(
            "Staleness",
            _if_moved(_named(curves, {"mean": "staleness", "largest": "staleness_max"})),
            "updates between sampling and learning",
            zero=True,
        ),
    ]


def others(curves: Curves, shown: list[Panel]) -> list[Panel]:
    """Returns charts of the metrics that no other panel has and that change, at most `MOST_OTHERS`."""
    used = {id(curve) for panel in shown for curve in panel.curves.values()}
    rest = [(name, curve) for name, curve in curves.items() if id(curve) not in used and _changes(curve)]
    return [Panel(name, {name: curve}) for name, curve in rest[:MOST_OTHERS]]


def by_role(curves: Curves, metric: str) -> dict[str, Curve]:
    """Returns the curves `METRIC/ROLE` by role."""
    start = f"{metric}/"
    return {name.removeprefix(start): curve for name, curve in curves.items() if name.startswith(start)}


def tolerance(config: Mapping[str, object]) -> float:
    """Returns the largest gap between engine and learner that the run takes as healthy, in nats."""
    return _positive(config.get("parity_tolerance")) or TOLERANCE


def _illegal(curves: Curves) -> Iterator[Panel]:
    start = "reply/illegal_"
    for role, total in list(by_role(curves, "reply/illegal").items())[:MOST_SERIES]:
        ending = f"/{role}"
        causes = {
            name.removeprefix(start).removesuffix(ending): curve
            for name, curve in curves.items()
            if name.startswith(start) and name.endswith(ending)
        }
        note = "share, by cause" if causes else "none in any step"
        yield Panel(f"Replies not taken: {role}", causes or {"all": total}, note, stacked=True)


def _with_all(curves: Curves, name: str) -> dict[str, Curve]:
    """Returns a metric's curves by role, and that of all roles if there are several."""
    roles = by_role(curves, name)
    return _named(curves, {"all": name}) | roles if len(roles) != 1 else roles


def _with_policies(curves: Curves, name: str) -> dict[str, Curve]:
    """Returns a learner's curve, or those of several."""
    return by_role(curves, name) or _named(curves, {name: name})


def _named(curves: Curves, names: Mapping[str, str]) -> dict[str, Curve]:
    return {label: curves[name] for label, name in names.items() if name in curves}


def _if_moved(curves: dict[str, Curve]) -> dict[str, Curve]:
    return {name: curve for name, curve in curves.items() if _moves(curve)}


def _if_several(curves: dict[str, Curve]) -> dict[str, Curve]:
    return curves if len(curves) > 1 else {}


def _moves(curve: Curve) -> bool:
    return bool((np.abs(curve.finite()) > _ROUNDING).any())


def _drawable(curve: Curve, log: bool) -> bool:
    values = curve.finite()
    return bool((values > 0).any()) if log else len(values) > 0


def _changes(curve: Curve) -> bool:
    values = curve.finite()
    return len(values) > 0 and bool(np.ptp(values) > max(1e-9 * np.abs(values).max(), 1e-15))


def _positive(value: object) -> float | None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return float(value) if number else None  # type: ignore[arg-type]  # `number` says that it is one


__all__ = ["MOST_OTHERS", "Panel", "by_role", "earnings", "groups", "others", "tolerance"]
