"""`llm-arena serve` as a process of its own, for tests that need a real server."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

START_SECONDS = 150.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process started, and those that these started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return sorted(found)


class Server:
    """A server that is started at once, and waited for by `up`."""

    def __init__(
        self, model: Path, *arguments: str, port: int | None = None, env: dict[str, str] | None = None
    ) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llm_arena", "serve", str(model), "--port", str(self.port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def up(self) -> Server:
        """Waits until it can be asked."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, self.process.communicate()
            try:
                if self.ask("GET", "/health")[0] == 200:
                    return self
            except (OSError, http.client.HTTPException):
                time.sleep(0.2)
        raise AssertionError(f"the server was not up after {START_SECONDS} s")

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """Returns status and JSON (or text) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": kind})
        response = connection.getresponse()
        raw = response.read().decode()
        connection.close()
        try:
            return response.status, json.loads(raw)
        except ValueError:
            return response.status, raw

    def names(self) -> list[str]:
        return [card["id"] for card in self.ask("GET", "/v1/models")[1]["data"]]

    def said(self) -> str:
        """Returns what it printed when it came up."""
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline()]
        while not re.search(r"engine = |can't be published", lines[-1]):
            lines.append(self.process.stdout.readline())
            assert lines[-1], lines
        return "".join(lines)

    def kill(self) -> None:
        """Kills the server itself, as the kernel does when memory is short, and waits until all of it is gone."""
        mine = descendants(self.process.pid)
        [server] = [pid for pid in mine if b"vllm_server_child" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(server, signal.SIGKILL)
        self.process.wait(timeout=20)
        gone(mine)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()


def gone(pids: list[int], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in pids if alive(pid)]
