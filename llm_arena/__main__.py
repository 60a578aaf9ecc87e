"""`python -m llm_arena` is `llm-arena`."""

from __future__ import annotations

import sys

from llm_arena.cli import main

if __name__ == "__main__":
    sys.exit(main())
