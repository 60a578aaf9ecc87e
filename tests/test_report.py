"""The HTML page of a run and episodes as text: hostile text is shown and does nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import xml.dom.minidom
from html.parser import HTMLParser
from pathlib import Path

import pytest

from llm_arena.errors import ArenaError, TraceError, UsageError
from llm_arena.rating import Record
from llm_arena.report import episode_lines, visible, write_report
from llm_arena.report.charts import interval_bar, line_chart
from llm_arena.report.page import charts_of, main_chart
from llm_arena.report.results import Results, Sample, load_results
from llm_arena.trace_file import TraceWriter
from llm_arena.types import Cause, Ending, EnvSpec, Failure, Message, Outcome, SeatInfo, Trace, Turn

HOSTILE = (
    '<script>alert(1)</script><img src=x onerror="alert(2)">\x1b[2J\x1b]0;owned\x07{{ 7 * 7 }}\u202egnp\u2028\x00\'"&'
)
VOID_ELEMENTS = {"meta", "link", "line", "circle", "polyline", "br", "img"}


def make_trace(number: int, text: str = "Bean Scene", **changes: object) -> Trace:
    seats = {f"namer_{i}": SeatInfo(role="namer", agent="llm:tiny", policy="policy") for i in range(2)}
    told: list[Message] = [
        {"role": "user", "content": f"Name it: {text}"},
        {"role": "assistant", "content": "old reply"},
    ]
    turns = [Turn(index=i, seat=seat, text=text, messages=told, completion_ids=[1, 2]) for i, seat in enumerate(seats)]
    trace = Trace(
        id=f"episode-{number}",
        spec=EnvSpec(id="naming-v0", kwargs={"topic": text}),
        seed=number,
        seats=seats,
        turns=turns,
        returns={"namer_0": 1.0, "namer_1": -1.0},
        outcome=Outcome(winners=["namer_0"], reason=text),
    )
    for name, value in changes.items():
        setattr(trace, name, value)
    return trace


def make_run(folder: Path, text: str = "Bean Scene", episodes: int = 3) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"env": "naming-v0", "model": text, "env_args": {"topic": text}}))
    rows = [
        {"step": i, "namer/reward": 0.0, "namer/score": 0.1 * i, "kl": math.nan if i == 1 else 0.1} for i in range(4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows).replace("NaN", "null"))
    with TraceWriter(folder / "traces.jsonl") as writer:
        for number in range(episodes):
            writer.write(make_trace(number, text))
    Results(
        comparisons=[Record(entrant="trained", opponent="initial", wins=60, draws=2, losses=2), Record(entrant=text)],
        samples=[Sample(start=text, before=[text], after=[text])],
        figures={"win_rate": 0.953125, "note": text},
    ).save(folder)
    return folder


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_ELEMENTS:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_what_the_run_holds(tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path / "run"))
    page = Page(path.read_text(encoding="utf-8"))
    assert path == tmp_path / "run" / "index.html"
    expected = [
        "trained",
        "initial",
        "0.953",
        "Score by step",
        "episode-2",
        "Bean Scene",
        "env_args.topic",
        "won by namer_0",
    ]
    for shown in expected:
        assert shown in page.text, shown
    assert page.tags.count("polyline") >= 2
    assert "old reply" not in page.text


def test_text_of_models_can_not_act_on_the_page(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path / "run", HOSTILE)).read_text(encoding="utf-8")
    page = Page(html)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert not [value for name, value in page.attributes if name in ("src", "href") and value != "data:,"]
    assert "default-src 'none'" in html
    assert "{{ 7 * 7 }}" in page.text  # shown as it is, not run as a template
    assert "<script>alert(1)</script>" in page.text
    assert "\\x1b[2J" in page.text
    for hidden in "\x1b\x07\x00\u202e\u2028":
        assert hidden not in html


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path / "run")).read_text(encoding="utf-8")
    for word in ("http://", "https://", "url(", "@import", "<script", "<iframe"):
        assert word not in html, word


def test_a_long_run_shows_its_first_and_last_episodes_and_clips_long_text(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", episodes=40)
    with TraceWriter(run / "traces.jsonl") as writer:
        failure = Failure(boundary="engine", kind="EngineError", message="the engine is gone")
        writer.write(make_trace(40, "x" * 50_000, ending=Ending.VOID, failure=failure, returns={}, outcome=None))
    html = write_report(run).read_text(encoding="utf-8")
    page = Page(html)
    assert page.text.count("told to namer_0") == 8
    assert "8 of 41" in page.text
    assert "1 void" in page.text
    assert "the engine is gone" in page.text
    assert "46000 more characters" in page.text
    assert len(html) < 200_000


@pytest.mark.parametrize("kept", ["config.json", "metrics.jsonl", "traces.jsonl", "results.json"])
def test_every_file_of_a_run_is_optional(tmp_path: Path, kept: str) -> None:
    run = make_run(tmp_path / "run")
    for name in ("config.json", "metrics.jsonl", "traces.jsonl", "results.json"):
        if name != kept:
            (run / name).unlink()
    Page(write_report(run).read_text(encoding="utf-8"))


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run's folder"):
        write_report(tmp_path)
    with pytest.raises(UsageError, match="no run's folder"):
        write_report(tmp_path / "absent")


def test_a_torn_last_metric_is_left_out_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    whole = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(whole + '{"step": 4, "na')
    assert "4 steps" in write_report(run).read_text(encoding="utf-8")
    (run / "metrics.jsonl").write_text('{"step": 4, "na\n' + whole)
    with pytest.raises(TraceError, match="line 1"):
        write_report(run)


def test_lines_of_metrics_end_at_newlines_only(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text('{"step": 0, "note": "a\u2028b\x85c"}\n', encoding="utf-8")
    assert "1 steps" in write_report(run).read_text(encoding="utf-8")


def test_results_come_back_as_they_were_saved(tmp_path: Path) -> None:
    results = Results(
        comparisons=[Record(entrant="a", wins=1)], samples=[Sample(start="s", before=["b"], after=[HOSTILE])]
    )
    results.save(tmp_path)
    assert load_results(tmp_path) == results
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(TraceError, match=r"results\.json"):
        load_results(tmp_path)


def test_a_chart_breaks_at_missing_values_and_survives_flat_and_empty_data() -> None:
    chart = line_chart({"a<b>": [(0, 1.0), (1, math.nan), (2, 3.0), (3, 4.0)]}, 'x "quoted" & <b>')
    svg = xml.dom.minidom.parseString(chart)
    assert len(svg.getElementsByTagName("polyline")) == 2
    assert len(svg.getElementsByTagName("circle")) == 3
    for points in (
        [(0, 5.0)],
        [(0, 0.0), (1, 0.0)],
        [(0, 3e-14), (1, 4e-14)],
        [(0, 1.0), (1, 1.0 + 1e-15)],
        [(3, -1e-9), (4, 1e12)],
    ):
        coordinates = xml.dom.minidom.parseString(line_chart({"a": points}, "a")).getElementsByTagName("circle")
        assert all(0 <= float(circle.getAttribute(name)) <= 720 for circle in coordinates for name in ("cx", "cy"))
    assert "no data" in line_chart({"a": [(0, math.inf)]}, "a")
    assert interval_bar(math.nan, 0, 1) == ""


def test_the_higher_value_is_drawn_higher() -> None:
    circles = xml.dom.minidom.parseString(line_chart({"a": [(0, 1.0), (1, 2.0)]}, "a")).getElementsByTagName("circle")
    (x0, y0), (x1, y1) = [(float(c.getAttribute("cx")), float(c.getAttribute("cy"))) for c in circles]
    assert x0 < x1
    assert y0 > y1


def test_the_main_chart_prefers_what_is_not_zero_by_construction() -> None:
    rows = [{"step": i, "namer/reward": 0.0, "namer/score": float(i), "tokens": 3} for i in range(3)]
    charts = charts_of(rows)
    assert [chart.title for chart in charts] == ["namer/reward", "namer/score", "tokens"]
    assert list(main_chart(charts).series) == ["namer"]


def test_an_episode_as_text_shows_who_was_told_what_and_how_it_ended() -> None:
    trace = make_trace(0)
    trace.turns[1].cause = Cause.UNPARSABLE
    trace.turns[1].attempt = 1
    text = "\n".join(episode_lines(trace))
    assert "to namer_0 (user): Name it: Bean Scene" in text
    assert "namer_1 [attempt 2, unparsable]: Bean Scene" in text
    assert "terminated won by namer_0 (Bean Scene)" in text
    assert "namer_0 +1  namer_1 -1" in text
    assert "Name it" not in "\n".join(episode_lines(trace, messages=False))


def test_no_control_character_reaches_the_terminal() -> None:
    text = "\n".join(episode_lines(make_trace(0, HOSTILE + "\r\nsecond line\tend\ud800\U000e0041")))
    assert not [char for char in text if char in "\x1b\x07\x00\r\u202e\u2028\ud800\U000e0041"]
    assert "\n    second line\tend\\ud800\\U000e0041" in text


@pytest.mark.parametrize(
    "given, shown",
    [
        ("plain text, naïve 日本語 👩‍👩‍👧", "plain text, naïve 日本語 👩‍👩‍👧"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
        ("\x9b2J\x7f", "\\x9b2J\\x7f"),
    ],
)
def test_visible(given: str, shown: str) -> None:
    assert visible(given) == shown


def test_visible_can_keep_a_text_on_one_line() -> None:
    assert visible("a\nb", newlines=False) == "a\\nb"


def test_reading_text_loads_no_template_engine() -> None:
    code = "import sys, llm_arena.report.text; print('jinja2' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


@pytest.mark.parametrize("step", ["three", None, math.nan, math.inf, [1], True, 10**400])
def test_a_step_that_is_no_number_is_the_place_of_its_row(step: object) -> None:
    rows = [{"step": 0, "kl": 1.0}, {"step": step, "kl": 2.0}]
    [chart] = charts_of(rows)  # type: ignore[arg-type]  # what a damaged file may hold
    assert chart.series["kl"] == [(0.0, 1.0), (1.0, 2.0)]


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "traces.jsonl", "results.json"])
def test_json_nested_too_deeply_names_its_file(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run")
    (run / name).write_text('{"schema":1,"figures":{"x":' + "[" * 200_000 + "\n")
    with pytest.raises(TraceError, match=name):
        write_report(run)


def test_blank_lines_and_byte_order_marks_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for name in ("config.json", "metrics.jsonl"):
        (run / name).write_bytes(b"\xef\xbb\xbf" + (run / name).read_bytes() + b"\n \n")
    assert "4 steps" in write_report(run).read_text(encoding="utf-8")


def test_a_page_that_can_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "index.html").mkdir()
    with pytest.raises(ArenaError, match=r"can't write .*index\.html: .*; "):
        write_report(run)


def test_a_name_that_is_too_long_is_no_folder() -> None:
    with pytest.raises(UsageError, match="no run's folder"):
        write_report("x" * 5000)
