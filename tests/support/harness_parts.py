"""What several tests of harnesses share."""

from __future__ import annotations

import asyncio
from typing import Any

import llm_arena
from llm_arena.errors import ContextOverflow, EngineError
from llm_arena.types import Action, Reply, Trace


class Echo:
    """Answers with the number of messages, its last message's first word and its own number of calls; notes views.

    A last message that begins with `fail`, `overflow` or `slow` does that.
    """

    policy = None

    def __init__(self, name: str = "echo") -> None:
        self.name = name
        self.views: list[Any] = []
        self.pasts: list[Any] = []

    async def act(self, view: Any, past: Any) -> Action:
        self.views.append(view)
        self.pasts.append(past)
        first, *rest = str(view.messages[-1]["content"]).split() or [""]
        if first == "slow":
            await asyncio.sleep(float(rest[0]))
        if first == "fail":
            raise RuntimeError("the agent broke")
        if first == "engine":
            raise EngineError("the cable is out")
        if first == "overflow":
            raise ContextOverflow("too long")
        return Action(reply=Reply(f"{first} {len(view.messages)}"))


def run(function: Any, agents: Any = None, seed: int = 0, **more: Any) -> Trace:
    return llm_arena.play(harness=function, agents=agents or Echo(), seed=seed, **more)


def seats(trace: Trace) -> list[str]:
    return [turn.seat for turn in trace.turns]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
