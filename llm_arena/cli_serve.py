"""`llm-arena serve`: a model on a vLLM server, for frozen seats and for policies that are trained."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from llm_arena.cli_parser import Parser
from llm_arena.engines.settings import DTYPES, EngineSettings
from llm_arena.errors import UsageError
from llm_arena.report.text import visible

_ABOUT = """\
Serve a model with vLLM over HTTP, in the way that playing and training against it need: log-probabilities are those of
the distribution that was sampled from, and nothing but the request decides the sampling.

MODEL is a known name (smollm2-135m), a folder, or a hub id. When the server is up, two lines say how it is used: the
agent string of a frozen seat, and the table of a policy that is trained and published to it. Ctrl-C ends it.

Only this machine can reach the server, unless --host names another address. Then there must be a key, in the
environment variable VLLM_API_KEY or OPENAI_API_KEY, which clients must have too; and no weights can be published, for
whoever may publish may replace the model and have the server read any folder. --publishable allows it nevertheless.

A vLLM argument is given by its own name: --engine.max-model-len 4096, --engine.max-num-seqs 128. Beside them there are
--engine.devices (CUDA devices, e.g. 1 or 1,2) and --engine.dtype."""

PATIENCE_SECONDS = 10.0
"""Between two lines about the start, where the output is no terminal."""


def run_serve(argv: list[str]) -> int:
    """Serves a model until Ctrl-C."""
    own, rest = _engine_arguments(argv)
    options = _parser().parse_args(rest)
    from llm_arena.engines import vllm_start
    from llm_arena.engines.vllm_server import ServerProcess, ServerSettings
    from llm_arena.models import KNOWN_MODELS, resolve_model

    vllm_start.require()
    folder = resolve_model(options.model).resolve()
    known = options.model in KNOWN_MODELS or not os.path.isdir(options.model)  # a hub id's folder has a name of its own
    settings = ServerSettings(
        directory=folder,
        name=options.name or (options.model.rpartition("/")[2] if known else folder.name),
        host=options.host,
        port=options.port,
        max_lora_rank=options.max_lora_rank,
        publishable=options.publishable,
        engine=_engine(own),
    ).with_port()
    server = ServerProcess(settings)
    try:
        told = _Progress()
        server.wait_until_up(told)
        told.end()
        print("\n".join(_lines(settings)), flush=True)
        server.wait()
    finally:
        server.stop()
    return 0


def _parser() -> Parser:
    parser = Parser(
        "serve",
        _ABOUT,
        [
            "llm-arena serve smollm2-135m",
            "llm-arena serve smollm2-135m --port 8000 --max-lora-rank 16",
            "llm-arena serve runs/self-play-1a2b3c4d/final --name mine --engine.max-model-len 2048",
            "VLLM_API_KEY=... llm-arena serve smollm2-135m --host 0.0.0.0 --port 8000",
        ],
    )
    parser.add_argument("model", metavar="MODEL", help="a known name, a folder, or a hub id")
    parser.add_argument("--host", metavar="HOST", default="127.0.0.1", help="address to serve on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="PORT", type=int, default=0, help="its port (default: a free one)")
    parser.add_argument("--name", metavar="NAME", help="name that clients ask by (default: the model's)")
    parser.add_argument(
        "--max-lora-rank",
        metavar="R",
        type=int,
        default=0,
        help="take adapters of at most this rank (default 0: none; then full weights can be published)",
    )
    parser.add_argument(
        "--publishable", action="store_true", help="let weights be published although others can reach the server"
    )
    parser.add_argument("--engine.NAME", metavar="VALUE", dest="engine", help="an engine setting, or vLLM's argument")
    return parser


def _engine_arguments(argv: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Takes `--engine.NAME VALUE` out of a command line; a value is JSON where it is some, else text."""
    own: dict[str, Any] = {}
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name.startswith("--engine.") or name == "--engine.NAME":
            rest.append(argument)
            continue
        text = value if equals else next(arguments, None)
        if text is None or (not equals and text.startswith("--")):
            raise UsageError(f"serve: {name} needs a value, e.g. {name} 1")
        try:
            own[name.removeprefix("--engine.").replace("-", "_")] = json.loads(text)
        except json.JSONDecodeError:
            own[name.removeprefix("--engine.").replace("-", "_")] = text
    return own, rest


def _engine(own: dict[str, Any]) -> EngineSettings:
    kind = own.pop("kind", "vllm")
    if kind != "vllm":
        raise UsageError(f"serve: --engine.kind is {kind!r}, and only vllm serves; leave it out")
    if "url" in own:
        raise UsageError("serve: --engine.url names a server that runs; where to serve is said by --host and --port")
    dtype = own.pop("dtype", "auto")
    if dtype not in DTYPES:
        raise UsageError(f"serve: --engine.dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return EngineSettings(kind="vllm", devices=str(own.pop("devices", "auto")), dtype=dtype).with_args(own)


def _lines(settings: Any) -> list[str]:
    """Returns what is said when the server is up."""
    name, url = visible(settings.name, newlines=False), settings.url
    lines = [f"serving {name} at {url}", f"frozen seat: openai:{name}@{url}"]
    if settings.takes_weights:
        how = f"lora_rank = {settings.max_lora_rank}\n" if settings.max_lora_rank else ""
        lines.append(f'trained policy:\n[policies.NAME]\n{how}engine = {{kind = "openai", url = "{url}"}}')
    else:
        lines.append("weights can't be published to it, since others can reach it (--publishable)")
    if settings.key():
        lines.append("clients need the key: in the environment variable OPENAI_API_KEY")
    return lines


class _Progress:
    """Says that the server is starting: on a terminal in one line, else every ten seconds."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._told = -PATIENCE_SECONDS

    def __call__(self, seconds: float) -> None:
        if self._live:
            print(f"\rvLLM starts ... {seconds:.0f} s ", end="", file=sys.stderr, flush=True)
        elif seconds - self._told >= PATIENCE_SECONDS:
            self._told = seconds
            print(f"vLLM starts ... {seconds:.0f} s", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leaves the line."""
        if self._live:
            print(file=sys.stderr)


__all__ = ["run_serve"]
