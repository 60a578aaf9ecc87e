"""What the vLLM engine samples, from the base model and from adapters, and what it refuses; on the real vLLM."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from llm_arena.engines.base import Sampling
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_adapters import KEPT_VERSIONS
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.engines.vllm_sampling import sampled_logprobs
from llm_arena.errors import EngineError, TrainingError, UnknownName
from llm_arena.training.learner import Learner
from llm_arena.training.sync import Publisher
from llm_arena.types import Completion
from vllm_parts import PROMPTS, Served, check, gap, model_folder, shake
from vllm_parts import adapters as adapters  # a fixture: the alias says that it is meant to be here
from vllm_parts import tied as tied  # a fixture: the alias says that it is meant to be here


@pytest.fixture(scope="module")
def shared(tied: Path) -> Iterator[Served]:
    """One engine for all tests that leave its weights alone: the base and adapters."""
    served = Served(VllmEngine(EngineSettings(kind="vllm", args='{"max_model_len": 256}'), max_lora_rank=4))
    served.publish("base", tied, 0)
    yield served
    served.runtime.close()


# ---- sampling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.5])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(
    temperature: float, shared: Served, tied: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    assert gap(model, shared.ask(["base"], temperature=temperature), PROMPTS, temperature) <= 1e-4


def test_greedy_is_the_argmax_with_the_plain_logprob(shared: Served, tied: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    completions = shared.ask(["base"], temperature=0.0, tokens=1)
    assert gap(model, completions, PROMPTS) <= 1e-4
    with torch.no_grad():
        best = [int(model(input_ids=torch.tensor([prompt])).logits[0, -1].argmax()) for prompt in PROMPTS]
    assert [done.token_ids for done in completions] == [[token] for token in best]


def test_the_seed_decides_alone_or_in_company(shared: Served) -> None:
    sampling = Sampling(max_new_tokens=8, seed=2**64 - 1)
    alone = [shared.runtime.run(shared.engine.generate(PROMPTS[0], sampling, "base")) for _ in range(2)]
    assert alone[0].token_ids == alone[1].token_ids
    other = shared.runtime.run(shared.engine.generate(PROMPTS[0], Sampling(max_new_tokens=8, seed=1), "base"))
    assert other.token_ids != alone[0].token_ids


def test_a_sampled_stop_id_ends_the_completion_and_is_kept(shared: Served) -> None:
    free = shared.runtime.run(shared.engine.generate(PROMPTS[0], Sampling(max_new_tokens=8, seed=5), "base"))
    assert free.finish == "length"
    stop = free.token_ids[2]
    done = shared.runtime.run(
        shared.engine.generate(PROMPTS[0], Sampling(max_new_tokens=8, seed=5, stop_ids=(stop,)), "base")
    )
    assert done.finish == "stop"
    assert done.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert len(done.logprobs) == len(done.token_ids)


@pytest.mark.parametrize(
    ("prompt", "sampling", "policy", "error", "says"),
    [
        ([], Sampling(max_new_tokens=1), "base", EngineError, "prompt is empty"),
        ([10**6], Sampling(max_new_tokens=1), "base", EngineError, "outside of the vocabulary"),
        ([-1], Sampling(max_new_tokens=1), "base", EngineError, "outside of the vocabulary"),
        ([1] * 250, Sampling(max_new_tokens=7), "base", EngineError, "exceed the 256 positions"),
        ([1], Sampling(max_new_tokens=0), "base", EngineError, "max_new_tokens >= 1"),
        ([1], Sampling(max_new_tokens=1, temperature=-1.0), "base", EngineError, "temperature"),
        (
            [1],
            Sampling(max_new_tokens=1, temperature=0.002),
            "base",
            EngineError,
            r"below 0\.01, which vLLM would take",
        ),
        ([1], Sampling(max_new_tokens=1), "bass", UnknownName, 'Did you mean "base"'),
    ],
)
def test_what_can_not_be_sampled_is_refused_and_harms_nobody(
    prompt: list[int], sampling: Sampling, policy: str, error: type[Exception], says: str, shared: Served
) -> None:
    with pytest.raises(error, match=says):
        shared.runtime.run(shared.engine.generate(prompt, sampling, policy))
    assert len(shared.ask(["base"])) == len(PROMPTS)


def test_a_cancelled_request_is_aborted_and_the_engine_goes_on(shared: Served) -> None:
    async def give_up() -> None:
        await asyncio.wait_for(shared.engine.generate([1], Sampling(max_new_tokens=250), "base"), 0.05)

    with pytest.raises(TimeoutError):
        shared.runtime.run(give_up())
    end = time.monotonic() + 5
    while shared.client.get_num_unfinished_requests() and time.monotonic() < end:
        time.sleep(0.05)
    assert not shared.client.get_num_unfinished_requests()
    assert len(shared.ask(["base"])) == len(PROMPTS)


def test_the_sampled_id_is_looked_up_not_the_first_of_the_list() -> None:
    position = {17: SimpleNamespace(logprob=-0.05), 42: SimpleNamespace(logprob=-2.9)}
    assert sampled_logprobs([42], [position]) == [-2.9]
    with pytest.raises(EngineError, match="no log-probability for the sampled id 5"):
        sampled_logprobs([5], [position])
    with pytest.raises(EngineError, match="2 ids with 1 log-prob"):
        sampled_logprobs([42, 42], [position])
    with pytest.raises(EngineError, match="are the weights finite"):
        sampled_logprobs([7], [{7: SimpleNamespace(logprob=math.nan)}])


# ---- adapters ----------------------------------------------------------------------------------------------------


def test_adapters_of_one_batch_each_equal_peft_and_old_versions_stay_exact(
    shared: Served, tied: Path, adapters: list[Path]
) -> None:
    def reference(number: int) -> Any:
        base = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
        return PeftModel.from_pretrained(base, adapters[number]).eval()

    def each(policies: list[str], models: list[Any]) -> list[float]:
        completions = shared.ask(policies)
        return [
            gap(model, completions[place :: len(models)], PROMPTS[place :: len(models)])
            for place, model in enumerate(models)
        ]

    shared.publish("left", adapters[0], 0)
    shared.publish("right", adapters[1], 0)
    first, second = reference(0), reference(1)
    assert max(each(["left", "right"], [first, second])) <= 1e-4
    assert max(each(["left", "right"], [second, first])) > 0.1  # they differ, so the line above says something

    for version in range(1, 6):
        shared.publish("left", adapters[version + 1], version)
    base = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
    # all slots of the engine are taken now; a row without an adapter must not get somebody's
    newest, policies = reference(6), ["left@0", "left", "right", "base"]
    assert max(each(policies, [first, newest, second, base])) <= 1e-4
    assert [done.min_version for done in shared.ask(policies)[:4]] == [0, 5, 0, 0]
    with pytest.raises(UnknownName, match="version 9 of policy 'left' is not loaded"):
        shared.ask(["left@9"])


def test_only_the_newest_versions_stay_loaded(shared: Served, adapters: list[Path]) -> None:
    for version in range(KEPT_VERSIONS + 1):
        shared.publish("often", adapters[0], version)
    with pytest.raises(UnknownName, match="version 0 of policy 'often' is not loaded any more; there are: 1, 2"):
        shared.ask(["often@0"])
    assert len(shared.ask(["often@1"])) == len(PROMPTS)
    loaded = shared.runtime.run(shared.client.list_loras())
    known = [adapter for versions in shared.engine._adapters._policies.values() for adapter in versions.values()]
    assert len(loaded) == len(known) + 1  # and the one that changes nothing


def test_a_version_is_not_unloaded_under_a_request(shared: Served, adapters: list[Path]) -> None:
    async def long_one() -> Completion:
        running = asyncio.ensure_future(
            shared.engine.generate([1], Sampling(max_new_tokens=250), "long@0")  # outlives the publications below
        )
        await asyncio.sleep(0.05)
        for version in range(1, KEPT_VERSIONS + 1):
            await shared.engine.publish("long", adapters[1], version)
        assert running.done()
        return await running

    shared.publish("long", adapters[0], 0)
    done = shared.runtime.run(long_one(), timeout=60)
    assert (done.min_version, len(done.token_ids)) == (0, 250)
    assert len(shared.ask(["base"])) == len(PROMPTS)


@pytest.mark.parametrize("damage", ["torn", "rank", "foreign"])
def test_a_bad_adapter_is_refused_and_the_others_serve_on(
    damage: str, shared: Served, adapters: list[Path], tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    text, weights = ((adapters[0] / name).read_bytes() for name in ("adapter_config.json", "adapter_model.safetensors"))
    if damage == "torn":
        weights = weights[: len(weights) // 2]
    elif damage == "rank":
        text = text.replace(b'"r": 4', b'"r": 64')
    else:
        weights = weights.replace(b"self_attn", b"othr_attn")
    (bad / "adapter_config.json").write_bytes(text)
    (bad / "adapter_model.safetensors").write_bytes(weights)
    with pytest.raises(EngineError):
        shared.publish("bad", bad, 0)
    assert len(shared.ask(["base"])) == len(PROMPTS)


def test_publishing_a_version_twice_and_a_second_model_are_refused(
    shared: Served, tied: Path, adapters: list[Path], tmp_path: Path
) -> None:
    shared.publish("once", adapters[0], 3)
    with pytest.raises(EngineError, match="version 3 of 'once' was published before"):
        shared.publish("once", adapters[0], 3)
    other = model_folder(tmp_path / "other", tied=True, seed=1)
    with pytest.raises(EngineError, match="needs an engine of its own"):
        shared.publish("other", other, 0)
    shared.publish("same", tied, 0)  # the base under a second name
    assert shared.ask(["same"], temperature=0.0)[0].token_ids == shared.ask(["base"], temperature=0.0)[0].token_ids
    with pytest.raises(EngineError, match="serve same too"):
        shared.publish("base", tied, 1)


def test_parity_catches_a_swapped_adapter(shared: Served, tied: Path, tmp_path: Path) -> None:
    from llm_arena.training.lora import LoraSettings

    learner = Learner.load(tied, lora=LoraSettings(rank=4))
    publisher = Publisher(
        learner, shared.engine, shared.runtime, policy="trained", folder=tmp_path / "w", adapter_of=tied
    )
    for version in range(2):
        shake(learner)
        publisher.publish(version)
        assert check(publisher, version) <= 1e-4
    versions = shared.engine._adapters._policies["trained"]
    versions[0], versions[1] = versions[1], versions[0]
    with pytest.raises(TrainingError, match="does not serve the new weights"):
        check(publisher, 1)
