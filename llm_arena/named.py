"""Functions that a setting names as `module:function`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
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
        UsageError: there is no such module or function, or the module fails while it is imported.
    """
    module, colon, function = str(given).partition(":")
    if not (colon and module and function):
        raise UsageError(f'{setting}="{given!s:.100}"; expected module:function, e.g. {example}')
    if os.getcwd() not in sys.path and "" not in sys.path:  # last: a file in it must not hide a package
        sys.path.append(os.getcwd())
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the module is somebody else's code, and may end the program
        raise UsageError(f'{setting}="{given}": module {module} can\'t be imported: {_fault(error, module)}') from error
    found = getattr(loaded, function, None)
    if not callable(found):
        close = did_you_mean(function, [name for name, value in vars(loaded).items() if callable(value)])
        # a module of Python's own, or one installed, may go before the user's file of that name
        place = getattr(loaded, "__file__", None) or "built-in"
        raise UsageError(f'{setting}="{given}": {module} has no function {function}.{close} (loaded: {place})')
    named: Callable[..., Any] = found
    return named


def _fault(error: BaseException, module: str) -> str:
    """Returns on one line what went wrong in an import, and in which line of which file."""
    steps = traceback.extract_tb(error.__traceback__)[2:]  # without this file's own and importlib's
    steps = [step for step in steps if not step.filename.startswith("<")]
    text = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    said = text if isinstance(error, ImportError) else f"{type(error).__name__}: {text}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{said} ({error.filename}, line {error.lineno})"
    if steps:
        return f"{said} ({steps[-1].filename}, line {steps[-1].lineno})"
    if isinstance(error, SyntaxError):  # of null bytes, which have no line
        with suppress(Exception):  # the fault may lie in a package around the module, which would be imported again
            if (spec := importlib.util.find_spec(module)) is not None:
                return f"{said} ({spec.origin})"
    return said


__all__ = ["load_function"]
