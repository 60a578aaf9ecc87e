"""Full weights in passing to the real vLLM, what the parity check catches, and the death of the engine's process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from llm_arena.engines.base import Sampling
from llm_arena.engines.vllm_engine import VllmEngine
from llm_arena.errors import EngineError, TrainingError
from llm_arena.models import random_model
from llm_arena.training.learner import Learner
from llm_arena.training.sync import Publisher
from llm_arena.types import Completion
from vllm_parts import PROMPTS, Served, check, gap, model_folder, shake


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


# ---- full weights ------------------------------------------------------------------------------------------------


def test_parity_holds_over_updates_of_full_weights(replaceable: Any) -> None:
    for version in range(1, 4):
        shake(replaceable.learner)
        replaceable.publisher.publish(version)
        assert check(replaceable.publisher, version) <= 1e-4
        assert replaceable.served.ask(["learner"])[0].min_version == version


def test_parity_catches_a_stale_output_head(replaceable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What vLLM's own reload leaves behind: with tied embeddings the head computes with its old packed weights."""
    client = replaceable.served.client
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
    monkeypatch.setattr(replaceable.served.client, "reset_prefix_cache", forget_nothing)
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
    good = sorted(replaceable.publisher._folder.glob("v*"))[-1]
    for name, damage, says in (
        (
            "lacks",
            lambda weights: weights.pop("model.layers.0.mlp.down_proj.weight"),
            "down_proj.weight has the shape None",
        ),
        ("foreign", lambda weights: weights.update(extra=torch.zeros(3)), "extra has the shape"),
        (
            "wide",
            lambda weights: weights.update({"model.norm.weight": torch.zeros(65)}),
            r"norm.weight has the shape \(65,\)",
        ),
    ):
        shutil.copytree(good, tmp_path / name)
        weights = load_file(good / "model.safetensors")
        damage(weights)
        save_file(weights, tmp_path / name / "model.safetensors")
        with pytest.raises(EngineError, match=says):
            replaceable.served.publish("learner", tmp_path / name, 41)
    shutil.copytree(good, tmp_path / "torn")
    whole = (good / "model.safetensors").read_bytes()
    (tmp_path / "torn" / "model.safetensors").write_bytes(whole[:-9])
    with pytest.raises(EngineError, match="no whole safetensors"):
        replaceable.served.publish("learner", tmp_path / "torn", 41)
    assert check(replaceable.publisher, 40) <= 1e-4


def test_a_caller_that_gives_up_leaves_no_exchange_half_done(replaceable: Any) -> None:
    engine, learner = replaceable.engine, replaceable.learner
    replaceable.publisher.publish(44)
    shake(learner)
    new = replaceable.publisher._folder / "given-up"
    new.mkdir()
    learner.save(new)

    async def gives_up() -> Completion:
        publishing = asyncio.ensure_future(engine.publish("learner", new, 45))
        await asyncio.sleep(0.002)
        publishing.cancel()
        await asyncio.wait([publishing])
        assert publishing.cancelled()
        await asyncio.sleep(0)
        return await engine.generate(PROMPTS[0], Sampling(max_new_tokens=8), "learner")

    done = replaceable.served.runtime.run(gives_up(), timeout=60)
    assert done.min_version == 45
    assert gap(learner.model, [done], PROMPTS[:1]) <= 1e-4
    assert check(replaceable.publisher, 45) <= 1e-4


def test_a_process_that_dies_too_often_is_an_error_that_names_it_and_closing_still_works(replaceable: Any) -> None:
    """Last of this engine's tests: it is dead afterwards."""
    served, engine = replaceable.served, replaceable.engine
    engine._process.revivals_left = 0

    async def waits_while_it_dies() -> None:
        running = asyncio.ensure_future(engine.generate([1], Sampling(max_new_tokens=2000), "learner"))
        await asyncio.sleep(0.2)
        os.kill(engine.pid, signal.SIGKILL)
        await running

    async def waits_for_an_answer_that_never_comes() -> None:
        await engine._process.call(asyncio.Event().wait())

    began = time.monotonic()
    for call in (
        waits_while_it_dies,
        waits_for_an_answer_that_never_comes,
        lambda: engine.generate([1], Sampling(max_new_tokens=1), "learner"),
    ):
        with pytest.raises(EngineError, match=r"vLLM process \(pid \d+\) has died with exit code -9.*same command"):
            served.runtime.run(call(), timeout=30)
    with pytest.raises(EngineError, match="has died"):
        replaceable.publisher.publish(50)
    log = engine._process.log
    served.runtime.close()
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate([1], Sampling(max_new_tokens=1), "learner"))
    assert time.monotonic() - began < 20
    assert [entry.name for entry in log.parent.iterdir()] == [log.name]  # the log stays, the weights go
    shutil.rmtree(log.parent)
