"""Saved states and copies of an episode, for every game without code of its own.

An episode is its spec, its seed and its actions, so a state is these, and to load one is to play the actions again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec
import numpy as np

from llm_arena.bookkeeping import AECBooks
from llm_arena.errors import UsageError
from llm_arena.types import Ending, EnvSpec, Json, Reply


class SavedBooks(AECBooks):
    """Books that can be saved, loaded, cloned and pickled."""

    spec: EnvSpec
    _given: dict[str, Json]
    "Keyword arguments that the env was made with."

    def save_state(self) -> dict[str, Json]:
        """Returns the episode as JSON: spec, seed, actions, and the stream that later resets draw from."""
        return {
            "spec": msgspec.to_builtins(self.spec),
            "seed": self.episode_seed,
            "history": [] if self.episode_seed is None else list(self._history),
            # 128-bit integers don't survive every JSON reader as numbers
            "stream": _stream_to_json(self.stream),
        }

    def load_state(self, state: Mapping[str, Json]) -> None:
        """Goes to a saved state by playing its actions again.

        Raises:
            UsageError: the state was saved by an env with another spec.
        """
        mine = msgspec.to_builtins(self.spec)
        if state["spec"] != mine:
            raise UsageError(f"the state was saved by {state['spec']}, this env is {mine}; make one from that spec")
        if state["seed"] is not None:
            self.reset(seed=state["seed"])
            for entry in state["history"]:
                if entry is None:
                    self.step(None)
                elif isinstance(entry, dict):
                    self.truncate(Ending(entry["truncate"]), entry["seat"])
                else:
                    self.step(Reply(*entry))
        self._stream = _stream_from_json(state["stream"])

    def clone(self) -> Self:
        """Returns an independent env in the same state."""
        other = type(self)(**self._given)
        other.load_state(self.save_state())
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._given, self.save_state())


def _rebuild(cls: type[SavedBooks], kwargs: dict[str, Json], state: dict[str, Json]) -> SavedBooks:
    env = cls(**kwargs)
    env.load_state(state)
    return env


def _stream_to_json(stream: np.random.Generator) -> dict[str, str]:
    state = stream.bit_generator.state
    return {
        "state": hex(state["state"]["state"]),
        "inc": hex(state["state"]["inc"]),
        "has_uint32": str(state["has_uint32"]),
        "uinteger": str(state["uinteger"]),
    }


def _stream_from_json(saved: Mapping[str, str]) -> np.random.Generator:
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": int(saved["state"], 16), "inc": int(saved["inc"], 16)},
        "has_uint32": int(saved["has_uint32"]),
        "uinteger": int(saved["uinteger"]),
    }
    return np.random.Generator(bits)
