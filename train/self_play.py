"""self-play: one model plays every seat of a game and trains on what each seat earned.

    python train/self_play.py --env naming-v0 --model smollm2-135m --steps 25

A pipeline of your own instead of a game, an async function in my_pipeline.py (see docs/harness.md):

    python train/self_play.py --harness my_pipeline:run --starts problems.jsonl --group-size 4

Pure self-play of games with bluffing cycles: give it an anchor (--kl-weight 1) and some entropy (--entropy-weight 0.1).
The last line of the output is the folder of the trained model, which `llm-arena play` takes as an agent.
"""

from __future__ import annotations

import sys

from llm_arena.cli import guarded
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse


def main(argv: list[str] | None = None) -> int:
    """Trains by self-play."""
    arguments = sys.argv[1:] if argv is None else argv
    config = parse(TrainConfig, arguments, prog="llm-arena train self-play", description=__doc__ or "")
    from llm_arena.training.loop import train  # loads torch

    result = train(config, script="self-play")
    print(result.final_dir)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
