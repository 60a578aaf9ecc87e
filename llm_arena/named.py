"""Functions that a setting names as `module:function`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from llm_arena.errors import UsageError, did_you_mean


def load_function(setting: str, given: str, example: str) -> Callable[..., Any]:
    """Returns the function `module:function`.

    The module is looked for where Python looks, and last in the current folder, which stays on Python's path then: the
    function may import its neighbours later.

    Args:
        setting: that names it, for messages.
        given: what the setting is.
        example: of such a name.

    Raises:
        UsageError: there is no such module or function.
    """
    module, colon, function = str(given).partition(":")
    if not (colon and module and function):
        raise UsageError(f'{setting}="{given!s:.100}"; expected module:function, e.g. {example}')
    if os.getcwd() not in sys.path and "" not in sys.path:  # last: a file in it must not hide a package
        sys.path.append(os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except (ImportError, TypeError, ValueError) as error:  # the latter two: no name of a module at all
        raise UsageError(f'{setting}="{given}": module {module} can\'t be imported: {error}') from error
    found = getattr(loaded, function, None)
    if not callable(found):
        close = did_you_mean(function, [name for name, value in vars(loaded).items() if callable(value)])
        raise UsageError(f'{setting}="{given}": {module} has no function {function}.{close}')
    named: Callable[..., Any] = found
    return named


__all__ = ["load_function"]
