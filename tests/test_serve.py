"""`llm-arena serve` on the real vLLM: what it samples, frozen and published, over restarts; its end; its refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from llm_arena.cli import main
from llm_arena.engines import vllm_server
from llm_arena.engines.base import Sampling
from llm_arena.engines.openai_engine import OpenAIEngine
from llm_arena.engines.remote_published import KEPT_VERSIONS
from llm_arena.engines.vllm_child import LOG_VARIABLE
from llm_arena.engines.vllm_server import REFUSED, ServerSettings, environment
from llm_arena.errors import EngineError, ServerRefusal, UnknownName
from llm_arena.models import random_model
from llm_arena.training.learner import Learner
from llm_arena.training.sync import Publisher
from llm_arena.types import Completion
from server_parts import Server, descendants, gone
from vllm_parts import ADAPTERS, PROMPTS, Served, check, gap, shake
from vllm_parts import adapters as adapters  # a fixture: the alias says that it is meant to be here
from vllm_parts import tied as tied  # a fixture: the alias says that it is meant to be here

ARGUMENTS = ("--engine.max-model-len", "1024", "--name", "tied")
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def server(tied: Path) -> Iterator[Server]:
    served = Server(tied, "--max-lora-rank", "4", *ARGUMENTS).up()
    yield served
    served.close()


@pytest.fixture
def served(server: Server) -> Iterator[Served]:
    made = Served(OpenAIEngine(server.url))
    yield made
    made.runtime.close()


def base(folder: Path) -> AutoModelForCausalLM:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


# ---- what it samples ---------------------------------------------------------------------------------------------


def test_a_frozen_model_samples_what_transformers_says(server: Server, served: Served, tied: Path) -> None:
    served.engine.serves("opponent", "tied")
    for temperature in (1.0, 0.7):
        assert gap(base(tied), served.ask(["opponent"], temperature=temperature), PROMPTS, temperature) <= 1e-4
    greedy = served.ask(["opponent"], temperature=0.0)
    assert gap(base(tied), greedy, PROMPTS) <= 1e-4
    with pytest.raises(UnknownName, match=r"serves no model 'tide'\. Did you mean \"tied\""):
        served.engine.serves("another", "tide")
        served.runtime.run(served.engine.prepare())
    said = server.said()
    assert f"serving tied at {server.url}\nfrozen seat: openai:tied@{server.url}\n" in said
    assert f'engine = {{kind = "openai", url = "{server.url}"}}' in said and "lora_rank = 4" in said


def test_a_frozen_model_plays_as_the_page_says(server: Server, tied: Path, arena: Run) -> None:
    page = (Path(__file__).parents[1] / "docs" / "servers.md").read_text(encoding="utf-8").replace("\\\n", "")
    page = page.replace("openai:smollm2-135m@http://127.0.0.1:8000", f"openai:tied@{server.url}")
    [block] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    here = block.replace('tokenizer="smollm2-135m"', f'tokenizer="{tied}"')
    exec(compile(here, "docs/servers.md", "exec"), names)
    turns = [turn for turn in names["trace"].turns if turn.seat == "player_0"]
    assert turns and all(0 < len(turn.completion_ids) == len(turn.logprobs) for turn in turns)
    [command] = [line for line in page.splitlines() if line.startswith("llm-arena play")]
    played = arena(*shlex.split(command)[1:], "--traces", "traces.jsonl")
    assert played.returncode == 0, played.stderr
    shown = arena("replay", "traces.jsonl", "--verify")
    assert shown.returncode == 0, shown.stderr


def test_what_only_we_may_do_is_closed_to_others(server: Server) -> None:
    assert server.ask("GET", "/v1/llm_arena")[1]["logprobs_mode"] == "processed_logprobs"
    for path in ("/collective_rpc", "/reset_prefix_cache", "/sleep", "/pause"):
        assert server.ask("POST", path, {"method": "load_policy"})[0] == 404  # vLLM's development routes
    for body in (None, [], {"name": "a"}, {"name": "a", "directory": ""}, {"name": 1, "directory": 2}):
        assert server.ask("POST", "/v1/llm_arena/weights", body)[0] == 422
    assert server.ask("POST", "/v1/llm_arena/weights", {}, "text/plain")[0] == 415  # what a page in a browser may send
    missing = server.ask("POST", "/v1/llm_arena/weights", {"name": "a", "directory": "/nowhere"})
    assert missing[0] == 422 and "the server sees no folder /nowhere" in missing[1]["error"]
    assert server.ask("POST", "/v1/llm_arena/weights", {"name": "tied", "directory": "/tmp"})[0] == 422
    assert server.names() == ["tied"]


def test_adapters_of_one_batch_each_equal_peft_and_old_versions_stay_exact(
    served: Served, tied: Path, adapters: list[Path]
) -> None:
    models = [PeftModel.from_pretrained(base(tied), folder).eval() for folder in adapters]
    served.engine.serves("tied")
    served.publish("left", adapters[0], 0)
    served.publish("right", adapters[1], 0)

    async def versions_in_flight() -> list[list[Completion]]:
        def ask(policy: str) -> list[asyncio.Future[Completion]]:
            sampling = Sampling(max_new_tokens=40, seed=len(asked))
            return [asyncio.ensure_future(served.engine.generate(list(p), sampling, policy)) for p in PROMPTS]

        asked: list[list[asyncio.Future[Completion]]] = []
        for version, policy in enumerate(["left", "right", "left", "right"]):
            asked.append(ask(policy))
            if version % 2:
                await asyncio.sleep(0.05)
                await served.engine.publish("left", adapters[2 + version], 1 + version)
        asked += [ask("left@0"), ask("tied")]
        return [list(await asyncio.gather(*each)) for each in asked]

    found = served.runtime.run(versions_in_flight(), timeout=120)
    for completions, number, version in zip(found, (0, 1, 3, 1, 0), (0, 0, 2, 0, 0), strict=False):
        assert {(done.min_version, done.max_version) for done in completions} == {(version, version)}
        assert gap(models[number], completions, PROMPTS) <= 1e-4
    assert gap(base(tied), found[5], PROMPTS) <= 1e-4
    for version in range(10, 10 + ADAPTERS):
        served.publish("left", adapters[version - 10], version)
    for number in (0, 6, 2):  # more than there are slots, which are exchanged
        assert gap(models[number], served.ask([f"left@{10 + number}"]), PROMPTS) <= 1e-4
    # all slots are taken now; a row without an adapter must not get somebody's from beside it
    both = served.ask(["tied", "left@11"])
    assert gap(base(tied), both[::2], PROMPTS[::2]) <= 1e-4
    assert gap(models[1], both[1::2], PROMPTS[1::2]) <= 1e-4


def test_only_the_newest_versions_stay_loaded_and_none_when_it_is_closed(
    server: Server, served: Served, adapters: list[Path]
) -> None:
    for version in range(KEPT_VERSIONS + 2):
        served.publish("often", adapters[version % ADAPTERS], version)
    assert len(server.names()) == 1 + KEPT_VERSIONS
    served.ask(["often@3"])
    served.runtime.run(served.engine.forget("often"))
    assert server.names() == ["tied"]
    served.publish("often", adapters[0], 0)
    served.runtime.close()
    assert server.names() == ["tied"]


def test_adapters_that_a_server_lost_are_published_again(
    server: Server, served: Served, tied: Path, adapters: list[Path]
) -> None:
    """The request that finds out is answered by the right weights, and so are those of older versions."""
    for version in (0, 1):
        served.publish("a", adapters[version], version)
    served.ask(["a"])
    for name in server.names()[1:]:
        assert server.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})[0] == 200
    for number, policy in ((1, "a"), (0, "a@0")):
        model = PeftModel.from_pretrained(base(tied), adapters[number]).eval()
        assert gap(model, served.ask([policy]), PROMPTS) <= 1e-4


def test_an_adapter_that_does_not_fit_is_refused(server: Server, served: Served, tmp_path: Path) -> None:
    wider = random_model(tmp_path / "wider", words=["a"], hidden_size=128, heads=2)
    model = AutoModelForCausalLM.from_pretrained(wider, dtype=torch.float32)
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear")).save_pretrained(tmp_path / "adapter")
    with pytest.raises(EngineError, match="is no adapter of the model that is served"):
        served.publish("a", tmp_path / "adapter", 0)
    assert server.names() == ["tied"]


# ---- full weights ------------------------------------------------------------------------------------------------


def test_full_weights_are_exchanged_between_requests_and_given_back(
    server: Server, served: Served, tied: Path, tmp_path: Path
) -> None:
    learner = Learner.load(tied)
    publisher = Publisher(learner, served.engine, served.runtime, policy="learner", folder=tmp_path / "weights")
    old = Learner.load(tied)
    for version in range(3):
        shake(learner)
        publisher.publish(version)
        assert check(publisher, version) <= 1e-4
        [name] = server.names()  # and not the base's own
        assert name.startswith(f"learner@{version}-")
        assert server.ask("POST", "/v1/completions", {"model": "tied", "prompt": [1], "max_tokens": 1})[0] == 404
    learner.save(tmp_path / "old")
    old = Learner.load(tmp_path / "old")

    async def both() -> list[Completion]:
        running = [
            asyncio.ensure_future(served.engine.generate(list(prompt), Sampling(max_new_tokens=60, seed=k), "learner"))
            for k, prompt in enumerate(PROMPTS)
        ]
        [asked] = served.engine.pool._servers.values()
        while asked.in_flight < len(PROMPTS) and not any(task.done() for task in running):
            await asyncio.sleep(0.002)
        publishing = asyncio.ensure_future(served.engine.publish("learner", tmp_path / "new", 3))
        weights = served.engine._weights
        while weights._admitting.is_set() and not publishing.done():  # until the exchange waits for those above
            await asyncio.sleep(0.002)
        running += [
            asyncio.ensure_future(served.engine.generate(list(prompt), Sampling(max_new_tokens=8, seed=k), "learner"))
            for k, prompt in enumerate(PROMPTS)
        ]
        await publishing
        return list(await asyncio.gather(*running))

    shake(learner)
    learner.save(tmp_path / "new")
    completions = served.runtime.run(both(), timeout=60)
    assert [done.min_version for done in completions] == [2] * len(PROMPTS) + [3] * len(PROMPTS)
    assert gap(old.model, completions[: len(PROMPTS)], PROMPTS) <= 1e-4
    assert gap(learner.model, completions[len(PROMPTS) :], PROMPTS) <= 1e-4

    wider = random_model(tmp_path / "wider", words=["a"], hidden_size=128, heads=2)
    with pytest.raises(EngineError, match="another model than the one that is served"):
        served.publish("learner", wider, 4)
    assert gap(learner.model, served.ask(["learner"]), PROMPTS) <= 1e-4
    served.runtime.close()
    assert server.names() == ["tied"]
    again = Served(OpenAIEngine(server.url))
    again.engine.serves("tied")
    assert gap(base(tied), again.ask(["tied"]), PROMPTS) <= 1e-4
    again.runtime.close()


def test_weights_that_somebody_else_published_are_not_taken_for_ours(
    server: Server, served: Served, tied: Path, tmp_path: Path
) -> None:
    learner = Learner.load(tied)
    shake(learner)
    learner.save(tmp_path / "mine")
    served.publish("learner", tmp_path / "mine", 0)
    assert server.ask("POST", "/v1/llm_arena/weights", {"name": "b@0-1", "directory": str(tied)})[0] == 200
    with pytest.raises(ServerRefusal, match="'b@0-1', which somebody else published since"):
        served.ask(["learner"])
    assert server.ask("POST", "/v1/llm_arena/weights", {"name": "", "directory": ""})[0] == 200
    assert gap(learner.model, served.ask(["learner"]), PROMPTS) <= 1e-4  # as after a start anew


def restarted(started: Server, tied: Path, folder: Path) -> Server:
    """Kills a server while its weights are those of a policy, starts it again, and asks: returns the new one."""
    served = Served(OpenAIEngine(started.url))
    learner = Learner.load(tied)
    publisher = Publisher(learner, served.engine, served.runtime, policy="learner", folder=folder)
    for version in range(3):
        shake(learner)
        publisher.publish(version)
    assert check(publisher, 2) <= 1e-4
    started.kill()
    found: list[Completion] = []
    waiting = threading.Thread(target=lambda: found.extend(served.ask(["learner"])))
    waiting.start()
    again = Server(tied, *ARGUMENTS, port=started.port)
    try:
        again.up()
        waiting.join(90)
        assert {done.min_version for done in found} == {2} and len(found) == len(PROMPTS)
        assert gap(learner.model, found, PROMPTS) <= 1e-4 and check(publisher, 2) <= 1e-4
        shake(learner)
        publisher.publish(3)
        assert check(publisher, 3) <= 1e-4
        served.runtime.close()
        assert again.names() == ["tied"]
    except BaseException:
        again.close()
        raise
    return again


@pytest.mark.soak
def test_a_server_that_is_killed_and_started_again_gets_its_weights_again(
    tied: Path, tmp_path: Path, soak: Any
) -> None:
    """Requests that come meanwhile wait."""
    started = Server(tied, *ARGUMENTS).up()
    try:
        for number in range(len(soak.runs), soak.count):
            began = time.monotonic()
            started = restarted(started, tied, tmp_path / f"{number}")
            soak.add({}, time.monotonic() - began)
    finally:
        started.close()


# ---- its process -------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_all_of_it_soon(server: Server) -> None:
    """Last of this server's tests."""
    mine = descendants(server.process.pid)
    began = time.monotonic()
    os.killpg(server.process.pid, signal.SIGINT)  # as a terminal sends it
    _, errors = server.process.communicate(timeout=15)
    assert time.monotonic() - began < 10 and server.process.returncode == 130
    assert errors.splitlines()[-1] == "llm-arena: interrupted"
    gone(mine, 1.0)


def session(pid: int) -> int:
    """Returns the session of a process, 0 if it has ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def test_nothing_is_left_after_kill_9_of_the_parent(tied: Path) -> None:
    started = Server(tied)
    end = time.monotonic() + 60
    while not (mine := [pid for pid in descendants(started.process.pid) if pid == session(pid)]):
        assert time.monotonic() < end
        time.sleep(0.05)
    started.process.kill()
    started.process.communicate()
    gone(mine)


@pytest.mark.parametrize(
    ("last", "code", "says"),
    [
        (f"{REFUSED}2 vLLM has no argument max_model_lenn", 2, "llm-arena: vLLM has no argument max_model_lenn"),
        ("ValueError: no room for the cache", 1, "the vLLM server did not start (exit code 3): "),
    ],
)
def test_what_a_server_says_that_does_not_start_is_told_in_one_line(
    last: str, code: int, says: str, tied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"noise\n{last}\n"
    program = f"import os, sys; open(os.environ[{LOG_VARIABLE!r}], 'a').write({words!r}); sys.exit(3)"
    monkeypatch.setattr(vllm_server, "command", lambda settings: [sys.executable, "-c", program])
    assert main(["serve", str(tied)]) == code
    line = capsys.readouterr().err.splitlines()[-1]
    assert says in line and (code == 2 or "no room for the cache" in line)


@pytest.mark.soak
def test_a_start_that_fails_says_why_in_one_line(arena: Run, tied: Path) -> None:
    failed = arena("serve", str(tied), "--engine.max-model-lenn", "64")
    lines = failed.stderr.splitlines()
    assert failed.returncode == 2 and lines[0] == "vLLM starts ... 0 s"
    assert lines[-1].startswith("llm-arena: vLLM ") and 'Did you mean "max_model_len"?' in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "required: MODEL"),
        (["nothing-there"], 2, "neither a known model"),
        (["MODEL", "--port", "70000"], 2, "give 1 to 65535, or 0"),
        (["MODEL", "--host", "0.0.0.0"], 2, "environment variable VLLM_API_KEY"),
        (["MODEL", "--host", "192.0.2.1"], 2, "environment variable VLLM_API_KEY"),
        (["MODEL", "--name", "a b"], 2, "leave out spaces, commas and @"),
        (["MODEL", "--max-lora-rank", "-1"], 2, "give 0"),
        (["MODEL", "--engine.kind", "transformers"], 2, "only vllm serves"),
        (["MODEL", "--engine.url", "http://x"], 2, "said by --host and --port"),
        (["MODEL", "--engine.dtype", "int8"], 2, "must be one of auto, float32"),
        (["MODEL", "--engine.max-model-len"], 2, "needs a value"),
        (["MODEL", "--prot", "1"], 2, 'Did you mean "--port"'),
    ],
)
def test_what_cannot_be_served_is_told_at_once(
    arguments: list[str],
    code: int,
    message: str,
    tied: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["serve", *(str(tied) if argument == "MODEL" else argument for argument in arguments)]) == code
    told = capsys.readouterr().err
    assert message in told and told.count("\n") == 1


def test_others_need_a_key_and_can_publish_nothing(tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k1")
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    here = ServerSettings(directory=tied, name="tied", port=1, max_lora_rank=4)
    lan = dataclasses.replace(here, host="0.0.0.0")
    names = (
        "VLLM_API_KEY",
        "LLM_ARENA_SERVER_TAKES_WEIGHTS",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "VLLM_SERVER_DEV_MODE",
    )
    for settings, values in (
        (here, ("", "1", "1", "0")),
        (dataclasses.replace(here, host="::1"), ("", "1", "1", "0")),
        (dataclasses.replace(here, max_lora_rank=0), ("", "1", "0", "0")),
        (lan, ("k1", "0", "0", "0")),
        (dataclasses.replace(lan, publishable=True), ("k1", "1", "1", "0")),
    ):
        told = environment(settings, tmp_path / "log")
        assert tuple(told[name] for name in names) == values
        assert ServerSettings.from_json(settings.to_json()) == settings and "k1" not in settings.to_json()
    assert lan.url == "http://127.0.0.1:1" and dataclasses.replace(here, host="::1").url == "http://[::1]:1"
    monkeypatch.setenv("VLLM_API_KEY", "k2")
    assert (
        environment(here, tmp_path / "log")["VLLM_API_KEY"]
        == environment(lan, tmp_path / "log")["VLLM_API_KEY"]
        == "k2"
    )


def test_a_port_that_is_taken_is_told_at_once(tied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(tied), "--port", str(port)]) == 2
    assert f"can't serve on 127.0.0.1 port {port}: Address already in use" in capsys.readouterr().err


def test_without_vllm_it_says_what_to_install(tmp_path: Path) -> None:
    program = (
        "import sys\nsys.modules['vllm'] = None\nfrom llm_arena.cli import main\n"
        "import importlib.util; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'vllm' else find(name, *rest)\n"
        "sys.exit(main(['serve', 'smollm2-135m']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode == 1 and "the vLLM engine needs vLLM, which is not installed here" in ran.stderr
