"""A tiny model on the real vLLM, and what its log-probabilities should be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from llm_arena.engines.base import Sampling
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.models import random_model
from llm_arena.runtime import Runtime
from llm_arena.training.learner import Learner
from llm_arena.training.sync import Publisher
from llm_arena.types import Completion

PROMPTS = [[1, 3 + k % 4, *range(6, 46)] for k in range(8)]
"""Longer than a block of the prefix cache, and of few kinds, so that the cache is used."""
ADAPTERS = 7
"""More than vLLM has slots for."""


def model_folder(folder: Path, *, tied: bool, seed: int = 0) -> Path:
    words = [f"word{k}" for k in range(60)]
    return random_model(
        folder, words=words, hidden_size=64, heads=2, seed=seed, tie_word_embeddings=tied, initializer_range=0.15
    )


def adapter_folders(base: Path, folder: Path, count: int) -> list[Path]:
    """Adapters of a model that change it a lot."""
    torch.manual_seed(0)
    for number in range(count):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        settings = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(model, settings).save_pretrained(folder / str(number))
    return [folder / str(number) for number in range(count)]


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose output head is its embeddings, for tests that leave it as it is."""
    return model_folder(tmp_path_factory.mktemp("tied") / "model", tied=True)


@pytest.fixture(scope="session")
def adapters(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters of the tied model."""
    return adapter_folders(tied, tmp_path_factory.mktemp("adapters"), ADAPTERS)


def logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """The slow and obvious way: one forward pass over all, log-softmax, pick the ids."""
    whole = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        logits = model(input_ids=whole, use_cache=False).logits[0].double() / temperature
    picked = torch.log_softmax(logits, -1)[:-1].gather(-1, whole[0, 1:, None])[:, 0]
    return picked[len(prompt) - 1 :]


def gap(model: Any, completions: list[Completion], prompts: list[list[int]], temperature: float = 1.0) -> float:
    return max(
        float((logprobs(model, prompt, done.token_ids, temperature) - torch.tensor(done.logprobs)).abs().max())
        for prompt, done in zip(prompts, completions, strict=True)
    )


class Served:
    """An engine with a runtime, for synchronous tests."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.runtime = Runtime(engine=engine)

    @property
    def client(self) -> Any:
        """The client of vLLM, for tests that look behind the engine."""
        return self.engine._process.client

    def publish(self, policy: str, folder: Path, version: int) -> None:
        self.runtime.run(self.engine.publish(policy, folder, version))

    def ask(self, policies: list[str], *, temperature: float = 1.0, tokens: int = 8) -> list[Completion]:
        async def all_at_once() -> list[Completion]:
            wanted = [
                self.engine.generate(
                    prompt,
                    Sampling(max_new_tokens=tokens, temperature=temperature, seed=2**63 + k),
                    policies[k % len(policies)],
                )
                for k, prompt in enumerate(PROMPTS)
            ]
            return list(await asyncio.gather(*wanted))

        return self.runtime.run(all_at_once(), timeout=120)


def shake(learner: Learner) -> None:
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter.add_(torch.randn_like(parameter) * 0.05)


def check(publisher: Publisher, version: int) -> float:
    return publisher.check(PROMPTS[:4], temperature=1.0, seed=0, tolerance=1e-4, version=version)
