"""Writes tests/golden/<env>.jsonl, one trace per env: `python tests/programs/make_golden.py [ENV ...]`.

Run it only when a change of rules is meant, and read the diff: a golden trace that changed is a new version of a game.
"""

import sys
from pathlib import Path

import llm_arena
from llm_arena.trace_file import TraceWriter

GOLDEN = Path(__file__).parents[1] / "golden"


def make(env_id: str) -> None:
    """Plays one episode: a scripted player in the first seat of each role, random legal replies in the others."""
    env = llm_arena.make(env_id)
    agents = {seat: "random-legal" for seat in env.possible_agents}
    for name in reversed(env.baselines):
        for role in env.baseline_roles.get(name, list(env.role_counts)):
            if f"{role}_0" in agents:
                agents[f"{role}_0"] = f"{env_id}/{name}"
    trace = llm_arena.play(env, agents=agents, seed=11)
    trace.seconds = 0.0
    for turn in trace.turns:
        turn.seconds = 0.0
    path = GOLDEN / f"{env_id}.jsonl"
    path.unlink(missing_ok=True)
    with TraceWriter(path) as writer:
        writer.write(trace)


if __name__ == "__main__":
    for env_id in sys.argv[1:] or list(llm_arena.registry):
        make(env_id)
