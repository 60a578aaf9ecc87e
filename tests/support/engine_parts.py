"""What several tests of the engines share."""

import asyncio
import shutil

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from llm_arena.engines.base import Sampling
from llm_arena.engines.batching import BatchingEngine
from llm_arena.engines.transformers_engine import TransformersEngine
from llm_arena.types import Completion

STOP = 2
"""The end token of the tiny model."""


def load(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def full_pass(model, prompt, completion, temperature=1.0):
    """Logprobs of the sampled ids by one plain forward pass over the whole sequence [T]."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].float()
    logprobs = torch.log_softmax(logits / temperature, -1)[len(prompt) - 1 : -1]
    return logprobs[torch.arange(len(completion.token_ids)), completion.token_ids].tolist()


def gap(model, prompt, completion, temperature=1.0):
    reference = full_pass(model, prompt, completion, temperature)
    return max((abs(a - b) for a, b in zip(reference, completion.logprobs, strict=True)), default=0.0)


def run(folder, work, **kwargs):
    """Runs `work(engine)` with the policy `p` published."""

    async def main():
        engine = TransformersEngine(**kwargs)
        try:
            await engine.publish("p", folder, 7)
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def prompts(count, seed=0, longest=30):
    generator = np.random.default_rng(seed)
    return [generator.integers(3, 100, generator.integers(1, longest)).tolist() for _ in range(count)]


def sampling(seed=0, new=12, stop=(STOP,), temperature=1.0):
    return Sampling(max_new_tokens=new, temperature=temperature, stop_ids=stop, seed=seed)


def changed(folder, target, factor):
    """A copy of the model with other weights."""
    shutil.copytree(folder, target)
    weights = {name: tensor * factor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


class Toy(BatchingEngine):
    """Answers with the length of the batch; rows whose prompt starts with 13 make it fail."""

    name = "toy"

    def __init__(self, *, lockstep=None, max_batch_rows=64, gate=None):
        super().__init__(lockstep=lockstep, max_batch_rows=max_batch_rows)
        self.batches, self.gate, self.released = [], gate, 0

    def _load(self, policy, directory):
        pass

    def _check(self, policy, prompt_ids, sampling):
        pass

    def _release(self):
        self.released += 1

    def _sample(self, policy, rows):
        if self.gate is not None:
            self.gate.wait(10)
        self.batches.append([(policy, row.prompt_ids, row.sampling.seed) for row in rows])
        if any(row.prompt_ids[0] == 13 for row in rows):
            raise ValueError("boom")
        return [Completion(token_ids=[len(rows)], logprobs=[-1.0], finish="length") for row in rows]


async def toy(**kwargs):
    engine = Toy(**kwargs)
    await engine.publish("p", ".", 1)
    await engine.publish("q", ".", 2)
    return engine
