"""Kinds of agents, one per file: `agents/random_legal.py` holds `random-legal`. Reached by `llm_arena.make_agent`.

Shelves are leaves: a shelf file imports the library and nothing else of ours; nothing imports a shelf file by name.
"""
