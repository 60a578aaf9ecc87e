"""A question of research-v0 and replies to it, which several test files share."""

from __future__ import annotations

import json

import numpy as np

import llm_arena
from llm_arena.registry import env_class

Research = env_class("research-v0")
ASKED = {"question": "What runs through Ildrmere?", "answer": ["Ivet", "the river Ivet"]}
RIGHT, WRONG = "<final_answer>Ivet</final_answer>", "<final_answer>Orsk</final_answer>"
ASSIGN = "ASSIGN 1: find Ildrmere\nASSIGN 2: find its river"


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


SEARCH, OPEN = call("search", query="river Ildrmere"), call("open", id="d136")


def begun(*replies, **arguments):
    """Returns an env of the fixed question after `replies`."""
    env = llm_arena.make("research-v0", **{**ASKED, **arguments})
    env.reset(seed=0)
    for reply in replies:
        assert not env.over
        env.step(reply)
    return env


def told(env, seat):
    return [(message["role"], message["content"]) for message in env.observe(seat)["messages"]]


def task(env, seat):
    """Returns what a searcher is told to do, from the first message of its view."""
    role, content = told(env, seat)[0]
    first = content.split("\n")[0]
    assert role == "user" and first.startswith("You look things up in a library. Your task: ")
    return first.removeprefix("You look things up in a library. Your task: ")


def play(env, seed, name=None):
    """Plays an episode with the scripted or with random legal players."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    while not env.over:
        view = env.view(env.agent_selection)
        env.step(env.baselines[name](view, rng) if name else view.sample_reply(rng))
    return env
