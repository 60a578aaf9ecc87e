"""Answers vLLM's `/v1/completions` at once, always with the same ids; prints its port, ends with its standard input.

python benchmarks/instant_server.py MODEL TOKENS
"""

from __future__ import annotations

import asyncio
import sys

import msgspec
from aiohttp import web


class Asked(msgspec.Struct):
    """What is read of a request."""

    prompt: msgspec.Raw


def reply(tokens: int) -> tuple[bytes, bytes]:
    """Returns what stands before and after the prompt's ids in a reply as vLLM writes it."""
    ids = list(range(1000, 1000 + tokens))
    names = [f"token_id:{token}" for token in ids]
    logprobs = {"text_offset": [0] * tokens, "token_logprobs": [-1.0] * tokens, "tokens": names}
    logprobs["top_logprobs"] = [{name: -1.0} for name in names]
    choice = {"index": 0, "text": "x" * tokens, "logprobs": logprobs, "finish_reason": "length", "token_ids": ids}
    usage = {"prompt_tokens": 0, "total_tokens": tokens, "completion_tokens": tokens}
    body = {"id": "cmpl-0", "object": "text_completion", "model": "m", "usage": usage, "choices": [choice]}
    return msgspec.json.encode(body).removesuffix(b"}]}") + b',"prompt_token_ids":', b"}]}"


async def serve(model: str, tokens: int) -> None:
    """Serves until standard input ends."""
    before, after = reply(tokens)
    decoder = msgspec.json.Decoder(Asked)
    models = {"data": [{"id": model, "owned_by": "vllm", "max_model_len": 1 << 20}]}

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/v1/completions":
            asked = decoder.decode(await request.read())
            return web.Response(body=before + bytes(asked.prompt) + after, content_type="application/json")
        return web.json_response(models if request.path == "/v1/models" else {"version": "0"})

    server = await asyncio.get_running_loop().create_server(web.Server(answer), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
