"""The adapter: its gradient against an explicit slow version, what it saves, what it goes back to."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.func import functional_call
from transformers import AutoModelForCausalLM

from llm_arena.engines.base import Sampling
from llm_arena.engines.onednn import OneDnnLinear
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.errors import MissingExtra, TrainingError, UsageError
from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.learner import Learner
from llm_arena.training.lora import LoraSettings
from llm_arena.training.losses import ppo_clip
from llm_arena.training.objective import StepSettings
from model_parts import VOCABULARY, small_llama

LORA = LoraSettings(rank=2, alpha=6.0, seed=3)
SETTINGS = StepSettings(lr=0.01, divisor=7.0, temperature=0.7, entropy_weight=0.3, grad_clip=1e9)


def tiny(dtype: torch.dtype = torch.float64, *, tied: bool = True) -> Any:
    return small_llama(dtype=dtype, tie_word_embeddings=tied)


def family(count: int = 8, seed: int = 0) -> list[TrainSequence]:
    """Sequences of which some begin alike."""
    rng = np.random.default_rng(seed)
    found = []
    for index in range(count):
        ids = np.array([index % 3, *rng.integers(0, VOCABULARY, rng.integers(2, 9))])
        trained = np.array([False, True, *(rng.random(len(ids) - 2) < 0.5)])
        advantage, behaviour = np.full(len(ids), rng.normal()), -rng.random(len(ids))
        found.append(TrainSequence(token_ids=ids, trained=trained, advantage=advantage, behaviour=behaviour))
    return found


def batch(dtype: torch.dtype = torch.float64, *, seed: int = 0, minibatches: int = 1) -> Batch:
    return build(family(seed=seed), dtype=dtype, minibatches=minibatches)


def stirred(learner: Learner, seed: int = 1) -> Learner:
    """The learner with an adapter that has an effect."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in learner.parameters.values():
        parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return learner


def plain_weights(learner: Learner, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights that the adapter stands for, by the formula: W + alpha / rank * B A."""
    found = {name: tensor.detach().clone() for name, tensor in tiny(learner.dtype).named_parameters()}
    for name, first in tensors.items():
        if ".lora_A." in name:
            second = tensors[name.replace(".lora_A.", ".lora_B.")]
            target = name.split(".lora_A.")[0] + ".weight"
            found[target] = found[target] + 6.0 / 2 * second @ first
    return found


def logits_of(model: Any, ids: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0]
    return found


IDS = [1, 4, 2, 9, 9, 0, 12]


def test_the_first_policy_is_the_base_exactly() -> None:
    assert torch.equal(logits_of(Learner(tiny(), lora=LORA).model, IDS), logits_of(tiny(), IDS))


def test_the_adapter_is_a_function_of_its_seed_and_moves_no_other_generator() -> None:
    before = torch.get_rng_state()
    first, again, other = (Learner(tiny(), lora=dataclasses.replace(LORA, seed=seed)).parameters for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert {name: torch.equal(first[name], other[name]) for name in first} == {
        name: ".lora_B." in name for name in first
    }


def test_only_the_adapter_trains() -> None:
    learner = Learner(tiny(), lora=LORA, weight_decay=0.1)
    assert len(learner.parameters) == 2 * 2 * 7  # A and B of seven layers in two blocks
    assert all(".lora_A." in name or ".lora_B." in name for name in learner.parameters)
    base = {name: tensor.clone() for name, tensor in learner.model.named_parameters() if name not in learner.parameters}
    learner.step(batch(), SETTINGS)
    after = dict(learner.model.named_parameters())
    assert base and all(torch.equal(after[name], tensor) and after[name].grad is None for name, tensor in base.items())
    assert all(parameter.any() for parameter in learner.parameters.values())


@pytest.mark.parametrize("reference", [None, "initial", "ema"])
def test_the_gradient_is_that_of_the_formula(reference: Any) -> None:
    """One sequence after the other, one token after the other, through the weights that the adapter stands for."""
    learner = Learner(tiny(), lora=LORA, reference=reference)
    start = {name: parameter.data.clone() for name, parameter in learner.parameters.items()}
    stirred(learner)
    setting = dataclasses.replace(SETTINGS, kl_weight=0.5 if reference else 0.0)
    if reference == "ema":
        assert learner.reference is not None
        learner.reference.follow(0.25)
        start = {name: 0.25 * start[name] + 0.75 * parameter.data for name, parameter in learner.parameters.items()}
    tensors = {name: parameter.data.clone().requires_grad_() for name, parameter in learner.parameters.items()}
    model, weights = tiny(), plain_weights(learner, tensors)
    slow_weights = plain_weights(learner, start)
    total = torch.zeros((), dtype=torch.float64)
    for one in family():
        inputs = {"input_ids": torch.from_numpy(one.token_ids)[None], "use_cache": False}
        rows = torch.log_softmax(functional_call(model, weights, (), inputs).logits[0] / setting.temperature, -1)
        slow = torch.log_softmax(functional_call(model, slow_weights, (), inputs).logits[0] / setting.temperature, -1)
        for at in np.flatnonzero(one.trained):
            row = rows[at - 1]
            total = total - one.advantage[at] * row[one.token_ids[at]]
            total = total + setting.entropy_weight * (row.exp() * row).sum()
            total = total + setting.kl_weight * (row.exp() * (row - slow[at - 1])).sum()
    (total / setting.divisor).backward()  # type: ignore[no-untyped-call]
    learner.accumulate(batch(), setting)
    for name, parameter in learner.parameters.items():
        expected = tensors[name].grad
        assert expected is not None and parameter.grad is not None
        # transformers computes RMSNorm in float32 even for float64 models, hence not closer
        assert float((parameter.grad - expected).norm()) < 1e-6 * max(1.0, float(expected.norm())), name


def test_no_dropout_anywhere() -> None:
    learner = stirred(Learner(tiny(), lora=LORA))
    first = logits_of(learner.model, IDS)
    assert torch.equal(logits_of(learner.model.train(), IDS), first)
    with pytest.raises(TypeError, match="dropout"):
        LoraSettings(rank=2, dropout=0.1)  # type: ignore[call-arg]


@pytest.mark.parametrize("tied", [True, False])
def test_the_merged_model_equals_base_and_adapter(tied: bool, tmp_path: Path) -> None:
    learner = stirred(Learner(tiny(torch.float32, tied=tied), lora=LORA))
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    learner.save(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert saved.keys() == dict(tiny(tied=tied).named_parameters()).keys()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = logits_of(learner.model, IDS)
    assert float((logits_of(loaded, IDS) - expected).abs().max()) < 5e-5
    assert float((logits_of(tiny(torch.float32, tied=tied), IDS) - expected).abs().max()) > 0.1
    after = learner.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_saved_adapter_is_one_for_peft(tmp_path: Path) -> None:
    from peft import PeftModel

    base, folder = tmp_path / "base", tmp_path / "adapter"
    folder.mkdir()
    tiny(torch.float32).save_pretrained(base)
    learner = stirred(Learner.load(base, lora=LORA))
    learner.save_adapter(folder, base)
    assert sorted(path.name for path in folder.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    assert (config["r"], config["lora_alpha"], config["lora_dropout"], config["bias"]) == (2, 6.0, 0.0, "none")
    names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == names
    loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), str(folder))
    assert torch.allclose(logits_of(loaded, IDS), logits_of(learner.model, IDS), atol=1e-6)
    assert learner.parameters["model.layers.0.self_attn.q_proj.lora_A.default.weight"].requires_grad


def test_a_learner_without_an_adapter_saves_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no adapter"):
        Learner(tiny()).save_adapter(tmp_path, tmp_path)


def test_an_engine_that_serves_the_base_or_the_merged_model_agrees(tiny_model: Path, tmp_path: Path) -> None:
    learner = Learner.load(tiny_model, lora=LoraSettings(rank=4, alpha=8.0))

    async def largest_gap(folder: Path) -> float:
        engine = TransformersEngine()
        await engine.publish("p", folder, 0)
        completion = await engine.generate([5, 6, 7], Sampling(max_new_tokens=12, temperature=0.9, seed=1), "p")
        await engine.close()
        own = learner.logprobs([5, 6, 7], completion.token_ids, 0.9)
        return float((own - torch.tensor(completion.logprobs)).abs().max())

    assert asyncio.run(largest_gap(tiny_model)) < 1e-5
    stirred(learner)
    learner.save(tmp_path)
    assert asyncio.run(largest_gap(tiny_model)) > 0.01
    assert asyncio.run(largest_gap(tmp_path)) < 1e-5


def snapshot(learner: Learner) -> dict[str, torch.Tensor]:
    return {f"{kind}/{name}": t.clone() for kind, group in learner.state().items() for name, t in group.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("reference", ["initial", "ema"])
def test_a_resumed_learner_ends_where_the_unbroken_one_does(reference: Any) -> None:
    setting = dataclasses.replace(SETTINGS, kl_weight=0.5, epochs=2, loss=ppo_clip)

    def steps(learner: Learner, seeds: Sequence[int]) -> None:
        for seed in seeds:
            learner.step(batch(seed=seed, minibatches=2), setting)

    unbroken, first, second = (Learner(tiny(), lora=LORA, reference=reference, weight_decay=0.1) for _ in range(3))
    steps(unbroken, range(4))
    steps(first, range(2))
    saved = {kind: {n: t.clone() for n, t in group.items()} for kind, group in first.state().items()}
    assert set(saved) == {"model", "optimizer"} | ({"anchor"} if reference == "ema" else set())
    assert all(".lora_" in name for group in saved.values() for name in group)
    second.load_state(saved)
    steps(second, (2, 3))
    assert same(snapshot(second), snapshot(unbroken))


def test_a_failure_halfway_takes_the_adapter_back() -> None:
    learner = stirred(Learner(tiny(), lora=LORA, reference="ema"))
    before, calls = snapshot(learner), []

    def sour(logprobs: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(1)
        return ppo_clip(logprobs, *rest) * (float("inf") if len(calls) == 3 else 1.0)

    with pytest.raises(TrainingError, match="the weights were left alone"):
        learner.step(batch(minibatches=2), dataclasses.replace(SETTINGS, loss=sour))
    assert same(snapshot(learner), before)


@pytest.mark.parametrize("other", [None, LoraSettings(rank=4), LoraSettings(rank=2, targets="q_proj")])
def test_the_state_of_another_adapter_is_refused(other: LoraSettings | None) -> None:
    with pytest.raises(TrainingError, match="the checkpoint's model is of another model: tensor"):
        Learner(tiny(), lora=LORA).load_state(Learner(tiny(), lora=other).state())


@pytest.mark.parametrize("targets", ["q_proj,v_proj", " q_proj , v_proj ", "self_attn.q_proj,self_attn.v_proj"])
def test_chosen_targets(targets: str) -> None:
    names = Learner(tiny(), lora=LoraSettings(rank=2, targets=targets)).parameters
    assert {name.split(".")[4] for name in names} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("targets", ["q_proj,query", "proj", "lm_head", "", "embed_tokens"])
def test_unknown_targets_are_refused_with_what_there_is(targets: str) -> None:
    says = r"lora_targets: LlamaForCausalLM has no linear layer '\w*' .*all-linear, or some of down_proj, gate_proj, k_"
    with pytest.raises(UsageError, match=says):
        Learner(tiny(), lora=LoraSettings(rank=2, targets=targets))


@pytest.mark.parametrize("settings", [{"rank": 0}, {"rank": 2, "alpha": 0.0}, {"rank": 2, "alpha": float("nan")}])
def test_sizes_that_cannot_work_are_refused(settings: Any) -> None:
    with pytest.raises(UsageError):
        LoraSettings(**settings)


def test_the_base_still_multiplies_by_onednn(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner.load(smollm2, lora=LoraSettings(rank=8))
    layer = learner.model.model.layers[0].mlp.up_proj
    assert isinstance(layer.base_layer, OneDnnLinear)
    output = layer(torch.randn(4, layer.in_features, requires_grad=True))
    nodes, found = [output.grad_fn], set()
    while nodes:
        node = nodes.pop()
        found.add(node.name())
        nodes += [parent for parent, _ in node.next_functions if parent is not None]
    assert "_ProductBackward" in found


def test_without_peft_the_extra_is_named() -> None:
    program = (
        "import sys; sys.modules['peft'] = None\n"
        "from llm_arena.training.lora import Adapter, LoraSettings\n"
        "from llm_arena.errors import MissingExtra\n"
        "try: Adapter(None, LoraSettings(rank=1))\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert 'pip install "llm-arena[train]"' in done.stdout, done.stderr
    assert issubclass(MissingExtra, ImportError)
