"""A reward model in a judge's seat: `reward-model:MODEL`. Fits every game that judges as `problems/verdicts.py` says.

The model scores the task with each of the two candidates of `view.facts` as its answer, each by itself, and the agent
answers with the verdict for the higher score; equal scores tie. `MODEL` is a Hugging Face folder or a hub id of a
sequence classifier with one output. Where its tokenizer has a chat template, the task is the user's message and the
candidate the assistant's; else the two are encoded as a pair of texts. Control tokens that a candidate spells out are
taken apart, so that no contestant ends its own message.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llm_arena.errors import ContextOverflow, ModelError, UsageError
from llm_arena.models import resolve_model
from llm_arena.problems.verdicts import read_facts, verdict_line
from llm_arena.runtime import Runtime
from llm_arena.types import Action, PastTurn, Reply, View

_REMEMBERED = 4096
"""Scores that are kept: a contest of n candidates shows each of them 2 (n - 1) times."""


def make(argument: str, *, runtime: Runtime) -> RewardModelAgent:
    """Makes the agent `reward-model:MODEL`.

    Raises:
        UsageError: no model was named.
    """
    if not argument:
        raise UsageError(
            "a reward-model agent needs a model: write reward-model:FOLDER, or reward-model:OWNER/NAME of the hub"
        )
    return RewardModelAgent(argument, runtime)


class RewardModelAgent:
    """Judges candidates by a reward model, which is loaded at the first turn."""

    policy: str | None = None

    def __init__(self, model: str, runtime: Runtime) -> None:
        self.name = f"reward-model:{model}"
        self._runtime = runtime
        self._model = model
        self._lock = threading.Lock()
        self._scorer: RewardModel | None = None

    async def prepare(self) -> None:
        """Loads the model, so that the first turn does not wait for it."""
        await self._runtime.call(self._score, "", ())

    async def act(self, view: View, past: Sequence[PastTurn]) -> Action:
        """Answers with the verdict line for the candidate of the highest score.

        Raises:
            UsageError: the seat was shown no candidates, so it is no judge's.
            ModelError, UnknownName: the model can't be found or loaded, or is no reward model.
            ContextOverflow: task and candidate are longer than the model's context.
        """
        task, *candidates = read_facts(view.facts, self.name)
        scores = await self._runtime.call(self._score, task, candidates)
        return Action(reply=Reply(verdict_line(*scores)))

    def _score(self, task: str, candidates: Sequence[str]) -> list[float]:
        with self._lock:  # loads once, and keeps the threads of many episodes from fighting for the cores
            if self._scorer is None:
                self._scorer = RewardModel(resolve_model(self._model))
            return [self._scorer.score(task, candidate) for candidate in candidates]


class RewardModel:
    """A sequence classifier with one output, and its tokenizer. On the first CUDA device where there is one.

    Args:
        folder: a Hugging Face folder.

    Raises:
        ModelError: it is no sequence classifier, has another number of outputs than one, or can't be loaded.
    """

    def __init__(self, folder: Path) -> None:
        # First and whole: see Runtime, which loads models of other agents in other threads.
        engine = importlib.import_module("llm_arena.engines.transformers_engine")
        import torch
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        self._folder = folder
        try:
            config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
            names = config.architectures or ["none"]
            if not names[0].endswith("ForSequenceClassification"):
                # transformers would load it all the same, with a head of random numbers
                raise ModelError(
                    f"{folder} is no reward model: its architecture is {names[0]}, expected is one that ends with "
                    "ForSequenceClassification; to have a chat model judge, seat it as llm:FOLDER"
                )
            if config.num_labels != 1:
                raise ModelError(
                    f"{folder} has {config.num_labels} outputs; a reward model has one, the score (num_labels=1)"
                )
            model: Any
            with engine.no_progress_bar():
                model, report = AutoModelForSequenceClassification.from_pretrained(
                    folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
                )
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ModelError(f"{folder} can't be loaded as a reward model: {reason}") from error
        if report["missing_keys"]:
            raise ModelError(f"{folder} lacks weights of a reward model: {', '.join(sorted(report['missing_keys']))}")
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._model = model.to(self._device).eval()
        self._limit = _longest(self._model, config)
        added = {token.content for token in self._tokenizer.added_tokens_decoder.values()}
        markers = sorted((text for text in added if len(text.strip()) > 1), key=len, reverse=True)
        self._marker = re.compile("|".join(map(re.escape, markers)) or r"(?!)")
        self.score = functools.lru_cache(_REMEMBERED)(self._score)

    def _score(self, task: str, candidate: str) -> float:
        """Returns the score of `candidate` as an answer to `task`; alone in its batch, so that no padding moves it."""
        import torch

        ids = self.encode(task, candidate)
        if self._limit is not None and len(ids) > self._limit:
            raise ContextOverflow(
                f"{len(ids)} tokens of task and candidate exceed the {self._limit} of the reward model {self._folder}"
            )
        batch = torch.tensor([ids], device=self._device)
        with torch.inference_mode():
            score = float(self._model(input_ids=batch, attention_mask=torch.ones_like(batch)).logits[0, 0])
        if not math.isfinite(score):
            raise ModelError(f"the reward model {self._folder} gave the score {score}; are its weights finite?")
        return score

    def encode(self, task: str, candidate: str) -> list[int]:
        """Returns the ids of a task and an answer to it [L], as they are scored."""
        task, candidate = self._plain(task), self._plain(candidate)
        if not self._tokenizer.chat_template:
            pair: list[int] = self._tokenizer(task, candidate)["input_ids"]
            return pair
        chat = [{"role": "user", "content": task}, {"role": "assistant", "content": candidate}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _plain(self, text: str) -> str:
        """Returns `text` with control tokens in it taken apart: `< | e n d | >`."""
        while self._marker.search(text):
            text = self._marker.sub(lambda found: " ".join(found[0]), text)
        return text


def _longest(model: Any, config: Any) -> int | None:
    """Returns the longest input in tokens; None where there is no limit."""
    for name, module in model.named_modules():
        padding: int | None = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding is not None:
            return int(module.num_embeddings - padding - 1)  # RoBERTa's kin count positions from behind the padding's
    limit: int | None = getattr(config, "max_position_embeddings", None)
    return limit
