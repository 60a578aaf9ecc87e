"""Experiments, one runnable file each: `python train/self_play.py` or `llm-arena train self-play`.

Shelves are leaves: a shelf file imports the library and nothing else of ours; nothing imports a shelf file by name.
"""
