"""The learner owns the trainable weights, their optimizer, and the slow average that anchors self-play.

One optimizer step per batch, on the whole batch's gradient: micro-batches only bound memory, and the gradient does not
depend on how they are cut. Dropout is off, so the weights that train are the weights that sampled.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from llm_arena.engines.onednn import use_onednn
from llm_arena.engines.transformers_engine import no_progress_bar
from llm_arena.errors import ModelError, TrainingError
from llm_arena.training import losses
from llm_arena.training.batch import Batch, MicroBatch
from llm_arena.training.losses import PolicyLoss


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What one optimizer step depends on besides the batch."""

    lr: float
    divisor: float
    "The sum over trained tokens is divided by this."
    temperature: float = 1.0
    entropy_weight: float = 0.0
    kl_weight: float = 0.0
    ema_decay: float = 0.99
    grad_clip: float = 1.0
    loss: PolicyLoss = losses.reinforce


@dataclass(frozen=True, kw_only=True)
class StepStats:
    """What one optimizer step measured, before the update."""

    loss: float
    "The policy loss alone."
    entropy: float
    "Mean entropy over trained tokens, in nats."
    kl: float
    "Mean KL to the slow average over trained tokens, in nats; 0 without an anchor."
    grad_norm: float
    "Norm of the whole gradient before clipping."
    max_gap: float
    "Largest |learner - engine| log-probability over trained tokens, in nats."
    mean_gap: float
    stepped: bool
    "False for a batch with nothing to train: weights and optimizer are left alone."


class Learner:
    """A causal language model in training.

    Args:
        model: a transformers causal LM; its dtype is the dtype of training (float32 by default, float64 in tests).
        anchored: keep a slow average of the weights, for `kl_weight`.
        weight_decay: AdamW's.

    Raises:
        ModelError: the model has dropout that can't be switched off by `eval`, or no output head.
    """

    def __init__(self, model: Any, *, anchored: bool = False, weight_decay: float = 0.0) -> None:
        self.model = model.eval()
        self.device: torch.device = next(model.parameters()).device
        self.parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        self.optimizer = torch.optim.AdamW(self.parameters.values(), lr=0.0, weight_decay=weight_decay, fused=True)
        self.anchor = copy.deepcopy(model).eval().requires_grad_(False) if anchored else None
        self._split_head = _head_is_separate(self.model)

    @classmethod
    def load(
        cls, directory: Path, *, anchored: bool = False, weight_decay: float = 0.0, device: str = "cpu"
    ) -> Learner:
        """Loads a Hugging Face folder in float32.

        Raises:
            ModelError: the folder can't be loaded.
        """
        from transformers import AutoModelForCausalLM

        try:
            with no_progress_bar():
                model: Any = AutoModelForCausalLM.from_pretrained(
                    directory, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
                )
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelError(f"{directory}: can't be loaded for training: {reason}") from error
        model.to(torch.device(device))
        use_onednn(model)
        return cls(model, anchored=anchored, weight_decay=weight_decay)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(iter(self.parameters.values())).dtype

    def step(self, batch: Batch, settings: StepSettings) -> StepStats:
        """Makes one optimizer step on a batch.

        Raises:
            TrainingError: loss or gradient is not finite, and the weights are as they were; or the weights are not
                finite after the step.
        """
        if not batch.trained_tokens:
            return StepStats(loss=0.0, entropy=0.0, kl=0.0, grad_norm=0.0, max_gap=0.0, mean_gap=0.0, stepped=False)
        self.optimizer.zero_grad(set_to_none=True)
        sums = self.accumulate(batch, settings)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters.values(), settings.grad_clip, foreach=True))
        if not math.isfinite(norm):
            self._refuse("the gradient", norm)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self._refuse_broken_weights(settings.lr)
        if self.anchor is not None:
            with torch.no_grad():
                slow = [parameter.data for parameter in self.anchor.parameters()]
                now = [parameter.data for parameter in self.model.parameters()]
                torch._foreach_lerp_(slow, now, 1 - settings.ema_decay)
        tokens = batch.trained_tokens
        return StepStats(
            loss=sums["loss"],
            entropy=sums["entropy"] / tokens,
            kl=sums["kl"] / tokens,
            grad_norm=norm,
            max_gap=sums["max_gap"],
            mean_gap=sums["gap"] / tokens,
            stepped=True,
        )

    def accumulate(self, batch: Batch, settings: StepSettings) -> dict[str, float]:
        """Adds the gradient of the whole batch to `.grad`, micro-batch by micro-batch, and returns sums.

        Raises:
            TrainingError: the loss is not finite.
        """
        sums = {"loss": 0.0, "entropy": 0.0, "kl": 0.0, "gap": 0.0, "max_gap": 0.0}
        for micro in batch.micro:
            logprobs = self._full_logprobs(self.model, micro, settings.temperature)
            chosen = logprobs[micro.head_of, micro.target]
            policy = settings.loss(
                chosen,
                chosen.detach(),
                micro.behaviour,
                micro.advantage,
                torch.ones_like(micro.advantage),
                settings.divisor,
            )
            spread = (losses.entropy(logprobs if settings.entropy_weight else logprobs.detach()) * micro.counts).sum()
            total = policy - settings.entropy_weight * spread / settings.divisor
            if settings.kl_weight:
                if self.anchor is None:
                    raise ValueError("kl_weight needs a learner with anchored=True")
                with torch.no_grad():
                    reference = self._full_logprobs(self.anchor, micro, settings.temperature)
                pull = (losses.kl(logprobs, reference) * micro.counts).sum()
                total = total + settings.kl_weight * pull / settings.divisor
                sums["kl"] += float(pull.detach())
            if not math.isfinite(float(total.detach())):
                self._refuse("the loss", float(total.detach()))
            total.backward()
            gap = (chosen.detach() - micro.behaviour).abs()
            sums["loss"] += float(policy.detach())
            sums["entropy"] += float(spread.detach())
            sums["gap"] += float(gap.sum())
            sums["max_gap"] = max(sums["max_gap"], float(gap.max()))
        return sums

    def logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int], temperature: float) -> Tensor:
        """Returns the log-probability [T] of each completion id, by one plain forward pass over the whole sequence."""
        ids = torch.tensor([[*prompt_ids, *completion_ids]], device=self.device)
        with torch.no_grad():
            logits = self.model(input_ids=ids, use_cache=False).logits[0]
        full = torch.log_softmax(logits.float() / temperature, dim=-1)
        targets = losses.shifted(ids[0])
        return full[:-1].gather(-1, targets[:, None])[:, 0][len(prompt_ids) - 1 :]

    def _full_logprobs(self, model: Any, micro: MicroBatch, temperature: float) -> Tensor:
        """Returns log-probabilities [P, V] over the whole vocabulary at the predicting positions."""
        inputs = {
            "input_ids": micro.input_ids,
            "attention_mask": micro.attention_mask,
            "position_ids": micro.position_ids,
            "use_cache": False,  # with a cache, transformers would not see that rows hold several sequences
        }
        if self._split_head:
            hidden = model.base_model(**inputs).last_hidden_state.flatten(0, 1)[micro.heads]
            logits = model.get_output_embeddings()(hidden)
        else:
            logits = model(**inputs).logits.flatten(0, 1)[micro.heads]
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return torch.log_softmax(logits if temperature == 1 else logits / temperature, dim=-1)

    def _refuse(self, what: str, value: float) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        raise TrainingError(
            f"{what} is {value}; the weights were left alone. Lower lr or grad_clip, or look at the rewards in "
            "metrics.jsonl; the last checkpoint is intact"
        )

    def _refuse_broken_weights(self, lr: float) -> None:
        """Stops a run that has diverged before its weights are published or saved."""
        norms = torch._foreach_norm([parameter.detach() for parameter in self.parameters.values()])
        if not math.isfinite(float(torch.stack(norms).sum())):
            raise TrainingError(
                f"the weights are no longer finite after a step with lr {lr:g}; lower lr and go on from the last "
                "checkpoint in another run_dir, or train anew with --fresh"
            )

    def weights(self) -> dict[str, Tensor]:
        """Returns the weights by their name in the model's state, tied ones once."""
        return {name: parameter.data for name, parameter in self.parameters.items()} | _buffers(self.model)

    def save(self, directory: Path) -> None:
        """Writes configuration and weights as a Hugging Face folder; the tokenizer is the caller's affair."""
        self.model.config.save_pretrained(directory)
        weights = {name: tensor.contiguous() for name, tensor in self.weights().items()}
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Returns all tensors of a checkpoint: weights, anchor, and the optimizer's moments."""
        tensors = {"model": self.weights()}
        if self.anchor is not None:
            tensors["anchor"] = {name: parameter.data for name, parameter in self.anchor.named_parameters()}
        moments: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            for kind, value in self.optimizer.state.get(parameter, {}).items():
                moments[f"{kind}/{name}"] = value
        return tensors | {"optimizer": moments}

    def load_state(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Takes what `state` returned.

        Raises:
            TrainingError: the tensors are those of another model.
        """
        _copy_into(self.weights(), tensors["model"], "model")
        if self.anchor is not None:
            _copy_into(dict(self.anchor.named_parameters()), tensors["anchor"], "anchor")
        self.optimizer.state.clear()
        for key, value in tensors["optimizer"].items():
            kind, _, name = key.partition("/")
            self.optimizer.state[self.parameters[name]][kind] = value.clone()


def _copy_into(own: Mapping[str, Tensor], saved: Mapping[str, Tensor], what: str) -> None:
    wrong = sorted(set(own) ^ set(saved)) or [name for name in own if own[name].shape != saved[name].shape]
    if wrong:
        raise TrainingError(f"the checkpoint's {what} is of another model: tensor {wrong[0]!r} differs")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(saved[name])


def _buffers(model: Any) -> dict[str, Tensor]:
    """Returns the buffers that belong to a model's saved state."""
    kept = set(model.state_dict())
    named: Iterable[tuple[str, Tensor]] = model.named_buffers()
    return {name: buffer for name, buffer in named if name in kept}


def _head_is_separate(model: Any) -> bool:
    """Whether logits are just the output head over the last hidden state, so that the head may run on few positions.

    Some families scale or cap the logits after the head; they take the slower way.
    """
    head = model.get_output_embeddings()
    if head is None or not hasattr(model, "base_model"):
        raise ModelError(f"{type(model).__name__} has no output head: not a causal language model")
    ids = torch.arange(2, device=next(model.parameters()).device)[None]
    with torch.no_grad():
        whole = model(input_ids=ids, use_cache=False).logits
        split = head(model.base_model(input_ids=ids, use_cache=False).last_hidden_state)
    return bool(torch.allclose(whole, split, rtol=1e-4, atol=1e-4))
