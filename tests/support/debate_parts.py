"""Debates about cash, with statements for and against it."""

from __future__ import annotations

import importlib

import llm_arena
from llm_arena.problems.debate.motions import motions

debate = importlib.import_module("llm_arena.envs.debate")
CASH = "Cash should be abolished."
FOR = [f"{point}." for point in motions()[CASH].points["pro"]]
AGAINST = [f"{point}." for point in motions()[CASH].points["con"]]


def made(**kwargs):
    env = llm_arena.make("debate-v0", **{"motion": CASH, "opens": "pro", "rounds": 1, **kwargs})
    env.reset(seed=0)
    return env


def said(env, *statements):
    for statement in statements:
        env.step(statement)
    return env


def sides(env):
    return env.returns["pro_0"], env.returns["con_0"]
