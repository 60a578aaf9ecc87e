"""Games for language models: play them, train on them, rank models with them.

Example:
    >>> import llm_arena
    >>> env = llm_arena.make("naming-v0", namers=4, topic="coffee shop")  # a PettingZoo AEC env
    >>> trace = llm_arena.play("kuhn-poker-v0", agents="random-legal", seed=0)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from llm_arena import startup  # noqa: F401  # before all that takes long to import
from llm_arena.env import ArenaEnv
from llm_arena.errors import ArenaError
from llm_arena.parsing import IllegalReply, read_choice
from llm_arena.registry import make, pprint_registry, register, registry, spec
from llm_arena.types import Cause, Ending, EnvSpec, Move, Outcome, Reply, Trace, Turn, View

if TYPE_CHECKING:
    from llm_arena.adapters.token_env import token_env
    from llm_arena.boards.cross_play import cross_play
    from llm_arena.boards.evaluate import evaluate
    from llm_arena.checks import check_env
    from llm_arena.engines.settings import EngineSettings
    from llm_arena.export import export_traces
    from llm_arena.game_tree import exploitability
    from llm_arena.recorder import replay, sequences, verify
    from llm_arena.rescore import rescore_traces
    from llm_arena.rollout import aplay, play, play_many
    from llm_arena.roster import make_agent
    from llm_arena.runtime import Runtime
    from llm_arena.trace_file import TraceWriter, read_traces

__version__ = "0.1.0"

_LAZY = {
    "EngineSettings": "engines.settings",
    "Runtime": "runtime",
    "TraceWriter": "trace_file",
    "aplay": "rollout",
    "check_env": "checks",
    "cross_play": "boards.cross_play",
    "evaluate": "boards.evaluate",
    "exploitability": "game_tree",
    "export_traces": "export",
    "make_agent": "roster",
    "play": "rollout",
    "play_many": "rollout",
    "read_traces": "trace_file",
    "replay": "recorder",
    "rescore_traces": "rescore",
    "sequences": "recorder",
    "token_env": "adapters.token_env",
    "verify": "recorder",
}


def __getattr__(name: str) -> Any:
    """Imports what only some users need when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'llm_arena' has no attribute {name!r}")
    return getattr(importlib.import_module(f"llm_arena.{_LAZY[name]}"), name)


__all__ = [
    "ArenaEnv",
    "ArenaError",
    "Cause",
    "Ending",
    "EngineSettings",
    "EnvSpec",
    "IllegalReply",
    "Move",
    "Outcome",
    "Reply",
    "Runtime",
    "Trace",
    "TraceWriter",
    "Turn",
    "View",
    "aplay",
    "check_env",
    "cross_play",
    "evaluate",
    "exploitability",
    "export_traces",
    "make",
    "make_agent",
    "play",
    "play_many",
    "pprint_registry",
    "read_choice",
    "read_traces",
    "register",
    "registry",
    "replay",
    "rescore_traces",
    "sequences",
    "spec",
    "token_env",
    "verify",
]
