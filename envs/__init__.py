"""Games, one per file: `envs/naming.py` holds `naming-v0`. Reached by `llm_arena.make(id)`.

Shelves are leaves: a shelf file imports the library and nothing else of ours; nothing imports a shelf file by name.
"""
