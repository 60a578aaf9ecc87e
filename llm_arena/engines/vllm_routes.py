"""What we add to vLLM's HTTP server: full weights that are exchanged between requests, each under a name of its own.

vLLM loads `PolicyRoutes` by `--middleware`, in the server's process. Its own development routes could exchange weights
too, but let anybody who reaches them call any method of the worker, ask for no key, and let a request of one version
slip into the next. Here a name stands for weights: other weights, other name, and the old one is unknown from then on.

`GET /v1/llm_arena` tells what the server can do. `POST /v1/llm_arena/weights` with `name` and `directory` waits until
what runs has ended (what comes meanwhile waits), loads the folder, empties the prefix cache, and serves under `name`
alone; two empty strings put back what the server was started with.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from llm_arena.engines.vllm_start import is_cpu
from llm_arena.engines.weight_folders import computation, refuse_unfit, tensor_shapes
from llm_arena.errors import EngineError
from llm_arena.threads import in_thread

INFO = "/v1/llm_arena"
WEIGHTS = "/v1/llm_arena/weights"
HEALTH = "/health"
TAKES_VARIABLE = "LLM_ARENA_SERVER_TAKES_WEIGHTS"
"""Environment variable; `1` lets the server take weights."""
GUARDED = ("/v1/", "/v2/", "/inference/")
"""What begins so asks for the key in vLLM itself."""

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Any, Any], Awaitable[None]]


class PolicyRoutes:
    """Middleware around vLLM's server (ASGI), one per server process."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._takes = os.environ.get(TAKES_VARIABLE) == "1"
        self._keyed = bool(os.environ.get("VLLM_API_KEY"))
        self._weights: str | None = ""
        self._running = 0
        self._exchanging = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()
        self._ended = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Passes everything on, and holds it back while weights are being exchanged."""
        if scope["type"] == "lifespan":
            await self._prepare(scope["app"])
        path = scope.get("path", "")
        if scope["type"] != "http" or path in (HEALTH, INFO, WEIGHTS):
            await self._app(scope, receive, send)
            return
        if self._keyed and not path.startswith(GUARDED):
            # vLLM asks for its key on some routes only, and others sample just as well
            await _answer({"error": "with a key, only /v1 and /health are served"}, 404)(scope, receive, send)
            return
        await self._open.wait()
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1
            self._ended.set()

    async def _prepare(self, app: Any) -> None:
        self._state = app.state
        self._served = list(self._models.base_model_paths)
        app.router.add_route(INFO, self._tell, methods=["GET"])
        app.router.add_route(WEIGHTS, self._take, methods=["POST"])
        if self._max_lora_rank() and is_cpu():
            await self._client.collective_rpc("reserve_base_slot")

    @property
    def _client(self) -> Any:
        return self._state.engine_client

    @property
    def _models(self) -> Any:
        return self._state.openai_serving_models

    def _max_lora_rank(self) -> int:
        lora = self._client.vllm_config.lora_config
        return 0 if lora is None else int(lora.max_lora_rank)

    async def _tell(self, request: Any) -> Any:
        model = self._client.model_config
        return _answer(
            {
                "weights": self._weights,  # "": those of the start; null: none that are whole
                "takes_weights": self._takes,
                "max_lora_rank": self._max_lora_rank(),
                "logprobs_mode": str(model.logprobs_mode),
                "dtype": str(model.dtype).removeprefix("torch."),
            }
        )

    async def _take(self, request: Any) -> Any:
        if not self._takes:
            return _answer({"error": "this server takes no weights; see llm-arena serve --help"}, 403)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            # a page in somebody's browser may send anything to this machine, but not this without asking first
            return _answer({"error": "the content type must be application/json"}, 415)
        try:
            body = await request.json()
            name, directory = body["name"], body["directory"]
        except (ValueError, KeyError, TypeError):
            name, directory = None, None
        if not (isinstance(name, str) and isinstance(directory, str) and bool(name) == bool(directory)):
            return _answer({"error": "expected is a JSON object with name and directory"}, 422)
        async with self._exchanging:
            if name == self._weights:  # the first reply was lost
                return _answer({"weights": name})
            try:
                await self._exchange(name, directory or self._served[0].model_path)
            except EngineError as error:
                return _answer({"error": str(error)}, 422)
        return _answer({"weights": name})

    async def _exchange(self, name: str, directory: str) -> None:
        base = Path(self._served[0].model_path)
        known = [model.name for model in self._served]
        if name in known:
            raise EngineError(f"{name!r} is the name of the model that the server was started with")
        if self._models.lora_requests:
            loaded = ", ".join(sorted(self._models.lora_requests))
            raise EngineError(f"adapters of the model are loaded ({loaded:.200}), which other weights would not fit")
        await in_thread(_refuse_unfit, Path(directory), base)[0]
        self._open.clear()
        try:
            while self._running:
                self._ended.clear()
                await self._ended.wait()
            self._models.base_model_paths.clear()  # the server's one list of names; nobody may ask by the old ones
            self._weights = None
            try:
                await self._client.collective_rpc("load_policy", args=(directory,))
                emptied = await self._client.reset_prefix_cache()
            # The boundary of vLLM: whatever it raises, the one who publishes is told.
            except Exception as error:
                raise EngineError(f"vLLM did not load {directory}: {type(error).__name__}: {error}") from error
            if not emptied:
                raise EngineError("vLLM's prefix cache could not be emptied, so old keys and values would be used")
            first = self._served[0]
            renamed = [type(first)(name=name, model_path=first.model_path)]
            self._models.base_model_paths.extend(renamed if name else self._served)
            self._weights = name
        finally:
            self._open.set()


def _refuse_unfit(directory: Path, base: Path) -> None:
    if not directory.is_dir():
        raise EngineError(f"the server sees no folder {directory}; it must share the file system of who publishes")
    refuse_unfit(directory, computation(base), tensor_shapes(base))


def _answer(content: Any, status: int = 200) -> Any:
    from starlette.responses import JSONResponse  # comes with vLLM

    return JSONResponse(content, status_code=status)
