from __future__ import annotations

import asyncio
import gc
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.errors import ModelError, UnknownName, UsageError
from llm_arena.lockstep import Lockstep
from llm_arena.runtime import Runtime
from llm_arena.trace_file import read_traces

PROGRAMS = Path(__file__).parent / "programs"


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("llm_arena")]


async def answer(value):
    await asyncio.sleep(0)
    return value


def test_run_returns_the_result_and_raises_the_error_of_the_coroutine():
    async def fails():
        raise KeyError("x")

    with Runtime() as runtime:
        assert runtime.run(answer(3)) == 3
        with pytest.raises(KeyError):
            runtime.run(fails())
        assert runtime.run(answer(4)) == 4


def test_closing_ends_the_thread_and_closing_twice_is_fine():
    before = ours()
    runtime = Runtime()
    assert len(ours()) == len(before) + 1
    assert not runtime.closed
    runtime.close()
    runtime.close()
    assert runtime.closed
    assert ours() == before


def test_a_closed_runtime_says_so():
    runtime = Runtime()
    runtime.close()
    with pytest.raises(UsageError, match="closed; make a new one"):
        runtime.run(answer(1))
    with pytest.raises(UsageError, match="closed"):
        asyncio.run(runtime.arun(answer(1)))


def test_a_forgotten_runtime_is_closed_when_it_is_garbage():
    before = ours()
    engine = FakeEngine()
    runtime = Runtime(engine=engine)
    runtime.run(answer(1))
    del runtime
    gc.collect()
    assert ours() == before
    assert engine._closed


def test_closing_cancels_what_runs_and_closes_the_engine():
    ended = []

    async def waits():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    engine = FakeEngine()
    runtime = Runtime(engine=engine)

    def call():
        with pytest.raises(asyncio.CancelledError):
            runtime.run(waits())
        ended.append("caller")

    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.05)
    runtime.close()
    caller.join(5)
    assert sorted(map(str, ended)) == ["True", "caller"]
    assert engine._closed


def test_an_error_while_closing_the_engine_is_raised_and_leaves_no_thread():
    class Bad(FakeEngine):
        async def close(self):
            raise RuntimeError("no close")

    before = ours()
    runtime = Runtime(engine=Bad())
    with pytest.raises(RuntimeError, match="no close"):
        runtime.close()
    runtime.close()
    assert ours() == before


def test_a_timeout_cancels_the_coroutine_and_waits_for_its_end():
    ended = []

    async def tidies():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            ended.append(True)
            raise

    with Runtime() as runtime:
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            runtime.run(tidies(), timeout=0.1)
        assert ended == [True]


def test_a_timeout_raised_by_the_coroutine_is_its_own():
    async def fails():
        raise TimeoutError("mine")

    with Runtime() as runtime, pytest.raises(TimeoutError, match="mine"):
        runtime.run(fails(), timeout=5)


def test_run_on_its_own_loop_is_an_error_and_not_a_deadlock():
    with Runtime() as runtime:

        async def nested():
            runtime.run(answer(1))

        with pytest.raises(UsageError, match="use `await`"):
            runtime.run(nested())


def test_it_works_inside_a_running_loop():
    async def notebook():
        with Runtime() as runtime:
            return runtime.run(answer(1)) + await runtime.arun(answer(2))

    assert asyncio.run(notebook()) == 3


def test_arun_on_the_runtimes_own_loop_awaits():
    with Runtime() as runtime:
        assert runtime.run(runtime.arun(answer(5))) == 5


def test_cancelling_arun_cancels_the_coroutine_and_waits_for_its_end():
    ended = []

    async def tidies():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            ended.append(True)
            raise

    async def main(runtime):
        task = asyncio.create_task(runtime.arun(tidies()))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [True]

    with Runtime() as runtime:
        asyncio.run(main(runtime))


def test_a_task_that_exits_the_process_does_not_stop_the_loop():
    async def leaves():
        raise SystemExit(3)

    with Runtime() as runtime:
        with pytest.raises(SystemExit):
            runtime.run(leaves())
        assert runtime.run(answer(1)) == 1


def test_call_keeps_the_loop_live_and_carries_errors():
    def slow():
        time.sleep(0.2)
        return 7

    def fails():
        raise KeyError("x")

    async def both(runtime):
        call = asyncio.create_task(runtime.call(slow))
        ticks = 0
        while not call.done():
            await asyncio.sleep(0.01)
            ticks += 1
        with pytest.raises(KeyError):
            await runtime.call(fails)
        return await call, ticks

    with Runtime() as runtime:
        result, ticks = runtime.run(both(runtime))
    assert result == 7
    assert ticks >= 5


def test_a_call_may_be_given_up():
    release = threading.Event()

    async def main(runtime):
        async with asyncio.timeout(0.05):
            await runtime.call(release.wait)

    with Runtime() as runtime:
        with pytest.raises(TimeoutError):
            runtime.run(main(runtime))
        release.set()
        assert runtime.run(answer(1)) == 1


def test_slots_bound_and_admit_in_order():
    order, open_now, most = [], 0, 0

    async def episode(runtime, number):
        nonlocal open_now, most
        async with runtime.slot():
            order.append(number)
            open_now += 1
            most = max(most, open_now)
            await asyncio.sleep(0.01)
            open_now -= 1

    async def main(runtime):
        await asyncio.gather(*(episode(runtime, number) for number in range(7)))

    with Runtime(max_open_episodes=3) as runtime:
        runtime.run(main(runtime))
        assert runtime.lockstep.active == 0
    assert order == list(range(7))
    assert most == 3
    with pytest.raises(UsageError, match="max_open_episodes=0"):
        Runtime(max_open_episodes=0)


def test_the_lockstep_is_the_engines_own_a_given_one_or_none():
    own, given = Lockstep(), Lockstep()
    engine = FakeEngine()
    engine.lockstep = own
    with Runtime(engine=engine) as runtime:
        assert runtime.lockstep is own
    with Runtime(lockstep=given) as runtime:
        assert runtime.lockstep is given
    with Runtime(lockstep=False) as runtime:
        assert runtime.lockstep is None


def test_a_model_is_loaded_once_for_many_who_ask(tiny_model):
    class Counting(FakeEngine):
        published = 0

        async def publish(self, policy, directory, version):
            self.published += 1
            await super().publish(policy, directory, version)

    async def ask(runtime):
        return await asyncio.gather(*(runtime.policy(str(tiny_model)) for _ in range(3)))

    engine = Counting()
    with Runtime(engine=engine) as runtime:
        served = runtime.run(ask(runtime))
        assert served[0] is served[2]
        assert engine.published == 1
        assert served[0].engine is engine
        assert served[0].policy_id == str(tiny_model)
        config = json.loads((tiny_model / "config.json").read_text())
        assert served[0].max_context_tokens == config["max_position_embeddings"]


TWO_MODELS = """
import asyncio, sys
from llm_arena.runtime import Runtime
async def both(runtime):
    return await asyncio.gather(*(runtime.policy(folder) for folder in sys.argv[1:]))
with Runtime() as runtime:
    print(len(runtime.run(both(runtime))))
"""


TWO_THREADS = """
import sys, threading
from llm_arena import play
played = []
def one(folder):
    played.append(play("kuhn-poker-v0", agents=f"llm:{folder}", max_new_tokens=2, seed=0))
threads = [threading.Thread(target=one, args=[folder]) for folder in sys.argv[1:]]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(played))
"""


def test_two_threads_may_be_the_first_to_need_transformers(tiny_model):
    command = [sys.executable, "-c", TWO_THREADS, str(tiny_model), str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_two_models_may_be_the_first_to_need_transformers(tiny_model, tmp_path):
    # from two threads at once, `from transformers import ...` can fail
    folders = [str(tiny_model), str(shutil.copytree(tiny_model, tmp_path / "other"))]
    done = subprocess.run([sys.executable, "-c", TWO_MODELS, *folders], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_an_unknown_model_is_an_error_each_time_and_the_next_one_loads(tiny_model):
    with Runtime(engine=FakeEngine()) as runtime:
        for _ in range(2):
            with pytest.raises((UnknownName, ModelError), match="smollm2-135m"):
                runtime.run(runtime.policy("smollm2-135n"))
        assert runtime.run(runtime.policy(str(tiny_model))).policy_id == str(tiny_model)


FORGOTTEN = """
import sys
from llm_arena.runtime import Runtime
runtime = Runtime()
runtime.run(runtime.policy(sys.argv[1]))
"""


def test_a_runtime_that_nobody_closes_ends_with_the_program_without_a_word(tiny_model):
    done = subprocess.run(
        [sys.executable, "-c", FORGOTTEN, str(tiny_model)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def interrupted(tmp_path, *, signals=1) -> tuple[subprocess.Popen, list, str, float]:
    path = tmp_path / "t.jsonl"
    program = subprocess.Popen(
        [sys.executable, PROGRAMS / "play_slowly.py", path, str(signals)], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    for _ in range(6):
        assert program.stdout.readline().startswith("finished")
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    if signals == 2:  # two signals at once would count as one
        assert any(line == "interrupted\n" for line in program.stdout)
        time.sleep(0.2)
        program.send_signal(signal.SIGINT)
    output, _ = program.communicate(timeout=20)
    return program, list(read_traces(path)), output, time.monotonic() - began


def test_ctrl_c_keeps_what_is_finished_and_leaves_nothing_running(tmp_path):
    program, traces, output, seconds = interrupted(tmp_path)
    assert program.returncode == 130
    assert seconds < 10
    finished = [trace for trace in traces if not trace.void]
    assert len(finished) >= 6
    aborted = [trace for trace in traces if trace.void]
    assert 1 <= len(aborted) <= 4  # those that were open, max_open_episodes
    assert {trace.failure.message for trace in aborted} == {"cancelled"}
    assert "threads: ['MainThread']" in output
    assert len(traces) == len({trace.id for trace in traces}) < 1000
    for trace in finished:
        llm_arena.verify(trace)


def test_a_second_ctrl_c_does_not_wait(tmp_path):
    program, _, _, seconds = interrupted(tmp_path, signals=2)
    assert program.returncode == 130
    assert seconds < 5
