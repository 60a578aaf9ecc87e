"""Serves a model with vLLM, prints the engine's process id, and samples on whatever fails. Has no main guard."""

import asyncio
import sys
from pathlib import Path

from llm_arena.cli import guarded
from llm_arena.engines.base import Sampling
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.errors import EngineError
from llm_arena.runtime import Runtime


async def serve(engine: VllmEngine) -> None:
    await engine.publish("p", Path(sys.argv[1]), 0)
    print(engine.pid, flush=True)
    while True:
        calls = (engine.generate([1], Sampling(max_new_tokens=64, seed=k), "p") for k in range(4))
        for found in await asyncio.gather(*calls, return_exceptions=True):
            assert not isinstance(found, BaseException) or isinstance(found, EngineError)


def main() -> None:
    engine = VllmEngine()
    with Runtime(engine=engine) as runtime:
        runtime.run(serve(engine))


sys.exit(guarded(main))
