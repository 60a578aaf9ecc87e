"""The two halves of every collection of problems: what is learnt from, and what is only judged on."""

from __future__ import annotations

from typing import Literal

Split = Literal["train", "heldout"]

__all__ = ["Split"]
