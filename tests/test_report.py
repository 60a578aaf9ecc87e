"""The HTML page of a run: what it shows, that hostile text is shown and does nothing, that broken files cost little."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from llm_arena.errors import ArenaError, TraceError, UsageError
from llm_arena.rating import Record
from llm_arena.report import write_report
from llm_arena.report.episodes import Picks, pick
from llm_arena.report.page import MOST_BYTES
from llm_arena.report.results import RankedRow, Results, Sample, load_results
from llm_arena.report.run_files import MARK, Metrics, read_run
from llm_arena.report.settings import command, settings_of
from llm_arena.report.summary import duration, notices, verdict
from llm_arena.trace_file import TraceWriter
from llm_arena.training import run_folder
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.types import Cause, Ending, EnvSpec, Failure, Message, Outcome, SeatInfo, Trace, Turn

FILES = ("config.json", "metrics.jsonl", "traces.jsonl", "results.json")
VOID_ELEMENTS = {"meta", "link", "line", "circle", "path", "br", "img"}


def make_trace(number: int, text: str = "Bean Scene", **changes: object) -> Trace:
    seats = {f"namer_{i}": SeatInfo(role="namer", agent="llm:tiny", policy="policy") for i in range(2)}
    told: list[Message] = [{"role": "assistant", "content": "old reply"}, {"role": "user", "content": f"Name: {text}"}]
    turns = [
        Turn(index=i, seat=seat, text=text, messages=told, completion_ids=[1, 2], logprobs=[-1.0, -2.0], seconds=0.5)
        for i, seat in enumerate(seats)
    ]
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


def make_run(folder: Path, text: str = "Bean Scene", episodes: int = 3, steps: int = 4, **settings: Any) -> Path:
    folder.mkdir()
    (folder / "final").mkdir()
    config = TrainConfig(num_steps=4, model=text).to_json() | {"script": "self-play", MARK: 1, "odd": text} | settings
    (folder / "config.json").write_text(json.dumps(config))
    rows = [
        {"step": i + 1, "reward/avg/namer": 0.0, "score/avg/namer": 0.1 * i, "max_logprob_gap": 1e-5, text or "x": 1.0}
        for i in range(steps)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with TraceWriter(folder / "traces.jsonl") as writer:
        for number in range(episodes):
            writer.write(make_trace(number, text))
    Results(
        comparisons=[Record(entrant="trained", opponent="initial", wins=60, draws=2, losses=2), Record(entrant=text)],
        samples=[Sample(start=text, before=[text], after=[text])],
        figures={"win_rate": 0.953125, "note": text, "rate": None, "matches": 12_000},
        ratings=[RankedRow(entrant=text, rating=12.5, low=3.0, high=22.0, rank_low=1, rank_high=2, wins=3)],
    ).save(folder)
    return folder


class Page(HTMLParser):
    """Collects tags, attributes and text, and checks that tags nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID_ELEMENTS:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if not (self.open and self.open[-1] in ("script", "style")) else ""


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


def test_the_page_shows_what_the_run_holds(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page = page_of(run)
    expected = [
        "trained beats initial: win rate 0.95 [0.87, 0.98] in 64 matches",
        "all weights",
        "4 of 4",
        "3.0 – 22.0",  # noqa: RUF001 - as the page has it
        "Score by step",
        "episode-2",
        "won by namer_0",
        "llm-arena train self-play --model 'Bean Scene' --num-steps 4",
        "mean log p -1.50",
        "0.5 s",
        "unknown",
        "12,000",
    ]
    for shown in expected:
        assert shown in page.text, shown
    assert (run / "index.html").is_file()
    assert "old reply" not in page.text
    assert "warning" not in page.text
    assert page.tags.count("details") >= 3 + 6  # episodes, and a prompt for each of their turns


HOSTILE = {
    "markup": '<script>alert(1)</script><img src=x onerror="alert(2)"></details></pre></td></svg><!--',
    "quotes": "\"'`&quot;&#60;",
    "template": "{{ 7 * 7 }}{% raw %}{# gone #}",
    "terminal": "\x1b[2J\x1b]0;owned\x07",
    "direction": "\u202egnp.exe\u202c\u2066x\u2069",
    "invisible": "a\u200b\ufeff\U000e0041b",
    "controls": "NUL\x00\r\u2028\u2029\x85",
    "rtl": "שלום ٱلسَّلَامُ",
    "emoji": "👩‍👩‍👧 ❤️ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
    "url": "javascript:alert(1) https://example.org/x.js",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_text_is_shown_and_does_nothing(tmp_path: Path, kind: str) -> None:
    text = HOSTILE[kind]
    html = write_report(make_run(tmp_path / "run", text)).read_text(encoding="utf-8")
    page, plain = Page(html), Page(write_report(make_run(tmp_path / "plain", "plain")).read_text(encoding="utf-8"))
    assert sorted(page.tags) == sorted(plain.tags)  # not one element more or less than for honest text
    assert not [name for _, name, _ in page.attributes if name.startswith("on") or name in ("src", "style")]
    assert {value for _, name, value in page.attributes if name == "href" and not str(value).startswith("#")} == {
        "data:,"
    }
    escaped = re.sub(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069\ufeff\U000e0041]",
        lambda found: found[0].encode("unicode_escape").decode(),
        text,
    )
    assert page.text.count(escaped) >= 12  # title, settings, results, samples, episodes
    assert escaped == text or text not in html


def test_a_lone_surrogate_reaches_no_file(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    config = (run / "config.json").read_text().replace("Bean Scene", "\\ud800")
    (run / "config.json").write_text(config)
    assert page_of(run).text


def test_nothing_runs_or_loads_but_the_page_s_own_script_and_style(tmp_path: Path) -> None:
    html = write_report(make_run(tmp_path / "run")).read_text(encoding="utf-8")
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        [body] = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() in policy
    for word in ("http://", "https://", "url(", "@import", "<iframe", "innerHTML", "eval("):
        assert word not in html, word


@pytest.mark.parametrize("text", ["x" * 1_000_000, '"' * 50_000, "\U000e0041" * 50_000, "a\n" * 50_000])
def test_a_page_is_small_enough_to_mail_whatever_was_said(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", "short")
    turns = [Turn(index=i, seat=f"namer_{i % 2}", text=text[: 10**6 // 20]) for i in range(200)]
    with TraceWriter(run / "traces.jsonl") as writer:
        writer.write(make_trace(3, text))
        for number in range(4, 9):
            writer.write(make_trace(number, turns=turns))
    page = page_of(run)
    assert (run / "index.html").stat().st_size <= MOST_BYTES
    assert "more characters" in page.text
    assert "turns are left out here" in page.text
    assert "8 of the 9 in traces.jsonl" in page.text or "4 of the 9 in traces.jsonl" in page.text


def test_a_long_run_is_counted_whole_and_drawn_small(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=0, num_steps=100_000)
    line = '{{"step":{},"score/avg/namer":{},"reward/avg/namer":0.0,"entropy":2.0}}\n'
    (run / "metrics.jsonl").write_text("".join(line.format(i, i % 7) for i in range(1, 100_001)))
    assert "100,000 of 100,000" in page_of(run).text
    assert (run / "index.html").stat().st_size < 300_000


def test_episodes_are_the_first_the_last_and_those_that_went_wrong() -> None:
    failure = Failure(boundary="engine", kind="EngineError", message="the engine is gone")
    traces = [make_trace(number) for number in range(40)]
    traces[20] = make_trace(20, ending=Ending.VOID, failure=failure, returns={}, outcome=None)
    traces[30].turns[0].cause = Cause.UNPARSABLE
    picks = Picks()
    pick(picks, traces)
    assert [(one.number, one.why) for one in picks.shown()] == [
        *((number, "start of training") for number in (1, 2, 3, 4)),
        (21, "void"),
        (31, "reply not taken"),
        *((number, "end of training") for number in (37, 38, 39, 40)),
    ]
    assert (picks.count, picks.void, picks.failures) == (40, 1, {"engine: EngineError": 1})
    assert len(picks.shown(1)) == 4


@pytest.mark.parametrize("kept", FILES)
def test_every_file_of_a_run_is_optional(tmp_path: Path, kept: str) -> None:
    run = make_run(tmp_path / "run")
    for name in set(FILES) - {kept}:
        (run / name).unlink()
    assert page_of(run).text


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00\n", b"hello\n", b"[" * 200_000 + b"\n", b'{"schema":9}\n', b"", b"[]\n"]
)
def test_a_file_that_can_not_be_read_is_named_on_the_page(tmp_path: Path, name: str, content: bytes) -> None:
    run = make_run(tmp_path / "run")
    (run / name).write_bytes(content)
    text = page_of(run).text
    empty_log = content == b"" and name.endswith("jsonl")
    fine = empty_log or (content == b'{"schema":9}\n' and name != "traces.jsonl")
    assert (f"{name}" in "".join(re.findall(r"warning ([^\n]*)", text))) != fine
    for other in FILES:
        (run / other).unlink()
    (run / name).write_bytes(b"{\n")
    with pytest.raises(TraceError, match=re.escape(name)):
        write_report(run)


@pytest.mark.parametrize("value", [None, True, -1, 10**30, 1e300, "", "null", [1], {"a": {"b": [None]}}, math.inf])
def test_records_of_unexpected_kinds_are_shown_or_left_out(tmp_path: Path, value: object) -> None:
    names = ("env", "model", "lora_rank", "num_steps", "engine", "opponent", "env_args", "grad_clip", "seed", "roster")
    run = make_run(tmp_path / "run")
    if value is not math.inf:  # which no JSON holds
        (run / "config.json").write_text(json.dumps({"script": "self-play"} | dict.fromkeys(names, value)))
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "score/avg/a": value, "void": value, "kl": 1e308}) + "\n")
    with TraceWriter(run / "traces.jsonl") as writer:
        stray = Turn(index=0, seat="nobody", text="", logprobs=[-1e308, -1e308], rewards={"nobody": 1.0})
        seats = {"nobody": SeatInfo(role="", agent="")}
        writer.write(make_trace(4, seats=seats, turns=[stray], returns={}))
        writer.write(make_trace(5, seats={}, turns=[]))
    page = page_of(run)
    assert "nobody" in page.text
    assert "(no text)" in page.text


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "model", Path("x" * 5000)):
        with pytest.raises(UsageError, match="no run's folder"):
            write_report(folder)


def test_broken_metrics_cost_their_line_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    rows = [
        '\ufeff{"step":1,"a":NaN,"b":1}',
        "",
        '{"st',
        '{"step":3,"a":-Infinity,"b":1e400,"c":"a\u2028b\x85c"}',
        '{"step":2,"b":3}',
        '{"step":4,"b',
    ]
    (run / "metrics.jsonl").write_text("\n".join(rows), encoding="utf-8")
    found = read_run(run)
    assert found.num_steps == 3
    assert found.curves["b"].steps.tolist() == [1, 2, 3]
    assert found.curves["b"].finite().tolist() == [1, 3]
    assert found.not_finite == {"a": 2, "b": 1}
    assert [("line 3" in problem) for problem in found.problems] == [True]


@pytest.mark.parametrize("step", ["three", None, math.nan, math.inf, [1], True, 10**400, 1e300])
def test_a_step_that_is_no_number_is_the_place_of_its_row(step: object) -> None:
    metrics = Metrics()
    metrics.add({"step": 0, "kl": 1.0})
    metrics.add({"step": step, "kl": 2.0, "new": 3.0})
    assert metrics.curves()["kl"].steps.tolist() == [0.0, 1.0]
    assert metrics.curves()["new"].finite().tolist() == [3.0]


def test_what_to_know_first_stands_first(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", num_steps=9)
    rows = [
        {"step": i, "void": 1, "episodes": 3, "max_logprob_gap": g, "reply/truncated/x": 0.5, "reply/illegal/x": 0.1}
        for i, g in enumerate([1e-5, 3e-4, None])
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = notices(read_run(run))
    assert [notice.serious for notice in said] == [True] * 4 + [False]
    text = " ".join(notice.text for notice in said)
    for part in ("3 of 9 steps", "3 of 12 episodes are void", "in 1 of 3 steps, at most by 3e-04 (step 1)", "50% of x"):
        assert part in text, part
    assert notices(read_run(make_run(tmp_path / "healthy"))) == []
    (tmp_path / "healthy" / "final").rmdir()
    assert "final/" in notices(read_run(tmp_path / "healthy"))[0].text


def test_the_verdict_follows_the_interval_or_the_curve(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=20)
    for wins, losses, word in ((60, 4, "beats"), (4, 60, "loses to"), (33, 31, "is not told apart from")):
        Results(comparisons=[Record(entrant="a", opponent="b", wins=wins, losses=losses)]).save(run)
        assert verdict(read_run(run)).startswith(f"a {word} b: ")
    Results(comparisons=[Record(entrant="a", opponent="b", wins=-1)]).save(run)
    assert verdict(read_run(run)).endswith("namer +0.05 to +1.85")
    assert "counts below 0" in page_of(run).text
    assert verdict(read_run(make_run(tmp_path / "empty", steps=0, script=3))).startswith("trained beats")


def test_results_come_back_as_they_were_saved_and_rankings_may_hold_more(tmp_path: Path) -> None:
    results = Results(comparisons=[Record(entrant="a", wins=1)], ratings=[RankedRow(entrant="a", rating=1.0)])
    results.save(tmp_path)
    assert load_results(tmp_path) == results
    (tmp_path / "results.json").write_text('{"ratings": [{"entrant": "a", "rating": 2, "clean": 0.5, "low": null}]}')
    assert load_results(tmp_path) == Results(ratings=[RankedRow(entrant="a", rating=2.0)])
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(TraceError, match=r"results\.json"):
        load_results(tmp_path)


def test_changed_settings_go_first_and_the_command_gives_the_same_run() -> None:
    config = TrainConfig(lr=3e-5, env_args='{"namers": 3}', warmup_steps=2, system='it\'s "x"', bias_correction=False)
    written = config.to_json() | {"script": "self-play", "roster": {"namer_0": "random-legal"}, MARK: 1}
    changed = [setting.name for setting in settings_of(written) if setting.changed]
    assert changed == ["bias_correction", "env_args", "lr", "roster", "system", "warmup_steps"]
    for every in (False, True):
        words = shlex.split(command(written, every=every))
        assert words[:3] == ["llm-arena", "train", "self-play"]
        again = parse(TrainConfig, words[3:], prog="x").to_json()
        assert again == config.to_json() | {"roster": '{"namer_0":"random-legal"}'}
    assert command({**written, "script": "../x y"}).startswith("python '../x y.py' ")
    assert command({}) == ""


def test_the_mark_of_a_run_is_that_of_the_training() -> None:
    assert MARK == run_folder.MARK


def test_a_page_that_can_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "index.html").mkdir()
    with pytest.raises(ArenaError, match=r"can't write .*index\.html: .*; "):
        write_report(run)


@pytest.mark.parametrize(
    "seconds, shown", [(0.25, "0.25 s"), (75, "1 min 15 s"), (7260, "2 h 1 min"), (3599.9, "1 h 0 min")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
