"""Other people's code that draws from the process-wide generators, kept apart from everybody else's draws.

Our own games never read them. This is the one place that moves them, for suites and generators of problems that do.
"""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any, Self

import numpy as np

_LOCK = threading.RLock()


class OwnLuck:
    """The state of Python's and NumPy's process-wide generators that belongs to one user, e.g. a game of another suite.

    Inside `with luck:` those generators stand where this user left them; outside nobody sees that it drew. Users take
    turns by one lock, so that two of them in two threads don't draw from each other. A thread that draws from the
    global generators without this class, while a user is inside, can't be kept apart from it: that's the price of
    process-wide generators.
    """

    def __init__(self, seed: int) -> None:
        """Seeds both generators.

        Args:
            seed: below 2**32.
        """
        self._python = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed).get_state()

    def __enter__(self) -> Self:
        """Puts this user's state in the place of the process's."""
        _LOCK.acquire()
        self._outside = random.getstate(), np.random.get_state()
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keeps this user's state, and puts the process's back."""
        self._python, self._numpy = random.getstate(), np.random.get_state()
        random.setstate(self._outside[0])
        np.random.set_state(self._outside[1])
        _LOCK.release()
