"""What does playing cost beside sampling? Tokens per second through the arena over raw vLLM on the same prompts.

    python benchmarks/rollout_overhead.py [--games 64] [--rounds 4]

Plays naming-v0 with one model in all seats on the vLLM engine, all games open at once: games, views, chat templates,
recording and all. Then the same prompts with the same seeds and token caps go straight to vLLM's own client, in the
same process, in its fastest documented setting for this (token ids in, no detokenization, final outputs only). Before
each pass the prefix cache is emptied; passes alternate. The figure of merit, `arena_over_raw`, is the median of the
arena's tokens per second over raw vLLM's. `--rounds 0` leaves this part out, and with it vLLM.

A second part has no model: the same chat format with an engine that answers at once, in several games. It tells how
many turns per second the arena could keep up with, and what one turn costs a core: in all, and in the game and the
recorder alone (the recorded replies, played once more without agents).

A third part has a server in a process of its own that answers at once over HTTP, as vLLM's would. It tells what a turn
costs a core in this process (`http_cpu_ms_per_turn`), and what the bare aiohttp client needs for the same requests and
replies, 64 at a time as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import tyro

from llm_arena.cli import guarded
from llm_arena.engines.base import Sampling
from llm_arena.engines.choose import vllm_version
from llm_arena.engines.http_dialects import request
from llm_arena.engines.openai_engine import OpenAIEngine
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.episode import counted_reply
from llm_arena.models import resolve_model
from llm_arena.problems.naming.topics import SPLITS
from llm_arena.recorder import Recorder, step_dead
from llm_arena.registry import make
from llm_arena.report.text import table_lines
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.types import Action, Completion, EnvSpec, Reply, Trace

TOPICS = SPLITS["train"]
HTTP_PASSES = 3
"""Passes over HTTP; the one that took the least CPU time counts."""

NULL_GAMES = {
    "kuhn-poker-v0": EnvSpec(id="kuhn-poker-v0", kwargs={"illegal": "random_legal"}),
    "naming-v0": EnvSpec(id="naming-v0", kwargs={"namers": 4, "topic": TOPICS[0]}),
    "debate-v0": EnvSpec(id="debate-v0"),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the benchmark."""

    model: str = "smollm2-135m"
    """A known model, a folder, or a hub id."""
    games: int = 64
    """Games that are open at once; contests of four names."""
    max_new_tokens: int = 32
    """Token cap of a reply."""
    rounds: int = 4
    """Passes of each kind through vLLM; the first of each is not counted."""
    null_games: int = 512
    """Games that are played with the engine that answers at once, of each kind."""


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
                spec=EnvSpec(id="naming-v0", kwargs={"namers": 4, "topic": TOPICS[k % len(TOPICS)]}),
                seed=k,
                agents={f"namer_{seat}": agent for seat in range(4)},
                run_seed=salt,
            )
            for k in range(self._settings.games)
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


class Instant:
    """An engine that answers every call at once with the same ids."""

    name = "instant"
    max_context_tokens: int | None = None
    takes_grammar = False

    def __init__(self, tokens: int) -> None:
        self._ids = list(range(1000, 1000 + tokens))
        self._logprobs = [-1.0] * tokens

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        """Returns the same ids each time, in lists of their own."""
        return Completion(token_ids=list(self._ids), logprobs=list(self._logprobs), finish="length")

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Takes no weights."""

    async def forget(self, policy: str) -> None:
        """Has none to drop."""

    def describe(self) -> dict[str, Any]:
        """Returns nothing but the name."""
        return {"engine": self.name, "version": "", "policies": []}

    async def close(self) -> None:
        """Holds nothing."""


def null(settings: Settings) -> list[dict[str, Any]]:
    """Plays with the engine that answers at once; returns what turns cost, game by game."""
    found = []
    with Runtime(engine=Instant(settings.max_new_tokens), max_open_episodes=settings.games) as runtime:
        agent = make_agent(f"llm:{settings.model}", runtime=runtime, max_new_tokens=settings.max_new_tokens)
        for name, spec in NULL_GAMES.items():
            seats = make(spec).possible_agents
            plans = [
                EpisodePlan(id=f"{k}", spec=spec, seed=k, agents=dict.fromkeys(seats, agent))
                for k in range(settings.null_games)
            ]
            runtime.run(play_many(plans[: settings.games], runtime))  # imports, caches
            began, cpu = time.perf_counter(), time.process_time()
            traces = runtime.run(play_many(plans, runtime))
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
            turns = sum(len(trace.turns) for trace in traces)
            assert not any(trace.void for trace in traces), f"a game of {name} is void"
            again = again_alone(traces)
            found.append(
                {
                    "game": name,
                    "turns_per_second": round(turns / seconds, 1),
                    "cpu_microseconds_per_turn": round(cpu / turns * 1e6, 1),
                    "game_and_recorder_microseconds_per_turn": round(again / turns * 1e6, 1),
                }
            )
    return found


def again_alone(traces: Sequence[Trace]) -> float:
    """Steps and records recorded turns once more, without agents; returns CPU seconds."""
    total = 0.0
    for trace in traces:
        actions = []
        for turn in trace.turns:
            prompt, sampled = trace.full_ids(turn.index)
            completion = Completion(token_ids=sampled, logprobs=turn.logprobs, finish="length")
            actions.append(Action(reply=Reply(turn.text, turn.finish), prompt_ids=prompt, completion=completion))
        began = time.process_time()
        env = make(trace.spec)
        env.reset(seed=trace.seed)
        recorder = Recorder(trace.id, trace.spec, trace.seed, trace.seats)
        for turn, action in zip(trace.turns, actions, strict=True):
            view, epoch = env.view(turn.seat), env.view_epoch(turn.seat)
            env.step(counted_reply(action))
            assert env.last_step is not None  # it has just been stepped
            recorder.add(view, epoch, action, env.last_step, 0.0)
            step_dead(env)
        recorder.finish(env)
        total += time.process_time() - began
    return total


@contextlib.contextmanager
def instant_server(settings: Settings) -> Iterator[str]:
    """Runs the server that answers at once; yields its address."""
    program = Path(__file__).with_name("instant_server.py")
    command = [sys.executable, str(program), settings.model, str(settings.max_new_tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None  # both are pipes
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
        child.stdin.close()


def over_http(settings: Settings) -> dict[str, Any]:
    """Plays against the server that answers at once; returns the CPU time of turns, and of their requests alone."""
    name, spec = next(iter(NULL_GAMES.items()))
    agents = make(spec).possible_agents
    with instant_server(settings) as url, Runtime(max_open_episodes=settings.games) as runtime:
        engine = OpenAIEngine(url)
        engine.serves(settings.model)
        chat = ChatFormat.load(resolve_model(settings.model))
        runtime.serve(settings.model, ServedPolicy(engine, settings.model, chat, 1 << 20))
        agent = make_agent(f"llm:{settings.model}", runtime=runtime, max_new_tokens=settings.max_new_tokens)
        plans = [
            EpisodePlan(id=f"{k}", spec=spec, seed=k, agents=dict.fromkeys(agents, agent))
            for k in range(settings.null_games)
        ]
        runtime.run(play_many(plans[: settings.games], runtime))  # imports, caches, connections
        played, alone = [], []
        for _ in range(HTTP_PASSES):
            cpu = time.process_time()
            traces = runtime.run(play_many(plans, runtime))
            played.append(time.process_time() - cpu)
            assert not any(trace.void for trace in traces), f"a game of {name} is void"
            sampling = Sampling(max_new_tokens=settings.max_new_tokens, stop_ids=chat.stop_ids)
            bodies = [
                request("vllm", settings.model, trace.full_ids(turn.index)[0], sampling)[1]
                for trace in traces
                for turn in trace.turns
            ]
            alone.append(runtime.run(bare(url, bodies, settings.games)))
        runtime.run(engine.close())
    return {
        "http_cpu_ms_per_turn": round(min(played) / len(bodies) * 1e3, 3),
        "bare_client_cpu_ms_per_turn": round(min(alone) / len(bodies) * 1e3, 3),
        "game": name,
        "turns": len(bodies),
    }


async def bare(url: str, bodies: Sequence[bytes], at_once: int) -> float:
    """Sends requests by aiohttp and nothing else, and reads the JSON of the replies; returns CPU seconds."""
    todo = iter(bodies)

    async def lane(session: aiohttp.ClientSession) -> None:
        for body in todo:
            headers = {"Content-Type": "application/json"}
            async with session.post(f"{url}/v1/completions", data=body, headers=headers) as response:
                msgspec.json.decode(await response.read())

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        cpu = time.process_time()
        await asyncio.gather(*(lane(session) for _ in range(at_once)))
        return time.process_time() - cpu


def against_raw(settings: Settings) -> dict[str, Any]:
    """Plays on vLLM and sends the same prompts to vLLM itself, in turns; prints a table and returns the medians."""
    with Runtime(engine="vllm", max_open_episodes=settings.games) as runtime:
        bench = Bench(settings, runtime)
        pairs = []
        for number in range(settings.rounds):
            traces, played = bench.rollout(number)
            pairs.append((played, bench.raw(traces, number)))
    counted = pairs[1:] or pairs
    rows = [("round", "arena tokens/s", "raw tokens/s", "ratio")]
    rows += [(str(k), f"{one:.0f}", f"{other:.0f}", f"{one / other:.3f}") for k, (one, other) in enumerate(pairs)]
    print("\n".join(table_lines(rows)), flush=True)
    return {
        "arena_over_raw": round(statistics.median(one / other for one, other in counted), 3),
        "arena_tokens_per_second": round(statistics.median(one for one, _ in counted), 1),
        "raw_tokens_per_second": round(statistics.median(other for _, other in counted), 1),
        "games": settings.games,
        "requests": 4 * settings.games,
        "max_new_tokens": settings.max_new_tokens,
        "rounds": len(counted),
        "vllm": vllm_version(),
    }


def main(argv: list[str] | None = None) -> int:
    """Measures, and prints tables and one line of JSON."""
    settings = tyro.cli(Settings, args=argv, prog="rollout_overhead", description=__doc__)
    found = null(settings)
    rows = [("game, engine that answers at once", "turns/s", "CPU us/turn", "game and recorder")]
    rows += [
        (
            str(row["game"]),
            f"{row['turns_per_second']:.0f}",
            f"{row['cpu_microseconds_per_turn']:.0f}",
            f"{row['game_and_recorder_microseconds_per_turn']:.0f}",
        )
        for row in found
    ]
    print("\n".join(table_lines(rows)), flush=True)
    http = over_http(settings)
    costs = [("over HTTP, all of a turn", "the bare client", "game")]
    costs += [(f"{http['http_cpu_ms_per_turn']} ms", f"{http['bare_client_cpu_ms_per_turn']} ms", str(http["game"]))]
    print("\n".join(table_lines(costs)), flush=True)
    figures = against_raw(settings) if settings.rounds else {}
    print(json.dumps({**figures, "model": settings.model, "null": found, "http": http}))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
