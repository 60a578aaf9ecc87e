import asyncio
import importlib

import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.errors import ContextOverflow, EngineError, ModelError, UsageError
from llm_arena.runtime import Runtime
from llm_arena.types import Ending, PastTurn, Reply, View

llm = importlib.import_module("llm_arena.agents.llm")


def view_of(messages, *, seed=5, epoch=0):
    return View(
        seat="player_0",
        role="player",
        messages=[{"role": role, "content": content} for role, content in messages],
        legal_actions=None,
        grammar=None,
        facts=None,
        attempt=0,
        seed=seed,
        sample_reply=lambda rng: "x",
        view_epoch=epoch,
    )


def past_of(view, action, index=0):
    return PastTurn(
        index=index,
        num_messages=len(view.messages),
        view_epoch=view.view_epoch,
        reply=action.reply,
        prompt_ids=action.prompt_ids,
        completion=action.completion,
    )


def scripted(chat, engine_of, *texts, **settings):
    """An agent whose model says `texts`, each followed by the end token unless it ends with `...`."""
    lines = []
    for text in texts:
        ids = chat.tokenizer.encode(text.removesuffix("..."), add_special_tokens=False)
        lines.append(ids if text.endswith("...") else [*ids, chat.stop_ids[0]])
    engine = engine_of(lines)
    return llm.LLMAgent(engine, "p", chat, llm.Settings(**settings)), engine


def text_of(chat, ids):
    return chat.tokenizer.decode(ids, skip_special_tokens=False)


def test_reply_prompt_and_sampling(toy_chat, fake_engine):
    chat = toy_chat()
    agent, engine = scripted(chat, fake_engine, "bet", max_new_tokens=9, temperature=0.5, stop_ids=(7, 7))
    action = asyncio.run(agent.act(view_of([("system", "rules"), ("user", "go")], seed=77), []))
    assert (action.reply, action.reply.finish) == ("bet", "stop")
    assert action.prompt_ids == chat.render(view_of([("system", "rules"), ("user", "go")]).messages)
    assert action.completion.token_ids[-1] == chat.stop_ids[0], "the stop id is kept in the ids, not in the text"
    [(policy, prompt, sampling)] = engine.calls
    assert (policy, prompt) == ("p", action.prompt_ids)
    assert (sampling.max_new_tokens, sampling.temperature, sampling.seed) == (9, 0.5, 77)
    assert sampling.stop_ids == (*chat.stop_ids, 7)
    assert (agent.name, agent.policy) == ("llm:p", "p")


def test_reply_that_was_cut_and_reply_that_is_empty(toy_chat, fake_engine):
    chat = toy_chat()
    agent, _ = scripted(chat, fake_engine, "be...", "", "...")
    cut, empty, nothing = (asyncio.run(agent.act(view_of([("user", "go")]), [])) for _ in range(3))
    assert (cut.reply, cut.reply.finish) == ("be", "length")
    assert (empty.reply, empty.reply.finish, len(empty.completion.token_ids)) == ("", "stop", 1)
    assert (nothing.reply, nothing.completion.token_ids, nothing.completion.logprobs) == ("", [], [])


def test_control_ids_in_the_middle_do_not_reach_the_text(toy_chat, fake_engine):
    chat = toy_chat()
    start, win = chat.tokenizer.convert_tokens_to_ids(["<|im_start|>", "win"])
    agent = llm.LLMAgent(fake_engine([[win, start, win]]), "p", chat)
    action = asyncio.run(agent.act(view_of([("user", "go")]), []))
    assert action.reply == "winwin"
    assert action.completion.token_ids == [win, start, win]


@pytest.mark.parametrize("first", ["check", "che..."])
def test_next_prompt_extends_the_last_call(toy_chat, fake_engine, first):
    chat = toy_chat()
    agent, _ = scripted(chat, fake_engine, first, "call")
    one = view_of([("user", "go")])
    action = asyncio.run(agent.act(one, []))
    two = view_of([("user", "go"), ("assistant", str(action.reply)), ("user", "raised"), ("user", "you?")])
    later = asyncio.run(agent.act(two, [past_of(one, action)]))
    sent = action.prompt_ids + action.completion.token_ids
    assert later.prompt_ids[: len(sent)] == sent
    assert later.prompt_ids == chat.render(two.messages)


def test_own_system_text_goes_first_and_extends(toy_chat, fake_engine):
    chat = toy_chat()
    for game in ([("system", "rules"), ("user", "go")], [("user", "go")]):
        agent, _ = scripted(chat, fake_engine, "a", "b", system="Be bold.")
        one = view_of(game)
        action = asyncio.run(agent.act(one, []))
        head = "Be bold.\n\nrules" if game[0][0] == "system" else "Be bold."
        assert text_of(chat, action.prompt_ids).startswith(f"<|im_start|>system\n{head}<|im_end|>\n<|im_start|>user")
        two = view_of([*game, ("assistant", "a"), ("user", "more")])
        later = asyncio.run(agent.act(two, [past_of(one, action)]))
        sent = action.prompt_ids + action.completion.token_ids
        assert later.prompt_ids[: len(sent)] == sent
        assert text_of(chat, later.prompt_ids).count("Be bold.") == 1


@pytest.mark.parametrize("change", ["replaced", "edited", "no reply", "past without tokens"])
def test_view_that_is_no_continuation_is_rendered_afresh(toy_chat, fake_engine, change):
    chat = toy_chat()
    win, ner = chat.tokenizer.convert_tokens_to_ids(["win", "ner"])
    agent = llm.LLMAgent(fake_engine([[win, ner, chat.stop_ids[0]], [win]]), "p", chat)
    one = view_of([("user", "go")])
    action = asyncio.run(agent.act(one, []))
    past = past_of(one, action)
    two = view_of([("user", "go"), ("assistant", "winner"), ("user", "more")])
    if change == "replaced":
        two = view_of([("user", "short"), ("assistant", "winner"), ("user", "more")], epoch=1)
    elif change == "edited":
        two = view_of([("user", "go"), ("assistant", "winner!"), ("user", "more")])
    elif change == "no reply":
        two = view_of([("user", "go"), ("user", "you were too late")])
    else:
        past = PastTurn(index=0, num_messages=1, view_epoch=0, reply=Reply("winner"), prompt_ids=None, completion=None)
    later = asyncio.run(agent.act(two, [past]))
    assert later.prompt_ids == chat.render(two.messages), "`winner` is one token in a fresh render"


def test_context_overflow(toy_chat, fake_engine):
    chat = toy_chat()
    length = len(chat.render([{"role": "user", "content": "go"}]))
    for room, fits in ((length + 8, True), (length + 7, False)):
        agent, engine = scripted(chat, fake_engine, "a", max_new_tokens=8, max_context_tokens=room)
        if fits:
            asyncio.run(agent.act(view_of([("user", "go")]), []))
        else:
            with pytest.raises(ContextOverflow, match=f"player_0: {length} prompt tokens and 8 new ones"):
                asyncio.run(agent.act(view_of([("user", "go")]), []))
        assert len(engine.calls) == fits


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"max_new_tokens": 10, "max_context_tokens": 10}, "max_context_tokens"),
    ],
)
def test_bad_settings(settings, named):
    with pytest.raises(UsageError, match=named), Runtime() as runtime:
        llm_arena.make_agent("llm:smollm2-135m", runtime=runtime, **settings)


def test_agent_without_a_model_or_with_an_unknown_setting():
    with Runtime() as runtime:
        with pytest.raises(UsageError, match="needs a model"):
            llm_arena.make_agent("llm", runtime=runtime)
        with pytest.raises(UsageError, match=r"no setting 'temperatur'.*temperature"):
            llm_arena.make_agent("llm:smollm2-135m", runtime=runtime, temperatur=1.0)


@pytest.mark.parametrize("env", ["kuhn-poker-v0", "tic-tac-toe-v0", "naming-v0"])
def test_plays_every_game_with_the_tiny_model(tiny_model, env):
    with Runtime() as runtime:
        traces = [
            llm_arena.play(env, agents=f"llm:{tiny_model}", seed=3, runtime=runtime, max_new_tokens=6) for _ in range(2)
        ]
    for trace in traces:
        assert trace.ending in (Ending.TERMINATED, Ending.TRUNCATED)
        assert all(turn.completion_ids for turn in trace.turns)
        assert all(len(turn.logprobs) == len(turn.completion_ids) <= 6 for turn in trace.turns)
        assert {seat.policy for seat in trace.seats.values()} == {str(tiny_model)}
    assert [t.completion_ids for t in traces[0].turns] == [t.completion_ids for t in traces[1].turns]
    assert [t.logprobs for t in traces[0].turns] == [t.logprobs for t in traces[1].turns]


def test_context_of_the_model_is_the_default_limit(tmp_path):
    from llm_arena.models import random_model

    short = random_model(tmp_path / "short", words=["a"], max_positions=40)
    with Runtime(engine=FakeEngine()) as runtime:
        trace = llm_arena.play("kuhn-poker-v0", agents=f"llm:{short}", seed=0, runtime=runtime, max_new_tokens=8)
    assert trace.ending is Ending.CONTEXT_OVERFLOW
    assert trace.overflow_seat == "player_0"


def test_model_without_a_chat_template_is_named(tmp_path, tiny_model):
    import json
    import shutil

    bare = tmp_path / "bare"
    shutil.copytree(tiny_model, bare)
    (bare / "chat_template.jinja").unlink()
    assert "chat_template" not in json.loads((bare / "tokenizer_config.json").read_text())
    with Runtime() as runtime, pytest.raises(ModelError, match="bare has no chat template"):
        llm_arena.play("kuhn-poker-v0", agents=f"llm:{bare}", seed=0, runtime=runtime)


def test_engine_failure_voids_the_episode_and_not_the_runtime(tiny_model):
    def script(prompt, sampling):
        if failing[0]:
            raise EngineError("out of order")
        return [4]

    failing = [True]
    with Runtime(engine=FakeEngine(script)) as runtime:
        with pytest.raises(EngineError, match="out of order"):
            llm_arena.play("kuhn-poker-v0", agents=f"llm:{tiny_model}", seed=0, runtime=runtime)
        failing[0] = False
        assert llm_arena.play("kuhn-poker-v0", agents=f"llm:{tiny_model}", seed=0, runtime=runtime).turns


def test_seed_decides_the_replies(tiny_model):
    def play(seed):
        with Runtime(engine=FakeEngine()) as runtime:
            trace = llm_arena.play("kuhn-poker-v0", agents=f"llm:{tiny_model}", seed=seed, runtime=runtime)
        return [turn.completion_ids for turn in trace.turns]

    assert play(1) == play(1)
    assert len({str(play(seed)) for seed in range(4)}) == 4
