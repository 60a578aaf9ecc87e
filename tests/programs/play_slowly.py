"""Plays many episodes with a slow agent, to be interrupted. Usage: play_slowly.py FILE SIGNALS.

With SIGNALS = 2 the agent takes a minute to notice that it is cancelled.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import llm_arena
from llm_arena.rollout import EpisodePlan, play_many
from llm_arena.types import Action, Reply


class Slow:
    """Takes its time; a stubborn one takes it also when it is cancelled."""

    name = "slow"
    policy = None

    async def act(self, view, past):
        """Plays the first legal action, after a while."""
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            if sys.argv[2] == "2":
                print("interrupted", flush=True)
                await asyncio.sleep(60)
            raise
        return Action(reply=Reply(view.legal_actions[0]))


def _record(trace):
    writer.write(trace)
    print("finished", trace.id, flush=True)


spec = llm_arena.make("kuhn-poker-v0").spec
agents = dict.fromkeys(["player_0", "player_1"], Slow())
plans = [EpisodePlan(id=str(seed), spec=spec, seed=seed, agents=agents) for seed in range(1000)]
with llm_arena.TraceWriter(sys.argv[1]) as writer:
    try:
        with llm_arena.Runtime(max_open_episodes=4) as runtime:
            runtime.run(play_many(plans, runtime, on_trace=_record))
    except KeyboardInterrupt:
        print("threads:", [thread.name for thread in threading.enumerate()], flush=True)
        sys.exit(130)
