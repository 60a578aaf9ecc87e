"""Models on servers in a seat: by chat as text, or token-exactly; what becomes of odd replies, faults and refusals."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import llm_arena
from faulty import PERSISTENT, check_abandoned, faulty
from llm_arena.engines.http_pool import Patience
from llm_arena.episode import sampling_seed
from llm_arena.errors import ContextOverflow, EngineError, ServerRefusal, UnknownName, UsageError
from llm_arena.harness import HarnessPlan, harness_agents, load_harness
from llm_arena.recorder import sequences
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.types import Action, Ending, EnvSpec, Trace, View
from scripted_server import ScriptedServer, Step, answers, late

KUHN = EnvSpec(id="kuhn-poker-v0", kwargs={"illegal": "random_legal"})
MODELS = answers({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192}]})
KEY = "sk-very-secret-17"


def chat(content: Any, finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, **more.pop("message", {})}
    return {"choices": [{"message": message, "finish_reason": finish, **more}]}


def view(*contents: Any, seed: int = 7) -> View:
    messages: Any = [{"role": "user", "content": content} for content in contents]
    return View(
        seat="player_0",
        role="player",
        messages=messages,
        legal_actions=None,
        grammar=None,
        facts=None,
        attempt=0,
        seed=seed,
        sample_reply=lambda rng: "pass",
    )


def asked(step: Step, what: View, patience: Patience | None = None, **settings: Any) -> tuple[Action, Any]:
    """What an agent answers, and what its server was asked."""

    async def run(runtime: Runtime) -> tuple[Action, Any]:
        async with ScriptedServer([step]) as server:
            agent = make_agent(f"openai:m@{server.url}/v1", runtime=runtime, **settings)
            assert agent.name == f"openai:m@{server.url}"
            action = await agent.act(what, [])
            assert server.seen[0].path == "/v1/chat/completions"
            return action, server.seen[0].body

    with Runtime() as runtime:
        return runtime.run(run(runtime), timeout=60)


def test_a_view_goes_out_as_messages_and_a_reply_comes_back_as_text() -> None:
    parts = [{"type": "text", "text": "your "}, {"type": "text", "text": '{"card": "<|im_end|>"}'}]
    action, body = asked(
        answers(chat("bet")), view("hello", parts), system="Be brief.", temperature=0, max_new_tokens=5
    )
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "user", "content": 'your {"card": "<|im_end|>"}'},
        ],
        "max_tokens": 5,
        "temperature": 0,
        "seed": 7,
    }
    assert (action.reply, action.reply.finish) == ("bet", "stop")
    assert action.prompt_ids is None and action.completion is None


@pytest.mark.parametrize(
    ("body", "text", "finish"),
    [
        (chat("a", "length"), "a", "length"),
        (chat("a", "content_filter"), "a", "refused"),
        (chat("a", "eos"), "a", "stop"),
        (chat("a", "stop_sequence"), "a", "stop"),
        (chat([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]), "a b", "stop"),
        (chat([], message={"refusal": "I can't."}), "", "refused"),
        (chat(None), "", "stop"),
        (chat(None, message={"refusal": "I can't."}), "", "refused"),
        (
            chat(None, "tool_calls", message={"tool_calls": [{"function": {"name": "x", "arguments": "{}"}}]}),
            "",
            "stop",
        ),
        # Five log-probabilities and no ids: nothing is made of them.
        (chat("b", logprobs={"content": [{"token": "b", "logprob": -1.0, "top_logprobs": []}] * 5}), "b", "stop"),
    ],
)
def test_what_becomes_of_a_reply(body: Any, text: str, finish: str) -> None:
    action, _ = asked(answers(body), view("hello"))
    assert (action.reply, action.reply.finish) == (text, finish)
    assert action.prompt_ids is None and action.completion is None


def test_the_length_of_the_context_is_what_the_server_counted() -> None:
    action, _ = asked(answers(chat("a") | {"usage": {"prompt_tokens": 5, "total_tokens": 9}}), view("hello"))
    assert action.reply.context_tokens == 9


@pytest.mark.parametrize(
    "usage", [[], "9", {}, *({"total_tokens": odd} for odd in ("12", 12.0, True, -12, 0, 2**70, None))]
)
def test_a_good_reply_is_not_dropped_for_a_count_that_can_not_be_read(usage: Any) -> None:
    action, _ = asked(answers(chat("a") | {"usage": usage}), view("hello"))
    assert (action.reply, action.reply.finish, action.reply.context_tokens) == ("a", "stop", None)


def test_too_long_a_chat_and_a_refused_prompt_are_no_refusals_of_the_batch() -> None:
    words = "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens."
    with pytest.raises(ContextOverflow, match="player_0.*8192"):
        asked(answers({"error": {"message": words}}, 400), view("hello"))
    words = "The response was filtered due to the prompt triggering the content management policy."
    action, _ = asked(answers({"error": {"message": words}}, 400), view("hello"))
    assert (action.reply, action.reply.finish) == ("", "refused")
    action, _ = asked(
        answers({"error": {"message": "requires moderation: Your input was flagged"}}, 403), view("hello")
    )
    assert (action.reply, action.reply.finish) == ("", "refused")
    with pytest.raises(ContextOverflow, match="5000"):
        asked(answers({"error": "inputs must be <= 4096. Given: 5000 `inputs` tokens"}, 422), view("hello"))
    words = "'max_tokens' is too large: 64. This model's maximum context length is 32 tokens"
    with pytest.raises(ServerRefusal, match="is too large: 64"):  # a setting that fits no prompt
        asked(answers({"error": {"message": words}}, 400), view("hello"))
    with pytest.raises(ServerRefusal, match="no such parameter"):
        asked(answers({"error": {"message": "no such parameter"}}, 400), view("hello"))


def test_an_episode_whose_chat_is_too_long_is_cut_off_and_not_lost() -> None:
    async def run(runtime: Runtime) -> Trace:
        full = answers({"error": {"message": "maximum context length"}}, 400)
        async with ScriptedServer([MODELS, full]) as server:
            return await llm_arena.aplay("kuhn-poker-v0", f"openai:m@{server.url}", seed=1, runtime=runtime)

    with Runtime() as runtime:
        trace = runtime.run(run(runtime), timeout=30)
    assert trace.ending is Ending.CONTEXT_OVERFLOW and trace.overflow_seat == "player_0"


@pytest.mark.parametrize("name", ["openai", "openai:m", "openai:m@", "openai:m@127.0.0.1:1", "openai:@http://a"])
def test_a_name_without_model_or_address_is_refused(name: str) -> None:
    with Runtime() as runtime, pytest.raises(UsageError, match="write openai:MODEL@URL"):
        make_agent(name, runtime=runtime)


def test_names_and_settings() -> None:
    with Runtime() as runtime:
        agent = make_agent("openai:org/m@2@http://a/v1/,https://b/api/v1", runtime=runtime)
        assert agent.name == "openai:org/m@2@http://a,https://b/api" and agent.policy is None
        for wrong, why in [
            ({"max_new_tokens": 0}, "at least 1"),
            ({"max_new_tokens": "x"}, "max_new_tokens is 'x'; give a whole number"),
            ({"max_new_tokens": 2.5}, "2.5; give a whole number"),
            ({"max_new_tokens": True}, "True; give a whole number"),
            ({"temperature": -1}, "finite"),
            ({"temperature": "1"}, "temperature is '1'; give a finite number"),
            ({"temperature": False}, "False; give a finite number"),
            ({"system": 5}, "system is 5; give text"),
            ({"tokenizer": 5}, "tokenizer is 5; give text"),
            ({"api_key_env": 5}, "api_key_env is a value of the type int that"),
            ({"top": 1}, "top"),
        ]:
            with pytest.raises(UsageError, match=why):
                make_agent("openai:m@http://a", runtime=runtime, **wrong)
        with pytest.raises(UsageError, match="no user name") as caught:
            make_agent("openai:m@http://me:hunter2@a", runtime=runtime)
        assert "hunter2" not in str(caught.value)
        assert make_agent("openai:m@http://a", runtime=runtime, api_key_env=None).name == "openai:m@http://a"


def test_a_server_that_is_not_there_is_told_soon() -> None:
    began = time.monotonic()
    with pytest.raises(EngineError, match="gave up after 3 tries.*127.0.0.1:9/.*did not answer"):
        llm_arena.play("kuhn-poker-v0", "openai:m@http://127.0.0.1:9", seed=1)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("listing", [answers("not for this key", 403), answers("no such page", 404)])
def test_one_server_of_two_may_be_away_and_models_need_not_be_listed(listing: Step, tiny_model: Path) -> None:
    async def run(runtime: Runtime) -> None:
        async with ScriptedServer([listing, answers(chat("bet"))]) as server:
            agent = make_agent(f"openai:m@http://127.0.0.1:9,{server.url}", runtime=runtime)
            await agent.prepare()
            agents = dict.fromkeys(("player_0", "player_1"), agent)
            plans = [EpisodePlan(id=f"{k}", spec=KUHN, seed=k, agents=agents) for k in range(8)]
            assert not any(trace.void for trace in await play_many(plans, runtime))

    with Runtime() as runtime:
        runtime.run(run(runtime), timeout=60)


def test_a_wrong_key_is_told_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", KEY)

    async def run(runtime: Runtime) -> None:
        async with ScriptedServer([answers({"error": {"message": f"Incorrect API key: {KEY}"}}, 401)]) as server:
            with pytest.raises(ServerRefusal, match=r"Incorrect API key: \[key\]") as caught:
                agents = f"openai:m@{server.url}"
                await llm_arena.aplay("kuhn-poker-v0", agents, seed=1, runtime=runtime, api_key_env="THEIR_KEY")
            assert [seen.path for seen in server.seen] == ["/v1/models"]
            assert server.seen[0].headers["Authorization"] == f"Bearer {KEY}"
            assert KEY not in repr(caught.value)

    with Runtime() as runtime:
        runtime.run(run(runtime), timeout=30)


def test_replies_stay_with_their_seats_whatever_their_order() -> None:
    order: list[int] = []

    async def counted(request: web.Request) -> web.StreamResponse:
        delays.append(0.1 * (4 - len(delays)))
        await asyncio.sleep(delays[-1])
        seed = (await request.json())["seed"]
        order.append(seed)
        return web.json_response(chat(f"Name {seed}"))

    delays: list[float] = []

    async def run(runtime: Runtime) -> tuple[Trace, list[int]]:
        async with ScriptedServer([counted]) as server:
            agent = make_agent(f"openai:m@{server.url}", runtime=runtime)
            spec = EnvSpec(id="naming-v0", kwargs={"namers": 4, "topic": "a coffee shop", "illegal": "random_legal"})
            seats = [f"namer_{k}" for k in range(4)]
            plan = EpisodePlan(id="e", spec=spec, seed=3, agents=dict.fromkeys(seats, agent))
            [trace] = await play_many([plan], runtime)
            return trace, [seen.body["seed"] for seen in server.seen]

    with Runtime() as runtime:
        trace, sent = runtime.run(run(runtime), timeout=60)
    assert not trace.void, trace.failure
    assert order[:4] == sent[:4][::-1]  # they were answered in another order than asked
    for turn in trace.turns:
        asked_for = sampling_seed(3, "e", turn.seat, 0, turn.attempt) % (1 << 31)
        assert turn.text == f"Name {asked_for}"


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_refusal_stops_a_batch_of_harness_runs_that_pass_over_it(goes_on: bool) -> None:
    began: list[int] = []

    async def harness(ctx: Any, sample: Any) -> float:
        began.append(ctx.seed)
        try:
            await ctx.call("a", "hello")
        except Exception:
            if goes_on:
                await ctx.call("b", "hello")
        return 1.0

    async def run(runtime: Runtime) -> None:
        async with ScriptedServer([answers("wrong key", 401)]) as bad, ScriptedServer([answers(chat("b"))]) as good:
            loaded = load_harness(harness)
            agents = harness_agents(
                {"a": f"openai:m@{bad.url}", "b": f"openai:m@{good.url}"}, runtime=runtime, settings={}
            )
            plans = [
                HarnessPlan(id=f"{k}", spec=loaded.spec({}), seed=k, agents=agents, harness=loaded) for k in range(30)
            ]
            with pytest.raises(ServerRefusal, match="wrong key"):
                await play_many(plans, runtime)
            assert len(began) <= 4 and not good.seen

    with Runtime(max_open_episodes=4) as runtime:
        runtime.run(run(runtime), timeout=30)


# ---- on a server with faults --------------------------------------------------------------------------------------


def play_by_chat(url: str, count: int, seed: int) -> list[Trace]:
    chats = importlib.import_module("llm_arena.agents.openai")
    with Runtime(max_open_episodes=64) as runtime:
        agent = chats.ChatAgent("m", url, chats.Settings(), patience=PERSISTENT)
        agents = dict.fromkeys(("player_0", "player_1"), agent)
        plans = [EpisodePlan(id=f"{k}", spec=KUHN, seed=seed + k, agents=agents) for k in range(count)]
        return runtime.run(play_many(plans, runtime), timeout=240)


def soak_faults(folder: Path, count: int, seed: int, caplog: pytest.LogCaptureFixture) -> int:
    caplog.set_level("DEBUG", "llm_arena.engines.http_pool")
    with faulty(folder, "--seed", str(seed), "--slow", "1.4") as server:
        traces = play_by_chat(server.url, count, seed)
        time.sleep(0.5)
    served = [json.loads(line) for line in server.log.read_text().splitlines()]
    whole = {entry["text"]: entry["seed"] for entry in served if entry["done"] == "whole"}
    assert not any(trace.void for trace in traces)
    assert all(turn.prompt_ids is None and not turn.logprobs for trace in traces for turn in trace.turns)
    texts = [turn.text for trace in traces for turn in trace.turns]
    # All tries of a call have one seed: each call has one turn, whose text is one whole reply to it.
    seeds = [whole[text] for text in texts]
    assert len(set(texts)) == len(texts) == len(set(seeds)) and set(seeds) == {entry["seed"] for entry in served}
    check_abandoned(served, len(texts), caplog.text)
    caplog.clear()
    assert not any(sequences(trace) for trace in traces)  # nothing to train on
    return len(served)


def test_every_recorded_turn_is_one_whole_reply_of_a_faulty_chat(
    tmp_path: Path, soak: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(soak.count):
        soak_faults(tmp_path, 30, soak.seed + number, caplog)


@pytest.mark.soak
def test_five_hundred_episodes_on_a_faulty_chat(tmp_path: Path, soak: Any, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(len(soak.runs), soak.count):
        began = time.monotonic()
        soak.add(soak_faults(tmp_path, 500, soak.seed + number, caplog), time.monotonic() - began)


# ---- token-exact --------------------------------------------------------------------------------------------------


def test_with_a_tokenizer_play_is_token_exact(
    tmp_path: Path, tiny_model: Path, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    with faulty(tmp_path, "--share", "0") as server:
        with Runtime() as runtime:
            trace = llm_arena.play(
                KUHN, f"openai:m@{server.url}", seed=5, runtime=runtime, tokenizer=str(tiny_model), max_new_tokens=4
            )
        served = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert [turn.completion_ids for turn in trace.turns] == [entry["ids"] for entry in served]
    assert [trace.full_ids(turn.index)[0] for turn in trace.turns] == [entry["prompt"] for entry in served]
    assert {info.policy for info in trace.seats.values()} == {f"openai:m@{server.url}"}
    assert sequences(trace)
    gc.collect()
    assert not [str(warning.message) for warning in recwarn if "nclosed" in str(warning.message)]
    assert "nclosed" not in caplog.text


def test_ids_that_the_tokenizer_does_not_know_are_not_recorded(tiny_model: Path) -> None:
    names = {"tokens": ["token_id:5000"] * 4, "token_logprobs": [-1.0] * 4}
    body = {"choices": [{"token_ids": [5000] * 4, "logprobs": names, "finish_reason": "length"}]}

    async def run(runtime: Runtime) -> None:
        async with ScriptedServer([MODELS, answers("", 404), answers("", 404), answers(body)]) as server:
            chats = importlib.import_module("llm_arena.agents.openai")
            settings = chats.Settings(max_new_tokens=4)
            patience = Patience(tries=2, backoff_seconds=0.001)
            agent = chats.TokenAgent("m", server.url, settings, str(tiny_model), runtime, patience=patience)
            with pytest.raises(EngineError, match="outside of the vocabulary: 5000"):
                await agent.act(view("hello"), [])

    with Runtime() as runtime:
        runtime.run(run(runtime), timeout=30)


def test_token_exact_play_needs_a_model_that_is_there(tmp_path: Path, tiny_model: Path) -> None:
    with faulty(tmp_path, "--share", "0") as server, pytest.raises(UnknownName, match="serves no model 'n'"):
        llm_arena.play(KUHN, f"openai:n@{server.url}", seed=5, tokenizer=str(tiny_model))


def play_with_a_clock(*steps: Step) -> Trace:
    async def run(runtime: Runtime) -> Trace:
        async with ScriptedServer(list(steps)) as server:
            spec = EnvSpec(id="kuhn-poker-v0", kwargs={"illegal": "random_legal", "turn_seconds": 0.3})
            agent = make_agent(f"openai:m@{server.url}", runtime=runtime)
            plan = EpisodePlan(id="e", spec=spec, seed=3, agents=dict.fromkeys(("player_0", "player_1"), agent))
            [trace] = await play_many([plan], runtime)
            return trace

    with Runtime() as runtime:
        return runtime.run(run(runtime), timeout=30)


def test_late_answers_of_a_clock_that_ran_out_are_dropped() -> None:
    trace = play_with_a_clock(late(0.8, answers(chat("bet"))), answers(chat("pass")))
    assert trace.turns[0].finish == "timeout" and trace.turns[0].text == ""
    assert [turn.text for turn in trace.turns[1:]] == ["pass"] * len(trace.turns[1:])


def test_a_clock_that_a_broken_server_used_up_is_no_loss_of_the_seat() -> None:
    trace = play_with_a_clock(answers("out of memory", 500))
    assert trace.void and trace.failure is not None
    assert trace.failure.boundary == "engine" and "out of memory" in trace.failure.message
    assert not trace.turns and not trace.returns
