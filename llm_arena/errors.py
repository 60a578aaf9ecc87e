"""Every error that a user can meet, and the failures that are records instead of exceptions.

An error that a person can cause derives from `ArenaError`; the command line prints it as one line, without a
traceback, and exits with `exit_code`. The message says what was given, what was expected, and the remedy.
Each class also inherits the builtin that it refines, so that ordinary `except` clauses work.

A fault inside an episode does not raise out of a batch: it is recorded as a `types.Failure` that names the
boundary it crossed (env, agent, engine, parser), and the other episodes go on.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ArenaError(Exception):
    """Base of all errors of this library that a user can cause and can mend."""

    exit_code = 1


class UsageError(ArenaError, ValueError):
    """An argument, a configuration key or a setting is wrong; the command line exits with 2."""

    exit_code = 2


class UnknownName(ArenaError, LookupError):
    """A name (env, model, seat, agent, configuration key) is not known; the message suggests the nearest."""

    exit_code = 2


class NamespaceNotFound(UnknownName):
    """The namespace of an env id (the part before `/`) is not registered."""


class NameNotFound(UnknownName):
    """The name of an env id is not registered."""


class VersionNotFound(UnknownName):
    """The name of an env id is known, its version is not."""


class DeprecatedEnv(UnknownName):
    """The version asked for was retired; a newer one exists."""


class EnvContractError(ArenaError, TypeError):
    """A game broke the contract of `ArenaEnv` (an unknown seat, a reward for nobody, a leak)."""


class MissingExtra(ArenaError, ImportError):
    """An optional dependency is not installed; the message names the extra to install."""


class ModelError(ArenaError, RuntimeError):
    """A model can't be fetched, loaded or used for chat."""


class TraceError(ArenaError, ValueError):
    """A trace file or a trace can't be read, has a newer schema, or doesn't replay."""


class EngineError(ArenaError, RuntimeError):
    """An engine failed or was closed; episodes that waited for it become void."""


class ServerRefusal(EngineError):
    """A server refuses a request and would refuse it again (400, 401, unknown model); the batch of episodes stops.

    Args:
        message: what was asked, and the server's words.
        status: the HTTP status.
        code: the server's name for what is wrong, such as `context_length_exceeded`; empty if it gave none.
        kind: its name for the kind of that, the `type` of OpenAI's errors.
        said: its words, uncut.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str = "", kind: str = "", said: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.kind = kind
        self.said = said


class TrainingError(ArenaError, RuntimeError):
    """Training can't go on: a parity check failed, a resumed configuration differs, weights are not finite."""


class EpisodeTimeout(ArenaError, TimeoutError):
    """An episode took longer than its time limit; it is void."""


class ContextOverflow(ArenaError, RuntimeError):
    """A conversation no longer fits an agent's `max_context_tokens`; the episode ends as truncated."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns ` Did you mean "x"?` for the nearest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f' Did you mean "{close[0]}"?' if close else ""


def missing_extra(what: str, package: str, extra: str) -> MissingExtra:
    """Returns the error for a package that is not installed.

    Args:
        what: needs it.
        package: its name.
        extra: of this library, which brings it.
    """
    return MissingExtra(f'{what} needs the package "{package}"; install it with: pip install "llm-arena[{extra}]"')


__all__ = [
    "ArenaError",
    "ContextOverflow",
    "DeprecatedEnv",
    "EngineError",
    "EnvContractError",
    "EpisodeTimeout",
    "MissingExtra",
    "ModelError",
    "NameNotFound",
    "NamespaceNotFound",
    "ServerRefusal",
    "TraceError",
    "TrainingError",
    "UnknownName",
    "UsageError",
    "VersionNotFound",
    "did_you_mean",
    "missing_extra",
]
