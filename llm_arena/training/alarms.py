"""What goes wrong in a training, seen in the metrics of its steps, and which setting helps.

`ringing` is a pure function of the rows of metrics.jsonl, so a resumed run, the run's page and a test see the same.
docs/troubleshooting.md has a section for each alarm. A threshold says beside it where it comes from; what is common in
a healthy run must not ring.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from llm_arena.training.findings import FALLS, WINDOW, Finding, Rows, collapse, is_evaluated, judge_inconsistent

DOCUMENT = "docs/troubleshooting.md"

OVERFLOWS = 0.1
"""Share of episodes that overflow a context: their rewards are missing, so a tenth of all work is lost."""
REPEATED = 0.5
"""Share of repeated 4-grams: half of what a role says. The verifier of smollm2-135m repeats 0 to 0.4 in single steps of
16 episodes, where one long reply copied is much, and 0.05 and 0.12 in the mean of five (thinker-verifier-v0)."""
FEWEST_REWARDS = 20
"""So many rewards must be equal: two or three a step often are by chance."""
SAME = 1e-9
SHARE_OF_STEP = 0.85
"""Rollouts take 0.25 to 0.6 of a step in the demo and in self-play on a CPU. Above this, all else is nearly free."""
SLOWER = 2.0
"""Factor by which sampling got slower, in tokens per second and in seconds per turn both: longer replies alone make a
turn slower but not the tokens, shorter ones the other way round."""
STRAGGLER = 4.0
"""The longest episode by the mean: three quarters of the machine wait."""
COLLAPSED = 0.1
"""Entropy in nats: a coin that falls on one side 98 times of 100."""
SHARE_OF_FIRST = 0.2
MISMATCH = 0.01
"""Mean k3 in nats per token. An engine in bfloat16 is 0.02 to 0.05 nats off at a token, so at about 0.0005 (half the
square); ratios of single tokens are then far from 1."""
CUT = 0.9
"""Share of replies that the token cap cuts: nearly none ends by itself, so nearly none says what it was to say."""
DOMINATES, SHIFTED = 0.9, 0.2
"""One role's share of the trained tokens, and by how much it rose: where roles differ by design it is high at once."""

_LOST = {
    "failed_calls": "calls of the harness failed",
    "paid_to_nobody": "of its rewards were for a role or call without an answer",
}
"""What happened to the runs of a harness, by metric."""

_MEMORY = (
    *("out of memory", "can't allocate memory", "cannot allocate memory", "defaultcpuallocator", "bad_alloc"),
    *("status_alloc_failed", "no available memory for the cache", "free memory on device"),
)
"""In small letters; the last two are of a vLLM that does not start."""


@dataclass(frozen=True)
class Alarm:
    """One thing that is wrong."""

    name: str
    seen: str
    "What was seen, in numbers."
    remedy: str
    "What helps; names the setting."

    def __str__(self) -> str:
        return f"alarm {self.name}: {self.seen}. {self.remedy} (more in {DOCUMENT})"


def ringing(rows: Rows) -> list[Alarm]:
    """Returns the alarms that the newest of `rows` gives, in the order of `CHECKS`; rows are those of metrics.jsonl."""
    found = ((name, check(rows)) for name, check in CHECKS.items() if rows)
    return [Alarm(name, *finding) for name, finding in found if finding is not None]


def looked_at(count: int, evaluated: Sequence[int] = (), turns: Sequence[Hashable] = ()) -> list[int]:
    """Returns the places of the rows that a check looks at, of `count` rows: the first ones and the newest.

    Args:
        count: how many rows there are.
        evaluated: the places of those with an evaluation, of which the newest are looked at as well.
        turns: who learned in each row, see `turn_of`, where policies learn by turns: of each the first ones and the
            newest are looked at.
    """
    places: dict[Hashable, list[int]] = {}
    for place, turn in zip(range(count), turns[:count] or [()] * count, strict=True):
        places.setdefault(turn, []).append(place)
    kept = {place for own in places.values() for place in (*own[: 1 + WINDOW], *own[-WINDOW:])}
    return sorted(kept.union([place for place in evaluated if place < count][-1 - FALLS :]))


def turn_of(row: Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Returns which policies learned in a row, and which waited; nothing where all learn in every step."""
    return tuple(sorted((name, learns) for name, learns in row.items() if name.startswith("learns/")))


def of_error(error: BaseException) -> Alarm | None:
    """Returns the alarm of what ended a run, looking at its causes as well; None if no alarm is about it."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or says_out_of_memory(f"{type(seen).__name__}: {seen}"):
            return Alarm(
                "out-of-memory",
                f"{type(seen).__name__}: {' '.join(str(seen).split())[:200]}",
                "In the learner lower token_budget, set recompute, or train an adapter (lora_rank); in the engine "
                "lower max_context_tokens, max_turns of the game, or max_open_episodes; gpu_memory_utilization is "
                "vLLM's share of a GPU.",
            )
        seen = seen.__cause__  # not __context__: that was being handled when another thing went wrong
    return None


def says_out_of_memory(text: str) -> bool:
    """Whether an error's text is that of torch, CUDA, the system or an engine without memory."""
    return "OutOfMemory" in text or "MemoryError" in text or any(words in text.lower() for words in _MEMORY)


class Watch:
    """Follows a run and shows each kind of alarm once.

    Args:
        rows: of the steps that the run already has.
        show: is given each new alarm. None prints to standard error.
    """

    def __init__(self, rows: Rows = (), show: Callable[[Alarm], object] | None = None) -> None:
        self._rows: list[Mapping[str, float]] = [*rows]
        self._shown: set[str] = set()
        self._show = show if show is not None else lambda alarm: print(alarm, file=sys.stderr, flush=True)

    def look(self, row: Mapping[str, float]) -> dict[str, float]:
        """Takes the metrics of the next step and returns `alarm/NAME: 1` for each alarm that rings with it."""
        evaluated = [place for place, seen in enumerate(self._rows) if is_evaluated(seen)]
        turns = [turn_of(seen) for seen in self._rows]
        self._rows = [self._rows[place] for place in looked_at(len(self._rows), evaluated, turns)] + [row]
        alarms = ringing(self._rows)
        for alarm in alarms:
            if alarm.name not in self._shown:
                self._shown.add(alarm.name)
                self._show(alarm)
        return {f"alarm/{alarm.name}": 1.0 for alarm in alarms}


def _out_of_memory(rows: Rows) -> Finding | None:
    lost = rows[-1].get("void_out_of_memory", 0)
    if not lost:
        return None
    return Finding(
        f"{lost:.0f} episodes of the last step are void, for the engine ran out of memory",
        "Lower max_context_tokens, max_turns of the game, or max_open_episodes; where learner and engine share a "
        "device, token_budget as well.",
    )


def _context_overflow(rows: Rows) -> Finding | None:
    share = _mean(rows, "ended/context_overflow")
    if share is None or share <= OVERFLOWS:
        return None
    return Finding(
        f"{share:.0%} of the episodes of the last {WINDOW} steps overflowed a seat's context and have no reward",
        "Raise max_context_tokens if the model has room, else lower max_turns of the game or max_new_tokens, or let "
        "the game summarize (budget). If memory is what forbids it: token_budget and recompute bound the learner's.",
    )


def _repetition(rows: Rows) -> Finding | None:
    found = {role: share for role, share in _roles(rows, "reply/repeated") if share > REPEATED}
    if not found:
        return None
    return Finding(
        f"of the word 4-grams, {_shares(found)} stood in another seat's last reply (last {WINDOW} steps)",
        'Make the second seat adversarial (thinker-verifier-v0: --env-args \'{"verifier": "adversarial"}\'), pay who '
        'mends and who spoils (\'{"reward": "additive"}\'), or give it a system text of its own. A role whose task is '
        "to hand on what it read does so rightly.",
    )


def _reward_stuck(rows: Rows) -> Finding | None:
    found = _stuck(rows)
    lost = {what: sum(row.get(name, 0) for row in rows[-WINDOW:]) for name, what in _LOST.items()}
    said = " and ".join(f"{count:.0f} {what}" for what, count in lost.items() if count)
    if found is None or not said:
        return found
    return Finding(
        f"{found.seen}, and in these steps {said}",
        "First see to it that the harness pays roles and calls that were answered, and read why calls failed "
        f"(return_exceptions hides it). {found.remedy}",
    )


def _stuck(rows: Rows) -> Finding | None:
    if len(rows) < WINDOW:
        return None
    last = rows[-WINDOW:]
    if all(row.get("multi_agent/early_termination_rate", 1) == 0 and row.get("episodes") for row in last):
        ends = {name.removeprefix("ended/"): _mean(rows, name) or 0.0 for name in last[-1] if name.startswith("ended/")}
        said = ", ".join(f"{share:.0%} {name.replace('_', ' ')}" for name, share in ends.items() if share)
        return Finding(
            f"no episode of the last {WINDOW} steps came to a final answer or a decision ({said})",
            "Read an episode on the run's page: does the reply have the form that the game reads? In games about "
            'problems small models close no tag: --env-args \'{"answer_format": "lenient"}\'; raise max_new_tokens if '
            "replies are cut, max_turns "
            "if the limit ends them, retries if the form is nearly right.",
        )
    if all(row.get("groups") and row.get("groups_uninformative") == row["groups"] for row in last):
        return Finding(
            f"all {last[-1]['groups']:.0f} groups of each of the last {WINDOW} steps had equal rewards: no gradient",
            "Raise group_size, choose starts that are neither too hard nor too easy (level, starts), or compare with a "
            "running baseline (estimator rae).",
        )
    rewards = sum(row.get("episodes", 0) for row in last)
    if rewards >= FEWEST_REWARDS and all(row.get("reward/std", 1) <= SAME for row in last):
        means = [row["reward/avg"] for row in last]
        if max(means) - min(means) <= SAME:
            return Finding(
                f"within each role all rewards of the last {WINDOW} steps were the same (reward/avg {means[-1]:g})",
                "If that is the best there is, the run is done. Else check that the answer's form is the one that the "
                "game reads (answer_format), and give it starts that succeed sometimes (level, starts).",
            )
    return None


def _slow_rollouts(rows: Rows) -> Finding | None:
    if len(rows) <= WINDOW:  # the first step warms up
        return None
    last = rows[-WINDOW:]
    rollout, step = _mean(rows, "rollout_seconds"), _mean(rows, "step_seconds")
    if rollout is None or step is None or step <= 0:
        return None
    overlap = _mean(rows, "overlap") or 0.0
    async_hint = "" if overlap else ", or sample while the learner works (max_staleness 1)"
    if rollout / step > SHARE_OF_STEP and overlap < 0.5:
        return Finding(
            f"rollouts take {rollout / step:.0%} of a step ({rollout:.1f} s of {step:.1f} s, last {WINDOW} steps)",
            "Calls of a turn wait for each other: play more at once (max_open_episodes, starts_per_step), lower "
            f"max_turns of the game or max_new_tokens, use --engine vllm{async_hint}.",
        )
    mean, longest = _mean(rows, "episode_seconds/avg"), _mean(rows, "episode_seconds/max")
    many = all(row.get("episodes", 0) >= 2 * STRAGGLER for row in last)
    if mean and longest and many and longest > STRAGGLER * mean and longest > 0.8 * rollout > 0.4 * step:
        return Finding(
            f"the longest episode takes {longest:.1f} s, the mean {mean:.1f} s, and the step waits for it",
            f"Lower max_turns of the game or max_new_tokens, set a turn's time limit (turn_seconds){async_hint}.",
        )
    first = rows[1 : 1 + WINDOW]
    if len(rows) >= 2 * WINDOW + 1:
        tokens = [_rate(part, "sampled_tokens") for part in (first, last)]
        turns = [_rate(part, "multi_agent/avg_turns", "episodes") for part in (first, last)]
        if tokens[0] > SLOWER * tokens[1] > 0 and turns[0] > SLOWER * turns[1] > 0:
            return Finding(
                f"{tokens[1]:,.0f} tokens per second of rollout, {tokens[0]:,.0f} in the first steps; "
                f"{turns[1]:.2g} turns per second, then {turns[0]:.2g}",
                "Something else uses the machine, or contexts have grown (multi_agent/conversation_token_count): lower "
                f"max_turns of the game or max_context_tokens{async_hint}.",
            )
    return None


def _entropy_collapse(rows: Rows) -> Finding | None:
    rows = _of_the_same_turn(rows)
    now = _mean(rows, "entropy")
    if now is None or len(rows) < 2 * WINDOW:
        return None
    first = sum(row.get("entropy", 0.0) for row in rows[:WINDOW]) / WINDOW
    if now >= min(COLLAPSED, SHARE_OF_FIRST * first):
        return None
    return Finding(
        f"entropy is {now:.3g} nats per token ({_last(rows)}), and was {first:.3g} in the first steps",
        "All samples of a start are nearly the same, so nothing is compared. Give an entropy_weight (0.01 to 0.1) or a "
        "kl_weight, or lower lr, in a new run. A task with one right reply may end like this.",
    )


def _mismatch(rows: Rows) -> Finding | None:
    now = _mean(rows, "mismatch")
    if now is None or now <= MISMATCH:
        return None
    return Finding(
        f"mean k3 between the policy that sampled and the learner is {now:.3g} nats per token (last {WINDOW} steps)",
        "Lower lr or max_staleness, weight by importance (importance truncate), and compare with an engine in float32 "
        "(engine.dtype float32): if it stays there, engine and learner don't compute the same model.",
    )


def _replies_cut(rows: Rows) -> Finding | None:
    found = {role: share for role, share in _roles(rows, "reply/truncated") if share >= CUT}
    if not found:
        return None
    return Finding(
        f"of the replies, {_shares(found)} were cut by the token cap (last {WINDOW} steps)",
        "Raise max_new_tokens, ask for short replies (system), or check that the model's chat template ends a turn "
        "with a token that it was trained to give.",
    )


def _all_guided(rows: Rows) -> Finding | None:
    name = "loss_mask/role_split/"
    row = rows[-1]
    newest = {turn_of(row): row for row in rows}
    if {name for name, _ in turn_of(row)} - {name for turn in newest for name, learns in turn if learns}:
        return None  # who has not had a turn yet has nothing trained, guided or not
    never = [key for key in row if key.startswith(name) and not any(one.get(key) for one in newest.values())]
    idle = [role for role in (key.removeprefix(name) for key in never) if row.get(f"reply/tokens/{role}")]
    if not row.get("guided_tokens") or not idle:
        return None
    return Finding(
        f"every turn of {' and '.join(idle)} was guided by a grammar, and guided turns are not trained: nothing is "
        "learned there",
        "Train without guided, and guide opponents or evaluations only.",
    )


def _role_split(rows: Rows) -> Finding | None:
    rows = _of_the_same_turn(rows)
    if len(rows) < 2 * WINDOW:
        return None
    for role, share in _roles(rows, "loss_mask/role_split"):
        first = sum(row.get(f"loss_mask/role_split/{role}", 0.0) for row in rows[:WINDOW]) / WINDOW
        if share > DOMINATES and share > first + SHIFTED:
            return Finding(
                f"{share:.0%} of the trained tokens are of {role} ({_last(rows)}), and were {first:.0%} at first",
                f"Ask {role} for short replies (its prompt, or system), lower max_new_tokens, or freeze it (roster) "
                "while the others learn.",
            )
    return None


CHECKS: Mapping[str, Callable[[Rows], Finding | None]] = {
    "out-of-memory": _out_of_memory,
    "context-overflow": _context_overflow,
    "reward-stuck": _reward_stuck,
    "repetition": _repetition,
    "mismatch": _mismatch,
    "entropy-collapse": _entropy_collapse,
    "replies-cut": _replies_cut,
    "all-guided": _all_guided,
    "role-split": _role_split,
    "slow-rollouts": _slow_rollouts,
    "collapse": collapse,
    "judge-inconsistent": judge_inconsistent,
}


def _of_the_same_turn(rows: Rows) -> Rows:
    """Returns the rows in which the same policies learned as in the newest: what is trained differs between turns."""
    turn = turn_of(rows[-1])
    return [row for row in rows if turn_of(row) == turn]


def _last(rows: Rows) -> str:
    """Returns which steps a check over rows of one turn is about."""
    learns = " and ".join(name.removeprefix("learns/") for name, learns in turn_of(rows[-1]) if learns)
    return f"last {WINDOW} steps" + (f" in which {learns} learned" if learns else "")


def _mean(rows: Rows, name: str) -> float | None:
    """Returns the mean over the newest `WINDOW` rows; None if there are fewer or one of them lacks the metric."""
    values = [row[name] for row in rows[-WINDOW:] if name in row]
    return sum(values) / WINDOW if len(values) == WINDOW else None


def _roles(rows: Rows, name: str) -> Iterator[tuple[str, float]]:
    """Yields (role, mean over the newest rows) of a metric."""
    for key in rows[-1]:
        if key.startswith(f"{name}/") and (mean := _mean(rows, key)) is not None:
            yield key.removeprefix(f"{name}/"), mean


def _rate(rows: Rows, *names: str) -> float:
    """Returns the sum over rows of the product of some metrics, per second of rollout."""
    total = 0.0
    for row in rows:
        product = 1.0
        for name in names:
            product *= row.get(name, 0.0)
        total += product
    return total / max(sum(row.get("rollout_seconds", 0.0) for row in rows), 1e-9)


def _shares(found: Mapping[str, float]) -> str:
    return " and ".join(f"{share:.0%} of {role}" for role, share in found.items())


__all__ = [
    "CHECKS",
    "DOCUMENT",
    "REPEATED",
    "WINDOW",
    "Alarm",
    "Watch",
    "looked_at",
    "of_error",
    "ringing",
    "says_out_of_memory",
    "turn_of",
]
