"""From traces and advantages to sequences with what the loss needs at each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llm_arena.recorder import sequences
from llm_arena.training.batch import TrainSequence
from llm_arena.training.credit import Credit
from llm_arena.types import Trace


def train_sequences(
    traces: Sequence[Trace], gained: Credit, *, policy: str, ignore_truncated: bool = False
) -> list[TrainSequence]:
    """Returns a policy's token streams of a batch of traces, each token with the advantage of its seat.

    Args:
        traces: of one step.
        gained: the advantages.
        policy: id of the policy whose sampled tokens are trained; all others are context.
        ignore_truncated: train no token of a turn that was cut by the token cap; it leaves the divisor as well.
    """
    found: list[TrainSequence] = []
    for trace in traces:
        for sequence in sequences(trace):
            advantage = gained.of(trace.id, sequence.seat)
            if sequence.policy != policy or advantage is None:
                continue
            trained = np.array(sequence.mask, dtype=np.bool_)
            if ignore_truncated:
                cut = [at >= 0 and trace.turns[at].finish == "length" for at in sequence.turn_of]
                trained &= ~np.array(cut, dtype=np.bool_)
            found.append(
                TrainSequence(
                    token_ids=np.array(sequence.token_ids, dtype=np.int64),
                    trained=trained,
                    advantage=np.full(len(trained), advantage),
                    behaviour=np.array(sequence.logprobs),
                )
            )
    return found
