"""New weights from the learner to the engine, and the check that both agree.

Weights travel as a Hugging Face folder with one safetensors file, written aside and renamed, one folder per version.
The engine makes its own copy. A version's folder goes when a newer one has been taken.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from llm_arena.engines.base import Engine, Sampling
from llm_arena.errors import TrainingError
from llm_arena.runtime import Runtime
from llm_arena.training.learner import Learner


class Publisher:
    """Hands the learner's weights to an engine under one policy id, version by version.

    Args:
        learner: whose weights.
        engine: where to.
        runtime: whose loop the engine lives on.
        policy: id of the policy.
        folder: for the versions in passing; emptied at the start.
    """

    def __init__(self, learner: Learner, engine: Engine, runtime: Runtime, *, policy: str, folder: Path) -> None:
        self._learner = learner
        self._engine = engine
        self._runtime = runtime
        self._policy = policy
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def publish(self, version: int) -> None:
        """Gives the engine the learner's weights as they are now.

        Raises:
            TrainingError: the weights can't be written.
        """
        final = self._folder / f"v{version:08d}"
        aside = final.with_name(f".{final.name}.part")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            self._learner.save(aside)
            aside.rename(final)
        except (OSError, RuntimeError) as error:
            raise TrainingError(
                f"version {version} of the weights can't be written to {self._folder}: {error}"
            ) from error
        self._runtime.run(self._engine.publish(self._policy, final, version))
        for old in self._folder.glob("v*"):
            if old != final:
                shutil.rmtree(old, ignore_errors=True)

    def probe(self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, tokens: int = 8) -> float:
        """Has the engine sample after each prompt and returns the largest |engine - learner| log-probability, in nats.

        Args:
            prompts: ids of the contexts.
            temperature: of sampling.
            seed: of sampling.
            tokens: how many to sample after each prompt.
        """
        worst = 0.0
        for index, prompt in enumerate(prompts):
            sampling = Sampling(max_new_tokens=tokens, temperature=temperature, seed=seed + index)
            completion = self._runtime.run(self._engine.generate(list(prompt), sampling, self._policy))
            own = self._learner.logprobs(prompt, completion.token_ids, temperature).tolist()
            worst = max([worst, *(abs(a - b) for a, b in zip(own, completion.logprobs, strict=True))])
        return worst

    def check(
        self, prompts: Sequence[Sequence[int]], *, temperature: float, seed: int, tolerance: float, version: int
    ) -> float:
        """Probes, and stops the run if the engine does not serve what the learner holds.

        Raises:
            TrainingError: a log-probability differs by more than `tolerance`.
        """
        gap = self.probe(prompts, temperature=temperature, seed=seed)
        if not gap <= tolerance:
            raise TrainingError(
                f"after version {version} was published, engine and learner differ by {gap:.2g} nats on {len(prompts)} "
                f"probe prompts, more than {tolerance:g}: the engine does not serve the new weights, or computes in a "
                "coarser dtype. Raise parity_tolerance only in the second case"
            )
        return gap
