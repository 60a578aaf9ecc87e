"""What an engine is: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec

from llm_arena.types import Completion, Json


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How one completion is sampled. Pure temperature sampling, so that the recorded logprobs are the policy's."""

    max_new_tokens: int
    temperature: float = 1.0
    "0 means greedy; then the recorded log-probability is that of the plain softmax (temperature 1)."
    stop_ids: tuple[int, ...] = ()
    "Sampling one of these ends the completion; the id itself is kept, with its logprob."
    seed: int = 0
    "64-bit seed of this completion alone: the same ids come out whatever else is in the batch."
    grammar: Json = None
    """What the text may be: a regular expression (str) that all of it matches, or a JSON schema (dict) of it; None for
    anything. Only where the text is complete may a stop id be sampled. The recorded logprobs are then those of the
    distribution over the allowed ids, and the completion says that it was guided."""


class Engine(Protocol):
    """Serves one or more policies, each a base model or an adapter under a version."""

    name: str
    max_context_tokens: int | None
    """Longest prompt and completion together that the engine takes; None: as long as the model itself."""
    takes_grammar: bool
    """Whether the engine keeps to `Sampling.grammar`; one that does not refuses such a request."""

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        """Samples one completion.

        Args:
            prompt_ids: all ids of the context [P], P >= 1.
            sampling: how to sample.
            policy: id of a policy that was published to this engine. Where an engine keeps older versions of an
                adapter, `NAME@3` is version 3 of `NAME`, unless a policy was published under just that id.

        Raises:
            EngineError: the engine failed or was closed.
            UnknownName: no such policy.
            UsageError: it takes no grammar, or not this one.
        """
        ...

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Takes the weights of `policy` from a safetensors model folder (or an adapter's), as version `version`.

        Completions that start after `publish` returns are sampled from the new weights.
        """
        ...

    async def forget(self, policy: str) -> None:
        """Drops a policy that was published, and frees its weights once its running requests have ended.

        New requests for it are refused at once. The id may be published anew.

        Raises:
            EngineError: its weights can't be dropped, for other policies need them; or the engine was closed.
            UnknownName: no such policy.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Returns what serves what, as JSON, for manifests: at least `engine`, `version` and `policies`."""
        ...

    async def close(self) -> None:
        """Releases weights, threads and processes. Closing twice is fine; waiting requests get `EngineError`."""
        ...
