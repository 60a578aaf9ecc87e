"""Where models come from: the child that downloads, and the hub as a server on this machine. No network is used."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llm_arena import model_sources, models

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.random_model(tmp_path_factory.mktemp("models") / "tiny", words=["bet", "pass"])


def wait_for(path: Path, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)


def leftovers(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "models").iterdir() if not path.name.endswith(".lock"))


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    # A stand-in for pip that tells its process id and then waits; the parent is killed without a chance to clean up.
    (tmp_path / "waits.py").write_text(
        "import os, pathlib, time\npathlib.Path('child.pid').write_text(str(os.getpid()))\ntime.sleep(120)\n"
    )
    program = (
        "from pathlib import Path\nfrom llm_arena import model_sources\n"
        "model_sources._run(['waits'], Path('.'), lambda: None)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment)
    wait_for(tmp_path / "child.pid")
    time.sleep(0.1)
    child = int((tmp_path / "child.pid").read_text())
    parent.kill()
    parent.wait(30)
    end = time.monotonic() + 5.0
    while Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end, "the child outlived its parent by 5 s"
        time.sleep(0.05)


# ---- the hub, as a server on this machine


class Hub(BaseHTTPRequestHandler):
    """Just enough of the hub's protocol: a repository's file list, and its files with commit and checksum."""

    folder: Path
    damage = False

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        path = self.path.split("?")[0]
        if path.startswith("/api/models/nobody/tiny"):
            listing: Any = {"id": "nobody/tiny", "sha": "c" * 40, "siblings": [{"rfilename": name} for name in files]}
            if "/tree/" in path:
                listing = [{"type": "file", "path": n, "size": len(b), "oid": "0" * 40} for n, b in files.items()]
            content, headers = json.dumps(listing).encode(), {"Content-Type": "application/json"}
        elif path.startswith("/nobody/tiny/resolve/") and path.rsplit("/", 1)[1] in files:
            content = files[path.rsplit("/", 1)[1]]
            etag = hashlib.sha256(content).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": "c" * 40}
            if self.damage:
                content = content[:-1] + bytes([content[-1] ^ 1])
        elif path == "/":
            content, headers = b"", {}
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def hub(tiny: Path) -> Iterator[tuple[str, type[Hub]]]:
    handler = type("ThisHub", (Hub,), {"folder": tiny})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()
    thread.join()


def fetch_from_hub(address: str, cache: Path, name: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(cache / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "LLM_ARENA_CACHE": str(cache),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(cache),
        "NO_PROXY": "127.0.0.1",
    }
    for key in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        environment.pop(key, None)
    command = [sys.executable, str(PROGRAMS / "hub_fetch.py"), name]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_a_known_model_comes_from_the_hub_when_it_answers(
    hub: tuple[str, type[Hub]], tiny: Path, tmp_path: Path
) -> None:
    done = fetch_from_hub(hub[0], tmp_path, "tiny")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "models" / "tiny"
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert json.loads((folder / models.SOURCE_FILE).read_text())["source"] == "hub:nobody/tiny@" + "c" * 40
    assert leftovers(tmp_path) == ["tiny"]


def test_a_damaged_file_from_the_hub_is_a_checksum_error(hub: tuple[str, type[Hub]], tmp_path: Path) -> None:
    hub[1].damage = True
    done = fetch_from_hub(hub[0], tmp_path, "tiny")
    assert done.returncode == 1
    assert "checksum of model.safetensors differs from the hub's" in done.stderr
    assert leftovers(tmp_path) == []


def test_a_hub_id_is_fetched_into_the_hub_cache(hub: tuple[str, type[Hub]], tiny: Path, tmp_path: Path) -> None:
    done = fetch_from_hub(hub[0], tmp_path, "nobody/tiny")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1])
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    missing = fetch_from_hub(hub[0], tmp_path, "nobody/other")
    assert missing.returncode == 1 and "can't be fetched from the Hugging Face hub" in missing.stderr


def test_a_hub_that_does_not_answer_is_given_up_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr(model_sources, "HUB_PROBE_SECONDS", 0.3)

    def hangs(*_: Any, **__: Any) -> None:
        time.sleep(1.0)
        raise OSError("timed out")

    monkeypatch.setattr(model_sources.urllib.request, "urlopen", hangs)
    start = time.monotonic()
    assert model_sources.hub_problem() == "no answer in 0.3 s"
    assert time.monotonic() - start < 0.9
