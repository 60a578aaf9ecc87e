"""Episodes as text: hostile text is shown and does nothing to a terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llm_arena.report import episode_lines, visible
from llm_arena.types import Cause, EnvSpec, Message, Outcome, SeatInfo, Trace, Turn


def make_trace(text: str) -> Trace:
    seats = {f"namer_{i}": SeatInfo(role="namer", agent="llm:tiny", policy="policy") for i in range(2)}
    told: list[Message] = [{"role": "user", "content": f"Name it: {text}"}, {"role": "assistant", "content": "old"}]
    turns = [Turn(index=i, seat=seat, text=text, messages=told, completion_ids=[1, 2]) for i, seat in enumerate(seats)]
    return Trace(
        id="episode-0",
        spec=EnvSpec(id="naming-v0", kwargs={"topic": text}),
        seed=0,
        seats=seats,
        turns=turns,
        returns={"namer_0": 1.0, "namer_1": -1.0},
        outcome=Outcome(winners=["namer_0"], reason=text),
    )


def test_an_episode_as_text_shows_who_was_told_what_and_how_it_ended() -> None:
    trace = make_trace("Bean Scene")
    trace.turns[1].cause = Cause.UNPARSABLE
    trace.turns[1].attempt = 1
    text = "\n".join(episode_lines(trace))
    assert "to namer_0 (user): Name it: Bean Scene" in text
    assert "namer_1 [attempt 2, unparsable]: Bean Scene" in text
    assert "terminated won by namer_0 (Bean Scene)" in text
    assert "namer_0 +1  namer_1 -1" in text
    assert "Name it" not in "\n".join(episode_lines(trace, messages=False))


def test_no_control_character_reaches_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\u202egnp\u2028\x00\r\nsecond line\tend\ud800\U000e0041\u200b\ufeff"
    text = "\n".join(episode_lines(make_trace(hostile)))
    assert not [char for char in text if char in "\x1b\x07\x00\r\u202e\u2028\ud800\U000e0041\u200b\ufeff"]
    assert "\n    second line\tend\\ud800\\U000e0041\\u200b\\ufeff" in text


@pytest.mark.parametrize(
    "given, shown",
    [
        ("plain text, naïve 日本語 👩‍👩‍👧 ❤️", "plain text, naïve 日本語 👩‍👩‍👧 ❤️"),
        ("क्\u200dष", "क्\u200dष"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb\u2066c", "a\\u202eb\\u2066c"),
        ("a\u200bb\ufeffc\u00add", "a\\u200bb\\ufeffc\\xadd"),
        ("smuggled\U000e0041\U000e0100", "smuggled\\U000e0041\\U000e0100"),
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
