"""Curves and charts of a run's page: thinning, smoothing, scales, and which metrics are drawn."""

from __future__ import annotations

import math
import re
import xml.dom.minidom

import numpy as np
import pytest

from llm_arena.report.charts import SMALL, WIDE, interval_bar, line_chart, short, stacked_chart, token_strip
from llm_arena.report.curves import Curve, log_ticks, smooth, thin, ticks
from llm_arena.report.panels import earnings, groups, others


def curve(values: list[float], steps: list[float] | None = None) -> Curve:
    return Curve(np.array(steps if steps is not None else range(len(values)), float), np.array(values, float))


def paths(svg: str, kind: str) -> list[list[tuple[float, float]]]:
    """The corner points of the paths of a class, one list for each stretch that a `M` begins."""
    found = []
    for path in xml.dom.minidom.parseString(svg).getElementsByTagName("path"):
        if path.getAttribute("class") == kind:
            for stretch in path.getAttribute("d").split("M")[1:]:
                numbers = [float(number) for number in re.findall(r"-?[\d.]+", stretch.removesuffix("h0"))]
                found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
    return found


@pytest.mark.parametrize("count, places", [(1, 5), (5, 5), (6, 5), (1000, 7), (240, 240), (100_000, 240)])
def test_thinning_keeps_mean_extremes_and_ends(count: int, places: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=count)
    values[rng.random(count) < 0.3] = np.nan
    thinned = thin(curve(values.tolist()), places)
    assert len(thinned.x) <= places
    for at in range(len(thinned.x)):  # against a plain loop
        part = [value for value in values[at * thinned.per : (at + 1) * thinned.per] if math.isfinite(value)]
        if part:
            assert (thinned.low[at], thinned.high[at]) == (min(part), max(part))
            assert thinned.mean[at] == pytest.approx(sum(part) / len(part))
        else:
            assert math.isnan(thinned.mean[at]) and math.isnan(thinned.low[at]) and math.isnan(thinned.high[at])


def test_smoothing_is_the_centred_mean_and_keeps_gaps() -> None:
    smoothed = smooth(np.array([0.0, 3.0, 6.0, np.nan, 10.0]), 3)
    assert smoothed[:3].tolist() == [1.5, 3.0, 4.5]
    assert math.isnan(smoothed[3])
    assert smoothed[4] == 10.0
    assert smooth(np.array([1.0, 2.0]), 1).tolist() == [1.0, 2.0]


def test_the_mean_of_a_share_of_a_run() -> None:
    whole = curve([float(i) for i in range(20)])
    assert whole.mean_of_share(0, 0.1) == 0.5
    assert whole.mean_of_share(0.9, 1) == 18.5
    assert curve([3.0]).mean_of_share(0.9, 1) == curve([3.0]).mean_of_share(0, 0.1) == 3.0
    assert math.isnan(curve([math.nan]).mean_of_share(0, 1))
    assert math.isnan(curve([]).mean_of_share(0, 1))


@pytest.mark.parametrize("low, high", [(0, 1), (5, 5), (0, 0), (3e-14, 4e-14), (1, 1 + 1e-15), (-1e-9, 1e12)])
def test_ticks_enclose_what_they_are_for(low: float, high: float) -> None:
    marks = ticks(low, high, 5)
    assert 2 <= len(marks) <= 9
    rounding = 1e-6 * (marks[-1] - marks[0])
    assert marks[0] <= low + rounding
    assert marks[-1] >= high - rounding
    assert marks == sorted(set(marks))


def test_logarithmic_ticks_are_powers_of_ten() -> None:
    assert log_ticks(2e-6, 3e-4, 5) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3])
    assert len(log_ticks(1e-5, 1e-5, 5)) == 2
    assert len(log_ticks(1e-90, 1e90, 3)) <= 5


def test_a_line_breaks_at_missing_values_and_a_lone_point_is_seen() -> None:
    chart = line_chart({"a<b>": curve([1.0, math.nan, 2.0, 3.0])}, 'x "quoted" & <b>')
    assert [len(stretch) for stretch in paths(chart, "line")] == [1, 2]
    assert len(paths(chart, "lone")) == 1
    assert len(paths(chart, "dots")) == 3


@pytest.mark.parametrize(
    "values", [[5.0], [0.0, 0.0], [3e-14, 4e-14], [1.0, 1.0 + 1e-15], [-1e-9, 1e12], [-1e99, 1e99]]
)
@pytest.mark.parametrize("log", [False, True])
def test_flat_tiny_and_huge_values_stay_inside_the_chart(values: list[float], log: bool) -> None:
    chart = line_chart({"a": curve(values)}, "a", log=log, limit=1e-4)
    for x, y in [point for kind in ("line", "dots") for stretch in paths(chart, kind) for point in stretch]:
        assert 0 <= x <= WIDE.width and 0 <= y <= WIDE.height


def test_charts_without_data_say_so() -> None:
    for series in ({}, {"a": curve([])}, {"a": curve([math.nan])}):
        assert "no data" in line_chart(series, "a")
        assert "no data" in stacked_chart(series, "a")
    assert "no data" in line_chart({"a": curve([0.0, -1.0])}, "a", log=True)
    assert interval_bar(math.nan, 0, 1) == interval_bar(0.5, 0, 1, scale=(1.0, 1.0)) == token_strip([]) == ""


def test_the_higher_value_is_drawn_higher_and_the_later_to_the_right() -> None:
    [[(x0, y0), (x1, y1)]] = paths(line_chart({"a": curve([1.0, 2.0])}, "a"), "line")
    assert x0 < x1
    assert y0 > y1


def test_a_long_run_is_drawn_in_few_places_with_a_band_of_its_extremes() -> None:
    values = [0.0] * 50_000
    values[123] = 7.0  # one step, which the mean would hide
    chart = line_chart({"a": curve(values)}, "a")
    assert len(chart) < 20_000
    [band] = paths(chart, "band")
    [line] = paths(chart, "line")
    assert min(y for _, y in band) < min(y for _, y in line) - 50


def test_stacked_parts_add_up() -> None:
    chart = stacked_chart({"a": curve([1.0, 1.0]), "b": curve([2.0, math.nan])}, "sum")
    below, above = paths(chart, "area")
    foot = SMALL.height - SMALL.bottom
    one = foot - below[0][1]
    assert below == [(below[0][0], foot - one), (below[1][0], foot - one), (below[1][0], foot), (below[0][0], foot)]
    assert above[0][1] == pytest.approx(foot - 3 * one, abs=0.2)
    assert above[1][1] == pytest.approx(foot - one, abs=0.2)  # a missing part counts as 0


def test_names_in_a_chart_are_escaped_and_visible() -> None:
    hostile = '"><script>\u202e\x00</svg>'
    chart = line_chart({hostile: curve([1.0])}, hostile)
    label = xml.dom.minidom.parseString(chart).documentElement.getAttribute("aria-label")
    assert label.startswith('"><script>\\u202e\\x00</svg>. ')
    assert "from 1 to 1" in label


def test_an_interval_bar_has_its_ends_in_order() -> None:
    bar = xml.dom.minidom.parseString(interval_bar(0.5, 0.25, 0.75))
    [span] = [line for line in bar.getElementsByTagName("line") if line.getAttribute("class") == "span"]
    [dot] = bar.getElementsByTagName("circle")
    places = [float(span.getAttribute("x1")), float(dot.getAttribute("cx")), float(span.getAttribute("x2"))]
    assert places == [42.5, 80.0, 117.5]
    assert 'x1="5.0" x2="155.0"' in interval_bar(0, -9, 9, scale=(-1, 1))  # cut at the edges


@pytest.mark.parametrize(
    "value, shown",
    [(0, "0"), (0.25, "0.25"), (1e-4, "1e-04"), (12_000, "12,000"), (3.5e6, "3.5M"), (1e12, "1e+12"), (math.nan, "-")],
)
def test_short_numbers(value: float, shown: str) -> None:
    assert short(value) == shown


def test_scores_go_first_and_rewards_that_are_zero_by_construction_are_not_drawn() -> None:
    curves = {"reward/avg/a": curve([0.0, 1e-17]), "score/avg/a": curve([0.0, 1.0]), "tokens": curve([3.0, 3.0])}
    assert [(panel.title, list(panel.curves)) for panel in earnings(curves)] == [("Score by step", ["a"])]
    curves["reward/avg/b"] = curve([0.0, 0.5])
    assert [panel.title for panel in earnings(curves)] == ["Score by step", "Reward by step"]
    del curves["score/avg/a"]
    assert [list(panel.curves) for panel in earnings(curves)] == [["a", "b"]]


def test_groups_show_what_the_run_has_and_the_rest_is_further_metrics() -> None:
    curves = {
        "entropy": curve([1.0]),
        "kl": curve([0.0]),
        "grad_norm": curve([2.0]),
        "grad_norm/a": curve([1.0]),
        "grad_norm/b": curve([2.0]),
        "max_logprob_gap": curve([1e-5]),
        "reward/std": curve([0.5]),
        "reward/std/x": curve([0.5]),
        "reply/illegal/x": curve([0.2]),
        "reply/illegal_length/x": curve([0.2]),
        "reply/illegal/y": curve([0.0]),
        "multi_agent/avg_turns": curve([3.0]),
        "multi_agent/avg_turns/x": curve([2.0]),
        "multi_agent/avg_turns/y": curve([1.0]),
        "rollout_seconds": curve([1.0]),
        "odd": curve([1.0, 2.0]),
        "flat": curve([0.0, 5e-18]),
    }
    found = groups(curves, {"parity_tolerance": 0.5})
    titles = {panel.title: panel for panels in found.values() for panel in panels}
    assert {name: [panel.title for panel in panels] for name, panels in found.items()} == {
        "Reward": ["Spread of rewards"],
        "Conversation (multi_agent)": ["multi_agent/avg_turns", "Replies not taken: x", "Replies not taken: y"],
        "Loss": ["Entropy", "Gradient norm", "Engine against learner"],
        "Speed": ["Seconds per step"],
    }
    assert titles["Engine against learner"].limit == 0.5
    assert list(titles["Replies not taken: x"].curves) == ["length"]
    assert "none" in titles["Replies not taken: y"].note
    assert list(titles["multi_agent/avg_turns"].curves) == ["x", "y"]
    assert list(titles["Gradient norm"].curves) == ["a", "b"], "each of several policies"
    assert [panel.title for panel in others(curves, list(titles.values()))] == ["odd"]
