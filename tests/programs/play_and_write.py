"""Plays tic-tac-toe and writes a file of traces without end, to be killed.

Usage: play_and_write.py FILE. Prints the id of each trace once it is on the disk.
"""

from __future__ import annotations

import itertools
import sys

import llm_arena

with llm_arena.Runtime() as runtime, llm_arena.TraceWriter(sys.argv[1]) as writer:
    for seed in itertools.count():
        trace = llm_arena.play("tic-tac-toe-v0", seed=seed, runtime=runtime, traces=writer)
        print(trace.id, flush=True)
