"""From match rows to counts: who beat whom, and how sure that is. Pure; keyed by entrant, not by seat."""

from __future__ import annotations

from llm_arena.rating.counts import Record, records, standings, total_rewards, wilson, win_rate
from llm_arena.rating.rows import MatchRow, SeatRow, Status, judging, match_row

__all__ = [
    "MatchRow",
    "Record",
    "SeatRow",
    "Status",
    "judging",
    "match_row",
    "records",
    "standings",
    "total_rewards",
    "wilson",
    "win_rate",
]
