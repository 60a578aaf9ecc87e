"""The learner owns the trainable weights, their optimizer, and the reference that anchors self-play.

What trains is all weights or a LoRA adapter. A step makes one update per minibatch and pass, by default one on the
whole batch's gradient: micro-batches only bound memory, and the gradient does not depend on how they are cut. Dropout
is off, so the weights that train are the weights that sampled.

On CUDA the weights are float32, matrix products are made in bfloat16 (autocast) and log-softmax in float32. The project
has run this on a CPU only.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor

from llm_arena.errors import TrainingError
from llm_arena.training import losses
from llm_arena.training.attention import max_tree_depth, use_trees
from llm_arena.training.batch import Batch, MicroBatch, Tokens
from llm_arena.training.heads import Head, Predictions, Rows
from llm_arena.training.loading import load_model, recompute_layers, saved_buffers
from llm_arena.training.lora import Adapter, LoraSettings
from llm_arena.training.objective import StepSettings, StepStats, objective, prepared
from llm_arena.training.reference import Kind, Reference

Column = Literal["old", "reference", "now"]
"""Columns of a batch's tokens that take a pass through a model."""


class Learner:
    """A causal language model in training.

    Args:
        model: a transformers causal LM; its dtype is the dtype of training (float32 by default, float64 in tests).
        reference: what `kl_weight` pulls to, if anything.
        weight_decay: AdamW's.
        lora: trains an adapter of this size, which is put into `model`. None trains all weights.
        recompute: whether the backward pass computes the layers' activations once more, which costs about a third more
            time and leaves of them one hidden state per layer in memory.

    Raises:
        ModelError: the model has no output head.
        UsageError: the adapter's targets are not in the model, or its layers can't be recomputed.
    """

    def __init__(
        self,
        model: Any,
        *,
        reference: Kind | None = None,
        weight_decay: float = 0.0,
        lora: LoraSettings | None = None,
        recompute: bool = False,
    ) -> None:
        self.lora = lora
        self._adapter = Adapter(model, lora) if lora is not None else None
        self.model = model.eval()
        self.device: torch.device = next(model.parameters()).device
        self.parameters: dict[str, torch.nn.Parameter] = (
            dict(model.named_parameters()) if self._adapter is None else self._adapter.parameters()
        )
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=0.0, weight_decay=weight_decay, fused=True)
        self.reference = Reference(reference, self.parameters, self._adapter) if reference is not None else None
        self.is_moving = False
        """Whether a step was broken off after an update, so that the weights are those of no step."""
        use_trees(self.model)
        self._head = Head(self.model)
        self.max_tree_depth = max_tree_depth(self.model)
        """How long sequences may be that share a row, in tokens: give it to `batch.build`."""
        if recompute:
            recompute_layers(self.model)

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        reference: Kind | None = None,
        weight_decay: float = 0.0,
        lora: LoraSettings | None = None,
        recompute: bool = False,
        device: str | torch.device = "cpu",
    ) -> Learner:
        """Loads a Hugging Face folder in float32.

        Raises:
            ModelError: the folder can't be loaded.
            UsageError: the adapter's targets are not in the model.
        """
        model = load_model(directory, device)
        return cls(model, reference=reference, weight_decay=weight_decay, lora=lora, recompute=recompute)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(iter(self.parameters.values())).dtype

    @property
    def is_lora(self) -> bool:
        """Whether an adapter trains, and the weights stay."""
        return self._adapter is not None

    def step(self, batch: Batch, settings: StepSettings) -> StepStats:
        """Makes the updates of one step: `settings.epochs` passes over the batch, one update per minibatch in each.

        All ratios are to the weights before the first update. With several updates weights and moments are copied
        before, so that a failure can take back the updates made.

        Raises:
            TrainingError: loss or gradient is not finite, and all is as it was before the step; or the weights are not
                finite after an update, which is taken back only if it was one of several.
        """
        if not batch.trained_tokens:
            return StepStats()
        updates = settings.epochs * len(batch.parts)
        batch = self.prepare(batch, settings)
        if updates == 1:
            found = self._updates(batch, settings)
        else:
            before = self._copy()
            try:
                found = self._updates(batch, settings)
            except BaseException:  # also Ctrl-C: nothing is passed over
                self.load_state(before)
                self.is_moving = False
                raise
        if self.reference is not None:
            self.reference.follow(settings.ema_decay)
        self.is_moving = False
        return StepStats.of(found, trained_tokens=batch.trained_tokens, epochs=settings.epochs, updates=updates)

    def prepare(self, batch: Batch, settings: StepSettings) -> Batch:
        """Returns the batch with all columns of its tokens that a step needs, by a pass before the first update.

        The pass is made only where something needs it.
        """
        several = settings.epochs * len(batch.parts) > 1
        what: list[Column] = ["old"] if settings.needs_old(batch.tokens) or several else []
        what += ["reference"] if settings.needs_reference else []
        tokens = self.score(batch, settings.temperature, what)
        if settings.needs_now(tokens) and several:  # before the first update, the weights now are the old ones
            tokens = dataclasses.replace(tokens, now=tokens.old)
        return dataclasses.replace(batch, tokens=prepared(tokens, settings))

    @torch.no_grad()
    def score(self, batch: Batch, temperature: float, what: Collection[Column]) -> Tokens:
        """Returns the batch's tokens with some of the columns `old`, `now` and `reference` filled anew.

        Args:
            batch: whose micro-batches go through the model, without gradient.
            temperature: of the distribution.
            what: the columns. `old` and `now` are of the weights as they are.

        Raises:
            ValueError: the learner has no reference, and `reference` is wanted.
        """
        tokens = batch.tokens
        found: dict[str, Any] = {}
        for column in what:
            place = nullcontext() if column != "reference" else self._as_reference()
            values = torch.empty_like(tokens.behaviour)
            with place:
                for micro in batch:
                    with self._autocast():
                        rows = self._head.rows(self._inputs(micro), micro.heads)
                        chosen = self._head.predictions(rows, micro, temperature).chosen
                    values[micro.use] = chosen.to(values.dtype)
            found[column] = values
        return dataclasses.replace(tokens, **found)

    def _updates(self, batch: Batch, settings: StepSettings) -> dict[str, float]:
        """Makes all updates, and returns sums over them; of what begins with `max`, the largest.

        Raises:
            TrainingError: loss, gradient or weights are not finite; earlier updates were made.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr
        found: dict[str, float] = {}
        for index, part in enumerate(itertools.chain.from_iterable([batch.parts] * settings.epochs)):
            self.optimizer.zero_grad(set_to_none=True)
            if index and settings.needs_now(batch.tokens):
                tokens = self.score(batch, settings.temperature, ["now"])
                batch = dataclasses.replace(batch, tokens=prepared(tokens, settings))
            one = self.accumulate(batch, settings, part)
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.grad_clip, foreach=True))
            if not math.isfinite(norm):
                self._refuse("the gradient", norm)
            self.is_moving = True
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self._refuse_broken_weights(settings.lr)
            for name, value in (one | {"max_norm": norm}).items():
                before = found.get(name, 0.0)
                found[name] = max(before, value) if name.startswith("max") else before + value
        return found

    def accumulate(
        self, batch: Batch, settings: StepSettings, part: Sequence[MicroBatch] | None = None
    ) -> dict[str, float]:
        """Adds the gradient of a batch or of a part of it to `.grad`, micro-batch by micro-batch.

        Args:
            batch: prepared for these settings, see `prepare`.
            settings: of the step.
            part: the micro-batches; None takes all of the batch.

        Returns:
            Sums over trained tokens, and `max_gap`.

        Raises:
            TrainingError: the loss is not finite.
        """
        sums: dict[str, float] = {}
        for micro in batch if part is None else part:
            predictions = self._predictions(micro, settings)
            total, found = objective(predictions, batch.tokens, micro.use, settings)
            if not math.isfinite(float(total.detach())):
                self._refuse("the loss", float(total.detach()))
            total.backward()
            for name, value in found.items():
                before = sums.get(name, 0.0)
                sums[name] = max(before, value) if name.startswith("max") else before + value
        return sums

    def logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float) -> Tensor:
        """Returns the log-probability [T] of each completion id, by one plain forward pass over the whole sequence."""
        ids = torch.tensor([[*prompt_ids, *completion_ids]], device=self.device)
        with torch.no_grad(), self._autocast():
            logits = self.model(input_ids=ids, use_cache=False).logits[0]
        full = torch.log_softmax(logits.float() / temperature, dim=-1)
        targets = losses.shifted(ids[0])
        return full[:-1].gather(-1, targets[:, None])[:, 0][len(prompt_ids) - 1 :]

    def _predictions(self, micro: MicroBatch, settings: StepSettings) -> Predictions:
        """Returns what the weights say of the trained tokens, with gradient."""
        reference: Rows | None = None
        with self._autocast():
            if settings.wants_kl:
                with self._as_reference():
                    reference = self._head.frozen_rows(self._inputs(micro), micro.heads)
            rows = self._head.rows(self._inputs(micro), micro.heads)
            entropy = settings.wants_entropy
            return self._head.predictions(rows, micro, settings.temperature, entropy=entropy, reference=reference)

    def _inputs(self, micro: MicroBatch) -> dict[str, Any]:
        """Returns the model's arguments.

        Raises:
            TrainingError: sequences share rows in a way that the model can't take.
        """
        if micro.attention_mask is not None and micro.depth > self.max_tree_depth:
            raise TrainingError(
                f"{type(self.model).__name__} can't take prefix trees {micro.depth} tokens deep exactly; "
                f"build the batch with max_tree_depth={self.max_tree_depth}"
            )
        return {
            "input_ids": micro.input_ids,
            "attention_mask": micro.attention_mask,
            "position_ids": micro.position_ids,
            "use_cache": False,  # with a cache, transformers would not see that rows hold several sequences
        }

    def _as_reference(self) -> AbstractContextManager[None]:
        if self.reference is None:
            raise ValueError("kl_weight needs a learner with a reference")
        return self.reference.in_place()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda")

    def _refuse(self, what: str, value: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        raise TrainingError(
            f"{what} is {value}; the weights were left alone. Lower lr or grad_clip, or look at the rewards in "
            "metrics.jsonl; the last checkpoint is intact"
        )

    @property
    def is_finite(self) -> bool:
        """Whether all weights that train are finite numbers."""
        norms = torch._foreach_norm([parameter.detach() for parameter in self.parameters.values()])
        return math.isfinite(float(torch.stack(norms).sum()))

    def _refuse_broken_weights(self, lr: float) -> None:
        """Stops a run that has diverged before its weights are published or saved."""
        if not self.is_finite:
            raise TrainingError(
                f"the weights are no longer finite after a step with lr {lr:g}; lower lr, which "
                "is another run: it begins anew"
            )

    def weights(self) -> dict[str, Tensor]:
        """Returns the whole model's weights by their name in the base's state, tied ones once; an adapter is merged."""
        if self._adapter is not None:
            return self._adapter.merged() | saved_buffers(self.model)
        return {name: parameter.data for name, parameter in self.parameters.items()} | saved_buffers(self.model)

    def save(self, directory: Path) -> None:
        """Writes configuration and weights as a Hugging Face folder; the tokenizer is the caller's affair."""
        self.model.config.save_pretrained(directory)
        weights = {name: tensor.contiguous() for name, tensor in self.weights().items()}
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    def save_adapter(self, directory: Path, base: Path) -> None:
        """Writes the adapter alone as a PEFT folder.

        Args:
            directory: where to.
            base: folder of the model that the adapter belongs to.

        Raises:
            ValueError: all weights train, there is no adapter.
        """
        if self._adapter is None:
            raise ValueError("this learner trains all weights and has no adapter; load it with lora=")
        self._adapter.save(directory, base)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Returns all tensors of a checkpoint: what trains, its slow average, and the optimizer's moments."""
        tensors = {"model": self._trained()}
        if self.reference is not None and self.reference.moves:
            tensors["anchor"] = self.reference.tensors
        moments: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                moments[f"{kind}/{name}"] = value
        return tensors | {"optimizer": moments}

    def load_state(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes what `state` returned.

        Raises:
            TrainingError: the tensors are those of another model or adapter.
        """
        _copy_into(self._trained(), tensors["model"], "model")
        if self.reference is not None and self.reference.moves:
            _copy_into(self.reference.tensors, tensors["anchor"], "anchor")
        self.optimizer.state.clear()
        for key, value in tensors["optimizer"].items():
            kind, _, name = key.partition("/")
            own = self.parameters[name]
            self.optimizer.state[own][kind] = value.to(own.device, copy=True)

    def _trained(self) -> dict[str, Tensor]:
        """Returns what a step may change: all weights and buffers, or the adapter."""
        trained = {name: parameter.data for name, parameter in self.parameters.items()}
        return trained if self.is_lora else trained | saved_buffers(self.model)

    def _copy(self) -> dict[str, dict[str, Tensor]]:
        """Returns a state to go back to within a step, in which the slow average does not move."""
        state = self.state()
        for kind in ("model", "optimizer"):
            state[kind] = {name: tensor.clone() for name, tensor in state[kind].items()}
        return state


def _copy_into(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    wrong = sorted(set(own) ^ set(saved)) or [name for name in own if own[name].shape != saved[name].shape]
    if wrong:
        raise TrainingError(f"the checkpoint's {what} is of another model: tensor {wrong[0]!r} differs")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])
