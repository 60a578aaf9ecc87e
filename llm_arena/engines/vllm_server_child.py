"""The main module of a vLLM server's process: `python -m llm_arena.engines.vllm_server_child SETTINGS`.

It holds from the first moment what `vllm_child` says, for the server and for the engine core that vLLM spawns from it,
and then is vLLM's own server.
"""

from __future__ import annotations

import os
import runpy
import sys

from llm_arena.engines.vllm_child import settle


def main() -> None:
    """Runs vLLM's server until it ends."""
    from llm_arena.engines import vllm_start
    from llm_arena.engines.vllm_server import PARENT_VARIABLE, REFUSED, ServerSettings, flags
    from llm_arena.errors import ArenaError

    parent = os.environ.pop(PARENT_VARIABLE, "")
    settle()
    if parent and os.getppid() != int(parent):
        os._exit(1)  # it went before anybody watched
    try:
        sys.argv[1:] = flags(ServerSettings.from_json(sys.argv[1]))
    except ArenaError as error:
        print(f"{REFUSED}{error.exit_code} {' '.join(str(error).split())}", flush=True)
        sys.exit(error.exit_code)
    if vllm_start.is_cpu():
        # For one sum beside each sampling vLLM would have a C++ compiler run at the first request, for many seconds;
        # two servers that did so at once have ended each other. It is read by torch in the engine core.
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    # the main module stays this one, which vLLM's own children then import
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":
    settle()
