"""Boards, one TOML file each, and their published results.

Shelves are leaves: a shelf file imports the library and nothing else of ours; nothing imports a shelf file by name.
"""
