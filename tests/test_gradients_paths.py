"""Whatever is merged, packed or cut: the gradient is that of a loop which sends each call's own ids through the model.

The loop shares no code with the library: calls are noted where the agent made them, and the loss is written out token
by token. Numbers are in float64, distances Euclidean over all parameters, relative to the loop's gradient.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enumerable_parts import tiny_llama
from gradient_parts import (
    MadeCall,
    accumulated,
    anywhere,
    float64,
    gradient_of,
    in_two,
    naive_reinforce,
    play_noted,
    random_credit,
    run_noted,
    spoken,
    synthetic,
)
from llm_arena.models import random_model
from llm_arena.training import heads
from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.credit import Credit
from llm_arena.training.labels import train_sequences
from llm_arena.training.learner import Learner
from llm_arena.training.lora import LoraSettings
from llm_arena.training.objective import StepSettings
from llm_arena.types import Trace
from unbiased_parts import apart

CLOSE = 1e-9
DIVISOR = 3.0

FORGETS = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}pass{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Drops what earlier replies said, as real templates drop thinking, so that every turn is rendered anew."""

GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "kuhn": ("kuhn-poker-v0", {"illegal": "random_legal", "retries": 1, "episodes": 3}),
    "naming": ("naming-v0", {"namers": 4, "episodes": 3}),
    "thinker-verifier": ("thinker-verifier-v0", {"illegal": "random_legal", "frozen": ["verifier_0"]}),
    "research": (
        "research-v0",
        {
            "illegal": "random_legal",
            "searchers": 2,
            "max_calls": 1,
            "rounds": 2,
            "budget": 700,
            "hops": 1,
            "episodes": 1,
        },
    ),
    "forgetful": ("guess-number-v0", {"illegal": "random_legal", "max_turns": 4}),
}

PLAYED = [*GAMES, "harness"]
Played = dict[str, tuple[list[Trace], list[MadeCall], Path]]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def played(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Traces of several games, really played, with their calls and the folder of the model that made them."""
    words = [word for word in vocabulary(tiny_model) if not word.startswith("<")]
    forgetful = random_model(tmp_path_factory.mktemp("forgetful") / "model", words=words, template=FORGETS)
    found: Played = {}
    for name, (game, options) in GAMES.items():
        folder = forgetful if name == "forgetful" else tiny_model
        traces, calls = play_noted(game, folder, **options)
        found[name] = traces, calls, folder
    found["harness"] = *run_noted(tiny_model), tiny_model
    return found


def vocabulary(folder: Path) -> list[str]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(folder).get_vocab())


@pytest.fixture(scope="module")
def expected(played: Played) -> dict[str, tuple[Any, Credit, torch.Tensor]]:
    """By game: the model, some advantages, and the gradient of the naive loop."""
    found = {}
    for name, (traces, calls, folder) in played.items():
        model, gained = float64(folder).eval(), random_credit(traces)
        found[name] = model, gained, naive_reinforce(model, calls, gained, DIVISOR)
    return found


def by_library(learner: Learner, batch: Batch, settings: StepSettings | None = None) -> torch.Tensor:
    learner.model.zero_grad(set_to_none=True)
    learner.accumulate(batch, settings or StepSettings(lr=0.0, divisor=DIVISOR))
    return accumulated(learner.model)


def build64(sequences: Sequence[TrainSequence], **options: Any) -> Batch:
    return build(sequences, dtype=torch.float64, **options)


def test_the_games_are_what_they_should_be(played: Played) -> None:
    """Calls that extend, that don't, summaries, sub-agents, retries, a frozen seat."""
    traces, calls, _ = played["research"]
    assert max(turn.view_epoch for turn in traces[0].turns) >= 2
    assert any(trace.env_stats["searcher"].get("compactions") for trace in traces)
    assert len({call.seat for call in calls}) == 3
    assert any(turn.attempt for trace in played["kuhn"][0] for turn in trace.turns)
    assert all(turn.extends is None for trace in played["forgetful"][0] for turn in trace.turns)
    assert any(turn.extends is not None for trace in played["thinker-verifier"][0] for turn in trace.turns)
    harness = played["harness"][0][0]
    assert len(harness.turns) == 6 and len(harness.seats) == 5  # of the two calls that go on, one has a seat of its own
    assert {info.policy for info in played["thinker-verifier"][0][0].seats.values()} == {"learner", "frozen"}


@pytest.mark.parametrize(("max_row_tokens", "token_budget"), [(512, 2048), (64, 300), (1, 1)])
@pytest.mark.parametrize("game", PLAYED)
def test_played_games(game: str, max_row_tokens: int, token_budget: int, played: Played, expected: Any) -> None:
    traces, _, _ = played[game]
    model, gained, naive = expected[game]
    batch = build64(
        train_sequences(traces, gained, policy="learner"), max_row_tokens=max_row_tokens, token_budget=token_budget
    )
    assert naive.norm() > 0
    assert apart(by_library(Learner(model), batch), naive) < CLOSE


@pytest.mark.parametrize("game", ["kuhn", "thinker-verifier", "forgetful"])
def test_each_call_by_itself_is_the_same(game: str, played: Played, expected: Any) -> None:
    """Nothing merged: one stored sequence per call."""
    _, calls, _ = played[game]
    model, gained, naive = expected[game]
    rows = []
    for call in calls:
        advantage = gained.advantages.get((call.trace, call.seat))
        if advantage is not None:
            ids = np.array([*call.prompt, *call.completion])
            trained = np.arange(len(ids)) >= len(call.prompt)
            rows.append(
                TrainSequence(
                    token_ids=ids, trained=trained, advantage=np.full(len(ids), advantage), behaviour=np.zeros(len(ids))
                )
            )
    assert apart(by_library(Learner(model), build64(rows)), naive) < CLOSE


@pytest.mark.parametrize("game", PLAYED)
def test_the_order_of_traces_and_the_storage_of_sequences(game: str, played: Played, expected: Any) -> None:
    traces, _, _ = played[game]
    model, gained, naive = expected[game]
    turned = train_sequences(traces[::-1], gained, policy="learner")
    assert apart(by_library(Learner(model), build64(turned)), naive) < CLOSE
    rng = np.random.default_rng(0)
    halves = [half for one in turned for half in in_two(one, anywhere(one, rng))]
    rng.shuffle(halves)  # type: ignore[arg-type]
    assert apart(by_library(Learner(model), build64(halves)), naive) < CLOSE


SETTINGS = StepSettings(lr=0.0, divisor=DIVISOR, temperature=0.8, entropy_weight=0.2, kl_weight=0.3)


def regularized(
    model: Any, slow: Any, calls: Sequence[MadeCall], gained: Credit, settings: StepSettings
) -> torch.Tensor:
    """The naive loop with entropy and the whole KL to `slow` at each trained token."""
    total = torch.zeros((), dtype=torch.float64)
    for call in calls:
        weight = gained.advantages.get((call.trace, call.seat))
        if weight is None:
            continue
        rows = spoken(model, call, settings.temperature)
        with torch.no_grad():
            other = spoken(slow, call, settings.temperature)
        for at, row in enumerate(rows):
            total = total - weight * row[call.completion[at]]
            total = total + settings.entropy_weight * (row.exp() * row).sum()
            total = total + settings.kl_weight * (row.exp() * (row - other[at])).sum()
    return gradient_of(model, total / settings.divisor)


VOCABULARY = 11


def made_up(seed: int, count: int = 3) -> tuple[list[Trace], list[MadeCall], Credit]:
    traces, calls = [], []
    for number in range(count):
        trace, own = synthetic(seed * 10 + number, VOCABULARY, name=f"s{number}")
        traces.append(trace)
        calls += own
    return traces, calls, random_credit(traces, seed=seed)


def llama(seed: int = 0, **changes: Any) -> Any:
    return tiny_llama(seed, VOCABULARY, 16, 2, **changes).eval()


@pytest.mark.parametrize("seed", range(8))
def test_made_up_traces(seed: int) -> None:
    traces, calls, gained = made_up(seed)
    model = llama(seed)
    naive = naive_reinforce(model, calls, gained, DIVISOR, temperature=0.8)
    sequences = train_sequences(traces, gained, policy="learner")
    settings = StepSettings(lr=0.0, divisor=DIVISOR, temperature=0.8)
    for max_row_tokens, token_budget in ((512, 2048), (20, 64), (1, 1)):
        batch = build64(sequences, max_row_tokens=max_row_tokens, token_budget=token_budget)
        assert apart(by_library(Learner(model), batch, settings), naive) < CLOSE


@pytest.mark.parametrize("tied", [False, True])
def test_entropy_and_kl(tied: bool) -> None:
    traces, calls, gained = made_up(3)
    model, slow = llama(), llama(1)
    if tied:
        for one in (model, slow):
            one.lm_head.weight = one.model.embed_tokens.weight
    learner = Learner(model, reference="ema")
    assert learner.reference is not None
    for name, parameter in slow.named_parameters():
        learner.reference.tensors[name].copy_(parameter.data)
    naive = regularized(model, slow, calls, gained, SETTINGS)
    sequences = train_sequences(traces, gained, policy="learner")
    for options in ({}, {"max_row_tokens": 12, "token_budget": 30}):
        assert apart(by_library(learner, build64(sequences, **options), SETTINGS), naive) < CLOSE


@pytest.mark.parametrize("seed", range(4))
def test_any_split_into_parts_adds_up(seed: int) -> None:
    """Minibatches of a batch, and micro-batches of any size: the same sum."""
    traces, calls, gained = made_up(seed)
    model = llama(seed)
    naive = naive_reinforce(model, calls, gained, DIVISOR)
    learner, rng = Learner(model), np.random.default_rng(seed)
    sequences = train_sequences(traces, gained, policy="learner")
    settings = StepSettings(lr=0.0, divisor=DIVISOR)
    for minibatches in (1, 2, 3):
        batch = build64(
            sequences,
            minibatches=minibatches,
            seed=seed,
            max_row_tokens=int(rng.integers(1, 80)),
            token_budget=int(rng.integers(1, 200)),
        )
        model.zero_grad(set_to_none=True)
        for part in batch.parts:
            for micro in part:
                learner.accumulate(batch, settings, [micro])
        assert apart(accumulated(model), naive) < CLOSE
    # and split by hand into batches of their own
    model.zero_grad(set_to_none=True)
    cuts = sorted(rng.integers(0, len(sequences) + 1, 3).tolist())
    for low, high in itertools.pairwise([0, *cuts, len(sequences)]):
        if any(one.trained.any() for one in sequences[low:high]):
            learner.accumulate(build64(sequences[low:high]), settings)
    assert apart(accumulated(model), naive) < CLOSE


HEADS = {"plain": (1 << 29, 1 << 26), "chunks of three rows": (0, 3 * VOCABULARY * 8), "row by row": (0, 1)}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_head_in_chunks(head: str, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without what needs whole rows of logits."""
    plain_bytes, chunk_bytes = HEADS[head]
    monkeypatch.setattr(heads, "PLAIN_BYTES", plain_bytes)
    monkeypatch.setattr(heads, "CHUNK_BYTES", chunk_bytes)
    traces, calls, gained = made_up(4)
    model, slow = llama(), llama(1)
    if biased:
        for seed, one in enumerate((model, slow)):
            torch.manual_seed(seed)
            one.lm_head = torch.nn.Linear(16, VOCABULARY, dtype=torch.float64)
    learner = Learner(model, reference="ema")
    assert learner.reference is not None
    for name, parameter in slow.named_parameters():
        learner.reference.tensors[name].copy_(parameter.data)
    batch = build64(train_sequences(traces, gained, policy="learner"), token_budget=60)
    bare = StepSettings(lr=0.0, divisor=DIVISOR, temperature=0.8)
    naive = naive_reinforce(model, calls, gained, DIVISOR, temperature=0.8)
    assert apart(by_library(learner, batch, bare), naive) < CLOSE
    for settings in (SETTINGS, dataclasses.replace(SETTINGS, kl_weight=0.0), dataclasses.replace(bare, kl_weight=0.1)):
        naive = regularized(model, slow, calls, gained, settings)
        assert apart(by_library(learner, batch, settings), naive) < CLOSE


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2, alpha=8.0)])
def test_activations_that_are_computed_once_more(lora: LoraSettings | None) -> None:
    traces, calls, gained = made_up(7)
    learner = Learner(llama(), reference="initial", lora=lora, recompute=True)
    generator = torch.Generator().manual_seed(0)
    slow = llama()
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.1)
    batch = build64(train_sequences(traces, gained, policy="learner"), max_row_tokens=30)
    naive = regularized(learner.model, slow, calls, gained, SETTINGS)
    assert apart(by_library(learner, batch, SETTINGS), naive) < CLOSE


def test_an_adapter() -> None:
    """LoRA: the same forward passes, and only the adapter has a gradient."""
    traces, calls, gained = made_up(5)
    learner = Learner(llama(), lora=LoraSettings(rank=2, alpha=8.0))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    naive = naive_reinforce(learner.model, calls, gained, DIVISOR)
    assert len(naive) == sum(parameter.numel() for parameter in learner.parameters.values())
    sequences = train_sequences(traces, gained, policy="learner")
    assert apart(by_library(learner, build64(sequences, max_row_tokens=40)), naive) < CLOSE


def test_a_model_that_scales_and_caps_its_logits() -> None:
    """Gemma 2 squashes its logits after the head: there the model's own logits count."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, final_logit_softcapping=2.0, attn_logit_softcapping=None,
        initializer_range=0.5, tie_word_embeddings=True, sliding_window=64, layer_types=["full_attention"],
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = Gemma2ForCausalLM(config).to(torch.float64).eval()  # type: ignore[arg-type,no-untyped-call]
    traces, calls, gained = made_up(6)
    naive = naive_reinforce(model, calls, gained, DIVISOR)
    sequences = train_sequences(traces, gained, policy="learner")
    assert apart(by_library(Learner(model), build64(sequences)), naive) < 1e-6  # its norm computes in float32


def test_a_frozen_seats_tokens_and_guided_turns_have_no_part() -> None:
    traces, calls, gained = made_up(2)
    sequences = train_sequences(traces, gained, policy="learner")
    mine = [call for call in calls if (call.trace, call.seat) in gained.advantages]
    assert sum(int(one.trained.sum()) for one in sequences) == sum(len(call.completion) for call in mine)
    units = {int(unit) for one in sequences for unit in one.unit[one.trained]}  # type: ignore[index]
    assert len(units) == sum(bool(call.completion) for call in mine)
    assert dataclasses.is_dataclass(sequences[0])
