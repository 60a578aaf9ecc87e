"""Engines serve policies, token ids in and token ids out. Each engine is one module, imported when it is asked for."""
