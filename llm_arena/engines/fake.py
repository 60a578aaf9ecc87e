"""A deterministic engine without a model: for tests, and for trying out games and training code."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from llm_arena.engines.base import Sampling
from llm_arena.errors import EngineError, UnknownName, UsageError, did_you_mean
from llm_arena.types import Completion

Script = Callable[[list[int], Sampling], Sequence[int]]
"""From (prompt ids, sampling) to the ids that are to come out."""


class FakeEngine:
    """Answers with ids from a hash of (prompt ids, policy version, sampling seed), or from a script.

    The ids do not depend on call order or on what else runs, so runs with any number of workers are equal.
    Log-probabilities come from the same hash and lie in (-5, 0).

    Args:
        script: a function from (prompt ids, sampling) to ids, or a list of id lists that is used up in order of the
            calls; None for hashed ids. A function is shown the grammar, if there is one, and trusted to keep to it.
        seed: changes all hashed ids.
        vocab_size: hashed ids are below it; a published folder's `config.json` sets it.
        delay: seconds that every call takes.
        policies: policies that are served from the start, as version 0; others have to be published.
    """

    name = "fake"
    max_context_tokens: int | None = None

    def __init__(
        self,
        script: Script | Iterable[Sequence[int]] | None = None,
        *,
        seed: int = 0,
        vocab_size: int = 256,
        delay: float = 0.0,
        policies: Iterable[str] = (),
    ) -> None:
        self._script = script if callable(script) else None
        self._lines = None if script is None or callable(script) else iter(list(script))
        self._seed = seed
        self._vocab_size = vocab_size
        self._delay = delay
        self._versions = dict.fromkeys(policies, 0)
        self._closed = False
        self.takes_grammar = callable(script)
        """Whether there is a function that a grammar can be shown to."""
        self.calls: list[tuple[str, list[int], Sampling]] = []
        """Every call so far: (policy, prompt ids, sampling)."""

    def describe(self) -> dict[str, Any]:
        """Returns the policies that were published."""
        return {"engine": self.name, "version": "", "policies": sorted(self._versions)}

    async def generate(self, prompt_ids: list[int], sampling: Sampling, policy: str) -> Completion:
        """Answers from the script or the hash; see `Engine.generate`."""
        if self._closed:
            raise EngineError("the fake engine is closed")
        if policy not in self._versions:
            raise UnknownName(f"no policy {policy!r} was published.{did_you_mean(policy, self._versions)}")
        if sampling.grammar is not None and not self.takes_grammar:
            raise UsageError("the fake engine keeps to a grammar only if its script is a function that does")
        version = self._versions[policy]
        self.calls.append((policy, list(prompt_ids), sampling))
        await asyncio.sleep(self._delay)
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._seed, version, sampling.seed, prompt_ids]).encode())
        if self._script is not None:
            ids = [int(token) for token in self._script(list(prompt_ids), sampling)]
        elif self._lines is not None:
            line = next(self._lines, None)
            if line is None:
                raise EngineError("the script of the fake engine has no more lines")
            ids = [int(token) for token in line]
        else:
            ids = self._hashed(digest, sampling)
        ids = ids[: sampling.max_new_tokens]
        logprobs = [-5.0 * (_number(digest, f"logprob {index}") + 1) / (2**64 + 2) for index in range(len(ids))]
        finish = "stop" if ids and ids[-1] in sampling.stop_ids else "length"
        return Completion(
            token_ids=ids,
            logprobs=logprobs,
            finish="stop" if finish == "stop" else "length",
            min_version=version,
            max_version=version,
            guided=sampling.grammar is not None,
        )

    def _hashed(self, digest: hashlib.blake2b, sampling: Sampling) -> list[int]:
        """Ids below the vocabulary's size; with stop ids given, each place stops with chance 1/8."""
        ids: list[int] = []
        for index in range(sampling.max_new_tokens):
            number = _number(digest, f"token {index}")
            if sampling.stop_ids and number % 8 == 0:
                return [*ids, sampling.stop_ids[number // 8 % len(sampling.stop_ids)]]
            ids.append(number // 8 % self._vocab_size)
            if ids[-1] in sampling.stop_ids:
                break
        return ids

    async def publish(self, policy: str, directory: Path, version: int) -> None:
        """Notes the version; reads the vocabulary's size where the folder tells it."""
        if self._closed:
            raise EngineError("the fake engine is closed")
        config = Path(directory) / "config.json"
        if config.is_file():
            self._vocab_size = int(json.loads(config.read_text(encoding="utf-8")).get("vocab_size", self._vocab_size))
        self._versions[policy] = version

    async def forget(self, policy: str) -> None:
        """Drops the policy; see `Engine.forget`."""
        if self._closed:
            raise EngineError("the fake engine is closed")
        if policy not in self._versions:
            raise UnknownName(f"no policy {policy!r} was published.{did_you_mean(policy, self._versions)}")
        del self._versions[policy]

    async def close(self) -> None:
        """Refuses calls from now on."""
        self._closed = True


def _number(digest: hashlib.blake2b, what: str) -> int:
    """Returns a 64-bit number from the digest so far and a label."""
    branch = digest.copy()
    branch.update(what.encode())
    return int.from_bytes(branch.digest()[:8], "big")
