"""Gymnasium spaces for text: what a seat is shown, and what it may answer.

`gymnasium.spaces.Text` holds letters and digits only by default and spells its whole character set out in every
message. These two hold any text, sample printable one, and print short.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

_PRINTABLE = np.array([chr(code) for code in range(32, 127)])


def _random_text(rng: np.random.Generator, max_characters: int) -> str:
    return "".join(rng.choice(_PRINTABLE, size=int(rng.integers(0, max_characters + 1))))


class ReplySpace(gymnasium.Space[str]):
    """Any text. `sample()` draws 0 to `sample_characters` printable ASCII characters."""

    def __init__(self, *, sample_characters: int = 24, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)
        self.sample_characters = sample_characters

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """Draws random text; masks don't apply to free text and are ignored."""
        return _random_text(self.np_random, self.sample_characters)

    def contains(self, x: Any) -> bool:
        """Returns whether `x` is a string."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed shape."""
        return False

    def __repr__(self) -> str:
        return "ReplySpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReplySpace) and other.sample_characters == self.sample_characters

    __hash__ = None  # type: ignore[assignment]  # as gymnasium's own mutable spaces


class ChatSpace(gymnasium.Space[list[dict[str, Any]]]):
    """A list of chat messages `{"role": ..., "content": ...}`; content is a string or a list of typed parts."""

    roles = ("system", "user", "assistant", "tool")

    def __init__(self, *, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> list[dict[str, Any]]:
        """Draws one to three random messages."""
        count = int(self.np_random.integers(1, 4))
        return [
            {"role": str(self.np_random.choice(self.roles)), "content": _random_text(self.np_random, 24)}
            for _ in range(count)
        ]

    def contains(self, x: Any) -> bool:
        """Returns whether `x` is a list of chat messages."""
        return isinstance(x, list) and all(map(self._is_message, x))

    def _is_message(self, message: Any) -> bool:
        if not isinstance(message, dict) or set(message) != {"role", "content"} or message["role"] not in self.roles:
            return False
        content = message["content"]
        if isinstance(content, str):
            return True
        return isinstance(content, list) and all(
            isinstance(part, dict) and part.get("type") in ("text", "image") for part in content
        )

    @property
    def is_np_flattenable(self) -> bool:
        """Chats have no fixed shape."""
        return False

    def __repr__(self) -> str:
        return "ChatSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatSpace)

    __hash__ = None  # type: ignore[assignment]  # as gymnasium's own mutable spaces
