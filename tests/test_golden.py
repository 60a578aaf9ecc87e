"""One recorded episode per env: it replays to the letter, so a change of rules is never an accident."""

from pathlib import Path

import pytest

import llm_arena
from llm_arena.errors import TraceError

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("env_id", list(llm_arena.registry))
def test_the_golden_trace_replays(env_id):
    [trace] = llm_arena.read_traces(GOLDEN / f"{env_id}.jsonl")
    assert trace.spec.id == env_id and trace.turns
    llm_arena.verify(trace)


@pytest.mark.parametrize("env_id", list(llm_arena.registry))
def test_an_altered_golden_trace_is_caught(env_id):
    [trace] = llm_arena.read_traces(GOLDEN / f"{env_id}.jsonl")
    seat = next(iter(trace.returns))
    trace.returns[seat] += 1
    with pytest.raises(TraceError, match="returns"):
        llm_arena.verify(trace)


def test_no_golden_trace_is_without_its_env():
    assert {path.stem for path in GOLDEN.glob("*-v*.jsonl")} == {
        env_id for env_id in llm_arena.registry if not env_id.startswith("test-")
    }
