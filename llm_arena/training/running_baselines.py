"""Running mean rewards, from which the estimator `rae` measures; see `credit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from llm_arena.errors import UsageError

POOLED = ""
"""Stands in for the policy of a reward that belongs to none of them alone."""


class Baselines:
    """Running mean reward per (env id, role, policy): `b <- decay * b + (1 - decay) * reward`, starting at 0.

    Policies that hold seats of one role each have their own: with one for all, the better policy of a zero-sum game
    would be above it and the worse one below it in every game, whatever they do there.

    With `bias_correction` (the default) the value read is `b / (1 - decay ** votes)`, the weighted mean of the rewards
    seen so far. Without it the value creeps up from 0 over about `1 / (1 - decay)` votes, and all that time a role that
    always loses is told that losing is worse than usual.

    >>> running = Baselines(decay=0.9, bias_correction=False)
    >>> [round(running.advantage("g", "r", reward), 6) for reward in (1, 1, -1)]
    [1.0, 0.9, -1.19]
    """

    def __init__(self, decay: float = 0.95, *, bias_correction: bool = True) -> None:
        if not 0 <= decay < 1:
            raise UsageError(f"the decay of a baseline must be in [0, 1), got {decay}")
        self.decay = decay
        self.bias_correction = bias_correction
        self._running: dict[tuple[str, str, str], tuple[float, int]] = {}

    def value(self, env_id: str, role: str, policy: str = POOLED) -> float:
        """Returns the baseline of a policy in a role; 0 before the first vote."""
        mean, votes = self._of(env_id, role, policy)
        if not votes:
            return 0.0
        return mean / (1 - self.decay**votes) if self.bias_correction else mean

    def update(self, env_id: str, role: str, reward: float, policy: str = POOLED) -> None:
        """Counts one vote."""
        mean, votes = self._of(env_id, role, policy)
        self._running[env_id, role, policy] = self.decay * mean + (1 - self.decay) * reward, votes + 1

    def advantage(self, env_id: str, role: str, reward: float, policy: str = POOLED) -> float:
        """Returns `reward` minus the baseline as it was before, then counts the vote."""
        before = self.value(env_id, role, policy)
        self.update(env_id, role, reward, policy)
        return reward - before

    def state(self) -> list[dict[str, object]]:
        """Returns the state as JSON."""
        return [
            {"env_id": env_id, "role": role, "policy": policy, "mean": mean, "votes": votes}
            for (env_id, role, policy), (mean, votes) in self._running.items()
        ]

    def load(self, state: Iterable[Mapping[str, object]]) -> None:
        """Takes the state that `state` returned; a row that names no policy was saved before they were told apart."""
        self._running.clear()
        for row in state:
            key = str(row["env_id"]), str(row["role"]), str(row.get("policy", POOLED))
            self._running[key] = float(str(row["mean"])), int(str(row["votes"]))

    def _of(self, env_id: str, role: str, policy: str) -> tuple[float, int]:
        """Returns mean and votes; those of the whole role where an old checkpoint knows no more, so that it goes on."""
        pooled = self._running.get((env_id, role, POOLED), (0.0, 0))
        return self._running.get((env_id, role, policy), pooled)


__all__ = ["POOLED", "Baselines"]
