"""What people read: a run as one HTML page, an episode as text. Text of models is shown, never obeyed."""

from __future__ import annotations

from pathlib import Path

from llm_arena.report.text import episode_lines, visible


def write_report(run_dir: Path | str) -> Path:
    """Writes `index.html` into a run's folder and returns its path; see `llm_arena.report.page`."""
    from llm_arena.report.page import write_page  # jinja2 is loaded only where a page is written

    return write_page(Path(run_dir))


__all__ = ["episode_lines", "visible", "write_report"]
