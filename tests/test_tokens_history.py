"""How a conversation goes on: `history`, thinking, and the ends of replies."""

from __future__ import annotations

import asyncio
import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from llm_arena.engines.fake import FakeEngine
from llm_arena.errors import EngineError, ModelError, UsageError
from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.recorder import sequences
from llm_arena.runtime import Runtime
from llm_arena.tokens import ChatFormat
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.planning import Planner
from llm_arena.training.sources import DealtSource
from llm_arena.types import Action, Completion, Message, Reply
from talk_parts import check_every_sampled_id_is_trained_once, converse, ids_of, make_talk, text_of, trained, views_of
from template_parts import Kind, chatml, real_chat, small_tokenizer, template
from tool_parts import HERMES, HERMES_TAGS, MISTRAL, Lookup, chat_with

llm = importlib.import_module("llm_arena.agents.llm")
THREE = [[("user", f"q{number}")] for number in range(3)]
THOUGHTS = [f"<think>t{word}</think>{word}" for word in ("ALPHA", "BRAVO", "CHARLIE")]
SAID_TWICE = "{% for m in messages %}<|im_start|>{{ m.content }}{{ m.content }}<|im_end|>{% endfor %}"


@pytest.fixture(scope="module", autouse=True)
def lookup() -> None:
    llm_arena.register(Lookup.id, Lookup)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def of(*ids: int, finish: Any = "length") -> Completion:
    return Completion(token_ids=list(ids), logprobs=[-1.0] * len(ids), finish=finish)


# ---- append --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["think", "think_prompt", "newline", "trimming", "strict"])
@pytest.mark.parametrize("think_tokens", [False, True])
def test_append_keeps_all_that_was_sampled(toy_chat: Callable[..., ChatFormat], style: str, think_tokens: bool) -> None:
    chat = toy_chat(style, think_tokens=think_tokens)
    trace, sent = converse(chat, THREE, THOUGHTS, history="append")
    [whole] = check_every_sampled_id_is_trained_once(trace, sent)
    text = text_of(chat, whole.token_ids)
    for word in ("ALPHA", "BRAVO", "CHARLIE"):
        assert text.count(f"<think>t{word}</think>{word}") == 1 and text.count(word) == 2
    assert text_of(chat, trained(whole)) == "".join(f"{thought}<|im_end|>" for thought in THOUGHTS)
    default, _ = converse(chat, THREE, THOUGHTS)
    assert len(sequences(default)) == (3 if style in ("think", "think_prompt") else 1)


def test_append_begins_anew_where_the_game_replaces_the_view(toy_chat: Callable[..., ChatFormat]) -> None:
    chat = toy_chat("think")
    script = [THREE[0], THREE[1], [("view", ""), ("assistant", "I said little"), ("user", "so far")], THREE[2]]
    trace, sent = converse(chat, script, [*THOUGHTS, "END"], history="append")
    assert [sequence.turns for sequence in check_every_sampled_id_is_trained_once(trace, sent)] == [[0, 1], [2, 3]]
    assert sent[2][0] == chat.render(views_of(trace)[2])


@pytest.mark.parametrize("history", ["template", "append"])
def test_a_replaced_view_that_looks_like_the_old_one_is_rendered(
    toy_chat: Callable[..., ChatFormat], history: str
) -> None:
    chat = toy_chat("newline")
    view = [("view", ""), ("user", "q0"), ("assistant", "other"), ("user", "q1"), ("assistant", "b"), ("user", "q2")]
    trace, sent = converse(chat, [THREE[0], THREE[1], view], ["a", "b", "c"], history=history)
    assert [sequence.turns for sequence in check_every_sampled_id_is_trained_once(trace, sent)] == [[0, 1], [2]]
    assert sent[2][0] == chat.render(views_of(trace)[2])


def test_append_goes_on_in_a_replaced_view_that_opens_with_own_words() -> None:
    # The prompt ends in what the history does not hold: the closed thought of a model that may not think.
    chat = real_chat("qwen3 no thinking")
    script = [THREE[0], [("view", ""), ("user", "go"), ("assistant", "I said little"), ("user", "so far")], THREE[1]]
    trace, sent = converse(chat, script, ["a", "b", "c"], history="append")
    assert [sequence.turns for sequence in check_every_sampled_id_is_trained_once(trace, sent)] == [[0], [1, 2]]


@pytest.mark.parametrize("style", ["hermes", "qwen3 no thinking"])
def test_other_tools_begin_a_sequence_that_then_goes_on(toy_chat: Callable[..., ChatFormat], style: str) -> None:
    chat = chat_with(toy_chat("newline"), HERMES, HERMES_TAGS) if style == "hermes" else real_chat(style)
    call = '<tool_call>\n{"name": "open", "arguments": {"id": "d7"}}\n</tool_call>'
    lines = [ids_of(chat, text, chat.stop_ids[0]) for text in (call, "hm", "hm", "ANSWER: Ada")]
    engine = FakeEngine(lines, policies=["p"])
    agent = llm.LLMAgent(engine, "p", chat, llm.Settings(max_new_tokens=400, history="append"))
    with Runtime(engine=engine) as runtime:
        trace = llm_arena.play(
            llm_arena.make(Lookup.id, withdraw=True, retries=3), agents=agent, seed=0, runtime=runtime
        )
    assert [sequence.turns for sequence in sequences(trace)] == [[0], [1, 2, 3]]


def test_append_is_refused_where_a_reply_can_t_be_told_from_the_rest(toy_chat: Callable[..., ChatFormat]) -> None:
    chat = toy_chat(SAID_TWICE)
    with pytest.raises(ModelError, match="history=append: .*; or use history=template"):
        converse(chat, THREE, ["a"], history="append")
    trace, _ = converse(chat, THREE, ["a", "b", "c"])
    assert len(sequences(trace)) == 3, "nothing goes on there, but all can be played"


def test_append_is_refused_where_a_result_needs_a_call_before_it(
    toy_chat: Callable[..., ChatFormat], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_with(toy_chat("newline"), MISTRAL)
    monkeypatch.setattr(chat, "has_tools", True)
    past, news = [user("go")], [Message(role="tool", content="news")]
    with pytest.raises(ModelError, match="a result without a call.*history=template"):
        chat.append(past, chat.render(past), of(1), news, [])
    assert chat.append(past, chat.render(past), of(1), [user("so")])


def test_system_text_that_the_template_puts_in_front_is_told_as_a_user_s() -> None:
    chat = real_chat("deepseek v3")
    past, news = [user("go")], [Message(role="system", content="RULES"), user("so")]
    assert chat.extend(past, chat.render(past), of(1), news) is None
    ids = chat.append(past, chat.render(past), of(1), news)
    assert "RULES\n\nso" in text_of(chat, ids[len(chat.render(past)) :])


def test_nothing_told_after_the_reply(toy_chat: Callable[..., ChatFormat]) -> None:
    chat = toy_chat("newline")
    past = [user("go")]
    ids = chat.append(past, chat.render(past), of(*chat.tokenizer.encode("a")), [])
    assert text_of(chat, ids).endswith("<|im_start|>assistant\na<|im_end|>\n<|im_start|>assistant\n")


def test_history_has_two_values_and_reaches_the_seats_of_a_run() -> None:
    with pytest.raises(UsageError, match="history is 'never'; give one of template, append"):
        llm.Settings(history="never")
    with pytest.raises(UsageError, match="history must be one of template, append"):
        TrainConfig(history="never")  # type: ignore[arg-type]  # that is the point
    config = TrainConfig(env="kuhn-poker-v0", history="append", thinking=False)
    with Runtime(engine=FakeEngine(policies=["learner"])) as runtime:
        planner = Planner(config, None, DealtSource(per_batch=config.starts_per_step), runtime)
        agents = planner.plans(0)[0].agents
    assert {(agent.settings.history, agent.settings.thinking) for agent in agents.values()} == {("append", False)}


def test_the_command_of_the_page_is_one() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "tokens.md").read_text(encoding="utf-8")
    [command] = [line.split() for line in page.splitlines() if line.startswith("llm-arena train self-play ")]
    config = parse(TrainConfig, command[3:], prog="")
    assert (config.history, config.thinking, config.model) == ("append", True, "Qwen/Qwen3-0.6B")


# ---- thinking on and off -------------------------------------------------------------------------------------


def test_thinking_is_switched_in_the_template() -> None:
    chat = real_chat("qwen3")
    on, off = chat.with_thinking(True), chat.with_thinking(False)
    assert chat.render([user("a")]) == on.render([user("a")])
    assert off.render([user("a")]) == on.render([user("a")]) + off.tokenizer.encode("<think>\n\n</think>\n\n")
    assert chat.with_thinking(False) is off and off.with_thinking(None) is chat and chat.with_thinking(None) is chat
    trace, sent = converse(chat, THREE, ["a", "b", "c"], thinking=False)
    assert len(check_every_sampled_id_is_trained_once(trace, sent)) == 3, "the history has no empty thoughts"
    trace, sent = converse(chat, THREE, ["a", "b", "c"], thinking=False, history="append")
    [whole] = check_every_sampled_id_is_trained_once(trace, sent)
    assert text_of(chat, trained(whole)) == "a<|im_end|>b<|im_end|>c<|im_end|>", "what closes the thought was sent"


def test_a_template_without_the_switch(toy_chat: Callable[..., ChatFormat]) -> None:
    with pytest.raises(ModelError, match="thinking=True: .* can't switch it"):
        toy_chat("newline").with_thinking(True)
    with pytest.raises(ModelError, match="thinking=False: .* can't switch it"):
        toy_chat("think_prompt").with_thinking(False)
    chat = toy_chat("newline")
    assert chat.with_thinking(False).render([user("a")]) == chat.render([user("a")]), "it doesn't think anyway"


@pytest.mark.parametrize("name", ["deepseek v3", "qwen3.5"])
def test_a_thought_that_the_prompt_opened(name: str) -> None:
    # PrimeIntellect-ai/renderers issue #137: cut within it, the thought was taken for the answer
    chat = real_chat(name)
    replies = ["I bet or fold, maybe bet...", "I pass\n</think>\n\nbet", "", "well"]
    trace, sent = converse(chat, THREE, replies)
    cut, whole, empty, last = (turn.text for turn in trace.turns)
    assert (cut, last) == ("<think>\nI bet or fold, maybe bet", "<think>\nwell")
    assert (strip_thinking(whole).strip(), empty) == ("bet", "")
    with pytest.raises(IllegalReply, match="Close your thoughts"):
        strip_thinking(cut)
    found = check_every_sampled_id_is_trained_once(trace, sent)
    [tag] = chat.tokenizer.convert_tokens_to_ids(["<think>"])
    for sequence in found:
        places = [place for place, token in enumerate(sequence.token_ids) if token == tag]
        assert places and not any(sequence.mask[place] for place in places), "it was sent, not sampled"


def test_only_the_template_opens_a_thought() -> None:
    chat = real_chat("qwen3")
    ids = chat.render([user("say <think>")])
    assert chat.read(ids, chat.tokenizer.encode("bet")) == "bet"
    assert chat.read([], chat.tokenizer.encode("bet")) == "bet"


@pytest.mark.parametrize("history", ["template", "append"])
def test_a_thought_that_was_sampled_and_never_closed(history: str) -> None:
    chat = real_chat("qwen3")
    trace, sent = converse(chat, THREE, ["<think>\nI bet...", "<think>\nso", "bet"], history=history)
    with pytest.raises(IllegalReply):
        strip_thinking(trace.turns[0].text)
    [whole] = check_every_sampled_id_is_trained_once(trace, sent)
    assert text_of(chat, trained(whole)) == "<think>\nI bet<think>\nso<|im_end|>bet<|im_end|>"
    text = text_of(chat, whole.token_ids)
    assert text.count("<think>\nI bet<|im_end|>\n") == 1, "the template ends the turn, and does not close the thought"


# ---- the end of a reply --------------------------------------------------------------------------------------


@pytest.mark.parametrize("history", ["template", "append"])
@pytest.mark.parametrize(("name", "other"), [("qwen3", "<|endoftext|>"), ("llama3.1", "<|eom_id|>")])
def test_another_stop_id_ends_the_turn_as_well(name: str, other: str, history: str) -> None:
    base = real_chat(name)
    [stop] = base.tokenizer.convert_tokens_to_ids([other])
    chat = ChatFormat(base.tokenizer, stop_ids=[stop])
    trace, sent = converse(
        chat, THREE[:2], [[*base.tokenizer.encode("a", add_special_tokens=False), stop], "b"], history=history
    )
    [whole] = check_every_sampled_id_is_trained_once(trace, sent)
    assert stop in trained(whole)
    news = text_of(chat, sent[1][0][len(sent[0][0]) + 2 :])
    assert news.startswith("\n<|im_start|>user" if name == "qwen3" else "<|start_header_id|>user"), "no second end"


LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} <|im_end|>"
    "{% else %}<|im_start|> {{ m.content }}{% endif %}{% endfor %}"
)
SPACED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\n<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ENDLESS = SPACED.replace("\n<|im_end|>", "")


@pytest.mark.parametrize("history", ["template", "append"])
@pytest.mark.parametrize(
    ("style", "stopped", "cut"),
    [
        (LLAMA2, "a<|im_end|><|im_start|> q1", "a <|im_end|><|im_start|> q1"),
        (SPACED, "a<|im_end|>\n<|im_start|>user\nq1\n", "a\n<|im_end|>\n<|im_start|>user\nq1\n"),
        (ENDLESS, "a<|im_end|>\n<|im_start|>user\nq1\n", "a\n<|im_start|>user\nq1\n"),
        (ENDLESS.replace("content }}\n", "content }}"), "a<|im_end|><|im_start|>user\nq1", "a<|im_start|>user\nq1"),
    ],
)
def test_white_space_before_the_end_of_a_turn(
    toy_chat: Callable[..., ChatFormat], style: str, stopped: str, cut: str, history: str
) -> None:
    for reply, expected in (("a", stopped), ("a...", cut)):
        chat = toy_chat(style)
        trace, sent = converse(chat, THREE[:2], [reply, "b"], history=history)
        [whole] = check_every_sampled_id_is_trained_once(trace, sent)
        assert expected in text_of(chat, whole.token_ids), "one end of each turn, and no beginning is missing"


@pytest.mark.parametrize("history", ["template", "append"])
@pytest.mark.parametrize(("stop", "ends"), [("<|endoftext|>", True), ("</tool_call>", False)])
def test_a_stop_id_of_the_agent_s_own(stop: str, ends: bool, history: str) -> None:
    chat = real_chat("qwen3")
    [token] = chat.tokenizer.convert_tokens_to_ids([stop])
    line = [*ids_of(chat, "a..."), token]
    trace, sent = converse(chat, THREE[:2], [line, "b"], history=history, stop_ids=[token])
    [whole] = check_every_sampled_id_is_trained_once(trace, sent)
    end = "" if ends else "<|im_end|>"
    assert f"a{stop}{end}\n<|im_start|>user\nq1" in text_of(chat, whole.token_ids)
    assert text_of(chat, trained(whole)) == f"a{stop}b<|im_end|>"


@pytest.mark.parametrize("style", ["think", "think_prompt"])
def test_thoughts_between_special_tokens(toy_chat: Callable[..., ChatFormat], style: str) -> None:
    # verl-project/verl issue #1724: tags that the tokenizer marks as special
    tokenizer = copy.deepcopy(toy_chat(style, think_tokens=True).tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    chat = ChatFormat(tokenizer)
    opened = "" if style == "think_prompt" else "<think>"
    trace, sent = converse(chat, THREE[:2], [f"{opened}I could bet</think>[2]", f"{opened}I could bet..."])
    assert strip_thinking(trace.turns[0].text).strip() == "[2]"
    with pytest.raises(IllegalReply, match="Close your thoughts"):
        strip_thinking(trace.turns[1].text)
    check_every_sampled_id_is_trained_once(trace, sent)
    if style == "think":
        assert "I could bet" not in text_of(chat, sent[1][0]), "the template drops the thought"


def test_a_marker_of_the_next_message_that_ends_the_turn() -> None:
    # huggingface/trl PR #6044: GLM ends a turn with the marker of the next one
    markers = ["<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"]
    tokenizer = small_tokenizer(Kind("", chatml(), markers, ["<think>", "</think>"], eos="<|endoftext|>"))
    tokenizer.chat_template = template("glm4moe")
    person, result = tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    chat = ChatFormat(tokenizer, stop_ids=[person, result])
    past = [user("q")]
    prompt = chat.render(past)
    for sampled, marks in ((of(person), 0), (of(result), 1), (of(65), 1)):
        news = chat.append(past, prompt, sampled, [user("r")])[len(prompt) + 1 :]
        assert news.count(person) == marks, "never twice, and never left out"
        assert text_of(chat, news).endswith("\nr<|assistant|>")


def test_text_that_ends_a_reply(toy_chat: Callable[..., ChatFormat]) -> None:
    chat = toy_chat("newline")
    [newline] = chat.tokenizer.encode("\n")
    trace, sent = converse(chat, THREE[:2], [[*ids_of(chat, "a..."), newline], "b"], stop_ids=[newline])
    assert [turn.finish for turn in trace.turns] == ["stop", "stop"]
    [whole] = check_every_sampled_id_is_trained_once(trace, sent)
    assert text_of(chat, trained(whole)) == "a\nb<|im_end|>"
    assert text_of(chat, whole.token_ids).count("assistant\na\n<|im_end|>\n") == 1, "the template's own end follows"


class Cutting(FakeEngine):
    """Stops at a text, as a server with stop strings does: the last id is no stop id."""

    async def generate(self, *args: Any, **kwargs: Any) -> Completion:
        made = await super().generate(*args, **kwargs)
        return Completion(token_ids=made.token_ids, logprobs=made.logprobs, finish="stop")


@pytest.mark.parametrize("history", ["template", "append"])
def test_a_reply_that_a_stop_string_cut(toy_chat: Callable[..., ChatFormat], history: str) -> None:
    chat = toy_chat("think")
    engine = Cutting([ids_of(chat, "a END..."), ids_of(chat, "b")], policies=["p"])
    agent = llm.LLMAgent(engine, "p", chat, llm.Settings(history=history))
    with Runtime(engine=engine) as runtime:
        trace = llm_arena.play(make_talk(THREE[:2]), agents=agent, seed=0, runtime=runtime)
    [whole] = sequences(trace)
    assert [turn.finish for turn in trace.turns] == ["stop", "stop"]
    assert text_of(chat, trained(whole)) == "a ENDb<|im_end|>", "the end that the template put is not trained"
    assert text_of(chat, whole.token_ids).count("a END<|im_end|>\n") == 1


@pytest.mark.parametrize("history", ["template", "append"])
def test_a_reply_that_a_grammar_limited_is_context(toy_chat: Callable[..., ChatFormat], history: str) -> None:
    chat = toy_chat("newline")
    lines = iter([ids_of(chat, "bet..."), ids_of(chat, "call")])
    engine = FakeEngine(lambda prompt, sampling: next(lines), policies=["p"])
    agent = llm.LLMAgent(engine, "p", chat, llm.Settings(guided=True, history=history))
    with Runtime(engine=engine) as runtime:
        trace = llm_arena.play(make_talk(THREE[:2], guide="bet"), agents=agent, seed=0, runtime=runtime)
    [whole] = sequences(trace)
    assert text_of(chat, trained(whole)) == "call<|im_end|>"
    assert text_of(chat, whole.token_ids).count("assistant\nbet<|im_end|>\n") == 1


# ---- tokens of other origin ----------------------------------------------------------------------------------


class Remote:
    """An agent whose server tells text and log-probabilities; the ids are somebody's guess, or missing."""

    name, policy = "remote", "remote"

    def __init__(self, ids: list[int] | None) -> None:
        self.ids = ids

    async def act(self, view: Any, past: Any) -> Action:
        if self.ids is None:
            return Action(reply=Reply("a b"))
        done = Completion(token_ids=self.ids, logprobs=[-1.0] * 5, finish="stop")
        return Action(reply=Reply("a b"), prompt_ids=[1, 2], completion=done)


def test_log_probabilities_without_their_ids_are_refused_or_left_out() -> None:
    with Runtime() as runtime:
        with pytest.raises(EngineError, match="4 token ids and 5 logprobs"):
            llm_arena.play(make_talk(THREE[:1]), agents=Remote([5, 6, 7, 8]), seed=0, runtime=runtime)
        trace = llm_arena.play(make_talk(THREE[:1]), agents=Remote(None), seed=0, runtime=runtime)
    assert sequences(trace) == [] and trace.turns[0].logprobs == []


def test_a_view_without_a_past_is_rendered_whatever_the_history(toy_chat: Callable[..., ChatFormat]) -> None:
    chat = toy_chat("think")
    engine = FakeEngine([[chat.stop_ids[0]]], policies=["p"])
    agent = llm.LLMAgent(engine, "p", chat, llm.Settings(history="append"))
    game = make_talk([[("user", "q"), ("assistant", THOUGHTS[0]), ("user", "r")]])
    game.reset(seed=0)
    view = game.view("speaker_0")
    action = asyncio.run(agent.act(view, []))
    assert action.prompt_ids == chat.render(view.messages)
