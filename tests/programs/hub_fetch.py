"""Fetches a model from the hub at `$HF_ENDPOINT`: `hub_fetch.py NAME`, where "tiny" is a known model."""

from __future__ import annotations

import sys

from llm_arena import models
from llm_arena.errors import ArenaError

models.KNOWN_MODELS["tiny"] = models.KnownModel("tiny", "", "nobody/tiny", None, 1_000)
try:
    print(models.fetch(sys.argv[1], progress=False))
except ArenaError as error:
    sys.exit(str(error))
