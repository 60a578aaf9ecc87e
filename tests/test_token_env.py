"""A game in token ids: prompts that extend, what is cut, parse errors, full contexts, every kind of renderer."""

import asyncio
from dataclasses import dataclass, field

import pytest

import llm_arena
from llm_arena.adapters.message_env import MessageStepResult
from llm_arena.adapters.token_env import EnvFromMessageEnv, TokenEnv, token_env
from llm_arena.env import ArenaEnv
from llm_arena.errors import UnknownName, UsageError
from llm_arena.models import random_model
from llm_arena.recorder import sequences
from llm_arena.tokens import ChatFormat
from llm_arena.types import Move, Outcome

LIMITS = {"max_trajectory_tokens": 4000, "max_generation_tokens": 64}


def sample(env, text, *, stop=True):
    """The ids of a reply in the toy tokenizers."""
    ids = env.renderer.tokenizer.encode(text, add_special_tokens=False)
    return [*ids, env.renderer.stop_ids[0]] if stop else ids


@dataclass
class Count:
    """Asks `n` times, pays 1 each time."""

    n: int = 2
    messages: list = field(default_factory=list)

    async def initial_observation(self):
        self.messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "go"}]
        return self.messages

    async def step(self, message):
        self.messages = [*self.messages, message, {"role": "user", "content": f"{self.n} left"}]
        self.n -= 1
        return MessageStepResult(1.0, self.n == 0, self.messages, metrics={"left": self.n})


def test_an_episode_of_a_message_env_in_ids(toy_chat):
    chat = toy_chat("newline")
    env = llm_arena.token_env(Count(), renderer=chat)
    assert isinstance(env, TokenEnv)
    assert (env.failed_parse_reward, env.max_trajectory_tokens, env.max_generation_tokens) == (-1.0, 256, 64)
    ids, stop_ids = env.reset(seed=0)
    assert ids == chat.render([{"role": "system", "content": "count"}, {"role": "user", "content": "go"}])
    assert stop_ids == chat.stop_ids
    said = sample(env, "win")
    result = env.step(said)
    assert (result.reward, result.episode_done, result.metrics) == (1.0, False, {"left": 1.0})
    # exactly what was sent and sampled, then what the template puts after it
    assert result.next_observation[: len(ids) + len(said)] == ids + said
    tail = chat.tokenizer.decode(result.next_observation[len(ids) + len(said) :])
    assert tail == "\n<|im_start|>user\n2 left<|im_end|>\n<|im_start|>assistant\n"
    assert env.message_env.n == 1
    last = env.step(sample(env, "ner"))
    assert last.episode_done and not last.truncated
    assert (last.reward, last.next_observation, last.next_stop_condition) == (1.0, [], stop_ids)
    with pytest.raises(UsageError, match="the episode is over"):
        env.step(said)
    assert env.trace.returns == {"agent_0": 2.0}


def test_sampled_ids_are_kept_where_the_tokenizer_would_write_them_otherwise(toy_chat):
    # The tokenizer writes `winner` as one token; sampled were two (huggingface/trl issue #5224).
    env = token_env(Count(), renderer=toy_chat("newline"))
    ids, _ = env.reset(seed=0)
    said = [*sample(env, "win", stop=False), *sample(env, "ner")]
    assert env.step(said).next_observation[len(ids) : len(ids) + 3] == said


def test_a_template_that_rewrites_its_past_is_rendered_afresh(toy_chat):
    # PrimeIntellect-ai/prime-rl issue #1334: thinking is dropped from earlier turns
    chat = toy_chat("think")
    env = token_env(Count(), renderer=chat)
    ids, _ = env.reset(seed=0)
    said = sample(env, "<think>a</think>b")
    following = env.step(said).next_observation
    assert following[: len(ids) + len(said)] != ids + said
    assert following == chat.render(env.seat_env.view().messages)


def test_a_game_of_several_seats_is_played_against_opponents(toy_chat):
    env = token_env("kuhn-poker-v0", "player_1", toy_chat("newline"), opponents=lambda view, rng: "bet", **LIMITS)
    env.reset(seed=0)
    cards = env.seat_env.game.cards
    result = env.step(sample(env, "call"))
    won = "JQK".index(cards["player_1"]) > "JQK".index(cards["player_0"])
    assert result.episode_done and result.reward == (2.0 if won else -2.0) and result.metrics == {}


def test_logprobs_make_a_trace_that_can_be_trained_on(toy_chat):
    env = token_env(Count(), renderer=toy_chat("newline"))
    ids, _ = env.reset(seed=0)
    first, second = sample(env, "win"), sample(env, "a")
    after = env.step(first, [-0.5] * len(first)).next_observation
    env.step(second, [-0.25] * len(second))
    [sequence] = sequences(env.trace)  # one stream, as the second prompt extends the first
    assert sequence.token_ids == after + second
    assert [i for i, trained in zip(sequence.token_ids, sequence.mask, strict=True) if trained] == first + second
    assert sequence.logprobs[len(ids)] == -0.5 and sequence.logprobs[-1] == -0.25
    llm_arena.verify(env.trace)
    env.reset()
    with pytest.raises(UsageError, match="1 logprobs for 2 ids"):
        env.step([1, 2], [-0.5])


def test_what_comes_after_the_stop_id_is_cut_off(toy_chat):
    env = token_env(Count(), renderer=toy_chat("newline"))
    ids, _ = env.reset(seed=0)
    said = sample(env, "win")
    extra = said + sample(env, "ner")
    result = env.step(extra, [-1.0] * len(extra))
    assert result.next_observation[len(ids) : len(ids) + 3] == [*said, *sample(env, "\n", stop=False)]
    assert env.message_env.messages[2]["content"] == "win"


def test_a_reply_without_a_stop_id_is_cut_by_length_and_goes_on(toy_chat):
    # AgentR1/Agent-R1 issue #30: a stop id that the template puts is no sampled one
    env = token_env(Count(), renderer=toy_chat("newline"), max_generation_tokens=3)
    ids, _ = env.reset(seed=0)
    said = sample(env, "abcdef", stop=False)
    result = env.step(said)
    assert env.message_env.messages[2]["content"] == "abc"
    assert result.metrics == {"left": 1.0, "max_tokens_reached": 1.0} and not result.episode_done
    # the template closes the turn that the seat did not
    assert result.next_observation[len(ids) : len(ids) + 4] == [*said[:3], env.renderer.stop_ids[0]]


def test_a_cut_reply_that_the_game_can_t_read_is_called_cut(toy_chat):
    env = token_env("kuhn-poker-v0", renderer=toy_chat("newline"), **LIMITS)
    env.reset(seed=0)
    result = env.step(sample(env, "hmm", stop=False))
    assert result.metrics == {"length": 1.0, "max_tokens_reached": 1.0} and result.reward == -2.0


def test_text_that_the_game_can_t_read_goes_to_its_own_rule(toy_chat):
    env = token_env(llm_arena.make("kuhn-poker-v0", retries=1), renderer=toy_chat("newline"), **LIMITS)
    env.reset(seed=0)
    first = env.step(sample(env, "hmm"))
    assert (first.reward, first.episode_done, first.metrics) == (0.0, False, {"unparsable": 1.0})
    second = env.step(sample(env, "hmm"))
    assert (second.reward, second.episode_done) == (-2.0, True)


@pytest.mark.parametrize("kind", ["nothing", "only a stop", "white space", "half a character"])
def test_ids_that_are_no_text_are_a_parse_error(toy_chat, kind):
    env = token_env(Count(), renderer=toy_chat("newline"), failed_parse_reward=-0.25)
    env.reset(seed=0)
    half = sample(env, "\u00e9", stop=False)[:1]  # é is two bytes, so two tokens
    ids = {
        "nothing": [],
        "only a stop": sample(env, ""),
        "white space": sample(env, " \n"),
        "half a character": [*sample(env, "a", stop=False), *half, *sample(env, "b")],
    }[kind]
    result = env.step(ids)
    assert (result.reward, result.episode_done, result.next_observation) == (-0.25, True, [])
    assert result.metrics["parse_error"] == 1.0 and env.message_env.n == 2  # the env never saw it
    with pytest.raises(UsageError, match="call reset"):
        env.step(sample(env, "a"))
    env.reset(seed=0)
    assert env.step(sample(env, "a")).reward == 1.0


def test_a_character_that_the_cut_went_through_is_left_out(toy_chat):
    env = token_env(Count(), renderer=toy_chat("newline"), max_generation_tokens=2)
    env.reset(seed=0)
    assert env.step(sample(env, "a\u00e9")).metrics == {"left": 1.0, "max_tokens_reached": 1.0}
    assert env.message_env.messages[2]["content"] == "a"


def test_a_full_context_truncates(toy_chat):
    chat = toy_chat("newline")
    ids, _ = token_env(Count(), renderer=chat).reset(seed=0)
    env = token_env(Count(), renderer=chat, max_trajectory_tokens=len(ids) + 10, max_generation_tokens=10)
    env.reset(seed=0)
    result = env.step(sample(env, "abc"))
    assert (result.episode_done, result.truncated, result.reward) == (True, True, 1.0)  # the step itself was paid
    assert result.metrics == {"left": 1.0, "context_overflow": 1.0} and result.next_observation == []
    assert env.trace.ending == "context_overflow" and env.trace.overflow_seat == "agent_0"
    costly = llm_arena.make(Count(), overflow="forfeit")
    env = token_env(costly, renderer=chat, max_trajectory_tokens=len(ids) + 10, max_generation_tokens=10)
    env.reset(seed=0)
    assert env.step(sample(env, "abc")).reward == 0.0  # 1 for the step, -1 for the overflow
    # the last reply needs no room for another prompt
    env = token_env(Count(n=1), renderer=chat, max_trajectory_tokens=len(ids) + 10, max_generation_tokens=10)
    env.reset(seed=0)
    assert not env.step(sample(env, "abc")).truncated
    with pytest.raises(UsageError, match="too few"):
        token_env(Count(), renderer=chat, max_trajectory_tokens=len(ids) + 9, max_generation_tokens=10).reset()
    unlimited = token_env(Count(), renderer=chat, max_trajectory_tokens=None, max_generation_tokens=None)
    unlimited.reset()
    assert not unlimited.step(sample(unlimited, "abc" * 200)).episode_done


def test_a_games_turn_limit_truncates(toy_chat):
    env = token_env(llm_arena.make(Count(n=9), max_turns=1), renderer=toy_chat("newline"))
    env.reset(seed=0)
    result = env.step(sample(env, "a"))
    assert result.episode_done and result.truncated and "context_overflow" not in result.metrics


def test_summaries_of_a_compacted_view_begin_a_new_prompt(toy_chat):
    env = token_env(llm_arena.make(Count(n=9), budget=60), renderer=toy_chat("newline"), **LIMITS)
    ids, _ = env.reset(seed=0)
    game = env.seat_env.game
    asked = replaced = 0
    for _ in range(5):
        epoch = game.view_epoch("agent_0")
        said = sample(env, "I say some words here")
        result = env.step(said)
        extends = result.next_observation[: len(ids) + len(said)] == ids + said
        ids = result.next_observation
        asked += "grown too long" in env.renderer.tokenizer.decode(ids)
        assert extends == (game.view_epoch("agent_0") == epoch)  # a new prompt where the view is, and nowhere else
        replaced += not extends
    assert asked and 0 < replaced < 5


@pytest.mark.parametrize("with_logprobs", [False, True])
def test_a_budget_in_tokens_is_counted_with_and_without_logprobs(toy_chat, with_logprobs):
    game = llm_arena.make(Count(n=6), budget=150, budget_unit="tokens")
    env = token_env(game, renderer=toy_chat("newline"), **LIMITS)
    env.reset(seed=0)
    epochs = []
    for _ in range(20):
        said = sample(env, "I say some words")
        result = env.step(said, [-0.5] * len(said) if with_logprobs else None)
        epochs.append(game.view_epoch("agent_0"))
        if result.episode_done:
            break
    assert result.episode_done and max(epochs) > 0
    llm_arena.verify(env.trace)


def odd_numbers(kind, numbers):
    import numpy as np
    import torch

    return {"numpy": np.array, "torch": torch.tensor, "tuple": tuple}[kind](numbers)


@pytest.mark.parametrize("kind", ["numpy", "torch", "tuple"])
def test_arrays_and_tensors_are_taken_as_lists_are(toy_chat, kind):
    results = []
    for make in (list, lambda numbers: odd_numbers(kind, numbers)):
        env = token_env(Count(), renderer=toy_chat("newline"))
        env.reset(seed=0)
        said = sample(env, "win")
        first = env.step(make(said), make([-0.5] * len(said)))
        assert {type(token) for token in first.next_observation} == {int}
        env.step(make(said), make([-0.5] * len(said)))
        results.append((first, [(turn.completion_ids, turn.logprobs) for turn in env.trace.turns]))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("ids", "logprobs", "words"),
    [
        ([-5, 2], None, "-5 is no id"),
        ([2**40, 2], None, "is no id"),
        ([1.5, 2], None, "expected whole numbers"),
        (None, None, "expected whole numbers"),
        ([[1], [2]], None, "expected whole numbers"),
        ([1, 2], [-0.5, "x"], "expected numbers"),
        ([1, 2], [-0.5, float("nan")], "expected finite numbers"),
        ([1, 2], [-0.5], "1 logprobs for 2 ids"),
    ],
)
def test_what_are_no_ids_is_told_and_the_episode_goes_on(toy_chat, ids, logprobs, words):
    env = token_env(Count(), renderer=toy_chat("newline"))
    env.reset(seed=0)
    with pytest.raises(UsageError, match=words):
        env.step(ids, logprobs)
    assert env.step(sample(env, "win")).reward == 1.0


class NoTurn(ArenaEnv):
    """Player 0 ends the game before player 1 has a turn."""

    id = "test-no-turn-v0"
    roles = {"player": 2}

    def begin(self, rng):
        self.tell(self.possible_agents, "go")
        return "player_0"

    def sample_reply(self, seat, rng):
        return "x"

    def resolve(self, seat, reply):
        return Move(outcome=Outcome(reason="over"))


def test_a_game_that_ends_before_the_seats_turn_is_told(toy_chat):
    with pytest.raises(UsageError, match="over before player_1 had a turn"):
        token_env(NoTurn(), "player_1", toy_chat("newline")).reset(seed=0)


# ---- renderers


def test_renderers_may_be_named_by_a_model_or_its_folder_or_be_a_tokenizer(tiny_model, toy_chat):
    format_ = ChatFormat.load(tiny_model)
    prompts = []
    for renderer in (format_, str(tiny_model), tiny_model, format_.tokenizer):
        env = token_env("kuhn-poker-v0", renderer=renderer, **LIMITS)
        prompts.append(env.reset(seed=0))
    assert all(prompt == prompts[0] for prompt in prompts)
    assert prompts[0][0] == format_.render(llm_arena.make("kuhn-poker-v0", role="player").reset(seed=0)[0]["messages"])


def test_something_else_than_a_renderer_is_told():
    for renderer in (None, 5):
        with pytest.raises(UsageError, match="expected a ChatFormat"):
            token_env("kuhn-poker-v0", renderer=renderer)
    with pytest.raises(UnknownName):
        token_env("kuhn-poker-v0", renderer="smolm2-135m")


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    """A renderer of the package `renderers`, on a tokenizer with Qwen3's special tokens."""
    import renderers
    import tokenizers

    tags = ["tool_call", "tool_response", "think"]
    specials = ["<|endoftext|>", *(f"<{slash}{tag}>" for tag in tags for slash in ("", "/"))]
    folder = random_model(tmp_path_factory.mktemp("qwen") / "m", words=["count", "go", "hi", "left", "2", *specials])
    tokenizer = ChatFormat.load(folder).tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    tokenizer.add_tokens([tokenizers.AddedToken(text) for text in specials[1:]])
    return renderers.create_renderer(tokenizer, renderers.Qwen3RendererConfig(enable_thinking=False)), tokenizer


def test_a_renderer_of_the_package_renderers_works(packaged):
    renderer, tokenizer = packaged
    env = token_env(Count(), renderer=renderer)
    ids, stop_ids = env.reset(seed=0)
    messages = [{"role": "system", "content": "count"}, {"role": "user", "content": "go"}]
    assert ids == renderer.render_ids(messages, add_generation_prompt=True)
    assert stop_ids == tuple(renderer.get_stop_token_ids())
    said = [*tokenizer.encode("hi", add_special_tokens=False), stop_ids[0]]
    result = env.step(said)
    assert env.message_env.messages[2] == {"role": "assistant", "content": "hi"}
    assert result.next_observation[: len(ids) + 2] == ids + said
    assert env.step([stop_ids[0]]).metrics == {"parse_error": 1.0}


# ---- coroutines


def test_the_async_twin_does_the_same(toy_chat):
    chat = toy_chat("newline")

    async def episode():
        env = EnvFromMessageEnv(
            renderer=chat,
            message_env=Count(),
            failed_parse_reward=-1.0,
            max_trajectory_tokens=256,
            max_generation_tokens=64,
        )
        assert (env.failed_parse_reward, env.max_trajectory_tokens) == (-1.0, 256)
        assert isinstance(env.message_env, Count)
        ids, stop_ids = await env.initial_observation()
        first = await env.step(sample(env, "win"))
        return ids, stop_ids, first, await env.step(sample(env, "ner"))

    twin = token_env(Count(), renderer=chat)
    ids, stop_ids = twin.reset(seed=0)
    assert asyncio.run(episode()) == (ids, stop_ids, twin.step(sample(twin, "win")), twin.step(sample(twin, "ner")))


def test_the_async_twin_plays_games_of_several_seats_at_once(toy_chat):
    chat = toy_chat("newline")

    async def episode(seed):
        env = EnvFromMessageEnv(chat, "kuhn-poker-v0", seat="player_1", opponents="optimal", **LIMITS)
        await env.initial_observation(seed)
        return (await env.step(sample(env, "hmm"))).reward

    async def episodes():
        return await asyncio.gather(*map(episode, range(6)))

    assert asyncio.run(episodes()) == [-2.0] * 6
