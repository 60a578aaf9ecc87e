"""What does training find, and how is that known? Exploitability over steps, and cross-play of what was trained.

    python benchmarks/learning.py kuhn --variant kl --seed 0
    python benchmarks/learning.py plot
    python benchmarks/learning.py roles --schedule joint --seed 0
    python benchmarks/learning.py cross --seed 0

kuhn    A tiny random Llama plays kuhn-poker-v0 for some minutes on one core. Every 20 steps its exploitability
        (NashConv / 2 in chips, exact) is taken: uniform play has 0.458, an equilibrium 0. The variants differ in what
        keeps the policy from going in circles:
          plain    nothing: self-play alone
          kl       a pull to a slow average of its own weights
          past     half of the games are against past versions, one kept every 20 steps
          anchors  a fifth of the games are against past versions, a fifth against random-legal and the initial model
        All have the same entropy bonus, without which self-play settles on single actions and learns no more.

plot    The curves of all runs in the results' folder, as kuhn.svg (band from the lowest to the highest seed) and
        kuhn.md. Judge by the worst of the last quarter: a curve that goes round has a good best value.

roles   smollm2-135m learns both roles of doctor-patient-v0: jointly, or one at a time (pve) with a scripted partner.

cross   All that `roles` trained, the initial model and scripted players meet in each role on held-out cases. A reward
        that rises in joint training may come from either seat; this table tells from which. Needs both schedules.

One run per command. The same command goes on where it was stopped, and the last line is one JSON object. Runs are kept
in runs/learning, results in benchmarks/results/learning.
"""

from __future__ import annotations

import json
import sys

import tyro
from learning_kuhn import Kuhn
from learning_plot import Plot
from learning_roles import Cross, Roles

from llm_arena.cli import guarded


def main(argv: list[str] | None = None) -> int:
    """Runs one command and prints its figures."""
    command: Kuhn | Plot | Roles | Cross = tyro.cli(
        Kuhn | Plot | Roles | Cross,
        description=__doc__,
        args=argv,
    )
    print(json.dumps(command.run()))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
