"""Replies that no game should be surprised by, and episodes played with them."""

import json
import math

import numpy as np

from llm_arena.env import ArenaEnv
from llm_arena.types import Reply

PIECES = (
    "",
    " ",
    "\n",
    "\t",
    "\x00\x07\x1b[2J\x7f",
    "\u2028\u2029\x85\x0b\x0c",
    "\ud800",
    "\U0001f409\u200d\U0001f525",
    "你好世界",
    "السلام عليكم",
    "Привет",
    "é" * 3,
    "<think>",
    "</think>",
    "<|im_end|>",
    "<|im_start|>system\n",
    "<final_answer>",
    "</final_answer>",
    "<answer>7</answer>",
    "<tool_call>",
    '{"name": "search", "arguments": {"query": "x"}}',
    "</tool_call>",
    "VERDICT: 1",
    "VERDICT: 2",
    "ACTION: bet",
    "MOVE: 3",
    "[1]",
    "[[2]]",
    "player_0: I resign",
    "> quoted",
    "\\boxed{",
    "}",
    "'; DROP TABLE seats; --",
    "{{ 7 * 7 }} %s {0}",
    "-1",
    "0",
    "3",
    "99999999999999999999999999",
    "1e309",
    "nan",
    "yes",
    "no",
    "all work and no play " * 20,
    "(" * 50,
    "9**9**9**9",
)
FINISHES = ("stop", "stop", "stop", "length", "timeout", "refused")


def odd_reply(rng: np.random.Generator, legal: str) -> Reply:
    """Draws a reply: odd pieces, or a legal one that was cut, doubled, wrapped or shouted."""
    kind = rng.random()
    if kind < 0.01:
        text = str(rng.choice(["x", "[1] ", "\n", "é", "<think>", "(", "VERDICT: 1\n", "<tool_call>{"])) * 100_000
        text = text[:100_000]
    elif kind < 0.5:
        text = "".join(PIECES[int(at)] for at in rng.integers(0, len(PIECES), size=int(rng.integers(0, 6))))
    else:
        at = int(rng.integers(0, len(legal) + 1))
        piece = PIECES[int(rng.integers(len(PIECES)))]
        text = (
            legal[:at],
            legal[:at] + piece + legal[at:],
            f"{legal}\n{legal}",
            f"{piece}{legal}",
            f"{legal}{piece}",
            legal.upper(),
            legal.replace(" ", "\u00a0"),
            legal[::-1],
            f"<think>{legal}</think>{piece}",
            f"```\n{legal}\n```",
        )[int(rng.integers(10))]
    return Reply(text, FINISHES[int(rng.integers(len(FINISHES)))])


def play_oddly(env: ArenaEnv, seed: int, replies: int) -> int:
    """Plays episodes in which half of the replies are odd, until `replies` odd ones were given; returns the episodes.

    Nothing may raise, every step leaves its record, everything that can be seen is JSON, what is paid is finite, and
    the episode can be saved and loaded.
    """
    rng = np.random.default_rng(seed)
    given = episodes = 0
    while given < replies:
        env.reset(seed=int(rng.integers(2**63)))
        episodes += 1
        while env.agents:
            seat = env.agent_selection
            if seat not in env.pending:
                env.step(None)
                continue
            reply = env.sample_reply(seat, rng)
            if rng.random() < 0.5:
                reply = odd_reply(rng, reply)
                given += 1
            env.step(reply)
            assert env.last_step is not None and env.last_step.seat == seat
        assert env.ending is not None and all(map(math.isfinite, env.returns.values()))
        if type(env).zero_sum and env.zero_sum:
            assert abs(sum(env.returns.values())) < 1e-9
        json.dumps([env.infos, env.returns, {seat: env.facts(seat) for seat in env.possible_agents}], allow_nan=False)
        env.transcript()
    state = json.loads(json.dumps(env.save_state()))
    again = type(env)(**env.given_arguments)
    again.load_state(state)
    assert again.returns == env.returns and again.outcome == env.outcome
    return episodes
