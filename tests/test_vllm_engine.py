"""The vLLM engine on the real vLLM: what it samples, what it refuses, weights and adapters in passing, its process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from llm_arena.engines import vllm_start
from llm_arena.engines.base import Sampling
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_engine import KEPT_VERSIONS, VllmEngine, sampled_logprobs
from llm_arena.errors import EngineError, TrainingError, UnknownName, UsageError
from llm_arena.models import random_model
from llm_arena.runtime import Runtime
from llm_arena.training.learner import Learner
from llm_arena.training.sync import Publisher
from llm_arena.types import Completion

PROGRAM = Path(__file__).parent / "programs" / "serve_tiny.py"
PROMPTS = [[1, 3 + k % 4, *range(6, 46)] for k in range(8)]
"""Longer than a block of the prefix cache, and of few kinds, so that the cache is used."""
ADAPTERS = 7


def model_folder(folder: Path, *, tied: bool, seed: int = 0) -> Path:
    words = [f"word{k}" for k in range(60)]
    return random_model(
        folder, words=words, hidden_size=64, heads=2, seed=seed, tie_word_embeddings=tied, initializer_range=0.15
    )


def logprobs(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """The slow and obvious way: one forward pass over all, log-softmax, pick the ids."""
    whole = torch.tensor([[*prompt, *ids]])
    with torch.no_grad():
        logits = model(input_ids=whole, use_cache=False).logits[0].double() / temperature
    picked = torch.log_softmax(logits, -1)[:-1].gather(-1, whole[0, 1:, None])[:, 0]
    return picked[len(prompt) - 1 :]


def gap(model: Any, completions: list[Completion], prompts: list[list[int]], temperature: float = 1.0) -> float:
    return max(
        float((logprobs(model, prompt, done.token_ids, temperature) - torch.tensor(done.logprobs)).abs().max())
        for prompt, done in zip(prompts, completions, strict=True)
    )


class Served:
    """An engine with a runtime, for synchronous tests."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.runtime = Runtime(engine=engine)

    def publish(self, policy: str, folder: Path, version: int) -> None:
        self.runtime.run(self.engine.publish(policy, folder, version))

    def ask(self, policies: list[str], *, temperature: float = 1.0, tokens: int = 8) -> list[Completion]:
        async def all_at_once() -> list[Completion]:
            wanted = [
                self.engine.generate(
                    prompt,
                    Sampling(max_new_tokens=tokens, temperature=temperature, seed=2**63 + k),
                    policies[k % len(policies)],
                )
                for k, prompt in enumerate(PROMPTS)
            ]
            return list(await asyncio.gather(*wanted))

        return self.runtime.run(all_at_once(), timeout=120)


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("tied") / "model", tied=True)


@pytest.fixture(scope="session")
def adapters(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Adapters of the tied model that change it a lot."""
    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    for number in range(ADAPTERS):
        model = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32)
        settings = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", init_lora_weights=False)
        get_peft_model(model, settings).save_pretrained(folder / str(number))
    return [folder / str(number) for number in range(ADAPTERS)]


@pytest.fixture(scope="session")
def shared(tied: Path) -> Iterator[Served]:
    """One engine for all tests that leave its weights alone: the base and adapters."""
    served = Served(VllmEngine(EngineSettings(kind="vllm", args='{"max_model_len": 256}'), max_lora_rank=4))
    served.publish("base", tied, 0)
    yield served
    served.runtime.close()


@pytest.fixture(scope="module", params=["tied", "untied"])
def replaceable(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine whose weights are replaced, with the learner and the publisher that do it."""
    base = model_folder(tmp_path_factory.mktemp(request.param) / "model", tied=request.param == "tied")
    engine = VllmEngine()
    served = Served(engine)
    learner = Learner.load(base)
    folder = tmp_path_factory.mktemp("weights")
    publisher = Publisher(learner, engine, served.runtime, policy="learner", folder=folder)
    publisher.publish(0)
    yield SimpleNamespace(served=served, engine=engine, learner=learner, publisher=publisher, kind=request.param)
    served.runtime.close()


def shake(learner: Learner) -> None:
    with torch.no_grad():
        for parameter in learner.parameters.values():
            parameter.add_(torch.randn_like(parameter) * 0.05)


def check(publisher: Publisher, version: int) -> float:
    return publisher.check(PROMPTS[:4], temperature=1.0, seed=0, tolerance=1e-4, version=version)


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
    assert len(shared.ask(["base"])) == len(PROMPTS)


def test_the_sampled_id_is_looked_up_not_the_first_of_the_list() -> None:
    position = {17: SimpleNamespace(logprob=-0.05), 42: SimpleNamespace(logprob=-2.9)}
    assert sampled_logprobs([42], [position]) == [-2.9]
    with pytest.raises(EngineError, match="no log-probability for the sampled id 5"):
        sampled_logprobs([5], [position])
    with pytest.raises(EngineError, match="2 ids with 1 log-prob"):
        sampled_logprobs([42, 42], [position])


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
    versions = shared.engine._adapters["trained"]
    versions[0], versions[1] = versions[1], versions[0]
    with pytest.raises(TrainingError, match="does not serve the new weights"):
        check(publisher, 1)


# ---- full weights ------------------------------------------------------------------------------------------------


def test_parity_holds_over_updates_of_full_weights(replaceable: Any) -> None:
    for version in range(1, 4):
        shake(replaceable.learner)
        replaceable.publisher.publish(version)
        assert check(replaceable.publisher, version) <= 1e-4
        assert replaceable.served.ask(["learner"])[0].min_version == version


def test_parity_catches_a_stale_output_head(replaceable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM's own reload leaves behind: with tied embeddings the head computes with its old packed weights."""
    client = replaceable.engine._llm
    original = client.collective_rpc

    async def plain_reload(method: str, args: tuple[Any, ...] = ()) -> Any:
        return await original("reload_weights", kwargs={"weights_path": args[0]})

    monkeypatch.setattr(client, "collective_rpc", plain_reload)
    shake(replaceable.learner)
    replaceable.publisher.publish(10)
    if replaceable.kind == "tied":
        with pytest.raises(TrainingError, match="does not serve the new weights"):
            check(replaceable.publisher, 10)
    else:
        assert check(replaceable.publisher, 10) <= 1e-4
    monkeypatch.undo()
    replaceable.publisher.publish(11)
    assert check(replaceable.publisher, 11) <= 1e-4


def test_parity_catches_a_stale_prefix_cache(replaceable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget_nothing() -> bool:
        return True

    check(replaceable.publisher, 0)  # fills the cache
    monkeypatch.setattr(replaceable.engine._llm, "reset_prefix_cache", forget_nothing)
    shake(replaceable.learner)
    replaceable.publisher.publish(20)
    with pytest.raises(TrainingError, match="does not serve the new weights"):
        check(replaceable.publisher, 20)
    monkeypatch.undo()
    replaceable.publisher.publish(21)
    assert check(replaceable.publisher, 21) <= 1e-4


def test_weights_are_replaced_between_requests_never_under_them(replaceable: Any) -> None:
    engine, learner = replaceable.engine, replaceable.learner
    replaceable.publisher.publish(30)
    old = Learner.load(sorted(replaceable.publisher._folder.glob("v*"))[-1])

    async def both() -> list[Completion]:
        running = [
            asyncio.ensure_future(engine.generate(prompt, Sampling(max_new_tokens=60, seed=k), "learner"))
            for k, prompt in enumerate(PROMPTS)
        ]
        await asyncio.sleep(0.05)
        await engine.publish("learner", new, 31)
        return list(await asyncio.gather(*running))

    shake(learner)
    new = replaceable.publisher._folder / "new"
    new.mkdir()
    learner.save(new)
    completions = replaceable.served.runtime.run(both(), timeout=60)
    assert {(done.min_version, done.max_version) for done in completions} == {(30, 30)}
    assert gap(old.model, completions, PROMPTS) <= 1e-4
    assert gap(learner.model, replaceable.served.ask(["learner"]), PROMPTS) <= 1e-4


def test_another_architecture_is_refused_and_the_old_weights_serve_on(replaceable: Any, tmp_path: Path) -> None:
    replaceable.publisher.publish(40)
    wider = random_model(tmp_path / "wider", words=["a"], hidden_size=128, heads=2)
    with pytest.raises(EngineError, match="another model than the one that is served: "):
        replaceable.served.publish("learner", wider, 41)
    with pytest.raises(EngineError, match="has no config.json"):
        replaceable.served.publish("learner", tmp_path / "nothing", 41)
    assert check(replaceable.publisher, 40) <= 1e-4


# ---- the process -------------------------------------------------------------------------------------------------


def test_a_killed_process_is_an_error_that_names_it_and_closing_still_works(replaceable: Any) -> None:
    """Last of this engine's tests: it is dead afterwards."""
    served, engine = replaceable.served, replaceable.engine

    async def waits_while_it_dies() -> None:
        running = asyncio.ensure_future(engine.generate([1], Sampling(max_new_tokens=2000), "learner"))
        await asyncio.sleep(0.2)
        os.kill(engine.pid, signal.SIGKILL)
        await running

    began = time.monotonic()
    for call in (waits_while_it_dies, lambda: engine.generate([1], Sampling(max_new_tokens=1), "learner")):
        with pytest.raises(EngineError, match=r"vLLM process \(pid \d+\) has died with exit code -9.*same command"):
            served.runtime.run(call(), timeout=30)
    with pytest.raises(EngineError, match="has died"):
        replaceable.publisher.publish(50)
    served.runtime.close()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate([1], Sampling(max_new_tokens=1), "learner"))
    assert time.monotonic() - began < 20


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def serving(tied: Path) -> Iterator[Callable[[str], tuple[subprocess.Popen[str], int]]]:
    """Starts a program without a main guard that serves the tied model; returns it and the engine's process id."""
    running: list[subprocess.Popen[str]] = []

    def start(how: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-", str(tied)] if how == "stdin" else [sys.executable, str(PROGRAM), str(tied)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        running.append(process)
        assert process.stdin is not None and process.stdout is not None
        if how == "stdin":
            process.stdin.write(PROGRAM.read_text())
            process.stdin.close()
        return process, int(process.stdout.readline())

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_nothing_is_left_after_kill_9_of_the_parent(
    serving: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, pid = serving("stdin")  # which has no main module to import in a child
    assert os.getsid(pid) == pid
    process.kill()
    process.wait()
    end = time.monotonic() + 5
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert not alive(pid)


def test_ctrl_c_closes_the_engine_and_ends_the_program(
    serving: Callable[[str], tuple[subprocess.Popen[str], int]],
) -> None:
    process, pid = serving("script")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 130, errors
    assert errors.strip() == "llm-arena: interrupted"
    assert not alive(pid)


# ---- arguments ---------------------------------------------------------------------------------------------------


def test_vllms_own_arguments_are_checked_against_the_installed_version() -> None:
    assert vllm_start.check_arguments({"max-model-len": 64}) == {"max_model_len": 64}
    with pytest.raises(UnknownName, match="no engine argument 'max_model_length'. Did you mean \"max_model_len\""):
        VllmEngine(EngineSettings(kind="vllm", args='{"max_model_length": 64}'))
    with pytest.raises(UsageError, match=r"engine\.logprobs_mode is set by llm_arena"):
        VllmEngine(EngineSettings(kind="vllm", args='{"logprobs_mode": "raw_logits"}'))
    with pytest.raises(UsageError, match=r"engine\.tensor_parallel_size is set by llm_arena; use engine\.devices"):
        VllmEngine(EngineSettings(kind="vllm", args='{"tensor_parallel_size": 2}'))


def test_arguments_that_vllm_refuses_are_one_line(tied: Path) -> None:
    for args, says in (
        ({"max_num_batched_tokens": "much"}, "max_num_batched_tokens"),
        ({"kv_cache_memory_bytes": 100}, "cache blocks"),
    ):
        served = Served(VllmEngine(EngineSettings(kind="vllm").with_args(args)))
        with pytest.raises(EngineError, match=f"vLLM did not start: .*({says})") as caught:
            served.publish("p", tied, 0)
        assert "\n" not in str(caught.value)
        served.runtime.close()
        kept = re.search(r"all it said is in (\S+)\)", str(caught.value))
        assert kept is None or Path(kept[1]).stat().st_size > 0


def test_devices_that_the_build_does_not_have_are_refused(tied: Path) -> None:
    with pytest.raises(UsageError, match="the installed vLLM is the CPU build"):
        vllm_start.arguments(tied, EngineSettings(kind="vllm", devices="0"), max_lora_rank=0, sleeps=False)


def test_memory_holds_at_least_one_whole_context(tmp_path: Path) -> None:
    folder = random_model(tmp_path / "long", words=["a"], hidden_size=1024, layers=16, heads=8, max_positions=16384)
    found = vllm_start.arguments(folder, EngineSettings(kind="vllm"), max_lora_rank=0, sleeps=False)
    per_token = 2 * 16 * 8 * 128 * 4
    assert vllm_start.kv_bytes_per_token(folder, 4) == per_token
    assert found["max_model_len"] == 8192
    assert found["kv_cache_memory_bytes"] == per_token * (8192 + 64)
