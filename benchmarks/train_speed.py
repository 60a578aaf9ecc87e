"""What sharing prefixes saves the learner: gradients of the same batch with and without it, timed by turns.

    python benchmarks/train_speed.py

A model of SmolLM2-135M's shape with random weights computes the gradient of three batches:

- `dialogue`: one conversation of 10 turns whose template strips the thinking from history, so that each turn is a
  sequence of its own which shares a stem with the others.
- `groups`: 8 prompts with 8 completions each.
- `naming`: 8 topics with 4 names each, as in the demo.

Without sharing every sequence is a row of its own, rows of similar length are padded together, and attention is plain
and causal; `alone` puts each into a forward pass of its own, without padding. The faster of the two is what the trees
are compared with. The token budget is the same, and both run the head at trained positions only. Making the batch is
part of the time, the optimizer is not. The order of the variants changes from round to round; medians are reported.

The ideal speed-up is the ratio of all tokens to unique ones, and the efficiency is the measured speed-up by the ideal.
The last line is JSON. Peak memory is the process's, above what it holds between the runs, as Linux counts it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from llm_arena.engines.onednn import use_onednn
from llm_arena.training.batch import Batch, TrainSequence, build
from llm_arena.training.learner import Learner
from llm_arena.training.objective import StepSettings

VOCABULARY = 49152
Ids = NDArray[np.int64]


def main() -> None:
    """Measures all batches and prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="gradients of each batch by each variant")
    parser.add_argument("--layers", type=int, default=30, help="fewer than SmolLM2's 30 for a quick look")
    parser.add_argument("--token-budget", type=int, default=2048)
    parser.add_argument("--only", choices=[*BATCHES], help="one batch instead of all")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    learner = Learner(_model(options.layers))
    learner.accumulate(build(_naming()[:1]), StepSettings(lr=0.0, divisor=1.0))  # makes the gradients' memory
    report = {}
    for name in [options.only] if options.only else BATCHES:
        report[name] = _compare(learner, BATCHES[name](), options.rounds, options.token_budget)
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in report[name].items()), flush=True)
    print(
        json.dumps(
            {
                "trie_efficiency_min": min(one["efficiency"] for one in report.values()),
                "batches": report,
                "settings": vars(options),
                "versions": {
                    "python": platform.python_version(),
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "machine": platform.machine(),
                },
            }
        )
    )


def _model(layers: int) -> Any:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    use_onednn(model)
    return model


def _dialogue() -> list[TrainSequence]:
    rng = np.random.default_rng(0)
    history, found = _ids(rng, 150), []
    for _ in range(10):
        thinking, answer = _ids(rng, 60), _ids(rng, 30)
        found.append(_sequence(rng, history, np.concatenate([thinking, answer])))
        history = np.concatenate([history, answer, _ids(rng, 40)])
    return found


def _groups() -> list[TrainSequence]:
    rng = np.random.default_rng(1)
    prompts = [_ids(rng, 96) for _ in range(8)]
    return [_sequence(rng, prompt, _ids(rng, int(rng.integers(16, 33)))) for prompt in prompts for _ in range(8)]


def _naming() -> list[TrainSequence]:
    rng = np.random.default_rng(2)
    rules = _ids(rng, 60)
    prompts = [np.concatenate([rules, _ids(rng, 36)]) for _ in range(8)]
    return [_sequence(rng, prompt, _ids(rng, int(rng.integers(4, 13)))) for prompt in prompts for _ in range(4)]


BATCHES: dict[str, Callable[[], list[TrainSequence]]] = {"dialogue": _dialogue, "groups": _groups, "naming": _naming}


def _ids(rng: np.random.Generator, count: int) -> Ids:
    return rng.integers(0, VOCABULARY, count)


def _sequence(rng: np.random.Generator, prompt: Ids, sampled: Ids) -> TrainSequence:
    length = len(prompt) + len(sampled)
    return TrainSequence(
        token_ids=np.concatenate([prompt, sampled]),
        trained=np.arange(length) >= len(prompt),
        advantage=np.full(length, rng.normal()),
        behaviour=np.full(length, -10.0),
    )


def _compare(learner: Learner, sequences: list[TrainSequence], rounds: int, token_budget: int) -> dict[str, Any]:
    variants: dict[str, Callable[[], Batch]] = {
        "tree": lambda: build(sequences, token_budget=token_budget),
        "padded": lambda: build(sequences, token_budget=token_budget, max_row_tokens=1),
        "alone": lambda: build(sequences, token_budget=1, max_row_tokens=1),
    }
    settings = StepSettings(lr=0.0, divisor=1.0)
    batch = build(sequences)
    peak: dict[str, int] = {}
    for name, make in variants.items():  # not timed: memory that was given back is slow to get again
        learner.optimizer.zero_grad(set_to_none=False)
        before = _reset_peak()
        learner.accumulate(make(), settings)
        peak[name] = _memory("VmHWM") - before
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds):
        for name in [*variants][turn % 3 :] + [*variants][: turn % 3]:
            learner.optimizer.zero_grad(set_to_none=False)
            wall, cpu = time.perf_counter(), time.process_time()
            learner.accumulate(variants[name](), settings)
            seconds[name].append(time.perf_counter() - wall)
            cpu_seconds[name].append(time.process_time() - cpu)
    taken = {name: statistics.median(values) for name, values in seconds.items()}
    worked = {name: statistics.median(values) for name, values in cpu_seconds.items()}
    speedup = min(taken["padded"], taken["alone"]) / taken["tree"]
    ideal = 1 / batch.unique_ratio
    return {
        "efficiency": round(speedup / ideal, 3),
        "speedup": round(speedup, 2),
        "ideal": round(ideal, 2),
        "cpu_efficiency": round(min(worked["padded"], worked["alone"]) / worked["tree"] / ideal, 3),
        "seconds": {name: round(value, 2) for name, value in taken.items()},
        "cpu_seconds": {name: round(value, 2) for name, value in worked.items()},
        "peak_mb": peak,
        "tokens": {"all": batch.total_tokens, "unique": batch.unique_tokens, "computed": batch.computed_tokens},
    }


def _reset_peak() -> int:
    """Sets the process's peak memory back to what it really holds, and returns that in MB."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # else what an earlier run has freed would still count
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(field: str) -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) >> 10


if __name__ == "__main__":
    main()
