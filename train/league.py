"""league: one model plays itself, past versions of itself, and opponents that never change.

    python train/league.py --env kuhn-poker-v0 --model smollm2-135m --steps 100

Plain self-play goes round in circles: what beats the opponent of today forgets how to beat that of yesterday. Here the
model holds all seats in 60 % of the starts, meets past versions in 20 %, most often those that it does not beat yet,
and anchors in 20 %: a random player and the model that it began as, which is called MODEL here. Another mix:

    --league.self-play 0.4 --league.past 0.4 --league.anchors optimal,MODEL --league.snapshot-every 10

The end of the output is a table of live ratings, from `ratings.json` in the run's folder, and as its last line the
folder of the trained model. See docs/league.md.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from llm_arena.cli import guarded
from llm_arena.errors import UsageError
from llm_arena.training.config import TrainConfig
from llm_arena.training.config_parse import parse
from llm_arena.training.league_settings import LeagueSettings

DEFAULTS = TrainConfig(
    env="kuhn-poker-v0",
    league=LeagueSettings(self_play=0.6, past=0.2, anchors_share=0.2, anchors="random-legal,MODEL"),
    num_steps=100,
    starts_per_step=32,
    max_new_tokens=8,
    illegal="random_legal",
)
"""A reply that is no legal action is replaced by a random one, or a small model would hardly ever finish a game."""


def main(argv: list[str] | None = None) -> int:
    """Trains in a league."""
    arguments = sys.argv[1:] if argv is None else argv
    config = parse(TrainConfig, arguments, prog="llm-arena train league", description=__doc__ or "", default=DEFAULTS)
    if not config.league.on:
        raise UsageError("league needs opponents: give league.past or league.anchors_share a share, or use self-play")
    anchors = [config.model if name == "MODEL" else name for name in config.league.anchor_names()]
    config = dataclasses.replace(config, league=dataclasses.replace(config.league, anchors=",".join(anchors)))
    from llm_arena.training.loop import train  # loads torch

    result = train(config, script="league")
    print(table(result.run_dir / "ratings.json"))
    print(result.final_dir)
    return 0


def table(file: Path) -> str:
    """Returns the live ratings of a run as text, the best of each role first."""
    told = json.loads(file.read_text(encoding="utf-8"))
    lines = [told["about"], f"{'role':12} {'mu':>7} {'sigma':>6} {'mu - 3 sigma':>12} {'games':>6}  entrant"]
    for one in told["ratings"]:
        rated = f"{one['mu']:7.2f} {one['sigma']:6.2f} {one['ordinal']:12.2f} {one['games']:6}"
        lines.append(f"{one['role']:12} {rated}  {one['entrant']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(guarded(main))
