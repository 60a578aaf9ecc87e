"""How model servers are asked for tokens, and what they answer: vLLM's `/v1/completions` and SGLang's `/generate`.

Replies are read strictly. A turn is recorded only with the ids that the server says it sampled and one log-probability
for each of them, its own: nothing is padded, made again from text, or taken from a list of the likeliest ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from llm_arena.engines.base import Sampling
from llm_arena.engines.http_replies import Fault, Unread, shown
from llm_arena.errors import ServerRefusal
from llm_arena.types import Completion, Json

PLAIN: dict[str, Json] = {
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Sampling as it is learned from. A server's own defaults, often from the model's files, hold for what is not sent."""
MARK = "token_id:"
"""vLLM prints a token as this and its id, where it is asked for ids in place of texts."""
LARGEST_ID = 2**31 - 1
LARGEST_LOGPROB = 1e-4
"""A probability is 1 at most; its logarithm may be a little above 0 where a server rounds."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Models:
    """What a server says of itself."""

    kind: Literal["vllm", "sglang", "other"]
    names: tuple[str, ...]
    "Models and adapters that it serves."
    max_context_tokens: int | None
    version: str = ""
    dtype: str = ""
    "What it computes in; empty where it does not tell."


class _Model(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _Completions(msgspec.Struct):
    choices: list[_Choice]


class _Finish(msgspec.Struct):
    type: str


class _Meta(msgspec.Struct):
    finish_reason: _Finish
    output_token_logprobs: list[tuple[float | None, int, str | None]] = []


class _Generated(msgspec.Struct):
    meta_info: _Meta
    output_ids: list[int] | None = None


_MODELS = msgspec.json.Decoder(_Models)
_COMPLETIONS = msgspec.json.Decoder(_Completions)
_GENERATED = msgspec.json.Decoder(_Generated)
_ENCODER = msgspec.json.Encoder()


def read_models(raw: bytes) -> Models:
    """Returns what `/v1/models` tells.

    Raises:
        Fault: it is no such list, or empty.
    """
    found = _typed(_MODELS, raw).data
    if not found:
        raise Fault("the server lists no model")
    owner = found[0].owned_by
    kind: Literal["vllm", "sglang", "other"] = "vllm" if owner == "vllm" else "sglang" if owner == "sglang" else "other"
    lengths = [model.max_model_len for model in found if model.max_model_len is not None]
    return Models(kind, tuple(model.id for model in found), min(lengths, default=None))


def request(kind: str, name: str, prompt_ids: Sequence[int], sampling: Sampling) -> tuple[str, bytes]:
    """Returns the path and the body of a request for one completion.

    Args:
        kind: of the server; an unknown one is asked as vLLM is.
        name: the model's or the adapter's on the server.
        prompt_ids: all ids of the context [P].
        sampling: how to sample.
    """
    if kind == "sglang":
        how: dict[str, Json] = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "stop_token_ids": sampling.stop_ids,
            "ignore_eos": True,  # only our stop ids end a completion
            "skip_special_tokens": False,
            "sampling_seed": sampling.seed % (1 << 63),
            **PLAIN,
            "top_k": -1,
        }
        body: dict[str, Json] = {"input_ids": prompt_ids, "sampling_params": how, "return_logprob": True}
        return "/generate", _ENCODER.encode(body)
    body = {
        "model": name,
        "prompt": prompt_ids,
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed % (1 << 63),  # a signed number there
        "stop_token_ids": sampling.stop_ids,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "logprobs": 0,  # of the sampled id alone
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **PLAIN,
        "top_k": 0,
    }
    if isinstance(sampling.grammar, str):
        body["structured_outputs"] = {"regex": sampling.grammar}
    elif sampling.grammar is not None:
        body["structured_outputs"] = {"json": sampling.grammar}
    return "/v1/completions", _ENCODER.encode(body)


def read_completion(
    kind: str, raw: bytes, prompt_ids: Sequence[int], sampling: Sampling, *, version: int, vocabulary: int | None
) -> Completion:
    """Returns the completion that a server answered.

    Args:
        kind: of the server.
        raw: its reply.
        prompt_ids: what was sent [P].
        sampling: what was asked for.
        version: of the policy that was asked.
        vocabulary: how many ids the model has, if that is known.

    Raises:
        Fault: ids and log-probabilities are not those of one whole completion.
        ServerRefusal: a server of unknown kind returns no ids at all.
    """
    if kind == "sglang":
        ids, logprobs, finish = _read_generated(raw)
    else:
        ids, logprobs, finish = _read_choice(kind, raw, prompt_ids)
    if len(ids) != len(logprobs):
        raise Fault(f"the server returned {len(ids)} ids with {len(logprobs)} log-probabilities")
    if not 0 < len(ids) <= sampling.max_new_tokens:
        raise Fault(f"the server returned {len(ids)} ids, asked for were 1 to {sampling.max_new_tokens}")
    if not 0 <= min(ids) <= max(ids) <= (LARGEST_ID if vocabulary is None else vocabulary - 1):
        raise Fault(f"the server returned an id outside of the vocabulary: {min(ids)} or {max(ids)}")
    numbers = [number for number in logprobs if number is not None and math.isfinite(number)]
    if len(numbers) != len(ids):
        raise Fault(f"the server returned {len(ids)} ids, and {len(numbers)} finite log-probabilities for them")
    if max(numbers) > LARGEST_LOGPROB:
        raise Fault(f"the server returned the log-probability {max(numbers):g}, and none is above 0")
    if finish not in ("stop", "length"):
        raise Fault(f"the server ended a completion with {finish!r:.60}; expected is stop or length")
    _refuse_other_end(ids, finish, sampling)
    return Completion(
        token_ids=ids,
        logprobs=numbers,
        finish="stop" if finish == "stop" else "length",
        min_version=version,
        max_version=version,
        guided=sampling.grammar is not None,
    )


def _refuse_other_end(ids: Sequence[int], finish: str, sampling: Sampling) -> None:
    """Raises Fault unless a completion ended where ours end: by one of our ids, the first of them, or by its length."""
    early = [token for token in ids[:-1] if token in sampling.stop_ids]
    if early:
        raise Fault(f"the server sampled on after the stop id {early[0]}")
    if finish == "stop" and ids[-1] not in sampling.stop_ids:
        raise Fault(f"the server ended a completion by the id {ids[-1]}, which is no stop id of ours")
    if finish == "length" and len(ids) != sampling.max_new_tokens:
        raise Fault(f"the server ended a completion for its length at {len(ids)} of {sampling.max_new_tokens} ids")


def _read_choice(
    kind: str, raw: bytes, prompt_ids: Sequence[int]
) -> tuple[list[int], Sequence[float | None], str | None]:
    choices = _typed(_COMPLETIONS, raw).choices
    if not choices:
        raise Unread("the server returned 0 choices, expected is 1", raw)
    if len(choices) != 1:
        raise Fault(f"the server returned {len(choices)} choices, expected is 1")
    [choice] = choices
    told = choice.logprobs or _Logprobs()
    if choice.token_ids is None:
        line = f"the server returned no ids (0 ids with {len(told.token_logprobs)} log-probabilities)"
        if kind == "vllm":
            raise Fault(line)
        raise ServerRefusal(
            f"{line}: it is no vLLM that knows return_token_ids, and no SGLang; play its model as text, without the "
            "setting tokenizer"
        )
    ids = choice.token_ids
    if choice.prompt_token_ids is not None and choice.prompt_token_ids != prompt_ids:
        raise Fault(f"the server read {len(choice.prompt_token_ids)} other prompt ids than the {len(prompt_ids)} sent")
    if len(told.tokens) != len(ids):
        raise Fault(f"the server returned {len(ids)} ids with log-probabilities of {len(told.tokens)} tokens")
    for token, name in zip(ids, told.tokens, strict=True):
        if name.startswith(MARK) and name != f"{MARK}{token}":
            raise Fault(f"the server returned the id {token} with the log-probability of {name!r:.60}")
    return ids, told.token_logprobs, choice.finish_reason


def _read_generated(raw: bytes) -> tuple[list[int], Sequence[float | None], str | None]:
    reply = _typed(_GENERATED, raw)
    told = reply.meta_info.output_token_logprobs
    named = [token for _, token, _ in told]
    if reply.output_ids is not None and reply.output_ids != named:
        raise Fault(
            f"the server returned {len(reply.output_ids)} ids with log-probabilities of {len(named)}, which are others"
        )
    return named, [number for number, _, _ in told], reply.meta_info.finish_reason.type


def _typed(decoder: msgspec.json.Decoder[_T], raw: bytes) -> _T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = f"the server's reply of {len(raw)} bytes is none that is known: {shown(str(error))}"
        raise Unread(why, raw) from error
