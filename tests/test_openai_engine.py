"""Tokens from servers: replies are read strictly, refusals stop a batch, and what was served is what is recorded."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from faulty import PERSISTENT, faulty
from llm_arena.engines.base import Sampling
from llm_arena.engines.choose import make_engine, words
from llm_arena.engines.http_pool import Patience
from llm_arena.engines.openai_engine import OpenAIEngine
from llm_arena.engines.settings import EngineSettings
from llm_arena.errors import ContextOverflow, EngineError, ServerRefusal, UnknownName, UsageError
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.types import EnvSpec, Trace
from scripted_server import ScriptedServer, Step, answers, late

QUICK = Patience(
    tries=3, try_seconds=1.0, backoff_seconds=0.001, backoff_cap_seconds=0.01, cool_down_seconds=0.01, failures=3
)
KUHN = EnvSpec(id="kuhn-poker-v0", kwargs={"illegal": "random_legal"})
MODELS = answers({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 64}]})
INFO = answers({"takes_weights": True, "logprobs_mode": "processed_logprobs", "dtype": "float32"})
VERSION = answers({"version": "0.32.0"})
ASKED = Sampling(max_new_tokens=4, temperature=0.7, stop_ids=(2, 9), seed=2**64 - 1)


def completion(ids: Any, logprobs: Any, finish: Any = "length", names: Any = None, **more: Any) -> dict[str, Any]:
    tokens = [f"token_id:{token}" for token in ids or []] if names is None else names
    told = {"tokens": tokens, "token_logprobs": logprobs}
    return {"choices": [{"text": "?", "token_ids": ids, "logprobs": told, "finish_reason": finish, **more}]}


GOOD = completion([5, 6, 9], [-0.5, -1.25, 0], "stop", prompt_token_ids=[1, 2])


def with_engine(
    test: Callable[[OpenAIEngine, ScriptedServer], Awaitable[Any]], *steps: Step, models: Step = MODELS
) -> None:
    async def run() -> None:
        # a server of another kind is not asked for vLLM's version
        known = [models, INFO, VERSION] if models is MODELS else [models]
        async with ScriptedServer([*known, *steps]) as server:
            engine = OpenAIEngine(server.url, patience=QUICK)
            engine.serves("p", "m")
            try:
                await test(engine, server)
            finally:
                await engine.close()
                await engine.close()

    asyncio.run(run())


def test_a_request_to_vllm_and_its_reply() -> None:
    async def test(engine: OpenAIEngine, server: ScriptedServer) -> None:
        done = await engine.generate([1, 2], ASKED, "p")
        assert (done.token_ids, done.logprobs, done.finish) == ([5, 6, 9], [-0.5, -1.25, 0.0], "stop")
        assert (done.min_version, done.max_version, done.guided) == (0, 0, False)
        paths = ["/v1/models", "/v1/llm_arena", "/version", "/v1/completions"]
        assert [seen.path for seen in server.seen] == paths
        assert server.seen[3].body == {
            "model": "m",
            "prompt": [1, 2],
            "max_tokens": 4,
            "temperature": 0.7,
            "seed": 2**63 - 1,
            "stop_token_ids": [2, 9],
            "ignore_eos": True,
            "skip_special_tokens": False,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "top_p": 1,
            "top_k": 0,
            "min_p": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
        }
        assert engine.max_context_tokens == 64
        told = {"engine": "openai", "version": "vllm 0.32.0", "urls": [server.url], "policies": ["p"]}
        assert engine.describe() == told | {"dtype": "float32"}

    with_engine(test, answers(GOOD))


def test_a_request_to_sglang_and_its_reply() -> None:
    models = answers({"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 64}]})
    meta = {"finish_reason": {"type": "stop", "matched": 9}, "output_token_logprobs": [[-0.5, 5, None], [-2, 9, "x"]]}

    async def test(engine: OpenAIEngine, server: ScriptedServer) -> None:
        done = await engine.generate([1, 2], ASKED, "p")
        assert (done.token_ids, done.logprobs, done.finish) == ([5, 9], [-0.5, -2.0], "stop")
        assert server.seen[1].path == "/generate"
        assert server.seen[1].body["input_ids"] == [1, 2] and server.seen[1].body["return_logprob"] is True
        how = server.seen[1].body["sampling_params"]
        assert how["stop_token_ids"] == [2, 9] and (how["top_k"], how["top_p"], how["repetition_penalty"]) == (-1, 1, 1)
        assert not engine.takes_grammar
        for why in (
            "2 ids with log-probabilities of 2, which are others",
            "the log-probability 0.5, and none is above",
        ):
            with pytest.raises(EngineError, match=f"gave up after 3 tries.*{why}"):
                await engine.generate([1, 2], ASKED, "p")

    whole = {"text": "?", "output_ids": [5, 9], "meta_info": meta}
    other = {"text": "?", "output_ids": [5, 8], "meta_info": meta}
    odd = {"text": "?", "meta_info": meta | {"output_token_logprobs": [[0.5, 5, None], [-2, 9, "x"]]}}
    with_engine(test, answers(whole), *[answers(other)] * 3, answers(odd), models=models)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (completion(None, [-1.0, -1.0, -1.0, -1.0, -1.0]), "0 ids with 5 log-probabilities"),
        (completion([5, 6, 7], [-1.0]), "3 ids with 1 log-prob"),
        (completion([5, 6], [-1.0, -1.0], names=["token_id:5"]), "2 ids with log-probabilities of 1 tokens"),
        (completion([5, 6], [-1.0, None]), "2 ids, and 1 finite log-probabilities"),
        (completion([5, 6], [-1.0, 0.25]), "log-probability 0.25, and none is above 0"),
        (completion([], []), "0 ids, asked for were 1 to 4"),
        (completion([5] * 5, [-1.0] * 5), "5 ids, asked for were 1 to 4"),
        (completion([5, -1], [-1.0, -1.0]), "outside of the vocabulary"),
        (completion([5, 2**31], [-1.0, -1.0]), "outside of the vocabulary"),
        (completion([5, 2**70], [-1.0, -1.0]), "outside of the vocabulary"),
        (completion([5, True], [-1.0, -1.0]), "none that is known"),
        (completion([5, 6.0], [-1.0, -1.0]), "none that is known"),
        (completion([5, "6"], [-1.0, -1.0]), "none that is known"),
        (completion([5], ["-1"]), "none that is known"),
        (completion([5, 6], [-1.0, -1.0], "stop"), "ended a completion by the id 6, which is no stop id of ours"),
        (completion([5, 2, 6, 9], [-1.0] * 4, "stop"), "sampled on after the stop id 2"),
        (completion([5, 6], [-1.0, -1.0]), "for its length at 2 of 4 ids"),
        (completion([5], [-1.0], finish="abort"), "ended a completion with 'abort'"),
        (completion([5], [-1.0], finish=None), "ended a completion with None"),
        (completion([5], [-1.0], prompt_token_ids=[1]), "read 1 other prompt ids than the 2 sent"),
        # The first of the likeliest ids in place of the one that was sampled.
        (completion([5], [-0.01], names=["token_id:8"]), "the id 5 with the log-probability of 'token_id:8'"),
        ({"choices": [GOOD["choices"][0]] * 2}, "2 choices"),
        ({"choices": []}, "0 choices"),
        ({"error": "overloaded"}, "none that is known.*it says: overloaded"),
        ({"error": {"message": "overloaded", "code": 529}}, "/v1/completions sent an error 529 as a reply: overloaded"),
        ({"choices": [], "error": {"message": "overloaded"}}, "0 choices, .*it says: overloaded"),
        ("<html>a proxy", "none that is known.*it says: <html>a proxy"),
        ([], "none that is known"),
    ],
)
def test_a_reply_that_is_no_whole_completion_is_never_mended(body: Any, why: str) -> None:
    async def test(engine: OpenAIEngine, server: ScriptedServer) -> None:
        with pytest.raises(EngineError, match=f"gave up after 3 tries.*{why}"):
            await engine.generate([1, 2], ASKED, "p")
        assert (await engine.generate([1, 2], ASKED, "p")).token_ids == [5, 6, 9]

    with_engine(test, *[answers(body)] * 3, answers(GOOD))


def test_log_probabilities_that_are_rounded_or_very_low_are_taken() -> None:
    async def test(engine: OpenAIEngine, _: ScriptedServer) -> None:
        assert (await engine.generate([1, 2], ASKED, "p")).logprobs == [-9999.0, 5e-5]

    with_engine(test, answers(completion([5, 9], [-9999.0, 5e-5], "stop")))


def test_the_sampled_ids_own_logprob_is_taken_whatever_is_likelier() -> None:
    top = [{"token_id:8": -0.01, "token_id:9": -4.5}]
    body = completion([9], [-4.5], "stop")
    body["choices"][0]["logprobs"]["top_logprobs"] = top

    async def test(engine: OpenAIEngine, _: ScriptedServer) -> None:
        assert (await engine.generate([1, 2], ASKED, "p")).logprobs == [-4.5]

    with_engine(test, answers(body))


def test_a_server_that_knows_no_ids_is_told_once() -> None:
    body = {
        "choices": [{"text": "a b", "finish_reason": "stop", "logprobs": {"tokens": ["a"], "token_logprobs": [-1]}}]
    }

    async def test(engine: OpenAIEngine, server: ScriptedServer) -> None:
        with pytest.raises(
            ServerRefusal, match="returned no ids .0 ids with 1 log-prob.*without the setting tokenizer"
        ):
            await engine.generate([1, 2], ASKED, "p")
        assert len(server.seen) == 2

    with_engine(test, answers(body), models=answers({"data": [{"id": "m", "owned_by": "somebody"}]}))


def test_grammars_go_to_vllm_and_its_refusal_is_the_grammars() -> None:
    async def test(engine: OpenAIEngine, server: ScriptedServer) -> None:
        guided = Sampling(max_new_tokens=4, stop_ids=(9,), grammar="a|b")
        assert (await engine.generate([1, 2], guided, "p")).guided
        assert server.seen[-1].body["structured_outputs"] == {"regex": "a|b"}
        guided = Sampling(max_new_tokens=4, stop_ids=(9,), grammar={"type": "object"})
        with pytest.raises(UsageError, match=r"refuses the grammar .*'object'.*: no such type"):
            await engine.generate([1, 2], guided, "p")
        assert server.seen[-1].body["structured_outputs"] == {"json": {"type": "object"}}

    with_engine(test, answers(GOOD), answers({"error": {"message": "no such type"}}, 400))


def test_requests_that_can_not_work_are_not_sent() -> None:
    async def test(engine: OpenAIEngine, server: ScriptedServer) -> None:
        await engine.prepare()
        for prompt, sampling, why in [
            ([], ASKED, "empty"),
            ([-1], ASKED, "can't be one"),
            ([1], Sampling(max_new_tokens=0), "0 tokens"),
            ([1], Sampling(max_new_tokens=1, temperature=0.001), "at least 0.01"),
            ([1] * 61, ASKED, "exceed the 64 positions"),
        ]:
            with pytest.raises(EngineError, match=why):
                await engine.generate(prompt, sampling, "p")
        with pytest.raises(UnknownName, match="no policy .q. was published to the openai engine"):
            await engine.generate([1], ASKED, "q")
        assert len(server.seen) == 3
        await engine.forget("p")
        with pytest.raises(UnknownName):
            await engine.generate([1], ASKED, "p")

    with_engine(test, answers(GOOD))


def test_a_model_that_a_server_does_not_have_is_told_before_anything_is_played() -> None:
    async def test(engine: OpenAIEngine, _: ScriptedServer) -> None:
        engine.serves("q", "n")
        with pytest.raises(UnknownName, match="serves no model 'n'.*It serves: m"):
            await engine.prepare()

    with_engine(test, answers(GOOD))


def test_ids_beyond_the_vocabulary_are_none() -> None:
    async def test(engine: OpenAIEngine, _: ScriptedServer) -> None:
        engine.serves("p", "m", vocabulary=6)
        with pytest.raises(EngineError, match="outside of the vocabulary: 5 or 9"):
            await engine.generate([1, 2], ASKED, "p")
        engine.serves("p", "m", vocabulary=10)
        assert (await engine.generate([1, 2], ASKED, "p")).token_ids == [5, 6, 9]

    with_engine(test, answers(GOOD))


def test_log_probabilities_of_another_distribution_are_refused_at_once() -> None:
    async def run() -> None:
        async with ScriptedServer([MODELS, answers({"logprobs_mode": "raw_logprobs", "dtype": "float16"})]) as server:
            engine = OpenAIEngine(server.url, patience=QUICK)
            with pytest.raises(ServerRefusal, match="returns 'raw_logprobs'.*--logprobs-mode processed_logprobs"):
                await engine.prepare()
            await engine.close()

    asyncio.run(run())


def test_a_prompt_that_is_too_long_for_the_server_stops_nobody_else() -> None:
    async def test(engine: OpenAIEngine, _: ScriptedServer) -> None:
        with pytest.raises(ContextOverflow, match="too many of them"):
            await engine.generate([1, 2], ASKED, "p")

    error = {"error": {"message": "too many of them", "code": "context_length_exceeded"}}
    with_engine(test, answers(error, 400))


def test_one_dead_server_of_two_is_left_out_and_two_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with ScriptedServer([MODELS, INFO, VERSION, answers(GOOD)]) as server:
            engine = OpenAIEngine(f"http://127.0.0.1:9,{server.url}", patience=QUICK)
            engine.serves("p", "m")
            await engine.prepare()
            assert "left out until it answers" in caplog.text
            began = time.monotonic()
            done = await asyncio.gather(*(engine.generate([1, 2], ASKED, "p") for _ in range(40)))
            assert [each.token_ids for each in done] == [[5, 6, 9]] * 40 and time.monotonic() - began < 3
            await engine.close()
        engine = OpenAIEngine("http://127.0.0.1:9,http://127.0.0.1:10", patience=QUICK)
        with pytest.raises(EngineError, match="gave up after 3 tries"):
            await engine.prepare()
        await engine.close()

    asyncio.run(run())


def test_settings_of_engines_on_servers() -> None:
    settings = EngineSettings(kind="openai", url="http://127.0.0.1:1/v1, http://127.0.0.1:2")
    assert words(settings) == "engine: http://127.0.0.1:1, http://127.0.0.1:2, over HTTP"
    engine = make_engine(settings, lockstep=None)
    assert isinstance(engine, OpenAIEngine) and engine.pool.urls == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    for wrong, why in [
        ({"kind": "openai"}, "needs engine.url"),
        ({"kind": "openai", "url": "127.0.0.1:1"}, "no server's address"),
        ({"kind": "openai", "url": "http://me:hunter2@a"}, "no user name"),
        ({"kind": "openai", "url": "http://a", "args": {"max_model_len": 4}}, "give it to the server"),
        ({"kind": "vllm", "url": "http://a"}, "engine.kind is vllm"),
        ({"url": "http://a"}, "engine.kind is transformers"),
    ]:
        with pytest.raises(UsageError, match=why) as caught:
            EngineSettings(**wrong)
        assert "hunter2" not in str(caught.value)


# ---- whole episodes -----------------------------------------------------------------------------------------------


def play_by_tokens(url: str, model: Path, count: int, seed: int) -> list[Trace]:
    with Runtime(max_open_episodes=64) as runtime:
        engine = OpenAIEngine(url, patience=PERSISTENT)
        engine.serves("m")
        runtime.serve("m", ServedPolicy(engine, "m", ChatFormat.load(model), 8192))
        agent = make_agent("llm:m", runtime=runtime, max_new_tokens=4)
        agents = dict.fromkeys(("player_0", "player_1"), agent)
        plans = [EpisodePlan(id=f"{k}", spec=KUHN, seed=seed + k, agents=agents) for k in range(count)]
        traces = runtime.run(play_many(plans, runtime), timeout=240)
        runtime.run(engine.close())
        return traces


def check_recorded(traces: list[Trace], served: list[dict[str, Any]]) -> None:
    """Each recorded turn is one whole reply, each call has one recorded turn, and no fault was scored."""
    whole = {tuple(entry["ids"]): entry for entry in served if entry["done"] == "whole"}
    taken = []
    for trace in traces:
        assert not trace.void and trace.outcome is not None, trace.failure
        for turn in trace.turns:
            entry = whole[tuple(turn.completion_ids)]
            assert turn.logprobs == pytest.approx(entry["logprobs"], abs=1e-6)
            assert trace.full_ids(turn.index)[0] == entry["prompt"]
            taken.append(entry)
    assert len({entry["number"] for entry in taken}) == len(taken)
    # All tries of a call have one seed.
    seeds = [entry["seed"] for entry in taken]
    assert len(set(seeds)) == len(seeds) and set(seeds) == {entry["seed"] for entry in served}


def soak_faults(folder: Path, model: Path, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    caplog.set_level("DEBUG", "llm_arena.engines.http_pool")
    with faulty(folder, "--seed", str(seed), "--slow", "1.4") as server:
        traces = play_by_tokens(server.url, model, count, seed)
        time.sleep(0.5)  # replies that come late come now
    served = [json.loads(line) for line in server.log.read_text().splitlines()]
    check_recorded(traces, served)
    kinds = {
        kind: sum(entry["done"] == kind for entry in served)
        for kind in ("whole", "busy", "broken", "reset", "late", "half")
    }
    assert all(kinds.values()), kinds
    return dict(kinds)


def test_every_recorded_turn_is_one_whole_reply_of_a_faulty_server(
    tmp_path: Path, tiny_model: Path, soak: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(soak.count):
        soak_faults(tmp_path, tiny_model, 30, soak.seed + number, caplog)


@pytest.mark.soak
def test_five_hundred_episodes_on_a_faulty_server(
    tmp_path: Path, tiny_model: Path, soak: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(len(soak.runs), soak.count):
        began = time.monotonic()
        counts = soak_faults(tmp_path, tiny_model, 500, soak.seed + number, caplog)
        soak.add(counts, time.monotonic() - began)


@pytest.mark.parametrize(("status", "said"), [(400, "bad request"), (401, "wrong key"), (404, "no model m")])
def test_a_refusal_stops_the_batch_at_once(
    tiny_model: Path, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-17")
    recorded: list[Trace] = []

    async def run(runtime: Runtime) -> None:
        long = answers({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192}]})
        refusal = answers({"error": {"message": f"{said} sk-very-secret-17"}}, status)
        async with ScriptedServer([long, INFO, VERSION, late(0.2, refusal)]) as server:
            engine = OpenAIEngine(server.url, patience=QUICK)
            engine.serves("m")
            runtime.serve("m", ServedPolicy(engine, "m", ChatFormat.load(tiny_model), 8192))
            agent = make_agent("llm:m", runtime=runtime, max_new_tokens=4)
            agents = dict.fromkeys(("player_0", "player_1"), agent)
            plans = [EpisodePlan(id=f"{k}", spec=KUHN, seed=k, agents=agents) for k in range(40)]
            with pytest.raises(ServerRefusal, match=f"answered {status}: {said}") as caught:
                await play_many(plans, runtime, on_trace=recorded.append)
            assert len(server.seen) <= 3 + 8
            assert all(trace.void for trace in recorded) and 1 <= len(recorded) <= 8
            failures = [trace.failure.kind for trace in recorded if trace.failure]
            assert "ServerRefusal" in failures and set(failures) <= {"ServerRefusal", "CancelledError"}
            assert "very-secret" not in f"{caught.value!r} {recorded!r} {agent.name} {engine!r} {engine.describe()}"
            await engine.close()

    with Runtime(max_open_episodes=8) as runtime:
        runtime.run(run(runtime), timeout=60)


def test_a_server_that_is_killed_in_mid_run_costs_no_episode(tmp_path: Path, tiny_model: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with faulty(folders[0], "--share", "0") as stays, faulty(folders[1], "--share", "0", "--first", "100000") as goes:

        def kill_when_busy() -> None:
            while len(goes.log.read_text().splitlines()) < 20:
                time.sleep(0.005)
            goes.child.kill()

        killer = threading.Thread(target=kill_when_busy)
        killer.start()
        traces = play_by_tokens(f"{stays.url},{goes.url}", tiny_model, 200, 7)
        killer.join()
    served = [json.loads(line) for folder in folders for line in (folder / "served.jsonl").read_text().splitlines()]
    assert 20 <= sum(entry["number"] >= 100000 for entry in served) < sum(len(trace.turns) for trace in traces) / 2
    check_recorded(traces, served)


def test_what_a_turn_costs_over_http_is_measured_in_whole_games(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path(__file__).parents[1] / "benchmarks" / "rollout_overhead.py"
    spec = importlib.util.spec_from_file_location("rollout_overhead_http", program)
    assert spec is not None and spec.loader is not None
    overhead = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, overhead)  # dataclasses look their module up
    spec.loader.exec_module(overhead)
    found = overhead.over_http(overhead.Settings(model=str(tiny_model), games=2, null_games=3, max_new_tokens=4))
    assert found["turns"] >= 3 and found["http_cpu_ms_per_turn"] > 0 and found["bare_client_cpu_ms_per_turn"] > 0
