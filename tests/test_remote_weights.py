"""Weights for servers that run elsewhere, against a server that only keeps names: what is sent, lost, given back."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from llm_arena.engines.http_pool import HttpPool, Patience
from llm_arena.engines.remote_published import KEPT_VERSIONS
from llm_arena.engines.remote_servers import same_model
from llm_arena.engines.remote_weights import RemoteWeights
from llm_arena.errors import EngineError, ServerRefusal, UnknownName, UsageError
from vllm_parts import model_folder

QUICK = Patience(tries=2, backoff_seconds=0.01, cool_down_seconds=0.01, call_seconds=5.0)


class Kept(ThreadingHTTPServer):
    """A server that keeps names as vLLM does, and no weights."""

    daemon_threads = True

    def __init__(self, root: Path, *, ours: bool = True, loras: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.ours, self.loras = root, ours, loras
        self.takes, self.fails, self.max_rank = True, False, 8
        self.mode = "processed_logprobs"
        self.start_anew()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def start_anew(self) -> None:
        self.weights, self.folder, self.adapters, self.posts = "", "", dict[str, str](), list[str]()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/models":
            cards = [{"id": self.weights or "base", "root": str(self.root), "parent": None}]
            return 200, {"data": [*cards, *({"id": name, "parent": "base"} for name in self.adapters)]}
        if path == "/v1/llm_arena" and self.ours:
            told = {"weights": self.weights, "takes_weights": self.takes, "max_lora_rank": self.max_rank}
            return 200, told | {"logprobs_mode": self.mode}
        if method == "GET":
            return 404, {"detail": "Not Found"}
        self.posts.append(path.rpartition("/")[2])
        if self.fails:
            return 422, {"error": "no room"}
        if path == "/v1/llm_arena/weights" and self.ours:
            self.weights, self.folder = body["name"], body["directory"]
            return 200, {"weights": self.weights}
        if path == "/v1/load_lora_adapter" and self.loras:
            if body["lora_name"] in self.adapters:
                return 400, {"error": {"message": "has already been loaded"}}
            self.adapters[body["lora_name"]] = body["lora_path"]
            return 200, "Success"
        if path == "/v1/unload_lora_adapter" and self.loras:
            return (200, "Success") if self.adapters.pop(body["lora_name"], None) else (404, {"error": "none"})
        return 404, {"detail": "Not Found"}


class _Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        assert isinstance(self.server, Kept)
        status, told = self.server.answer(self.command, self.path, json.loads(raw or "null"))
        data = told.encode() if isinstance(told, str) else json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, another one of the same shapes, one of other shapes, and adapters of rank 4 and 16 of the base."""
    folder = tmp_path_factory.mktemp("folders")
    found = {name: model_folder(folder / name, tied=True, seed=seed) for name, seed in (("base", 0), ("other", 1))}
    for name, rank in (("adapter", 4), ("wide", 16)):
        torch.manual_seed(rank)
        model = AutoModelForCausalLM.from_pretrained(found["base"], dtype=torch.float32)
        get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear")).save_pretrained(folder / name)
        found[name] = folder / name
    return found


@pytest.fixture
def servers(folders: dict[str, Path]) -> Iterator[list[Kept]]:
    made = [Kept(folders["base"]), Kept(folders["base"])]
    yield made
    for server in made:
        server.shutdown()
        server.server_close()


Story = Callable[[RemoteWeights], Awaitable[None]]


def told(servers: list[Kept], story: Story) -> None:
    """Runs a story of publications to servers."""

    async def run() -> None:
        pool = HttpPool([server.url for server in servers], patience=QUICK)
        weights = RemoteWeights(pool)
        try:
            async with asyncio.timeout(20):
                await story(weights)
        finally:
            await weights.close()
            await pool.close()

    asyncio.run(run())


def test_all_servers_take_each_version_under_a_name_of_its_own(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def story(weights: RemoteWeights) -> None:
        await weights.publish("a", folders["other"], 3)
        name, version = weights.model_name("a")
        assert version == 3 and re.fullmatch(r"a@3-[0-9a-f]{9}", name)
        assert [server.weights for server in servers] == [name] * 2
        first = Path(servers[0].folder)
        assert first != folders["other"] and (first / "model.safetensors").exists()
        await weights.publish("a", folders["base"], 4)
        assert weights.model_name("a")[0] != name and weights.model_name("a")[1] == 4
        assert not first.exists() and Path(servers[1].folder).is_dir()
        assert weights.policies() == ["a"]

    told(servers, story)
    assert [server.weights for server in servers] == ["", ""]  # given back
    assert not list(folders["base"].parent.glob(".served-*"))


def test_adapters_keep_the_newest_versions_and_those_asked_for(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def story(weights: RemoteWeights) -> None:
        await weights.publish("a", folders["adapter"], 0)
        oldest = weights.model_name("a@0")  # asked for
        for version in range(1, KEPT_VERSIONS + 3):
            await weights.publish("a", folders["adapter"], version)
        await weights.publish("b", folders["adapter"], 7)
        kept = [0, *range(3, KEPT_VERSIONS + 3)]
        assert weights.model_name("a@0") == oldest
        for server in servers:
            versions = sorted(int(name.split("@")[1].split("-")[0]) for name in server.adapters if name[0] == "a")
            assert versions == kept and all(Path(path).is_dir() for path in server.adapters.values())
        with pytest.raises(UnknownName, match="version 2 of policy 'a' is not loaded any more; there are: 0, 3, 4"):
            weights.model_name("a@2")
        with pytest.raises(EngineError, match="published once"):
            await weights.publish("b", folders["adapter"], 7)
        with pytest.raises(EngineError, match="a, b, and one server has one set of full weights"):
            await weights.publish("c", folders["other"], 0)
        await weights.forget("a")
        assert weights.policies() == ["b"] and len(servers[0].adapters) == 1
        with pytest.raises(UnknownName):
            weights.model_name("a@0")
        with pytest.raises(UnknownName, match="no policy 'a' was published"):
            await weights.forget("a")

    told(servers, story)
    assert not servers[0].adapters


def test_a_policy_id_that_looks_like_a_version_is_a_policy(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def story(weights: RemoteWeights) -> None:
        for version in (0, 12):
            await weights.publish("a", folders["adapter"], version)
        await weights.publish("a@12", folders["adapter"], 0)
        assert weights.model_name("a@12")[1] == 0 and weights.model_name("a")[1] == 12
        await weights.forget("a@12")
        assert weights.model_name("a@12")[1] == 12

    told(servers, story)


def test_a_failed_publication_leaves_all_servers_as_they_were(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def full(weights: RemoteWeights) -> None:
        servers[1].fails = True
        with pytest.raises(EngineError, match=r"version 0 of 'a' was not published: 1 of 2 servers failed: .*no room"):
            await weights.publish("a", folders["other"], 0)
        assert servers[0].weights == "" and weights.policies() == []
        servers[1].fails = False
        await weights.publish("a", folders["other"], 1)
        name, _ = weights.model_name("a")
        servers[1].fails = True
        with pytest.raises(EngineError, match="version 2 of 'a' was not published"):
            await weights.publish("a", folders["base"], 2)
        assert weights.model_name("a") == (name, 1) and servers[0].weights == name
        assert Path(servers[0].folder).is_dir()
        servers[1].fails = False

    async def adapter(weights: RemoteWeights) -> None:
        servers[1].fails = True
        with pytest.raises(EngineError, match="version 0 of 'a' was not published"):
            await weights.publish("a", folders["adapter"], 0)
        assert servers[0].adapters == {} and weights.policies() == []

    told(servers, full)
    told(servers, adapter)


def test_a_server_that_was_started_anew_gets_all_of_it_again(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def full(weights: RemoteWeights) -> None:
        await weights.publish("a", folders["other"], 5)
        name, _ = weights.model_name("a")
        assert not await weights.verify(servers[1].url)
        servers[1].start_anew()
        assert await weights.verify(servers[1].url)
        assert servers[1].weights == name and servers[1].posts == ["weights"]
        assert not await weights.verify(servers[1].url)

    async def adapters(weights: RemoteWeights) -> None:
        for policy, version in (("a", 0), ("a", 1), ("b", 0)):
            await weights.publish(policy, folders["adapter"], version)
        before = dict(servers[0].adapters)
        servers[0].start_anew()
        assert await weights.verify(servers[0].url) and servers[0].adapters == before
        servers[0].start_anew()  # this time, a publication comes first
        await weights.publish("b", folders["adapter"], 1)
        assert len(servers[0].adapters) == 4 and before.items() < servers[0].adapters.items()

    told(servers, full)
    told(servers, adapters)


def test_another_server_or_somebody_elses_weights_are_refused(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def foreign(weights: RemoteWeights) -> None:
        servers[0].weights = "old@9-0123456701"  # a run that was killed left it
        await weights.publish("a", folders["other"], 0)
        servers[0].weights = "b@0-0123456701"
        with pytest.raises(ServerRefusal, match="'b@0-0123456701', which somebody else published since"):
            await weights.verify(servers[0].url)
        with pytest.raises(ServerRefusal, match="somebody else"):
            await weights.publish("a", folders["other"], 1)
        servers[0].ours = False
        with pytest.raises(ServerRefusal, match="takes none now"):
            await weights.verify(servers[0].url)
        servers[0].ours = True

    async def another(weights: RemoteWeights) -> None:
        await weights.publish("a/base", folders["base"], 0)
        await weights.publish("a", folders["adapter"], 0)
        servers[0].root = folders["other"]
        with pytest.raises(ServerRefusal, match="serves 'base' now"):
            await weights.verify(servers[0].url)
        servers[0].root = folders["base"]

    told(servers, foreign)
    assert servers[0].weights == "b@0-0123456701"  # not ours to take away
    servers[0].start_anew()
    told(servers, another)


def test_the_base_itself_is_published_without_a_request(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def story(weights: RemoteWeights) -> None:
        await weights.publish("a/base", folders["base"], 0)
        assert weights.model_name("a/base") == ("base", 0) and servers[0].posts == []
        with pytest.raises(EngineError, match="a/base, and one server has one set of full weights"):
            await weights.publish("b", folders["other"], 0)
        await weights.forget("a/base")
        await weights.publish("b", folders["other"], 0)
        with pytest.raises(EngineError, match="can't be forgotten"):
            await weights.forget("b")
        with pytest.raises(EngineError, match="adapters no longer fit"):
            await weights.publish("c", folders["adapter"], 0)

    told(servers, story)


@pytest.mark.parametrize(
    ("folder", "change", "message"),
    [
        ("other", {"ours": False}, "takes no full weights.*llm-arena serve MODEL"),
        ("other", {"takes": False}, "takes no weights, since others than its own machine.*--publishable"),
        ("other", {"adapters": {"x": "/x"}}, "serves adapters of its model"),
        ("adapter", {"ours": False, "loras": False}, "takes no adapters.*llm-arena serve MODEL --max-lora-rank 4"),
        ("adapter", {"max_rank": 0}, "takes no adapters.*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ("adapter", {"weights": "old@3-0"}, "serves full weights that a run published"),
        ("wide", {}, "rank 8 at most, and .*wide has rank 16.*--max-lora-rank 16"),
    ],
)
def test_a_server_that_cannot_be_published_to_is_told_at_once_with_the_remedy(
    servers: list[Kept], folders: dict[str, Path], folder: str, change: dict[str, Any], message: str
) -> None:
    for name, value in change.items():
        setattr(servers[1], name, value)

    async def story(weights: RemoteWeights) -> None:
        with pytest.raises(UsageError, match=message):
            await weights.publish("a", folders[folder], 0)
        assert servers[0].weights == "" and servers[0].adapters == {} and weights.policies() == []

    told(servers, story)


def test_adapters_go_to_a_vllm_server_that_is_not_ours(servers: list[Kept], folders: dict[str, Path]) -> None:
    servers[0].ours = False

    async def story(weights: RemoteWeights) -> None:
        await weights.publish("a", folders["adapter"], 0)
        assert list(servers[0].adapters) == [weights.model_name("a")[0]]

    told(servers[:1], story)


def test_another_runs_weights_are_taken_away_with_a_word_and_never_by_closing(
    servers: list[Kept], folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        pools = [HttpPool([servers[0].url], patience=QUICK) for _ in range(2)]
        first, second = (RemoteWeights(pool) for pool in pools)
        await first.publish("a", folders["other"], 0)
        assert "another run" not in caplog.text
        await second.publish("b", folders["other"], 0)
        assert f"gives up the weights '{first.model_name('a')[0]}' of another run" in caplog.text
        await first.close()
        assert servers[0].weights == second.model_name("b")[0]
        await second.publish("b", folders["base"], 1)
        assert caplog.text.count("gives up") == 1
        await second.close()
        assert servers[0].weights == ""
        for pool in pools:
            await pool.close()

    asyncio.run(run())


@pytest.mark.parametrize("folder", ["other", "adapter"])
def test_nothing_is_published_where_log_probabilities_are_of_another_distribution(
    servers: list[Kept], folders: dict[str, Path], folder: str
) -> None:
    async def story(weights: RemoteWeights) -> None:
        servers[1].mode = "raw_logprobs"
        with pytest.raises(ServerRefusal, match="returns 'raw_logprobs'.*llm-arena serve MODEL"):
            await weights.publish("a", folders[folder], 0)
        assert servers[0].weights == "" and servers[0].adapters == {}
        servers[1].mode = "processed_logprobs"
        await weights.publish("a", folders[folder], 0)
        servers[1].start_anew()
        servers[1].mode = "raw_logprobs"
        with pytest.raises(ServerRefusal, match="raw_logprobs"):
            await weights.verify(servers[1].url)

    told(servers, story)


def test_what_decides_nothing_makes_no_other_model_and_no_path_is_no_model(
    servers: list[Kept], folders: dict[str, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folders["base"], copy)
    config = json.loads((copy / "config.json").read_text())
    assert config["initializer_range"] == 0.15
    (copy / "config.json").write_text(json.dumps(config | {"initializer_range": 0.02}))
    assert same_model(folders["base"], copy)
    (copy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert not same_model(folders["base"], copy)

    async def story(weights: RemoteWeights) -> None:
        for server in servers:
            server.root = Path("x\0y")
        await weights.publish("a", folders["base"], 0)  # not known to be the base, so it is published
        assert servers[0].weights == weights.model_name("a")[0]

    told(servers, story)


def test_an_exchange_waits_for_requests_and_requests_wait_for_it(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def story(weights: RemoteWeights) -> None:
        await weights.publish("a", folders["other"], 0)
        seen: list[int] = []

        async def request() -> None:
            async with weights.using("a") as (name, version):
                seen.append(version)
                assert {server.weights for server in servers} == {name}

        async with weights.using("a") as (name, version):
            publishing = asyncio.create_task(weights.publish("a", folders["base"], 1))
            await asyncio.sleep(0.2)
            waiting = asyncio.create_task(request())
            await asyncio.sleep(0.1)
            assert not publishing.done() and not seen and version == 0
            servers[0].start_anew()  # a server that comes back meanwhile gets what this request wants
            assert await weights.verify(servers[0].url)
            assert {server.weights for server in servers} == {name}
        await asyncio.gather(publishing, waiting)
        assert seen == [1]

    told(servers, story)


def test_a_publisher_that_gives_up_leaves_no_exchange_half_done(servers: list[Kept], folders: dict[str, Path]) -> None:
    async def story(weights: RemoteWeights) -> None:
        await weights.publish("a", folders["other"], 0)
        publishing = asyncio.create_task(weights.publish("a", folders["base"], 1))
        await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.wait([publishing])
        await weights.publish("a", folders["other"], 2)
        assert {server.weights for server in servers} == {weights.model_name("a")[0]}
        assert servers[0].posts == ["weights"] * 3

    told(servers, story)
