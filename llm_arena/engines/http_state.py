"""What a pool of servers knows about each of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False)
class Server:
    """One server, as the calls to it went."""

    url: str
    in_flight: int = 0
    failures: int = 0
    "In a row."
    rests_until: float = 0.0
    "Monotonic time before which nothing is sent."
    spread: float = 0.0
    "Seconds over which calls come back after a rest that the server asked for."
    led: bool = False
    "Whether the first of them is on its way."
    cool_down: float = 0.0
    "Length of the last cool-down; 0 while the server is in order."
    on_trial: bool = False
    passed: bool = False
    "Whether it answered the trial since the last cool-down."
    down_since: float | None = None
    "When it was first left alone; None while it is in order."
    problem: str = ""
    "What went wrong last."
    heard_at: float | None = None
    "When its last whole reply had come; None: never, or something failed since."

    def in_order(self, heard_at: float | None) -> None:
        """Notes that it answers."""
        self.failures, self.cool_down, self.down_since, self.heard_at = 0, 0.0, None, heard_at

    @property
    def open(self) -> bool:
        """Whether calls may go there, once its rest is over."""
        return self.passed or not self.cool_down

    def due(self, share: float) -> float:
        """Returns from when on a call may go there, where `share` (0 to 1) is the call's own."""
        return self.rests_until + (share * self.spread if self.led else 0.0)
