"""Settings of a league; see `league`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llm_arena.errors import UsageError

SUM_TOLERANCE = 1e-9
"""The shares may miss 1 by so much."""
_BETWEEN_ANCHORS = re.compile(r",(?!\s*https?://)")
"""A comma before an address is one between the servers of the same agent."""


@dataclass(frozen=True, kw_only=True)
class LeagueSettings:
    """Whom the learner meets. The default is self-play alone.

    A mix to begin with is self_play 0.6, past 0.2, anchors_share 0.2, with the initial model as an anchor. The three
    shares sum to 1 and are not scaled to do so: a share that was forgotten is told, not shrunk.
    """

    self_play: float = 1.0
    """Share of the starts in which the learner holds every seat."""
    past: float = 0.0
    """Share of the starts against past versions of the learner. Before there is one, these are self-play."""
    anchors_share: float = 0.0
    """Share of the starts against anchors, all alike."""
    anchors: str = ""
    """Opponents that never change: agent strings separated by commas, e.g. `smollm2-135m,random-legal`. A TOML array
    and, from Python, a list are taken as well. An agent may have several addresses: `openai:m@http://a,http://b`."""
    snapshot_every: int = 20
    """Every so many steps a version of the learner is kept to be met later."""
    keep: int = 5
    """Most past versions at a time: the newest half, and of the older ones some spread evenly over the run."""
    min_games: int = 10
    """A version that has been met less often counts as one that wins half of its games."""

    def __post_init__(self) -> None:
        """Takes a list for `anchors`, and checks ranges, for a TOML file and Python can give anything.

        Raises:
            UsageError: a value that can't work, or two that don't go together.
        """
        given: Any = self.anchors
        if isinstance(given, Sequence) and not isinstance(given, str) and all(isinstance(one, str) for one in given):
            object.__setattr__(self, "anchors", ",".join(given))
        elif not isinstance(given, str):
            raise UsageError(f"league.anchors must be agent strings separated by commas, got {given!r}")
        shares = {name: getattr(self, name) for name in ("self_play", "past", "anchors_share")}
        for name, share in shares.items():
            number = isinstance(share, int | float) and not isinstance(share, bool)
            if not (number and 0 <= share <= 1):
                raise UsageError(f"league.{name} must be a share of the starts, a number from 0 to 1; got {share!r}")
        if abs(math.fsum(shares.values()) - 1) > SUM_TOLERANCE:
            said = " + ".join(f"{name} {share:g}" for name, share in shares.items())
            rest = 1 - self.past - self.anchors_share
            remedy = f"set self_play to {rest:g}" if rest >= 0 else "lower past or anchors_share"
            raise UsageError(f"the shares of a league must sum to 1, got {said}; {remedy}")
        for name in ("snapshot_every", "keep", "min_games"):
            count = getattr(self, name)
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise UsageError(f"league.{name} must be a whole number of at least 1, got {count!r}")
        self._check_anchors()

    def _check_anchors(self) -> None:
        names = self.anchor_names()
        if "" in names:
            raise UsageError(f"league.anchors has an empty name: {self.anchors!r}; give agent strings between commas")
        seen: dict[str, str] = {}
        for name in map(entrant_name, names):
            first = seen.get(_same(name))
            if first is not None:
                also = "" if first == name else f' (also as "{name}")'
                raise UsageError(f'league.anchors names "{first}" twice{also}: {self.anchors!r}; name each anchor once')
            seen[_same(name)] = name
        if bool(names) != (self.anchors_share > 0):
            raise UsageError(
                f"league.anchors_share is {self.anchors_share:g}, but "
                + (f"there are anchors ({self.anchors}): give a share" if names else "there is no anchor: name some")
                + ", e.g. anchors_share 0.2 and self_play 0.6"
            )

    @property
    def on(self) -> bool:
        """Whether the learner meets anybody but itself."""
        return self.past > 0 or self.anchors_share > 0

    def anchor_names(self) -> list[str]:
        """Returns the anchors' agent strings."""
        return [name.strip() for name in _BETWEEN_ANCHORS.split(self.anchors)] if self.anchors.strip() else []


def entrant_name(agent: str) -> str:
    """Returns what `entrant_of` calls the agent of a string: `llm:MODEL` samples from the policy MODEL."""
    return agent.removeprefix("llm:")


def _same(name: str) -> str:
    """Returns what two spellings of one model's folder have in common; any other name as it is."""
    folder = os.path.expanduser(name)
    return os.path.realpath(folder) if os.path.isdir(folder) else name


__all__ = ["LeagueSettings", "entrant_name"]
