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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from llm_arena.errors import TrainingError
from llm_arena.training import losses
from llm_arena.training.batch import Batch, MicroBatch
from llm_arena.training.loading import head_is_separate, load_model, saved_buffers
from llm_arena.training.lora import Adapter, LoraSettings
from llm_arena.training.objective import StepSettings, StepStats
from llm_arena.training.reference import Kind, Reference


class Learner:
    """A causal language model in training.

    Args:
        model: a transformers causal LM; its dtype is the dtype of training (float32 by default, float64 in tests).
        reference: what `kl_weight` pulls to, if anything.
        weight_decay: AdamW's.
        lora: trains an adapter of this size, which is put into `model`. None trains all weights.

    Raises:
        ModelError: the model has no output head.
        UsageError: the adapter's targets are not in the model.
    """

    def __init__(
        self,
        model: Any,
        *,
        reference: Kind | None = None,
        weight_decay: float = 0.0,
        lora: LoraSettings | None = None,
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
        self._split_head = head_is_separate(self.model)

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        reference: Kind | None = None,
        weight_decay: float = 0.0,
        lora: LoraSettings | None = None,
        device: str | torch.device = "cpu",
    ) -> Learner:
        """Loads a Hugging Face folder in float32.

        Raises:
            ModelError: the folder can't be loaded.
            UsageError: the adapter's targets are not in the model.
        """
        model = load_model(directory, device)
        return cls(model, reference=reference, weight_decay=weight_decay, lora=lora)

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
        parts = batch.parts
        updates = settings.epochs * len(parts)
        if updates == 1:
            found = self._updates(parts, settings)
        else:
            before = self._copy()
            parts = [[self._with_old(micro, settings.temperature) for micro in part] for part in parts]
            try:
                found = self._updates(parts, settings)
            except TrainingError:
                self.load_state(before)
                raise
        if self.reference is not None:
            self.reference.follow(settings.ema_decay)
        tokens = settings.epochs * batch.trained_tokens
        return StepStats(
            loss=found["loss"] / settings.epochs,
            entropy=found["entropy"] / tokens,
            kl=found["kl"] / tokens,
            grad_norm=found["max_norm"],
            max_gap=found["max_gap"],
            mean_gap=found["gap"] / tokens,
            clip_fraction=found["clipped"] / tokens,
            approx_kl=found["approx_kl"] / tokens,
            updates=updates,
        )

    def _updates(self, parts: Sequence[Sequence[MicroBatch]], settings: StepSettings) -> dict[str, float]:
        """Makes all updates, and returns sums over them; of what begins with `max`, the largest.

        Raises:
            TrainingError: loss, gradient or weights are not finite; earlier updates were made.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr
        found: dict[str, float] = {}
        for part in itertools.chain.from_iterable([parts] * settings.epochs):
            self.optimizer.zero_grad(set_to_none=True)
            one = self.accumulate(part, settings)
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.grad_clip, foreach=True))
            if not math.isfinite(norm):
                self._refuse("the gradient", norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self._refuse_broken_weights(settings.lr)
            for name, value in (one | {"max_norm": norm}).items():
                before = found.get(name, 0.0)
                found[name] = max(before, value) if name.startswith("max") else before + value
        return found

    def accumulate(self, micro_batches: Iterable[MicroBatch], settings: StepSettings) -> dict[str, float]:
        """Adds the gradient of a batch or of a part of it to `.grad`, micro-batch by micro-batch.

        Returns:
            Sums over trained tokens, and `max_gap`.

        Raises:
            TrainingError: the loss is not finite.
        """
        sums = dict.fromkeys(("loss", "entropy", "kl", "gap", "max_gap", "clipped", "approx_kl"), 0.0)
        for micro in micro_batches:
            reference = self._reference_logprobs(micro, settings.temperature) if settings.kl_weight else None
            logprobs = self._full_logprobs(micro, settings.temperature)
            chosen = logprobs[micro.head_of, micro.target]
            now = chosen.detach()
            old = now if micro.old is None else micro.old
            rest = (old, micro.behaviour, micro.advantage, torch.ones_like(micro.advantage), settings.divisor)
            policy = settings.loss(chosen, *rest)
            spread = (losses.entropy(logprobs if settings.entropy_weight else logprobs.detach()) * micro.counts).sum()
            total = policy - settings.entropy_weight * spread / settings.divisor
            if reference is not None:
                pull = (losses.kl(logprobs, reference) * micro.counts).sum()
                total = total + settings.kl_weight * pull / settings.divisor
                sums["kl"] += float(pull.detach())
            if not math.isfinite(float(total.detach())):
                self._refuse("the loss", float(total.detach()))
            total.backward()
            if micro.old is not None:
                alone = now.clone().requires_grad_()  # the loss's own gradient at the tokens, whatever the loss
                [slope] = torch.autograd.grad(settings.loss(alone, *rest), alone)
                sums["clipped"] += float(((slope == 0) & (micro.advantage != 0)).sum())
                sums["approx_kl"] += float(((now - old).exp() - 1 - (now - old)).sum())
            gap = (old - micro.behaviour).abs()
            sums["loss"] += float(policy.detach())
            sums["entropy"] += float(spread.detach())
            sums["gap"] += float(gap.sum())
            sums["max_gap"] = max(sums["max_gap"], float(gap.max()))
        return sums

    def logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float) -> Tensor:
        """Returns the log-probability [T] of each completion id, by one plain forward pass over the whole sequence."""
        ids = torch.tensor([[*prompt_ids, *completion_ids]], device=self.device)
        with torch.no_grad(), self._autocast():
            logits = self.model(input_ids=ids, use_cache=False).logits[0]
        full = torch.log_softmax(logits.float() / temperature, dim=-1)
        targets = losses.shifted(ids[0])
        return full[:-1].gather(-1, targets[:, None])[:, 0][len(prompt_ids) - 1 :]

    def _full_logprobs(self, micro: MicroBatch, temperature: float) -> Tensor:
        """Returns log-probabilities [P, V] over the whole vocabulary at the predicting positions."""
        inputs = {
            "input_ids": micro.input_ids,
            "attention_mask": micro.attention_mask,
            "position_ids": micro.position_ids,
            "use_cache": False,  # with a cache, transformers would not see that rows hold several sequences
        }
        with self._autocast():
            if self._split_head:
                hidden = self.model.base_model(**inputs).last_hidden_state.flatten(0, 1)[micro.heads]
                logits = self.model.get_output_embeddings()(hidden)
            else:
                logits = self.model(**inputs).logits.flatten(0, 1)[micro.heads]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)

    def _with_old(self, micro: MicroBatch, temperature: float) -> MicroBatch:
        with torch.no_grad():
            old = self._full_logprobs(micro, temperature)[micro.head_of, micro.target]
        return dataclasses.replace(micro, old=old)

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch, temperature: float) -> Tensor:
        """Returns what `_full_logprobs` returns, under the reference."""
        if self.reference is None:
            raise ValueError("kl_weight needs a learner with a reference")
        with self.reference.in_place():
            return self._full_logprobs(micro, temperature)

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
                f"the weights are no longer finite after a step with lr {lr:g}; lower lr and go on from the last "
                "checkpoint in another run_dir, or train anew with --fresh"
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
