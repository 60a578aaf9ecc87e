"""Numbers about a step as flat JSON: `NAME` for the batch and `NAME/ROLE` for a role, e.g. `reward/avg/namer`.

What a conversation is made of (`multi_agent/...`, `reply/...`) counts the seats that it says below; what is learned
(`reward/...`, `loss_mask/...`) the trained ones. A void episode counts in `void` alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llm_arena.parsing import IllegalReply, strip_thinking
from llm_arena.problems.final_answers import TAG, read_answer
from llm_arena.rating import judging
from llm_arena.registry import HARNESS
from llm_arena.training import trees
from llm_arena.training.alarms import says_out_of_memory
from llm_arena.training.batch import Batch
from llm_arena.training.credit import Credit
from llm_arena.training.objective import StepStats
from llm_arena.training.repeats import Repeats
from llm_arena.types import Cause, Ending, Json, Trace, Turn

Row = dict[str, float]
_Streams = dict[str, list[trees.Ids]]

DECIDED = "decided"
ENDS = ("turn_limit", "context_overflow", "forfeit", "no_answer")
"""How an episode may end without a decision, see `how_it_ended`."""


@dataclass(kw_only=True)
class _Counts:
    """Of one role, or of all roles together."""

    turns: int = 0
    tokens: int = 0
    ended: int = 0
    seats: int = 0
    rewards: list[float] = field(default_factory=list)
    earned: list[float] = field(default_factory=list)
    "Rewards of the seats that had a turn, which alone teach anything."
    scores: list[float] = field(default_factory=list)
    replies: int = 0
    sampled: int = 0
    cut: int = 0
    bad: Counter[Cause] = field(default_factory=Counter)
    trained: int = 0
    guided_turns: int = 0
    guided: int = 0


def of_traces(
    traces: Sequence[Trace],
    learners: Callable[[Trace], Iterable[str]],
    credit: Credit,
    *,
    ignore_truncated: bool = False,
) -> Row:
    """Returns the metrics of a batch of traces.

    Of all seats, whoever holds them; the batch's number is the sum over roles, except where it says otherwise:

    - `multi_agent/avg_turns`: turns per episode. A retry belongs to the turn that it mends and is not counted; a
      summary of a view, which is a reply of its own, is.
    - `multi_agent/early_termination_rate`: share of episodes that came to a decision (a final answer, a game decided)
      before a turn limit, a full context, a forfeit or a missing answer ended them, see `how_it_ended`. For a role:
      the share that a seat of it ended, by the last turn; in a harness run that asks for the tag `<final_answer>`, by
      a reply with that tag, and several roles may have given one.
    - `multi_agent/conversation_token_count`: tokens per episode, prompts and completions of all seats with tokens;
      what calls begin with in common counts once, in the batch's number over all seats of a policy, in a role's over
      the calls of each seat: so roles may add up to more. Left out for roles without tokens.

    Of the trained seats:

    - `reward/avg`, `score/avg` (the game's own points, where it has some): mean over seats. `reward/std`: the spread
      within a role of what seats with a turn were paid, pooled over the roles for the batch; 0 says that it is all the
      same.
    - `loss_mask/role_split`: a role's share of the trained tokens; for the batch the largest of these, 0.5 if two roles
      are balanced, 1 if there is but one.
    - `reply/tokens`, `reply/truncated`, `reply/illegal`, `reply/illegal_CAUSE`: sampled tokens per reply, share of
      replies that the token cap cut, share that was not taken, and by cause (for roles). A retry is a reply.
    - `reply/repeated`: share of word 4-grams that stand in the last reply of another seat, see `repeats`.

    Of the episodes: `episodes`, `void`, `void_out_of_memory`, `ended/turn_limit`, `ended/context_overflow`,
    `ended/forfeit`, `ended/no_answer` (with `multi_agent/early_termination_rate` they add up to 1),
    `episode_seconds/avg` and `episode_seconds/max`; `groups...` and `rewards_missing`, what the credit left without
    signal; `sampled_tokens`, `guided_turns` and `guided_tokens`: what was sampled under a grammar is not trained.
    Of games whose judges are asked in both orders: `judge/pairs`, how many pairs have both verdicts, and
    `judge/consistency`, the share of them that were judged alike.
    Of the runs of a harness: `failed_calls`, and `paid_to_nobody`, rewards for calls without an answer or for roles
    that were not called.

    Args:
        traces: of one step, void ones included.
        learners: the trained seats of a trace.
        credit: what they were credited with.
        ignore_truncated: whether replies cut by the token cap are trained.
    """
    played = [trace for trace in traces if not trace.void]
    roles: dict[str, _Counts] = defaultdict(_Counts)
    ends: Counter[str] = Counter()
    tokens_of_all = 0
    repeats = Repeats()
    for trace in played:
        trained = set(learners(trace))
        end = how_it_ended(trace)
        ends[end] += 1
        for role in _who_ended(trace) if end == DECIDED else ():
            roles[role].ended += 1
        for seat in trained:
            counts = roles[trace.seats[seat].role]
            counts.seats += 1
            reward = credit.rewards.get((trace.id, seat), trace.returns.get(seat, math.nan))
            if math.isfinite(reward):
                counts.rewards.append(reward)
                if any(turn.seat == seat for turn in trace.turns):
                    counts.earned.append(reward)
            if trace.outcome is not None and seat in trace.outcome.scores:
                counts.scores.append(trace.outcome.scores[seat])
        streams = _streams(trace)
        tokens_of_all += _shared_once(trace, streams)
        for seat, tokens in conversation_tokens(trace, streams).items():
            roles[trace.seats[seat].role].tokens += tokens
        silent = {seat for seat in trained if credit.of(trace.id, seat) is None}
        for turn in trace.turns:
            counts = roles[trace.seats[turn.seat].role]
            counts.turns += turn.attempt == 0
            if turn.seat in trained:
                _count_reply(counts, turn)
                if not (turn.guided or turn.seat in silent or (ignore_truncated and turn.finish == "length")):
                    signal = credit.signals.get(trace.id, {}).get(turn.index)
                    counts.trained += len(turn.completion_ids) if signal is None else int(signal.trained.sum())
        repeats.add(trace, trained)
    row = _of_episodes(traces, played, ends, credit)
    row |= {
        "sampled_tokens": sum(counts.sampled for counts in roles.values()),
        "guided_turns": sum(counts.guided_turns for counts in roles.values()),
        "guided_tokens": sum(counts.guided for counts in roles.values()),
    }
    runs = [trace for trace in played if trace.spec.id.startswith(HARNESS)]
    for name, counted in (("failed_calls", "failed"), ("paid_to_nobody", "paid_to_nobody")) if runs else ():
        row[name] = sum(counts.get(counted, 0) for run in runs for counts in run.env_stats.values())
    row |= _of_judges(played)
    row |= _of_conversations(roles, max(len(played), 1), ends[DECIDED], tokens_of_all)
    row |= _of_learners({role: counts for role, counts in roles.items() if counts.seats})
    row |= repeats.row()
    return row | {f"group/{name}": _mean(values) for name, values in credit.metrics.items()}


def conversation_tokens(trace: Trace, streams: _Streams | None = None) -> dict[str, int]:
    """Returns how many tokens the conversation of each seat holds, what its streams begin with in common once."""
    streams = _streams(trace) if streams is None else streams
    return {seat: _unique(own) for seat, own in streams.items()}


def _shared_once(trace: Trace, streams: _Streams) -> int:
    """Returns how many tokens a trace holds, what streams of one policy begin with in common once, whosever they are.

    A harness opens a seat for each branch of a conversation. Ids of two policies may be of two tokenizers.
    """
    by_policy: dict[str, list[trees.Ids]] = defaultdict(list)
    for seat, own in streams.items():
        by_policy[trace.seats[seat].policy or trace.seats[seat].agent] += own
    return sum(map(_unique, by_policy.values()))


def _streams(trace: Trace) -> _Streams:
    """Returns what each seat was told and said in tokens, by seat: the ids of calls that no other call extends."""
    extended = {turn.extends for turn in trace.turns}
    found: _Streams = {}
    for turn in trace.turns:
        if turn.prompt_ids is not None and turn.index not in extended:
            prompt, sampled = trace.full_ids(turn.index)
            found.setdefault(turn.seat, []).append(np.array([*prompt, *sampled], dtype=np.int64))
    return found


def _unique(streams: Sequence[trees.Ids]) -> int:
    return trees.unique_tokens([streams[at] for at in trees.ordered(streams)])


def how_it_ended(trace: Trace) -> str:
    """Returns how an episode that is not void ended: `decided`, or one of `ENDS`.

    A game decides by its outcome; one whose reason begins with `no answer` came to none, as a search or a negotiation
    does whose rounds ran out (a full board, or a game of so many rounds, is a decision), and a forfeit or penalty is
    none either. A user's own harness has no rules: where a prompt of it names the tag `<final_answer>`, a reply
    must have one, and where none does, a run that returned is a run that was decided.
    """
    reason = trace.outcome.reason if trace.outcome is not None else ""
    if trace.ending is Ending.CONTEXT_OVERFLOW:
        return "context_overflow"
    if trace.ending is Ending.TRUNCATED:
        return "turn_limit"
    if reason.startswith(("forfeit", "penalty")):
        return "forfeit"
    if reason.startswith("no answer") or (_asks_for_tag(trace) and not any(map(_has_tag, trace.turns))):
        return "no_answer"
    return DECIDED


def of_step(batch: Batch, stats: StepStats, *, lr: float, clips: bool) -> Row:
    """Returns the numbers of one policy's optimizer step.

    `unique_ratio`: unique tokens by all tokens of the batch. `head_rows_per_trained_token`: rows of logits that were
    computed, below 1 where sequences share what comes before a trained token. `mismatch`: mean k3 between the
    probabilities that tokens were sampled with and the learner's, in nats; `importance_capped` and
    `importance_effective`: what the importance weights cut, and the share of tokens that they leave in effect.

    Args:
        batch: what it learned from.
        stats: what the learner measured.
        lr: its learning rate.
        clips: whether its loss bounds ratios.
    """
    ratios = {"clip_fraction": stats.clip_fraction, "approx_kl": stats.approx_kl, "updates": stats.updates}
    return {
        "loss": stats.loss,
        "entropy": stats.entropy,
        "kl": stats.kl,
        "grad_norm": stats.grad_norm,
        "lr": lr,
        "max_logprob_gap": stats.max_gap,
        "mean_logprob_gap": stats.mean_gap,
        "mismatch": stats.mismatch,
        "importance_capped": stats.capped,
        "importance_effective": stats.effective,
        "trained_tokens": batch.trained_tokens,
        "total_tokens": batch.total_tokens,
        "computed_tokens": batch.computed_tokens,
        "unique_ratio": batch.unique_ratio,
        "head_rows_per_trained_token": sum(len(micro.heads) for micro in batch) / max(batch.trained_tokens, 1),
        **(ratios if clips else {}),
    }


def headline(row: Mapping[str, float]) -> tuple[str, float]:
    """Returns the number to show as (name, value). Scores go first: in a zero-sum game the mean reward is always 0."""
    for word in ("score", "reward"):
        if f"{word}/avg" in row:
            return word, row[f"{word}/avg"]
    return "reward", 0.0


def _count_reply(counts: _Counts, turn: Turn) -> None:
    tokens = len(turn.completion_ids)
    counts.replies += 1
    counts.sampled += tokens
    counts.cut += turn.finish == "length"
    if turn.cause is not Cause.LEGAL:
        counts.bad[turn.cause] += 1
    if turn.guided:
        counts.guided_turns += 1
        counts.guided += tokens


def _of_episodes(traces: Sequence[Trace], played: Sequence[Trace], ends: Mapping[str, int], credit: Credit) -> Row:
    failures = [trace.failure for trace in traces if trace.void and trace.failure is not None]
    seconds = [trace.seconds for trace in played]
    return {
        "episodes": len(played),
        "void": credit.void,
        "void_out_of_memory": sum(says_out_of_memory(f"{fault.kind}: {fault.message}") for fault in failures),
        **{f"ended/{end}": ends[end] / max(len(played), 1) for end in ENDS},
        "episode_seconds/avg": _mean(seconds),
        "episode_seconds/max": max(seconds, default=0.0),
        "groups": credit.groups,
        "groups_uninformative": credit.uninformative,
        "groups_incomplete": credit.incomplete,
        "rewards_missing": credit.missing,
    }


def _of_judges(played: Sequence[Trace]) -> Row:
    counted = [counts for counts in map(judging, played) if counts]
    pairs = sum(counts["pairs"] for counts in counted)
    if not counted:
        return {}
    return {
        "judge/pairs": pairs,
        **({"judge/consistency": sum(counts["consistent"] for counts in counted) / pairs} if pairs else {}),
    }


def _of_conversations(roles: Mapping[str, _Counts], episodes: int, decided: int, tokens_of_all: int) -> Row:
    name = "multi_agent/{}".format
    turns, early, tokens = name("avg_turns"), name("early_termination_rate"), name("conversation_token_count")
    row: Row = {
        turns: sum(counts.turns for counts in roles.values()) / episodes,
        early: decided / episodes,
        tokens: tokens_of_all / episodes,
    }
    for role, counts in sorted(roles.items()):
        row |= {f"{turns}/{role}": counts.turns / episodes, f"{early}/{role}": counts.ended / episodes}
        if counts.tokens:
            row[f"{tokens}/{role}"] = counts.tokens / episodes
    return row


def _of_learners(roles: Mapping[str, _Counts]) -> Row:
    row: Row = {}
    all_rewards = [reward for counts in roles.values() for reward in counts.rewards]
    all_scores = [score for counts in roles.values() for score in counts.scores]
    if all_rewards:
        row["reward/avg"] = _mean(all_rewards)
        earners = max(sum(len(counts.earned) for counts in roles.values()), 1)
        row["reward/std"] = math.hypot(
            *(_std(counts.earned) * math.sqrt(len(counts.earned) / earners) for counts in roles.values())
        )
    if all_scores:
        row["score/avg"] = _mean(all_scores)
    trained = sum(counts.trained for counts in roles.values())
    if trained:
        row["loss_mask/role_split"] = max(counts.trained for counts in roles.values()) / trained
    whole = _Counts(
        replies=sum(counts.replies for counts in roles.values()),
        sampled=sum(counts.sampled for counts in roles.values()),
        cut=sum(counts.cut for counts in roles.values()),
        bad=sum((counts.bad for counts in roles.values()), Counter()),
    )
    row |= _of_replies(whole, "")
    for role, counts in sorted(roles.items()):
        if counts.rewards:
            row[f"reward/avg/{role}"] = _mean(counts.rewards)
            row[f"reward/std/{role}"] = _std(counts.earned)
        if counts.scores:
            row[f"score/avg/{role}"] = _mean(counts.scores)
        row[f"loss_mask/role_split/{role}"] = counts.trained / max(trained, 1)
        row |= _of_replies(counts, f"/{role}")
        row |= {f"reply/illegal_{cause}/{role}": count / counts.replies for cause, count in sorted(counts.bad.items())}
    return row


def _of_replies(counts: _Counts, ending: str) -> Row:
    replies = max(counts.replies, 1)
    return {
        f"reply/tokens{ending}": counts.sampled / replies,
        f"reply/truncated{ending}": counts.cut / replies,
        f"reply/illegal{ending}": counts.bad.total() / replies,
    }


def _who_ended(trace: Trace) -> set[str]:
    """Returns the roles to which the end of a decided episode is due."""
    ending = [turn for turn in trace.turns if _has_tag(turn)] if _asks_for_tag(trace) else trace.turns[-1:]
    return {trace.seats[turn.seat].role for turn in ending}


def _asks_for_tag(trace: Trace) -> bool:
    return trace.spec.id.startswith(HARNESS) and any(
        f"<{TAG}>" in text for turn in trace.turns for message in turn.messages for text in _texts(message["content"])
    )


def _has_tag(turn: Turn) -> bool:
    try:
        return read_answer(strip_thinking(turn.text), "tag") is not None
    except IllegalReply:  # thoughts that never end: nothing was answered
        return False


def _texts(content: Json) -> list[str]:
    return [content] if isinstance(content, str) else [part.get("text", "") for part in content]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    try:
        return math.fsum(known) / len(known) if known else 0.0
    except OverflowError:  # of the sum; the mean is a number
        return math.fsum(value / len(known) for value in known)


def _std(values: Sequence[float]) -> float:
    """Returns the standard deviation, without squares that would overflow."""
    mean, root = _mean(values), math.sqrt(max(len(values), 1))
    return 2 * math.hypot(*((value / 2 - mean / 2) / root for value in values))
