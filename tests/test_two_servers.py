"""Two servers, one per role: one policy is trained, one is frozen, and a server dies in mid run.

What needs two real servers is a soak test. `make test` has its parts: weights that a server lost
(test_remote_weights.py, test_serve.py), a server that is killed under open games (test_openai_engine.py), and the
page's commands.
"""

from __future__ import annotations

import random
import re
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import llm_arena
from llm_arena.engines.vllm_server import ServerSettings, environment, flags
from llm_arena.models import random_model
from llm_arena.trace_file import read_traces
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.loop import train
from server_parts import Server, descendants

STEPS, STARTS = 5, 16
SETTINGS = "--max-new-tokens 2 --lr 1e-2 --probe-every 1 --illegal random_legal"
KEY = "a-key-that-is-written-nowhere"
PAGE = (Path(__file__).resolve().parents[1] / "docs" / "servers.md").read_text(encoding="utf-8").replace("\\\n", "")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
SERVED = [line for port in (8001, 8000) for line in COMMANDS if line == f"llm-arena serve smollm2-135m --port {port}"]
"""The page's commands for the trained policy's server and for the frozen model's."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows few words, so that random play is often legal."""
    words = ["check", "bet", "call", "fold", "J", "Q", "K"]
    folder = tmp_path_factory.mktemp("models") / "kuhn"
    return random_model(folder, words=words, heads=2, tie_word_embeddings=True, initializer_range=0.12)


@pytest.fixture(scope="module")
def servers(model: Path) -> Iterator[list[Server]]:
    """The trained policy's server, and the frozen model's, which asks for a key; started as docs/servers.md says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", KEY)
        started = [start(model, 0), start(model, 1)]
        for server in started:
            server.up()
        yield started
        for server in started:
            server.close()


def start(model: Path, which: int, port: int | None = None) -> Server:
    [_, _, name, flag, _] = shlex.split(SERVED[which])
    assert flag == "--port"
    return Server(model, "--name", name, port=port, env={"VLLM_API_KEY": KEY} if which == 1 else None)


def in_place(text: str, servers: list[Server], model: Path) -> str:
    """Returns text of the page with the addresses and the model of the test."""
    text = text.replace("http://127.0.0.1:8000", servers[1].url).replace("http://127.0.0.1:8001", servers[0].url)
    return re.sub(r'((?:model|tokenizer) ?= ?)"smollm2-135m"', rf'\1"{model}"', text)


def run_while_one_dies(servers: list[Server], victim: int, after: int, model: Path, run_dir: Path) -> dict[str, Any]:
    """Trains `player_0` against a frozen `player_1` (who change seats), kills a server in mid run and starts it again.

    Args:
        servers: the trained policy's and the frozen model's.
        victim: which one dies.
        after: so many episodes.
        model: what both serve.
        run_dir: the run's folder.
    """
    [table] = [block for block in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "two_servers" in block]
    file = run_dir.with_suffix(".toml")
    file.parent.mkdir(exist_ok=True)
    file.write_text(in_place(table, servers, model))
    [command] = [line for line in COMMANDS if line.endswith(f"--config {file.name} --steps 25")]
    settings = f"{SETTINGS} --steps {STEPS} --starts-per-step {STARTS} --run-dir {run_dir}".split()
    config = parse(TrainConfig, ["--config", str(file), *settings], prog=command)
    traces_file, killed = run_dir / "traces.jsonl", threading.Event()

    def kill() -> None:
        while not (traces_file.exists() and traces_file.read_bytes().count(b"\n") >= after):
            time.sleep(0.01)
        servers[victim].kill()
        killed.set()
        servers[victim] = start(model, victim, servers[victim].port)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    began = time.monotonic()
    result = train(config, script="t", progress=False)
    killer.join(30)
    assert killed.is_set() and result.steps == STEPS
    traces = list(read_traces(traces_file))
    assert len(traces) == len({trace.id for trace in traces}) == STEPS * STARTS  # none lost, none doubled
    for trace in traces:
        assert not trace.void, trace.failure  # requests waited until the server was there again
        assert llm_arena.replay(trace).returns == trace.returns
        assert sum(trace.returns.values()) == 0
    trained = [turn for trace in traces for turn in trace.turns if turn.completion_ids]
    assert {turn.max_version for turn in trained} == set(range(STEPS))
    assert result.max_logprob_gap <= 1e-4  # of every step: what was recorded is what the learner's weights say
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes()]
    servers[victim].up()
    return {"victim": victim, "after": after, "seconds": round(time.monotonic() - began, 1)}


@pytest.mark.soak
def test_a_key_is_asked_for_on_every_route_and_written_nowhere(servers: list[Server]) -> None:
    server = servers[1]
    for method, path in (("GET", "/v1/models"), ("GET", "/v1/llm_arena"), ("POST", "/v1/llm_arena/weights")):
        assert server.ask(method, path, {})[0] == 401
    for path in ("/invocations", "/tokenize", "/pooling", "/v1/../invocations", "//invocations", "/openapi.json"):
        assert server.ask("POST", path, {"model": "smollm2-135m", "prompt": "x"})[0] in (401, 404)
    assert server.ask("GET", "/health")[0] == 200
    for pid in (server.process.pid, *descendants(server.process.pid)):
        assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_every_command_of_the_page_is_run(model: Path) -> None:
    """What the tests above do not run is checked word by word."""
    others = [
        line for line in COMMANDS if line not in SERVED and not line.startswith(("llm-arena play", "llm-arena train"))
    ]
    assert others == [
        "llm-arena serve smollm2-135m --port 8001 --max-lora-rank 16",  # as in test_serve.py
        "VLLM_API_KEY=... llm-arena serve smollm2-135m --host 0.0.0.0 --port 8000",
        "vllm serve MODEL --logprobs-mode processed_logprobs --generation-config vllm",
    ]
    settings = ServerSettings(directory=model, name="m", max_lora_rank=16)
    ours = flags(settings)
    for flag in re.findall(r"--(?:logprobs-mode|generation-config|middleware|worker-extension-cls)\s+[\w.]+", PAGE):
        assert "=".join(flag.split()) in ours
    assert "--enable-lora" in ours and "--max-lora-rank=16" in ours
    told = environment(settings, model / "log")
    assert {name: told[name] for name in ("LLM_ARENA_SERVER_TAKES_WEIGHTS", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")} == {
        "LLM_ARENA_SERVER_TAKES_WEIGHTS": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    }


@pytest.mark.soak
def test_servers_die_at_any_time_of_a_run(servers: list[Server], model: Path, tmp_path: Path, soak: Any) -> None:
    for number in range(len(soak.runs), soak.count):
        rng = random.Random(soak.seed + number)
        began = time.monotonic()
        after = rng.randrange(1, (STEPS - 1) * STARTS)
        figures = run_while_one_dies(servers, number % 2, after, model, tmp_path / f"{number}" / "two_servers")
        soak.add(figures, time.monotonic() - began)
