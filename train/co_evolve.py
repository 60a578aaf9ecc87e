"""co-evolve: each role has a model of its own; they play each other, and each learns from what its own seats earned.

    python train/co_evolve.py --env proposer-solver-v0 --model smollm2-135m --steps 25

By default the proposer's and the solver's model start from the same weights and learn in every step. In turns, one for
five steps while the other stays as it is, then the other:

    python train/co_evolve.py --alternate-every 5

Other roles or games; the roster names every seat, or its role:

    python train/co_evolve.py --env kuhn-poker-v0 --roster '{"player_0": "learner:a", "player_1": "learner:b"}'

Models that differ:

    python train/co_evolve.py --policies '{"solver": {"model": "FOLDER", "lr": 1e-6}, "proposer": {"lora_rank": 16}}'

The last line of the output is a folder that holds a model for each policy; docs/running.md says more.
"""

from __future__ import annotations

import sys

from llm_arena.cli import guarded
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse

DEFAULTS = TrainConfig(
    env="proposer-solver-v0",
    roster='{"proposer": "learner:proposer", "solver": "learner:solver"}',
    illegal="random_legal",
)
"""Where no problem was posed, a random one takes its place and the proposer is paid nothing for it: a small model poses
few, and its solvers would have nothing to learn from."""


def main(argv: list[str] | None = None) -> int:
    """Trains several policies together."""
    arguments = sys.argv[1:] if argv is None else argv
    prog, description = "llm-arena train co-evolve", __doc__ or ""
    config = parse(TrainConfig, arguments, prog=prog, description=description, default=DEFAULTS)
    if config.harness is not None:
        default = DEFAULTS.without_game()
        config = parse(TrainConfig, arguments, prog=prog, description=description, default=default)
    if not config.seated():
        raise UsageError(
            """co-evolve needs a roster that names the policies, e.g. --roster '{"proposer": "learner:a", "solver": """
            """"learner:b"}'; for one model in all seats use self-play"""
        )
    from llm_arena.training.loop import train  # loads torch

    result = train(config, script="co-evolve")
    print(result.final_dir)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
