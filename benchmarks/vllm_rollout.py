"""What does playing cost beside sampling? Rollout tokens per second against raw vLLM on the same prompts.

    python benchmarks/vllm_rollout.py --rounds 6

Plays naming-v0 with one model in all seats on the vLLM engine, all episodes at once: games, views, chat templates,
recording and all. Then the same prompts with the same seeds and token caps go straight to vLLM's own client, in the
same process, in its fastest documented setting for this (token ids in, no detokenization, final outputs only). Before
each pass the prefix cache is emptied; passes alternate. The figure of merit is the median of rollout over raw.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tyro

from llm_arena.cli import guarded
from llm_arena.engines.choose import vllm_version
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.problems.naming.topics import SPLITS
from llm_arena.report.text import table_lines
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime
from llm_arena.types import EnvSpec, Trace


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    model: str = "smollm2-135m"
    """A known model, a folder, or a hub id."""
    episodes: int = 16
    """Contests of four names, all at once."""
    max_new_tokens: int = 32
    """Token cap of a name."""
    rounds: int = 6
    """Passes of each kind; the first of each is not counted."""


class Bench:
    """Both ways of sampling, on one engine."""

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self._settings = settings
        self._runtime = runtime
        served = runtime.run(runtime.policy(settings.model))
        assert isinstance(served.engine, VllmEngine)
        self._client: Any = served.engine._process.client
        self._stop = list(served.chat.stop_ids)

    def rollout(self, salt: int) -> tuple[list[Trace], float]:
        """Plays; returns the traces and tokens per second."""
        agent = make_agent(
            f"llm:{self._settings.model}", runtime=self._runtime, max_new_tokens=self._settings.max_new_tokens
        )
        plans = [
            EpisodePlan(
                id=f"{salt}-{k}",
                spec=EnvSpec(id="naming-v0", kwargs={"namers": 4, "topic": SPLITS["train"][k % len(SPLITS["train"])]}),
                seed=k,
                agents={f"namer_{seat}": agent for seat in range(4)},
                run_seed=salt,
            )
            for k in range(self._settings.episodes)
        ]
        self._runtime.run(self._client.reset_prefix_cache())
        began = time.perf_counter()
        traces = self._runtime.run(play_many(plans, self._runtime))
        seconds = time.perf_counter() - began
        return traces, sum(len(turn.completion_ids) for trace in traces for turn in trace.turns) / seconds

    def raw(self, traces: Sequence[Trace], salt: int) -> float:
        """Sends the prompts of the traces to vLLM itself; returns tokens per second."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompts = [trace.full_ids(turn.index)[0] for trace in traces for turn in trace.turns]

        async def one(number: int, prompt: list[int]) -> int:
            params = SamplingParams(
                max_tokens=self._settings.max_new_tokens,
                temperature=1.0,
                seed=salt * 1000 + number,
                stop_token_ids=self._stop,
                ignore_eos=True,
                logprobs=0,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            tokens = 0
            async for output in self._client.generate({"prompt_token_ids": prompt}, params, f"raw-{salt}-{number}"):
                tokens = len(output.outputs[0].token_ids)
            return tokens

        async def all_at_once() -> int:
            return sum(await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts))))

        self._runtime.run(self._client.reset_prefix_cache())
        began = time.perf_counter()
        tokens = self._runtime.run(all_at_once())
        return tokens / (time.perf_counter() - began)


def main(argv: list[str] | None = None) -> int:
    """Measures, and prints a table and one line of JSON."""
    settings = tyro.cli(Settings, args=argv, prog="vllm_rollout", description=__doc__)
    with Runtime(engine="vllm", max_open_episodes=settings.episodes) as runtime:
        bench = Bench(settings, runtime)
        pairs = []
        for number in range(settings.rounds):
            traces, played = bench.rollout(number)
            pairs.append((played, bench.raw(traces, number)))
    counted = pairs[1:] or pairs
    rows = [("round", "rollout tokens/s", "raw tokens/s", "ratio")]
    rows += [(str(k), f"{one:.0f}", f"{other:.0f}", f"{one / other:.3f}") for k, (one, other) in enumerate(pairs)]
    print("\n".join(table_lines(rows)))
    figures = {
        "rollout_over_raw": round(statistics.median(one / other for one, other in counted), 3),
        "rollout_tokens_per_second": round(statistics.median(one for one, _ in counted), 1),
        "raw_tokens_per_second": round(statistics.median(other for _, other in counted), 1),
        "requests": 4 * settings.episodes,
        "vllm": vllm_version(),
        "model": settings.model,
    }
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
