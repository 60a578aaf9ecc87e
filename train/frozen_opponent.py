"""frozen-opponent: one model learns to beat a fixed opponent: a scripted player, another model, or its initial self.

    python train/frozen_opponent.py --env tic-tac-toe-v0 --model smollm2-135m --opponent random-legal

The learner holds one seat, which moves on with every start; the opponent holds the others and is never trained. Only
the roster differs from self-play. The last line of the output is the folder of the trained model.
"""

from __future__ import annotations

import sys

from llm_arena.cli import guarded
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse

DEFAULTS = TrainConfig(
    env="tic-tac-toe-v0", opponent="random-legal", starts_per_step=16, max_new_tokens=8, illegal="random_legal"
)
"""A reply that is no legal move is replaced by a random one, or a small model would hardly ever finish a game."""


def main(argv: list[str] | None = None) -> int:
    """Trains against a fixed opponent."""
    arguments = sys.argv[1:] if argv is None else argv
    config = parse(
        TrainConfig, arguments, prog="llm-arena train frozen-opponent", description=__doc__ or "", default=DEFAULTS
    )
    if config.opponent is None:
        raise UsageError("frozen-opponent needs --opponent, e.g. random-legal or a model; for none use self-play")
    from llm_arena.training.loop import train  # loads torch

    result = train(config, script="frozen-opponent")
    print(result.final_dir)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
