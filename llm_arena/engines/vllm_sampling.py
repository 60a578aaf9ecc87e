"""One request to vLLM: what is refused before it is sent, how it is sampled, what is read from the answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llm_arena.engines import vllm_grammars
from llm_arena.engines.base import Sampling
from llm_arena.errors import EngineError
from llm_arena.types import Completion

COLDEST = 0.01
"""Lowest temperature above 0 that vLLM samples at."""


def check(
    prompt_ids: Sequence[int],
    sampling: Sampling,
    *,
    policy: str,
    vocabulary: int,
    longest: int | None,
    end: int | None,
) -> None:
    """Refuses a request that vLLM would fail at, or would answer otherwise than asked.

    Args:
        prompt_ids: all ids of the context [P].
        sampling: how to sample.
        policy: who is asked.
        vocabulary: how many ids there are.
        longest: most tokens of prompt and completion together; None: no bound.
        end: the tokenizer's end token; None where vLLM has no tokenizer.

    Raises:
        EngineError: it can't be sampled.
        UsageError: its grammar can't be kept to.
    """
    if sampling.max_new_tokens < 1 or not 0 <= sampling.temperature < float("inf"):
        raise EngineError(
            f"cannot sample {sampling.max_new_tokens} tokens at temperature {sampling.temperature}; "
            "give max_new_tokens >= 1 and a finite temperature >= 0"
        )
    if 0 < sampling.temperature < COLDEST:
        raise EngineError(
            f"temperature {sampling.temperature} is below {COLDEST}, which vLLM would take; give 0 (greedy) or "
            f"at least {COLDEST}"
        )
    if not prompt_ids:
        raise EngineError("the prompt is empty; send at least one id")
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < vocabulary:
        raise EngineError(f"the prompt holds an id outside of the vocabulary (0 to {vocabulary - 1})")
    if sampling.grammar is not None:
        vllm_grammars.check(sampling, end)
    if longest is not None and len(prompt_ids) + sampling.max_new_tokens > longest:
        raise EngineError(
            f"{len(prompt_ids)} prompt ids and {sampling.max_new_tokens} new ones exceed the {longest} positions "
            f"that the vllm engine has for policy {policy!r}; set the agent's max_context_tokens, or "
            "--engine.max-model-len"
        )


async def sample(
    client: Any, name: str, prompt_ids: Sequence[int], sampling: Sampling, version: int, adapter: Any
) -> Completion:
    """Samples one completion.

    Args:
        client: vLLM's `AsyncLLM`.
        name: of the request, never used before.
        prompt_ids: all ids of the context [P].
        sampling: how to sample.
        version: of the weights, to be noted.
        adapter: vLLM's `LoRARequest`; None samples from the base model.

    Raises:
        EngineError: vLLM did not answer as asked.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed % (1 << 63),  # vLLM sends it as a signed number
        stop_token_ids=list(sampling.stop_ids),
        ignore_eos=True,  # only our stop ids end a completion
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        structured_outputs=vllm_grammars.parameters(sampling.grammar),
    )
    last = None
    async for output in client.generate({"prompt_token_ids": list(prompt_ids)}, params, name, lora_request=adapter):
        last = output
    if last is None:
        raise EngineError("vLLM ended a request without an answer")
    [choice] = last.outputs
    if choice.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended a request with {choice.finish_reason!r}")
    token_ids = list(choice.token_ids)
    return Completion(
        token_ids=token_ids,
        logprobs=sampled_logprobs(token_ids, choice.logprobs),
        finish=choice.finish_reason,
        min_version=version,
        max_version=version,
        guided=sampling.grammar is not None,
    )


def sampled_logprobs(token_ids: Sequence[int], positions: Sequence[Mapping[int, Any]] | None) -> list[float]:
    """Returns the log-probability [T] of each sampled id.

    A position may list other ids beside the sampled one, likelier ones first; the sampled id is looked up by itself.

    Args:
        token_ids: the sampled ids [T].
        positions: per position, id -> an object with `logprob` [T].

    Raises:
        EngineError: a position is missing, does not have the sampled id, or a number is not finite.
    """
    given = [] if positions is None else list(positions)
    if len(given) != len(token_ids):
        raise EngineError(f"vLLM returned {len(token_ids)} ids with {len(given)} log-probabilities")
    missing = [token for token, position in zip(token_ids, given, strict=True) if token not in position]
    if missing:
        raise EngineError(f"vLLM returned no log-probability for the sampled id {missing[0]}")
    found = [float(position[token].logprob) for token, position in zip(token_ids, given, strict=True)]
    if not all(map(math.isfinite, found)):
        raise EngineError(f"vLLM returned the log-probabilities {found!r:.100}; are the weights finite?")
    return found
