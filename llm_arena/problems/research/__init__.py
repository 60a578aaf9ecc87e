"""research-v0: an invented world, its corpus and search, questions with known answers."""
