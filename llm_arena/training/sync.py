"""New weights from the learner to the engine, and the check that both agree.

Weights travel as a Hugging Face folder with one safetensors file, or as a PEFT folder with an adapter; written aside
and renamed, one folder per version. The engine makes its own copy. The learner's thread writes a version, between two
updates; the engine takes it when nothing is being sampled.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path

from llm_arena.engines.base import Engine, Sampling
from llm_arena.errors import EngineError, TrainingError
from llm_arena.runtime import Runtime
from llm_arena.training.learner import Learner
from llm_arena.training.whole_folder import link_folder, write_whole
from llm_arena.types import Completion


class Publisher:
    """Hands the learner's weights to an engine under one policy id, version by version.

    Args:
        learner: whose weights.
        engine: where to.
        runtime: whose loop the engine lives on.
        policy: id of the policy.
        folder: for the versions in passing; emptied at the start.
        adapter_of: publish the learner's adapter beside this model folder, the base that it was trained on. None
            publishes whole models, an adapter merged into its base.
    """

    def __init__(
        self,
        learner: Learner,
        engine: Engine,
        runtime: Runtime,
        *,
        policy: str,
        folder: Path,
        adapter_of: Path | None = None,
    ) -> None:
        self._learner = learner
        self._engine = engine
        self._runtime = runtime
        self._policy = policy
        self._folder = folder
        self._adapter_of = adapter_of
        self._base_is_there = False
        shutil.rmtree(folder, ignore_errors=True)

    def publish(self, version: int) -> None:
        """Gives the engine the learner's weights as they are now.

        Raises:
            TrainingError: the weights can't be written.
            EngineError: the engine does not take them, or has died.
        """
        self.write(version)
        self._runtime.run(self.take(version))

    def folder(self, version: int) -> Path:
        """Returns where a version is."""
        return self._folder / f"v{version:08d}"

    def write(self, version: int, *, oldest: int | None = None) -> None:
        """Writes the learner's weights as they are now.

        Args:
            version: their number.
            oldest: those before this one are deleted. None: before the one that is written.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        base = self._adapter_of

        def fill(aside: Path) -> None:
            if base is None:
                self._learner.save(aside)
            else:
                self._learner.save_adapter(aside, base)

        write_whole(self.folder(version), fill, what=f"version {version} of the weights", durable=False)
        for old in self._folder.glob("v*"):
            if int(old.name[1:]) < (version if oldest is None else oldest):
                shutil.rmtree(old, ignore_errors=True)

    def adopt(self, version: int, directory: Path) -> None:
        """Takes a version that an earlier process wrote.

        Raises:
            TrainingError: the disk is full or refuses.
        """
        try:
            link_folder(directory, self.folder(version))
        except OSError as error:
            raise TrainingError(f"{directory} can't be brought to {self._folder}: {error}") from error

    async def take(self, version: int) -> None:
        """Has the engine take a version that was written. To be run on the runtime's loop.

        Raises:
            EngineError: the engine does not take it, or has died.
        """
        # A server has its base already, under the name that it was started with.
        if self._adapter_of is not None and not self._base_is_there and self._engine.name != "openai":
            await self._engine.publish(f"{self._policy}/base", self._adapter_of, 0)
            self._base_is_there = True
        await self._runtime.wake()
        await self._engine.publish(self._policy, self.folder(version), version)

    def probe(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, tokens: int = 8
    ) -> list[tuple[float, float]]:
        """Has the engine sample after each prompt; returns (learner's, engine's) log-probability of each sampled token.

        Args:
            prompts: ids of the contexts.
            temperature: of sampling.
            seed: of sampling.
            tokens: how many to sample after each prompt.

        Raises:
            EngineError: the engine fails twice.
        """

        async def sample() -> list[Completion]:
            wanted = [
                self._engine.generate(
                    list(prompt),
                    Sampling(max_new_tokens=tokens, temperature=temperature, seed=seed + index),
                    self._policy,
                )
                for index, prompt in enumerate(prompts)
            ]
            return list(await asyncio.gather(*wanted))

        try:
            completions = self._runtime.run(sample())
        except EngineError:  # one that has died comes back with the weights it had
            completions = self._runtime.run(sample())
        pairs: list[tuple[float, float]] = []
        for prompt, completion in zip(prompts, completions, strict=True):
            own = self._learner.logprobs(prompt, completion.token_ids, temperature).tolist()
            pairs += zip(own, completion.logprobs, strict=True)
        return pairs

    def check(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        temperature: float,
        seed: int,
        tolerance: float,
        version: int,
        tokens: int = 8,
    ) -> float:
        """Probes, and stops the run if the engine does not serve what the learner holds.

        Rounding grows with the logits, so for a token of probability below 1/e the tolerance is multiplied by
        |log-probability|. Weights that are one update old are off by far more.

        Returns:
            The largest |engine - learner| log-probability, in nats.

        Raises:
            TrainingError: a log-probability differs by more than the tolerance.
        """
        pairs = self.probe(prompts, temperature=temperature, seed=seed, tokens=tokens)
        gap = max(abs(own - other) for own, other in pairs)
        if not all(abs(own - other) <= tolerance * max(1.0, abs(own)) for own, other in pairs):
            raise TrainingError(
                f"after version {version} was published, engine and learner differ by {gap:.2g} nats on {len(prompts)} "
                f"probe prompts, more than {tolerance:g}: the engine does not serve the new weights, or computes in a "
                "coarser dtype. Raise parity_tolerance only in the second case"
            )
        return gap
