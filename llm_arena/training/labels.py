"""From traces and advantages to sequences with what the loss needs at each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llm_arena.recorder import sequences
from llm_arena.training.batch import TrainSequence
from llm_arena.training.credit import Credit
from llm_arena.training.token_rewards import earned_before
from llm_arena.types import Trace


def train_sequences(
    traces: Sequence[Trace], gained: Credit, *, policy: str, ignore_truncated: bool = False
) -> list[TrainSequence]:
    """Returns a policy's token streams of a batch of traces, each token with the advantage of its seat.

    With token rewards, the advantage of a token leaves out what its seat (under credit by trace: any seat) earned
    before it, and tokens that their function masks are context. Turns, seats and traces are numbered in the order in
    which they were begun, so sums over them do not depend on how sequences are stored.

    Args:
        traces: of one step.
        gained: the advantages.
        policy: id of the policy whose sampled tokens are trained; all others are context.
        ignore_truncated: train no token of a turn that was cut by the token cap; it leaves a divisor that counts
            tokens, turns or traces as well.
    """
    found: list[TrainSequence] = []
    first_turn = first_seat = 0
    for number, trace in enumerate(traces):
        seats = {seat: first_seat + place for place, seat in enumerate(trace.seats)}
        for sequence in sequences(trace):
            advantage = gained.of(trace.id, sequence.seat)
            if sequence.policy != policy or advantage is None:
                continue
            trained = np.array(sequence.mask, dtype=np.bool_)
            turn_of = np.array(sequence.turn_of, dtype=np.int64)
            advantages = np.full(len(trained), advantage)
            if trace.id in gained.signals:
                _use_signals(trace, sequence.seat, turn_of, gained, advantages, trained)
            if ignore_truncated:
                cut = [at >= 0 and trace.turns[at].finish == "length" for at in sequence.turn_of]
                trained &= ~np.array(cut, dtype=np.bool_)
            found.append(
                TrainSequence(
                    token_ids=np.array(sequence.token_ids, dtype=np.int64),
                    trained=trained,
                    advantage=advantages,
                    behaviour=np.array(sequence.logprobs),
                    unit=np.where(trained, turn_of + first_turn, -1),
                    trace_unit=number,
                    seat_unit=seats[sequence.seat],
                )
            )
        first_turn += len(trace.turns)
        first_seat += len(trace.seats)
    return found


def _use_signals(
    trace: Trace,
    seat: str,
    turn_of: NDArray[np.int64],
    gained: Credit,
    advantages: NDArray[np.float64],
    trained: NDArray[np.bool_],
) -> None:
    """Takes earlier token rewards out of the advantages [L] of one sequence, and masked tokens out of `trained` [L]."""
    signals = gained.signals[trace.id]
    before = earned_before(trace, signals, None if gained.credits_whole(trace.id) else seat)
    scale = gained.scale_of(trace.id, seat)
    for turn in np.unique(turn_of[turn_of >= 0]).tolist():
        where = turn_of == turn  # all tokens that the turn sampled, in their order
        advantages[where] -= scale * before[turn]
        if turn in signals:
            trained[where] &= signals[turn].trained
