"""A model's exact probabilities of legal actions, through the prompts that the game and the agent really send.

The reply that stands for an action is the action's bare text: its tokens, then a token that ends a turn. Its
probability is the product over these tokens; over the legal actions it is renormalised. `llm_arena.exploitability`
takes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from llm_arena.engines.fake import FakeEngine
from llm_arena.game_tree import Tree, past_of
from llm_arena.roster import make_agent
from llm_arena.runtime import Runtime, ServedPolicy
from llm_arena.tokens import ChatFormat
from llm_arena.types import Action, Completion, Reply

_ROOM = 1 << 20
"""Context of the agent that makes the prompts, in tokens: it samples nothing."""


def prompts_of(tree: Tree, chat: ChatFormat, *, ends: bool = True, **settings: Any) -> list[list[int]]:
    """Returns the prompt ids of each information set, as an LLM agent makes them.

    Where the seat has acted before, its own reply is the bare action.

    Args:
        tree: the game.
        chat: of the model.
        ends: whether replies end with a token that ends a turn; False where `max_new_tokens` cuts them.
        settings: of the agent, e.g. `system="You never bluff."`.

    Raises:
        UsageError: the agent has no such setting.
    """
    engine = FakeEngine(lambda ids, sampling: [0], policies=("prompts",))
    with Runtime(engine=engine) as runtime:
        runtime.serve("prompts", ServedPolicy(engine, "prompts", chat, _ROOM))
        agent = make_agent("llm:prompts", env_id=tree.spec.id, runtime=runtime, **settings)
        heard: dict[tuple[int, str], Action] = {}

        async def ask() -> list[list[int]]:
            found = []
            for infoset in tree.infosets:
                asked = await agent.act(infoset.view, past_of(infoset, heard))
                assert asked.prompt_ids is not None  # an LLM agent's action has them
                found.append(asked.prompt_ids)
                for action in infoset.actions:
                    ids = _reply_ids(chat, action, ends=ends)
                    said = Completion(token_ids=ids, logprobs=[0.0] * len(ids), finish="stop" if ends else "length")
                    heard[infoset.index, action] = Action(
                        reply=Reply(action, said.finish), prompt_ids=asked.prompt_ids, completion=said
                    )
            return found

        return runtime.run(ask())


def action_chances(
    model: Any, tree: Tree, chat: ChatFormat, prompts: Sequence[Sequence[int]], *, ends: bool = True
) -> list[list[float]]:
    """Returns a model's probabilities of the legal actions of each information set, in the order of `tree.infosets`.

    Args:
        model: a transformers causal LM, e.g. `learner.model`.
        tree: the game.
        chat: of the model.
        prompts: those of `prompts_of`.
        ends: as there. With it an action's probability holds that of all tokens that end a turn.
    """
    replies = {action: _reply_ids(chat, action, ends=False) for infoset in tree.infosets for action in infoset.actions}
    stops = torch.tensor(chat.stop_ids) if ends else None
    return [
        _logprobs(model, prompt, [replies[action] for action in infoset.actions], stops).softmax(0).tolist()
        for infoset, prompt in zip(tree.infosets, prompts, strict=True)
    ]


def _reply_ids(chat: ChatFormat, action: str, *, ends: bool) -> list[int]:
    ids: list[int] = chat.tokenizer.encode(action, add_special_tokens=False)
    return [*ids, chat.stop_ids[0]] if ends else ids


def _logprobs(model: Any, prompt: Sequence[int], replies: Sequence[list[int]], stops: Tensor | None) -> Tensor:
    """Returns the log-probability [replies] of each reply after a prompt, in nats (float64 from the logits on)."""
    longest = max(map(len, replies))
    # What is padded stands behind all that counts, where a causal model does not look.
    rows = [[*prompt, *reply, *[0] * (longest - len(reply))] for reply in replies]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor(rows, device=next(model.parameters()).device), use_cache=False).logits
    logprobs = logits[:, len(prompt) - 1 :].double().log_softmax(-1).cpu()
    totals = []
    for row, reply in zip(logprobs, replies, strict=True):
        total = row[range(len(reply)), reply].sum()
        totals.append(total if stops is None else total + row[len(reply), stops].logsumexp(0))
    return torch.stack(totals)


__all__ = ["action_chances", "prompts_of"]
