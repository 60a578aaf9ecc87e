"""Guided replies: on the real vLLM nothing is sampled but what a grammar allows, and none of it is trained."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llguidance
import llguidance.hf
import msgspec
import numpy as np
import pytest
import torch
import transformers

import llm_arena
from llm_arena.engines import vllm_grammars
from llm_arena.engines.base import Sampling
from llm_arena.engines.fake import FakeEngine
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.env import ArenaEnv
from llm_arena.errors import EnvContractError, UsageError
from llm_arena.models import random_model
from llm_arena.parsing import IllegalReply
from llm_arena.recorder import sequences, step_dead
from llm_arena.registry import make
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import resolve_roster
from llm_arena.runtime import Runtime
from llm_arena.training.alarms import Alarm, Watch
from llm_arena.training.credit import Baselines, assign
from llm_arena.training.metrics import of_traces
from llm_arena.types import Cause, Completion, Json, Move, Outcome, Reply, Trace
from vllm_parts import Served, logprobs

GAMES = ["kuhn-poker-v0", "tic-tac-toe-v0", "test-pair-v0"]
SHELF = [id for id in llm_arena.registry if "/" not in id and not id.startswith("test-")]
PAIR = r"[A-Z][a-z]{2,7} [A-Z][a-z]{2,7}"


class Pair(ArenaEnv):
    """Two seats say a name of two words; then each says anything at all."""

    id = "test-pair-v0"
    roles = {"player": 2}

    def begin(self, rng: np.random.Generator) -> str:
        """Asks the first."""
        self.said: list[str] = []
        self.tell(self.possible_agents, "Name a cafe in two words.")
        return "player_0"

    def grammar(self, seat: str) -> Json:
        """A name in the first round, nothing in the second."""
        return PAIR if len(self.said) < 2 else None

    def sample_reply(self, seat: str, rng: np.random.Generator) -> str:
        """The same name always."""
        return "Golden Brew"

    def resolve(self, seat: str, reply: Reply) -> Move:
        """Takes names, then anything."""
        if len(self.said) < 2 and not re.fullmatch(PAIR, reply):
            raise IllegalReply(Cause.UNPARSABLE)
        self.said.append(str(reply))
        if len(self.said) == 4:
            return Move(outcome=Outcome(reason="all said"), action=str(reply))
        return Move(next=self.next_seat(seat), action=str(reply))


@pytest.fixture(scope="module", autouse=True)
def pair() -> None:
    llm_arena.register(Pair.id, Pair)


@pytest.fixture(scope="module")
def speller(toy_chat: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that can spell any text byte by byte, as those with real tokenizers can."""
    tokenizer = toy_chat("newline").tokenizer
    folder = tmp_path_factory.mktemp("speller") / "model"
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def spelling(speller: Path) -> Any:
    """The speller's tokenizer as llguidance, which guides it on vLLM, wants it."""
    return llguidance.hf.from_tokenizer(transformers.AutoTokenizer.from_pretrained(speller))


@pytest.fixture(scope="module")
def vllm(speller: Path) -> Iterator[Served]:
    """One engine for all tests here."""
    served = Served(VllmEngine(EngineSettings(kind="vllm", args='{"max_model_len": 1024}')))
    served.publish(str(speller), speller, 0)
    yield served
    served.runtime.close()


@pytest.fixture(scope="module")
def end(toy_chat: Callable[..., Any]) -> int:
    """The end token of the speller."""
    [stop] = toy_chat("newline").stop_ids
    return int(stop)


def plans(runtime: Runtime, game: str, agents: Any, count: int, **settings: Any) -> list[EpisodePlan]:
    env = make(game)
    seated = resolve_roster(env, agents, runtime=runtime, **settings)
    return [EpisodePlan(id=f"e{seed}", spec=env.spec, seed=seed, agents=seated) for seed in range(count)]


def play(runtime: Runtime, game: str, agents: Any, count: int, **settings: Any) -> list[Trace]:
    return runtime.run(play_many(plans(runtime, game, agents, count, **settings), runtime), timeout=300)


# ---- what is sampled ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", GAMES)
def test_guided_play_is_legal_where_free_play_never_is(game: str, vllm: Served, speller: Path) -> None:
    guided, free = (
        play(vllm.runtime, game, f"llm:{speller}", 12, max_new_tokens=24, guided=guided) for guided in (True, False)
    )
    assert [trace.void for trace in [*guided, *free]] == [False] * 24
    assert {turn.cause for trace in guided for turn in trace.turns} == {"legal"}
    assert {turn.finish for trace in guided for turn in trace.turns if turn.guided} == {"stop"}
    for trace in guided:
        assert [turn.guided for turn in trace.turns] == [
            game != "test-pair-v0" or turn.index < 2 for turn in trace.turns
        ], "a view without a grammar is sampled freely"
        assert llm_arena.replay(trace).outcome == trace.outcome
    assert not any(turn.guided for trace in free for turn in trace.turns)
    assert not any(turn.cause == "legal" for trace in free for turn in trace.turns)
    assert len({str([turn.text for turn in trace.turns]) for trace in guided}) > 1


@pytest.mark.parametrize("game", [*SHELF, Pair.id])
def test_every_grammar_of_the_shelf_can_guide_and_allows_what_is_legal(game: str, spelling: Any) -> None:
    env, rng = make(game), np.random.default_rng(0)
    for seed in range(3):
        env.reset(seed=seed)
        for _ in range(40):
            if env.over:
                break
            seat = env.agent_selection
            view = env.view(seat)
            if view.grammar is not None:
                kind = "regex" if isinstance(view.grammar, str) else "json_schema"
                written = llguidance.grammar_from(kind, view.grammar if kind == "regex" else json.dumps(view.grammar))
                assert llguidance.LLMatcher.validate_grammar(written, spelling) == ""
                for reply in [*(view.legal_actions or ()), view.sample_reply(rng)]:
                    matcher = llguidance.LLMatcher(spelling, written)
                    assert matcher.consume_tokens(spelling.tokenize_str(reply)) and matcher.is_accepting(), reply
            env.step(view.sample_reply(rng))
            step_dead(env)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (r"[^\n]{0,40}\nANSWER: (yes|no)", r"[^\n]{0,40}\nANSWER: (yes|no)"),
        (r"(?:MOVE: [a-c][1-3]|PASS){1,2}", r"(?:MOVE: [a-c][1-3]|PASS){1,2}"),
        ("|".join(map(re.escape, ["a b", "[1]", "x|y", "3.5", "a-b"])), r"a b|\[1\]|x\|y|3\.5|a-b"),
        (
            {"type": "object", "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}}, "required": ["a"]}
            | {"additionalProperties": False},
            r'\{"a":"[xy]"(,"b":(true|false))?\}',
        ),
    ],
)
def test_what_grammars_are_made_of(
    grammar: Json, pattern: str, vllm: Served, speller: Path, end: int, toy_chat: Callable[..., Any]
) -> None:
    chat = toy_chat("newline")
    for done in ask(vllm, speller, grammar, end):
        assert re.fullmatch(pattern, chat.decode(done.token_ids))
        assert (done.finish, done.token_ids[-1], done.guided) == ("stop", end, True)
        assert len(done.logprobs) == len(done.token_ids)


def ask(vllm: Served, model: Path, grammar: Json, end: int, *, temperature: float = 1.0) -> list[Completion]:
    async def all_at_once() -> list[Completion]:
        wanted = [
            vllm.engine.generate(
                [1, 5, 9 + k],
                Sampling(max_new_tokens=100, temperature=temperature, stop_ids=(end, 0), seed=k, grammar=grammar),
                str(model),
            )
            for k in range(6)
        ]
        return list(await asyncio.gather(*wanted))

    return vllm.runtime.run(all_at_once(), timeout=120)


def test_logprobs_are_those_over_the_allowed_ids(vllm: Served, speller: Path, end: int) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(speller, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(speller)
    a, b = tokenizer.convert_tokens_to_ids(["a", "b"])
    for k, done in enumerate(ask(vllm, speller, "a|b", end, temperature=0.5)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[1, 5, 9 + k]])).logits[0, -1] / 0.5
        wanted = torch.log_softmax(logits[[a, b]], -1)[[a, b].index(done.token_ids[0])]
        assert done.token_ids[1:] == [end]
        assert done.logprobs == pytest.approx([float(wanted), 0.0], abs=1e-4)
        plain = logprobs(model, [1, 5, 9 + k], done.token_ids, 0.5)
        assert float(plain[0]) < done.logprobs[0] - 1, "the policy's own logprob is another, so it can't be trained on"


def test_a_tokenizer_that_can_not_spell_is_guided_too(tmp_path: Path) -> None:
    assert vllm_grammars.backend(tmp_path) is None
    model = random_model(tmp_path / "model", words=["check", "bet", "call", "fold"], heads=2)
    assert vllm_grammars.backend(model) == "xgrammar"
    with Runtime(engine=EngineSettings(kind="vllm", args='{"max_model_len": 512}')) as runtime:
        traces = play(runtime, "kuhn-poker-v0", f"llm:{model}", 8, max_new_tokens=8, guided=True)
    assert [trace.failure for trace in traces] == [None] * 8
    assert {turn.cause for trace in traces for turn in trace.turns} == {"legal"}


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grammar", ["(", r"(a)\1", "(?=a)b", {"type": "nonsense"}, 7])
def test_a_bad_grammar_is_refused_and_harms_nobody(grammar: Json, vllm: Served, speller: Path, end: int) -> None:
    with pytest.raises(UsageError, match=r"grammar"):
        ask(vllm, speller, grammar, end)
    assert ask(vllm, speller, "a", end)[0].finish == "stop"


def test_a_grammar_without_the_end_token_is_refused(vllm: Served, speller: Path) -> None:
    sampling = Sampling(max_new_tokens=4, stop_ids=(3,), grammar="a")
    with pytest.raises(UsageError, match="stop ids must hold the tokenizer's end token"):
        vllm.runtime.run(vllm.engine.generate([1], sampling, str(speller)))
    with pytest.raises(UsageError, match=r"put tokenizer\.json into its folder"):
        vllm_grammars.check(sampling, None)


def test_a_bad_grammar_of_a_game_names_seat_and_grammar(vllm: Served, speller: Path) -> None:
    class Bad(Pair):
        id = "test-bad-grammar-v0"

        def grammar(self, seat: str) -> Json:
            return "(["

    llm_arena.register(Bad.id, Bad)
    with pytest.raises(EnvContractError, match=r"the game gives player_0 .*\(\[.*mend grammar\(seat\)"):
        llm_arena.play("test-bad-grammar-v0", f"llm:{speller}", seed=0, runtime=vllm.runtime, guided=True)
    [trace] = play(vllm.runtime, "test-bad-grammar-v0", f"llm:{speller}", 1, guided=True)
    assert trace.void and trace.failure is not None and trace.failure.kind == "EnvContractError"
    assert not play(vllm.runtime, "test-bad-grammar-v0", f"llm:{speller}", 1, max_new_tokens=2)[0].void


@pytest.mark.parametrize("kind", ["transformers", "fake"])
def test_an_engine_that_samples_freely_says_so_before_the_first_turn(kind: str, tiny_model: Path) -> None:
    def engine() -> Any:
        return FakeEngine() if kind == "fake" else EngineSettings()

    with Runtime(engine=engine()) as runtime, pytest.raises(UsageError, match=rf"guided=True needs .*vllm; the {kind}"):
        llm_arena.play("kuhn-poker-v0", f"llm:{tiny_model}", seed=0, runtime=runtime, guided=True)
    sampling = Sampling(max_new_tokens=2, grammar="a")
    with Runtime(engine=engine()) as runtime:
        served = runtime.run(runtime.policy(str(tiny_model)))
        with pytest.raises(UsageError, match="grammar"):
            runtime.run(served.engine.generate([1], sampling, str(tiny_model)))


# ---- what is trained ---------------------------------------------------------------------------------------------


def said(game: str, chat: Any, folder: Path) -> list[Trace]:
    """Episodes of a scripted engine that keeps to grammars."""

    def script(prompt: list[int], sampling: Sampling) -> list[int]:
        text = "check" if sampling.grammar == "check|bet" else "Golden Brew" if sampling.grammar else "anything"
        return [*chat.tokenizer.encode(text, add_special_tokens=False), chat.stop_ids[0]]

    with Runtime(engine=FakeEngine(script)) as runtime:
        return play(runtime, game, f"llm:{folder}", 2, guided=True)


def seats(trace: Trace) -> list[str]:
    return list(trace.seats)


def test_guided_turns_stay_in_the_context_and_are_not_trained(speller: Path, toy_chat: Callable[..., Any]) -> None:
    chat = toy_chat("newline")
    traces = said("test-pair-v0", chat, speller)
    for trace in traces:
        assert [turn.guided for turn in trace.turns] == [True, True, False, False]
        found = sequences(trace)
        assert [(sequence.seat, sequence.turns) for sequence in found] == [("player_0", [2]), ("player_1", [3])]
        for sequence in found:
            prompt, sampled = trace.full_ids(sequence.turns[0])
            assert sequence.token_ids == prompt + sampled
            assert sequence.mask == [False] * len(prompt) + [True] * len(sampled)
            assert not any(sequence.logprobs[: len(prompt)])
            name = chat.tokenizer.encode("Golden Brew", add_special_tokens=False)
            assert str(name)[1:-1] in str(prompt), "the guided reply is context"
        again = msgspec.json.decode(msgspec.json.encode(trace), type=Trace)
        assert sequences(again) == found
    assert b'"guided":' not in msgspec.json.encode(traces[0].turns[2]), "false is left out"


def test_guided_turns_are_counted_and_a_step_of_nothing_else_is_told_once(
    speller: Path, toy_chat: Callable[..., Any]
) -> None:
    def row(traces: list[Trace]) -> dict[str, float]:
        return of_traces(
            traces, seats, assign(traces, by="seat", estimator="rae", baselines=Baselines(), learners=seats)
        )

    mixed = said("test-pair-v0", toy_chat("newline"), speller)
    numbers = row(mixed)
    sampled = [len(turn.completion_ids) for trace in mixed for turn in trace.turns if turn.guided]
    assert (numbers["guided_turns"], numbers["guided_tokens"]) == (4, sum(sampled))
    assert numbers["guided_tokens"] < numbers["sampled_tokens"]
    guided = said("kuhn-poker-v0", toy_chat("newline"), speller)
    assert [sequence for trace in guided for sequence in sequences(trace)] == []
    told: list[Alarm] = []
    watch = Watch(show=told.append)
    for numbers in (row(mixed), row(guided), row(guided)):
        watch.look(numbers)
    assert [alarm.seen.partition(" by ")[0] for alarm in told] == ["every turn of player was guided"]
