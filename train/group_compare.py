"""group-compare: the naming contest over separate episodes, paid by comparing the members of a group.

    python train/group_compare.py --model smollm2-135m --steps 25

Each topic is played by `group_size` episodes of one namer each, which know nothing of each other. When all of a group
have ended, the game compares every two of their names and pays each episode what it won. Any game with a `group_reward`
can be trained in this way; `--env-args '{"namers": 1, "judge": "length"}'` has the rule of the well-known tutorial, by
which the longer name wins. The last line of the output is the folder of the trained model.
"""

from __future__ import annotations

import sys

from llm_arena.cli import guarded
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse

DEFAULTS = TrainConfig(
    env="naming-v0",
    env_args='{"judge": "rubric", "namers": 1}',
    starts_per_step=8,
    group_size=4,
    credit="group",
    estimator="group_mean",
    max_new_tokens=24,
    lr=3e-5,
    lr_end=1e-5,
)


def main(argv: list[str] | None = None) -> int:
    """Trains on comparisons within groups."""
    arguments = sys.argv[1:] if argv is None else argv
    prog, description = "llm-arena train group-compare", __doc__ or ""
    config = parse(TrainConfig, arguments, prog=prog, description=description, default=DEFAULTS)
    if config.harness is not None:
        default = DEFAULTS.without_game()
        config = parse(TrainConfig, arguments, prog=prog, description=description, default=default)
    if config.credit != "group":
        raise UsageError(f"group-compare has credit by group, and --credit {config.credit} was given; use self-play")
    from llm_arena.training.loop import train  # loads torch

    result = train(config, script="group-compare")
    print(result.final_dir)
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
