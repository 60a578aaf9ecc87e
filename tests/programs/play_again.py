"""Plays the same episodes as in any other process, or verifies a file of traces.

Usage: play_again.py            prints the traces, their times set to 0
       play_again.py FILE       verifies every trace of the file
"""

from __future__ import annotations

import sys

import msgspec

import llm_arena

if len(sys.argv) > 1:
    for trace in llm_arena.read_traces(sys.argv[1]):
        llm_arena.verify(trace)
else:
    for env_id in ("kuhn-poker-v0", "tic-tac-toe-v0", "naming-v0"):
        for seed in range(3):
            trace = llm_arena.play(env_id, seed=seed)
            turns = [msgspec.structs.replace(turn, seconds=0.0) for turn in trace.turns]
            trace = msgspec.structs.replace(trace, turns=turns, seconds=0.0)
            sys.stdout.write(msgspec.json.encode(trace).decode() + "\n")
