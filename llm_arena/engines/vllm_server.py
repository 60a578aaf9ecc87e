"""A vLLM server as a process of its own: its command line and environment, its start, its end."""

from __future__ import annotations

import dataclasses
import http.client
import ipaddress
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_arena.engines import vllm_grammars, vllm_start
from llm_arena.engines.settings import EngineSettings
from llm_arena.engines.vllm_child import LOG_VARIABLE
from llm_arena.engines.vllm_routes import HEALTH, TAKES_VARIABLE
from llm_arena.errors import EngineError, UsageError

CHILD = "llm_arena.engines.vllm_server_child"
ROUTES = "llm_arena.engines.vllm_routes.PolicyRoutes"
PARENT_VARIABLE = "LLM_ARENA_SERVER_PARENT"
"""Environment variable with the process that the server must not outlive."""
REFUSED = "llm-arena refuses: "
"""Begins the line in the log that says what can't work, and its exit code."""
KEY_VARIABLES = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the key of a server that others can reach."""
STOP_SECONDS = 8.0
"""How long a server gets to end by itself."""
NAP_SECONDS = 0.25


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What is served, where, and to whom.

    Raises:
        UsageError: others could reach the server without a key, or a value can't work.
    """

    directory: Path
    "The model's folder."
    name: str
    "That clients ask by."
    host: str = "127.0.0.1"
    port: int = 0
    "0 takes a free one."
    max_lora_rank: int = 0
    "Highest rank of adapters to come; 0 takes none."
    publishable: bool = False
    "Let weights be published although others than this machine can reach the server."
    engine: EngineSettings = dataclasses.field(default_factory=lambda: EngineSettings(kind="vllm"))

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise UsageError(f"--port is {self.port}; give 1 to 65535, or 0 for a free one")
        if self.max_lora_rank < 0:
            raise UsageError(f"--max-lora-rank is {self.max_lora_rank}; give 0 (no adapters) or more")
        odd = [letter for letter in self.name if letter in ",@" or letter.isspace() or not letter.isprintable()]
        if odd or not self.name:
            raise UsageError(f"--name {self.name!r} can't stand in an agent string; leave out spaces, commas and @")
        if not self.local and not self.key():
            raise UsageError(
                f"--host {self.host} lets others reach the server, and there is no key that they must show: set the "
                f"environment variable {KEY_VARIABLES[0]}, here and where the clients run, or leave --host out"
            )

    @property
    def local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def takes_weights(self) -> bool:
        """Whether weights can be published to the server: whoever may, may also have it read any folder."""
        return self.local or self.publishable

    @property
    def url(self) -> str:
        """The server's address, as it is asked from this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def to_json(self) -> str:
        """Returns these settings as JSON, for the server's process."""
        return json.dumps({**dataclasses.asdict(self), "directory": str(self.directory)})

    @classmethod
    def from_json(cls, text: str) -> ServerSettings:
        """Returns the settings that `to_json` wrote."""
        read = json.loads(text)
        return cls(**{**read, "directory": Path(read["directory"]), "engine": EngineSettings(**read["engine"])})

    def key(self) -> str:
        """Returns the key that clients must show; empty for none."""
        names = KEY_VARIABLES[:1] if self.local else KEY_VARIABLES
        return next((value for name in names if (value := os.environ.get(name, "").strip())), "")

    def with_port(self) -> ServerSettings:
        """Returns these settings with a port that is free now.

        Raises:
            UsageError: the port that was asked for is taken, or the host is none of this machine's.
        """
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise UsageError(
                    f"can't serve on {self.host} port {self.port}: {error.strerror}; leave --port out for a free one"
                ) from error
            return dataclasses.replace(self, port=probe.getsockname()[1])


def command(settings: ServerSettings) -> list[str]:
    """Returns the command that serves a model. vLLM, which is slow to import, is imported there alone."""
    return [sys.executable, "-m", CHILD, settings.to_json()]


def flags(settings: ServerSettings) -> list[str]:
    """Returns the command line of vLLM's own server.

    Raises:
        UnknownName, UsageError: vLLM has no such argument, or it can't be given.
        EngineError: the folder holds no model.
    """
    folder = settings.directory
    found = vllm_start.arguments(folder, settings.engine, max_lora_rank=settings.max_lora_rank, sleeps=False)
    found |= vllm_grammars.arguments(folder, found.get("structured_outputs_config"))
    found |= {
        "served_model_name": settings.name,
        "host": settings.host,
        "port": settings.port,
        "middleware": ROUTES,
        "uvicorn_log_level": "warning",
        "disable_uvicorn_access_log": True,
    }
    return _flags(found)


def environment(settings: ServerSettings, log: Path) -> dict[str, str]:
    """Returns the environment of the server's process.

    vLLM's development routes stay off: they let whoever reaches the server call any method of its worker, and ask for
    no key.
    """
    ours = {
        **vllm_start.QUIET,
        **os.environ,
        **vllm_start.sockets_in(log.parent),
        LOG_VARIABLE: str(log),
        PARENT_VARIABLE: str(os.getpid()),
    }
    ours["VLLM_SERVER_DEV_MODE"] = "0"
    ours["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1" if settings.takes_weights and settings.max_lora_rank else "0"
    ours[TAKES_VARIABLE] = "1" if settings.takes_weights else "0"
    ours["VLLM_API_KEY"] = settings.key()
    ours.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    devices = settings.engine.cuda_devices()
    if devices:
        ours["CUDA_VISIBLE_DEVICES"] = vllm_start.visible_devices(devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return ours


class ServerProcess:
    """One server; it ends with the process that started it, however that goes.

    Args:
        settings: with a port that is free.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="llm-arena-server-"))
        self.log = self._folder / "server.log"
        """File with all that the server says."""
        self.log.touch(0o600)
        self._failed = False
        self._process = subprocess.Popen(
            command(settings),
            env=environment(settings, self.log),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # until the child has opened its log
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def wait_until_up(self, progress: Callable[[float], None]) -> None:
        """Waits until the server answers; a start takes 15 to 60 s, more for a large model.

        Args:
            progress: called a few times a second with the seconds since the start.

        Raises:
            EngineError: it ended instead; the message holds vLLM's own words.
        """
        began = time.monotonic()
        while not self._healthy():
            self.refuse_if_dead("did not start")
            progress(time.monotonic() - began)
            time.sleep(NAP_SECONDS)

    def wait(self) -> None:
        """Waits until the server ends by itself.

        Raises:
            EngineError: when it has; the message holds vLLM's own words.
        """
        self._process.wait()
        self.refuse_if_dead("ended")

    def refuse_if_dead(self, what: str) -> None:
        """Raises EngineError if the server's process has ended, UsageError if it was for a setting that can't work."""
        code = self._process.poll()
        if code is not None:
            if (last := _last_line(self.log)).startswith(REFUSED):
                exit_code, _, refusal = last.removeprefix(REFUSED).partition(" ")
                raise (UsageError if exit_code == "2" else EngineError)(refusal)
            self._failed = True
            words = vllm_start.last_words(self.log) or _last_line(self.log)
            raise EngineError(
                f"the vLLM server {what} (exit code {code}): {words or 'it said nothing':.400} (all it said is in "
                f"{self.log})"
            )

    def stop(self) -> None:
        """Ends the server; its log stays if it had failed."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        if not self._failed:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _healthy(self) -> bool:
        address = self._settings.url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=2.0)
        try:
            connection.request("GET", HEALTH)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _flags(found: Mapping[str, Any]) -> list[str]:
    """Returns engine arguments as vLLM's command line has them."""
    flags: list[str] = []
    for name, value in found.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            flags.append(flag if value else f"--no-{flag.removeprefix('--')}")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            flags.append(f"{flag}={json.dumps(dataclasses.asdict(value))}")
        elif value is not None:
            flags.append(f"{flag}={value if isinstance(value, str | int | float) else json.dumps(value)}")
    return flags


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")
