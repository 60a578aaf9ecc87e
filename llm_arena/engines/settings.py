"""How models are served: a setting that scripts, boards and `play` share. Importing it loads no engine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from llm_arena.engines.urls import server_urls
from llm_arena.errors import UsageError

EngineKind = Literal["transformers", "vllm", "auto", "openai"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KINDS: tuple[EngineKind, ...] = get_args(EngineKind)
LOCAL_KINDS = tuple(kind for kind in KINDS if kind != "openai")
"""Kinds that need no address: a model on a server is named by its agent, `openai:MODEL@URL`."""
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Which engine serves the models, where, and how."""

    kind: EngineKind = "transformers"
    """`transformers`: in this process. `vllm`: in a process of its own. `auto`: vLLM where it is installed. `openai`:
    on servers that were started before, see `url`."""
    url: str = ""
    """Where the servers are, for `openai`: one address or several with commas between, e.g. `http://127.0.0.1:8000`.
    All of them serve the same. A key comes from the environment variable OPENAI_API_KEY."""
    devices: str = "auto"
    """CUDA devices of the engine, e.g. `1` or `1,2` (vLLM splits each model over them); `cpu`; or `auto`."""
    dtype: Dtype = "auto"
    """Of weights and activations. `auto`: float32 on a CPU, bfloat16 on CUDA."""
    args: str = "{}"
    """vLLM's own engine arguments by their own names, as a JSON object. On the command line `--engine.NAME VALUE`
    sets one, and in TOML a key of the table `engine`."""

    def __post_init__(self) -> None:
        """Takes a dict for `args`, and checks values, for a TOML file and Python can give anything.

        Raises:
            UsageError: a value that can't work.
        """
        args: Any = self.args
        if isinstance(args, Mapping):
            object.__setattr__(self, "args", json.dumps(args, sort_keys=True))
        object.__setattr__(self, "devices", str(self.devices))
        if self.kind not in KINDS:
            raise UsageError(f"engine.kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.dtype not in DTYPES:
            raise UsageError(f"engine.dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        self.cuda_devices()
        if self.vllm_args() and self.kind in ("transformers", "openai"):
            name = next(iter(self.vllm_args()))
            raise UsageError(
                f"engine.{name} is an argument of vLLM, and engine.kind is {self.kind}; "
                + ("give it to the server" if self.kind == "openai" else "set it to vllm")
            )
        if self.kind == "openai":
            if not isinstance(self.url, str) or not self.url:
                raise UsageError(
                    'engine.kind openai needs engine.url, the address of a server, e.g. "http://127.0.0.1:8000"; '
                    "start one with: llm-arena serve MODEL"
                )
            server_urls(self.url)
        elif self.url:
            raise UsageError(f"engine.url is for engine.kind openai, and engine.kind is {self.kind}; set it to openai")

    def with_args(self, args: Mapping[str, Any]) -> EngineSettings:
        """Returns these settings with more of vLLM's own arguments."""
        return replace(self, args=json.dumps({**self.vllm_args(), **args}, sort_keys=True))

    def cuda_devices(self) -> list[int] | None:
        """Returns the CUDA devices that were named; empty for `cpu`, None for `auto`.

        Raises:
            UsageError: `devices` can't be read.
        """
        if self.devices == "auto":
            return None
        if self.devices == "cpu":
            return []
        parts = [part.strip() for part in self.devices.split(",")]
        if not all(part.isdecimal() for part in parts) or len(set(parts)) != len(parts):
            raise UsageError(
                f"engine.devices must be auto, cpu, or different CUDA devices like 0 or 1,2; got {self.devices!r}"
            )
        return [int(part) for part in parts]

    def vllm_args(self) -> dict[str, Any]:
        """Returns vLLM's own arguments.

        Raises:
            UsageError: `args` is not a JSON object.
        """
        try:
            args = json.loads(self.args)
        except (json.JSONDecodeError, TypeError):
            args = None
        if not isinstance(args, dict):
            raise UsageError(
                f"""engine.args must be a JSON object, e.g. '{{"max_model_len": 2048}}'; got {self.args!r}"""
            )
        return args
